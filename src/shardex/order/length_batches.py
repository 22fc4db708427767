"""`LengthBatches`: epochs divided into batches by the lengths of their samples.

In: the lengths of samples in the order of an epoch. Out: `EpochBatches`, which knows where each batch begins and which
positions of the epoch it holds. Both depend on lengths, seed and epoch only, not on ranks or workers. The batches of an
epoch are cut in one pass over the lengths; memory is used per batch, not per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardex.errors import ArgumentError
from shardex.kernel import Integers, packing
from shardex.order.order import _Permutation

Lengths = Callable[[int, int], Integers]
"""Returns the lengths of the samples from a position of an epoch to another."""
_CHUNK = 1 << 20
"""Samples whose lengths are held at a time."""
_KEPT_RUNS = 2
"""Sorted runs that are kept: the batches of a run are asked for one after another."""


@dataclass(frozen=True)
class LengthBatches:
    """Divides epochs into batches whose samples fit together.

    A batch takes the next samples of the epoch as long as it stays within `max_tokens` and `batch_size`. Its tokens are
    the number of samples times the longest one if they are `padded`, else the sum of their lengths; an empty sample
    counts as one token. With `bucket`, every run of that many samples is sorted by length before it is cut, and with a
    seed the batches of a run are then shuffled.

    >>> lengths = np.array([3, 1, 1, 4, 2, 2])
    >>> batches = LengthBatches(max_tokens=4).of_epoch(6, lambda begin, end: lengths[begin:end])
    >>> [batches.positions(number).tolist() for number in range(len(batches))]
    [[0], [1, 2], [3], [4, 5]]
    >>> batches = LengthBatches(max_tokens=4, bucket=6).of_epoch(6, lambda begin, end: lengths[begin:end])
    >>> [batches.positions(number).tolist() for number in range(len(batches))]
    [[1, 2], [4, 5], [0], [3]]
    """

    batch_size: int | None = None
    max_tokens: int | None = None
    bucket: int | None = None
    padded: bool = True
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.batch_size is None:
            raise ArgumentError("expected max_tokens or batch_size, which limit a batch, got neither")
        if self.max_tokens is None and self.bucket is not None and self.bucket % (self.batch_size or 1):
            raise ArgumentError(
                f"expected a bucket that is a multiple of batch_size={self.batch_size}, so that only the last batch of "
                f"an epoch is incomplete, got {self.bucket}"
            )

    def of_epoch(self, length: int, lengths: Lengths, epoch: int = 0) -> EpochBatches:
        """Return the batches of an epoch of `length` samples; no sample may have more than `max_tokens` tokens."""
        cut = self._cut(length, lengths)
        if self.bucket is None:
            return EpochBatches(length, cut)
        order = self._batch_order(cut, epoch)
        bounds = np.append(0, np.cumsum(np.diff(cut)[order]))
        return EpochBatches(length, bounds, cut[order], self._run_starts(length), lengths)

    def _cut(self, length: int, lengths: Lengths) -> Integers:
        """Return where the batches of an epoch begin, and its end, before they are shuffled."""
        if self.max_tokens is None:
            return np.append(np.arange(0, length, self.batch_size), length)
        begin, chunk = 0, _CHUNK if self.bucket is None else self.bucket * max(1, _CHUNK // self.bucket)
        cut = [np.zeros(1, np.int64)]
        while begin < length:
            end = min(begin + chunk, length)
            ends = self._ends(np.maximum(lengths(begin, end), 1), self.max_tokens)
            if end < length and self.bucket is None:
                ends = ends[:-1]  # the last batch may go on
            if len(ends):
                cut.append(ends + begin)
                begin = int(cut[-1][-1])
            else:
                chunk *= 2
        return np.concatenate(cut)

    def _ends(self, lengths: Integers, max_tokens: int) -> Integers:
        """Return the ends of the batches of some samples, sorted in runs if there are buckets."""
        if self.bucket is not None:
            whole = len(lengths) - len(lengths) % self.bucket
            lengths[:whole].reshape(-1, self.bucket).sort()
            lengths[whole:].sort()
        return packing.fit_in_order(lengths, max_tokens, most=self.batch_size, padded=self.padded, run=self.bucket)

    def _run_starts(self, length: int) -> Integers:
        """Return where each run of samples that are sorted together begins.

        If batches have a fixed size, the samples that are too few for the last one are the last of the epoch, not the
        longest ones.
        """
        assert self.bucket is not None
        starts = np.arange(0, length, self.bucket)
        rest = length % self.batch_size if self.max_tokens is None and self.batch_size else 0
        return np.append(starts, length - rest) if 0 < rest < length % self.bucket else starts

    def _batch_order(self, cut: Integers, epoch: int) -> Integers:
        """Return the numbers of the batches in the order of the epoch: shuffled within their runs."""
        numbers = np.arange(len(cut) - 1)
        if self.seed is None or not len(numbers):
            return numbers
        runs = np.searchsorted(self._run_starts(int(cut[-1])), cut[:-1], "right")
        keys = _Permutation(len(numbers), f"{self.seed} {epoch} batches").rows(numbers)
        return np.lexsort((keys, runs))


class EpochBatches:
    """The batches of one epoch: where each begins, and the positions of its samples."""

    def __init__(
        self,
        length: int,
        bounds: Integers,
        begins: Integers | None = None,
        run_starts: Integers | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        self.length = length
        """Number of samples of the epoch."""
        self._bounds = bounds
        """Number of samples before each batch, and of all samples."""
        self._begins, self._run_starts, self._lengths = begins, run_starts, lengths
        self._sorted: dict[int, Integers] = {}

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def begin(self, number: int) -> int:
        """Return how many samples come before a batch."""
        return int(self._bounds[number])

    def number_at(self, taken: int) -> int:
        """Return the number of the batch that comes, wholly or in part, after `taken` samples; `len` after the last."""
        return int(self._bounds.searchsorted(taken, "right")) - 1

    def positions(self, number: int) -> Integers:
        """Return the positions of the samples of a batch in the order of the epoch."""
        begin, end = self._bounds[number : number + 2].tolist()
        if self._begins is None:
            return np.arange(begin, end)
        first = int(self._begins[number])
        run, start = self._sorted_run(first)
        return run[first - start : first - start + end - begin]

    def _sorted_run(self, first: int) -> tuple[Integers, int]:
        """Return the positions of a run of samples, sorted by length, and where the run begins."""
        assert self._run_starts is not None and self._lengths is not None
        number = int(self._run_starts.searchsorted(first, "right")) - 1
        start = int(self._run_starts[number])
        if (run := self._sorted.get(number)) is None:
            end = int(self._run_starts[number + 1]) if number + 1 < len(self._run_starts) else self.length
            run = np.argsort(np.maximum(self._lengths(start, end), 1), kind="stable") + start
            if len(self._sorted) >= _KEPT_RUNS:
                del self._sorted[next(iter(self._sorted))]
            self._sorted[number] = run
        return run, start
