"""Servers that several test processes share: the first process starts a server, the last one ends it.

A process that uses a server holds a shared lock on a file. This module also runs as a script next to each server: it
gets the exclusive lock when the last user has ended, even by a crash, and then ends the server.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

__all__ = ["Command", "end_with_parent", "free_ports", "shared_server"]

Command = Callable[[Path, list[int]], list[str]]
"""Returns the command of a server for a folder and free ports; requests go to the first port."""

_PORTS = 8
_DIE_WITH_PARENT = 1


@contextmanager
def shared_server(folder: Path, command: Command) -> Iterator[int]:
    """Give the port of a running server with its files in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as locks:
        users = locks.enter_context(open(folder / "users", "w"))
        fcntl.flock(users, fcntl.LOCK_SH)
        with open(folder / "starting", "w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            port = _running(folder) or _start(folder, command)
        yield port


def _running(folder: Path) -> int:
    with suppress(OSError, ValueError):
        port = int((folder / "port").read_text())
        return port if _answers(port) else 0
    return 0


def _start(folder: Path, command: Command) -> int:
    ended = folder / "ended"
    for _ in range(3):  # another process may take a port that was free
        ended.unlink(missing_ok=True)
        ports = free_ports(_PORTS)
        with open(folder / "log", "w") as log:
            script = [sys.executable, __file__, str(folder), json.dumps(command(folder, ports))]
            subprocess.run(script, stdout=log, stderr=log, check=True)
        limit = time.monotonic() + 60
        while not ended.exists() and time.monotonic() < limit:
            if _answers(ports[0]):
                (folder / "port").write_text(str(ports[0]))
                return ports[0]
            time.sleep(0.1)
    raise RuntimeError(f"the server did not start: {(folder / 'log').read_text()[-2000:]}")


def _answers(port: int) -> bool:
    """Return True if an HTTP server listens on the port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    return False


def free_ports(count: int) -> list[int]:
    """Return ports that are not in use now."""
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def end_with_parent() -> Callable[[], None] | None:
    """Return what a new process calls so that it ends when this one does, where the system can do that."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def keep(folder: Path, command: list[str]) -> None:
    """Run a server until its last user has ended."""
    server = subprocess.Popen(command, preexec_fn=end_with_parent())  # noqa: PLW1509 - there are no threads here
    with open(folder / "users", "w") as users:
        while server.poll() is None:
            with suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.2)
        (folder / "port").unlink(missing_ok=True)
        (folder / "ended").touch()
        server.terminate()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            server.kill()
    for port in re.findall(r"port\S*=(\d+)", " ".join(command)):
        for left in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


if __name__ == "__main__":
    if os.fork() == 0:  # detached, so that no process has to wait for it
        os.setsid()
        keep(Path(sys.argv[1]), json.loads(sys.argv[2]))
