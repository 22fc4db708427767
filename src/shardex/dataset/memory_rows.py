"""Rows of data in memory: `ListRows` of a list of samples, `ColumnRows` of columns, `ArrowRows` of an Arrow table.

A read has the form that the features of the fields say, as a read of files has. A table is one that another tool made,
also mapped from files, and is read without a copy: each batch is validated when one of its rows is first read. Columns
that start inside their buffers, as slices do, are copied then, batch by batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns import MappedTable, ReadFile, arrow_types, arrow_values, check_fields, ipc
from shardex.errors import ArgumentError, SchemaError
from shardex.features import (
    Array,
    Feature,
    Features,
    Json,
    Media,
    Opaque,
    Optional,
    contains,
    conversions,
    features_of_arrow,
    infer,
)
from shardex.kernel import Column, Columns, Integers, Masked, Ragged, digest, is_tensor
from shardex.rows import AbstractRows, SideBySideRows

_FINGERPRINT_SAMPLES = 1000


class ListRows(AbstractRows):
    """Rows of a list of dicts: for tests and for small data.

    >>> ListRows([{"x": 1}, {"x": 2}]).read(np.array([1, 0]))["x"]
    array([2, 1])
    """

    def __init__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        self.samples = samples

    def __reduce__(self) -> tuple[Any, ...]:
        return ListRows, (self.samples,)

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def features(self) -> Features:
        """Features that fit all samples."""
        return infer(self.samples)

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields whose first value is media: others hold none, and all samples need not be looked at."""
        first = self.samples[0] if len(self.samples) else {}
        return [name for name, value in first.items() if _is_media(value)]

    @cached_property
    def _known_features(self) -> Mapping[str, Feature]:
        """The features; empty if a field has values of several kinds."""
        try:
            return self.features
        except SchemaError:
            return {}

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the samples; of a long list only its first and last 1000."""
        count = _FINGERPRINT_SAMPLES
        ends = [*self.samples[:count], *self.samples[max(count, len(self) - count) :]]
        return digest("samples", len(self), ends)

    @cached_property
    def _names(self) -> list[str]:
        return list(dict.fromkeys(name for sample in self.samples for name in sample))

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Pick samples and stack their values."""
        names = check_fields(self._names, fields)
        samples = [self.samples[row] for row in rows.tolist()]
        found = {name: [sample.get(name) for sample in samples] for name in names}
        given = self._converted
        columns = {n: _list_column(values, given[n], n) if n in given else values for n, values in found.items()}
        return conversions.in_form(Columns(columns, len(rows)).stack(), self._known_features)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Pick one sample; most need no conversion."""
        sample, checks = self.samples[row], self._checks
        if fields is None and checks and all(fits(sample.get(name)) for name, fits in checks.items()):
            return {name: sample.get(name) for name in checks}
        return super().sample(row, fields)

    @cached_property
    def _checks(self) -> Mapping[str, Callable[[Any], bool]]:
        """For each field a fast function that is True if a value needs no conversion; empty if there are arrays."""
        known = self._known_features
        return (
            {} if any(contains(f, Array) for f in known.values()) else {n: f.fits_unchanged() for n, f in known.items()}
        )

    @cached_property
    def _converted(self) -> Mapping[str, Feature]:
        """Fields of arrays that samples have as lists or tensors, and of media, which are read as bytes."""
        known = self._known_features.items()
        fields = {name: feature for name, feature in known if contains(feature, Array)}
        lists = {n: f for n, f in fields.items() if any(_is_converted(sample.get(n)) for sample in self.samples)}
        return lists | {name: feature for name, feature in known if contains(feature, Media)}


def _is_media(value: Any) -> bool:
    """Return whether a value may be media: an image of PIL, or the path of a file."""
    return isinstance(value, os.PathLike) or type(value).__module__.partition(".")[0] == "PIL"


def _is_converted(value: Any) -> bool:
    """Return whether a value may hold arrays in another form: lists of numbers, tensors."""
    return isinstance(value, list | tuple | dict) or is_tensor(value)


def _list_column(values: list[Any], feature: Feature, name: str) -> Column:
    """Return lists of numbers as the arrays that their feature says, images as their bytes."""
    return feature.fit_column(values, "sample {}".format, name, stored=False)


class ColumnRows(AbstractRows):
    """Rows of columns in memory: arrays with a row per sample, or lists.

    >>> ColumnRows({"x": np.arange(3, dtype="i2"), "name": ["a", "b", "c"]}).sample(1)
    {'x': 1, 'name': 'b'}
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        if not columns:
            raise ArgumentError("expected at least one column, got an empty dict")
        data = {name: _memory_column(name, column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in data.items()}
        if len({*lengths.values()}) > 1:
            raise SchemaError(f"expected columns of one length, got {lengths}")
        for name, column in data.items():
            if isinstance(column, list) and any(map(_is_converted, column)):
                feature = _memory_feature(name, column)
                data[name] = _list_column(column, feature, name) if contains(feature, Array) else column
        self.columns = Columns(data).stack()

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnRows, (self.columns.data,)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def in_python(self) -> bool:
        """True if a column is a list."""
        return any(isinstance(column, list) for column in self.columns.data.values())

    @cached_property
    def features(self) -> Features:
        """Features of the arrays' dtypes and shapes, and those that fit all values of lists."""
        return Features({name: _memory_feature(name, column) for name, column in self.columns.data.items()})

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields whose first value is media."""
        lists = {name: column for name, column in self.columns.data.items() if isinstance(column, list)}
        return [name for name, column in lists.items() if column and _is_media(column[0])]

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the samples, the same as that of a list of them."""
        count = _FINGERPRINT_SAMPLES
        ends = [*range(min(count, len(self))), *range(max(count, len(self) - count), len(self))]
        return digest("samples", len(self), self.columns.take(ends).to_samples())

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Pick the rows of each column."""
        found = self.columns.select(check_fields(self.columns.names, fields)).take(rows)
        for name in self._media & found.data.keys():
            found.data[name] = _list_column(list(found.data[name]), self.features[name], name)
        return found

    @cached_property
    def _media(self) -> set[str]:
        """Fields of media, which are read as bytes."""
        lists = {name: column for name, column in self.columns.data.items() if isinstance(column, list)}
        some = {name: column for name, column in lists.items() if any(map(_is_media, column))}
        try:
            return {name for name, column in some.items() if contains(_memory_feature(name, column), Media)}
        except SchemaError:  # a field with values of several kinds
            return set()

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Pick one value of each column."""
        if self._media:
            return super().sample(row, fields)
        return self.columns.select(check_fields(self.columns.names, fields)).sample(row)


def _memory_column(name: str, column: Any) -> Column:
    """Return a list, or an array with at least one dimension; text and objects are lists."""
    if isinstance(column, list | tuple | Ragged | Masked):
        return list(column) if isinstance(column, tuple) else column
    if hasattr(column, "__array__"):
        array = np.asarray(column)
        if array.ndim:
            return array.tolist() if array.dtype.kind in "OSUT" else array
    raise ArgumentError(
        f"expected columns as arrays or lists with a value for each sample, got {type(column).__name__} - at field "
        f"{name}; wrap one sample in a list, and open the files of several splits with load_dataset(data_files=...)"
    )


def _memory_feature(name: str, column: Column) -> Feature:
    if isinstance(column, np.ndarray):
        return infer([{name: np.zeros(column.shape[1:], column.dtype)[()]}])[name]
    found = infer([{name: value} for value in column]).get(name, Json())
    return Optional(found) if isinstance(column, Masked) else found


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
