"""Two forms of one value: typed, as an annotated class holds it, and plain, as features describe and files store it.

Numbers, text and arrays are the same in both. Enums are plain as their values, nested classes as dicts, tuples as
lists; arrays may come as the bytes that MessagePack has for them. `Record` is the form of a whole class: its fields,
their features, and the way of a sample to plain values and back. It checks no value against its feature (`fit.py`).
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from shardex.errors import SchemaError
from shardex.kernel import MISSING
from shardex.schema import COMPACT, Array, ClassLabel, Feature, Features, describe, feature_of, hints_of

__all__ = ["Form", "Record", "form_of", "record_of"]

Change = Callable[[Any], Any]
T = TypeVar("T")


class Form(NamedTuple):
    """How a value becomes plain and typed; none where it is the same."""

    plain: Change | None = None
    typed: Change | None = None


def form_of(hint: Any, json: bool = False) -> Form:
    """The forms of what an annotation stands for; in JSON, where arrays are lists, as all is that a dict holds.

    >>> class Kind(enum.Enum):
    ...     CAT = "cat"
    >>> form = form_of(list[Kind] | None)
    >>> form.plain([Kind.CAT]), form.typed(["cat"]), form.typed(None)
    (['cat'], [<Kind.CAT: 'cat'>], None)
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _of_annotated(arguments[0], arguments[1:], json)
    if origin is typing.Literal:
        return Form(*[_one_of(arguments)] * 2)
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in arguments if one is not types.NoneType]
        return Form(*map(_unless_none, form_of(rest[0], json))) if len(rest) == 1 else Form()
    if np.ndarray in (hint, origin):
        return _in_json(feature_of(hint)) if json else Form(_array)
    if list in (hint, origin):
        return (
            Form(*(change and _each(change, list) for change in form_of(arguments[0], json))) if arguments else Form()
        )
    if tuple in (hint, origin):
        return _of_tuple(arguments, json)
    if origin is dict:
        return _of_dict(*arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Form(lambda value: _member(value, hint).value, lambda value: _member(value, hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Form(lambda value: _values(value, hint), lambda value: record_of(hint, json).make(dict(value)))
    return Form()


def _of_tuple(arguments: tuple[Any, ...], json: bool) -> Form:
    """A tuple of any length is a list when it is stored; one of a certain length is JSON, each place by itself."""
    if len(arguments) != 2 or arguments[1] is not ...:
        forms = [form_of(one, json=True) for one in arguments]
        return Form(
            _place_by_place([one.plain for one in forms], list), _place_by_place([one.typed for one in forms], tuple)
        )
    inner = form_of(arguments[0], json)
    return Form(_each(inner.plain, list), _each(inner.typed, tuple))


def _of_annotated(hint: Any, said: tuple[Any, ...], json: bool) -> Form:
    """Where the annotation names the feature, that decides too: classes are numbers when they are stored."""
    form = form_of(hint, json)
    if (array := next((one for one in said if isinstance(one, Array)), None)) is not None:
        return _in_json(array) if json else form if form.plain else Form(_array)
    label = next((one for one in said if isinstance(one, ClassLabel)), None)
    if label is None or hint in (int, int | None):
        return form
    plain, typed = form.plain or _itself, form.typed or _itself
    return Form(
        lambda value: value if type(value) is int else plain(value),
        _unless_none(lambda number: typed(label.name(number))),
    )


def _of_dict(key: Any, value: Any) -> Form:
    """Keys are text when they are stored."""
    form, number = form_of(value, json=True), key is int
    if not number and form == Form():
        return Form()
    plain, typed = form.plain or _itself, form.typed or _itself
    return Form(
        lambda whole: {str(k) if number else k: plain(v) for k, v in _mapping(whole).items()},
        lambda whole: {int(k) if number else k: typed(v) for k, v in _mapping(whole).items()},
    )


def _in_json(feature: Feature) -> Form:
    """The forms of an array that JSON has a list for."""
    dtype = feature.dtype if isinstance(feature, Array) else None
    return Form(_array, lambda value: value if isinstance(value, np.ndarray) else np.asarray(value, dtype))


def _itself(value: Any) -> Any:
    return value


def _mapping(value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise SchemaError(f"expected a dict, got {describe(value)}")
    return value


def _array(value: Any) -> Any:
    return COMPACT.decode(value) if isinstance(value, bytes | memoryview) else value


def _unless_none(change: Change | None) -> Change | None:
    return None if change is None else lambda value: None if value is None else change(value)


def _each(change: Change | None, kind: type) -> Change:
    def all_of(values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise SchemaError(f"expected a {kind.__name__}, got {describe(values)}")
        return kind(values if change is None else map(change, values))

    return all_of


def _place_by_place(all_changes: list[Change | None], kind: type) -> Change:
    def all_of(values: Any) -> Any:
        if not isinstance(values, list | tuple):
            raise SchemaError(f"expected a {kind.__name__}, got {describe(values)}")
        if not all_changes:
            return kind(values)
        if len(values) != len(all_changes):
            raise SchemaError(f"expected {len(all_changes)} values, got {len(values)}")
        return kind(
            value if change is None else change(value) for change, value in zip(all_changes, values, strict=True)
        )

    return all_of


def _one_of(choices: tuple[Any, ...]) -> Change:
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


def _values(value: Any, kind: type) -> Any:
    """The plain form of an instance; a dict of its fields may stand for it."""
    if isinstance(value, Mapping):
        return record_of(kind).plain(value)
    if isinstance(value, kind):
        return record_of(kind).values(value)
    raise SchemaError(f"expected a {kind.__name__}, got {describe(value)}")


class Record(Generic[T]):
    """A dataclass as its fields.

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
        hints = hints_of(kind)
        self.names = tuple(hints)
        self.features = Features.of(kind)
        self.defaults: dict[str, Callable[[], Any]] = {
            field.name: _default_of(field)
            for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # record_of has seen that it is one
            if field.init and _has_default(field)
        }
        """What makes the value of a field that a sample lacks."""
        forms = {name: form_of(hint, json) for name, hint in hints.items()}
        self._plain = {name: form.plain for name, form in forms.items() if form.plain}
        self._typed = [(name, form.typed) for name, form in forms.items() if form.typed]

    def default(self, name: str) -> Any:
        """Return the default of a field in its plain form, `MISSING` if it has none."""
        return self._plained(name, self.defaults[name]()) if name in self.defaults else MISSING

    def plain(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The plain form of values that are typed, or plain already."""
        return {name: self._plained(name, value) for name, value in values.items()}

    def _plained(self, name: str, value: Any) -> Any:
        change = self._plain.get(name)
        try:
            return value if change is None else change(value)
        except SchemaError as error:
            raise SchemaError(f"{error} - at field {name} of {self.kind.__name__}") from None

    def values(self, sample: Any) -> dict[str, Any]:
        """The plain values of a sample, in the order of its fields."""
        return {name: self._plained(name, getattr(sample, name)) for name in self.names}

    def make(self, values: dict[str, Any]) -> T:
        """The sample that has these plain values, which fit; the dict is used up. Values of other fields are left."""
        if len(values) != len(self.names):
            values = {name: values[name] for name in self.names if name in values}
        for name, change in self._typed:
            try:
                values[name] = change(values[name])
            except SchemaError as error:
                raise SchemaError(f"{error} - at field {name} of {self.kind.__name__}") from None
        return self.kind(**values)


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default_of(field: dataclasses.Field[Any]) -> Callable[[], Any]:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory
    return lambda: field.default


_records: tuple[WeakKeyDictionary[type, Record[Any]], ...] = (WeakKeyDictionary(), WeakKeyDictionary())
"""Those of classes, and those of classes that lie in JSON."""


def record_of(kind: type[T], json: bool = False) -> Record[T]:
    """The record of a dataclass, made once."""
    if (known := _records[json].get(kind)) is not None:
        return known
    if not dataclasses.is_dataclass(kind):
        raise SchemaError(f"expected a class made by @packable, got {kind!r}")
    try:
        made = _records[json][kind] = Record(kind, json)
    except RecursionError:
        raise SchemaError(f"expected a class that does not hold itself, got {kind.__name__}") from None
    return made
