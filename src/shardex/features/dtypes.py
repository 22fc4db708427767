"""Names and limits of the dtypes of numbers and arrays, and arrays in another dtype."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SCALARS = ("bool", *_INTEGERS, "float16", "float32", "float64")
NUMBER_KINDS = "biuf"
_ARRAY_KINDS = "biufcMm"
_EXACT = 1 << 53
"""float64 holds all integers up to this one."""


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Return True if `Array` supports this dtype: native numbers of at most 64 bits, complex, booleans, times.

    >>> is_storable(np.dtype("float32")), is_storable(np.dtype("U3")), is_storable(np.dtype(">i4"))
    (True, False, False)
    """
    max_size = 16 if dtype.kind == "c" else 8
    return dtype.kind in _ARRAY_KINDS and dtype.isnative and dtype.itemsize <= max_size


def dtype_text(dtype: Any) -> str:
    """Return the name of a dtype or scalar type, with the byte order if it is not that of the machine.

    >>> dtype_text(np.uint16), dtype_text(np.dtype("<f4")), dtype_text(float)
    ('uint16', 'float32', 'float64')
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        return repr(dtype)
    return found.name if found.isnative else found.str


def scalar_name(scalar: Any) -> str | None:
    """Return the dtype of a numpy scalar type, `None` for abstract types and those that `Array` does not support.

    >>> scalar_name(np.int8), scalar_name(np.floating), scalar_name(np.str_)
    ('int8', None, None)
    """
    if not isinstance(scalar, type) or not issubclass(scalar, np.number | np.bool_ | np.datetime64):
        return None
    try:
        dtype = np.dtype(scalar)
    except TypeError:  # np.floating and other abstract types
        return None
    return dtype.name if dtype.type is scalar else None  # numpy 2.0 makes float64 of np.floating


@cache
def dtype_bounds(dtype: str) -> tuple[Any, Any]:
    """Return the smallest and the largest finite value of a dtype.

    >>> dtype_bounds("int8"), dtype_bounds("float16"), dtype_bounds("bool")
    ((-128, 127), (-65504.0, 65504.0), (False, True))
    """
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return False, True
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    plain = int if kind.kind in "iu" else float
    return plain(limits.min), plain(limits.max)


def wider_dtype(a: str | None, b: str | None) -> str | None:
    """Return the dtype that holds the numbers of both; None if there is none, and for booleans and other dtypes.

    Integers above 2**53 may be lost in the float64 of int64 and a float dtype: check them (`holds_exactly`).

    >>> wider_dtype("int64", "float32"), wider_dtype("int64", "uint64"), wider_dtype("bool", "int8")
    ('float64', None, None)
    """
    if a not in SCALARS or b not in SCALARS or ("bool" in (a, b) and a != b):
        return None
    both = np.promote_types(a, b)
    exact = both.kind != "f" or "f" in (np.dtype(a).kind, np.dtype(b).kind)
    return both.name if exact else None


def holds_exactly(number: int) -> bool:
    """Return whether float64 holds an integer: all up to 2**53, and some above.

    >>> holds_exactly(2**53), holds_exactly(2**53 + 1), holds_exactly(2**60)
    (True, False, True)
    """
    return -_EXACT <= number <= _EXACT or (abs(number) < 1 << 1000 and int(float(number)) == number)


def cast_array(array: NDArray[Any], dtype: np.dtype[Any], *, widen: bool = False) -> NDArray[Any] | None:
    """Return an array in a dtype: integers that are in its range, numbers rounded to floats that hold them; else None.

    float64 must hold integers exactly. With `widen` only a wider dtype will do.

    >>> cast_array(np.array([1, 200]), np.dtype("uint8")), cast_array(np.array([1, 300]), np.dtype("uint8"))
    (array([  1, 200], dtype=uint8), None)
    >>> cast_array(np.array([0.1, 1e39]), np.dtype("float32")), cast_array(np.array([1.0]), np.dtype("int8"))
    (None, None)
    """
    if np.can_cast(array.dtype, dtype, "safe"):
        if array.dtype.kind in "iu" and array.dtype.itemsize == 8 and dtype.kind in "fc":
            large = array[(array > _EXACT) | (array < -_EXACT)] if array.dtype.kind == "i" else array[array > _EXACT]
            if not all(map(holds_exactly, large.tolist())):
                return None
        return array.astype(dtype, copy=False)
    if widen:
        return None
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        low, high = dtype_bounds(dtype.name)
        fits = not array.size or (array.min() >= low and array.max() <= high)
        return array.astype(dtype) if fits else None
    if (array.dtype.kind in "iuf" and dtype.kind in "fc") or array.dtype.kind == dtype.kind == "c":
        with np.errstate(over="ignore"):
            cast = array.astype(dtype)
        return cast if np.array_equal(np.isinf(array), np.isinf(cast)) else None
    return None
