"""`ArrowBackend`: rows of Arrow files, or of a table in memory, over a dataset of shardex."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.compat.stable_datasets.backends.protocol import data_of_table, stored_features
from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, FormatError, TruncatedShardError, storage_errors
from shardex.kernel import Integers
from shardex.order import Span

AnyPath = str | os.PathLike[str]


class ArrowBackend:
    """Rows of Arrow files or of a table; files are mapped, and opened again by their paths in another process.

    `data` is the dataset of shardex that reads them, with images and arrays as the stored bytes.
    """

    prefer_batched_take = True

    def __init__(
        self,
        *,
        shard_paths: Sequence[AnyPath] | None = None,
        table: pa.Table | None = None,
        shard_row_counts: Sequence[int] | None = None,
        schema: pa.Schema | None = None,
    ) -> None:
        if (shard_paths is None) == (table is None):
            raise ArgumentError("expected either shard_paths or a table, got " + ("none" if table is None else "both"))
        self._paths = None if shard_paths is None else [Path(os.path.abspath(one)) for one in shard_paths]
        self._counts = None if shard_row_counts is None else [int(count) for count in shard_row_counts]
        self._schema, self._table = schema, table
        self.data: Dataset = data_of_table(table) if self._paths is None else _of_files(self._paths, schema)
        if self._counts is not None and self._paths is not None:
            self._check_counts(self._paths, self._counts)

    def _check_counts(self, paths: list[Path], counts: list[int]) -> None:
        if len(counts) != len(paths):
            raise ArgumentError(f"expected a number of rows for each of {len(paths)} shards, got {len(counts)} numbers")
        if sum(counts) != len(self.data):
            raise TruncatedShardError(
                f"{paths[0].parent if paths else 'no shards'}: expected {sum(counts)} rows as shard_row_counts say, "
                f"got {len(self.data)}"
            )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.data)

    @property
    def is_file_backed(self) -> bool:
        """True if the rows are in files."""
        return self._paths is not None

    @property
    def num_shards(self) -> int:
        """Number of files; 0 for a table in memory."""
        return len(self._paths or ())

    @cached_property
    def shard_row_counts(self) -> list[int]:
        """Number of rows of each file; of a table, the number of its rows."""
        if self._counts is not None:
            return self._counts
        if self._paths is None:
            return [len(self.data)]
        return [len(_of_files([path], None)) for path in self._paths]

    @property
    def cache_dir(self) -> Path | None:
        """The folder of the files."""
        return self._paths[0].parent if self._paths else None

    @cached_property
    def schema(self) -> pa.Schema:
        """Names and types of the columns: those of the files or the table, which those given only replace if none."""
        if self._table is not None:
            return self._table.schema
        if not self._paths:
            return pa.schema([]) if self._schema is None else self._schema
        return _file_schema(self._paths[0])

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return view_table(self.data, self.schema)

    def get_row(self, idx: int) -> dict[str, Any]:
        """Return one row as stored values."""
        return {name: plain(value) for name, value in self.data.sample(int(idx)).items()}

    def take(self, indices: Sequence[int] | Integers) -> pa.Table:
        """Return these rows, in this order."""
        return view_table(self.data[np.asarray(indices, np.int64)], self.schema)

    def slice(self, start: int, length: int) -> pa.Table:
        """Return `length` rows from `start` on, as far as there are any."""
        return view_table(self.data[start : start + length], self.schema)

    def iter_batches(
        self, shard_indices: Sequence[int] | None = None, shuffle: bool = False, seed: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows file by file; `shuffle` without a `seed` is another order every time."""
        numbers = list(range(len(self.shard_row_counts)) if shard_indices is None else shard_indices)
        if shuffle:
            np.random.default_rng(seed).shuffle(numbers)
        ends = np.cumsum([0, *self.shard_row_counts]).tolist()
        for number in numbers:
            view = self.data[ends[number] : ends[number + 1]]
            for batch in pa.RecordBatchReader.from_stream(view):
                yield from pa.Table.from_batches([batch]).cast(_named(self.schema, view)).to_batches()

    def __getstate__(self) -> dict[str, Any]:
        paths = None if self._paths is None else [str(path) for path in self._paths]
        return {"shard_paths": paths, "table": self._table, "shard_row_counts": self._counts, "schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def plain(value: Any) -> Any:
    """Return a stored value as Arrow would convert it to Python: arrays are lists."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [plain(one) for one in value] if isinstance(value, list) else value


def view_table(view: Dataset, schema: pa.Schema) -> pa.Table:
    """Return the stored values of a view as a table of these types; all rows of files are not copied."""
    whole = view.order == Span(len(view.rows))
    columns = {name: view.rows.column(name) for name in view.fields} if whole else {}
    if columns and all(column is not None for column in columns.values()):
        return pa.table(columns).cast(_named(schema, view))
    return pa.RecordBatchReader.from_stream(view).read_all().cast(_named(schema, view))


def _named(schema: pa.Schema, view: Dataset) -> pa.Schema:
    return pa.schema([schema.field(name) for name in view.fields])


def _of_files(paths: Sequence[Path], schema: pa.Schema | None) -> Dataset:
    """Open files with the features of the values that they store."""
    if not paths:
        return data_of_table((pa.schema([]) if schema is None else schema).empty_table())
    names = [str(path) for path in paths]
    return open_dataset(names, format="arrow", schema=stored_features(_file_schema(paths[0])))


def _file_schema(path: Path) -> pa.Schema:
    with storage_errors(str(path), "open"):
        try:
            with pa.memory_map(str(path)) as file:
                return pa.ipc.open_file(file).schema.remove_metadata()
        except pa.ArrowException as error:
            raise FormatError(f"{path}: expected an Arrow file, got something else: {error}") from None
