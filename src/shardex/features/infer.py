"""Features that fit given samples: `infer` is strict, `Inferred.or_json` falls back to `Json`.

`Inferred` are the features of a stream, which become wider with later samples. Inside this module `Null` stands for
values of which there are none yet: fields that are always `None`, and the items of lists that are always empty.
"""

from __future__ import annotations

import decimal
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from shardex.errors import SchemaError
from shardex.features.array import Array
from shardex.features.array_values import refuse_inexact
from shardex.features.decimals import Decimal
from shardex.features.dtypes import wider_dtype
from shardex.features.feature import Feature
from shardex.features.features import Features, contains
from shardex.features.json_value import Json
from shardex.features.kinds import all_kinds, feature_of
from shardex.features.media_kinds import Image
from shardex.features.optional import Null, Optional, unwrap_optional
from shardex.features.sequence import Sequence
from shardex.features.struct import Struct
from shardex.features.time_feature import is_missing_time
from shardex.features.times import Duration, Timestamp
from shardex.features.value import Value

Found = TypeVar("Found")
_PLAIN = {bool, int, float, str, bytes}
_KIND_OF: dict[type, type[Feature]] = {}
"""The kind that knew a value of a type, which is asked first."""
_MOST_TYPES = 1000
_MOST_MEMBERS = 256
"""A dict with more keys is a map of its own rather than a struct."""
_ROUNDED = ("float16", "float32", "complex64")
"""Dtypes to which writers may round the numbers that they get."""


def infer(samples: SequenceOf[Mapping[str, Any]]) -> Features:
    """Return features that fit all samples: sizes that differ become `None`, fields that some samples lack optional.

    >>> print(infer([{"x": np.zeros(2, "f4"), "n": 1}, {"x": np.zeros(3, "f4"), "n": None}]))
    x float32[?], n int64 or none
    """
    return Inferred.of(samples).features


@dataclass(frozen=True, slots=True)
class ExactArray(Array):
    """An array of a dtype that was inferred: it takes no arrays of a wider one, which `Array` would round."""

    exact: ClassVar[bool] = True


