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
correctness.

A lane (`Lanes`) begins in the middle of the tar: it searches a block that looks like a header (magic and checksum), and
from there on follows the sizes in the headers, up to where the next lane began. The blocks that it reads are only kept
in `ReadRanges`. If the reader, which starts at the first header of the tar, arrives at such a block, it continues in
the steps of that lane without reading.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from shardex.formats.tar.blocks import BLOCK, EXTENDED, NPY_HEAD, next_header
from shardex.sources import ByteRange, Source

LANES = 32
"""Maximum number of places that are read at once, the reader itself included."""
_HEADERS_PER_LANE = 32
"""A tar that is expected to have fewer headers than that is not read by another lane."""
_HEADERS_AHEAD = 8192
"""Lanes are at most about this many headers ahead of the reader: they take 4 MiB of memory."""
_LEAST_SEARCHED, _MOST_SEARCHED = 4 << 10, 1 << 20
"""Bytes that are searched for a header at once."""
_LARGEST_MEMBERS = 4 << 20
"""Tars of members that are larger on average are not searched for headers: it would take too many bytes."""
_MOST_FAILURES = 64


class ReadRanges:
    """Byte ranges of a file that were read.

    >>> pieces = ReadRanges(); pieces.keep(512, memoryview(b"abcd")); bytes(pieces.get(513, 515)), pieces.get(515, 517)
    (b'bc', None)
    """

    def __init__(self) -> None:
        self._parts: dict[int, memoryview] = {}
        self._begins: list[int] = []

    def get(self, begin: int, end: int) -> memoryview | None:
        """Return these bytes; None if they were not read, at least not together."""
        if number := bisect_right(self._begins, begin):
            first = self._begins[number - 1]
            if end - first <= len(part := self._parts[first]):
                return part[begin - first : end - first]
        return None

    def keep(self, begin: int, part: memoryview) -> None:
        """Add bytes; of two parts that begin at one offset the longer one is kept."""
        if begin not in self._parts:
            insort(self._begins, begin)
        if len(part) >= len(self._parts.get(begin, b"")):
            self._parts[begin] = part

    def drop_before(self, begin: int) -> None:
        """Forget the parts before an offset, except the last one, which may continue after it."""
        count = max(0, bisect_right(self._begins, begin) - 1)
        for one in self._begins[:count]:
            del self._parts[one]
        del self._begins[:count]


@dataclass
class _Lane:
    start: int
    """Offset of its first header; while it searches, the offset where it goes on."""
    give_up: int
    """Offset where the search ends without success."""
    origin: int
    """Offset where the search began."""
    at: int = -1
    """Offset of the next header; negative while the lane searches the first one."""
    length: int = BLOCK
    """Bytes to read there, at least."""

    @property
    def frontier(self) -> int:
        return max(self.start, self.at)


