"""`MpQItr`: the values of a generator that runs in another process, over `shardex.prefetch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Self, TypeVar

import numpy as np

from shardex.compat.splitdataloader.exceptions import NotStartedError
from shardex.loader import prefetch
from shardex.workers import PrefetchedValues

T = TypeVar("T")
_UNLIMITED = 256
"""Values ahead for a `qsize` of zero, which means a queue without limit."""


class MpQItr(Generic[T]):
    """An iterable of the values of ``itr_func(*args, **kwargs)``, which runs in another process ahead of the loop.

    Every loop starts the function anew, in a fresh interpreter. Function and arguments must be of a kind that can be
    pickled (lambdas and closures are), and variables of imported modules have their first values there: pass what the
    function needs as arguments. The random numbers of NumPy continue those of this process.

    An error of the function, or the end of its process by a signal, is raised in the loop after the values before it.
    The process ends with the loop, also by ``break``, and with this object.

    >>> batches = MpQItr[int](range, 3)
    >>> list(batches), list(batches)
    ([0, 1, 2], [0, 1, 2])
    """

    qsize: int
    """Number of values that may wait for the loop; set it before the loop begins."""

    def __init__(self, itr_func: Callable[..., Iterable[T]], *args: Any, **kwargs: Any) -> None:
        self.itr_func, self.args, self.kwargs = itr_func, args, kwargs
        self.qsize = 16
        self._values: PrefetchedValues[T] | None = None

    def __iter__(self) -> Iterator[T]:
        self.close()
        depth = self.qsize if self.qsize > 0 else _UNLIMITED
        function = partial(self.itr_func, *self.args, **self.kwargs)
        self._values = iter(prefetch(_continued, np.random.get_state(), function, depth=depth))
        # A class of a user may change the values in `__next__`.
        return _Loop(self._values) if type(self).__next__ is MpQItr.__next__ else self

    def __next__(self) -> T:
        """Return the next value of the process that the last `iter` has started."""
        if self._values is None:
            raise NotStartedError("expected iter() before next(): it starts the process; loop over this object")
        return next(self._values)

    def close(self) -> None:
        """End the process; a new loop starts a new one."""
        if self._values is not None:
            self._values.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _continued(state: Any, function: Callable[[], Iterable[T]]) -> Iterable[T]:
    """Return what a function returns; NumPy has the state that it would have in a forked process."""
    np.random.set_state(state)
    return function()


class _Loop(Iterator[T]):
    """The values of one loop. A loop that was left ends the process; ``iter(x)`` before ``next(x)`` does not."""

    def __init__(self, values: PrefetchedValues[T]) -> None:
        self._values, self._begun = values, False

    def __next__(self) -> T:
        self._begun = True
        return next(self._values)

    def __del__(self) -> None:
        if self._begun:
            self._values.close()
