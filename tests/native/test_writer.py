"""Writing native datasets: deterministic bytes, all or nothing, also with errors, kills and concurrent writers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, ArgumentError, ClosedError, FormatError, SchemaError, StorageFullError
from shardex.features import Features
from shardex.native import data_files as fragments
from shardex.native import writer as writer_module
from shardex.native.manifest import read_manifest
from shardex.native.version_numbers import latest_version
from shardex.native.writer import ArrowWriter
from shardex.sources import LocalSource, Place
from tests.data_files import table_of

SCHEMA = {"n": int, "s": str | None, "x": sx.Array("float32", (None, 2))}


def samples(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"n": k, "s": None if k % 3 else f"é{k}", "x": np.full((k % 4, 2), k, np.float32)}
        for k in range(first, first + count)
    ]


def writer(folder: Path, mode: str = "create", **options: Any) -> ArrowWriter:
    return ArrowWriter(str(folder), Features.of(SCHEMA), mode=mode, **options)


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of all files, by their names without random numbers."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {re.sub("-[0-9a-f]{16}", "", str(path.relative_to(folder))): path.read_bytes() for path in files}


def numbers(folder: Path) -> list[int]:
    return [sample.n for sample in sx.open(folder)]


# -- the same samples give the same files ---------------------------------------------------------------------


def test_same_samples_give_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _dirty = [np.full(1 << 16, ord(name), np.uint8) for _ in range(20)]  # memory that must not show through
        del _dirty
        sx.write(tmp_path / name, samples(50), SCHEMA, shard_rows=7)
    first, second = tree(tmp_path / "a"), tree(tmp_path / "b")
    assert list(first) == list(second)
    assert len(first) == 9
    assert all(first[path] == second[path] for path in first if path.startswith("data/"))


def test_refused_samples_do_not_change_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "BATCH_BYTES", 300)
    sx.write(tmp_path / "a", samples(50), SCHEMA)
    with sx.create(tmp_path / "b", SCHEMA) as out:
        for k, sample in enumerate(samples(50)):
            with pytest.raises(SchemaError, match=f"at sample {k}, field x"):
                out.append({**sample, "x": "x" * 1000})
            out.append(sample)
    assert list(tree(tmp_path / "a")) == list(tree(tmp_path / "b"))


def test_files_of_the_same_samples_have_different_names_and_equal_fingerprints(tmp_path: Path) -> None:
    """A name that is used once is never used again, so that `clean` removes no file that a new version needs."""
    ds = sx.write(tmp_path / "d", samples(3) * 4, SCHEMA, shard_rows=3)
    assert [s.n for s in ds] == [0, 1, 2] * 4
    assert len(list((tmp_path / "d" / "data").iterdir())) == 4 and len(tree(tmp_path / "d")) == 2
    assert sx.write(tmp_path / "e", samples(3) * 4, SCHEMA, shard_rows=3).fingerprint == ds.fingerprint


def test_shards_end_by_rows_or_bytes_and_batches_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "BATCH_BYTES", 1 << 12)

    def rows(name: str, **options: Any) -> list[list[int]]:
        with sx.create(tmp_path / name, {"x": sx.Array("uint8", (1 << 10,))}, **options) as out:
            for _ in range(10):
                out.append(x=np.zeros(1 << 10, np.uint8))
        manifest = read_manifest(LocalSource(tmp_path / name), 1)
        return [table_of(tmp_path / name, fragment.groups[0]).rows.tolist() for fragment in manifest.fragments]

    assert rows("plain") == [[4, 4, 2]]
    assert rows("rows", shard_rows=3) == [[3], [3], [3], [1]]
    assert rows("many rows", shard_rows=6) == [[4, 2], [4]]
    assert rows("bytes", shard_size=5000) == [[4, 4], [2]]
    assert rows("single", shard_size=1, shard_rows=1) == [[1]] * 10


def test_one_sample_larger_than_a_batch_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "BATCH_BYTES", 1000)
    out = ArrowWriter(str(tmp_path / "d"), Features.of({"raw": bytes}), mode="create")
    for _ in range(3):
        out.append({"raw": bytes(5000)})
        assert out._fragments._builder.rows == 0
    out.close()


@pytest.mark.parametrize("options", [{"shard_rows": 0}, {"shard_size": 0}, {"shard_rows": -1}])
def test_shards_of_zero_rows_or_bytes_raise(tmp_path: Path, options: Any) -> None:
    with pytest.raises(ArgumentError, match="expected shards of at least 1 byte and 1 row"):
        sx.create(tmp_path / "d", SCHEMA, **options)
    assert not (tmp_path / "d").exists()


# -- modes ----------------------------------------------------------------------------------------------------


def test_create_append_overwrite(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(2), SCHEMA)
    with pytest.raises(AlreadyExistsError, match="there already"):
        sx.create(folder, SCHEMA)
    sx.write(folder, samples(2, 2), SCHEMA, mode="append")
    assert numbers(folder) == [0, 1, 2, 3]
    sx.write(folder, samples(1, 9), SCHEMA, mode="overwrite")
    assert numbers(folder) == [9]
    assert latest_version(LocalSource(folder)) == 3
    assert [read_manifest(LocalSource(folder), v).change for v in (1, 2, 3)] == [
        "create: 2 samples",
        "append: 2 samples",
        "overwrite: 1 sample",
    ]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_every_mode_creates_a_dataset(tmp_path: Path, mode: str) -> None:
    sx.write(tmp_path / "new" / "d", samples(2), SCHEMA, mode=mode)
    (tmp_path / "empty").mkdir()
    sx.write(tmp_path / "empty", samples(2), SCHEMA, mode=mode)
    assert numbers(tmp_path / "new" / "d") == numbers(tmp_path / "empty") == [0, 1]


def test_append_with_other_fields_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(2), SCHEMA)
    before = tree(folder)
    for schema in ({"n": int}, {**SCHEMA, "n": "int32"}, {"more": int, **SCHEMA}):
        with pytest.raises(SchemaError, match=r"expected the fields it has \(n int64, s text or none, x .*\), got "):
            sx.create(folder, schema, mode="append")
    assert tree(folder) == before


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_folder_with_other_files_raises(tmp_path: Path, mode: str) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match="expected a dataset that shardex wrote, got a folder without a manifest"):
        sx.create(tmp_path, SCHEMA, mode=mode)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_reader_keeps_its_version(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    old = sx.write(folder, samples(20), SCHEMA, shard_rows=5)
    assert old[0].n == 0
    sx.write(folder, samples(3, 100), SCHEMA, mode="overwrite")
    assert [sample.n for sample in old] == list(range(20))  # also of files that it had not touched before
    assert numbers(folder) == [100, 101, 102]


# -- all or nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("oops"), KeyboardInterrupt()], ids=repr)
def test_exception_leaves_the_dataset_unchanged(tmp_path: Path, error: BaseException) -> None:
    folder = tmp_path / "a" / "d"

    def fail(mode: str) -> None:
        with sx.create(folder, SCHEMA, mode=mode, shard_rows=2) as out:
            out.extend(samples(5) * 2)  # equal shards too
            raise error

    with pytest.raises(type(error)):
        fail("create")
    assert not folder.exists()
    sx.write(folder, samples(4), SCHEMA, shard_rows=2)
    before = tree(folder)
    for mode in ("append", "overwrite"):
        with pytest.raises(type(error)):
            fail(mode)  # with the very content that is there
        assert tree(folder) == before
    assert numbers(folder) == [0, 1, 2, 3]


def test_close_and_abort(tmp_path: Path) -> None:
    out = writer(tmp_path / "a")
    out.append(samples(1)[0])
    out.close()
    out.close()
    out.abort()
    assert numbers(tmp_path / "a") == [0]
    with pytest.raises(ClosedError, match="expected an open writer, this one is closed"):
        out.append(samples(1)[0])
    out = writer(tmp_path / "b")
    out.append(samples(1)[0])
    out.abort()
    out.abort()
    with pytest.raises(ClosedError, match="this one was aborted; nothing was written"):
        out.close()
    assert not (tmp_path / "b").exists()


FULL = """
import resource, sys
import shardex as sx
from shardex.errors import StorageFullError
out = sx.create(sys.argv[1], {"raw": bytes}, mode="overwrite")
resource.setrlimit(resource.RLIMIT_FSIZE, (20 << 20 | 999, 20 << 20 | 999))
try:
    for _ in range(40):
        out.append(raw=bytes(1 << 20))
    out.close()
