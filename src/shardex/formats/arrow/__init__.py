"""Arrow IPC files and streams that other tools wrote: mapped, validated, then read in place.

Such files have no checksums, so each batch is validated in full when one of its rows is first read. Uncompressed
batches are read in place; of compressed files a few decoded batches are cached. A stream, which has no random access,
is decoded whole. A `_metadata.json` or `state.json` next to the shards may name them in order.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec
import pyarrow as pa

from shardex.columns import DecodedTable, DecodeLimit, MappedTable, arrow_types, ipc
from shardex.errors import FormatError, TruncatedShardError
from shardex.features import Features, arrow_schema, features_of_arrow
from shardex.files import Files
from shardex.formats.signatures import FORMATS
from shardex.formats.table_rows import TableRows, fetch_footers, file_reader, files_digest, ranges_at
from shardex.kernel import Integers, Ranges
from shardex.sources import LocalSource

EXTENSIONS = FORMATS["arrow"].extensions
_MAGIC = b"ARROW1"
_METADATA = "_metadata.json"
_STATE = "state.json"
_REFUSED = (pa.ArrowException, OSError)


@dataclass(frozen=True, slots=True)
class _Shard:
    """The record batches of a file, which are not loaded yet."""

    schema: pa.Schema
    rows: list[int]
    """Number of rows of each batch."""
    load: Callable[[int, list[str] | None], pa.RecordBatch]
    """Returns a batch with these columns, or all."""
    nulls: set[arrow_types.Path]
    """Columns, and parts inside them, that have nulls."""
    compressed: bool
    """True if loading a batch decompresses it."""


def open_files(files: Files, schema: Features | None, max_decoded_bytes: int | str | None = None) -> TableRows:
    """Open the rows of all files, which must have the same schema.

    A batch that would take more than `max_decoded_bytes` raises an error (see `DecodeLimit`).
    """
    files, counts = _shards_in_order(files)
    if not files.paths and counts is None:
        raise FormatError(f"{files}: expected at least one Arrow file, got none")
    if not files.paths:
        return _no_rows(files, schema)
    digest = files_digest(files)
    names = [files.name(number) for number in range(len(files.paths))]
    opened = _OpenFiles(files, names, DecodeLimit(max_decoded_bytes))
    shards = opened.shards()
    _check(shards, names, counts)
    opened.check_rows(shards)
    features = features_of_arrow(shards[0].schema, schema, {null for shard in shards for null in shard.nulls})
    counts = [sum(shard.rows) for shard in shards]
    return TableRows([_table(shards, features, opened)], counts, features, digest, names)


def map_table(path: str | os.PathLike[str], max_decoded_bytes: int | str | None = None) -> pa.Table:
    """Return one local Arrow file as a table over its mapped bytes; compressed batches are decompressed.

    >>> import tempfile; path = os.path.join(tempfile.mkdtemp(), "a.arrow"); table = pa.table({"x": [1, 2]})
    >>> with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
    ...     out.write_table(table)
    >>> map_table(path).to_pydict()
    {'x': [1, 2]}
    """
    folder, name = os.path.split(os.path.realpath(path))
    files = Files(LocalSource(folder), (name,), name)
    opened = _OpenFiles(files, [os.fspath(path)], DecodeLimit(max_decoded_bytes))
    (shard,) = opened.shards()
    batches = [
        ipc.valid_batch(shard.load(number, None), opened.batch_name(number)) for number in range(len(shard.rows))
    ]
    return pa.Table.from_batches(batches, schema=shard.schema)


def _no_rows(files: Files, schema: Features | None) -> TableRows:
    """Return no rows with the fields that the user declares: without a file no others are known."""
    features = schema or Features({})

    def load(number: int) -> pa.RecordBatch:
        raise FormatError(f"{files}: expected no batches, got number {number}")

    tables = [MappedTable(features, arrow_schema(features), [], load, str)] if features else []
    return TableRows(tables, [], features, files_digest(files), [])


def _check(shards: list[_Shard], names: list[str], counts: list[int] | None) -> None:
    expected = arrow_types.schema_text(shards[0].schema)
    for name, shard in zip(names, shards, strict=True):
        if (found := arrow_types.schema_text(shard.schema)) != expected:
            raise FormatError(f"{name}: expected the schema of the first shard ({expected}), got {found}")
    for name, shard, count in zip(names, shards, counts or [], strict=False):
        if (rows := sum(shard.rows)) != count:
            raise TruncatedShardError(f"{name}: expected {count} rows as _metadata.json says, got {rows}")


def _table(shards: list[_Shard], features: Features, opened: _OpenFiles) -> MappedTable | DecodedTable:
    schema, rows = shards[0].schema, [count for shard in shards for count in shard.rows]

    def load(number: int, fields: list[str] | None = None) -> pa.RecordBatch:
        file, batch = opened.places[number]
        return shards[file].load(batch, fields)

    if any(shard.compressed for shard in shards):
        return DecodedTable(
            features,
            schema,
            rows,
            load,
            opened.batch_name,
            limit=opened.limit,
            encoded_bytes=opened.encoded_bytes,
            read_file=opened.read_file,
        )

    def load_valid(number: int) -> pa.RecordBatch:
        batch = ipc.valid_batch(load(number), opened.batch_name(number))
        opened.limit.check(arrow_types.expanded_size(batch), batch.get_total_buffer_size(), opened.batch_name(number))
        return batch

    table = MappedTable(
        features, schema, rows, load_valid, opened.batch_name, opened.extents, opened.evicts, opened.read_file
    )
    opened.close_batches = weakref.WeakMethod(table.close_batches)
    return table


# -- one file -------------------------------------------------------------------------------------------------


def _compressed_file(data: memoryview, heads: list[bytes], where: str) -> _Shard:
    """Describe a compressed file; `heads` are the headers of its batches, which tell their rows and null counts."""
    reader = ipc.open_ipc_file(data, where)
    schema = reader.schema
    layouts = [ipc.batch_layout(head, where) for head in heads]
    nulls = {path for one in layouts for path in arrow_types.null_paths_of_counts(schema, one.nulls.tolist())}

    def load(number: int, fields: list[str] | None) -> pa.RecordBatch:
        some = ipc.open_ipc_file(data, where, map(schema.get_field_index, fields)) if fields else reader
        return _get(some, number, where)

    return _Shard(schema, [one.rows for one in layouts], load, nulls, compressed=True)


def _get(reader: pa.ipc.RecordBatchFileReader, number: int, where: str) -> pa.RecordBatch:
    try:
        return reader.get_batch(number)
    except _REFUSED as error:
        raise FormatError(f"{where}: expected batch {number}, got bytes that Arrow refuses: {error}") from None


def _uncompressed(
    schema: pa.Schema, batches: list[pa.RecordBatch], load: Callable[[int, list[str] | None], pa.RecordBatch]
) -> _Shard:
    """Describe batches, whose bodies are not fetched or validated yet."""
    nulls = {
        path
        for batch in batches
        for name, column in zip(schema.names, batch.columns, strict=True)
        for path in arrow_types.null_paths(name, [column], in_memory=False)
    }
    return _Shard(schema, [batch.num_rows for batch in batches], load, nulls, compressed=False)


def _stream(data: memoryview, where: str, limit: DecodeLimit) -> _Shard:
    try:
        stream = pa.ipc.open_stream(pa.py_buffer(data))
        arrow_types.check_column_names(stream.schema)
        size = 0
        for block in ipc.stream_blocks(data, where):
            ipc.batch_is_compressed(bytes(data[block.begin : block.begin + block.head]), where)
            size += ipc.decompressed_size(data, block, where)
        found = list(stream) if size <= limit.allowed(len(data)) else []
    except (*_REFUSED, FormatError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file or stream, got {bytes(data[:8])!r}: {error}") from None
    limit.check(size, len(data), where)
    return _uncompressed(stream.schema, found, lambda number, fields: found[number])


# -- all files ------------------------------------------------------------------------------------------------


class _OpenFiles:
    """Files whose footers and batch headers are fetched when they are opened, and whose batches when they are read."""

    def __init__(self, files: Files, names: list[str], limit: DecodeLimit) -> None:
        self._files, self._names, self.limit = files, names, limit
        self.read_file = file_reader(files)
        self.encoded_bytes = 0
        self._data = files.source.buffer_table(files.paths, close_file=self._close_file)
        self.evicts = self._data.evicts
        self._readers: list[pa.ipc.RecordBatchFileReader | None] = [None] * len(names)
        self._blocks: list[tuple[list[ipc.Block], list[ipc.Block]]] = [([], [])] * len(names)
        self._in_place: set[int] = set()
        """Files that are read in place: not streams and not compressed files."""
        self.places: list[tuple[int, int]] = []
        """File of each batch, and its number there."""
        self.close_batches: weakref.WeakMethod[Callable[[Sequence[int]], None]] | None = None

    def _close_file(self, number: int) -> None:
        if self.close_batches is not None and (close := self.close_batches()) is not None:
            close([chunk for chunk, (file, _) in enumerate(self.places) if file == number])
        self._readers[number] = None

    def shards(self) -> list[_Shard]:
        """Open all files: fetch their ends together, then the headers of their batches."""
        every = range(len(self._names))
        files = [self._data.open(number) for number in every]
        self.encoded_bytes = sum(data.size for data in files)
        footers = fetch_footers(self._data, [data.size for data in files], self._footer_size, head=len(_MAGIC))
        for n, (data, footer) in enumerate(zip(files, footers, strict=True)):
            if footer:
                self._blocks[n] = ipc.footer_blocks(data[data.size - footer :].tobytes(), data.size, self._names[n])
        self._fetch([(n, *extent) for n in every for extent in self._headers(n)])
        shards = [self._shard(n) if footers[n] else self._stream(n) for n in every]
        self.places = [(n, k) for n in every for k in range(len(shards[n].rows))]
        return shards

    def check_rows(self, shards: list[_Shard]) -> None:
        """Raise an error for a file with more rows than its size allows; each takes at least a byte when it is read."""
        for name, data, shard in zip(self._names, map(self._data.open, range(len(shards))), shards, strict=True):
            self.limit.check(sum(shard.rows), data.size, name)

    def _stream(self, number: int) -> _Shard:
        return _stream(self._files.source.load(self._files.paths[number]), self._names[number], self.limit)

    def _footer_size(self, number: int) -> int:
        """Return the size of the footer of a file; 0 for a stream, which has none."""
        data = self._data.open(number)
        if bytes(data[: len(_MAGIC)]) != _MAGIC:
            return 0
        return ipc.footer_size(data[max(0, data.size - ipc.FOOTER_TAIL) :].tobytes(), data.size, self._names[number])

    def _fetch(self, places: list[tuple[int, int, int]]) -> None:
        ranges_at(self._data, places).fetch()

    def batch_name(self, number: int) -> str:
        """File and number of a batch, for error messages."""
        file, batch = self.places[number]
        return f"{self._names[file]}, batch {batch}"

    def _headers(self, number: int) -> list[tuple[int, int]]:
        """Return the ranges that a reader needs before it can return a batch: batch headers and dictionaries."""
        dictionaries, batches = self._blocks[number]
        return [(one.begin, one.end - one.begin) for one in dictionaries] + [(one.begin, one.head) for one in batches]

    def _shard(self, number: int) -> _Shard:
        where, data, blocks = self._names[number], self._data.open(number), self._blocks[number][1]
        headers = [data[one.begin : one.begin + one.head].tobytes() for one in [*self._blocks[number][0], *blocks]]
        compressed = [ipc.batch_is_compressed(head, where) for head in headers]
        if any(compressed):
            self._fetch([(number, 0, data.size)])
            for k, block in enumerate([*self._blocks[number][0], *blocks]):
                self.limit.check(
                    ipc.decompressed_size(data.data, block, where), block.end - block.begin, f"{where}, message {k}"
                )
            heads = [data[one.begin : one.begin + one.head].tobytes() for one in blocks]
            return _compressed_file(data.data, heads, where)
        reader = self._reader(number)
        found = [_get(reader, k, where) for k in range(len(blocks))]
        self._in_place.add(number)
        return _uncompressed(reader.schema, found, partial(self._load, number))

    def _reader(self, number: int) -> pa.ipc.RecordBatchFileReader:
        if (reader := self._readers[number]) is None:
            data = self._data.open(number)
            size = ipc.footer_size(
                self._data.slice(number, data.size - ipc.FOOTER_TAIL, data.size).tobytes(), data.size, ""
            )
            self._fetch([(number, data.size - size, size), *((number, *one) for one in self._headers(number))])
            reader = ipc.open_ipc_file(data.data, self._names[number])
            if self._blocks[number][1]:
                # Getting the first batch reads the dictionaries, which is not thread-safe. Its body is not read.
                _get(reader, 0, self._names[number])
            self._readers[number] = reader
        return reader

    def _load(self, number: int, batch: int, fields: list[str] | None) -> pa.RecordBatch:
        reader, block = self._reader(number), self._blocks[number][1][batch]
        self._data.slice(number, block.begin, block.end)  # fetches the bytes
        return _get(reader, batch, self._names[number])

    def extents(self, numbers: Integers) -> Ranges:
        """Return the byte ranges of batches."""
        places = [self.places[number] for number in numbers.tolist()]
        blocks = [(file, self._blocks[file][1][batch]) for file, batch in places if file in self._in_place]
        return ranges_at(self._data, [(file, block.begin, block.end - block.begin) for file, block in blocks])


# -- which files, in which order ------------------------------------------------------------------------------


class _Metadata(msgspec.Struct):
    """Metadata that stable-datasets writes next to its shards; other tools use the same file name."""

    shard_filenames: list[str] | None = None
    shard_row_counts: list[int] | None = None


def _shards_in_order(files: Files) -> tuple[Files, list[int] | None]:
    """Return the shards that `_metadata.json` or `state.json` names, else all; and their row counts if known."""
    if not files.folder:
        return files, None
    if _METADATA in files.paths:
        try:
            metadata = msgspec.json.decode(files.source.load(_METADATA), type=_Metadata)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(
                f"{files}/{_METADATA}: expected the names of shards, got something else: {error}"
            ) from None
        if metadata.shard_filenames is not None:
            shards = Files(files.source, tuple(metadata.shard_filenames), files.what, files.folder)
            return shards, metadata.shard_row_counts or []
    if _STATE in files.paths and (names := _saved_names(files)) is not None:
        return Files(files.source, names, files.what, files.folder), [] if not names else None
    return files.having(*EXTENSIONS), None


class _DataFile(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    """What ``Dataset.save_to_disk`` of Hugging Face writes next to its shards; other tools use the same file name."""

    files: list[_DataFile] = msgspec.field(name="_data_files")
    indices: list[_DataFile] | None = msgspec.field(name="_indices_data_files", default=None)


def _saved_names(files: Files) -> tuple[str, ...] | None:
    """Return the shards that `state.json` names; `map` and `filter` leave their caches, Arrow files, beside them."""
    try:
        state = msgspec.json.decode(files.source.load(_STATE), type=_State)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if state.indices:
        raise FormatError(
            f"{files}/{_STATE}: expected the samples of all shards, got a selection of them (_indices_data_files); "
            f"load the folder with datasets and pass the result to shardex.open"
        )
    return tuple(file.filename for file in state.files)


def is_empty_cache(files: Files) -> bool:
    """Return True for a folder that has only a `_metadata.json` or `state.json` that says that it has no shards."""
    if not files.folder or (files.paths != (_METADATA,) and set(files.paths) != {_STATE, "dataset_info.json"}):
        return False
    with suppress(FormatError):
        shards, counts = _shards_in_order(files)
        return counts is not None and not shards.paths
    return False
