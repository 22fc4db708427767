"""Arrow IPC shards: the native dataset with its manifest, and plain Arrow files of anybody.

Reading maps the files and gathers from their buffers (`mapped.py`). In a native dataset the size of a file is
checked when it is opened, its foot and each batch against their checksums before Arrow sees a byte of them.
Writing collects batches (`builder.py`), names each file by its content and publishes one manifest at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from shardex.builder import BatchBuilder
from shardex.columns import Columns
from shardex.errors import ChecksumError, ClosedError, FormatError, SchemaError, TruncatedShardError
from shardex.format import ShardRows
from shardex.gather import Integers
from shardex.layout import arrow_schema, features_of_arrow
from shardex.manifest import (
    FOLDER,
    Batch,
    DataFile,
    Fragment,
    Manifest,
    latest_version,
    publish,
    read_manifest,
)
from shardex.mapped import MappedTable
from shardex.rows import check_fields
from shardex.schema import Features
from shardex.shards import Files
from shardex.source import Draft, Source
from shardex.sources.local import LocalSource
from shardex.staging import check_mode

__all__ = ["ArrowRows", "ArrowWriter", "create", "open", "recognise"]

BATCH_BYTES = 4 << 20
"""A batch is checked whole when a row of it is first touched: 4 MiB take half a millisecond."""
_EXTENSIONS = (".arrow", ".feather", ".ipc")
_MAGIC = b"ARROW1"


def recognise(files: Files) -> bool:
    """A folder with a manifest, or files named as Arrow."""
    return is_native(files) or bool(files.having(*_EXTENSIONS).paths)


def is_native(files: Files) -> bool:
    """Whether this is a folder that shardex wrote."""
    return files.folder and latest_version(files.source) > 0


def open(files: Files, *, schema: Features | None = None, version: int | None = None) -> ArrowRows:
    """The rows of a native dataset (at a version), or of plain Arrow files."""
    if is_native(files):
        number = latest_version(files.source) if version is None else version
        return _open_native(files.source, read_manifest(files.source, number), number, schema)
    if version is not None:
        raise FormatError(f"{files}: expected a native dataset, which has versions, got plain Arrow files")
    return _open_plain(_listed(files), schema)


class ArrowRows(ShardRows):
    """Rows of Arrow files: tables side by side, each with some of the fields."""

    def __init__(self, tables: Sequence[MappedTable], length: int, fingerprint: str, shards: list[str], features: Features) -> None:
        self._tables = list(tables)
        self._table_of = {name: table for table in tables for name in table.features}
        self._length = length
        self._fingerprint = fingerprint
        self._shards = shards
        self._features = features
        self._names = list(features)
        self._only = self._tables[0] if len(self._tables) == 1 and list(self._tables[0].features) == self._names else None
        if self._only is not None:
            self.sample = self._only.sample  # type: ignore[method-assign]  # one call less on the way to one sample

    def __len__(self) -> int:
        return self._length

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        return self._features

    @property
    def fingerprint(self) -> str:
        """Names the data: the files' content where it is known, else their sizes and times."""
        return self._fingerprint

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return self._shards

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """One gather per field."""
        rows = np.ascontiguousarray(rows, np.int64)
        names = check_fields(self._names, fields)
        if self._only is not None:
            return self._only.read(rows, names)
        parts = [table.read(rows, [name for name in names if self._table_of[name] is table]) for table in self._tables]
        return Columns({name: column for part in parts for name, column in part.data.items()}, len(rows)).select(names)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row; arrays are read-only views of the file."""
        return {name: self._table_of[name].sample(row, [name])[name] for name in (fields or self._names)}


# -- the native dataset ---------------------------------------------------------------------------------------


def _open_native(source: Source, manifest: Manifest, version: int, told: Features | None) -> ArrowRows:
    features = manifest.features
    if told is not None:
        features = Features({name: told.get(name, feature) if name in told else feature for name, feature in features.items()})
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in features:
        groups.setdefault(tuple(_file_of(fragment, name).path for fragment in manifest.fragments), []).append(name)
    stored = arrow_schema(manifest.features)
    tables = []
    for names in groups.values():
        files = [_file_of(fragment, names[0]) for fragment in manifest.fragments]
        tables.append(_native_table(source, files, features.select(names), stored))
    shards = [f"{source.url}/{file.path}" for fragment in manifest.fragments for file in fragment.groups]
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode([manifest.schema, manifest.fragments]))
    rows = ArrowRows(tables, manifest.rows, digest, shards, features)
    rows.pinned = {"version": version}
    return rows


def _file_of(fragment: Fragment, name: str) -> DataFile:
    return next(file for file in fragment.groups if name in file.fields)


def _native_table(source: Source, files: list[DataFile], features: Features, schema: pa.Schema) -> MappedTable:
    places = [(number, k) for number, file in enumerate(files) for k in range(len(file.batches))]
    shards = [_CheckedFile(source, file) for file in files]
    counts = [batch.rows for file in files for batch in file.batches]

    def load(chunk: int) -> pa.RecordBatch:
        number, k = places[chunk]
        return shards[number].batch(k)

    def name(chunk: int) -> str:
        number, k = places[chunk]
        return f"{source.url}/{files[number].path}, batch {k}"

    return MappedTable(features, schema, counts, load, name)


class _CheckedFile:
    """One Arrow file of a native dataset; no byte of it reaches Arrow unchecked."""

    def __init__(self, source: Source, file: DataFile) -> None:
        self._source = source
        self._file = file
        self._mapped: tuple[memoryview, pa.ipc.RecordBatchFileReader] | None = None

    def _open(self) -> tuple[memoryview, pa.ipc.RecordBatchFileReader]:
        file, where = self._file, f"{self._source.url}/{self._file.path}"
        data = self._source.map(file.path)
        if len(data) != file.size:
            kind = TruncatedShardError if len(data) < file.size else ChecksumError
            raise kind(f"{where}: expected {file.size} bytes, got {len(data)}")
        if xxhash.xxh3_64_hexdigest(data[file.batches[-1].end :]) != file.foot:
            raise ChecksumError(f"{where}: expected the foot as it was written, got other bytes")
        return data, _reader(data, where)

    def batch(self, number: int) -> pa.RecordBatch:
        if self._mapped is None:
            self._mapped = self._open()
        data, reader = self._mapped
        batch = self._file.batches[number]
        if xxhash.xxh3_64_hexdigest(data[batch.begin : batch.end]) != batch.xxh3:
            raise ChecksumError(
                f"{self._source.url}/{self._file.path}: expected batch {number} (bytes {batch.begin} to {batch.end}) "
                f"as it was written, got other bytes; the samples in it cannot be read"
            )
        return reader.get_batch(number)


def _reader(data: memoryview, where: str) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.py_buffer(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file, got something else: {error}") from None


# -- plain Arrow files ------------------------------------------------------------------------------------------


def _listed(files: Files) -> Files:
    """The shards in the order that a `_metadata.json` beside them gives, else in natural order."""
    kept = files.having(*_EXTENSIONS) if files.folder else files
    if files.folder and "_metadata.json" in files.paths:
        try:
            named = msgspec.json.decode(bytes(files.source.map("_metadata.json")))["shard_filenames"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise FormatError(f"{files}/_metadata.json: expected the names of the shards, got something else: {error!r}") from None
        for path in named:
            files.source.stat(path)
        return Files(files.source, tuple(named), files.what, files.folder)
    return kept


def _open_plain(files: Files, told: Features | None) -> ArrowRows:
    batches: list[Callable[[], pa.RecordBatch]] = []
    counts: list[int] = []
    names: list[str] = []
    schema: pa.Schema | None = None
    tags = []
    for number, path in enumerate(files.paths):
        where = files.name(number)
        stat = files.source.stat(path)
        tags.append([path, stat.size, stat.tag])
        found, some = _plain_batches(files.source.map(path), where)
        if schema is None:
            schema = found
        elif not found.equals(schema):
            raise FormatError(f"{where}: expected the schema of the first shard ({_short(schema)}), got {_short(found)}")
        for k, (count, load) in enumerate(some):
            batches.append(load)
            counts.append(count)
            names.append(f"{where}, batch {k}")
    if schema is None:
        raise FormatError(f"{files}: expected at least one Arrow file, got none")
    features = features_of_arrow(schema)
    if told is not None:
        features = Features({name: told[name] if name in told else feature for name, feature in features.items()})
    table = MappedTable(features, schema, counts, lambda k: _validated(batches[k](), names[k]), names.__getitem__)
    shards = [files.name(k) for k in range(len(files.paths))]
    return ArrowRows([table], len(table), xxhash.xxh3_64_hexdigest(msgspec.json.encode(tags)), shards, features)


def _plain_batches(data: memoryview, where: str) -> tuple[pa.Schema, list[tuple[int, Callable[[], pa.RecordBatch]]]]:
    """The schema, and for each batch its rows and a way to load it; understands files and streams."""
    if bytes(data[:6]) == _MAGIC:
        reader = _reader(data, where)
        found = []
        for k in range(reader.num_record_batches):
            found.append((_get(reader, k, where).num_rows, lambda k=k: _get(reader, k, where)))
        return reader.schema, found
    try:
        stream = pa.ipc.open_stream(pa.py_buffer(data))
        batches = list(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file or stream, got {bytes(data[:8])!r}: {error}") from None
    return stream.schema, [(batch.num_rows, lambda batch=batch: batch) for batch in batches]


def _get(reader: pa.ipc.RecordBatchFileReader, number: int, where: str) -> pa.RecordBatch:
    try:
        return reader.get_batch(number)
    except (pa.ArrowInvalid, OSError) as error:
        raise FormatError(f"{where}: expected batch {number}, got bytes that Arrow refuses: {error}") from None


def _validated(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise FormatError(f"{where}: expected valid Arrow data, got a damaged batch: {error}") from None
    return batch


def _short(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


# -- writing ----------------------------------------------------------------------------------------------------


def create(
    path: str, features: Features, *, mode: str, shard_size: int = 512 << 20, shard_rows: int | None = None
) -> ArrowWriter:
    """Begin a native dataset, or a new version of one."""
    return ArrowWriter(path, features, mode, shard_size, shard_rows)


class ArrowWriter:
    """Writes shards aside and publishes one manifest at the end; until then nothing has happened."""

    def __init__(self, path: str, features: Features, mode: str, shard_size: int, shard_rows: int | None) -> None:
        if shard_size < 1 or (shard_rows is not None and shard_rows < 1):
            raise SchemaError(f"expected shards of at least 1 byte and 1 row, got {shard_size} and {shard_rows}")
        there = check_mode(path, mode)
        self._place = LocalSource(path)
        self._version = latest_version(self._place) if there else 0
        if there and not self._version:
            raise FormatError(f'{path}: expected a dataset that shardex wrote to {mode} it, got a folder without a manifest')
        self._before = read_manifest(self._place, self._version) if self._version and mode == "append" else None
        if self._before is not None and self._before.features != features:
            raise SchemaError(f"{path}: expected the fields it has ({self._before.features}), got {features}")
        self._mode = mode
        self._features = features
        self._shard_size, self._shard_rows = shard_size, shard_rows
        self._builder = BatchBuilder(features)
        self._file: _FileWriter | None = None
        self._done: list[DataFile] = []
        self._new_folder = not os.path.exists(path)
        self._closed = False

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample."""
        if self._closed:
            raise ClosedError(f"{self._place.root}: expected an open writer, this one is closed")
        builder = self._builder
        builder.append(sample)
        if builder.rows & 15 == 0 and builder.nbytes >= BATCH_BYTES or builder.rows == self._room():
            self._flush()

    def _room(self) -> int | None:
        return None if self._shard_rows is None else self._shard_rows - (self._file.rows if self._file else 0)

    def _flush(self) -> None:
        if not self._builder.rows:
            return
        if self._file is None:
            self._file = _FileWriter(self._place, self._builder.schema)
        self._file.write(self._builder.finish())
        if self._file.size >= self._shard_size or self._file.rows == self._shard_rows:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is not None:
            self._done.append(self._file.close(list(self._features)))
            self._file = None

    def close(self) -> None:
        """Publish the version."""
        if self._closed:
            return
        try:
            self._flush()
            self._finish_file()
            fragments = [Fragment(file.rows, [file]) for file in self._done]
            if self._before is not None:
                fragments = [*self._before.fragments, *fragments]
            rows = sum(fragment.rows for fragment in fragments)
            change = f"{self._mode}: {self._builder.finished} samples"
            manifest = Manifest(rows, self._features.to_json(), fragments, change=change)
            if not publish(self._place, self._version + 1, manifest):
                raise FormatError(f"{self._place.root}: expected to make version {self._version + 1}, somebody else made it first")
        except BaseException:
            self.abort()
            raise
        self._closed = True

    def abort(self) -> None:
        """Remove what was written aside."""
        if self._closed:
            return
        self._closed = True
        if self._file is not None:
            self._file.discard()
        kept = {file.path for fragment in (self._before.fragments if self._before else []) for file in fragment.groups}
        for file in self._done:
            if file.path not in kept and not self._version:
                self._place.remove(file.path)
        if self._new_folder:
            for folder in (os.path.join(self._place.root, "data"), os.path.join(self._place.root, FOLDER), self._place.root):
                if os.path.isdir(folder) and not os.listdir(folder):
                    os.rmdir(folder)


