"""Packets of bytes in numbered bins: `write_split_data`, `SplitDataLoader`, and functions for single packets.

The files are read and written by the format `bins` of shardex; those of splitdataloader have the same bytes.
"""

from __future__ import annotations

import operator
import os
import random
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, SupportsIndex, cast, overload

import numpy as np

from shardex.compat.formats.bins import BinRows, BinWriter
from shardex.compat.splitdataloader.exceptions import (
    MissingBinError,
    PacketError,
    PacketIndexError,
    PacketSizeError,
    SplitsError,
)
from shardex.errors import FormatError, RowError, SchemaError, StaleIndexError
from shardex.features import Bytes, Features
from shardex.formats import open_rows
from shardex.kernel import Integers

STRUCT_NUM_FORMAT: Final = "<I"
STRUCT_NUM_FORMAT_SIZE: Final = struct.calcsize(STRUCT_NUM_FORMAT)
_PACKETS = (bytes, bytearray, memoryview)
_AT_ONCE = 4 << 20
"""Bytes of packets that a loop reads at once."""
_ROWS = 1 << 16
"""Packets that a loop looks up in the index at once."""
_ATTEMPTS = 10
"""Times that bins are opened while another process appends to them."""


def write_split_data(
    target_dir: str | os.PathLike[str],
    input_sequence: Iterable[bytes],
    splits: int = 256,
    shuffle: bool = False,
    start_clean: bool = False,
    *,
    seed: int | None = None,
) -> None:
    """Write packets to the bins of a folder in turn, after those that are there: all packets, or none after an error.

    Each call begins with the first bin. With `shuffle` the bins take their turns in a random order: by `seed`, or
    without one by the generator of the module `random`. `start_clean` replaces everything that is in the folder.
    """
    if splits < 1:
        raise SplitsError(f"expected at least one split, got {splits}")
    turns = list(range(splits))
    if shuffle:
        (random if seed is None else random.Random(seed)).shuffle(turns)
    mode = "overwrite" if start_clean else "append"
    with BinWriter(os.fspath(target_dir), Features({"data": Bytes()}), mode, turns, owned=".*") as out:
        for packet in input_sequence:
            data = _as_bytes(packet)
            try:
                out.append({"data": data})
            except SchemaError as error:
                if not isinstance(data, _PACKETS):
                    raise
                raise PacketSizeError(str(error)) from None


