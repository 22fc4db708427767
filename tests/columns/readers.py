"""Readers over Arrow arrays, and a comparison of what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.arrow_values import no_file
from shardex.columns.field_readers import Chunks, FieldReader
from shardex.features import Feature
from shardex.kernel import values_of
from shardex.samples import DictSample


def reader_over(chunks: list[pa.Array], feature: Feature, opened: list[int] | None = None) -> FieldReader:
    """Return a reader over arrays, one per chunk, which are attached when they are opened."""
    starts = np.cumsum([0, *map(len, chunks)])

    def open_chunk(number: int) -> None:
        if opened is not None:
            opened.append(number)
        field.attach(number, chunks[number])

    field = feature.reader("x", chunks[0].type, Chunks(starts, open_chunk, "chunk {}".format), no_file)
    return field


def read_one_by_one(field: FieldReader, chunks: list[pa.Array]) -> list[Any]:
    for number, array in enumerate(chunks):
        field.attach(number, array)
    getters = [field.getter(number) for number in range(len(chunks))]
    return [get(row) for get, array in zip(getters, chunks, strict=True) for row in range(len(array))]


def check(chunks: list[pa.Array], feature: Feature, expected: list[Any]) -> None:
    rows = np.random.default_rng(0).permutation(len(expected))
    found = values_of(reader_over(chunks, feature).read(rows))
    assert DictSample(v=found) == {"v": [expected[row] for row in rows]}
    assert DictSample(v=read_one_by_one(reader_over(chunks, feature), chunks)) == {"v": expected}
    assert len(reader_over(chunks, feature).read(rows[:0])) == 0
