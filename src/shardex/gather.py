"""Copy many ranges of many buffers into one: the operation under almost every read.

`Segments` is a table of buffers, some not open yet; `Ranges` is a list of byte ranges in it that has not been
copied, but may be announced; `take` copies rows of one width, `spread` and `locate` turn rows into ranges, by their
width and through offsets. The work is done by `_gather.c` or, where that is not compiled (or ``SHARDEX_KERNEL=numpy``
says so), by the numpy twin `_twin.py`, which gives the same answers. Knows nothing of files, fields or samples.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from shardex import _twin
from shardex.errors import RangeError, RowError, ShardexError
from shardex.pool import empty

try:
    from shardex import _gather  # type: ignore[attr-defined]
except ImportError:  # no compiler when it was installed
    _gather = None

__all__ = ["KERNEL", "Fetch", "Ranges", "Segments", "line_ends", "locate", "one_value", "permute", "spread", "take"]

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Triple = tuple[Integers, Integers, Integers]
"""Segment, begin and length of ranges."""


class _Kernel(Protocol):
    def fixed(self, *arguments: Any) -> int: ...
    def locate(self, *arguments: Any) -> int: ...
    def ranges(self, *arguments: Any) -> int: ...
    def values(self, *arguments: Any) -> int | list[Any]: ...
    def value(self, *arguments: Any) -> Any: ...
    def advise(self, *arguments: Any) -> int: ...
    def line_ends(self, *arguments: Any) -> int: ...
    def permute(self, *arguments: Any) -> int: ...


if (_wanted := os.environ.get("SHARDEX_KERNEL", "")) not in ("", "c", "numpy"):
    raise ValueError(f"expected SHARDEX_KERNEL to be c or numpy, got {_wanted!r}")

KERNEL = "numpy" if _gather is None or _wanted == "numpy" else "c"
"""Which kernel runs: ``"c"`` or ``"numpy"``."""

_kernel = cast(_Kernel, _twin if KERNEL == "numpy" else _gather)

_THREADS = min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
_UNCHECKED = 16 << 20  # bytes that may be allocated before the ranges that ask for them are checked
_GAP = 64 << 10  # bytes between ranges that a disk reads in the time that another request costs it
_MOST_ADVISED = 256 << 20  # bytes of one advice: many at once must not drive each other out of memory


def _nothing_to_open(number: int) -> None:
    raise RangeError(f"expected segment {number} to be open")


class Fetch(Protocol):
    """Has bytes be there that lie elsewhere."""

    def __call__(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Have these ranges of open segments be there, or only begin to; whether they were there already."""


