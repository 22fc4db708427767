"""Arrow IPC files and streams of anybody: mapped, validated before a value is looked at, then read in place.

Nothing vouches for such files, so each batch is validated in full when a row of it is first touched. Batches that
are not compressed are read where they lie; of files that are, a few decoded batches are kept (a stream, which cannot be
entered in the middle, is decoded whole). A `_metadata.json` beside the shards may say their order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardex.arrow import (
    FOOTER_TAIL,
    Block,
    DecodedTable,
    MappedTable,
    batch_is_compressed,
    check_column_names,
    features_of_arrow,
    footer_blocks,
    footer_size,
    schema_text,
)
from shardex.errors import FormatError, TruncatedShardError
from shardex.files import Files
from shardex.formats.table_rows import TableRows, files_digest
from shardex.kernel import Bytes, Integers, Ranges
from shardex.schema import Features

__all__ = ["EXTENSIONS", "open_file", "open_files", "validated"]

EXTENSIONS = (".arrow", ".feather", ".ipc")
_MAGIC = b"ARROW1"
_REFUSED = (pa.ArrowException, OSError)
_LIKELY_FOOT = 64 << 10

Load = Callable[[list[str] | None], pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class _Batch:
    """A record batch that is not loaded yet."""

    rows: int
    name: str
    load: Load
    """Gives these columns, or all."""


@dataclass(frozen=True, slots=True)
class _Shard:
    schema: pa.Schema
    batches: list[_Batch]
    nulls: set[str]
    """The columns that have nulls, as far as is known; else those that may."""
    packed: bool
    """Whether loading a batch decodes it."""


def open_files(files: Files, told: Features | None) -> TableRows:
    """The rows of all files; their schemas must be the same."""
    files, counts = _listed(files)
    if not files.paths:
        raise FormatError(f"{files}: expected at least one Arrow file, got none")
    digest = files_digest(files)
    names = [files.name(number) for number in range(len(files.paths))]
    opened = _OpenFiles(files, names)
    shards = opened.shards()
    _check(shards, names, counts)
    features = features_of_arrow(shards[0].schema, told, {null for shard in shards for null in shard.nulls})
    counts = [sum(batch.rows for batch in shard.batches) for shard in shards]
    return TableRows([_table(shards, features, opened)], counts, features, digest, names)


def _check(shards: list[_Shard], names: list[str], counts: list[int] | None) -> None:
    expected = schema_text(shards[0].schema)
    for name, shard in zip(names, shards, strict=True):
        if (found := schema_text(shard.schema)) != expected:
            raise FormatError(f"{name}: expected the schema of the first shard ({expected}), got {found}")
    for name, shard, count in zip(names, shards, counts or [], strict=False):
        if (rows := sum(batch.rows for batch in shard.batches)) != count:
            raise TruncatedShardError(f"{name}: expected {count} rows as _metadata.json says, got {rows}")


def _table(shards: list[_Shard], features: Features, opened: _OpenFiles) -> MappedTable | DecodedTable:
    batches = [batch for shard in shards for batch in shard.batches]
    schema, rows = shards[0].schema, [batch.rows for batch in batches]

    def name(number: int) -> str:
        return batches[number].name

    if any(shard.packed for shard in shards):
        return DecodedTable(features, schema, rows, lambda number, fields: batches[number].load(fields), name)

    def load(number: int) -> pa.RecordBatch:
        return validated(batches[number].load(None), name(number))

    table = MappedTable(features, schema, rows, load, name, opened.extents, opened.is_remote)
    opened.close_batches = weakref.WeakMethod(table.close_batches)
    return table


# -- one file -------------------------------------------------------------------------------------------------


def open_file(data: Any, where: str, fields: Iterable[int] = ()) -> pa.ipc.RecordBatchFileReader:
    """A reader of an Arrow IPC file: of all columns, or of those with these numbers."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data), options=pa.ipc.IpcReadOptions(included_fields=sorted(fields)))
        check_column_names(reader.schema)
    except (*_REFUSED, FormatError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file, got something else: {error}") from None
    return reader


def validated(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """The batch, if all its offsets and texts are what they should be: looking at others can end the process."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise FormatError(f"{where}: expected valid Arrow data, got a damaged batch: {error}") from None
    return batch


def _compressed_file(data: memoryview, where: str) -> _Shard:
    reader = open_file(data, where)
    schema = reader.schema
    # One column is decoded to count the rows of each batch.
    probe = open_file(data, where, [_narrowest(schema)])
    found = [_get(probe, number, where) for number in range(reader.num_record_batches)]

    def load(number: int, fields: list[str] | None) -> pa.RecordBatch:
        some = open_file(data, where, map(schema.get_field_index, fields)) if fields else reader
        return _get(some, number, where)

    batches = [_Batch(batch.num_rows, f"{where}, batch {k}", partial(load, k)) for k, batch in enumerate(found)]
    return _Shard(schema, batches, {field.name for field in schema if field.nullable}, packed=True)


def _get(reader: pa.ipc.RecordBatchFileReader, number: int, where: str) -> pa.RecordBatch:
    try:
        return reader.get_batch(number)
    except _REFUSED as error:
        raise FormatError(f"{where}: expected batch {number}, got bytes that Arrow refuses: {error}") from None


def _narrowest(schema: pa.Schema) -> int:
    widths = [field.type.bit_width if pa.types.is_primitive(field.type) else 1 << 20 for field in schema]
    return widths.index(min(widths))


def _nulls(batches: Iterable[pa.RecordBatch]) -> set[str]:
    """The columns that have nulls; one that hides them in its encoding may."""
    return {
        field.name
        for batch in batches
        for field, column in zip(batch.schema, batch.columns, strict=True)
        if column.null_count or pa.types.is_run_end_encoded(field.type)
    }


def _stream(data: memoryview, where: str) -> _Shard:
    try:
        stream = pa.ipc.open_stream(pa.py_buffer(data))
        check_column_names(stream.schema)
        found = list(stream)
    except (*_REFUSED, FormatError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file or stream, got {bytes(data[:8])!r}: {error}") from None

    def load(number: int, fields: list[str] | None) -> pa.RecordBatch:
        return found[number]

    batches = [_Batch(batch.num_rows, f"{where}, batch {k}", partial(load, k)) for k, batch in enumerate(found)]
    return _Shard(stream.schema, batches, _nulls(found), packed=False)


# -- all files ------------------------------------------------------------------------------------------------


class _OpenFiles:
    """Files whose footers and batch headers are fetched when they are opened, and whose batches when they are read."""

    def __init__(self, files: Files, names: list[str]) -> None:
        self._files, self._names = files, names
        self.is_remote = files.source.is_remote
        self._data = files.source.buffer_table(files.paths, close_file=self._let_go)
        self._readers: list[pa.ipc.RecordBatchFileReader | None] = [None] * len(names)
        self._blocks: list[tuple[list[Block], list[Block]]] = [([], [])] * len(names)
        self._in_place: set[int] = set()
        """The files that are read where they lie: not streams, and not compressed ones."""
        self._places: list[tuple[int, int]] = []
        """File (-1 if it is not read where it lies) and number of each batch."""
        self.close_batches: weakref.WeakMethod[Callable[[Sequence[int]], None]] | None = None

    def _let_go(self, number: int) -> None:
        if self.close_batches is not None and (close := self.close_batches()) is not None:
            close([chunk for chunk, (file, _) in enumerate(self._places) if file == number])
        self._readers[number] = None

    def shards(self) -> list[_Shard]:
        """All files, opened: their ends are fetched at once, then the heads of their batches."""
        every = range(len(self._names))
        held = [self._data.open(number) for number in every]
        sizes = [data.size for data in held]
        ends = [(n, begin, size) for n in every for begin, size in _ends(sizes[n])]
        self._fetch(ends)
        is_file = [bytes(data[: len(_MAGIC)]) == _MAGIC for data in held]
        feet = [footer_size(_tail(held[n]), sizes[n], self._names[n]) if is_file[n] else 0 for n in every]
        self._fetch([(n, sizes[n] - feet[n], feet[n]) for n in every if feet[n] > _LIKELY_FOOT])
        for n in every:
            if feet[n]:
                self._blocks[n] = footer_blocks(held[n][sizes[n] - feet[n] :].tobytes(), sizes[n], self._names[n])
        self._fetch([(n, *extent) for n in every for extent in self._heads(n)])
        shards = [self._shard(n) if is_file[n] else self._streamed(n) for n in every]
        self._places = [(n if n in self._in_place else -1, k) for n in every for k in range(len(shards[n].batches))]
        return shards

    def _fetch(self, places: list[tuple[int, int, int]]) -> None:
        Ranges(self._data, *np.array(places, np.int64).reshape(-1, 3).T).fetch()

    def _heads(self, number: int) -> list[tuple[int, int]]:
        """What a reader needs before it can give a batch: heads of batches, and dictionaries."""
        dictionaries, batches = self._blocks[number]
        return [(one.begin, one.end - one.begin) for one in dictionaries] + [(one.begin, one.head) for one in batches]

    def _streamed(self, number: int) -> _Shard:
        return _stream(self._files.source.load(self._files.paths[number]), self._names[number])

    def _shard(self, number: int) -> _Shard:
        where, data, blocks = self._names[number], self._data.open(number), self._blocks[number][1]
        if any(batch_is_compressed(data[one.begin : one.begin + one.head].tobytes(), where) for one in blocks):
            self._fetch([(number, 0, data.size)])
            return _compressed_file(data.data, where)
        reader = self._reader(number)
        found = [_get(reader, k, where) for k in range(len(blocks))]
        self._in_place.add(number)
        batches = [
            _Batch(batch.num_rows, f"{where}, batch {k}", partial(self._load, number, k))
            for k, batch in enumerate(found)
        ]
        return _Shard(reader.schema, batches, _nulls(found), packed=False)

    def _reader(self, number: int) -> pa.ipc.RecordBatchFileReader:
        if (reader := self._readers[number]) is None:
            data = self._data.open(number)
            size = footer_size(self._data.slice(number, data.size - FOOTER_TAIL, data.size).tobytes(), data.size, "")
            self._fetch([(number, data.size - size, size), *((number, *one) for one in self._heads(number))])
            reader = open_file(data.data, self._names[number])
            if self._blocks[number][1]:
                # The first batch brings the dictionaries, which two threads at once must not do. Its body is not read.
                _get(reader, 0, self._names[number])
            self._readers[number] = reader
        return reader

    def _load(self, number: int, batch: int, fields: list[str] | None) -> pa.RecordBatch:
        reader, block = self._reader(number), self._blocks[number][1][batch]
        self._data.slice(number, block.begin, block.end)  # fetches it
        return _get(reader, batch, self._names[number])

    def extents(self, numbers: Integers) -> Ranges:
        """The bytes that batches take."""
        places = [self._places[number] for number in numbers.tolist()]
        blocks = [(file, self._blocks[file][1][batch]) for file, batch in places if file >= 0]
        found = [(file, block.begin, block.end - block.begin) for file, block in blocks]
        return Ranges(self._data, *np.array(found, np.int64).reshape(-1, 3).T)


def _ends(size: int) -> list[tuple[int, int]]:
    """Begin and length of the magic, and of as much of the end as holds most feet."""
    return [(0, min(len(_MAGIC), size)), (max(0, size - _LIKELY_FOOT), min(size, _LIKELY_FOOT))]


def _tail(data: Bytes) -> bytes:
    return data[max(0, data.size - FOOTER_TAIL) :].tobytes()


# -- which files, in which order ------------------------------------------------------------------------------


class _Metadata(msgspec.Struct):
    """What stable-datasets writes beside its shards; other tools have files of the same name."""

    shard_filenames: list[str] | None = None
    shard_row_counts: list[int] | None = None


def _listed(files: Files) -> tuple[Files, list[int] | None]:
    """The shards in the order that a `_metadata.json` beside them gives, else in natural order; their rows if known."""
    if not files.folder:
        return files, None
    if "_metadata.json" in files.paths:
        try:
            told = msgspec.json.decode(files.source.load("_metadata.json"), type=_Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(
                f"{files}/_metadata.json: expected the names of shards, got something else: {error}"
            ) from None
        if told.shard_filenames is not None:
            return Files(files.source, tuple(told.shard_filenames), files.what, files.folder), told.shard_row_counts
    return files.having(*EXTENSIONS), None