except StorageFullError as error:
    print(error)
try:  # what was lost is not forgotten: the writer stays given up
    out.close()
except sx.ShardexError as error:
    print(error)
"""


def test_full_disk_raises_and_publishes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"raw": b"old"}], {"raw": bytes})
    before = tree(folder)
    done = subprocess.run([sys.executable, "-c", FULL, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    full, given_up = done.stdout.splitlines()
    assert "cannot write: File too large" in full
    assert "aborted" in given_up
    assert tree(folder) == before


def test_failed_batch_aborts_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = writer(tmp_path / "d", shard_rows=2)
    out.append(samples(1)[0])

    def full(*_: Any) -> None:
        raise StorageFullError(28, "no room", "here")

    monkeypatch.setattr(fragments.DataFileWriter, "write", full)
    with pytest.raises(StorageFullError):
        out.append(samples(1)[0])
    monkeypatch.undo()
    with pytest.raises(ClosedError):
        out.append(samples(1)[0])
    with pytest.raises(ClosedError):
        out.close()
    assert not (tmp_path / "d").exists()


KILLED = """
import sys
import shardex as sx
with sx.create(sys.argv[1], {"n": int}, mode=sys.argv[2], shard_rows=5) as out:
    for k in range(10**9):
        out.append(n=1000 + k)
        if k == 1000:
            print("writing", flush=True)
