"""Worker processes that run one job on many tasks: `ProcessPool`, seen from the process that asks.

The processes are plain ones that import this package and nothing of the caller's program, so a script needs no
``if __name__ == "__main__"``; job and tasks are carried by cloudpickle. Each has a socket, through which small frames
go (`frames.py`), and shared buffers for what is large. Sending never waits: what a socket does not take is
kept, and goes out when somebody submits or waits for a result. What the processes do is in `worker.py`; what a batch
is, nobody here knows.
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
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from reprlib import Repr
from typing import Any, NoReturn, Self

from shardex.errors import ClosedError, SchemaError, ShardexError, WorkerError
from shardex.workers.shared_arena import Span, Window, WorkerTraceback, carry, revive
from shardex.workers.worker_process import Frames, Kind, frame

__all__ = ["ProcessPool"]

_GRACE = 1.0
"""Seconds that a worker in the middle of a task gets when its crew closes."""
_BUFFERS = 256
"""Shared buffers that a crew may use at a time: each is an open file in this process."""
_NOTES = 3
"""Free buffers of which a worker is not told before it gets its next task."""
_AT_ONCE = 16
"""Frames that one call sends, and files that one call may receive."""
_shorter = Repr()
_shorter.maxother = 200
brief = _shorter.repr
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_CUT_SHORT = int(socket.MSG_CTRUNC)
_HINTS: dict[int, str] = {
    signal.SIGKILL: "; perhaps the machine ran out of memory: try fewer workers or smaller batches",
    signal.SIGSEGV: "; a library that the job calls has crashed",
    signal.SIGBUS: "; perhaps a file that the job had mapped became shorter",
}


class ProcessPool:
    """Processes that run a job, a callable of one argument, on tasks: small values that can be pickled.

    Large arrays in a result lie in memory that the worker uses again when the last of them is gone: nothing is copied,
    and what you hold stays as it is. (A process that you fork shares this memory; it copies what it wants to keep.)
    `initializer` is called once in each process, before the job is unpickled.
    A worker that dies is a `WorkerError`, and the end of its crew. One thread at a time may use a crew.

    >>> with ProcessPool(lambda number: number**2, workers=2) as crew:
    ...     tickets = [crew.submit(number) for number in range(5)]
    ...     [crew.result(ticket) for ticket in tickets]
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self, job: Callable[[Any], Any], workers: int, initializer: Callable[[], object] | None = None
    ) -> None:
        if workers < 1:
            raise SchemaError(f"expected at least one worker, got {workers}")
        self._job = _carried("job", job)
        self._initializer = _carried("initializer", initializer) if initializer else b""
        self._workers = workers
        self._mates: dict[int, WorkerHandle] = {}  # by file descriptor
        self._poll = select.poll()
        self._submitted = 0
        self._open: set[int] = set()
        self._answers: dict[int, tuple[WorkerHandle, int, Any]] = {}
        self._stop: weakref.finalize[..., Any] | None = None
        self._end: tuple[type[ShardexError], str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, task: Any) -> int:
        """Give a task to the worker that has the fewest; `result` takes the ticket."""
        self._check()
        body = _carried("task", task)
        if self._stop is None:
            self._start()
        mate = min(self._mates.values(), key=lambda mate: len(mate.tasks))
        ticket = self._submitted
        self._submitted += 1
        self._open.add(ticket)
        mate.tasks[ticket] = task
        mate.outbox.append(frame(Kind.TASK, ticket, body))
        self._exchange(0)
        return ticket

    def result(self, ticket: int) -> Any:
        """Wait for a task: returns what the job returned, raises what it raised. A ticket is good for one time."""
        self._check()
        if ticket not in self._open:
            raise SchemaError(f"expected a ticket that was not redeemed or forgotten yet, got {brief(ticket)}")
        self._exchange(0)
        while ticket not in self._answers:
            self._exchange(None)
        self._open.remove(ticket)
        mate, kind, content = self._answers.pop(ticket)
        if kind == Kind.RAISED:
            raise revive(content, str(mate))
        try:
            return mate.window.look(*content) if kind == Kind.PLACED else pickle.loads(content)
        except Exception as error:
            raise WorkerError(f"expected a result of {mate} that can be unpickled here, got {error!r}") from error

    def forget(self) -> None:
        """Drop all tickets. What was not begun is left undone, what is under way is thrown away when it arrives."""
        if self._stop is not None and not self._stop.alive:
            return  # the processes have ended already, perhaps with the interpreter
        for mate, kind, content in self._answers.values():
            if kind == Kind.PLACED:
                mate.window.freed.append(content[0])
        self._answers.clear()
        self._open.clear()
        for mate in self._mates.values():
            mate.put_first(frame(Kind.FORGET, self._submitted))
        if self._mates:
            self._exchange(0)

    def close(self) -> None:
        """End all processes; one in the middle of a task has a second for it. Arrays that you hold stay valid."""
        self._end = self._end or (ClosedError, "expected an open crew, this one was closed: make a new one")
        self._answers.clear()
        self._open.clear()
        if self._stop is not None:
            self._stop()
        self._mates.clear()

    def _check(self) -> None:
        if self._end is not None:
            kind, message = self._end
            raise kind(message)

    def _start(self) -> None:
        lifeline, ours = os.pipe()
        self._stop = weakref.finalize(self, _stop, self._mates, ours)
        _crews.add(self)
        try:
            for number in range(self._workers):
                mate = WorkerHandle(number, lifeline, max(8, _BUFFERS // self._workers))
                first = frame(Kind.INITIALIZER, 0, self._initializer) if self._initializer else b""
                mate.outbox.append(first + frame(Kind.JOB, 0, self._job))
                self._mates[mate.sock.fileno()] = mate
        except BaseException:
            self.close()
            raise
        finally:
            os.close(lifeline)

    def _exchange(self, timeout: int | None) -> None:
        """Send what can be sent, then take in what has come, or wait until something does."""
        if talking := [mate for mate in self._mates.values() if mate.has_to_say()]:
            self._whole(self._send, talking)
        if events := self._poll.poll(timeout):
            self._whole(self._receive, [self._mates[fd] for fd, event in events if event != select.POLLOUT])
            if any(event & select.POLLHUP for _, event in events):
                self._exchange(0)  # one of them has died: read on to the end, which tells it

    def _whole(self, step: Callable[[list[WorkerHandle]], None], mates: list[WorkerHandle]) -> None:
        """All or nothing: half a frame that an interrupt leaves behind would garble those after it."""
        try:
            step(mates)
        except BaseException:
            self.close()
            raise

    def _send(self, mates: list[WorkerHandle]) -> None:
        for mate in mates:
            mate.send()
            self._poll.register(mate.sock, select.POLLIN | select.POLLOUT if mate.outbox else select.POLLIN)

    def _receive(self, mates: list[WorkerHandle]) -> None:
        for mate in mates:
            frames = mate.receive()
            if frames is None:
                self._fail(f"expected {mate} to work on, it {mate.fate()}")
            for kind, number, body in frames:
                self._take(mate, kind, number, body)

    def _take(self, mate: WorkerHandle, kind: int, ticket: int, body: bytes) -> None:
        if kind == Kind.NO_JOB:
            self._fail(f"expected {mate} to load the job, it could not", WorkerTraceback("\n" + body.decode()))
        del mate.tasks[ticket]
        content = mate.unfold(body) if kind == Kind.PLACED else body
        if ticket in self._open:
            self._answers[ticket] = mate, kind, content
        elif kind == Kind.PLACED:
            mate.window.freed.append(content[0])

    def _fail(self, message: str, cause: Exception | None = None) -> NoReturn:
        self._end = WorkerError, message
        self.close()
        raise WorkerError(message) from cause

    def _abandon(self) -> None:
        """In a forked process: let go of what belongs to the other one, and leave its workers alone."""
        if self._stop is None or (given := self._stop.detach()) is None:
            return
        mates, lifeline = given[2]
        for mate in mates.values():
            mate.hang_up()
            mate.process.returncode = 0  # no child of this process: there is nothing to wait for
        os.close(lifeline)
        mates.clear()
        self._end = WorkerError, f"expected a crew of this process, got one of process {os.getppid()}: make a new one"


class WorkerHandle:
    """One worker process: the tasks it has not answered, and what it was not told yet."""

    def __init__(self, number: int, lifeline: int, buffers: int) -> None:
        self.sock, theirs = socket.socketpair()
        self.sock.setblocking(False)
        serve = f"from shardex.workers.worker_process import serve; serve({theirs.fileno()}, {lifeline}, {buffers})"
        code = f"import sys; sys.path[:] = {[str(folder) for folder in sys.path]!r}; {serve}"
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), lifeline),
                process_group=0,  # so that Ctrl-C reaches only this process
            )
        except BaseException:
            self.sock.close()
            raise
        finally:
            theirs.close()
        self.tasks: dict[int, Any] = {}
        self.outbox: deque[bytes | memoryview] = deque()
        self.window = Window()
        self._name = f"worker {number} (pid {self.process.pid})"
        self._begun = False  # whether a part of the first frame in the outbox has been sent
        self._frames = Frames()
        self._files: deque[int] = deque()

    def __str__(self) -> str:
        return self._name

    def put_first(self, message: bytes) -> None:
        """What must not wait behind the tasks."""
        self.outbox.insert(int(self._begun), message)

    def has_to_say(self) -> bool:
        """Whether sending is worth a call; a few free buffers wait for a task to go with."""
        return bool(self.outbox) or len(self.window.freed) > _NOTES

    def send(self) -> None:
        """As much as the socket takes now."""
        freed = self.window.freed
        if freed:
            self.put_first(b"".join([frame(Kind.FREE, freed.popleft()) for _ in range(len(freed))]))
        while self.outbox:
            try:
                self._sent(self.sock.sendmsg(islice(self.outbox, _AT_ONCE)))
            except BlockingIOError:
                return
            except ConnectionError:  # it has died, as receiving will tell
                self.outbox.clear()

    def _sent(self, count: int) -> None:
        """Take so many bytes off the outbox."""
        while self.outbox and count >= len(self.outbox[0]):
            count -= len(self.outbox.popleft())
            self._begun = False
        if count:
            self._begun = True
            self.outbox[0] = memoryview(self.outbox[0])[count:]

    def receive(self) -> list[tuple[int, int, bytes]] | None:
        """The frames that have come; None if no more will."""
        try:
            data, files, flags, _ = socket.recv_fds(self.sock, 1 << 16, _AT_ONCE, _CLOSE_ON_EXEC)
        except BlockingIOError:
            return []
        except ConnectionError:
            return None
        if flags & _CUT_SHORT:
            raise WorkerError("expected to open a shared buffer, this process has too many open files: see ulimit -n")
        self._files.extend(files)
        return self._frames.feed(data) if data else None

    def unfold(self, body: bytes) -> tuple[int, list[Span]]:
        """Which buffer a result lies in, and where in it."""
        number, spans, dropped = pickle.loads(body)
        for old in dropped:
            self.window.drop(old)
        if number not in self.window:
            self.window.open(number, self._files.popleft())
        return number, spans

    def fate(self) -> str:
        """How it ended, and what it was doing."""
        doing = f" at task {brief(next(iter(self.tasks.values())))}" if self.tasks else ""
        try:
            code = self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            return f"closed its connection{doing}"
        if code >= 0:
            return f"ended with exit code {code}{doing}; it may have written the reason to stderr"
        name = signal.strsignal(-code) or "unknown"
        return f"was killed by signal {-code} ({name}){doing}{_HINTS.get(-code, '')}"

    def hang_up(self) -> None:
        """Close the connection, and the files that came over it but were not used."""
        self.sock.close()
        while self._files:
            os.close(self._files.popleft())

    def kill(self) -> None:
        """End it, and what it has started, if it has not ended yet."""
        if self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_GRACE)


def _stop(mates: dict[int, WorkerHandle], lifeline: int) -> None:
    """Without a socket a worker ends by itself when its task is done; those that take too long are killed."""
    deadline = time.monotonic() + _GRACE
    try:
        for mate in mates.values():
            mate.hang_up()
        for mate in mates.values():
            with suppress(subprocess.TimeoutExpired):
                mate.process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        os.close(lifeline)
        for mate in mates.values():
            mate.kill()


def _carried(what: str, value: Any) -> bytes:
    try:
        return carry(value)
    except Exception as error:
        raise SchemaError(f"expected a {what} that can be pickled, got {brief(value)}: {error}") from error


_crews: weakref.WeakSet[ProcessPool] = weakref.WeakSet()


def _after_fork() -> None:
    for crew in list(_crews):
        crew._abandon()


os.register_at_fork(after_in_child=_after_fork)
