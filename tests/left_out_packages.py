"""Skips tests that need packages which an environment leaves out on purpose.

`SHARDEX_WITHOUT` names these packages as they are imported: ``SHARDEX_WITHOUT="torch ray"``. A test is skipped if it
imports one of them itself, if shardex raises an error of its own for one, or if it has the mark
``@pytest.mark.needs("torch")``, for tests that meet a missing package in another process or as a message. Any other
missing package is a failure, and so is each one where the variable is not set, as in `make test`.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from shardex.errors import ShardexError

__all__ = [
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_runtest_call",
    "pytest_runtest_setup",
]

LEFT_OUT = frozenset(os.environ.get("SHARDEX_WITHOUT", "").split())


def pytest_configure(config: pytest.Config) -> None:
    """Explain the mark."""
    config.addinivalue_line("markers", "needs(*modules): skipped where SHARDEX_WITHOUT names one of these modules")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module of tests that imports a package that is left out."""
    report = yield
    call: pytest.CallInfo[None] | None = getattr(report, "call", None)
    if call is not None and call.excinfo is not None and (name := _left_out(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: needs {name}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test if its mark names a module that is left out, or one of its fixtures needs one."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            if name in LEFT_OUT:
                pytest.skip(f"needs {name}")
    with _skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Skip a test that needs a package that is left out."""
    with _skipping():
        return (yield)


@contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if name := _left_out(error):
            pytest.skip(f"needs {name}")
        raise


def _left_out(error: BaseException | None) -> str | None:
    """Return the package that is left out and that an error is about, if any."""
    told, seen = False, set[int]()
    while error is not None and id(error) not in seen:  # contexts may form a circle
        seen.add(id(error))
        told = told or (isinstance(error, ShardexError) and isinstance(error, ImportError))
        if isinstance(error, ModuleNotFoundError) and (told or _of_a_test(error)):
            name = str(error.name).partition(".")[0]
            return name if name in LEFT_OUT else None
        if (raised := getattr(error, "exc_info", None)) is not None:  # by an example in a docstring
            error = raised[1]
        else:
            error = error.__cause__ or error.__context__
    return None


def _of_a_test(error: ModuleNotFoundError) -> bool:
    """Return whether a test, a guide or an example imported the module, and not a library on its own account."""
    *_, last = traceback.extract_tb(error.__traceback__)
    file = last.filename
    return file.startswith("<doctest ") or file.endswith(".md") or f"{os.sep}tests{os.sep}" in file
