"""Reads a remote tar from several places at once: the lanes of `remote_headers`, and the bytes that were read.

A lane begins in the middle of the tar: it searches a block that looks like a header (magic and checksum), and from
there on follows the sizes in the headers, up to where the next lane began. The blocks that it reads are only kept in
`ReadRanges`. Whether they are headers is decided by the reader, which starts at the first header of the tar: if it
arrives at a block that a lane has read, it continues in the steps of that lane without reading.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

from shardex.formats.tar.blocks import BLOCK, EXTENDED, next_header
from shardex.sources import ByteRange

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
