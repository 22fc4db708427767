"""Processes that put versions of one name at the same time, some of them killed: no version is lost or used twice."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import shardex as sx
from shardex.sources import export_credentials
from tests.catalog.backends import BACKENDS, catalog_url

SHARED = [kind for kind in BACKENDS if kind != "memory"]
"""Backends that several processes use."""


def start(url: str, word: str, count: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.catalog.putting", url, word, str(count)]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(export_credentials())
    process.stdin.close()
    return process


def acknowledged(word: str, lines: list[bytes]) -> dict[int, str]:
    """Return the description of each version that a process has acknowledged; a last line may be cut off."""
    pairs = (line.split() for line in lines if line.endswith(b"\n") and not line.startswith(b"ready"))
    return {int(version): f"{word} {k.decode()}" for version, k in pairs}


def check(url: str, expected: dict[int, str]) -> dict[int, str]:
    catalog = sx.Catalog(url)
    there = {record.version: record.description for record in catalog.history("corpus")}
    assert list(there) == [*range(1, len(there) + 1)]
    assert expected.items() <= there.items(), "an acknowledged put is lost"
    assert catalog.get("corpus").version == len(there)
    return there


def run_two(url: str, each: int) -> None:
    processes = {word: start(url, word, each) for word in ("a", "b")}
    found: dict[int, str] = {}
    for word, process in processes.items():
        assert process.stdout is not None
        with process.stdout as lines:
            some = acknowledged(word, lines.readlines())
        assert process.wait() == 0 and len(some) == each and not found.keys() & some.keys()
        found |= some
    assert check(url, found) == found


@pytest.mark.parametrize(
    "kind", [kind if kind == "sqlite" else pytest.param(kind, marks=pytest.mark.long) for kind in SHARED]
)
def test_two_processes_put_versions_of_one_name(kind: str, request: pytest.FixtureRequest) -> None:
    run_two(catalog_url(kind, request), 20)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_put_500_versions(kind: str, request: pytest.FixtureRequest) -> None:
    run_two(catalog_url(kind, request), 250)


def killed(url: str, word: str, seconds: float) -> dict[int, str]:
    """Kill a process some time after its first put; return what it has acknowledged."""
    process = start(url, word, 1_000_000)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
    reader.start()
    time.sleep(seconds)
    process.kill()
    process.wait()
    reader.join()
    process.stdout.close()
    return acknowledged(word, lines)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", SHARED)
def test_what_was_acknowledged_survives_kills(kind: str, request: pytest.FixtureRequest) -> None:
    url, found = catalog_url(kind, request), dict[int, str]()
    moments, slower = random.Random(7), 8 if kind == "at" else 1  # to log in takes long
    for number in range(30):
        found |= killed(url, f"k{number}", slower * moments.uniform(0, 0.4))
        there = check(url, found) if found else {}
    assert len(found) > 100 / slower and len(there) <= len(found) + 30, (
        "at most one put of each process was not acknowledged"
    )
