"""A weighted mixture of sources as an order: `MixOrder`, and `whole_weights` that makes its integers.

Which source a position falls to is arithmetic, like everything in `order.py`: no random draw and no table, so every
stretch of a mixture has its proportions, and any position can be computed without those before it. Orders know no
data; `mixture.py` puts a `MixOrder` on top of datasets.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate, count, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.kernel import Integers
from shardex.order.order import Repeat, Shuffle, Span, grouped

__all__ = ["MixOrder", "whole_weights"]

_TOTAL = 1 << 30
"""What weights add up to at most, about: a position within a period, times a weight, must fit into 63 bits."""


def whole_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in the same proportion: exactly for simple fractions, else to nine digits.

    >>> whole_weights([0.7, 0.3]), whole_weights([1 / 3, 1 / 6, 0]), whole_weights([200, 100])
    ((7, 3), (2, 1, 0), (2, 1))
    """
    numbers = [_weight(number, weight) for number, weight in enumerate(weights)]
    if not (total := sum(numbers)):
        raise SchemaError(f"expected at least one weight above 0, got {list(weights)}")
    shares = [number / total for number in numbers]
    whole = _exact(shares) or [max(1, round(share * _TOTAL)) if share else 0 for share in shares]
    return tuple(number // math.gcd(*whole) for number in whole)


def _weight(number: int, weight: Any) -> Fraction:
    try:
        value = float(weight)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise SchemaError(f"expected a weight of 0 or more, got {weight!r} - at weight {number}")
    return Fraction(value)


def _exact(shares: list[Fraction]) -> list[int]:
    """Numerators over one denominator, if a small one exists; a float stands for the simple fraction next to it."""
    simple = [share.limit_denominator(_TOTAL) for share in shares]
    scale = math.lcm(*(share.denominator for share in simple))
    near = all(abs(a - b) * 10**12 <= b for a, b in zip(simple, shares, strict=True))
    return [int(share * scale) for share in simple] if near and scale <= _TOTAL else []


@dataclass(frozen=True)
class _Fork:
    """Of every `total` positions `share` go left, spread as evenly as whole numbers allow; the others go right."""

    left: _Fork | int
    right: _Fork | int
    share: int
    total: int

    def split(self, positions: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Whether each position goes left, and how many before it did: ``position * share // total``."""
        periods = positions // self.total
        scaled = (positions - periods * self.total) * self.share  # position * share might not fit
        steps = scaled // self.total
        return scaled - steps * self.total >= self.total - self.share, periods * self.share + steps


_Tree = _Fork | int
"""A number is a leaf: that source."""


@lru_cache(256)
def _tree(weights: tuple[int, ...]) -> _Tree:
    """Huffman's: the lightest two become one until one is left, so heavy sources take few steps and err little."""
    numbers = count()
    nodes: list[tuple[int, int, _Tree]] = [(w, next(numbers), source) for source, w in enumerate(weights) if w]
    heapq.heapify(nodes)
    while len(nodes) > 1:
        (light, _, left), (heavy, _, right) = heapq.heappop(nodes), heapq.heappop(nodes)
        heapq.heappush(nodes, (light + heavy, next(numbers), _Fork(left, right, light, light + heavy)))
    return nodes[0][2]


def _leaves(tree: _Tree, places: Integers, positions: Integers) -> Iterator[tuple[int, Integers, Integers]]:
    """For each source that the positions fall to: the places of these positions, and how often it came before."""
    if isinstance(tree, int):
        yield tree, places, positions
        return
    lefts, before = tree.split(positions)
    for node, goes, seen in (tree.left, lefts, before), (tree.right, ~lefts, positions - before):
        if len(here := np.flatnonzero(goes)):
            yield from _leaves(node, places[here], seen[here])


def _counts(tree: _Tree, position: int) -> Iterator[tuple[int, int]]:
    """How often each source comes before a position."""
    if isinstance(tree, int):
        yield tree, position
        return
    lefts = position * tree.share // tree.total
    yield from _counts(tree.left, lefts)
    yield from _counts(tree.right, position - lefts)


@lru_cache(4096)
def _passes(length: int, seed: int | None, source: int) -> Repeat:
    """The rows of a source, pass after pass: as they are, or shuffled anew each time."""
    if seed is None:
        return Repeat(Span(length), sys.maxsize // length)
    key = hashlib.blake2b(f"shardex mix {seed} {source}".encode(), digest_size=8).digest()
    return Repeat(Shuffle(length, int.from_bytes(key, "little")), sys.maxsize // length)


@dataclass(frozen=True)
class MixOrder:
    """Sources of these lengths, whose rows lie one after another, mixed in exact proportions.

    In any stretch of positions a source has its share of them, up to the few steps that lead to it. Each source is
    passed through again and again, by itself: no row of it comes twice before all have come once. Given a seed, every
    pass has an order of its own. Epochs of a mixture go on where the last one stopped.

    `phases` are pairs of a position, counted over all epochs, and the weights that hold from there on.

    >>> order = MixOrder(lengths=(2, 100), phases=((0, (1, 3)),), length=8)
    >>> order.sources(np.arange(8)).tolist(), order.rows(np.arange(8)).tolist()
    ([1, 1, 1, 0, 1, 1, 1, 0], [2, 3, 4, 0, 5, 6, 7, 1])
    """

    lengths: tuple[int, ...]
    phases: tuple[tuple[int, tuple[int, ...]], ...]
    length: int
    seed: int | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        starts = [start for start, _ in self.phases]
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise SchemaError(f"expected phases that begin at 0 and ascend, got phases at {starts}")
        for start, weights in self.phases:
            self._check(start, weights)

    def _check(self, start: int, weights: tuple[int, ...]) -> None:
        if len(weights) != len(self.lengths):
            found = f"{len(weights)} - at the phase from position {start}"
            raise SchemaError(f"expected {len(self.lengths)} weights, one per source, got {found}")
        if min(weights) < 0 or not 0 < sum(weights) < 2 * _TOTAL:
            found = f"{weights} - at the phase from position {start} (whole_weights makes them)"
            raise SchemaError(f"expected weights from 0 on with a sum from 1 to {2 * _TOTAL - 1}, got {found}")
        for source, (length, weight) in enumerate(zip(self.lengths, weights, strict=True)):
            if weight and not length:
                raise SchemaError(f"expected weight 0 for a source without rows, got {weight} - at source {source}")

    def __len__(self) -> int:
        return self.length

    @cached_property
    def _begins(self) -> list[int]:
        """The first row of each source."""
        return list(accumulate(self.lengths, initial=0))

    @cached_property
    def _before(self) -> list[tuple[int, ...]]:
        """How often each source came before each phase."""
        return [self.counts(start) for start, _ in self.phases]

    def rows(self, positions: Integers) -> Integers:
        """The row at each position."""
        return self._by_source(positions, self._rows_of)

    def sources(self, positions: Integers) -> Integers:
        """The number of the source at each position."""
        return self._by_source(positions, lambda source, seen: np.full(len(seen), source))

    def _rows_of(self, source: int, seen: Integers) -> Integers:
        return _passes(self.lengths[source], self.seed, source).rows(seen) + self._begins[source]

    def _by_source(self, positions: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
        """What the function makes of each source and the number of times it came before."""
        absolute = positions + self.epoch * self.length
        phases = np.searchsorted([start for start, _ in self.phases], absolute, "right") - 1
        return grouped(phases, absolute, lambda phase, some: self._in_phase(phase, some, function))

    def _in_phase(self, phase: int, absolute: Integers, function: Callable[[int, Integers], Integers]) -> Integers:
        start, weights = self.phases[phase]
        out = np.empty(len(absolute), np.int64)
        for source, places, seen in _leaves(_tree(weights), np.arange(len(absolute)), absolute - start):
            out[places] = function(source, seen + self._before[phase][source])
        return out

    def counts(self, position: int) -> tuple[int, ...]:
        """How often each source comes before a position, counted over all epochs.

        >>> MixOrder(lengths=(2, 100), phases=((0, (1, 3)),), length=8).counts(1000)
        (250, 750)
        """
        counts = [0] * len(self.lengths)
        ends = [*(start for start, _ in self.phases[1:]), position]
        for (start, weights), end in zip(self.phases, ends, strict=True):
            for source, more in _counts(_tree(weights), max(0, min(end, position) - start)):
                counts[source] += more
        return tuple(counts)

    def reweighted(self, position: int, weights: Sequence[float]) -> MixOrder:
        """The same mixture with other weights from a position on, counted over all epochs; sources go on as they were.

        >>> order = MixOrder(lengths=(9, 9), phases=((0, (1, 1)),), length=8).reweighted(4, [0.25, 0.75])
        >>> order.phases, order.rows(np.arange(8)).tolist()
        (((0, (1, 1)), (4, (1, 3))), [9, 0, 10, 1, 11, 12, 13, 2])
        """
        others = [phase for phase in self.phases if phase[0] != position]
        return replace(self, phases=tuple(sorted([*others, (position, whole_weights(weights))])))

    def later(self, epochs: int) -> MixOrder:
        """Where the epochs before stopped."""
        return replace(self, epoch=self.epoch + epochs)
