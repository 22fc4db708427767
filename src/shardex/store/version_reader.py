"""Reads one version of a native dataset as rows: base values without deleted rows, with overlays.

`VersionReader` is strict by default: the first damaged file raises an error. With files that were examined
(`data_file_reader.examine_files`) it is tolerant: it reads every intact batch, and applies the intact parts of the
lists of deleted rows and of the overlays. Opening reads no values: the size of a file is checked when it is first used,
its foot and each batch before Arrow sees them. `overlay_rows` combines the parts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.arrow import MappedTable, arrow_schema
from shardex.errors import PathError, StaleIndexError
from shardex.files import display_name
from shardex.formats import ShardRows, TableRows, open_rows
from shardex.kernel import Columns, Integers, Ranges
from shardex.rows import AbstractRows, Table
from shardex.schema import Features, Text, check_fields
from shardex.sources import Source
from shardex.store.data_file_reader import DataFileReader
from shardex.store.inventory import number_column
from shardex.store.manifest import Batch, DataFile, Foreign, Fragment, Manifest, without_numbers
from shardex.store.overlay_rows import EditedRows, OverlayTable
from shardex.store.row_ids import LiveRows, RowIds


class VersionReader:
    """Reads the files of one version; tolerant if `examined` has a reader for each of its files, by path."""

    def __init__(
        self,
        source: Source,
        manifest: Manifest,
        *,
        trust_paths: bool = False,
        examined: Mapping[str, DataFileReader] | None = None,
    ) -> None:
        self.source = source if trust_paths else source.contained()
        self.manifest = manifest
        self._trust_paths = trust_paths
        self._examined = examined

    def rows(self, features: Features) -> TableRows | EditedRows:
        """Return all samples with these fields."""
        base = self.base_rows(features)
        if not (self.manifest.deleted or self.manifest.overlays):
            return base
        return EditedRows(base, self.live_rows, self.overlays(features))

    def base_rows(self, features: Features) -> TableRows:
        """Return some fields of all physical rows as they were first written, deleted rows included."""
        manifest, source = self.manifest, self.source
        groups: dict[tuple[int, ...], list[str]] = {}
        foreign = next((one.adopted for one in manifest.fragments if one.adopted is not None), None)
        for name in features:
            if foreign is None or name not in foreign.fields:
                numbers = tuple(_group_of(one, name) for one in manifest.fragments)
                groups.setdefault(numbers, []).append(name)
        tables: list[Table] = []
        if foreign is not None:
            self._check_trust(foreign)
            tables.append(_ForeignTable(foreign, features, manifest.fragments[0].rows))
        for numbers, names in groups.items():
            schema = arrow_schema(
                manifest.features.select(names)
            )  # the stored features; `features` may come from the user
            fields = {name: schema.field(name) for name in names}
            readers = [
                (_NullBatch(source, one.rows, schema), {})
                if number < 0
                else (self._reader(one.groups[number], fields), one.groups[number].fields)
                for one, number in zip(manifest.fragments, numbers, strict=True)
            ]
            tables.append(self._table(readers, features.select(names), schema))
        content = [manifest.schema, manifest.fragments, manifest.deleted, manifest.overlays]
        digest = xxhash.xxh3_64_hexdigest(without_numbers(msgspec.json.encode(content)))
        rows = TableRows(tables, [one.rows for one in manifest.fragments], features, digest, _shards(source, manifest))
        rows.in_python = foreign is not None
        return rows

    @cached_property
    def live_rows(self) -> LiveRows:
        """The rows that are not deleted."""
        deleted = [self._physical_rows(file) for file in self.manifest.deleted]
        return LiveRows(len(self._row_ids), np.concatenate([np.empty(0, np.int64), *deleted]))

    @cached_property
    def _row_ids(self) -> RowIds:
        return self.manifest.row_ids

    def overlays(self, features: Features) -> list[tuple[OverlayTable, list[str]]]:
        """Return the newer values, the oldest first, with the names of the fields that each has."""
        found = []
        for file in self.manifest.overlays:
            names = [name for name in file.fields if name in features]
            schema = arrow_schema(self.manifest.features.select(names))
            reader = self._reader(file, {name: schema.field(name) for name in names})
            if reader.readable:
                table = self._table([(reader, file.fields)], features.select(names), schema, only_readable=True)
                found.append((OverlayTable(table, partial(self._physical_rows, file)), names))
        return found

    def _physical_rows(self, file: DataFile) -> Integers:
        """Return the physical row of each id in a file."""
        if self._examined is not None:
            reader = self._examined[file.path]
        else:
            reader = DataFileReader(self.source, file, [number_column("row")])
        return self._row_ids.physical_rows(reader.numbers("row").astype(np.int64))

    def _reader(self, file: DataFile, fields: Mapping[str, pa.Field]) -> DataFileReader:
        if self._examined is not None:
            return self._examined[file.path]
        columns = [
            field if (column := file.fields[name]) == name else field.with_name(column)
            for name, field in fields.items()
        ]
        return DataFileReader(self.source, file, columns)

    def _table(
        self,
        readers: Sequence[tuple[DataFileReader, Mapping[str, str]]],
        features: Features,
        schema: pa.Schema,
        only_readable: bool = False,
    ) -> MappedTable:
        batches = _Batches(self.source, readers, schema, only_readable)
        if self._examined is not None:  # one batch at a time: planned downloads would include damaged files
            return MappedTable(features, schema, batches.rows, batches.load, batches.name)
        extents, remote = batches.extents, self.source.is_remote
        table = MappedTable(features, schema, batches.rows, batches.load, batches.name, extents, remote)
        batches.close_batches = weakref.WeakMethod(table.close_batches)
        return table

    def _check_trust(self, foreign: Foreign) -> None:
        """Refuse to read files outside the dataset's folder, unless the user trusts its manifest."""
        if not self._trust_paths:
            raise PathError(
                f"{self.source.url}: expected data inside this folder, but its manifest names "
                f"{display_name(foreign.what)} outside of it; if you trust it, open it with trust_paths=True"
            )


