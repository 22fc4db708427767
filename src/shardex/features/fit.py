"""Converts values to their feature or raises an error: the only module that decides which values a field accepts.

`fit` takes one value, `fit_sample` a sample to write, `to_sample` values decoded from a file of plain values (JSON,
MessagePack); `fit_columns` does the same for whole columns. Encoders that check the common case themselves call
`fit_number`, `fit_class`, `fit_array`, `list_items` and `struct_items` for all other values.

Numbers fit if they are in the range of their dtype; floats are rounded to its width. Arrays fit if they cast to the
dtype without loss; lists of Python numbers, which have no dtype, follow the rules of single numbers. With `stored`,
values may also have the form in which JSON and MessagePack hold them: arrays as compact bytes, NaN as null.

A value that does not fit raises `SchemaError`; functions that know its sample and field add them to the message.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError
from shardex.features.array_codecs import decode_compact
from shardex.features.decimals import scaled, unscaled
from shardex.features.features import Features, Map, Optional, Sequence, Struct
from shardex.features.leaf_features import (
    Array,
    Bytes,
    ClassLabel,
    Decimal,
    Feature,
    Json,
    Null,
    Text,
    Value,
)
from shardex.features.media_features import Media, fit_media
from shardex.features.time_features import TimeFeature, from_text, is_missing_time
from shardex.kernel import MISSING

Sample = Mapping[str, Any]
Where = Callable[[int], str]
"""Returns the place of the k-th sample of a read, for messages."""

_NUMBER_KINDS = "biuf"
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 2, 60, 60


def fit(value: Any, feature: Feature, *, stored: bool = False) -> Any:
    """Return the value converted to the feature; `MISSING` is `None` for optional features, an error for others.

    >>> fit("dog", ClassLabel(("cat", "dog"))), fit([[1, 2]], Array("float32", (None, 2)))
    (1, array([[1., 2.]], dtype=float32))
    """
    match feature:
        case Optional():
            return None if is_missing(value, feature) else fit(value, feature.feature, stored=stored)
        case Null():
            return fit_null(value)
        case _ if value is MISSING:
            raise _missing(feature)
        case Value() if stored:
            number = np.nan if value is None and np.dtype(feature.dtype).kind == "f" else fit_number(value, feature)
            return np.dtype(feature.dtype).type(number).item()  # rounded to the dtype, as in a column
        case Value():
            return fit_number(value, feature)
        case ClassLabel():
            return fit_class(value, feature)
        case Text() if isinstance(value, str):
            return value
        case Media():
            return fit_media(value, feature, stored=stored)
        case Bytes() if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        case Array():
            return fit_array(value, feature, stored=stored)
        case Sequence():
            return [fit(one, feature.feature, stored=stored) for one in list_items(value, feature)]
        case Struct():
            return {name: _fit_part(one, name, feature, stored) for name, one in struct_items(value, feature, stored)}
        case TimeFeature():
            return fit_time(value, feature, stored=stored)
        case Decimal():
            return scaled(unscaled(value, feature, stored=stored), feature)
        case Map():
            return _fit_map(value, feature, stored)
        case Text() | Bytes():
            raise SchemaError(f"expected {feature}, got {describe(value)}")
    return value


def _fit_part(value: Any, name: str, feature: Struct, stored: bool) -> Any:
    try:
        return fit(value, feature.fields[name], stored=stored)
    except SchemaError as error:
        raise SchemaError(f"{error} (in {name})") from None


def is_missing(value: Any, feature: Optional) -> bool:
    """Return whether a value stands for none: None, and NaT for dates and times."""
    if value is None or value is MISSING:
        return True
    return isinstance(feature.feature, TimeFeature) and is_missing_time(value)


def _missing(feature: Feature) -> SchemaError:
    return SchemaError(f"expected {feature}, got nothing (declare a field that may be missing as optional)")


def located(error: SchemaError, place: str) -> SchemaError:
    """Return the error with the place of the value: `raise located(error, "sample 3, field x") from None`."""
    return SchemaError(f"{error} - at {place}")


# -- single values --------------------------------------------------------------------------------------------


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


def _python_number(value: Any) -> Any:
    """Return a numpy number as a Python number, any other value unchanged."""
    single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if single and value.dtype.kind in _NUMBER_KINDS else value


def fit_number(value: Any, feature: Value) -> Any:
    """Return a Python number or bool.

    >>> fit_number(np.float32(0.5), Value("float16")), fit_number(np.array(7), Value("int8"))
    (0.5, 7)
    """
    number, kind = _python_number(value), np.dtype(feature.dtype).kind
    allowed = {"b": bool, "f": int | float}.get(kind, int)
    if not isinstance(number, allowed) or isinstance(number, bool) != (kind == "b"):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    low, high = dtype_bounds(feature.dtype)
    if low <= number <= high or (isinstance(number, float) and not math.isfinite(number)):
        return number
    raise SchemaError(f"expected {feature}, got {describe(value)}, which is out of range")


def fit_class(value: Any, feature: ClassLabel) -> int:
    """Return the number of a class, given by name or by number.

    >>> fit_class("dog", ClassLabel(("cat", "dog"))), fit_class(np.int8(0), ClassLabel(("cat", "dog")))
    (1, 0)
    """
    if isinstance(value, str):
        return feature.number(value)
    number = _python_number(value)
    if not isinstance(number, int) or isinstance(number, bool):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    feature.name(number)  # refuses numbers out of range
    return number


def fit_time(value: Any, feature: TimeFeature, *, stored: bool = False) -> Any:
    """Return a date or time as samples hold it.

    >>> from shardex.features.time_features import Date
    >>> fit_time(np.datetime64("2024-01-31"), Date())
    datetime.date(2024, 1, 31)
    """
    number = feature.number(from_text(value, feature) if stored else value)
    try:
        return feature.to_python(feature.column(np.array([number])))[0]
    except FormatError as error:
        raise SchemaError(str(error)) from None


def fit_null(value: Any) -> None:
    """Return None; any other value is an error."""
    if value is not None and value is not MISSING:
        raise SchemaError(f"expected none, got {describe(value)}")


# -- arrays ---------------------------------------------------------------------------------------------------


def fit_array(value: Any, feature: Array, *, stored: bool = False) -> NDArray[Any]:
    """Return an array of the feature's dtype and shape; the value itself if it is one.

    >>> fit_array([1, 2], Array("float32", (2,)))
    array([1., 2.], dtype=float32)
    >>> fit_array(np.zeros(2), Array("float32", (2,)))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected float32[2], got float64[2] (to accept the loss: .astype('float32'))
    """
    if stored:
        value = _from_stored(value, feature)
    if type(value) is np.ndarray and value.dtype == feature.dtype and has_shape(value.shape, feature.shape):
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
    if not has_shape(array.shape, feature.shape):
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

    >>> shape_of_empty_list((0,), Array("int8", (None, 3))), shape_of_empty_list((2, 0), Array("int8", (2, 0, 5)))
    ((0, 3), (2, 0, 5))
    """
    return (*found, *(size or 0 for size in (feature.shape or ())[len(found) :]))


