"""columns_tar_session: what the table names is readable whenever a writer is killed; several writers; moved folders."""

import io
import os
import shutil
import signal
import sqlite3
import tarfile
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.compat.formats.columns_tar import session as columns_tar_session
from shardex.compat.formats.columns_tar import table as columns_tar_table
from shardex.compat.formats.columns_tar.lookup import ColumnsLookup
from shardex.compat.formats.columns_tar.session import ColumnsSession
from shardex.errors import ArgumentError, ClosedError, FormatError, PathError, SchemaError, StorageFullError
from shardex.features import codecs

fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def npy(sample: str, field: str, version: int = 0) -> bytes:
    """An array that says which sample and field it belongs to."""
    return codecs.NPY.encode(np.array([f"{sample}|{field}|{version}"] * 200))


def check(root: Path) -> dict[str, dict[str, int]]:
    """Read everything in four ways; return the version of each field of each sample."""
    lookup = ColumnsLookup(str(root))
    ids = [name for (name,) in lookup.table.execute("SELECT id FROM samples ORDER BY id")]
    stored = dict(zip(ids, lookup.samples(ids), strict=True))
    table = [dict(zip(_columns(root), row, strict=True)) for row in lookup.table.execute("SELECT * FROM samples")]
    lookup.close()
    found: dict[str, dict[str, int]] = {}
    for name, sample in stored.items():
        found[name] = {}
        for field, data in sample.arrays.items():
            (content,) = {*codecs.NPY.decode(data).tolist()}
            whose, what, version = content.split("|")
            assert (whose, what) == (name, field)
            found[name][field] = int(version)
    for row in table:
        for field in found[row["id"]]:
            with tarfile.open(root / f"{field}_shards" / f"shard_{row[f'{field}_shard']:04d}.tar") as tar:
                data = tar.extractfile(f"{row['id']}.npy")
                assert data is not None and data.read() == stored[row["id"]].arrays[field]
    if found:
        for sample in sx.open(root):
            versions = {f: int(str(sample[f][0]).split("|")[2]) for f in found[sample.id] if sample[f] is not None}
            assert versions == found[sample.id]
    return found


def has_table(root: Path) -> bool:
    """Whether the writer came so far."""
    if not (root / "index.sqlite").exists():
        return False
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        return bool(table.execute("SELECT 1 FROM sqlite_master WHERE name = 'counters'").fetchall())


def _columns(root: Path) -> list[str]:
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        return [name for _, name, *_ in table.execute("PRAGMA table_info(samples)")]


def offsets_are_true(root: Path) -> bool:
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        for (field,) in table.execute("SELECT name FROM fields").fetchall():
            query = f"SELECT id, {field}_offset, {field}_shard FROM samples WHERE {field}_offset IS NOT NULL"
            for name, offset, shard in table.execute(query):
                with tarfile.open(root / f"{field}_shards" / f"shard_{shard:04d}.tar") as tar:
                    if tar.getmember(f"{name}.npy").offset_data != offset:
                        return False
    return True


def shards(root: Path, field: str) -> dict[str, int]:
    """Number of members of each tar."""
    found = {}
    for path in sorted((root / f"{field}_shards").iterdir()):
        with tarfile.open(path) as tar:
            found[path.name] = len(tar.getnames())
    return found


# -- crashes ------------------------------------------------------------------------------------------------------


def scenario(root: Path, tell: Callable[[str], object]) -> None:
    """Use everything that changes files; `tell` is called with what is committed."""
    session = ColumnsSession(str(root), 3)
    session.add_fields(["a", "b"])
    for number in range(4):
        session.put({f: npy(f"s{number}", f) for f in "ab"}, f"s{number}", '{"n": 1}')
    session.commit()
    tell("s0 s1 s2 s3")
    session.update("s3", {"a": npy("s3", "a", 1)})
    session.update("s0", {f: npy("s0", f, 1) for f in "ab"})
    session.close_tars()
    shard = session.new_shard("a", 0)
    for name in ("s1", "new"):
        shard.add(name, npy(name, "a", 2))
    shard.publish()
    tell("new")
    session.add_fields(["c"])
    for number in range(4):
        session.update(f"s{number}", {"c": npy(f"s{number}", "c")})
    session.close()
    tell("end")


