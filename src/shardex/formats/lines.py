"""Finds lines in files: `LineScanner`, for the indexes of JSON lines, text and tables.

The kernel finds them in one pass, without the GIL: over the mapped pages of a local file, which is twice as fast as
copying them, or over pieces of a remote one. Parts of a big file are scanned at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, TruncatedShardError
from shardex.files import Scan
from shardex.kernel import count_newlines, find_lines
from shardex.sources import COMPRESSED, ByteRange, Source

_PIECE = 4 << 20
_AHEAD = 8
"""Pieces of a remote file that are fetched ahead of the one that is scanned."""
_MAPPED_PIECE = 32 << 20
"""Bytes of a local file that are scanned by one call, while the next ones are read ahead."""
_LONGEST_LINE = 1 << 30
_SAMPLE = 1 << 20
"""Bytes in which lines are counted to estimate how many there are."""
_MOST_ROOM = 1 << 24
"""Lines for which memory is reserved at once."""
BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEAD = 6
"""Bytes at the beginning of a file that show a byte order mark or a compression."""


@dataclass(frozen=True)
class LineScanner:
    """Finds lines: their `offset` and `length`, without the newline and the carriage return before it.

    A part of a file has the lines that begin in it.

    >>> from shardex.sources.memory import MemorySource
    >>> source = MemorySource({"a.txt": b"one\\r\\n  \\ntwo"})
    >>> found = LineScanner(skip_blank=True).scan(source, "a.txt")
    >>> found["offset"].tolist(), found["length"].tolist()
    ([0, 8], [3, 3])
    """

    skip_blank: bool
    """True to leave out lines that hold only white space."""
    in_python: bool = False
    with_ends: bool = False
    """True for lengths with the newline and the carriage return; for local files only."""

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        kind = "without blank ones" if self.skip_blank else "all"
        return f"lines 1 {kind}{' with ends' if self.with_ends else ''}"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the lines of one file."""
        return self.scan_range(source, path, ByteRange(0, source.stat(path).size))

    def scan_range(self, source: Source, path: str, part: ByteRange) -> Scan:
        """Return offsets and lengths of the lines that begin in a part of a file."""
        window = _Window(source, path, part)
        if part.begin:
            begin, stop = window.first_line(), part.end
        else:
            begin = self._begin_of_text(window)
            stop = min(max(part.end, begin + 1), window.size)  # the first line belongs to the first part
        found, piece = _FoundLines(window.size), window.piece
        while begin < stop:
            data, base = window.at(begin, piece)
            at = begin - base
            count, then = find_lines(
                data,
                at,
                min(stop - base, at + piece),
                *found.room(data[at : at + _SAMPLE], stop - begin),
                whole=base + len(data) == window.size,
                skip_blank=self.skip_blank,
                longest=_LONGEST_LINE,
                base=base,
            )
            if base + then > begin:
                piece = window.piece
            elif piece < _LONGEST_LINE + 2 and not window.is_mapped:
                piece = min(2 * piece, _LONGEST_LINE + 2)  # a line that is longer than the piece, with its line end
            else:
                raise FormatError(
                    f"{window.name}: expected lines of up to {_LONGEST_LINE} bytes, got a longer one at offset {begin}"
                )
            found.count += count
            begin = base + then
            del data  # before the next piece is read, so that it takes the same memory
        return _with_ends(found.scan(), source, path) if self.with_ends else found.scan()

    def join(self, source: Source, path: str, parts: Iterable[Scan]) -> Scan:
        """Return the lines of a file, given those of its parts, which are copied while others are scanned."""
        size, joined, count = source.stat(path).size, _FoundLines(0).scan(), 0
        for part in parts:
            end = count + len(part["offset"])
            types = {name: np.promote_types(joined[name].dtype, column.dtype) for name, column in part.items()}
            if end > len(joined["offset"]) or types["length"] != joined["length"].dtype:
                room = int(1.1 * end * size / (int(part["offset"][-1]) + 1))  # estimated by what came so far
                joined = {name: _enlarged(joined[name][:count], room, dtype) for name, dtype in types.items()}
            for name, column in part.items():
                joined[name][count:end] = column
            count = end
        return {name: column[:count] for name, column in joined.items()}

    def _begin_of_text(self, window: _Window) -> int:
        """Return the position after a byte order mark; raise an error for a compressed file, and for UTF-16."""
        head = window.head()
        if head.startswith(UTF16_MARKS) and self.skip_blank:  # a line may end in the middle of a character
            raise FormatError(
                f"{window.name}: expected UTF-8, got a file that begins with the byte order mark of UTF-16; convert "
                "it: iconv -f utf-16 -t utf-8"
            )
        tool = next((tool for first, tool in COMPRESSED.items() if head.startswith(first)), None)
        if tool is not None and self.skip_blank:  # plain text may begin with these bytes, JSON does not
            raise FormatError(
                f"{window.name}: expected lines of text, got a file compressed by {tool}; rename it to end in "
                '.gz, .bz2, .xz or .zst, or open it with compressed="copy"'
            )
        return len(BOM) if head.startswith(BOM) else 0


