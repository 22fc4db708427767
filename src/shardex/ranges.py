"""Byte ranges: merging many small ones into few large ones. Pure; knows neither files nor rows.

A source that fetches bytes asks here what to read (`plan`), reads that, and cuts out what was wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ByteRange", "Read", "plan"]


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
