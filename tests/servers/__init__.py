"""Servers for tests, all on 127.0.0.1: S3, an S3 that ignores conditions, Redis, ATProto, a web server with faults.

Fixtures: `bucket` is an empty folder on SeaweedFS, `careless_bucket` one on rclone, `redis_url` an empty prefix on
Redis, `pds` a personal data server of ATProto, `web` the web server. All but the last need a program; without it the
test is skipped.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardex.sources import open_source, storage
from tests.servers.faulty import FaultyServer, faulty_server
from tests.servers.keeper import Command, shared_server
from tests.servers.pds import Pds, pds_command
from tests.servers.redis_server import PASSWORD, RedisServer, redis_server

__all__ = [
    "KEY",
    "PASSWORD",
    "SECRET",
    "bucket",
    "careless_bucket",
    "pds",
    "pds_url",
    "rclone",
    "redis_url",
    "running_redis",
    "seaweed",
    "web",
    "weed_command",
]

KEY, SECRET = "testkey", "testsecret-0123456789"


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
    return found or pytest.skip(f"needs {name}")


def _folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder that all processes of one test run share."""
    mine = factory.getbasetemp()
    return (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / name


def weed_command() -> Command:
    """Return the command that starts SeaweedFS."""
    weed = _program("weed")

    def command(folder: Path, ports: list[int]) -> list[str]:
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        parts = [f"-{part}.port{kind}" for part in ("s3", "master", "volume", "filer") for kind in ("", ".grpc")]
        options = [f"{part}={port}" for part, port in zip(parts, ports, strict=True)]
        own = [f"-dir={folder}", f"-s3.config={folder}/s3.json", "-volume.max=20", "-master.volumeSizeLimitMB=256"]
        quiet = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3.port.iceberg=0", "-s3.port.lance=0"]
        return [weed, "server", "-filer", "-s3", "-master.telemetry=false", *options, *own, *quiet]

    return command


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of SeaweedFS, an S3 server."""
    with shared_server(_folder(tmp_path_factory, "seaweed"), weed_command()) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of rclone, an S3 server that ignores conditions."""
    program = _program("rclone")

    def command(folder: Path, ports: list[int]) -> list[str]:
        (folder / "data" / "careless").mkdir(parents=True, exist_ok=True)
        listen = ["--addr", f"127.0.0.1:{ports[0]}", "--auth-key", f"{KEY},{SECRET}"]
        return [
            program,
            "serve",
            "s3",
            "--config",
            str(folder / "none"),
            *listen,
            "--etag-hash",
            "MD5",
            f"{folder}/data",
        ]

    with shared_server(_folder(tmp_path_factory, "rclone"), command) as port:
        yield f"http://127.0.0.1:{port}"


def _empty(endpoint: str, bucket: str) -> Iterator[str]:
    storage(
        f"s3://{bucket}",
        endpoint=endpoint,
        access_key_id=KEY,
        secret_access_key=SECRET,
        region="us-east-1",
        allow_http=True,
    )
    open_source(f"s3://{bucket}").put("here", b"")  # makes the bucket if it does not exist
    yield f"s3://{bucket}/{secrets.token_hex(8)}"
    storage(f"s3://{bucket}")


@pytest.fixture
def bucket(seaweed: str) -> Iterator[str]:
    """The URL of an empty folder in a bucket of a real S3 server, with its keys set by `storage`."""
    yield from _empty(seaweed, "tests")


@pytest.fixture
def careless_bucket(rclone: str) -> Iterator[str]:
    """The URL of an empty folder on a server where creating a file overwrites it."""
    yield from _empty(rclone, "careless")


@pytest.fixture(scope="session")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis with a password, for one process of the tests; a test that ends a server starts its own."""
    with redis_server(tmp_path_factory.mktemp("redis"), password=PASSWORD) as server:
        yield server


@pytest.fixture
def redis_url(running_redis: RedisServer) -> str:
    """The URL of an empty prefix on a real Redis."""
    return running_redis.url(f"0/{secrets.token_hex(8)}")


@pytest.fixture(scope="session")
def pds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pds]:
    """A real personal data server of ATProto, and the directory of its accounts."""
    folder = _folder(tmp_path_factory, "pds")
    with shared_server(folder, pds_command()) as port:
        yield Pds(port, int((folder / "directory").read_text()))


@pytest.fixture
def pds_url(pds: Pds) -> Iterator[str]:
    """The URL of a new account on the PDS, with its password and both servers set by `storage`."""
    account = pds.account()
    url = f"at://{account.handle}"
    storage(url, service=pds.url, directory=pds.directory, password=account.password)
    yield url
    storage(url)


@pytest.fixture
def web() -> Iterator[FaultyServer]:
    """A web server that misbehaves as its URLs say; requests in modes without an answer time out soon."""
    with faulty_server() as server:
        root = server.url("").rstrip("/")
        mute = [server.url(mode) for mode in ("stall", "stall1", "silent", "silent1", "trickle")]
        for url in (root, *mute):
            storage(url, timeout=0.5 if url in mute else 10, deadline=60, retries=3)
        yield server
        for url in (root, *mute):
            storage(url)
