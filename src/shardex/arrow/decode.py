"""Converts Arrow arrays of any type to columns: the inverse of `encode`.

Nulls become `None`, or the gaps of a `Masked` if the feature is optional; dictionary and extension arrays become their
values. `field_readers` reads most mapped
fields faster, from their buffers; it uses this module for the rest, `decoded_table` for all fields.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.storage import storage_array
from shardex.arrow.types import fixed_sizes, is_binary, is_list, items_per_row, number_array, units_per_stored
from shardex.errors import FormatError, SchemaError
from shardex.features import (
    COMPACT,
    JSON,
    TEXT,
    Array,
    Bytes,
    ClassLabel,
    Decimal,
    Duration,
    Feature,
    Json,
    Map,
    Null,
    Optional,
    Sequence,
    Struct,
    Text,
    Time,
    TimeFeature,
    Timestamp,
    Value,
    check_keys,
    fit_column,
    stack_arrays,
)
from shardex.kernel import Column, Columns, Integers, Masked, Ragged, TimeArray, arrays_of, values_of, with_missing

_MS_PER_DAY = 86_400_000

Decode = Callable[[pa.Array, Feature], Column]
"""Returns the values of a whole array, as `decode_array` does."""


def decode_array(array: pa.Array, feature: Feature) -> Column:
    """Return the values of a whole array; a column of numbers is `Masked` if the feature is optional.

    >>> decode_array(pa.array([[1, 2], None]), Optional(Array("int64", (None,)))).to_list()
    [array([1, 2]), None]
    """
    array = storage_array(array)
    if isinstance(array, pa.DictionaryArray):
        return decode_array(array.dictionary_decode(), feature)
    if isinstance(feature, Optional):
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return with_missing(_column(array.drop_null() if array.null_count else array, feature.feature), valid)
    if not array.null_count:
        return _column(array, feature)
    return decode_array(array, Optional(feature))


def decode_value(array: pa.Array, row: int, feature: Feature, decode: Decode = decode_array) -> Any:
    """Return one value of an array."""
    return Columns({"": decode(array.slice(row, 1), feature)}, 1).sample(0)[""]


def take_rows(
    rows: Integers,
    starts: Integers,
    features: Mapping[str, Feature],
    arrays: Callable[[int], Mapping[str, pa.Array]],
    name: Callable[[int], str],
    decode: Decode = decode_array,
) -> Columns:
    """Return rows of arrays in chunks; `arrays(k)` returns the arrays of chunk k, which starts at row `starts[k]`."""
    chunks = np.searchsorted(starts, rows, "right") - 1
    order = np.argsort(chunks, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1)
    parts = []
    for positions in places if len(rows) else []:
        chunk = int(chunks[positions[0]])
        found, local = arrays(chunk), rows[positions] - starts[chunk]
        columns = {}
        for field, feature in features.items():
            try:
                columns[field] = decode(found[field].take(number_array(local)), feature)
            except (FormatError, pa.ArrowException) as error:
                row = _first_bad(found[field], local, feature, decode)
                where = f"{name(chunk)}, sample {starts[chunk] + row}, field {field}"
                raise FormatError(f"{error} - at {where}") from None
        parts.append(Columns(columns, len(positions)))
    if not parts:  # the form follows the feature here too
        return Columns({field: fit_column([], one, str, field, stored=False) for field, one in features.items()}, 0)
    whole = Columns.scatter(parts, places)
    whole.data.update({field: _writable(column) for field, column in whole.data.items()})
    return whole


def _writable(column: Column) -> Column:
    """Return the column in memory of its own; numpy sees memory of Arrow as read-only."""
    if isinstance(column, np.ndarray):
        return column if column.flags.writeable else column.copy()
    if isinstance(column, Masked) and isinstance(column.column, np.ndarray):
        return Masked(_writable(column.column), column.mask)
    return column


def _first_bad(array: pa.Array, rows: Integers, feature: Feature, decode: Decode) -> int:
    """Return the first row that cannot be decoded."""
    for row in rows.tolist():
        try:
            decode_value(array, row, feature, decode)
        except (FormatError, pa.ArrowException):
            return int(row)
    return int(rows[0])


def _column(array: pa.Array, feature: Feature) -> Column:
    match feature:
        case Value() | ClassLabel():
            return np.asarray(array.to_numpy(zero_copy_only=False))
        case Text() if is_binary(array.type):
            return [TEXT.decode(raw) for raw in array.to_pylist()]
        case Bytes() if not is_binary(array.type):
            return [text.encode() for text in array.to_pylist()]
        case Json():
            raw = array if is_binary(array.type) else array.cast(pa.large_binary())
            return [JSON.decode(one) for one in raw.to_pylist()]
        case Array() if is_binary(array.type):
            return stack_arrays([decode_array_bytes(raw, feature) for raw in array.to_pylist()], feature)
        case Array():
            return _arrays(array, feature)
        case Sequence():
            return _lists(array, feature)
        case Struct():
            return _structs(array, feature)
        case TimeFeature():
            return _times(array, feature)
        case Decimal():
            return list(array.to_pylist())
        case Map():
            return _maps(array, feature)
        case Null():
            return [None] * len(array)
    return _objects(array)


def _times(array: pa.Array, feature: TimeFeature) -> TimeArray:
    numbers = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_numpy(zero_copy_only=False)
    return time_column(numbers, array.type, feature)


def time_column(numbers: Integers, kind: pa.DataType, feature: TimeFeature) -> TimeArray:
    """Return stored numbers of dates or times as a column; they may be in a finer unit (date64: milliseconds)."""
    per_unit = _MS_PER_DAY if pa.types.is_date64(kind) else 1
    if isinstance(feature, Timestamp | Time | Duration):
        per_unit = units_per_stored(feature, kind) or 1
    if per_unit == 1:
        return feature.column(numbers)
    whole, rest = np.divmod(numbers, per_unit)
    if rest.any() and not pa.types.is_date64(kind):
        raise FormatError(f"expected {feature}, got {kind} values that are more precise (declare a finer unit)")
    return feature.column(whole)


def _objects(array: pa.Array) -> list[Any]:
    """Return Python values; numpy values for times in nanoseconds, which Python cannot represent."""
    try:
        if getattr(array.type, "unit", "") == "ns":
            kind = "M8[ns]" if pa.types.is_timestamp(array.type) else "m8[ns]"
            return list(array.cast(pa.int64()).to_numpy().view(kind))
        return list(array.to_pylist())
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise FormatError(f"expected {array.type} values that Python can represent, got others: {error}") from None


def _maps(array: pa.MapArray, feature: Map) -> list[Any]:
    offsets, entries = list_parts(array)
    keys, values = values_of(decode_array(entries.field(0), feature.key)), decode_array(entries.field(1), feature.value)
    pairs = list(zip(keys, values_of(values), strict=True))
    found = [pairs[a:b] for a, b in pairwise(offsets.tolist())]
    if not feature.is_dict:
        return found
    dicts = [dict(some) for some in found]
    for one, some in zip(dicts, found, strict=True):
        if len(one) < len(some):
            _refuse_repeated([key for key, _ in some], feature)
    return dicts


def _refuse_repeated(keys: list[Any], feature: Map) -> None:
    try:
        check_keys(keys, feature)
    except SchemaError as error:
        raise FormatError(str(error)) from None


def _structs(array: pa.StructArray, feature: Struct) -> list[dict[str, Any]]:
    if not feature.fields:
        return [{} for _ in range(len(array))]
    columns = [values_of(decode_array(array.field(name), inner)) for name, inner in feature.fields.items()]
    return [dict(zip(feature.fields, row, strict=True)) for row in zip(*columns, strict=True)]


def _lists(array: pa.Array, feature: Sequence) -> list[list[Any]]:
    offsets, values = _parts_of_lists(array)
    items = values_of(decode_array(values, feature.feature))
    return [items[a:b] for a, b in pairwise(offsets.tolist())]


def _parts_of_lists(lists: pa.Array) -> tuple[Integers, pa.Array]:
    if pa.types.is_fixed_size_list(lists.type):
        return np.arange(len(lists) + 1) * lists.type.list_size, lists.flatten()
    return list_parts(lists)


def list_bounds(lists: pa.Array) -> Integers:
    """Return the start of each list in its values, and the end of the last one."""
    found: Integers = lists.offsets.to_numpy().astype(np.int64) if len(lists) else np.zeros(1, np.int64)
    return found


def list_parts(lists: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the bounds of lists relative to the first start, and the values of all lists."""
    bounds = list_bounds(lists)
    return bounds - bounds[0], lists.values.slice(bounds[0], bounds[-1] - bounds[0])


