"""What a sample is made of: a tree of frozen features, one per field, kept with the data as JSON.

`Features.of` takes a dict, a class with annotations or Features; `infer` looks at first samples.
Everybody else walks the tree: builders store by it, readers decode by it. It holds no data.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import numpy as np

from shardex.errors import FieldError, FormatError, SchemaError
from shardex.schema.features import SCALARS, Array, Bytes, ClassLabel, Feature, Json, Opaque, Text, Value, storable

__all__ = [
    "Array",
    "Bytes",
    "ClassLabel",
    "Feature",
    "Features",
    "Json",
    "Opaque",
    "Optional",
    "Sequence",
    "Struct",
    "Text",
    "Value",
    "feature_of",
    "hints_of",
    "infer",
]


@dataclass(frozen=True, slots=True)
class Sequence(Feature):
    """A list of values of one feature."""

    kind: ClassVar[str] = "sequence"
    feature: Feature

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature", feature_of(self.feature))

    def __str__(self) -> str:
        return f"list of {self.feature}"


@dataclass(frozen=True, slots=True)
class Struct(Feature):
    """Named values inside one field.

    >>> str(Struct({"x": "int32", "y": str}))
    'struct of x int32, y text'
    """

    kind: ClassVar[str] = "struct"
    fields: Mapping[str, Feature]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", Features.of(self.fields))

    def __str__(self) -> str:
        return "struct of " + ", ".join(f"{name} {feature}" for name, feature in self.fields.items())


@dataclass(frozen=True, slots=True)
class Optional(Feature):
    """A feature, or `None`."""

    kind: ClassVar[str] = "optional"
    feature: Feature

    def __post_init__(self) -> None:
        inner = feature_of(self.feature)
        object.__setattr__(self, "feature", inner.feature if isinstance(inner, Optional) else inner)

    def __str__(self) -> str:
        return f"{self.feature} or none"


_KINDS: dict[str, type[Feature]] = {
    c.kind: c for c in (Value, Text, Bytes, Json, Array, ClassLabel, Sequence, Struct, Optional, Opaque)
}


class Features(Mapping[str, Feature]):
    """The fields of a dataset, in order; equal, hashable, and with a fingerprint that names them.

    >>> f = Features.of({"x": Array("float32", (3,)), "label": int, "note": str | None})
    >>> print(f)
    x float32[3], label int64, note text or none
    >>> Features.from_json(f.to_json()) == f
    True
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Feature]) -> None:
        for name in fields:
            if not isinstance(name, str) or not name:
                raise SchemaError(f"expected a field name, got {name!r}")
        self._fields = dict(fields)

    @classmethod
    def of(cls, schema: Any) -> Features:
        """Features from a mapping of names to features, dtypes or types, or from a class with annotations."""
        if isinstance(schema, Features):
            return schema
        if isinstance(schema, Mapping):
            return cls({name: feature_of(feature) for name, feature in schema.items()})
        if isinstance(schema, type) and (hints := hints_of(schema)):
            return cls({name: feature_of(hint) for name, hint in hints.items()})
        raise SchemaError(f"expected a mapping of field names to features, or a class with annotations, got {schema!r}")

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._fields[name]
        except KeyError:
            raise FieldError(f"expected one of the fields {', '.join(self._fields)}, got {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __hash__(self) -> int:
        return hash(tuple(self._fields))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Features) and list(self.items()) == list(other.items())

    def __repr__(self) -> str:
        return f"Features({self})"

    def __str__(self) -> str:
        return ", ".join(f"{name} {feature}" for name, feature in self.items())

    def select(self, names: SequenceOf[str]) -> Features:
        """Only these fields, in this order."""
        return Features({name: self[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """Plain values, to be kept with the data."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, plain: Any) -> Features:
        """Read back what `to_json` made."""
        if not isinstance(plain, dict) or "" in plain:
            raise FormatError(f"expected a schema as a JSON object of named fields, got {reprlib.repr(plain)}")
        return cls({name: _from_json(one) for name, one in plain.items()})

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are the same exactly when names, order and features are."""
        return hashlib.sha256(msgspec.json.encode(self.to_json())).hexdigest()[:16]


def _from_json(plain: Any) -> Feature:
    try:
        rest = dict(plain)
        kind = _KINDS[rest.pop("kind")]
        if "feature" in rest:
            rest["feature"] = _from_json(rest["feature"])
        if "fields" in rest:
            rest["fields"] = Features.from_json(rest["fields"])
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in rest.items()})
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"expected the JSON form of a feature, got {reprlib.repr(plain)}: {error}") from None


# -- from types -------------------------------------------------------------------------------------------

