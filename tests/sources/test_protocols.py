"""The contract of `Source` and `Sink`, tested for all classes. Each class has its own module for the rest."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardex.errors import NotFoundError, PathError, TruncatedShardError
from shardex.sources import ByteRange, LocalSource, Place, check_path
from shardex.sources.memory import MemorySource
from shardex.sources.object_store import ObjectSource
from tests.waiting import becomes_true

Maker = Callable[[], Place]

OUTSIDE = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../x",
    "a/../b",
    "a/..",
    "a//b",
    "a/",
    "./a",
    ".",
    "a/.",
    "a\\b",
    "a\0",
    "c:",
    "C:/x",
]
ranges = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 30_000)), max_size=12)


@pytest.fixture(params=["local", "memory", "objects"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    """Return a function that makes empty places."""
    count = iter(range(1_000_000))
    if request.param == "objects":
        bucket = request.getfixturevalue("bucket")
        return lambda: ObjectSource(f"{bucket}/{next(count)}")
    return MemorySource if request.param == "memory" else lambda: LocalSource(tmp_path / "root" / str(next(count)))


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


def test_a_range_past_the_end_raises_before_memory_is_allocated(place: Place) -> None:
    place.put("a", b"0123456789")
    for one in (ByteRange(0, 1 << 60), ByteRange(1 << 62, 1), ByteRange(9, 2), ByteRange(11, 0)):
        with pytest.raises(TruncatedShardError, match="a: expected bytes"):
            place.read("a", [one])
    assert bytes(place.read("a", [ByteRange(10, 0)])[0]) == b""


def test_map_returns_the_whole_file_read_only(place: Place) -> None:
    for data in (b"", b"x", bytes(range(256)) * 100):
        place.put("a", data)
        view = place.map("a")
        assert bytes(view) == data
        assert view.readonly
        assert (view.format, view.ndim, view.nbytes) == ("B", 1, len(data))


def test_a_mapping_keeps_the_old_content(place: Place) -> None:
    place.put("a", b"old")
    view = place.map("a")
    place.put("a", b"something new")
    assert bytes(view) == b"old"
    place.remove("a")
    assert bytes(view) == b"old"


def test_stat_changes_with_the_content(place: Place) -> None:
    place.put("a", b"one")
    before = place.stat("a")
    assert before.size == 3
    assert place.stat("a") == before
    place.put("a", b"two!")
    assert place.stat("a").size == 4
    assert place.stat("a").tag != before.tag


def test_missing_files_raise(place: Place) -> None:
    place.put("there", b"")
    for path in ("missing", "folder/missing", "there/below"):
        for ask in (place.stat, place.map, place.remove, lambda path: place.read(path, [])):
            with pytest.raises(NotFoundError, match=path) as caught:
                ask(path)
            assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_outside_the_root_raise(place: Place, path: str) -> None:
    draft = place.draft()
    for ask in (
        place.stat,
        place.map,
        place.remove,
        lambda path: place.read(path, []),
        lambda path: place.put(path, b""),
        lambda path: place.put_if_absent(path, b""),
        draft.publish,
    ):
        with pytest.raises(PathError, match="expected a relative path inside"):
            ask(path)
    draft.discard()
    assert place.paths() == []


def test_paths_returns_all_files_sorted(place: Place) -> None:
    assert place.paths() == []
    names = ["b", "a/b/c", "a/b.x", "a-1", "A", "é", "with space", "12:30.tar", "_x/.y"]
    for name in names:
        place.put(name, b"")
    assert place.paths() == sorted(names)
    assert place.paths("a/") == ["a/b.x", "a/b/c"]
    assert place.paths("a") == ["a-1", "a/b.x", "a/b/c"]
    assert place.paths("nothing") == []


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"array"), memoryview(b"view"), np.arange(5, dtype="<i4"), b""])
def test_put_takes_any_buffer(place: Place, data: bytes) -> None:
    place.put("a", data)
    assert place.put_if_absent("b", data)
    assert bytes(place.map("a")) == bytes(place.map("b")) == bytes(data)


@pytest.mark.parametrize("data", [b"", b"x", b"a longer one"])
def test_put_if_absent_succeeds_once(place: Place, data: bytes) -> None:
    assert place.put_if_absent("a", data)
    assert not place.put_if_absent("a", data)
    assert not place.put_if_absent("a", b"other")
    assert bytes(place.map("a")) == data
    place.remove("a")
    assert place.put_if_absent("a", b"other")


def test_put_if_absent_by_threads_has_one_winner(place: Place) -> None:
    names = [f"n/{k}" for k in range(20)]

    def work(number: int) -> list[bool]:
        return [place.put_if_absent(name, bytes([number])) for name in names]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, range(8)))
    for k, name in enumerate(names):
        (winner,) = [number for number in range(8) if results[number][k]]
        assert bytes(place.map(name)) == bytes([winner])


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


def test_a_draft_is_visible_after_publish(place: Place) -> None:
    place.put("a", b"old")
    draft = place.draft()
    for piece in (b"new ", b"content" * 5000):
        draft.file.write(piece)
    assert bytes(place.map("a")) == b"old"
    draft.publish("a")
    assert bytes(place.map("a")) == b"new " + b"content" * 5000
    draft.discard()
    assert place.paths() == ["a"]


def test_a_draft_checks_its_size(place: Place) -> None:
    draft = place.draft()
    draft.file.write(b"abc")
    draft.close(3)
    draft.publish("a")
    assert bytes(place.map("a")) == b"abc"
    short = place.draft()
    short.file.write(b"abc")
    with pytest.raises(OSError, match=r"expected 4 bytes .*, got 3"):
        short.close(4)
    short.discard()
    assert place.paths() == ["a"]


def test_a_discarded_draft_leaves_nothing(place: Place) -> None:
    draft = place.draft()
    draft.file.write(b"x")
    draft.discard()
    draft.discard()
    assert place.paths() == []


def test_a_place_can_be_pickled(place: Place) -> None:
    place.put("a", b"x")
    assert bytes(pickle.loads(pickle.dumps(place)).map("a")) == b"x"


@pytest.mark.parametrize("path", ["a", "a/b", ".hidden", "...", "a..b", "12:30.tar", "a/c:d", "é", " "])
def test_check_path_accepts(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize("path", OUTSIDE)
def test_check_path_refuses(path: str) -> None:
    with pytest.raises(PathError):
        check_path(path)
