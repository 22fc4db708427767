"""Access points: positions in a compressed file from which it can be decompressed, so that any part can be read.

`AccessPoints` of a file are found once, in one pass over it (`find_points`), and saved. Between two points lies a unit
of the content, about a megabyte, which `AccessPoints.unit` decompresses from the bytes of the file. Every 64 KiB of the
content have a checksum from the first pass, in which gzip's own checksums were verified: a file that changed, or a
wrong point, is an error and never wrong data. `PointSource` is the source of such files; it is read through a page
cache in memory (`cached_source`).
"""

from __future__ import annotations

import os
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
)
from shardex.kernel import Integers
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.compression import PieceFile
from shardex.sources.io_threads import run_all, start
from shardex.sources.protocols import Source, Stat

VERSION = 1
SPACING = 1 << 20
"""Bytes of content between access points, at least."""
LARGEST_UNIT = 32 << 20
"""Largest distance of access points with which random reads are useful."""
CELL = 64 << 10
"""Bytes of content per checksum."""
WINDOW = 32 << 10
"""Bytes of content before a point that a deflate stream may refer to."""
_MARGIN = 2 * CELL
"""Compressed bytes after the next point that are read together with a unit, which may end a cell later."""
_KEPT_UNITS = 64 << 20
"""Bytes of decompressed units that a source keeps, because the next read often needs the same."""
_UNITS_AHEAD = min(4 * (os.cpu_count() or 1), 32)
"""Units that are decompressed ahead of readers at most: fewer than are kept, so that none is dropped unread."""


class CellSums:
    """Checksums of the cells of content that arrives in pieces.

    >>> sums = CellSums(); sums.add(bytes(CELL)); sums.add(b"x"); len(sums.finish())
    2
    """

    def __init__(self) -> None:
        self.size = 0
        self._sums: list[int] = []
        self._open = xxhash.xxh3_64()

    def add(self, data: Any) -> None:
        """Add the next bytes."""
        view = memoryview(data)
        while view:
            part = view[: CELL - self.size % CELL]
            self._open.update(part)
            self.size, view = self.size + len(part), view[len(part) :]
            if self.size % CELL == 0:
                self._close()

    def finish(self) -> NDArray[np.uint64]:
        """Return all checksums."""
        if self.size % CELL:
            self._close()
        return np.array(self._sums, np.uint64)

    def _close(self) -> None:
        self._sums.append(self._open.intdigest())
        self._open = xxhash.xxh3_64()


@dataclass(frozen=True)
class Point:
    """A position from which a file can be decompressed."""

    bit: int
    """Position in the compressed file, in bits."""
    plain: int
    """Position in the content."""
    window: bytes = b""
    """The content before it, if the data may refer to that; compressed by zstd."""


