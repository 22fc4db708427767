"""From position to row: pure functions, vectorised, a few integers of state.

An order has a length and maps positions to rows. Slices and identity are a `Span`, a list of rows is a `Pick`, a
shuffle is a `Shuffle` (a keyed permutation that is computed, not stored), and `Chain` puts one on top of another.
Orders hold no data and know no dataset.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.gather import Integers, permute

__all__ = ["Chain", "Order", "Pick", "Shuffle", "Span", "chain"]


class Order(Protocol):
    """Maps positions to rows."""

    def __len__(self) -> int:
        """How many positions there are."""

    def rows(self, positions: Integers) -> Integers:
        """The row at each position from 0 to len."""


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

    @cached_property
    def _keys(self) -> dict[str, Any]:
        bits = max(1, (self.length - 1).bit_length())
        mask = (1 << bits) - 1
        named = f"shardex shuffle {self.seed} {self.epoch}".encode()
        words = [np.frombuffer(hashlib.blake2b(named, salt=bytes([k])).digest(), "<u8") for k in range(2)]
        multiply: NDArray[np.uint64] = (words[0][:_ROUNDS] | np.uint64(1)) & np.uint64(mask)
        add: NDArray[np.uint64] = words[1][:_ROUNDS] & np.uint64(mask)
        inverse = np.array([pow(int(m), -1, mask + 1) for m in multiply], np.uint64)
        return {"multiply": multiply, "inverse": inverse, "add": add, "shift": (bits + 1) // 2, "mask": mask}

    def rows(self, positions: Integers) -> Integers:
        """Where each position goes."""
        k = self._keys
        return permute(self.length, k["multiply"], k["add"], k["shift"], k["mask"], positions)

    def positions(self, rows: Integers) -> Integers:
        """Where each row comes from."""
        k = self._keys
        return permute(self.length, k["inverse"], k["add"], k["shift"], k["mask"], rows, inverse=True)


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
