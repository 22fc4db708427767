"""Datasets of many small commits: runs of fragments, in every operation that reads or changes versions."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import shardex as sx
from shardex.errors import ChecksumError, DuplicateKeyError, FormatError, NotFoundError, ShardexError
from shardex.native import commit, fragment_list
from shardex.native.data_files import write_numbers
from shardex.native.manifest import Manifest, fingerprint_of, publish, read_manifest
from shardex.native.version_numbers import latest_version
from shardex.sources import LocalSource
from shardex.sources.url import SCHEMES
from shardex.store import leftovers
from tests.fake_remote import FakeRemote, fake_remote_url

COUNT = 30


@pytest.fixture(autouse=True)
def few_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_list, "MOST_INLINE", 4)
    monkeypatch.setattr(fragment_list, "MOST_INLINE_KEYED", 4)
    monkeypatch.setattr(fragment_list, "_FEWEST", 2)


def append(folder: Any, *xs: int, **options: Any) -> None:
    samples = [{"x": x, "s": f"text {x}"} for x in xs]
    sx.write(folder, samples, {"x": int, "s": str}, mode="append", progress=False, **options)


def grown(folder: Any, count: int = COUNT, **options: Any) -> str:
    for k in range(count):
        append(folder, 2 * k, 2 * k + 1, **options)
    return str(folder)


def values(folder: Any, **options: Any) -> list[int]:
    return [sample.x for sample in sx.open(folder, **options)]


def manifest(folder: Any, version: int | None = None) -> Manifest:
    place = LocalSource(folder)
    return read_manifest(place, version or latest_version(place))


def runs(folder: Any, version: int | None = None) -> list[str]:
    return [file.path for run in manifest(folder, version).fragments.runs for file in run.own_files]


def in_data(folder: Any) -> set[str]:
    return {f"data/{name}" for name in os.listdir(f"{folder}/data")}


def test_appends_are_stored_in_runs_and_read_in_order(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d")
    found = manifest(folder)
    assert len(found.fragments) == COUNT and len(found.fragments.inline) <= 4 and 1 <= len(found.fragments.runs) <= 4
    assert found.shardex == 2
    ds = sx.open(folder)
    assert [sample.x for sample in ds] == list(range(2 * COUNT)) and ds[17].s == "text 17"
    assert ds.read([59, 0, 31])["x"].tolist() == [59, 0, 31]
    assert len(set(ds.shards(range(2 * COUNT)))) == COUNT
    for version in (1, 5, 6, 19):
        assert values(folder, version=version) == list(range(2 * version))
    assert sx.verify(folder, progress=False) == [] and leftovers(folder) == []


def test_fingerprint_does_not_depend_on_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_runs = grown(tmp_path / "a")
    monkeypatch.setattr(fragment_list, "MOST_INLINE", 1000)
    without = grown(tmp_path / "b")
    assert runs(with_runs) and not runs(without)
    assert sx.open(with_runs).fingerprint == sx.open(without).fingerprint
    assert fingerprint_of(manifest(with_runs)) == fingerprint_of(manifest(without))
    append(without, 99)
    assert sx.open(with_runs).fingerprint != sx.open(without).fingerprint
    changed = [grown(tmp_path / name, 8) for name in ("c", "d")]
    with sx.edit(changed[0]) as tx:
        tx.delete(3)
    with sx.edit(changed[1]) as tx:
        tx.delete(4)
    assert len({sx.open(one).fingerprint for one in (*changed, with_runs)}) == 3


def test_edits_of_fields_and_rows(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d")
    before = runs(folder)
    with sx.edit(folder) as tx:
        tx.rename_field("s", "text")
        tx.add_field("note", str | None)
    assert runs(folder) == before, "renaming writes no list of fragments"
    with sx.edit(folder) as tx:
        tx.update(7, note="seven", text="changed")
        tx.delete([0, 59])
        tx.append(x=100, text="last")
    expected = [*range(1, 2 * COUNT - 1), 100]
    assert values(folder) == expected
    assert sx.open(folder)[6].note == "seven" and sx.open(folder)[6].text == "changed"
    with sx.edit(folder) as tx:
        tx.add_field("double", "int64", lambda sample: 2 * sample.x)
        tx.drop_field("text")
    assert [sample.double for sample in sx.open(folder)] == [2 * x for x in expected]
    assert "text" not in sx.open(folder).features and sx.verify(folder, progress=False) == []
    sx.compact(folder, progress=False)
    assert values(folder) == expected and len(manifest(folder).fragments) == 1
    sx.clean(folder, grace=0)
    assert values(folder) == expected and len(in_data(folder)) == 1


def test_compaction_keeps_large_fragments_of_a_run(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d")
    size = int(manifest(folder).fragments.sizes.max())
    with sx.edit(folder) as tx:
        tx.delete(slice(20, 30))
    sx.compact(folder, shard_size=2 * size, progress=False)
    expected = [x for x in range(2 * COUNT) if not 20 <= x < 30]
    assert values(folder) == expected and sx.verify(folder, progress=False) == []
    append(folder, 1000)
    assert values(folder) == [*expected, 1000]


def test_clean_removes_the_runs_of_removed_versions(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d")
    every = {path for version in range(1, COUNT + 1) for path in runs(folder, version)}
    kept = {path for version in (COUNT - 1, COUNT) for path in runs(folder, version)}
    assert kept < every <= in_data(folder)
    removed = sx.clean(folder, keep=2, grace=0)
    assert {path for path in removed if path.startswith("data/")} == every - kept
    assert values(folder) == list(range(2 * COUNT)) and leftovers(folder) == []
    assert sx.verify(folder, progress=False) == []


@pytest.mark.parametrize("version", [3, 14, 29])
def test_restore_of_a_version_whose_runs_are_shared_or_merged(tmp_path: Path, version: int) -> None:
    folder = grown(tmp_path / "d")
    sx.store.restore(folder, version)
    assert values(folder) == list(range(2 * version))
    sx.clean(folder, grace=0)
    assert values(folder) == list(range(2 * version)) and sx.verify(folder, progress=False) == []
    append(folder, -1)
    assert values(folder) == [*range(2 * version), -1]


def test_restore_after_an_overwrite_copies_what_the_current_version_does_not_name(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d")
    sx.write(folder, [{"x": 7, "s": "new"}], {"x": int, "s": str}, mode="overwrite", progress=False)
    before = in_data(folder)
    sx.store.restore(folder, COUNT)
    assert not before & set(runs(folder)), "runs have new names, as `clean` may remove the old ones"
    sx.clean(folder, grace=0)
    assert values(folder) == list(range(2 * COUNT)) and sx.verify(folder, progress=False) == []


def test_crash_between_run_and_manifest_leaves_only_a_file_that_clean_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = grown(tmp_path / "d", 4)
    before = in_data(folder)
    with monkeypatch.context() as patch:
        patch.setattr(commit, "publish", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            append(folder, 8, 9)
    assert len(in_data(folder) - before) == 2 and values(folder) == list(range(8)) and not runs(folder)
    assert set(leftovers(folder)) == in_data(folder) - before
    assert sx.clean(folder, keep=99) == [], "they may belong to a writer that is active"
    left = in_data(folder) - before
    assert set(sx.clean(folder, keep=99, grace=0)) == left and in_data(folder) == before
    append(folder, 8, 9)
    assert values(folder) == list(range(10)) and runs(folder)


def test_transaction_is_rebased_onto_versions_with_new_runs(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", 4)
    first, second = sx.edit(folder), sx.edit(folder)
    first.append(x=100, s="")
    second.update(1, s="changed")
    for k in range(4, 12):
        append(folder, 2 * k, 2 * k + 1)
    first.commit()
    second.commit()
    assert values(folder) == [*range(24), 100] and sx.open(folder)[1].s == "changed"
    assert sx.verify(folder, progress=False) == []
    named = {path for version in range(1, 15) for path in runs(folder, version)}
    unnamed = [path for path in leftovers(folder) if path not in named]
    assert unnamed == [], "the run of a commit that another one overtook is removed"


def test_concurrent_appends_and_clean(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", 3)

    def work(number: int) -> None:
        for k in range(6):
            append(folder, 1000 * number + k)
            if number == 0:
                sx.clean(folder, keep=3)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert sorted(values(folder)) == sorted([*range(6), *(1000 * n + k for n in range(3) for k in range(6))])
    assert sx.verify(folder, progress=False) == []


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damaged_run_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    folder = grown(tmp_path / "d", 12)
    run = runs(folder)[0]
    others = [version for version in range(1, 13) if run not in runs(folder, version)]
    path = Path(folder, run)
    good = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(good[:200] if damage == "cut" else good[:70] + bytes([good[70] ^ 8]) + good[71:])
    with pytest.raises((ChecksumError, FormatError, NotFoundError), match=Path(run).stem):
        sx.open(folder)[0]
    with pytest.raises(ShardexError, match=Path(run).stem), sx.edit(folder) as tx:
        tx.add_field("y", "int64", lambda sample: 1)
    problems = sx.verify(folder, progress=False)
    assert [problem.file for problem in problems] == [run]
    assert problems[0].versions == tuple(version for version in range(1, 13) if version not in others)
    done = sx.recover(folder, tmp_path / "saved", progress=False)
    assert values(tmp_path / "saved") == list(range(24)) and (done.version, done.lost) == (12, [])
    assert any("made again from those of older versions" in note and Path(run).stem in note for note in done.notes)
    assert leftovers(folder) == []
    restored = sx.store.restore(folder, max(others))
    assert restored == 13 and values(folder) == list(range(2 * max(others)))
    append(folder, 77)
    assert values(folder)[-1] == 77


def test_recover_never_takes_removed_fragments_for_those_of_a_damaged_run(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", 12)
    first = [dict(sample) | {"x": 100 + k} for k, sample in enumerate(sx.open(folder).head(2))]
    sx.write(folder, first, mode="overwrite")
    for k in range(51, 58):
        append(folder, 2 * k, 2 * k + 1)
    path = Path(folder, runs(folder)[0])
    path.write_bytes(path.read_bytes()[:200])
    done = sx.recover(folder, tmp_path / "saved", progress=False)
    found = values(tmp_path / "saved")
    assert found == list(range(100, 100 + len(found))) and done.lost


def test_recover_takes_an_older_version_if_a_run_cannot_be_made_again(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", 12)
    with sx.edit(folder) as tx:
        tx.rename_field("x", "z")  # older versions list these fragments with another field
    path = Path(folder, run := runs(folder)[0])
    path.write_bytes(path.read_bytes()[:200])
    done = sx.recover(folder, tmp_path / "saved", progress=False)
    assert values(tmp_path / "saved") == list(range(24)) and done.version == 12
    assert any(f"version 13 is lost, because a list of its files is: {folder}/{run}" in note for note in done.notes)
    assert "expected the 24 samples of version 13" in done.lost[0].why and Path(run).stem in done.lost[0].why


# -- keys ---------------------------------------------------------------------------------------------------------


def test_keys_are_found_in_merged_tables(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", key="s")
    files = manifest(folder).fragments.key_files()
    assert len(files) <= 8 and sum(rows for *_, rows in files) == 2 * COUNT
    ds = sx.open(folder)
    assert [ds.get(f"text {x}").x for x in range(2 * COUNT)] == list(range(2 * COUNT))
    for version in (4, 5, 11, 24):
        assert sx.open(folder, version=version).get(f"text {2 * version - 1}").x == 2 * version - 1
    for taken in (0, 7, 31, 2 * COUNT - 1):
        with pytest.raises(DuplicateKeyError, match=f"text {taken}"):
            append(folder, 500, taken)
    with sx.edit(folder) as tx:
        tx.delete("text 31")
    append(folder, 31)
    assert sx.open(folder).get("text 31").x == 31 and values(folder)[-1] == 31
    assert sx.verify(folder, progress=False) == []
    sx.clean(folder, grace=0)
    assert sx.verify(folder, progress=False) == [] and sx.open(folder).get("text 3").x == 3
    sx.store.restore(folder, latest_version(LocalSource(folder)))
    sx.compact(folder, progress=False)
    assert sx.open(folder).get("text 31").x == 31 and sx.verify(folder, progress=False) == []


def test_keys_of_large_fragments_are_not_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.native.key_lookup.MERGED_ROWS", 6)
    folder = grown(tmp_path / "d", key="x")
    files = manifest(folder).fragments.key_files()
    assert max(rows for *_, rows in files) == 6 and sum(rows for *_, rows in files) == 2 * COUNT
    ds = sx.open(folder)
    assert [ds.get(x).s for x in range(2 * COUNT)] == [f"text {x}" for x in range(2 * COUNT)]
    with pytest.raises(DuplicateKeyError):
        append(folder, 13)


def test_wrong_merged_key_tables_are_reported(tmp_path: Path) -> None:
    folder = grown(tmp_path / "d", 12, key="x")
    place, found = LocalSource(folder), manifest(folder)
    segments = list(found.fragments.segments)
    run = found.fragments.run_segments[0]
    table = run.run.tables[0]
    swapped = write_numbers(place, {"hash": np.arange(2, dtype=np.uint64), "row": np.arange(2, dtype=np.uint64)})
    other = msgspec.structs.replace(table, file=swapped.publish())
    segments[0] = run.with_tables([other])
    wrong = msgspec.structs.replace(found, fragments=fragment_list.FragmentList.of(segments))
    assert publish(place, 13, wrong)
    problems = sx.verify(folder, progress=False)
    assert [(one.file, one.fields) for one in problems] == [(other.file.path, ("x",))]
    with pytest.raises(FormatError, match="expected the keys of"):
        sx.open(folder).get(0)


# -- requests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def remotes(monkeypatch: pytest.MonkeyPatch) -> list[FakeRemote]:
    made: list[FakeRemote] = []

    def open_remote(url: str, trusted: bool = True) -> FakeRemote:
        made.append(FakeRemote(url.removeprefix("fakeremote://")))
        return made[-1]

    monkeypatch.setitem(SCHEMES, "fakeremote", open_remote)
    return made


def test_opening_lists_once_and_reads_the_manifest_and_the_runs_once(
    tmp_path: Path, remotes: list[FakeRemote], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = grown(tmp_path / "d")
    lists: list[str] = []
    paths = FakeRemote.paths

    def listed(self: FakeRemote, prefix: str = "") -> list[str]:
        lists.append(prefix)
        return paths(self, prefix)

    monkeypatch.setattr(FakeRemote, "paths", listed)
    ds = sx.open(fake_remote_url(folder), cache=False)
    reads = [path for remote in remotes for path, _ in remote.reads]
    own = {file.path for run in manifest(folder).fragments.runs for file in run.own_files}
    assert lists == ["_shardex/"]
    assert sorted(reads) == sorted({"_shardex/00000030.json", *own})
    assert ds[40].x == 40
