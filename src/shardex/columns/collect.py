"""Collects samples, field by field, into Arrow arrays: `collector_of` chooses one of two ways with the same results.

`BufferCollector` copies the values of a sample into one buffer per field, in one call of C (`kernel/_collect.c`):
numbers, text, what is stored as bytes, and arrays of which at most the first size varies (`Collected`). Values of any
other form are first converted by a function of their feature; fields of other features have an encoder (`encoders`).
`EncoderCollector` has an encoder for each field; it is used where no compiler was available.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns.arrow_types import number_array, storage_dtype
from shardex.columns.encoders import Encoder, with_nulls
from shardex.columns.fields import Field, refuse_unknown_fields
from shardex.kernel import MISSING, collect_kernel, pooled_empty

Convert = Callable[[Any], Mapping[str, Any]]
_ROWS, _BYTES = 64, 4096
"""Room of the first buffers: samples, and bytes of values of different sizes."""
_GROWTH = 4
"""Factor by which buffers grow."""
_SMALL = 64 << 10
"""Largest size of the first buffer of arrays."""
_INTEGERS = tuple(np.dtype(code).type for code in "bhilqBHILQ")
_FLOATS = (np.float16, np.float32, np.float64)
MOST_SIZES = 16
"""Most dimensions of arrays that C code collects."""
_NOTHING, _NO_OFFSETS = np.empty(0, np.uint8), np.zeros(1, np.int64)
"""Buffers for no rows."""


_BYTE = np.dtype(np.uint8)


@dataclass(frozen=True, slots=True)
class Collected:
    """How C code collects the values of a field."""

    kind: str
    """Name of a constant of the C module: "INTEGER", "UNSIGNED", "FLOAT", "BOOL", "TEXT", "BYTES", "ENCODED", ..."""
    convert: Callable[[Any], Any] = lambda value: value
    """Returns a value that C takes for one that it does not take; `SchemaError` if it does not fit."""
    dtype: np.dtype[Any] = _BYTE
    shape: tuple[int, ...] = ()
    """Shape of arrays; 0 for the first size if it varies."""
    low: int = 0
    high: int = 0
    """Limits of integers."""
    encode: Callable[[Any], bytes] | None = None
    """Returns the bytes of a value ("ENCODED")."""


def is_compared(rows: int) -> bool:
    """Return whether the size of a batch with so many rows is compared with its limit: 1, 2, 4, 8, every 16th."""
    return rows % 16 == 0 if rows > 16 else rows & (rows - 1) == 0


class Collector(Protocol):
    """Collects samples. If one does not fit, an error is raised and `truncate` must remove what there is of it."""

    field: str | None
    """The field of the last error."""
    outside: bool
    """Whether `extend` is outside of the collector: an error is one of the samples' iterator."""

    @property
    def rows(self) -> int:
        """Number of samples."""

    @property
    def nbytes(self) -> int:
        """Approximate size of the collected values."""

    def append(self, sample: Mapping[str, Any]) -> None:
        """Append a copy of a sample."""

    def extend(self, samples: Iterator[Any], before: int, limit: int, most: int, convert: Convert) -> bool:
        """Append samples until there are `most`, counted with the `before` ones, or `limit` bytes, compared at some.

        Returns False at the end of the samples. `convert` makes mappings of samples that are no dicts.
        """

    def truncate(self, rows: int) -> None:
        """Remove all samples after the first `rows`, and what there is of one that did not fit."""

    def finish(self) -> list[pa.Array]:
        """Return one array per field, and start over."""


def collector_of(features: Mapping[str, Field]) -> Collector:
    """Return a new collector for samples with these fields.

    >>> from shardex.features import Features
    >>> collector = collector_of(Features.of({"x": "int8", "s": str})); collector.append({"x": 1, "s": "a"})
    >>> [array.to_pylist() for array in collector.finish()]
    [[1], ['a']]
    """
    return EncoderCollector(features) if collect_kernel is None else BufferCollector(features)


# -- encoders -------------------------------------------------------------------------------------------------


class EncoderCollector:
    """Collects samples in one encoder per field."""

    def __init__(self, features: Mapping[str, Field]) -> None:
        self.field: str | None = None
        self.outside = False
        self.rows = 0
        self._features = features
        self._encoders = [feature.encoder() for feature in features.values()]
        self._appends = [(name, encoder.append) for name, encoder in zip(features, self._encoders, strict=True)]

    @property
    def nbytes(self) -> int:
        return sum(encoder.nbytes for encoder in self._encoders)

    def append(self, sample: Mapping[str, Any]) -> None:
        self.outside = absent = False
        for name, append in self._appends:
            self.field = name
            try:
                value = sample[name]
            except KeyError:
                value, absent = self._features[name].fit(MISSING), True
            append(value)
        self.field = None
        if absent or len(sample) != len(self._appends):
            refuse_unknown_fields(sample, self._features)
        self.rows += 1

    def extend(self, samples: Iterator[Any], before: int, limit: int, most: int, convert: Convert) -> bool:
        self.outside = True
        for sample in samples:
            given = sample if type(sample) is dict else convert(sample)
            self.outside = False
            self.append(given)
            rows = before + self.rows
            if rows >= most or (is_compared(rows) and self.nbytes >= limit):
                return True
            self.outside = True
        return False

    def truncate(self, rows: int) -> None:
        self.rows = min(self.rows, rows)
        for encoder in self._encoders:
            encoder.truncate(rows)

    def finish(self) -> list[pa.Array]:
        self.rows = 0
        return [encoder.finish() for encoder in self._encoders]


