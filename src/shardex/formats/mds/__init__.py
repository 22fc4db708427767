"""MDS shards of MosaicML Streaming, version 2: a table of offsets and a description of the columns, then the samples.

A folder has shards (``shard.00000.mds``, also compressed) and an ``index.json`` that lists them in order; folders of
partitions have an index each, and one over all of them. Shards can also be opened without the index.

A sample begins with the size of each value whose encoding has no fixed one, and then has all values, end to end. The
fields of many samples are read by one gather each.
"""

from __future__ import annotations

import errno
import hashlib
import posixpath
import struct
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any

import msgspec
import numpy as np
import xxhash
from msgspec import Meta

from shardex.columns import check_fields
from shardex.errors import ChecksumError, FormatError, NotFoundError, SchemaError, ShardexError, TruncatedShardError
from shardex.features import Features
from shardex.files import Files, Index
from shardex.formats.join_shards import JoinShards
from shardex.formats.mds.encodings import Encoding, declared, encoding
from shardex.formats.mds.writer import INDEX, OWNED, MdsWriter
from shardex.formats.record_rows import RecordRows
from shardex.formats.registry import DamagedFiles, Format
from shardex.formats.signatures import NO, SURE
from shardex.kernel import Column, Columns, Integers, Ranges
from shardex.sources import ByteRange, Source, compression

__all__ = ["FORMAT", "recognise"]

_EXTENSION = ".mds"
_LONGEST = 16 << 20
"""Most bytes of the description of columns."""
Size = Annotated[int, Meta(ge=0, lt=1 << 32)]


class Description(msgspec.Struct, frozen=True):
    """The columns of a shard. MosaicML Streaming sorts them by name."""

    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[Size | None]
    version: int = 2

    def columns(self, where: str) -> dict[str, Encoding]:
        """Return the encoding of each column."""
        if self.version != 2 or not len(self.column_names) == len(self.column_encodings) == len(self.column_sizes):
            raise FormatError(f"{where}: expected MDS of version 2 with a size and an encoding for each column")
        columns = zip(self.column_names, self.column_encodings, self.column_sizes, strict=True)
        return {name: replace(encoding(kind, where), size=size) for name, kind, size in columns}


def _read_head(source: Source, path: str) -> tuple[Integers, bytes]:
    """Return the offsets of the samples and of the end, and the description of the columns."""
    where, size = source.full_name(path), source.stat(path).size
    if size < 8:
        raise TruncatedShardError(f"{where}: expected an MDS shard, got a file of {size} bytes")
    (count,) = struct.unpack("<I", source.read(path, [ByteRange(0, 4)])[0])
    begin = 4 * (count + 2)
    if begin > size:
        raise TruncatedShardError(f"{where}: expected the offsets of {count} samples, got a file of {size} bytes")
    offsets = np.frombuffer(source.read(path, [ByteRange(4, begin - 4)])[0], "<u4").astype(np.int64)
    if (np.diff(offsets) < 0).any() or not begin <= offsets[0] <= begin + _LONGEST:
        raise FormatError(f"{where}: expected offsets of samples in ascending order after {begin}, got others")
    if offsets[-1] != size:
        problem = TruncatedShardError if offsets[-1] > size else FormatError
        raise problem(f"{where}: expected a file of {offsets[-1]} bytes, as its offsets say, got {size}")
    return offsets, bytes(source.read(path, [ByteRange(begin, int(offsets[0]) - begin)])[0])


def _describe(data: bytes, where: str) -> Description:
    try:
        return msgspec.json.decode(data, type=Description)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected a description of MDS columns, got {data[:40]!r}: {error}") from None


@dataclass(frozen=True)
class MdsScanner:
    """Finds the samples of a shard. `columns` is a checksum of names, encodings and sizes, which all shards share."""

    name: str = "mds 1"
    in_python: bool = False

    def scan(self, source: Source, path: str) -> dict[str, Integers]:
        """Return offset and length of each sample."""
        offsets, data = _read_head(source, path)
        described = _describe(data, source.full_name(path))
        checksum = zlib.crc32(msgspec.json.encode(described))
        return {
            "offset": offsets[:-1],
            "length": np.diff(offsets),
            "columns": np.full(len(offsets) - 1, checksum, np.int64),
        }