"""


def killed(folder: Path, mode: str) -> None:
    """Write in a process that is killed while it writes."""
    with subprocess.Popen([sys.executable, "-c", KILLED, str(folder), mode], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_killed_writer_leaves_the_old_version(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"n": k} for k in range(3)], {"n": int})
    killed(folder, mode)
    assert any(name.endswith(".tmp") for name in os.listdir(folder))
    assert numbers(folder) == [0, 1, 2]
    sx.write(folder, [{"n": 3}], {"n": int}, mode="append")
    assert numbers(folder) == [0, 1, 2, 3]


def test_create_after_a_killed_writer(tmp_path: Path) -> None:
    for mode in ("create", "append", "overwrite"):
        folder = tmp_path / mode
        killed(folder, "create")
        with pytest.raises(FormatError):
            sx.open(folder)
        sx.write(folder, [{"n": 3}], {"n": int}, mode=mode)
        assert numbers(folder) == [3]


CRASH = """
import os, shutil, sys
import shardex as sx
from shardex.errors import FormatError, NotFoundError
folder, mode = sys.argv[1:]
old, new = [0, 1, 2], [10, 11, 12, 13]
expected = {"create": new, "append": old + new, "overwrite": new}[mode]
steps = ("fsync", "replace", "link", "unlink", "mkdir", "open", "close")

