"""Values of a new field that a function computes: the same files by any number of workers, after errors and kills."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, CommitConflict, NotFoundError, SchemaError
from shardex.features import Feature, Null
from shardex.jobs import JobFolder, Part, cut_rows
from shardex.native.data_files import BATCH_BYTES
from shardex.native.manifest import read_manifest
from shardex.native.writer import NativeParts
from shardex.sources import LocalSource
from shardex.store import new_field
from shardex.store.new_field import FieldFunction
from tests.strategies import examples, features, values
from tests.waiting import becomes_true

ROWS_AT_ONCE = new_field._ROWS_AT_ONCE
COUNT = 900
PART = 64
"""Samples of a part, if there are few."""


def make(folder: Path) -> Path:
    """A dataset of several fragments, with deleted and updated samples."""
    sx.write(folder, [{"n": k, "s": f"t{k}"} for k in range(COUNT + 4)], shard_rows=400, key="s")
    with sx.edit(folder) as tx:
        tx.delete(rows=[0, 1, 500, COUNT + 3])
        tx.update("t7", n=-7)
    return folder


def added(folder: Path, version: int | None = None) -> list[str]:
    """Digest of the file that each fragment got last."""
    place = LocalSource(folder)
    manifest = read_manifest(place, version or sx.store.history(folder)[-1].number)
    files = [fragment.groups[-1].path for fragment in manifest.fragments if fragment.groups]
    return [hashlib.sha256((folder / path).read_bytes()).hexdigest() for path in files]


def text(sample: Any) -> str:
    """Sizes differ, so that batches do too."""
    return f"{sample.n!s} {sample.s!s} " * int(sample.n % 97)


def texts(batch: Any) -> list[str]:
    return [text(sample) for sample in batch]


def add(folder: Path, function: Any, feature: Any = str, **arguments: Any) -> list[str]:
    """Add a field, check it, restore the version before."""
    before = sx.open(folder).version
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("y", feature, function, **arguments)
    assert os.listdir(folder.parent) == [folder.name], "nothing is left"
    files = added(folder)
    assert before is not None
    sx.store.restore(folder, before)
    return files


@pytest.fixture(autouse=True, scope="module")
def small_batches() -> Iterator[None]:
    """Files of many batches; other processes do not see this, so their parts are cut in another way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_field, "_ROWS_AT_ONCE", 100)
        patch.setattr(new_field, "_BATCH_BYTES", 50_000)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("computed") / "d")


@pytest.fixture(scope="module")
def given_values(folder: Path) -> list[str]:
    """The files for values that are given."""
    return add(folder, [text(sample) for sample in sx.open(folder)])


@pytest.mark.parametrize(
    "arguments",
    [{}, {"workers": 1}, {"workers": 2}, {"executor": "threads", "workers": 3}],
    ids=["none", "one", "two", "threads"],
)
@pytest.mark.parametrize("batched", [False, True])
def test_same_files_for_every_number_of_workers(
    folder: Path, given_values: list[str], arguments: dict[str, Any], batched: bool
) -> None:
    if batched:
        arguments = {**arguments, "batched": True, "batch_size": 100}
    assert len(given_values) == 3
    assert add(folder, texts if batched else text, **arguments) == given_values


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_executor_of_the_user(folder: Path, given_values: list[str], kind: type[Executor]) -> None:
    with kind(2) as executor:  # type: ignore[call-arg]
        assert add(folder, text, executor=executor) == given_values


def test_on_ray(folder: Path, given_values: list[str], ray_cluster: Any) -> None:
    assert add(folder, text, executor="ray") == given_values


def test_result_is_intact(tmp_path: Path) -> None:
    folder = make(tmp_path / "d")
    with sx.edit(folder) as tx:
        tx.add_field("y", str, text, workers=2)
    ds = sx.open(folder)
    assert [sample.y for sample in ds] == [text(sample) for sample in ds]
    assert ds.get("t7").y == "-7 t7 " * 90
    assert sx.verify(folder) == []
    assert sx.store.leftovers(folder) == []


@pytest.mark.parametrize("column", [list, np.asarray], ids=["list", "array"])
def test_batches_of_numbers(folder: Path, column: Any) -> None:
    wanted = add(folder, np.array([sample.n / 2 for sample in sx.open(folder)], "f4"), "float32")
    assert add(folder, lambda batch: column(batch.n / 2), "float32", batched=True, workers=2) == wanted
    assert add(folder, lambda sample: sample.n / 2, "float32") == wanted


