"""A folder with a SQLite table and a series of tars for each field, as synthefy-dataset-utils writes it.

``index.sqlite`` lists the samples in the order they were added; ``{field}_shards/shard_0000.tar`` and so on hold one
``{id}.npy`` per sample. The byte offsets in that table are wrong, so the headers of the tars are scanned once and the
true offsets stored in an `Index`. A sample has `id`, one array per field, and `metadata`. Ids are opaque: they may
contain slashes and dots. The table is never written, and each read opens its own connection.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.compat.formats.columns_tar.table import (
    TABLE,
    field_folders,
    interruptible,
    quoted,
    read_only,
    refuse_computed,
    steps_of,
    tar_path,
)
from shardex.compat.formats.columns_tar.writer import OWNED, ColumnsWriter
from shardex.errors import FormatError, SchemaError, StaleIndexError
from shardex.features import Array, Features, Json, Optional, Text
from shardex.files import Files, Index, Scan, natural_order
from shardex.formats import DamagedFiles, Format, JoinShards, RecordRows
from shardex.formats.tar import check_end, check_truncated, header_bytes, members_of, until_cut, warn_if_truncated
from shardex.formats.tar import fields as tar_fields
from shardex.kernel import Column, Columns, Integers, Ranges
from shardex.sources import Source
from shardex.workers import ExecutorLike

_LOG = "index.sqlite-wal"
_TAR = re.compile(r"[^/]+/shard_[^/]*\.tar")
"""The path of a tar, also in the folder of a field whose name begins with an underscore."""
_LOST = 1
"""Stored instead of an offset if the table lists an array that no tar holds. No member can begin there."""
_IDS_PER_QUERY = 500


def recognise(files: Files) -> int:
    """Recognise a folder whose SQLite file has the tables samples and fields."""
    if not files.folder or TABLE not in files.paths:
        return 0
    if files.source.is_remote and any(path.endswith("_shards/shard_0000.tar") for path in files.paths):
        return 2  # by its names: SQLite may not be able to read it remotely, which `open` reports
    try:
        with _connect(files.source, check=False) as table:
            found = table.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    except FormatError:
        return 0
    return 2 * ({"samples", "fields"} <= {name for (name,) in found})


def open(
    files: Files,
    *,
    schema: Features | None = None,
    truncated: str = "error",
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> ColumnsTarRows:
    """Open the samples of a folder of this format; `schema` may give dtypes and shapes of the arrays.

    A tar that was cut off raises an error; with ``truncated="warn"`` there is a warning, and reading an array that is
    lost raises the error.
    """
    read_truncated = check_truncated(truncated)
    if TABLE not in files.paths:
        raise FormatError(f"{files}: expected a folder with {TABLE}, got one without")
    log = [_LOG] if _LOG in files.paths and files.source.stat(_LOG).size else []
    if log and files.source.is_remote:
        raise FormatError(
            f"{files}: expected a complete table, got one with changes in {_LOG}; open it with sqlite3 once on the "
            "remote machine, or copy the folder to this one"
        )
    tars = [path for path in files.paths if _TAR.fullmatch(path)]
    known = Files(files.source, (TABLE, *log, *natural_order(tars)), files.what, files.folder)
    scanner = ColumnsScanner(known.paths, read_truncated)
    index = Index.of(
        known, scanner, rebuild=rebuild, progress=progress, workers=workers, executor=executor, together=True
    )
    if read_truncated:
        warn_if_truncated(known, {number: 0 for number, path in enumerate(known.paths) if path in tars})
    return ColumnsTarRows(known, index, Features({}) if schema is None else Features.of(schema))


def create(path: str, features: Features, *, mode: str, samples_per_shard: int = 1000) -> ColumnsWriter:
    """Return a writer of a folder of this format, with `samples_per_shard` arrays in each tar.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from shardex.files.find import find
    >>> out = create(folder, Features.of({"x": Array()}), mode="create")
    >>> out.append({"x": [1, 2], "metadata": {"unit": "K"}}); out.close()
    >>> open(find(folder)).sample(0)
    {'id': 'sample_000000000001', 'x': array([1, 2]), 'metadata': {'unit': 'K'}}
    """
    return ColumnsWriter(path, features, mode, samples_per_shard)


@contextmanager
def _connect(source: Source, *, check: bool = True) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection; errors of SQLite are raised as FormatError."""
    with source.local_file(TABLE) as path:
        if path is None:
            raise FormatError(
                f"{source.url}: expected {TABLE} on a disk, because SQLite reads no other place; open it with a cache "
                "folder (cache=), or copy it here first"
            )
        try:
            with (
                closing(sqlite3.connect(read_only(path), uri=True)) as connection,
                interruptible(connection, path, steps_of(path)),
            ):
                if check:
                    refuse_computed(connection, path)
                yield connection
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise FormatError(f"{path}: expected a table of samples, SQLite reports: {error}") from error


