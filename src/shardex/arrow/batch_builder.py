"""`BatchBuilder`: collects samples into Arrow record batches for the Arrow and Parquet writers.

A sample is appended whole or not at all: if an encoder (`encode`) refuses a value, or anything else fails, the encoders
of all fields drop their values of that sample. Samples that come as columns are converted at once (`EncodedColumns`),
and the writer adds those of them that belong to the current batch. The same samples give the same batches either way:
both ways count the same `nbytes`, and the buffers of a batch hold nothing else, not even in their padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.arrow.encode import encoder_of
from shardex.arrow.to_table import to_table
from shardex.arrow.types import arrow_schema
from shardex.errors import SchemaError
from shardex.kernel import MISSING, Columns, Integers, values_of
from shardex.schema import (
    Array,
    Bytes,
    Feature,
    Features,
    Json,
    Map,
    Null,
    Optional,
    Sequence,
    Struct,
    Text,
    fit,
    located,
    refuse_unknown_fields,
)


class BatchBuilder:
    """Collects samples into record batches.

    >>> from shardex.schema import Array
    >>> batch = BatchBuilder(Features.of({"x": Array("int8", (2,)), "s": str}))
    >>> batch.append({"x": [1, 2], "s": "a"})
    >>> batch.finish().to_pylist()
    [{'x': [1, 2], 's': 'a'}]
    >>> batch.append({"x": [1, 2, 3], "s": "a"})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int8[2], got int64[3] - at sample 1, field x
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.schema = arrow_schema(features)
        self._encoders = [encoder_of(feature) for feature in features.values()]
        self._appends = [(name, encoder.append) for name, encoder in zip(features, self._encoders, strict=True)]
        self._expected = len(features) or -1  # -1 sends every sample to the check, which raises
        self.rows = 0
        """Samples in the current batch."""
        self.finished = 0
        """Samples in the finished batches."""
        self.place = ""
        """What errors call the next sample; by default its number among those appended."""
        self._parts: list[pa.RecordBatch] = []
        """First samples of the current batch, if some of it came as columns; the encoders have those after them."""
        self._part_rows = self._part_bytes = 0

    @property
    def nbytes(self) -> int:
        """Approximate size of the current batch."""
        return self._part_bytes + sum(encoder.nbytes for encoder in self._encoders)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Append one sample, whole or not at all."""
        name: str | None = None
        try:
            for name, append in self._appends:
                append(sample[name])
            if len(sample) != self._expected:
                name = None
                if not self.features:
                    raise SchemaError("expected a schema with at least one field, got none")
                refuse_unknown_fields(sample, self.features)
            self.rows += 1
        except SchemaError as error:
            self._truncate()
            raise self._located(error, name) from None
        except BaseException as error:
            self._truncate()
            if not isinstance(error, KeyError) or name is None or name in sample:
                raise
            self.append(self._complete(sample))

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

    def _complete(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with `None` for the optional fields that it lacks; `append` raises for unknown fields."""
        complete = dict(sample)
        for name, feature in self.features.items():
            if name not in sample:
                try:
                    complete[name] = fit(MISSING, feature)
                except SchemaError as error:
                    raise self._located(error, name) from None
        return complete

    def _located(self, error: SchemaError, name: str | None) -> SchemaError:
        field = "" if name is None else f", field {name}"
        return located(error, f"{self.place or f'sample {self.finished + self.rows}'}{field}")

    def _truncate(self) -> None:
        for encoder in self._encoders:
            encoder.truncate(self.rows - self._part_rows)

    def _take(self) -> pa.RecordBatch:
        """Return the samples in the encoders as one batch."""
        return pa.RecordBatch.from_arrays([encoder.finish() for encoder in self._encoders], schema=self.schema)

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
    if len(arrays) == 1:
        kind, items = arrays[0].type, len(arrays[0])
        if pa.types.is_fixed_size_list(kind):
            kind, items = kind.value_type, items * kind.list_size
        if pa.types.is_primitive(kind) and not arrays[0].null_count and items * kind.bit_width % 512 == 0:
            return arrays[0]
    return pa.concat_arrays(arrays)


# -- columns --------------------------------------------------------------------------------------------------


class EncodedColumns:
    """Samples that come as columns, as Arrow arrays, with the sizes that the encoders count for them.

    >>> features = Features.of({"n": "int16", "s": str})
    >>> encoded = EncodedColumns(Columns({"n": [1, 2], "s": ["a", "bcd"]}), features, arrow_schema(features))
    >>> encoded.batch.to_pydict(), encoded.sizes.tolist()
    ({'n': [1, 2], 's': ['a', 'bcd']}, [0, 3, 8])
    """

    def __init__(self, columns: Columns, features: Features, schema: pa.Schema, first: int = 0) -> None:
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
            if array.null_count and not isinstance(feature, Optional | Null):
                _refuse_null(array, complete, name, feature, first)
            self.sizes += _sizes(array, feature)
        self.batch = pa.RecordBatch.from_arrays(arrays, schema=schema)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()  # which copies a single one too


def _refuse_null(array: pa.Array, columns: Columns, name: str, feature: Feature, first: int) -> None:
    row = array.is_null().to_pylist().index(True)
    try:
        fit(values_of(columns.data[name])[row], feature)
    except SchemaError as error:
        raise located(error, f"sample {first + row}, field {name}") from None


def _sizes(array: pa.Array, feature: Feature) -> Integers:
    """Return how much `nbytes` of the feature's encoder grows by the first 0, 1, 2 and so on values."""
    rows = np.arange(len(array) + 1)
    match feature:
        case Optional():
            return _sizes(array, feature.feature) + rows
        case Text() | Json() | Bytes() | Array(dtype=None):
            return _offsets(array)
        case Array(fixed=True):
            return rows * (int(array.type.list_size) * _width(array.type.value_type))
        case Array(ragged=True):
            return _offsets(array) * _width(array.type.value_type) + 8 * rows
        case Array():
            return _sizes(array.field("values"), Array(feature.dtype, (None,))) + 16 * rows
        case Sequence():
            return _sizes(array.values, feature.feature)[_offsets(array)] + 8 * rows
        case Map():
            entries = _sizes(array.keys, feature.key) + _sizes(array.items, feature.value)
            return entries[_offsets(array)] + 4 * rows
        case Struct():
            parts = [_sizes(array.field(number), inner) for number, inner in enumerate(feature.fields.values())]
            return sum(parts, np.zeros_like(rows))
        case Null():
            return np.zeros_like(rows)
    return rows * _width(array.type)


def _width(kind: pa.DataType) -> int:
    return max(1, int(kind.bit_width) // 8)


def _offsets(array: pa.Array) -> Integers:
    """Return where the values of each row begin, and the end of the last one."""
    kind = np.int32 if pa.types.is_map(array.type) else np.int64
    return np.frombuffer(array.buffers()[1], kind, len(array) + 1).astype(np.int64)
