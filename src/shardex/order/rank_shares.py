"""`RankShares`: how the batches of an epoch are divided among the ranks of a run.

It is arithmetic on positions: every rank computes its part without communication, a run can continue from any
position with any number of ranks, and the global sequence of samples does not depend on how many ranks there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError
from shardex.kernel import Integers
from shardex.order.order import Order


@dataclass(frozen=True)
class RankShares(Order):
    """The positions of an epoch of `length` samples that one rank gets, batch by batch, beginning at `start`.

    Every `batch * world` positions are one batch for each rank, in the order of the ranks. The rest at the end is
    dropped, or divided into shorter batches of equal size, filled up with samples from the beginning of the epoch if
    necessary (see `mask`).

    >>> [RankShares(10, batch=2, rank=rank, world=2).rows(np.arange(5)).tolist() for rank in (0, 1)]
    [[0, 1, 4, 5, 8], [2, 3, 6, 7, 9]]
    """

    length: int
    batch: int
    rank: int = 0
    world: int = 1
    start: int = 0
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            expected = f"a rank from 0 to {self.world - 1} in a world of {self.world}"
            raise ArgumentError(f"expected {expected}, got {self.rank}")
        if self.batch < 1:
            raise ArgumentError(f"expected batches of at least 1 sample, got {self.batch}")
        if not 0 <= self.start <= self.length:
            raise ArgumentError(f"expected a start from 0 to {self.length}, got {self.start}")

    def __len__(self) -> int:
        return self._full * self.batch + self._last

    @cached_property
    def _full(self) -> int:
        """Number of full batches."""
        return (self.length - self.start) // (self.batch * self.world)

    @cached_property
    def _last(self) -> int:
        """Number of samples in the last batch if it is not full, else 0."""
        left = (self.length - self.start) % (self.batch * self.world)
        return 0 if self.drop_last else -(-left // self.world)

    @property
    def batches(self) -> int:
        """Number of batches of each rank.

        >>> RankShares(10, batch=2, world=2).batches, RankShares(10, batch=2, world=2, drop_last=True).batches
        (3, 2)
        """
        return self._full + (self._last > 0)

    def span(self, number: int) -> tuple[int, int]:
        """Return begin and end of a batch among the samples of this rank.

        >>> RankShares(10, batch=2, world=2).span(2)
        (4, 5)
        """
        return number * self.batch, min((number + 1) * self.batch, len(self))

    def _unwrapped(self, numbers: Integers) -> Integers:
        """Positions of samples; those that fill up the last batch are beyond the end of the epoch."""
        others = (self.world - 1) * self.batch
        positions = numbers + numbers // self.batch * others + (self.start + self.rank * self.batch)
        positions[numbers >= self._full * self.batch] -= self.rank * (self.batch - self._last)
        return positions

    def rows(self, numbers: Integers) -> Integers:
        """Return the position in the epoch of each of this rank's samples."""
        if self.world == 1:  # batches need not be filled up
            return numbers + self.start
        positions = self._unwrapped(numbers)
        beyond = positions >= self.length
        positions[beyond] %= max(1, self.length)
        return positions

    def mask(self, numbers: Integers) -> NDArray[np.bool_]:
        """Return False for samples that only fill up the last batch to the length of the other ranks.

        >>> shares = RankShares(3, batch=2, rank=1, world=2)
        >>> shares.rows(np.arange(2)), shares.mask(np.arange(2))
        (array([2, 0]), array([ True, False]))
        """
        return self._unwrapped(numbers) < self.length
