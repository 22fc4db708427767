"""Assigns samples to the parts of a split: by class, by group, or by time, by arithmetic.

In: an array with a number for each sample (its class, its group; equal numbers for equal values) and the shares of the
parts. Out: the number of the part of each sample. Nothing is random here but the order of groups, which a seed chooses.
`shardex.dataset.split_views` reads the fields and makes views of the parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers
from shardex.order.order import Shuffle

_NEAR = 1e-9
"""An exact number of samples that is so close to a whole one counts as whole: shares are not exact in binary."""


def renumbered(codes: Integers) -> tuple[Integers, int]:
    """Return the numbers 0, 1, ... for different codes, in the order of their first appearance, and how many there are.

    >>> renumbered(np.array([7, 3, 7, 9]))
    (array([0, 1, 0, 2]), 3)
    """
    _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse], len(first)


def parts_by_class(classes: Integers, shares: Sequence[float]) -> Integers:
    """Return the part of each sample, so that every part has its share of every class; the first samples are in part 0.

    >>> parts_by_class(np.array([0, 0, 0, 0, 1, 1]), [0.5, 0.5])
    array([0, 0, 1, 1, 0, 1])
    """
    table = class_counts(np.bincount(classes, minlength=1), shares)
    parts = np.empty(len(classes), np.int64)
    numbers = np.tile(np.arange(len(shares)), len(table))
    parts[np.argsort(classes, kind="stable")] = np.repeat(numbers, table.reshape(-1))
    return parts


def class_counts(counts: Integers, shares: Sequence[float]) -> Integers:
    """Return how many samples of each class (row) each part (column) gets, for classes with these counts.

    A number differs from the exact one, count times share, by less than 1. Classes are rounded one after another, each
    in favour of the parts that have got too little so far, so that the sizes of the parts fit, too.

    >>> class_counts(np.array([1, 1, 1, 1]), [0.5, 0.5]).tolist()
    [[1, 0], [0, 1], [1, 0], [0, 1]]
    """
    exact = counts[:, None] * (np.asarray(shares, np.float64) / np.sum(shares))
    near = np.rint(exact)
    exact = np.where(np.abs(exact - near) < _NEAR * np.maximum(near, 1), near, exact)
    table: Integers = np.floor(exact).astype(np.int64)
    rest = exact - table
    left = counts - table.sum(axis=1)
    owed = np.zeros(len(shares))
    for number in np.flatnonzero(left):
        owed += rest[number]
        wanted = np.where(rest[number] > 0, owed, owed - len(counts))
        more = np.argsort(-wanted, kind="stable")[: left[number]]
        table[number, more] += 1
        owed[more] -= 1
    return table


def parts_by_group(
    groups: Integers, shares: Sequence[float], classes: Integers | None = None, seed: int | None = None
) -> Integers:
    """Return the part of each sample, the same for all samples of a group.

    One group after another goes to the part where it lessens most the distance (chi-square) between the numbers of
    samples of each class that the parts have and should have; without `classes` all samples are of one class. Large
    groups come first, so that small ones fill what is left; the seed decides among groups of one size. Every part with
    a share gets a group if there are enough of them.

    >>> parts_by_group(np.array([0, 0, 1, 1, 2, 3]), [0.5, 0.5])
    array([0, 0, 1, 1, 0, 1])
    >>> parts_by_group(np.array([0, 1, 2, 2, 2]), [0.6, 0.4])
    array([1, 1, 0, 0, 0])
    """
    classes = np.zeros(len(groups), np.int64) if classes is None else classes
    kinds, count = int(classes.max(initial=0)) + 1, int(groups.max(initial=-1)) + 1
    pairs, sizes = np.unique(groups * kinds + classes, return_counts=True)
    starts = np.searchsorted(pairs, np.arange(count + 1) * kinds)
    totals = np.bincount(classes, minlength=kinds)
    wanted = {part: (totals * share).tolist() for part, share in enumerate(shares) if share > 0}
    missing = {part: list(numbers) for part, numbers in wanted.items()}
    kind_of, sizes_of, start = (pairs % kinds).tolist(), sizes.tolist(), starts.tolist()
    part_of = np.empty(count, np.int64)
    order = np.arange(count) if seed is None else Shuffle(count, seed).rows(np.arange(count))
    group_sizes = np.bincount(groups, minlength=count)
    order = order[np.argsort(-group_sizes[order], kind="stable")]
    for group in order.tolist():  # lists: for the few classes of a group they are faster than arrays
        span = range(start[group], start[group + 1])
        best = max(
            missing,
            key=lambda part: sum(
                (2 * missing[part][kind_of[k]] - sizes_of[k]) * sizes_of[k] / wanted[part][kind_of[k]] for k in span
            ),
        )
        for k in span:
            missing[best][kind_of[k]] -= sizes_of[k]
        part_of[group] = best
    _fill_empty(part_of, order, list(wanted))
    return part_of[groups]


def _fill_empty(part_of: Integers, order: Integers, parts: Sequence[int]) -> None:
    """Give every part a group: the smallest one of a part that has others; `order` has the groups by falling size."""
    if len(order) < len(parts):
        return
    groups_in = np.bincount(part_of, minlength=max(parts, default=0) + 1)
    for part in parts:
        if not groups_in[part]:
            group = next(one for one in order[::-1].tolist() if groups_in[part_of[one]] > 1)
            groups_in[part_of[group]] -= 1
            groups_in[part], part_of[group] = 1, part


def parts_by_time(starts: Integers, changes: Integers, shares: Sequence[float]) -> Integers:
    """Return the part of each sample of runs that are sorted by time: the first ones are in part 0.

    `starts` has the begin of each run and the end of the last one. Samples of one time are in one part: a run is cut
    only where the time changes, at the places `changes`, as near as possible to the exact share.

    >>> parts_by_time(np.array([0, 4, 6]), np.array([1, 2, 5]), [0.5, 0.5])
    array([0, 0, 1, 1, 0, 1])
    """
    length, sizes = int(starts[-1]), np.diff(starts)
    places = np.unique(np.concatenate([starts, changes]))
    step = np.zeros(length + 1, np.int64)
    for bound in _ends(shares)[1:-1]:
        exact = starts[:-1] + np.rint(sizes * bound).astype(np.int64)
        np.add.at(step, _nearest(places, exact), 1)
    np.add.at(step, starts[1:], 1 - len(shares))
    return np.cumsum(step)[:length]


def _ends(shares: Sequence[float]) -> NDArray[np.float64]:
    """Return 0 and the sums of the first shares; the last one is 1."""
    ends = np.cumsum([0.0, *shares], dtype=np.float64)
    return np.asarray(ends / ends[-1], np.float64)


def _nearest(places: Integers, wanted: Integers) -> Integers:
    """Return the place that is nearest to each wanted one, of two the first; places ascend and include both ends."""
    after = np.searchsorted(places, wanted)
    before = np.maximum(after - 1, 0)
    return places[np.where(wanted - places[before] <= places[after] - wanted, before, after)]
