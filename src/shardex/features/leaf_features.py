"""Features that contain no other features: numbers, text, bytes, JSON, arrays, classes, decimals, nulls.

Frozen dataclasses that are stored as JSON with the data. Dates and times are in `time_features`; lists, structs and
maps in `features`.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import DTypeLike

from shardex.errors import SchemaError

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SCALARS = ("bool", *_INTEGERS, "float16", "float32", "float64")
_ARRAY_KINDS = "biufcMm"
MAX_DIGITS = 76
"""Most digits of a decimal number: those of Arrow's decimal256."""


@dataclass(frozen=True, slots=True)
class Feature:
    """The type of one field; each subclass is one kind. `str()` gives the short form used in messages."""

    kind: ClassVar[str]

    def __str__(self) -> str:
        return self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which `Features.from_json` reads."""
        return {"kind": self.kind, **{f.name: _to_json(getattr(self, f.name)) for f in dataclasses.fields(self)}}


@dataclass(frozen=True, slots=True)
class Value(Feature):
    """One number or boolean of a numpy dtype.

    >>> str(Value("int32")), str(Value(np.int8))
    ('int32', 'int8')
    """

    kind: ClassVar[str] = "value"
    dtype: str

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, dtype: DTypeLike) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.dtype
        if isinstance(given, type | np.dtype):
            object.__setattr__(self, "dtype", dtype_text(given))
        if self.dtype not in SCALARS:
            hint = {"string": ": text is Text()", "binary": ": bytes are Bytes()"}.get(str(self.dtype), "")
            raise SchemaError(f"expected one of the dtypes {', '.join(SCALARS)}, got {self.dtype!r}{hint}")

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Text(Feature):
    """A string."""

    kind: ClassVar[str] = "text"


@dataclass(frozen=True, slots=True)
class Bytes(Feature):
    """Raw bytes."""

    kind: ClassVar[str] = "bytes"


@dataclass(frozen=True, slots=True)
class Json(Feature):
    """Any value that JSON can hold."""

    kind: ClassVar[str] = "json"


@dataclass(frozen=True, slots=True)
class Array(Feature):
    """A numpy array. `None` inside the shape means any size; without a shape or dtype, any is accepted.

    >>> str(Array("float32", (100,))), str(Array("uint8", (None, None, 3))), str(Array())
    ('float32[100]', 'uint8[?, ?, 3]', 'any[...]')
    """

    kind: ClassVar[str] = "array"
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self, dtype: DTypeLike | None = None, shape: SequenceOf[SupportsIndex | None] | None = None
        ) -> None: ...

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
        if not is_storable(dtype):
            raise SchemaError(
                f"expected a native dtype of numbers, booleans or times, got {self.dtype!r} "
                "(Array() takes arrays of any dtype)"
            )
        object.__setattr__(self, "dtype", dtype.name)

    def __str__(self) -> str:
        sizes = ["..."] if self.shape is None else ["?" if n is None else str(n) for n in self.shape]
        return f"{self.dtype or 'any'}[{', '.join(sizes)}]"

    @property
    def fixed(self) -> bool:
        """True if every sample has the same shape."""
        return self.shape is not None and None not in self.shape

    @property
    def ragged(self) -> bool:
        """True if only the first size varies and no other size is 0."""
        return self.shape is not None and self.shape[:1] == (None,) and all(self.shape[1:])


def is_storable(dtype: np.dtype[Any]) -> bool:
    """Return True if `Array` supports this dtype: native numbers of at most 64 bits, complex, booleans, times.

    >>> is_storable(np.dtype("float32")), is_storable(np.dtype("U3")), is_storable(np.dtype(">i4"))
    (True, False, False)
    """
    max_size = 16 if dtype.kind == "c" else 8
    return dtype.kind in _ARRAY_KINDS and dtype.isnative and dtype.itemsize <= max_size


def dtype_text(dtype: Any) -> str:
    """Return the name of a dtype or scalar type, with the byte order if it is not that of the machine.

    >>> dtype_text(np.uint16), dtype_text(np.dtype("<f4")), dtype_text(float)
    ('uint16', 'float32', 'float64')
    """
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        return repr(dtype)
    return found.name if found.isnative else found.str


def _checked_shape(shape: Any) -> tuple[int | None, ...]:
    try:
        sizes = tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise SchemaError(f"expected a shape such as (3, None), got {shape!r}") from None
    if any(size is not None and size < 0 for size in sizes):
        raise SchemaError(f"expected sizes of 0 or more, got shape {sizes}")
    return sizes


@dataclass(frozen=True, slots=True, init=False)
class ClassLabel(Feature):
    """One of several named classes, stored as its number. With `num_classes` their names are "0", "1", and so on.

    >>> label = ClassLabel(("cat", "dog")); label.number("dog"), label.name(0)
    (1, 'cat')
    >>> ClassLabel(num_classes=2)
    ClassLabel(names=('0', '1'))
    """

    kind: ClassVar[str] = "class"
    names: tuple[str, ...]

    def __init__(self, names: SequenceOf[str] | None = None, num_classes: SupportsIndex | None = None) -> None:
        object.__setattr__(self, "names", _class_names(names, num_classes))

    def __str__(self) -> str:
        return f"class of {len(self.names)}"

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.names)

    def number(self, name: str) -> int:
        """Return the number of a class."""
        try:
            return self.names.index(name)
        except ValueError:
            raise SchemaError(f"expected one of the classes {', '.join(self.names[:20])}, got {name!r}") from None

    def name(self, number: int) -> str:
        """Return the name of a class."""
        if not 0 <= number < len(self.names):
            raise SchemaError(f"expected a class number below {len(self.names)}, got {number}")
        return self.names[number]


def _class_names(names: Any, count: Any) -> tuple[str, ...]:
    """Return the names of classes, given as such or by their number."""
    if names is None:
        try:
            number = operator.index(count)
        except TypeError:
            number = -1
        if number < 0:
            raise SchemaError(f"expected the names of classes, or num_classes, got {names!r} and {count!r}")
        return tuple(map(str, range(number)))
    if not isinstance(names, Iterable):
        raise SchemaError(f"expected a list of class names, got {names!r} (their number is num_classes=...)")
    found = tuple(names)
    if isinstance(names, str) or not all(isinstance(name, str) for name in found) or len({*found}) != len(found):
        raise SchemaError(f"expected a list of different class names, got {names!r}")
    if count is not None and count != len(found):
        raise SchemaError(f"expected as many names as num_classes, got {len(found)} names and {count!r}")
    return found


@dataclass(frozen=True, slots=True)
class Opaque(Feature):
    """An Arrow type that has no feature of its own (unions, intervals); read as Python values, never written."""

    kind: ClassVar[str] = "opaque"
    type: str

    def __str__(self) -> str:
        return self.type


@dataclass(frozen=True, slots=True)
class Decimal(Feature):
    """A decimal number of at most `precision` digits (up to 76), `scale` of them after the point.

    >>> str(Decimal(10, 2))
    'decimal(10, 2)'
    """

    kind: ClassVar[str] = "decimal"
    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.precision, int) and 1 <= self.precision <= MAX_DIGITS and isinstance(self.scale, int)):
            raise SchemaError(
                f"expected a precision from 1 to {MAX_DIGITS} and a whole number as scale, "
                f"got {self.precision!r} and {self.scale!r}"
            )

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"


@dataclass(frozen=True, slots=True)
class Null(Feature):
    """No value: every sample has `None`."""

    kind: ClassVar[str] = "null"


def _to_json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value
