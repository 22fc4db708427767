"""Fixtures: folders in a file system in memory where possible, which is faster than a disk and fails alike."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.faults.machine import memory, mount_apart, why_no_memory
from tests.faults.processes import Jobs
from tests.faults.states import Models


@pytest.fixture(scope="session")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory that is removed with this process, or one on the disk."""
    folder = tmp_path_factory.mktemp("rooms")
    with nullcontext(folder) if why_no_memory() else memory(folder, "1g") as there:
        yield there


@pytest.fixture
def room(rooms: Path) -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory(dir=rooms) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """A server that forks processes."""
    if not why_no_memory():
        mount_apart()
    with Jobs() as started:
        yield started


@pytest.fixture(scope="session")
def models(rooms: Path) -> Models:
    """The dataset that edits begin with, and its expected content after each edit."""
    (rooms / "models").mkdir()
    return Models(rooms / "models")
