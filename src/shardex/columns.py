"""Many values of many fields, as reads return them: `Columns`, and `Ragged` for values of different length.

A column is one of three things: a numpy array stacked along its first axis (numbers, arrays of one shape), a
`Ragged` (arrays of different shape), or a plain list (text, bytes, anything else, `None` where nothing is).
`MISSING` in a list marks a sample that does not have the field at all. Knows nothing of files or schemas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FieldError, SchemaError
from shardex.gather import Integers, Ranges, Segments

__all__ = ["MISSING", "Column", "Columns", "Ragged"]


class _Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Ragged:
    """Arrays of one dtype and different shapes, read but not copied until you say in which form.

    `inner` are the fixed sizes after the free first one; `shapes` (one row each) replaces both when more is free.

    >>> r = Ragged.from_arrays([np.array([1, 2]), np.array([3, 4, 5])])
    >>> r.pad()
    array([[1, 2, 0],
           [3, 4, 5]])
    >>> r.values, r.offsets
    (array([1, 2, 3, 4, 5]), array([0, 2, 5]))
    >>> r[-1]
    array([3, 4, 5])
    """

    __slots__ = ("_packed", "dtype", "inner", "ranges", "shapes")

    def __init__(
        self, ranges: Ranges, dtype: DTypeLike, inner: tuple[int, ...] = (), shapes: Integers | None = None
    ) -> None:
        self.ranges = ranges
        self.dtype = np.dtype(dtype)
        self.inner = inner
        self.shapes = shapes
        self._packed: tuple[NDArray[Any], Integers] | None = None

    @classmethod
    def from_values(
        cls, values: NDArray[Any], offsets: Integers, inner: tuple[int, ...] = (), shapes: Integers | None = None
    ) -> Ragged:
        """Rows that lie end to end in `values`; `offsets` count along its first axis."""
        values = np.ascontiguousarray(values)
        step = values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))
        offsets = np.asarray(offsets, np.int64)
        ranges = Ranges(Segments.of(values.view(np.uint8).reshape(-1) if values.size else b""), np.zeros(len(offsets) - 1),
                        offsets[:-1] * step, np.diff(offsets) * step)  # fmt: skip
        return cls(ranges, values.dtype, inner, shapes)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]]) -> Ragged:
        """Pack arrays of one dtype and one number of dimensions (at least one)."""
        kinds = {(a.dtype, a.ndim) for a in arrays}
        if len(kinds) != 1 or (ndim := next(iter(kinds))[1]) == 0:
            raise SchemaError(f"expected arrays of one dtype and one number of dimensions above 0, got {sorted(map(str, kinds))}")
        offsets = np.zeros(len(arrays) + 1, np.int64)
        inner = {a.shape[1:] for a in arrays}
        if len(inner) == 1 and 0 not in next(iter(inner)):
            np.cumsum([len(a) for a in arrays], out=offsets[1:])
            return cls.from_values(np.concatenate(arrays), offsets, next(iter(inner)))
        np.cumsum([a.size for a in arrays], out=offsets[1:])
        shapes = np.array([a.shape for a in arrays], np.int64).reshape(len(arrays), ndim)
        return cls.from_values(np.concatenate([a.reshape(-1) for a in arrays]), offsets, shapes=shapes)

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, int | np.integer):
            k = range(len(self))[where]
            flat = np.frombuffer(self.ranges[k : k + 1].packed()[0], self.dtype)
            return flat.reshape(self._shape(k))
        shapes = None if self.shapes is None else self.shapes[where]
        return Ragged(self.ranges[where], self.dtype, self.inner, shapes)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {self.dtype}{list(self.inner) or ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged.from_values, (self.values, self.offsets, self.inner, self.shapes)

    def _shape(self, k: int) -> tuple[int, ...]:
        return (-1, *self.inner) if self.shapes is None else tuple(self.shapes[k].tolist())

    @property
    def _step(self) -> int:
        return self.dtype.itemsize * (1 if self.shapes is not None else int(np.prod(self.inner, dtype=np.int64)))

    @property
    def lengths(self) -> Integers:
        """Size of each row along its first axis (in elements, when whole shapes are free)."""
        lengths: Integers = self.ranges.length // self._step
        return lengths

    def _pack(self) -> tuple[NDArray[Any], Integers]:
        if self._packed is None:
            data, offsets = self.ranges.packed()
            values = data.view(self.dtype)
            self._packed = (values if self.shapes is not None else values.reshape(-1, *self.inner)), offsets // self._step
        return self._packed

    @property
    def values(self) -> NDArray[Any]:
        """All rows end to end."""
        return self._pack()[0]

    @property
    def offsets(self) -> Integers:
        """Where each row begins in `values`, and where the last one ends."""
        return self._pack()[1]

    def pad(self, length: int | None = None, value: Any = 0) -> NDArray[Any]:
        """One array of shape (rows, longest, ...), filled up with `value`; `length` sets the longest."""
        if self.shapes is not None:
            return self._pad_shapes(value)
        lengths = self.lengths
        longest = int(lengths.max(initial=0)) if length is None else length
        if longest < int(lengths.max(initial=0)):
            raise SchemaError(f"expected rows of at most {length}, got one of {int(lengths.max())}")
        out = self.ranges.padded(longest * self._step).view(self.dtype).reshape(len(self), longest, *self.inner)
        if value != 0:
            out[~self.mask(longest)] = value
        return out

    def _pad_shapes(self, value: Any) -> NDArray[Any]:
        assert self.shapes is not None
        out = np.full((len(self), *self.shapes.max(axis=0, initial=0).tolist()), value, self.dtype)
        for k, array in enumerate(self.to_list()):
            out[(k, *map(slice, array.shape))] = array
        return out

    def mask(self, length: int | None = None) -> NDArray[np.bool_]:
        """True where `pad` holds a value, false where it was filled up."""
        longest = int(self.lengths.max(initial=0)) if length is None else length
        return np.arange(longest) < self.lengths[:, None]

    def to_list(self) -> list[NDArray[Any]]:
        """One array per row, views of one buffer."""
        values, offsets = self._pack()
        rows = [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        return rows if self.shapes is None else [row.reshape(self._shape(k)) for k, row in enumerate(rows)]


Column = NDArray[Any] | Ragged | list[Any]


class Columns:
    """Fields of `length` samples, one column each.

    >>> c = Columns({"x": np.array([1, 2, 3]), "name": ["a", "b", "c"]})
    >>> len(c), c.names, c["name"]
    (3, ['x', 'name'], ['a', 'b', 'c'])
    >>> c.take([2, 0]).to_samples()
    [{'x': 3, 'name': 'c'}, {'x': 1, 'name': 'a'}]
    """

    __slots__ = ("_length", "data")

    def __init__(self, data: Mapping[str, Column], length: int | None = None) -> None:
        self.data = dict(data)
        if length is None:
            length = len(next(iter(self.data.values()))) if self.data else 0
        self._length = length
        for name, column in self.data.items():
            if len(column) != length:
                raise SchemaError(f"expected {length} values in every column, got {len(column)} - at field {name}")

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: object) -> bool:
        return name in self.data

    def __getitem__(self, name: str) -> Column:
        try:
            return self.data[name]
        except KeyError:
            raise FieldError(f"expected one of the fields {', '.join(self.data)}, got {name!r}") from None

    def __repr__(self) -> str:
        return f"Columns({self._length} rows: {', '.join(self.data)})"

    @property
    def names(self) -> list[str]:
        """The fields."""
        return list(self.data)

    def select(self, names: Sequence[str]) -> Columns:
        """Only these fields, in this order."""
        return Columns({name: self[name] for name in names}, self._length)

    def slice(self, start: int, stop: int) -> Columns:
        """Rows start to stop; arrays are views."""
        start, stop, _ = slice(start, stop).indices(self._length)
        return Columns({name: column[start:stop] for name, column in self.data.items()}, max(0, stop - start))

    def split(self, size: int) -> Iterator[Columns]:
        """Pieces of `size` rows, the last one perhaps shorter."""
        for start in range(0, self._length, size):
            yield self.slice(start, start + size)

    def take(self, rows: Any) -> Columns:
        """These rows, in this order."""
        rows = np.asarray(rows, np.int64)
        return Columns({name: _take(column, rows) for name, column in self.data.items()}, len(rows))

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """All rows of all parts; a field that a part lacks is `MISSING` there."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.data)
        columns = {name: _concat([part.data.get(name, [MISSING] * len(part)) for part in parts]) for name in names}
        return cls(columns, sum(map(len, parts)))

    @classmethod
    def scatter(cls, parts: Sequence[Columns], places: Sequence[Integers]) -> Columns:
        """Undo a grouping: row k of a part goes to the place that `places` names for it.

        >>> parts = [Columns({"x": np.array([1, 3])}), Columns({"x": np.array([2])})]
        >>> Columns.scatter(parts, [np.array([0, 2]), np.array([1])])["x"]
        array([1, 2, 3])
        """
        whole = cls.concat(parts)
        if len(parts) == 1 and len(places[0]) == len(whole) and (np.diff(places[0]) == 1).all():
            return whole
        order = np.empty(len(whole), np.int64)
        order[np.concatenate(places)] = np.arange(len(whole))
        return whole.take(order)

    @classmethod
    def from_samples(cls, samples: Sequence[Mapping[str, Any]]) -> Columns:
        """Turn samples into columns, values as they are (`stack` makes arrays of what has one shape)."""
        if not samples:
            return cls({}, 0)
        names = samples[0].keys()
        if all(sample.keys() == names for sample in samples):
            return cls({name: [sample[name] for sample in samples] for name in names}, len(samples))
        union = dict.fromkeys(name for sample in samples for name in sample)
        return cls({name: [sample.get(name, MISSING) for sample in samples] for name in union}, len(samples))

    def stack(self) -> Columns:
        """Lists of numbers or of arrays with one dtype become numpy arrays or `Ragged`; the rest stays."""
        return Columns({name: _stack(column) for name, column in self.data.items()}, self._length)

    def sample(self, row: int) -> dict[str, Any]:
        """One row as a dict."""
        return {name: v for name, column in self.data.items() if (v := _value(column, row)) is not MISSING}

    def to_samples(self) -> list[dict[str, Any]]:
        """All rows as dicts."""
        lists = [_values(column) for column in self.data.values()]
        names = self.names
        if any(value is MISSING for values in lists for value in values):
            rows = zip(*lists, strict=True)
            return [{n: v for n, v in zip(names, row, strict=True) if v is not MISSING} for row in rows]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)] if lists else [{} for _ in range(self._length)]


