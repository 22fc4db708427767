"""Samples and batches as people hold them: `DictSample` and `Batch`, fields by attribute or by name.

Both are made from `Columns` by the layers above and own no way to read more.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardex.columns import MISSING, Column, Columns, Ragged
from shardex.errors import FieldError, RowError, SchemaError

__all__ = ["Batch", "DictSample"]


class DictSample(dict[str, Any]):
    """One sample: a dict whose fields are attributes too.

    >>> s = DictSample(x=1, name="a")
    >>> s.x, s["name"], s == {"x": 1, "name": "a"}
    (1, 'a', True)
    >>> s.y
    Traceback (most recent call last):
    AttributeError: expected one of the fields x, name, got 'y'
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"expected one of the fields {', '.join(self)}, got {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and _same(dict(self), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"DictSample({', '.join(f'{name}={_short(value)}' for name, value in self.items())})"

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of the same values."""
        return dict(self)


class Batch:
    """Many samples, field by field: arrays are stacked, the rest are lists. Also a sequence of samples.

    >>> b = Batch(Columns({"x": np.array([1, 2, 3]), "name": ["a", "b", "c"]}))
    >>> b.x, b["name"], len(b), b[1]
    (array([1, 2, 3]), ['a', 'b', 'c'], 3, DictSample(x=2, name='b'))
    """

    __slots__ = ("columns",)

    columns: Columns

    def __init__(self, columns: Columns) -> None:
        object.__setattr__(self, "columns", columns)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "columns":
            raise AttributeError(name)
        try:
            return self[name]
        except FieldError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self.columns.data[name] = value

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return _without_missing(self.columns[what])
        if isinstance(what, slice):
            start, stop, step = what.indices(len(self))
            some = self.columns.slice(start, stop) if step == 1 else self.columns.take(np.arange(start, stop, step))
            return Batch(some)
        try:
            row = operator.index(what)
        except TypeError:
            raise SchemaError(f"expected a field, a sample's number or a slice, got {what!r}") from None
        if not -len(self) <= row < len(self):
            raise RowError(f"expected a sample from {-len(self)} to {len(self) - 1}, got {what}")
        return DictSample(self.columns.sample(row % len(self)))

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[DictSample]:
        return map(DictSample, self.columns.to_samples())

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.columns.names]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.keys() == other.keys() and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Batch({len(self)} samples: {', '.join(f'{name}={_short(self[name])}' for name in self.keys())})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _batch, (self.columns.data, len(self))

    def keys(self) -> list[str]:
        """The fields."""
        return self.columns.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Fields and their columns."""
        return ((name, self[name]) for name in self.keys())

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of columns."""
        return dict(self.items())

    @property
    def samples(self) -> list[DictSample]:
        """The samples one by one."""
        return list(self)


def _batch(data: dict[str, Column], length: int) -> Batch:
    return Batch(Columns(data, length))


def _without_missing(column: Column) -> Column:
    if isinstance(column, list) and any(value is MISSING for value in column):
        return [None if value is MISSING else value for value in column]
    return column


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.dtype != b.dtype:
            return False
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcMm"))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(value, b[name]) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or bool(a == b)


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Ragged):
        return repr(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"
