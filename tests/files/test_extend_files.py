"""Files that are extended together: all of them or none, also after a kill at any step."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from shardex.errors import AlreadyExistsError
from shardex.files import append_together
from shardex.files.append_together import LOCK, extend_together

OLD = {"a": b"old a", "index": b"old"}
NEW = {"a": b"+new a", "b": b"new b", "index": b"+new"}
BOTH = {"a": b"old a+new a", "b": b"new b", "index": b"old+new"}


def folder(path: Path, files: Mapping[str, bytes]) -> str:
    path.mkdir()
    for name, data in files.items():
        (path / name).write_bytes(data)
    return str(path)


def contents(path: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(path).iterdir() if file.is_file()}


def extend(source: str, target: str) -> None:
    extend_together(source, target, ["a", "b"], "index", lambda data, sizes: data)


@pytest.fixture
def new(tmp_path: Path) -> str:
    return folder(tmp_path / "new", NEW)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return folder(tmp_path / "target", OLD)


def test_files_and_index_are_extended(new: str, target: str) -> None:
    seen: list[Any] = []

    def adjust(data: bytes, sizes: Mapping[str, int]) -> bytes:
        seen.append((data, dict(sizes)))
        return data.upper()

    extend_together(new, target, ["a", "b"], "index", adjust)
    assert seen == [(b"+new", {"a": 5, "b": 0})]
    assert contents(target) == {**BOTH, "index": b"old+NEW"}
    assert not os.listdir(os.path.join(target, ".shardex"))


def test_missing_index_is_made(tmp_path: Path, new: str) -> None:
    empty = folder(tmp_path / "empty", {"other": b"kept"})
    extend(new, empty)
    assert contents(empty) == {**NEW, "other": b"kept"}


def failing(step: str, count: int, fail: Callable[[], object]) -> None:
    """Make the count-th call of a step of the publication fail, after it has done its work."""
    original, calls = getattr(append_together, step), iter(range(count, -1, -1))

    def wrapped(*args: Any) -> None:
        original(*args)
        if next(calls, -1) == 0:
            fail()

    setattr(append_together, step, wrapped)


@pytest.mark.parametrize(
    ("step", "count"), [("_make_index", 0), ("_extend_file", 0), ("_extend_file", 1), ("sync_folder", 0)]
)
def test_error_changes_nothing(new: str, target: str, monkeypatch: pytest.MonkeyPatch, step: str, count: int) -> None:
    monkeypatch.setattr(append_together, step, getattr(append_together, step))  # is restored after the test

    def fail() -> None:
        raise KeyboardInterrupt

    failing(step, count, fail)
    with pytest.raises(KeyboardInterrupt):
        extend(new, target)
    assert contents(target) == OLD
    assert not os.listdir(os.path.join(target, ".shardex"))


def _killed(new: str, target: str, step: str, count: int) -> None:
    failing(step, count, lambda: os.kill(os.getpid(), signal.SIGKILL))
    extend(new, target)


@pytest.mark.parametrize(
    ("step", "count", "published"),
    [
        ("_make_index", 0, False),
        ("_extend_file", 0, False),
        ("_extend_file", 1, False),
        ("sync_folder", 0, False),
        ("sync_folder", 1, True),
    ],
)
def test_next_writer_undoes_what_a_killed_one_left(
    new: str, target: str, step: str, count: int, published: bool
) -> None:
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(new, target, step, count))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert contents(target)["index"] == (BOTH if published else OLD)["index"]
    extend(new, target)
    expected = {"a": BOTH["a"] + NEW["a"], "b": NEW["b"] * 2, "index": BOTH["index"] + NEW["index"]}
    assert contents(target) == (expected if published else BOTH)
    assert not os.listdir(os.path.join(target, ".shardex"))


def test_note_that_was_cut_off_is_ignored(new: str, target: str) -> None:
    os.mkdir(os.path.join(target, ".shardex"))
    Path(target, LOCK).write_bytes(b'{"index":"in')
    extend(new, target)
    assert contents(target) == BOTH


def test_note_without_locks_is_refused(new: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(os.path.join(target, ".shardex"))
    Path(target, LOCK).write_bytes(b"{}")

    def no_locks(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(AlreadyExistsError, match="another writer is appending here, or was killed"):
        extend(new, target)
    assert contents(target) == OLD and Path(target, LOCK).exists()


def test_file_that_describes_the_others_must_be_the_same(new: str, target: str) -> None:
    for name, data in (("head", b"same"), ("a", b"")):
        Path(new, name).write_bytes(data)
    extend_together(new, target, ["a", "head"], "index", lambda data, sizes: data, heads=["head"])
    extend_together(new, target, ["a", "head"], "index", lambda data, sizes: data, heads=["head"])
    before = {**OLD, "head": b"same", "index": b"old+new+new"}
    assert contents(target) == before
    Path(new, "head").write_bytes(b"other")
    with pytest.raises(AlreadyExistsError, match="another writer wrote samples with other fields here meanwhile"):
        extend_together(new, target, ["a", "head"], "index", lambda data, sizes: data, heads=["head"])
    assert contents(target) == before and not os.listdir(os.path.join(target, ".shardex"))
