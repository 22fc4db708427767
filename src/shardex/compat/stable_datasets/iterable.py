"""`StableIterableDataset`: the samples of a dataset as a stream, shared among the workers of a torch DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.compat.stable_datasets._torch_classes import TorchDerived
from shardex.errors import ArgumentError

if TYPE_CHECKING:
    from shardex.compat.stable_datasets.dataset import StableDataset

_AT_ONCE = 64
"""Samples that are read together."""


class StableIterableDataset(TorchDerived):
    """All samples of a dataset or a view, each in one worker: whole shards, or every n-th sample if there are too few.

    With `shuffle` the shards come in random order, and their samples through a buffer of `buffer_size` positions, from
    which they are drawn at random. Formats, video options and the transform of the dataset are applied, then
    `transform`. With torch this is a ``torch.utils.data.IterableDataset``.
    """

    torch_base = "IterableDataset"

    def __init__(
        self,
        dataset: StableDataset,
        *,
        shuffle: bool = False,
        seed: int = 0,
        buffer_size: int = 10_000,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if transform is not None and not callable(transform):
            raise ArgumentError(f"expected transform to be a function of one sample, got {transform!r}")
        self._dataset, self._shuffle, self._seed = dataset, shuffle, int(seed)
        self._buffer_size, self._transform, self._epoch = int(buffer_size), transform, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, on which the order depends."""
        self._epoch = int(epoch)

    def __iter__(self) -> Iterator[Any]:
        worker, workers = _this_worker()
        positions = iter(self._positions(worker, workers))
        while some := list(islice(positions, _AT_ONCE)):
            for row in self._dataset.__getitems__(some):
                yield row if self._transform is None else self._transform(row)

    def _positions(self, worker: int, workers: int) -> Iterator[int]:
        """Return the positions of the samples of a worker, in its order."""
        shards = self._dataset.stored_runs()
        by_shard = len(shards) >= workers
        mine = shards[worker::workers] if by_shard else shards
        generator = np.random.default_rng(self._seed + self._epoch * 1000 + worker) if self._shuffle else None
        if generator is not None:
            # Workers that share shards need one order of them; otherwise samples would be lost or repeated.
            common = np.random.default_rng(self._seed + self._epoch * 1000)
            (generator if by_shard else common).shuffle(numbers := list(range(len(mine))))
            mine = [mine[k] for k in numbers]
        positions = chain.from_iterable(mine) if by_shard else islice(chain.from_iterable(mine), worker, None, workers)
        if generator is None or self._buffer_size < 1:
            return map(int, positions)
        return _through_buffer(positions, self._buffer_size, generator)


def _through_buffer(positions: Iterator[int], size: int, generator: np.random.Generator) -> Iterator[int]:
    """Draw each position at random from a buffer that the following ones fill up again."""
    buffer = list(islice(positions, size))
    for position in positions:
        chosen = int(generator.integers(len(buffer)))
        yield int(buffer[chosen])
        buffer[chosen] = position
    generator.shuffle(buffer)
    yield from map(int, buffer)


def _this_worker() -> tuple[int, int]:
    """Return the number of this worker of a DataLoader and how many there are; (0, 1) in the main process."""
    data: Any = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