def test_batches_do_not_depend_on_fragments_or_parts(folder: Path) -> None:
    """Batches are counted from the first sample on."""

    def size(batch: Any) -> Any:
        return np.full(len(batch), len(batch))

    before = sx.open(folder).version
    for workers in (None, 2):
        with sx.edit(folder) as tx:
            tx.add_field("size", "int64", size, batched=True, batch_size=77, workers=workers)
        sizes = [sample["size"] for sample in sx.open(folder)]
        assert sizes == [77] * (COUNT // 77 * 77) + [COUNT % 77] * (COUNT % 77)
        assert before is not None
        sx.store.restore(folder, before)


@given(st.data())
@examples(short=25, long=2000)
def test_any_feature_and_any_parts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    feature: Feature = data.draw(features)
    rows = data.draw(st.lists(values(feature), max_size=14))
    deleted = data.draw(st.lists(st.sampled_from(range(len(rows))), unique=True)) if rows else []
    folder = tmp_path_factory.mktemp("any") / "d"
    sx.write(folder, [{"n": k} for k in range(len(rows))], {"n": int}, shard_rows=data.draw(st.integers(1, 20)))
    with sx.edit(folder) as tx:
        tx.delete(deleted)
    size, first = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))

    def few(self: FieldFunction, sample_bytes: float) -> list[Part]:
        return list(cut_rows(len(self.dataset), size))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_field, "_ROWS_AT_ONCE", first)
        patch.setattr(new_field, "_BATCH_BYTES", 100)
        patch.setattr(new_field, "_MOST", 2)
        patch.setattr(FieldFunction, "parts", few)
        wanted = add(folder, [value for k, value in enumerate(rows) if k not in deleted], feature)
        assert add(folder, lambda sample: rows[sample.n], feature) == wanted
        assert add(folder, lambda sample: rows[sample.n], feature, workers=1) == wanted


def test_values_of_an_optional_field(folder: Path) -> None:
    feature = sx.Optional(sx.Value("int64"))
    some = [sample.n if sample.n % 3 else None for sample in sx.open(folder)]
    assert add(folder, lambda s: s.n if s.n % 3 else None, feature, workers=2) == add(folder, some, feature)
    assert len(add(folder, lambda sample: None, Null(), workers=1)) == 3


def test_all_samples_deleted_and_no_samples(tmp_path: Path) -> None:
    sx.write(tmp_path / "a" / "d", [{"n": 1}] * 1000)
    with sx.edit(tmp_path / "a" / "d") as tx:
        tx.delete(slice(None))
    sx.write(tmp_path / "b" / "d", [], {"n": int})
    for name in "ab":
        assert add(tmp_path / name / "d", text, workers=2) == add(tmp_path / name / "d", [])


def test_adopted_shards(tmp_path: Path) -> None:
    sx.write(tmp_path / "lines", [{"n": k, "s": str(k)} for k in range(300)], format="jsonl", shard_rows=100)
    sx.adopt(tmp_path / "lines", tmp_path / "d")
    with sx.edit(tmp_path / "d", trust_paths=True) as tx:
        tx.add_field("y", str, text, workers=2)
    assert [one.y for one in sx.open(tmp_path / "d", trust_paths=True)][:3] == ["", "1 1 ", "2 2 2 2 "]


def test_several_fields_in_one_transaction(folder: Path) -> None:
    before = sx.open(folder).version
    with sx.edit(folder) as tx:
        tx.add_field("a", "int64", lambda sample: sample.n + 1, workers=2)
        tx.add_field("b", "int64", lambda sample: sample.n + 2, workers=1)
    ds = sx.open(folder)
    assert (ds[100].a, ds[100].b) == (ds[100].n + 1, ds[100].n + 2)
    assert os.listdir(folder.parent) == ["d"]
    assert before is not None
    sx.store.restore(folder, before)


# -- errors -------------------------------------------------------------------------------------------------------


def unless(flag: Path, log: Path) -> Any:
    """A function that fails at one sample until a file exists, and logs its calls."""

    def function(sample: Any) -> int:
        if sample.n == 600 and not flag.exists():
            raise ZeroDivisionError("no")
        with log.open("a") as out:
            out.write(f"{sample.n}\n")
        return int(sample.n)

    return function