class MdsRows(RecordRows):
    """Samples of MDS shards."""

    index: Index

    def __init__(self, files: Files, index: Index, schema: Features) -> None:
        super().__init__(files, index)
        low, high = index.spans.get("columns", (0, 0))
        if low != high:
            firsts = index.read("columns", index.starts[:-1])
            number = int(index.file_of_block[int((firsts != firsts[0]).argmax())])
            raise SchemaError(f"{files.name(number)}: expected the columns of {files.name(0)}, got others")
        first = int(index.file_of_block[0]) if len(index) else 0
        where = files.name(first)
        description = _describe(_read_head(files.source, files.paths[first])[1], where)
        self._columns = description.columns(where)
        check_fields(list(self._columns), list(schema))
        self._columns |= {name: declared(self._columns[name], feature) for name, feature in schema.items()}
        kinds = zip(description.column_names, description.column_encodings, strict=True)
        if pickled := [name for name, kind in kinds if kind == "pkl"]:
            warnings.warn(
                f"{where}: the column {', '.join(pickled)} has pickled objects, which shardex never unpickles: its "
                "values are read as bytes",
                stacklevel=2,
            )
        self._names = list(self._columns)
        self._head = struct.Struct(f"<{sum(one.size is None for one in self._columns.values())}I")
        self._converted = bool(schema)
        """True if values are converted to the features of a schema."""

    @cached_property
    def features(self) -> Features:
        """The feature of each column."""
        return Features({name: one.feature for name, one in self._columns.items()})

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these samples."""
        rows = np.asarray(rows, np.int64)
        names = check_fields(self._names, fields)
        which, begin, length = self.index.locate(rows)
        held = self.hold(rows, names)
        found: dict[str, Column] = {}
        for name, at, size in self._places(rows, which, begin, length):
            if name in names:
                found[name] = self._column(name, Ranges(self.data, which, at, size), rows)
        del held
        return Columns({name: found[name] for name in names}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample."""
        names = check_fields(self._names, fields)
        held = self.hold(np.array([row]), names) if self.data.closable else None
        record, at, found, sized = self.record(row).data, self._head.size, {}, 0
        try:
            sizes = self._head.unpack_from(record)
            for name, one in self._columns.items():
                size = one.size
                if size is None:
                    size, sized = sizes[sized], sized + 1
                if name in names:
                    found[name] = one.value(record[at : at + size])
                at += size
        except (ValueError, struct.error, IndexError, KeyError, ShardexError):
            at = -1
        del held
        if at != len(record) or self._converted:  # `read` explains errors
            return self.read(np.array([row]), fields).sample(0)
        return found if fields is None else {name: found[name] for name in names}

    def _column(self, name: str, ranges: Ranges, rows: Integers) -> Column:
        def where(k: int) -> str:
            return f"{self.location(int(rows[k]))}, sample {rows[k]}"

        return self._columns[name].column(ranges, name, where)

    def _places(
        self, rows: Integers, which: Integers, begin: Integers, length: Integers
    ) -> list[tuple[str, Integers, Integers]]:
        """Return offset and length of the values of each column."""
        head = self._head.size
        if (short := length < head).any():
            self._refuse(rows, int(short.argmax()))
        sizes = Ranges(self.data, which, begin, np.full(len(rows), head)).padded(head).view("<u4").astype(np.int64)
        at, places, sized = begin + head, [], iter(sizes.T)
        for name, one in self._columns.items():
            size = next(sized) if one.size is None else np.full(len(rows), one.size, np.int64)
            places.append((name, at, size))
            at = at + size
        if (wrong := at != begin + length).any():
            self._refuse(rows, int(wrong.argmax()))
        return places

    def _refuse(self, rows: Integers, k: int) -> None:
        row = int(rows[k])
        raise FormatError(
            f"{self.location(row)}: expected values that fill sample {row}, got other sizes; the shard is damaged"
        )


# -- the index ------------------------------------------------------------------------------------------------


