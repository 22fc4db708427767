"""`Prefetch`: the values of a generator that runs in another process, a few of them ahead of the consumer.

The child is the only worker of a `ProcessPool`, and "the next value" is a task: as many tasks are submitted as values
may wait. So arrays come through shared memory, errors with their traceback, and the pool ends the child. `loader` has
the function that users call.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from reprlib import repr as short_repr
from typing import Any, Generic, Self, TypeVar

from shardex.workers.process_pool import ProcessPool

T_co = TypeVar("T_co", covariant=True)


class Prefetch(Generic[T_co]):
    """An iterable of the values of a generator; every `iter` starts the generator anew in a process of its own.

    `initializer` is called in the process before function and arguments are unpickled.

    >>> with Prefetch(range, (3,), {}, depth=2) as values:
    ...     list(values), list(values)
    ([0, 1, 2], [0, 1, 2])
    """

    def __init__(
        self,
        function: Callable[..., Iterable[T_co]],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        depth: int,
        initializer: Callable[[], object] | None = None,
    ) -> None:
        self._producer = _Producer(function, args, dict(kwargs))
        self._depth, self._initializer = depth, initializer
        self._started: weakref.WeakSet[PrefetchedValues[T_co]] = weakref.WeakSet()

    def __iter__(self) -> PrefetchedValues[T_co]:
        values: PrefetchedValues[T_co] = PrefetchedValues(self._producer, self._depth, self._initializer)
        self._started.add(values)
        return values

    def close(self) -> None:
        """End the processes of all iterators; a new `iter` starts a new one."""
        for values in list(self._started):
            values.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Prefetch({self._producer!r}, depth={self._depth})"


class PrefetchedValues(Iterator[T_co]):
    """The values of one run of the generator, in order. The process ends with the last value, an error, or `close`."""

    def __init__(self, producer: _Producer, depth: int, initializer: Callable[[], object] | None) -> None:
        self._pool = ProcessPool(producer, 1, initializer=initializer)
        self._tickets: deque[int] = deque()
        self._asked = 0
        self._ended = False
        for _ in range(depth):
            self._ask()

    def _ask(self) -> None:
        self._tickets.append(self._pool.submit(self._asked))
        self._asked += 1

    def __next__(self) -> T_co:
        """Wait for the next value; arrays in it are views of shared memory, which no later value overwrites."""
        if self._ended:
            raise StopIteration
        try:
            value: T_co = self._pool.result(self._tickets[0])  # the StopIteration of the generator ends this one, too
            self._tickets.popleft()
            self._ask()
        except KeyboardInterrupt:  # of this process: the value is then the next one
            raise
        except BaseException:  # also the SystemExit of the generator
            self._ended = True
            self.close()
            raise
        return value

    def close(self) -> None:
        """End the process; a generator that is computing a value gets one second to finish."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Producer:
    """The job of the child: each call returns the next value of the generator."""

    def __init__(self, function: Callable[..., Iterable[Any]], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self._values: Iterator[Any] | None = None

    def __call__(self, number: int) -> Any:
        if self._values is None:
            self._values = self._run()
        return next(self._values)

    def _run(self) -> Iterator[Any]:
        """Yield all values. In a generator a StopIteration that the function raises is an error, not the end."""
        yield from self._function(*self._args, **self._kwargs)

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", None) or short_repr(self._function)
        given = [short_repr(value) for value in self._args]
        given += [f"{key}={short_repr(value)}" for key, value in self._kwargs.items()]
        return f"{name}({', '.join(given)})"
