"""Rows made of tables side by side, each with some of the fields: what Arrow and Parquet files are opened as."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.arrow import side_by_side
from shardex.errors import ShardexError
from shardex.files import Files
from shardex.formats.registry import ShardRows
from shardex.kernel import Columns, Integers
from shardex.schema import Features, check_fields

__all__ = ["Table", "TableRows", "files_digest"]


class Table(Protocol):
    """Some fields of all rows."""

    def __len__(self) -> int:
        """How many rows there are."""

    @property
    def features(self) -> Features:
        """The fields."""

    def read(self, rows: Integers, fields: Sequence[str]) -> Columns:
        """These fields of these rows."""

    def advise(self, rows: Integers, fields: Sequence[str]) -> None:
        """Begin to fetch these fields of these rows."""

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row."""

    def column(self, name: str) -> pa.ChunkedArray | None:
        """A whole field as it lies; none if it does not lie in a column."""

    def attributes(self, names: Sequence[str]) -> pa.Table:
        """Whole fields, as SQL sees them."""

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a field."""


class TableRows(ShardRows):
    """Rows of files. `fingerprint` names the data: its content where that is known, else sizes and times.

    `rows` says how many rows are in each of the first `shards`; the others hold more fields of the same rows.
    """

    in_python = False

    def __init__(
        self, tables: Sequence[Table], rows: Sequence[int], features: Features, fingerprint: str, shards: list[str]
    ) -> None:
        self._tables = list(tables)
        self._table_of = {name: table for table in tables for name in table.features}
        self._starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._length = int(self._starts[-1])
        self._features = features
        self._names = list(features)
        self._fingerprint = fingerprint
        self._shards = shards
        self._only = self._tables[0] if [list(table.features) for table in tables] == [self._names] else None
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
        """Changes when the data does."""
        return self._fingerprint

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return self._shards

    def shards(self, rows: Integers) -> list[str]:
        """The file that holds the first fields of each row."""
        return [self._shards[number] for number in (np.searchsorted(self._starts, rows, "right") - 1).tolist()]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Each table begins to fetch its own fields."""
        inside = rows[(rows >= 0) & (rows < self._length)]
        with suppress(ShardexError):
            names = check_fields(self._names, fields)
            for table in self._tables:
                table.advise(inside, [name for name in names if self._table_of[name] is table])

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Each table reads its own fields."""
        rows = np.ascontiguousarray(rows, np.int64)
        names = check_fields(self._names, fields)
        if self._only is not None:
            return self._only.read(rows, names)
        parts = [table.read(rows, [name for name in names if self._table_of[name] is table]) for table in self._tables]
        return Columns({name: column for part in parts for name, column in part.data.items()}, len(rows)).select(names)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row; arrays are read-only views of the file."""
        names = check_fields(self._names, fields)
        return {name: self._table_of[name].sample(row, [name])[name] for name in names}

    def attributes(self, names: Sequence[str]) -> pa.Table:
        """Whole fields; nothing is copied of what is mapped."""
        return side_by_side(self._table_of[name].attributes([name]) for name in names)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """A whole field as it lies; none if it does not lie in a column."""
        return self._table_of[name].column(name)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a field."""
        return self._table_of[name].present(name)


def files_digest(files: Files) -> str:
    """Names files by their paths, sizes and times."""
    stats = zip(files.paths, files.stats(), strict=True)
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode([[path, stat.size, stat.tag] for path, stat in stats]))