class _ShardFile(msgspec.Struct, frozen=True):
    basename: str
    hashes: dict[str, str] = {}


class _Shard(msgspec.Struct, frozen=True):
    raw_data: _ShardFile
    format: str


class _ShardIndex(msgspec.Struct, frozen=True):
    shards: list[_Shard]


def recognise(files: Files) -> int:
    """Return `SURE` for files with MDS shards."""
    return SURE if files.having(_EXTENSION).paths else NO


def open(
    files: Files,
    *,
    schema: Features | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
) -> MdsRows:
    """Open the shards that ``index.json`` lists, or all shards if there is no such file.

    `schema` gives columns other types: a column of bytes that is declared as an array has its numbers.
    """
    shards = _listed(files) if files.folder else files
    if not shards.paths:
        raise NotFoundError(errno.ENOENT, "expected a folder with .mds files, got one without", str(files))
    index = Index.of(shards, MdsScanner(), rebuild=rebuild, progress=progress, workers=workers)
    return MdsRows(shards, index, Features({} if schema is None else Features.of(schema)))


def _listed(files: Files) -> Files:
    """Return the shards in the order of the index; a missing one is an error, an unlisted one a warning."""
    shards = files.having(_EXTENSION)
    if not files.has(INDEX):
        return shards
    names, known = _names_in_index(files), set(shards.paths)
    if missing := next((name for name in names if name not in known), None):
        raise NotFoundError(errno.ENOENT, f"expected this shard, which {INDEX} lists", files.source.full_name(missing))
    if others := sorted(known - set(names)):
        warnings.warn(
            f"{files}: {len(others)} shards are not listed in {INDEX} and are left out: {', '.join(others[:3])}; open "
            "them by a pattern such as *.mds",
            stacklevel=2,
        )
    return replace(shards, listed=tuple(names))


def _names_in_index(files: Files) -> list[str]:
    """Return the paths of the shards that the index lists."""
    names = list(_read_index(files.source))
    if outside := next((name for name in names if name.startswith(("/", "../"))), None):
        raise FormatError(f"{files.source.full_name(INDEX)}: expected shards in this folder, got {outside!r}")
    return names


def _read_index(source: Source) -> dict[str, dict[str, str]]:
    """Return the path of each shard that the index lists, with its hashes."""
    where = source.full_name(INDEX)
    try:
        found = msgspec.json.decode(source.load(INDEX), type=_ShardIndex)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected an index of MDS shards, got: {error}") from None
    if other := next((one.format for one in found.shards if one.format != "mds"), None):
        raise FormatError(f"{where}: expected shards of the format mds, got {other!r}")
    return {posixpath.normpath(one.raw_data.basename): one.raw_data.hashes for one in found.shards}


def _check_hashes(source: Source, path: str) -> None:
    """Raise an error if shards have other hashes than the index says; `verify` calls this for each file."""
    if path == INDEX:
        wrong = [one for one in source.for_each(partial(_wrong_hash, source), _read_index(source).items()) if one]
        if wrong:
            more = f"; {len(wrong) - 1} more shards have wrong hashes" * (len(wrong) > 1)
            raise ChecksumError(f"{wrong[0]}{more}")


def _wrong_hash(source: Source, shard: tuple[str, dict[str, str]]) -> str:
    """Return what is wrong with the hashes of a shard; an empty text if they are right."""
    path, hashes = shard
    for kind, expected in hashes.items():
        try:
            state = getattr(xxhash, kind)() if kind in xxhash.algorithms_available else hashlib.new(kind)
        except ValueError:
            return f"{source.full_name(INDEX)}: expected hashes that are known, got {kind}"
        for piece in compression.read_all(source, path, source.stat(path).size):
            state.update(piece)
        if state.hexdigest() != expected:
            return f"{source.full_name(path)}: expected the {kind} {expected}, as {INDEX} says, got {state.hexdigest()}"
    return ""


FORMAT = Format(
    open,
    MdsWriter,
    JoinShards(OWNED, _EXTENSION, publish_last=(INDEX,)),
    part_format="arrow",
    damaged=DamagedFiles(_check_hashes),
    stores_schema=True,
    self_describing=True,
)
