"""Record batches of mapped Arrow files as one table: the read path of Arrow shards.

A `MappedTable` is a run of record batches, each loaded when a row of it is first asked for. Its fields (`fields.py`)
copy values straight from the buffers; no Arrow object is touched per sample.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.decode import storage_array
from shardex.arrow.field_readers import Chunks, Getter, reader_of
from shardex.arrow.sql_columns import sql_table, valid_mask
from shardex.arrow.types import storage_type
from shardex.errors import FormatError
from shardex.kernel import Columns, Integers, Ranges
from shardex.schema import Features, Optional, check_fields

__all__ = ["MappedTable"]

_FEW_ROWS = 1024
_WIDE = 256


class MappedTable:
    """Record batches one after another; `load(k)` gives batch k, checked, and `rows[k]` is how many rows it has.

    `extents(batches)` are the byte ranges that loading these batches reads. If the files are remote, a read downloads
    the ranges of all its batches at once, and `close_batches` releases batches whose file is evicted.

    >>> from shardex.schema import Value
    >>> batch = pa.record_batch({"x": [5, 6, 7]})
    >>> table = MappedTable(Features({"x": Value("int64")}), batch.schema, [3], lambda k: batch, "batch {}".format)
    >>> table.sample(1), table.read(np.array([2, 0]), ["x"])["x"]
    ({'x': 6}, array([7, 5]))
    """

    def __init__(
        self,
        features: Features,
        schema: pa.Schema,
        rows: Sequence[int],
        load: Callable[[int], pa.RecordBatch],
        name: Callable[[int], str],
        extents: Callable[[Integers], Ranges] | None = None,
        is_remote: bool = False,
    ) -> None:
        self.features = features
        starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._chunks = Chunks(starts, self._open, name, is_remote)
        self._is_remote = is_remote
        self._starts: list[int] = starts.tolist()
        self._load = load
        self._extents = extents
        self._getters: list[dict[str, Getter] | None] = [None] * len(rows)
        self._is_open = np.zeros(len(rows), np.bool_)
        self._kinds = {name: storage_type(schema.field(name).type) for name in features}
        self._fields = {n: reader_of(n, feature, self._kinds[n], self._chunks) for n, feature in features.items()}
        self._whole: dict[str, pa.ChunkedArray] = {}

    def __len__(self) -> int:
        return self._starts[-1]

    def read(self, rows: Integers, fields: Sequence[str]) -> Columns:
        """These fields of these rows."""
        held = self._fetched(rows) if self._is_remote and fields else None
        columns = Columns({name: self._fields[name].read(rows) for name in fields}, len(rows))
        del held
        return columns

    def _fetched(self, rows: Integers) -> Any:
        """Fetch the batches of some rows that are not open, all at once; they are there while this is held."""
        if self._is_open.all():
            return None
        chunks = self._chunks.of(rows[(rows >= 0) & (rows < len(self))])
        closed = chunks[~self._is_open[chunks]]
        return self._extents(np.unique(closed)).hold() if self._extents is not None and len(closed) else None

    def close_batches(self, chunks: Sequence[int]) -> None:
        """Hold nothing of these batches; they are loaded again when they are needed."""
        for chunk in chunks:
            self._is_open[chunk] = False
            self._getters[chunk] = None
            for field in self._fields.values():
                field.drop(chunk)
            self._chunks.forget(chunk)

    def advise(self, rows: Integers, fields: Sequence[str]) -> None:
        """Begin to fetch what a read of these rows needs: of batches that are not open yet all that opening reads."""
        chunks = self._chunks.of(rows)
        is_open = self._is_open[chunks]
        if self._extents is not None and fields and not is_open.all():
            self._extents(np.unique(chunks[~is_open])).advise()
        for name in fields:
            self._fields[name].advise(rows[is_open])

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row, arrays as views of the mapped file."""
        chunk = bisect_right(self._starts, row) - 1
        getters = self._getters[chunk] or self._open_getters(chunk)
        at = row - self._starts[chunk]
        if fields is None:
            return {name: get(at) for name, get in getters.items()}
        try:
            return {name: getters[name](at) for name in fields}
        except KeyError:
            check_fields(list(self.features), fields)
            raise

    def column(self, name: str) -> pa.ChunkedArray:
        """A whole field as it lies; opens all batches."""
        if (whole := self._whole.get(name)) is None:
            if self._is_remote and self._extents is not None:
                self._extents(np.flatnonzero(~self._is_open)).fetch()
            for chunk in np.flatnonzero(~self._is_open).tolist():
                self._open(chunk)
            whole = _gathered(pa.chunked_array(self._fields[name].arrays(), self._kinds[name]))
            if not self._is_remote:  # which would keep all of its files
                self._whole[name] = whole
        return whole

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Whole fields, as SQL sees them."""
        return sql_table({name: self.column(name) for name in names}, self.features)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a field."""
        return valid_mask(self.column(name))

    def _open(self, chunk: int) -> None:
        """Load a batch and give its arrays to the fields."""
        batch = self._load(chunk)
        rows = self._starts[chunk + 1] - self._starts[chunk]
        if batch.num_rows != rows:
            raise FormatError(f"{self._chunks.name(chunk)}: expected {rows} rows, got {batch.num_rows}")
        for name, field in self._fields.items():
            array = storage_array(batch.column(name))
            if array.null_count and not isinstance(self.features[name], Optional):
                raise FormatError(
                    f"{self._chunks.name(chunk)}: expected a value in every row, got nulls - at field {name}"
                )
            field.put(chunk, array)
        self._is_open[chunk] = True

    def _open_getters(self, chunk: int) -> dict[str, Getter]:
        if not self._is_open[chunk]:
            self._open(chunk)
        getters = {name: field.getter(chunk) for name, field in self._fields.items()}
        self._getters[chunk] = getters
        return getters


def _gathered(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column; if it comes in crumbs of little values, all in one, because each crumb costs as much as 100 rows."""
    if len(column) >= _FEW_ROWS * column.num_chunks or column.nbytes > _WIDE * len(column):
        return column
    return pa.table({"": column}).combine_chunks().column(0)
