"""`Segments`: a table of numbered buffers that are opened on demand; and the choice of the kernel that runs on it.

A segment is opened before the first range in it is read. If the buffers are cached parts of remote files, `Segments`
fetches the bytes before the kernel reads them, and segments may be closed again while other threads read. If the files
have checksums, a `Guard` checks the blocks that a call touches before the kernel reads them. `gather` defines what is
copied out of the table.

The kernel is the C extension `_gather.c`. Where it is not compiled, or with ``SHARDEX_KERNEL=numpy``, the numpy kernel
(`numpy_kernel`) runs instead; its results are the same. `collect_kernel` is the C extension of writers.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.errors import RangeError, RowError, ShardexError
from shardex.kernel import numpy_kernel

try:
    from shardex.kernel import _gather  # type: ignore[attr-defined]
except ImportError:  # it was installed without a compiler
    _gather = None
try:
    from shardex.kernel import _collect  # type: ignore[attr-defined]
except ImportError:
    _collect = None

Integers = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Triple = tuple[Integers, Integers, Integers]
"""Three arrays: segment, begin and length of each range."""


if (_wanted := os.environ.get("SHARDEX_KERNEL", "")) not in ("", "c", "numpy"):
    raise ValueError(f"expected SHARDEX_KERNEL to be c or numpy, got {_wanted!r}")

if _gather is None and _wanted != "numpy":
    warnings.warn(
        "the C kernel of shardex is not built, numpy copies data instead, which is slower: install a C compiler and "
        "then shardex again, or set SHARDEX_KERNEL=numpy to keep it so",
        stacklevel=2,
    )
    os.environ["SHARDEX_KERNEL"] = "numpy"  # workers of this process need not repeat the warning

KERNEL: str = "numpy" if _gather is None or _wanted == "numpy" else "c"
"""Which kernel runs: ``"c"`` or ``"numpy"``."""

kernel: Any = numpy_kernel if KERNEL == "numpy" else _gather
collect_kernel: Any = None if KERNEL == "numpy" else _collect
"""The C code that copies samples into buffers (`_collect.c`), None where it is not used; `columns` calls it."""


def integers(numbers: Any) -> Integers:
    """Return numbers as the kernel requires them: int64, contiguous, aligned."""
    array = np.ascontiguousarray(numbers, np.int64)
    return array if array.flags.aligned else array.copy()


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the kernel that reads no table; its errors become those of shardex."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise RangeError(str(error)) from None
    except IndexError as error:
        raise RowError(str(error)) from None


def _nothing_to_open(number: int) -> None:
    raise RangeError(f"expected segment {number} to be open")


class Fetch(Protocol):
    """Downloads ranges of remote files into their mapped buffers."""

    def __call__(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Download ranges of open segments; without `wait` only start to. Return True if no byte was missing."""


class Touched(Protocol):
    """What a call reads of a table."""

    def triple(self) -> Triple:
        """Return the ranges."""

    def unchecked(self, flags: Bytes, shift: int, origin: Integers) -> Integers:
        """Return the blocks of these ranges without a flag, distinct and ascending; see `Guard`."""

    def within(self, segments: Segments) -> Touched:
        """Return the ranges that are in the buffers of a table."""


class Guard(Protocol):
    """Checks blocks of ``1 << shift`` bytes of the buffers of tables before they are used.

    A table that has a guard has an `origin` for each segment: byte b of segment s is in block
    ``(origin[s] + b) >> shift``. Blocks without a flag are outside of what is checked.
    """

    flags: Bytes
    """1 for each block that was checked."""
    shift: int
    left: int
    """0 if no block is left to check."""
    closes: int
    """How often files were closed; their flags were cleared then."""

    def check(self, blocks: Integers) -> None:
        """Fetch these blocks, compare their checksums and set their flags; raise an error for a damaged one."""

    def advise(self, blocks: Integers) -> None:
        """Start to read these blocks."""


