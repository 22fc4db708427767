"""Threads that decode the images, audio files or videos of a batch.

The libraries release the GIL while they decode. The calling thread works, too; the others belong to a pool that is
started when it is first needed, and again in a forked process.
"""

from __future__ import annotations

import itertools
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import numpy as np

from shardex.errors import ShardexError
from shardex.kernel import threads as usable_threads

Generators = Sequence["np.random.Generator"] | Callable[[int], "np.random.Generator"]  # imported by the caller

_pools: dict[int, ThreadPoolExecutor] = {}
_POOL_SIZE = 64
"""Largest number of threads; they are started one by one as they are needed."""


def decode_threads() -> int:
    """Return how many threads decode the media of a batch."""
    return min(usable_threads(), _POOL_SIZE)


def for_each(function: Callable[[int], None], numbers: Sequence[int], threads: int) -> None:
    """Call a function for each row of `numbers`, in threads; raise the error of the first row that has one.

    An error of shardex gets the number of its row, out of `numbers`, as the attribute `index`.
    """
    errors: dict[int, BaseException] = {}
    rows = itertools.count()  # its `next` is atomic

    def work() -> None:
        while not errors and (row := next(rows)) < len(numbers):
            try:
                function(row)
            except ShardexError as error:
                errors[row] = numbered(error, numbers[row])
            except BaseException as error:
                errors[row] = error

    helpers = _start(work, min(threads, len(numbers)) - 1)
    work()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    if errors:
        # Rows are begun in order, so every row before the first error was decoded.
        first = errors.pop(min(errors))
        for other in errors.values():
            release_memory(other)
        raise first


def release_memory(error: BaseException | None) -> None:
    """Clear the local variables in the traceback of an error, which would keep the batch as long as the error."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def numbered(error: ShardexError, number: int) -> ShardexError:
    """Give an error the number of its value."""
    error.index = number  # type: ignore[attr-defined]
    return error


def _start(work: Callable[[], None], count: int) -> list[Future[None]]:
    """Start threads that work; fewer if the process may not start more."""
    futures: list[Future[None]] = []
    if count < 1 or not threading.main_thread().is_alive():
        return futures
    with suppress(RuntimeError):  # no more threads, or the interpreter is about to exit
        futures.extend(_pool().submit(work) for _ in range(count))
    return futures


def _pool() -> ThreadPoolExecutor:
    """Return the threads of this process; a fork does not copy those of its parent."""
    key = os.getpid()
    if key not in _pools:
        _pools.setdefault(key, ThreadPoolExecutor(_POOL_SIZE, "shardex decode"))
    return _pools[key]
