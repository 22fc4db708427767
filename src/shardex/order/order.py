"""Orders: pure functions from positions to rows, vectorised, with a few integers as their whole state.

`Span` is the identity or a slice, `Pick` a list of rows, `Shuffle` a permutation that is computed instead of stored,
`Blocks` a shuffle for slow storage; `Chain` applies one order to the result of another, `Repeat` appends the epochs of
an order; `RandomOffset` has every n-th row, from another begin in each epoch, for windows of tokens. Orders hold no
data. `rank_shares.py` divides an epoch among ranks, `mix_order.py` mixes several sources.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError
from shardex.kernel import Integers, gather


class Order(ABC):
    """Maps the positions of a view to rows.

    Subclasses implement `__len__` and `rows`. The other methods are used by runs of several epochs; their defaults are
    right for orders that are the same in all epochs.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of positions."""

    @abstractmethod
    def rows(self, positions: Integers) -> Integers:
        """Return the row at each position, 0 <= position < len."""

    def row(self, position: int) -> int:
        """Return the row at one position."""
        return int(self.rows(np.array([position]))[0])

    def later(self, epochs: int) -> Order:
        """Return the order that is `epochs` epochs later.

        >>> Shuffle(10, seed=1).later(2), Span(10).later(2)
        (Shuffle(length=10, seed=1, epoch=2), Span(length=10, start=0, step=1))
        """
        return self

    def for_epoch(self, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Order:
        """Return the order of one epoch of a run over a dataset that has this order.

        :param shuffle: shuffles the positions, differently in every epoch; None keeps them in order
        """
        order = self.in_epoch(epoch)
        return order if shuffle is None else chain(shuffle.later(epoch), order)

    def in_epoch(self, epoch: int) -> Order:
        """Return the order of one epoch of a run that is not shuffled; the same object if all epochs are the same.

        A shuffled view is the same in every epoch; the windows of a `RandomOffset`, and views of them, are not.
        """
        return self

    def sample_numbers(self, positions: Integers, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Integers:
        """Return the number in the dataset of the sample at each position of an epoch."""
        return positions if shuffle is None else shuffle.later(epoch).rows(positions)

    def identity(self) -> tuple[Order, dict[str, Any]]:
        """Return an order and settings that must be equal in a saved run and the run that resumes it."""
        return self, {}

    def save(self) -> dict[str, Any]:
        """Return values to store in the state of a run in addition to the position, as JSON values."""
        return {}

    def resumed(self, state: Mapping[str, Any], position: int, reweight: bool) -> Order:
        """Return the order of a run that continues from a saved state.

        :param state: a dict that contains the keys `save` returned
        :param position: where the run continues, counted over all epochs
        :param reweight: True if a mixture may have other weights from there on
        """
        return self


def positions_of(order: Order, rows: Integers) -> Integers:
    """Return the position of each row in an order, -1 for rows that are not in it. Computes the whole order.

    >>> positions_of(Span(3, start=10, step=-2), np.array([6, 10, 7])).tolist()
    [2, 0, -1]
    """
    if not len(order):
        return np.full(len(rows), -1)
    there = order.rows(np.arange(len(order)))
    sort = np.argsort(there, kind="stable")
    at = np.minimum(np.searchsorted(there[sort], rows), len(order) - 1)
    return np.where(there[sort[at]] == rows, sort[at], -1)


def split_bounds(length: int, shares: Sequence[float]) -> list[int]:
    """Return the bounds of consecutive parts with these shares of a length; the remainder is one more part.

    >>> split_bounds(10, [0.8]), split_bounds(10, [0.5, 0.5])
    ([0, 8, 10], [0, 5, 10])
    """
    return [round(length * share) for share in np.cumsum([0, *share_list(shares)]).tolist()]


def share_list(shares: Sequence[float]) -> list[float]:
    """Return shares that add up to 1: these, and the remainder if there is one.

    >>> share_list([0.75]), share_list([0.5, 0.5])
    ([0.75, 0.25], [0.5, 0.5])
    """
    if not shares or not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + 1e-9:
        raise ArgumentError(f"expected shares from 0 to 1 that add up to at most 1, got {tuple(shares)}")
    return [*shares, 1 - sum(shares)] if sum(shares) < 1 - 1e-9 else [*shares]


def map_groups(groups: Integers, values: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
    """Call the function with each group and its values; return the results in the order of the values.

    >>> map_groups(np.array([0, 5, 0]), np.array([1, 2, 3]), lambda group, values: values + 100 * group).tolist()
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
class Span(Order):
    """Every `step`-th row, beginning at `start`: the identity, a slice, or a reversed slice.

    >>> Span(5).rows(np.array([0, 4])).tolist(), Span(3, start=10, step=-2).rows(np.arange(3)).tolist()
    ([0, 4], [10, 8, 6])
    """

    length: int
    start: int = 0
    step: int = 1

    def __len__(self) -> int:
        return self.length

    def rows(self, positions: Integers) -> Integers:
        """Return ``start + position * step``."""
        return positions if self.start == 0 and self.step == 1 else positions * self.step + self.start

    def row(self, position: int) -> int:
        """Return ``start + position * step``."""
        return position * self.step + self.start


