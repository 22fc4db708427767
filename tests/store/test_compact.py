"""Compaction: the same files for every number of workers, shards of the wanted size, conflicts, kills."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import ArgumentError, CommitConflict
from shardex.native.manifest import Manifest, read_manifest
from shardex.native.writer import NativeParts
from shardex.sources import LocalSource
from shardex.store import compact
from tests.waiting import becomes_true

SHARD = 60_000
COUNT = 3000


def sample(k: int) -> dict[str, Any]:
    return {"n": k, "s": f"text {k} " * (k % 20), "key": f"k{k}"}


def make(folder: Path) -> Path:
    """A dataset of small fragments, edited ones, and a large one in between that stays."""
    sx.write(folder, map(sample, range(1000)), key="key", shard_rows=100, progress=False)
    sx.write(folder, map(sample, range(1000, 2000)), mode="append", progress=False)
    sx.write(folder, map(sample, range(2000, COUNT)), mode="append", shard_rows=300, progress=False)
    with sx.edit(folder) as tx:
        tx.delete(rows=[0, 5, 2500])
        tx.update("k77", s="changed")
        tx.update("k2001", s="changed too")
    return folder


def manifest_of(folder: Path) -> Manifest:
    return read_manifest(LocalSource(folder), sx.store.history(folder)[-1].number)


def files(folder: Path) -> list[str]:
    """Digest of each file of each fragment, keys too."""
    fragments = manifest_of(folder).fragments
    paths = [file.path for one in fragments for file in [*one.groups, *([one.keys] if one.keys else [])]]
    return [hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in paths]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("compact") / "d")


@pytest.fixture(scope="module")
def without_workers(folder: Path) -> list[str]:
    return compacted(folder)


def compacted(folder: Path, **arguments: Any) -> list[str]:
    """Compact, check the result, restore the version before; return its files."""
    before = sx.open(folder)
    expected = [dict(one) for one in before]
    new = sx.compact(folder, shard_size=SHARD, progress=False, **arguments)
    assert os.listdir(folder.parent) == [folder.name], "nothing is left"
    ds = sx.open(folder)
    assert ds.version == new
    assert [dict(one) for one in ds] == expected
    assert ds.get("k77").s == "changed"
    made = files(folder)
    assert sx.compact(folder, shard_size=SHARD, progress=False, **arguments) is None, "nothing to do"
    assert before.version is not None
    sx.store.restore(folder, before.version)
    return made


@pytest.mark.parametrize(
    "arguments",
    [{"workers": 1}, {"workers": 2}, {"executor": "threads", "workers": 3}],
    ids=["one", "two", "threads"],
)
def test_same_files_for_every_number_of_workers(
    folder: Path, without_workers: list[str], arguments: dict[str, Any]
) -> None:
    assert compacted(folder, **arguments) == without_workers


def test_executor_of_the_user(folder: Path, without_workers: list[str]) -> None:
    with ThreadPoolExecutor(2) as executor:
        assert compacted(folder, executor=executor) == without_workers


@pytest.mark.long
def test_on_ray(folder: Path, without_workers: list[str], ray_cluster: Any) -> None:
    assert compacted(folder, executor="ray") == without_workers


def test_shards_have_about_the_wanted_size(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, map(sample, range(2000)), shard_rows=200)
    sx.compact(folder, shard_size=SHARD, workers=2)
    sizes = [fragment.groups[0].size for fragment in manifest_of(folder).fragments]
    assert len(sizes) in (4, 5, 6)
    assert all(SHARD / 2 < size <= SHARD for size in sizes), sizes
    assert sx.verify(folder) == []


def test_bytes_of_dropped_fields_do_not_count(tmp_path: Path) -> None:
    samples = [{"n": k, "large": "x" * 1000} for k in range(1000)]
    sx.write(tmp_path / "d", samples, shard_rows=100)
    with sx.edit(tmp_path / "d") as tx:
        tx.drop_field("large")
    sx.compact(tmp_path / "d", shard_size=300_000)
    assert len(manifest_of(tmp_path / "d").fragments) == 1


def test_all_samples_deleted(tmp_path: Path) -> None:
    for name, workers in (("a", None), ("b", 2)):
        sx.write(tmp_path / name, map(sample, range(50)), shard_rows=10)
        with sx.edit(tmp_path / name) as tx:
            tx.delete(slice(None))
        assert sx.compact(tmp_path / name, workers=workers) == 3
        assert manifest_of(tmp_path / name).fragments == []
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_wrong_arguments(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="expected workers to be a number from 1"):
        sx.compact(folder, workers=0)
    sx.write("memory://compact/d", map(sample, range(50)), shard_rows=10)
    with pytest.raises(ArgumentError, match="which other processes can see"):
        sx.compact("memory://compact/d", workers=2)
    assert os.listdir(folder.parent) == ["d"]


# -- other writers --------------------------------------------------------------------------------------------------


def meanwhile(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change something just before the files of the parts are linked."""
    link = NativeParts.link

    def linked(*arguments: Any) -> Any:
        patch.undo()
        change()
        return link(*arguments)

    patch.setattr(NativeParts, "link", linked)


