"""One value made to fit a feature, or refused: the one place that says which values go where.

Numbers fit where they are in range, floats are rounded to the width of their field. Arrays fit where no element can
lose anything; lists of Python numbers, which carry no dtype, fit like single numbers. `fit` walks nested features,
the others are its leaves; builders call those themselves where their own quick look is not enough. What is refused
raises `SchemaError`: expected, got. Who calls adds where.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.kernel import MISSING
from shardex.schema.array_codecs import decode_compact
from shardex.schema.features import Array, Bytes, ClassLabel, Feature, Optional, Sequence, Struct, Text, Value

__all__ = [
    "absent",
    "bounds",
    "castable",
    "describe",
    "fit",
    "fit_array",
    "fit_class",
    "fit_number",
    "items_of",
    "parts_of",
]

_PLAIN_KINDS = "biuf"
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 2, 60, 60


def fit(value: Any, feature: Feature, *, stored: bool = False) -> Any:
    """The value as the feature holds it; `stored` also takes the forms that files of plain values give it.

    >>> fit("dog", ClassLabel(("cat", "dog"))), fit([[1, 2]], Array("float32", (None, 2)))
    (1, array([[1., 2.]], dtype=float32))
    """
    match feature:
        case Optional():
            return None if value is None or value is MISSING else fit(value, feature.feature, stored=stored)
        case _ if value is MISSING:
            raise absent(feature)
        case Value():
            number = np.nan if stored and _is_nan(value, feature) else fit_number(value, feature)
            return np.dtype(feature.dtype).type(number).item() if stored else number  # as a column would hold it
        case ClassLabel():
            return fit_class(value, feature)
        case Text() if isinstance(value, str):
            return value
        case Bytes() if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        case Array():
            return fit_array(value, feature, stored=stored)
        case Sequence():
            return [fit(one, feature.feature, stored=stored) for one in items_of(value, feature)]
        case Struct():
            return {name: _fit_part(one, name, feature, stored) for name, one in parts_of(value, feature, stored)}
        case Text() | Bytes():
            raise SchemaError(f"expected {feature}, got {describe(value)}")
    return value


def _fit_part(value: Any, name: str, feature: Struct, stored: bool) -> Any:
    try:
        return fit(value, feature.fields[name], stored=stored)
    except SchemaError as error:
        raise SchemaError(f"{error} (in {name})") from None


# -- single values --------------------------------------------------------------------------------------------


@cache
def bounds(dtype: str) -> tuple[Any, Any]:
    """The least and the largest value of a dtype, infinity left out.

    >>> bounds("int8"), bounds("float16"), bounds("bool")
    ((-128, 127), (-65504.0, 65504.0), (False, True))
    """
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return False, True
    limits = np.iinfo(kind) if kind.kind in "iu" else np.finfo(kind)
    plain = int if kind.kind in "iu" else float
    return plain(limits.min), plain(limits.max)


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python."""
    single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if single and value.dtype.kind in _PLAIN_KINDS else value


def fit_number(value: Any, feature: Value) -> Any:
    """A Python number or truth value.

    >>> fit_number(np.float32(0.5), Value("float16")), fit_number(np.array(7), Value("int8"))
    (0.5, 7)
    """
    plain, kind = _plain(value), np.dtype(feature.dtype).kind
    allowed = {"b": bool, "f": int | float}.get(kind, int)
    if not isinstance(plain, allowed) or isinstance(plain, bool) != (kind == "b"):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    low, high = bounds(feature.dtype)
    if low <= plain <= high or (isinstance(plain, float) and not math.isfinite(plain)):
        return plain
    raise SchemaError(f"expected {feature}, got {describe(value)}, which is out of its range")


def fit_class(value: Any, feature: ClassLabel) -> int:
    """The number of a class, given by name or by number.

    >>> fit_class("dog", ClassLabel(("cat", "dog"))), fit_class(np.int8(0), ClassLabel(("cat", "dog")))
    (1, 0)
    """
    if isinstance(value, str):
        return feature.number(value)
    plain = _plain(value)
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    feature.name(plain)
    return plain


# -- arrays ---------------------------------------------------------------------------------------------------