@pytest.mark.parametrize("workers", [1, 2])
def test_exception_names_sample_and_function_and_the_next_run_continues(tmp_path: Path, workers: int) -> None:
    parent = tmp_path / "p"
    folder, log = make(parent / "d"), tmp_path / "log"
    files = sorted(LocalSource(folder).paths())
    function = unless(tmp_path / "flag", log)
    with pytest.raises(ZeroDivisionError) as caught, sx.edit(folder) as tx:
        tx.add_field("y", "int64", function, workers=workers)
    first, *others = caught.value.__notes__
    assert "unless.<locals>.function" in first
    assert "at sample 597 of " in first
    kept = [note for note in others if "parts are finished and kept in" in note]
    assert len(kept) == 1
    assert sorted(LocalSource(folder).paths()) == files
    (job,) = set(os.listdir(parent)) - {"d"}
    finished = len(os.listdir(parent / job / "done"))
    assert finished >= 9
    log.unlink()
    (tmp_path / "flag").touch()
    with sx.edit(folder) as tx:
        tx.add_field("y", "int64", function, workers=workers)
    again, last = len(log.read_text().splitlines()), COUNT % PART
    parts_left = -(-COUNT // PART) - finished
    assert again in (
        parts_left * PART,
        (parts_left - 1) * PART + last,
    )  # the last part, which is short, may be finished
    assert all(sample.y == sample.n for sample in sx.open(folder))
    assert os.listdir(parent) == ["d"]


@pytest.mark.parametrize("arguments", [{}, {"workers": 1}, {"workers": 2, "batched": True}])
def test_value_that_does_not_fit_names_sample_and_function(tmp_path: Path, arguments: dict[str, Any]) -> None:
    def bad(sample: Any) -> Any:
        return "x" if sample.n == 44 else sample.n

    def bad_batch(batch: Any) -> Any:
        return [bad(sample) for sample in batch]

    sx.write(tmp_path / "d", [{"n": k} for k in range(60)])
    with (
        pytest.raises(SchemaError, match="expected int64, got str 'x' - at sample 44, field y") as caught,
        sx.edit(tmp_path / "d") as tx,
    ):
        tx.add_field("y", "int64", bad_batch if "batched" in arguments else bad, **arguments)
    assert "<locals>.bad" in caught.value.__notes__[0]
    assert os.listdir(tmp_path) == ["d"], "no part was finished"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: batch.n[1:], r"expected 60 values from .*, as many as it got samples, got 59 - at samples 0 to"),
        (lambda batch: {"y": batch.n}, r"expected a column .* got .* - at the result of .* at samples 0 to 59"),
        (lambda batch: 5, "expected a column"),
    ],
)
def test_batch_functions_that_return_something_else(tmp_path: Path, function: Any, message: str) -> None:
    sx.write(tmp_path / "d", [{"n": k} for k in range(60)])
    with pytest.raises(SchemaError, match=message), sx.edit(tmp_path / "d") as tx:
        tx.add_field("y", "int64", function, batched=True)


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ([1, 2], {"workers": 2}, "expected a function for the field y with batched, workers or executor"),
        ([1, 2], {"executor": "threads"}, "expected a function"),
        ([1, 2], {"batched": True}, "expected a function"),
        (None, {"workers": 2}, "expected a function"),
        (text, {"workers": 0}, "expected workers to be a number from 1"),
        (text, {"executor": "nothing"}, "expected executor to be"),
        (text, {"batched": True, "batch_size": 0}, "expected a batch_size of at least 1"),
    ],
)
def test_wrong_arguments(tmp_path: Path, values: Any, arguments: dict[str, Any], message: str) -> None:
    sx.write(tmp_path / "d", [{"n": 1, "s": "a"}] * 2)
    with pytest.raises(ArgumentError, match=message), sx.edit(tmp_path / "d") as tx:
        tx.add_field("y", str, values, **arguments)
    assert os.listdir(tmp_path) == ["d"]


def test_memory_has_no_workers() -> None:
    sx.write("memory://computed/d", [{"n": 1, "s": "a"}])
    with pytest.raises(ArgumentError, match="which other processes can see"), sx.edit("memory://computed/d") as tx:
        tx.add_field("y", str, text, workers=2)
    with sx.edit("memory://computed/d") as tx:
        tx.add_field("y", str, text)
    assert sx.open("memory://computed/d")[0].y == "1 a "


# -- ends of transactions -------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    sx.write(tmp_path / "d", [{"n": k, "s": str(k)} for k in range(200)])
    return tmp_path / "d"


