"""The data files of a native dataset as tables: mapped, and no byte of them used before its checksum was looked at.

`base_rows` are all rows as they were written, `survivors_of` those not deleted since, `patches_of` the newer values;
`formats/arrow.py` puts them together. Opening reads no data: the size of a file is checked when it is first touched,
its foot and each batch before Arrow sees them.
"""

from __future__ import annotations

import errno
import weakref
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.arrow import MappedTable, arrow_schema, schema_text
from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    PathError,
    StaleIndexError,
    TruncatedShardError,
    VersionExpired,
)
from shardex.files import display_name
from shardex.formats import ShardRows, TableRows, open_file, open_rows, validated
from shardex.kernel import Columns, Integers, Ranges
from shardex.rows import AbstractRows, Table
from shardex.schema import Features, check_fields
from shardex.sources import ByteRange, Source
from shardex.store.manifest import DataFile, Foreign, Fragment, Manifest
from shardex.store.overlay_rows import Patch
from shardex.store.row_ids import RowIds, Survivors

__all__ = ["base_rows", "patches_of", "read_ids", "read_numbers", "survivors_of"]


def base_rows(source: Source, manifest: Manifest, features: Features, trust_paths: bool = False) -> TableRows:
    """Some fields of all rows as they were first written, deleted ones too."""
    groups: dict[tuple[str, ...], list[str]] = {}
    foreign = next((one.foreign for one in manifest.fragments if one.foreign is not None), None)
    for name in features:
        if foreign is None or name not in foreign.fields:
            files = (_file_of(fragment, name) for fragment in manifest.fragments)
            groups.setdefault(tuple(file.path if file else "" for file in files), []).append(name)
    tables: list[Table] = []
    if foreign is not None:
        _refuse_untrusted(source, foreign, trust_paths)
        tables.append(_ForeignTable(foreign, features, manifest.fragments[0].rows))
    for names in groups.values():
        schema = arrow_schema(manifest.features.select(names))  # how it lies, whatever it is to be read as
        holders = [_holder(source, one, names, schema) for one in manifest.fragments]
        tables.append(_mapped(source, holders, features.select(names), schema))
    content = [manifest.schema, manifest.fragments, manifest.deleted, manifest.overlays]
    digest = xxhash.xxh3_64_hexdigest(msgspec.json.encode(content))
    rows = TableRows(tables, [one.rows for one in manifest.fragments], features, digest, _shards(source, manifest))
    rows.in_python = foreign is not None
    return rows


def _shards(source: Source, manifest: Manifest) -> list[str]:
    """The files, those first that hold the first fields of each fragment."""
    first, others = list[str](), list[str]()
    for one in manifest.fragments:
        names = [] if one.foreign is None else [display_name(one.foreign.what)]
        names += [f"{source.url}/{file.path}" for file in one.groups]
        first.append(names[0] if names else "")
        others += names[1:]
    return first + others


def _refuse_untrusted(source: Source, foreign: Foreign, trust_paths: bool) -> None:
    """A manifest may come from anywhere, so what it names outside its folder is read only if the user says so."""
    if not trust_paths:
        raise PathError(
            f"{source.url}: expected data inside this folder, its manifest names {display_name(foreign.what)} "
            "elsewhere; if you trust it, open it with trust_paths=True"
        )


_NOT_FROM_DATA = ("cache", "cache_limit", "trusted")
"""Options that are not taken from a manifest: where files are cached, and who is trusted."""


