"""Byte ranges: merging many small ones into few large ones. Pure; knows neither files nor rows.

A source that fetches bytes asks here what to read (`plan`), reads that, and cuts out what was wanted. A cache asks
which pages ranges touch (`pages_of`), which of them lie in a row (`runs`), and whether it had better have the whole
file (`reach`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["ACCESS", "ByteRange", "Read", "between", "pages_of", "plan", "reach", "runs"]

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes from `begin` on.

    >>> ByteRange(10, 5).end
    15
    """

    begin: int
    length: int

    def __post_init__(self) -> None:
        if self.begin < 0 or self.length < 0:
            raise ValueError(f"expected a range that begins at 0 or later and is not negative, got {self}")

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.begin + self.length


@dataclass(frozen=True, slots=True)
class Read:
    """One stretch to fetch, and the wanted ranges (by number) that lie in it."""

    range: ByteRange
    wanted: tuple[int, ...]


def plan(ranges: Sequence[ByteRange], *, gap: int, largest: int) -> list[Read]:
    """Merge ranges that lie at most `gap` bytes apart into reads of at most `largest` bytes.

    A single range larger than `largest` stays whole: cutting it would only mean putting it together again.

    >>> plan([ByteRange(100, 10), ByteRange(0, 10), ByteRange(12, 4)], gap=8, largest=64)
    [Read(range=ByteRange(begin=0, length=16), wanted=(1, 2)), Read(range=ByteRange(begin=100, length=10), wanted=(0,))]
    """
    reads: list[Read] = []
    begin, end, wanted = 0, -1, list[int]()
    for number in sorted(range(len(ranges)), key=lambda n: (ranges[n].begin, ranges[n].end)):
        one = ranges[number]
        together = max(end, one.end) - begin
        if wanted and one.begin - end <= gap and together <= max(largest, end - begin):
            end = max(end, one.end)
        else:
            if wanted:
                reads.append(Read(ByteRange(begin, end - begin), tuple(wanted)))
            begin, end, wanted = one.begin, one.end, []
        wanted.append(number)
    if wanted:
        reads.append(Read(ByteRange(begin, end - begin), tuple(wanted)))
    return reads


def pages_of(begin: Integers, end: Integers, page: int) -> Integers:
    """The numbers of the pages that some ranges touch, each once, rising.

    >>> pages_of(np.array([20, 5, 5]), np.array([31, 5, 9]), page=10).tolist()
    [0, 2, 3]
    """
    some = end > begin
    first, last = begin[some] // page, (end[some] - 1) // page
    if len(first) == 1:
        return np.arange(first[0], last[0] + 1)
    counts = last - first + 1
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.unique(starts + np.arange(len(starts)))


def between(numbers: Integers, gap: int) -> Integers:
    """The numbers that lack between rising ones that are no further apart than `gap`.

    >>> between(np.array([3, 6, 7, 20]), gap=5).tolist()
    [4, 5]
    """
    near = np.flatnonzero(np.diff(numbers) <= gap)
    return pages_of(numbers[near] + 1, numbers[near + 1], page=1)


def runs(numbers: Integers) -> list[tuple[int, int]]:
    """Rising numbers as runs: the first, and how many follow one another.

    >>> runs(np.array([3, 4, 5, 9]))
    [(3, 3), (9, 1)]
    """
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    return [(int(numbers[a]), b - a) for a, b in pairwise(bounds)]


ACCESS = ("auto", "ranged", "whole")
"""How files are fetched that lie elsewhere: as `reach` decides, only what is asked for, or all as soon as any is."""
_SMALL = 8 << 20
_LARGE_PART = 4


def reach(access: str, size: int, here: int, wanted: int, room: int) -> tuple[bool, bool]:
    """Whether to wait for the whole file now, and whether to fetch the rest of it behind.

    A small file costs as much as a few requests, so it is fetched whole. Of a large one, of which `here` bytes are here
    and `wanted` bytes are to come, the rest is fetched behind once that is a quarter of it: the rest is wanted too,
    then. A file that would take more than half of the `room` that the cache has is only fetched by ranges.

    >>> reach("auto", 1 << 20, 0, 10, room=1 << 30), reach("auto", 1 << 28, 1 << 26, 10, room=1 << 30)
    ((True, False), (False, True))
    >>> reach("auto", 1 << 28, 0, 10, room=1 << 30), reach("ranged", 10, 0, 10, room=1 << 30)
    ((False, False), (False, False))
    """
    if access != "auto" or size > room // 2:
        return access == "whole", False
    return size <= _SMALL, size > _SMALL and (here + wanted) * _LARGE_PART >= size