class Pick(Order):
    """A list of rows, in this order.

    >>> Pick(np.array([7, 3, 7])).rows(np.array([2, 1])).tolist()
    [7, 3]
    """

    def __init__(self, chosen: Integers) -> None:
        self.chosen = np.ascontiguousarray(chosen, np.int64)

    def __len__(self) -> int:
        return len(self.chosen)

    def rows(self, positions: Integers) -> Integers:
        """Return ``chosen[position]``."""
        return self.chosen[positions]

    def row(self, position: int) -> int:
        """Return ``chosen[position]``."""
        return int(self.chosen[position])


_ROUNDS = 8
"""Fewer rounds leave neighbouring rows correlated for powers of two up to 31 (chi-square over 4 000 seeds)."""


class _Permutation:
    """A permutation of [0, length), chosen by a key text."""

    def __init__(self, length: int, key: str) -> None:
        bits = max(1, (length - 1).bit_length())
        mask = (1 << bits) - 1
        text = f"shardex shuffle {key}".encode()
        words = [np.frombuffer(hashlib.blake2b(text, salt=bytes([k])).digest(), "<u8") for k in range(2)]
        multiply: NDArray[np.uint64] = (words[0][:_ROUNDS] | np.uint64(1)) & np.uint64(mask)
        add: NDArray[np.uint64] = words[1][:_ROUNDS] & np.uint64(mask)
        inverse = np.array([pow(int(m), -1, mask + 1) for m in multiply], np.uint64)
        self._forward = length, multiply, add, (bits + 1) // 2, mask
        self._backward = length, inverse, add, (bits + 1) // 2, mask

    def rows(self, positions: Integers) -> Integers:
        """Return the row at each position."""
        return gather.permute(*self._forward, positions)

    def positions(self, rows: Integers) -> Integers:
        """Return the position of each row; the inverse of `rows`."""
        return gather.permute(*self._backward, rows, inverse=True)


keyed_permutation = lru_cache(1024)(_Permutation)
"""Cached: the constants take 20 us to compute, and all reads of an epoch use the same few permutations."""


