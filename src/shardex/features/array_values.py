"""Values of `Array`: conversion to its dtype and shape, and columns of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import arrow_types
from shardex.errors import SchemaError
from shardex.features.codecs import decode_compact
from shardex.features.dtypes import can_cast
from shardex.features.feature import describe
from shardex.kernel import Column, Ragged

if TYPE_CHECKING:
    from shardex.features.array import Array


def fit_array(value: Any, feature: Array, *, stored: bool = False) -> NDArray[Any]:
    """Return an array of the feature's dtype and shape; the value itself if it is one.

    >>> from shardex.features import Array
    >>> fit_array([1, 2], Array("float32", (2,)))
    array([1., 2.], dtype=float32)
    >>> fit_array(np.zeros(2), Array("float32", (2,)))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected float32[2], got float64[2] (to accept the loss: .astype('float32'))
    """
    if stored:
        value = _from_stored(value, feature)
    if type(value) is np.ndarray and value.dtype == feature.dtype and arrow_types.has_shape(value.shape, feature.shape):
        return value
    array = _to_array(value, feature)
    typed = isinstance(value, np.ndarray | np.generic)
    if not typed and array.size == 0:
        array = array.reshape(shape_of_empty_list(array.shape, feature))
    if not typed and feature.dtype == "uint64" and array.dtype.kind in "fO":
        array = _unsigned(value, array)
    # Text is accepted in numpy arrays; in lists it is probably a mistake.
    if array.dtype.kind in ("O" if typed else "OUS"):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    if not arrow_types.has_shape(array.shape, feature.shape):
        raise SchemaError(f"expected {feature}, got {describe(array)}")
    if feature.dtype is None:
        return array
    if can_cast(array, np.dtype(feature.dtype), typed=typed):
        return array.astype(feature.dtype, copy=False)
    lossy = typed and not stored and array.dtype.kind in "biufc"
    hint = f" (to accept the loss: .astype({feature.dtype!r}))" if lossy else ""
    raise SchemaError(f"expected {feature}, got {describe(value)}{hint}")


def _to_array(value: Any, feature: Array) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaError(f"expected {feature}, got a masked array; fill it first: .filled(...)")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = "rows of different length" if "inhomogeneous" in str(error) else error
        raise SchemaError(f"expected {feature}, got {describe(value)} that cannot become an array: {reason}") from None


def shape_of_empty_list(found: tuple[int, ...], feature: Array) -> tuple[int, ...]:
    """Return the shape of an array that was given as a list without elements, which ends at its first size of 0.

    >>> from shardex.features import Array
    >>> shape_of_empty_list((0,), Array("int8", (None, 3))), shape_of_empty_list((2, 0), Array("int8", (2, 0, 5)))
    ((0, 3), (2, 0, 5))
    """
    return (*found, *(size or 0 for size in (feature.shape or ())[len(found) :]))


def _unsigned(value: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return a list of integers as uint64, which numpy makes floats if only some of them need it; else the array."""
    exact = np.array(value, object)
    fits = all(type(one) is int and 0 <= one < 1 << 64 for one in exact.flat)
    return exact.astype(np.uint64) if fits else array


def _from_stored(value: Any, feature: Array) -> Any:
    """Decode compact bytes to an array, and lists in which null stands for NaN to arrays of floats."""
    if isinstance(value, bytes):
        return decode_compact(value)
    if isinstance(value, list) and feature.dtype is not None and np.dtype(feature.dtype).kind == "f":
        array = _to_array(value, feature)
        if array.dtype.hasobject:
            try:
                return array.astype(feature.dtype)
            except (ValueError, TypeError):
                raise SchemaError(f"expected {feature}, got {describe(value)}") from None
    return value


# -- columns --------------------------------------------------------------------------------------------------


def stack_lists(values: list[Any], feature: Array) -> Column | None:
    """Return the column by one numpy call if all values are lists of numbers that fit, else `None`."""
    if not (feature.dtype and feature.fixed and feature.shape and set(map(type, values)) <= {list}):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        return None
    fits = array.shape == (len(values), *feature.shape) and can_cast(array, np.dtype(feature.dtype), typed=False)
    return array.astype(feature.dtype, copy=False) if fits else None


def stack_arrays(arrays: list[NDArray[Any]], feature: Array) -> Column:
    """Return arrays that fit a feature stacked, as `Ragged` if their shapes may differ, as a list if it has no shape.

    >>> from shardex.features import Array
    >>> stack_arrays([np.zeros(2, "int8"), np.ones(2, "int8")], Array("int8", (None,)))
    Ragged(2 rows of int8)
    """
    shape = feature.shape or ()
    if not shape:
        return list(arrays)  # stacking arrays without dimensions would turn them into numbers
    if feature.fixed:
        return np.stack(arrays) if arrays else np.empty((0, *(n or 0 for n in shape)), feature.dtype)
    if arrays:
        return Ragged.from_arrays(arrays, shaped=not feature.ragged)
    if not feature.ragged:
        none = np.empty((0, len(shape)), np.int64)
        return Ragged.from_values(np.empty(0, feature.dtype), np.zeros(1, np.int64), shapes=none)
    inner = tuple(n or 0 for n in shape[1:])
    return Ragged.from_values(np.empty((0, *inner), feature.dtype), np.zeros(1, np.int64), inner)
