"""Arrow tables: of columns in memory for other tools, and of stored columns as SQL reads them.

`to_table`: stacked columns become Arrow arrays without a copy, lists of Python values at once (`Field.to_arrow`); all
others go through the encoders, value by value. The features give the Arrow types.

`StoredTable` is the base class of tables of files. DuckDB reads their columns, copied only if necessary: numbers, text,
bytes, lists and structs keep their stored type, arrays of numbers are lists, JSON is text with the JSON extension type
(`Field.sql_column`). `dataset/sql.py` decides which fields a query needs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import is_binary, map_type, number_array
from shardex.columns.arrow_values import ReadFile
from shardex.columns.encoders import Optionals, offsets_of, with_nulls
from shardex.columns.fields import Field, Table, located
from shardex.errors import FormatError, SchemaError
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged, values_of


def to_table(
    columns: Columns,
    features: Mapping[str, Field],
    types: Mapping[str, pa.DataType] | None = None,
    first: int = 0,
    *,
    stored: bool = False,
) -> pa.Table:
    """Return one Arrow column per field; `types` of opaque fields; `first`: number of the first sample, for errors.

    Bytes of images, audio and video are checked, unless they come from `stored` samples.

    >>> from shardex.features import Features
    >>> to_table(Columns({"x": np.array([1, 2])}), Features.of({"x": "int64"})).to_pydict()
    {'x': [1, 2]}
    """
    kinds = types or {}
    wanted = {n: f.stored_form() if stored else f for n, f in features.items()}
    return pa.table({n: _array(columns.data.get(n, []), f, n, kinds.get(n), first) for n, f in wanted.items()})


def _array(column: Column, feature: Field, name: str, kind: pa.DataType | None, first: int) -> pa.Array:
    if feature.opaque:
        return _inferred(column, name, kind)
    array = None
    if not isinstance(column, list) and (array := feature.to_arrow(column)) is None:
        cast = feature.cast_column(column)
        array = None if cast is None else feature.to_arrow(cast)
    return _encoded(column, feature, name, first) if array is None else array


def _inferred(column: Column, name: str, kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values_of(column), kind)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaError(f"expected values that Arrow can infer a type for, got {error} - at field {name}") from None


def _encoded(column: Column, feature: Field, name: str, first: int) -> pa.Array:
    values = values_of(column)
    if type(MISSING) in {*map(type, values)}:
        values = [None if value is MISSING else value for value in values]
    if (array := feature.to_arrow(values)) is not None:
        return array
    encoder = feature.encoder()
    if not feature.takes_none and any(value is None for value in values):
        encoder = Optionals(encoder)
    for number, value in enumerate(values):
        try:
            encoder.append(value)
        except SchemaError as error:
            raise located(error, f"sample {first + number}, field {name}") from None
    return encoder.finish()


# -- for the features -----------------------------------------------------------------------------------------


def masked_to_arrow(column: Masked, convert: Callable[[Any], pa.Array | None]) -> pa.Array | None:
    """Return values that may be missing as an array, given the function for those that are not."""
    values = column.column
    if isinstance(values, Ragged) and not column.mask.all():
        values = Masked.spread(values[column.mask], column.mask).column
    elif isinstance(values, np.ndarray) and values.dtype.kind in "biufcMm":  # zeros, as the encoders write them
        values = column.filled(0).column
    array = convert(values)
    return array if array is None or column.mask.all() else with_nulls(array, column.mask)


def of_python_values(values: list[Any], kind: type, convert: Callable[[list[Any]], pa.Array]) -> pa.Array | None:
    """Convert all values at once, ten times as fast, if they are of one Python type or None; else return `None`."""
    if not (kinds := {*map(type, values)}) <= {kind, type(None)}:
        return None
    filler = kind()
    filled = values if type(None) not in kinds else [filler if value is None else value for value in values]
    try:
        array = convert(filled)
    except (OverflowError, UnicodeEncodeError):
        return None
    return array if filled is values else with_nulls(array, np.array([value is not None for value in values], np.bool_))


def texts_to_arrow(values: list[str]) -> pa.Array:
    """Return strings as an array."""
    joined = "".join(values)
    data = joined.encode()
    lengths = map(len, values) if len(data) == len(joined) else (len(value.encode()) for value in values)
    return _blobs(lengths, len(values), data, pa.large_string())


def bytes_to_arrow(values: list[bytes]) -> pa.Array:
    """Return bytes as an array."""
    return _blobs(map(len, values), len(values), b"".join(values), pa.large_binary())


def _blobs(lengths: Iterable[int], count: int, data: bytes, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets_of(lengths, count)), pa.py_buffer(data)], 0)


# -- for SQL ------------------------------------------------------------------------------------------------------

IS_JSON = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
_NULL = b"null"


class StoredTable(Table):
    """A table of stored columns."""

    _features: Mapping[str, Any]
    _kinds: Mapping[str, pa.DataType]
    """The type in which each field is stored."""
    _read_file: ReadFile

    @property
    def features(self) -> Mapping[str, Any]:
        """Name and feature of each field."""
        return self._features

    @abstractmethod
    def _column(self, name: str) -> pa.ChunkedArray:
        """Return a whole field in its stored type."""

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole field in its stored type, structs of media as bytes; opens or decodes all batches."""
        column, feature = self._column(name), self._features[name]
        if not feature.holds_media(self._kinds[name]):
            return column
        arrays = [feature.without_structs(chunk, self._read_file) for chunk in column.chunks]
        return pa.chunked_array(arrays, arrays[0].type if arrays else feature.arrow_type())

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields in the form that SQL reads."""
        return sql_table({name: self.column(name) for name in names}, self._features)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value for a field."""
        return valid_mask(self._column(name), self._features[name])