def write(left):
    def counted(function):
        def step(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                os._exit(9)  # as a kill would: nothing is cleaned up
            return function(*arguments, **options)
        return step
    for name in steps:
        setattr(os, name, counted(getattr(os, name)))
    with sx.create(folder, {"n": int}, mode=mode, shard_rows=2) as out:
        out.extend({"n": n} for n in new)
    os._exit(0)

for count in range(1000):
    shutil.rmtree(folder, ignore_errors=True)
    if mode != "create":
        sx.write(folder, [{"n": n} for n in old], {"n": int}, shard_rows=2)
    child = os.fork()
    if child == 0:
        write(count)
    done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    try:
        found = [sample.n for sample in sx.open(folder)]
    except (FormatError, NotFoundError):
        found = None
    assert found == expected if done else found in (expected, old if mode != "create" else None), (count, found)
    sx.write(folder, [{"n": 99}], {"n": int}, mode="append")
    assert [sample.n for sample in sx.open(folder)] == [*(found or []), 99], count
    if done:
        break
print(count)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_crash_at_any_step_leaves_the_old_or_the_new_version(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", CRASH, str(tmp_path / "d"), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


# -- two writers at once --------------------------------------------------------------------------------------


def test_one_of_two_concurrent_creates_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    first, second = writer(folder), writer(folder)
    for sample in samples(5):
        first.append(sample)
        second.append(sample)
    first.close()
    with pytest.raises(AlreadyExistsError, match="another writer has created a dataset here meanwhile"):
        second.close()
    assert numbers(folder) == [0, 1, 2, 3, 4]  # the loser must not take its equal files away with it


def test_two_concurrent_appends(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(1), SCHEMA)
    first, second = writer(folder, "append"), writer(folder, "append")
    first.append(samples(1, 10)[0])
    second.append(samples(1, 20)[0])
    second.close()
    first.close()
    assert numbers(folder) == [0, 20, 10]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_version_is_removed_while_a_writer_begins(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has listed the versions; then another one appends, and `clean` removes the version that was latest."""
    sx.write(tmp_path / "d", samples(2), SCHEMA)
    find_latest, calls = latest_version, list[int]()

    def latest_before_clean(place: Place) -> int:
        calls.append(version := find_latest(place))
        if len(calls) == 1:
            sx.write(tmp_path / "d", samples(1, 2), SCHEMA, mode="append")
            sx.clean(tmp_path / "d")
        return version

    monkeypatch.setattr(writer_module, "latest_version", latest_before_clean)
    sx.write(tmp_path / "d", samples(1, 3), SCHEMA, mode=mode)
    assert numbers(tmp_path / "d") == ([0, 1, 2, 3] if mode == "append" else [3])
    assert read_manifest(LocalSource(tmp_path / "d"), 3).ids == 4


def test_append_after_a_concurrent_overwrite_with_other_fields_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, samples(1), SCHEMA)
    out = writer(folder, "append")
    out.append(samples(1, 10)[0])
    sx.write(folder, [{"other": 1}], {"other": int}, mode="overwrite")
    with pytest.raises(SchemaError, match=r"expected the fields it has \(other int64\)"):
        out.close()
    assert sx.open(folder)[0] == {"other": 1}


def test_many_concurrent_appends(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [], SCHEMA)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda k: sx.write(folder, samples(2, 10 * k), SCHEMA, mode="append", progress=False), range(16)))
    assert sorted(numbers(folder)) == sorted(10 * k + j for k in range(16) for j in range(2))
    assert latest_version(LocalSource(folder)) == 17


def test_metadata_is_kept_by_every_later_version(tmp_path: Path) -> None:
    about = {"eos": 3, "tokenizer": {"vocab_size": 300}}
    ds = sx.write(tmp_path / "d", [{"x": 1}, {"x": 2}], metadata=about)
    assert ds.metadata == about
    assert ds[:1].rename(x="y").metadata == about
    assert sx.write(tmp_path / "d", [{"x": 3}], mode="append").metadata == about
    with sx.edit(tmp_path / "d") as tx:
        tx.delete([0])
    sx.compact(tmp_path / "d")
    assert (len(sx.open(tmp_path / "d")), sx.open(tmp_path / "d").metadata) == (2, about)
    with pytest.raises(SchemaError, match=r"expected data with the metadata of this dataset, .*eos: 3 and 4"):
        sx.write(tmp_path / "d", [{"x": 4}], mode="append", metadata={**about, "eos": 4})
    assert sx.write(tmp_path / "d", [{"x": 4}], mode="overwrite").metadata == {}
    made = sx.write(tmp_path / "e", ds, transform=lambda sample: sample, workers=1, metadata=about)
    assert made.metadata == about
    sx.recover(tmp_path / "e", tmp_path / "f")
    assert sx.open(tmp_path / "f").metadata == about


def test_a_dataset_without_metadata_has_the_manifest_of_earlier_versions(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}])
    assert b"metadata" not in (tmp_path / "d" / "_shardex" / "00000001.json").read_bytes()
