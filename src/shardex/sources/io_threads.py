"""Threads that wait for remote storage: for what somebody needs now, for what is read soon, for the rest of files.

They belong to a process: a forked child has its own. A process that ends does not wait for work that nobody waits for.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["count_fetches", "fetches_started", "is_busy", "is_ending", "one_ahead", "run_all", "submit"]

T = TypeVar("T")
U = TypeVar("U")

_THREADS = {"front": 32, "back": 16, "rest": 2, "next": 16}
"""How many fetch what somebody waits for, what will be read soon, the rest of files, and the next part of any of it."""
_MOST_WAITING = 256

_here = threading.local()
_pools: dict[tuple[int, str], ThreadPoolExecutor] = {}
_pending: set[Future[Any]] = set()


def fetches_started() -> int:
    """How often this thread had to have something fetched, so far."""
    return int(getattr(_here, "fetches", 0))


def count_fetches(more: int) -> None:
    """This thread had something fetched."""
    _here.fetches = fetches_started() + more


def _pool(kind: str) -> ThreadPoolExecutor:
    """The threads of this process; a fork copies none of its parent's."""
    key = os.getpid(), kind
    if key not in _pools:
        _pools.setdefault(key, ThreadPoolExecutor(_THREADS[kind], f"shardex {kind}"))
    return _pools[key]


def run_all(function: Callable[[T], Any], things: Sequence[T]) -> None:
    """Call a function with each, at once; all have ended when the first error is raised."""
    if len(things) < 2:
        for thing in things:
            function(thing)
        return
    futures = [_pool("front").submit(function, thing) for thing in things]
    errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def one_ahead(function: Callable[[T], U], things: Sequence[T]) -> Iterator[U]:
    """What a function gives for each, in order; the next is on its way while one is worked on.

    >>> list(one_ahead(abs, [-1, 2, -3]))
    [1, 2, 3]
    """
    if len(things) < 2 or is_ending():
        yield from map(function, things)
        return
    coming = _pool("next").submit(function, things[0])
    try:
        for thing in things[1:]:
            found, coming = coming.result(), _pool("next").submit(function, thing)
            yield found
        yield coming.result()
    finally:
        coming.cancel()


def submit(kind: str, function: Callable[[T], None], thing: T) -> bool:
    """Have a function called in the background; whether it will be."""
    try:
        future = _pool(kind).submit(function, thing)
    except RuntimeError:  # no more threads, or the interpreter is about to end
        return False
    if kind == "back":
        _pending.add(future)
        future.add_done_callback(_pending.discard)
    return True


def is_busy() -> bool:
    """Whether so much waits in the background that more had better not be begun."""
    return len(_pending) >= _MOST_WAITING


def is_ending() -> bool:
    """Whether the process is about to end."""
    return not threading.main_thread().is_alive()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pending.clear)
