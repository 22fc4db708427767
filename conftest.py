"""Settings for all tests and doctests."""

import gc
import importlib
import itertools
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["tests.servers", "tests.ray", "tests.left_out_packages"]

# A deadline would fail tests on a busy machine.
settings.register_profile("default", settings.get_profile("default"), deadline=None)
settings.load_profile("default")
# The Makefile selects this profile: the same examples in every run, and fewer than the default of 100.
settings.register_profile("ci", settings.get_profile("ci"), max_examples=25, deadline=None)

# Hundreds of tests start Python processes. Without bytecode files each of these would compile all modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Commands in the background of a shell ignore Ctrl-C, and so would all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Share the compilation of test modules among the processes of pytest-xdist.

    All of them import all modules in the same order, so after a change or in a new clone each would rewrite the asserts
    of all. Now each begins with a share, and finds the bytecode of the others' shares when it collects.
    """
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if not number or session.config.args != session.config.getini("testpaths"):
        return
    modules = sorted(Path(session.config.rootpath, "tests").rglob("test_*.py"))
    for path in modules[int(number) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with suppress(Exception, pytest.skip.Exception):  # collecting the module reports it
            importlib.import_module(".".join(path.relative_to(session.config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    """Take all modules and collected tests out of the garbage collector: a full collection takes half a second else.

    Tests that need one call `gc.collect`, and so does whatever ends a file system or a process.
    """
    gc.collect()
    gc.freeze()


_tests = itertools.count()


@pytest.fixture(autouse=True)
def _temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make temporary folders where pytest removes them, also those of examples in docstrings.

    Each test has a default catalog of its own, and no catalogs that the user has mounted.
    """
    base = tmp_path_factory.getbasetemp()
    monkeypatch.setattr(tempfile, "tempdir", str(base))
    monkeypatch.setenv("SHARDEX_CATALOG", str(base / "catalogs" / f"{next(_tests)}.db"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    monkeypatch.delenv("SHARDEX_CATALOGS", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let tests, and the processes that they start, cache remote files where pytest removes them."""
    os.environ["SHARDEX_CACHE"] = str(tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """An empty folder on a disk: files in memory, where `make test` has its temporary folders, never leave it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp" if os.path.isdir("/var/tmp") else None) as folder:
        yield Path(folder)
