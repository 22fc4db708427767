"""`RandomOffset`: every `stride`-th row, beginning at a row that is chosen anew for each epoch.

Rows are all windows of a stream, one for each begin (`shardex.dataset.windows`), so that windows of one epoch cut the
stream at other places than those of the epoch before. Like all orders it is arithmetic on seed and epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardex.kernel import Integers
from shardex.order.order import Order, Shuffle


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
