"""Plain values, as JSON and MessagePack hold them, made to fit a schema: one by one, or many into columns.

Formats whose samples are dicts of plain values read and write through here: `fit_sample` checks a sample before it
is written, `to_columns` and `to_sample` turn what was decoded into what the schema promises (lists into arrays,
names of classes into numbers). Without a schema values stay as they are, and `guess` says what they look like.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.codecs import compact
from shardex.columns import MISSING, Column, Columns, Ragged
from shardex.errors import SchemaError
from shardex.schema import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    infer,
)

__all__ = ["fit", "fit_sample", "guess", "to_columns", "to_sample"]

Sample = Mapping[str, Any]
Where = Callable[[int], str]
"""Says where the k-th sample of a read lies, for messages."""


def guess(samples: SequenceOf[Sample]) -> Features:
    """The features that fit these samples; a field with values of several kinds is `Json`.

    >>> print(guess([{"n": 1, "x": "a"}, {"n": 2, "x": 3}]))
    n int64, x json
    """
    fields: dict[str, Feature] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        try:
            fields[name] = infer([{name: sample.get(name)} for sample in samples])[name]
        except SchemaError:
            optional = any(sample.get(name) is None for sample in samples)
            fields[name] = Optional(Json()) if optional else Json()
    return Features(fields)


def fit_sample(sample: Sample, features: Features, row: int) -> dict[str, Any]:
    """The sample as the features hold it: every field there, optional ones filled with `None`.

    >>> fit_sample({"x": [1, 2]}, Features.of({"x": Array("int8", (2,)), "s": str | None}), 0)
    {'x': array([1, 2], dtype=int8), 's': None}
    """
    for name in sample:
        if name not in features:
            raise SchemaError(f"expected the fields {', '.join(features)}, got {name!r} too - at sample {row}")
    out = {}
    for name, feature in features.items():
        try:
            out[name] = fit(sample.get(name, MISSING), feature)
        except SchemaError as error:
            raise SchemaError(f"{error} - at sample {row}, field {name}") from None
    return out


def to_columns(values: Mapping[str, list[Any]], length: int, schema: Features | None, where: Where) -> Columns:
    """Decoded values of each field as columns, by the schema if there is one."""
    if schema is None:
        return Columns(values, length).stack()
    return Columns({n: _column(column, schema[n], _field_at(where, n)) for n, column in values.items()}, length)


def to_sample(
    sample: dict[str, Any], names: SequenceOf[str] | None, schema: Features | None, where: Where
) -> dict[str, Any]:
    """Fields of one decoded sample: all or those named, by the schema if there is one."""
    if schema is None:
        return sample if names is None else {name: sample.get(name) for name in names}
    wanted = list(schema) if names is None else names
    return {n: _fit_at(sample.get(n, MISSING), schema[n], 0, _field_at(where, n)) for n in wanted}


def _field_at(where: Where, name: str) -> Where:
    return lambda k: f"{where(k)}, field {name}"


# -- one value ------------------------------------------------------------------------------------------------


def fit(value: Any, feature: Feature, *, stored: bool = False) -> Any:
    """The value as the feature holds it, or `SchemaError`; `stored` also takes the forms that files give it.

    >>> fit("dog", ClassLabel(("cat", "dog"))), fit([[1, 2]], Array("float32", (None, 2)))
    (1, array([[1., 2.]], dtype=float32))
    """
    match feature:
        case Optional():
            return None if value is None or value is MISSING else fit(value, feature.feature, stored=stored)
        case _ if value is MISSING:
            raise SchemaError(f"expected {feature}, got nothing (a field that may lack is declared optional)")
        case Value():
            return _number(value, feature, stored)
        case ClassLabel():
            return _class(value, feature)
        case Text() if isinstance(value, str):
            return value
        case Bytes() if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        case Array():
            return _array(value, feature, stored)
        case Sequence() if isinstance(value, list | tuple | np.ndarray):
            return [fit(one, feature.feature, stored=stored) for one in value]
        case Struct() if isinstance(value, Mapping):
            return {name: fit(value.get(name, MISSING), one, stored=stored) for name, one in feature.fields.items()}
        case Text() | Bytes() | Sequence() | Struct():
            raise SchemaError(f"expected {feature}, got {_describe(value)}")
    return value


def _number(value: Any, feature: Value, stored: bool) -> Any:
    dtype = np.dtype(feature.dtype)
    plain = value.item() if isinstance(value, np.generic | np.ndarray) and np.ndim(value) == 0 else value
    if dtype.kind == "b" and isinstance(plain, bool):
        return plain
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        if dtype.kind == "f":
            return plain
        if dtype.kind in "iu" and isinstance(plain, int) and np.iinfo(dtype).min <= plain <= np.iinfo(dtype).max:
            return plain
    if plain is None and stored and dtype.kind == "f":
        return np.nan  # JSON has no NaN: it was written as null
    raise SchemaError(f"expected {feature}, got {_describe(value)}")


def _class(value: Any, feature: ClassLabel) -> int:
    if isinstance(value, str):
        return feature.number(value)
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise SchemaError(f"expected {feature}, got {_describe(value)}")
    feature.name(int(value))
    return int(value)


def _array(value: Any, feature: Array, stored: bool) -> NDArray[Any]:
    if stored and isinstance(value, bytes):
        value = compact.decode(value)
    dtype = None if feature.dtype is None else np.dtype(feature.dtype)
    if type(value) is np.ndarray and value.dtype == dtype and _has_shape(value, feature.shape):
        return value
    try:
        array = np.asarray(value)
        if stored and array.dtype.hasobject and dtype is not None and dtype.kind == "f":
            array = np.array(value, dtype)  # null for NaN again
    except (ValueError, TypeError):
        raise SchemaError(f"expected {feature}, got {_describe(value)} that no array can be made of") from None
    if stored and array.size == 0 and array.ndim < len(feature.shape or ()) and not feature.fixed:
        array = array.reshape([n or 0 for n in feature.shape or ()])  # [] stands for no rows of any width
    # Text in an array is meant where the array was one already, an accident where it is made of a list.
    typed = isinstance(value, np.ndarray)
    if array.dtype.kind in ("O" if typed else "OUS") or (dtype is not None and not _castable(array, dtype, typed)):
        raise SchemaError(f"expected {feature}, got {_describe(value)}")
    if not _has_shape(array, feature.shape):
        raise SchemaError(f"expected {feature}, got {_describe(array)}")
    return array if dtype is None else array.astype(dtype, copy=False)


def _has_shape(array: NDArray[Any], shape: tuple[int | None, ...] | None) -> bool:
    if shape is None:
        return True
    return array.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))


def _castable(array: NDArray[Any], dtype: np.dtype[Any], typed: bool) -> bool:
    """Whether nothing is lost; plain numbers carry no dtype, so they fit where they are in range."""
    if np.can_cast(array.dtype, dtype, "safe") or (array.size == 0 and not typed):
        return True
    if typed or array.dtype.kind not in "iuf":
        return False
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        return bool(array.min() >= np.iinfo(dtype).min and array.max() <= np.iinfo(dtype).max)
    return dtype.kind in "fc"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    return "none" if value is None else f"{type(value).__name__} {value!r}"[:80]


# -- many values ----------------------------------------------------------------------------------------------


def _fit_at(value: Any, feature: Feature, k: int, where: Where) -> Any:
    try:
        return fit(value, feature, stored=True)
    except SchemaError as error:
        raise SchemaError(f"{error} - at {where(k)}") from None


def _column(values: list[Any], feature: Feature, where: Where) -> Column:
    if isinstance(feature, Optional):
        if any(value is None or value is MISSING for value in values):
            return [_fit_at(value, feature, k, where) for k, value in enumerate(values)]
        feature = feature.feature
    if (column := _column_at_once(values, feature)) is not None:
        return column
    fitted = [_fit_at(value, feature, k, where) for k, value in enumerate(values)]
    if isinstance(feature, Value):
        with np.errstate(over="ignore"):
            return np.array(fitted, feature.dtype)
    if isinstance(feature, ClassLabel):
        return np.array(fitted, np.int64)
    if isinstance(feature, Array) and feature.dtype and feature.shape is not None:
        return _arrays(fitted, feature)
    return fitted


def _column_at_once(values: list[Any], feature: Feature) -> Column | None:
    """The column by one numpy call, where all values are as they should be."""
    kinds = set(map(type, values))
    if isinstance(feature, Value) and kinds <= {{"b": bool, "f": float}.get(np.dtype(feature.dtype).kind, int)}:
        try:
            with np.errstate(over="ignore"):
                return np.array(values, feature.dtype)
        except OverflowError:
            return None
    if isinstance(feature, Array) and feature.dtype and feature.fixed and kinds <= {list}:
        try:
            array = np.asarray(values)
        except ValueError:
            return None
        if array.shape == (len(values), *(feature.shape or ())) and _castable(array, np.dtype(feature.dtype), False):
            return array.astype(feature.dtype, copy=False)
    return None


def _arrays(arrays: list[NDArray[Any]], feature: Array) -> Column:
    shape = feature.shape or ()
    if feature.fixed:
        return np.stack(arrays) if arrays else np.empty((0, *(n or 0 for n in shape)), feature.dtype)
    if arrays:
        return Ragged.from_arrays(arrays)
    inner = tuple(n or 0 for n in shape[1:])
    return Ragged.from_values(np.empty((0, *inner), feature.dtype), np.zeros(1, np.int64), inner)
