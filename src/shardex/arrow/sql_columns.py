"""Converts fields to Arrow tables that DuckDB can query, with a column per field, copied only if necessary.

Numbers, text, bytes, lists and structs keep their stored type, arrays of numbers are lists, JSON is text with the JSON
extension type. Rows that store such columns return them from `AbstractRows.sql_columns`; for others all samples are
read (`samples_table`). `dataset/sql.py` decides which fields a query needs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.encode import with_nulls
from shardex.arrow.to_table import to_table
from shardex.arrow.types import is_binary, map_type, number_array
from shardex.errors import FormatError, QueryError, SchemaError
from shardex.features import (
    Array,
    Decimal,
    Feature,
    Features,
    Json,
    Map,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    unwrap_optional,
)
from shardex.kernel import MISSING, Columns, Integers, values_of

_IS_JSON = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
_SQL_DIGITS = 38
"""Digits of the longest decimal number of DuckDB."""
_NULL = b"null"
_INT64 = range(-(1 << 63), 1 << 63)


# -- stored columns ---------------------------------------------------------------------------------------------


def is_queryable(feature: Feature, *, inside: bool = False) -> bool:
    """Return whether SQL can read the values of a field; `IS NULL` works for every field.

    >>> is_queryable(Array("float32", (3, 4))), is_queryable(Array("float32", (None, None))), is_queryable(Array())
    (True, False, False)
    """
    match feature:
        case Array(dtype=str(dtype), shape=tuple(shape)):
            fits = shape == (None,) or (feature.fixed and shape != () and 0 not in shape)
            return fits and not (inside and len(shape) > 1) and np.dtype(dtype).kind in "iuf"
        case Array():
            return False
        case Optional():
            return is_queryable(feature.feature, inside=inside)
        case Decimal():
            return feature.precision <= _SQL_DIGITS
        case Map():
            return is_queryable(feature.key, inside=True) and is_queryable(feature.value, inside=True)
        case Sequence():
            return is_queryable(feature.feature, inside=True)
        case Struct():
            return bool(feature.fields) and all(is_queryable(one, inside=True) for one in feature.fields.values())
    return True


def sql_table(columns: Mapping[str, pa.ChunkedArray], features: Mapping[str, Feature]) -> pa.Table:
    """Return a table of stored columns in the form that SQL reads."""
    inner = {name: unwrap_optional(feature) for name, feature in features.items()}
    arrays = {name: _sql_column(column, inner[name], name) for name, column in columns.items()}
    fields = [pa.field(n, a.type, metadata=_IS_JSON if inner[n] == Json() else None) for n, a in arrays.items()]
    return pa.Table.from_arrays(list(arrays.values()), schema=pa.schema(fields))


def _sql_column(column: pa.ChunkedArray, feature: Feature, name: str) -> pa.ChunkedArray:
    if isinstance(feature, Array) and is_binary(column.type):
        raise QueryError(
            f"expected values that SQL can read, got {feature} stored as bytes - at field {name}; "
            "only IS NULL and IS NOT NULL work for it"
        )
    as_text = isinstance(feature, Text | Json) and is_binary(column.type)
    kind = pa.large_string() if as_text else map_type(column.type, _duckdb_type)
    try:
        column = column if kind == column.type else column.cast(kind)
    except pa.ArrowException as error:
        raise FormatError(f"expected {feature}, got invalid bytes: {error} - at field {name}") from None
    if isinstance(feature, Array) and feature.fixed and len(feature.shape or ()) > 1:
        return _as_nested_lists(column, [size or 0 for size in feature.shape or ()])
    if isinstance(feature, Json):
        return pa.chunked_array([_without_json_null(chunk) for chunk in column.chunks], column.type)
    return column


def _without_json_null(array: pa.Array) -> pa.Array:
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


def _as_nested_lists(column: pa.ChunkedArray, shape: list[int]) -> pa.ChunkedArray:
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


def valid_mask(column: pa.ChunkedArray, feature: Feature) -> NDArray[np.bool_]:
    """Return which values of a column are not null; in JSON null is no value."""
    parts = [_valid(chunk) for chunk in column.chunks]
    if isinstance(unwrap_optional(feature), Json):
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


# -- tables combined --------------------------------------------------------------------------------------------


def take_table(table: pa.Table, rows: Integers) -> pa.Table:
    """Return these rows of a table."""
    return table.combine_chunks().take(number_array(rows))


def concat_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all tables; numbers take the widest type, a column that is JSON in one is JSON in all."""
    tables = list(tables)
    json = {field.name for table in tables for field in table.schema if _is_json(field)}
    try:
        return pa.concat_tables([_with_json(table, json) for table in tables], promote_options="permissive")
    except (pa.ArrowException, SchemaError) as error:
        raise QueryError(
            f"expected fields of one type in all parts of the dataset, got different ones: {error}; query each part"
        ) from None


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"ARROW:extension:name") == b"arrow.json"


def _with_json(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the table with these columns as JSON text."""
    for number, field in enumerate(table.schema):
        if field.name in names and not _is_json(field):
            values, features = table.column(number).to_pylist(), Features({field.name: Optional(Json())})
            stored = to_table(Columns({field.name: values}, len(values)), features)
            json = sql_table({field.name: stored.column(0)}, features)
            table = table.set_column(number, json.schema.field(0), json.column(0))
    return table


def concat_columns(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the columns of all tables, which have the same rows."""
    columns = [(column, field) for table in tables for column, field in zip(table.columns, table.schema, strict=True)]
    return pa.Table.from_arrays([column for column, _ in columns], schema=pa.schema([field for _, field in columns]))


# -- from samples ---------------------------------------------------------------------------------------------


def samples_table(read: Callable[[], Iterable[Columns]], features: Features) -> pa.Table:
    """Return samples as a table in the form that SQL reads; `read()` starts a pass over all of them in chunks.

    Features may be inferred from the first samples only: if a later value does not fit, types that fit all are chosen.

    >>> samples_table(lambda: [Columns({"y": [{"z": 2}]}, 1)], Features({"y": Json()})).to_pydict()
    {'y': ['{"z":2}']}
    """
    try:
        parts = [to_table(columns, features, stored=True) for columns in read()]
    except SchemaError:
        values: dict[str, list[Any]] = {name: [] for name in features}
        rows = 0
        for columns in read():
            rows += len(columns)
            for name, column in columns.data.items():
                values[name] += values_of(column)
        features = Features({name: feature_of_values(column) for name, column in values.items()})
        parts = [to_table(Columns(values, rows), features)]
    table = concat_tables(parts)
    return sql_table({name: table.column(name) for name in features}, features)


def feature_of_values(values: Iterable[Any]) -> Feature:
    """Return the feature of Python values, always optional: number, bool or text if all values are such, else JSON.

    >>> str(feature_of_values([1, None, 2.5])), str(feature_of_values([1, "a"])), str(feature_of_values([2**63]))
    ('float64 or none', 'json or none', 'json or none')
    """
    kinds = {type(value) for value in values if value is not None and value is not MISSING}
    if kinds == {str}:
        return Optional(Text())
    if kinds == {bool}:
        return Optional(Value("bool"))
    if kinds == {int} and all(value in _INT64 for value in values if value is not None and value is not MISSING):
        return Optional(Value("int64"))
    return Optional(Value("float64") if kinds and kinds <= {int, float} and float in kinds else Json())
