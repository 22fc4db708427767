"""Mixtures of datasets: `mix` in exact proportions, `temperature` for weights by size, `reweighted` for new weights.

A mixture is a `Dataset`: its rows are those of the sources, one after another, and its order is a `Mix`, which
computes the source and the row of each position.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

from shardex.dataset.combine import concat
from shardex.dataset.combined_rows import ConcatRows, with_common_type
from shardex.dataset.dataset import Dataset
from shardex.errors import ArgumentError
from shardex.layers import decodings_of, innermost_rows, with_decodings
from shardex.order import Mix, whole_weights
from shardex.samples import T_co

Weights = Mapping[str, float] | Sequence[float]
"""Weights by name, or in the order of the sources."""


class MixRows(ConcatRows):
    """The rows of several datasets with names, one after another."""

    def __init__(self, parts: Sequence[Dataset[Any]], names: Sequence[str]) -> None:
        super().__init__(parts)
        self.names = list(names)

    def of(self, parts: Sequence[Dataset[Any]]) -> MixRows:
        """Return the same mixture of other parts."""
        return MixRows(parts, self.names)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each source."""
        return dict(zip(self.names, map(len, self.parts), strict=True))


def mix(
    datasets: Mapping[str, Dataset[T_co]] | Sequence[Dataset[T_co]],
    weights: Weights | None = None,
    *,
    seed: int | None = None,
    length: int | None = None,
) -> Dataset[T_co]:
    """Mix several datasets with the same fields, in proportions that hold in every section of the mixture.

    Without weights the proportions are those of the lengths. A source that is used up starts again: in the same order
    or, with a seed, in a new random order on each pass. An epoch has `length` samples (default: as many as all sources
    together); the next epoch continues where it stopped.

    >>> from shardex import open
    >>> web, books = open([{"x": k} for k in range(100)]), open([{"x": -k} for k in range(1, 3)])
    >>> [sample.x for sample in mix({"web": web, "books": books}, {"web": 0.75, "books": 0.25}, length=12)]
    [0, 1, 2, -1, 3, 4, 5, -2, 6, 7, 8, -1]
    """
    named = _named(datasets)
    parts = cast(ConcatRows, innermost_rows((whole := concat(list(named.values()))).rows)).parts
    rows = MixRows(parts, list(named))
    if length is None:
        length = len(rows)
    if length < 0:
        raise ArgumentError(f"expected a length of 0 or more, got {length}")
    if seed is not None:
        seed = operator.index(seed)
    start = 0, _whole(rows.sizes, weights)
    order = Mix(tuple(rows.sizes.values()), (start,), length, seed)
    mixed = with_decodings(with_common_type(rows, parts), decodings_of(whole.rows))
    return Dataset(mixed, order, notes=(f"mixed from {', '.join(named)}",))


def reweighted(mixture: Dataset[T_co], position: int, weights: Weights) -> Dataset[T_co]:
    """Return a mixture with new weights from a position on (counted over all epochs); each source continues.

    >>> from shardex import open
    >>> both = mix([open([{"x": k} for k in range(100)]), open([{"x": -1}])], [1, 1], length=8)
    >>> [sample.x for sample in reweighted(both, 4, [1, 0])]
    [-1, 0, -1, 1, 2, 3, 4, 5]
    """
    order, rows = mixture.order, innermost_rows(mixture.rows)
    if not isinstance(order, Mix) or not isinstance(rows, MixRows):
        raise ArgumentError(f"expected a dataset made by mix, got {mixture!r}; reweight it before making views")
    return Dataset(mixture.rows, order.reweighted(position, _whole(rows.sizes, weights)), mixture.chosen, mixture.notes)


def temperature(
    sources: Mapping[str, Dataset[Any] | int] | Sequence[Dataset[Any] | int], value: float
) -> dict[str, float]:
    """Return weights proportional to size to the power ``1 / value``: 1 keeps proportions, infinity makes all equal.

    >>> temperature({"web": 900, "books": 100}, 2)
    {'web': 0.75, 'books': 0.25}
    """
    sizes = {name: len(source) if isinstance(source, Dataset) else source for name, source in _named(sources).items()}
    if not value > 0:
        raise ArgumentError(f"expected a temperature above 0, got {value}")
    if not sizes or min(sizes.values()) < 0 or not (largest := max(sizes.values())):
        raise ArgumentError(f"expected sources of which at least one has samples, got sizes {sizes}")
    powers = {name: (size / largest) ** (1 / value) if size else 0.0 for name, size in sizes.items()}
    total = math.fsum(powers.values())
    return {name: power / total for name, power in powers.items()}


def _named(sources: Any) -> dict[str, Any]:
    """Return sources by name; those of a list are numbered."""
    if isinstance(sources, Mapping):
        return dict(sources)
    if isinstance(sources, Sequence):
        return {str(number): source for number, source in enumerate(sources)}
    raise ArgumentError(f"expected sources by name or in a list, got {type(sources).__name__}")


def _whole(sizes: Mapping[str, int], weights: Weights | None) -> tuple[int, ...]:
    """Return integer weights in the order of the sources; by size if none are given."""
    whole = whole_weights(list(sizes.values()) if weights is None else _in_order(list(sizes), weights))
    for (name, size), weight in zip(sizes.items(), whole, strict=True):
        if weight and not size:
            raise ArgumentError(
                f"expected samples in every source that has a weight, got none - at source {name!r}; "
                "leave it out or give it the weight 0"
            )
    return whole


def _in_order(names: list[str], weights: Weights) -> list[float]:
    if isinstance(weights, Mapping):
        if weights.keys() != set(names):
            raise ArgumentError(f"expected a weight for each of {', '.join(names)}, got {', '.join(map(str, weights))}")
        return [weights[name] for name in names]
    if len(weights) != len(names):
        raise ArgumentError(f"expected {len(names)} weights, one for each of {', '.join(names)}, got {len(weights)}")
    return list(weights)
