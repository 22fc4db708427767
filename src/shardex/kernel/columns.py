"""The result of a read: `Columns`, one column per field; `Ragged` for arrays of different shapes; `Masked`.

A column is one of four things: a numpy array stacked along its first axis (numbers, arrays of one shape), a
`Ragged` (arrays of different shapes), a `Masked` (one of these two, of a field whose values may be missing), or a list
(text, bytes, anything else; `None` for a missing value). `MISSING` in a list marks a sample that does not have the
field at all. Other rooms handle files and schemas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FormatError, SchemaError, unknown_field
from shardex.kernel.buffers import Integers, Segments
from shardex.kernel.gather import Ranges


class _Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Ragged:
    """Arrays of one dtype and different shapes; bytes are copied only by `pad`, `values`, `to_list` etc.

    The size of the first axis varies, `inner` are the fixed sizes of the other axes. If more axes vary, `shapes` has
    the whole shape of each row.

    >>> r = Ragged.from_arrays([np.array([1, 2]), np.array([3, 4, 5])])
    >>> r.pad()
    array([[1, 2, 0],
           [3, 4, 5]])
    >>> r.values, r.offsets
    (array([1, 2, 3, 4, 5]), array([0, 2, 5]))
    >>> r[-1]
    array([3, 4, 5])
    """

    __slots__ = ("_lengths", "_packed", "_step", "dtype", "inner", "ranges", "shapes")

    def __init__(
        self, ranges: Ranges, dtype: DTypeLike, inner: tuple[int, ...] = (), shapes: Integers | None = None
    ) -> None:
        self.ranges = ranges
        self.dtype = np.dtype(dtype)
        self.inner = inner
        self.shapes = shapes
        self._step = self.dtype.itemsize * (1 if shapes is not None else math.prod(inner))
        self._lengths: Integers | None = None
        self._packed: tuple[NDArray[Any], Integers] | None = None

    @classmethod
    def from_values(
        cls, values: NDArray[Any], offsets: Integers, inner: tuple[int, ...] = (), shapes: Integers | None = None
    ) -> Ragged:
        """Make a Ragged of rows that lie end to end in `values`; `offsets` count along its first axis."""
        values = np.ascontiguousarray(values)
        ends = np.asarray(offsets, np.int64) * (values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
        ranges = Ranges(Segments.of(values), np.zeros(len(ends) - 1, np.int64), ends[:-1], np.diff(ends))
        return cls(ranges, values.dtype, inner or values.shape[1:], shapes)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]], *, shaped: bool = False) -> Ragged:
        """Pack arrays of one dtype and one number of dimensions (at least one).

        :param shaped: keep the whole shape of each row, even if only their first sizes differ
        """
        kinds = {f"{a.dtype} of {a.ndim} dimensions" for a in arrays}
        if len(kinds) != 1 or not arrays[0].ndim or arrays[0].dtype.hasobject:
            raise SchemaError(f"expected arrays of one dtype and one number of dimensions above 0, got {sorted(kinds)}")
        inner = {a.shape[1:] for a in arrays}
        if not shaped and len(inner) == 1 and 0 not in arrays[0].shape[1:]:
            return cls.from_values(np.concatenate(arrays), _ends([len(a) for a in arrays]))
        flat = np.concatenate([a.reshape(-1) for a in arrays])
        return cls.from_values(
            flat, _ends([a.size for a in arrays]), shapes=np.array([a.shape for a in arrays], np.int64)
        )

    @classmethod
    def from_stacked(cls, rows: NDArray[Any], *, shaped: bool = False) -> Ragged:
        """Return arrays of one shape as arrays whose first sizes may differ; `shaped` as in `from_arrays`."""
        count, size, *inner = rows.shape
        if shaped or 0 in inner:
            shapes = np.tile(np.array(rows.shape[1:], np.int64), (count, 1))
            ends = np.arange(count + 1) * (rows.size // max(1, count))
            return cls.from_values(rows.reshape(-1), ends, shapes=shapes)
        return cls.from_values(rows.reshape(count * size, *inner), np.arange(count + 1) * size, tuple(inner))

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, where: Any) -> Any:
        if isinstance(where, int | np.integer):
            k = range(len(self))[where]
            return self._shaped(self.ranges[k : k + 1].packed()[0], k)
        shapes = None if self.shapes is None else self.shapes[where]
        return Ragged(self.ranges[where], self.dtype, self.inner, shapes)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {self.dtype}{list(self.inner) or ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Ragged.from_values, (self.values, self.offsets, self.inner, self.shapes)

    def _shaped(self, flat: NDArray[Any], k: int) -> NDArray[Any]:
        shape = (-1, *self.inner) if self.shapes is None else self.shapes[k].tolist()
        try:
            return flat.view(self.dtype).reshape(shape)
        except ValueError:
            raise FormatError(f"row {k}: expected {self.dtype} of shape {shape}, got {flat.nbytes} bytes") from None

    @property
    def ndim(self) -> int:
        """Number of dimensions of each row."""
        return 1 + len(self.inner) if self.shapes is None else self.shapes.shape[1]

    @property
    def lengths(self) -> Integers:
        """Size of each row along its first axis; number of its elements if all axes vary."""
        if self._lengths is None:
            lengths = self.ranges.length // self._step
            wrong = lengths * self._step != self.ranges.length
            if wrong.any():
                k = int(wrong.argmax())
                found = self.ranges.length[k]
                raise FormatError(f"row {k}: expected elements of {self._step} bytes, got {found} bytes")
            self._lengths = lengths
        return self._lengths

    def _pack(self) -> tuple[NDArray[Any], Integers]:
        if self._packed is None:
            offsets = _ends(self.lengths)
            values = self.ranges.packed()[0].view(self.dtype)
            self._packed = (values if self.shapes is not None else values.reshape(-1, *self.inner)), offsets
        return self._packed

    @property
    def values(self) -> NDArray[Any]:
        """All rows end to end."""
        return self._pack()[0]

    @property
    def offsets(self) -> Integers:
        """Start of each row in `values`, followed by the end of the last row."""
        return self._pack()[1]

    def packed(self) -> Ragged:
        """Return the same rows copied end to end into new memory."""
        return Ragged.from_values(self.values, self.offsets, self.inner, self.shapes)

    def pad(self, length: int | None = None, value: Any = 0) -> NDArray[Any]:
        """Return one array of shape (rows, longest, ...), padded with `value`; `length` overrides the longest."""
        longest, *sizes = self._padded_shape(length)
        if self.shapes is not None:
            out = np.full((len(self), longest, *sizes), value, self.dtype)
            for target, array in zip(out, self.to_list(), strict=True):
                target[tuple(slice(size) for size in array.shape)] = array
            return out
        out = self.ranges.padded(longest * self._step).view(self.dtype).reshape(len(self), longest, *self.inner)
        if value != 0:
            out[~self.mask(longest)] = value
        return out

    def mask(self, length: int | None = None) -> NDArray[np.bool_]:
        """Return an array that is True where `pad` has a value and False in the padding, over the axes that vary."""
        sizes = self.lengths if self.shapes is None else self.shapes
        return value_mask(sizes, self._padded_shape(length))

    def _padded_shape(self, length: int | None) -> list[int]:
        """Return the sizes of the smallest array that holds every row; `length` may enlarge the first size."""
        free = self.lengths if self.shapes is None else self.shapes
        longest, *rest = [int(free.max(initial=0))] if self.shapes is None else free.max(axis=0, initial=0).tolist()
        if length is not None and length < longest:
            raise SchemaError(f"expected rows of at most {length}, got one of {longest}")
        return [longest if length is None else length, *rest, *self.inner]

    def to_list(self) -> list[NDArray[Any]]:
        """Return one array per row, views of one buffer."""
        values, offsets = self._pack()
        rows = [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        return rows if self.shapes is None else [self._shaped(row, k) for k, row in enumerate(rows)]


def value_mask(sizes: Integers, padded: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of the padded sizes that is True where rows of these lengths (or shapes) have a value.

    >>> value_mask(np.array([1, 2]), [2]).tolist()
    [[True, False], [True, True]]
    """
    free = sizes[:, None] if sizes.ndim == 1 else sizes
    out = np.ones(len(sizes), np.bool_)
    for axis, longest in enumerate(padded[: free.shape[1]]):
        inside = np.arange(longest) < free[:, axis, None]
        out = out[..., None] & inside.reshape(len(sizes), *[1] * axis, longest)
    return out


