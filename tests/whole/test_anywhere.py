"""The store is the same in a folder and at an address: created, edited by many at once, checked, saved and adopted."""

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
    ShardexError,
    SourceError,
    StaleIndexError,
    UnknownFormatError,
)
from shardex.sources import Place, place_of
from shardex.sources.memory import MemoryDraft, MemorySource
from shardex.sources.url import SCHEMES
from shardex.store.manifest import latest_version, manifest_path
from tests.addresses import KINDS, new_address

SCHEMA = {"n": int, "s": str, "v": sx.Array("float32", (None,))}


def sample(k: int) -> dict[str, Any]:
    return {"n": k, "s": f"s{k}", "v": np.full(k % 3, k, np.float32)}


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where there is nothing yet."""
    return new_address(request.param, tmp_path)


@pytest.fixture
def place(address: str) -> Place:
    """A dataset of ten samples in three fragments, with a key."""
    sx.write(address, map(sample, range(10)), SCHEMA, shard_rows=4, key="n")
    return place_of(address)


def numbers(place: Place, **options: Any) -> list[int]:
    return [s.n for s in sx.open(place.url, **options)]


# -- versions ---------------------------------------------------------------------------------------------------


def test_create_append_overwrite(place: Place) -> None:
    with pytest.raises(AlreadyExistsError, match="something is there already"):
        sx.create(place.url, SCHEMA)
    sx.write(place.url, [sample(10)], mode="append")
    assert numbers(place) == list(range(11))
    sx.write(place.url, [sample(50)], SCHEMA, mode="overwrite")
    assert numbers(place) == [50] and numbers(place, version=2) == list(range(11))
    assert [one.change for one in sx.history(place.url)] == [
        "create: 10 samples",
        "append: 1 sample",
        "overwrite: 1 sample",
    ]


def test_keys(place: Place) -> None:
    with sx.edit(place.url) as tx:
        tx.update(3, s="new")
        tx.delete(5)
    ds = sx.open(place.url)
    assert ds.get(3).s == "new" and ds.rows_of([6, 0]).tolist() == [5, 0]
    before = place.paths("_shardex/")
    with pytest.raises(DuplicateKeyError, match="got 6 twice"), sx.edit(place.url) as tx:
        tx.append(sample(6))
    assert place.paths("_shardex/") == before


def test_a_life_of_edits(place: Place) -> None:
    for k in range(10, 20):
        with sx.edit(place.url) as tx:
            tx.append(sample(k))
            tx.delete(k - 10)
    assert numbers(place) == list(range(10, 20))
    assert sx.compact(place.url) == 12
    assert sx.restore(place.url, 5) == 13
    assert numbers(place) == list(range(4, 14)) and numbers(place, version=12) == list(range(10, 20))
    removed = sx.clean(place.url, grace=0)
    assert len([name for name in removed if name.endswith(".json")]) == 12
    assert numbers(place) == list(range(4, 14)) and sx.verify(place.url) == [] == sx.leftovers(place.url)


def test_a_writer_that_gives_up_makes_no_version(address: str) -> None:
    out = sx.create(address, SCHEMA, shard_rows=2)
    out.extend(map(sample, range(5)))
    out.abort()
    place = place_of(address)
    assert not latest_version(place)
    with pytest.raises(ShardexError):
        sx.open(address)
    assert len(sx.write(address, [sample(0)], SCHEMA)) == 1  # what it left is not in the way


# -- many at once -----------------------------------------------------------------------------------------------


def test_threads_that_append_lose_nothing(address: str) -> None:
    sx.write(address, [], {"who": int, "turn": int})

    def work(who: int) -> list[int]:
        versions = []
        for turn in range(20):
            with sx.edit(address) as tx:
                tx.append(who=who, turn=turn)
            assert tx.version is not None
            versions.append(tx.version)
        return versions

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(work, range(8)))
    assert sorted(version for some in made for version in some) == list(range(2, 162))
    found = [(s.who, s.turn) for s in sx.open(address)]
    assert sorted(found) == [(who, turn) for who in range(8) for turn in range(20)]
    for who in range(8):
        assert [turn for one, turn in found if one == who] == list(range(20))


def test_threads_that_create_have_one_winner(address: str) -> None:
    gate = threading.Barrier(6)

    def work(who: int) -> int | None:
        with sx.create(address, {"who": int}) as out:
            out.append(who=who)
            gate.wait()
        return who

    with ThreadPoolExecutor(6) as pool:
        ends = [pool.submit(work, who) for who in range(6)]
    (winner,) = [end.result() for end in ends if end.exception() is None]
    assert [s.who for s in sx.open(address)] == [winner]
    assert all(isinstance(end.exception(), AlreadyExistsError | type(None)) for end in ends)


def test_conflicts_name_both_and_change_nothing(place: Place) -> None:
    first, second, third = (sx.edit(place.url) for _ in range(3))
    first.update(1, s="first")
    second.update(1, s="second")
    third.update(2, s="third")
    first.commit()
    with pytest.raises(CommitConflict, match=r"yours \(update: 1 sample\) and theirs \(update: 1 sample\) conflict"):
        second.commit()
    third.commit()
    assert [s.s for s in sx.open(place.url)][:4] == ["s0", "first", "third", "s3"]


def test_clean_beside_threads_that_write(address: str) -> None:
    sx.write(address, [], {"n": int})
    over = threading.Event()

    def tidy() -> None:
        while not over.is_set():
            sx.clean(address, keep=3)

    def work(who: int) -> None:
        for turn in range(10):
            with sx.edit(address) as tx:
                tx.append(n=who * 10 + turn)

    with ThreadPoolExecutor(4) as pool:
        cleaner = pool.submit(tidy)
        list(pool.map(work, range(3)))
        over.set()
        cleaner.result()
    assert sorted(s.n for s in sx.open(address)) == list(range(30)) and sx.verify(address) == []


# -- damage -------------------------------------------------------------------------------------------------------


def cut(place: Place, path: str, size: int) -> None:
    place.put(path, bytes(place.load(path))[:size])


def flip(place: Place, path: str, at: int) -> None:
    data = bytearray(place.load(path))
    data[at] ^= 1
    place.put(path, data)


def test_verify_and_recover_a_cut_file(place: Place, tmp_path: Path) -> None:
    with sx.edit(place.url) as tx:
        tx.update(0, s="newer")
        tx.delete(9)
    (damaged,) = {path.removeprefix(f"{place.url}/") for path in sx.open(place.url).shards([5, 6])}
    cut(place, damaged, 100)
    (problem,) = sx.verify(place.url, 2)
    assert (problem.file, problem.samples) == (damaged, range(4, 8))
    for target in (tmp_path / "saved", f"{new_address('memory', tmp_path)}-saved"):
        done = sx.recover(place.url, target)
        assert (done.samples, [one.samples for one in done.lost]) == (5, [range(4, 8)])
        assert [s.s for s in sx.open(target)] == ["newer", "s1", "s2", "s3", "s8"]
    with pytest.raises(ArgumentError, match="expected a target outside of the dataset"):
        sx.recover(place.url, f"{place.url}/inside")


def test_a_flipped_byte_is_found(place: Place) -> None:
    damaged = sx.open(place.url).shards([0])[0].removeprefix(f"{place.url}/")
    flip(place, damaged, place.stat(damaged).size // 3)
    with pytest.raises(ChecksumError):
        sx.open(place.url)[0]
    assert [problem.file for problem in sx.verify(place.url)] == [damaged]


def test_recover_without_the_last_manifest_and_without_any(place: Place, tmp_path: Path) -> None:
    with sx.edit(place.url) as tx:
        tx.append(sample(10))
    flip(place, manifest_path(2), 50)
    done = sx.recover(place.url, tmp_path / "older")
    assert (done.version, done.samples) == (1, 10) and "version 2 is lost" in done.notes[0]
    place.remove(manifest_path(1))
    done = sx.recover(place.url, tmp_path / "any")
    assert (done.version, done.samples) == (None, 11)


# -- shards of others -----------------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[Any, dict[str, Any]]] = {
    "jsonl": ({"x": int}, {"x": 1}),
    "parquet": ({"x": int}, {"x": 1}),
    "tar": ({"x": sx.Array("int64", (1,))}, {"x": np.array([1])}),
    "bins": ({"data": bytes}, {"data": b"1"}),
    "tokens": ({"tokens": sx.Array("uint16", (2,))}, {"tokens": np.array([1, 2], np.uint16)}),
}


@pytest.mark.parametrize("format", FORMATS)
def test_other_formats_at_an_address(tmp_path: Path, format: str) -> None:
    schema, one = FORMATS[format]
    address = new_address("memory", tmp_path)
    ds = sx.write(address, [one] * 3, schema, format=format)
    here = sx.write(tmp_path / "here", [one] * 3, schema, format=format)
    assert list(ds) == list(here) and list(sx.open(address)) == list(here)
    files = {path: bytes(place_of(address).load(path)) for path in place_of(address).paths()}
    assert files == {p: (tmp_path / "here" / p).read_bytes() for p in files}
    for mode in ("create", "append", "overwrite"):
        with pytest.raises(
            (AlreadyExistsError, ArgumentError), match=r"something is there already|cannot be appended to"
        ):
            sx.write(address, [one], schema, format=format, mode=mode)
    assert place_of(address).paths() == sorted(files)


@pytest.mark.parametrize("beside", KINDS)
@pytest.mark.parametrize("foreign", KINDS)
def test_fields_beside_shards_wherever_either_lies(tmp_path: Path, foreign: str, beside: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    theirs, ours = new_address(foreign, tmp_path / "a"), new_address(beside, tmp_path / "b")
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


def test_damaged_shards_at_an_address_are_brought_here_to_be_looked_at(tmp_path: Path) -> None:
    address = new_address("memory", tmp_path)
    sx.write(address, [{"x": k} for k in range(40)], format="parquet", shard_rows=10)
    place = place_of(address)
    cut(place, "part-00002.parquet", 100)
    (problem,) = sx.verify(address)
    assert problem.file == "part-00002.parquet"
    done = sx.recover(address, tmp_path / "saved")
    assert done.samples == 30 and [one.file for one in done.lost] == ["part-00002.parquet"]


# -- places with a fault ------------------------------------------------------------------------------------------


class Faulty(MemorySource):
    """Files in memory, for the faults that the tests below give it."""

    def __init__(self) -> None:
        super().__init__(url="faulty://place")
        self.trusted = True
        self.puts_left = 1_000_000
        self.drafts = self.most_drafts = 0

    def put(self, path: str, data: Any) -> None:
        self.puts_left -= 1
        if self.puts_left < 0:
            raise SourceError(errno.EIO, "no more", path)
        super().put(path, data)

    def put_if_absent(self, path: str, data: Any) -> bool:
        if not self.trusted:
            raise SourceError(errno.ENOTSUP, "expected a store that refuses to replace, it replaces", self.url)
        return super().put_if_absent(path, data)

    def draft(self) -> MemoryDraft:
        self.drafts += 1
        self.most_drafts = max(self.drafts, self.most_drafts)
        return CountedDraft(self)


class CountedDraft(MemoryDraft):
    def __init__(self, place: Faulty) -> None:
        super().__init__(place)
        self.source = place

    def publish(self, path: str) -> None:
        super().publish(path)
        self.source.drafts -= 1


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Faulty:
    place = Faulty()
    monkeypatch.setitem(SCHEMES, "faulty", lambda *_: place)
    return place


def test_a_place_that_replaces_what_is_there_is_refused_before_anything_is_written(faulty: Faulty) -> None:
    faulty.trusted = False
    with pytest.raises(SourceError, match="expected a store that refuses to replace"):
        sx.create(faulty.url, {"x": int})
    assert faulty.paths() == []
    faulty.trusted = True
    sx.write(faulty.url, [{"x": 1}])
    before = dict(faulty.files)
    faulty.trusted = False
    for change in (sx.edit, lambda url: sx.restore(url, 1), lambda url: sx.write(url, [{"x": 2}], mode="append")):
        with pytest.raises(SourceError, match="expected a store that refuses to replace"):
            change(faulty.url)
    assert faulty.files == before


def test_two_who_do_the_same_at_the_same_moment_are_two(faulty: Faulty) -> None:
    sx.write(faulty.url, [{"x": 1}])
    edits = [sx.edit(faulty.url) for _ in range(3)]
    for tx in edits:
        tx.append(x=2)
    for tx in edits:
        tx.commit()
    assert [s.x for s in sx.open(faulty.url)] == [1, 2, 2, 2]


def test_shards_are_uploaded_one_by_one(faulty: Faulty) -> None:
    with sx.create(faulty.url, {"x": int}, shard_rows=10, key="x") as out:
        out.extend({"x": k} for k in range(200))
        assert len(faulty.paths("data/")) == 40
    assert faulty.most_drafts == 1 and len(sx.open(faulty.url)) == 200
    with sx.edit(faulty.url) as tx:
        tx.add_field("y", "int64", range(200))
        assert len(faulty.paths("data/")) == 60
    assert faulty.most_drafts == 1


def test_an_upload_that_fails_is_taken_back(faulty: Faulty) -> None:
    faulty.puts_left = 2
    with pytest.raises(SourceError, match="no more"):
        sx.write(faulty.url, [{"x": k} for k in range(50)], format="jsonl", shard_size=20)
    assert faulty.paths() == []
    faulty.puts_left = 1_000_000
    assert len(sx.write(faulty.url, [{"x": 1}], format="jsonl")) == 1


def test_a_place_that_another_writer_has_claimed(faulty: Faulty) -> None:
    out = sx.create(faulty.url, {"x": int}, format="jsonl")
    out.append(x=1)
    sx.write(faulty.url, [{"x": 2}], format="jsonl")
    with pytest.raises(AlreadyExistsError, match="something is there already"):
        out.close()
    assert [s.x for s in sx.open(faulty.url)] == [2]


def test_a_dataset_with_a_head_is_none_before_it_is_complete(faulty: Faulty) -> None:
    seen = []

    def put(path: str, data: Any) -> None:
        MemorySource.put(faulty, path, data)
        with pytest.raises(UnknownFormatError) if path != "tokens.json" else pytest.MonkeyPatch.context():
            seen.append(len(sx.open(faulty.url)))

    faulty.put = put  # type: ignore[method-assign]
    schema, one = FORMATS["tokens"]
    sx.write(faulty.url, [one] * 3, schema, format="tokens")
    assert seen == [3] and faulty.is_remote
