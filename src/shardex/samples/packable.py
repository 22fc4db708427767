"""Typed samples: `@packable` makes a class one, `PackableSample` is what all of them are.

A sample is a dataclass with annotated fields. It packs into MessagePack (a map in the order of the fields, arrays in
the compact form, as atdata has it) and comes back from it; datasets, writers and lenses take the class as a schema.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, dataclass_transform, overload

from shardex.errors import FormatError, SchemaError
from shardex.samples.class_record import Record, record_of
from shardex.samples.sample import new_key, same, short
from shardex.schema import MSGPACK, describe, fit, located

__all__ = ["PackableSample", "packable"]

C = TypeVar("C")


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class PackableSample:
    """A typed sample. A class that derives from it is a dataclass, with or without `packable` above it.

    >>> class Reading(PackableSample):
    ...     station: str
    ...     value: float = 0.0
    >>> one = Reading("s1", 0.5)
    >>> one, Reading.from_bytes(one.packed) == one
    (Reading(station='s1', value=0.5), True)
    >>> Reading.from_data({"station": 3})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected text, got int 3 - at field station of Reading
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__()
        _resolve(cls, sys._getframe(1))
        # In the class's own namespace, so that a @dataclass above it does not put in others that cannot compare arrays.
        for name in ("__eq__", "__hash__", "__repr__"):
            if name not in vars(cls):
                setattr(cls, name, getattr(cls, name))
        dataclasses.dataclass(eq=False, repr=False, **options)(cls)
        if taken := [name for name in _names(cls) if name in _OWN]:
            names = ", ".join(taken)
            raise SchemaError(f"expected other field names than {names}, which every sample has - at {cls.__name__}")

    def __eq__(self, other: object) -> bool:
        """Whether all fields are: arrays by dtype, shape and elements, and NaN equals NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, name), getattr(other, name)) for name in _names(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = (f"{name}={short(getattr(self, name))}" for name in _names(self))
        return f"{type(self).__qualname__.rpartition('<locals>.')[2]}({', '.join(values)})"

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """A sample of these values, all of which must fit; fields with a default, or that may be None, can lack.

        Arrays may be given as the bytes that `packed` has for them, enums as their values, nested samples as dicts.
        """
        if not isinstance(data, Mapping):
            raise SchemaError(f"expected a mapping of the fields of {cls.__name__}, got {describe(data)}")
        record = record_of(cls)
        if unknown := [str(name) for name in data if name not in record.features]:
            has = ", ".join(record.names)
            raise SchemaError(f"expected the fields {has} of {cls.__name__}, got {', '.join(unknown)} too")
        return record.make(_fitted(record, record.plain(data)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The sample that `packed` made these bytes of; arrays are read-only views of them."""
        found = MSGPACK.decode(data)
        if not isinstance(found, dict):
            raise FormatError(f"expected the packed map of a {cls.__name__}, got {describe(found)}")
        return cls.from_data(found)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """The sample of plain values that are known to fit, as datasets read them; the dict is used up."""
        return record_of(cls).make(values)

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, as they are stored: enums as their values, nested samples as dicts."""
        return record_of(type(self)).values(self)

    @property
    def packed(self) -> bytes:
        """The sample in MessagePack; values that do not fit their fields are refused."""
        record = record_of(type(self))
        return MSGPACK.encode(_fitted(record, record.values(self)))

    @property
    def as_wds(self) -> dict[str, Any]:
        """What a writer of WebDataset takes: `packed` under a key that no other sample has."""
        return {"__key__": new_key(), "msgpack": self.packed}


_OWN = {name for name in vars(PackableSample) if not name.startswith("__")}


def _names(sample: Any) -> list[str]:
    """The fields of a sample or a class."""
    return [field.name for field in dataclasses.fields(sample)]


def _fitted(record: Record[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Plain values that fit, with defaults in place of those that are not there."""
    out = {}
    for name, feature in record.features.items():
        try:
            out[name] = fit(values[name] if name in values else record.default(name), feature)
        except SchemaError as error:
            raise located(error, f"field {name} of {record.kind.__name__}") from None
    return out


@overload
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def packable(cls: type[C], /) -> type[C]: ...


@overload
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def packable(*, frozen: bool = False, kw_only: bool = False) -> Callable[[type[C]], type[C]]: ...


def packable(cls: type[Any] | None = None, /, **options: bool) -> Any:
    """Make a class a typed sample: a dataclass that is a `PackableSample` too, and keeps its name.

    Type checkers see the dataclass. Where they should also know `packed` and `from_data`, derive the class from
    `PackableSample`. The options are those of `dataclasses.dataclass`.

    >>> import numpy as np; from numpy.typing import NDArray
    >>> @packable
    ... class Series:
    ...     history: NDArray[np.float32]
    ...     station: str = "unknown"
    >>> Series.from_data({"history": [1, 2, 3]})
    Series(history=float32[3], station='unknown')
    """
    if cls is None:
        return lambda cls: _packable(cls, options, sys._getframe(1))
    return _packable(cls, options, sys._getframe(1))


def _packable(cls: type[Any], options: Mapping[str, bool], frame: types.FrameType) -> type[Any]:
    if not isinstance(cls, type):
        raise SchemaError(f"expected a class with annotated fields, got {describe(cls)}")
    if issubclass(cls, PackableSample):
        if options:
            raise SchemaError(f"expected options with the base: class {cls.__name__}(PackableSample, frozen=True)")
        return cls
    _resolve(cls, frame)
    if not any("__annotations__" in vars(one) for one in cls.__mro__):
        raise SchemaError(f"expected a class with annotated fields, got {cls.__name__} without")
    own = vars(cls).get("__annotations__", {})
    body = {name: vars(cls)[name] for name in own if name in vars(cls)}
    body |= {"__annotations__": dict(own), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    # Derived, not rebuilt: methods that say super() keep working.
    return types.new_class(
        cls.__name__, (cls, PackableSample), dict(options), lambda made: made.update(body, __doc__=cls.__doc__)
    )


def _resolve(cls: type[Any], frame: types.FrameType) -> None:
    """Evaluate annotations that are text where the class is made; what is not known there yet is left for later.

    Later, and in another process, names of a function or of a script may not be found any more.
    """
    own = vars(cls).get("__annotations__", {})
    for name, hint in own.items():
        if isinstance(hint, str):
            try:
                own[name] = eval(hint, vars(sys.modules.get(cls.__module__, types)), {**frame.f_locals})
            except Exception:  # whatever it is, it is said when the fields are first needed
                continue