def run_until(event: int, root: Path) -> str:
    """Run the scenario in a process that is killed at an event: a write that is half done, or one of other calls."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        left = [event]

        def interrupted(call: Callable[..., Any]) -> Callable[..., Any]:
            def instead(*arguments: Any) -> Any:
                left[0] -= 1
                if not left[0]:
                    if call is os_pwrite:
                        call(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments)

            return instead

        os_pwrite = os.pwrite
        for name in ("pwrite", "ftruncate", "fsync", "rename"):
            setattr(os, name, interrupted(getattr(os, name)))
        try:
            scenario(root, lambda text: os.write(writing, f"{text} ".encode()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return text


@fork
def test_killed_at_many_moments(tmp_path: Path) -> None:
    """All that was committed is there and right; nothing is named that cannot be read; the next writer goes on."""
    for event in range(1, 1000, 5):
        root = tmp_path / str(event)
        told = run_until(event, root).split()
        found = check(root) if has_table(root) else {}
        assert {*told} - {"end"} <= {*found}
        for name, versions in found.items():
            if name != "new" and "end" not in told:
                assert {*versions} >= {"a", "b"}
        with ColumnsSession(str(root), 3) as again:
            again.add_fields(["a", "b", "c"])
            again.put({f: npy("late", f, 7) for f in "abc"}, "late")
            again.put({"a": npy("s0", "a", 7)}, "s0")
        after = check(root)
        assert after["late"] == {"a": 7, "b": 7, "c": 7}
        assert {name: {**versions, "a": 7} if name == "s0" else versions for name, versions in found.items()} == {
            name: versions for name, versions in after.items() if name in found
        }
        if "end" in told:
            break
        shutil.rmtree(root)
    assert "end" in told
    assert found == {
        "s0": {"a": 1, "b": 1, "c": 0},
        "s1": {"a": 2, "b": 0, "c": 0},
        "s2": {"a": 0, "b": 0, "c": 0},
        "s3": {"a": 1, "b": 0, "c": 0},
        "new": {"a": 2},
    }
    assert offsets_are_true(root)


def test_killed_when_a_shard_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new tar has what the committed rows name, also if an array of them was replaced since."""
    root, rename = tmp_path / "root", os.rename
    session = ColumnsSession(str(root), 1)
    session.add_fields(["x"])
    for name in "ab":
        session.put({"x": npy(name, "x")}, name)
    session.commit()
    shard = session.new_shard("x", 0)
    shard.add("c", npy("c", "x"))
    session.update("a", {"x": npy("a", "x", 1)})

    def copy_then(old: str, new: str) -> None:
        rename(old, new)
        shutil.copytree(root, tmp_path / "killed")

    monkeypatch.setattr(os, "rename", copy_then)
    shard.publish()
    session.close()
    assert check(tmp_path / "killed") == {"a": {"x": 1}, "b": {"x": 0}}
    assert check(root) == {"a": {"x": 1}, "b": {"x": 0}, "c": {"x": 0}}


