"""Orders that draw samples: `Weighted` and `WeightedOnce` by weights, `Balanced` as often from every class.

Like all orders they compute the row of any position from seed and epoch: a run can continue at any sample, and every
rank computes the same order. Each epoch is another draw. They store a number for each row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers
from shardex.order.mix_order import passes
from shardex.order.order import Blocks, Order, Shuffle, keyed_permutation, map_groups

Floats = NDArray[np.float64]

_BITS = 52
"""Bits of a random fraction: one less than a float64 has, so that half a step can be added to exclude 0."""


def fractions(numbers: Integers, key: str) -> Floats:
    """Return a random number between 0 and 1 (exclusive) for each number, chosen by a key text.

    >>> fractions(np.arange(3), "a").round(3).tolist(), fractions(np.array([2]), "a").round(3).tolist()
    ([0.613, 0.578, 0.639], [0.639])
    """
    drawn = keyed_permutation(1 << _BITS, key).rows(numbers).astype(np.float64)
    return (drawn + 0.5) / float(1 << _BITS)


@dataclass(frozen=True, eq=False, kw_only=True)
class _Draws(Order):
    """Base class of orders that are drawn anew in every epoch."""

    length: int
    seed: int = 0
    epoch: int = 0

    def __len__(self) -> int:
        return self.length

    def later(self, epochs: int) -> Order:
        """Return the draw of a later epoch."""
        return replace(self, epoch=self.epoch + epochs) if epochs else self

    def in_epoch(self, epoch: int) -> Order:
        """Return the draw of an epoch of a run."""
        return self.later(epoch)

    def sample_numbers(self, positions: Integers, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Integers:
        """Return the number of the sample at each position of an epoch in the dataset that is drawn from."""
        return self.for_epoch(epoch, shuffle).rows(positions)

    def _shuffled(self, positions: Integers) -> Integers:
        return Shuffle(self.length, self.seed, self.epoch).rows(positions)


@dataclass(frozen=True, eq=False, kw_only=True)
class Weighted(_Draws):
    """`length` draws with replacement; `ends` are the sums of the weights up to each row.

    The sum of all weights is divided into `length` equal sections, and a random point of each is drawn. So the number
    of times that a row is drawn differs from the expected one, ``length * weight / sum``, by less than 2.

    >>> order = Weighted(length=8, ends=np.cumsum([1.0, 0.0, 3.0]), seed=1)
    >>> order.rows(np.arange(8)).tolist(), order.in_epoch(1).rows(np.arange(8)).tolist()
    ([2, 2, 2, 0, 2, 2, 0, 2], [2, 2, 2, 0, 0, 2, 2, 2])
    """

    ends: Floats

    def rows(self, positions: Integers) -> Integers:
        """Return the row whose weight has the point of each position."""
        section = self._shuffled(positions)
        total = float(self.ends[-1])
        points = (section + fractions(section, f"{self.seed} {self.epoch} points")) * (total / self.length)
        last = int(np.searchsorted(self.ends, total))  # rows after it have no weight; a point may be rounded up
        return np.minimum(np.searchsorted(self.ends, points, "right"), last)


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightedOnce(_Draws):
    """`length` draws without replacement: each draws one of the remaining rows, with a chance by its weight.

    Every row gets a random time, exponential with its weight as the rate; the rows with the first times are drawn. The
    times of all rows are computed once for each epoch.

    >>> order = WeightedOnce(length=3, weights=np.array([1.0, 0.0, 100.0, 1.0]), seed=1)
    >>> order.rows(np.arange(3)).tolist(), order.in_epoch(1).rows(np.arange(3)).tolist()
    ([2, 3, 0], [2, 3, 0])
    """

    weights: Floats

    @cached_property
    def _drawn(self) -> Integers:
        where = np.flatnonzero(self.weights)
        chances = fractions(where, f"{self.seed} {self.epoch} times")
        times = np.log(-np.log(chances)) - np.log(self.weights[where])  # logarithms: weights may be tiny
        first = np.argpartition(times, self.length - 1)[: self.length] if self.length < len(times) else slice(None)
        return where[first][np.argsort(times[first], kind="stable")]

    @cached_property
    def _epochs(self) -> dict[int, Order]:
        """The order of the last epoch that was asked for: it takes long to compute."""
        return {}

    def later(self, epochs: int) -> Order:
        """Return the draw of a later epoch."""
        if epochs and epochs not in self._epochs:
            self._epochs.clear()
            self._epochs[epochs] = super().later(epochs)
        return self._epochs[epochs] if epochs else self

    def rows(self, positions: Integers) -> Integers:
        """Return the row that is drawn at each position."""
        return self._drawn[positions]


@dataclass(frozen=True, eq=False, kw_only=True)
class Balanced(_Draws):
    """`length` draws, equally many of every class; `chosen` has the rows class by class, `starts` their bounds.

    No row of a class is drawn again before all rows of the class were drawn, also over several epochs, and every pass
    over a class has another random order.

    >>> order = Balanced(length=6, chosen=np.array([0, 1, 2, 3, 9]), starts=np.array([0, 4, 5]), seed=1)
    >>> order.rows(np.arange(6)).tolist(), order.in_epoch(1).rows(np.arange(6)).tolist()
    ([9, 9, 1, 9, 2, 0], [1, 9, 2, 9, 3, 9])
    """

    chosen: Integers
    starts: Integers

    def rows(self, positions: Integers) -> Integers:
        """Return the row at each position: classes take turns, and the epoch is shuffled."""
        drawn = self._shuffled(positions) + self.epoch * self.length
        rounds, classes = np.divmod(drawn, len(self.starts) - 1)
        return self.chosen[map_groups(classes, rounds, self._of_class)]

    def _of_class(self, number: int, rounds: Integers) -> Integers:
        begin, end = int(self.starts[number]), int(self.starts[number + 1])
        return passes(end - begin, self.seed, number).rows(rounds) + begin