# -- finding samples ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ColumnsScanner:
    """Finds all arrays when it scans the table; its rows are those of the table, so scanning a tar returns none.

    Columns: `rowid`, and of each field `.file` (0 where a sample lacks it), `.offset` and `.length`.
    """

    paths: tuple[str, ...]
    """The files of the index; a location holds the number of a file in this list."""
    read_truncated: bool = False
    """Whether tars that were cut off are read up to the cut."""
    in_python: bool = True

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return "columns_tar 1 truncated" if self.read_truncated else "columns_tar 1"

    def scan(self, source: Source, path: str) -> Scan:
        """Return the locations of all arrays when `path` is the table."""
        if path != TABLE:
            return {}
        with _connect(source) as table:
            rows = table.execute("SELECT rowid, id FROM samples ORDER BY rowid").fetchall()
            rowids = np.array([rowid for rowid, _ in rows], np.int64)
            if rowids.min(initial=0) < 0:
                raise FormatError(f"{source.url}: expected rows from 0 on in {TABLE}, got row {rowids.min()}")
            ids = [f"{name}.npy" for _, name in rows]
            scan = {"rowid": rowids}
            for field, folder in field_folders(table).items():
                shards = table.execute(f"SELECT {_shard_if_present(field)} FROM samples ORDER BY rowid").fetchall()
                scan.update(self._places(source, field, folder, ids, [shard for (shard,) in shards]))
        return scan

    def _places(self, source: Source, field: str, folder: str, ids: list[str], shards: list[Any]) -> Scan:
        file, offset, length = (np.zeros(len(ids), np.int64) for _ in range(3))
        rows_of: dict[Any, list[int]] = {}
        for row, shard in enumerate(shards):
            if shard is not None:
                rows_of.setdefault(shard, []).append(row)
        paths = [tar_path(folder, shard) for shard in rows_of]
        found = source.for_each(lambda path: self._members_by_name(source, path), paths)
        for path, members_by_name, rows in zip(paths, found, rows_of.values(), strict=True):
            number = self.paths.index(path) if path in self.paths else 1
            for row in rows:
                file[row] = number
                offset[row], length[row] = members_by_name.get(ids[row], (_LOST, 0))
        return {f"{field}.file": file, f"{field}.offset": offset, f"{field}.length": length}

    def _members_by_name(self, source: Source, path: str) -> dict[str, tuple[int, int]]:
        """Return offset and length of each member by name; of several with one name the last counts."""
        if path not in self.paths:
            return {}
        found = members_of(header_bytes(source, path), os.path.join(source.url, path))
        found = until_cut(found, []) if self.read_truncated else found
        return {member.name: (member.begin, member.size) for member in found}


def _shard_if_present(field: str) -> str:
    return f"CASE WHEN {quoted(field, 'offset')} IS NULL THEN NULL ELSE {quoted(field, 'shard')} END"


# -- reading ------------------------------------------------------------------------------------------------------


