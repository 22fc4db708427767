"""Features that fit given samples: `infer` is strict, `infer_or_json` falls back to `Json`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from shardex.errors import SchemaError
from shardex.schema.features import (
    SCALARS,
    Array,
    Bytes,
    Feature,
    Features,
    Json,
    Optional,
    Value,
    feature_of,
    is_storable,
)


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
    features = [_of_value(value, name) for value in values if value is not None]
    feature = functools.reduce(lambda a, b: _join(a, b, name), features) if features else Json()
    return Optional(feature) if len(features) < len(values) else feature


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
    found = type(value).__name__
    raise SchemaError(f"expected a number, text, bytes, array, list or dict, got {found} - at field {name}")


def _join(a: Feature, b: Feature, name: str) -> Feature:
    if a == b:
        return a
    if isinstance(a, Array) and isinstance(b, Array):
        if a.dtype != b.dtype or a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return Array(a.dtype) if a.dtype == b.dtype else Array()
        return Array(a.dtype, tuple(m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)))
    if isinstance(a, Value) and isinstance(b, Value) and "bool" not in (a.dtype, b.dtype):
        both = np.promote_types(a.dtype, b.dtype)
        if both.kind != "f" or "f" in (np.dtype(a.dtype).kind, np.dtype(b.dtype).kind):
            return Value(both.name)  # not int64 with uint64: they promote to float64, which is not exact
    raise SchemaError(f"expected values of one kind, got {a} and {b} - at field {name} (give a schema)")