@dataclass(frozen=True)
class Shuffle(Order):
    """A permutation of [0, length) chosen by seed and epoch; each position is computed without the others.

    Rounds of ``x = x * odd + add; x ^= x >> half`` permute the numbers that have as many bits as the length; a result
    that is not below the length goes through the rounds again. Rounds are invertible, so `positions` is exact.

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
        """Return the row at each position."""
        return keyed_permutation(self.length, f"{self.seed} {self.epoch}").rows(positions)

    def positions(self, rows: Integers) -> Integers:
        """Return the position of each row; the inverse of `rows`."""
        return keyed_permutation(self.length, f"{self.seed} {self.epoch}").positions(rows)

    def later(self, epochs: int) -> Shuffle:
        """Return the shuffle of a later epoch."""
        return replace(self, epoch=self.epoch + epochs)


@dataclass(frozen=True)
class Blocks(Order):
    """A shuffle with few long reads instead of many short ones, for cold disks and object stores.

    Blocks of `size` consecutive rows (the last may be shorter) are shuffled, then the rows within every `window`
    consecutive shuffled blocks. So the samples of a window come from `window` blocks, each of which is read whole.

    >>> order = Blocks(10, size=2, window=2, seed=1); order.rows(np.arange(10)).tolist()
    [4, 6, 5, 7, 8, 2, 3, 9, 0, 1]
    """

    length: int
    size: int
    window: int
    seed: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.window < 1:
            found = f"size {self.size}, window {self.window}"
            raise ArgumentError(f"expected blocks of at least 1 row and windows of at least 1 block, got {found}")

    def __len__(self) -> int:
        return self.length

    # Every shuffled block has a slot of `size` places. The short block leaves a gap at the end of its slot. Places
    # without the gap are consecutive, and a window is a range of them.

    @cached_property
    def _blocks(self) -> Shuffle:
        """Maps slots to blocks."""
        return Shuffle(-(-self.length // self.size), self.seed, self.epoch)

    @cached_property
    def _gap(self) -> tuple[int, int]:
        """Length and end of the gap, in places."""
        gap = -self.length % self.size
        slot = int(self._blocks.positions(np.array([len(self._blocks) - 1]))[0]) if gap else 0
        return gap, (slot + 1) * self.size

    @cached_property
    def _width(self) -> int:
        """Number of places in a window."""
        return max(1, min(self.window, len(self._blocks))) * self.size

    def _with_gap(self, places: Integers) -> Integers:
        gap, end = self._gap
        return places + gap * (places >= end - gap)

    def _without_gap(self, places: Integers) -> Integers:
        gap, end = self._gap
        return places - gap * (places >= end)

    def _window(self, window: int) -> tuple[int, _Permutation]:
        """First place of a window, and the permutation of its places."""
        ends = np.minimum([window * self._width, (window + 1) * self._width], len(self._blocks) * self.size)
        begin, end = self._without_gap(ends).tolist()
        return begin, keyed_permutation(end - begin, f"{self.seed} {self.epoch} window {window}")

    def _shuffle_window(self, window: int, places: Integers) -> Integers:
        begin, permutation = self._window(window)
        return permutation.rows(places - begin) + begin

    def rows(self, positions: Integers) -> Integers:
        """Return the row at each position: shuffled within its window, then looked up in its block."""
        windows = self._with_gap(positions) // self._width
        places = self._with_gap(map_groups(windows, positions, self._shuffle_window))
        slots = places // self.size
        return places + (self._blocks.rows(slots) - slots) * self.size

    def later(self, epochs: int) -> Blocks:
        """Return the shuffle of a later epoch."""
        return replace(self, epoch=self.epoch + epochs)


@dataclass(frozen=True)
class Chain(Order):
    """Composition of two orders: `outer` maps the positions, then `inner` maps its result."""

    outer: Order
    inner: Order

    def __len__(self) -> int:
        return len(self.outer)

    def rows(self, positions: Integers) -> Integers:
        """Return ``inner.rows(outer.rows(positions))``."""
        return self.inner.rows(self.outer.rows(positions))

    def later(self, epochs: int) -> Chain:
        """Return the chain with the outer order of a later epoch; `inner` stays."""
        return Chain(self.outer.later(epochs), self.inner)

    def sample_numbers(self, positions: Integers, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Integers:
        """Return the numbers by the outer order, which chooses among the samples of a dataset."""
        return self.outer.sample_numbers(positions, epoch, shuffle)

    def in_epoch(self, epoch: int) -> Order:
        """Return the chain of the two orders in an epoch."""
        outer, inner = self.outer.in_epoch(epoch), self.inner.in_epoch(epoch)
        return self if outer is self.outer and inner is self.inner else Chain(outer, inner)


def chain(outer: Order, inner: Order) -> Order:
    """Return the order that applies `outer`, then `inner`; simplified if that is possible.

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
    if isinstance(outer, Pick) and inner.in_epoch(1) is inner:
        return Pick(inner.rows(outer.chosen))
    return Chain(outer, inner)


@dataclass(frozen=True)
class Repeat(Order):
    """Several epochs of an order, one after another; a shuffle has a different order in each.

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
        """Return the row at each position, by the order of its epoch."""
        length = max(1, len(self.order))
        epochs = positions // length
        inside = positions - epochs * length  # less than half the cost of %
        if self.order.later(1) is self.order:  # the same in every epoch
            return self.order.rows(inside)
        return map_groups(epochs, inside, lambda epoch, some: self.order.later(epoch).rows(some))


@dataclass(frozen=True)
class RandomOffset(Order):
    """`length` rows, `stride` apart; the first one is below `offsets` and depends on seed and epoch.

    Every offset is used once before one is used again.

    >>> order = RandomOffset(length=3, stride=10, offsets=10, seed=1)
    >>> [order.in_epoch(epoch).rows(np.arange(3)).tolist() for epoch in range(3)]
    [[7, 17, 27], [0, 10, 20], [1, 11, 21]]
    """

    length: int
    stride: int
    offsets: int
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return self.length

    @cached_property
    def offset(self) -> int:
        """The first row of this epoch."""
        times, place = divmod(self.epoch, self.offsets)
        return int(Shuffle(self.offsets, self.seed, times).rows(np.array([place]))[0])

    def rows(self, positions: Integers) -> Integers:
        """Return ``offset + position * stride``."""
        return positions * self.stride + self.offset

    def later(self, epochs: int) -> RandomOffset:
        """Return the order of a later epoch."""
        return replace(self, epoch=self.epoch + epochs) if epochs else self

    def in_epoch(self, epoch: int) -> RandomOffset:
        """Return the order of an epoch of a run, which has another offset."""
        return self.later(epoch)
