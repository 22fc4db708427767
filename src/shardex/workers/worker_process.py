"""The main loop of a worker process, `serve`, and the messages between a `ProcessPool` and its workers.

A worker is a fresh interpreter that imports this package and not the caller's program. It receives tasks through a
socket, runs the job on each and sends the result back: small ones through the socket, large ones through a shared
buffer (`shared_arena`). A second thread watches a pipe of the parent process: when the pipe closes, the parent has
ended and the worker exits. Several workers share the cores, so each limits Arrow to one thread. Torch is not limited:
a job that computes with it should call ``torch.set_num_threads(1)``.

A message is a frame: `Kind` lists what it can mean, `frame` makes one, `FrameReader` splits a stream into frames.
"""

from __future__ import annotations

import gc
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
from shardex.kernel import set_threads
from shardex.workers.shared_arena import Arena, dump_error, dump_value, pack

_INLINE = 8 << 10
"""Smaller results without large arrays are sent through the socket."""
_SPARE = 8
"""Free buffers to keep in addition to one for each waiting task."""


class Kind(IntEnum):
    """Meaning of a frame. Its number is the ticket of a task, unless noted otherwise."""

    # to a worker
    JOB = 0  # pickle of the job
    TASK = 1  # pickle of a task
    FORGET = 2  # skip tasks whose ticket is below the number
    FREE = 3  # the buffer with this number may be reused
    INITIALIZER = 4  # pickle of a callable to call before the job is unpickled
    # from a worker
    VALUE = 5  # pickle of a result
    IN_BUFFER = 6  # pickle of: number of the buffer with the result, its spans, numbers of buffers dropped before
    RAISED = 7  # the error that the job raised, from `dump_error`
    SKIPPED = 8  # the task was forgotten
    JOB_FAILED = 9  # text of the traceback raised by unpickling the job
    READY = 10  # the job was unpickled


_HEADER = struct.Struct("<QQB")


def frame(kind: Kind, number: int = 0, body: bytes = b"") -> bytes:
    """Return the bytes of one message.

    >>> FrameReader().feed(frame(Kind.TASK, 7, b"body"))
    [(1, 7, b'body')]
    """
    return _HEADER.pack(len(body), number, kind) + body


class FrameReader:
    """Splits the bytes that arrive through a socket, in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """Return kind, number and body of the frames that these bytes complete."""
        self._rest += data
        frames, at, have = [], 0, len(self._rest)
        with memoryview(self._rest) as view:
            while have - at >= _HEADER.size:
                length, number, kind = _HEADER.unpack_from(view, at)
                begin, end = at + _HEADER.size, at + _HEADER.size + length
                if end > have:
                    break
                frames.append((kind, number, bytes(view[begin:end])))
                at = end
        del self._rest[:at]
        return frames


def serve(connection: int, parent_pipe: int, buffers: int) -> None:
    """Run tasks until the socket `connection` is closed, with at most `buffers` shared buffers in use."""
    for inherited in (connection, parent_pipe):
        os.set_inheritable(inherited, False)  # processes that the job starts must not keep them open
    threading.Thread(target=_exit_with_parent, args=(parent_pipe,), daemon=True).start()
    pa.set_cpu_count(1)
    set_threads(1)
    gc.freeze()  # the collector would look at all modules again when the process ends, a fifth of its start
    with socket.socket(fileno=connection) as sock, suppress(ConnectionError):
        os.register_at_fork(after_in_child=sock.close)
        _Worker(sock, buffers).run()


def _exit_with_parent(parent_pipe: int) -> None:
    """Wait until the parent process has ended, then kill this process and those that the job has started."""
    os.read(parent_pipe, 1)
    with suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


class _Worker:
    """The loop over tasks: receive, run the job, send the result."""

    def __init__(self, sock: socket.socket, buffers: int) -> None:
        self._sock = sock
        self._frames = FrameReader()
        self._arena = Arena(buffers)
        self._job: Callable[[Any], Any] | None = None
        self._tasks: deque[tuple[int, bytes]] = deque()
        self._wanted_from = 0

    def run(self) -> None:
        """Run one task after the other until the pool closes the socket."""
        while self._receive():
            ticket, task = self._tasks.popleft()
            if ticket < self._wanted_from:
                self._sock.sendall(frame(Kind.SKIPPED, ticket))
            else:
                self._run_task(ticket, task)

    def _receive(self) -> bool:
        """Handle arrived messages and wait until there is a task; return False if the socket was closed."""
        while True:
            try:
                data = self._sock.recv(1 << 16, socket.MSG_DONTWAIT if self._tasks else 0)
            except BlockingIOError:
                self._arena.trim(_SPARE + len(self._tasks))
                return True
            if not data:
                return False
            for kind, number, body in self._frames.feed(data):
                self._handle(kind, number, body)

    def _handle(self, kind: int, number: int, body: bytes) -> None:
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
            self._sock.sendall(frame(Kind.READY))

    def _load(self, body: bytes) -> Callable[..., Any]:
        try:
            job: Callable[..., Any] = pickle.loads(body)
        except BaseException:
            self._sock.sendall(frame(Kind.JOB_FAILED, 0, traceback.format_exc().encode()))
            raise SystemExit(1) from None
        return job

    def _run_task(self, ticket: int, task: bytes) -> None:
        """Run the job and send its result or its error, including SystemExit and KeyboardInterrupt."""
        assert self._job is not None
        try:
            value = self._job(pickle.loads(task))
            parts = _packed(value)
        except BaseException as error:
            self._sock.sendall(frame(Kind.RAISED, ticket, dump_error(error)))
        else:
            self._send_result(ticket, value, parts)

    def _send_result(self, ticket: int, value: Any, parts: list[bytes | memoryview]) -> None:
        """Send a result through a shared buffer, or through the socket if it is small or no buffer is available."""
        stream, *large = parts
        if not large and len(stream) < _INLINE:
            return self._sock.sendall(frame(Kind.VALUE, ticket, bytes(stream)))
        if (placed := self._arena.place(parts)) is None:
            return self._sock.sendall(frame(Kind.VALUE, ticket, dump_value(value)))
        number, spans, fd = placed
        message = frame(Kind.IN_BUFFER, ticket, pickle.dumps((number, spans, self._arena.take_dropped())))
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
        raise SchemaError(f"expected the job to return a value that can be pickled, got {found}") from error
