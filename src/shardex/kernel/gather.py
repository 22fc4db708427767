"""Copies many byte ranges of many buffers into one array: almost every read ends here.

`Ranges` is a list of byte ranges in a `Segments` table that have not been copied yet. `take` copies rows of one width.
`row_ranges` and `locate` turn row numbers into ranges: by the width of a row, and through an array of offsets.
`unchecked_rows` and `unchecked_ranges` find the blocks of a read that have not been checked yet, `checksums` and
`first_difference` check them. The table itself is in `buffers`. Files, fields and samples are left to other rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shardex.kernel.array_pool import pooled_empty
from shardex.kernel.buffers import KERNEL, Bytes, Guard, Integers, Segments, Triple, call, integers, kernel
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
        self._call(kernel.placed, integers(target), out, threads())

    def _check_before_allocating(self, size: int) -> None:
        # The kernel checks ranges only after the allocation; a damaged length must not allocate huge memory first.
        if not 0 <= size <= _UNCHECKED:
            self.segments.check(self.which, self.begin, self.length)

    def _copy(self, out: Bytes, stride: int) -> Bytes:
        self._call(kernel.ranges, out, stride, threads())
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
        return cast("list[bytes]", self._call(kernel.values, False, threads()))

    def text(self) -> list[str]:
        """Return one `str` per range, decoded as UTF-8."""
        return cast("list[str]", self._call(kernel.values, True, 1))

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
        self.segments.call(kernel.advise, (self.which, self.begin, self.length, gap, _MOST_ADVISED, threads()))

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
    segments.call(kernel.fixed, (starts, rows, width, out, threads()), _Rows(starts, rows, width, width))


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
    segments.call(kernel.locate, (starts, rows, width, item, which, begin, length), touched)
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
        return partial(kernel.value, *sizes)
    whole = where[: where.size // width * width]  # a buffer may be padded
    offset, view = whole.view(np.int32 if width == 4 else np.int64).item, data.data

    def get(row: int) -> Any:
        raw = bytes(view[offset(row) : offset(row + 1)])
        return raw.decode() if text else raw

    return get


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
    count, then = kernel.lines(data, at, stop, whole, skip_blank, longest, base, offset, length)
    return count, then


def count_newlines(data: Any) -> int:
    """Return the number of newlines.

    >>> count_newlines(b"one\\n\\nthree")
    2
    """
    return cast("int", kernel.newlines(data))


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
    call(kernel.permute, size, multiply, add, shift, mask, integers(positions), out, inverse, threads())
    return out


# -- blocks that are not checked --------------------------------------------------------------------------------------

_NONE = np.empty(0, np.int64)


def unchecked_rows(
    flags: Bytes,
    shift: int,
    origin: Integers,
    starts: Integers,
    rows: Integers,
    width: int,
    *,
    items: int = 1,
    bits: bool = False,
) -> Integers:
    """Return the numbers of the blocks of rows whose flag is 0, ascending, each once.

    The bytes of many buffers are divided into blocks of ``1 << shift`` bytes with one flag each: 0 means that the block
    was not checked (see `buffers.Guard`). `origin` says for each buffer where it begins, in bytes counted over all
    blocks.

    Row r lies in the buffer s with ``starts[s] <= r < starts[s+1]``; it is `items` consecutive numbers of `width` bytes
    (with `bits`: bits), the first one at its place in the buffer: two for the offsets of a row.

    >>> flags = np.array([0, 1, 0, 0], np.uint8)  # four blocks of 4 bytes; two buffers, which begin with blocks 0 and 2
    >>> unchecked_rows(flags, 2, np.array([0, 8]), np.array([0, 4, 8]), np.array([5, 1, 2]), 2)
    array([0, 2])
    """
    numbers = map(integers, (origin, starts, rows))
    return _blocks(kernel.unchecked_rows, flags, shift, *numbers, width if bits else 8 * width, items)


def unchecked_ranges(
    flags: Bytes, shift: int, origin: Integers, which: Integers, begin: Integers, length: Integers
) -> Integers:
    """Return the numbers of the blocks of byte ranges whose flag is 0, ascending, each once.

    >>> flags = np.array([0, 1, 0, 0], np.uint8)
    >>> unchecked_ranges(flags, 2, np.array([0, 8]), np.array([1, 0, 1]), np.array([3, 4, 0]), np.array([2, 4, 0]))
    array([2, 3])
    """
    return _blocks(kernel.unchecked_ranges, flags, shift, *map(integers, (origin, which, begin, length)))


def _blocks(function: Callable[..., bytes], *arguments: Any) -> Integers:
    found = call(function, *arguments)
    return np.frombuffer(found, np.int64) if found else _NONE


# -- checksums --------------------------------------------------------------------------------------------------------


Sums = NDArray[np.uint32]


def checksums(data: Any, begins: Any, sizes: Any, which: Any = None) -> Sums:
    """Return the low 32 bits of the xxh3-64 of byte ranges of a buffer.

    Of a `Segments` table, `which` says which buffer each is in.

    >>> [hex(sum) for sum in checksums(b"abcdef", [0, 3], [3, 3]).tolist()]
    ['0x892f3950', '0x699ef188']
    """
    ranges = _ranges(data, begins, sizes, which)
    sums = np.empty(len(ranges), np.uint32)
    ranges._call(kernel.checksums, sums, sums.itemsize, threads())
    return sums


def first_difference(data: Any, begins: Any, sizes: Any, sums: Any, which: Any = None) -> int:
    """Return the number of the first range whose checksum is not the given one, or -1 if all agree.

    Checksums of uint64 are those of the whole xxh3-64, those of uint32 its low half.

    >>> sums = checksums(b"abcdef", [0, 3], [3, 3])
    >>> first_difference(b"abcdef", [0, 3], [3, 3], sums), first_difference(b"abcdeF", [0, 3], [3, 3], sums)
    (-1, 1)
    """
    expected = np.ascontiguousarray(sums)
    if not expected.flags.aligned:
        expected = expected.copy()
    ranges = _ranges(data, begins, sizes, which)
    (found,) = ranges._call(kernel.first_difference, expected, expected.itemsize, threads())
    return int(found)


def _ranges(data: Any, begins: Any, sizes: Any, which: Any) -> Ranges:
    segments = data if isinstance(data, Segments) else Segments.of(data)
    return Ranges(segments, np.zeros(len(begins), np.int64) if which is None else which, begins, sizes)