class Segments:
    """Table of numbered buffers; `opener` opens a segment when a range in it is first needed.

    `name` gives the name of a segment for error messages. `evicts` means that a cache closes segments while other
    threads read: no view of them may be kept. `guard` checks blocks before they are read, if there is one.

    >>> table = Segments(2)
    >>> table.put(0, b"hello"), table.put(1, b"world")
    (None, None)
    >>> bytes(table.slice(1, 1, 4))
    b'orl'
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_opener",
        "address",
        "buffers",
        "complete",
        "evicts",
        "guard",
        "lock",
        "name",
        "origin",
        "size",
    )

    def __init__(
        self,
        count: int,
        opener: Callable[[int], None] = _nothing_to_open,
        name: Callable[[int], str] = "segment {}".format,
        evicts: bool = False,
    ) -> None:
        self.address = np.zeros(count, np.uint64)
        self.size = np.zeros(count, np.uint64)
        self.buffers: dict[int, Bytes] = {}
        self.name = name
        self.evicts = evicts
        self.guard: Guard | None = None
        self.origin: Integers = _NO_ORIGIN
        self._opener = opener
        self._calls: dict[int, list[Bytes]] = {}
        """For each running call: buffers that were closed since it began, kept alive for it."""
        self.complete = False
        """Whether all segments are open and completely downloaded; changes only under the lock."""
        self.lock: threading.RLock | None = None
        if evicts:
            self._allow_closing()

    def _allow_closing(self) -> None:
        self.lock = threading.RLock()
        _closable.add(self)

    @staticmethod
    def of(buffer: Any) -> Segments:
        """Return a table of one buffer."""
        table = Segments(1)
        table.put(0, buffer)
        return table

    def __len__(self) -> int:
        return len(self.address)

    def set_guard(
        self,
        guard: Guard,
        calls: dict[int, list[Bytes]],
        address: NDArray[np.uint64],
        size: NDArray[np.uint64],
        origin: Integers,
    ) -> None:
        """Let a guard fill the table, by writing to these arrays, and check its blocks.

        Before the guard frees a buffer, it must append it to every list in `calls`.
        """
        self.guard, self._calls = guard, calls
        self.address, self.size, self.origin = address, size, origin

    def drop_guard(self) -> None:
        """Read without the guard from now on, because all blocks of the table are checked and none is ever closed."""
        if self.lock is None and KERNEL != "numpy":  # the guard opens the segments for the numpy kernel
            self.guard = None

    @property
    def closable(self) -> bool:
        """Whether segments may be closed while other threads read, or must be fetched first: then calls need care."""
        return self.lock is not None

    def put(self, number: int, buffer: Any) -> None:
        """Open a segment with these bytes; if it is open already, keep its buffer: other threads may read it."""
        with self.lock or nullcontext():
            # `setdefault` is atomic: of two threads that open a segment one wins. A lock could be held during a fork.
            array = self.buffers.setdefault(number, np.frombuffer(buffer, np.uint8))
            self.size[number] = array.size
            # An empty buffer is open too; address 1 is never read because no byte of it is in range.
            self.address[number] = array.__array_interface__["data"][0] or 1

    def open(self, number: int) -> Bytes:
        """Return the bytes of a segment; opens it first if necessary."""
        while (buffer := self.buffers.get(number)) is None:
            self._opener(number)
            if not self.closable and number not in self.buffers:
                raise RangeError(f"{self.name(number)}: expected its opener to open it")
        return buffer

    def try_open(self, numbers: Integers) -> None:
        """Open the given segments; ignore numbers that do not exist and errors."""
        known = numbers[(numbers >= 0) & (numbers < len(self))]
        for number in sorted(set(known[self.address[known] == 0].tolist())):
            with suppress(ShardexError):
                self.open(number)

    def slice(self, number: int, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end` of a segment without a copy, fetched if necessary; clipped to its end."""
        if (data := self.buffers.get(number)) is None:
            data = self.open(number)
        return data[begin:end]

    def fetch(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Download ranges of open segments; without `wait` only start to. Return True if no byte was missing."""
        return True

    def close(self, number: int) -> None:
        """Close a segment if the table is `closable`; running calls keep its buffer alive until they end."""
        if self.lock is None:
            return
        with self.lock:
            self.complete = False
            buffer = self.buffers.pop(number, None)
            self.address[number] = 0
            if buffer is not None:
                for kept_alive in list(self._calls.values()):
                    kept_alive.append(buffer)

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], touched: Touched | None = None) -> Any:
        """Run a kernel function on this table; opens the segments that it needs.

        `touched` is what the function reads. It is fetched first if that is necessary, checked if there is a guard, and
        stays valid while the function runs.
        """
        if self.lock is not None:
            return self._call_closable(function, arguments, touched)
        if self.guard is not None and touched is not None:
            self.check_blocks(touched)
        first = (self,) if KERNEL == "numpy" else (self.address, self.size)
        return self._call_until_open(function, (*first, *arguments))

    def check_blocks(self, touched: Touched) -> None:
        """Check the blocks of what is touched, as far as they were not checked before."""
        guard = self.guard
        if guard is not None and guard.left and len(blocks := self.unchecked(touched, guard)):
            guard.check(blocks)
        if KERNEL == "numpy":  # it reads buffers, not addresses
            for number in np.unique(self.valid(*touched.triple())[0]).tolist():
                self.open(number)

    def unchecked(self, touched: Touched, guard: Guard) -> Integers:
        """Return the blocks of what is touched that were not checked; none of ranges that exceed their segments."""
        try:
            return touched.unchecked(guard.flags, guard.shift, self.origin)
        except (RangeError, RowError):  # the kernel raises an error that names the segment
            return touched.within(self).unchecked(guard.flags, guard.shift, self.origin)

    def _call_closable(self, function: Callable[..., Any], arguments: tuple[Any, ...], touched: Touched | None) -> Any:
        def attempt() -> Any:
            snapshot = self._checked_snapshot(touched)
            if (closed := self._fetch_valid(snapshot, touched)) >= 0:
                return closed
            first = (snapshot,) if KERNEL == "numpy" else (snapshot.address, snapshot.size)
            return function(*first, *arguments)

        kept_alive: list[Bytes] = []
        self._calls[id(kept_alive)] = kept_alive  # from here on no open buffer is freed
        try:
            return self._call_until_open(attempt, ())
        finally:
            del self._calls[id(kept_alive)]

    def _checked_snapshot(self, touched: Touched | None) -> Segments:
        """Return a snapshot in which all blocks of what is touched are checked."""
        guard = self.guard
        while guard is not None and touched is not None:
            closes = guard.closes
            self.check_blocks(touched)
            snapshot = self._snapshot()
            if guard.closes == closes:  # otherwise a buffer of the snapshot may be newer than the check
                return snapshot
        return self._snapshot()

    def _snapshot(self) -> Segments:
        """Return a copy of the table that other threads do not change."""
        assert self.lock is not None
        copy = Segments(0, self._opener, self.name)
        with self.lock:
            copy.address, copy.size = self.address.copy(), self.size.copy()
            if KERNEL == "numpy":
                copy.buffers = dict(self.buffers)
        return copy

    def _fetch_valid(self, snapshot: Segments, touched: Touched | None) -> int:
        """Fetch ranges and return -1, or return the number of a segment that must be opened first."""
        return -1

    def valid(self, which: Integers, begin: Integers, length: Integers) -> Triple:
        """Drop ranges that exceed their open segment: the kernel raises an error for them later."""
        known = (which >= 0) & (which < len(self)) & (begin >= 0) & (length > 0)
        if not known.all():
            which, begin, length = which[known], begin[known], length[known]
        fits = (length <= self.size[which].astype(np.int64) - begin) | (self.address[which] == 0)
        return (which, begin, length) if fits.all() else (which[fits], begin[fits], length[fits])

    def start_fetch(self, which: Integers, begin: Integers, length: Integers) -> bool:
        """Start to fetch ranges of open segments without waiting; return True if no byte was missing."""
        return True

    def check(self, which: Integers, begin: Integers, length: Integers) -> None:
        """Open the segments of these ranges; raise an error if a range exceeds its segment."""
        self._call_until_open(numpy_kernel.check, (self, which, begin, length))

    def _call_until_open(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        while True:
            try:
                answer = function(*arguments)
            except (IndexError, ValueError) as error:
                raise self._translated(error) from None
            if not isinstance(answer, int) or answer < 0:
                return answer
            self.open(answer)

    def _translated(self, error: IndexError | ValueError) -> Exception:
        """Return the `ShardexError` for an error raised by a kernel function."""
        if isinstance(error, UnicodeDecodeError | ShardexError):
            return error
        return RowError(str(error)) if isinstance(error, IndexError) else RangeError(self._describe(*error.args))

    def _describe(self, message: str, segment: int | None = None) -> str:
        return message if segment is None else f"{self.name(segment)}, {self.size[segment]} bytes: {message}"


class FetchedSegments(Segments):
    """Segments that may be incomplete: `fetch` downloads ranges of them, or checks them, before they are read."""

    __slots__ = ("_fetch",)

    def __init__(
        self,
        count: int,
        opener: Callable[[int], None],
        name: Callable[[int], str],
        fetch: Fetch,
        evicts: bool = False,
    ) -> None:
        super().__init__(count, opener, name, evicts)
        self._fetch = fetch
        self._allow_closing()

    def slice(self, number: int, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end` of a segment without a copy, fetched; clipped to its end."""
        data = self.open(number)
        stop = min(end, data.size)
        if 0 <= begin < stop:
            self._fetch(np.array([number]), np.array([begin]), np.array([stop - begin]), True)
        return data[begin:end]

    def fetch(self, which: Integers, begin: Integers, length: Integers, wait: bool) -> bool:
        """Download ranges of open segments; without `wait` only start to. Return True if no byte was missing."""
        return self._fetch(which, begin, length, wait)

    def _fetch_valid(self, snapshot: Segments, touched: Touched | None) -> int:
        if touched is None or self.complete:
            return -1
        which, begin, length = snapshot.valid(*touched.triple())
        if (closed := snapshot.address[which] == 0).any():
            return int(which[closed.argmax()])
        if len(which):
            self._fetch(which, begin, length, True)
        return -1

    def start_fetch(self, which: Integers, begin: Integers, length: Integers) -> bool:
        """Start to fetch ranges of open segments without waiting; return True if no byte was missing."""
        snapshot = self._snapshot()
        which, begin, length = snapshot.valid(which, begin, length)
        is_open = snapshot.address[which] != 0
        if not is_open.any():
            return True
        return self._fetch(which[is_open], begin[is_open], length[is_open], False)


_NO_ORIGIN = np.empty(0, np.int64)
_closable: weakref.WeakSet[Segments] = weakref.WeakSet()


def _after_fork() -> None:
    """Reset locks and running calls in a forked process: the threads that would release them do not exist there."""
    for table in _closable:
        table.lock = threading.RLock()
        table._calls.clear()


os.register_at_fork(after_in_child=_after_fork)
