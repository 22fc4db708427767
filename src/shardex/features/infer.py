"""Features that fit given samples: `infer` is strict, `infer_or_json` falls back to `Json`."""

from __future__ import annotations

import decimal
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any, TypeVar

import numpy as np

from shardex.errors import SchemaError
from shardex.features.array import Array
from shardex.features.decimals import Decimal
from shardex.features.feature import Feature
from shardex.features.features import Features
from shardex.features.json_value import Json
from shardex.features.kinds import all_kinds, feature_of
from shardex.features.optional import Optional, unwrap_optional
from shardex.features.sequence import Sequence
from shardex.features.time_feature import is_missing_time
from shardex.features.times import Duration, Timestamp
from shardex.features.value import Value

Found = TypeVar("Found")
_PLAIN = {bool, int, float, str, bytes}
_KIND_OF: dict[type, type[Feature]] = {}
"""The kind that knew a value of a type, which is asked first."""
_MOST_TYPES = 1000


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
    if not given:
        known = [_of_nat(value) for value in values if value is not None]
        feature = functools.reduce(lambda a, b: _join(a, b, name), known) if known else Json()
    elif all(isinstance(value, decimal.Decimal) for value in given):
        feature = _located(name, Decimal.of_values, given)
    elif all(isinstance(value, list | tuple) for value in given):
        feature = _of_lists(given, name)
    else:
        feature = functools.reduce(lambda a, b: _join(a, b, name), (_of_value(value, name) for value in given))
    return Optional(feature) if len(given) < len(values) else feature


def _of_value(value: Any, name: str) -> Feature:
    known = _KIND_OF.get(kind := type(value))
    if known is not None and (feature := _located(name, known.of_value, value)) is not None:
        return feature
    for one in all_kinds():
        if (feature := _located(name, one.of_value, value)) is not None:
            if len(_KIND_OF) < _MOST_TYPES:
                _KIND_OF[kind] = one
            return feature
    raise SchemaError(
        f"expected a number, text, bytes, array, list or dict, got {kind.__name__}{_advice(value)} - at field {name}"
    )


def _located(name: str, function: Callable[[Any], Found], value: Any) -> Found:
    """Return the result of a function; an error names the field."""
    try:
        return function(value)
    except SchemaError as error:
        raise SchemaError(f"{error} - at field {name}") from None


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
    if unwrap_optional(item).is_json:
        return Json()
    if isinstance(item, Array) and item.shape and kinds <= {list, tuple} and len({*map(len, items)}) == 1:
        return Array(item.dtype, (None, len(items[0]), *item.shape[1:]))
    return item.in_list() or Sequence(item)


def _integer_dtype(lists: list[Any]) -> str | None:
    """Return the dtype of lists of integers: int64, or uint64 if they need it; `None` if neither holds them."""
    full = [one for one in lists if one]
    low, high = min(map(min, full), default=0), max(map(max, full), default=0)
    if low >= -(1 << 63) and high < 1 << 63:
        return "int64"
    return "uint64" if low >= 0 and high < 1 << 64 else None


def _of_nat(value: Any) -> Feature:
    """Return the feature of a field that has no other values than NaT."""
    if isinstance(value, np.datetime64 | np.timedelta64) and np.datetime_data(value.dtype)[0] != "generic":
        return _of_value(value, "")
    return Duration("us") if isinstance(value, np.timedelta64) else Timestamp("us")


def _join(a: Feature, b: Feature, name: str) -> Feature:
    if a == b:
        return a
    if (both := a.join(b)) is None:
        raise SchemaError(f"expected values of one kind, got {a} and {b} - at field {name} (give a schema)")
    return both
