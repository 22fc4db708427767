"""Executors: run one job for many tasks, here, in threads, in processes, or in an executor that the user has.

All have one interface, `Executor`: `submit` takes a task and returns a ticket, `result` takes a ticket and returns the
result. `start_executor` makes the one that the arguments ``workers`` and ``executor`` of a function name. Processes of
this machine are in `process_pool`, Ray is in `ray_executor`.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future, ThreadPoolExecutor, wait
from concurrent.futures import Executor as AnyFutures
from typing import Any, NoReturn, Protocol, runtime_checkable

from shardex import workers as room
from shardex.errors import ArgumentError, ClosedError, WorkerError, nearest
from shardex.kernel import cores
from shardex.plugins import plugins

ExecutorLike = str | AnyFutures | None
"""What users give as ``executor``: a name of `NAMES`, an address of Ray, or an executor of `concurrent.futures`."""

_LOCAL = ("inline", "threads", "processes")
NAMES = (*_LOCAL, "ray")
"""Executors that can be given by name. ``ray://host:port`` and ``ray:<address>`` name a running cluster."""
GROUP = "shardex.executors"
"""Group of the entry points of executors of other packages, by name.

Each is a function that gets the job, the text that the user gave (``name`` or ``name:address``), the number of workers
or None, and the initializer, and returns an `Executor`.
"""

_SMALL_JOB = 64 << 10
"""Bytes up to which a pickled job is sent with every task of a user's executor."""
_KEPT_JOBS = 4
"""Jobs that a process of a user's executor keeps unpickled."""


@runtime_checkable
class Executor(Protocol):
    """Runs one job for many tasks."""

    @property
    def width(self) -> int:
        """How many tasks run at once."""

    def submit(self, task: Any) -> Any:
        """Start or queue a task; return a ticket for its result."""

    def result(self, ticket: Any) -> Any:
        """Wait for a task; return what the job returned, or raise what it raised."""

    def forget(self) -> None:
        """Cancel all tasks whose results were not taken."""

    def close(self) -> None:
        """End all threads or processes that this executor has started."""


