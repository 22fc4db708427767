"""Threads that wait for remote storage: for requested ranges, for read-ahead and for the rest of files.

The threads belong to one process: a forked child starts its own. A process that exits does not wait for background
downloads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

_THREADS = {"requested": 32, "ahead": 16, "rest": 2, "next": 16, "decompress": os.cpu_count() or 1}
"""Number of threads by task: requested ranges, read-ahead, the rest of files, the next part of any of these, and units
of compressed files."""
_MAX_PENDING = 256


class _ThisThread(threading.local):
    fetches = 0


_this_thread = _ThisThread()
_pools: dict[tuple[int, str], ThreadPoolExecutor] = {}
_pending: set[Future[Any]] = set()


def fetches_started() -> int:
    """Return how many downloads this thread has started or waited for."""
    return _this_thread.fetches


def count_fetches(more: int) -> None:
    """Add to the count of downloads of this thread."""
    _this_thread.fetches += more


def _pool(kind: str) -> ThreadPoolExecutor:
    """Return the threads of this process; a fork does not copy those of its parent."""
    key = os.getpid(), kind
    if key not in _pools:
        _pools.setdefault(key, ThreadPoolExecutor(_THREADS[kind], f"shardex {kind}"))
    return _pools[key]


def run_all(function: Callable[[T], U], items: Sequence[T], kind: str = "requested") -> list[U]:
    """Return `function(item)` for each item, called concurrently; an error is raised after all calls have ended."""
    if len(items) < 2:
        return [function(item) for item in items]
    futures = [_pool(kind).submit(function, item) for item in items]
    wait(futures)
    return [future.result() for future in futures]


def map_ahead(function: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
    """Yield `function(item)` in order; the next call runs in a thread while the caller uses a result.

    >>> list(map_ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    if len(items) < 2 or is_exiting():
        yield from map(function, items)
        return
    future = _pool("next").submit(function, items[0])
    try:
        for item in items[1:]:
            result, future = future.result(), _pool("next").submit(function, item)
            yield result
        yield future.result()
    finally:
        future.cancel()


def start(kind: str, function: Callable[[T], None], item: T) -> bool:
    """Call a function in the background; return False if no thread can be started."""
    try:
        future = _pool(kind).submit(function, item)
    except RuntimeError:  # no more threads, or the interpreter is exiting
        return False
    if kind == "ahead":
        _pending.add(future)
        future.add_done_callback(_pending.discard)
    return True


def background_is_full() -> bool:
    """Return True if too many read-ahead calls are waiting to start more."""
    return len(_pending) >= _MAX_PENDING


def is_exiting() -> bool:
    """Return True if the process is about to exit."""
    return not threading.main_thread().is_alive()


os.register_at_fork(after_in_child=_pending.clear)