class _Hashing:
    """A file that notes the checksum of what passes through; `cut` ends one stretch and begins the next."""

    def __init__(self, draft: Draft) -> None:
        self._file = draft.file
        self._digest = xxhash.xxh3_64()
        self.position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._digest.update(data)
        self._file.write(data)
        self.position += len(data)
        return len(data)

    def cut(self) -> str:
        digest, self._digest = self._digest.hexdigest(), xxhash.xxh3_64()
        return digest

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _FileWriter:
    """One shard being written."""

    def __init__(self, place: LocalSource, schema: pa.Schema) -> None:
        self._draft = place.draft()
        self._sink = _Hashing(self._draft)
        self._out = pa.PythonFile(self._sink, mode="w")
        self._writer = pa.ipc.new_file(self._out, schema)
        self._batches: list[Batch] = []
        self.rows = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self._sink.position

    def write(self, batch: pa.RecordBatch) -> None:
        # Arrow writes the schema with the first batch, so that batch's stretch begins with the file.
        begin = self._batches[-1].end if self._batches else 0
        self._writer.write_batch(batch)
        self._batches.append(Batch(batch.num_rows, begin, self._sink.position, self._sink.cut()))
        self.rows += batch.num_rows

    def close(self, fields: list[str]) -> DataFile:
        self._writer.close()
        foot = self._sink.cut()
        identity = xxhash.xxh3_128_hexdigest("".join([*(batch.xxh3 for batch in self._batches), foot]).encode())
        path = f"data/{identity}.arrow"
        self._draft.publish(path)
        return DataFile(path, self._sink.position, fields, self._batches, foot)

    def discard(self) -> None:
        self._draft.discard()
