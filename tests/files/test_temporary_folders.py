"""Temporary folders of writers that were killed are removed by the next one; those of living writers stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.files import Stage
from shardex.files.temporary_folders import FolderLock, remove_abandoned, temporary_name

KILLED = """
import os, signal, sys
import shardex as sx
out = sx.create(sys.argv[1], {"t": str}, format=sys.argv[2] or None)
out.extend({"t": "y" * 4000} for _ in range(3000))
os.kill(os.getpid(), signal.SIGKILL)
"""


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("name", "format"), [("d", "jsonl"), ("d.parquet", ""), pytest.param("d", "tar", marks=pytest.mark.long)]
)
def test_the_next_writer_removes_what_a_killed_one_left(tmp_path: Path, name: str, format: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name), format], check=False)
    assert done.returncode == -signal.SIGKILL and len(leftovers(tmp_path)) == 1
    options: Any = {"format": format} if format else {}
    sx.write(tmp_path / f"other-{name}", [{"t": "a"}], **options)
    assert len(leftovers(tmp_path)) == 1
    assert len(sx.write(tmp_path / name, [{"t": "a"}], **options)) == 1
    assert leftovers(tmp_path) == []


def test_folders_of_living_writers_stay(tmp_path: Path) -> None:
    first = Stage(tmp_path / "d", "create")
    first.place.put("a", b"1")
    second = Stage(tmp_path / "d", "append")
    second.place.put("b", b"2")
    assert len(leftovers(tmp_path)) == 2
    first.publish()
    second.publish()
    assert sorted(os.listdir(tmp_path / "d"))[-2:] == ["a", "b"] and leftovers(tmp_path) == []


def test_a_lock_ends_with_the_writer_also_in_its_forked_processes(tmp_path: Path) -> None:
    folder = str(tmp_path / temporary_name(".d.", ".tmp"))
    lock = FolderLock(folder, os.mkdir)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock._descriptor])
    remove_abandoned(folder)
    assert os.path.isdir(folder)
    lock.release()
    lock.release()
    remove_abandoned(folder)
    assert not os.path.exists(folder)
    child.communicate()


def test_other_folders_stay(tmp_path: Path) -> None:
    folder = tmp_path / temporary_name(".d.", ".tmp")
    machine = folder.name[3:7]
    other = f"{int(machine, 16) ^ 1:04x}"
    stay = [f".d.{other}00000000.tmp", f".d.{machine}0000000.tmp", f".e.{machine}00000000.tmp", "d"]
    for name in stay:
        (tmp_path / name).mkdir()
    kept = tmp_path / f".d.{machine}00000001.tmp"
    (kept / ".replaced").mkdir(parents=True)
    (tmp_path / f".d.{machine}00000002.tmp").symlink_to("d")
    remove_abandoned(str(folder))
    assert {*os.listdir(tmp_path)} == {*stay, kept.name, f".d.{machine}00000002.tmp"}
    (kept / ".replaced").rmdir()
    remove_abandoned(str(folder))
    assert not kept.exists()
    remove_abandoned(str(tmp_path / "nowhere" / folder.name))


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    made = list[str]()

    def make(folder: str) -> None:
        os.mkdir(folder)
        made.append(folder)
        if len(made) == 1:  # another writer takes it for abandoned
            real = os.open

            def replaced(path: str, flags: int) -> int:
                os.open = real
                descriptor = real(path, flags)
                os.rmdir(path)
                return descriptor

            os.open = replaced  # type: ignore[assignment]

    lock = FolderLock(str(tmp_path / "f"), make)
    assert len(made) == 2 and os.path.isdir(tmp_path / "f")
    lock.release()


def test_a_folder_that_is_removed_before_it_is_opened_is_made_again(tmp_path: Path) -> None:
    made = []

    def make(folder: str) -> None:
        os.mkdir(folder)
        made.append(folder)
        if len(made) < 3:
            os.rmdir(folder)

    FolderLock(str(tmp_path / "a"), make).release()
    assert len(made) == 3 and os.path.isdir(tmp_path / "a")