def start_executor(
    job: Callable[[Any], Any],
    workers: int | None = None,
    executor: ExecutorLike = None,
    initializer: Callable[[], object] | None = None,
) -> Executor:
    """Return the executor that these arguments name; it starts threads and processes with its first task.

    Without `executor` the job runs in this process, or in `workers` processes if these are two or more. The names
    "threads" and "processes" take all cores if `workers` is not given. `initializer` is called once in each process
    that the executor uses, before the job is unpickled there; not in this process.

    >>> executor = start_executor(str); executor.result(executor.submit(5))
    '5'
    >>> start_executor(str, workers=2).width
    2
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ArgumentError(f"expected workers to be a number from 1, or None, got {workers!r}")
    if isinstance(executor, AnyFutures):
        return FuturesExecutor(job, executor, workers=workers, initializer=initializer)
    name = ("inline" if workers in (None, 1) else "processes") if executor is None else executor
    if not isinstance(name, str):
        raise ArgumentError(f"expected {_expected()}, got {name!r}")
    if name == "inline" and workers in (None, 1):
        return InlineExecutor(job)
    if name == "threads":
        return ThreadExecutor(job, workers or cores())
    if name == "processes":
        return room.process_pool.RestartingPool(job, workers or cores(), initializer=initializer)
    if name == "ray" or name.startswith("ray:"):
        return _ray_executor(job, name, initializer)
    if name == "inline":
        raise ArgumentError(f'expected one worker with executor="inline", got workers={workers}')
    others = plugins(GROUP, NAMES)
    if (found := others.get(name.partition(":")[0])) is not None:
        return found.call(Executor, job, name, workers, initializer)  # type: ignore[type-abstract]
    raise ArgumentError(f"expected {_expected()}, got {name!r}{nearest(name, (*NAMES, *others))}")


def _expected() -> str:
    names = ", ".join(map(repr, (*NAMES, *plugins(GROUP, NAMES))))
    return f"executor to be one of {names}, 'ray://host:port', or a concurrent.futures.Executor"


def is_local(executor: ExecutorLike) -> bool:
    """Return True if what is sent to the workers stays on this machine, in memory: not with Ray or a user's executor.

    >>> is_local(None), is_local("processes"), is_local("ray://head:10001")
    (True, True, False)
    """
    return executor is None or executor in _LOCAL


def _ray_executor(job: Callable[[Any], Any], name: str, initializer: Callable[[], object] | None) -> Executor:
    address = None if name == "ray" else name if name.startswith("ray://") else name.removeprefix("ray:")
    return room.ray_executor.RayExecutor(job, address, initializer)


class InlineExecutor:
    """Runs each task in `result`, in the calling thread.

    >>> executor = InlineExecutor(str); executor.result(executor.submit(5))
    '5'
    """

    width = 1

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


class _Thread(threading.local):
    stop: threading.Event | None = None
    """Set when the executor of the task that runs in this thread is closing."""


_thread = _Thread()


def raise_if_cancelled() -> None:
    """In a job: raise an error if it runs in a thread whose executor is closing. Processes are ended from outside."""
    if (stop := _thread.stop) is not None and stop.is_set():
        raise CancelledError


class _JobOfThreads:
    """A job that `raise_if_cancelled` ends early."""

    def __init__(self, job: Callable[[Any], Any]) -> None:
        self._job = job
        self._stop = threading.Event()
        self.cancel = self._stop.set

    def __call__(self, task: Any) -> Any:
        _thread.stop = self._stop
        try:
            return self._job(task)
        finally:
            _thread.stop = None


class ThreadExecutor:
    """Runs tasks in threads of this process: for jobs that release the GIL.

    >>> executor = ThreadExecutor(str, 2); tickets = [executor.submit(k) for k in range(3)]
    >>> [executor.result(ticket) for ticket in tickets]
    ['0', '1', '2']
    >>> executor.close()
    """

    def __init__(self, job: Callable[[Any], Any], workers: int) -> None:
        self.width = workers
        self._job = _JobOfThreads(job)
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
        """Cancel the tasks that have not started, and drop the results of those that have."""
        for ticket in self._pending:
            ticket.cancel()
        self._pending.clear()

    def close(self) -> None:
        """Wait for running tasks, which may end early, and end the threads."""
        self._job.cancel()
        self._pool.shutdown(cancel_futures=True)


class FuturesExecutor:
    """Runs tasks in an executor that the user owns: a thread or process pool, ``Client.get_executor()`` of Dask.

    The job is pickled once, and unpickled once in each process. Its bytes go along with the first tasks; if it is
    small, with all. A process that lacks the job says so, and its task is sent again with it. `workers` says how many
    tasks run at once where the executor does not say so itself. `close` leaves the user's executor open.

    >>> with ThreadPoolExecutor(2) as threads:
    ...     executor = FuturesExecutor(str, threads)
    ...     executor.result(executor.submit(5))
    '5'
    """

    def __init__(
        self,
        job: Callable[[Any], Any],
        executor: AnyFutures,
        *,
        workers: int | None = None,
        initializer: Callable[[], object] | None = None,
    ) -> None:
        self.width = workers or getattr(executor, "_max_workers", None) or cores()
        self._executor = executor
        self._job = _JobOfThreads(job)
        self._pending: set[Future[Any]] = set()
        self._forgotten: set[Future[Any]] = set()
        self._submitted = 0
        self._without_job: dict[Future[Any], bytes] = {}  # pickled task by ticket, if it was sent without the job
        self._body = b""
        if type(executor) is not ThreadPoolExecutor:  # its threads use the job itself
            first = room.process_pool.pickled("initializer", initializer) if initializer else b""
            self._body = pickle.dumps((first, room.process_pool.pickled("job", job)))
        self._key = hashlib.sha256(self._body).digest()

    def submit(self, task: Any) -> Future[Any]:
        """Queue a task; return its future as the ticket."""
        if not self._body:
            return self._submit(self._job, task)
        task = room.process_pool.pickled("task", task)
        with_job = len(self._body) < _SMALL_JOB or self._submitted < 3 * self.width
        self._submitted += 1
        ticket = self._submit(_run_pickled, self._key, self._body if with_job else b"", task)
        if not with_job:
            self._without_job[ticket] = task
        return ticket

    def result(self, ticket: Future[Any]) -> Any:
        """Wait for a task and return what the job returned, or raise what it raised."""
        answer, task = self._wait(ticket), self._without_job.pop(ticket, b"")
        if not self._body:
            return answer
        if answer is None:
            answer = self._wait(self._submit(_run_pickled, self._key, self._body, task))
        finished, content = answer
        if not finished:
            raise room.shared_arena.load_error(content, f"a worker of {type(self._executor).__name__}")
        return pickle.loads(content)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        try:
            ticket: Future[Any] = self._executor.submit(function, *arguments)
        except BrokenExecutor as error:
            self._raise_broken(error)
        except RuntimeError as error:
            raise ClosedError(f"expected an executor that takes tasks, got {self._executor!r}: {error}") from error
        self._pending.add(ticket)
        return ticket

    def _wait(self, ticket: Future[Any]) -> Any:
        try:
            return ticket.result()
        except BrokenExecutor as error:
            self._raise_broken(error)
        except CancelledError as error:
            raise WorkerError(f"expected a task to run, it was cancelled by {self._executor!r}") from error
        finally:
            if ticket.done():  # after an interrupt it still runs: `close` waits for it
                self._pending.discard(ticket)

    def forget(self) -> None:
        """Cancel the tasks that have not started, and drop the results of those that have."""
        self._without_job.clear()
        self._forgotten = {ticket for ticket in self._forgotten | self._pending if not ticket.cancel()}
        self._pending.clear()

    def close(self) -> None:
        """Cancel tasks that have not started and wait for those that run; the executor itself stays open.

        In threads, tasks that run may end early.
        """
        self._job.cancel()
        self.forget()
        wait(self._forgotten)
        self._forgotten.clear()

    def _raise_broken(self, error: BrokenExecutor) -> NoReturn:
        raise WorkerError(
            f"expected all workers of {type(self._executor).__name__} to keep running, one died ({error}); the machine"
            " may have run out of memory: make a new executor, with fewer workers, and start again"
        ) from error


_jobs: dict[bytes, Callable[[Any], Any]] = {}
_jobs_lock = threading.Lock()


def _run_pickled(key: bytes, body: bytes, task: bytes) -> tuple[bool, bytes] | None:
    """In a process of a user's executor: run a job for one task; return whether it finished, and result or error.

    Return None if the process does not have the job, and `body` is empty.
    """
    try:
        job = _unpickled_job(key, body)
        return None if job is None else (True, room.shared_arena.dump_value(job(pickle.loads(task))))
    except Exception as error:
        return False, room.shared_arena.dump_error(error)


def _unpickled_job(key: bytes, body: bytes) -> Callable[[Any], Any] | None:
    with _jobs_lock:
        if key not in _jobs and body:
            initializer, job = pickle.loads(body)
            if initializer:
                pickle.loads(initializer)()
            while len(_jobs) >= _KEPT_JOBS:
                del _jobs[next(iter(_jobs))]
            _jobs[key] = pickle.loads(job)
        return _jobs.get(key)
