"""Which files of this folder hold no tests, and where its tests have their folders."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardex.compat.atdata import configure_arrays

collect_ignore = ["real_atdata.py", "real_index.py"]
"""Programs for another Python, with packages that are not installed here."""


@pytest.fixture
def compact_arrays() -> Iterator[None]:
    """Arrays are packed as newer versions of atdata pack them."""
    configure_arrays("compact")
    yield
    configure_arrays("npy")


@pytest.fixture(scope="session")
def tmp_path_factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.TempPathFactory]:
    """The factory of pytest, but outside of /dev/shm: atdata finds splits by names of folders, and `dev` is one."""
    if "dev" not in tmp_path_factory.getbasetemp().parts:
        yield tmp_path_factory
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp", ignore_cleanup_errors=True) as folder:
        elsewhere = copy.copy(tmp_path_factory)
        elsewhere._basetemp = Path(folder).resolve()
        yield elsewhere
