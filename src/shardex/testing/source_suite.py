"""`SourceSuite`: a place reads and writes files as all places do."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from shardex.dataset import open as open_dataset
from shardex.dataset import write
from shardex.errors import NotFoundError, PathError, TruncatedShardError
from shardex.sources import ByteRange, Place

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
]


class SourceSuite:
    """Tests that a place stores and returns files as all places do. Override the fixture `place`.

    >>> import shardex.sources
    >>> class TestMine(SourceSuite):
    ...     @pytest.fixture
    ...     def place(self, tmp_path):
    ...         return shardex.sources.open_source(f"memory://{tmp_path}")
    """

    @pytest.fixture
    def place(self) -> Place:
        """An empty place."""
        raise NotImplementedError("expected a fixture `place` that returns a Place, got none")

    def test_datasets_are_written_and_read(self, place: Place) -> None:
        samples = [{"x": k, "s": f"né {k}"} for k in range(10)]
        write(f"{place.url}/d", samples, shard_rows=4)
        write(f"{place.url}/d", samples, mode="append")
        write(f"{place.url}/lines", samples, format="jsonl", progress=False)
        for name, count in (("d", 2), ("lines", 1)):
            ds = open_dataset(f"{place.url}/{name}")
            assert [sample.x for sample in pickle.loads(pickle.dumps(ds))] == [*range(10)] * count

    def test_a_range_past_the_end_raises_before_memory_is_allocated(self, place: Place) -> None:
        place.put("a", b"0123456789")
        for one in (ByteRange(0, 1 << 60), ByteRange(1 << 62, 1), ByteRange(9, 2), ByteRange(11, 0)):
            with pytest.raises(TruncatedShardError, match="a: expected bytes"):
                place.read("a", [one])
        assert bytes(place.read("a", [ByteRange(10, 0)])[0]) == b""

    def test_map_returns_the_whole_file_read_only(self, place: Place) -> None:
        for data in (b"", b"x", bytes(range(256)) * 100):
            place.put("a", data)
            view = place.map("a")
            assert bytes(view) == data
            assert view.readonly
            assert (view.format, view.ndim, view.nbytes) == ("B", 1, len(data))

    def test_a_mapping_keeps_the_old_content(self, place: Place) -> None:
        place.put("a", b"old")
        view = place.map("a")
        place.put("a", b"something new")
        assert bytes(view) == b"old"
        place.remove("a")
        assert bytes(view) == b"old"

    def test_stat_changes_with_the_content(self, place: Place) -> None:
        place.put("a", b"one")
        before = place.stat("a")
        assert before.size == 3
        assert place.stat("a") == before
        place.put("a", b"two!")
        assert place.stat("a").size == 4
        assert place.stat("a").tag != before.tag

    def test_missing_files_raise(self, place: Place) -> None:
        place.put("there", b"")
        for path in ("missing", "folder/missing", "there/below"):
            for ask in (place.stat, place.map, place.remove, lambda path: place.read(path, [])):
                with pytest.raises(NotFoundError, match=path) as caught:
                    ask(path)
                assert isinstance(caught.value, FileNotFoundError)

    @pytest.mark.parametrize("path", OUTSIDE)
    def test_paths_outside_the_root_raise(self, place: Place, path: str) -> None:
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

    def test_paths_returns_all_files_sorted(self, place: Place) -> None:
        assert place.paths() == []
        names = ["b", "a/b/c", "a/b.x", "a-1", "A", "é", "with space", "12:30.tar", "_x/.y"]
        for name in names:
            place.put(name, b"")
        assert place.paths() == sorted(names)
        assert place.paths("a/") == ["a/b.x", "a/b/c"]
        assert place.paths("a") == ["a-1", "a/b.x", "a/b/c"]
        assert place.paths("nothing") == []

    @pytest.mark.parametrize(
        "data", [b"bytes", bytearray(b"array"), memoryview(b"view"), np.arange(5, dtype="<i4"), b""]
    )
    def test_put_takes_any_buffer(self, place: Place, data: bytes) -> None:
        place.put("a", data)
        assert place.put_if_absent("b", data)
        assert bytes(place.map("a")) == bytes(place.map("b")) == bytes(data)

    @pytest.mark.parametrize("data", [b"", b"x", b"a longer one"])
    def test_put_if_absent_succeeds_once(self, place: Place, data: bytes) -> None:
        assert place.put_if_absent("a", data)
        assert not place.put_if_absent("a", data)
        assert not place.put_if_absent("a", b"other")
        assert bytes(place.map("a")) == data
        place.remove("a")
        assert place.put_if_absent("a", b"other")

    def test_put_if_absent_by_threads_has_one_winner(self, place: Place) -> None:
        names = [f"n/{k}" for k in range(20)]

        def work(number: int) -> list[bool]:
            return [place.put_if_absent(name, bytes([number])) for name in names]

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(8)))
        for k, name in enumerate(names):
            (winner,) = [number for number in range(8) if results[number][k]]
            assert bytes(place.map(name)) == bytes([winner])

    def test_a_draft_is_visible_after_publish(self, place: Place) -> None:
        place.put("a", b"old")
        draft = place.draft()
        for piece in (b"new ", b"content" * 5000):
            draft.file.write(piece)
        assert bytes(place.map("a")) == b"old"
        draft.publish("a")
        assert bytes(place.map("a")) == b"new " + b"content" * 5000
        draft.discard()
        assert place.paths() == ["a"]

    def test_a_draft_checks_its_size(self, place: Place) -> None:
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

    def test_a_discarded_draft_leaves_nothing(self, place: Place) -> None:
        draft = place.draft()
        draft.file.write(b"x")
        draft.discard()
        draft.discard()
        assert place.paths() == []

    def test_a_place_can_be_pickled(self, place: Place) -> None:
        place.put("a", b"x")
        assert bytes(pickle.loads(pickle.dumps(place)).map("a")) == b"x"
