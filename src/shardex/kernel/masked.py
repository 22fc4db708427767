"""`Masked`: values that may be missing, with a mask. `TimeArray`: times that know their form in samples.

`value_at` and `values_of` return the values of any column as samples hold them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.buffers import Segments
from shardex.kernel.gather import Ranges
from shardex.kernel.ragged import Ragged


class TimeArray(np.ndarray[Any, Any]):
    """A stacked column of dates or times, which knows the form of its values in samples.

    `feature.to_python(array)` returns a list of values in that form. Users get a plain array (`Columns.__getitem__`).
    """

    feature: Any

    def __new__(cls, array: NDArray[Any], feature: Any) -> TimeArray:
        """Return a view of an array of datetime64 or timedelta64."""
        made = array.view(cls)
        made.feature = feature
        return made

    def __array_finalize__(self, made_from: Any) -> None:
        self.feature = getattr(made_from, "feature", None)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return TimeArray, (self.view(np.ndarray), self.feature)

    def to_list(self) -> list[Any]:
        """Return the values as samples hold them."""
        found: list[Any] = self.feature.to_python(self.view(np.ndarray))
        return found


class Masked:
    """Values of a field that may be missing: `mask` is True for each row that has a value.

    Where a value is missing, an array of `values` holds NaN (floats), NaT (times) or zeros, a `Ragged` an empty row.

    >>> m = Masked.spread(np.array([1.5, 2.5]), np.array([True, False, True]))
    >>> m.values, m.mask, m.to_list()
    (array([1.5, nan, 2.5]), array([ True, False,  True]), [1.5, None, 2.5])
    >>> m == [1.5, None, 2.5], np.nanmax(m)
    (True, np.float64(2.5))
    """

    __slots__ = ("column", "mask")

    def __init__(self, column: Any, mask: NDArray[np.bool_]) -> None:
        self.column = column
        self.mask = mask

    @property
    def values(self) -> Any:
        """The values: an array or a `Ragged`."""
        return self.column.view(np.ndarray) if isinstance(self.column, TimeArray) else self.column

    @classmethod
    def spread(cls, present: NDArray[Any] | Ragged, mask: NDArray[np.bool_]) -> Masked:
        """Return a column of all rows, given the present values in the order of their rows."""
        if len(present) == len(mask):
            return cls(present, mask)
        if isinstance(present, np.ndarray):
            values = np.full((len(mask), *present.shape[1:]), missing_value(present.dtype), present.dtype)
            values[mask] = present
            return cls(TimeArray(values, present.feature) if isinstance(present, TimeArray) else values, mask)
        at = np.zeros(len(mask), np.int64)
        at[mask] = np.arange(len(present))
        ranges = present.ranges[at] if len(present) else _no_ranges(len(mask))
        ranges.length[~mask] = 0
        shapes = None if present.shapes is None else np.zeros((len(mask), present.ndim), np.int64)
        if shapes is not None and present.shapes is not None:
            shapes[mask] = present.shapes
        return cls(Ragged(ranges, present.dtype, present.inner, shapes), mask)

    @classmethod
    def whole(cls, column: Masked | NDArray[Any] | Ragged) -> Masked:
        """Return a column as one whose values may be missing; none is, unless it was such a column already."""
        return column if isinstance(column, Masked) else cls(column, np.ones(len(column), np.bool_))

    @property
    def dtype(self) -> Any:
        """The dtype of the values."""
        return self.column.dtype

    def __len__(self) -> int:
        return len(self.mask)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, int | np.integer):
            return value_at(self.column, int(where)) if self.mask[where] else None
        return Masked(self.column[where], self.mask[where])

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Masked | list):
            return NotImplemented
        return len(self) == len(other) and all(map(_equal, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        values = self.values.pad() if isinstance(self.values, Ragged) else self.values
        return np.array(values, dtype, copy=True if copy else None)

    def __repr__(self) -> str:
        return f"Masked({int(self.mask.sum())} of {len(self)} rows: {self.values!r})"

    def to_list(self) -> list[Any]:
        """Return one value per row, `None` where it is missing."""
        if self.mask.all():
            return list(values_of(self.column))
        if not isinstance(self.column, np.ndarray | Ragged):  # tensors, and rows of tensors
            return [self.column[row] if there else None for row, there in enumerate(self.mask.tolist())]
        values = iter(values_of(self.column[self.mask]))
        return [next(values) if there else None for there in self.mask.tolist()]

    def tolist(self) -> list[Any]:
        """Return Python values, lists for arrays; `None` where a value is missing."""
        return [value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in self.to_list()]

    def filled(self, value: Any) -> Masked:
        """Return the column with another value where values are missing."""
        if isinstance(self.column, Ragged) or self.mask.all():
            return self
        values = self.column.copy()
        values[~self.mask] = value
        return Masked(values, self.mask)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a is not None and b is not None and np.array_equal(a, b)
    return bool(a == b)


def missing_value(dtype: np.dtype[Any]) -> Any:
    """Return what stands for a missing value: NaN, NaT or 0.

    >>> [str(missing_value(np.dtype(one))) for one in ("float32", "int8", "M8[s]")]
    ['nan', '0', 'NaT']
    """
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]  # with its unit: numpy deprecates times without one
    return np.nan if dtype.kind in "fc" else 0


def with_missing(present: Any, mask: NDArray[np.bool_]) -> Masked | list[Any]:
    """Return the column of a field whose values may be missing, from the values of the rows that have one.

    >>> with_missing(["a", "b"], np.array([True, False, True]))
    ['a', None, 'b']
    """
    if isinstance(present, list):
        values = iter(present)
        return [next(values) if there else None for there in mask.tolist()]
    return Masked.spread(present.column if isinstance(present, Masked) else present, mask)


def _no_ranges(count: int) -> Ranges:
    zeros = np.zeros(count, np.int64)
    return Ranges(Segments.of(b""), zeros, zeros, zeros.copy())


def value_at(column: Any, row: int) -> Any:
    """Return one value of a column."""
    if isinstance(column, np.ndarray) and column.ndim == 1:
        if isinstance(column, TimeArray):
            return TimeArray(column[row : row + 1], column.feature).to_list()[0]
        return column.item(row) if column.dtype.kind in "biufc" else column[row]
    return column[row]


def values_of(column: Any) -> list[Any]:
    """Return all values of a column."""
    if isinstance(column, Ragged | TimeArray | Masked):
        return column.to_list()
    if isinstance(column, np.ndarray):
        return column.tolist() if column.ndim == 1 and column.dtype.kind in "biufc" else list(column)
    return column  # type: ignore[no-any-return]
