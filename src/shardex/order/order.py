"""From position to row: pure functions, vectorised, a few integers of state.

An order has a length and maps positions to rows. Slices and identity are a `Span`, a list of rows is a `Pick`, a
shuffle is a `Shuffle` (a keyed permutation that is computed, not stored) or, for slow disks, `Blocks`; `Chain` puts
one on top of another, `Concat` and `Repeat` put one after another. Orders hold no data and know no dataset.
`deal.py` shares an epoch among ranks, `blend.py` mixes sources.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardex.errors import RowError, SchemaError
from shardex.kernel import Integers, permute

__all__ = [
    "Blocks",
    "Chain",
    "Concat",
    "Order",
    "Pick",
    "Renewable",
    "Repeat",
    "Shuffle",
    "Span",
    "chain",
    "cut",
    "grouped",
    "of_epoch",
    "positions_of",
]


class Order(Protocol):
    """Maps positions to rows."""

    def __len__(self) -> int:
        """How many positions there are."""

    def rows(self, positions: Integers) -> Integers:
        """The row at each position from 0 to len."""


@runtime_checkable
class Renewable(Protocol):
    """An order that is another one in every epoch."""

    def later(self, epochs: int) -> Order:
        """The order this many epochs later."""


def of_epoch(order: Order, epoch: int) -> Order:
    """What an order becomes in a later epoch: what is shuffled is shuffled anew, all else stays as it is.

    >>> of_epoch(Shuffle(10, seed=1), 2), of_epoch(Span(10), 2)
    (Shuffle(length=10, seed=1, epoch=2), Span(length=10, start=0, step=1))
    """
    return order.later(epoch) if isinstance(order, Renewable) else order


def positions_of(order: Order, rows: Integers) -> Integers:
    """Where rows are in an order, -1 where they are not: looked for among all of it.

    >>> positions_of(Span(3, start=10, step=-2), np.array([6, 10, 7])).tolist()
    [2, 0, -1]
    """
    if not len(order):
        return np.full(len(rows), -1)
    there = order.rows(np.arange(len(order)))
    sort = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[sort], rows), len(order) - 1)
    return np.where(there[sort[at]] == rows, sort[at], -1)


def cut(length: int, shares: Sequence[float]) -> list[int]:
    """Where consecutive parts with these shares of a length begin, and where the last ends; one more part is what they
    leave open.

    >>> cut(10, [0.8]), cut(10, [0.5, 0.5])
    ([0, 8, 10], [0, 5, 10])
    """
    if not shares or not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
        raise SchemaError(f"expected shares from 0 to 1 that add up to at most 1, got {tuple(shares)}")
    whole = (*shares, 1 - sum(shares)) if sum(shares) < 1 - 1e-9 else shares
    return [round(length * share) for share in np.cumsum([0, *whole]).tolist()]


def grouped(groups: Integers, values: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
    """What the function makes of each group's values, put back where they were.

    >>> grouped(np.array([0, 5, 0]), np.array([1, 2, 3]), lambda group, values: values + 100 * group).tolist()
    [1, 502, 3]
    """
    if len(groups) and groups.min() == groups.max():
        return function(int(groups[0]), values)
    out = np.empty(len(values), np.int64)
    by_group = np.argsort(groups, kind="stable")  # a read of consecutive positions is sorted, which makes this cheap
    for places in np.split(by_group, np.flatnonzero(np.diff(groups[by_group])) + 1) if len(groups) else ():
        out[places] = function(int(groups[places[0]]), values[places])
    return out


@dataclass(frozen=True)
class Span:
    """Every `step`-th row from `start` on: identity, slices, reversal.

    >>> Span(5).rows(np.array([0, 4])).tolist(), Span(3, start=10, step=-2).rows(np.arange(3)).tolist()
    ([0, 4], [10, 8, 6])
    """

    length: int
    start: int = 0
    step: int = 1

    def __len__(self) -> int:
        return self.length

    def rows(self, positions: Integers) -> Integers:
        """Arithmetic."""
        return positions if self.start == 0 and self.step == 1 else positions * self.step + self.start

    def positions(self, rows: Integers) -> Integers:
        """The way back."""
        return (rows - self.start) // self.step


class Pick:
    """These rows, in this order.

    >>> Pick(np.array([7, 3, 7])).rows(np.array([2, 1])).tolist()
    [7, 3]
    """

    def __init__(self, chosen: Integers) -> None:
        self.chosen = np.ascontiguousarray(chosen, np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def rows(self, positions: Integers) -> Integers:
        """Look up."""
        return self.chosen[positions]


_ROUNDS = 8
"""Fewer leave neighbours correlated for powers of two up to 31 (measured: chi-square over 4 000 seeds)."""


class _Permutation:
    """A permutation of [0, length) chosen by a name."""

    def __init__(self, length: int, name: str) -> None:
        bits = max(1, (length - 1).bit_length())
        mask = (1 << bits) - 1
        named = f"shardex shuffle {name}".encode()
        words = [np.frombuffer(hashlib.blake2b(named, salt=bytes([k])).digest(), "<u8") for k in range(2)]
        multiply: NDArray[np.uint64] = (words[0][:_ROUNDS] | np.uint64(1)) & np.uint64(mask)
        add: NDArray[np.uint64] = words[1][:_ROUNDS] & np.uint64(mask)
        inverse = np.array([pow(int(m), -1, mask + 1) for m in multiply], np.uint64)
        self._forward = length, multiply, add, (bits + 1) // 2, mask
        self._back = length, inverse, add, (bits + 1) // 2, mask

    def rows(self, positions: Integers) -> Integers:
        """Where each position goes."""
        return permute(*self._forward, positions)

    def positions(self, rows: Integers) -> Integers:
        """Where each row comes from."""
        return permute(*self._back, rows, inverse=True)


_permutation = lru_cache(1024)(_Permutation)
"""The keys take 20 us to make, and every read of a run asks for the same few."""


@dataclass(frozen=True)
class Shuffle:
    """A permutation of [0, length) chosen by seed and epoch, computed position by position.

    Rounds of ``x = x * odd + add; x ^= x >> half`` permute the numbers of just enough bits; a result outside the
    length is sent through again until it is inside. Each round can be undone, so `positions` is the exact inverse.

    >>> order = Shuffle(10, seed=1); order.rows(np.arange(10)).tolist()
    [7, 0, 1, 6, 3, 5, 8, 4, 9, 2]
    >>> order.positions(order.rows(np.arange(10))).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    length: int
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return self.length

    def rows(self, positions: Integers) -> Integers:
        """Where each position goes."""
        return _permutation(self.length, f"{self.seed} {self.epoch}").rows(positions)

    def positions(self, rows: Integers) -> Integers:
        """Where each row comes from."""
        return _permutation(self.length, f"{self.seed} {self.epoch}").positions(rows)

    def later(self, epochs: int) -> Shuffle:
        """Shuffled anew."""
        return replace(self, epoch=self.epoch + epochs)


