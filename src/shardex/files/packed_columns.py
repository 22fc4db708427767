"""`Packing`: how the columns of an index are stored in few bytes a sample, and read again.

A value is stored as the number of units above a base, in the narrowest dtype for all values of its column: positions of
members in a tar, for example, are multiples of 512. Columns that gain nothing stay plain. A column of one value, such
as the length of arrays of one shape, is not stored at all, unless it is the first of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.kernel import Integers

Span = tuple[int, int]
"""Smallest and largest value of a column."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Values are ``base + (stored << shift)``; without a dtype nothing is stored and all values are `base`."""

    base: int
    shift: int
    dtype: np.dtype[Any] | None

    @classmethod
    def plain(cls, span: Span) -> Packing:
        """Return the packing of values as they are, in the narrowest dtype."""
        return cls(0, 0, np.min_scalar_type(span[1]))

    @property
    def is_plain(self) -> bool:
        """Whether the stored numbers are the values."""
        return self.dtype is not None and not self.base and not self.shift

    def pack(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return values as they are stored.

        >>> Packing(1024, 9, np.dtype("uint8")).pack(np.array([1024, 2048]))
        array([0, 2], dtype=uint8)
        """
        assert self.dtype is not None
        if not self.is_plain:
            values = (values.astype(np.int64, copy=False) - self.base) >> self.shift
        return values.astype(self.dtype, copy=False)

    def unpack(self, stored: NDArray[Any]) -> Integers:
        """Return the values of stored numbers.

        >>> Packing(1024, 9, np.dtype("uint8")).unpack(np.array([0, 2], "uint8"))
        array([1024, 2048])
        """
        values: Integers
        if self.shift:
            values = np.left_shift(stored, self.shift, dtype=np.int64, casting="unsafe")
        else:
            values = stored.astype(np.int64)
        if self.base:
            values += self.base
        return values

    def getter(self, stored: NDArray[Any] | None) -> Callable[[int], int]:
        """Return a function from a row to its value.

        >>> Packing(7, 0, None).getter(None)(5)
        7
        """
        base, shift = self.base, self.shift
        if stored is None:
            return lambda row: base
        item: Callable[[int], int] = stored.item
        if self.is_plain:
            return item
        if not base:
            return lambda row: item(row) << shift
        return lambda row: base + (item(row) << shift)


def pack_columns(scans: Sequence[Mapping[str, NDArray[Any]]]) -> tuple[dict[str, Span], dict[str, Packing]]:
    """Return span and packing of each column of some files; files without a column count as zeros.

    >>> spans, packings = pack_columns([{"start": np.array([0, 1 << 20]), "length": np.array([9, 9])}])
    >>> spans, [(one.shift, one.dtype) for one in packings.values()]
    ({'start': (0, 1048576), 'length': (9, 9)}, [(20, dtype('uint8')), (0, None)])
    """
    full = [scan for scan in scans if len(next(iter(scan.values()), ()))]
    spans: dict[str, Span] = {}
    packings: dict[str, Packing] = {}
    for name in dict.fromkeys(name for scan in scans for name in scan):
        found = [scan[name] for scan in full if name in scan]
        spans[name] = _span(name, found, len(found) == len(full))
        packings[name] = _narrowest(found, spans[name], first=not packings)
    return spans, packings


def _span(name: str, columns: list[NDArray[Any]], everywhere: bool) -> Span:
    least = min((int(column.min()) for column in columns), default=0) if everywhere else 0
    if least < 0:
        raise SchemaError(f"expected a scan to return integers from 0 on, got {least} - at column {name}")
    return least, max((int(column.max()) for column in columns), default=0)


def _narrowest(columns: list[NDArray[Any]], span: Span, *, first: bool) -> Packing:
    """Return the packing of the fewest bytes; of equal ones the one that is read fastest."""
    (low, high), plain = span, Packing.plain(span)
    if low == high and not first:
        return Packing(low, 0, None)
    assert plain.dtype is not None
    if plain.dtype.itemsize == 1 or high >= 1 << 63:
        return plain
    found = [plain]
    for base in (0, low):
        shift = _common_zeros(columns, base) if high > base else 0
        found.append(Packing(base, shift, np.min_scalar_type((high - base) >> shift)))
    return min(found, key=lambda one: 0 if one.dtype is None else one.dtype.itemsize)


def _common_zeros(columns: list[NDArray[Any]], base: int) -> int:
    """Return how many of the lowest bits are 0 in all values above a base."""
    bits = 0
    for column in columns:
        bits |= int(np.bitwise_or.reduce(column - column.dtype.type(base) if base else column))
    return (bits & -bits).bit_length() - 1


def packings_of(head: Mapping[str, Any]) -> dict[str, Packing]:
    """Return the packing of each column of a saved index, by its header."""
    return {
        name: Packing(base, shift, np.dtype(f"u{size}") if size else None)
        for name, (base, shift, size) in head["packings"].items()
    }


def to_header(packings: Mapping[str, Packing]) -> dict[str, list[int]]:
    """Return packings as a header of an index holds them.

    >>> to_header({"start": Packing(0, 9, np.dtype("uint32")), "length": Packing(7, 0, None)})
    {'start': [0, 9, 4], 'length': [7, 0, 0]}
    """
    return {
        name: [one.base, one.shift, 0 if one.dtype is None else one.dtype.itemsize] for name, one in packings.items()
    }


def stored(packings: Mapping[str, Packing]) -> dict[str, np.dtype[Any]]:
    """Return the dtypes of the columns that are stored."""
    return {name: one.dtype for name, one in packings.items() if one.dtype is not None}