def test_appended_samples_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    sx.write(folder, map(sample, range(50)), shard_rows=10)
    meanwhile(monkeypatch, lambda: sx.write(folder, [sample(50)], mode="append"))
    assert sx.compact(folder, workers=1) == 3
    assert [one.n for one in sx.open(folder)] == list(range(51))
    assert os.listdir(tmp_path) == ["d"]


def test_conflict_removes_the_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "d"
    sx.write(folder, map(sample, range(50)), shard_rows=10)

    def delete() -> None:
        with sx.edit(folder) as tx:
            tx.delete(3)

    meanwhile(monkeypatch, delete)
    with pytest.raises(CommitConflict, match=r"another writer did more \(delete: 1 sample\)"):
        sx.compact(folder, workers=1)
    assert [one.n for one in sx.open(folder)] == [k for k in range(50) if k != 3]
    assert os.listdir(tmp_path) == ["d"]


def test_another_run_of_the_same_job_was_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed after it had published; the files that it has linked stay."""
    folder = tmp_path / "d"
    sx.write(folder, map(sample, range(50)), shard_rows=10)
    module = sys.modules["shardex.store.compact"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.JobFolder, "remove", lambda self: None)
        assert sx.compact(folder, workers=1) == 2
    (job,) = set(os.listdir(tmp_path)) - {"d"}
    monkeypatch.setattr(module, "existing_place", lambda path: (LocalSource(path), 1))
    with pytest.raises(CommitConflict, match=r"another writer did more \(compact: 5 fragments into 1\)"):
        sx.compact(folder, workers=1)
    assert [one.n for one in sx.open(folder)] == list(range(50))
    assert sx.verify(folder) == []
    assert job not in os.listdir(tmp_path)


# -- kills ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
import shardex as sx
sx.compact(sys.argv[1], shard_size=20_000, workers=2, progress=False)
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)])


def records(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.parent.glob(f".{folder.name}.*.job/done/*")}


def test_killed_run_is_continued(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole" / "d", tmp_path / "p" / "d"
    sx.write(whole, map(sample, range(4000)), key="key", shard_rows=2000, progress=False)
    with sx.edit(whole) as tx:
        tx.delete(rows=[0, 2000])
    shutil.copytree(whole, folder)
    compact(whole, shard_size=20_000)
    running = start(folder)
    assert becomes_true(lambda: len(records(folder)) >= 2)
    running.kill()
    running.wait()
    kept = records(folder)
    assert len(sx.store.history(folder)) == 2
    running = start(folder)
    assert becomes_true(lambda: len(records(folder)) > len(kept) or running.poll() is not None)
    assert {path: time for path, time in records(folder).items() if path in kept} in (kept, {})
    assert running.wait() == 0
    assert os.listdir(folder.parent) == ["d"]
    assert files(folder) == files(whole)
    assert sx.verify(folder) == []
    assert sx.clean(folder, grace=0)[:1] == ["_shardex/00000001.json"]
    assert sx.store.leftovers(folder) == []
    assert [one.n for one in sx.open(folder)] == [k for k in range(4000) if k % 2000]
