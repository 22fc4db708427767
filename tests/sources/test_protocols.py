"""The contract of `Source` and `Sink`, tested for all classes. Each class has its own module for the rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardex.errors import NotFoundError, PathError, TruncatedShardError
from shardex.sources import ByteRange, LocalSource, Place, check_path, open_source
from shardex.sources.memory import MemorySource
from shardex.sources.object_store import ObjectSource
from shardex.testing import SourceSuite
from shardex.testing.source_suite import OUTSIDE
from tests.waiting import becomes_true

Maker = Callable[[], Place]

ranges = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 30_000)), max_size=12)


@pytest.fixture(params=["local", "memory", "objects"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    """Return a function that makes empty places."""
    count = iter(range(1_000_000))
    if request.param == "objects":
        bucket = request.getfixturevalue("bucket")
        return lambda: ObjectSource(f"{bucket}/{next(count)}")
    if request.param == "memory":
        return lambda: open_source(f"memory://{next(count)}{tmp_path}")
    return lambda: LocalSource(tmp_path / "root" / str(next(count)))


@pytest.fixture
def place(make: Maker) -> Place:
    """An empty place."""
    return make()


def test_defaults_of_the_contract(place: Place) -> None:
    place.put("a", b"abc")
    place.put("b/c", b"")
    assert place.is_remote != isinstance(place, LocalSource)
    assert place.stats(["b/c", "a"]) == [place.stat("b/c"), place.stat("a")]
    assert [bytes(part) for part in place.read_scattered("a", [ByteRange(2, 1), ByteRange(0, 2)])] == [b"c", b"ab"]
    place.fetch("a", [ByteRange(0, 3)])
    table = place.buffer_table(["b/c", "a"])
    assert table.slice(1, 1, 9).tobytes() == b"bc" and table.name(1) == f"{place.url}/a"
    with place.local_file("a") as path:
        assert path is None if place.is_remote else Path(path or "").read_bytes() == b"abc"


def test_for_each_keeps_the_order_and_raises_errors(place: Place) -> None:
    assert place.for_each(lambda k: k * 2, range(100)) == list(range(0, 200, 2))
    with pytest.raises(ZeroDivisionError):
        place.for_each(lambda k: 1 // k, [1, 0])


def test_for_each_runs_concurrently_on_remote_places() -> None:
    gate = threading.Barrier(8, timeout=60)
    assert len(MemorySource().for_each(lambda _: gate.wait(), range(8))) == 8


@given(ranges, st.integers(0, 90_000))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_read_returns_slices(make: Maker, wanted: list[tuple[int, int]], size: int) -> None:
    place, data = make(), np.random.default_rng(size).bytes(size)
    place.put("a", data)
    inner = [ByteRange(begin % (size + 1), min(length, size - begin % (size + 1))) for begin, length in wanted]
    assert [bytes(view) for view in place.read("a", inner)] == [data[one.begin : one.end] for one in inner]
    past = ByteRange(size // 2, size)
    if past.end > size:
        with pytest.raises(TruncatedShardError, match=f"got a file of {size} bytes"):
            place.read("a", [*inner, past])


def test_put_and_copy_set_the_time(place: Place) -> None:
    place.put("a", b"content")
    before = place.stat("a")
    assert before.modified > 0
    copies = (f"folder/{number}" for number in count())

    def copy_and_compare() -> bool:
        place.copy("a", copy := next(copies))
        return place.stat(copy).modified > before.modified

    assert becomes_true(copy_and_compare)  # some storages have times in seconds
    place.remove("a")
    assert bytes(place.load("folder/0")) == b"content"
    with pytest.raises(NotFoundError, match="missing"):
        place.copy("missing", "folder/x")


def test_root_and_names(place: Place) -> None:
    assert place.is_empty() and place.names() == set()
    assert place.root_kind() == ("folder" if place.is_remote else "missing")
    place.make_root()
    assert place.is_empty() and place.root_kind() == "folder"
    for path in ("a", "b/ca", "b/cb/d", "b/e"):
        place.put(path, b"")
    assert not place.is_empty()
    assert (place.names(), place.names("b/"), place.names("b/c")) == ({"a", "b"}, {"ca", "cb", "e"}, {"ca", "cb"})
    assert place.names("missing/") == place.names("z") == set()


def test_remove_folder_keeps_an_order(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("job/done/1", "job/parts/2/x", "job/commit", "job/other", "job2/x", "x"):
        place.put(path, b"")
    removed, remove_all = list[list[str]](), place.remove_all

    def remove(paths: Iterable[str]) -> None:
        removed.append(list(paths))
        remove_all(removed[-1])

    monkeypatch.setattr(place, "remove_all", remove)
    place.remove_folder("job", first=("done", "parts"), last="commit")
    assert place.paths() == ["job2/x", "x"]
    if place.is_remote:
        assert removed == [["job/done/1"], ["job/parts/2/x"], ["job/other"], ["job/commit"]]
    place.remove_folder("job")


def test_kept_bytes_of_a_mapped_file(place: Place) -> None:
    place.put("a", b"content")
    view = place.map("a")[2:4]
    assert bytes(place.keep(view)) == b"nt"
    assert (place.keep(view) is view) != place.is_remote
    draft = place.draft()
    assert draft.is_elsewhere == place.is_remote and (place.concurrent_calls > 1) == place.is_remote
    draft.discard()


@pytest.mark.parametrize("path", ["a", "a/b", ".hidden", "...", "a..b", "12:30.tar", "a/c:d", "é", " "])
def test_check_path_accepts(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize("path", OUTSIDE)
def test_check_path_refuses(path: str) -> None:
    with pytest.raises(PathError):
        check_path(path)


class TestPlaces(SourceSuite):
    @pytest.fixture
    def place(self, make: Maker) -> Place:
        return make()
