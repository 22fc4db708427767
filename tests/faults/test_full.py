"""No disk space, no permission, too many open files: an error that names the path, and an unchanged dataset."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import AccessDeniedError, ClosedError, StorageFullError
from shardex.sources import LocalSource
from shardex.store import clean
from tests.faults import jobs as does
from tests.faults.machine import ext4, make_image, memory, remount, why_no_ext4, why_no_memory
from tests.faults.processes import FULL, Jobs
from tests.faults.states import Models, check_usable, drafts, files, state

WRITING = [name for name in does.EDITS if name != "clean"]

needs_memory = pytest.mark.skipif(bool(why_no_memory()), reason=why_no_memory())
needs_ext4 = pytest.mark.skipif(bool(why_no_ext4()), reason=why_no_ext4())


@pytest.fixture(params=[pytest.param("memory", marks=needs_memory), pytest.param("ext4", marks=needs_ext4)])
def disk(request: pytest.FixtureRequest, room: Path) -> Iterator[Path]:
    """A small file system."""
    if request.param == "memory":
        with memory(room / "disk", "1m") as there:
            yield there
    else:
        make_image(room / "image", 2 << 20)
        with ext4(room / "image", room / "disk") as there:
            yield there


def fill(disk: Path, room: int = 0) -> Path:
    """Fill the disk, except so many bytes."""
    filler = disk / "filler"
    size = 0
    with filler.open("wb", buffering=0) as file:
        for step in (1 << 16, 1 << 10):
            try:
                while True:
                    size += file.write(b"x" * step)
            except OSError:
                pass
        os.fsync(file.fileno())
        file.truncate(max(0, size - room))
        os.fsync(file.fileno())
    return filler


def refused(name: str, disk: Path, free: int) -> str:
    """Edit a dataset with so many free bytes; return the error, if there were not enough."""
    filler = fill(disk, free)
    try:
        does.EDITS[name](str(disk / "d"))
    except StorageFullError as error:
        return str(error)
    finally:
        filler.unlink()
    return ""


@pytest.mark.parametrize("name", WRITING)
def test_full_after_any_number_of_blocks(name: str, models: Models, disk: Path) -> None:
    """With a little more space each time: the edit fails or is done completely."""
    old, new = models.begin(name, disk / "d"), models.new(name)
    free = 0
    while error := refused(name, disk, free):
        assert str(disk / "d") in error
        assert state(disk / "d") == old and not drafts(disk / "d")
        free += 1024 if FULL else 5 * 1024
    assert free > 0
    assert state(disk / "d") == new
    check_usable(disk / "d", new)


def test_a_full_disk_can_be_cleaned(disk: Path) -> None:
    """Removing old versions needs no space and frees some."""
    does.make(str(disk / "d"))
    does.fold(str(disk / "d"))
    expected = state(disk / "d")
    fill(disk)
    with pytest.raises(StorageFullError):
        does.append(str(disk / "d"))
    assert len(clean(disk / "d", grace=0)) > 4
    assert state(disk / "d") == {5: expected[5]}
    assert files(disk / "d") == set(LocalSource(disk / "d").paths())
    does.append(str(disk / "d"))
    assert len(sx.open(disk / "d")) == 8


def append_much(tx: sx.store.Edit) -> None:
    tx.extend({**does.sample(k), "s": "x" * 70_000, "e": k} for k in range(100, 1000))


def update_much(tx: sx.store.Edit) -> None:
    for k in range(1000):
        tx.update(1, s=str(k) * 70_000)


def add_much(tx: sx.store.Edit) -> None:
    tx.add_field("f", str, ["x" * 1_000_000] * 6)


@pytest.mark.parametrize("much", [append_much, update_much])
def test_commit_after_a_failed_write_raises(much: Callable[[sx.store.Edit], None], disk: Path) -> None:
    """A transaction that failed to write some values never commits the others."""
    does.make(str(disk / "d"))
    old = state(disk / "d")

    def ignoring() -> None:
        with sx.edit(disk / "d") as tx, pytest.raises(StorageFullError):
            much(tx)

    with pytest.raises(ClosedError, match="expected an open transaction"):
        ignoring()
    assert state(disk / "d") == old and not drafts(disk / "d")
    check_usable(disk / "d", old)


def test_commit_after_a_failed_add_field_keeps_the_rest(disk: Path) -> None:
    """A field is added completely or not at all, so the transaction stays usable."""
    does.make(str(disk / "d"))
    with sx.edit(disk / "d", progress=False) as tx:
        with pytest.raises(StorageFullError):
            add_much(tx)
        assert not drafts(disk / "d")
        tx.update(1, s="changed")
    assert tx.version == 5 and "f" not in sx.open(disk / "d").fields


def test_close_after_a_failed_append_raises(disk: Path) -> None:
    """The same for a new dataset."""

    def ignoring() -> None:
        with sx.create(disk / "d", {"s": str}) as out, pytest.raises(StorageFullError):
            out.extend({"s": "x" * 70_000} for _ in range(100))

    with pytest.raises(ClosedError):
        ignoring()
    assert not (disk / "d").exists()
    does.create(str(disk / "d"))


@pytest.mark.parametrize("name", does.EDITS)
def test_read_only(name: str, models: Models, disk: Path) -> None:
    """On a read-only file system reads work, and edits raise an error about access."""
    old, new = models.begin(name, disk / "d"), models.new(name)
    remount(disk, "ro")
    with pytest.raises(AccessDeniedError, match=re.escape(str(disk / "d"))):
        does.EDITS[name](str(disk / "d"))
    assert state(disk / "d") == old
    remount(disk, "rw")
    assert not drafts(disk / "d")
    does.EDITS[name](str(disk / "d"))
    assert state(disk / "d") == new


def limited(jobs: Jobs, name: str, models: Models, room: Path, limits: list[dict[str, int]], error: str) -> None:
    """Run an edit under each limit: it fails with this error or is done completely."""
    new, seen = models.new(name), set()
    for limit in limits:
        old = models.begin(name, room / "d")
        words = jobs.run(name, room / "d", limits=limit)
        seen.add(words.partition(" ")[0])
        if words != "done":
            assert re.match(rf"{error} .*{re.escape(str(room / 'd'))}", words), f"{limit}: {words}"
        assert state(room / "d") == (new if words == "done" else old), f"{limit}: {words}"
        assert not drafts(room / "d")
    assert len(seen) == 2


@pytest.mark.parametrize("name", WRITING)
def test_file_size_limit(name: str, jobs: Jobs, models: Models, room: Path) -> None:
    """`ulimit -f`."""
    sizes = range(0, 6000, 16 if FULL else 500)
    limited(jobs, name, models, room, [{"size": size} for size in sizes], "StorageFullError")


@pytest.mark.parametrize("name", does.EDITS)
def test_open_file_limit(name: str, jobs: Jobs, models: Models, room: Path) -> None:
    """`ulimit -n`."""
    limited(jobs, name, models, room, [{"files": count} for count in range(4)], r"SourceError \[Errno 24\] cannot")
