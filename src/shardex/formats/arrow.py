"""The native dataset, Arrow IPC files and a manifest for each version; plain Arrow files are opened here too.

Opening reads the manifest and no data. The size of a file is checked when it is first touched, its foot and each
batch against their checksums before Arrow sees a byte of them. Writing is `arrow_writer.py`, files without a manifest
are `ipc.py`.
"""

from __future__ import annotations

import os
import re

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from shardex.errors import ChecksumError, FormatError, TruncatedShardError
from shardex.formats.arrow_writer import create
from shardex.formats.ipc import EXTENSIONS, open_file, open_files, validated
from shardex.formats.tables import TableRows
from shardex.gather import Integers, Ranges, Segments
from shardex.layout import arrow_schema, features_of_arrow, schema_text
from shardex.manifest import DataFile, Fragment, Manifest, latest_version, read_manifest
from shardex.mapped import MappedTable
from shardex.schema import Features
from shardex.shards import Files
from shardex.source import Source
from shardex.sources.local import LocalSource

__all__ = ["create", "open", "recognise"]

_OWN = re.compile(r"data/[0-9a-f]{32}\.arrow")


def recognise(files: Files) -> int:
    """A folder with a manifest, or files named as Arrow."""
    return 2 if _latest(files) else bool(files.having(*EXTENSIONS).paths)


def _latest(files: Files) -> int:
    return latest_version(files.source) if files.folder else 0


def open(files: Files, *, schema: Features | None = None, version: int | None = None) -> TableRows:
    """The rows of a native dataset (at a version), or of plain Arrow files."""
    if latest := _latest(files):
        number = latest if version is None else version
        return _open_native(files.source, read_manifest(files.source, number), number, schema)
    if version is not None:
        raise FormatError(f"{files}: expected a native dataset, which has versions, got plain Arrow files")
    if files.folder and (found := files.having(*EXTENSIONS).paths) and all(map(_OWN.fullmatch, found)):
        raise FormatError(f"{files}: expected a manifest, got only data: it was being written and never finished")
    _refuse_own(files)
    return open_files(files, schema)


def _refuse_own(files: Files) -> None:
    """Data files of a native dataset, taken by themselves, would show versions that are no more."""
    for number in range(len(files.paths)):
        folder, name = os.path.split(files.name(number))
        root, inner = os.path.split(folder)
        if _OWN.fullmatch(f"{inner}/{name}") and latest_version(LocalSource(root)):
            raise FormatError(
                f"{files.name(number)}: expected plain Arrow files, got one of the dataset {root}; open that"
            )


def _open_native(source: Source, manifest: Manifest, version: int, told: Features | None) -> TableRows:
    features = manifest.features
    stored = arrow_schema(features)
    if told:
        features = features_of_arrow(stored, told)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in features:
        groups.setdefault(tuple(_file_of(fragment, name).path for fragment in manifest.fragments), []).append(name)
    tables = []
    for names in groups.values():
        files = [_file_of(fragment, names[0]) for fragment in manifest.fragments]
        batches = _Batches([_CheckedFile(source, file, stored) for file in files])
        some = features.select(names)
        tables.append(MappedTable(some, stored, batches.rows, batches.load, batches.name, batches.extents))
    first = [file for fragment in manifest.fragments for file in fragment.groups[:1]]
    others = [file for fragment in manifest.fragments for file in fragment.groups[1:]]
    shards = [f"{source.url}/{file.path}" for file in first + others]
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode([manifest.schema, manifest.fragments]))
    rows = TableRows(tables, [fragment.rows for fragment in manifest.fragments], features, digest, shards)
    rows.pinned = {"version": version}
    return rows


def _file_of(fragment: Fragment, name: str) -> DataFile:
    return next(file for file in fragment.groups if name in file.fields)


class _Batches:
    """The record batches of some files, one after another."""

    def __init__(self, files: list[_CheckedFile]) -> None:
        self._files = files
        self._mapped = Segments(len(files), self._map)
        self._places = [(number, batch) for number, one in enumerate(files) for batch in range(len(one.file.batches))]
        self.rows = [batch.rows for one in files for batch in one.file.batches]

    def load(self, number: int) -> pa.RecordBatch:
        """A batch, checked."""
        file, batch = self._places[number]
        return self._files[file].batch(batch)

    def name(self, number: int) -> str:
        """A batch, as messages name it."""
        file, batch = self._places[number]
        return f"{self._files[file].where}, batch {batch}"

    def extents(self, numbers: Integers) -> Ranges:
        """The bytes that batches take; a checksum needs them all."""
        return Ranges(self._mapped, *np.array([self._extent(n) for n in numbers.tolist()], np.int64).reshape(-1, 3).T)

    def _extent(self, number: int) -> tuple[int, int, int]:
        file, batch = self._places[number]
        entry = self._files[file].file.batches[batch]
        return file, entry.begin, entry.end - entry.begin

    def _map(self, number: int) -> None:
        self._mapped.put(number, self._files[number].data)


class _CheckedFile:
    """One Arrow file of a native dataset; no byte of it reaches Arrow unchecked."""

    __slots__ = ("_data", "_opened", "_schema", "_source", "file")

    def __init__(self, source: Source, file: DataFile, schema: pa.Schema) -> None:
        self._source = source
        self.file = file
        self._schema = schema
        self._data: memoryview | None = None
        self._opened: tuple[memoryview, pa.ipc.RecordBatchFileReader] | None = None

    @property
    def where(self) -> str:
        """The file, as messages name it."""
        return f"{self._source.url}/{self.file.path}"

    @property
    def data(self) -> memoryview:
        """The file, mapped; it has the size that it should have."""
        if self._data is None:
            data = self._source.map(self.file.path)
            if len(data) != self.file.size:
                kind = TruncatedShardError if len(data) < self.file.size else ChecksumError
                raise kind(f"{self.where}: expected {self.file.size} bytes, got {len(data)}")
            self._data = data
        return self._data

    def batch(self, number: int) -> pa.RecordBatch:
        """One record batch, checked."""
        if self._opened is None:
            self._opened = self._open()
        data, reader = self._opened
        batch = self.file.batches[number]
        if xxhash.xxh3_64_hexdigest(data[batch.begin : batch.end]) != batch.xxh3:
            raise ChecksumError(
                f"{self.where}: expected batch {number} (bytes {batch.begin} to {batch.end}) as it was written, "
                "got other bytes; the samples in it cannot be read"
            )
        return validated(reader.get_batch(number), f"{self.where}, batch {number}")

    def _open(self) -> tuple[memoryview, pa.ipc.RecordBatchFileReader]:
        file, where, data = self.file, self.where, self.data
        if xxhash.xxh3_64_hexdigest(data[file.batches[-1].end :]) != file.foot:
            raise ChecksumError(f"{where}: expected the foot as it was written, got other bytes")
        reader = open_file(data, where)
        count, found = reader.num_record_batches, schema_text(reader.schema)
        expected = schema_text(pa.schema([self._schema.field(name) for name in file.fields]))
        if (count, found) != (len(file.batches), expected):
            raise FormatError(f"{where}: expected {len(file.batches)} batches of {expected}, got {count} of {found}")
        return data, reader
