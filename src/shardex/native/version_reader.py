"""Reads one version of a native dataset as rows: base values without deleted rows, with overlays.

`VersionReader` is strict by default: the first damaged file raises an error. With files that were examined
(`data_file_reader.examine_files`) it is tolerant: it reads what is intact, even in files without an intact foot, and
applies the intact parts of the lists of deleted rows and of the overlays. Opening reads no values: the size of a file
is checked when it is first used, its foot and each block before its bytes are used. `overlay_rows` combines the parts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import CheckedTable, FileSizes, Table, check_fields
from shardex.errors import PathError, StaleIndexError
from shardex.features import Features, Text, arrow_schema
from shardex.files import display_name
from shardex.formats import ShardRows, TableRows, open_rows
from shardex.kernel import Columns, Integers
from shardex.native.data_file_reader import DataFileReader
from shardex.native.fragment_list import FieldFiles, FragmentList
from shardex.native.fragment_segments import InlineSegment
from shardex.native.fragments import DataFile, Foreign, Fragment, LiveRows, RowIds, number_column
from shardex.native.manifest import Manifest, fingerprint_of
from shardex.native.overlay_rows import EditedRows, OverlayTable
from shardex.rows import AbstractRows
from shardex.sources import Source


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
        foreign, tables = manifest.fragments.adopted, list[Table]()
        if foreign is not None:
            self._check_trust(foreign)
            tables.append(_ForeignTable(foreign, features, manifest.fragments[0].rows))
        manifest.fragments.load(source.for_each)
        own = [name for name in features if foreign is None or name not in foreign.fields]
        for files, names in manifest.fragments.files_of(own):
            # The stored features; `features` may come from the user.
            schema = arrow_schema(manifest.features.select(names))
            tables.append(self._table(files, manifest.fragments.rows, features.select(names), schema))
        shards, digest = _ShardNames(source, manifest.fragments), partial(fingerprint_of, manifest)
        rows = TableRows(tables, manifest.fragments.rows, features, digest, shards)
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
            files = FieldFiles([InlineSegment.of_file(file)], [0])
            table = self._table(files, np.array([file.rows]), features.select(names), schema)
            found.append((OverlayTable(table, partial(self._physical_rows, file)), names))
        return found

    def _physical_rows(self, file: DataFile) -> Integers:
        """Return the physical row of each id in a file; -1 for rows of the file that are lost."""
        if self._examined is None:
            reader = DataFileReader(self.source, file, [number_column("row")])
            return self._row_ids.physical_rows(reader.numbers("row").astype(np.int64))
        reader = self._examined[file.path]
        found = self._row_ids.physical_rows(reader.numbers("row").astype(np.int64))
        found[reader.lost_in({"row", *file.fields.values()})] = -1
        return found

    def _table(
        self,
        files: FieldFiles,
        rows: Integers,
        features: Features,
        schema: pa.Schema,
    ) -> CheckedTable:
        """Return a table of files; None stands for rows that have no values for these fields."""
        opener = _Opener(self.source, files, [schema.field(name) for name in features], self._examined)
        known = FileSizes(
            rows,
            files.column(lambda one: one.counts, 1),
            files.column(lambda one: one.ends, 0),
            files.column(lambda one: one.sizes, 0),
        )
        for number, file in enumerate(files if self._examined else ()):
            if file is not None and self._examined and not self._examined[file.path].needs_foot:
                known.sizes[number] = 0  # so that its end is not fetched
        table = CheckedTable(features, schema, known, opener.open, opener.mapped)
        opener.close_file = weakref.WeakMethod(table.close_file)
        return table

    def _check_trust(self, foreign: Foreign) -> None:
        """Refuse to read files outside the dataset's folder, unless the user trusts its manifest."""
        if not self._trust_paths:
            raise PathError(
                f"{self.source.url}: expected data inside this folder, but its manifest names "
                f"{display_name(foreign.what)} outside of it; if you trust it, open it with trust_paths=True"
            )


class _ShardNames(Sequence[str]):
    """Names of all files of a version; first, for each fragment, the file that holds its first fields."""

    def __init__(self, source: Source, fragments: FragmentList) -> None:
        self._url = source.url
        self._fragments = fragments

    def __len__(self) -> int:
        return len(self._all)

    @overload
    def __getitem__(self, where: int) -> str: ...
    @overload
    def __getitem__(self, where: slice) -> list[str]: ...
    def __getitem__(self, where: int | slice) -> str | list[str]:
        if isinstance(where, slice) or not 0 <= where < len(self._fragments):
            return self._all[where]
        return next(iter(self._names(self._fragments[where])), "")

    def _names(self, fragment: Fragment) -> list[str]:
        names = [] if fragment.adopted is None else [display_name(fragment.adopted.what)]
        return names + [f"{self._url}/{file.path}" for file in fragment.groups]

    @cached_property
    def _all(self) -> list[str]:
        every = [self._names(fragment) for fragment in self._fragments]
        return [names[0] if names else "" for names in every] + [name for names in every for name in names[1:]]


class _Opener:
    """Opens data files for a table, each when one of its rows is first read."""

    def __init__(
        self,
        source: Source,
        files: FieldFiles,
        fields: Sequence[pa.Field],
        examined: Mapping[str, DataFileReader] | None,
    ) -> None:
        self._source, self._files, self._fields, self._examined = source, files, fields, examined
        self._readers: dict[int, DataFileReader] = {}
        self.mapped = source.buffer_table(files.paths, self._data, self._close_file)
        self.close_file: weakref.WeakMethod[Callable[[int], None]] | None = None
        """Closes a file in the table that reads from this object."""

    def open(self, number: int) -> tuple[DataFileReader, Mapping[str, str]] | None:
        """Return a file, and the column of each field in it; None if there is none."""
        reader, file = self._reader(number), self._files[number]
        return None if reader is None or file is None else (reader, file.fields)

    def _reader(self, number: int) -> DataFileReader | None:
        if (reader := self._readers.get(number)) is None and (file := self._files[number]) is not None:
            if self._examined is not None:
                return self._examined[file.path]
            columns = [
                field if (column := file.fields[field.name]) == field.name else field.with_name(column)
                for field in self._fields
            ]
            reader = self._readers.setdefault(number, DataFileReader(self._source, file, columns))
        return reader

    def _data(self, number: int) -> memoryview:
        reader = self._reader(number)
        assert reader is not None
        return reader.data

    def _close_file(self, number: int) -> None:
        """Drop every view of a file, because the cache evicts it."""
        if self.close_file is not None and (close := self.close_file()) is not None:
            close(number)
        if (reader := self._readers.get(number)) is not None:
            reader.close()


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
