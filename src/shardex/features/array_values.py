"""Values of `Array`: conversion to its dtype and shape, and columns of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import arrow_types
from shardex.errors import SchemaError
from shardex.features.codecs import decode_compact
from shardex.features.dtypes import cast_array, holds_exactly
from shardex.features.feature import describe
from shardex.kernel import Column, Ragged, is_tensor

if TYPE_CHECKING:
    from shardex.features.array import Array


def fit_array(value: Any, feature: Array, *, stored: bool = False) -> NDArray[Any]:
    """Return an array of the feature's dtype and shape; the value itself if it is one.

    Numbers are cast as `cast_array` does: floats are rounded, but never become integers.

    >>> from shardex.features import Array
    >>> fit_array(np.array([1, 0.1]), Array("float32", (2,)))
    array([1. , 0.1], dtype=float32)
    >>> fit_array(np.zeros(2), Array("int8", (2,)))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int8[2], got float64[2] (to accept the loss: .astype('int8'))
    """
    if stored:
        value = _from_stored(value, feature)
    if type(value) is np.ndarray and value.dtype == feature.dtype and arrow_types.has_shape(value.shape, feature.shape):
        return value
    array = _to_array(value, feature)
    typed = isinstance(value, np.ndarray | np.generic) or is_tensor(value)
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
    dtype = np.dtype(feature.dtype)
    if not typed and _may_be_rounded(array):
        refuse_inexact([value])
    if (
        cast := array.astype(dtype) if array.size == 0 and not typed else cast_array(array, dtype, widen=feature.exact)
    ) is not None:
        return cast
    hint = "" if stored else _why_not(array, dtype, typed)
    raise SchemaError(f"expected {feature}, got {describe(value)}{hint}")


def _why_not(array: NDArray[Any], dtype: np.dtype[Any], typed: bool) -> str:
    """Return why numbers, as an array (`typed`) or a list, do not cast to a dtype, for messages."""
    if (dtype.kind == "f" and array.dtype.kind == "f") or {array.dtype.kind, dtype.kind} <= {"i", "u"}:
        return f" with values from {array.min()} to {array.max()}, which are out of range"
    return f" (to accept the loss: .astype({dtype.name!r}))" if typed and array.dtype.kind in "biufc" else ""


def _to_array(value: Any, feature: Array) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaError(f"expected {feature}, got a masked array; fill it first: .filled(...)")
    try:
        return array_of_tensor(value) if is_tensor(value) else np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = "rows of different length" if "inhomogeneous" in str(error) else error
        raise SchemaError(f"expected {feature}, got {describe(value)} that cannot become an array: {reason}") from None


def array_of_tensor(tensor: Any) -> NDArray[Any]:
    """Return the values of a tensor of torch, of any device, as an array."""
    found: NDArray[Any] = tensor.detach().cpu().numpy()
    return found


def shape_of_empty_list(found: tuple[int, ...], feature: Array) -> tuple[int, ...]:
    """Return the shape of an array that was given as a list without elements, which ends at its first size of 0.

    >>> from shardex.features import Array
    >>> shape_of_empty_list((0,), Array("int8", (None, 3))), shape_of_empty_list((2, 0), Array("int8", (2, 0, 5)))
    ((0, 3), (2, 0, 5))
    """
    return (*found, *(size or 0 for size in (feature.shape or ())[len(found) :]))


def refuse_inexact(values: Iterable[Any]) -> None:
    """Raise an error for an integer that float64 does not hold; `values` are numbers, or lists of numbers.

    >>> refuse_inexact([[0.5, 2**53 + 1]])
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected numbers that float64 holds, got 9007199254740993, which it would round (...)
    """
    for value in values:
        if isinstance(value, list | tuple):
            refuse_inexact(value)
        elif isinstance(value, int | np.integer) and not holds_exactly(int(value)):
            raise SchemaError(
                f"expected numbers that float64 holds, got {value}, which it would round (convert it by float() to "
                "accept that, or store integers in a field of their own)"
            )


def _may_be_rounded(array: NDArray[Any]) -> bool:
    """Return whether numpy may have rounded integers that were given among floats."""
    return array.dtype == np.float64 and bool((np.abs(array) > 1 << 53).any())


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
    if array.shape != (len(values), *feature.shape) or _may_be_rounded(array):
        return None
    dtype = np.dtype(feature.dtype)
    return cast_array(array, dtype, widen=feature.exact) if array.size else array.astype(dtype)


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
