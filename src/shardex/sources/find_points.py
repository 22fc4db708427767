"""Finds the access points of compressed files, in one pass over them.

Those of gzip are blocks of its deflate data. Python's `zlib` does not tell where blocks begin, so the C library is
called directly (`ctypes`, without the GIL); it verifies the checksums of all members meanwhile. On a system that has no
shared `libz`, `gzip_points` is not available.

Those of zstd are beginnings of frames. A file has several if it was written by pzstd, in zstd's seekable format, or by
joining files. `frame_runs` reads the headers of frames and blocks (RFC 8878) and skips their data; `zstd_points`
decompresses the file once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.kernel import Bytes
from shardex.sources.access_points import LARGEST_UNIT, SPACING, WINDOW, CellSums, Point
from shardex.sources.compression import PieceFile, cut_off, damaged, decompress

# -- gzip ---------------------------------------------------------------------------------------------------------

_LIBRARIES = ("libz.so.1", "libz.so", "libz.1.dylib", "libz.dylib")
_GZIP = 31
"""Window bits for data with a header of gzip."""
_RUN, _TO_BLOCK = 0, 5
"""Arguments of `inflate`: as far as possible, or up to the next block."""
_OK, _END, _NO_PROGRESS = 0, 1, -5
_AT_BLOCK, _LAST_BLOCK, _UNUSED_BITS = 128, 64, 7
"""Bits of `data_type` after a call."""
_OUT = 1 << 20


class _Stream(ctypes.Structure):
    """`z_stream` of zlib.h."""

    _fields_ = (
        ("next_in", ctypes.c_void_p),
        ("avail_in", ctypes.c_uint),
        ("total_in", ctypes.c_ulong),
        ("next_out", ctypes.c_void_p),
        ("avail_out", ctypes.c_uint),
        ("total_out", ctypes.c_ulong),
        ("msg", ctypes.c_char_p),
        ("state", ctypes.c_void_p),
        ("zalloc", ctypes.c_void_p),
        ("zfree", ctypes.c_void_p),
        ("opaque", ctypes.c_void_p),
        ("data_type", ctypes.c_int),
        ("adler", ctypes.c_ulong),
        ("reserved", ctypes.c_ulong),
    )


@cache
def _library() -> Any:
    """Return the C library; None if there is none."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            library.zlibVersion.restype = ctypes.c_char_p
            if library.zlibVersion().startswith(b"1."):
                return library
        except (OSError, AttributeError):
            continue
    return None


def has_zlib() -> bool:
    """Return whether access points of gzip files can be found on this system."""
    return _library() is not None


def gzip_points(pieces: Iterable[memoryview], name: str, sums: CellSums) -> Iterator[Point]:
    """Yield access points of a gzip file, whose bytes are `pieces`; adds its content to `sums`."""
    inflate = _Inflate(name)
    try:
        for piece in pieces:
            yield from inflate.feed(piece, sums)
        inflate.finish()
    finally:
        inflate.close()


class _Inflate:
    """State of the pass over one file."""

    def __init__(self, name: str) -> None:
        self._name, self._zlib, self._stream = name, _library(), _Stream()
        version = ctypes.c_char_p(self._zlib.zlibVersion())
        if self._zlib.inflateInit2_(ctypes.byref(self._stream), _GZIP, version, ctypes.sizeof(_Stream)) != _OK:
            raise MemoryError("zlib could not be started")
        self._out: Bytes = np.zeros(WINDOW + _OUT, np.uint8)
        self._at = WINDOW
        """Where the next content goes; the window is before it."""
        self._offset = 0
        """Bytes of the file that were used."""
        self._member_begin = 0
        self._between = False
        """True after the end of a member."""
        self._last = -SPACING
        """Position of the last point in the content."""

    def close(self) -> None:
        """Free the memory of zlib."""
        self._zlib.inflateEnd(ctypes.byref(self._stream))

    def finish(self) -> None:
        """Raise an error if the file has ended inside a member."""
        if not self._between:
            raise cut_off(self._name, "gzip", self._offset)

    def feed(self, piece: memoryview, sums: CellSums) -> Iterator[Point]:
        """Decompress a piece of the file, and yield the points in it."""
        data: Bytes = np.frombuffer(piece, np.uint8)
        begin = 0
        while True:
            if self._between:
                skipped = _zeros(data[begin:])
                begin, self._offset = begin + skipped, self._offset + skipped
                if begin == len(data):
                    return
                self._zlib.inflateReset(ctypes.byref(self._stream))
                self._between, self._member_begin = False, sums.size
            code, used = self._step(data[begin:], sums)
            begin += used
            kind = self._stream.data_type
            if kind & _AT_BLOCK and not kind & _LAST_BLOCK and sums.size - self._last >= SPACING:
                self._last = sums.size
                yield Point(8 * self._offset - (kind & _UNUSED_BITS), sums.size, self._window(sums.size))
            self._between = code == _END
            if code == _NO_PROGRESS or (begin == len(data) and self._at < len(self._out) and not self._between):
                return

    def _step(self, data: Bytes, sums: CellSums) -> tuple[int, int]:
        """Call zlib once; return its code and how many bytes it used."""
        if self._at == len(self._out):
            self._out[:WINDOW] = self._out[-WINDOW:]
            self._at = WINDOW
        stream, left = self._stream, self._last + SPACING - sums.size
        room = len(self._out) - self._at
        stream.next_in, stream.avail_in = data.ctypes.data, len(data)
        stream.next_out, stream.avail_out = self._out.ctypes.data + self._at, room if left <= 0 else min(room, left)
        before = stream.avail_out
        code = self._zlib.inflate(ctypes.byref(stream), _TO_BLOCK if left <= 0 else _RUN)
        used, made = len(data) - stream.avail_in, before - stream.avail_out
        self._offset += used
        if code not in (_OK, _END, _NO_PROGRESS):
            why = stream.msg.decode() if stream.msg else f"zlib error {code}"
            raise damaged(self._name, "gzip", self._offset, why)
        sums.add(self._out[self._at : self._at + made])
        self._at += made
        return code, used

    def _window(self, at: int) -> bytes:
        """Return the content that the next block may refer to, compressed; it begins at the begin of the member at
        most.
        """
        if at == self._member_begin:
            return b""
        return bytes(pa.compress(self._out[self._at - WINDOW : self._at].tobytes(), "zstd", asbytes=True))


def _zeros(data: Bytes) -> int:
    """Return the number of zeros at the beginning: they may follow a member."""
    if not len(data) or data[0]:
        return 0
    others = np.flatnonzero(data)
    return int(others[0]) if len(others) else len(data)


# -- zstd ---------------------------------------------------------------------------------------------------------

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
