"""Reads the headers of remote tars in few requests: predicted offsets are read together, and few other bytes.

`header_bytes` returns the input of `tar_blocks.members`: the mapped bytes of a local file, or `RemoteHeaders`, which
records the distances between headers. Where they repeat (members of one size, or samples of equal fields), the next
headers are predicted, more and more at once. A wrong prediction costs a request for half a KiB and no error, because
`members` reads headers only where they are. Small members are read in windows. Sizes that never repeat cost one round
trip each; only reading many tars in parallel helps then.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import Any

from shardex.sources import ByteRange, Source

_BLOCK = 512
_WINDOW = 64 << 10
_SMALL = 8 << 10
"""Members that are smaller than this on average are read in windows, which hold several headers."""
_NEAR = 2 << 10
"""A header this close to the one before (usually an extended header) is read together with it."""
_LONGEST_PERIOD = 8
_MOST = 1024


def header_bytes(source: Source, path: str, data: Any = None) -> Any:
    """Return the bytes of a tar for reading its headers; `data` is its mapping if there is one."""
    if source.is_remote:
        return RemoteHeaders(source, path)
    return source.load(path) if data is None else data


class RemoteHeaders:
    """Slices of a remote tar, read in few requests and with few bytes."""

    def __init__(self, source: Source, path: str) -> None:
        self._source, self._path = source, path
        self._size = source.stat(path).size
        self._pieces: dict[int, memoryview] = {}
        """Bytes that were read, by offset: a header and the predicted ones."""
        self._begin, self._window = 0, memoryview(b"")
        self._last = -1
        self._steps: list[int] = []
        """Distances between the last headers."""
        self._predictions = 4

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> memoryview:
        begin, end, _ = where.indices(self._size)
        if header := end - begin == _BLOCK:
            self._record(begin)
        if not self._begin <= begin <= end <= self._begin + len(self._window):
            if begin not in self._pieces or end - begin > len(self._pieces[begin]):
                self._fetch(begin, max(begin, end), header)
            self._begin, self._window = begin, self._pieces.pop(begin)
        return self._window[begin - self._begin : end - self._begin]

    def _record(self, begin: int) -> None:
        if self._last >= 0:
            self._steps = [*self._steps[1 - 4 * _LONGEST_PERIOD :], begin - self._last]
        self._last = begin

    def _fetch(self, begin: int, end: int, header: bool) -> None:
        """Read a piece at `begin`; if it is a header, also those that are likely to follow."""
        least = _NEAR if min(self._steps, default=_BLOCK) <= _NEAR else _BLOCK
        predicted = self._predicted(begin) if header else []
        if header and not predicted and (not self._steps or sum(self._steps) < _SMALL * len(self._steps)):
            least = _WINDOW
        ranges = [ByteRange(at, min(max(least, end - begin), self._size - at)) for at in (begin, *predicted)]
        # Past the cache: pages around headers are eight times as many bytes.
        parts = self._source.read_scattered(self._path, ranges)
        self._pieces = {one.begin: part for one, part in zip(ranges, parts, strict=True)}

    def _predicted(self, begin: int) -> list[int]:
        """Predict the offsets of headers after the one at `begin`; more each time the prediction was right."""
        period = _period(self._steps)
        if not period or sum(period) < _SMALL * len(period):
            self._predictions = 4
            return []
        self._predictions = min(2 * self._predictions, _MOST)
        found, at = list[int](), begin
        for step in islice(cycle(period), self._predictions):
            at += step
            if at + _BLOCK > self._size:
                break
            if step > _NEAR:
                found.append(at)
        return found


def _period(steps: list[int]) -> list[int]:
    """Return the distances that come next, if the last ones repeat; otherwise none.

    >>> _period([7, 5, 3, 5, 3, 5, 3]), _period([1, 2, 4, 8])
    ([5, 3], [])
    """
    for length in range(1, _LONGEST_PERIOD + 1):
        last = steps[-length:]
        if len(steps) >= 3 * length and last == steps[-2 * length : -length] == steps[-3 * length : -2 * length]:
            return last
    return []
