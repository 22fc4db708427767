"""Record batches of mapped Arrow files as one table: the read path of Arrow shards.

A `MappedTable` loads a batch when a row of it is first read. Its readers (`field_readers`) copy values directly from
the buffers; no Arrow object is created per sample.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.arrow_types import storage_array, storage_type
from shardex.columns.arrow_values import ReadFile, no_file
from shardex.columns.field_readers import Chunks, Getter
from shardex.columns.fields import Field, check_fields
from shardex.columns.tables import StoredTable
from shardex.errors import FormatError, ShardexError
from shardex.kernel import Columns, Integers, Ranges

_FEW_ROWS = 1024
_WIDE = 256


class MappedTable(StoredTable):
    """Consecutive record batches; `load(k)` returns batch k, checked, and `rows[k]` is its number of rows.

    `extents(batches)` are the byte ranges that loading these batches reads. If a cache `evicts` the files, a read
    downloads the ranges of all its batches at once, and `close_batches` releases batches whose file is evicted.
    `read_file` reads images, audio and video of which the table has only the paths.

    >>> from shardex.features import Features, Value
    >>> batch = pa.record_batch({"x": [5, 6, 7]})
    >>> table = MappedTable(Features({"x": Value("int64")}), batch.schema, [3], lambda k: batch, "batch {}".format)
    >>> table.sample(1), table.read(np.array([2, 0]), ["x"])["x"]
    ({'x': 6}, array([7, 5]))
    """

    def __init__(
        self,
        features: Mapping[str, Field],
        schema: pa.Schema,
        rows: Sequence[int],
        load: Callable[[int], pa.RecordBatch],
        name: Callable[[int], str],
        extents: Callable[[Integers], Ranges] | None = None,
        evicts: bool = False,
        read_file: ReadFile = no_file,
    ) -> None:
        starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._load = load
        self._extents = extents
        self._is_open = np.zeros(len(rows), np.bool_)
        self._set_up(features, schema, Chunks(starts, self._open, name, evicts), read_file)

    def _set_up(self, features: Mapping[str, Field], schema: pa.Schema, chunks: Chunks, read_file: ReadFile) -> None:
        self._features = features
        self._chunks = chunks
        self._evicts = chunks.evicts
        self._length = int(chunks.starts[-1])
        self._starts: list[int] = chunks.starts.tolist()
        self._getters: list[dict[str, Getter] | None] = [None] * (len(self._starts) - 1)
        self._kinds = {name: storage_type(schema.field(name).type) for name in features}
        self._readers = {n: f.reader(n, self._kinds[n], self._chunks, read_file) for n, f in features.items()}
        self._read_file = read_file
        self._whole: dict[str, pa.ChunkedArray] = {}

    def __len__(self) -> int:
        return self._length

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return these fields of these rows."""
        fields = list(self._features) if fields is None else fields
        held = self._prepare(rows, fields)
        columns = Columns({name: self._readers[name].read(rows) for name in fields}, len(rows))
        del held
        return columns

    def read_views(self, rows: Integers, fields: Sequence[str] | None, views: Collection[str]) -> Columns:
        """Return these fields of these rows; values of bytes in the fields `views` are views of files if possible."""
        if self._evicts:
            return self.read(rows, fields)  # cached pages without a view may be evicted
        fields = list(self._features) if fields is None else fields
        self._prepare(rows, fields)
        readers = {name: self._readers[name] for name in fields}
        data = {name: one.views(rows) if name in views else one.read(rows) for name, one in readers.items()}
        return Columns(data, len(rows))

    def _prepare(self, rows: Integers, fields: Sequence[str]) -> Any:
        """Download the closed batches of these rows at once; the returned object keeps them in the cache."""
        if not self._evicts or not fields or self._is_open.all():
            return None
        chunks = self._chunks.of(rows[(rows >= 0) & (rows < len(self))])
        closed = chunks[~self._is_open[chunks]]
        return self._extents(np.unique(closed)).hold() if self._extents is not None and len(closed) else None

    def close_batches(self, chunks: Sequence[int]) -> None:
        """Release these batches; they are loaded again when they are read."""
        for chunk in chunks:
            self._is_open[chunk] = False
            self._getters[chunk] = None
            for reader in self._readers.values():
                reader.detach(chunk)
            self._chunks.close(chunk)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start to download the values of these rows; for closed batches, the bytes that opening them reads."""
        fields = list(self._features) if fields is None else fields
        chunks = self._chunks.of(rows)
        is_open = self._is_open[chunks]
        if self._extents is not None and fields and not is_open.all():
            self._extents(np.unique(chunks[~is_open])).advise()
        for name in fields:
            self._readers[name].advise(rows[is_open])

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row; arrays are views of the mapped file."""
        chunk = bisect_right(self._starts, row) - 1
        if (getters := self._getters[chunk]) is None or row >= self._starts[chunk + 1]:
            return self._first_sample(row, fields)  # another thread may have opened its file since, and set its starts
        at = row - self._starts[chunk]
        try:
            if fields is None:
                return {name: get(at) for name, get in getters.items()}
            return {name: getters[name](at) for name in fields}
        except KeyError:
            check_fields(list(self.features), fields)
            raise
        except (ValueError, IndexError) as error:
            raise self._bad_value(chunk, row, error) from None

    def _first_sample(self, row: int, fields: Sequence[str] | None) -> dict[str, Any]:
        """Return one row of a batch that has no getters yet."""
        chunk = bisect_right(self._starts, row) - 1
        if not self._is_open[chunk]:
            self._open(chunk)
        self._getters[chunk] = {name: reader.getter(chunk) for name, reader in self._readers.items()}
        return self.sample(row, fields)

    def _bad_value(self, chunk: int, row: int, error: Exception) -> Exception:
        """Return the error for what getters cannot read: text that is not UTF-8, offsets or buffers that do not fit."""
        if isinstance(error, ShardexError):
            return error
        return FormatError(f"{self._chunks.name(chunk)}, sample {row}: expected valid values, got others: {error}")

    def _column(self, name: str) -> pa.ChunkedArray:
        if (whole := self._whole.get(name)) is None:
            self._open_all(name)
            whole = _combined(pa.chunked_array(self._readers[name].arrays(), self._kinds[name]))
            if not self._evicts:  # a cached column would keep all files open
                self._whole[name] = whole
        return whole

    def _open_all(self, name: str) -> None:
        """Open all batches, of which a whole field is read."""
        if self._evicts and self._extents is not None:
            self._extents(np.flatnonzero(~self._is_open)).fetch()
        for chunk in np.flatnonzero(~self._is_open).tolist():
            self._open(chunk)

    def _open(self, chunk: int) -> None:
        """Load a batch and attach its arrays to the readers."""
        batch = self._load(chunk)
        rows = self._starts[chunk + 1] - self._starts[chunk]
        if batch.num_rows != rows:
            raise FormatError(f"{self._chunks.name(chunk)}: expected {rows} rows, got {batch.num_rows}")
        for name, reader in self._readers.items():
            array = storage_array(batch.column(name))
            if array.null_count and not self.features[name].nullable:
                raise FormatError(
                    f"{self._chunks.name(chunk)}: expected a value in every row, got nulls - at field {name}"
                )
            reader.attach(chunk, array)
        self._is_open[chunk] = True


def _combined(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the column; combine small chunks, since each costs SQL as much as 100 rows."""
    if len(column) >= _FEW_ROWS * column.num_chunks or column.nbytes > _WIDE * len(column):
        return column
    return pa.table({"": column}).combine_chunks().column(0)
