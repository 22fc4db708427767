"""`ClassLabel`: one of several named classes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import pyarrow as pa

from shardex.columns import Chunks, Collected, Encoder, FieldReader, ReadFile, encoders
from shardex.errors import SchemaError
from shardex.features.codecs import JSON, NUMBER, Codec, codec_for_extension
from shardex.features.feature import Feature, named, unfit
from shardex.features.value import number_reader, python_number
from shardex.kernel import MISSING, Column
from shardex.other_names import CLASS_LABEL, missing_attribute


@dataclass(frozen=True, slots=True, init=False)
class ClassLabel(Feature):
    """One of several named classes, stored as its number. With `num_classes` their names are "0", "1", and so on.

    -1, which is no label in Hugging Face datasets, becomes None in an optional field, and is refused in others.

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
        """The number of classes."""
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
            hint = ", which is no label: declare the field as sx.Optional(sx.ClassLabel(...))" if number == -1 else ""
            raise SchemaError(f"expected a class number below {len(self.names)}, got {number}{hint}")
        return self.names[number]

    def __getattr__(self, name: str) -> Any:
        raise missing_attribute(self, name, CLASS_LABEL)

    # -- as a feature -----------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the number of a class, given by name or by number.

        >>> ClassLabel(("cat", "dog")).fit("dog"), ClassLabel(("cat", "dog")).fit(np.int8(0))
        (1, 0)
        """
        if isinstance(value, str):
            return self.number(value)
        number = python_number(value)
        if not isinstance(number, int) or isinstance(number, bool):
            raise unfit(self, value)
        self.name(number)  # refuses numbers out of range
        return number

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for the numbers of classes."""
        count = len(self.names)
        return lambda value: type(value) is int and 0 <= value < count

    def is_missing(self, value: Any) -> bool:
        """Return True for the number -1, too, with which Hugging Face says that there is no label."""
        return value is None or value is MISSING or (not isinstance(value, str) and bool(python_number(value) == -1))

    @property
    def stacked(self) -> bool:
        """True: columns are arrays of numbers."""
        return True

    def stack(self, fitted: list[Any]) -> Column:
        """Return numbers as an array."""
        return np.array(fitted, np.int32)

    def arrow_type(self) -> pa.DataType:
        """Return the type int32."""
        return pa.int32()

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for integers."""
        return bool(pa.types.is_integer(kind))

    def encoder(self) -> Encoder:
        """Return an encoder of numbers."""
        return encoders.Numbers("int32", (0, len(self.names) - 1), self.fit)

    def collected(self) -> Collected | None:
        """Return how C code collects the numbers of classes."""
        return Collected(
            "INTEGER", lambda value: int(self.fit(value)), np.dtype(np.int32), low=0, high=len(self.names) - 1
        )

    def from_arrow(self, array: pa.Array) -> Column:
        """Return an array of numbers."""
        return np.asarray(array.to_numpy(zero_copy_only=False))

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read the buffer of numbers."""
        return number_reader(self, name, kind, chunks, read_file)

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension cls, of files of digits."""
        return named(field, "cls", NUMBER)

    def codec(self, extension: str) -> Codec:
        """Return the codec of JSON or of digits."""
        known = codec_for_extension(extension)
        return known if known is JSON else NUMBER

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for classes."""
        return {"_type": "ClassLabel", "names": list(self.names)}


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