class ColumnsTarRows(RecordRows):
    """Samples of a folder of this format: the fields `id` and `metadata`, and one for each array."""

    index: Index

    def __init__(self, files: Files, index: Index, schema: Features) -> None:
        super().__init__(files, index)
        names = [name.removesuffix(".file") for name in index.columns if name.endswith(".file")]
        for name in schema:
            if name not in (*names, "id", "metadata"):
                raise SchemaError(f"{files}: expected one of the fields {', '.join(names)}, got {name!r} in the schema")
        kinds = {name: Array() if index.spans[f"{name}.file"][0] else Optional(Array()) for name in names}
        arrays = {name: schema.get(name) or kind for name, kind in kinds.items()}
        self.features = Features({"id": Text(), **arrays, "metadata": Json()})
        self._arrays = arrays
        self._decoders = {name: feature.of_file(name) for name, feature in arrays.items()}

    def shard_names(self) -> list[str]:
        """Paths of the tars, as error messages show them."""
        return [name for name in super().shard_names() if name.endswith(".tar")]

    def location(self, row: int) -> str:
        """Folder and id of a row, for error messages."""
        return f"{self.files}, sample {self._ids_and_metadata(np.array([row]))[0][0]!r}"

    def shards(self, rows: Integers) -> list[str]:
        """Path of the tar that holds the first array of each row; of the table for samples without arrays."""
        if not self._arrays:
            return super().shards(rows)
        return [self.files.name(number) for number in self._locate(next(iter(self._arrays)), rows)[0].tolist()]

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """Return the byte ranges of the arrays of these fields."""
        wanted = [name for name in self._arrays if fields is None or name in fields]
        return Ranges.concat(self.data, [self._locate(name, rows) for name in wanted])

    def _locate(self, name: str, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file (0 if there is none), offset and length of an array."""
        file, offset, length = (self.index.read(f"{name}.{column}", rows) for column in ("file", "offset", "length"))
        return file, offset, length

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these samples: one gather per field, and one query if `id` or `metadata` is wanted."""
        rows = np.asarray(rows, np.int64)
        names = check_fields(list(self.features), fields)
        held = self.hold(rows, names)
        columns: dict[str, Column] = {name: self._column(name, rows) for name in names if name in self._arrays}
        del held
        if len(columns) < len(set(names)):
            described = self._ids_and_metadata(rows)
            columns["id"] = columns.get("id", [name for name, _ in described])
            if "metadata" in names and "metadata" not in columns:
                columns["metadata"] = [self._metadata(name, text) for name, text in described]
        return Columns({name: columns[name] for name in names}, len(rows))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has a field, from the index."""
        rows = np.arange(len(self))
        return self.index.read(f"{name}.file", rows) != 0 if name in self._arrays else np.ones(len(self), np.bool_)

    def _column(self, name: str, rows: Integers) -> Column:
        ranges = Ranges(self.data, *self._locate(name, rows))
        if (lost := ranges.begin == _LOST).any():
            raise self._lost(int(rows[lost.argmax()]), name)
        return tar_fields.optional_column(ranges, ranges.which != 0, name, self._arrays[name], self._where(rows))

    def _lost(self, row: int, field: str) -> FormatError:
        with _connect(self.files.source) as table:
            rowid = int(self.index.read("rowid", np.array([row]))[0])
            found = table.execute(
                f"SELECT {_shard_if_present(field)} FROM samples WHERE rowid = ?", (rowid,)
            ).fetchone()
            tar = tar_path(field_folders(table).get(field, field), found[0] if found else None)
        what = "it has no such member" if tar in self.files.paths else "there is no such file"
        file = os.path.join(self.files.source.url, tar)
        return FormatError(
            f"{self.location(row)}, field {field}: expected the array in {file}, {what}; it was lost during writing"
        )

    def _ids_and_metadata(self, rows: Integers) -> list[tuple[str, str | None]]:
        """Return id and metadata of each row from the table."""
        rowids = self.index.read("rowid", rows).tolist() if len(rows) else []
        found: dict[int, tuple[str, str | None]] = {}
        with _connect(self.files.source) as table:
            for begin in range(0, len(rowids), _IDS_PER_QUERY):
                some = rowids[begin : begin + _IDS_PER_QUERY]
                marks = ",".join("?" * len(some))
                query = f"SELECT rowid, id, meta_json FROM samples WHERE rowid IN ({marks})"
                found.update((rowid, (name, text)) for rowid, name, text in table.execute(query, some))
        for row, rowid in zip(rows.tolist(), rowids, strict=True):
            if rowid not in found:
                raise StaleIndexError(
                    f"{self.files}: expected sample {row} in {TABLE}, it is gone; open the dataset again"
                )
        return [found[rowid] for rowid in rowids]

    def _metadata(self, name: str, text: str | None) -> Any:
        # With the standard library, which wrote the table and accepts NaN and infinity.
        try:
            return {} if text is None else json.loads(text)
        except (ValueError, RecursionError) as error:
            raise FormatError(
                f"{self.files}, sample {name!r}: expected JSON in meta_json, got {text!r:.40}: {error}"
            ) from error

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample."""
        names = check_fields(list(self.features), fields)
        _, at = self.index.values(row)
        held = self.hold(np.array([row]), names) if self.data.closable else None
        out = {name: self._value(name, row, at) for name in names if name in self._arrays}
        del held
        if len(out) < len(set(names)):
            sample_id, text = self._ids_and_metadata(np.array([row]))[0]
            out = {"id": sample_id, "metadata": self._metadata(sample_id, text) if "metadata" in names else None, **out}
        return {name: out[name] for name in names}

    def _value(self, name: str, row: int, at: dict[str, int]) -> Any:
        number, begin = at[f"{name}.file"], at[f"{name}.offset"]
        if begin == _LOST:
            raise self._lost(row, name)
        if not number:
            return self._column(name, np.array([row]))[0]
        view = self.data.slice(number, begin, begin + at[f"{name}.length"]).data
        return tar_fields.value(self._decoders[name], view, name, lambda _: self.location(row))


FORMAT = Format(
    open,
    create,
    JoinShards(OWNED, ".tar", publish_last=(TABLE,)),
    part_format="arrow",
    damaged=DamagedFiles(check_end, options={"truncated": "warn"}),
)