# -- arrays ---------------------------------------------------------------------------------------------------


def decode_array_bytes(raw: bytes, feature: Array) -> NDArray[Any]:
    """Return an array stored as bytes: bare elements if dtype and shape are known, else the compact format.

    >>> decode_array_bytes(b"\\1\\0\\2\\0", Array("int16", (2,)))
    array([1, 2], dtype=int16)
    """
    if feature.dtype is None or feature.shape is None:
        return COMPACT.decode(raw)  # type: ignore[no-any-return]
    dtype = np.dtype(feature.dtype)
    step = math.prod(fixed_sizes(feature)) * dtype.itemsize
    free = feature.shape.count(None)
    if free > 1 or (len(raw) != step if not free else not step or len(raw) % step):
        raise FormatError(f"expected the bytes of {feature}, got {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape([-1 if n is None else n for n in feature.shape])


def _arrays(array: pa.Array, feature: Array) -> Column:
    dtype = np.dtype(feature.dtype)
    if pa.types.is_struct(array.type):
        return _shaped(array, feature, dtype)
    if is_list(array.type):
        return _listed(array, feature, dtype)
    flat = array
    while pa.types.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    if flat.null_count:
        return _with_inner_nulls(array, feature)
    return _stacked(np.asarray(flat).view(dtype), len(array), feature)


def _with_inner_nulls(array: pa.Array, feature: Array) -> list[Any]:
    """Return lists for rows with null elements, arrays for the other rows."""
    if len(array) == 1:
        return list(array.to_pylist())
    return [values_of(_arrays(array.slice(row, 1), feature))[0] for row in range(len(array))]


def _stacked(values: NDArray[Any], count: int, feature: Array) -> Column:
    stacked = values.reshape(count, *fixed_sizes(feature))
    return stacked if feature.shape else [np.asarray(value) for value in stacked]


def _listed(array: pa.Array, feature: Array, dtype: np.dtype[Any]) -> Column:
    """Return arrays stored as lists; `FormatError` if their lengths do not fit the feature."""
    offsets, items = list_parts(array)
    if items.null_count:
        return _with_inner_nulls(array, feature)
    lengths, step = np.diff(offsets), items_per_row(feature)
    if (lengths != step if feature.fixed else lengths % step).any():
        raise FormatError(f"expected {feature}, got lists of {', '.join(map(str, np.unique(lengths)[:5]))} elements")
    values = np.asarray(items).view(dtype)
    if feature.fixed:
        return _stacked(values, len(array), feature)
    return Ragged.from_values(values.reshape(-1, *fixed_sizes(feature)), offsets // step, fixed_sizes(feature))


def _shaped(array: pa.StructArray, feature: Array, dtype: np.dtype[Any]) -> Column:
    (ends, values), (bounds, sizes) = _parts_of_lists(array.field("values")), _parts_of_lists(array.field("shape"))
    if values.null_count or sizes.null_count:
        raise FormatError(f"expected {feature}, got nulls inside of arrays or shapes")
    flat, ends = np.asarray(values).view(dtype), ends // (2 if dtype.kind == "c" else 1)
    lengths, ndims, every = np.diff(ends), np.diff(bounds), np.asarray(sizes)
    ndim = len(feature.shape or ())
    if ndim and (ndims == ndim).all() and not (every < 0).any():
        shapes = every.reshape(-1, ndim)
        if (shapes.prod(axis=1) == lengths).all():
            return Ragged.from_values(flat, ends, shapes=shapes)
    return stack_arrays(arrays_of(flat, lengths, every, ndims), feature)


def reshape(row: NDArray[Any], shape: SequenceOf[int]) -> NDArray[Any]:
    """Return the elements of one array in their shape."""
    try:
        return row.reshape(shape)
    except ValueError:
        raise FormatError(f"expected an array of shape {shape}, got {row.size} elements") from None
