"""All samples of a dataset, one after the other or in batches: what `Dataset.ordered` and `shuffled` return."""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from shardex.compat.atdata._samples import SampleBatch
from shardex.compat.atdata._shards import KEY, PACKED, Shards
from shardex.compat.atdata._steps import DROPPED
from shardex.dataset import Dataset
from shardex.rows import whole_number

T = TypeVar("T")

if TYPE_CHECKING:  # torch takes it as one when it runs (`_tell_torch`), but type checkers want this base class
    from torch.utils.data import IterableDataset as Samples
else:
    Samples = Generic


class SampleStream(Samples[T]):
    """Samples, or batches of them; can be iterated any number of times, and shuffled ones are in another order then.

    A torch `DataLoader` takes it like an `IterableDataset`: each of its workers reads a part of the samples.
    """

    def __init__(
        self,
        shards: Shards,
        steps: Callable[[bytes], Any],
        sample_type: Any,
        batch_size: int | None,
        shuffle: bool = False,
        seed: int | None = None,
    ) -> None:
        self._shards, self._steps, self._sample_type = shards, steps, sample_type
        self._batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        self._shuffle, self._seed, self._epoch = shuffle, seed, 0
        _tell_torch()

    def __iter__(self) -> Iterator[T]:
        part = part_of_worker()
        rows = self._shards.all() if part is None else self._shards.part(*part)
        if self._shuffle:
            seed = random.getrandbits(62) if self._seed is None else whole_number("seed", self._seed)
            rows = rows.shuffle(seed, self._epoch)
            self._epoch += 1
        samples = samples_of(rows, self._steps)
        # A generator, so that this object, with its temporary copies of shards, is there until the end.
        yield from samples if self._batch_size is None else self._batches(samples, self._batch_size)

    def _batches(self, samples: Iterator[Any], size: int) -> Iterator[Any]:
        kind: Any = SampleBatch.__class_getitem__(self._sample_type)  # type: ignore[attr-defined]
        while some := list(islice(samples, size)):
            yield kind(some)


def samples_of(rows: Dataset, steps: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield the samples of rows of packed bytes after all steps; errors tell which sample they are about."""
    position = -1
    for columns in rows.select(PACKED).chunks():
        for packed in columns[PACKED]:
            position += 1
            try:
                value = steps(packed)
            except Exception as error:
                error.add_note(f"at sample {rows[position][KEY]!r} of {', '.join(rows.shards([position]))}")
                raise
            if value is not DROPPED:
                yield value


def part_of_worker() -> tuple[int, int] | None:
    """Return the number of this worker process of a torch DataLoader and the number of workers, `None` elsewhere."""
    torch_data = sys.modules.get("torch.utils.data")
    worker = None if torch_data is None else torch_data.get_worker_info()
    return None if worker is None else (worker.id, worker.num_workers)


def _tell_torch() -> None:
    """Let torch know that a `SampleStream` is iterated, not indexed; torch is not imported for that."""
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None:
        torch_data.IterableDataset.register(SampleStream)
