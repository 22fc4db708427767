"""All samples of a dataset, one after the other or in batches: what `Dataset.ordered` and `shuffled` return."""

import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

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


class Shuffle(NamedTuple):
    """How samples are shuffled: all of them, or if shards are copied one after the other at least so many at once."""

    buffer_samples: int
    seed: int | None


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
        shuffle: "Shuffle | None" = None,
    ) -> None:
        self._shards, self._steps, self._sample_type = shards, steps, sample_type
        self._batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        self._shuffle, self._epoch = shuffle, 0
        _tell_torch()

    def __iter__(self) -> Iterator[T]:
        # A generator, so that this object, with its temporary copies of shards, is there until the end.
        samples = self._samples()
        yield from samples if self._batch_size is None else self._batches(samples, self._batch_size)

    def _samples(self) -> Iterator[Any]:
        names, part = self._shards.source.list_shards(), part_of_worker()
        if part is not None and len(names) >= part[1]:
            names, part = names[part[0] :: part[1]], None
        if self._shuffle is None:
            for rows in self._shards.in_turn(names):
                yield from samples_of(_part(rows, part), self._steps)
            return
        seed = random.getrandbits(62) if self._shuffle.seed is None else self._shuffle.seed
        epoch, self._epoch = self._epoch, self._epoch + 1
        for rows in self._shards.in_turn(names, self._shuffle.buffer_samples, random.Random(f"{seed} {epoch}")):
            yield from samples_of(_part(rows, part).shuffle(seed, epoch), self._steps)

    def _batches(self, samples: Iterator[Any], size: int) -> Iterator[Any]:
        kind: Any = SampleBatch.__class_getitem__(self._sample_type)  # type: ignore[attr-defined]
        while some := list(islice(samples, size)):
            yield kind(some)


def _part(rows: Dataset, part: tuple[int, int] | None) -> Dataset:
    return rows if part is None else rows[part[0] :: part[1]]


def samples_of(rows: Dataset, steps: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield the samples of rows of packed bytes after all steps, without those that a condition leaves out."""
    return (value for value in _results(rows, steps) if value is not DROPPED)


def kept_rows(rows: Dataset, steps: Callable[[bytes], Any]) -> Dataset:
    """Return the rows of the samples that no condition leaves out."""
    return rows[[number for number, value in enumerate(_results(rows, steps)) if value is not DROPPED]]


def _results(rows: Dataset, steps: Callable[[bytes], Any]) -> Iterator[Any]:
    """Yield what the steps make of all rows, `DROPPED` too; errors tell which sample they are about."""
    position = -1
    for columns in rows.select(PACKED).chunks():
        for packed in columns[PACKED]:
            position += 1
            try:
                value = steps(packed)
            except Exception as error:
                error.add_note(f"at sample {rows[position][KEY]!r} of {', '.join(rows.shards([position]))}")
                raise
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
