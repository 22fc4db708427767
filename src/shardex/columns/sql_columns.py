"""Stored columns as DuckDB reads them, copied only if necessary, and tables of such columns.

Numbers, text, bytes, lists and structs keep their stored type, arrays of numbers are lists, JSON is text with the JSON
extension type (`Field.sql_column`). `dataset/sql.py` decides which fields a query needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.encode import with_nulls
from shardex.columns.fields import Field
from shardex.columns.types import is_binary, map_type, number_array
from shardex.errors import FormatError
from shardex.kernel import Integers

IS_JSON = {"ARROW:extension:name": "arrow.json", "ARROW:extension:metadata": ""}
_NULL = b"null"


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
