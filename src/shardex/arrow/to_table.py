"""Columns as a `pyarrow.Table`, for other tools; the features give the Arrow types.

Stacked columns become Arrow arrays without a copy, lists go through the encoders of `encode`, value by value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.encode import encoder_of, shaped_arrays, with_nulls
from shardex.arrow.encode_values import offsets_of
from shardex.arrow.types import arrow_type, fixed_sizes, items_per_row, number_array, storage_dtype
from shardex.errors import SchemaError
from shardex.features import (
    Array,
    Bytes,
    Feature,
    Features,
    Json,
    Null,
    Opaque,
    Optional,
    Text,
    TimeFeature,
    Value,
    contains,
    has_shape,
    located,
    stored_form,
    unwrap_optional,
)
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged, ends_of, values_of


def to_table(
    columns: Columns,
    features: Features,
    types: Mapping[str, pa.DataType] | None = None,
    first: int = 0,
    *,
    stored: bool = False,
) -> pa.Table:
    """Return one Arrow column per field; `types` of opaque fields; `first`: number of the first sample, for errors.

    Bytes of images, audio and video are checked, unless they come from `stored` samples.

    >>> to_table(Columns({"x": np.array([1, 2])}), Features.of({"x": "int64"})).to_pydict()
    {'x': [1, 2]}
    """
    kinds = types or {}
    wanted = {n: stored_form(f) if stored else f for n, f in features.items()}
    return pa.table({n: _array(columns.data.get(n, []), f, n, kinds.get(n), first) for n, f in wanted.items()})


def _array(column: Column, feature: Feature, name: str, kind: pa.DataType | None, first: int) -> pa.Array:
    inner = unwrap_optional(feature)
    if contains(inner, Opaque):
        return _inferred(column, name, kind)
    array = _from_numbers(column, inner)
    return _encoded(column, feature, name, first) if array is None else array


def _inferred(column: Column, name: str, kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values_of(column), kind)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaError(f"expected values that Arrow can infer a type for, got {error} - at field {name}") from None


def _from_numbers(column: Column, feature: Feature) -> pa.Array | None:
    """Return stacked or ragged numbers of the feature's dtype and shape as an array, without a copy; others `None`."""
    if isinstance(column, Masked):
        if isinstance(feature, Array) and not feature.fixed and not feature.ragged:
            return _from_shaped(column.column[column.mask], feature, column.mask)
        array = _from_numbers(_zeroed(column), feature)
        return array if array is None or column.mask.all() else with_nulls(array, column.mask)
    if isinstance(column, list) or not isinstance(feature, Value | Array | TimeFeature):
        return None
    if column.dtype != (feature.dtype or "O"):
        return None
    if isinstance(feature, TimeFeature):
        return _from_times(column, feature)
    if isinstance(feature, Value):
        return number_array(column) if isinstance(column, np.ndarray) and column.ndim == 1 else None
    if not feature.fixed and not feature.ragged:
        return _from_shaped(column, feature, np.ones(len(column), np.bool_))
    buffers, items = [None], column
    if isinstance(column, Ragged):
        if not feature.ragged or column.shapes is not None or column.inner != fixed_sizes(feature):
            return None
        buffers.append(pa.py_buffer(column.offsets * items_per_row(feature)))
        items = column.values
    elif not feature.shape or column.shape[1:] != feature.shape:
        return None
    values = number_array(np.ascontiguousarray(items).reshape(-1).view(storage_dtype(column.dtype)))
    return pa.Array.from_buffers(arrow_type(feature), len(column), buffers, 0, children=[values])


def _from_shaped(present: NDArray[Any] | Ragged, feature: Array, mask: NDArray[np.bool_]) -> pa.Array | None:
    """Return the arrays of the rows that have one, of shapes that vary; `None` if they do not fit the feature."""
    if feature.dtype is None or present.dtype != feature.dtype:
        return None
    if isinstance(present, np.ndarray):
        if present.ndim == 1:
            return None
        present = Ragged.from_stacked(present, shaped=True)
    shapes = present.full_shapes()
    free = (None,) * shapes.shape[1] if feature.shape is None else feature.shape
    sizes = [(axis, size) for axis, size in enumerate(free) if size is not None]
    if len(free) != shapes.shape[1] or any((shapes[:, axis] != size).any() for axis, size in sizes):
        return None
    lengths = present.lengths * math.prod(present.inner)
    return _shaped(feature, present.values.reshape(-1), lengths, shapes.reshape(-1), shapes.shape[1], mask)


