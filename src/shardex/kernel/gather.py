"""Copies many byte ranges of many buffers into one array: almost every read ends here.

`Ranges` is a list of byte ranges in a `Segments` table that have not been copied yet. `take` copies rows of one width.
`row_ranges` and `locate` turn row numbers into ranges: by the width of a row, and through an array of offsets.
The table itself is in `buffers`. Files, fields and samples are left to other rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from shardex.errors import RangeError, RowError
from shardex.kernel.array_pool import pooled_empty
from shardex.kernel.block_flags import unchecked_ranges, unchecked_rows
from shardex.kernel.buffers import KERNEL, Bytes, Guard, Integers, Segments, Triple, integers
from shardex.kernel.buffers import kernel as _kernel
from shardex.kernel.threads import threads

_UNCHECKED = 16 << 20  # bytes that may be allocated before the ranges are checked
_GAP = 64 << 10  # ranges that are closer than this are read together: it costs less than another request
_MOST_ADVISED = 256 << 20  # bytes per call of `advise`, so that pages read ahead do not evict each other


class Ranges:
    """Byte ranges of a table that are not copied yet; methods copy them packed, padded, or as one object per range."""

    __slots__ = ("begin", "item", "length", "segments", "which")

    def __init__(self, segments: Segments, which: Any, begin: Any, length: Any, item: int = 1) -> None:
        self.segments = segments
        self.item = item
        """All lengths are known to be multiples of this."""
        self.which = integers(which)
        self.begin = integers(begin)
        self.length = integers(length)

    @classmethod
    def concat(cls, segments: Segments, places: Sequence[tuple[Integers, Integers, Integers]]) -> Ranges:
        """Concatenate ranges of one table: segment, begin and length of each."""
        which, begin, length = map(np.concatenate, zip(*places, strict=True)) if places else ([], [], [])
        return cls(segments, which, begin, length)

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, where: Any) -> Ranges:
        return Ranges(self.segments, self.which[where], self.begin[where], self.length[where], self.item)

    def packed(self) -> tuple[Bytes, Integers]:
        """Return all bytes end to end, and the offsets of the ranges in them.

        >>> data, offsets = Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 3]).packed()
        >>> bytes(data), offsets.tolist()
        (b'efabc', [0, 2, 5])
        """
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.length, out=offsets[1:])
        total = int(offsets[-1])
        self._check_before_allocating(total)
        return self._copy(pooled_empty((total,), np.uint8), -1), offsets

    def padded(self, stride: int | None = None) -> Bytes:
        """Return a matrix with one range per row, padded with zeros to `stride` bytes (default: the longest range).

        >>> Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 3]).padded().tobytes()
        b'ef\\x00abc'
        """
        if stride is None:
            stride = int(self.length.max(initial=0))
        self._check_before_allocating(len(self) * stride)
        return self._copy(pooled_empty((len(self), stride), np.uint8), stride)

    def copy_to(self, out: NDArray[Any], target: Integers) -> None:
        """Copy each range to its place in an array, given in bytes; ranges that overlap there are undefined.

        >>> out = np.zeros(6, np.uint8)
        >>> Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 3]).copy_to(out, np.array([4, 0])); out.tobytes()
        b'abc\\x00ef'
        """
        self._call(_kernel.placed, integers(target), out, threads())

    def _check_before_allocating(self, size: int) -> None:
        # The kernel checks ranges only after the allocation; a damaged length must not allocate huge memory first.
        if not 0 <= size <= _UNCHECKED:
            self.segments.check(self.which, self.begin, self.length)

    def _copy(self, out: Bytes, stride: int) -> Bytes:
        self._call(_kernel.ranges, out, stride, threads())
        return out

    def triple(self) -> Triple:
        """Return segment, begin and length of each range."""
        return self.which, self.begin, self.length

    def unchecked(self, flags: Bytes, shift: int, origin: Integers) -> Integers:
        """Return the blocks of these ranges without a flag; see `Guard`."""
        return unchecked_ranges(flags, shift, origin, self.which, self.begin, self.length)

    def within(self, segments: Segments) -> Ranges:
        """Return the ranges that are in the buffers of a table."""
        return Ranges(segments, *segments.valid(*self.triple()))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.segments.call(function, (self.which, self.begin, self.length, *arguments), self)

    def bytes(self) -> list[bytes]:
        """Return one `bytes` object per range."""
        return cast("list[bytes]", self._call(_kernel.values, False, threads()))

    def text(self) -> list[str]:
        """Return one `str` per range, decoded as UTF-8."""
        return cast("list[str]", self._call(_kernel.values, True, 1))

    def views(self) -> list[memoryview]:
        """Return one read-only view per range, without a copy."""
        self.segments.check(self.which, self.begin, self.length)
        triples = zip(self.which.tolist(), self.begin.tolist(), (self.begin + self.length).tolist(), strict=True)
        views = [self.segments.open(number)[begin:end].data.toreadonly() for number, begin, end in triples]
        self.fetch()  # after the views exist, so that the segments cannot be closed
        return views

    def fetch(self) -> None:
        """Download and check these ranges if necessary; only buffers that you hold (see `hold`) stay valid."""
        if self.segments.closable or self.segments.guard is not None:
            self._call(lambda *_: -1)

    def hold(self) -> Any:
        """Download these ranges if necessary; they stay available as long as the returned object lives."""
        held = [self.segments.open(number) for number in np.unique(self.which[self.length > 0]).tolist()]
        self.fetch()
        return held

    def advise(self, gap: int = _GAP) -> None:
        """Ask the system to start reading these bytes, without waiting; ranges that cannot be read are skipped.

        Ranges that are at most `gap` bytes apart are read together, with the bytes in between.

        >>> Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 99]).advise()
        """
        self.segments.try_open(self.which)
        if self.segments.guard is not None and self._advise_blocks(self.segments.guard):
            return
        if not self.segments.start_fetch(self.which, self.begin, self.length):
            return  # the download has started; bytes that have not arrived must not be read
        self.segments.call(_kernel.advise, (self.which, self.begin, self.length, gap, _MOST_ADVISED, threads()))

    def _advise_blocks(self, guard: Guard) -> bool:
        """Start to read the blocks that must be checked first; return True if nothing else is to be done."""
        if guard.left and len(blocks := self.segments.unchecked(self, guard)):
            guard.advise(blocks)
        return self.segments.closable  # what was checked there is in the cache


class _Rows:
    """Rows of `width` bytes, of each of which `reach` bytes are read from its begin on."""

    __slots__ = ("reach", "rows", "starts", "width")

    def __init__(self, starts: Integers, rows: Integers, width: int, reach: int) -> None:
        self.starts, self.rows, self.width, self.reach = starts, rows, width, reach

    def triple(self) -> Triple:
        which = np.searchsorted(self.starts, self.rows, "right") - 1
        return which, (self.rows - self.starts[which]) * self.width, np.full(len(self.rows), self.reach)

    def unchecked(self, flags: Bytes, shift: int, origin: Integers) -> Integers:
        return unchecked_rows(
            flags, shift, origin, self.starts, self.rows, self.width, items=self.reach // max(1, self.width)
        )

    def within(self, segments: Segments) -> Ranges:
        return Ranges(segments, *segments.valid(*self.triple()))


def take(segments: Segments, starts: Integers, rows: Integers, width: int, out: NDArray[Any]) -> None:
    """Copy rows of `width` bytes into `out`; row r lies in the segment s with ``starts[s] <= r < starts[s+1]``.

    >>> out = np.empty(2, np.uint16)
    >>> take(Segments.of(np.arange(9, dtype=np.uint16)), np.array([0, 9]), np.array([7, 2]), 2, out)
    >>> out.tolist()
    [7, 2]
    """
    starts, rows = integers(starts), integers(rows)
    segments.call(_kernel.fixed, (starts, rows, width, out, threads()), _Rows(starts, rows, width, width))


def row_ranges(segments: Segments, starts: Integers, rows: Integers, width: int, reach: int | None = None) -> Ranges:
    """Return the ranges that `take` would copy; `reach` is the length of a range, if it is not `width`.

    >>> row_ranges(Segments.of(b"abcdef"), np.array([0, 3]), np.array([2, 0]), 2).text()
    ['ef', 'ab']
    """
    return Ranges(segments, *_Rows(starts, rows, width, width if reach is None else reach).triple())


def locate(segments: Segments, starts: Integers, rows: Integers, width: int, item: int, values: Segments) -> Ranges:
    """Return the ranges in `values` of rows whose offsets lie in `segments`.

    Offsets are integers of `width` bytes that count items of `item` bytes.

    >>> offsets = Segments.of(np.array([0, 2, 5], np.int64))
    >>> locate(offsets, np.array([0, 2]), np.array([1]), 8, 1, Segments.of(b"abcde")).text()
    ['cde']
    """
    which, begin, length = (np.empty(len(rows), np.int64) for _ in range(3))
    starts, rows = integers(starts), integers(rows)
    touched = _Rows(starts, rows, width, 2 * width)
    segments.call(_kernel.locate, (starts, rows, width, item, which, begin, length), touched)
    return Ranges(values, which, begin, length, item)


def value_reader(offsets: Segments, values: Segments, number: int, width: int, *, text: bool) -> Callable[[int], Any]:
    """Return a function from a row of segment `number` to its text or bytes: `locate` for single rows, without arrays.

    >>> offsets, values = Segments.of(np.array([0, 2, 5], np.int64)), Segments.of(b"abcde")
    >>> value_reader(offsets, values, 0, 8, text=True)(1)
    'cde'
    """
    where, data = offsets.open(number), values.open(number)
    if KERNEL == "c" and not offsets.closable:  # addresses of a closable table may become invalid
        sizes = int(offsets.address[number]), where.size, width, int(values.address[number]), data.size, int(text)
        return partial(_kernel.value, *sizes)
    whole = where[: where.size // width * width]  # a buffer may be padded
    offset, view = whole.view(np.int32 if width == 4 else np.int64).item, data.data

    def get(row: int) -> Any:
        raw = bytes(view[offset(row) : offset(row + 1)])
        return raw.decode() if text else raw

    return get


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
    try:
        most = -1 - _kernel.pieces(*given, none, none, none, nothing, nothing, nothing, none, 1)
        places = [np.empty(max(0, most), np.int64) for _ in range(3)]
        marks = [pooled_empty((len(rows) * width,), np.int32) if wanted else nothing for wanted in (ids, positions)]
        ends = np.empty(max(0, most) + 2 * len(rows), np.int32) if bounds else nothing
        offsets = np.zeros(len(rows) + 1, np.int64) if bounds else none
        made = _kernel.pieces(*given, *places, *marks, ends, offsets, threads())
    except ValueError as error:
        raise RangeError(str(error)) from None
    except IndexError as error:
        raise RowError(str(error)) from None
    begin, length, target = (one[:made] for one in places)
    return Pieces(begin, length, target, marks[0], marks[1], ends[: offsets[-1]] if bounds else ends, offsets)


def fill_gaps(out: NDArray[Any], target: Integers, length: Integers, value: Any) -> None:
    """Fill the elements of a flat array that no run covers with a value; runs ascend and do not overlap.

    >>> out = np.arange(8); fill_gaps(out, np.array([1, 4]), np.array([2, 3]), -1); out
    array([-1,  1,  2, -1,  4,  5,  6, -1])
    """
    try:
        _kernel.gaps(integers(target), integers(length), np.array(value, out.dtype).tobytes(), out)
    except ValueError as error:
        raise RangeError(str(error)) from None


def best_fit(sizes: Integers, capacity: int) -> tuple[Integers, Integers]:
    """Put items into bins of a capacity, best-fit decreasing; return the items by bins, and the first of each bin.

    Items are taken from large to small, equal ones in order. Each goes into the bin with the least room that suffices;
    of several bins, into the one that was changed last. Bins are sorted by their first items, the items of a bin too.

    >>> best_fit(np.array([3, 7, 5, 2, 3]), 10)
    (array([0, 1, 2, 3, 4]), array([0, 2, 5]))
    """
    bins, order = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.int64)
    capacity = min(capacity, max(1, int(sizes.sum())))  # the kernel has a list of bins for each room
    try:
        count = _kernel.best_fit(integers(sizes), capacity, bins, order)
    except ValueError as error:
        raise RangeError(str(error)) from None
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
    limit = min(limit, (1 << 63) - 1)
    try:
        count = _kernel.fit_in_order(
            integers(sizes), min(run or all_, all_), limit, min(most or all_, all_), padded, ends
        )
    except ValueError as error:
        raise RangeError(str(error)) from None
    return ends[:count].copy()


def find_lines(
    data: Any,
    at: int,
    stop: int,
    offset: NDArray[Any],
    length: NDArray[np.uint32],
    *,
    whole: bool,
    skip_blank: bool = False,
    longest: int = (1 << 32) - 1,
    base: int = 0,
) -> tuple[int, int]:
    """Find the lines that begin from `at` on and before `stop`; return how many, and where the next one begins.

    Their offsets, plus `base`, and lengths, without newline and carriage return, are written to `offset` (uint32 or
    uint64) and `length`. `whole` says that the file ends with the data: then the last line needs no newline. The search
    ends early at a line that has no end in the data or is longer than `longest`, and when the arrays are full.

    >>> offset, length = np.zeros(2, np.uint32), np.zeros(2, np.uint32)
    >>> find_lines(b"one\\r\\n\\nthree", 0, 11, offset, length, whole=True, skip_blank=True)
    (2, 11)
    >>> offset.tolist(), length.tolist()
    ([0, 6], [3, 5])
    """
    count, then = _kernel.lines(data, at, stop, whole, skip_blank, longest, base, offset, length)
    return count, then


def count_newlines(data: Any) -> int:
    """Return the number of newlines.

    >>> count_newlines(b"one\\n\\nthree")
    2
    """
    return cast("int", _kernel.newlines(data))


def permute(
    size: int,
    multiply: NDArray[np.uint64],
    add: NDArray[np.uint64],
    shift: int,
    mask: int,
    positions: Integers,
    *,
    inverse: bool = False,
) -> Integers:
    """Map positions by a permutation of 0 to `size`: rounds of ``x = (x * multiply + add) & mask; x ^= x >> shift``.

    Rounds are repeated while the result is not below `size`. For the inverse permutation `multiply` holds the inverses
    modulo ``mask + 1``. `order.Shuffle` computes the keys.
    """
    out = np.empty(len(positions), np.int64)
    try:
        _kernel.permute(size, multiply, add, shift, mask, integers(positions), out, inverse, threads())
    except IndexError as error:
        raise RowError(str(error)) from None
    return out