def _group_of(fragment: Fragment, name: str) -> int:
    """Return the number of the file that holds a field; -1 if there is none."""
    return next((number for number, file in enumerate(fragment.groups) if name in file.fields), -1)


def _shards(source: Source, manifest: Manifest) -> list[str]:
    """Return the names of all files; first, for each fragment, the file that holds its first fields."""
    first, others = list[str](), list[str]()
    for one in manifest.fragments:
        names = [] if one.adopted is None else [display_name(one.adopted.what)]
        names += [f"{source.url}/{file.path}" for file in one.groups]
        first.append(names[0] if names else "")
        others += names[1:]
    return first + others


class _NullBatch(DataFileReader):
    """One batch of nulls, for a fragment that was written before some fields were added."""

    data = memoryview(b"")

    def __init__(self, source: Source, rows: int, schema: pa.Schema) -> None:
        super().__init__(source, DataFile("", 0, {}, [Batch(rows, 0, 0, "")], ""), list(schema))

    def batch(self, number: int) -> pa.RecordBatch:
        """Return the batch of nulls."""
        arrays = [pa.nulls(self.file.rows, column.type) for column in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(self._columns))


class _Batches:
    """The record batches of several files as one sequence, with the fields of `schema`.

    Each file comes with the column of each field. A reader may serve several fields of equal content, in one column.
    """

    def __init__(
        self,
        source: Source,
        readers: Sequence[tuple[DataFileReader, Mapping[str, str]]],
        schema: pa.Schema,
        only_readable: bool,
    ) -> None:
        self._files = files = [reader for reader, _ in readers]
        self._columns = [[fields.get(name, name) for name in schema.names] for _, fields in readers]
        self._schema = schema
        self._names = schema.names
        self._mapped = source.buffer_table([one.file.path for one in files], lambda k: files[k].data, self._close_file)
        self._places = [
            (number, batch)
            for number, one in enumerate(files)
            for batch in (one.readable if only_readable else range(len(one.file.batches)))
        ]
        self.rows = [files[number].file.batches[batch].rows for number, batch in self._places]
        self.close_batches: weakref.WeakMethod[Callable[[Sequence[int]], None]] | None = None
        """Closes batches of the table that reads from this object."""

    def load(self, number: int) -> pa.RecordBatch:
        """Return a checked batch with columns named as the fields."""
        file, batch = self._places[number]
        found, columns = self._files[file].batch(batch), self._columns[file]
        if columns == self._names == found.schema.names:
            return found
        return pa.RecordBatch.from_arrays([found.column(name) for name in columns], schema=self._schema)

    def name(self, number: int) -> str:
        """Return the name of a batch, for error messages."""
        file, batch = self._places[number]
        return f"{self._files[file].where}, batch {batch}"

    def extents(self, numbers: Integers) -> Ranges:
        """Return the byte ranges of whole batches, which the checksums need, and of the foot of each file."""
        places = [self._places[number] for number in numbers.tolist()]
        found = [(file, *self._files[file].extent(batch)) for file, batch in places]
        found += [(file, *self._files[file].foot()) for file in dict.fromkeys(file for file, _ in places)]
        which, begin, end = np.array(found, np.int64).reshape(-1, 3).T
        return Ranges(self._mapped, which, begin, end - begin)

    def _close_file(self, number: int) -> None:
        """Drop every view of a file, because the cache evicts it."""
        if self.close_batches is not None and (close := self.close_batches()) is not None:
            close([chunk for chunk, (file, _) in enumerate(self._places) if file == number])
        self._files[number].close()


