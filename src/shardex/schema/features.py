"""The kinds of single values a field can hold: numbers, text, bytes, JSON, arrays, classes. Frozen, and without data.

Those that hold other features, the mapping of all fields and how it is made from types and samples are in `schema.py`.
"""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from shardex.errors import SchemaError

__all__ = ["SCALARS", "Array", "Bytes", "ClassLabel", "Feature", "Json", "Opaque", "Text", "Value", "storable"]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SCALARS = ("bool", *_INTEGERS, "float16", "float32", "float64")
_ARRAY_KINDS = "biufcMm"


@dataclass(frozen=True, slots=True)
class Feature:
    """What one field holds; the classes below say which kinds there are. `str()` gives the short form in messages."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """The JSON form; `Features.from_json` reads it back."""
        plain = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"kind": self.kind, **plain}


@dataclass(frozen=True, slots=True)
class Value(Feature):
    """One number or truth value of a numpy dtype.

    >>> str(Value("int32"))
    'int32'
    """

    kind: ClassVar[str] = "value"
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in SCALARS:
            raise SchemaError(f"expected a dtype out of {', '.join(SCALARS)}, got {self.dtype!r}")

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Text(Feature):
    """A string."""

    kind: ClassVar[str] = "text"

    def __str__(self) -> str:
        return "text"


@dataclass(frozen=True, slots=True)
class Bytes(Feature):
    """Raw bytes."""

    kind: ClassVar[str] = "bytes"

    def __str__(self) -> str:
        return "bytes"


@dataclass(frozen=True, slots=True)
class Json(Feature):
    """Any value that JSON can hold."""

    kind: ClassVar[str] = "json"

    def __str__(self) -> str:
        return "json"


@dataclass(frozen=True, slots=True)
class Array(Feature):
    """A numpy array; `None` in the shape is a free size, no shape any shape, no dtype any dtype.

    >>> str(Array("float32", (100,))), str(Array("uint8", (None, None, 3))), str(Array())
    ('float32[100]', 'uint8[?, ?, 3]', 'any[...]')
    """

    kind: ClassVar[str] = "array"
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", _checked_shape(self.shape))
        if self.dtype is None:
            if self.shape is not None:
                raise SchemaError(f"expected a dtype together with the shape {self.shape}, got none")
            return
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise SchemaError(f"expected a numpy dtype, got {self.dtype!r}: {error}") from None
        if not storable(dtype):
            raise SchemaError(
                f"expected a native dtype of numbers, truth values or times, got {self.dtype!r} "
                "(Array() takes arrays of any dtype)"
            )
        object.__setattr__(self, "dtype", dtype.name)

    def __str__(self) -> str:
        sizes = ["..."] if self.shape is None else ["?" if n is None else str(n) for n in self.shape]
        return f"{self.dtype or 'any'}[{', '.join(sizes)}]"

    @property
    def fixed(self) -> bool:
        """Whether every sample has the same shape."""
        return self.shape is not None and None not in self.shape

    @property
    def ragged(self) -> bool:
        """Whether only the first size is free (and the others hold something)."""
        return self.shape is not None and self.shape[:1] == (None,) and all(self.shape[1:])


def storable(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype lie as they are: numbers, truth values and times, none wider than 64 bits.

    >>> storable(np.dtype("float32")), storable(np.dtype("U3")), storable(np.dtype(">i4"))
    (True, False, False)
    """
    widest = 16 if dtype.kind == "c" else 8
    return dtype.kind in _ARRAY_KINDS and dtype.isnative and dtype.itemsize <= widest


def _checked_shape(shape: Any) -> tuple[int | None, ...]:
    try:
        sizes = tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise SchemaError(f"expected a shape such as (3, None), got {shape!r}") from None
    if any(size is not None and size < 0 for size in sizes):
        raise SchemaError(f"expected sizes of 0 or more, got shape {sizes}")
    return sizes


def _checked_names(names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names) or len({*names}) != len(names):
        raise SchemaError(f"expected a list of different class names, got {names!r}")
    return tuple(names)


@dataclass(frozen=True, slots=True)
class ClassLabel(Feature):
    """One of some named classes, kept as its number.

    >>> label = ClassLabel(("cat", "dog")); label.number("dog"), label.name(0)
    (1, 'cat')
    """

    kind: ClassVar[str] = "class"
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", _checked_names(self.names))

    def __str__(self) -> str:
        return f"class of {len(self.names)}"

    def number(self, name: str) -> int:
        """The number of a class."""
        try:
            return self.names.index(name)
        except ValueError:
            raise SchemaError(f"expected a class out of {', '.join(self.names[:20])}, got {name!r}") from None

    def name(self, number: int) -> str:
        """The name of a class."""
        if not 0 <= number < len(self.names):
            raise SchemaError(f"expected a class number below {len(self.names)}, got {number}")
        return self.names[number]


@dataclass(frozen=True, slots=True)
class Opaque(Feature):
    """A type that only another tool knows (a timestamp, a decimal of an Arrow file); read as Python values."""

    kind: ClassVar[str] = "opaque"
    type: str

    def __str__(self) -> str:
        return self.type


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value