def _unsigned(value: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return a list of integers as uint64, which numpy makes floats if only some of them need it; else the array."""
    exact = np.array(value, object)
    fits = all(type(one) is int and 0 <= one < 1 << 64 for one in exact.flat)
    return exact.astype(np.uint64) if fits else array


def has_shape(found: tuple[int | None, ...], expected: tuple[int | None, ...] | None) -> bool:
    """Return whether a shape is the expected one, in which None stands for any size."""
    if expected is None:
        return True
    if len(found) != len(expected):
        return False
    for size, wanted in zip(found, expected, strict=True):  # noqa: SIM110 (`all` takes twice as long)
        if wanted is not None and size != wanted:
            return False
    return True


def can_cast(array: NDArray[Any], dtype: np.dtype[Any], *, typed: bool) -> bool:
    """Return True if the elements cast to a dtype: without loss, or by rounding if they were Python numbers."""
    if np.can_cast(array.dtype, dtype, "safe") or (array.size == 0 and not typed):
        return True
    if typed:
        return False
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        low, high = dtype_bounds(dtype.name)
        return bool(array.min() >= low and array.max() <= high)
    if (array.dtype.kind in "iuf" and dtype.kind in "fc") or array.dtype.kind == dtype.kind == "c":
        with np.errstate(over="ignore"):
            return bool(np.array_equal(np.isinf(array), np.isinf(array.astype(dtype))))
    return False


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


# -- nested values --------------------------------------------------------------------------------------------


def list_items(value: Any, feature: Sequence) -> Any:
    """Return the values of a list as an iterable; numbers of an array as Python numbers.

    >>> list_items(np.array([1, 2]), Sequence(Value("int8")))
    [1, 2]
    """
    if isinstance(value, np.ndarray) and value.ndim:
        return value.tolist() if value.ndim == 1 and value.dtype.kind in _NUMBER_KINDS else value
    if not isinstance(value, SequenceOf) or isinstance(value, str | bytes | bytearray | memoryview):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    return value


def map_items(value: Any, feature: Map) -> list[tuple[Any, Any]]:
    """Return keys and values of a map, given as a mapping or as pairs.

    >>> map_items({"a": 1}, Map(str, int)), map_items([("a", 1)], Map(str, int))
    ([('a', 1)], [('a', 1)])
    """
    if isinstance(value, Mapping):
        return list(value.items())
    if not isinstance(value, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    pairs = [(key, one) for key, one in value]
    if feature.is_dict:
        check_keys([key for key, _ in pairs], feature)
    return pairs


def check_keys(keys: SequenceOf[Any], feature: Map) -> None:
    """Raise if a key of a map that is a dict occurs twice."""
    try:
        repeated = len(set(keys)) < len(keys)
    except TypeError:
        raise SchemaError(f"expected keys of {feature}, got {describe(keys)}") from None
    if repeated:
        again = next(key for number, key in enumerate(keys) if key in keys[:number])
        raise SchemaError(
            f"expected each key once, got {describe(again)} twice (declare it as Map(..., pairs=True), a list of pairs)"
        )


def _fit_map(value: Any, feature: Map, stored: bool) -> Any:
    pairs = [
        (fit(key, feature.key, stored=stored), fit(one, feature.value, stored=stored))
        for key, one in map_items(value, feature)
    ]
    return dict(pairs) if feature.is_dict else pairs


def struct_items(value: Any, feature: Struct, stored: bool = False) -> list[tuple[str, Any]]:
    """Return name and value of each part of a struct, `None` for optional parts that are missing.

    Unknown parts raise an error; with `stored` they are ignored.

    >>> struct_items({"x": 1}, Struct({"x": "int8", "y": str | None}))
    [('x', 1), ('y', None)]
    """
    if not isinstance(value, Mapping):
        raise SchemaError(f"expected {feature}, got {describe(value)}")
    if not stored:
        refuse_unknown_fields(value, feature.fields, feature)
    for name, inner in feature.fields.items():
        if name not in value and not isinstance(inner, Optional):
            raise SchemaError(f"{_missing(inner)} (in {name})")
    return [(name, value.get(name)) for name in feature.fields]


def refuse_unknown_fields(values: Sample, features: Mapping[str, Feature], expected: Any = None) -> None:
    """Raise `SchemaError` if a sample has a field that the features lack."""
    for name in values:
        if name not in features:
            raise SchemaError(f"expected {expected or 'the fields ' + ', '.join(features)}, got {name!r} too")


def describe(value: Any) -> str:
    """Return a short form of a value for messages.

    >>> describe(np.zeros((2, 3))), describe(np.int8(3)), describe("a"), describe(None)
    ('float64[2, 3]', 'int8 3', "str 'a'", 'none')
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value}"
    return "none" if value is None else f"{type(value).__name__} {_repr.repr(value)}"[:120]