# -- buffers --------------------------------------------------------------------------------------------------


class _Column:
    """One field of a `BufferCollector`: what C is told about it, its buffers, and how they become an array."""

    def __init__(self, name: str, feature: Field) -> None:
        self.name, self.feature = name, feature
        self.encoder: Encoder | None = None
        if (how := feature.collected()) is None:
            how, self.encoder = Collected("CALL"), feature.encoder()
        self.optional = feature.optional and self.encoder is None
        self.kind: int = getattr(collect_kernel, how.kind)
        self.convert, self.encode, self.dtype, self.shape = how.convert, how.encode, how.dtype, how.shape
        self.low, self.high = how.low, how.high
        kinds = (collect_kernel.RAGGED, collect_kernel.TEXT, collect_kernel.BYTES, collect_kernel.ENCODED)
        self.varies = self.kind in kinds
        self.item = self.dtype.itemsize
        fixed = how.shape[1:] if self.kind == collect_kernel.RAGGED else how.shape
        self.width = self.item * math.prod(fixed)
        self.give_up()

    def plan(self) -> tuple[Any, ...]:
        """Return what the constructor of the C object takes for this field."""
        kinds = {collect_kernel.BOOL: (np.bool_,), collect_kernel.FLOAT: _FLOATS}
        types = kinds.get(self.kind, _INTEGERS)
        detail = self.encode or (self.dtype if self.encoder is None else self.encoder.append)
        sizes = (self.item, self.width, self.shape, self.low, self.high)
        return (self.name, self.kind, detail, types, *sizes, self.optional)

    def give_up(self) -> None:
        """Give up the buffers."""
        self.data: NDArray[Any] = _NOTHING
        self.offsets: NDArray[Any] = _NO_OFFSETS
        self.valid: NDArray[Any] = _NOTHING

    def room(self, rows: int, size: int, used: int = 0) -> None:
        """Get buffers for so many rows and, if their sizes vary, bytes; keep the first `used` rows."""
        size = size if self.varies else rows * self.width
        self.data = _resized(self.data, max(1, size), self.used(used))
        if self.varies:
            self.offsets = _resized(self.offsets, rows + 1, used + 1 if used else 0)
            self.offsets[0] = 0
        if self.optional:
            self.valid = _resized(self.valid, rows, used)

    def used(self, rows: int) -> int:
        """Return the size of the first rows."""
        return int(self.offsets[rows]) * self.item if self.varies and rows else rows * self.width

    def array(self, rows: int) -> pa.Array:
        """Return the rows as an array, without a copy; the buffers must not be used again."""
        data = self.data[: self.used(rows)]
        offsets = self.offsets[: rows + 1]
        if self.kind in (collect_kernel.TEXT, collect_kernel.BYTES, collect_kernel.ENCODED):
            kind = self.feature.arrow_type()
            array = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0)
        elif self.kind in (collect_kernel.FIXED, collect_kernel.RAGGED):
            stored = storage_dtype(self.dtype)
            if self.item > stored.itemsize:  # complex numbers are pairs
                offsets = offsets * (self.item // stored.itemsize)
            buffers = [None, pa.py_buffer(offsets)] if self.varies else [None]
            values = number_array(data.view(stored))
            array = pa.Array.from_buffers(self.feature.arrow_type(), rows, buffers, 0, children=[values])
        else:
            array = number_array(data.view(self.dtype))
        valid = self.valid[:rows].view(np.bool_)
        return array if not self.optional or valid.all() else with_nulls(array, valid)


def _resized(old: NDArray[Any], size: int, used: int) -> NDArray[Any]:
    """Return an array of this size whose first `used` items are those of another."""
    new = pooled_empty((size,), old.dtype)
    new[:used] = old[:used]
    return new


class BufferCollector:
    """Collects samples in buffers that C code fills; see `kernel/_collect.c`."""

    def __init__(self, features: Mapping[str, Field]) -> None:
        self.field: str | None = None
        self.outside = False
        self._features = features
        self._columns = [_Column(name, feature) for name, feature in features.items()]
        self._encoders = [column.encoder for column in self._columns if column.encoder is not None]
        self._kernel = collect_kernel.Collector([column.plan() for column in self._columns], np.ndarray)
        width = sum(column.width for column in self._columns if not column.varies)
        self._few = min(16, _SMALL // max(1, width))
        self._first = max(1, min(_ROWS, _SMALL // max(1, width))), [_BYTES] * len(self._columns)
        """Room of the buffers that the next sample gets: rows, and bytes of each field."""
        self._room = 0
        self._start_over()

    def _start_over(self) -> None:
        """Give up the buffers; the next sample gets some, by then perhaps the same memory."""
        for column in self._columns:
            column.give_up()
        self._room = 0
        self._use_buffers(0)

    def _use_buffers(self, rows: int) -> None:
        for number, column in enumerate(self._columns):
            if column.encoder is None:
                offsets, valid = column.offsets if column.varies else None, column.valid if column.optional else None
                self._kernel.set_buffers(number, column.data, offsets, valid)
        self._kernel.set_rows(rows, self._room)

    @property
    def rows(self) -> int:
        return int(self._kernel.state()[0])

    @property
    def nbytes(self) -> int:
        return int(self._kernel.state()[1]) + sum(encoder.nbytes for encoder in self._encoders)

    def append(self, sample: Mapping[str, Any]) -> None:
        self.outside = False
        given = sample if type(sample) is dict else self._plain(sample)
        try:
            stopped = self._kernel.append(given)
        except BaseException:
            self._note_field()
            raise
        if stopped != -1:
            self._resume(given, stopped)

    def extend(self, samples: Iterator[Any], before: int, limit: int, most: int, convert: Convert) -> bool:
        while True:
            bytes_left = 0 if self._encoders else limit  # their sizes are not known to C: it returns to compare them
            try:
                stopped, sample = self._kernel.extend(samples, before, bytes_left, most)
            except BaseException:
                self._note_field()
                raise
            if stopped == -1:
                return False
            if stopped >= 0 and type(sample) is dict:
                self.outside = False
                self._resume(sample, stopped)
            elif stopped >= 0:
                self.outside = True
                self.append(convert(sample))
            rows = before + self.rows
            if rows >= most or (is_compared(rows) and self.nbytes >= limit):
                return True

    def _note_field(self) -> None:
        number = self._kernel.state()[2]
        self.outside = number < 0
        self.field = None if self.outside else self._columns[number].name

    def _plain(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample as a dict, with the values that a mapping makes for names that it lacks."""
        plain = dict(sample)
        for column in self._columns:
            if column.name not in plain:
                try:
                    plain[column.name] = sample[column.name]
                except KeyError:
                    continue
        return plain

    def _resume(self, sample: dict[str, Any], stopped: int) -> None:
        """Store the rest of a sample that C has stopped at: convert values, make room."""
        count, absent, converted, value = len(self._columns), False, -1, None
        while stopped not in (-1, count):
            full = stopped > count
            number = stopped - count - 1 if full else stopped
            column = self._columns[number]
            self.field = column.name
            if full:
                self._make_room(number)
            if full and number == converted:
                pass
            elif column.name not in sample:
                value, absent, converted = column.feature.fit(MISSING), True, number
            elif full:
                value = sample[column.name]
            elif number == converted:
                raise AssertionError(
                    f"expected a value that can be stored, got {value!r:.200} - at field {column.name}"
                )
            else:
                value, converted = column.convert(sample[column.name]), number
            try:
                stopped = self._kernel.resume(sample, number, value)
            except BaseException:
                self._note_field()
                raise
        self.field = None
        if stopped == count or absent:
            refuse_unknown_fields(sample, self._features)
        self._kernel.commit(sample)

    def _make_room(self, number: int) -> None:
        """Make room for another row, or for the bytes of one field."""
        rows, _, needed = self._kernel.state()
        self._kernel.set_rows(rows, rows)  # after an error below, C does not go on with the buffers that it has
        if rows >= self._room:
            grown = _GROWTH * self._room, [column.data.size for column in self._columns]
            room, sizes = grown if self._room else self._first
            for column, size in zip(self._columns, sizes, strict=True):
                column.room(room, size, rows)
            self._room = room
        else:
            column = self._columns[number]
            column.room(self._room, max(needed, 2 * column.data.size), rows)
        self._use_buffers(rows)

    def truncate(self, rows: int) -> None:
        self._kernel.truncate(rows)
        for encoder in self._encoders:
            encoder.truncate(rows)

    def finish(self) -> list[pa.Array]:
        rows = self.rows
        arrays = [c.array(rows) if c.encoder is None else c.encoder.finish() for c in self._columns]
        if rows:
            self._first = rows + max(rows // 8, self._few), [c.used(rows) * 9 // 8 + _BYTES for c in self._columns]
            self._start_over()
        return arrays


MOST_ROWS = sys.maxsize
"""No limit of rows, for `extend`."""
