"""`Mix`: a weighted mixture of sources as an order, and `whole_weights`, which makes its integer weights.

The source at each position is computed without random draws or tables, so every section of a mixture has the right
proportions, and any position can be computed without those before it. `dataset/combine.py` applies a `Mix` to
datasets.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, StateError
from shardex.kernel import Integers
from shardex.order.order import Blocks, Order, Repeat, Shuffle, Span, map_groups

_TOTAL = 1 << 30
"""Approximate upper bound of a sum of weights: a position within a period, times a weight, must fit into 63 bits."""

Phases = tuple[tuple[int, tuple[int, ...]], ...]
"""Pairs of a position, counted over all epochs, and the weights of the sources from there on."""


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers in the same proportion: exact for simple fractions, else to nine digits.

    >>> whole_weights([0.7, 0.3]), whole_weights([1 / 3, 1 / 6, 0]), whole_weights([200, 100])
    ((7, 3), (2, 1, 0), (2, 1))
    """
    numbers = [_weight(number, weight) for number, weight in enumerate(weights)]
    if not (total := sum(numbers)):
        raise ArgumentError(f"expected at least one weight above 0, got {list(weights)}")
    shares = [number / total for number in numbers]
    whole = _exact(shares) or [max(1, round(share * _TOTAL)) if share else 0 for share in shares]
    return tuple(number // math.gcd(*whole) for number in whole)


def _weight(number: int, weight: Any) -> Fraction:
    try:
        value = float(weight)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ArgumentError(f"expected a weight of 0 or more, got {weight!r} - at weight {number}")
    return Fraction(value)


def _exact(shares: list[Fraction]) -> list[int]:
    """Return numerators over a common denominator, or none if that is too large; floats become simple fractions."""
    simple = [share.limit_denominator(_TOTAL) for share in shares]
    scale = math.lcm(*(share.denominator for share in simple))
    near = all(abs(a - b) * 10**12 <= b for a, b in zip(simple, shares, strict=True))
    return [int(share * scale) for share in simple] if near and scale <= _TOTAL else []


@dataclass(frozen=True)
class _Fork:
    """A node of the tree: `share` of every `total` positions go left, spread evenly, the others right."""

    left: _Fork | int
    right: _Fork | int
    share: int
    total: int

    def split(self, positions: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Return whether each position goes left, and how many before it do: ``position * share // total``."""
        periods = positions // self.total
        scaled = (positions - periods * self.total) * self.share  # position * share might overflow
        steps = scaled // self.total
        return scaled - steps * self.total >= self.total - self.share, periods * self.share + steps


_Tree = _Fork | int
"""A binary tree of forks; a leaf is the number of a source."""


@lru_cache(256)
def _tree(weights: tuple[int, ...]) -> _Tree:
    """Return the Huffman tree of the sources: large weights are near the root, where the spread is most even."""
    numbers = count()
    nodes: list[tuple[int, int, _Tree]] = [(w, next(numbers), source) for source, w in enumerate(weights) if w]
    heapq.heapify(nodes)
    while len(nodes) > 1:
        (light, _, left), (heavy, _, right) = heapq.heappop(nodes), heapq.heappop(nodes)
        heapq.heappush(nodes, (light + heavy, next(numbers), _Fork(left, right, light, light + heavy)))
    return nodes[0][2]


def _split_by_source(tree: _Tree, indices: Integers, positions: Integers) -> Iterator[tuple[int, Integers, Integers]]:
    """Yield each source that occurs, the indices of its positions, and how many samples of it come before each."""
    if isinstance(tree, int):
        yield tree, indices, positions
        return
    lefts, before = tree.split(positions)
    for node, mask, earlier in (tree.left, lefts, before), (tree.right, ~lefts, positions - before):
        if len(chosen := np.flatnonzero(mask)):
            yield from _split_by_source(node, indices[chosen], earlier[chosen])


def _counts(tree: _Tree, position: int) -> Iterator[tuple[int, int]]:
    """Yield each source and how many samples of it come before a position."""
    if isinstance(tree, int):
        yield tree, position
        return
    lefts = position * tree.share // tree.total
    yield from _counts(tree.left, lefts)
    yield from _counts(tree.right, position - lefts)


@lru_cache(4096)
def passes(length: int, seed: int | None, source: int) -> Repeat:
    """Return the rows of a source, pass after pass; with a seed each pass has another random order."""
    if seed is None:
        return Repeat(Span(length), sys.maxsize // length)
    key = hashlib.blake2b(f"shardex mix {seed} {source}".encode(), digest_size=8).digest()
    return Repeat(Shuffle(length, int.from_bytes(key, "little")), sys.maxsize // length)


@dataclass(frozen=True)
class Mix(Order):
    """Several sources mixed in exact proportions; the rows of a source follow those of the source before it.

    In every section of positions the number of samples of a source differs from its share by at most a few. Each
    source is read in passes: no row is repeated before all rows of the source were used. With a seed every pass has
    another random order. An epoch continues each source where the last epoch stopped.

    `phases` are pairs of a position, counted over all epochs, and the weights from there on.

    >>> order = Mix(lengths=(2, 100), phases=((0, (1, 3)),), length=8)
    >>> order.sources(np.arange(8)).tolist(), order.rows(np.arange(8)).tolist()
    ([1, 1, 1, 0, 1, 1, 1, 0], [2, 3, 4, 0, 5, 6, 7, 1])
    """

    lengths: tuple[int, ...]
    phases: Phases
    length: int
    seed: int | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.phases]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise ArgumentError(f"expected phases that begin at 0 and ascend, got phases at {starts}")
        for start, weights in self.phases:
            self._check(start, weights)

    def _check(self, start: int, weights: tuple[int, ...]) -> None:
        if len(weights) != len(self.lengths):
            found = f"{len(weights)} - at the phase from position {start}"
            raise ArgumentError(f"expected {len(self.lengths)} weights, one per source, got {found}")
        if min(weights) < 0 or not 0 < sum(weights) < 2 * _TOTAL:
            found = f"{weights} - at the phase from position {start} (whole_weights makes them)"
            raise ArgumentError(f"expected weights of 0 or more with a sum from 1 to {2 * _TOTAL - 1}, got {found}")
        for source, (length, weight) in enumerate(zip(self.lengths, weights, strict=True)):
            if weight and not length:
                raise ArgumentError(f"expected weight 0 for a source without rows, got {weight} - at source {source}")

    def __len__(self) -> int:
        return self.length

    @cached_property
    def _starts(self) -> list[int]:
        """First row of each source."""
        return list(accumulate(self.lengths, initial=0))

    @cached_property
    def _counts_before_phases(self) -> list[tuple[int, ...]]:
        return [self.counts(start) for start, _ in self.phases]

    def rows(self, positions: Integers) -> Integers:
        """Return the row at each position."""
        return self._map_sources(positions, lambda source, seen: self._pass_rows(source, seen) + self._starts[source])

    def sources(self, positions: Integers) -> Integers:
        """Return the number of the source at each position."""
        return self._map_sources(positions, lambda source, seen: np.full(len(seen), source))

    def _pass_rows(self, source: int, seen: Integers) -> Integers:
        """Return rows within a source; `seen` counts the samples of the source before each."""
        return passes(self.lengths[source], self.seed, source).rows(seen)

    def _map_sources(self, positions: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
        """Call the function with each source and, for each position of it, the number of its samples before."""
        absolute = positions + self.epoch * self.length
        phases = np.searchsorted([start for start, _ in self.phases], absolute, "right") - 1
        return map_groups(phases, absolute, lambda phase, some: self._map_phase(phase, some, function))

    def _map_phase(self, phase: int, absolute: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
        start, weights = self.phases[phase]
        out = np.empty(len(absolute), np.int64)
        for source, indices, seen in _split_by_source(_tree(weights), np.arange(len(absolute)), absolute - start):
            out[indices] = function(source, seen + self._counts_before_phases[phase][source])
        return out

    def counts(self, position: int) -> tuple[int, ...]:
        """Return how many samples of each source come before a position, counted over all epochs.

        >>> Mix(lengths=(2, 100), phases=((0, (1, 3)),), length=8).counts(1000)
        (250, 750)
        """
        counts = [0] * len(self.lengths)
        ends = [*(start for start, _ in self.phases[1:]), position]
        for (start, weights), end in zip(self.phases, ends, strict=True):
            for source, more in _counts(_tree(weights), max(0, min(end, position) - start)):
                counts[source] += more
        return tuple(counts)

    def reweighted(self, position: int, weights: Sequence[float]) -> Mix:
        """Return the mixture with other weights from a position on, counted over all epochs.

        Each source continues at its current sample.

        >>> order = Mix(lengths=(9, 9), phases=((0, (1, 1)),), length=8).reweighted(4, [0.25, 0.75])
        >>> order.phases, order.rows(np.arange(8)).tolist()
        (((0, (1, 1)), (4, (1, 3))), [9, 0, 10, 1, 11, 12, 13, 2])
        """
        others = [phase for phase in self.phases if phase[0] != position]
        return replace(self, phases=tuple(sorted([*others, (position, whole_weights(weights))])))

    # -- runs of several epochs -------------------------------------------------------------------------------

    def later(self, epochs: int) -> Mix:
        """Return the mixture of a later epoch, which continues where the epoch before it stopped."""
        return replace(self, epoch=self.epoch + epochs)

    def for_epoch(self, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Mix:
        """Return the mixture of an epoch of a run; `shuffle` shuffles the rows of each source."""
        if isinstance(shuffle, Blocks):
            raise ArgumentError("expected a mixture to be shuffled without block=, got a shuffle of blocks")
        return (self if shuffle is None else replace(self, seed=shuffle.seed)).later(epoch)

    def sample_numbers(self, positions: Integers, epoch: int, shuffle: Shuffle | Blocks | None = None) -> Integers:
        """Return the row within its source of the sample at each position of an epoch."""
        order = self.for_epoch(epoch, shuffle)
        return order._map_sources(positions, order._pass_rows)

    def identity(self) -> tuple[Order, dict[str, Any]]:
        """Return the rows of the sources and the seed; not the weights, which may change during a run."""
        return Span(sum(self.lengths)), {"mix": self.seed}

    def save(self) -> dict[str, Any]:
        """Return the phases: each set of weights, and the position from which it applies."""
        return {"phases": [[start, list(weights)] for start, weights in self.phases]}

    def resumed(self, state: Mapping[str, Any], position: int, reweight: bool) -> Mix:
        """Return the mixture with the saved weights before a position, and its own weights from there on."""
        if "phases" not in state:
            return self
        before, weights = _phases_until(state["phases"], position), self.phases[-1][1]
        if len(before[-1][1]) != len(weights):
            return self  # a state of other sources, loaded with force=True: its weights do not apply
        order = replace(self, phases=before)
        if before[-1][1] != weights:
            if not reweight:
                raise StateError(
                    f"expected the state of a mixture with the weights {weights}, got one with {before[-1][1]}; "
                    "load_state_dict(state, reweight=True) continues with the new weights"
                )
            order = order.reweighted(position, weights)
        return self if order == self else order


def _phases_until(saved: Any, position: int) -> Phases:
    """Return the saved phases that begin at or before a position."""
    try:
        phases = [(int(start), tuple(int(weight) for weight in weights)) for start, weights in saved]
    except (TypeError, ValueError):
        phases = []
    if not phases or phases[0][0] != 0:
        raise StateError(f"expected phases of a mixture that begin at 0, got {saved!r:.200}")
    return tuple(phase for phase in phases if phase[0] <= position)
