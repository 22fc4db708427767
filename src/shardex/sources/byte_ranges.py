"""Arithmetic on byte ranges; it reads no files.

`merge_ranges` turns many small ranges into few larger reads. The page cache asks which pages ranges touch
(`touched_pages`), which page numbers are consecutive (`runs`), and whether to download the whole file (`fetch_policy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from shardex.kernel import Integers

ACCESS_MODES = ("auto", "ranged", "whole")
"""How remote files are downloaded: as `fetch_policy` decides, only the requested ranges, or always the whole file."""
_SMALL_FILE = 8 << 20
_REST_AFTER = 4


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`length` bytes that start at `begin`.

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
        """Position after the last byte."""
        return self.begin + self.length


@dataclass(frozen=True, slots=True)
class MergedRead:
    """One range to read, and the indexes of the requested ranges inside it."""

    range: ByteRange
    wanted: tuple[int, ...]


def merge_ranges(ranges: Sequence[ByteRange], *, gap: int, largest: int) -> list[MergedRead]:
    """Merge ranges that are at most `gap` bytes apart into reads of at most `largest` bytes.

    A single range larger than `largest` is not split, because its parts would have to be joined again.

    >>> for read in merge_ranges([ByteRange(100, 10), ByteRange(0, 10), ByteRange(12, 4)], gap=8, largest=64):
    ...     print(read)
    MergedRead(range=ByteRange(begin=0, length=16), wanted=(1, 2))
    MergedRead(range=ByteRange(begin=100, length=10), wanted=(0,))
    """
    reads: list[MergedRead] = []
    begin, end, wanted = 0, -1, list[int]()
    for number in sorted(range(len(ranges)), key=lambda n: (ranges[n].begin, ranges[n].end)):
        one = ranges[number]
        together = max(end, one.end) - begin
        if wanted and one.begin - end <= gap and together <= max(largest, end - begin):
            end = max(end, one.end)
        else:
            if wanted:
                reads.append(MergedRead(ByteRange(begin, end - begin), tuple(wanted)))
            begin, end, wanted = one.begin, one.end, []
        wanted.append(number)
    if wanted:
        reads.append(MergedRead(ByteRange(begin, end - begin), tuple(wanted)))
    return reads


def read_merged(
    ranges: Sequence[ByteRange], read: Callable[[Sequence[ByteRange]], Sequence[memoryview]], *, gap: int, largest: int
) -> list[memoryview]:
    """Return the bytes of each range, read by few calls: `read` takes the merged ranges and returns their bytes."""
    merged = merge_ranges(ranges, gap=gap, largest=largest)
    out: list[memoryview] = [memoryview(b"")] * len(ranges)
    for one, data in zip(merged, read([one.range for one in merged]), strict=True):
        for number in one.wanted:
            begin = ranges[number].begin - one.range.begin
            out[number] = data[begin : begin + ranges[number].length]
    return out


def touched_pages(begin: Integers, end: Integers, page: int) -> Integers:
    """Return the sorted numbers of the pages of `page` bytes that ranges touch.

    >>> touched_pages(np.array([20, 5, 5]), np.array([31, 5, 9]), page=10).tolist()
    [0, 2, 3]
    """
    some = end > begin
    first, last = begin[some] // page, (end[some] - 1) // page
    if len(first) == 1:
        return np.arange(first[0], last[0] + 1)
    counts = last - first + 1
    starts = np.repeat(first - (np.cumsum(counts) - counts), counts)
    return np.unique(starts + np.arange(len(starts)))


def numbers_between(numbers: Integers, gap: int) -> Integers:
    """Return the numbers missing between neighbours of a sorted array that differ by at most `gap`.

    >>> numbers_between(np.array([3, 6, 7, 20]), gap=5).tolist()
    [4, 5]
    """
    near = np.flatnonzero(np.diff(numbers) <= gap)
    return touched_pages(numbers[near] + 1, numbers[near + 1], page=1)


def runs(numbers: Integers) -> list[tuple[int, int]]:
    """Return sorted numbers as runs of consecutive ones: first number and count of each.

    >>> runs(np.array([3, 4, 5, 9]))
    [(3, 3), (9, 1)]
    """
    if not len(numbers):
        return []
    cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
    bounds = [0, *cuts.tolist(), len(numbers)]
    return [(int(numbers[a]), b - a) for a, b in pairwise(bounds)]


def fetch_policy(access: str, size: int, cached: int, wanted: int, room: int) -> tuple[bool, bool]:
    """Return whether to wait for the whole file now, and whether to download the rest in the background.

    A small file costs as much as a few requests, so it is downloaded whole. The rest of a large file, of which `cached`
    bytes are present and `wanted` are requested, is downloaded in the background once these are a quarter of it: the
    rest will be read too. A file larger than half of the cache's `room` is only downloaded by ranges.

    >>> fetch_policy("auto", 1 << 20, 0, 10, room=1 << 30), fetch_policy("auto", 1 << 28, 1 << 26, 10, room=1 << 30)
    ((True, False), (False, True))
    >>> fetch_policy("auto", 1 << 28, 0, 10, room=1 << 30), fetch_policy("ranged", 10, 0, 10, room=1 << 30)
    ((False, False), (False, False))
    """
    if access != "auto" or size > room // 2:
        return access == "whole", False
    return size <= _SMALL_FILE, size > _SMALL_FILE and (cached + wanted) * _REST_AFTER >= size