def test_error_after_the_field_keeps_the_parts(small: Path) -> None:
    calls = small.parent.parent / f"{small.parent.name}.log"
    function = unless(small, calls)

    def fails() -> None:
        with sx.edit(small) as tx:
            tx.add_field("y", "int64", function, workers=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        fails()
    assert "4 of 4 parts are finished and kept in" in caught.value.__notes__[0]
    assert len(calls.read_text().splitlines()) == 200
    with sx.edit(small) as tx:
        tx.add_field("y", "int64", function, workers=1)
    assert len(calls.read_text().splitlines()) == 200
    assert os.listdir(small.parent) == ["d"]


def test_parts_that_the_next_run_could_not_find_are_not_kept(small: Path) -> None:
    generator = (k for k in range(1000))  # cannot be compared with that of the next run

    def function(sample: Any) -> int:
        return 1 // (sample.n < 150) if generator else 0

    with pytest.raises(ZeroDivisionError) as caught, sx.edit(small) as tx:
        tx.add_field("y", "int64", function, workers=1)
    assert sum("finished parts are not kept" in note for note in caught.value.__notes__) == 1
    assert not any("run the same call again" in note for note in caught.value.__notes__)
    assert os.listdir(small.parent) == ["d"]


def test_abort_and_conflicts_remove_the_parts(small: Path) -> None:
    tx = sx.edit(small)
    tx.add_field("y", str, text, workers=1)
    assert len(os.listdir(small.parent)) == 2
    tx.abort()
    assert os.listdir(small.parent) == ["d"]
    first, second = sx.edit(small), sx.edit(small)
    first.add_field("y", str, text, workers=1)
    second.add_field("y", str, text, workers=1)
    first.commit()
    with pytest.raises(CommitConflict):
        second.commit()
    assert os.listdir(small.parent) == ["d"]


def test_parts_that_another_run_has_removed_are_computed_again(small: Path) -> None:
    def remove(*_: Any) -> list[str]:
        shutil.rmtree(next(small.parent.glob(".d.*.job")))
        raise NotFoundError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeParts, "read", remove)
        with sx.edit(small) as tx:
            tx.add_field("y", str, text, workers=1)
    assert [sample.y for sample in sx.open(small)] == [text(sample) for sample in sx.open(small)]
    assert os.listdir(small.parent) == ["d"]


@pytest.mark.parametrize("way", ["clean", "edit", "compact"])
def test_folder_of_a_run_that_was_killed_after_the_commit(small: Path, way: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobFolder, "remove", lambda self: None)
        with sx.edit(small) as tx:
            tx.add_field("y", str, text, workers=1)
    (job,) = set(os.listdir(small.parent)) - {"d"}
    if way == "clean":
        assert str(small.parent / job) in sx.clean(small)
    elif way == "compact":
        sx.compact(small)
    else:
        with pytest.raises(SchemaError, match="exists already"), sx.edit(small) as tx:
            tx.add_field("y", str, text, workers=1)
    assert os.listdir(small.parent) == ["d"]


# -- kills ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
import shardex as sx

def slow(sample):
    time.sleep(0.001)
    return f"{sample.n} " * (sample.n % 50)

with sx.edit(sys.argv[1], progress=False) as tx:
    tx.add_field("y", str, slow, workers=2)
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)])


def records(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.parent.glob(f".{folder.name}.*.job/done/*")}


def test_killed_run_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_field, "_ROWS_AT_ONCE", ROWS_AT_ONCE)
    monkeypatch.setattr(new_field, "_BATCH_BYTES", BATCH_BYTES)
    folders = [tmp_path / "whole" / "d", tmp_path / "p" / "d"]
    for folder in folders:
        sx.write(folder, [{"n": k} for k in range(1000)], shard_rows=400)
    whole, folder = folders
    with sx.edit(whole) as tx:
        tx.add_field("y", str, lambda sample: f"{sample.n} " * (sample.n % 50))
    running = start(folder)
    assert becomes_true(lambda: len(records(folder)) >= 3)
    running.kill()
    running.wait()
    assert sx.open(folder).fields == ["n"]
    kept = records(folder)
    running = start(folder)
    assert becomes_true(lambda: len(records(folder)) > len(kept) or running.poll() is not None)
    assert {path: time for path, time in records(folder).items() if path in kept} in (kept, {})
    assert running.wait() == 0
    assert os.listdir(folder.parent) == ["d"]
    assert added(folder) == added(whole)
    assert sx.verify(folder) == []


def test_two_runs_at_once(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"n": k} for k in range(500)], shard_rows=400)
    both = [start(tmp_path / "d") for _ in range(2)]
    assert sorted(run.wait() for run in both) == [0, 1], "the second one finds the field of the first"
    assert sx.open(tmp_path / "d")[49].y == "49 " * 49
    assert os.listdir(tmp_path) == ["d"]
