"""`Ragged`: arrays of different shapes, copied when they are padded, packed or listed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FormatError, SchemaError
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
        kinds = {f"{a.dtype} of {a.ndim} dimensions" for a in arrays}
        if len(kinds) != 1 or not arrays[0].ndim or arrays[0].dtype.hasobject:
            raise SchemaError(f"expected arrays of one dtype and one number of dimensions above 0, got {sorted(kinds)}")
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
            offsets = ends_of(self.lengths)
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


def ends_of(sizes: Sequence[int] | Integers) -> Integers:
    """Return the offsets of rows of these sizes that lie end to end."""
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends
