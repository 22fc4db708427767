"""`Ragged`: arrays of different shapes, copied when they are padded, packed or listed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FormatError, SchemaError
from shardex.kernel.array_pool import pooled_empty
from shardex.kernel.buffers import Integers, Segments
from shardex.kernel.gather import Ranges


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
        ends = np.asarray(offsets, np.int64) * (values.itemsize * math.prod(values.shape[1:]))
        ranges = Ranges(Segments.of(values), np.zeros(len(ends) - 1, np.int64), ends[:-1], ends[1:] - ends[:-1])
        return cls(ranges, values.dtype, inner or values.shape[1:], shapes)

    @classmethod
    def from_arrays(cls, arrays: Sequence[NDArray[Any]], *, shaped: bool = False) -> Ragged:
        """Pack arrays of one dtype and one number of dimensions (at least one).

        :param shaped: keep the whole shape of each row, even if only their first sizes differ
        """
        kinds = {(a.dtype, a.ndim) for a in arrays}
        if len(kinds) != 1 or not arrays[0].ndim or arrays[0].dtype.hasobject:
            found = sorted({f"{dtype} of {ndim} dimensions" for dtype, ndim in kinds})
            raise SchemaError(f"expected arrays of one dtype and one number of dimensions above 0, got {found}")
        inner = {a.shape[1:] for a in arrays}
        if not shaped and len(inner) == 1 and 0 not in arrays[0].shape[1:]:
            return cls.from_values(np.concatenate(arrays), ends_of([len(a) for a in arrays]))
        flat = np.concatenate([a.reshape(-1) for a in arrays])
        return cls.from_values(
            flat, ends_of([a.size for a in arrays]), shapes=np.array([a.shape for a in arrays], np.int64)
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
        some = Ragged(self.ranges[where], self.dtype, self.inner, shapes)
        if self._lengths is not None:
            some._lengths = self._lengths[where]
        return some

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

    def full_shapes(self) -> Integers:
        """Return the whole shape of each row."""
        if self.shapes is not None:
            return self.shapes
        inner = np.tile(np.array(self.inner, np.int64), (len(self), 1))
        return np.column_stack([self.lengths, inner]) if self.inner else self.lengths[:, None]

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
            packed, ends = self.ranges.packed()
            offsets = ends // self._step if self.ranges.item == self._step else ends_of(self.lengths)
            values = packed.view(self.dtype)
            flat = self.shapes is not None or not self.inner
            self._packed = values if flat else values.reshape(-1, *self.inner), offsets
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
            return self._pad_all(self.shapes, (longest, *sizes), value)
        out = self.ranges.padded(longest * self._step).view(self.dtype).reshape(len(self), longest, *self.inner)
        if value != 0:
            out[~self.mask(longest)] = value
        return out

    def _pad_all(self, shapes: Integers, padded: tuple[int, ...], value: Any) -> NDArray[Any]:
        """Return rows of any shapes in one array; a run is what lies end to end both in its row and in the result."""
        self._check_shapes(shapes)
        out = pooled_empty((len(self), *padded), self.dtype)
        if (shapes == padded).all():
            self.ranges.copy_to(out, np.arange(len(self)) * (out.nbytes // max(1, len(self))))
            return out
        np.copyto(out, value, casting="unsafe")
        axis = len(padded) - 1
        while axis > 0 and (shapes[:, axis] == padded[axis]).all():
            axis -= 1
        item = self.dtype.itemsize * math.prod(padded[axis + 1 :])
        counts = shapes[:, :axis].prod(axis=1)
        row = np.repeat(np.arange(len(self)), counts)
        run = np.arange(len(row)) - np.repeat(ends_of(counts)[:-1], counts)
        length = shapes[row, axis] * item
        target, rest, stride = row * math.prod(padded) * self.dtype.itemsize, run, item * padded[axis]
        for outer in range(axis - 1, -1, -1):
            rest, at = np.divmod(rest, shapes[row, outer])
            target += at * stride
            stride *= padded[outer]
        begin = self.ranges.begin[row] + run * length
        Ranges(self.ranges.segments, self.ranges.which[row], begin, length).copy_to(out, target)
        return out

    def _check_shapes(self, shapes: Integers) -> None:
        """Raise if a row has another number of elements than its shape says."""
        wrong = (shapes.prod(axis=1) * self.dtype.itemsize != self.ranges.length) | (shapes < 0).any(axis=1)
        if wrong.any():
            k = int(wrong.argmax())
            found = f"{self.ranges.length[k]} bytes"
            raise FormatError(f"row {k}: expected {self.dtype} of shape {shapes[k].tolist()}, got {found}")

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
        if self.shapes is None:
            return _slices(values, offsets)
        try:
            return arrays_of(values, self.lengths, self.shapes.reshape(-1), np.full(len(self), self.ndim))
        except FormatError:
            for k, row in enumerate(_slices(values, offsets)):
                self._shaped(row, k)  # raises an error that names the row
            raise


def arrays_of(values: NDArray[Any], lengths: Integers, sizes: Integers, ndims: Integers) -> list[NDArray[Any]]:
    """Return one array per row, views of the elements of all rows end to end.

    :param lengths: number of elements of each row
    :param sizes: shapes of all rows, end to end
    :param ndims: number of sizes of each row

    >>> arrays_of(np.arange(5), np.array([4, 1]), np.array([2, 2]), np.array([2, 0]))
    [array([[0, 1],
           [2, 3]]), array(4)]
    """
    if not len(ndims):
        return []
    if sizes.min(initial=0) < 0:
        raise FormatError(f"expected sizes of arrays, got {sizes.min()}")
    ndim = int(ndims[0])
    if not ndim or (ndims != ndim).any():
        ends = ends_of(ndims).tolist()
        return _in_shapes(values, lengths, [sizes[a:b].tolist() for a, b in pairwise(ends)])
    if ndim == 1 and (sizes == lengths).all():
        return _slices(values, ends_of(lengths))
    shapes = sizes.reshape(-1, ndim)
    shape = shapes[0].tolist()
    if (shapes == shapes[0]).all() and (lengths == math.prod(shape)).all():
        return list(values.reshape(len(shapes), *shape))
    return _in_shapes(values, lengths, shapes.tolist())


def _slices(values: NDArray[Any], offsets: Integers) -> list[NDArray[Any]]:
    return [values[a:b] for a, b in pairwise(offsets.tolist())]


def _in_shapes(values: NDArray[Any], lengths: Integers, shapes: list[list[int]]) -> list[NDArray[Any]]:
    rows = _slices(values, ends_of(lengths))
    try:
        return [row.reshape(shape) for row, shape in zip(rows, shapes, strict=True)]
    except ValueError as error:
        wrong = [k for k, shape in enumerate(shapes) if math.prod(shape) != lengths[k]]
        found = f"shape {shapes[wrong[0]]}, got {lengths[wrong[0]]} elements" if wrong else f"another shape: {error}"
        raise FormatError(f"expected an array of {found}") from None


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


def ends_of(sizes: Sequence[int] | Integers) -> Integers:
    """Return the offsets of rows of these sizes that lie end to end."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