def _ends(sizes: Sequence[int] | Integers) -> Integers:
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


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
        """Make a column of the values that are present, in the order of the rows that have one."""
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
            return _value(self.column, int(where)) if self.mask[where] else None
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
            return list(_values(self.column))
        values = iter(_values(self.column[self.mask]))
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

    >>> [missing_value(np.dtype(one)) for one in ("float32", "int8", "M8[s]")]
    [nan, 0, np.datetime64('NaT')]
    """
    if dtype.kind in "mM":
        return (np.datetime64 if dtype.kind == "M" else np.timedelta64)("NaT")
    return np.nan if dtype.kind in "fc" else 0


def with_missing(present: Column, mask: NDArray[np.bool_]) -> Column:
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


Column = NDArray[Any] | Ragged | Masked | list[Any]


class Columns:
    """Values of several fields for `length` samples, one column per field.

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

    def __getitem__(self, name: str) -> Any:  # the kind of column depends on the field
        try:
            column = self.data[name]
            return column.view(np.ndarray) if isinstance(column, TimeArray) else column
        except KeyError:
            raise unknown_field(name, self.data) from None

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def __repr__(self) -> str:
        return f"Columns({self._length} rows: {', '.join(self.data)})"

    @property
    def names(self) -> list[str]:
        """Names of the fields."""
        return list(self.data)

    def select(self, names: Sequence[str]) -> Columns:
        """Return only these fields, in this order."""
        return Columns({name: self.data[name] if name in self.data else self[name] for name in names}, self._length)

    def slice(self, start: int, stop: int) -> Columns:
        """Return rows start to stop; arrays are views."""
        start, stop, _ = slice(start, stop).indices(self._length)
        return Columns({name: column[start:stop] for name, column in self.data.items()}, max(0, stop - start))

    def split(self, size: int) -> Iterator[Columns]:
        """Yield pieces of `size` rows; the last one may be shorter."""
        for start in range(0, self._length, size):
            yield self.slice(start, start + size)

    def take(self, rows: Any) -> Columns:
        """Return these rows, in this order."""
        rows = np.asarray(rows, np.int64)
        return Columns({name: _take(column, rows) for name, column in self.data.items()}, len(rows))

    @classmethod
    def concat(cls, parts: Sequence[Columns]) -> Columns:
        """Return the rows of all parts; a field that a part lacks is `MISSING` there."""
        if len(parts) == 1:
            return parts[0]
        names = dict.fromkeys(name for part in parts for name in part.data)
        columns = {name: _concat([part.data.get(name, [MISSING] * len(part)) for part in parts]) for name in names}
        return cls(columns, sum(map(len, parts)))

    @classmethod
    def scatter(cls, parts: Sequence[Columns], places: Sequence[Integers]) -> Columns:
        """Undo a grouping: row k of part p becomes row ``places[p][k]`` of the result.

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
        """Return samples as columns: lists of unchanged values (`stack` converts them to arrays)."""
        if not samples:
            return cls({}, 0)
        names = samples[0].keys()
        if all(sample.keys() == names for sample in samples):
            return cls({name: [sample[name] for sample in samples] for name in names}, len(samples))
        union = dict.fromkeys(name for sample in samples for name in sample)
        return cls({name: [sample.get(name, MISSING) for sample in samples] for name in union}, len(samples))

    def stack(self) -> Columns:
        """Turn lists of numbers or of arrays of one dtype into arrays or `Ragged`, with `None` into `Masked`."""
        return Columns({name: _stack(column) for name, column in self.data.items()}, self._length)

    def sample(self, row: int) -> dict[str, Any]:
        """Return one row as a dict."""
        return {name: v for name, column in self.data.items() if (v := _value(column, row)) is not MISSING}

    def to_samples(self) -> list[dict[str, Any]]:
        """Return all rows as dicts."""
        if not self.data:
            return [{} for _ in range(self._length)]
        rows = zip(*map(_values, self.data.values()), strict=True)
        samples = [dict(zip(self.data, row, strict=True)) for row in rows]
        for name, column in self.data.items():
            if isinstance(column, list):
                for sample, value in zip(samples, column, strict=True):
                    if value is MISSING:
                        del sample[name]
        return samples


def _value(column: Any, row: int) -> Any:
    if isinstance(column, np.ndarray) and column.ndim == 1:
        if isinstance(column, TimeArray):
            return TimeArray(column[row : row + 1], column.feature).to_list()[0]
        return column.item(row) if column.dtype.kind in "biufc" else column[row]
    return column[row]


def _values(column: Any) -> Sequence[Any]:
    if isinstance(column, Ragged | TimeArray | Masked):
        return column.to_list()
    if isinstance(column, np.ndarray):
        return column.tolist() if column.ndim == 1 and column.dtype.kind in "biufc" else list(column)
    return column  # type: ignore[no-any-return]


def _take(column: Column, rows: Integers) -> Column:
    if isinstance(column, list):
        return [column[k] for k in rows.tolist()]
    return column[rows]


def _concat(columns: list[Any]) -> Column:
    columns = [column for column in columns if len(column)] or columns[:1]
    first = columns[0]
    if all(isinstance(c, np.ndarray) and c.dtype == first.dtype and c.shape[1:] == first.shape[1:] for c in columns):
        if any(isinstance(c, TimeArray) for c in columns):
            return _concat_times(columns)
        return np.concatenate(columns)
    if all(isinstance(c, Ragged) and c.dtype == first.dtype and c.ndim == first.ndim for c in columns):
        return _concat_ragged(columns)
    if any(isinstance(column, Masked) for column in columns) and (masked := _concat_masked(columns)) is not None:
        return masked
    return [value for column in columns for value in _values(column)]


def _concat_times(columns: list[Any]) -> Column:
    features = [getattr(column, "feature", None) for column in columns]
    if any(feature != features[0] for feature in features):
        return [value for column in columns for value in _values(column)]
    return TimeArray(np.concatenate([column.view(np.ndarray) for column in columns]), features[0])


def _concat_masked(columns: list[Any]) -> Masked | None:
    """Return columns of which some may have missing values as one; `None` if the values do not stack."""
    masks, present = [], []
    for column in columns:
        if isinstance(column, list):
            if any(value is not None and value is not MISSING for value in column):
                return None
            masks.append(np.zeros(len(column), np.bool_))
            continue
        one = Masked.whole(column)
        masks.append(one.mask)
        present.append(one.column if one.mask.all() else one.column[one.mask])
    values = _concat(present)
    return None if isinstance(values, list | Masked) else Masked.spread(values, np.concatenate(masks))


def _concat_ragged(columns: list[Ragged]) -> Ragged:
    if any(c.shapes is not None or c.inner != columns[0].inner for c in columns):
        shaped = all(column.shapes is not None for column in columns)
        return Ragged.from_arrays([row for column in columns for row in column.to_list()], shaped=shaped)
    lengths = np.concatenate([column.lengths for column in columns])
    return Ragged.from_values(np.concatenate([column.values for column in columns]), _ends(lengths), columns[0].inner)


def _stack(column: Column) -> Column:
    if not isinstance(column, list) or not column:
        return column
    first, kinds = column[0], {type(value) for value in column}
    if type(None) in kinds and len(kinds) > 1:
        present = _stack([value for value in column if value is not None])
        mask = np.array([value is not None for value in column], np.bool_)
        return column if isinstance(present, list) else with_missing(present, mask)
    if len(kinds) == 1 and (kinds <= {bool, int, float} or isinstance(first, np.number | np.bool_)):
        try:
            return np.array(column, np.int64 if type(first) is int else None)
        except OverflowError:
            return column
    if not kinds <= {np.ndarray} or first.ndim == 0 or first.dtype.hasobject:
        return column
    if len({(value.dtype, value.ndim) for value in column}) > 1:
        return column
    return np.stack(column) if len({value.shape for value in column}) == 1 else Ragged.from_arrays(column)
