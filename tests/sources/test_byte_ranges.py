"""Merging ranges into reads, pages of ranges, and when a whole file is downloaded."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.sources import ByteRange
from shardex.sources.byte_ranges import fetch_policy, merge_ranges, runs, touched_pages

ranges = st.lists(st.builds(ByteRange, st.integers(0, 300), st.integers(0, 40)), max_size=30)


@pytest.mark.parametrize(("begin", "length"), [(-1, 0), (0, -1)])
def test_negative_ranges_raise(begin: int, length: int) -> None:
    with pytest.raises(ValueError, match="expected a range that begins at 0 or later"):
        ByteRange(begin, length)


@given(ranges, st.integers(0, 50), st.integers(1, 100))
def test_every_range_is_in_one_read(wanted: list[ByteRange], gap: int, largest: int) -> None:
    reads = merge_ranges(wanted, gap=gap, largest=largest)
    assert sorted(number for read in reads for number in read.wanted) == list(range(len(wanted)))
    for read in reads:
        inside = [wanted[number] for number in read.wanted]
        assert read.range.begin == min(one.begin for one in inside)
        assert read.range.end == max(one.end for one in inside)


@given(ranges, st.integers(0, 50), st.integers(1, 100))
def test_reads_are_no_larger_than_the_limit_or_one_range(wanted: list[ByteRange], gap: int, largest: int) -> None:
    for read in merge_ranges(wanted, gap=gap, largest=largest):
        assert read.range.length <= max(largest, *(wanted[number].length for number in read.wanted))


@given(ranges, st.integers(0, 50))
def test_reads_are_further_apart_than_the_gap(wanted: list[ByteRange], gap: int) -> None:
    reads = merge_ranges(wanted, gap=gap, largest=10_000)
    for one, other in pairwise(reads):
        assert other.range.begin - one.range.end > gap


def test_a_range_inside_another_needs_no_read() -> None:
    (read,) = merge_ranges([ByteRange(0, 100), ByteRange(10, 5), ByteRange(100, 0)], gap=0, largest=8)
    assert (read.range, read.wanted) == (ByteRange(0, 100), (0, 1, 2))


def test_no_ranges_give_no_reads() -> None:
    assert merge_ranges([], gap=8, largest=8) == []


spans = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 80)), max_size=9)


@given(spans, st.integers(1, 40))
def test_touched_pages_and_runs(some: list[tuple[int, int]], page: int) -> None:
    begin = np.array([first for first, _ in some], np.int64)
    end = begin + np.array([length for _, length in some], np.int64)
    pages = touched_pages(begin, end, page)
    assert pages.tolist() == sorted({byte // page for first, length in some for byte in range(first, first + length)})
    assert [number for first, count in runs(pages) for number in range(first, first + count)] == pages.tolist()
    assert all(a + n < b for (a, n), (b, _) in zip(runs(pages), runs(pages)[1:], strict=False))


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (("auto", 8 << 20, 0, 1, 1 << 30), (True, False)),
        (("auto", (8 << 20) + 1, 0, 1, 1 << 30), (False, False)),
        (("auto", 40 << 20, 9 << 20, 1 << 20, 1 << 30), (False, True)),
        (("auto", 40 << 20, 9 << 20, 1 << 20, 79 << 20), (False, False)),
        (("auto", 1 << 20, 0, 1, 1 << 20), (False, False)),
        (("ranged", 1, 0, 1, 1 << 30), (False, False)),
        (("whole", 1 << 40, 0, 1, 1), (True, False)),
    ],
)
def test_fetch_policy(case: tuple[str, int, int, int, int], expected: tuple[bool, bool]) -> None:
    assert fetch_policy(*case) == expected