def fit_array(value: Any, feature: Array, *, stored: bool = False) -> NDArray[Any]:
    """An array of the feature's dtype and shape; the value itself where it is one.

    >>> fit_array([1, 2], Array("float32", (2,)))
    array([1., 2.], dtype=float32)
    >>> fit_array(np.zeros(2), Array("float32", (2,)))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected float32[2], got float64[2] (where the loss is meant: .astype('float32'))
    """
    if stored:
        value = _array_of_stored(value, feature)
    if type(value) is np.ndarray and value.dtype == feature.dtype and _has_shape(value, feature.shape):
        return value
    array = _array(value, feature)
    typed = isinstance(value, np.ndarray | np.generic)
    if not typed and array.size == 0 and array.ndim < len(feature.shape or ()) and not feature.fixed:
        array = array.reshape([n or 0 for n in feature.shape or ()])  # [] stands for no rows of any width
    # Text in an array is meant where the array was one already, an accident where it is made of a list.
    if array.dtype.kind in ("O" if typed else "OUS"):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    if not _has_shape(array, feature.shape):
        raise SchemaError(f"expected {feature}, got {describe(array)}")
    if feature.dtype is None:
        return array
    if castable(array, np.dtype(feature.dtype), typed=typed):
        return array.astype(feature.dtype, copy=False)
    lossy = typed and not stored and array.dtype.kind in "biufc"
    hint = f" (where the loss is meant: .astype({feature.dtype!r}))" if lossy else ""
    raise SchemaError(f"expected {feature}, got {describe(value)}{hint}")


def _array(value: Any, feature: Array) -> NDArray[Any]:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise SchemaError(f"expected {feature}, got a masked array; fill it first: .filled(...)")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        reason = "rows of different length" if "inhomogeneous" in str(error) else error
        raise SchemaError(f"expected {feature}, got {describe(value)} that no array can be made of: {reason}") from None


def _has_shape(array: NDArray[Any], shape: tuple[int | None, ...] | None) -> bool:
    if shape is None:
        return True
    return array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))


def castable(array: NDArray[Any], dtype: np.dtype[Any], *, typed: bool) -> bool:
    """Whether elements can become this dtype: without loss or, if they were Python's numbers before, by rounding.

    >>> [castable(np.array([1, 2]), np.dtype("int8"), typed=typed) for typed in (False, True)]
    [True, False]
    """
    if np.can_cast(array.dtype, dtype, "safe") or (array.size == 0 and not typed):
        return True
    if typed:
        return False
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        low, high = bounds(dtype.name)
        return bool(array.min() >= low and array.max() <= high)
    if (array.dtype.kind in "iuf" and dtype.kind in "fc") or array.dtype.kind == dtype.kind == "c":
        with np.errstate(over="ignore"):
            return bool(np.array_equal(np.isinf(array), np.isinf(array.astype(dtype))))
    return False


# -- nested values --------------------------------------------------------------------------------------------


def items_of(value: Any, feature: Sequence) -> Any:
    """The values of a list, to be gone through once; numbers of an array as Python's.

    >>> items_of(np.array([1, 2]), Sequence(Value("int8")))
    [1, 2]
    """
    if isinstance(value, np.ndarray) and value.ndim:
        return value.tolist() if value.ndim == 1 and value.dtype.kind in _PLAIN_KINDS else value
    if not isinstance(value, SequenceOf) or isinstance(value, str | bytes | bytearray | memoryview):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    return value


def parts_of(value: Any, feature: Struct, stored: bool = False) -> list[tuple[str, Any]]:
    """Name and value of each part of a struct, `None` for optional ones that it lacks; unknown parts are refused.

    >>> parts_of({"x": 1}, Struct({"x": "int8", "y": str | None}))
    [('x', 1), ('y', None)]
    """
    if not isinstance(value, Mapping):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    if not stored and (unknown := [name for name in value if name not in feature.fields]):
        raise SchemaError(f"expected {feature}, got {unknown[0]!r} too")
    for name, inner in feature.fields.items():
        if name not in value and not isinstance(inner, Optional):
            raise SchemaError(f"{absent(inner)} (in {name})")
    return [(name, value.get(name)) for name in feature.fields]


def absent(feature: Feature) -> SchemaError:
    """What to raise where a value is not there at all."""
    return SchemaError(f"expected {feature}, got nothing (a field that may lack is declared optional)")


# -- the forms that files give values -------------------------------------------------------------------------


def _is_nan(value: Any, feature: Value) -> bool:
    """JSON has no NaN: it was written as null."""
    return value is None and np.dtype(feature.dtype).kind == "f"


def _array_of_stored(value: Any, feature: Array) -> Any:
    """Compact bytes as the array they hold; lists with null in the place of NaN as floats."""
    if isinstance(value, bytes):
        return decode_compact(value)
    if isinstance(value, list) and feature.dtype is not None and np.dtype(feature.dtype).kind == "f":
        array = _array(value, feature)
        return _array_with_nan(array, value, feature) if array.dtype.hasobject else value
    return value


def _array_with_nan(array: NDArray[Any], value: Any, feature: Array) -> NDArray[Any]:
    try:
        return array.astype(feature.dtype)
    except (ValueError, TypeError):
        raise SchemaError(f"expected {feature}, got {describe(value)}") from None


def describe(value: Any) -> str:
    """A value as messages name it.

    >>> describe(np.zeros((2, 3))), describe(np.int8(3)), describe("a"), describe(None)
    ('float64[2, 3]', 'int8 3', "str 'a'", 'none')
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value}"
    return "none" if value is None else f"{type(value).__name__} {_repr.repr(value)}"[:120]
