"""The part of the numpy kernel that packs sequences: cuts intervals into pieces, and puts items into bins and groups.

The functions have the same results as those of `_gather.c`; `numpy_kernel` offers them with its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


def pieces(
    begins: Integers,
    ends: Integers,
    firsts: Integers,
    behinds: Integers,
    rows: Integers,
    step: int,
    width: int,
    begin: Integers,
    length: Integers,
    target: Integers,
    ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    bounds: NDArray[np.int32],
    offsets: Integers,
    threads: int,
) -> int:
    fits = len(begins) == len(ends) and len(firsts) == len(behinds) and len(begin) == len(length) == len(target)
    fits = fits and width > 0 and step in (0, width)
    if not fits or any(one.size not in (0, len(rows) * width) for one in (ids, positions)):
        raise ValueError(
            "pieces: expected tables, samples and outputs of one size each, a width of at least 1 and a step of it or 0"
        )
    outside = (rows < 0) | (rows >= len(firsts))
    known = np.where(outside, 0, rows)
    first, behind = (firsts[known], behinds[known]) if len(firsts) else (known, known)
    outside |= (first < 0) | (behind < first) | (behind > len(begins))
    if outside.any():
        raise IndexError(f"row {int(outside.argmax())} of the request lies outside the data")
    if (most := int(np.minimum(behind - first, width).sum())) > len(begin):
        return -1 - most
    if bounds.size and bounds.size < most + 2 * len(rows):
        raise ValueError("range 0 of the request does not fit the output")
    sample, from_, size = _cut(begins, ends, first, behind, rows * step, width)
    made, before = len(size), np.cumsum(size) - size
    counts, filled = (np.bincount(sample, some, len(rows)).astype(np.int64) for some in (None, size))
    place = before - (np.cumsum(filled) - filled)[sample]
    number = np.arange(made) - (np.cumsum(counts) - counts)[sample] + 1
    begin[:made], length[:made], target[:made] = from_, size, sample * width + place
    inside = np.arange(int(size.sum())) - np.repeat(before, size)
    for out, values in ((ids, np.repeat(number, size)), (positions, inside)):
        if out.size:
            flat = out.reshape(-1)
            flat[:] = 0
            flat[np.repeat(target[:made], size) + inside] = values
    if bounds.size:
        offsets[0], offsets[1:] = 0, np.cumsum(counts + 1 + (filled < width))
        bounds[: offsets[-1]] = width
        bounds[offsets[:-1]] = 0
        bounds[offsets[:-1][sample] + number] = place + size
    return made


def _cut(
    begins: Integers, ends: Integers, first: Integers, behind: Integers, low: Integers, width: int
) -> tuple[Integers, Integers, Integers]:
    """Return sample, begin and length of pieces: intervals from `low` on, at most `width` elements for each sample."""
    sample = np.repeat(np.arange(len(first)), behind - first)
    entry = np.arange(len(sample)) - np.repeat(np.cumsum(behind - first) - behind, behind - first)
    from_, to = np.maximum(begins[entry], low[sample]), ends[entry]
    there = to > from_
    sample, from_ = sample[there], from_[there]
    size = np.minimum((to[there].astype(np.uint64) - from_.astype(np.uint64)), width).astype(np.int64)
    before = np.cumsum(size) - size
    starts = np.zeros(len(first), np.int64)
    np.add.at(starts, sample, size)
    room = width - (before - (np.cumsum(starts) - starts)[sample])
    size = np.minimum(size, room)
    kept = size > 0
    return sample[kept], from_[kept], size[kept]


def gaps(target: Integers, length: Integers, value: bytes, out: NDArray[Any]) -> int:
    if len(value) not in (1, 2, 4, 8):
        raise ValueError(f"value: expected 1, 2, 4 or 8 bytes, got {len(value)}")
    if len(target) != len(length):
        raise ValueError("gaps: expected target and length of one size")
    kind = f"u{len(value)}"
    flat = out.reshape(-1).view(kind)
    _refuse_runs(target, length, flat.size)
    inside = np.zeros(flat.size + 1, np.int64)
    np.add.at(inside, target, 1)
    np.add.at(inside, target + length, -1)
    flat[np.cumsum(inside[:-1]) == 0] = np.frombuffer(value, kind)[0]
    return -1


def _refuse_runs(target: Integers, length: Integers, room: int) -> None:
    """Raise for a run that does not lie behind the one before it, or not inside the output."""
    ends = np.append(0, target + length)
    outside = (target < ends[:-1]) | (target > room) | (length < 0) | (length > room - target)
    if outside.any():
        raise ValueError(f"range {int(outside.argmax())} of the request does not fit the output")


def best_fit(sizes: Integers, capacity: int, bins: Integers, order: Integers) -> int:
    if not len(bins) == len(order) == len(sizes) or not 1 <= capacity <= 1 << 40:
        raise ValueError("best_fit: expected a capacity from 1 to 2**40, and as many bins and places as sizes")
    if (bad := (sizes < 1) | (sizes > capacity)).any():
        k = int(bad.argmax())
        raise ValueError(f"best_fit: expected sizes from 1 to {capacity}, got {int(sizes[k])} at {k}")
    rooms: dict[int, list[int]] = {}
    """Bins by their room, the last one on top."""
    known, count = 0, 0  # a bit for each room that has bins
    for k in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[k])
        if some := known >> size:
            room = size + (some & -some).bit_length() - 1
            into = rooms[room].pop()
            if not rooms[room]:
                known ^= 1 << room
        else:
            room, into, count = capacity, count, count + 1
        bins[k] = into
        rooms.setdefault(room - size, []).append(into)
        known |= 1 << (room - size)
    firsts = np.unique(bins, return_index=True)[1]
    numbers = np.empty(count, np.int64)
    numbers[np.argsort(firsts)] = np.arange(count)
    bins[:] = numbers[bins]
    order[:] = np.argsort(bins, kind="stable")
    return count


def fit_in_order(sizes: Integers, run: int, limit: int, most: int, padded: bool, ends: Integers) -> int:
    if len(ends) != len(sizes) or min(run, limit, most) < 1:
        raise ValueError(
            "fit_in_order: expected a run, a limit and a number of items from 1 on, and as many ends as sizes"
        )
    if (bad := (sizes < 1) | (sizes > limit)).any():
        k = int(bad.argmax())
        raise ValueError(f"fit_in_order: expected sizes from 1 to {limit}, got {int(sizes[k])} at {k}")
    found: list[int] = []
    for begin in range(0, len(sizes), run):
        some = sizes[begin : begin + run].tolist()
        found += _fitting(some, begin, limit, most, padded)
    ends[: len(found)] = found
    return len(found)


def _fitting(sizes: list[int], begin: int, limit: int, most: int, padded: bool) -> list[int]:
    """Return the end of each group of one run that begins at `begin`."""
    ends, first, used = [], begin, 0  # used: the longest item of a group, or their sum
    for k, size in enumerate(sizes, begin):
        now = max(used, size) if padded else used + size
        if (now * (k - first + 1) if padded else now) > limit or k - first >= most:
            ends.append(k)
            first, now = k, size
        used = now
    return [*ends, begin + len(sizes)]
