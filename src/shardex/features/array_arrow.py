"""Arrow arrays of `Array`: their types, and conversion both ways.

Arrays of one shape are fixed_size_list of the flattened elements; those of which only the first size varies are
large_list of the flattened elements; others are structs of `values` (large_list) and `shape` (list of int64). Booleans
are stored as uint8, times as int64, complex numbers as pairs.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import arrow_types, arrow_values, decode_array, encoders, number_array, tables
from shardex.errors import FormatError, SchemaError
from shardex.features.array_values import stack_arrays
from shardex.features.codecs import COMPACT
from shardex.features.feature import hf_value, null_mask
from shardex.kernel import Column, Integers, Masked, Ragged, arrays_of, ends_of, values_of

if TYPE_CHECKING:
    from shardex.features.array import Array

_MAX_DIMENSIONS = 5
"""Dimensions of the arrays of Hugging Face."""
_MOST_ITEMS = (1 << 31) - 1
"""Most items of a list of fixed size in Arrow."""


def array_type(feature: Array) -> pa.DataType:
    """Return the Arrow type of arrays that have a dtype."""
    item = pa.field("item", pa.from_numpy_dtype(arrow_types.storage_dtype(np.dtype(feature.dtype))), nullable=False)
    if feature.fixed:
        if (items := items_per_row(feature)) > _MOST_ITEMS:
            raise SchemaError(f"expected arrays of one shape with at most {_MOST_ITEMS} elements, got {feature}")
        return pa.list_(item, items)
    if feature.ragged:
        return pa.large_list(item)
    size = -1 if feature.shape is None else len(feature.shape)
    shape = pa.list_(pa.field("item", pa.int64(), nullable=False), size)
    return pa.struct(
        [pa.field("values", pa.large_list(item), nullable=False), pa.field("shape", shape, nullable=False)]
    )


def items_per_row(feature: Array) -> int:
    """Return the stored elements per row of a fixed array, or per step of the first dimension of a ragged one."""
    pairs = 2 if np.dtype(feature.dtype).kind == "c" else 1
    return pairs * math.prod(fixed_sizes(feature))


def fixed_sizes(feature: Array) -> tuple[int, ...]:
    """Return the sizes of the shape that do not vary.

    >>> from shardex.features import Array
    >>> fixed_sizes(Array("uint8", (None, None, 3)))
    (3,)
    """
    return tuple(n for n in feature.shape or () if n is not None)


def holds_array(feature: Array, kind: pa.DataType) -> bool:
    """Return True if a type is the storage type of the array, or lists of the same elements."""
    expected = array_type(feature)
    if pa.types.is_struct(expected):
        return _holds_shapes(expected, kind)
    item, items = expected.value_type, 1
    if arrow_types.is_list(kind):
        return bool(kind.value_type == item)
    while pa.types.is_fixed_size_list(kind):
        kind, items = kind.value_type, items * kind.list_size
    return bool(kind == item) and feature.fixed and items == items_per_row(feature)


def _holds_shapes(expected: pa.StructType, kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["values", "shape"]:
        return False
    values, shape = kind.field("values").type, kind.field("shape").type
    sized = expected.field("shape").type
    fits = shape == sized or (arrow_types.is_list(shape) and shape.value_type == sized.value_type)
    return fits and arrow_types.is_list(values) and bool(values.value_type == expected.field("values").type.value_type)


# -- to Arrow -------------------------------------------------------------------------------------------------


def arrays_to_arrow(column: Column, feature: Array) -> pa.Array | None:
    """Return stacked or ragged arrays of the dtype and shape of a feature as an array, if possible without a copy.

    None if some value has to be converted.
    """
    if isinstance(column, list):
        return _from_list(column, feature)
    shaped = not feature.fixed and not feature.ragged
    if isinstance(column, Masked):
        if shaped:
            return _from_shaped(column.column[column.mask], feature, column.mask)
        return tables.masked_to_arrow(column, lambda values: arrays_to_arrow(values, feature))
    if column.dtype != (feature.dtype or "O"):
        return None
    if shaped:
        return _from_shaped(column, feature, np.ones(len(column), np.bool_))
    buffers, items = [None], column
    if isinstance(column, Ragged):
        if not feature.ragged or column.shapes is not None or column.inner != fixed_sizes(feature):
            return None
        buffers.append(pa.py_buffer(column.offsets * items_per_row(feature)))
        items = column.values
    elif not feature.shape or column.shape[1:] != feature.shape:
        return None
    values = number_array(np.ascontiguousarray(items).reshape(-1).view(arrow_types.storage_dtype(column.dtype)))
    return pa.Array.from_buffers(array_type(feature), len(column), buffers, 0, children=[values])


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


def _from_list(values: list[Any], feature: Array) -> pa.Array | None:
    """Convert a list of arrays of shapes that vary, and None; return `None` if some value has to be converted."""
    if feature.dtype is None or feature.fixed or feature.ragged:
        return None
    mask = np.array([value is not None for value in values], np.bool_)
    present = values if mask.all() else [value for value in values if value is not None]
    dtype = np.dtype(feature.dtype)
    if not present or any(type(one) is not np.ndarray or one.dtype is not dtype for one in present):
        return None
    if not all(arrow_types.has_shape(one.shape, feature.shape) for one in present):
        return None
    lengths = np.fromiter((one.size for one in present), np.int64, len(present))
    ndims = np.fromiter((one.ndim for one in present), np.int64, len(present))
    sizes = np.fromiter(chain.from_iterable(one.shape for one in present), np.int64)
    return _shaped(feature, np.concatenate([one.reshape(-1) for one in present]), lengths, sizes, ndims, mask)


def _shaped(
    feature: Array, values: NDArray[Any], lengths: Integers, sizes: Integers, ndims: Any, mask: NDArray[np.bool_]
) -> pa.Array:
    """Return arrays as structs; `values`, `lengths` in elements, `sizes` and `ndims` are of the rows in `mask`."""
    items = values.view(arrow_types.storage_dtype(values.dtype))
    every = np.zeros((2, len(mask)), np.int64)
    every[0, mask] = lengths * (values.itemsize // items.itemsize)
    every[1, mask] = ndims
    if feature.shape is not None and not mask.all():
        shapes = np.zeros((len(mask), len(feature.shape)), np.int64)
        shapes[mask] = sizes.reshape(-1, len(feature.shape))
        sizes = shapes.reshape(-1)
    array = encoders.shaped_arrays(array_type(feature), items, ends_of(every[0]), sizes, ends_of(every[1]))
    return array if mask.all() else encoders.with_nulls(array, mask)


# -- from Arrow -----------------------------------------------------------------------------------------------


def decode_array_bytes(raw: bytes, feature: Array) -> NDArray[Any]:
    """Return an array stored as bytes: bare elements if dtype and shape are known, else the compact format.

    >>> from shardex.features import Array
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


