"""Version numbers are never used twice, whatever was cleaned; the latest version can always be read."""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import CommitConflict, NotFoundError, SourceError, StorageFullError, VersionExpired
from shardex.files import LATEST_EVERY
from shardex.native import version_numbers, versions_in
from shardex.native.manifest import read_manifest
from shardex.native.version_numbers import (
    BLOCK,
    claim_number,
    latest_version,
    manifest_path,
    remove_versions,
    shrink_tombstones,
)
from shardex.sources import LocalSource, Place, place_of
from shardex.sources.memory import MemorySource
from shardex.store import leftovers, versions

_places = itertools.count()


@pytest.fixture(params=["local", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/d"
    return str(tmp_path / "d") if request.param == "local" else f"memory://numbers/{next(_places)}"


def values(url: str, version: int | None = None) -> list[int]:
    return [sample.x for sample in (sx.open(url) if version is None else sx.open(url, version=version))]


def append(url: str, *xs: int) -> None:
    sx.write(url, [{"x": x} for x in xs], {"x": int}, mode="append", progress=False)


# -- commits after `clean` ----------------------------------------------------------------------------------------


def test_commit_after_its_number_was_cleaned(url: str) -> None:
    """The transaction began at version 1; versions 2 and 3 are published, and 1 and 2 removed: nothing is lost."""
    append(url, 0)
    tx = sx.edit(url)
    tx.append(x=100)
    append(url, 1)
    append(url, 2)
    assert sx.clean(url) == [manifest_path(1), manifest_path(2)]
    tx.commit()
    assert tx.version == 4
    assert values(url) == [0, 1, 2, 100]
    assert [version.number for version in sx.store.history(url)] == [3, 4]


def test_conflict_after_the_number_was_cleaned(url: str) -> None:
    append(url, 0, 1)
    tx = sx.edit(url)
    tx.update(0, x=100)
    for value in (5, 6):
        with sx.edit(url) as other:
            other.update(0, x=value)
    sx.clean(url)
    with pytest.raises(CommitConflict, match="both changed the field x"):
        tx.commit()
    assert values(url) == [6, 1]


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_writer_commits_after_its_number_was_cleaned(url: str, mode: str) -> None:
    append(url, 0)
    out = sx.create(url, {"x": int}, mode=mode)
    out.append(x=100)
    append(url, 1)
    append(url, 2)
    sx.clean(url)
    out.close()
    assert values(url) == ([0, 1, 2, 100] if mode == "append" else [100])
    assert latest_version(place_of(url)) == 4


def test_create_after_the_first_version_was_cleaned(url: str) -> None:
    """A writer that found nothing does not create version 1 again after it was published and removed."""
    out = sx.create(url, {"x": int})
    out.append(x=100)
    append(url, 0)
    append(url, 1)
    sx.clean(url)
    with pytest.raises(FileExistsError, match="another writer has created a dataset here meanwhile"):
        out.close()
    assert values(url) == [0, 1]


def test_compact_after_the_number_was_cleaned(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(url, 0)
    append(url, 1)
    finish = sx.native.data_files.FragmentWriter.finish

    def others_work(writer: Any) -> Any:
        monkeypatch.setattr(sx.native.data_files.FragmentWriter, "finish", finish)
        append(url, 2)
        append(url, 3)
        sx.clean(url)
        return finish(writer)

    monkeypatch.setattr(sx.native.data_files.FragmentWriter, "finish", others_work)
    assert sx.compact(url, progress=False) == 5
    assert values(url) == [0, 1, 2, 3]


def test_restore_after_the_number_was_cleaned(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for x in range(3):
        append(url, x)
    copy = type(place_of(url)).copy

    def others_work(place: Any, path: str, to: str) -> None:
        copy(place, path, to)
        append(url, 3)
        append(url, 4)
        sx.clean(url)

    with sx.edit(url) as tx:
        tx.delete([0, 1, 2])
        tx.append(x=9)
    sx.compact(url, progress=False)
    monkeypatch.setattr(type(place_of(url)), "copy", others_work)
    with pytest.raises(CommitConflict, match="stay the latest while version 3 is restored"):
        sx.store.restore(url, 3)
    assert values(url)[0] == 9


# -- removed versions ------------------------------------------------------------------------------------------------


def test_removed_versions(url: str) -> None:
    for x in range(4):
        append(url, x)
    assert sx.clean(url, keep=2) == [manifest_path(1), manifest_path(2)]
    assert sx.clean(url, keep=2) == []
    place = place_of(url)
    assert versions_in(place) == [3, 4] and latest_version(place) == 4
    assert [version.number for version in sx.store.history(url)] == [3, 4]
    assert values(url, 3) == [0, 1, 2]
    with pytest.raises(VersionExpired, match="version 1 was removed by `clean`; the current one is 4"):
        sx.open(url, version=1)
    with pytest.raises(VersionExpired, match="version 2 was removed"):
        sx.store.restore(url, 2)
    with pytest.raises(NotFoundError, match="no version 7"):
        sx.open(url, version=7)
    assert sx.verify(url) == [] and leftovers(url) == []


def test_names_deleted_by_older_versions_of_shardex_are_used_up(url: str) -> None:
    """The old `clean` deleted the names of manifests; the next `clean` makes their numbers used again."""
    for x in range(5):
        append(url, x)
    place = place_of(url)
    for number in (1, 2, 3):
        place.remove(manifest_path(number))
    assert versions_in(place) == [4, 5] and sx.verify(url) == []
    assert sx.clean(url) == [manifest_path(4)]
    assert not any(claim_number(place, number, "0" * 16, b"{}") for number in range(1, 6))
    assert [version.number for version in sx.store.history(url)] == [5] and sx.verify(url) == []


def test_interrupted_clean(tmp_path: Path) -> None:
    """Some versions have a tombstone and some not, as after a crash: those before a removed one count as removed."""
    for x in range(5):
        append(str(tmp_path), x)
    place = LocalSource(tmp_path)
    for number in (1, 3):
        place.put(manifest_path(number), b'{"removed":""}\n')
    assert [version.number for version in sx.store.history(tmp_path)] == [4, 5] and sx.verify(tmp_path) == []
    assert sx.clean(tmp_path) == [manifest_path(4)]
    assert [version.number for version in sx.store.history(tmp_path)] == [5] and sx.verify(tmp_path) == []


# -- many versions -----------------------------------------------------------------------------------------------------


def many(place: Place, count: int) -> None:
    for number in range(latest_version(place) + 1, count + 1):
        assert claim_number(place, number, f"{number:016x}", b'{"xxh3":"%016x","manifest":{}}' % number)


def test_names_of_removed_versions_do_not_pile_up() -> None:
    place = MemorySource()
    for latest in range(500, 8000, 700):
        many(place, latest)
        assert remove_versions(place, latest - 2)[-1] == latest - 3
        assert versions_in(place) == [latest - 2, latest - 1, latest]
        names = place.paths()
        closed = [name for name in names if name.endswith(".closed")]
        assert len(names) < 2 * BLOCK + 3 + len(closed) and len(closed) <= latest // BLOCK
    assert all(f"_shardex/{number:08d}.closed" in closed for number in (999, 1999, 4999))


def test_number_of_a_closed_block_is_not_used_again() -> None:
    """The name is free, so put-if-absent succeeds, but the commit is void."""
    place = MemorySource()
    many(place, 3 * BLOCK)
    remove_versions(place, 3 * BLOCK - 1)
    assert manifest_path(7) not in place.paths() and manifest_path(BLOCK + 1) in place.paths()
    before = place.paths()
    for number in (1, 7, BLOCK - 1, BLOCK, 2 * BLOCK, 3 * BLOCK):
        assert not claim_number(place, number, "f" * 16, b'{"xxh3":"ffffffffffffffff","manifest":{}}')
    assert place.paths() == before
    assert claim_number(place, 3 * BLOCK + 1, "f" * 16, b'{"xxh3":"ffffffffffffffff","manifest":{}}')


def test_version_of_a_closed_block_was_removed() -> None:
    place = MemorySource()
    many(place, 3 * BLOCK)
    remove_versions(place, 3 * BLOCK)
    with pytest.raises(VersionExpired, match="version 7 was removed by `clean`; the current one is 3000"):
        read_manifest(place, 7)
    with pytest.raises(NotFoundError, match="no version 3001"):
        read_manifest(place, 3 * BLOCK + 1)


def test_block_is_closed_while_the_history_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    append(url := f"memory://numbers/{next(_places)}", 0)
    place = place_of(url)
    manifest = bytes(place.load(manifest_path(1)))
    for number in range(2, 3 * BLOCK + 1):
        place.put(manifest_path(number), manifest)
    read = versions_in

    def read_before_clean(place: Place) -> list[int]:
        numbers = read(place)
        monkeypatch.undo()
        sx.clean(url)
        return numbers

    monkeypatch.setattr(versions, "versions_in", read_before_clean)
    assert [version.number for version in sx.store.history(url)] == [3 * BLOCK]


def test_all_versions_are_removed_while_the_history_is_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(url, 0)

    def read_before_clean(place: Place) -> list[int]:
        numbers = versions_in(place)
        monkeypatch.undo()
        append(url, 1)
        sx.clean(url)
        return numbers

    monkeypatch.setattr(versions, "versions_in", read_before_clean)
    assert [version.number for version in sx.store.history(url)] == [2]


class _Stopped(MemorySource):
    """A place whose writer stops right after its put-if-absent, while others work."""

    work: Callable[[], None] | None = None

    def put_if_absent(self, path: str, data: Any) -> bool:
        done = super().put_if_absent(path, data)
        if self.work is not None and path.endswith(".json"):
            work, self.work = self.work, None
            work()
        return done


def test_writer_that_stops_after_its_commit() -> None:
    """Others publish and remove versions meanwhile: the commit is valid, or the outcome is not known; never void."""
    for later in (2, BLOCK - 7, 2 * BLOCK - 8):
        place = _Stopped()
        many(place, 6)

        def others_work(place: MemorySource = place, later: int = later) -> None:
            many(place, 7 + later)
            remove_versions(place, 7 + later)

        place.work = others_work
        assert claim_number(place, 7, "f" * 16, b'{"xxh3":"ffffffffffffffff","manifest":{}}')
    place = _Stopped()
    many(place, 6)

    def much_work() -> None:
        many(place, 3 * BLOCK)
        remove_versions(place, 3 * BLOCK)

    place.work = much_work
    with pytest.raises(CommitConflict, match="the outcome is not known"):
        claim_number(place, 7, "f" * 16, b'{"xxh3":"ffffffffffffffff","manifest":{}}')


def test_void_commit_is_not_kept_by_a_slow_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """One `clean` has listed the names before another closed a block; a void commit does not become a valid one."""
    place = MemorySource()
    many(place, 3 * BLOCK)
    listed = version_numbers._listed(place)
    remove_versions(place, 3 * BLOCK)
    mine = b'{"xxh3":"ffffffffffffffff","manifest":{}}'
    place.put_if_absent(manifest_path(7), mine)
    monkeypatch.setattr(version_numbers, "_listed", lambda source: listed)
    remove_versions(place, 3 * BLOCK)
    monkeypatch.undo()
    assert place.files.get(manifest_path(7)) in (None, mine)


def test_answer_of_the_first_attempt_was_lost() -> None:
    """A store may create the file, lose the answer, and refuse the second attempt: the number is ours, also cleaned."""
    place = MemorySource()
    mine = b'{"xxh3":"ffffffffffffffff","manifest":{}}'
    place.put(manifest_path(1), mine)
    assert claim_number(place, 1, "f" * 16, mine)
    many(place, 3)
    remove_versions(place, 3)
    assert claim_number(place, 1, "f" * 16, mine) and not claim_number(place, 2, "f" * 16, mine)


# -- at the same time ------------------------------------------------------------------------------------------------


def test_appends_with_cleaners_at_the_same_time(url: str) -> None:
    """No append of several writers is lost while others clean, and a reader always finds the latest version."""
    append(url, -1)
    turns = 4 if url.startswith("s3") else 12
    ended = threading.Event()

    def write(who: int) -> None:
        for turn in range(turns):
            append(url, who * turns + turn)

    def clean(_: int) -> None:
        while not ended.is_set():
            sx.clean(url)
            values(url)

    with ThreadPoolExecutor(5) as pool:
        cleaners = [pool.submit(clean, k) for k in range(2)]
        for one in [pool.submit(write, who) for who in range(3)]:
            one.result()
        ended.set()
        for one in cleaners:
            one.result()
    assert sorted(values(url)) == list(range(-1, 3 * turns))
    assert latest_version(place_of(url)) == 3 * turns + 1


def test_files_of_a_restored_version_are_never_removed(tmp_path: Path) -> None:
    """`clean` is about to remove old files when a version with them is restored: the new version has its own."""
    folder = tmp_path / "d"
    append(str(folder), 0, 1)
    sx.write(folder, [{"x": 9}], {"x": int}, mode="overwrite")
    old = time.time() - 7200
    for file in (folder / "data").iterdir():
        os.utime(file, (old, old))
    place = LocalSource(folder)
    waste = [file.path for file in read_manifest(place, 1).fragments[0].groups]
    assert sx.store.restore(folder, 1) == 3
    for path in waste:
        place.remove(path)
    sx.clean(folder)
    assert values(str(folder)) == [0, 1] and sx.verify(folder) == []
    assert sx.open(folder).fingerprint is not None


@pytest.mark.parametrize("copies_first", [True, False])
def test_restore_between_the_two_steps_of_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies_first: bool
) -> None:
    """`clean` has looked at the age of a file and is about to remove it: the restored version is readable, or none."""
    folder = tmp_path / "d"
    append(str(folder), 0, 1)
    sx.write(folder, [{"x": 9}], {"x": int}, mode="overwrite")
    old = time.time() - 7200
    for file in (folder / "data").iterdir():
        os.utime(file, (old, old))
    began, may_copy, ended = threading.Event(), threading.Event(), threading.Event()
    copy, remove = LocalSource.copy, LocalSource.remove

    def slow_copy(place: LocalSource, path: str, to: str) -> None:
        began.set()
        assert may_copy.wait(60)
        copy(place, path, to)

    def slow_remove(place: LocalSource, path: str) -> None:
        if path.startswith("data/") and copies_first:
            may_copy.set()
            assert ended.wait(60)
        remove(place, path)

    def restore() -> int:
        try:
            return sx.store.restore(folder, 1)
        finally:
            ended.set()

    monkeypatch.setattr(LocalSource, "copy", slow_copy)
    monkeypatch.setattr(LocalSource, "remove", slow_remove)
    with ThreadPoolExecutor(1) as pool:
        restored = pool.submit(restore)
        assert began.wait(60)
        assert len(sx.clean(folder)) == 2
        may_copy.set()
        if copies_first:
            assert restored.result() == 3 and values(str(folder)) == [0, 1]
        else:
            with pytest.raises(NotFoundError):
                restored.result()
            assert values(str(folder)) == [9]
    assert sx.verify(folder) == []


def test_restore_of_a_version_whose_files_are_gone_raises(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    append(str(folder), 0, 1)
    sx.write(folder, [{"x": 9}], {"x": int}, mode="overwrite")
    place = LocalSource(folder)
    place.remove(read_manifest(place, 1).fragments[0].groups[0].path)
    with pytest.raises(NotFoundError):
        sx.store.restore(folder, 1)
    assert latest_version(place) == 2 and values(str(folder)) == [9]


def test_rewrite_of_equal_content_uses_no_old_file(tmp_path: Path) -> None:
    """`clean` is about to remove an old file when equal samples are written again."""
    folder = tmp_path / "d"
    append(str(folder), 0, 1)
    place = LocalSource(folder)
    waste = [file.path for file in read_manifest(place, 1).fragments[0].groups]
    sx.write(folder, [{"x": 9}], {"x": int}, mode="overwrite")
    sx.write(folder, [{"x": 0}, {"x": 1}], {"x": int}, mode="overwrite")
    for path in waste:
        place.remove(path)
    assert values(str(folder)) == [0, 1]


def test_clean_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without space for a tombstone, the beginning of the manifest becomes one."""
    folder = str(tmp_path / "d")
    for x in range(4):
        append(folder, x)
    real = LocalSource.put

    def put(place: LocalSource, path: str, data: Any) -> None:
        if len(data):
            raise StorageFullError(errno.ENOSPC, "No space left on device", path)
        real(place, path, data)

    monkeypatch.setattr(LocalSource, "put", put)
    assert sx.clean(folder) == [manifest_path(number) for number in (1, 2, 3)]
    monkeypatch.undo()
    assert [version.number for version in sx.store.history(folder)] == [4] and sx.verify(folder) == []
    with pytest.raises(VersionExpired, match="version 2 was removed"):
        sx.open(folder, version=2)
    assert not claim_number(LocalSource(folder), 2, "0" * 16, b"{}")
    assert LocalSource(folder).stat(manifest_path(2)).size > 100
    shrink_tombstones(LocalSource(folder), [1, 2, 3, 4, 5])
    assert [LocalSource(folder).stat(manifest_path(number)).size > 100 for number in (1, 2, 3, 4)] == [False] * 3 + [
        True
    ]
    with pytest.raises(VersionExpired, match="version 2 was removed"):
        sx.open(folder, version=2)
    append(folder, 4)
    assert values(folder) == [0, 1, 2, 3, 4]


def test_commit_succeeds_if_the_look_at_its_closed_block_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is published by then: an error would be wrong."""
    append(folder := str(tmp_path / "d"), 0)
    real = LocalSource.stat

    def stat(place: LocalSource, path: str) -> Any:
        if path.endswith(".closed"):
            raise SourceError(errno.EIO, "Input/output error", path)
        return real(place, path)

    monkeypatch.setattr(LocalSource, "stat", stat)
    append(folder, 1)
    assert values(folder) == [0, 1]


# -- the file that names a late version ---------------------------------------------------------------------------


def listed(folder: Path) -> int:
    return max(int(path.stem) for path in (folder / "_shardex").glob("*.json"))


def test_latest_version_is_found_without_listing_many_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, lists = LocalSource(tmp_path), list[str]()

    def paths(self: LocalSource, prefix: str = "") -> list[str]:
        lists.append(prefix)
        return []

    monkeypatch.setattr(LocalSource, "paths", paths)
    for number in range(1, 3 * LATEST_EVERY):
        assert claim_number(place, number, f"{number:016x}", b"{}")
        lists.clear()
        if number >= LATEST_EVERY:
            assert latest_version(place) == number and not lists
    assert (tmp_path / "_shardex" / "latest").read_text() == f"{2 * LATEST_EVERY}\n"


@pytest.mark.parametrize("content", [b"", b"x", b"9999999999", b"-1", b"7", b"64", b"200", b"\xff\xfe", None])
def test_a_wrong_or_missing_latest_file_changes_nothing(tmp_path: Path, content: bytes | None) -> None:
    place = LocalSource(tmp_path)
    for number in range(1, 3 * LATEST_EVERY + 5):
        place.put_if_absent(manifest_path(number), b"{}")
    if content is not None:
        place.put("_shardex/latest", content)
    assert latest_version(place) == listed(tmp_path)


def test_lost_names_do_not_hide_later_versions(tmp_path: Path) -> None:
    place = LocalSource(tmp_path)
    for number in range(1, 2 * LATEST_EVERY):
        claim_number(place, number, "", b"{}")
    for number in (LATEST_EVERY - 3, LATEST_EVERY + 1, LATEST_EVERY + 2, LATEST_EVERY + 9):
        place.remove(manifest_path(number))
        assert latest_version(place) == 2 * LATEST_EVERY - 1
    place.remove(manifest_path(2 * LATEST_EVERY - 1))
    assert latest_version(place) == 2 * LATEST_EVERY - 2
    place.remove(manifest_path(LATEST_EVERY))
    assert latest_version(place) == 2 * LATEST_EVERY - 2


def test_the_latest_file_is_no_leftover(tmp_path: Path) -> None:
    folder = str(tmp_path / "d")
    for x in range(LATEST_EVERY + 2):
        append(folder, x)
    assert leftovers(folder) == [] and values(folder) == list(range(LATEST_EVERY + 2))
    sx.clean(folder, grace=0)
    assert leftovers(folder) == [] and values(folder) == list(range(LATEST_EVERY + 2))
    append(folder, -1)
    assert values(folder)[-1] == -1


def test_a_pipe_instead_of_the_latest_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, [{"x": 9}])
    os.mkfifo(folder / "_shardex" / "latest")
    assert latest_version(LocalSource(folder)) == 1 and values(str(folder)) == [9]
