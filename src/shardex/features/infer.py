"""Features that fit given samples: `infer` is strict, `infer_or_json` falls back to `Json`."""

from __future__ import annotations

import datetime
import decimal
import functools
import itertools
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from shardex.errors import SchemaError
from shardex.features.decimals import digits_of
from shardex.features.features import Features, Optional, Sequence, feature_of
from shardex.features.leaf_features import (
    MAX_DIGITS,
    SCALARS,
    Array,
    Bytes,
    Decimal,
    Feature,
    Json,
    Value,
    is_storable,
)
from shardex.features.media_features import Image, is_pil_image
from shardex.features.time_features import (
    UNITS,
    Date,
    Duration,
    Time,
    TimeFeature,
    Timestamp,
    is_missing_time,
    zone_name,
)

_PLAIN = {bool, int, float, str, bytes}
_IMAGE_MODES = {"L": "L", "1": "L", "RGBA": "RGBA", "LA": "RGBA", "PA": "RGBA", "I;16": None, "I": None, "F": None}
"""Modes of images of PIL, and those to which they are decoded without loss; for all others it is RGB."""
_DIGITS = 38
"""Digits of a decimal number, unless the values have more: those of decimal128."""


def infer(samples: SequenceOf[Mapping[str, Any]]) -> Features:
    """Return features that fit all samples: sizes that differ become `None`, fields that some samples lack optional.

    >>> print(infer([{"x": np.zeros(2, "f4"), "n": 1}, {"x": np.zeros(3, "f4"), "n": None}]))
    x float32[?], n int64 or none
    """
    return Features({name: _of_field(values, name) for name, values in _by_field(samples).items()})


def infer_or_json(samples: SequenceOf[Mapping[str, Any]]) -> Features:
    """Return features that fit all samples; a field with values of several kinds is `Json`.

    >>> print(infer_or_json([{"n": 1, "x": "a"}, {"n": 2, "x": 3}]))
    n int64, x json
    """
    fields: dict[str, Feature] = {}
    for name, values in _by_field(samples).items():
        try:
            fields[name] = _of_field(values, name)
        except SchemaError:
            fields[name] = Optional(Json()) if any(value is None for value in values) else Json()
    return Features(fields)


def _by_field(samples: SequenceOf[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for sample in samples for name in sample)
    return {name: [sample.get(name) for sample in samples] for name in names}


def _of_field(values: list[Any], name: str) -> Feature:
    kinds = set(map(type, values))
    present = kinds - {type(None)}
    if len(present) == 1 and present <= _PLAIN:  # without a look at each value: lists of samples may be long
        one = feature_of(*present)
        if present == {int}:
            one = Value(_integer_dtype([[value for value in values if value is not None]]) or "int64")
        return Optional(one) if len(kinds) > 1 else one
    if present == {np.ndarray}:
        one_of_each = {(one.dtype, one.shape): one for one in values if one is not None}
        values = [*one_of_each.values(), *[None] * (len(kinds) > 1)]
    given = [value for value in values if value is not None and not is_missing_time(value)]
    if given and all(isinstance(value, decimal.Decimal) for value in given):
        feature: Feature = _of_decimals(given, name)
    elif given and all(isinstance(value, list | tuple) for value in given):
        feature = _of_lists(given, name)
    else:
        known = [_of_value(value, name) for value in given] or [_of_nat(value) for value in values if value is not None]
        feature = functools.reduce(lambda a, b: _join(a, b, name), known) if known else Json()
    return Optional(feature) if len(given) < len(values) else feature


def _of_value(value: Any, name: str) -> Feature:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise SchemaError(f"expected an array of numbers, text or bytes, got dtype object - at field {name}")
        return Array(value.dtype.name, value.shape) if is_storable(value.dtype) else Array()
    if isinstance(value, np.generic) and value.dtype.name in SCALARS:
        return Value(value.dtype.name)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return feature_of(kind)
    if isinstance(value, bytes | bytearray | memoryview):
        return Bytes()
    if isinstance(value, dict | list | tuple):
        return Json()
    if is_pil_image(value):
        return Image(_IMAGE_MODES.get(value.mode, "RGB"))
    if (feature := _of_time(value)) is not None:
        return feature
    if isinstance(value, decimal.Decimal):
        return _of_decimals([value], name)
    found = type(value).__name__
    raise SchemaError(
        f"expected a number, text, bytes, array, list or dict, got {found}{_advice(value)} - at field {name}"
    )


def _advice(value: Any) -> str:
    """Return what to do with a value that has no feature."""
    if hasattr(value, "__array__"):
        return " (convert it with numpy.asarray)"
    if type(value).__name__ == "NAType":  # of pandas
        return " (give None where there is no value)"
    return " (make a list of it)" if isinstance(value, Iterable) else ""


def _of_lists(lists: list[Any], name: str) -> Feature:
    """Return the feature of lists: a ragged array for numbers, `Sequence` for other values of one kind, else `Json`.

    Lists of lists of numbers are one array if all inner lists have the same length.
    """
    kinds: set[type] = set().union(*(map(type, one) for one in lists))
    if kinds <= {int, float}:  # the most common ones, and lists may be long
        dtype = "float64" if float in kinds else _integer_dtype(lists)
        return Array(dtype, (None,)) if kinds and dtype is not None else Json()
    items = list(itertools.chain.from_iterable(lists))
    try:
        item = _of_field(items, name)
    except SchemaError:
        return Json()
    if isinstance(item, Value):
        return Array(item.dtype, (None,))
    if isinstance(item, Json) or (isinstance(item, Optional) and isinstance(item.feature, Json)):
        return Json()
    if isinstance(item, Array) and item.shape and kinds <= {list, tuple} and len({*map(len, items)}) == 1:
        return Array(item.dtype, (None, len(items[0]), *item.shape[1:]))
    return Sequence(item)


def _integer_dtype(lists: list[Any]) -> str | None:
    """Return the dtype of lists of integers: int64, or uint64 if they need it; `None` if neither holds them."""
    full = [one for one in lists if one]
    low, high = min(map(min, full), default=0), max(map(max, full), default=0)
    if low >= -(1 << 63) and high < 1 << 63:
        return "int64"
    return "uint64" if low >= 0 and high < 1 << 64 else None


def _of_time(value: Any) -> Feature | None:
    """Return the feature of a date or time, `None` for other values."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        unit = np.datetime_data(value.dtype)[0]
        if isinstance(value, np.datetime64) and unit in ("Y", "M", "W", "D"):
            return Date()
        unit = unit if unit in UNITS else "s" if unit in ("W", "D", "h", "m") else "ns"
        return Timestamp(unit) if isinstance(value, np.datetime64) else Duration(unit)
    nanoseconds = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)  # pandas has them
    unit = "ns" if nanoseconds else "us"
    if isinstance(value, datetime.datetime):
        return Timestamp(unit, None if value.tzinfo is None else zone_name(value.tzinfo, value))
    if isinstance(value, datetime.date):
        return Date()
    if isinstance(value, datetime.timedelta):
        return Duration(unit)
    return Time("us") if isinstance(value, datetime.time) and value.tzinfo is None else None


def _of_nat(value: Any) -> Feature:
    """Return the feature of a field that has no other values than NaT."""
    if isinstance(value, np.datetime64 | np.timedelta64) and np.datetime_data(value.dtype)[0] != "generic":
        return _of_time(value) or Timestamp("us")
    return Duration("us") if isinstance(value, np.timedelta64) else Timestamp("us")


def _of_decimals(values: list[decimal.Decimal], name: str) -> Decimal:
    """Return the feature of decimal numbers: 38 digits if that is enough, as many after the point as they have."""
    try:
        before, after = (max(counts) for counts in zip(*map(digits_of, values), strict=True))
    except SchemaError as error:
        raise SchemaError(f"{error} - at field {name}") from None
    if before + after > MAX_DIGITS:
        raise SchemaError(f"expected decimal numbers of {MAX_DIGITS} digits, got {before + after} - at field {name}")
    return Decimal(_DIGITS if before + after <= _DIGITS else MAX_DIGITS, after)


def _join_times(a: TimeFeature, b: TimeFeature) -> Feature | None:
    """Return the feature of both: the finer unit, and UTC for instants of different zones."""
    match a, b:
        case Timestamp(), Timestamp() if (a.zone is None) == (b.zone is None):
            return Timestamp(_finer(a.unit, b.unit), a.zone if a.zone == b.zone else "UTC")
        case Duration(), Duration():
            return Duration(_finer(a.unit, b.unit))
    return None


def _finer(a: str, b: str) -> str:
    return UNITS[max(UNITS.index(a), UNITS.index(b))]


def _join(a: Feature, b: Feature, name: str) -> Feature:
    if a == b:
        return a
    if isinstance(a, TimeFeature) and isinstance(b, TimeFeature) and (both_times := _join_times(a, b)) is not None:
        return both_times
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return Decimal(max(a.precision, b.precision), max(a.scale, b.scale))
    if isinstance(a, Image) and isinstance(b, Image):
        modes = {a.mode, b.mode}
        return Image(next(mode for mode in (None, "RGBA", "RGB", "L") if mode in modes))
    if isinstance(a, Array) and isinstance(b, Array):
        if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return Array(a.dtype) if a.dtype == b.dtype else Array()
        return Array(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, Value) and isinstance(b, Value) and "bool" not in (a.dtype, b.dtype):
        both = np.promote_types(a.dtype, b.dtype)
        if both.kind != "f" or "f" in (np.dtype(a.dtype).kind, np.dtype(b.dtype).kind):
            return Value(both.name)  # not int64 with uint64: they promote to float64, which is not exact
    raise SchemaError(f"expected values of one kind, got {a} and {b} - at field {name} (give a schema)")
