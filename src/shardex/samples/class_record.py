"""Converts typed values (in instances of a class) to plain values (in files) and back.

Numbers, text and arrays are the same in both forms. The plain form of an enum is its value, of a nested class a dict,
of a tuple a list; arrays may come as the compact bytes of MessagePack. `Record` holds the fields of a class with their
features and converts its samples to plain values and back. It does not check values against features.

`ClassFitter` and `sample_from` convert values to the fields of a class: values that fit pass unchanged by a fast check,
`shardex.features` converts the others or raises an error. They add the defaults of the class for missing values, and
sample, field and class to error messages.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from shardex.columns import located
from shardex.errors import SchemaError
from shardex.features import (
    Array,
    ClassLabel,
    Feature,
    Features,
    Json,
    Media,
    Optional,
    Struct,
    Text,
    Value,
    codecs,
    contains,
    describe,
    kinds,
    unwrap_optional,
)
from shardex.kernel import MISSING, Column, Columns, values_of

Convert = Callable[[Any], Any]
T = TypeVar("T")


class Conversion(NamedTuple):
    """Functions from typed to plain values and back; `None` if the two forms are equal."""

    plain: Convert | None = None
    typed: Convert | None = None


def conversion_of(hint: Any, json: bool = False) -> Conversion:
    """Return the conversion of an annotated type; with `json` for values inside JSON, where arrays are lists.

    >>> class Kind(enum.Enum):
    ...     CAT = "cat"
    >>> conversion = conversion_of(list[Kind] | None)
    >>> conversion.plain([Kind.CAT]), conversion.typed(["cat"]), conversion.typed(None)
    (['cat'], [<Kind.CAT: 'cat'>], None)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _of_annotated(arguments[0], arguments[1:], json)
    if origin is typing.Literal:
        return Conversion(*[_one_of(arguments)] * 2)
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in arguments if one is not types.NoneType]
        return Conversion(*map(_optional, conversion_of(rest[0], json))) if len(rest) == 1 else Conversion()
    if np.ndarray in (hint, origin):
        return _json_array(kinds.feature_of(hint)) if json else Conversion(_array)
    if list in (hint, origin):
        inner = conversion_of(arguments[0], json) if arguments else Conversion()
        return Conversion(*(convert and _items(convert, list) for convert in inner))
    if tuple in (hint, origin):
        return _of_tuple(arguments, json)
    if origin is dict:
        return _of_dict(*arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Conversion(lambda value: _member(value, hint).value, lambda value: _member(value, hint))
    if is_sample_class(hint):
        return Conversion(partial(_values, kind=hint, json=json), partial(_instance, kind=hint, json=json))
    return _of_scalar(hint) if json else Conversion()


def _of_scalar(hint: Any) -> Conversion:
    """Return the conversion of a number or text inside JSON, which no feature checks: it must fit the type."""
    if not isinstance(hint, type) or not issubclass(hint, bool | int | float | str | np.generic):
        return Conversion()
    feature = kinds.feature_of(hint)
    if not isinstance(feature, Value | Text):
        return Conversion()
    fits = feature.fits_unchanged()
    return Conversion(
        lambda value: value if fits(value) else feature.fit(value),
        lambda value: value if fits(value) else feature.fit(value, stored=True),
    )


def _of_tuple(arguments: tuple[Any, ...], json: bool) -> Conversion:
    """Return the conversion of a tuple: stored as a list, or as JSON if its length is fixed."""
    if len(arguments) != 2 or arguments[1] is not ...:
        conversions = [conversion_of(one, json=True) for one in arguments]
        return Conversion(
            _by_position([one.plain for one in conversions], list),
            _by_position([one.typed for one in conversions], tuple),
        )
    inner = conversion_of(arguments[0], json)
    return Conversion(_items(inner.plain, list), _items(inner.typed, tuple))


def _of_annotated(hint: Any, notes: tuple[Any, ...], json: bool) -> Conversion:
    """Return the conversion of ``Annotated[...]``; a `ClassLabel` in it is stored as a number, media as they are."""
    if any(isinstance(one, Media) for one in notes):
        return Conversion()
    conversion = conversion_of(hint, json)
    if (array := next((one for one in notes if isinstance(one, Array)), None)) is not None:
        return _json_array(array) if json else conversion if conversion.plain else Conversion(_array)
    label = next((one for one in notes if isinstance(one, ClassLabel)), None)
    if label is None or hint in (int, int | None):
        return conversion
    plain, typed = conversion.plain or _unchanged, conversion.typed or _unchanged
    return Conversion(
        lambda value: value if type(value) is int else plain(value),
        _optional(lambda number: typed(label.name(number))),
    )


def _of_dict(key: Any, value: Any) -> Conversion:
    """Return the conversion of a dict; its keys are stored as text."""
    conversion, number = conversion_of(value, json=True), key is int
    if not number and conversion == Conversion():
        return Conversion()
    plain, typed = conversion.plain or _unchanged, conversion.typed or _unchanged
    return Conversion(
        lambda whole: {str(k) if number else k: plain(v) for k, v in _mapping(whole).items()},
        lambda whole: {int(k) if number else k: typed(v) for k, v in _mapping(whole).items()},
    )


def _json_array(feature: Feature) -> Conversion:
    """Return the conversion of an array that is a list in JSON."""
    dtype = feature.dtype if isinstance(feature, Array) else None

    def typed(value: Any) -> Any:
        found = _array(value)
        return found if isinstance(found, np.ndarray) else np.asarray(found, dtype)

    return Conversion(_listed, typed)


def _unchanged(value: Any) -> Any:
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"expected a dict, got {describe(value)}")
    return value


