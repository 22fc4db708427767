"""Features: the type of each field of a sample, as frozen dataclasses that are stored as JSON with the data.

Each subclass of `Feature` is one kind of field; this module has those that contain others (`leaf_features`,
`time_features` and `media_features` have the rest). `Features` maps field names to them. `feature_of` makes one from a
dtype, a type or an annotation, so that schemas can be written as dicts of types or as classes. `infer` makes features
from samples.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import hashlib
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from shardex.errors import ArgumentError, FormatError, SchemaError, unknown_field
from shardex.features.leaf_features import Array, Bytes, ClassLabel, Decimal, Feature, Json, Null, Opaque, Text, Value
from shardex.features.media_features import Audio, Image, Media, Video
from shardex.features.time_features import UNITS, Date, Duration, Time, Timestamp
from shardex.features.type_aliases import without_aliases

_DECIMAL = Decimal(38, 9)
"""The feature of the annotation `Decimal`, which has no digits."""


@dataclass(frozen=True, slots=True)
class Sequence(Feature):
    """A list of values of one feature."""

    kind: ClassVar[str] = "sequence"
    feature: Feature

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, feature: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature", feature_of(self.feature))

    def __str__(self) -> str:
        return f"list of {self.feature}"


@dataclass(frozen=True, slots=True)
class Struct(Feature):
    """Named values within one field.

    >>> str(Struct({"x": "int32", "y": str}))
    'struct of x int32, y text'
    """

    kind: ClassVar[str] = "struct"
    fields: Mapping[str, Feature]

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, fields: Mapping[str, Any]) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", Features.of(self.fields))

    def __str__(self) -> str:
        return f"struct of {self.fields}"


@dataclass(frozen=True, slots=True)
class Map(Feature):
    """Keys with values. In samples a dict; with `pairs`, or if keys cannot be keys of a dict, a list of tuples.

    Each key of a dict occurs once; `pairs` also holds keys that occur several times.

    >>> str(Map(str, int)), Map(str, int).is_dict, Map({"x": int}, str).is_dict
    ('map of text to int64', True, False)
    """

    kind: ClassVar[str] = "map"
    key: Feature
    value: Feature
    pairs: bool = False

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, key: Any, value: Any, pairs: bool = False) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", feature_of(self.key))
        object.__setattr__(self, "value", feature_of(self.value))
        if isinstance(self.key, Optional | Null):
            raise SchemaError(f"expected keys that are never missing, got {self.key}")

    @property
    def is_dict(self) -> bool:
        """True if samples hold dicts."""
        return not self.pairs and not isinstance(self.key, Array | Json | Map | Opaque | Sequence | Struct)

    def __str__(self) -> str:
        return f"{'pairs' if self.pairs else 'map'} of {self.key} to {self.value}"


@dataclass(frozen=True, slots=True)
class Optional(Feature):
    """A value of a feature, or `None`."""

    kind: ClassVar[str] = "optional"
    feature: Feature

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, feature: Any) -> None: ...

    def __post_init__(self) -> None:
        inner = feature_of(self.feature)
        object.__setattr__(self, "feature", inner.feature if isinstance(inner, Optional) else inner)

    def __str__(self) -> str:
        return f"{self.feature} or none"


def unwrap_optional(feature: Feature) -> Feature:
    """Return the feature inside an `Optional`, any other feature unchanged.

    >>> str(unwrap_optional(Optional(Text())))
    'text'
    """
    return feature.feature if isinstance(feature, Optional) else feature


def nested_features(feature: Feature, name: str) -> Iterator[tuple[str, Feature]]:
    """Iterate over a feature and all features inside it, each with the path of its field.

    >>> [(path, str(one)) for path, one in nested_features(Sequence(Struct({"a": Text()})), "x")]
    [('x', 'list of struct of a text'), ('x', 'struct of a text'), ('x.a', 'text')]
    """
    yield name, feature
    match feature:
        case Optional() | Sequence():
            yield from nested_features(feature.feature, name)
        case Map():
            yield from nested_features(feature.key, name)
            yield from nested_features(feature.value, name)
        case Struct():
            for inner, one in feature.fields.items():
                yield from nested_features(one, f"{name}.{inner}")


def contains(feature: Feature, kind: type[Feature] | types.UnionType) -> bool:
    """Return whether a feature is of a kind, or has a part of this kind.

    >>> contains(Sequence(Date()), Date), contains(Sequence(Text()), Date)
    (True, False)
    """
    return any(isinstance(part, kind) for _, part in nested_features(feature, ""))


def stored_form(feature: Feature) -> Feature:
    """Return a feature with bytes in the place of images, audio and video: the type of what files and rows hold.

    >>> str(stored_form(Sequence(Optional(Image())))), str(stored_form(Text()))
    ('list of bytes or none', 'text')
    """
    match feature:
        case Media():
            return Bytes()
        case Optional() | Sequence():
            return type(feature)(stored_form(feature.feature))
        case Map():
            return Map(stored_form(feature.key), stored_form(feature.value), feature.pairs)
        case Struct():
            return Struct({name: stored_form(one) for name, one in feature.fields.items()})
    return feature


def _is_unicode(name: str) -> bool:
    """Return False for a name with half of a surrogate pair, which no file format can store."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class Features(Mapping[str, Feature]):
    """The fields of a dataset in order: an immutable, hashable mapping of names to features.

    >>> f = Features.of({"x": Array("float32", (3,)), "label": int, "note": str | None})
    >>> print(f)
    x float32[3], label int64, note text or none
    >>> Features.from_json(f.to_json()) == f
    True
    """

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, Feature]) -> None:
        for name in fields:
            if not isinstance(name, str) or not name or not (name.isascii() or _is_unicode(name)):
                raise SchemaError(f"expected a field name, got {name!r}")
        self._fields = dict(fields)

    @classmethod
    def of(cls, schema: Any) -> Features:
        """Return features of a mapping of names to features, dtypes or types, or of a class with annotations."""
        if isinstance(schema, Features):
            return schema
        if isinstance(schema, Mapping):
            return cls({name: feature_of(feature) for name, feature in schema.items()})
        if isinstance(schema, type) and (hints := hints_of(schema)):
            try:
                return cls({name: feature_of(hint) for name, hint in hints.items()})
            except RecursionError:
                raise SchemaError(f"expected a class that does not contain itself, got {schema.__name__}") from None
        raise SchemaError(f"expected a mapping of field names to features, or a class with annotations, got {schema!r}")

    def __getitem__(self, name: str) -> Feature:
        try:
            return self._fields[name]
        except KeyError:
            raise unknown_field(name, self._fields) from None

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
        """Return these fields in this order."""
        return Features({name: self[name] for name in names})

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that is stored with the data."""
        return {name: feature.to_json() for name, feature in self.items()}

    @classmethod
    def from_json(cls, plain: Any, depth: int = 0) -> Features:
        """Return the features of a JSON form made by `to_json`; `depth` is the number of features around it."""
        if not isinstance(plain, dict) or "" in plain:
            raise FormatError(f"expected a schema as a JSON object of named fields, got {reprlib.repr(plain)}")
        return cls({name: _from_json(one, depth) for name, one in plain.items()})

    @property
    def fingerprint(self) -> str:
        """16 hex digits that are equal if and only if names, order and features are equal."""
        return hashlib.sha256(msgspec.json.encode(self.to_json())).hexdigest()[:16]


_MAX_DEPTH = 64
"""Levels of nested features, as many as Arrow files can have."""
_KINDS: dict[str, type[Feature]] = {
    c.kind: c
    for c in (
        *(Value, Text, Bytes, Json, Array, ClassLabel, Sequence, Struct, Optional, Opaque),
        *(Timestamp, Date, Time, Duration, Decimal, Map, Null, Image, Audio, Video),
    )
}


def check_fields(known: SequenceOf[str], fields: SequenceOf[str] | None) -> list[str]:
    """Return the fields to read: those in `fields`, or all that are `known`. An unknown name raises `FieldError`.

    >>> check_fields(["x", "y"], ["y"]), check_fields(["x", "y"], None)
    (['y'], ['x', 'y'])
    """
    if fields is None:
        return list(known)
    if isinstance(fields, str):
        raise ArgumentError(f"expected a list of field names, got the text {fields!r}")
    for name in fields:
        if name not in known:
            raise unknown_field(name, known)
    return list(fields)


def _from_json(plain: Any, depth: int) -> Feature:
    if depth > _MAX_DEPTH:
        raise FormatError(f"expected features of at most {_MAX_DEPTH} levels, got more")
    try:
        rest = dict(plain)
        kind = _KINDS[rest.pop("kind")]
        for part in ("feature", "key", "value"):
            if part in rest:
                rest[part] = _from_json(rest[part], depth + 1)
        if "fields" in rest:
            rest["fields"] = Features.from_json(rest["fields"], depth + 1)
        return kind(**{name: tuple(v) if isinstance(v, list) else v for name, v in rest.items()})
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise FormatError(f"expected the JSON form of a feature, got {reprlib.repr(plain)}: {error}") from None


# -- from types and annotations ------------------------------------------------------------------------------

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
    datetime.datetime: Timestamp("us"),
    datetime.date: Date(),
    datetime.time: Time("us"),
    datetime.timedelta: Duration("us"),
    decimal.Decimal: _DECIMAL,
    types.NoneType: Null(),
}
_NAMED: dict[str, Feature] = {kind.__name__: _PLAIN_TYPES[kind] for kind in (int, float, str, bytes)}
_NAMED |= {"text": Text(), "string": Text(), "binary": Bytes(), "json": Json(), "date": Date()}
_NAMED |= {f"datetime64[{unit}]": Timestamp(unit) for unit in UNITS} | {"datetime64[D]": Date()}
_NAMED |= {f"timedelta64[{unit}]": Duration(unit) for unit in UNITS}


def feature_of(hint: Any) -> Feature:
    """Return the feature for a feature, dtype, type or annotation.

    >>> str(feature_of("float32")), str(feature_of(list[int])), str(feature_of(np.typing.NDArray[np.int8]))
    ('float32', 'list of int64', 'int8[...]')
    """
    if isinstance(hint, Feature):
        return hint
    if isinstance(hint, str | np.dtype):
        return _NAMED.get(str(hint)) or _of_dtype(str(hint))
    hint = without_aliases(hint)
    try:
        if (known := _PLAIN_TYPES.get(hint)) is not None:
            return known
    except TypeError:
        pass
    if isinstance(hint, type) and issubclass(hint, Feature):
        return _of_feature_class(hint)
    if isinstance(hint, type) and (hint.__module__, hint.__name__) == ("PIL.Image", "Image"):
        return Image()
    if isinstance(hint, type) and issubclass(hint, np.generic):
        return Value(_dtype_name(hint) or hint.__name__)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _of_union([*{type(member.value) for member in hint}]) or Json()
    if (feature := _of_generic(hint)) is not None:
        return feature
    if isinstance(hint, Mapping) or (isinstance(hint, type) and hints_of(hint)):
        return Struct(Features.of(hint))
    raise SchemaError(f"expected a feature, a dtype or a type such as int, str or list[int], got {hint!r}")


def _of_feature_class(kind: type[Feature]) -> Feature:
    try:
        return kind()
    except TypeError:  # also a SchemaError
        raise SchemaError(f"expected a feature such as {kind.__name__}(...), got the class {kind.__name__}") from None


def _of_dtype(name: str) -> Feature:
    try:
        return Value(name)
    except SchemaError as error:
        advice = "for others pass a type such as str or datetime.datetime, or a feature such as Timestamp"
        raise SchemaError(f"{error}; {advice}") from None


def hints_of(schema: type) -> dict[str, Any]:
    """Return the fields of a class with their types; annotations that are strings or type aliases are resolved.

    >>> class Point:
    ...     x: "int"
    >>> hints_of(Point)
    {'x': <class 'int'>}
    """
    return {name: without_aliases(hint) for name, hint in _hints_of(schema).items()}


def _hints_of(schema: type) -> dict[str, Any]:
    if isinstance(fields := getattr(schema, "model_fields", None), Mapping):  # of a pydantic model, which resolved them
        return {name: _of_pydantic(one.annotation, one.metadata) for name, one in fields.items()}
    try:
        hints = typing.get_type_hints(schema, include_extras=True)
    except NameError as error:
        raise SchemaError(f"expected annotations that the module of {schema.__name__} defines, got: {error}") from None
    if dataclasses.is_dataclass(schema):
        return {field.name: hints[field.name] for field in dataclasses.fields(schema) if field.init}
    if typing.is_typeddict(schema):
        return {name: _of_typed_dict(hint, name in vars(schema)["__required_keys__"]) for name, hint in hints.items()}
    return {name: hint for name, hint in hints.items() if ClassVar not in (hint, typing.get_origin(hint))}


def _of_pydantic(hint: Any, notes: SequenceOf[Any]) -> Any:
    """Return the type of a field of a pydantic model, which takes ``Annotated`` apart."""
    return typing.Annotated[(hint, *notes)] if notes else hint


def _of_typed_dict(hint: Any, required: bool) -> Any:
    """Return the type of a key of a typed dict; one that may be missing is optional."""
    while typing.get_origin(hint) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
    return hint if required else typing.Optional[hint]  # noqa: UP045


def _of_generic(hint: Any) -> Feature | None:
    """Return the feature of a generic annotation, `None` for any other hint."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        feature = next((a for a in arguments[1:] if isinstance(a, Feature)), None) or feature_of(arguments[0])
        return Optional(feature) if types.NoneType in typing.get_args(arguments[0]) else feature
    if origin is typing.Literal:
        return _of_union([*{type(a) for a in arguments}]) or Json()
    if origin in (typing.Union, types.UnionType):
        if (choice := _of_union([*arguments])) is None:
            raise SchemaError(f"expected one type, or one type and None, got {hint}")
        return choice
    if origin in (list, tuple) and len(arguments) in (1, 2) and arguments[1:] in ((), (...,)):
        return Sequence(feature_of(arguments[0]))
    if origin is np.ndarray:
        return Array(next(map(_dtype_name, typing.get_args(arguments[-1])), None))
    return Json() if origin in (dict, tuple) else None


def _of_union(kinds: list[Any]) -> Feature | None:
    """Return the feature of one type, or of one type and None; `None` for several types."""
    rest = [kind for kind in kinds if kind is not types.NoneType]
    if len(rest) != 1:
        return None
    return feature_of(rest[0]) if len(rest) == len(kinds) else Optional(feature_of(rest[0]))


def _dtype_name(scalar: Any) -> str | None:
    """Return the dtype of a numpy scalar type, `None` for abstract types and those that `Array` does not support."""
    if not isinstance(scalar, type) or not issubclass(scalar, np.number | np.bool_ | np.datetime64):
        return None
    try:
        dtype = np.dtype(scalar)
    except TypeError:  # np.floating and other abstract types
        return None
    return dtype.name if dtype.type is scalar else None  # numpy 2.0 makes float64 of np.floating
