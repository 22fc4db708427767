"""`prefetch`: the values of a generator of the user, made in another process while the program works.

The process, its shared memory and its end are in `shardex.workers`; here the arguments are checked, and the process
gets the credentials of this one, so that the generator can open remote data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from shardex.errors import ArgumentError
from shardex.rows import whole_number
from shardex.sources import export_credentials, import_credentials
from shardex.workers import Prefetch

T = TypeVar("T")


def prefetch(
    generator_function: Callable[..., Iterable[T]], /, *args: Any, depth: int = 16, **kwargs: Any
) -> Prefetch[T]:
    """Return the values of a generator that runs in another process, in order, as an iterable.

    Every loop over it calls ``generator_function(*args, **kwargs)`` in a new process, which computes up to `depth`
    values ahead of the loop. Arrays, also those inside dicts, lists and dataclasses, come through shared memory: they
    are not copied here, stay valid as long as you hold them, and are writable unless the generator made them read-only.

    The process is a fresh interpreter: the function may be one of a notebook, a lambda or a closure, and a script needs
    no ``if __name__ == "__main__"``. An error of the generator is raised in the loop, after the values before it, with
    its traceback in the process as its cause. A process that was killed or has crashed raises a `WorkerError`, which
    names the signal. The process ends with the loop (also by ``break``), `close`, the ``with`` block, or the program;
    a generator that is computing a value then gets one second.

    An argument of the function that is called ``depth`` is passed by `functools.partial`.

    >>> import shardex as sx
    >>> def squares(count):
    ...     for number in range(count):
    ...         yield {"x": number**2}
    >>> [value["x"] for value in sx.prefetch(squares, 4)]
    [0, 1, 4, 9]
    """
    given: Any = generator_function
    if not callable(given):
        remedy = f"pass function and arguments: prefetch({getattr(given, '__name__', 'function')}, ...)"
        raise ArgumentError(
            f"expected a function that returns a generator or another iterable, got a {type(given).__name__}; {remedy}"
        )
    credentials = partial(import_credentials, export_credentials())
    return Prefetch(generator_function, args, kwargs, whole_number("depth", depth, 1), credentials)
