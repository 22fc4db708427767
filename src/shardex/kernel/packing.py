"""Packs sequences into samples of one width: cuts a stream into pieces, puts items into bins and groups.

The numpy kernel has its part of this in `numpy_pieces`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.array_pool import pooled_empty
from shardex.kernel.buffers import Integers, call, integers, kernel
from shardex.kernel.threads import threads


class PieceTable(NamedTuple):
    """Intervals of a stream, and which of them each sample has: those from `firsts` to `behinds`.

    A sample begins at its number times `step` at the earliest, so that it may begin inside of an interval.
    """

    begins: Integers
    ends: Integers
    firsts: Integers
    behinds: Integers
    step: int = 0


class Pieces(NamedTuple):
    """Pieces of intervals that fill samples of one width. What was not asked for is empty."""

    begin: Integers
    length: Integers
    target: Integers
    """Where each piece begins, counted over all samples."""
    ids: NDArray[np.int32]
    """For each element of the samples the number of its piece, from 1 on; 0 in padding."""
    positions: NDArray[np.int32]
    """For each element of the samples its position in its piece; 0 in padding."""
    bounds: NDArray[np.int32]
    """For each sample 0, the end of each piece, and the width if it has padding."""
    offsets: Integers
    """Where the bounds of each sample begin, and their end."""


_NO_PIECES: Any = np.empty(0, np.int64), np.empty(0, np.int32)


def cut_pieces(table: PieceTable, rows: Any, width: int, *, ids: bool, positions: bool, bounds: bool) -> Pieces:
    """Return the pieces of samples, at most `width` elements of each sample.

    >>> starts = np.array([0, 3, 3, 9])
    >>> table = PieceTable(starts[:-1], starts[1:], np.array([0, 2]), np.array([3, 3]), step=4)
    >>> found = cut_pieces(table, [0, 1], 4, ids=True, positions=True, bounds=True)
    >>> found.begin.tolist(), found.length.tolist(), found.target.tolist(), found.ids.tolist()
    ([0, 3, 4], [3, 1, 4], [0, 3, 4], [1, 1, 1, 2, 1, 1, 1, 1])
    >>> found.positions.tolist(), found.bounds.tolist(), found.offsets.tolist()
    ([0, 1, 2, 0, 0, 1, 2, 3], [0, 3, 4, 0, 4], [0, 3, 5])
    """
    rows, (none, nothing) = integers(rows), _NO_PIECES
    given = (*map(integers, table[:4]), rows, table.step, width)
    most = -1 - call(kernel.pieces, *given, none, none, none, nothing, nothing, nothing, none, 1)
    places = [np.empty(max(0, most), np.int64) for _ in range(3)]
    marks = [pooled_empty((len(rows) * width,), np.int32) if wanted else nothing for wanted in (ids, positions)]
    ends = np.empty(max(0, most) + 2 * len(rows), np.int32) if bounds else nothing
    offsets = np.zeros(len(rows) + 1, np.int64) if bounds else none
    made = call(kernel.pieces, *given, *places, *marks, ends, offsets, threads())
    begin, length, target = (one[:made] for one in places)
    return Pieces(begin, length, target, marks[0], marks[1], ends[: offsets[-1]] if bounds else ends, offsets)


def fill_gaps(out: NDArray[Any], target: Integers, length: Integers, value: Any) -> None:
    """Fill the elements of a flat array that no run covers with a value; runs ascend and do not overlap.

    >>> out = np.arange(8); fill_gaps(out, np.array([1, 4]), np.array([2, 3]), -1); out
    array([-1,  1,  2, -1,  4,  5,  6, -1])
    """
    call(kernel.gaps, integers(target), integers(length), np.array(value, out.dtype).tobytes(), out)


def best_fit(sizes: Integers, capacity: int) -> tuple[Integers, Integers]:
    """Put items into bins of a capacity, best-fit decreasing; return the items by bins, and the first of each bin.

    Items are taken from large to small, equal ones in order. Each goes into the bin with the least room that suffices;
    of several bins, into the one that was changed last. Bins are sorted by their first items, the items of a bin too.

    >>> best_fit(np.array([3, 7, 5, 2, 3]), 10)
    (array([0, 1, 2, 3, 4]), array([0, 2, 5]))
    """
    bins, order = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    capacity = min(capacity, max(1, int(sizes.sum())))  # the kernel has a list of bins for each room
    count = call(kernel.best_fit, integers(sizes), capacity, bins, order)
    return order, np.append(0, np.cumsum(np.bincount(bins, minlength=count)))


def fit_in_order(
    sizes: Integers, limit: int, *, most: int | None = None, padded: bool = False, run: int | None = None
) -> Integers:
    """Cut items into groups that fit, one after another; return the end of each group.

    A group takes the next items until their sum would exceed `limit` (if `padded`: their number times the largest), or
    it has `most` items. Every `run` items are cut on their own.

    >>> sizes = np.array([3, 1, 1, 4])
    >>> fit_in_order(sizes, 4), fit_in_order(sizes, 4, padded=True), fit_in_order(sizes, 9, run=3)
    (array([2, 3, 4]), array([1, 3, 4]), array([3, 4]))
    """
    ends, all_ = np.empty(len(sizes), np.int64), max(1, len(sizes))
    limit, run, most = min(limit, (1 << 63) - 1), min(run or all_, all_), min(most or all_, all_)
    count = call(kernel.fit_in_order, integers(sizes), run, limit, most, padded, ends)
    return ends[:count].copy()
