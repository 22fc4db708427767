"""Runs the parts of a job through an executor: few at a time, results in order, with a progress bar."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, TypeVar

from shardex.progress import Bar
from shardex.sources import export_credentials, import_credentials
from shardex.workers import Executor, ExecutorLike, start_executor

Task = TypeVar("Task")
Result = TypeVar("Result")

_WAITING = 2
"""Parts that wait for each worker, so that none is idle while the result of an earlier part is awaited."""


def run_parts(
    job: Callable[[Task], Result],
    parts: Iterable[Task],
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
    size: Callable[[Task], int] = lambda task: 1,
    total: int | None = None,
    done: int = 0,
    desc: str = "run",
    unit: str = " parts",
    progress: bool | None = None,
    **bar_options: Any,
) -> Iterator[tuple[Task, Result]]:
    """Run a job for each part and yield each part with its result, in the order of the parts.

    `workers` and `executor` are those of `start_executor`. The bar counts `size(part)` of `total`, of which `done` were
    finished before. If the job raises for a part, the parts that have not begun are cancelled and the error is raised.
    At most a few parts for each worker are read from `parts` in advance, so there may be very many.

    >>> list(run_parts(lambda number: number**2, range(3), progress=False))
    [(0, 0), (1, 1), (2, 4)]
    """
    give_credentials = partial(import_credentials, export_credentials())
    running = start_executor(job, workers, executor, initializer=give_credentials)
    quiet = None if progress is None else not progress
    bar = Bar(total=total, initial=done, desc=desc, unit=unit, disable=quiet, **bar_options)
    with closing(running), bar:
        for task, result in _in_order(running, parts):
            if (nodes := getattr(running, "nodes", None)) is not None:
                bar.set_postfix_str(f"{nodes} node{'s' * (nodes != 1)}", refresh=False)
            bar.update(size(task))
            yield task, result


def _in_order(executor: Executor, parts: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    waiting: deque[tuple[Any, Any]] = deque()
    most = 1 if executor.width == 1 else executor.width * (1 + _WAITING)
    try:
        for part in parts:
            waiting.append((part, executor.submit(part)))
            if len(waiting) >= most:
                task, ticket = waiting.popleft()
                yield task, executor.result(ticket)
        while waiting:
            task, ticket = waiting.popleft()
            yield task, executor.result(ticket)
    except BaseException:
        executor.forget()
        raise
