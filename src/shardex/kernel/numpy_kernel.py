"""The numpy kernel: the functions of `_gather.c` with the same results, for installations without a C compiler.

Where the C kernel takes the addresses and sizes of a table, these functions take the `Segments` table. Like the C
kernel they return the number of a segment that must be opened first, or -1. `gather`, `buffers` and `checksums` call
them. `numpy_pieces` holds the functions that pack sequences.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardex.kernel.numpy_pieces import best_fit, fit_in_order, gaps, pieces

__all__ = [
    "advise", "best_fit", "check", "checksums", "first_difference", "fit_in_order", "fixed", "gaps", "lines", "locate",
    "newlines", "permute", "pieces", "placed", "ranges", "unchecked_ranges", "unchecked_rows", "values",
]  # fmt: skip

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
_BLOCK = 1 << 22
Sums = NDArray[np.uint32] | NDArray[np.uint64]
_NEWLINE, _RETURN, _SPACE = b"\n\r "
_OUTSIDE = "expected every range inside it, range {} of the request is not"
_BROKEN = "expected offsets that rise from 0, those of range {} of the request do not"


def fixed(table: Any, starts: Integers, rows: Integers, width: int, out: Any, threads: int) -> int:
    target = np.frombuffer(out, np.uint8)
    if width < 0 or target.size != len(rows) * width:
        raise ValueError(f"out: expected {len(rows)} rows of {width} bytes, got {target.size} bytes")
    found = _rows(table, starts, rows)
    if isinstance(found, int):
        return found
    segment, local = found
    if width:
        _refuse(_OUTSIDE, (local < 0) | (local >= table.size[segment].astype(np.int64) // width), segment)
    target = target.reshape(len(rows), width)
    for number in np.unique(segment).tolist():
        here = segment == number
        whole = table.buffers[number]
        target[here] = whole[: whole.size // width * width].reshape(-1, width)[local[here]] if width else 0
    return -1


def locate(
    table: Any,
    starts: Integers,
    rows: Integers,
    width: int,
    item: int,
    which: Integers,
    begin: Integers,
    length: Integers,
) -> int:
    if width not in (4, 8) or item < 1 or not len(which) == len(begin) == len(length) == len(rows):
        raise ValueError("locate: expected offsets of 4 or 8 bytes, items of at least 1, and outputs as long as rows")
    found = _rows(table, starts, rows)
    if isinstance(found, int):
        return found
    segment, local = found
    _refuse(_OUTSIDE, (local < 0) | (local + 1 >= table.size[segment].astype(np.int64) // width), segment)
    first, last = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for number in np.unique(segment).tolist():
        here = segment == number
        whole = table.buffers[number]
        offsets = whole[: whole.size // width * width].view(np.int32 if width == 4 else np.int64)
        first[here], last[here] = offsets[local[here]], offsets[local[here] + 1]
    _refuse(_BROKEN, (first < 0) | (last < first) | (last > np.iinfo(np.int64).max // item), segment)
    which[:], begin[:], length[:] = segment, first * item, (last - first) * item
    return -1


def ranges(table: Any, which: Integers, begin: Integers, length: Integers, out: Any, stride: int, threads: int) -> int:
    if (missing := check(table, which, begin, length)) >= 0:
        return missing
    target = np.frombuffer(out, np.uint8)
    total = int(length.sum()) if stride < 0 else stride * len(which)
    if total != target.size or (stride >= 0 and len(which) and int(length.max()) > stride):
        raise ValueError("a range of the request does not fit the output")
    if stride >= 0:
        target[:] = 0
    at = 0
    for k, (number, first, size) in enumerate(zip(which.tolist(), begin.tolist(), length.tolist(), strict=True)):
        at = at if stride < 0 else k * stride
        target[at : at + size] = table.buffers[number][first : first + size]
        at += size
    return -1


def placed(
    table: Any,
    which: Integers,
    begin: Integers,
    length: Integers,
    target: Integers,
    out: Any,
    threads: int,
) -> int:
    if len(target) != len(which):
        raise ValueError(f"target: expected {len(which)} numbers, got {len(target)}")
    if (missing := check(table, which, begin, length)) >= 0:
        return missing
    whole = np.frombuffer(out, np.uint8)
    outside = (target < 0) | (target > whole.size) | (length > whole.size - target)
    if outside.any():
        raise ValueError(f"range {int(outside.argmax())} of the request does not fit the output")
    numbers = zip(which.tolist(), begin.tolist(), length.tolist(), target.tolist(), strict=True)
    for number, first, size, at in numbers:
        whole[at : at + size] = table.buffers[number][first : first + size]
    return -1


def values(table: Any, which: Integers, begin: Integers, length: Integers, text: bool, threads: int) -> int | list[Any]:
    if (missing := check(table, which, begin, length)) >= 0:
        return missing
    triples = zip(which.tolist(), begin.tolist(), length.tolist(), strict=True)
    data = [table.buffers[number][first : first + size].tobytes() for number, first, size in triples]
    return [value.decode() for value in data] if text else data


def advise(table: Any, which: Integers, begin: Integers, length: Integers, gap: int, most: int, threads: int) -> int:
    if not len(which) == len(begin) == len(length):
        raise ValueError("expected which, begin and length of one size")
    if gap < 0 or most < 0:
        raise ValueError("advise: expected a gap and a largest number of bytes from 0 on")
    if (madvise := _madvise()) is None:
        return -1
    page = mmap.PAGESIZE
    left = most // page * page
    for first, last in _pages(table, which, begin, length, page, gap):
        size = min(last - first, left)
        if size:
            madvise(first, size, mmap.MADV_WILLNEED)
        left -= size
    return -1


@cache
def _madvise() -> Any:
    """Return the system call madvise; None on a system without it."""
    if not hasattr(mmap, "MADV_WILLNEED"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


def _pages(
    table: Any, which: Integers, begin: Integers, length: Integers, page: int, gap: int
) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the pages of ranges in open segments, sorted, merged where gaps are small."""
    known = (which >= 0) & (which < len(table)) & (begin >= 0) & (length > 0)
    which, begin, length = which[known], begin[known], length[known]
    size = np.where(table.address[which] == 0, 0, table.size[which]).astype(np.int64)
    inside = (begin <= size) & (length <= size - begin)
    first = table.address[which[inside]].astype(np.int64) + begin[inside]
    order = np.argsort(first)
    starts = first[order] // page * page
    ends = np.maximum.accumulate(-(-(first + length[inside])[order] // page) * page)
    cuts = np.flatnonzero(starts[1:] > ends[:-1] + gap) + 1
    bounds = [0, *cuts.tolist(), len(starts)] if len(starts) else []
    for a, b in pairwise(bounds):
        yield int(starts[a]), int(ends[b - 1])


def checksums(
    table: Any, which: Integers, begin: Integers, length: Integers, sums: Sums, width: int, threads: int
) -> int | tuple[int]:
    if isinstance(found := _hashes(table, which, begin, length, sums), int):
        return found
    sums[:] = np.array(found, np.uint64)
    return (-1,)


def first_difference(
    table: Any, which: Integers, begin: Integers, length: Integers, sums: Sums, width: int, threads: int
) -> int | tuple[int]:
    if isinstance(found := _hashes(table, which, begin, length, sums), int):
        return found
    different = np.array(found, np.uint64).astype(sums.dtype) != sums
    return (int(different.argmax()) if different.any() else -1,)


def _hashes(table: Any, which: Integers, begin: Integers, length: Integers, sums: Sums) -> int | list[int]:
    if not len(which) == len(begin) == len(length):
        raise ValueError("expected which, begin and length of one size")
    if len(sums) != len(which):
        raise ValueError(f"sums: expected {len(which)} numbers, got {len(sums)}")
    if (missing := check(table, which, begin, length)) >= 0:
        return missing
    triples = zip(which.tolist(), begin.tolist(), length.tolist(), strict=True)
    return [xxh3_64_intdigest(table.buffers[number][first : first + size].data) for number, first, size in triples]


def unchecked_rows(
    flags: Bytes, shift: int, origin: Integers, starts: Integers, rows: Integers, bits: int, items: int
) -> bytes:
    most = (1 << 63) - 1
    _refuse_shift(shift)
    if len(starts) != len(origin) + 1 or starts[0] != 0:
        raise ValueError(f"starts: expected {len(origin) + 1} numbers from 0 on, got {len(starts)}")
    if bits < 0 or items < 0 or (bits and items > most // bits - 8):
        raise ValueError("unchecked_rows: expected a width and a number of items from 0 on that fit 63 bits")
    if not bits or not items:
        return b""
    outside = (rows < 0) | (rows >= starts[-1])
    some = slice(0, int(outside.argmax()) if outside.any() else len(rows))
    which = np.searchsorted(starts, rows[some], "right") - 1
    local = rows[some] - starts[which]
    bad = (local < 0) | (local > (most - 8) // bits - items)
    begin = np.where(bad, 0, local) * bits // 8
    length = np.where(bad, -1, -(-(np.where(bad, 0, local) + items) * bits // 8) - begin)
    found = unchecked_ranges(flags, shift, origin, which, begin, length)
    if outside.any():
        raise IndexError(f"row {int(outside.argmax())} of the request lies outside the data")
    return found


def unchecked_ranges(
    flags: Bytes, shift: int, origin: Integers, which: Integers, begin: Integers, length: Integers
) -> bytes:
    _refuse_shift(shift)
    if not len(which) == len(begin) == len(length):
        raise ValueError("expected which, begin and length of one size")
    unknown = (which < 0) | (which >= len(origin))
    some = slice(0, int(unknown.argmax()) if unknown.any() else len(which))
    first, begin, length = origin[which[some]], begin[some], length[some]
    bad = (begin < 0) | (length < 0) | (first < 0) | (begin > np.iinfo(np.int64).max - first)
    first = np.where(bad, 0, first + np.where(bad, 0, begin))
    bad |= length > np.iinfo(np.int64).max - first
    last = np.where(bad, 0, first + np.where(bad, 0, length) - 1) >> shift
    bad = (bad | (last >= len(flags))) & (length != 0)
    if bad.any():
        raise ValueError(f"range {int(bad.argmax())} of the request lies outside the blocks")
    if unknown.any():
        raise IndexError(f"row {int(unknown.argmax())} of the request lies outside the data")
    first, counts = first >> shift, np.where(length != 0, last - (first >> shift) + 1, 0)
    blocks = np.unique(np.arange(int(counts.sum())) + np.repeat(first - (np.cumsum(counts) - counts), counts))
    found: bytes = blocks.astype(np.int64)[flags[blocks] == 0].tobytes()
    return found


def _refuse_shift(shift: int) -> None:
    if not 0 <= shift <= 62:
        raise ValueError(f"shift: expected a number from 0 to 62, got {shift}")


def lines(
    data: Any,
    at: int,
    stop: int,
    whole: bool,
    skip_blank: bool,
    longest: int,
    base: int,
    offset: NDArray[Any],
    length: NDArray[Any],
) -> tuple[int, int]:
    array = np.frombuffer(data, np.uint8)
    if offset.itemsize not in (4, 8) or len(offset) != len(length):
        raise ValueError("offset: expected as many aligned items of 4 or 8 bytes as lengths")
    if not 0 <= at <= stop <= array.size:
        raise ValueError(f"expected 0 <= at <= stop <= {array.size}, got {at} and {stop}")
    most = (1 << 63) - 1 if offset.itemsize == 8 else (1 << 32) - 1
    if not 0 <= longest < 1 << 32 or not 0 <= base <= most - array.size:
        raise ValueError("lines: expected lengths and offsets that fit the output")
    count = 0
    while count < len(length) and at < stop:
        starts, ends, nexts = _some_lines(array, at, stop, whole, longest)
        if not len(starts):
            break
        kept = np.flatnonzero(~_blank(array, starts, ends)) if skip_blank else np.arange(len(starts))
        if taken := min(len(kept), len(length) - count):
            offset[count : count + taken] = starts[kept[:taken]] + base
            length[count : count + taken] = (ends - starts)[kept[:taken]]
            count += taken
        at = int(nexts[-1] if taken == len(kept) and count < len(length) else nexts[kept[taken - 1]])
    return count, at


def _some_lines(data: Bytes, at: int, stop: int, whole: bool, longest: int) -> tuple[Integers, Integers, Integers]:
    """Return begin and end of lines from `at` on, and where the line after each begins; none if the next has no end."""
    newlines = np.empty(0, np.int64)
    for first in range(at, data.size, _BLOCK):
        newlines = np.flatnonzero(data[first : first + _BLOCK] == _NEWLINE) + first
        if len(newlines):
            break
    nexts = newlines + 1
    if not len(newlines) and whole:
        newlines = nexts = np.array([data.size])
    starts = np.concatenate([[at], nexts[:-1]]) if len(nexts) else nexts
    returns = (newlines > starts) & (nexts > newlines) & (data[newlines - 1] == _RETURN)
    ends = newlines - returns
    good = (starts < stop) & (ends - starts <= longest)
    some = slice(0, len(good) if good.all() else int(good.argmin()))
    return starts[some], ends[some], nexts[some]


def _blank(data: Bytes, starts: Integers, ends: Integers) -> NDArray[np.bool_]:
    """Return which lines have nothing but white space."""
    blank: NDArray[np.bool_] = starts == ends
    for k in np.flatnonzero(~blank & (data[np.minimum(starts, data.size - 1)] <= _SPACE)).tolist():
        blank[k] = data[starts[k] : ends[k]].tobytes().isspace()
    return blank


def newlines(data: Any) -> int:
    array = np.frombuffer(data, np.uint8)
    return sum(int(np.count_nonzero(array[at : at + _BLOCK] == _NEWLINE)) for at in range(0, array.size, _BLOCK))


def permute(
    size: int,
    multiply: Words,
    add: Words,
    shift: int,
    mask: int,
    positions: Integers,
    out: Integers,
    inverse: bool,
    threads: int = 1,
) -> int:
    if not (len(multiply) == len(add) and len(out) == len(positions) and _keys_fit(size, multiply, shift, mask)):
        raise ValueError(
            "permute: expected odd multipliers, as many adds, an output as long as positions, a mask of ones that "
            "covers the size, and a shift by half its bits or more"
        )
    outside = (positions < 0) | (positions >= size)
    if outside.any():
        raise IndexError(f"row {int(outside.argmax())} of the request lies outside the data")
    keys = list(zip(multiply.tolist(), add.tolist(), strict=True))
    step = _backward if inverse else _forward
    x = positions.astype(np.uint64)
    todo = np.arange(len(x))
    while len(todo):
        x[todo] = step(x[todo], keys, np.uint64(shift), np.uint64(mask))
        todo = todo[x[todo] >= np.uint64(size)]
    out[:] = x.astype(np.int64)
    return -1


def _keys_fit(size: int, multiply: Words, shift: int, mask: int) -> bool:
    """Return whether every round is a permutation with a one-step inverse, so that repeating rounds ends below size."""
    whole = mask & (mask + 1) == 0 and size <= mask + 1
    return 1 <= shift <= 63 and mask >> 2 * shift == 0 and whole and bool((multiply % np.uint64(2) == 1).all())


def _forward(x: Words, keys: list[tuple[int, int]], shift: np.uint64, mask: np.uint64) -> Words:
    for multiply, add in keys:
        x = (x * np.uint64(multiply) + np.uint64(add)) & mask
        x = x ^ (x >> shift)
    return x


def _backward(x: Words, keys: list[tuple[int, int]], shift: np.uint64, mask: np.uint64) -> Words:
    for multiply, add in reversed(keys):
        x = x ^ (x >> shift)
        x = ((x - np.uint64(add)) * np.uint64(multiply)) & mask
    return x


def _rows(table: Any, starts: Integers, rows: Integers) -> int | tuple[Integers, Integers]:
    """Return segment and local row of each row, or the number of a segment that is not open."""
    if len(starts) != len(table) + 1 or starts[0] != 0:
        raise ValueError(f"starts: expected {len(table) + 1} numbers from 0 on, got {len(starts)}")
    outside = (rows < 0) | (rows >= starts[-1])
    if outside.any():
        raise IndexError(f"row {int(outside.argmax())} of the request lies outside the data")
    segment = np.searchsorted(starts, rows, "right") - 1
    closed = table.address[segment] == 0
    return int(segment[closed.argmax()]) if closed.any() else (segment, rows - starts[segment])


def check(table: Any, which: Integers, begin: Integers, length: Integers) -> int:
    """Raise if a range lies outside its segment; returns the number of a segment that is not open, or -1."""
    if not len(which) == len(begin) == len(length):
        raise ValueError("expected which, begin and length of one size")
    outside = (which < 0) | (which >= len(table))
    if outside.any():
        raise IndexError(f"row {int(outside.argmax())} of the request lies outside the data")
    closed = table.address[which] == 0
    if closed.any():
        return int(which[closed.argmax()])
    size = table.size[which].astype(np.int64)
    _refuse(_OUTSIDE, (begin < 0) | (length < 0) | (begin > size) | (length > size - begin), which)
    return -1


def _refuse(message: str, bad: NDArray[np.bool_], segment: Integers) -> None:
    if bad.any():
        k = int(bad.argmax())
        raise ValueError(message.format(k), int(segment[k]))
