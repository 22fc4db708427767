"""Views samples as a class that has some of their fields; `as_type` uses this if no lens is registered.

Fields of the same name must have features that fit. Where features do not determine that (JSON, arrays of any dtype,
optional values), the values are checked when they are read.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.errors import LensError
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Json,
    Map,
    Media,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Timestamp,
    Value,
    contains,
    unwrap_optional,
)
from shardex.samples.class_record import is_sample_class, record_of, sample_from
from shardex.samples.lens_graph import type_name
from shardex.samples.sample import DictSample, fields_of, same


def schema_conflicts(
    have: Mapping[str, Feature], want: Mapping[str, Feature], defaults: Container[str] = ()
) -> list[str]:
    """Return the reasons why fields `have` cannot be read as `want`; fields in `defaults` may be missing.

    >>> schema_conflicts({"x": Text(), "y": Value("int8")}, {"x": Value("int8"), "y": Value("float32"), "z": Text()})
    ['field x is text, not int8', 'field z (text) is missing']
    """
    out = []
    for name, feature in want.items():
        if name in have:
            if not may_fit(have[name], feature):
                out.append(f"field {name} is {have[name]}, not {feature}")
        elif name not in defaults and not feature.optional:
            out.append(f"field {name} ({feature}) is missing")
    return out


def may_fit(have: Feature, want: Feature) -> bool:
    """Return whether values of one feature may fit another.

    >>> may_fit(Value("int64"), Value("float32")), may_fit(Value("float32"), Value("int64"))
    (True, False)
    >>> may_fit(Array("float32", (3,)), Array("float32", (None,))), may_fit(Array("float32", (3,)), Array("int8"))
    (True, False)
    """
    have, want = unwrap_optional(have), unwrap_optional(want)
    match have, want:
        case (_, Json()) | (Json() | Opaque(), _):
            return True
        case Value(), Value():
            return _same_kind(have.dtype, want.dtype)
        case ClassLabel(), ClassLabel():
            return have.names == want.names
        case (ClassLabel(), Value()) | (Value(), ClassLabel()):
            return np.dtype(have.dtype if isinstance(have, Value) else "int64").kind in "iu"
        case Array(), Array():
            return _same_arrays(have, want)
        case Timestamp(), Timestamp():
            return (have.zone is None) == (want.zone is None)
        case Map(), Map():
            return may_fit(have.key, want.key) and may_fit(have.value, want.value)
        case Sequence(), Sequence():
            return may_fit(have.feature, want.feature)
        case Struct(), Struct():
            return not schema_conflicts(have.fields, want.fields)
        case Media(), Bytes() if type(want) is Bytes:
            return not have.decode
        case Media(), Array():  # what it is decoded to
            return have.decode and want.shape is None and want.dtype in (None, have.decoded_dtype)
        case Media(), _:
            return type(have) is type(want)
        case Bytes() | Sequence(), Array():
            return True  # compact bytes, or a list of numbers
        case (Array(), Sequence()) | (Text(), ClassLabel()):
            return True
    return type(have) is type(want)


def feature_in_class(have: Feature, want: Feature) -> Feature:
    """Return the feature of a stored field in samples of a class: what the class wants.

    Images, audio and video that a class wants as arrays keep their feature: they are bytes until they are decoded.

    >>> from shardex.features import Image
    >>> str(feature_in_class(Optional(Image("L")), Array("uint8"))), str(feature_in_class(Bytes(), Array()))
    ("image(mode='L')", 'any[...]')
    """
    if not contains(have, Media) or contains(want, Bytes):
        return want
    inner = unwrap_optional(have)
    return Optional(inner) if want.optional else inner


def _same_kind(have: str, want: str) -> bool:
    a, b = np.dtype(have).kind, np.dtype(want).kind
    return (a == b) or {a, b} <= {*"iu"} or (b == "f" and a in "iu")


def _same_arrays(have: Array, want: Array) -> bool:
    if have.dtype and want.dtype and not np.can_cast(have.dtype, want.dtype, "safe"):
        return False
    if have.shape is None or want.shape is None:
        return True
    return len(have.shape) == len(want.shape) and all(
        None in (m, n) or m == n for m, n in zip(have.shape, want.shape, strict=True)
    )


@dataclass(frozen=True)
class FieldSubset:
    """Get and put between a type and a class that has some of its fields; `LensError` if their features conflict."""

    source: Any
    view: Any

    def __post_init__(self) -> None:
        ends = f"from {type_name(self.source)} to {type_name(self.view)}"
        if not is_sample_class(self.view) or not (is_sample_class(self.source) or self.source is DictSample):
            raise LensError(f"expected a lens {ends}, got none: make one with @lens")
        record = record_of(self.view)
        if self.source is DictSample:
            return
        if problems := schema_conflicts(record_of(self.source).features, record.features, record.defaults):
            raise LensError(
                f"expected a lens {ends}, or all fields of {type_name(self.view)} in {type_name(self.source)}, "
                f"got neither: {'; '.join(problems)}"
            )

    def get(self, sample: Any) -> Any:
        """Return the view of a sample: the fields that its class has."""
        values, names = fields_of(sample), record_of(self.view).names
        return sample_from(self.view, {name: values[name] for name in names if name in values})

    def put(self, view: Any, source: Any) -> Any:
        """Return the sample with the fields of the view replaced."""
        into, merged, record = fields_of(source), dict(fields_of(source)), record_of(self.view)
        for name, value in fields_of(view).items():
            if name in into:
                merged[name] = value
            elif value is not None and not same(record.default(name), value):
                raise LensError(f"expected a sample with the field {name} to put {value!r:.80} into, got one without")
        return DictSample(merged) if self.source is DictSample else sample_from(self.source, merged)