class Inferred:
    """The features of the samples of a stream so far.

    >>> found = Inferred.of([{"n": 1, "x": None}, {"n": 2, "x": None}]); print(found.features); found.without_values
    n int64, x json or none
    ['x']
    >>> print(found.wider({"n": 2.5, "x": "a", "late": True}).features)
    n float64, x text or none, late bool or none
    """

    def __init__(self, fields: Mapping[str, Feature], given: Iterable[str] = ()) -> None:
        """:param given: fields whose features are those of other data, and not inferred; values that fit keep them"""
        self.given = frozenset(name for name in given if not contains(fields[name], Image))
        self.fields = Features(fields)
        """What is known of each field, with `Null` for what is not."""
        self.features = Features({name: _known(feature) for name, feature in fields.items()})
        """What fits all samples; fields without values are `Json`."""
        self.strict = Features({name: _strict(feature) for name, feature in self.features.items()})
        """The same features for a writer, which refuses arrays of a wider dtype."""
        self.without_values = [name for name, feature in fields.items() if contains(feature, Null)]
        """Fields with nothing but `None` or empty lists."""
        found = {name: _check_of(feature, name) for name, feature in fields.items()}
        found |= {name: partial(_fits_exactly, fields[name]) for name in self.given if found[name] is not None}
        self.checks = {name: check for name, check in found.items() if check is not None}
        """Functions that return False for a value that a writer would round, or store as JSON in a field without
        values; fields without a function have none: writers refuse all values that need wider features.

        >>> [Inferred.of([{"x": np.float32(0.5)}]).checks["x"](value) for value in (np.float32(1.5), 0.1)]
        [True, False]
        """

    @classmethod
    def of(cls, samples: SequenceOf[Mapping[str, Any]]) -> Inferred:
        """Return the features of samples."""
        return cls.of_values(_by_field(samples))

    @classmethod
    def or_json(cls, samples: SequenceOf[Mapping[str, Any]]) -> Inferred:
        """Return the features of samples; a field with values of several kinds is `Json`.

        >>> print(Inferred.or_json([{"n": 1, "x": "a"}, {"n": 2, "x": 3}]).features)
        n int64, x json
        """
        fields: dict[str, Feature] = {}
        for name, values in _by_field(samples).items():
            try:
                fields[name] = _of_field(values, name)
            except SchemaError:
                fields[name] = Optional(Json()) if any(value is None for value in values) else Json()
        return cls(fields)

    @classmethod
    def of_values(cls, values: Mapping[str, list[Any]]) -> Inferred:
        """Return the features of samples, given as the values of each field."""
        return cls({name: _of_field(some, name) for name, some in values.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return Inferred, (self.fields, self.given)

    def join(self, other: Inferred) -> Inferred:
        """Return features that fit the samples of both; `SchemaError` for values of different kinds."""
        fields: dict[str, Feature] = {}
        for name in {**self.fields, **other.fields}:
            a, b = (one.fields.get(name, Optional(Null())) for one in (self, other))
            fields[name] = _join(a, b, f"field {name}")
        return Inferred(fields)

    def wider(self, sample: Mapping[str, Any]) -> Inferred:
        """Return features that fit one sample more; `SchemaError` for a value of another kind."""
        fields = dict(self.fields)
        for name in {**fields, **sample}:
            value = sample.get(name)
            if name in self.given and _fits_exactly(fields[name], value):
                continue
            found = _of_field([value if name not in fields or not is_missing_time(value) else None], name)
            fields[name] = _join(fields[name], found, f"field {name}") if name in fields else Optional(found)
        return Inferred(fields, self.given)


def _fits_exactly(feature: Feature, value: Any) -> bool:
    """Return whether a feature takes a value and does not round it.

    >>> [_fits_exactly(Value("float32"), value) for value in (0.5, 0.1, None)]
    [True, False, False]
    """
    try:
        fitted = feature.fit(value)
        if isinstance(value, np.ndarray):
            return bool(fitted.dtype == value.dtype)
        if not any(isinstance(part, Value) and part.dtype in _ROUNDED for _, part in feature.nested("")):
            return True
        fitted = feature.fit(fitted, stored=True)  # which rounds
        return bool(fitted == value) or repr(fitted) == repr(value) == "nan"
    except (SchemaError, ValueError):  # the latter of arrays, which are not compared
        return False


def _check_of(feature: Feature, name: str) -> Callable[[Any], bool] | None:
    """Return a function that is True for values that need no wider feature; None if writers refuse all others."""

    def fits(value: Any) -> bool:
        try:
            joined = None if value is None else _joined(feature, _of_field([value], name))
        except SchemaError:
            return True  # the writer says why not
        return joined is None or joined == feature

    inner, parts = unwrap_optional(feature), [part for _, part in feature.nested(name)]
    if isinstance(inner, Array):
        return None
    if isinstance(inner, Value) and inner.dtype in _ROUNDED:
        kind = np.dtype(inner.dtype).type
        return lambda value: type(value) is kind or fits(value)
    rounded = any(isinstance(part, Value | Array) and part.dtype in _ROUNDED for part in parts)
    return fits if rounded or any(isinstance(part, Null | Image) for part in parts) else None


def _known(feature: Feature) -> Feature:
    """Return the feature as which a field is written: `Json` if there are no values to tell more."""
    if not contains(feature, Null):
        return feature
    return Optional(Json()) if feature.optional else Json()


def _strict(feature: Feature) -> Feature:
    inner = unwrap_optional(feature)
    if not isinstance(inner, Array) or inner.dtype is None:
        return feature
    exact = ExactArray(inner.dtype, inner.shape)
    return Optional(exact) if feature.optional else exact


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
        times = [_of_nat(value) for value in values if value is not None]
        feature = _join_all(enumerate(times), name) if times else Null()
    elif all(isinstance(value, decimal.Decimal) for value in given):
        feature = _located(name, Decimal.of_values, given)
    elif all(isinstance(value, list | tuple) for value in given):
        feature = _of_lists(given, name)
    elif all(isinstance(value, dict) for value in given):
        feature = _of_dicts(given, name)
    elif present == {int, float}:
        feature = Value("float64")
    else:
        some = ((k, one) for k, one in enumerate(values) if one is not None and not is_missing_time(one))
        feature = _join_all(((k, _of_value(value, name)) for k, value in some), name)
    if feature == Value("float64"):
        _located(name, refuse_inexact, given)
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
    if isinstance(value, os.PathLike):
        return f" {str(value)!r}, no image, audio or video (pass what the file holds, or its name as str(path))"
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
        if not kinds:
            return Sequence(Null())
        dtype = "float64" if float in kinds else _integer_dtype(lists)
        if len(kinds) > 1:
            _located(name, refuse_inexact, lists)
        return Json() if dtype is None else Array(dtype, (None,))
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


def _of_dicts(dicts: list[dict[Any, Any]], name: str) -> Feature:
    """Return the feature of dicts: a struct if all have the same keys, with values of one kind or None; else `Json`."""
    keys = dicts[0].keys()
    if not 0 < len(keys) <= _MOST_MEMBERS or any(one.keys() != keys for one in dicts):
        return Json()
    try:
        struct = Struct({key: _of_field([one[key] for one in dicts], f"{name}.{key}") for key in keys})
    except SchemaError:
        return Json()
    return Json() if contains(struct, Json) else struct


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


def _join_all(features: Iterable[tuple[int, Feature]], name: str) -> Feature:
    """Return the feature that fits the values of all features, each of which has the number of its sample."""
    numbered = iter(features)
    _, joined = next(numbered)
    for number, feature in numbered:
        joined = _join(joined, feature, f"sample {number}, field {name}")
    return joined


def _join(a: Feature, b: Feature, where: str) -> Feature:
    if (both := _joined(a, b)) is None:
        raise SchemaError(f"expected values of one kind, got {_known(a)} and {_known(b)} - at {where} (give a schema)")
    return both


def _joined(a: Feature, b: Feature) -> Feature | None:
    """Return a feature that fits the values of both; None if there is none."""
    if a == b:
        return a
    if a.optional or b.optional:
        inner = _joined(unwrap_optional(a), unwrap_optional(b))
        return None if inner is None else Optional(inner)
    if isinstance(a, Null) or isinstance(b, Null):
        return b if isinstance(a, Null) else a
    if isinstance(a, Array) and isinstance(b, Array):
        if not a.fixed and not b.fixed and (dtype := wider_dtype(a.dtype, b.dtype)) is not None:  # of lists of numbers
            return Array(dtype, a.shape).join(Array(dtype, b.shape))
        return a.join(b)
    if isinstance(a, Struct) and isinstance(b, Struct):
        return _joined_members(a, b)
    x, y = _item(a), _item(b)
    if x is None or y is None:
        return a if a.is_json and _known(b).is_json else a.join(b)
    item = _joined(x, y)
    return None if item is None else item.in_list() or Sequence(item)


def _joined_members(a: Struct, b: Struct) -> Feature:
    """Return a struct of the joined members if both have the same ones, else `Json`."""
    both = {name: _joined(one, b.fields[name]) for name, one in a.fields.items() if name in b.fields}
    known = {name: one for name, one in both.items() if one is not None}
    struct = Struct(known)
    return struct if known.keys() == a.fields.keys() == b.fields.keys() and not contains(struct, Json) else Json()


def _item(feature: Feature) -> Feature | None:
    """Return the feature of the items of lists, also of those that are stored as arrays of numbers; None for others."""
    if isinstance(feature, Array) and feature.dtype and feature.shape:
        return Array(feature.dtype, (None, *feature.shape[2:])) if feature.shape[1:] else Value(feature.dtype)
    return feature.feature if isinstance(feature, Sequence) else None
