"""Planning reads: every wanted range lies in one read, and reads are as few and as small as asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.sources import ByteRange
from shardex.sources.byte_ranges import plan

ranges = st.lists(st.builds(ByteRange, st.integers(0, 300), st.integers(0, 40)), max_size=30)


@pytest.mark.parametrize(("begin", "length"), [(-1, 0), (0, -1)])
def test_no_negative_numbers(begin: int, length: int) -> None:
    with pytest.raises(ValueError, match="expected a range that begins at 0 or later"):
        ByteRange(begin, length)


@given(ranges, st.integers(0, 50), st.integers(1, 100))
def test_every_range_is_covered_once(wanted: list[ByteRange], gap: int, largest: int) -> None:
    reads = plan(wanted, gap=gap, largest=largest)
    assert sorted(number for read in reads for number in read.wanted) == list(range(len(wanted)))
    for read in reads:
        inside = [wanted[number] for number in read.wanted]
        assert read.range.begin == min(one.begin for one in inside)
        assert read.range.end == max(one.end for one in inside)


@given(ranges, st.integers(0, 50), st.integers(1, 100))
def test_reads_are_no_larger_than_asked_for_or_needed(wanted: list[ByteRange], gap: int, largest: int) -> None:
    for read in plan(wanted, gap=gap, largest=largest):
        assert read.range.length <= max(largest, *(wanted[number].length for number in read.wanted))


@given(ranges, st.integers(0, 50))
def test_reads_lie_further_apart_than_the_gap(wanted: list[ByteRange], gap: int) -> None:
    reads = plan(wanted, gap=gap, largest=10_000)
    for one, other in pairwise(reads):
        assert other.range.begin - one.range.end > gap


def test_a_range_inside_a_large_one_costs_nothing() -> None:
    (read,) = plan([ByteRange(0, 100), ByteRange(10, 5), ByteRange(100, 0)], gap=0, largest=8)
    assert (read.range, read.wanted) == (ByteRange(0, 100), (0, 1, 2))


def test_nothing_wanted() -> None:
    assert plan([], gap=8, largest=8) == []
