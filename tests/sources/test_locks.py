"""A lock between processes: one holder at a time, released by death, and not kept by a forked child.
`SharedFolder`: temporary folders that several runs use at the same time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shardex.errors import NotFoundError
from shardex.sources import locks, open_source
from tests.waiting import becomes_true

HOLD = """
import os, sys, time
from shardex.sources.locks import locked_file
with locked_file(sys.argv[1]) as held:
    held.note(b"from a process")
    child = os.fork() if sys.argv[2] == "fork" else -1
    if child == 0:
        time.sleep(600)
        os._exit(0)
    print(child, flush=True)
    time.sleep(600)
"""


@contextmanager
def holder(path: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock, with a forked child if asked, which outlives it."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path), how], stdout=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        child = int(one.stdout.readline())
        try:
            yield one
        finally:
            one.kill()
            if child > 0:
                os.kill(child, signal.SIGKILL)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path, inside, most = str(tmp_path / "a.lock"), list[int](), list[int]()

    def run() -> None:
        for _ in range(30):
            with locks.locked_file(path, waiting=lambda noted: None) as held:
                assert held is not None and held.is_locked and held.left == b""
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 120 and set(most) == {1}
    assert list(tmp_path.iterdir()) == []


def test_who_waits_sees_what_the_holder_has_noted(tmp_path: Path) -> None:
    path, seen = str(tmp_path / "a.lock"), list[bytes]()

    def wait() -> None:
        with locks.locked_file(path, waiting=seen.append):
            seen.append(b"mine")

    with locks.locked_file(path) as held:
        assert held is not None
        held.note(b"first")
        thread = threading.Thread(target=wait)
        thread.start()
        assert becomes_true(lambda: b"first" in seen)
        held.note(b"2nd")
        assert held.noted() == b"2nd"
    thread.join()
    assert seen[-1] == b"mine"


def test_without_waiting(tmp_path: Path) -> None:
    with locks.locked_file(str(tmp_path / "a.lock")), locks.locked_file(str(tmp_path / "a.lock"), wait=False) as second:
        assert second is None
        with locks.locked_file(str(tmp_path / "b.lock"), wait=False) as other:
            assert other is not None


@pytest.mark.parametrize("how", ["", "fork"])
def test_a_killed_holder_leaves_what_it_has_noted(tmp_path: Path, how: str) -> None:
    """Its forked child, which lives on, does not keep the lock."""
    path = tmp_path / "a.lock"
    with holder(path, how) as one:
        with locks.locked_file(str(path), wait=False) as none:
            assert none is None
        one.send_signal(signal.SIGKILL)
        one.wait()
        with locks.locked_file(str(path)) as held:
            assert held is not None and held.left == b"from a process"
        assert not path.exists()


def leave_in_child(path: str) -> None:
    """Fork while the lock is held; the child leaves the block too."""
    with locks.locked_file(path) as held:
        assert held is not None
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            with locks.locked_file(path, wait=False) as none:
                assert none is None
    if child == 0:
        os._exit(0)


def test_a_forked_child_does_not_remove_the_file(tmp_path: Path) -> None:
    leave_in_child(str(tmp_path / "a.lock"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="cannot create"), locks.locked_file(str(tmp_path / "none" / "a.lock")):
        pass


@pytest.fixture
def local(tmp_path: Path) -> locks.SharedFolder:
    return locks.shared_folder(str(tmp_path), ".out.0.job")


@pytest.fixture
def store(tmp_path: Path) -> locks.SharedFolder:
    return locks.shared_folder(f"memory://{tmp_path.name}", ".out.0.job")


def second(folder: locks.SharedFolder) -> locks.SharedFolder:
    """The same folder as another run opens it."""
    return locks.shared_folder(folder.around.url, folder.name)


def test_the_first_run_sweeps_and_others_do_not(local: locks.SharedFolder) -> None:
    swept: list[str] = []
    with local.opened(lambda: swept.append("first")):
        assert os.path.isdir(local.url)
        other = second(local)
        with other.opened(lambda: swept.append("second")):
            assert not other.is_unused()
        assert local.is_unused()
    with second(local).opened(lambda: swept.append("third")):
        assert swept == ["first", "third"]


def test_one_run_at_a_time_holds_a_lock(local: locks.SharedFolder) -> None:
    local.place.make_root()
    with local.locked("commit.lock") as alone:
        assert alone
    shutil.rmtree(local.url)
    with pytest.raises(FileNotFoundError), local.locked("commit.lock"):
        pass


def test_a_local_folder_ends_by_one_rename(local: locks.SharedFolder) -> None:
    local.place.put("parts/1", b"")
    assert local.exists("fields.json") and not local.is_elsewhere() and not local.is_ended
    removed: list[str] = []

    def remove(name: str) -> None:
        removed.append(name)
        assert local.is_ended and not os.path.exists(local.url)

    local.end(lambda: pytest.fail("noted"), remove)
    assert removed == [".out.0.job", ".out.0.job.removed"]
    assert local.is_elsewhere() and not local.exists("fields.json")


def test_a_folder_that_is_removed_again_and_again(local: locks.SharedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def removed(path: str, *arguments: int, **options: Any) -> int:
        with suppress(OSError):
            os.rmdir(local.url)
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", removed)
    with pytest.raises(NotFoundError, match="removed it again and again"), local.opened(lambda: None):
        pass


def test_a_folder_in_a_store_ends_by_a_note(store: locks.SharedFolder) -> None:
    with store.opened(lambda: pytest.fail("swept")), store.locked("commit.lock") as alone:
        assert not alone and not store.is_unused()
    assert not store.exists("fields.json")
    store.place.put("fields.json", b"")
    assert store.exists("fields.json") and not store.is_elsewhere()
    steps: list[str] = []
    store.end(lambda: steps.append("noted"), steps.append)
    assert steps == ["noted", ".out.0.job"] and not store.is_ended
    assert open_source(store.url).paths() == ["fields.json"]