class Lanes:
    """The lanes of one tar of `size` bytes; `pieces` holds the blocks that they have read."""

    def __init__(self, size: int, pieces: ReadRanges) -> None:
        self._size, self._pieces = size, pieces
        self._lanes: list[_Lane] = []
        self._horizon = 0
        self._searched = _LEAST_SEARCHED
        self._failures = self._successes = 0
        self._barren = size
        """No lane begins after this offset, because a search there has failed: a large member may begin before it."""

    def split(self, reader: int, average: int) -> None:
        """Begin lanes in the largest gaps, if enough headers are expected after the offset of the reader.

        `average` is the average distance between headers so far.
        """
        count = min(LANES, (self._size - reader) // max(1, average) // _HEADERS_PER_LANE)
        if average > _LARGEST_MEMBERS or self._failures > _MOST_FAILURES + self._successes:
            return
        self._horizon = min(self._size, reader + _HEADERS_AHEAD * average)
        if self._barren <= reader:
            self._barren = self._size
        self._searched = min(max(average // 4, _LEAST_SEARCHED), _MOST_SEARCHED) & -BLOCK
        while sum(not self._is_done(number) for number in range(len(self._lanes))) + 1 < count:
            gap, begin, number = max(self._gaps(reader))
            if gap < _HEADERS_PER_LANE // 2 * average:
                break
            start = begin + (gap // 2 & -BLOCK)
            self._lanes.insert(number, _Lane(start, start + 4 * average, start))

    def _gaps(self, reader: int) -> list[tuple[int, int, int]]:
        """Return size and begin of each part that no lane has read, and the number of the lane that follows."""
        begins = [reader, *(lane.frontier for lane in self._lanes)]
        ends = [min(self._limit(k), self._barren) for k in range(-1, len(self._lanes))]
        return [(end - begin, begin, k) for k, (begin, end) in enumerate(zip(begins, ends, strict=True))]

    def _limit(self, number: int) -> int:
        """Return where a lane ends: where the next one began."""
        return self._lanes[number + 1].start if number + 1 < len(self._lanes) else self._horizon

    def _is_done(self, number: int) -> bool:
        return self._lanes[number].frontier >= self._limit(number)

    def wanted(self, reader: int, length: int) -> list[ByteRange]:
        """Return the next range of each lane, of `length` bytes where a header is expected.

        Lanes that began before the offset of the reader are dropped: it has gone through the steps of such a lane, and
        is now where that lane would read next, or the lane has not begun at a header.
        """
        self._lanes = [lane for lane in self._lanes if lane.start > reader]
        found = []
        for number, lane in enumerate(self._lanes):
            if not self._is_done(number):
                bytes_wanted = self._searched if lane.at < 0 else max(length, lane.length)
                found.append(ByteRange(lane.frontier, min(bytes_wanted, self._size - lane.frontier)))
        return [one for one in found if one.length >= BLOCK]

    def take(self, read: dict[int, memoryview], length: int) -> None:
        """Take the bytes that were read at the offsets of the lanes, and advance the lanes."""
        for lane in list(self._lanes):
            if lane.at < 0 and (part := read.pop(lane.start, None)) is not None:
                self._search(lane, part, length)
        for begin, part in read.items():
            self._pieces.keep(begin, part)
        for number, lane in enumerate(self._lanes):
            if lane.at >= 0:
                self._advance(lane, self._limit(number))

    def _search(self, lane: _Lane, part: memoryview, length: int) -> None:
        for at in range(0, len(part) - BLOCK + 1, BLOCK):
            if next_header(part[at : at + BLOCK], 0) and bytes(part[at + 257 : at + 262]) == b"ustar":
                lane.start = lane.at = lane.start + at
                self._pieces.keep(lane.at, memoryview(bytes(part[at : at + length])))
                self._successes += 1
                return
        lane.start += len(part) & -BLOCK
        if lane.start >= min(lane.give_up, self._size - BLOCK):
            self._lanes.remove(lane)
            if lane.start < self._size - BLOCK:
                self._failures += 1
                self._barren = min(self._barren, lane.origin)

    def _advance(self, lane: _Lane, limit: int) -> None:
        """Follow the headers that were read."""
        while lane.at < limit and (block := self._pieces.get(lane.at, lane.at + BLOCK)) is not None:
            if not (following := next_header(block, lane.at)):
                # The zeros at the end of a tar within a tar, after which a header follows, or no header at all.
                lane.give_up += lane.at + BLOCK - lane.start
                lane.start, lane.at = lane.at + BLOCK, -1
                lane.origin = lane.start
                return
            lane.length = BLOCK
            if block[156] in EXTENDED and self._pieces.get(lane.at, following) is None:
                lane.length = following + BLOCK - lane.at  # its records are needed, too
                return
            lane.at = following


_SMALL = 8 << 10
"""Members that are smaller than this on average are read in windows, which hold several headers."""
_WINDOW, _LARGEST_WINDOW = 64 << 10, 8 << 20
_NEAR = 2 << 10
"""A header this close to the one before is read together with it: of a small member, or after an extended header."""
_LONGEST_RUN = 8 << 10
"""Maximum bytes from the first to the last of several near headers that are read together."""
_HEADER = BLOCK + NPY_HEAD
"""A header is read with the first bytes of its member, which may be those of a `.npy`."""
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
        found = [self._range(first, last + _HEADER - first) for first, last in runs[1:]]
        return [one for one in found if self._pieces.get(one.begin, one.end) is None]


def _near_run(steps: list[int]) -> int:
    """Return the bytes of a header and of those that are likely to follow close to it.

    >>> _near_run([80_000, 1024, 1024, 90_000, 1024]), _near_run([9000, 8000])
    (2688, 640)
    """
    longest = run = 0
    for step in steps:
        run = run + step if step <= _NEAR else 0
        longest = max(longest, min(run, _LONGEST_RUN))
    return longest + _HEADER


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