@dataclass(frozen=True)
class AccessPoints:
    """Access points of one compressed file. Unit k of the content begins at or after point k, at the end of a cell."""

    kind: str
    packed_size: int
    tag: str
    """Identity of the compressed file."""
    size: int
    """Size of the content."""
    bits: Integers
    plain: Integers
    windows: Any
    """The content before each point, compressed, as bytes or as an array of Arrow."""
    window_sums: NDArray[np.uint64]
    sums: NDArray[np.uint64]

    @classmethod
    def of(cls, kind: str, packed_size: int, tag: str, points: Iterable[Point], sums: CellSums) -> AccessPoints | None:
        """Return the points of a file, those that are close to each other left out; None if two are too far apart."""
        kept = list[Point]()
        for point in points:
            if not kept or point.plain - kept[-1].plain >= SPACING:
                kept.append(point)
        checksums = sums.finish()
        plain = np.array([point.plain for point in kept], np.int64)
        if len(plain) == 0 or np.diff([*plain.tolist(), sums.size]).max() > LARGEST_UNIT:
            return None
        bits = np.array([point.bit for point in kept], np.int64)
        windows = [point.window for point in kept]
        window_sums = np.array([xxhash.xxh3_64_intdigest(window) for window in windows], np.uint64)
        return cls(kind, packed_size, tag, sums.size, bits, plain, windows, window_sums, checksums)

    @cached_property
    def begins(self) -> Integers:
        """The first byte of each unit, and the size of the content."""
        begins: Integers = np.append(-(-self.plain // CELL) * CELL, self.size)
        return np.minimum(begins, self.size, out=begins)

    def unit(self, number: int, read: Callable[[int, int], memoryview], name: str) -> bytes:
        """Return the content of a unit; `read(begin, length)` reads the file."""
        begin, end = (int(value) for value in self.begins[number : number + 2])
        skip, wanted = begin - int(self.plain[number]), end - begin
        if not wanted:
            return b""
        packed = self._packed(number, read)
        try:
            if self.kind == "gzip":
                out = _deflated(packed, int(self.bits[number]) % 8, self._window(number, name), skip + wanted)
            else:
                out = _framed(packed, skip + wanted)
        except (zlib.error, OSError, pa.ArrowException) as error:
            raise FormatError(f"{name}: expected {self.kind} data as when it was first read, got: {error}") from None
        data = out[skip:] if skip else out
        self._check(data, begin, name)
        return data

    def _window(self, number: int, name: str) -> bytes:
        """Return the content before a point."""
        saved = self.windows[number]
        data = saved.as_py() if isinstance(saved, pa.Scalar) else saved
        if xxhash.xxh3_64_intdigest(data) != int(self.window_sums[number]):
            raise ChecksumError(
                f"{name}: expected the access points that were saved, got damaged ones; delete the file "
                f"points-*.arrow of {self.size} bytes of content in .shardex or in the cache folder"
            )
        return bytes(pa.decompress(data, WINDOW, "zstd", asbytes=True)) if data else b""

    def _packed(self, number: int, read: Callable[[int, int], memoryview]) -> Iterator[memoryview]:
        """Yield the compressed bytes of a unit, and then those after it."""
        at = int(self.bits[number]) // 8
        last = number + 1 == len(self.bits)
        end = self.packed_size if last else int(self.bits[number + 1]) // 8 + _MARGIN
        while at < self.packed_size:
            end = min(end, self.packed_size)
            yield read(at, end - at)
            at, end = end, end + 4 * _MARGIN

    def _check(self, data: bytes, begin: int, name: str) -> None:
        view = memoryview(data)
        for k, cell in enumerate(range(0, len(data), CELL)):
            if xxhash.xxh3_64_intdigest(view[cell : cell + CELL]) != int(self.sums[begin // CELL + k]):
                raise ChecksumError(
                    f"{name}: expected the content from byte {begin + cell} on as when it was first read, got another; "
                    "the file is damaged or has changed: open it again"
                )

    # -- saved -----------------------------------------------------------------------------------------------

    def encode(self) -> memoryview:
        """Return the points as bytes: an Arrow file. Its header has the checksum of all numbers."""
        batch = pa.record_batch(
            {
                "bit": pa.array(self.bits, pa.int64()),
                "plain": pa.array(self.plain, pa.int64()),
                "xxh3": pa.array(self.window_sums, pa.uint64()),
                "window": pa.array(list(self.windows), pa.large_binary()),
            }
        )
        head = {"version": VERSION, "kind": self.kind, "packed_size": self.packed_size, "tag": self.tag}
        encoded = msgspec.json.encode({**head, "size": self.size})
        sums = self.sums.tobytes()
        digest = _digest(encoded, self.bits, self.plain, self.window_sums, sums)
        sink = pa.BufferOutputStream()
        schema = batch.schema.with_metadata({"shardex": encoded, "sums": sums, "xxh3": digest})
        with pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return memoryview(sink.getvalue())

    @classmethod
    def decode(cls, data: memoryview) -> AccessPoints | None:
        """Return saved points; None if the bytes are not intact. A window is checked when it is used."""
        try:
            reader = pa.ipc.open_file(pa.py_buffer(data))
            metadata = reader.schema.metadata or {}
            encoded, saved, batch = metadata[b"shardex"], metadata[b"sums"], reader.get_batch(0)
            batch.validate(full=True)  # offsets of windows; their bytes are not read
            numbers = [column.buffers()[1] or b"" for column in batch.columns[:3]]
            bits, plain = (np.frombuffer(one, np.int64, len(batch)) for one in numbers[:2])
            windows = np.frombuffer(numbers[2], np.uint64, len(batch))
            if _digest(encoded, bits, plain, windows, saved) != metadata[b"xxh3"]:
                return None
            head = msgspec.json.decode(encoded)
            if head.pop("version") != VERSION:
                return None
            sums = np.frombuffer(saved, np.uint64)
            return cls(**head, bits=bits, plain=plain, windows=batch.column(3), window_sums=windows, sums=sums)
        except (pa.ArrowException, OSError, LookupError, TypeError, ValueError, msgspec.DecodeError):
            return None


def _digest(*parts: Any) -> bytes:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(memoryview(part))
    return digest.hexdigest().encode()


def _deflated(pieces: Iterator[memoryview], bit: int, window: bytes, size: int) -> bytes:
    """Decompress `size` bytes of gzip from the start of a deflate block on; further members may follow."""
    stream, data = raw_stream(next(pieces, memoryview(b"")), bit, window)
    out, left, footer = list[bytes](), size, 8
    while left:
        out.append(stream.decompress(data, left))
        left -= len(out[-1])
        rest = stream.unused_data if stream.eof else stream.unconsumed_tail
        while stream.eof and left and not (member := rest[footer:].lstrip(b"\0")):  # zeros may follow a member
            if (more := next(pieces, None)) is None:
                break
            rest = rest[:footer] + more
        if stream.eof and left:
            rest = member
            stream, footer = zlib.decompressobj(31), 0  # of the next member; it checks header and footer itself
        data = rest or next(pieces, b"")
        if not len(data):
            break
    return b"".join(out) if len(out) > 1 else out[0]


def _framed(pieces: Iterator[memoryview], size: int) -> bytes:
    """Decompress `size` bytes of zstd from the beginning of a frame on."""
    with pa.CompressedInputStream(pa.PythonFile(PieceFile(pieces), "r"), "zstd") as stream:
        return bytes(stream.read(size))


# -- deflate streams that begin inside a byte ---------------------------------------------------------------------


# `zlib` reads whole bytes, but a block of a deflate stream begins at any bit. So it first gets some empty blocks, which
# end at the same bit of a byte: a block with fixed codes has 10 bits, one with dynamic codes can have an odd number.

_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
"""The order in which the lengths of the code length codes are stored (RFC 1951, 3.2.7), as far as needed."""


def raw_stream(data: memoryview, bit: int, window: bytes) -> tuple[Any, Any]:
    """Return a decompressor for deflate data that begins at this bit of the first byte, and the bytes to go on with.

    `window` is the content before it.
    """
    stream = zlib.decompressobj(-15, zdict=window) if window else zlib.decompressobj(-15)
    if bit == 0:
        return stream, data
    whole, low = _empty_blocks(bit)
    stream.decompress(whole + bytes([low | (data[0] >> bit << bit)]))
    return stream, data[1:]


@cache
def _empty_blocks(bit: int) -> tuple[bytes, int]:
    """Return empty deflate blocks that end at this bit of a byte: whole bytes, and the low bits of the next one."""
    bits = _dynamic_block() if bit % 2 else ""
    while len(bits) % 8 != bit:
        bits += _bits(0, 1) + _bits(1, 2) + "0" * 7  # not the last block, fixed codes, end of block
    values = [int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)]
    return bytes(values[:-1]), values[-1]


def _dynamic_block() -> str:
    """Return an empty block with dynamic codes, of 97 bits: the only literal code is the end of the block."""
    lengths = {18: 1, 1: 2, 17: 2}  # of the codes of code lengths: 18 is "0", 1 is "10", 17 is "11"
    head = _bits(0, 1) + _bits(2, 2) + _bits(0, 5) + _bits(0, 5) + _bits(len(_ORDER) - 4, 4)
    head += "".join(_bits(lengths.get(symbol, 0), 3) for symbol in _ORDER)
    zeros = "0" + _bits(138 - 11, 7) + "0" + _bits(108 - 11, 7) + "11" + _bits(10 - 3, 3)  # of 256 literals
    return head + zeros + "10" + "10" + "0"


def _bits(value: int, count: int) -> str:
    """Return the bits of a number, the lowest first."""
    return "".join(str(value >> k & 1) for k in range(count))


# -- reading ------------------------------------------------------------------------------------------------------


class PointSource(Source):
    """The content of compressed files of `inner`, read from their access points; `points` has those by path."""

    def __init__(self, inner: Source) -> None:
        self.inner, self.url = inner, inner.url
        self.points: dict[str, AccessPoints] = {}
        self._stats: dict[str, Stat] = {}
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Set the state that a forked child must not inherit: units in work in threads of the parent stay there."""
        self._kept: OrderedDict[tuple[str, int], Future[bytes]] = OrderedDict()
        self._ahead = set[tuple[str, int]]()
        """Units that are decompressed ahead of readers, until they are read."""
        self._lock = threading.Lock()

    def add(self, path: str, points: AccessPoints, packed: Stat) -> None:
        """Add a file, whose `Stat` was `packed` when its points were found."""
        self.points[path], self._stats[path] = points, packed

    def full_name(self, path: str) -> str:
        """Return the name of the compressed file."""
        return self.inner.full_name(path)

    def stat(self, path: str) -> Stat:
        """Return size and tag of the content."""
        if (points := self.points.get(path)) is None:
            raise NotFoundError(2, "no access points of this file", path)
        return Stat(points.size, points.tag, self._stats[path].modified)

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of the files."""
        return sorted(path for path in self.points if path.startswith(prefix))

    def map(self, path: str) -> memoryview:
        """Return the whole content."""
        return self.read(path, [ByteRange(0, self.stat(path).size)])[0]

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Return the bytes of each range; units are decompressed concurrently."""
        begins, out = self.points[path].begins, [bytearray(one.length) for one in ranges]
        wanted = self._units(path, ranges)
        self._check_unchanged(path)

        def fill(unit: int) -> None:
            self._ahead.discard((path, unit))
            data, at = memoryview(self._unit(path, unit)), int(begins[unit])
            for number in wanted[unit]:
                one = ranges[number]
                low, high = max(one.begin, at), min(one.end, at + len(data))
                out[number][low - one.begin : high - one.begin] = data[low - at : high - at]

        run_all(fill, list(wanted), "decompress")
        return [memoryview(one) for one in out]

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Start to decompress the units of these ranges, as far as cores are free; they are kept for the next reads."""
        for unit in self._units(path, ranges):
            with self._lock:
                if len(self._ahead) >= _UNITS_AHEAD:
                    return
                if (path, unit) in self._kept or (path, unit) in self._ahead:
                    continue
                self._ahead.add((path, unit))
            start("decompress", self._unit_ahead, (path, unit))

    def _unit_ahead(self, wanted: tuple[str, int]) -> None:
        if wanted not in self._ahead:  # the reader was faster
            return
        try:
            self._unit(*wanted)
        except (ShardexError, OSError):  # the reader gets it
            self._ahead.discard(wanted)

    def _units(self, path: str, ranges: Sequence[ByteRange]) -> dict[int, list[int]]:
        """Return the units that ranges touch, each with the numbers of its ranges."""
        begins, wanted = self.points[path].begins, dict[int, list[int]]()
        for number, one in enumerate(ranges):
            if one.end > begins[-1]:
                raise TruncatedShardError(
                    f"{self.full_name(path)}: expected bytes up to {one.end}, got content of {begins[-1]} bytes"
                )
            if one.length:
                first, last = begins.searchsorted([one.begin, one.end - 1], "right") - 1
                for unit in range(int(first), int(last) + 1):
                    wanted.setdefault(unit, []).append(number)
        return wanted

    def _check_unchanged(self, path: str) -> None:
        now, then = self.inner.stat(path), self._stats[path]
        if (now.size, now.tag, now.identity) != (then.size, then.tag, then.identity):
            raise StaleIndexError(
                f"{self.full_name(path)}: expected the file that was opened, got another of its name; open it again"
            )

    def _unit(self, path: str, number: int) -> bytes:
        """Return a unit that is kept, or that another thread decompresses now, or decompress it."""
        with self._lock:
            future = self._kept.get((path, number))
            mine = future is None
            if future is None:
                future = self._kept[path, number] = Future()
            self._kept.move_to_end((path, number))
        if not mine:
            return future.result()
        try:
            future.set_result(self.points[path].unit(number, self._reader(path), self.full_name(path)))
        except BaseException as error:
            with self._lock:
                self._kept.pop((path, number), None)
            future.set_exception(error)
            raise
        self._forget()
        return future.result()

    def _reader(self, path: str) -> Callable[[int, int], memoryview]:
        return lambda begin, length: self.inner.read(path, [ByteRange(begin, length)])[0]

    def _forget(self) -> None:
        """Drop the units that were not used for longest."""
        with self._lock:
            done = [(key, len(future.result())) for key, future in self._kept.items() if _is_filled(future)]
            total = sum(size for _, size in done)
            for key, size in done[:-1]:
                if total <= _KEPT_UNITS:
                    return
                del self._kept[key]
                self._ahead.discard(key)
                total -= size


_all: weakref.WeakSet[PointSource] = weakref.WeakSet()


def _after_fork() -> None:
    for source in _all:
        source._reset()


os.register_at_fork(after_in_child=_after_fork)


def _is_filled(future: Future[bytes]) -> bool:
    return future.done() and future.exception() is None
