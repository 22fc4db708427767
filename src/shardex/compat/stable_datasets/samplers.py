"""`ShardShuffleSampler`: random positions for a torch DataLoader, one shard after another; and the shards of a view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from shardex.compat.stable_datasets._torch_classes import TorchDerived
from shardex.errors import ArgumentError
from shardex.kernel import Integers
from shardex.order import Order, Pick, Span

Positions = range | Integers
"""Positions of the samples of a shard."""

_EPOCH_FACTOR = 0x9E3779B1


class ShardShuffleSampler(TorchDerived):
    """Positions in random order of the shards; inside a shard in random order or as they are stored.

    A view has the positions of each shard together as well. With torch this is a ``torch.utils.data.Sampler``.
    """

    torch_base = "Sampler"

    def __init__(
        self, dataset: Any, *, seed: int = 0, within_shard: Literal["random", "sequential"] = "random"
    ) -> None:
        if within_shard not in ("random", "sequential"):
            raise ArgumentError(f"expected within_shard to be 'random' or 'sequential', got {within_shard!r}")
        self._length = len(dataset)
        self._seed, self._within_shard, self._epoch = int(seed), within_shard, 0
        by_shard = getattr(dataset, "positions_by_shard", None)
        self._shards = [range(self._length)] if by_shard is None else by_shard()

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, on which the order depends."""
        self._epoch = int(epoch)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng(self._seed ^ (self._epoch * _EPOCH_FACTOR))
        order = np.arange(len(self._shards))
        generator.shuffle(order)
        for number in order.tolist():
            positions = np.array(self._shards[number])
            if self._within_shard == "random":
                generator.shuffle(positions)
            yield from positions.tolist()


def runs_by_shard(order: Order, counts: Sequence[int] | None) -> tuple[list[Positions], bool]:
    """Return the positions of the samples of each shard in an order of rows, and whether shards follow one another.

    `counts` are the numbers of rows of the shards; None if there are no shards.

    >>> runs_by_shard(Span(5), [3, 2]), runs_by_shard(Span(2), None)
    (([range(0, 3), range(3, 5)], True), ([range(0, 2)], True))
    >>> runs, in_order = runs_by_shard(Pick(np.array([4, 0, 3])), [3, 2]); [run.tolist() for run in runs], in_order
    ([[1], [0, 2]], False)
    """
    length = len(order)
    if counts is None:
        return [range(length)], True
    ends = np.cumsum([0, *counts])
    if length == ends[-1] and order == Span(length):
        return [range(a, b) for a, b in pairwise(ends.tolist())], True
    shards = np.searchsorted(ends, order.rows(np.arange(length)), "right")
    by_shard = np.argsort(shards, kind="stable")
    changes = np.flatnonzero(np.diff(shards[by_shard])) + 1
    return list(np.split(by_shard, changes)) if length else [], bool((np.diff(shards) >= 0).all())


def order_of(run: Positions) -> Order:
    """Return the order that reads these positions."""
    return Span(len(run), run.start) if isinstance(run, range) else Pick(run)
