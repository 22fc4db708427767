"""`BatchBuilder`: collects samples into Arrow record batches for the Arrow and Parquet writers.

A sample is appended whole or not at all: if a value does not fit, or anything else fails, the collector of the values
(`collect`) drops all those of that sample. Samples that come as columns are converted at once (`EncodedColumns`), and
the writer adds those of them that belong to the current batch. The same samples give the same batches either way: both
ways count the same `nbytes`, and the buffers of a batch hold nothing else, not even in their padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.collect import MOST_ROWS, Convert, collector_of
from shardex.columns.fields import Field, located, refuse_unknown_fields
from shardex.columns.tables import to_table
from shardex.errors import SchemaError
from shardex.kernel import MISSING, Columns, Integers, values_of


class BatchBuilder:
    """Collects samples into record batches.

    >>> from shardex.features import Array, Features, arrow_schema
    >>> features = Features.of({"x": Array("int8", (2,)), "s": str})
    >>> batch = BatchBuilder(features, arrow_schema(features))
    >>> batch.append({"x": [1, 2], "s": "a"})
    >>> batch.finish().to_pylist()
    [{'x': [1, 2], 's': 'a'}]
    >>> batch.append({"x": [1, 2, 3], "s": "a"})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int8[2], got int64[3] - at sample 1, field x
    """

    def __init__(self, features: Mapping[str, Field], schema: pa.Schema) -> None:
        self.features: Mapping[str, Any] = features
        self.schema = schema
        self._collector = collector_of(features)
        self.rows = 0
        """Samples in the current batch."""
        self.finished = 0
        """Samples in the finished batches."""
        self.place = ""
        """What errors call the next sample; by default its number among those appended."""
        self._parts: list[pa.RecordBatch] = []
        """First samples of the current batch, if some of it came as columns; the collector has those after them."""
        self._part_rows = self._part_bytes = 0

    @property
    def nbytes(self) -> int:
        """Approximate size of the current batch."""
        return self._part_bytes + self._collector.nbytes

    def append(self, sample: Mapping[str, Any]) -> None:
        """Append one sample, whole or not at all."""
        try:
            if not self.features:
                raise SchemaError("expected a schema with at least one field, got none")
            self._collector.append(sample)
        except BaseException as error:
            self._refuse(error)
            raise
        self.rows += 1

    def extend(self, samples: Iterator[Any], limit: int, most: int = MOST_ROWS, convert: Convert = dict) -> bool:
        """Append samples until the batch has `most` rows or about `limit` bytes; return False at their end.

        The size is compared at some numbers of rows (`is_compared`). Samples that are no dicts go through `convert`.
        """
        if not self.features:
            raise self._located(SchemaError("expected a schema with at least one field, got none"), None)
        before = self._part_rows
        try:
            return self._collector.extend(samples, before, limit - self._part_bytes, most, convert)
        except BaseException as error:
            self._refuse(error)
            raise
        finally:
            self.rows = before + self._collector.rows

    def _refuse(self, error: BaseException) -> None:
        """Remove what there is of a sample that raised an error, and say where it is if it does not fit."""
        collector = self._collector
        self.rows = self._part_rows + collector.rows
        collector.truncate(collector.rows)
        if isinstance(error, SchemaError) and not collector.outside:
            raise self._located(error, collector.field) from None

    def encode(self, columns: Columns) -> EncodedColumns:
        """Convert samples that come as columns, for `add`."""
        return EncodedColumns(columns, self.features, self.schema, self.finished + self.rows)

    def add(self, encoded: EncodedColumns, begin: int, end: int) -> None:
        """Add some of the encoded samples, without a copy."""
        if self.rows > self._part_rows:
            size = self.nbytes
            self._parts.append(self._take())
            self._part_bytes += size - self.nbytes
        self._parts.append(encoded.batch.slice(begin, end - begin))
        self._part_bytes += int(encoded.sizes[end] - encoded.sizes[begin])
        self.rows += end - begin
        self._part_rows = self.rows

    def copy_last(self, encoded: EncodedColumns) -> None:
        """Copy the samples that were added last, so that the caller may reuse its arrays."""
        both = zip(self._parts[-1].columns, encoded.made, strict=True)
        arrays = [array if made else pa.concat_arrays([array]) for array, made in both]
        self._parts[-1] = pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def remove_last(self) -> None:
        """Remove the last sample of the current batch."""
        self.rows -= 1
        self._truncate()

    def _located(self, error: SchemaError, name: str | None) -> SchemaError:
        field = "" if name is None else f", field {name}"
        return located(error, f"{self.place or f'sample {self.finished + self.rows}'}{field}")

    def _truncate(self) -> None:
        self._collector.truncate(self.rows - self._part_rows)

    def _take(self) -> pa.RecordBatch:
        """Return the samples in the collector as one batch."""
        return pa.RecordBatch.from_arrays(self._collector.finish(), schema=self.schema)

    def finish(self) -> pa.RecordBatch:
        """Return the collected samples as one batch and start the next."""
        batch = self._join_parts() if self._parts else self._take()
        self.finished += self.rows
        self.rows = 0
        return batch

    def _join_parts(self) -> pa.RecordBatch:
        parts, self._parts = self._parts, []
        if self.rows > self._part_rows:
            parts.append(self._take())
        self._part_rows = self._part_bytes = 0
        arrays = [_joined([part.column(number) for part in parts]) for number in range(len(self.schema))]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _joined(arrays: list[pa.Array]) -> pa.Array:
    """Return one array whose buffers hold only its values.

    Arrow writes values that follow a slice too, as padding to 64 bytes.
    """
    exact = _cut(arrays[0]) if len(arrays) == 1 and not arrays[0].null_count else None
    return pa.concat_arrays(arrays) if exact is None else exact


def _cut(array: pa.Array) -> pa.Array | None:
    """Return an array without nulls whose buffers end with its values, which are not copied; None for other types."""
    kind, rows, buffers = array.type, len(array), array.buffers()
    if pa.types.is_primitive(kind) and kind.bit_width % 8 == 0:
        return pa.Array.from_buffers(kind, rows, [None, _part(buffers[1], array.offset, rows, kind.bit_width // 8)], 0)
    if pa.types.is_fixed_size_list(kind):
        values = array.values.slice(array.offset * kind.list_size, rows * kind.list_size)
        whole = None if values.null_count else _cut(values)
        return None if whole is None else pa.Array.from_buffers(kind, rows, [None], 0, children=[whole])
    lists = pa.types.is_large_list(kind)
    if not lists and not pa.types.is_large_string(kind) and not pa.types.is_large_binary(kind):
        return None
    offsets = np.frombuffer(buffers[1], np.int64, rows + 1, 8 * array.offset)
    begin, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    rebased = pa.py_buffer(offsets - begin)
    if not lists:
        data = None if buffers[2] is None else _part(buffers[2], begin, count, 1)
        return pa.Array.from_buffers(kind, rows, [None, rebased, data], 0)
    if array.values.null_count or (items := _cut(array.values.slice(begin, count))) is None:
        return None
    return pa.Array.from_buffers(kind, rows, [None, rebased], 0, children=[items])


def _part(buffer: pa.Buffer, begin: int, count: int, width: int) -> pa.Buffer:
    return buffer.slice(begin * width, count * width)


# -- columns --------------------------------------------------------------------------------------------------


class EncodedColumns:
    """Samples that come as columns, as Arrow arrays, with the sizes that the encoders count for them.

    >>> from shardex.features import Features, arrow_schema
    >>> features = Features.of({"n": "int16", "s": str})
    >>> encoded = EncodedColumns(Columns({"n": [1, 2], "s": ["a", "bcd"]}), features, arrow_schema(features))
    >>> encoded.batch.to_pydict(), encoded.sizes.tolist()
    ({'n': [1, 2], 's': ['a', 'bcd']}, [0, 3, 8])
    """

    def __init__(self, columns: Columns, features: Mapping[str, Field], schema: pa.Schema, first: int = 0) -> None:
        """Convert columns; `first` is the number of the first sample, for errors."""
        refuse_unknown_fields(columns.data, features)
        absent = {name: [MISSING] * len(columns) for name in features if name not in columns}
        complete = Columns({**columns.data, **absent}, len(columns))
        arrays = [_one_chunk(column) for column in to_table(complete, features, first=first).columns]
        self.made = [isinstance(complete.data[name], list) for name in features]
        """True for each array that has memory of its own, False for those that may be views of the caller's."""
        self.sizes: Integers = np.zeros(len(columns) + 1, np.int64)
        """Size of no samples, of the first one, of the first two, and so on."""
        for array, (name, feature) in zip(arrays, features.items(), strict=True):
            if array.null_count and not feature.nullable:
                _refuse_null(array, complete, name, feature, first)
            self.sizes += feature.sizes(array)
        self.batch = pa.RecordBatch.from_arrays(arrays, schema=schema)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies a single one too


def _refuse_null(array: pa.Array, columns: Columns, name: str, feature: Field, first: int) -> None:
    row = array.is_null().to_pylist().index(True)
    try:
        feature.fit(values_of(columns.data[name])[row])
    except SchemaError as error:
        raise located(error, f"sample {first + row}, field {name}") from None