def whole_file(source: Source, path: str) -> memoryview:
    """Return all bytes of a file: mapped if it is local, which takes no memory."""
    return source.load(path)[: source.stat(path).size]


class _Window:
    """Bytes of a part of a file, and of what follows: all mapped if it is local, otherwise pieces that are read."""

    def __init__(self, source: Source, path: str, part: ByteRange) -> None:
        self._source, self._path, self._part = source, path, part
        self.name, self.size = source.full_name(path), source.stat(path).size
        self._ahead = part.begin
        self.is_mapped = not source.is_remote
        self.piece = _MAPPED_PIECE if self.is_mapped else _PIECE
        if self.is_mapped:
            source.fetch(path, [part])
            self._mapped = source.map(path)[: self.size]
            if len(self._mapped) < self.size:
                raise TruncatedShardError(
                    f"{self.name}: expected {self.size} bytes, got {len(self._mapped)}: it became shorter meanwhile"
                )

    def head(self) -> bytes:
        """Return the first bytes of the file."""
        return bytes(self._source.read(self._path, [ByteRange(0, min(self.size, _HEAD))])[0])

    def at(self, begin: int, piece: int) -> tuple[memoryview, int]:
        """Return bytes that include `piece` from `begin` on, if there are so many, and the position of the first.

        What follows in the part is read ahead.
        """
        ahead = min(begin + piece + max(self.piece, _AHEAD * _PIECE), self._part.end)
        for at in range(max(self._ahead, begin + piece), ahead, self.piece):
            self._source.fetch(self._path, [ByteRange(at, min(self.piece, ahead - at))], wait=False)
        self._ahead = max(ahead, self._ahead)
        if self.is_mapped:
            return self._mapped, 0
        return self._source.read(self._path, [ByteRange(begin, min(piece, self.size - begin))])[0], begin

    def first_line(self) -> int:
        """Return the position after the first newline that ends a line before or in the part; its end if none does."""
        at, end = self._part.begin - 1, self._part.end - 1
        offset, length = np.empty(1, np.uint64), np.empty(1, np.uint32)
        while at < end:
            data, base = self.at(at, min(self.piece, end - at))
            data = data[: end - base]
            found, then = find_lines(data, at - base, at - base + 1, offset, length, whole=False)
            if found:
                return base + then
            at = base + len(data)
        return end + 1


class _FoundLines:
    """Arrays for the lines of a part; `count` lines of the last ones that `room` returned are filled."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._full: list[Scan] = []
        self._last: Scan = {"offset": np.empty(0, np.uint32 if size < 1 << 32 else np.uint64)}
        self._last["length"] = np.empty(0, np.uint32)

    def room(self, sample: memoryview, left: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """Return arrays with room for offsets and lengths; `left` bytes, from `sample` on, are still to be scanned."""
        if self.count == len(self._last["offset"]):
            # Usually enough for all lines, so that nothing is joined; memory that is not filled takes no pages.
            needed = min(int(1.1 * (count_newlines(sample) + 1) * left / len(sample)) + 1, _MOST_ROOM)
            self._full.append(self._last)
            self._last = {name: np.empty(needed, column.dtype) for name, column in self._last.items()}
            self.count = 0
        return self._last["offset"][self.count :], self._last["length"][self.count :]

    def scan(self) -> Scan:
        """Return all lines, their lengths in the narrowest type."""
        found = _joined([*self._full, {name: column[: self.count] for name, column in self._last.items()}])
        narrow = np.min_scalar_type(found["length"].max(initial=0))
        return {**found, "length": found["length"].astype(narrow, copy=False)}


def _with_ends(scan: Scan, source: Source, path: str) -> Scan:
    """Return lines with the newline, and the carriage return before it, that follow each."""
    if not len(scan["offset"]):
        return scan
    data = np.frombuffer(source.map(path), np.uint8)
    ends = scan["offset"].astype(np.int64) + scan["length"]
    for letter in b"\r\n":
        inside = ends < len(data)
        ends += inside & (data[np.where(inside, ends, 0)] == letter)
    return {**scan, "length": ends - scan["offset"].astype(np.int64)}


def _enlarged(column: NDArray[Any], room: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    larger = np.empty(room, dtype)
    larger[: len(column)] = column
    return larger


def _joined(parts: list[Scan]) -> Scan:
    full = [part for part in parts if len(part["offset"])] or parts[:1]
    return full[0] if len(full) == 1 else {name: np.concatenate([part[name] for part in full]) for name in full[0]}