def sql_table(columns: Mapping[str, pa.ChunkedArray], features: Mapping[str, Field]) -> pa.Table:
    """Return a table of stored columns in the form that SQL reads."""
    arrays = {name: features[name].sql_column(column, name) for name, column in columns.items()}
    fields = [pa.field(n, a.type, metadata=IS_JSON if features[n].is_json else None) for n, a in arrays.items()]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def cast_for_sql(
    column: pa.ChunkedArray, expected: object, name: str, kind: pa.DataType | None = None
) -> pa.ChunkedArray:
    """Return a column in a type, by default its own in the form that DuckDB has."""
    kind = kind or map_type(column.type, _duckdb_type)
    try:
        return column if kind == column.type else column.cast(kind)
    except pa.ArrowException as error:
        raise FormatError(f"expected {expected}, got invalid bytes: {error} - at field {name}") from None


def without_json_null(array: pa.Array) -> pa.Array:
    """Return JSON text in which the value null, which is read as `None`, is NULL."""
    null = _is_json_null(array)
    return with_nulls(pa.concat_arrays([array]), ~null & _valid(array)) if null.any() else array


def _is_json_null(array: pa.Array) -> NDArray[np.bool_]:
    """Return which texts are the JSON value null."""
    if not (pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)):
        array = array.cast(pa.large_binary() if is_binary(array.type) else pa.large_string())
    _, offsets, data = array.buffers()
    found = np.zeros(len(array), np.bool_)
    if offsets is None or data is None:
        return found
    bounds = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    short = np.flatnonzero(np.diff(bounds) == len(_NULL))
    text = np.frombuffer(data, np.uint8)
    found[short] = (text[bounds[short][:, None] + np.arange(len(_NULL))] == np.frombuffer(_NULL, np.uint8)).all(1)
    return found


def _duckdb_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with float32 instead of float16, which DuckDB does not have."""
    return pa.float32() if pa.types.is_float16(kind) else kind


def as_nested_lists(column: pa.ChunkedArray, shape: list[int]) -> pa.ChunkedArray:
    """Return arrays of several dimensions, which are stored flat, as lists of lists."""
    kind = column.type.value_type
    if not pa.types.is_fixed_size_list(column.type) or pa.types.is_fixed_size_list(kind):
        return column
    for size in reversed(shape):
        kind = pa.list_(kind, size)
    return pa.chunked_array([_nested(chunk, shape) for chunk in column.chunks], kind)


def _nested(array: pa.FixedSizeListArray, shape: list[int]) -> pa.FixedSizeListArray:
    items = array.values
    for size in reversed(shape[1:]):
        items = pa.FixedSizeListArray.from_arrays(items, size)
    kind = pa.list_(items.type, shape[0])
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:1], offset=array.offset, children=[items])


def valid_mask(column: pa.ChunkedArray, feature: Field) -> NDArray[np.bool_]:
    """Return which values of a column are not null; in JSON null is no value."""
    parts = [_valid(chunk) for chunk in column.chunks]
    if feature.is_json:
        parts = [valid & ~_is_json_null(chunk) for valid, chunk in zip(parts, column.chunks, strict=True)]
    return np.concatenate([np.empty(0, np.bool_), *parts])


def _valid(array: pa.Array) -> NDArray[np.bool_]:
    return _bits(array.is_valid()) if array.null_count else np.ones(len(array), np.bool_)


def _bits(array: pa.BooleanArray) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), bitorder="little")
    return bits[array.offset : array.offset + len(array)].astype(np.bool_)


def true_or_null(present: NDArray[np.bool_]) -> pa.Array:
    """Return an array that is true for rows that have a value and null for the others.

    >>> true_or_null(np.array([True, False])).to_pylist()
    [True, None]
    """
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(present), [bits, bits])


def take_table(table: pa.Table, rows: Integers) -> pa.Table:
    """Return these rows of a table."""
    return table.combine_chunks().take(number_array(rows))


def concat_columns(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the columns of all tables, which have the same rows."""
    columns = [(column, field) for table in tables for column, field in zip(table.columns, table.schema, strict=True)]
    return pa.Table.from_arrays([column for column, _ in columns], schema=pa.schema([field for _, field in columns]))
