"""Batches by length: `SampleLengths` has the lengths of samples in each epoch, `LengthSteps` divides epochs by them.

The batches of an epoch (`LengthBatches` in the room order) are the same on every rank. A step takes the next `world`
batches, one for each rank. If too few are left for all ranks, the others repeat batches from the beginning of the
epoch. Workers get the samples of their batches with each plan, so only the loader computes the batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from shardex.columns import check_fields
from shardex.dataset import Dataset
from shardex.errors import ArgumentError
from shardex.features import Array, Feature, unwrap_optional
from shardex.kernel import Integers
from shardex.loader.cursor import Steps
from shardex.loader.options import LoaderOptions
from shardex.loader.plan import Cut, find_failures
from shardex.order import Blocks, EpochBatches, LengthBatches, Order, Shuffle
from shardex.rows import AbstractRows

_CHUNK = 4096
"""Samples whose lengths are read at once, where some cannot be read."""
_KEPT_EPOCHS = 2
"""Epochs whose batches are kept: the one that is loaded, and the one whose batches are being prepared."""
NOT_TOKENS = frozenset({"cu_seqlens"})
"""Fields whose length is a number of pieces, not of tokens: those that `Dataset.pack` adds."""


def _fixed_length(feature: Feature) -> int | None:
    """Return the length that all arrays of a field have; None if it may differ."""
    return feature.shape[0] if isinstance(feature, Array) and feature.shape else None


def length_field(options: LoaderOptions, features: Mapping[str, Feature]) -> str:
    """Return the field whose length counts: `length_of`, else the only loaded field of arrays that differ in length.

    >>> features = {"tokens": Array("uint16", (None,)), "vector": Array("float32", (8,))}
    >>> length_field(LoaderOptions(max_tokens=100), features)
    'tokens'
    """
    if options.length_of is not None:
        return check_fields(list(features), [options.length_of])[0]
    names = list(features) if options.fields is None else options.fields
    arrays = {name: one for name in names if isinstance(one := unwrap_optional(features[name]), Array)}
    varying = [name for name, one in arrays.items() if _fixed_length(one) is None and name not in NOT_TOKENS]
    usual = [name for name in ("tokens", "inputs") if name in (varying or arrays)]
    chosen = varying if len(varying) == 1 else usual[:1]
    if chosen:
        return chosen[0]
    found = f"the fields {', '.join(varying)}" if varying else "no such field"
    raise ArgumentError(
        f"expected one field of arrays that differ in length, which max_tokens and bucket count, got {found}; choose "
        "the field with length_of="
    )


class SampleLengths:
    """The length of each sample in the order of any epoch."""

    def __init__(
        self, data: Dataset[Any], name: str, shuffle: Shuffle | Blocks | None = None, skip_bad: bool = False
    ) -> None:
        """
        :param skip_bad: give samples that cannot be read the median length; they are replaced when they are loaded
        """
        self.name = name
        self._data, self._shuffle = data, shuffle
        self._by_position = data.order.for_epoch(1) is data.order
        """True if all epochs have the samples of the dataset; a mixture, for example, goes on with its sources."""
        source = data if self._by_position else Dataset(data.rows, fields=data.chosen)
        self._lengths = _lengths(source, name, skip_bad)

    @property
    def same_in_all_epochs(self) -> bool:
        """True if all epochs have one order."""
        return self._by_position and self._shuffle is None

    def through(self, order: Order) -> SampleLengths:
        """Return the lengths of the same rows in another order of a mixture."""
        made = copy(self)
        made._data = Dataset(self._data.rows, order, self._data.chosen)
        return made

    def at(self, epoch: int, positions: Integers) -> Integers:
        """Return the lengths of the samples at positions of an epoch."""
        if not self._by_position:
            return self._lengths[self._data.order.for_epoch(epoch, self._shuffle).rows(positions)]
        return self._lengths[positions if self._shuffle is None else self._shuffle.later(epoch).rows(positions)]

    def check(self, max_tokens: int) -> None:
        """Raise if a sample is longer than a batch may be."""
        if not len(self._lengths) or (longest := int(self._lengths.max())) <= max_tokens:
            return
        number, many = int(self._lengths.argmax()), int((self._lengths > max_tokens).sum())
        data = self._data if self._by_position else Dataset(self._data.rows)
        shard = data.shards([number])[0]
        others = f" ({many:,} samples are longer than that)" if many > 1 else ""
        where = f"sample {number} of {shard}" if shard else f"sample {number}"
        raise ArgumentError(
            f"expected samples of at most max_tokens={max_tokens} tokens, got one of {longest}{others} - at field "
            f"{self.name}, {where}; choose a larger max_tokens, or cut long samples with ds.windows or ds.pack"
        )


def _lengths(data: Dataset[Any], name: str, skip_bad: bool) -> Integers:
    """Return the length of each sample of a dataset."""
    if (length := _fixed_length(data.features[name])) is not None:
        return np.broadcast_to(np.int64(length), len(data))  # one number: there may be many more windows than tokens
    try:
        return data.lengths(name)
    except Exception:
        if not skip_bad:
            raise
    return _lengths_of_good(data, name)


def _lengths_of_good(data: Dataset[Any], name: str) -> Integers:
    """Return the lengths of the samples of a dataset; those that cannot be read have the median of the others."""
    found = np.full(len(data), -1, np.int64)
    for begin in range(0, len(data), _CHUNK):
        positions = np.arange(begin, min(begin + _CHUNK, len(data)))
        bad = list(find_failures(lambda some: AbstractRows.lengths(data[some], name), positions))
        positions = np.delete(positions, bad)
        found[positions] = AbstractRows.lengths(data[positions], name)
    good = found[found >= 0]
    found[found < 0] = np.median(good) if len(good) else 0
    return found


@dataclass(frozen=True)
class LengthSteps(Steps):
    """Epochs divided into batches by the lengths of their samples, and into steps of one batch for each rank.

    With `drop_last`, a step in which ranks would repeat a batch is left out, unless it is the only one of the epoch. So
    is a batch that has fewer samples than all others if all have one size.
    """

    batches: LengthBatches
    lengths: SampleLengths
    length: int
    batch: int = 1
    world: int = 1
    drop_last: bool = False
    _epochs: dict[int, EpochBatches] = field(default_factory=dict, compare=False, repr=False)
    """The epochs that were used last."""
    _counts: dict[int, int] = field(default_factory=dict, compare=False, repr=False)
    """Number of batches of each epoch that was ever used."""

    @property
    def step_size(self) -> None:
        """Steps differ in their number of samples."""
        return None

    def _epoch(self, epoch: int) -> EpochBatches:
        """Return the batches of an epoch."""
        epoch = 0 if self.lengths.same_in_all_epochs else epoch
        found = self._epochs.pop(epoch, None)
        if found is None:
            found = self.batches.of_epoch(self.length, partial(self._range, epoch), epoch)
            self._counts[epoch] = len(found)
            while len(self._epochs) >= _KEPT_EPOCHS:
                del self._epochs[next(iter(self._epochs))]
        self._epochs[epoch] = found
        return found

    def _range(self, epoch: int, begin: int, end: int) -> Integers:
        return self.lengths.at(epoch, np.arange(begin, end))

    def _count(self, epoch: int) -> int:
        """Return the number of batches of an epoch that are used."""
        fixed_size = self.batches.batch_size if self.batches.max_tokens is None else None
        if fixed_size is not None:
            return self.length // fixed_size if self.drop_last else -(-self.length // fixed_size)
        known = self._counts.get(0 if self.lengths.same_in_all_epochs else epoch)
        return len(self._epoch(epoch)) if known is None else known

    def count(self, epoch: int = 0, position: int = 0) -> int:
        """Return the number of steps in the rest of an epoch."""
        return self._count_from(epoch, self._epoch(epoch).number_at(position) if position else 0)

    def _count_from(self, epoch: int, first: int) -> int:
        """Return the number of steps in an epoch from a batch on."""
        left = max(0, self._count(epoch) - first)
        if self.drop_last:
            return max(left // self.world, int(left > 0 and first == 0))
        return -(-left // self.world)

    def count_all(self, begin: int, end: int) -> int:
        """Return the number of steps in the epochs from `begin` to before `end`."""
        return sum(map(self.count, range(begin, end)))

    def mean_batch(self, epoch: int) -> int:
        """Return the mean number of samples in a batch of an epoch."""
        return max(1, round(self.length / max(1, self._count(epoch))))

    def after(self, epoch: int, position: int, steps: int) -> tuple[int, int]:
        """Return epoch and position after more steps; an epoch is computed only if the position is inside it."""
        first = self._epoch(epoch).number_at(position) if position else 0
        left = self._count_from(epoch, first)
        while steps >= left:
            epoch, position, first, steps = epoch + 1, 0, 0, steps - left
            if not steps or not (left := self.count(epoch)):  # no epoch has a step if this one has none
                return epoch, 0
        return epoch, self._epoch(epoch).begin(first + steps * self.world) if steps else position

    def resized(self, batch: int, world: int, drop_last: bool) -> LengthSteps:
        """Return the division of the same batches into other steps; the size of batches is part of their identity."""
        return replace(self, world=world, drop_last=drop_last)

    def cut(self, epoch: int, position: int, batches: int, rank: int) -> Cut:
        """Return the samples of some batches of a rank, beginning at a position."""
        of_epoch, total = self._epoch(epoch), self._count(epoch)
        first = of_epoch.number_at(position)
        numbers = range(first + rank, first + rank + batches * self.world, self.world)
        parts = [of_epoch.positions(number if number < total else number % total) for number in numbers]
        if not rank and (taken := position - of_epoch.begin(first)):
            parts[0] = parts[0][taken:]
        return Cut(np.concatenate(parts), list(accumulate(map(len, parts))), repeated=numbers[-1] >= total)