class Segments:
    """Buffers by number. One that is not open yet is opened by `opener` when a range first lies in it.

    >>> table = Segments(2)
    >>> table.put(0, b"hello"), table.put(1, b"world")
    (None, None)
    >>> Ranges(table, [1, 0], [0, 1], [5, 4]).text()
    ['world', 'ello']
    """

    __slots__ = ("__weakref__", "_calls", "_opener", "address", "buffers", "complete", "fetch", "lock", "name", "size")

    def __init__(
        self,
        count: int,
        opener: Callable[[int], None] = _nothing_to_open,
        name: Callable[[int], str] = "segment {}".format,
        fetch: Fetch | None = None,
        forgets: bool = False,
    ) -> None:
        self.address = np.zeros(count, np.uint64)
        self.size = np.zeros(count, np.uint64)
        self.buffers: dict[int, Bytes] = {}
        self.name = name
        self.fetch = fetch
        """Has ranges of open segments be there, where they may not be yet."""
        self._opener = opener
        self._calls: dict[int, list[Bytes]] = {}
        """What running calls keep of that which was forgotten since they began."""
        self.complete = False
        """Whether all segments are open and nothing of them has to be fetched; changes only under the lock."""
        self.lock: threading.RLock | None = None
        if fetch is not None or forgets:
            self.lock = threading.RLock()
            _far.add(self)

    @classmethod
    def of(cls, buffer: Any) -> Segments:
        """A table of one buffer."""
        table = cls(1)
        table.put(0, buffer)
        return table

    def __len__(self) -> int:
        return len(self.address)

    @property
    def forgets(self) -> bool:
        """Whether segments may be closed while others read; a table with `fetch` does."""
        return self.lock is not None

    def put(self, number: int, buffer: Any) -> None:
        """Open a segment with these bytes. One that is open stays as it is: a read may be looking at it."""
        if self.lock is not None:
            with self.lock:
                self._put(number, buffer)
        else:
            self._put(number, buffer)

    def _put(self, number: int, buffer: Any) -> None:
        # `setdefault` is one step, so of two threads that open a segment one wins; a lock could be held over a fork.
        array = self.buffers.setdefault(number, np.frombuffer(buffer, np.uint8))
        self.size[number] = array.size
        # An empty buffer is open too; address 1 is never read because no byte of it is in range.
        self.address[number] = array.__array_interface__["data"][0] or 1

    def open(self, number: int) -> Bytes:
        """The bytes of a segment, opened if need be."""
        while (buffer := self.buffers.get(number)) is None:
            self._opener(number)
            if not self.forgets and number not in self.buffers:
                raise RangeError(f"{self.name(number)}: expected its opener to open it")
        return buffer

    def try_open(self, numbers: Integers) -> None:
        """Open those of these segments that are there and can be opened."""
        known = numbers[(numbers >= 0) & (numbers < len(self))]
        for number in np.unique(known[self.address[known] == 0]).tolist():
            with suppress(ShardexError):
                self.open(number)

    def look(self, number: int, begin: int, end: int) -> Bytes:
        """Some bytes of a segment, not copied; fewer if it ends before."""
        data = self.open(number)
        if self.fetch is not None:
            stop = min(end, data.size)
            if 0 <= begin < stop:
                self.fetch(np.array([number]), np.array([begin]), np.array([stop - begin]), True)
        return data[begin:end]

    def forget(self, number: int) -> None:
        """Close a segment of a table that `forgets`; calls that look at it keep it until they have ended."""
        if self.lock is None:
            return
        with self.lock:
            self.complete = False
            buffer = self.buffers.pop(number, None)
            self.address[number] = 0
            if buffer is not None:
                for kept in list(self._calls.values()):
                    kept.append(buffer)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a kernel function on this table, opening the segments that it turns out to need."""
        if self.lock is not None:
            return self.call_far(function, arguments)
        first = (self,) if KERNEL == "numpy" else (self.address, self.size)
        return self._settle(function, *first, *arguments)

    def call_far(
        self, function: Callable[..., Any], arguments: Sequence[Any], ranges: Callable[[], Triple] | None = None
    ) -> Any:
        """The same for a table that `forgets`, maybe in another thread: `ranges` are there when they are looked at."""
        kept: list[Bytes] = []
        self._calls[id(kept)] = kept  # from here on nothing that is open goes away
        try:
            while True:
                state = self._as_it_is()
                answer = -1 if ranges is None or self.complete else self._fetch_inside(state, *ranges())
                if answer < 0:
                    first = (state,) if KERNEL == "numpy" else (state.address, state.size)
                    answer = function(*first, *arguments)
                    if not isinstance(answer, int) or answer < 0:
                        return answer
                self.open(answer)
        except (IndexError, ValueError) as error:
            raise (error if isinstance(error, ShardexError) else self._refusal(error)) from None
        finally:
            del self._calls[id(kept)]

    def _as_it_is(self) -> Segments:
        """A copy that stays the same."""
        assert self.lock is not None
        copy = Segments(0, self._opener, self.name)
        with self.lock:
            copy.address, copy.size = self.address.copy(), self.size.copy()
            if KERNEL == "numpy":
                copy.buffers = dict(self.buffers)
        return copy

    def _fetch_inside(self, state: Segments, which: Integers, begin: Integers, length: Integers) -> int:
        """Fetch ranges; or the number of a segment to open before, as a kernel function gives it."""
        which, begin, length = state.inside(which, begin, length)
        if (shut := state.address[which] == 0).any():
            return int(which[shut.argmax()])
        if self.fetch is not None and len(which):
            self.fetch(which, begin, length, True)
        return -1

    def inside(self, which: Integers, begin: Integers, length: Integers) -> Triple:
        """Those of some ranges that lie in their segments, or in ones that are not open; others are refused later."""
        known = (which >= 0) & (which < len(self)) & (begin >= 0) & (length > 0)
        if not known.all():
            which, begin, length = which[known], begin[known], length[known]
        fits = (length <= self.size[which].astype(np.int64) - begin) | (self.address[which] == 0)
        return (which, begin, length) if fits.all() else (which[fits], begin[fits], length[fits])

    def begin(self, which: Integers, begin: Integers, length: Integers) -> bool:
        """Have bytes of open segments be fetched, and do not wait for them; whether they were there already."""
        if self.fetch is None:
            return True
        state = self._as_it_is()
        which, begin, length = state.inside(which, begin, length)
        is_open = state.address[which] != 0
        if not is_open.any():
            return True
        return self.fetch(which[is_open], begin[is_open], length[is_open], False)

    def check(self, which: Integers, begin: Integers, length: Integers) -> None:
        """Open the segments of some ranges and refuse a range that does not lie in its segment."""
        self._settle(_twin.check, self, which, begin, length)

    def _settle(self, function: Callable[..., Any], *arguments: Any) -> Any:
        while True:
            try:
                answer = function(*arguments)
            except (IndexError, ValueError) as error:
                raise self._refusal(error) from None
            if not isinstance(answer, int) or answer < 0:
                return answer
            self.open(answer)

    def _refusal(self, error: IndexError | ValueError) -> Exception:
        """What a kernel function refused, as our own error."""
        if isinstance(error, UnicodeDecodeError):
            return error
        return RowError(str(error)) if isinstance(error, IndexError) else RangeError(self._describe(*error.args))

    def _describe(self, message: str, segment: int | None = None) -> str:
        return message if segment is None else f"{self.name(segment)}, {self.size[segment]} bytes: {message}"


_far: weakref.WeakSet[Segments] = weakref.WeakSet()


def _after_fork() -> None:
    """A fork copies neither the calls that run nor the promise that somebody will release a lock."""
    for table in _far:
        table.lock, table._calls = threading.RLock(), {}


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Ranges:
    """Byte ranges of a table, not copied yet: take them packed, padded, or as one object each."""

    __slots__ = ("begin", "length", "segments", "which")

    def __init__(self, segments: Segments, which: Any, begin: Any, length: Any) -> None:
        self.segments = segments
        self.which = _integers(which)
        self.begin = _integers(begin)
        self.length = _integers(length)

    @classmethod
    def together(cls, segments: Segments, places: Sequence[tuple[Integers, Integers, Integers]]) -> Ranges:
        """Ranges of one table that were found in several parts."""
        which, begin, length = map(np.concatenate, zip(*places, strict=True)) if places else ([], [], [])
        return cls(segments, which, begin, length)

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, where: Any) -> Ranges:
        return Ranges(self.segments, self.which[where], self.begin[where], self.length[where])

    def packed(self) -> tuple[Bytes, Integers]:
        """All bytes end to end, and the offsets between them.

        >>> data, offsets = Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 3]).packed()
        >>> bytes(data), offsets.tolist()
        (b'efabc', [0, 2, 5])
        """
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.length, out=offsets[1:])
        total = int(offsets[-1])
        self._check_before(total)
        return self._copy(empty((total,), np.uint8), -1), offsets

    def padded(self, stride: int | None = None) -> Bytes:
        """One range per row of a matrix, filled up with zeros.

        >>> Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 3]).padded().tobytes()
        b'ef\\x00abc'
        """
        if stride is None:
            stride = int(self.length.max(initial=0))
        self._check_before(len(self) * stride)
        return self._copy(empty((len(self), stride), np.uint8), stride)

    def _check_before(self, allocating: int) -> None:
        # A damaged length must be an error, not an attempt to allocate it. The kernel checks again, but only then.
        if not 0 <= allocating <= _UNCHECKED:
            self.segments.check(self.which, self.begin, self.length)

    def _copy(self, out: Bytes, stride: int) -> Bytes:
        if self.segments.fetch is not None:
            self._far(_kernel.ranges, out, stride, _THREADS)
        else:
            self.segments.call(_kernel.ranges, self.which, self.begin, self.length, out, stride, _THREADS)
        return out

    def _triple(self) -> Triple:
        return self.which, self.begin, self.length

    def _far(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.segments.call_far(function, (*self._triple(), *arguments), self._triple)

    def bytes(self) -> list[bytes]:
        """One `bytes` object per range."""
        if self.segments.fetch is not None:
            return cast("list[bytes]", self._far(_kernel.values, False))
        return cast("list[bytes]", self.segments.call(_kernel.values, self.which, self.begin, self.length, False))

    def text(self) -> list[str]:
        """One `str` per range, decoded as UTF-8."""
        if self.segments.fetch is not None:
            return cast("list[str]", self._far(_kernel.values, True))
        return cast("list[str]", self.segments.call(_kernel.values, self.which, self.begin, self.length, True))

    def views(self) -> list[memoryview]:
        """One read-only view per range, nothing copied."""
        self.segments.check(self.which, self.begin, self.length)
        triples = zip(self.which.tolist(), self.begin.tolist(), (self.begin + self.length).tolist(), strict=True)
        views = [self.segments.open(number)[begin:end].data.toreadonly() for number, begin, end in triples]
        self.fetch()  # they are held now
        return views

    def fetch(self) -> None:
        """Have these bytes be there, if they may not be; hold what is to be looked at, then fetch, then look."""
        if self.segments.fetch is not None:
            self._far(lambda *_: -1)

    def hold(self) -> Any:
        """Have these bytes be there as long as what this gives is held."""
        held = [self.segments.open(number) for number in np.unique(self.which[self.length > 0]).tolist()]
        self.fetch()
        return held

    def advise(self) -> None:
        """Have the system begin to read these bytes, and do not wait for them; what cannot be read is left out.

        >>> Ranges(Segments.of(b"abcdef"), [0, 0], [4, 0], [2, 99]).advise()
        """
        self.segments.try_open(self.which)
        if self.segments.fetch is not None and not self.segments.begin(self.which, self.begin, self.length):
            return  # they are on their way, and what is not there yet must not be read
        self.segments.call(_kernel.advise, self.which, self.begin, self.length, _GAP, _MOST_ADVISED)


def _integers(numbers: Any) -> Integers:
    """As the kernel wants them: int64, one after another, aligned."""
    array = np.ascontiguousarray(numbers, np.int64)
    return array if array.flags.aligned else array.copy()


def take(segments: Segments, starts: Integers, rows: Integers, width: int, out: NDArray[Any]) -> None:
    """Copy rows of `width` bytes into `out`; row r lies in the segment s with ``starts[s] <= r < starts[s+1]``.

    >>> out = np.empty(2, np.uint16)
    >>> take(Segments.of(np.arange(9, dtype=np.uint16)), np.array([0, 9]), np.array([7, 2]), 2, out)
    >>> out.tolist()
    [7, 2]
    """
    arguments = _integers(starts), _integers(rows), width, out, _THREADS
    if segments.fetch is not None:
        segments.call_far(_kernel.fixed, arguments, lambda: spread(segments, starts, rows, width)._triple())
    else:
        segments.call(_kernel.fixed, *arguments)


def spread(segments: Segments, starts: Integers, rows: Integers, width: int) -> Ranges:
    """The ranges that `take` would copy.

    >>> spread(Segments.of(b"abcdef"), np.array([0, 3]), np.array([2, 0]), 2).text()
    ['ef', 'ab']
    """
    which = np.searchsorted(starts, rows, "right") - 1
    return Ranges(segments, which, (rows - starts[which]) * width, np.full(len(rows), width))


def locate(segments: Segments, starts: Integers, rows: Integers, width: int, item: int, values: Segments) -> Ranges:
    """The ranges in `values` of rows whose offsets (of `width` bytes, counted in items) lie in `segments`.

    >>> offsets = Segments.of(np.array([0, 2, 5], np.int64))
    >>> locate(offsets, np.array([0, 2]), np.array([1]), 8, 1, Segments.of(b"abcde")).text()
    ['cde']
    """
    which, begin, length = (np.empty(len(rows), np.int64) for _ in range(3))
    segments.call(_kernel.locate, _integers(starts), _integers(rows), width, item, which, begin, length)
    return Ranges(values, which, begin, length)


def one_value(offsets: Segments, values: Segments, number: int, width: int, *, text: bool) -> Callable[[int], Any]:
    """What gives the text or the bytes of a row of one open segment, as `locate` would find it, without an array.

    >>> offsets, values = Segments.of(np.array([0, 2, 5], np.int64)), Segments.of(b"abcde")
    >>> one_value(offsets, values, 0, 8, text=True)(1)
    'cde'
    """
    where, what = offsets.open(number), values.open(number)
    if KERNEL == "c" and not offsets.forgets:  # then what the addresses are of could go away
        sizes = int(offsets.address[number]), where.size, width, int(values.address[number]), what.size, int(text)
        return partial(_kernel.value, *sizes)
    whole = where[: where.size // width * width]  # a buffer may be padded
    offset, data = whole.view(np.int32 if width == 4 else np.int64).item, what.data

    def get(row: int) -> Any:
        raw = bytes(data[offset(row) : offset(row + 1)])
        return raw.decode() if text else raw

    return get


_LINES_AT_ONCE = 1 << 16


def line_ends(buffer: Any) -> Integers:
    """The position after each newline; a last line without one ends at the end.

    >>> line_ends(b"a\\nbc\\n\\nd").tolist()
    [2, 5, 6, 7]
    """
    found: list[Integers] = []
    start, size = 0, memoryview(buffer).nbytes
    while start < size:
        out = np.empty(_LINES_AT_ONCE, np.int64)
        count = _kernel.line_ends(buffer, start, out)
        found.append(out[:count] if count == len(out) else out[:count].copy())
        if count < len(out):
            break
        start = int(out[-1])
    ends = np.concatenate(found) if found else np.empty(0, np.int64)
    if size and (not len(ends) or ends[-1] != size):
        ends = np.append(ends, np.int64(size))
    return ends


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
    """Map positions through rounds of ``x = (x * multiply + add) & mask; x ^= x >> shift``, walking back into size.

    Going back, `multiply` holds the inverses modulo ``mask + 1``. `shuffle` in `order.py` makes the keys.
    """
    out = np.empty(len(positions), np.int64)
    try:
        _kernel.permute(size, multiply, add, shift, mask, _integers(positions), out, inverse)
    except IndexError as error:
        raise RowError(str(error)) from None
    return out
