"""Executors: run a job for many tasks, in the calling thread or in threads. `workers.ProcessPool` uses processes.

All have one interface: `submit` takes a task and returns a ticket, `result` takes a ticket and returns the result.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol


class Executor(Protocol):
    """Runs one job for many tasks."""

    def submit(self, task: Any) -> Any:
        """Start or queue a task; return a ticket for its result."""

    def result(self, ticket: Any) -> Any:
        """Wait for a task; return what the job returned, or raise what it raised."""

    def forget(self) -> None:
        """Cancel all tasks whose results were not taken."""

    def close(self) -> None:
        """End all threads or processes."""


class InlineExecutor:
    """Runs each task in `result`, in the calling thread.

    >>> executor = InlineExecutor(str); executor.result(executor.submit(5))
    '5'
    """

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def submit(self, task: Any) -> Any:
        """Return the task itself as its ticket."""
        return task

    def result(self, ticket: Any) -> Any:
        """Run the job for the task."""
        return self._job(ticket)

    def forget(self) -> None:
        """Do nothing: no task is running."""

    def close(self) -> None:
        """Do nothing: there are no threads."""


class ThreadExecutor:
    """Runs tasks in threads of this process: for jobs that release the GIL.

    >>> executor = ThreadExecutor(str, 2); tickets = [executor.submit(k) for k in range(3)]
    >>> [executor.result(ticket) for ticket in tickets]
    ['0', '1', '2']
    >>> executor.close()
    """

    def __init__(self, job: Callable[[Any], Any], workers: int) -> None:
        self._job = job
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="shardex")
        self._pending: set[Future[Any]] = set()

    def submit(self, task: Any) -> Future[Any]:
        """Queue a task; return its future as the ticket."""
        ticket = self._pool.submit(self._job, task)
        self._pending.add(ticket)
        return ticket

    def result(self, ticket: Future[Any]) -> Any:
        """Wait for a task and return its result."""
        self._pending.discard(ticket)
        return ticket.result()

    def forget(self) -> None:
        """Cancel tasks that have not started; drop the results of the others."""
        for ticket in self._pending:
            ticket.cancel()
        self._pending.clear()

    def close(self) -> None:
        """Wait for running tasks and end the threads."""
        self._pool.shutdown(cancel_futures=True)