@dataclass(frozen=True)
class Blocks:
    """A shuffle that reads few places at a time, for cold disks and object stores.

    Blocks of `size` rows (the last may be short) are shuffled, then the rows of every `window` consecutive blocks
    among themselves. So the rows of a window come from `window` blocks, which are read whole.

    >>> order = Blocks(10, size=2, window=2, seed=1); order.rows(np.arange(10)).tolist()
    [4, 6, 5, 7, 8, 2, 3, 9, 0, 1]
    >>> order.positions(order.rows(np.arange(10))).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    length: int
    size: int
    window: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.window < 1:
            found = f"size {self.size}, window {self.window}"
            raise SchemaError(f"expected blocks of at least 1 row and windows of at least 1 block, got {found}")

    def __len__(self) -> int:
        return self.length

    # Each shuffled block has a slot of `size` places. The short one leaves a gap at the end of its slot; without the
    # gap places are consecutive, and a window is a range of them.

    @cached_property
    def _blocks(self) -> Shuffle:
        """Slot to block."""
        return Shuffle(-(-self.length // self.size), self.seed, self.epoch)

    @cached_property
    def _gap(self) -> tuple[int, int]:
        """Length and end of the gap, in places."""
        gap = -self.length % self.size
        slot = int(self._blocks.positions(np.array([len(self._blocks) - 1]))[0]) if gap else 0
        return gap, (slot + 1) * self.size

    @cached_property
    def _width(self) -> int:
        """How many places a window has."""
        return max(1, min(self.window, len(self._blocks))) * self.size

    def _with_gap(self, places: Integers) -> Integers:
        gap, end = self._gap
        return places + gap * (places >= end - gap)

    def _without_gap(self, places: Integers) -> Integers:
        gap, end = self._gap
        return places - gap * (places >= end)

    def _in(self, window: int) -> tuple[int, _Permutation]:
        """Where a window begins, and how it is shuffled."""
        ends = np.minimum([window * self._width, (window + 1) * self._width], len(self._blocks) * self.size)
        begin, end = self._without_gap(ends).tolist()
        return begin, _permutation(end - begin, f"{self.seed} {self.epoch} window {window}")

    def _shuffle(self, window: int, places: Integers) -> Integers:
        begin, permutation = self._in(window)
        return permutation.rows(places - begin) + begin

    def _sort(self, window: int, places: Integers) -> Integers:
        begin, permutation = self._in(window)
        return permutation.positions(places - begin) + begin

    def rows(self, positions: Integers) -> Integers:
        """Shuffle in windows, then look up the blocks."""
        windows = self._with_gap(positions) // self._width
        places = self._with_gap(grouped(windows, positions, self._shuffle))
        slots = places // self.size
        return places + (self._blocks.rows(slots) - slots) * self.size

    def positions(self, rows: Integers) -> Integers:
        """The way back."""
        if len(rows) and rows.max() >= self.length:  # the short block has no such row
            raise RowError(f"expected rows from 0 to {self.length - 1}, got {rows.max()}")
        blocks = rows // self.size
        slots = self._blocks.positions(blocks)
        places = self._without_gap(rows + (slots - blocks) * self.size)
        return grouped(slots // self.window, places, self._sort)

    def later(self, epochs: int) -> Blocks:
        """Shuffled anew."""
        return replace(self, epoch=self.epoch + epochs)


@dataclass(frozen=True)
class Chain:
    """An order of an order: positions go through `outer`, then through `inner`."""

    outer: Order
    inner: Order

    def __len__(self) -> int:
        return len(self.outer)

    def rows(self, positions: Integers) -> Integers:
        """One after the other."""
        return self.inner.rows(self.outer.rows(positions))

    def later(self, epochs: int) -> Chain:
        """With the outer order of that epoch; what it is an order of stays."""
        return Chain(of_epoch(self.outer, epochs), self.inner)


def chain(outer: Order, inner: Order) -> Order:
    """Put `outer` on top of `inner`, simplified where arithmetic allows.

    >>> chain(Span(2, start=1), Span(5, start=10, step=2))
    Span(length=2, start=12, step=2)
    """
    if isinstance(inner, Span):
        if isinstance(outer, Span):
            return Span(outer.length, inner.start + outer.start * inner.step, outer.step * inner.step)
        if inner.start == 0 and inner.step == 1:
            return outer
    if isinstance(outer, Span) and outer == Span(len(inner)):
        return inner
    if isinstance(outer, Pick):
        return Pick(inner.rows(outer.chosen))
    return Chain(outer, inner)


@dataclass(frozen=True)
class Concat:
    """One order after another.

    >>> Concat((Span(2, start=7), Span(2))).rows(np.arange(4)).tolist()
    [7, 8, 0, 1]
    """

    parts: tuple[Order, ...]

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def _starts(self) -> Integers:
        return np.cumsum([0, *map(len, self.parts)], dtype=np.int64)

    def rows(self, positions: Integers) -> Integers:
        """Each part's own."""
        which = np.searchsorted(self._starts, positions, "right") - 1
        return grouped(which, positions, lambda part, some: self.parts[part].rows(some - self._starts[part]))


@dataclass(frozen=True)
class Repeat:
    """An order, epoch after epoch.

    >>> Repeat(Span(2), epochs=2).rows(np.arange(4)).tolist()
    [0, 1, 0, 1]
    >>> Repeat(Shuffle(3), epochs=2).rows(np.arange(6)).tolist()
    [0, 2, 1, 1, 2, 0]
    """

    order: Order
    epochs: int

    def __len__(self) -> int:
        return len(self.order) * self.epochs

    def rows(self, positions: Integers) -> Integers:
        """Each epoch's own."""
        length = max(1, len(self.order))
        epochs = positions // length
        inside = positions - epochs * length  # less than half the cost of %
        if not isinstance(self.order, Renewable):
            return self.order.rows(inside)
        return grouped(epochs, inside, lambda epoch, some: of_epoch(self.order, epoch).rows(some))
