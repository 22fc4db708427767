"""Rows of an Arrow table that another tool made, in memory or mapped from files, read without a copy.

Each batch is validated when one of its rows is first read. Columns that start inside their buffers, as slices do, are
copied then, batch by batch; all others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns import MappedTable, ReadFile, arrow_types, arrow_values, ipc
from shardex.features import Features, Opaque, contains, features_of_arrow
from shardex.kernel import Columns, Integers, digest
from shardex.rows import SideBySideRows

_SOME = 100
"""Number of rows at each end from which the fingerprint is computed."""

Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class ArrowRows(SideBySideRows):
    """Rows of an Arrow table. `given` are features of columns whose Arrow types do not determine them.

    `convert` converts each batch to the types in `schema`, if columns cannot be read directly. `read_file` reads
    images, audio and video of which the table has only the paths.

    >>> rows = ArrowRows(pa.table({"x": [1, 2, 3], "s": ["a", None, "c"]}))
    >>> print(rows.features); rows.read(np.array([2, 0]), ["x"])["x"]
    x int64, s text or none
    array([3, 1])
    """

    in_python = False

    def __init__(
        self,
        table: pa.Table,
        given: Features | None = None,
        schema: pa.Schema | None = None,
        convert: Convert | None = None,
        read_file: ReadFile | None = None,
    ) -> None:
        self.table = table
        self._given = given
        self._convert = convert
        self._batches = table.to_batches()
        schema = table.schema if schema is None else schema
        self._features = _features(table, schema, given)
        counts = [batch.num_rows for batch in self._batches]
        self._length: int = sum(counts)
        name = "the table in memory, batch {}".format
        mapped = MappedTable(
            self._features, schema, counts, self._load, name, read_file=read_file or arrow_values.no_file
        )
        super().__init__(dict.fromkeys(self._features, mapped))

    def __len__(self) -> int:
        return self._length

    @property
    def features(self) -> Features:
        """Name and feature of each column."""
        return self._features

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrowRows, (self.table, self._given)

    def _load(self, number: int) -> pa.RecordBatch:
        batch = ipc.valid_batch(self._batches[number], f"the table in memory, batch {number}")
        batch = batch if self._convert is None else self._convert(batch)
        columns = [pa.concat_arrays([column]) if _has_offset(column) else column for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    @cached_property
    def fingerprint(self) -> str:
        """Made from the features, the length and the rows at both ends."""
        ends = np.unique([*range(min(_SOME, len(self))), *range(max(0, len(self) - _SOME), len(self))]).astype(np.int64)
        columns = {
            name: [str(one) for one in column] if contains(self.features[name], Opaque) else column
            for name, column in self.read(ends).data.items()
        }
        return digest("table", str(self.features), len(self), Columns(columns, len(ends)).to_samples())

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Do nothing: the table is in memory."""


# -- features of the columns ------------------------------------------------------------------------------------


def _features(table: pa.Table, schema: pa.Schema, given: Features | None) -> Features:
    nulls = {
        path
        for name, column in zip(table.column_names, table.columns, strict=True)
        for path in arrow_types.null_paths(name, column.chunks)
    }
    return features_of_arrow(schema, given, nulls)


# -- slices -----------------------------------------------------------------------------------------------------


def _has_offset(array: pa.Array) -> bool:
    """Return whether values of the array do not start at the beginning of their buffers."""
    if isinstance(array, pa.ExtensionArray):
        return _has_offset(array.storage)
    if array.offset:
        return True
    if isinstance(array, pa.StructArray):
        return any(_has_offset(array.field(number)) for number in range(array.type.num_fields))
    return isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray) and _has_offset(array.values)
