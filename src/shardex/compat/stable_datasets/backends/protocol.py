"""`StorageBackend`: what a `StableDataset` reads from; `BackendRows` makes rows of shardex out of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from shardex.dataset import Dataset, from_table
from shardex.features import Features, Null, Optional, features_of_arrow
from shardex.kernel import Columns, Integers
from shardex.rows import AbstractRows


@runtime_checkable
class StorageBackend(Protocol):
    """Rows as Arrow data, by number; a backend is pickled for the workers of a DataLoader."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def num_shards(self) -> int:
        """Number of files; 0 for a table in memory."""

    @property
    def is_file_backed(self) -> bool:
        """True if the rows are in files."""

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns."""

    @property
    def table(self) -> pa.Table:
        """All rows."""

    def get_row(self, idx: int) -> dict[str, Any]:
        """Return one row as stored values."""

    def take(self, indices: Sequence[int] | Integers) -> pa.Table:
        """Return these rows, in this order."""

    def slice(self, start: int, length: int) -> pa.Table:
        """Return `length` rows from `start` on."""

    def iter_batches(
        self, shard_indices: Sequence[int] | None = None, shuffle: bool = False, seed: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of all files, or of these, in order or in random order of the files."""

    def __getstate__(self) -> Any:
        """Return what `__setstate__` takes: paths, not open files."""

    def __setstate__(self, state: Any) -> None:
        """Open the same rows again."""


class BackendRows(AbstractRows):
    """Rows of shardex over a `StorageBackend` that is not one of this package."""

    def __init__(self, backend: StorageBackend) -> None:
        self.backend = backend

    def __reduce__(self) -> tuple[Any, ...]:
        return BackendRows, (self.backend,)

    def __len__(self) -> int:
        return int(self.backend.num_rows)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Take the rows from the backend."""
        return data_of_table(self.backend.take(np.asarray(rows, np.int64))).read(slice(None), fields)

    @cached_property
    def features(self) -> Features:
        """Those of the schema of the backend; every value may be missing."""
        found = stored_features(self.backend.schema)
        return Features({name: one if isinstance(one, Null) else Optional(one) for name, one in found.items()})


def data_of_table(table: pa.Table) -> Dataset:
    """Return a dataset of the values that a table stores."""
    return from_table(table, stored_features(table.schema))


def stored_features(schema: pa.Schema) -> Features:
    """Return the features of stored values by their types, whatever the metadata say: images and arrays are bytes."""
    return features_of_arrow(pa.schema([field.remove_metadata() for field in schema]))