def _array(value: Any) -> Any:
    return codecs.COMPACT.decode(value) if isinstance(value, bytes | memoryview) else value


def _listed(value: Any) -> Any:
    """Return an array as a list: the type says which dtype it has when it is read."""
    found = _array(value)
    return found.tolist() if isinstance(found, np.ndarray) and found.dtype.kind in "biuf" else found


def _optional(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _items(convert: Convert | None, kind: type) -> Convert:
    def all_of(values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise SchemaError(f"expected a {kind.__name__}, got {describe(values)}")
        return kind(values if convert is None else map(convert, values))

    return all_of


def _by_position(converts: list[Convert | None], kind: type) -> Convert:
    def all_of(values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise SchemaError(f"expected a {kind.__name__}, got {describe(values)}")
        if not converts:
            return kind(values)
        if len(values) != len(converts):
            raise SchemaError(f"expected {len(converts)} values, got {len(values)}")
        return kind(
            value if convert is None else convert(value) for convert, value in zip(converts, values, strict=True)
        )

    return all_of


def _one_of(choices: tuple[Any, ...]) -> Convert:
    def check(value: Any) -> Any:
        for one in choices:
            if type(one) is type(value) and one == value:
                return value
        raise SchemaError(f"expected one of {', '.join(map(repr, choices))}, got {describe(value)}")

    return check


def _member(value: Any, kind: type[enum.Enum]) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        values = ", ".join(repr(member.value) for member in kind)
        raise SchemaError(f"expected a {kind.__name__}, one of {values}, got {describe(value)}") from None


def plain_value(value: Any) -> Any:
    """Return the plain form of an enum member or an instance of a class, also in a list; other values unchanged.

    >>> class Kind(enum.Enum):
    ...     CAT = "cat"
    >>> plain_value([Kind.CAT]), plain_value(3)
    (['cat'], 3)
    """
    if isinstance(value, enum.Enum):
        return value.value
    if type(value) in (list, tuple):
        return type(value)(map(plain_value, value))
    return record_of(type(value)).values(value) if is_sample_class(type(value)) else value


def _values(value: Any, kind: type, json: bool) -> Any:
    """Return the plain form of an instance, or of a dict of its fields."""
    if isinstance(value, Mapping):
        record: Record[Any] = record_of(kind, json)
        return record.whole(record.complete(value)) if json else record.complete(value)
    if not typing.is_typeddict(kind) and isinstance(value, kind):
        return record_of(kind, json).values(value)
    raise SchemaError(f"expected a {kind.__name__}, got {describe(value)}")


def _instance(value: Any, kind: type, json: bool) -> Any:
    """Return the instance of plain values; inside JSON some may be missing, or be of fields that the class has not."""
    record: Record[Any] = record_of(kind, json)
    return record.make(record.whole(record.complete(_mapping(value)), stored=True) if json else dict(value))


def is_sample_class(kind: Any) -> bool:
    """Return True for a class whose instances are samples: made by `packable`, or one that Python users have.

    These are dataclasses, pydantic models, named tuples with annotations and typed dicts.

    >>> class Point(NamedTuple):
    ...     x: int
    >>> is_sample_class(Point), is_sample_class(dict), is_sample_class(tuple)
    (True, False, False)
    """
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or _is_pydantic(kind)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields") and bool(getattr(kind, "__annotations__", None)))
    )


def _is_pydantic(kind: type) -> bool:
    return isinstance(getattr(kind, "model_fields", None), Mapping)


class Record(Generic[T]):
    """The fields of a class, and the conversion of its samples.

    >>> @dataclasses.dataclass
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> record = record_of(Point)
    >>> print(record.features); record.values(Point(3)), record.make({"x": 1, "y": 2.0})
    x int64, y float64
    ({'x': 3, 'y': 0.5}, Point(x=1, y=2.0))
    """

    def __init__(self, kind: type[T], json: bool = False) -> None:
        self.kind = kind
        hints = kinds.hints_of(kind)
        self.names = tuple(hints)
        self.features = Features.of(kind)
        self._struct = Struct(self.features)
        self.defaults = _defaults(kind)
        """Functions that return the typed default of a field."""
        self._make = _pydantic_constructor(kind) if _is_pydantic(kind) else kind
        conversions = {name: conversion_of(hint, json) for name, hint in hints.items()}
        self._plain = {name: conversion.plain for name, conversion in conversions.items() if conversion.plain}
        self._typed = [(name, conversion.typed) for name, conversion in conversions.items() if conversion.typed]

    def default(self, name: str) -> Any:
        """Return the default of a field in its plain form, `MISSING` if it has none."""
        return self._to_plain(name, self.defaults[name]()) if name in self.defaults else MISSING

    def plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain form of values, typed or plain."""
        return {name: self._to_plain(name, value) for name, value in values.items()}

    def complete(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values, typed or plain, in their plain form, with the defaults of fields that are missing."""
        if self._plain:
            values = self.plain(values)
        missing = {name: self.default(name) for name in self.defaults if name not in values}
        return {**values, **missing} if missing else values

    def whole(self, values: Mapping[str, Any], *, stored: bool = False) -> dict[str, Any]:
        """Return plain values of all fields, None for optional ones that are missing; others must be there.

        Unknown fields raise an error; with `stored` they are left out.
        """
        return dict(self._struct.members_of(values, stored))

    def _to_plain(self, name: str, value: Any) -> Any:
        convert = self._plain.get(name)
        try:
            return value if convert is None else convert(value)
        except SchemaError as error:
            raise SchemaError(f"{error} - at field {name} of {self.kind.__name__}") from None

    def values(self, sample: Any) -> dict[str, Any]:
        """Return the plain values of a sample in the order of its fields."""
        return {name: self._to_plain(name, getattr(sample, name)) for name in self.names}

    def make(self, values: dict[str, Any]) -> T:
        """Return a sample from plain values that fit; may modify the dict. Unknown fields are ignored."""
        if len(values) != len(self.names):
            values = {name: values[name] for name in self.names if name in values}
        for name, convert in self._typed:
            try:
                values[name] = convert(values[name])
            except SchemaError as error:
                raise SchemaError(f"{error} - at field {name} of {self.kind.__name__}") from None
        return self._make(**values)


def _defaults(kind: Any) -> dict[str, Callable[[], Any]]:
    """Return a function for each field with a default, which makes the default."""
    if dataclasses.is_dataclass(kind):
        return {one.name: make for one in dataclasses.fields(kind) if one.init and (make := _default_of(one))}
    if _is_pydantic(kind):
        optional = {name: one for name, one in kind.model_fields.items() if not one.is_required()}
        return {name: partial(one.get_default, call_default_factory=True) for name, one in optional.items()}
    return {name: partial(_unchanged, value) for name, value in getattr(kind, "_field_defaults", {}).items()}


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return None if field.default is dataclasses.MISSING else lambda: field.default


def _pydantic_constructor(kind: Any) -> Any:
    """Return a function that makes an instance of a pydantic model, validated, from values by field name."""
    given = {name: one.validation_alias or one.alias for name, one in kind.model_fields.items()}
    aliases = {name: alias if isinstance(alias, str) else name for name, alias in given.items()}

    def make(**values: Any) -> Any:
        try:
            return kind(**{aliases[name]: value for name, value in values.items()})
        except ValueError as error:
            raise SchemaError(f"expected values that {kind.__name__} accepts, got others: {error}") from error

    return make


_records: tuple[WeakKeyDictionary[type, Record[Any]], ...] = (WeakKeyDictionary(), WeakKeyDictionary())
"""Records of classes, and of classes inside JSON."""


def record_of(kind: type[T], json: bool = False) -> Record[T]:
    """Return the record of a sample class, from a cache."""
    if (known := _records[json].get(kind)) is not None:
        return known
    if not is_sample_class(kind):
        raise SchemaError(f"expected a class made by @packable, or a dataclass, got {kind!r}")
    try:
        record = _records[json][kind] = Record(kind, json)
    except RecursionError:
        raise SchemaError(f"expected a class that does not contain itself, got {kind.__name__}") from None
    return record


Where = Callable[[int], str]
"""Returns the place of the k-th sample, for messages."""


def sample_from(kind: type[T], data: Mapping[str, Any], *, stored: bool = False) -> T:
    """Return a sample of a class from values, which must fit; optional fields and those with a default may be missing.

    `stored` values may have the form that `packed_values` returns.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> sample_from(Point, {"x": 3})
    Point(x=3, y=0.5)
    """
    if not isinstance(data, Mapping):
        raise SchemaError(f"expected a mapping of the fields of {kind.__name__}, got {describe(data)}")
    record = record_of(kind)
    if unknown := [str(name) for name in data if name not in record.features]:
        has = ", ".join(record.names)
        raise SchemaError(f"expected the fields {has} of {kind.__name__}, got {', '.join(unknown)} too")
    return record.make(_fitted(record, record.plain(data), stored=stored))


def _fitted(
    record: Record[Any], values: Mapping[str, Any], *, stored: bool = False, encoded: bool = False
) -> dict[str, Any]:
    """Return plain values converted to their features, with defaults for missing ones; `stored` as in `sample_from`.

    Images, audio and video stay as they are, unless they must be `encoded`.
    """
    out = {}
    for name, feature in record.features.items():
        try:
            value = values[name] if name in values else record.default(name)
            as_stored = stored and feature.plain() is not None
            out[name] = feature.fit(value, stored=as_stored or (not encoded and contains(feature, Media)))
        except SchemaError as error:
            raise located(error, f"field {name} of {record.kind.__name__}") from None
    return out


def packed_values(record: Record[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values in the form that MessagePack holds."""
    out = _fitted(record, values, encoded=True)
    for name, feature in record.features.items():
        if (convert := feature.plain()) is not None and not isinstance(unwrap_optional(feature), Json):
            out[name] = convert(out[name])
    return out


class ClassFitter:
    """Converts values to the fields of a class; `stored` values may have the form in which files hold them.

    >>> from shardex.samples.class_record import record_of; from shardex.samples.packable import packable
    >>> @packable
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> fitter = ClassFitter(record_of(Point), stored=True)
    >>> fitter.sample({"x": 1}, ["x", "y"], lambda _: "sample 0")
    {'x': 1, 'y': 0.5}
    >>> fitter.columns(Columns({"x": ["a"]}), ["x"], lambda k: f"sample {k}")
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int64, got str 'a' - at sample 0, field x of Point
    """

    def __init__(self, record: Record[Any], *, stored: bool, features: Features | None = None) -> None:
        """Prepare for values of a class; `features` replace those of the class."""
        self._record = record
        self._stored = stored
        self._features = record.features if features is None else features
        self._unchanged = {name: feature.fits_unchanged() for name, feature in self._features.items()}

    def sample(self, values: Mapping[str, Any], names: Sequence[str], where: Where) -> dict[str, Any]:
        """Return the values of these fields of one sample."""
        out = {}
        for name in names:
            value = values.get(name, MISSING)
            out[name] = value if self._unchanged[name](value) else self._fit(name, value, 0, where)
        return out

    def columns(self, columns: Columns, names: Sequence[str], where: Where) -> Columns:
        """Return the columns of these fields."""
        missing = [MISSING] * len(columns)
        data = {name: self._column(name, columns.data.get(name, missing), where) for name in names}
        return Columns(data, len(columns))

    def _fit(self, name: str, value: Any, k: int, where: Where) -> Any:
        feature = self._features[name]
        try:
            if value is MISSING or (value is None and not isinstance(feature, Optional | Json)):
                value = self._record.default(name)
            return feature.fit(value, stored=self._stored)
        except SchemaError as error:
            raise located(error, f"{where(k)}, field {name} of {self._record.kind.__name__}") from None

    def _column(self, name: str, column: Column, where: Where) -> Column:
        feature = self._features[name]
        if isinstance(column, list):
            if not feature.stacked and all(map(self._unchanged[name], column)):
                return column
        elif (cast := feature.cast_column(column)) is not None:
            return cast
        values = list(values_of(column))
        for k, value in enumerate(values):
            if value is None or value is MISSING:
                values[k] = self._fit(name, value, k, where)
        try:
            return feature.fit_column(values, where, name, stored=self._stored)
        except SchemaError as error:
            raise SchemaError(f"{error} of {self._record.kind.__name__}") from None
