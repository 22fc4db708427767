"""`ShardedDatasetReader`: samples of a dataset by id, and ids by SQL conditions."""

from __future__ import annotations

import errno
import io
import json
import os
import sqlite3
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardex.compat.formats.columns_tar import ColumnsLookup, StoredSample
from shardex.compat.synthefy_dataset_utils._errors import (
    ConditionError,
    DatasetMissingError,
    UnknownColumnError,
    errors_of_original,
)
from shardex.errors import ArgumentError, FormatError, NotFoundError, UnsafeError
from shardex.features import codecs

Sample = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""The arrays of a sample by field, and its metadata."""


class ShardedDatasetReader:
    """Reads the samples of a folder; sees what writers commit meanwhile.

    It can be used in several threads, pickled, and used in forked processes. Few files are open at a time, with
    ``cache_tars=False`` one. Object arrays are pickles, which can run code: they raise an error unless `allow_pickle`
    is set.

    >>> import tempfile; folder = tempfile.mkdtemp()
    >>> from shardex.compat.synthefy_dataset_utils import ShardedDatasetWriter
    >>> writer = ShardedDatasetWriter(folder); writer.add_field("x")
    >>> writer.add_sample({"x": [1, 2]}, metadata={"length": 2}); writer.close()
    'sample_000000000001'
    >>> reader = ShardedDatasetReader(folder); reader.query_ids("json_extract(meta_json, '$.length') > ?", (1,))
    ['sample_000000000001']
    >>> reader.get_sample("sample_000000000001"); reader.close()
    ({'x': array([1, 2])}, {'length': 2})
    """

    root: Path
    db_path: Path
    cache_tars: bool

    def __init__(self, root: str | os.PathLike[str], cache_tars: bool = True, *, allow_pickle: bool = False) -> None:
        self.root = Path(root)
        self.db_path = self.root / "index.sqlite"
        self.cache_tars, self._allow_pickle = cache_tars, allow_pickle
        self._folder = os.path.abspath(root)
        self._opened: ColumnsLookup | None = None
        self._lookup()

    def _lookup(self) -> ColumnsLookup:
        """Return what reads the folder; after pickling it is opened again."""
        if self._opened is None:
            try:
                self._opened = ColumnsLookup(self._folder, keep_tars=self.cache_tars)
            except NotFoundError as error:
                raise DatasetMissingError(error.errno or errno.ENOENT, error.strerror, error.filename) from None
            weakref.finalize(self, self._opened.close)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    @property
    def conn(self) -> sqlite3.Connection:
        """The connection of this process to the table."""
        found = self._lookup().table
        found.row_factory = sqlite3.Row
        return found

    # -- what there is --------------------------------------------------------------------------------------------

    def list_fields(self) -> list[str]:
        """Return the names of all fields."""
        return [row[0] for row in self._query("SELECT name FROM fields")]

    def __len__(self) -> int:
        return int(self._query("SELECT COUNT(*) FROM samples")[0][0])

    def shard_counts(self, field_name: str) -> dict[int, int]:
        """Return the number of samples in each shard of a field, by the number of the shard."""
        fields = self.list_fields()
        if field_name not in fields:
            listed = ", ".join(fields) or "(there are none)"
            raise UnknownColumnError(
                f"{self.db_path}: expected one of the fields {listed}, got {field_name!r} (no such column)"
            )
        column = f"{field_name}_shard".replace('"', '""')
        query = f'SELECT "{column}", COUNT(*) FROM samples WHERE "{column}" IS NOT NULL GROUP BY 1 ORDER BY 1'
        return {int(shard): int(count) for shard, count in self._query(query)}

    def query_ids(
        self,
        where_clause: str | None = None,
        params: Sequence[Any] | Mapping[str, Any] = (),
        limit: int | None = None,
    ) -> list[str]:
        """Return the ids of the samples for which an SQL condition holds, or of all; at most `limit` of them."""
        query = "SELECT id FROM samples" + (f" WHERE {where_clause}" if where_clause else "")
        if limit is not None:
            query += f" LIMIT {int(limit)}"
        return [row[0] for row in self._query(query, params)]

    def _query(self, query: str, params: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with errors_of_original():
            try:
                return self._lookup().execute(query, params)
            except (sqlite3.Error, sqlite3.Warning) as error:
                raise ConditionError(
                    f"{self.db_path}: expected SQL that SQLite accepts, got {query!r}: {error}"
                ) from error

    # -- samples --------------------------------------------------------------------------------------------------

    def get_sample(self, sample_id: str, fields: Iterable[str] | None = None) -> Sample:
        """Return the arrays of a sample, of all fields or of some, and its metadata; arrays it lacks are left out."""
        return self.get_many([sample_id], fields)[0]

    def get_many(self, sample_ids: Iterable[str], fields: Iterable[str] | None = None) -> list[Sample]:
        """Return arrays and metadata of several samples."""
        if isinstance(fields, str):
            raise ArgumentError(f"expected a list of fields, got the text {fields!r}")
        names = list(sample_ids)
        with errors_of_original():
            found = self._lookup().samples(names, None if fields is None else list(fields))
            return [self._decode(name, one) for name, one in zip(names, found, strict=True)]

    def _decode(self, name: str, stored: StoredSample) -> Sample:
        try:
            arrays = {field: self._array(data) for field, data in stored.arrays.items()}
            return arrays, json.loads(stored.metadata) if stored.metadata else {}
        except UnsafeError as error:
            advice = "if you trust its author, open it with allow_pickle=True"
            raise UnsafeError(f"{self.root}, sample {name!r}: {error}; {advice}") from None
        except ValueError as error:
            raise FormatError(f"{self.root}, sample {name!r}: {error}") from error

    def _array(self, data: bytes) -> NDArray[Any]:
        try:
            return codecs.NPY.decode(data).copy("K")  # type: ignore[no-any-return]
        except UnsafeError:
            if not self._allow_pickle:
                raise
            return np.load(io.BytesIO(data), allow_pickle=True)  # type: ignore[no-any-return]

    # -- end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the table and all tars."""
        self._lookup().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
