"""Reads and writes the files."""

from dataclasses import dataclass

import msgspec
import numpy as np

from shardex.errors import FormatError, TruncatedShardError
from shardex.files import Index
from shardex.formats import DictRows, Format, JoinShards, SeriesWriter, ShardSeries
from shardex.sources import ByteRange

MAGIC = b"MAPS1\n"


@dataclass(frozen=True)
class MapScanner:
    """Finds the records of a file; the index that shardex makes of them is saved under this name."""

    name: str = "packed_maps 1"
    in_python: bool = True

    def scan(self, source, path):
        """Return offset and length of each record."""
        where, size = source.full_name(path), source.stat(path).size
        data = bytes(source.read(path, [ByteRange(0, size)])[0])
        if not data.startswith(MAGIC):
            raise FormatError(f"{where}: expected a file that begins with {MAGIC!r}, got {data[:8]!r}")
        at, offsets, lengths = len(MAGIC), [], []
        while at < size:
            length = int.from_bytes(data[at : at + 4], "little")
            offsets.append(at + 4)
            lengths.append(length)
            at += 4 + length
        if at > size:
            raise TruncatedShardError(f"{where}: expected {at} bytes, got {size}")
        return {"offset": np.array(offsets, np.int64), "length": np.array(lengths, np.int64)}


class MapRows(DictRows):
    """Records as samples."""

    _decode = staticmethod(msgspec.msgpack.decode)
    _decode_errors = (msgspec.MsgspecError, UnicodeDecodeError)

    def _decode_or_explain(self, record, row):
        try:
            return self._decode(record)
        except self._decode_errors as error:
            raise FormatError(f"{self.location(row)}, sample {row}: expected MessagePack: {error}") from None


class MapWriter(SeriesWriter):
    """Writes ``part-00000.maps`` and so on."""

    def __init__(self, path, features, mode, shard_rows):
        super().__init__(path, mode, features, r"part-\d+\.maps", prefix="part", extension=".maps", rows=shard_rows)

    def _series(self, name, first, rows, size):
        """Return the series of shards, each of which begins with the magic bytes."""
        return ShardSeries(self._stage, name, first, rows=rows, size=size, begin=MAGIC)

    def _encode(self, sample):
        record = msgspec.msgpack.encode(sample)
        return len(record).to_bytes(4, "little") + record


def open_maps(files, *, schema=None, rebuild: bool = False, progress: bool | None = None):
    """Open the files that end in .maps; the options of this function are options of `sx.open`."""
    shards = files.having(".maps") if files.folder else files
    index = Index.of(shards, MapScanner(), rebuild=rebuild, progress=progress)
    return MapRows(shards, index, schema, "value", "packed_maps")


def create_maps(path, features, *, mode="create", shard_rows: int = 100_000):
    """Return a writer; its options are options of `sx.write`."""
    return MapWriter(path, features, mode, shard_rows)


FORMAT = Format(open_maps, create_maps, JoinShards(r"part-\d+\.maps", ".maps"))
