"""A table of buffers by number, some not open yet, some not here yet: what ranges lie in, and what the kernel runs on.

`Segments` opens a buffer when a range first lies in it. Of files that lie elsewhere it has bytes fetched before the
kernel looks at them, and lets go of buffers when their room is needed, though other threads may be reading. `gather.py`
says what is copied. The kernel is `_gather.c` or, where that is not compiled (or ``SHARDEX_KERNEL=numpy`` says so), the
numpy twin `_twin.py`, which gives the same answers.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from shardex.errors import RangeError, RowError, ShardexError
from shardex.kernel import numpy_kernel as _twin

try:
    from shardex.kernel import _gather  # type: ignore[attr-defined]
except ImportError:  # no compiler when it was installed
    _gather = None

__all__ = ["KERNEL", "Bytes", "Fetch", "Integers", "Segments", "Triple", "kernel"]

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

kernel = cast(_Kernel, _twin if KERNEL == "numpy" else _gather)


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
    >>> bytes(table.slice(1, 1, 4))
    b'orl'
    """

    __slots__ = ("__weakref__", "_calls", "_opener", "address", "buffers", "complete", "fetch", "lock", "name", "size")

    def __init__(
        self,
        count: int,
        opener: Callable[[int], None] = _nothing_to_open,
        name: Callable[[int], str] = "segment {}".format,
        fetch: Fetch | None = None,
        closable: bool = False,
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
        if fetch is not None or closable:
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
    def closable(self) -> bool:
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
            if not self.closable and number not in self.buffers:
                raise RangeError(f"{self.name(number)}: expected its opener to open it")
        return buffer

    def try_open(self, numbers: Integers) -> None:
        """Open those of these segments that are there and can be opened."""
        known = numbers[(numbers >= 0) & (numbers < len(self))]
        for number in np.unique(known[self.address[known] == 0]).tolist():
            with suppress(ShardexError):
                self.open(number)

    def slice(self, number: int, begin: int, end: int) -> Bytes:
        """Some bytes of a segment, not copied; fewer if it ends before."""
        if (data := self.buffers.get(number)) is None:
            data = self.open(number)
        if self.fetch is not None:
            stop = min(end, data.size)
            if 0 <= begin < stop:
                self.fetch(np.array([number]), np.array([begin]), np.array([stop - begin]), True)
        return data[begin:end]

    def close(self, number: int) -> None:
        """Close a segment of a table that `closable`; calls that look at it keep it until they have ended."""
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
        """The same for a table that `closable`, maybe in another thread: `ranges` are there when they are looked at."""
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
