"""`ProcessPool`: runs one job on many tasks in worker processes. This is the side that submits the tasks.

A `RestartingPool` replaces workers that die, and runs their tasks again.

The processes are fresh interpreters that import this package and not the caller's program, so a script needs no
``if __name__ == "__main__"``; job and tasks are pickled by cloudpickle. Each worker has a socket for small messages
and shared buffers for large results (`shared_arena`). Sending never blocks: bytes that a socket does not accept are
queued and sent by a later `submit` or `result`. The code that runs in the worker is in `worker_process`.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from reprlib import Repr
from typing import Any, NoReturn, Self

from shardex.errors import ArgumentError, ClosedError, ShardexError, WorkerError
from shardex.workers.shared_arena import MappedBuffers, Span, WorkerTraceback, dump_value, load_error
from shardex.workers.worker_process import FrameReader, Kind, frame

_GRACE = 1.0
"""Seconds that a worker may take to finish its current task when the pool closes."""
_BUFFERS = 256
"""Maximum number of shared buffers of a pool: each is an open file in this process."""
_FREED_BATCH = 3
"""Up to this many freed buffers are reported with the next task, more are reported immediately."""
_ATTEMPTS = 3
"""A `RestartingPool` gives up when workers have died so many times at one task."""
_AHEAD = 2
"""Tasks of a worker of a `RestartingPool`: the one that runs and the one that follows it."""
_PER_CALL = 16
"""Maximum number of frames sent, or of files received, by one system call."""
_repr = Repr()
_repr.maxother = _repr.maxstring = 200
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_TRUNCATED = int(socket.MSG_CTRUNC)
_HINTS: dict[int, str] = {
    signal.SIGKILL: "; the machine may have run out of memory: try fewer workers or smaller batches",
    signal.SIGSEGV: "; a library that the job calls has crashed",
    signal.SIGBUS: "; a file that the job had mapped may have been truncated",
}


class ProcessPool:
    """Processes that run a job, a callable of one argument, on tasks: small picklable values.

    Large arrays in a result are views of shared memory, which the worker reuses when the last of them is gone: nothing
    is copied, and arrays that you hold are not overwritten. (A forked process shares this memory: it must copy what it
    wants to keep.) `initializer` is called once in each process, before the job is unpickled. A worker
    uses at most `buffers` shared buffers; further results come through its socket.
    A worker that dies raises a `WorkerError` and closes the pool. One thread at a time may use a pool.

    >>> with ProcessPool(lambda number: number**2, workers=2) as pool:
    ...     tickets = [pool.submit(number) for number in range(5)]
    ...     [pool.result(ticket) for ticket in tickets]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        job: Callable[[Any], Any],
        workers: int,
        *,
        initializer: Callable[[], object] | None = None,
        buffers: int | None = None,
    ) -> None:
        if workers < 1:
            raise ArgumentError(f"expected at least one worker, got {workers}")
        self._job = pickled("job", job)
        self._initializer = pickled("initializer", initializer) if initializer else b""
        self.width = workers
        self._buffers = max(8, _BUFFERS // workers) if buffers is None else buffers
        self._workers: dict[int, WorkerHandle] = {}  # by file descriptor of the socket
        self._poll = select.poll()
        self._submitted = 0
        self._open: set[int] = set()
        self._answers: dict[int, tuple[WorkerHandle, int, Any]] = {}
        self._stop: weakref.finalize[..., Any] | None = None
        self._parent_pipe = -1
        self._closed_by: tuple[type[ShardexError], str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, task: Any) -> int:
        """Queue a task; return a ticket for `result`."""
        self._check_open()
        body = pickled("task", task)
        if self._stop is None:
            self._start()
        ticket = self._submitted
        self._submitted += 1
        self._open.add(ticket)
        self._queue(ticket, task, body)
        self._exchange(0)
        return ticket

    def result(self, ticket: int) -> Any:
        """Wait for a task and return what the job returned, or raise what it raised. A ticket can be used once."""
        self._check_open()
        if ticket not in self._open:
            raise ArgumentError(f"expected a ticket that was not used or forgotten yet, got {_repr.repr(ticket)}")
        self._exchange(0)
        while ticket not in self._answers:
            self._exchange(None)
        self._open.remove(ticket)
        worker, kind, content = self._answers.pop(ticket)
        if kind == Kind.RAISED:
            raise load_error(content, str(worker))
        try:
            return worker.buffers.read(*content) if kind == Kind.IN_BUFFER else pickle.loads(content)
        except Exception as error:
            raise WorkerError(f"expected a result of {worker} that can be unpickled here, got {error!r}") from error

    def forget(self) -> None:
        """Drop all tickets: tasks that have not begun are skipped, results of the others are thrown away."""
        if self._stop is not None and not self._stop.alive:
            return  # the processes have already ended, for example at the exit of the interpreter
        for worker, kind, content in self._answers.values():
            if kind == Kind.IN_BUFFER:
                worker.buffers.freed.append(content[0])
        self._answers.clear()
        self._open.clear()
        for worker in self._workers.values():
            worker.send_first(frame(Kind.FORGET, self._submitted))
        if self._workers:
            self._exchange(0)

    def close(self) -> None:
        """End all processes; a running task gets one second to finish. Arrays that you hold stay valid."""
        self._closed_by = self._closed_by or (ClosedError, "expected an open pool, this one was closed: make a new one")
        self._answers.clear()
        self._open.clear()
        if self._stop is not None:
            self._stop()
        self._workers.clear()

    def _check_open(self) -> None:
        if self._closed_by is not None:
            kind, message = self._closed_by
            raise kind(message)

    def _start(self) -> None:
        pipe = os.pipe()
        self._parent_pipe = pipe[0]
        self._stop = weakref.finalize(self, _stop, self._workers, pipe)
        _pools.add(self)
        try:
            for number in range(self.width):
                self._add_worker(number)
        except BaseException:
            self.close()
            raise

    def _add_worker(self, number: int) -> None:
        worker = WorkerHandle(number, self._parent_pipe, self._buffers)
        self._workers[worker.sock.fileno()] = worker
        first = frame(Kind.INITIALIZER, 0, self._initializer) if self._initializer else b""
        worker.outbox.append(first + frame(Kind.JOB, 0, self._job))

    def _queue(self, ticket: int, task: Any, body: bytes) -> None:
        """Give a task to the worker with the fewest tasks."""
        min(self._workers.values(), key=_load).add(ticket, task, body)

    def _exchange(self, timeout: int | None) -> None:
        """Send as much as the sockets accept, then receive what has arrived; with `timeout` None wait for something."""
        if pending := [worker for worker in self._workers.values() if worker.should_send()]:
            self._close_on_error(self._send, pending)
        if events := self._poll.poll(timeout):
            self._close_on_error(self._receive, [self._workers[fd] for fd, event in events if event != select.POLLOUT])
            if any(event & select.POLLHUP for _, event in events):
                self._exchange(0)  # a worker has died: read its socket to the end, where this is detected

    def _close_on_error(self, step: Callable[[list[WorkerHandle]], None], workers: list[WorkerHandle]) -> None:
        """Close the pool if a step raises: after an interrupt half a message may be in the socket, so no other can be
        read.
        """
        try:
            step(workers)
        except BaseException:
            self.close()
            raise

    def _send(self, workers: list[WorkerHandle]) -> None:
        for worker in workers:
            worker.send()
            self._poll.register(worker.sock, select.POLLIN | select.POLLOUT if worker.outbox else select.POLLIN)

    def _receive(self, workers: list[WorkerHandle]) -> None:
        for worker in workers:
            frames = worker.receive()
            if frames is None:
                self._handle_death(worker)
            for kind, number, body in frames or ():
                self._handle(worker, kind, number, body)

    def _handle_death(self, worker: WorkerHandle) -> None:
        self._fail(f"expected {worker} to keep running, it {worker.describe_exit()}")

    def _handle(self, worker: WorkerHandle, kind: int, ticket: int, body: bytes) -> None:
        if kind == Kind.JOB_FAILED:
            text = body.decode()
            why = text.strip().rpartition("\n")[2]
            self._fail(f"expected {worker} to load the job, it could not: {why}", WorkerTraceback("\n" + text))
        if kind == Kind.READY:
            worker.is_ready = True
            return
        del worker.tasks[ticket]
        content = worker.open_buffer(body) if kind == Kind.IN_BUFFER else body
        if ticket in self._open:
            self._answers[ticket] = worker, kind, content
        elif kind == Kind.IN_BUFFER:
            worker.buffers.freed.append(content[0])

    def _fail(self, message: str, cause: Exception | None = None) -> NoReturn:
        self._closed_by = WorkerError, message
        self.close()
        raise WorkerError(message) from cause

    def _release_after_fork(self) -> None:
        """In a forked process: close the copies of the parent's connections and leave its workers running."""
        if self._stop is None or (detached := self._stop.detach()) is None:
            return
        workers, pipe = detached[2]
        for worker in workers.values():
            worker.close_connection()
            worker.process.returncode = 0  # it is not a child of this process: there is nothing to wait for
        for end in pipe:
            os.close(end)
        workers.clear()
        message = f"expected a pool of this process, got one of process {os.getppid()}: make a new one"
        self._closed_by = WorkerError, message


class RestartingPool(ProcessPool):
    """A pool that replaces workers that die (killed, out of memory, crashed) and runs their unfinished tasks again.

    A task at which workers died three times raises a `WorkerError`, which closes the pool. Errors that the job raises,
    and a job that cannot be unpickled, are raised as by `ProcessPool`. A worker holds two tasks, the others wait in the
    pool: tasks of different length keep all workers busy. Results should be small: a worker has one shared buffer, so
    that results that wait to be taken keep no files open.

    >>> with RestartingPool(lambda number: number**2, workers=2) as pool:
    ...     tickets = [pool.submit(number) for number in range(5)]
    ...     [pool.result(ticket) for ticket in tickets]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self, job: Callable[[Any], Any], workers: int, *, initializer: Callable[[], object] | None = None
    ) -> None:
        super().__init__(job, workers, initializer=initializer, buffers=1)
        self._waiting: deque[tuple[int, Any, bytes]] = deque()
        self._deaths: Counter[int] = Counter()
        self._failed_starts = 0

    def forget(self) -> None:
        """Drop all tickets: tasks that have not begun are skipped, results of the others are thrown away."""
        self._waiting.clear()
        self._deaths.clear()
        super().forget()

    def close(self) -> None:
        """End all processes; a running task gets one second to finish. Arrays that you hold stay valid."""
        self._waiting.clear()
        super().close()

    def _queue(self, ticket: int, task: Any, body: bytes) -> None:
        self._waiting.append((ticket, task, body))
        self._give_out()

    def _give_out(self) -> None:
        """Give waiting tasks to workers that have few; replace missing workers if any task waits."""
        if self._waiting and len(self._workers) < self.width:
            for number in set(range(self.width)) - {worker.number for worker in self._workers.values()}:
                self._add_worker(number)
        while self._waiting:
            worker = min(self._workers.values(), key=_load)
            if len(worker.tasks) >= _AHEAD:
                return
            worker.add(*self._waiting.popleft())

    def _receive(self, workers: list[WorkerHandle]) -> None:
        super()._receive(workers)
        if any(worker.is_ready for worker in workers):
            self._failed_starts = 0
        if self._waiting:
            self._give_out()
            self._send([worker for worker in self._workers.values() if worker.outbox])

    def _handle_death(self, worker: WorkerHandle) -> None:
        """Remove a worker; its tasks are the next ones to be given out. The first of them was running if it was ready.

        Deaths before a worker is ready are no fault of a task: they are counted until one is ready.
        """
        how = worker.describe_exit()
        self._poll.unregister(worker.sock)
        del self._workers[worker.sock.fileno()]
        worker.close_connection()
        worker.kill_group()
        worker.kill()
        running = next(iter(worker.tasks), None)
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= _ATTEMPTS * self.width:
                self._fail(
                    f"expected {worker} to start, it {how}; {self._failed_starts} workers in a row did not start"
                )
        elif running in self._open:
            self._deaths[running] += 1
            if self._deaths[running] >= _ATTEMPTS:
                self._fail(
                    f"expected a task to finish, but its worker died {_ATTEMPTS} times; the last one, {worker}, {how}"
                )
        again = [(ticket, task) for ticket, task in worker.tasks.items() if ticket in self._open]
        self._waiting.extendleft((ticket, task, pickled("task", task)) for ticket, task in reversed(again))


def _load(worker: WorkerHandle) -> int:
    return len(worker.tasks)


class WorkerHandle:
    """One worker process: its unanswered tasks, its unsent messages and its shared buffers."""

    def __init__(self, number: int, parent_pipe: int, buffers: int) -> None:
        self.number = number
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        serve = f"from shardex.workers.worker_process import serve; serve({theirs.fileno()}, {parent_pipe}, {buffers})"
        code = f"import sys; sys.path[:] = {[str(folder) for folder in sys.path]!r}; {serve}"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), parent_pipe),
                process_group=0,  # so that Ctrl-C reaches only this process
            )
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.is_ready = False
        self.tasks: dict[int, Any] = {}
        self.outbox: deque[bytes | memoryview] = deque()
        self.buffers = MappedBuffers()
        self._name = f"worker {number} (pid {self.process.pid})"
        self._partly_sent = False  # whether a part of the first frame in the outbox has been sent
        self._frames = FrameReader()
        self._files: deque[int] = deque()

    def __str__(self) -> str:
        return self._name

    def add(self, ticket: int, task: Any, body: bytes) -> None:
        """Queue a task; `body` is its pickle."""
        self.tasks[ticket] = task
        self.outbox.append(frame(Kind.TASK, ticket, body))

    def send_first(self, message: bytes) -> None:
        """Queue a message before the tasks that were not sent yet."""
        self.outbox.insert(int(self._partly_sent), message)

    def should_send(self) -> bool:
        """Return True if there is enough to send; a few freed buffers are reported with the next task."""
        return bool(self.outbox) or len(self.buffers.freed) > _FREED_BATCH

    def send(self) -> None:
        """Send as much as the socket accepts without blocking."""
        freed = self.buffers.freed
        if freed:
            self.send_first(b"".join([frame(Kind.FREE, freed.popleft()) for _ in range(len(freed))]))
        while self.outbox:
            try:
                self._remove_sent(self.sock.sendmsg(islice(self.outbox, _PER_CALL)))
            except BlockingIOError:
                return
            except ConnectionError:  # the worker has died: `receive` reports it
                self.outbox.clear()

    def _remove_sent(self, count: int) -> None:
        """Remove the first `count` bytes from the outbox."""
        while self.outbox and count >= len(self.outbox[0]):
            count -= len(self.outbox.popleft())
            self._partly_sent = False
        if count:
            self._partly_sent = True
            self.outbox[0] = memoryview(self.outbox[0])[count:]

    def receive(self) -> list[tuple[int, int, bytes]] | None:
        """Return the frames that have arrived; None if the worker has closed the connection."""
        try:
            data, files, flags, _ = socket.recv_fds(self.sock, 1 << 16, _PER_CALL, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if flags & _TRUNCATED:
            raise WorkerError(
                "expected to open a shared buffer, but this process has too many open files: see ulimit -n"
            )
        self._files.extend(files)
        return self._frames.feed(data) if data else None

    def open_buffer(self, body: bytes) -> tuple[int, list[Span]]:
        """Map the buffer that a frame of kind IN_BUFFER names; returns its number and the spans in it."""
        number, spans, dropped = pickle.loads(body)
        for old in dropped:
            self.buffers.drop(old)
        if number not in self.buffers:
            self.buffers.open(number, self._files.popleft())
        return number, spans

    def describe_exit(self) -> str:
        """Return how the process ended and which task it was running, for an error message."""
        at_task = f" at task {_repr.repr(next(iter(self.tasks.values())))}" if self.tasks else ""
        try:
            code = self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return f"closed its connection{at_task}"
        if code >= 0:
            return f"ended with exit code {code}{at_task}; it may have written the reason to stderr"
        name = signal.strsignal(-code) or "unknown"
        return f"was killed by signal {-code} ({name}){at_task}{_HINTS.get(-code, '')}"

    def close_connection(self) -> None:
        """Close the socket and the received files that were not mapped yet."""
        self.sock.close()
        while self._files:
            os.close(self._files.popleft())

    def kill(self) -> None:
        """Kill the process, if it still runs, and the processes that it has started."""
        if self.process.poll() is None:
            self.kill_group()
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)

    def kill_group(self) -> None:
        """Kill the processes that the job has started, and the worker itself if it still runs."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _stop(workers: dict[int, WorkerHandle], pipe: tuple[int, int]) -> None:
    """Close the sockets, which ends each worker after its current task; kill those that take too long."""
    deadline = time.monotonic() + _GRACE
    try:
        for worker in workers.values():
            worker.close_connection()
        for worker in workers.values():
            with suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for end in pipe:
            os.close(end)
        for worker in workers.values():
            worker.kill()


def pickled(what: str, value: Any) -> bytes:
    try:
        return dump_value(value)
    except Exception as error:
        raise ArgumentError(f"expected a {what} that can be pickled, got {_repr.repr(value)}: {error}") from error


_pools: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._release_after_fork()


os.register_at_fork(after_in_child=_after_fork)
