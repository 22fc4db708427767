"""Rows of chunks, and the bits of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.columns.chunks import Chunks
from shardex.errors import RangeError
from shardex.features import Value
from shardex.kernel import values_of
from tests.columns.readers import reader_over


def open_nothing(number: int) -> None:
    """Fill no segment."""


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1))
def test_chunk_of_each_row(sizes: list[int]) -> None:
    chunks = Chunks(np.cumsum([0, *sizes]), open_nothing, str)
    expected = [number for number, size in enumerate(sizes) for _ in range(size)]
    assert chunks.of(np.arange(sum(sizes))).tolist() == expected
    assert [chunks.rows_in(number) for number in range(len(sizes))] == sizes


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=5))
def test_bits_of_rows_in_any_order(truths: list[list[bool]]) -> None:
    def fill(number: int) -> None:
        segments.put(number, np.packbits(np.array(truths[number], np.bool_), bitorder="little"))

    chunks = Chunks(np.cumsum([0, *map(len, truths)]), fill, str)
    segments = chunks.segments()
    expected = np.array([truth for part in truths for truth in part], np.bool_)
    rows = np.random.default_rng(0).permutation(len(expected))
    assert chunks.bits(segments, rows).tolist() == expected[rows].tolist()


def test_a_buffer_with_too_few_bits_is_an_error() -> None:
    chunks = Chunks(np.array([0, 9]), lambda number: segments.put(number, b"\xff"), "chunk {}".format)
    segments = chunks.segments()
    with pytest.raises(RangeError, match="chunk 0, 1 bytes"):
        chunks.bits(segments, np.array([8]))


def test_only_the_chunks_of_the_rows_are_opened() -> None:
    opened: list[int] = []
    chunks = [pa.array([k]) for k in range(10)]
    column = reader_over(chunks, Value("int64"), opened).read(np.array([7, 2, 7]))
    assert (values_of(column), sorted(opened)) == ([7, 2, 7], [2, 7])
