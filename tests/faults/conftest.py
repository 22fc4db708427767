"""A room for datasets, in memory where that can be: what is killed or refused there is so as on a disk, but sooner."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import Jobs
from states import Models


def _room(otherwise: Path) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else otherwise)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """An empty folder."""
    with _room(tmp_path) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """A server that forks processes."""
    with Jobs() as started:
        yield started


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """The datasets that edits begin with, and what they should end with."""
    with _room(tmp_path_factory.getbasetemp()) as folder:
        yield Models(Path(folder))


# These take minutes and want a quiet machine; `make faults` runs them.
collect_ignore_glob = [] if os.environ.get("SHARDEX_FAULTS") else ["test_*.py"]
