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
CATALOG = """
from shardex.catalog import Backend
kept, tags = {}, {}
class DictCatalog(Backend):
    def __init__(self, url):
        self.url = url
    def head(self, name):
        return next(iter(reversed(self.history(name))), None), len(kept.get(name, []))
    def read(self, name, which=None):
        if which is None:
            return self.head(name)[0]
        which = tags.get((name, which)) if isinstance(which, str) else which
        return next((one for one in self.history(name) if one.number == which), None)
    def history(self, name):
        return [one for one in kept.get(name, []) if one is not None]
    def append(self, name, version, record):
        if len(kept.setdefault(name, [])) != version - 1:
            return False
        kept[name].append(record)
        return True
    def remove(self, name, version):
        kept[name][version - 1] = None
    def names(self, prefix=""):
        return (name for name in sorted(kept) if name.startswith(prefix))
    def tags(self, name):
        return {tag: version for (one, tag), version in tags.items() if one == name}
    def set_tag(self, name, tag, version):
        tags[name, tag] = version
"""


def test_a_catalog_of_another_package(tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("shardex-dict", {"shardex.catalogs:dict": "dicts:DictCatalog"}, {"dicts": CATALOG})
    monkeypatch.setenv("SHARDEX_CATALOG", "dict://lab")
    ds = sx.write(tmp_path / "d", [{"x": 1}], register="@numbers")
    with sx.Catalog() as catalog:
        assert catalog.put("numbers", ds, description="one").version == 2 and not catalog.trusted
        catalog.tag("numbers", "first", 1)
        assert catalog.get("numbers:first").version == 1 and len(sx.open("@numbers", trusted=True)) == 1
        assert [str(one) for one in catalog.list()] == [str(one) for one in catalog.search("one")] == ["numbers@2"]
        assert str(catalog.schemas.put("numbers", ds)) == str(catalog.schemas.get("numbers@1.0.0")) == "numbers@1.0.0"
        catalog.remove("numbers@2")
        assert [str(one) for one in catalog.list("n")] == ["numbers@1"] and [*catalog.search("one")] == []
    with pytest.raises(AddressError, match=r"expected a catalog: .*, dict://, got 'dist://lab'"):
        sx.Catalog("dist://lab")


def test_a_scheme_of_another_package(install: Install) -> None:
    install("shardex-lab", {"shardex.sources:lab": "lab_source:open_place"}, {"lab_source": SOURCE})
    sx.write("lab://a/b", [{"x": 1}, {"x": 2}])
    assert [sample.x for sample in sx.open("lab://a/b/")] == [1, 2]
    with pytest.raises(AddressError, match="expected a URL of the user"):
        open_source("lab://a/b", trusted=False)
    with pytest.raises(
        AddressError, match=r"expected an address that begins with file://, memory://, .*, lab://, got 'lap://x'"
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