def _from_arrays(values: list[Any], feature: Array) -> pa.Array | None:
    """Convert a list of arrays of shapes that vary, and None; return `None` if some value has to be converted."""
    if feature.dtype is None or feature.fixed or feature.ragged:
        return None
    mask = np.array([value is not None for value in values], np.bool_)
    present = values if mask.all() else [value for value in values if value is not None]
    dtype = np.dtype(feature.dtype)
    if not present or any(type(one) is not np.ndarray or one.dtype is not dtype for one in present):
        return None
    if not all(has_shape(one.shape, feature.shape) for one in present):
        return None
    lengths = np.fromiter((one.size for one in present), np.int64, len(present))
    ndims = np.fromiter((one.ndim for one in present), np.int64, len(present))
    sizes = np.fromiter(chain.from_iterable(one.shape for one in present), np.int64)
    return _shaped(feature, np.concatenate([one.reshape(-1) for one in present]), lengths, sizes, ndims, mask)


def _shaped(
    feature: Array, values: NDArray[Any], lengths: Integers, sizes: Integers, ndims: Any, mask: NDArray[np.bool_]
) -> pa.Array:
    """Return arrays as structs; `values`, `lengths` in elements, `sizes` and `ndims` are of the rows in `mask`."""
    items = values.view(storage_dtype(values.dtype))
    every = np.zeros((2, len(mask)), np.int64)
    every[0, mask] = lengths * (values.itemsize // items.itemsize)
    every[1, mask] = ndims
    if feature.shape is not None and not mask.all():
        shapes = np.zeros((len(mask), len(feature.shape)), np.int64)
        shapes[mask] = sizes.reshape(-1, len(feature.shape))
        sizes = shapes.reshape(-1)
    array = shaped_arrays(feature, items, ends_of(every[0]), sizes, ends_of(every[1]))
    return array if mask.all() else with_nulls(array, mask)


def _zeroed(column: Masked) -> Any:
    """Return the values with zeros, or empty rows, where they are missing, as the encoders write them."""
    values = column.column
    if isinstance(values, Ragged) and not column.mask.all():
        return Masked.spread(values[column.mask], column.mask).column
    return column.filled(0).column if isinstance(values, np.ndarray) and values.dtype.kind in "biufc" else values


def _from_times(column: NDArray[Any] | Ragged, feature: TimeFeature) -> pa.Array | None:
    """Return dates and times as an array; `None` if some are missing."""
    if not isinstance(column, np.ndarray) or column.ndim != 1 or np.isnat(column).any():
        return None
    numbers = np.ascontiguousarray(column).view(np.int64).view(np.ndarray)
    stored = numbers.astype(feature.storage)
    if (stored != numbers).any():
        return None
    return pa.Array.from_buffers(arrow_type(feature), len(stored), [None, pa.py_buffer(stored)], 0)


def _encoded(column: Column, feature: Feature, name: str, first: int) -> pa.Array:
    values = values_of(column)
    if type(MISSING) in {*map(type, values)}:
        values = [None if value is MISSING else value for value in values]
    inner = unwrap_optional(feature)
    array = _from_arrays(values, inner) if isinstance(inner, Array) else _from_python_values(values, inner)
    if array is not None:
        return array
    if any(value is None for value in values) and not isinstance(feature, Optional | Json | Null):
        feature = Optional(feature)
    encoder = encoder_of(feature)
    for number, value in enumerate(values):
        try:
            encoder.append(value)
        except SchemaError as error:
            raise located(error, f"sample {first + number}, field {name}") from None
    return encoder.finish()


_PYTHON_TYPES: dict[Feature, type] = {
    Text(): str,
    Bytes(): bytes,
    Value("int64"): int,
    Value("float64"): float,
    Value("bool"): bool,
}


def _from_python_values(values: list[Any], feature: Feature) -> pa.Array | None:
    """Convert all values at once, ten times as fast, if they are of one Python type or None; else return `None`."""
    kind = _PYTHON_TYPES.get(feature)
    if kind is None or not (kinds := {*map(type, values)}) <= {kind, type(None)}:
        return None
    filler = kind()
    filled = values if type(None) not in kinds else [filler if value is None else value for value in values]
    try:
        if isinstance(feature, Value):
            array = number_array(np.array(filled, feature.dtype))
        elif kind is str:
            array = _texts(filled)
        else:
            array = _blobs(map(len, filled), len(filled), b"".join(filled), pa.large_binary())
    except (OverflowError, UnicodeEncodeError):
        return None
    return array if filled is values else with_nulls(array, np.array([value is not None for value in values], np.bool_))


def _texts(values: list[str]) -> pa.Array:
    joined = "".join(values)
    data = joined.encode()
    lengths = map(len, values) if len(data) == len(joined) else (len(value.encode()) for value in values)
    return _blobs(lengths, len(values), data, pa.large_string())


def _blobs(lengths: Iterable[int], count: int, data: bytes, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets_of(lengths, count)), pa.py_buffer(data)], 0)