# -- samples --------------------------------------------------------------------------------------------------


def fit_sample(sample: Sample, features: Features, row: int) -> dict[str, Any]:
    """Return a sample to write, with each field converted to its feature; `row` is its number for messages.

    >>> fit_sample({"x": [1, 2]}, Features.of({"x": Array("int8", (2,)), "s": str | None}), 0)
    {'x': array([1, 2], dtype=int8), 's': None}
    """
    try:
        refuse_unknown_fields(sample, features)
    except SchemaError as error:
        raise located(error, f"sample {row}") from None
    return {n: fit_at(sample.get(n, MISSING), f, row, "sample {}".format, n, stored=False) for n, f in features.items()}


def to_sample(
    sample: dict[str, Any], names: SequenceOf[str] | None, schema: Features | None, where: Where
) -> dict[str, Any]:
    """Return all or the named fields of one decoded sample, converted to the schema if there is one."""
    if schema is None:
        return sample if names is None else {name: sample.get(name) for name in names}
    wanted = list(schema) if names is None else names
    return {n: fit_at(sample.get(n, MISSING), schema[n], 0, where, n, stored=True) for n in wanted}


def fit_at(value: Any, feature: Feature, k: int, where: Where, name: str, *, stored: bool) -> Any:
    """Return `fit` of a value; an error names the place of the k-th sample and the field."""
    try:
        return fit(value, feature, stored=stored)
    except SchemaError as error:
        raise located(error, f"{where(k)}, field {name}") from None


def fits_unchanged(feature: Feature) -> Callable[[Any], bool]:
    """Return a fast function that is True if `fit` would return the value unchanged, False if `fit` must be called.

    >>> [fits_unchanged(Value("int64"))(value) for value in (1, np.int8(1), None)]
    [True, False, False]
    """
    match feature:
        case Optional():
            inner = fits_unchanged(feature.feature)
            return lambda value: value is None or inner(value)
        case Text():
            return lambda value: type(value) is str
        case Media():  # bytes are checked
            return lambda value: False
        case Bytes():
            return lambda value: type(value) is bytes
        case Json():
            return lambda value: value is not MISSING
        case Null():
            return lambda value: value is None
        case Value(dtype="float64"):
            return lambda value: type(value) is float
        case Value(dtype="bool"):
            return lambda value: type(value) is bool
        case Value() if np.dtype(feature.dtype).kind in "iu":
            low, high = dtype_bounds(feature.dtype)
            return lambda value: type(value) is int and low <= value <= high
        case ClassLabel():
            count = len(feature.names)
            return lambda value: type(value) is int and 0 <= value < count
        case Array():
            if feature.dtype is None:  # arrays of objects are refused
                return lambda value: type(value) is np.ndarray and value.dtype.kind != "O"
            dtype, shape = np.dtype(feature.dtype), feature.shape
            return lambda value: type(value) is np.ndarray and value.dtype == dtype and has_shape(value.shape, shape)
    return lambda value: False