@fork
def test_slow_producer_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is added some time after the last commit is committed at once."""
    monkeypatch.setattr(columns_tar_session, "_SECONDS", 0.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        session = ColumnsSession(str(tmp_path))
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
        os.write(writing, b"!")
        signal.pause()
    os.read(reading, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert check(tmp_path) == {"a": {"x": 0}}


def test_writer_that_pauses_loses_nothing_and_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_tar_session, "_SECONDS", 0.2)
    session = ColumnsSession(str(tmp_path))
    session.add_fields(["x"])
    while (timer := session._timer) is None:  # the first one may be committed at once
        session.put({"x": npy("a", "x")}, "a")
    timer.join()
    assert not session.table.in_transaction
    assert check(tmp_path) == {"a": {"x": 0}}
    session.put({"x": npy("b", "x")}, "b")
    session.close()
    assert [*check(tmp_path)] == ["a", "b"]


@fork
def test_fork_while_another_thread_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child finds no lock that nobody releases, neither ours nor one of SQLite."""
    monkeypatch.setattr(columns_tar_session, "_SECONDS", 0.0)
    session = ColumnsSession(str(tmp_path))
    session.add_fields(["x"])
    session.put({"x": npy("a", "x")}, "a")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            session.put({"x": npy("b", "x")}, "b")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if not child:
                signal.alarm(20)
                with pytest.raises(ArgumentError, match="after a fork"):
                    session.put({}, "no")
                os._exit(0 if ColumnsLookup(str(tmp_path)).samples(["a"])[0].arrays == {"x": npy("a", "x")} else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    session.close()


def test_full_disk_writes_no_part_of_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ColumnsSession(str(tmp_path))
    session.add_fields(["a", "b"])
    session.put({f: npy("s", f) for f in "ab"}, "s")
    write = os.pwrite

    def fail_in_b(descriptor: int, data: memoryview, at: int) -> int:
        if b"|\0\0\0b" in bytes(data):
            raise OSError(28, "No space left on device")
        return write(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", fail_in_b)
    with pytest.raises(StorageFullError):
        session.update("s", {f: npy("s", f, 1) for f in "ab"})
    with pytest.raises(StorageFullError):
        session.put({f: npy("t", f) for f in "ab"}, "t")
    monkeypatch.undo()
    session.close()
    assert check(tmp_path) == {"s": {"a": 0, "b": 0}}


# -- sessions -----------------------------------------------------------------------------------------------------


def test_next_session_continues_the_last_tar(tmp_path: Path) -> None:
    for _ in range(3):
        with ColumnsSession(str(tmp_path), 4) as session:
            session.add_fields(["x"])
            names = [session.put({"x": b"bytes"}) for _ in range(3)]
    assert names[-1] == "sample_000000000009"
    assert shards(tmp_path, "x") == {"shard_0000.tar": 4, "shard_0001.tar": 4, "shard_0002.tar": 1}
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as table:
        assert table.execute("SELECT * FROM fields").fetchall() == [("x", 3, str(tmp_path / "x_shards"))]
        assert table.execute("SELECT * FROM counters").fetchall() == [("sample_id", 9)]


def test_id_that_was_given_before_is_not_used_for_a_number(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.put({}, "sample_000000000001", '{"mine": 1}')
        assert session.put({}) == "sample_000000000002"


def test_damaged_last_tar_is_left_alone(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
    tar = tmp_path / "x_shards" / "shard_0000.tar"
    damaged = b"\x01" + tar.read_bytes()[1:]
    tar.write_bytes(damaged)
    with ColumnsSession(str(tmp_path)) as session:
        session.put({"x": npy("b", "x")}, "b")
    assert tar.read_bytes() == damaged
    lookup = ColumnsLookup(str(tmp_path))
    assert lookup.samples(["b"])[0].arrays == {"x": npy("b", "x")}
    with pytest.raises(FormatError, match=r"sample 'a', field x: expected the array in .*shard_0000\.tar"):
        lookup.samples(["a"])
    lookup.close()


def test_moved_folder_is_continued_where_it_is(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path / "old")) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    before = (tmp_path / "old" / "x_shards" / "shard_0000.tar").read_bytes()
    with ColumnsSession(str(tmp_path / "new")) as session:
        session.put({"x": npy("b", "x")}, "b")
    assert (tmp_path / "old" / "x_shards" / "shard_0000.tar").read_bytes() == before
    assert check(tmp_path / "new") == {"a": {"x": 0}, "b": {"x": 0}}
    with closing(sqlite3.connect(tmp_path / "new" / "index.sqlite")) as table:
        assert table.execute("SELECT base_dir FROM fields").fetchone() == (str(tmp_path / "new" / "x_shards"),)


@fork
def test_lookup_in_a_forked_child(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
    for lent in (False, True):
        lookup = ColumnsLookup(str(tmp_path))
        lookup.samples(["a"])
        if lent:
            assert lookup.table.execute("SELECT 1").fetchone() == (1,)
        child = os.fork()
        if not child:
            os._exit(0 if lookup.samples(["a"])[0].arrays == {"x": npy("a", "x")} else 1)
        assert lookup.samples(["a"])[0].arrays == {"x": npy("a", "x")}
        assert os.waitpid(child, 0)[1] == 0
        lookup.close()


def test_threads(tmp_path: Path) -> None:
    session = ColumnsSession(str(tmp_path), 7)
    session.add_fields(["x"])
    add = lambda n: [session.put({"x": npy(f"{n}-{k}", "x")}, f"{n}-{k}") for k in range(20)]  # noqa: E731
    threads = [threading.Thread(target=add, args=(n,)) for n in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.close()
    assert len(check(tmp_path)) == 100
    assert {*list(shards(tmp_path, "x").values())[:-1]} == {7}


@fork
def test_two_processes_and_two_sessions(tmp_path: Path) -> None:
    ours, second = ColumnsSession(str(tmp_path), 7), ColumnsSession(str(tmp_path), 7)
    ours.add_fields(["x"])
    for k in range(5):
        for n, session in enumerate((ours, second)):
            session.put({"x": npy(f"{n}-{k}", "x")}, f"{n}-{k}")
            session.commit()
    child = os.fork()
    if not child:
        try:
            with pytest.raises(ArgumentError, match="after a fork"):
                ours.put({}, "no")
            with ColumnsSession(str(tmp_path), 7) as session:
                for k in range(20):
                    session.put({"x": npy(f"child-{k}", "x")}, f"child-{k}")
                    session.commit()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    for k in range(20):
        ours.put({"x": npy(f"late-{k}", "x")}, f"late-{k}")
        ours.commit()
    assert os.waitpid(child, 0)[1] == 0
    ours.close()
    second.close()
    assert len(check(tmp_path)) == 50
    assert {*list(shards(tmp_path, "x").values())[:-1]} == {7}


def test_sessions_of_one_process_do_not_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a notebook makes a writer again, and the first one has samples that are not committed yet."""
    monkeypatch.setattr(columns_tar_session, "_SECONDS", 1e9)
    monkeypatch.setattr(columns_tar_table, "_TIMEOUT", 0.1)
    first = ColumnsSession(str(tmp_path), 3)
    first.add_fields(["x"])
    first.put({"x": npy("a", "x")}, "a")
    second = ColumnsSession(str(tmp_path), 3)
    second.put({"x": npy("b", "x")}, "b")
    first.put({"x": npy("c", "x")}, "c")
    second.put({"x": npy("d", "x")}, "d")
    first.close()
    second.close()
    assert [*check(tmp_path)] == ["a", "b", "c", "d"]
    assert shards(tmp_path, "x") == {"shard_0000.tar": 3, "shard_0001.tar": 1}


def test_open_files_are_few(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ColumnsSession(str(tmp_path), 1) as session:
        session.add_fields(["x"])
        for k in range(100):
            session.put({"x": npy(f"{k}", "x")}, f"{k}")
        assert len(os.listdir("/proc/self/fd")) < before + 40
    before = len(os.listdir("/proc/self/fd"))
    for keep, most in ((True, 70), (False, 8)):
        lookup = ColumnsLookup(str(tmp_path), keep_tars=keep)
        for k in (*range(100), *range(100)):
            assert lookup.samples([f"{k}"])[0].arrays["x"] == npy(f"{k}", "x")
        assert len(os.listdir("/proc/self/fd")) - before < most
        lookup.close()
        assert len(os.listdir("/proc/self/fd")) == before


def test_wrong_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="expected at least one sample per shard, got 0"):
        ColumnsSession(str(tmp_path), 0)
    session = ColumnsSession(str(tmp_path))
    with pytest.raises(SchemaError, match="expected a field name that SQL accepts unquoted"):
        session.add_fields(["fine", "my-field"])
    session.add_fields(["x", "order"])
    with pytest.raises(SchemaError, match="different from the others, got 'X'"):
        session.add_fields(["X"])
    with pytest.raises(ArgumentError, match="Field 'zz' not registered"):
        session.put({"x": b"", "zz": b""}, "a")
    with pytest.raises(SchemaError, match="expected an id that a tar can hold as a name"):
        session.put({}, "a\0")
    with pytest.raises(ArgumentError, match="expected the number of a shard, got -1"):
        session.new_shard("x", -1)
    session.put({"order": npy("a", "order")}, "a")
    session.close()
    session.close()
    assert check(tmp_path) == {"a": {"order": 0}}
    with pytest.raises(ClosedError):
        session.put({}, "b")


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("UPDATE fields SET base_dir = 'x/..'", PathError),
        ("UPDATE samples SET x_shard = '../../x_shards/shard_0000'", PathError),
        ("UPDATE samples SET x_shard = -1", PathError),
        ("UPDATE samples SET x_shard = 5", FileNotFoundError),
    ],
)
def test_table_that_names_other_files(tmp_path: Path, change: str, error: type[Exception]) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
        session.table.execute(change)
    lookup = ColumnsLookup(str(tmp_path))
    with pytest.raises(error):
        lookup.samples(["a"])
    lookup.close()


def test_unpublished_shard_leaves_no_file(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        shard = session.new_shard("x", 0)
        shard.add("a", npy("a", "x"))
        assert len(list((tmp_path / "x_shards").iterdir())) == 1
        del shard
        assert list((tmp_path / "x_shards").iterdir()) == []


@fork
def test_shard_of_a_killed_writer_is_removed(tmp_path: Path) -> None:
    ours = ColumnsSession(str(tmp_path))
    ours.add_fields(["x"])
    shard = ours.new_shard("x", 0)
    shard.add("a", npy("a", "x"))
    ours.commit()
    child = os.fork()
    if not child:
        session = ColumnsSession(str(tmp_path))
        left = session.new_shard("x", 0)
        left.add("b", npy("b", "x"))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(os.listdir(tmp_path / "x_shards")) == 2
    ColumnsSession(str(tmp_path)).close()
    assert len(os.listdir(tmp_path / "x_shards")) == 1
    shard.publish()
    ours.close()
    assert os.listdir(tmp_path / "x_shards") == ["shard_0000.tar"]
    assert check(tmp_path) == {"a": {"x": 0}}


def append_as_the_original_does(root: Path, field: str, samples: dict[str, int]) -> None:
    """Append to the first tar, as a new writer of synthefy-dataset-utils does, with offsets that are not true."""
    offset = 0
    with closing(sqlite3.connect(root / "index.sqlite")) as table:
        (folder,) = table.execute("SELECT base_dir FROM fields WHERE name = ?", (field,)).fetchone()
        with tarfile.open(Path(folder) / "shard_0000.tar", "a") as tar:
            for name, version in samples.items():
                data = npy(name, field, version)
                member = tarfile.TarInfo(f"{name}.npy")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
                table.execute("INSERT OR IGNORE INTO samples (id, meta_json) VALUES (?, '{}')", (name,))
                change = f"UPDATE samples SET {field}_offset = ?, {field}_shard = 0 WHERE id = ?"
                table.execute(change, (offset, name))
                offset += len(data)
        table.commit()


def test_writers_of_the_original_before_and_after(tmp_path: Path) -> None:
    with ColumnsSession(str(tmp_path), 3) as session:
        session.add_fields(["x"])
        for name in "abcd":
            session.put({"x": npy(name, "x")}, name)
    lookup = ColumnsLookup(str(tmp_path))
    lookup.samples(["a", "d"])
    append_as_the_original_does(tmp_path, "x", {"e": 0, "a": 1, "d": 1})
    assert lookup.samples(["a", "d", "e"])[1].arrays["x"] == npy("d", "x", 1)
    lookup.close()
    assert check(tmp_path) == {"a": {"x": 1}, "b": {"x": 0}, "c": {"x": 0}, "d": {"x": 1}, "e": {"x": 0}}
    with ColumnsSession(str(tmp_path), 3) as session:
        session.put({"x": npy("f", "x")}, "f")
        session.update("e", {"x": npy("e", "x", 2)})
    assert check(tmp_path)["e"] == {"x": 2}
    assert shards(tmp_path, "x") == {"shard_0000.tar": 6, "shard_0001.tar": 3}


def test_offset_that_fits_an_older_version_is_not_used(tmp_path: Path) -> None:
    """The sums of sizes that the original stores can be the true offset of what it has replaced."""
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
    append_as_the_original_does(tmp_path, "x", {"a": 1})
    with closing(sqlite3.connect(tmp_path / "index.sqlite")) as table:
        table.execute("UPDATE samples SET x_offset = 512")
        table.commit()
    assert check(tmp_path) == {"a": {"x": 1}}


def test_read_only_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ColumnsSession(str(tmp_path)) as session:
        session.add_fields(["x"])
        session.put({"x": npy("a", "x")}, "a")
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(os, "access", lambda *_: False)
    lookup = ColumnsLookup(str(tmp_path))
    assert lookup.samples(["a"])[0].arrays == {"x": npy("a", "x")}
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        lookup.table.execute("DELETE FROM samples")
    lookup.close()


def test_array_that_moves_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = ColumnsSession(str(tmp_path), 1)
    session.add_fields(["x"])
    for name in "ab":
        session.put({"x": npy(name, "x")}, name)
    session.commit()
    lookup = ColumnsLookup(str(tmp_path))
    lookup.samples(["a"])
    find = lookup._rows

    def move_after(ids: list[str], names: list[str]) -> Any:
        found = find(ids, names)
        monkeypatch.undo()
        session.update("a", {"x": npy("a", "x", 1)})
        shard = session.new_shard("x", 0)
        shard.add("c", npy("c", "x"))
        shard.publish()
        return found

    monkeypatch.setattr(lookup, "_rows", move_after)
    assert [one.arrays["x"] for one in lookup.samples(["a", "b"])] == [npy("a", "x", 1), npy("b", "x")]
    lookup.close()
    session.close()


def test_reader_sees_what_is_committed_meanwhile(tmp_path: Path) -> None:
    session = ColumnsSession(str(tmp_path))
    session.add_fields(["x"])
    lookup = ColumnsLookup(str(tmp_path))
    for k in range(5):
        session.put({"x": npy(f"{k}", "x")}, f"{k}")
        session.put({"x": npy("0", "x", k)}, "0")
        session.commit()
        assert lookup.samples([f"{k}", "0"], ["x"])[1].arrays["x"] == npy("0", "x", k)
    session.add_fields(["y"])
    session.put({"y": npy("1", "y")}, "1")
    session.commit()
    assert set(lookup.samples(["1"])[0].arrays) == {"x", "y"}
    session.close()
    lookup.close()