class SplitDataLoader:
    """Packets of a folder that `write_split_data` wrote, by position or bin by bin.

    It opens the folder when it is first used, and again when its index has changed. It can be pickled, used by several
    threads, and in processes that were forked.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> write_split_data(folder, [b"a", b"b", b"c"], splits=2)
    >>> loader = SplitDataLoader(folder)
    >>> len(loader), loader[1], loader[-1], loader[:2]
    (3, b'b', b'c', [b'a', b'b'])
    >>> list(loader.iterate_binwise())
    [b'a', b'c', b'b']
    """

    data_dir_path: Path
    index_file: Path
    index_packet_size: int

    def __init__(self, data_dir: str | os.PathLike[str]) -> None:
        self.data_dir_path = Path(data_dir)
        self.index_file = get_index_file(self.data_dir_path)
        self.index_packet_size = 3 * STRUCT_NUM_FORMAT_SIZE
        self._index = os.fspath(self.index_file)
        self._opened: tuple[tuple[int, ...], BinRows] | None = None
        """The rows, and which file and size their index had."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def __len__(self) -> int:
        return len(self._rows())

    @overload
    def __getitem__(self, idx: SupportsIndex) -> bytes: ...

    @overload
    def __getitem__(self, idx: slice) -> list[bytes]: ...

    def __getitem__(self, idx: SupportsIndex | slice) -> bytes | list[bytes]:
        """Return one packet, or a list of the packets of a slice; negative positions count from the end."""
        if type(idx) is not int:
            if isinstance(idx, slice):
                return self._slice(idx)
            idx = operator.index(idx)
        try:
            return self._rows().record(idx).tobytes()
        except (RowError, FormatError, StaleIndexError):
            return self._read(self._rows(), np.array([self._position(idx)]))[0][0]

    def _slice(self, some: slice) -> list[bytes]:
        return list(self._packets(self._rows(), lambda rows: np.arange(*some.indices(len(rows)))))

    def __iter__(self) -> Iterator[bytes]:
        return self._packets(self._rows(), lambda rows: np.arange(len(rows)))

    def iterate_binwise(self, shuffle: bool = False, *, seed: int | None = None) -> Iterator[bytes]:
        """Return the packets bin by bin, in the order of the files, which reads them fastest.

        With `shuffle` the order of the bins, and that of the packets in each of them, is random: by `seed`, or without
        one by the generator of the module `random`.
        """
        choose = random if seed is None else random.Random(seed)

        def order(rows: BinRows) -> Integers:
            bins: list[Any] = rows.rows_by_bin()
            if shuffle:
                bins = [some.tolist() for some in bins]
                choose.shuffle(bins)
                for some in bins:
                    choose.shuffle(some)
            return np.concatenate([np.empty(0, np.int64), *bins])

        yield from self._packets(self._rows(), order)

    def _rows(self) -> BinRows:
        """Return the rows of the files as they are now."""
        stat, opened = os.stat(self._index), self._opened
        stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        if opened is None or opened[0] != stamp:
            with self._errors():
                rows = open_rows(self.data_dir_path, "bins", decode="raw")
            assert isinstance(rows, BinRows)
            opened = self._opened = stamp, rows
        return opened[1]

    def _position(self, idx: int) -> int:
        """Return a position from the beginning."""
        count = len(self)
        if not -count <= idx < count:
            raise PacketIndexError(f"{self.data_dir_path}: expected a position from {-count} to {count - 1}, got {idx}")
        return idx % count

    def _packets(self, rows: BinRows, order_of: Callable[[BinRows], Integers]) -> Iterator[bytes]:
        """Yield packets in some order, those that were there at the beginning; some MiB of them are read at once."""
        with self._errors():
            order = order_of(rows)
        for start in range(0, len(order), _ROWS):
            some = order[start : start + _ROWS]
            with self._errors():
                ends = np.cumsum(rows.index.locate(some)[2])
            for part in np.split(some, np.flatnonzero(np.diff(ends // _AT_ONCE)) + 1):
                packets, rows = self._read(rows, part)
                yield from packets

    def _read(self, rows: BinRows, order: Integers) -> tuple[list[bytes], BinRows]:
        """Return packets, also while another process appends more of them, and the rows from which they were read."""
        for _ in range(_ATTEMPTS):
            with suppress(StaleIndexError), self._errors():
                return list(cast(Any, rows.read(order)["data"])), rows
            self._opened, before = None, rows  # a bin has grown since it was opened
            rows = self._rows()
            with self._errors():
                if len(rows) < len(before) or _places(rows, order) != _places(before, order):
                    break
        raise PacketError(f"{self.data_dir_path}: the packets were replaced while they were read; read them again")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of damaged files as those that users of splitdataloader expect."""
        try:
            yield
        except FormatError as error:
            entries = np.fromfile(self._index, "<u4")
            numbers = np.unique(entries[: len(entries) // 3 * 3 : 3]).tolist()
            whole = all(get_bin_file_for_index(self.data_dir_path, number).exists() for number in numbers)
            raise (PacketError if whole else MissingBinError)(str(error)) from None


def _places(rows: BinRows, order: Integers) -> tuple[list[str], list[int], list[int]]:
    """Return file, position and length of packets."""
    _, begin, length = rows.index.locate(order)
    return rows.shards(order), begin.tolist(), length.tolist()


# -- files and single packets -------------------------------------------------------------------------------------


def get_index_file(data_dir_path: Path) -> Path:
    """Return the path of the index of a folder."""
    return data_dir_path / "index.dat"


def get_bin_file_for_index(data_dir_path: Path, index: int) -> Path:
    """Return the path of a bin.

    >>> get_bin_file_for_index(Path("data"), 7).name
    'bin00000007.dat'
    """
    return data_dir_path / f"bin{index:08d}.dat"


def struct_pack_write(writer: BinaryIO, number: int) -> None:
    """Write a number of 32 bits, little-endian."""
    writer.write(struct.pack(STRUCT_NUM_FORMAT, number))


def read_struct_unpack(reader: BinaryIO) -> tuple[bool, int]:
    """Read a number that `struct_pack_write` wrote: True and the number, or False and 0 at the end of the file."""
    data = reader.read(STRUCT_NUM_FORMAT_SIZE)
    if not data:
        return False, 0
    if len(data) < STRUCT_NUM_FORMAT_SIZE:
        raise PacketError(f"{_name(reader)}: expected {STRUCT_NUM_FORMAT_SIZE} bytes of a number, got {len(data)}")
    return True, int.from_bytes(data, "little")


def write_size_prefixed(writer: BinaryIO, data: bytes) -> None:
    """Write a packet: its size, then its bytes. Nothing is written if it is no packet.

    >>> import io; file = io.BytesIO()
    >>> write_size_prefixed(file, b"one"); write_size_prefixed(file, b"two"); file.seek(0)
    0
    >>> read_size_prefixed(file), read_all_size_prefixed_packets(file), read_size_prefixed(file)
    ((True, b'one'), [b'two'], (False, b''))
    """
    packet = _checked(data)
    writer.write(struct.pack(STRUCT_NUM_FORMAT, len(packet)) + packet)


def read_size_prefixed(reader: BinaryIO) -> tuple[bool, bytes]:
    """Read a packet: True and its bytes, or False and no bytes at the end of the file."""
    valid, size = read_struct_unpack(reader)
    data = reader.read(size) if valid else b""
    if len(data) != size:
        raise PacketError(f"{_name(reader)}: expected a packet of {size} bytes, got {len(data)}; the file is cut off")
    return valid, data


def read_all_size_prefixed_packets(reader: BinaryIO) -> list[bytes]:
    """Read all packets up to the end of the file."""
    packets = []
    while (found := read_size_prefixed(reader))[0]:
        packets.append(found[1])
    return packets


def _as_bytes(packet: Any) -> Any:
    """Return the bytes of an object that has those of a packet, such as an array of uint8; others as they are."""
    if isinstance(packet, _PACKETS):
        return packet
    try:
        data = memoryview(packet)
    except TypeError:
        return packet
    return data.tobytes() if data.itemsize == 1 and data.ndim == 1 else packet


def _checked(data: Any) -> bytes:
    """Return a packet as bytes."""
    data = _as_bytes(data)
    if not isinstance(data, _PACKETS):
        raise SchemaError(f"expected the bytes of a packet, got {type(data).__name__}; encode it first")
    packet = bytes(data)
    if len(packet) >> 32:
        raise PacketSizeError(f"expected a packet of less than 4 GiB, got {len(packet)} bytes")
    return packet


def _name(reader: BinaryIO) -> str:
    return str(getattr(reader, "name", "stream"))
