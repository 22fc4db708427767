"""The headers of a tar that lies elsewhere: read by guessing where the next ones are, many at once, and little else.

`headers` gives what `tarfiles.members` walks: the mapped bytes of a file that is here, `Headers` for one that is not.
It watches how far headers lie apart. Where that repeats (members of one size, or samples of equal parts) the next ones
are guessed, more and more at once; a wrong guess costs a request for half a KiB and is never believed, because
`members` asks for headers where they are. Small members are read in windows. Sizes that never repeat cost a round trip
each, so that only reading many tars at once helps.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from shardex.sources import ByteRange, Source

__all__ = ["Headers", "headers"]

_BLOCK = 512
_WINDOW = 64 << 10
_SMALL = 8 << 10
"""Members that are smaller on average are read in windows, which hold several headers."""
_NEAR = 2 << 10
"""A header that follows so soon (after one that extends it, as a rule) is read together with the one before."""
_LONGEST_PERIOD = 8
_MOST = 1024


def headers(source: Source, path: str, data: Any = None) -> Any:
    """The bytes of a tar, of which the headers will be looked at; `data` is its mapping if there is one."""
    if source.is_remote:
        return Headers(source, path)
    return source.load(path) if data is None else data


class Headers:
    """Bytes by slices, read from a remote source as few and as many at once as may be."""

    def __init__(self, source: Source, path: str) -> None:
        self._source, self._path = source, path
        self._size = source.stat(path).size
        self._pieces: dict[int, memoryview] = {}
        """What was read, by where it begins: a header, and guessed ones."""
        self._begin, self._window = 0, memoryview(b"")
        self._last = -1
        self._steps: list[int] = []
        """How far the last headers lay apart."""
        self._guesses = 4

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> memoryview:
        begin, end, _ = where.indices(self._size)
        if header := end - begin == _BLOCK:
            self._watch(begin)
        if not self._begin <= begin <= end <= self._begin + len(self._window):
            if begin not in self._pieces or end - begin > len(self._pieces[begin]):
                self._fetch(begin, max(begin, end), header)
            self._begin, self._window = begin, self._pieces.pop(begin)
        return self._window[begin - self._begin : end - self._begin]

    def _watch(self, begin: int) -> None:
        if self._last >= 0:
            self._steps = [*self._steps[1 - 4 * _LONGEST_PERIOD :], begin - self._last]
        self._last = begin

    def _fetch(self, begin: int, end: int, header: bool) -> None:
        """Read a piece that begins here, and where it is a header also those that are likely to follow."""
        least = _NEAR if min(self._steps, default=_BLOCK) <= _NEAR else _BLOCK
        guessed = self._guessed(begin) if header else []
        if header and not guessed and (not self._steps or sum(self._steps) < _SMALL * len(self._steps)):
            least = _WINDOW
        ranges = [ByteRange(at, min(max(least, end - begin), self._size - at)) for at in (begin, *guessed)]
        self._pieces = {one.begin: part for one, part in zip(ranges, self._read(ranges), strict=True)}

    def _read(self, ranges: list[ByteRange]) -> list[memoryview]:
        """Past the cache: pages around headers are eight times as much."""
        return self._source.read_scattered(self._path, ranges)

    def _guessed(self, begin: int) -> list[int]:
        """Where headers are after the one at `begin`, if they go on as before; more each time that this was right."""
        period = _period(self._steps)
        if not period or sum(period) < _SMALL * len(period):
            self._guesses = 4
            return []
        self._guesses = min(2 * self._guesses, _MOST)
        found, at = list[int](), begin
        for step in islice(cycle(period), self._guesses):
            at += step
            if at + _BLOCK > self._size:
                break
            if step > _NEAR:
                found.append(at)
        return found


def _period(steps: list[int]) -> list[int]:
    """The steps that come next, if the last ones repeat.

    >>> _period([7, 5, 3, 5, 3, 5, 3]), _period([1, 2, 4, 8])
    ([5, 3], [])
    """
    for length in range(1, _LONGEST_PERIOD + 1):
        last = steps[-length:]
        if len(steps) >= 3 * length and last == steps[-2 * length : -length] == steps[-3 * length : -2 * length]:
            return last
    return []
