"""What a process of a `ProcessPool` does: take tasks from its socket, run the job on each, answer.

It is a fresh interpreter that imports this package and nothing of the caller's program. One thread does everything
but watch the lifeline, a pipe that nobody writes to: it ends when the process at its other end does, in whatever way,
and then so does this one. Several workers share the cores, so Arrow gets one thread in each. Torch is left as it is:
a job that computes with it should call ``torch.set_num_threads(1)``.

The small messages between a crew and its workers: `frame` makes one, `Frames` reads them, `Kind` lists them.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Any

import pyarrow as pa

from shardex.errors import SchemaError
from shardex.workers.shared_arena import Arena, carry, carry_error, pack

__all__ = ["Frames", "Kind", "frame", "serve"]


class Kind(IntEnum):
    """What a frame says. Its number is that of a task, unless it is said to be another."""

    # to a worker
    JOB = 0  # the pickle of what it shall do with each task
    TASK = 1  # the pickle of a task
    FORGET = 2  # tasks of lower numbers are not wanted any more
    FREE = 3  # the buffer of this number is not used any more
    # from a worker
    VALUE = 4  # the pickle of a result
    PLACED = 5  # where a result lies: the pickle of the buffer's number, the spans, and the buffers given up before
    RAISED = 6  # what the job raised, by `carry_error`
    SKIPPED = 7  # the task was forgotten
    NO_JOB = 8  # the text of the traceback that loading the job gave
    # to a worker again
    INITIALIZER = 9  # the pickle of what to call before the job is loaded


_HEAD = struct.Struct("<QQB")


def frame(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """One message for a socket.

    >>> Frames().feed(frame(Kind.TASK, 7, b"body"))
    [(1, 7, b'body')]
    """
    return _HEAD.pack(len(body), number, kind) + body


class Frames:
    """Puts the frames together again that a socket gives in pieces."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames that these bytes complete."""
        self._rest += data
        frames, at, have = [], 0, len(self._rest)
        with memoryview(self._rest) as view:
            while have - at >= _HEAD.size:
                length, number, kind = _HEAD.unpack_from(view, at)
                begin, end = at + _HEAD.size, at + _HEAD.size + length
                if end > have:
                    break
                frames.append((kind, number, bytes(view[begin:end])))
                at = end
        del self._rest[:at]
        return frames


_INLINE = 8 << 10
"""Bytes below which a result without large arrays goes through the socket."""

_SPARE = 8
"""Free buffers to keep beside those that the waiting tasks will fill."""


def serve(connection: int, lifeline: int, buffers: int) -> None:
    """Work until the socket with this file descriptor closes; at most so many `buffers` may be in use."""
    for inherited in (connection, lifeline):
        os.set_inheritable(inherited, False)  # what the job starts must not keep them open
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()
    pa.set_cpu_count(1)
    with socket.socket(fileno=connection) as sock, suppress(ConnectionError):
        os.register_at_fork(after_in_child=sock.close)
        _Worker(sock, buffers).run()


def _watch(lifeline: int) -> None:
    """End when the other side has, together with whatever the job has started."""
    os.read(lifeline, 1)
    with suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


class _Worker:
    """The tasks that wait, and where results go."""

    def __init__(self, sock: socket.socket, buffers: int) -> None:
        self._sock = sock
        self._frames = Frames()
        self._arena = Arena(buffers)
        self._job: Callable[[Any], Any] | None = None
        self._tasks: deque[tuple[int, bytes]] = deque()
        self._wanted_from = 0

    def run(self) -> None:
        """Do one task after the other."""
        while self._listen():
            ticket, task = self._tasks.popleft()
            if ticket < self._wanted_from:
                self._sock.sendall(frame(Kind.SKIPPED, ticket))
            else:
                self._do(ticket, task)

    def _listen(self) -> bool:
        """Take in all that was said, and wait until there is a task; false when there will be none."""
        while True:
            try:
                data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT if self._tasks else 0)
            except BlockingIOError:
                self._arena.trim(_SPARE + len(self._tasks))
                return True
            if not data:
                return False
            for kind, number, body in self._frames.feed(data):
                self._heard(kind, number, body)

    def _heard(self, kind: int, number: int, body: bytes) -> None:
        if kind == Kind.TASK:
            self._tasks.append((number, body))
        elif kind == Kind.FREE:
            self._arena.free(number)
        elif kind == Kind.FORGET:
            self._wanted_from = number
        elif kind == Kind.INITIALIZER:
            self._load(body)()
        else:
            self._job = self._load(body)

    def _load(self, body: bytes) -> Callable[..., Any]:
        try:
            job: Callable[..., Any] = pickle.loads(body)
        except BaseException:
            self._sock.sendall(frame(Kind.NO_JOB, 0, traceback.format_exc().encode()))
            raise SystemExit(1) from None
        return job

    def _do(self, ticket: int, task: bytes) -> None:
        """Run the job; whatever it raises is an answer too, even a wish to exit."""
        assert self._job is not None
        try:
            value = self._job(pickle.loads(task))
            parts = _packed(value)
        except BaseException as error:
            self._sock.sendall(frame(Kind.RAISED, ticket, carry_error(error)))
        else:
            self._answer(ticket, value, parts)

    def _answer(self, ticket: int, value: Any, parts: list[bytes | memoryview]) -> None:
        """Through a buffer, or whole through the socket where the result is small or no buffer is to be had."""
        stream, *large = parts
        if not large and len(stream) < _INLINE:
            return self._sock.sendall(frame(Kind.VALUE, ticket, bytes(stream)))
        if (place := self._arena.place(parts)) is None:
            return self._sock.sendall(frame(Kind.VALUE, ticket, carry(value)))
        number, spans, fd = place
        message = frame(Kind.PLACED, ticket, pickle.dumps((number, spans, self._arena.take_dropped())))
        if fd is None:
            return self._sock.sendall(message)
        try:
            sent = socket.send_fds(self._sock, [message], [fd])
            self._sock.sendall(message[sent:])
        finally:
            os.close(fd)


def _packed(value: Any) -> list[bytes | memoryview]:
    try:
        return pack(value)
    except Exception as error:
        found = f"{type(value).__name__}: {error}"
        raise SchemaError(f"expected the job to return what can be pickled, got {found}") from error
