"""Typed samples: classes made by `@packable`, with the base class `PackableSample`.

A typed sample is a dataclass with annotated fields. It is packed into MessagePack (a map in the order of the fields,
arrays in the compact format, compatible with atdata) and unpacked. Datasets, writers and lenses take the class as a
schema.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, dataclass_transform, overload

from shardex.errors import FormatError, SchemaError
from shardex.features import codecs, describe
from shardex.samples.class_record import packed_values, record_of, sample_from
from shardex.samples.sample import new_key, same, sample_html, short

C = TypeVar("C")


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
class PackableSample:
    """Base class of typed samples; a subclass becomes a dataclass, with or without `@packable`.

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
        # Set on the class itself: @dataclass on top of it would add methods that cannot compare arrays.
        for name in ("__eq__", "__hash__", "__repr__"):
            if name not in vars(cls):
                setattr(cls, name, getattr(cls, name))
        given = {name: one for name, one in vars(cls).items() if isinstance(one, dataclasses.Field)}
        dataclasses.dataclass(eq=False, repr=False, **options)(cls)
        for name, field in given.items():
            if name not in vars(cls):
                setattr(cls, name, field)  # @dataclass on top of it looks for default factories here
        if reserved := [name for name in _names(cls) if name in _RESERVED]:
            names = ", ".join(reserved)
            raise SchemaError(f"expected other field names than {names}, which every sample has - at {cls.__name__}")

    def __eq__(self, other: object) -> bool:
        """Return whether all fields are equal: arrays by dtype, shape and elements; NaN equals NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(same(getattr(self, name), getattr(other, name)) for name in _names(self))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        values = (f"{name}={short(getattr(self, name))}" for name in _names(self))
        return f"{_title(self)}({', '.join(values)})"

    def _repr_html_(self) -> str:
        values = {name: getattr(self, name) for name in _names(self)}
        return sample_html(_title(self), values, record_of(type(self)).features)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return a sample of these values, which must fit; optional fields and those with a default may be missing.

        Arrays may be the compact bytes of `packed`, enums their values, nested samples dicts.
        """
        return sample_from(cls, data)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the sample of bytes made by `packed`; arrays are read-only views of them."""
        found = codecs.MSGPACK.decode(data)
        if not isinstance(found, dict):
            raise FormatError(f"expected the packed map of a {cls.__name__}, got {describe(found)}")
        return sample_from(cls, found, stored=True)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Self:
        """Return a sample from plain values that are known to fit (datasets call this); may modify the dict."""
        return record_of(cls).make(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields in the form in which they are stored: enums as their values, nested samples as dicts."""
        return record_of(type(self)).values(self)

    @property
    def packed(self) -> bytes:
        """The sample as MessagePack; `SchemaError` if a value does not fit its field."""
        record = record_of(type(self))
        return codecs.MSGPACK.encode(packed_values(record, record.values(self)))

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample for a WebDataset writer: `packed`, and a new unique key."""
        return {"__key__": new_key(), "msgpack": self.packed}


_RESERVED = {name for name in vars(PackableSample) if not name.startswith("__")}


def _title(sample: Any) -> str:
    return type(sample).__qualname__.rpartition("<locals>.")[2]


def _names(sample: Any) -> list[str]:
    """Return the names of the fields of a sample or a class."""
    return [field.name for field in dataclasses.fields(sample)]


@overload
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def packable(cls: type[C], /) -> type[C]: ...


@overload
@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def packable(*, frozen: bool = False, kw_only: bool = False) -> Callable[[type[C]], type[C]]: ...


def packable(cls: type[Any] | None = None, /, **options: bool) -> Any:
    """Make a class a typed sample: a dataclass that is also a `PackableSample`, with the same name.

    Type checkers see a dataclass. For them to also see `packed` and `from_data`, derive the class from `PackableSample`
    instead. The options are those of `dataclasses.dataclass`.

    >>> import numpy as np; from numpy.typing import NDArray
    >>> @packable
    ... class Series:
    ...     history: NDArray[np.float32]
    ...     station: str = "unknown"
    >>> Series.from_data({"history": [1, 2, 3]})
    Series(history=float32[3], station='unknown')
    """
    if cls is None:
        return lambda cls: packable_class(cls, PackableSample, options, sys._getframe(1))
    return packable_class(cls, PackableSample, options, sys._getframe(1))


def packable_class(
    cls: type[Any], base: type[PackableSample], options: Mapping[str, bool], frame: types.FrameType
) -> type[Any]:
    """Return a class with the fields of `cls`, which `frame` has defined, that is derived from `base`."""
    if not isinstance(cls, type):
        raise SchemaError(f"expected a class with annotated fields, got {describe(cls)}")
    if issubclass(cls, base):
        if options:
            raise SchemaError(f"expected options with the base: class {cls.__name__}(PackableSample, frozen=True)")
        return cls
    _resolve(cls, frame)
    if not any("__annotations__" in vars(one) for one in cls.__mro__):
        raise SchemaError(f"expected a class with annotated fields, got {cls.__name__} without")
    own = vars(cls).get("__annotations__", {})
    body = {name: vars(cls)[name] for name in own if name in vars(cls)}
    body |= {"__annotations__": dict(own), "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    # A subclass and not a copy, so that methods that call super() keep working.
    return types.new_class(
        cls.__name__,
        (cls, base),
        dict(options),
        lambda namespace: namespace.update(body, __doc__=cls.__doc__),
    )


def _resolve(cls: type[Any], frame: types.FrameType) -> None:
    """Evaluate annotations that are strings in the frame that makes the class; names not defined yet stay strings.

    Later, and in another process, local names of a function or a script may no longer resolve.
    """
    own = vars(cls).get("__annotations__", {})
    for name, hint in own.items():
        if isinstance(hint, str):
            try:
                own[name] = eval(hint, vars(sys.modules.get(cls.__module__, types)), {**frame.f_locals})
            except Exception:  # reported when the fields are first used
                continue