def _value(column: Column, row: int) -> Any:
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return column.item(row) if column.dtype.kind in "biufc" else column[row]
    return column[row]


def _values(column: Column) -> Sequence[Any]:
    if isinstance(column, np.ndarray):
        return column.tolist() if column.ndim == 1 and column.dtype.kind in "biufc" else list(column)
    return column.to_list() if isinstance(column, Ragged) else column


def _take(column: Column, rows: Integers) -> Column:
    if isinstance(column, list):
        return [column[k] for k in rows.tolist()]
    return column[rows]


def _concat(columns: list[Any]) -> Column:
    first = columns[0]
    if all(isinstance(c, np.ndarray) and c.dtype == first.dtype and c.shape[1:] == first.shape[1:] for c in columns):
        return np.concatenate(columns)
    if all(isinstance(c, Ragged) and (c.dtype, c.inner) == (first.dtype, first.inner) and c.shapes is None for c in columns):
        ends = np.cumsum([0] + [len(c.values) for c in columns])
        offsets = [c.offsets[:-1] + start for c, start in zip(columns, ends[:-1], strict=True)]
        return Ragged.from_values(np.concatenate([c.values for c in columns]), np.append(np.concatenate(offsets), ends[-1]), first.inner)
    return [value for column in columns for value in _values(column)]


def _stack(column: Column) -> Column:
    if not isinstance(column, list) or not column:
        return column
    kinds = {type(value) for value in column}
    if kinds <= {bool} or kinds <= {int} or kinds <= {float}:
        try:
            return np.array(column, {bool: np.bool_, int: np.int64, float: np.float64}[next(iter(kinds))])
        except OverflowError:
            return column
    if kinds <= {np.ndarray} and len({(v.dtype, v.ndim) for v in column}) == 1 and column[0].ndim:
        same = len({v.shape for v in column}) == 1
        return np.stack(column) if same else Ragged.from_arrays(column)
    return column
