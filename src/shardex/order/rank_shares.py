"""How an epoch is dealt out to the ranks of a run: `RankShares` batch by batch, `share` sample by sample.

Both are arithmetic on positions, so every rank knows its own part without asking the others, a run can go on from any
position with any number of ranks, and the samples come in the same order however many take them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.kernel import Integers
from shardex.order.order import Span

__all__ = ["RankShares", "share"]


def share(length: int, rank: int, world: int) -> Span:
    """Every `world`-th position from `rank` on; together the ranks have each position once.

    >>> share(5, rank=0, world=2), share(5, rank=1, world=2)
    (Span(length=3, start=0, step=2), Span(length=2, start=1, step=2))
    """
    _check_rank(rank, world)
    return Span(len(range(rank, length, world)), rank, world)


def _check_rank(rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise SchemaError(f"expected a rank from 0 to {world - 1} in a world of {world}, got {rank}")


@dataclass(frozen=True)
class RankShares:
    """The positions of an epoch of `length` that one rank of a run gets from `start` on, batch by batch.

    Every `batch * world` positions are one batch of each rank, in the order of the ranks. What is left at the end is
    dropped, or dealt out in batches of one smaller size; to make them even, some begin the epoch again (see `mask`).

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
        _check_rank(self.rank, self.world)
        if self.batch < 1:
            raise SchemaError(f"expected batches of at least 1 sample, got {self.batch}")
        if not 0 <= self.start <= self.length:
            raise SchemaError(f"expected a start from 0 to {self.length}, got {self.start}")

    def __len__(self) -> int:
        return self._full * self.batch + self._last

    @cached_property
    def _full(self) -> int:
        """How many batches are whole."""
        return (self.length - self.start) // (self.batch * self.world)

    @cached_property
    def _last(self) -> int:
        """How many samples the last batch has if it is not."""
        left = (self.length - self.start) % (self.batch * self.world)
        return 0 if self.drop_last else -(-left // self.world)

    @property
    def batches(self) -> int:
        """How many batches each rank gets.

        >>> RankShares(10, batch=2, world=2).batches, RankShares(10, batch=2, world=2, drop_last=True).batches
        (3, 2)
        """
        return self._full + (self._last > 0)

    def span(self, number: int) -> tuple[int, int]:
        """Begin and end of a batch among the samples of this rank.

        >>> RankShares(10, batch=2, world=2).span(2)
        (4, 5)
        """
        return number * self.batch, min((number + 1) * self.batch, len(self))

    def _dealt(self, numbers: Integers) -> Integers:
        """Positions that count on after the end of the epoch."""
        others = (self.world - 1) * self.batch
        dealt = numbers + numbers // self.batch * others + (self.start + self.rank * self.batch)
        dealt[numbers >= self._full * self.batch] -= self.rank * (self.batch - self._last)
        return dealt

    def rows(self, numbers: Integers) -> Integers:
        """The position in the epoch of each of this rank's samples."""
        if self.world == 1:  # nobody to be even with
            return numbers + self.start
        dealt = self._dealt(numbers)
        past = dealt >= self.length
        dealt[past] %= max(1, self.length)
        return dealt

    def mask(self, numbers: Integers) -> NDArray[np.bool_]:
        """False where a sample comes a second time, only to make the last batch as long as that of other ranks.

        >>> shares = RankShares(3, batch=2, rank=1, world=2)
        >>> shares.rows(np.arange(2)), shares.mask(np.arange(2))
        (array([2, 0]), array([ True, False]))
        """
        return self._dealt(numbers) < self.length