def arrays_of_arrow(array: pa.Array, feature: Array) -> Column:
    """Return the arrays of lists, or of structs of elements and shapes."""
    dtype = np.dtype(feature.dtype)
    if pa.types.is_struct(array.type):
        return _of_structs(array, feature, dtype)
    if arrow_types.is_list(array.type):
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
    return [values_of(arrays_of_arrow(array.slice(row, 1), feature))[0] for row in range(len(array))]


def _stacked(values: NDArray[Any], count: int, feature: Array) -> Column:
    stacked = values.reshape(count, *fixed_sizes(feature))
    return stacked if feature.shape else [np.asarray(value) for value in stacked]


def _listed(array: pa.Array, feature: Array, dtype: np.dtype[Any]) -> Column:
    """Return arrays stored as lists; `FormatError` if their lengths do not fit the feature."""
    offsets, items = arrow_values.list_parts(array)
    if items.null_count:
        return _with_inner_nulls(array, feature)
    lengths, step = np.diff(offsets), items_per_row(feature)
    if (lengths != step if feature.fixed else lengths % step).any():
        raise FormatError(f"expected {feature}, got lists of {', '.join(map(str, np.unique(lengths)[:5]))} elements")
    values = np.asarray(items).view(dtype)
    if feature.fixed:
        return _stacked(values, len(array), feature)
    return Ragged.from_values(values.reshape(-1, *fixed_sizes(feature)), offsets // step, fixed_sizes(feature))


def _of_structs(array: pa.StructArray, feature: Array, dtype: np.dtype[Any]) -> Column:
    (ends, values), (bounds, sizes) = (
        arrow_values.parts_of_lists(array.field("values")),
        arrow_values.parts_of_lists(array.field("shape")),
    )
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


# -- Hugging Face ---------------------------------------------------------------------------------------------


def array_feature_to_hf(dtype: str, shape: tuple[int | None, ...]) -> Any:
    """Return the JSON form of a feature of Hugging Face for arrays."""
    if not shape:
        return hf_value(dtype)
    if len(shape) == 1:
        length = {} if shape[0] is None else {"length": shape[0]}
        return {"_type": "List", "feature": hf_value(dtype), **length}
    if len(shape) <= _MAX_DIMENSIONS and None not in shape[1:]:
        return {"_type": f"Array{len(shape)}D", "shape": list(shape), "dtype": dtype}
    return {"_type": "List", "feature": array_feature_to_hf(dtype, (None,) * (len(shape) - 1))}


def arrays_to_hf(array: pa.Array, feature: Array, kind: pa.DataType) -> pa.Array:
    """Return flat arrays as nested lists: the same elements with offsets."""
    shape = feature.shape or ()
    if len(shape) == 1 and not pa.types.is_struct(array.type):
        return array.cast(kind)
    if not shape or 0 in shape or pa.types.is_struct(array.type):
        return pa.array(
            [None if one is None else one.tolist() for one in values_of(decode_array(array, feature))], kind
        )
    step, sizes = items_per_row(feature), [size or 0 for size in shape]
    if feature.fixed:
        bounds = np.arange(len(array) + 1) * sizes[0]
        values = array.values.slice(array.offset * step, len(array) * step)
    else:
        bounds, values = arrow_values.list_parts(array)
        bounds //= step
    values = values.cast(pa.from_numpy_dtype(np.dtype(feature.dtype)))
    for size in reversed(sizes[1:]):
        values = pa.ListArray.from_arrays(_list_offsets(np.arange(len(values) // size + 1) * size), values)
    return pa.ExtensionArray.from_storage(
        kind, pa.ListArray.from_arrays(_list_offsets(bounds), values, mask=null_mask(array))
    )


def _list_offsets(bounds: Integers) -> pa.Array:
    return number_array(bounds.astype(np.int32))
