"""Executors that make batches: in the calling thread, or in threads. `workers.ProcessPool` is the one with processes.

All share one interface: `submit` a task, get a ticket, and take results in the order of the tickets.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

__all__ = ["Executor", "InlineExecutor", "ThreadExecutor"]


class Executor(Protocol):
    """Does a job for many tasks."""

    def submit(self, task: Any) -> Any:
        """Begin a task, or note it; gives a ticket."""

    def result(self, ticket: Any) -> Any:
        """What the job made of it, when it is done; raises what the job raised."""

    def forget(self) -> None:
        """Drop the tickets that were not redeemed."""

    def close(self) -> None:
        """End."""


class InlineExecutor:
    """Does each task when its result is asked for.

    >>> hands = InlineExecutor(str); hands.result(hands.submit(5))
    '5'
    """

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job

    def submit(self, task: Any) -> Any:
        """The task is its own ticket."""
        return task

    def result(self, ticket: Any) -> Any:
        """Do it now."""
        return self._job(ticket)

    def forget(self) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Nothing is open."""


class ThreadExecutor:
    """Does tasks in threads of this process: for work that leaves the interpreter to others.

    >>> hands = ThreadExecutor(str, 2); tickets = [hands.submit(k) for k in range(3)]
    >>> [hands.result(ticket) for ticket in tickets]
    ['0', '1', '2']
    >>> hands.close()
    """

    def __init__(self, job: Callable[[Any], Any], workers: int) -> None:
        self._job = job
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="shardex")
        self._open: set[Future[Any]] = set()

    def submit(self, task: Any) -> Future[Any]:
        """Queue it."""
        ticket = self._pool.submit(self._job, task)
        self._open.add(ticket)
        return ticket

    def result(self, ticket: Future[Any]) -> Any:
        """Wait for it."""
        self._open.discard(ticket)
        return ticket.result()

    def forget(self) -> None:
        """What has not begun does not begin; what has is dropped when it is done."""
        for ticket in self._open:
            ticket.cancel()
        self._open.clear()

    def close(self) -> None:
        """Wait for what is under way, and end."""
        self._pool.shutdown(cancel_futures=True)