class _ForeignTable(AbstractRows):
    """Fields that lie in shards of another format, opened when they are first read, if they are still the same."""

    def __init__(self, foreign: Foreign, features: Features, rows: int) -> None:
        self._foreign = foreign
        self._rows = rows
        self._features = features.select([name for name in features if name in foreign.fields])

    def __len__(self) -> int:
        return self._rows

    @property
    def features(self) -> Features:
        """The fields that lie in the foreign shards."""
        return self._features

    @cached_property
    def _opened(self) -> ShardRows:
        foreign = self._foreign
        what = foreign.what if isinstance(foreign.what, str) else tuple(foreign.what)
        options = {name: value for name, value in foreign.options.items() if name not in _NOT_FROM_DATA}
        if "schema" in options:
            options["schema"] = Features.from_json(options["schema"])
        rows = open_rows(what, foreign.format, trusted=False, **options)
        if rows.fingerprint != foreign.fingerprint or len(rows) != self._rows:
            raise StaleIndexError(
                f"{display_name(foreign.what)}: expected the shards as they were when fields were put beside them "
                f"({foreign.fingerprint}, {self._rows} samples), got others ({rows.fingerprint}, {len(rows)} samples)"
            )
        return rows

    def _own(self, fields: Sequence[str]) -> list[str]:
        return [self._foreign.fields[name] for name in fields]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these fields under the names that they have in the shards."""
        names = check_fields(list(self._features), fields)
        found = self._opened.read(rows, self._own(names))
        return Columns({name: found[own] for name, own in zip(names, self._own(names), strict=True)}, len(rows))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these fields of these rows."""
        self._opened.advise(rows, self._own(check_fields(list(self._features), fields)))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row."""
        names = check_fields(list(self._features), fields)
        return {name: self.read(np.array([row]), [name]).sample(0).get(name) for name in names}

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Whole fields, as SQL sees them."""
        return self._opened.sql_columns(self._own(names)).rename_columns(list(names))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a field."""
        return self._opened.present(self._foreign.fields[name])


def _file_of(fragment: Fragment, name: str) -> DataFile | None:
    return next((file for file in fragment.groups if name in file.fields), None)


def _holder(source: Source, fragment: Fragment, names: list[str], schema: pa.Schema) -> _CheckedFile | _Nothing:
    file = _file_of(fragment, names[0])
    if file is None:
        return _Nothing(fragment.rows, pa.schema([schema.field(name) for name in names]))
    return _CheckedFile(source, file, pa.schema([schema.field(name) for name in names]))


def _mapped(
    source: Source, holders: Sequence[_CheckedFile | _Nothing], features: Features, schema: pa.Schema
) -> MappedTable:
    batches = _Batches(source, holders)
    made = MappedTable(features, schema, batches.rows, batches.load, batches.name, batches.extents, source.is_remote)
    batches.let_go = weakref.WeakMethod(made.close_batches)
    return made


def survivors_of(source: Source, manifest: Manifest) -> Survivors | None:
    """The places that are not deleted; none if all are there."""
    if not manifest.deleted:
        return None
    ids = RowIds([one.first for one in manifest.fragments], [one.rows for one in manifest.fragments])
    places = ids.places(np.concatenate([read_ids(source, file) for file in manifest.deleted]))
    return Survivors(len(ids), places[places >= 0])


def patches_of(source: Source, manifest: Manifest, features: Features) -> list[tuple[Patch, list[str]]]:
    """The newer values of fields, the oldest first, and which fields each has."""
    ids = RowIds([one.first for one in manifest.fragments], [one.rows for one in manifest.fragments])
    found = []
    for file in manifest.overlays:
        names = [name for name in file.fields if name in features]
        schema = arrow_schema(manifest.features.select(names))
        table = _mapped(source, [_CheckedFile(source, file, schema)], features.select(names), schema)
        found.append((Patch(table, partial(_places, source, file, ids)), names))
    return found


def _places(source: Source, file: DataFile, ids: RowIds) -> Integers:
    return ids.places(read_ids(source, file))


def read_ids(source: Source, file: DataFile) -> Integers:
    """The ids in a file of deleted rows or of newer values."""
    return read_numbers(source, file, "row").astype(np.int64)


def read_numbers(source: Source, file: DataFile, column: str) -> NDArray[np.uint64]:
    """A column of numbers, checked: one batch is seen where it lies, several are put together."""
    holder = _CheckedFile(
        source, msgspec.structs.replace(file, fields={column: column}), pa.schema([_ID.with_name(column)])
    )
    arrays = [holder.batch(number).column(0).buffers()[1] for number in range(len(file.batches))]
    parts = [np.frombuffer(one, np.uint64, batch.rows) for one, batch in zip(arrays, file.batches, strict=True)]
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])


_ID = pa.field("row", pa.uint64(), nullable=False)


class _Nothing:
    """Rows of a fragment that was written before the field was there: no file, no value."""

    where = "rows from before the field was added"
    path = ""
    data = b""

    def __init__(self, rows: int, schema: pa.Schema) -> None:
        self.rows = [rows]
        self._schema = schema

    def extent(self, number: int) -> tuple[int, int]:
        """No bytes."""
        return 0, 0

    def foot(self) -> tuple[int, int]:
        """No bytes."""
        return 0, 0

    def close(self) -> None:
        """Nothing is open."""

    def batch(self, number: int) -> pa.RecordBatch:
        """One batch of nulls."""
        arrays = [pa.nulls(self.rows[number], one.type) for one in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Batches:
    """The record batches of some files, one after another."""

    def __init__(self, source: Source, files: Sequence[_CheckedFile | _Nothing]) -> None:
        self._files = files
        self._mapped = source.buffer_table([one.path for one in files], lambda k: files[k].data, self._let_go)
        self._places = [(number, batch) for number, one in enumerate(files) for batch in range(len(one.rows))]
        self.rows = [rows for one in files for rows in one.rows]
        self.let_go: weakref.WeakMethod[Callable[[Sequence[int]], None]] | None = None
        """Has the batches closed that are open in the table above."""

    def load(self, number: int) -> pa.RecordBatch:
        """A batch, checked."""
        file, batch = self._places[number]
        return self._files[file].batch(batch)

    def name(self, number: int) -> str:
        """A batch, as messages name it."""
        file, batch = self._places[number]
        return f"{self._files[file].where}, batch {batch}"

    def extents(self, numbers: Integers) -> Ranges:
        """The bytes that batches take, because a checksum needs them all, and the feet of their files."""
        places = [self._places[number] for number in numbers.tolist()]
        found = [(file, *self._files[file].extent(batch)) for file, batch in places]
        found += [(file, *self._files[file].foot()) for file in dict.fromkeys(file for file, _ in places)]
        which, begin, end = np.array(found, np.int64).reshape(-1, 3).T
        return Ranges(self._mapped, which, begin, end - begin)

    def _let_go(self, number: int) -> None:
        """Hold no view of a file."""
        if self.let_go is not None and (close := self.let_go()) is not None:
            close([chunk for chunk, (file, _) in enumerate(self._places) if file == number])
        self._files[number].close()


class _CheckedFile:
    """Some fields of an Arrow file of a native dataset; no byte of it reaches Arrow unchecked."""

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
    def rows(self) -> list[int]:
        """Rows in each batch."""
        return [batch.rows for batch in self.file.batches]

    @property
    def path(self) -> str:
        """The file, as its source names it."""
        return self.file.path

    def extent(self, number: int) -> tuple[int, int]:
        """Where a batch begins, and where it ends."""
        batch = self.file.batches[number]
        return batch.begin, batch.end

    def foot(self) -> tuple[int, int]:
        """Where the foot begins, and where it ends."""
        return self.file.batches[-1].end, self.file.size

    @property
    def data(self) -> memoryview:
        """The file, mapped; it has the size that it should have."""
        if (data := self._data) is None:
            data = self._map()
            if len(data) != self.file.size:
                kind = TruncatedShardError if len(data) < self.file.size else ChecksumError
                raise kind(f"{self.where}: expected {self.file.size} bytes, got {len(data)}")
            self._data = data
        return data

    def close(self) -> None:
        """Hold the file no longer."""
        self._data = self._opened = None

    def _fetch(self, begin: int, end: int) -> None:
        self._source.fetch(self.file.path, [ByteRange(begin, end - begin)])

    def _map(self) -> memoryview:
        try:
            return self._source.map(self.file.path)
        except NotFoundError:
            raise VersionExpired(
                errno.ENOENT,
                "expected the files of the version that was opened, this one is gone: old versions were cleaned up, or "
                "it was removed by hand; open the dataset again",
                self.where,
            ) from None

    def batch(self, number: int) -> pa.RecordBatch:
        """One record batch, checked."""
        if (opened := self._opened) is None:
            opened = self._opened = self._open()
        data, reader = opened
        batch = self.file.batches[number]
        self._fetch(batch.begin, batch.end)
        if xxhash.xxh3_64_hexdigest(data[batch.begin : batch.end]) != batch.xxh3:
            raise ChecksumError(
                f"{self.where}: expected batch {number} (bytes {batch.begin} to {batch.end}) as it was written, "
                "got other bytes; the samples in it cannot be read"
            )
        return self._chosen(validated(reader.get_batch(number), f"{self.where}, batch {number}"))

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The fields that are wanted, under their own names."""
        if batch.schema.names == self._schema.names and self._columns() == self._schema.names:
            return batch
        return pa.RecordBatch.from_arrays([batch.column(name) for name in self._columns()], schema=self._schema)

    def _columns(self) -> list[str]:
        return [self.file.fields[name] for name in self._schema.names]

    def _open(self) -> tuple[memoryview, pa.ipc.RecordBatchFileReader]:
        file, where, data = self.file, self.where, self.data
        self._fetch(*self.foot())
        if xxhash.xxh3_64_hexdigest(data[file.batches[-1].end :]) != file.foot:
            raise ChecksumError(f"{where}: expected the foot as it was written, got other bytes")
        reader = open_file(data, where)
        count, expected = reader.num_record_batches, schema_text(self._schema)
        there = [reader.schema.field(name) for name in self._columns() if name in reader.schema.names]
        found = schema_text(
            pa.schema([one.with_name(name) for one, name in zip(there, self._schema.names, strict=False)])
        )
        if (count, found) != (len(file.batches), expected):
            raise FormatError(f"{where}: expected {len(file.batches)} batches of {expected}, got {count} of {found}")
        return data, reader
