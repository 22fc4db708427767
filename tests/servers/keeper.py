"""Servers that several test processes share: started by the first, ended after the last.

A process that uses a server holds a shared lock on a file. Beside each server runs this module as a script: it waits
for that lock alone, which it gets when the last user has gone, however it went, and then ends the server.
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

__all__ = ["Command", "free_ports", "shared_server"]

Command = Callable[[Path, list[int]], list[str]]
"""Makes the command of a server of its folder and of free ports, the first of which is the one it is known by."""

_PORTS = 8
_DIE_WITH_PARENT = 1


@contextmanager
def shared_server(folder: Path, command: Command) -> Iterator[int]:
    """The port of a running server whose files lie in `folder`."""
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
    for _ in range(3):  # somebody else may take a port that was free
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
    """Whether somebody speaks HTTP there."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        return connection.recv(5) == b"HTTP/"
    return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def keep(folder: Path, command: list[str]) -> None:
    """Run a server until nobody uses it."""
    die = _die_with_parent if sys.platform == "linux" else None
    server = subprocess.Popen(command, preexec_fn=die)  # noqa: PLW1509 - there are no threads here
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
    if os.fork() == 0:  # nobody's child, so nobody need wait for it
        os.setsid()
        keep(Path(sys.argv[1]), json.loads(sys.argv[2]))