_PLAIN_TYPES: dict[Any, Feature] = {
    bool: Value("bool"),
    int: Value("int64"),
    float: Value("float64"),
    str: Text(),
    bytes: Bytes(),
    dict: Json(),
    list: Json(),
    tuple: Json(),
    Any: Json(),
    np.ndarray: Array(),
}
_NAMED = {kind.__name__: _PLAIN_TYPES[kind] for kind in (int, float, str, bytes)} | {"text": Text(), "json": Json()}


def feature_of(hint: Any) -> Feature:
    """The feature for a feature, dtype, type or annotation.

    >>> str(feature_of("float32")), str(feature_of(list[int])), str(feature_of(np.typing.NDArray[np.int8]))
    ('float32', 'list of int64', 'int8[...]')
    """
    if isinstance(hint, Feature):
        return hint
    if isinstance(hint, str | np.dtype):
        return _NAMED.get(str(hint)) or Value(str(hint))
    try:
        if (known := _PLAIN_TYPES.get(hint)) is not None:
            return known
    except TypeError:
        pass
    if isinstance(hint, type) and issubclass(hint, np.generic):
        return Value(_dtype_name(hint) or hint.__name__)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_choice([*{type(member.value) for member in hint}]) or Json()
    if (made := _of_generic(hint)) is not None:
        return made
    if isinstance(hint, Mapping) or (isinstance(hint, type) and hints_of(hint)):
        return Struct(Features.of(hint))
    raise SchemaError(f"expected a feature, a dtype or a type such as int, str or list[int], got {hint!r}")


def hints_of(schema: type) -> dict[str, Any]:
    """The fields of a class with their types, also where these are written as text.

    >>> class Point:
    ...     x: "int"
    >>> hints_of(Point)
    {'x': <class 'int'>}
    """
    try:
        hints = typing.get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise SchemaError(f"expected annotations that the module of {schema.__name__} knows, got: {error}") from None
    if dataclasses.is_dataclass(schema):
        return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.init}
    return {name: hint for name, hint in hints.items() if ClassVar not in (hint, typing.get_origin(hint))}


def _of_generic(hint: Any) -> Feature | None:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        said = next((a for a in arguments[1:] if isinstance(a, Feature)), None) or feature_of(arguments[0])
        return Optional(said) if types.NoneType in typing.get_args(arguments[0]) else said
    if origin is typing.Literal:
        return _of_choice([*{type(a) for a in arguments}]) or Json()
    if origin in (typing.Union, types.UnionType):
        if (made := _of_choice([*arguments])) is None:
            raise SchemaError(f"expected one type, or one type and None, got {hint}")
        return made
    if origin in (list, tuple) and len(arguments) in (1, 2) and arguments[1:] in ((), (...,)):
        return Sequence(feature_of(arguments[0]))
    if origin is np.ndarray:
        return Array(next(map(_dtype_name, typing.get_args(arguments[-1])), None))
    return Json() if origin in (dict, tuple) else None


def _of_choice(kinds: list[Any]) -> Feature | None:
    """The feature of one type, or of one type and None."""
    rest = [kind for kind in kinds if kind is not types.NoneType]
    if len(rest) != 1:
        return None
    return feature_of(rest[0]) if len(rest) == len(kinds) else Optional(feature_of(rest[0]))


def _dtype_name(scalar: Any) -> str | None:
    """The dtype of a numpy type, if it is a single one and arrays may have it."""
    if not isinstance(scalar, type) or not issubclass(scalar, np.number | np.bool_ | np.datetime64):
        return None
    try:
        return np.dtype(scalar).name
    except TypeError:  # np.floating and other families
        return None


# -- from samples -------------------------------------------------------------------------------------------


def infer(samples: SequenceOf[Mapping[str, Any]]) -> Features:
    """The features that fit all of these samples: sizes that differ are free, fields that lack are optional.

    >>> print(infer([{"x": np.zeros(2, "f4"), "n": 1}, {"x": np.zeros(3, "f4"), "n": None}]))
    x float32[?], n int64 or none
    """
    fields: dict[str, Feature] = {}
    for name in dict.fromkeys(name for sample in samples for name in sample):
        found = [sample.get(name) for sample in samples]
        kinds = [_of_value(value, name) for value in found if value is not None]
        feature: Feature = Json()
        for k, other in enumerate(kinds):
            feature = other if k == 0 else _join(feature, other, name)
        fields[name] = Optional(feature) if len(kinds) < len(found) else feature
    return Features(fields)


def _of_value(value: Any, name: str) -> Feature:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise SchemaError(f"expected an array of numbers, text or bytes, got dtype object - at field {name}")
        return Array(value.dtype.name, value.shape) if storable(value.dtype) else Array()
    if isinstance(value, np.generic) and value.dtype.name in SCALARS:
        return Value(value.dtype.name)
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return _PLAIN_TYPES[kind]
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
            return Value(both.name)  # not where only a float could hold both kinds of integers, and not exactly
    raise SchemaError(f"expected values of one kind, got {a} and {b} - at field {name} (give a schema)")