_NOT_FROM_MANIFEST = ("cache", "cache_limit", "trusted")
"""Options that are not taken from a manifest: where files are cached, and which hosts are trusted."""


class _ForeignTable(AbstractRows):
    """Fields that are stored in shards of another format, opened when they are first read, if they are unchanged."""

    def __init__(self, foreign: Foreign, features: Features, rows: int) -> None:
        self._foreign = foreign
        self._rows = rows
        self._features = features.select([name for name in features if name in foreign.fields])

    def __len__(self) -> int:
        return self._rows

    @property
    def features(self) -> Features:
        """The fields that are stored in the foreign shards."""
        return self._features

    @cached_property
    def _opened(self) -> ShardRows:
        foreign = self._foreign
        what = foreign.what if isinstance(foreign.what, str) else tuple(foreign.what)
        options = {name: value for name, value in foreign.options.items() if name not in _NOT_FROM_MANIFEST}
        if "schema" in options:
            options["schema"] = Features.from_json(options["schema"])
        rows = open_rows(what, foreign.format, trusted=False, **options)
        lines_of_text = list(self._features.values()) == [Text()] and "decode" not in options
        if rows.fingerprint != foreign.fingerprint and foreign.format == "jsonl" and lines_of_text:
            # Once text files were opened as this format too; they are not parsed as JSON.
            rows = open_rows(what, foreign.format, trusted=False, decode="text", **options)
        if rows.fingerprint != foreign.fingerprint or len(rows) != self._rows:
            raise StaleIndexError(
                f"{display_name(foreign.what)}: expected the shards as they were when they were adopted "
                f"({foreign.fingerprint}, {self._rows} samples), got changed ones ({rows.fingerprint}, {len(rows)} "
                "samples)"
            )
        return rows

    def _names(self, fields: Sequence[str]) -> list[str]:
        """Return the names that fields have in the shards."""
        return [self._foreign.fields[name] for name in fields]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these fields under the names that they have in the shards."""
        names = check_fields(list(self._features), fields)
        found = self._opened.read(rows, self._names(names))
        return Columns({name: found[own] for name, own in zip(names, self._names(names), strict=True)}, len(rows))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these fields of these rows."""
        self._opened.advise(rows, self._names(check_fields(list(self._features), fields)))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row."""
        names = check_fields(list(self._features), fields)
        return {name: self.read(np.array([row]), [name]).sample(0).get(name) for name in names}

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields, as SQL sees them."""
        return self._opened.sql_columns(self._names(names)).rename_columns(list(names))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value for a field."""
        return self._opened.present(self._foreign.fields[name])

    def lengths(self, name: str) -> Integers:
        """Return the length of the array of a field in each row."""
        return self._opened.lengths(*self._names(check_fields(list(self._features), [name])))
