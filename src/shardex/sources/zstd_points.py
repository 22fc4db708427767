"""Finds the access points of zstd files: beginnings of their frames.

A file has several frames if it was written by pzstd, in zstd's seekable format, or by joining files. `frame_runs` reads
the headers of frames and blocks (RFC 8878) and skips their data; `zstd_points` decompresses the file once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from shardex.sources.access_points import LARGEST_UNIT, SPACING, CellSums, Point
from shardex.sources.compression import PieceFile, cut_off, damaged, decompress

_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A5
"""A skippable frame begins with this number and any last hexadecimal digit."""
_LARGEST_BLOCK = 128 << 10
_SIZE_BYTES = (0, 2, 4, 8)
_DICTIONARY_BYTES = (0, 1, 2, 4)
_REPEATED_BYTE, _RESERVED = 1, 3
"""Types of blocks."""

Run = tuple[int, int]
"""Begin and end of frames in the file that are decompressed together."""


def frame_runs(pieces: Iterable[memoryview], name: str) -> list[Run] | None:
    """Return the frames of a file as runs with about a megabyte of content each; None if they give no random access.

    That is a file of one frame, or with a frame that is too large.
    """
    reader, runs, content = _HeaderReader(pieces, name), list[Run](), 0
    begin = 0
    while (size := reader.frame()) is not None:
        if size > LARGEST_UNIT:
            return None
        content += size
        if content >= SPACING:
            runs.append((begin, reader.offset))
            begin, content = reader.offset, 0
    if begin < reader.offset:
        runs.append((begin, reader.offset))
    return runs if reader.frames > 1 else None


def zstd_points(
    runs: Iterable[Run], read: Callable[[int, int], memoryview], name: str, sums: CellSums
) -> Iterator[Point]:
    """Yield the beginnings of runs of frames; `read(begin, length)` reads the file, its content is added to `sums`."""
    for begin, end in runs:
        yield Point(8 * begin, sums.size)
        for plain in decompress("zstd", [read(begin, end - begin)], name, begin):
            sums.add(plain)


class _HeaderReader:
    """Reads the headers of a file from its beginning to its end."""

    def __init__(self, pieces: Iterable[memoryview], name: str) -> None:
        self._file, self._name = PieceFile(pieces), name
        self.frames = 0
        """Number of frames with data so far."""

    @property
    def offset(self) -> int:
        """Position in the file."""
        return self._file.offset

    def frame(self) -> int | None:
        """Pass one frame; return the size of its content, or a bound of it. None at the end of the file."""
        begin, first = self.offset, self._file.read(4) or b""
        if not first:
            return None
        if (magic := int.from_bytes(first, "little")) >> 4 == _SKIPPABLE:
            self._skip(self._number(4))
            return 0
        if len(first) < 4:
            raise cut_off(self._name, "zstd", self.offset)
        if magic != _MAGIC:
            raise damaged(self._name, "zstd", begin, f"expected the beginning of a frame, got {first!r}")
        self.frames += 1
        return self._data_frame()

    def _data_frame(self) -> int:
        """Pass a frame after its first four bytes; stop inside if it is too large."""
        flags = self._number(1)
        one_segment = bool(flags & 32)
        self._skip((0 if one_segment else 1) + _DICTIONARY_BYTES[flags & 3])
        width = _SIZE_BYTES[flags >> 6] or int(one_segment)
        declared = self._number(width) + (256 if width == 2 else 0) if width else None
        bound, last = 0, False
        while not last:
            block = self._number(3)
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            if kind == _RESERVED:
                raise damaged(self._name, "zstd", self.offset, "a block of an unknown type")
            self._skip(1 if kind == _REPEATED_BYTE else size)
            bound += size if kind == _REPEATED_BYTE else _LARGEST_BLOCK
            if (bound if declared is None else declared) > LARGEST_UNIT:
                return LARGEST_UNIT + 1
        self._skip(4 if flags & 4 else 0)
        return min(bound, bound if declared is None else declared)

    def _number(self, width: int) -> int:
        data = self._file.read(width) or b""
        if len(data) < width:
            raise cut_off(self._name, "zstd", self.offset)
        return int.from_bytes(data, "little")

    def _skip(self, count: int) -> None:
        if self._file.skip(count) < count:
            raise cut_off(self._name, "zstd", self.offset)
