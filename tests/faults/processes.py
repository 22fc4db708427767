"""Processes for these tests: forked by `jobs.py`, started by a byte, traced or failed by strace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

FULL = os.environ.get("SHARDEX_FAULTS") == "full"
"""True: test every case, which takes many minutes; False: a selection that fits into the suite."""


class Jobs:
    """A server that forks processes."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__).with_name("jobs.py")), str(theirs.fileno())]
        # A single thread, so that the trace is complete.
        settings = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=settings)
        self._requests = ours

    def start(self, job: str, folder: str | Path, *rest: Any, **options: Any) -> Job:
        """Fork a process that waits for `go`."""
        ours, theirs = socket.socketpair()
        request = {"job": job, "folder": str(folder), "rest": rest, **options}
        with theirs:
            socket.send_fds(self._requests, [json.dumps(request).encode()], [theirs.fileno()])
        return Job(ours)

    def run(self, job: str, folder: str | Path, *rest: Any, **options: Any) -> str:
        """Run a job and return its last line."""
        with self.start(job, folder, *rest, **options) as one:
            one.go()
            return one.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.close()
        self._process.wait()


class Job:
    """A process and the socket to it."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._heard = b""
        self._ended = False
        number, (self._handle,), _, _ = socket.recv_fds(line, 64, 1)
        self.pid = int(number)

    def go(self) -> None:
        """Let it start its job."""
        self._line.sendall(b"!")

    def hear(self, seconds: float | None = None) -> str | None:
        """Return the next line, empty at its end; None after a timeout."""
        self._line.settimeout(seconds)
        while b"\n" not in self._heard and not self._ended:
            try:
                more = self._line.recv(1 << 16)
            except (TimeoutError, BlockingIOError):
                return None
            except ConnectionResetError:
                more = b""
            self._heard += more
            self._ended = not more
        words, _, self._heard = self._heard.partition(b"\n")
        return words.decode()

    def hear_for(self, seconds: float) -> list[str]:
        """Return all lines of the next seconds."""
        lines, end = [], time.monotonic() + seconds
        while words := self.hear(max(0.0, end - time.monotonic())):
            lines.append(words)
        return lines

    def hear_all(self) -> list[str]:
        """Return all lines until its end."""
        lines = []
        while words := self.hear():
            lines.append(words)
        return lines

    def end(self) -> str:
        """Wait for its end and return its last line; empty if it sent none."""
        return (self.hear_all() or [""])[-1]

    def signal(self, number: int) -> None:
        """Send it a signal if it is alive; never to a later process with the same number."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signal(signal.SIGKILL)
        self.hear_all()
        self._line.close()
        os.close(self._handle)


# -- strace ---------------------------------------------------------------------------------------------------------

_CALL = re.compile(r"(\w+)\(")


@dataclass(frozen=True)
class Call:
    """A system call about a dataset: the n-th of its name, as strace writes it."""

    name: str
    number: int
    words: str

    @property
    def changes(self) -> bool:
        """True if the call changes or syncs files or folders."""
        return self.name in CHANGING or (self.name == "openat" and "O_CREAT" in self.words)


CHANGING = {
    *("write", "pwrite64", "writev", "ftruncate", "fsync", "fdatasync", "sync_file_range", "close", "utimensat"),
    *("link", "linkat", "rename", "renameat", "renameat2", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
}


@contextmanager
def strace(pid: int, log: Path, *options: str) -> Iterator[None]:
    """Trace a process until its end."""
    command = ["strace", "-p", str(pid), "-y", "-s", "0", "-o", str(log), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        words = tracer.stderr.readline()
        if "attached" not in words:
            tracer.kill()
            raise RuntimeError(f"strace did not attach: {words}")
        yield


def calls(jobs: Jobs, job: str, folder: Path, log: Path, inside: Path | None = None) -> list[Call]:
    """Return the system calls of a job that concern its dataset, or files inside of another folder."""
    with jobs.start(job, folder) as one, strace(one.pid, log, "-e", "trace=%file,%desc"):
        one.go()
        assert one.end() == "done"
    seen: dict[str, int] = {}
    found = []
    for line in log.read_text().splitlines():
        if match := _CALL.match(line):
            name = match[1]
            seen[name] = seen.get(name, 0) + 1
            if str(inside or folder) in line:
                found.append(Call(name, seen[name], line))
    return found


def hit(jobs: Jobs, job: str, folder: Path, log: Path, call: Call, fault: str) -> str:
    """Run a job with a fault at one of its system calls and return its last line."""
    options = ["-e", f"trace={call.name}", "-e", f"inject={call.name}:{fault}:when={call.number}"]
    with jobs.start(job, folder) as one, strace(one.pid, log, *options):
        one.go()
        words = one.end()
    text = log.read_text()
    assert "(INJECTED)" in text or "killed by SIGKILL" in text, f"nothing was hit: {text}"
    return words


@cache
def why_no_strace() -> str:
    """Return why processes cannot be traced; empty if they can."""
    if shutil.which("strace") is None:
        return "needs strace (Debian: apt-get install strace)"
    done = subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, text=True, check=False)
    return f"needs a system that lets processes be traced: {done.stderr.strip()}" if done.returncode else ""
