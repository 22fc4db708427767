"""The native store behaves the same in a folder and in a remote location: versions, concurrency, damage, adoption."""

from __future__ import annotations

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ChecksumError,
    CommitConflict,
    DuplicateKeyError,
    NotFoundError,
    ShardexError,
    SourceError,
    StaleIndexError,
)
from shardex.native.version_numbers import latest_version, manifest_path
from shardex.sources import Place, place_of
from shardex.sources.memory import MemorySource
from shardex.sources.protocols import TemporaryDraft
from shardex.sources.url import SCHEMES
from tests.formats.cases import WITH_BORDERS, kind
from tests.locations import KINDS, new_location

SCHEMA = {"n": int, "s": str, "v": sx.Array("float32", (None,))}


def sample(k: int) -> dict[str, Any]:
    return {"n": k, "s": f"s{k}", "v": np.full(k % 3, k, np.float32)}


@pytest.fixture(params=KINDS)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A location at which nothing exists."""
    return new_location(request.param, tmp_path)


@pytest.fixture
def place(location: str) -> Place:
    """A dataset of ten samples in three fragments, with a key."""
    sx.write(location, map(sample, range(10)), SCHEMA, shard_rows=4, key="n")
    return place_of(location)


def numbers(place: Place, **options: Any) -> list[int]:
    return [s.n for s in sx.open(place.url, **options)]


# -- versions ---------------------------------------------------------------------------------------------------


def test_create_append_and_overwrite_make_versions(place: Place) -> None:
    with pytest.raises(AlreadyExistsError, match="there already"):
        sx.create(place.url, SCHEMA)
    sx.write(place.url, [sample(10)], mode="append")
    assert numbers(place) == list(range(11))
    sx.write(place.url, [sample(50)], SCHEMA, mode="overwrite")
    assert numbers(place) == [50] and numbers(place, version=2) == list(range(11))
    assert [one.change for one in sx.store.history(place.url)] == [
        "create: 10 samples",
        "append: 1 sample",
        "overwrite: 1 sample",
    ]


def test_keys_find_samples_and_duplicates_raise(place: Place) -> None:
    with sx.edit(place.url) as tx:
        tx.update(3, s="new")
        tx.delete(5)
    ds = sx.open(place.url)
    assert ds.get(3).s == "new" and ds.rows_of([6, 0]).tolist() == [5, 0]
    before = place.paths("_shardex/")
    with pytest.raises(DuplicateKeyError, match="got 6 twice"), sx.edit(place.url) as tx:
        tx.append(sample(6))
    assert place.paths("_shardex/") == before


def test_edit_compact_restore_and_clean(place: Place) -> None:
    for k in range(10, 20):
        with sx.edit(place.url) as tx:
            tx.append(sample(k))
            tx.delete(k - 10)
    assert numbers(place) == list(range(10, 20))
    assert sx.compact(place.url) == 12
    assert sx.store.restore(place.url, 5) == 13
    assert numbers(place) == list(range(4, 14)) and numbers(place, version=12) == list(range(10, 20))
    removed = sx.clean(place.url, grace=0)
    assert len([name for name in removed if name.endswith(".json")]) == 12
    assert numbers(place) == list(range(4, 14)) and sx.verify(place.url) == [] == sx.store.leftovers(place.url)


def test_aborted_writer_makes_no_version(location: str) -> None:
    out = sx.create(location, SCHEMA, shard_rows=2)
    out.extend(map(sample, range(5)))
    out.abort()
    place = place_of(location)
    assert not latest_version(place)
    with pytest.raises(ShardexError):
        sx.open(location)
    assert len(sx.write(location, [sample(0)], SCHEMA)) == 1  # files of the aborted writer do not matter


# -- concurrency ------------------------------------------------------------------------------------------------


def test_concurrent_appends_are_all_kept_in_order(location: str) -> None:
    sx.write(location, [], {"who": int, "turn": int})

    def work(who: int) -> list[int]:
        versions = []
        for turn in range(8):
            with sx.edit(location) as tx:
                tx.append(who=who, turn=turn)
            assert tx.version is not None
            versions.append(tx.version)
        return versions

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(work, range(8)))
    assert sorted(version for some in made for version in some) == list(range(2, 66))
    found = [(s.who, s.turn) for s in sx.open(location)]
    assert sorted(found) == [(who, turn) for who in range(8) for turn in range(8)]
    for who in range(8):
        assert [turn for one, turn in found if one == who] == list(range(8))


def test_one_of_several_concurrent_creates_succeeds(location: str) -> None:
    gate = threading.Barrier(6, timeout=60)

    def work(who: int) -> int | None:
        with sx.create(location, {"who": int}) as out:
            out.append(who=who)
            gate.wait()
        return who

    with ThreadPoolExecutor(6) as pool:
        ends = [pool.submit(work, who) for who in range(6)]
    (winner,) = [end.result() for end in ends if end.exception() is None]
    assert [s.who for s in sx.open(location)] == [winner]
    assert all(isinstance(end.exception(), AlreadyExistsError | type(None)) for end in ends)


def test_conflicting_commit_raises_and_changes_nothing(place: Place) -> None:
    first, second, third = (sx.edit(place.url) for _ in range(3))
    first.update(1, s="first")
    second.update(1, s="second")
    third.update(2, s="third")
    first.commit()
    with pytest.raises(CommitConflict, match=r"yours \(update: 1 sample\) and theirs \(update: 1 sample\) conflict"):
        second.commit()
    third.commit()
    assert [s.s for s in sx.open(place.url)][:4] == ["s0", "first", "third", "s3"]


def test_clean_during_concurrent_edits(location: str) -> None:
    sx.write(location, [], {"n": int})
    over = threading.Event()

    def tidy() -> None:
        while not over.is_set():
            sx.clean(location, keep=3)

    def work(who: int) -> None:
        for turn in range(5):
            with sx.edit(location) as tx:
                tx.append(n=who * 5 + turn)

    with ThreadPoolExecutor(4) as pool:
        cleaner = pool.submit(tidy)
        list(pool.map(work, range(3)))
        over.set()
        cleaner.result()
    assert sorted(s.n for s in sx.open(location)) == list(range(15)) and sx.verify(location) == []


# -- damage -------------------------------------------------------------------------------------------------------


def truncate(place: Place, path: str, size: int) -> None:
    place.put(path, bytes(place.load(path))[:size])


def flip(place: Place, path: str, at: int) -> None:
    data = bytearray(place.load(path))
    data[at] ^= 1
    place.put(path, data)


def test_verify_and_recover_with_a_truncated_file(place: Place, tmp_path: Path) -> None:
    with sx.edit(place.url) as tx:
        tx.update(0, s="newer")
        tx.delete(9)
    (damaged,) = {path.removeprefix(f"{place.url}/") for path in sx.open(place.url).shards([5, 6])}
    truncate(place, damaged, 100)
    (problem,) = sx.verify(place.url, 2)
    assert (problem.file, problem.samples) == (damaged, range(4, 8))
    for target in (tmp_path / "saved", f"{new_location('memory', tmp_path)}-saved"):
        done = sx.recover(place.url, target)
        assert (done.samples, [one.samples for one in done.lost]) == (5, [range(4, 8)])
        assert [s.s for s in sx.open(target)] == ["newer", "s1", "s2", "s3", "s8"]
    with pytest.raises(ArgumentError, match="expected a target outside of the dataset"):
        sx.recover(place.url, f"{place.url}/inside")


def test_flipped_byte_raises_checksum_error(place: Place) -> None:
    damaged = sx.open(place.url).shards([0])[0].removeprefix(f"{place.url}/")
    flip(place, damaged, place.stat(damaged).size // 3)
    with pytest.raises(ChecksumError):
        sx.open(place.url)[0]
    assert [problem.file for problem in sx.verify(place.url)] == [damaged]


def test_recover_without_the_last_manifest_and_without_all_manifests(place: Place, tmp_path: Path) -> None:
    with sx.edit(place.url) as tx:
        tx.append(sample(10))
    flip(place, manifest_path(2), 50)
    done = sx.recover(place.url, tmp_path / "older")
    assert (done.version, done.samples) == (1, 10) and "version 2 is lost" in done.notes[0]
    place.remove(manifest_path(1))
    done = sx.recover(place.url, tmp_path / "any")
    assert (done.version, done.samples) == (None, 11)


# -- other formats --------------------------------------------------------------------------------------------------

OTHERS = [name for name in WITH_BORDERS if name != "arrow"]


@pytest.mark.parametrize("format", OTHERS)
def test_other_formats_in_memory_equal_local_files(tmp_path: Path, format: str) -> None:
    schema, one = kind(format).schema, kind(format).sample(1)
    location = new_location("memory", tmp_path)
    ds = sx.write(location, [one] * 3, schema, format=format)
    here = sx.write(tmp_path / "here", [one] * 3, schema, format=format)
    assert list(ds) == list(here) and list(sx.open(location)) == list(here)
    files = {path: bytes(place_of(location).load(path)) for path in place_of(location).paths()}
    local = {p: (tmp_path / "here" / p).read_bytes() for p in files}
    assert files.keys() == local.keys()
    assert all(files[path] == local[path] for path in files if path != "index.sqlite")  # which has times in it
    for mode in ("create", "append", "overwrite"):
        with pytest.raises(
            (AlreadyExistsError, ArgumentError), match=r"there already|cannot be appended to|not supported"
        ):
            sx.write(location, [one], schema, format=format, mode=mode)
    assert place_of(location).paths() == sorted(files)


@pytest.mark.parametrize("beside", KINDS)
@pytest.mark.parametrize("foreign", KINDS)
def test_adopt_with_local_and_remote_shards(tmp_path: Path, foreign: str, beside: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    theirs, ours = new_location(foreign, tmp_path / "a"), new_location(beside, tmp_path / "b")
    sx.write(theirs, [{"text": f"t{k}"} for k in range(4)], format="jsonl")
    sx.adopt(theirs, ours)
    with sx.edit(ours, trust_paths=True) as tx:
        tx.add_field("words", "int64", range(4))
        tx.delete(1)
    assert [(s.text, s.words) for s in sx.open(ours, trust_paths=True)] == [("t0", 0), ("t2", 2), ("t3", 3)]
    with pytest.raises(AlreadyExistsError):
        sx.adopt(theirs, ours)
    (path,) = [path for path in place_of(theirs).paths() if path.endswith(".jsonl")]
    place_of(theirs).put(path, bytes(place_of(theirs).load(path)).replace(b"t2", b"xx"))
    with pytest.raises(StaleIndexError, match="expected the shards as they were"):
        sx.open(ours, trust_paths=True)[0]


def test_verify_and_recover_damaged_remote_parquet(tmp_path: Path) -> None:
    location = new_location("memory", tmp_path)
    sx.write(location, [{"x": k} for k in range(40)], format="parquet", shard_rows=10)
    place = place_of(location)
    truncate(place, "part-00002.parquet", 100)
    (problem,) = sx.verify(location)
    assert problem.file == "part-00002.parquet"
    done = sx.recover(location, tmp_path / "saved")
    assert done.samples == 30 and [one.file for one in done.lost] == ["part-00002.parquet"]


# -- faulty remote stores ------------------------------------------------------------------------------------------


class Faulty(MemorySource):
    """Files in memory; tests make writes fail."""

    def __init__(self) -> None:
        super().__init__(url="faulty://place")
        self.conditional_put = True
        self.puts_left = 1_000_000
        self.drafts = self.most_drafts = 0

    def put(self, path: str, data: Any) -> None:
        self.puts_left -= 1
        if self.puts_left < 0:
            raise SourceError(errno.EIO, "no more", path)
        super().put(path, data)

    def put_if_absent(self, path: str, data: Any) -> bool:
        if not self.conditional_put:
            raise SourceError(errno.ENOTSUP, "expected a store that refuses to replace, it replaces", self.url)
        return super().put_if_absent(path, data)

    def draft(self) -> TemporaryDraft:
        self.drafts += 1
        self.most_drafts = max(self.drafts, self.most_drafts)
        return CountedDraft(self)


class CountedDraft(TemporaryDraft):
    def __init__(self, place: Faulty) -> None:
        super().__init__(place.put)
        self.source = place

    def publish(self, path: str) -> None:
        super().publish(path)
        self.source.drafts -= 1


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    place = Faulty()
    monkeypatch.setitem(SCHEMES, "faulty", lambda *_: place)
    return place


def test_store_without_conditional_put_is_refused_before_writing(faulty: Faulty) -> None:
    faulty.conditional_put = False
    with pytest.raises(SourceError, match="expected a store that refuses to replace"):
        sx.create(faulty.url, {"x": int})
    assert faulty.paths() == []
    faulty.conditional_put = True
    sx.write(faulty.url, [{"x": 1}])
    before = dict(faulty.files)
    faulty.conditional_put = False
    for change in (sx.edit, lambda url: sx.store.restore(url, 1), lambda url: sx.write(url, [{"x": 2}], mode="append")):
        with pytest.raises(SourceError, match="expected a store that refuses to replace"):
            change(faulty.url)
    assert faulty.files == before


def test_equal_concurrent_appends_are_both_kept(faulty: Faulty) -> None:
    sx.write(faulty.url, [{"x": 1}])
    edits = [sx.edit(faulty.url) for _ in range(3)]
    for tx in edits:
        tx.append(x=2)
    for tx in edits:
        tx.commit()
    assert [s.x for s in sx.open(faulty.url)] == [1, 2, 2, 2]


def test_shards_are_uploaded_while_writing(faulty: Faulty) -> None:
    with sx.create(faulty.url, {"x": int}, shard_rows=10, key="x") as out:
        out.extend({"x": k} for k in range(200))
        assert len(faulty.paths("data/")) == 40
    assert faulty.most_drafts == 1 and len(sx.open(faulty.url)) == 200
    before = len(faulty.paths("data/"))  # with a list of the fragments, and a table of their keys
    with sx.edit(faulty.url) as tx:
        tx.add_field("y", "int64", range(200))
        assert len(faulty.paths("data/")) == before + 20
    assert faulty.most_drafts == 1


def test_failed_upload_removes_uploaded_files(faulty: Faulty) -> None:
    faulty.puts_left = 2
    with pytest.raises(SourceError, match="no more"):
        sx.write(faulty.url, [{"x": k} for k in range(50)], format="jsonl", shard_size=20)
    assert faulty.paths() == []
    faulty.puts_left = 1_000_000
    assert len(sx.write(faulty.url, [{"x": 1}], format="jsonl")) == 1


def test_close_raises_if_another_writer_published_first(faulty: Faulty) -> None:
    out = sx.create(faulty.url, {"x": int}, format="jsonl")
    out.append(x=1)
    sx.write(faulty.url, [{"x": 2}], format="jsonl")
    with pytest.raises(AlreadyExistsError, match="there already"):
        out.close()
    assert [s.x for s in sx.open(faulty.url)] == [2]


def test_tokens_are_visible_after_the_last_upload(faulty: Faulty) -> None:
    seen = []

    def put(path: str, data: Any) -> None:
        MemorySource.put(faulty, path, data)
        seen.append(path)
        with pytest.raises(NotFoundError, match="a writer is still writing here"):
            sx.open(faulty.url)

    faulty.put = put  # type: ignore[method-assign]
    schema, one = kind("tokens").schema, kind("tokens").sample(1)
    assert len(sx.write(faulty.url, [one] * 3, schema, format="tokens")) == 3
    assert seen[-1] == "tokens.json" and faulty.is_remote
