"""What installed packages add by entry points: sources and executors; `formats/test_signatures.py` has formats."""

from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import AddressError, ArgumentError, PluginError
from shardex.sources import open_source
from shardex.workers import is_local, start_executor
from shardex.workers.executors import GROUP
from tests.installed_packages import Install, install

__all__ = ["install"]

SOURCE = """
from shardex.errors import AddressError
from shardex.sources.memory import MemorySource
places = {}
def open_place(url, trusted):
    if not trusted:
        raise AddressError(f"expected a URL of the user, got {url}")
    return places.setdefault(url, MemorySource(url=url))
"""
EXECUTOR = """
from shardex.workers import InlineExecutor
started = []
def start(job, name, workers, initializer):
    started.append((name, workers))
    return InlineExecutor(job)
"""


def test_a_scheme_of_another_package(install: Install) -> None:
    install("shardex-lab", {"shardex.sources:lab": "lab_source:open_place"}, {"lab_source": SOURCE})
    sx.write("lab://a/b", [{"x": 1}, {"x": 2}])
    assert [sample.x for sample in sx.open("lab://a/b/")] == [1, 2]
    with pytest.raises(AddressError, match="expected a URL of the user"):
        open_source("lab://a/b", trusted=False)
    with pytest.raises(
        AddressError, match=r"expected an address that begins with memory://, .*, lab://, got 'lap://x'"
    ):
        open_source("lap://x")


def test_an_executor_of_another_package(tmp_path: Path, install: Install) -> None:
    install("shardex-queue", {"shardex.executors:queue": "queues:start"}, {"queues": EXECUTOR})
    ds = sx.write(tmp_path / "d", sx.open([{"x": 1}, {"x": 2}]), transform=dict, executor="queue:gpu", workers=3)
    assert [sample.x for sample in ds] == [1, 2]
    import queues  # type: ignore[import-not-found]

    assert queues.started == [("queue:gpu", 3)] and not is_local("queue")
    with pytest.raises(ArgumentError, match=r"one of .*'ray', 'queue', .* got 'queu': did you mean 'queue'"):
        start_executor(str, executor="queu")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start = 5", "expected queues:start to be a function, got int"),
        ("def start(*arguments): return 5", "expected a Executor from queues:start, got int"),
        ("import nowhere", "expected queues:start, its import failed: ModuleNotFoundError"),
    ],
)
def test_an_executor_that_cannot_be_used(install: Install, text: str, message: str) -> None:
    install("shardex-queue", {"shardex.executors:queue": "queues:start"}, {"queues": text})
    with pytest.raises(PluginError, match=f"queue, which the package shardex-queue adds to {GROUP}: {message}"):
        start_executor(str, executor="queue")
    assert start_executor(str, executor="inline").width == 1


def test_a_name_of_shardex(install: Install) -> None:
    install("shardex-lab", {"shardex.sources:s3": "lab_source:open_place"}, {"lab_source": SOURCE})
    with pytest.raises(PluginError, match=r"s3, which the package shardex-lab .* expected another name"):
        open_source("lab://x")
