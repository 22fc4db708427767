"""Reads the headers of remote tars in few round trips and with few bytes.

`header_bytes` returns the input of `blocks.members_of`: the mapped bytes of a local file, or `RemoteHeaders`, which
reads ahead. Each time `members_of` needs a header that was not read yet, all reads of one step run concurrently:

- Where the distances between headers repeat (members of one size, or samples of equal fields), the next headers are
  predicted, more and more at once.
- Elsewhere the tar is read from several places at once. Such a lane begins at a block that looks like a header and
  follows the sizes from there.
- Small members are read in windows that hold many headers, larger and larger ones.

None of that decides what the tar contains. `members_of` follows the headers from the first one on and uses a block only
if it arrives at exactly that offset, so a header inside the data of a member (a tar in a tar) costs reads, not
correctness. `lanes` chooses the places of the lanes.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

from shardex.formats.tar.blocks import BLOCK
from shardex.formats.tar.lanes import Lanes, ReadRanges
from shardex.sources import ByteRange, Source

_SMALL = 8 << 10
"""Members that are smaller than this on average are read in windows, which hold several headers."""
_WINDOW, _LARGEST_WINDOW = 64 << 10, 8 << 20
_NEAR = 2 << 10
"""A header this close to the one before is read together with it: of a small member, or after an extended header."""
_LONGEST_RUN = 8 << 10
"""Maximum bytes from the first to the last of several near headers that are read together."""
_LONGEST_PERIOD = 8
_STEPS = 4 * _LONGEST_PERIOD
_FEWEST_GUESSES, _MOST_GUESSES = 4, 1024


def header_bytes(source: Source, path: str, data: Any = None) -> Any:
    """Return the bytes of a tar for reading its headers; `data` is its mapping if there is one."""
    if source.is_remote:
        return RemoteHeaders(source, path)
    return source.load(path) if data is None else data


class RemoteHeaders:
    """Slices of a remote tar, which must be requested in ascending order."""

    def __init__(self, source: Source, path: str) -> None:
        self._source, self._path = source, path
        self._size = source.stat(path).size
        self._pieces = ReadRanges()
        self._lanes = Lanes(self._size, self._pieces)
        self._last = -1
        self._headers = 0
        """Number of headers requested so far."""
        self._steps: list[int] = []
        """Distances between the last of them."""
        self._guesses, self._after_guesses = _FEWEST_GUESSES, -1
        """Number of predictions at once, and the next offset that is read if the last ones were right."""
        self._window, self._window_end = _WINDOW, -1

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, where: slice) -> memoryview:
        begin, end, _ = where.indices(self._size)
        if is_header := end - begin == BLOCK:
            self._record(begin)
        if (found := self._pieces.get(begin, end)) is None:
            self._pieces.drop_before(begin)
            if not is_header:
                return self._source.read_scattered(self._path, [ByteRange(begin, max(0, end - begin))])[0]
            self._read_step(begin)
            found = self._pieces.get(begin, end)
            assert found is not None
        return found

    def _record(self, begin: int) -> None:
        if self._last >= 0:
            self._steps = [*self._steps[1 - _STEPS :], begin - self._last]
        self._last = begin
        self._headers += 1

    def _read_step(self, begin: int) -> None:
        """Read the header at `begin`, those that are predicted after it, and the next ones of all lanes."""
        near, length, guesses = _near_run(self._steps), 0, self._predicted(begin)
        if not guesses and sum(self._steps) < _SMALL * max(1, len(self._steps)):
            length = self._next_window(begin)
        elif not guesses and len(self._steps) == _STEPS:
            self._lanes.split(begin, begin // (self._headers - 1))
        ranges = [self._range(begin, max(near, length)), *guesses, *self._lanes.wanted(begin, near)]
        wanted = {one.begin: one for one in reversed(ranges)}
        # Past the cache: pages around headers are eight times as many bytes.
        parts = self._source.read_scattered(self._path, list(wanted.values()))
        self._lanes.take(dict(zip(wanted, parts, strict=True)), near)

    def _range(self, begin: int, length: int) -> ByteRange:
        return ByteRange(begin, min(length, self._size - begin))

    def _next_window(self, begin: int) -> int:
        """Return the size of a window: twice that of the last one if the members up to its end were small."""
        goes_on = 0 <= begin - self._window_end < _SMALL
        self._window = min(2 * self._window, _LARGEST_WINDOW) if goes_on else _WINDOW
        self._window_end = begin + self._window - BLOCK
        return self._window

    def _predicted(self, begin: int) -> list[ByteRange]:
        """Predict where headers after the one at `begin` are; more each time the predictions were right."""
        period = _period(self._steps)
        if not period or sum(period) < _SMALL * len(period):
            return []
        is_right = begin == self._after_guesses
        self._guesses = min(2 * self._guesses, _MOST_GUESSES) if is_right else _FEWEST_GUESSES
        runs, at = [[begin, begin]], begin
        for step in cycle(period):
            at += step
            if step <= _NEAR and at - runs[-1][0] <= _LONGEST_RUN:
                runs[-1][1] = at
            elif len(runs) > self._guesses or at + BLOCK > self._size:
                break
            else:
                runs.append([at, at])
        self._after_guesses = at
        found = [self._range(first, last + BLOCK - first) for first, last in runs[1:]]
        return [one for one in found if self._pieces.get(one.begin, one.end) is None]


def _near_run(steps: list[int]) -> int:
    """Return the bytes of a header and of those that are likely to follow close to it.

    >>> _near_run([80_000, 1024, 1024, 90_000, 1024]), _near_run([9000, 8000])
    (2560, 512)
    """
    longest = run = 0
    for step in steps:
        run = run + step if step <= _NEAR else 0
        longest = max(longest, min(run, _LONGEST_RUN))
    return longest + BLOCK


def _period(steps: list[int]) -> list[int]:
    """Return the distances that come next, if the last ones repeat; otherwise none.

    Of several periods the one that explains most of the last distances counts.

    >>> _period([7, 5, 3, 5, 3, 5, 3]), _period([1, 2, 4, 8]), _period([9, 9, 9, 1] * 3 + [9, 9, 9])
    ([5, 3], [], [1, 9, 9, 9])
    """
    best, longest = 0, 0
    for length in range(1, _LONGEST_PERIOD + 1):
        same = 0
        while same + length < len(steps) and steps[-1 - same] == steps[-1 - same - length]:
            same += 1
        if same >= 2 * length and same + length > longest:
            best, longest = length, same + length
    return steps[-best:] if best else []
