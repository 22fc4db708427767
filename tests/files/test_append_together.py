"""Several files that are added to a folder: readers see all of them or none, whenever the writer is killed."""

from __future__ import annotations

import errno
import fcntl
import glob
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, FormatError, NotFoundError, PathError
from shardex.files import Stage, find
from shardex.files.append_together import link_together, undo_unfinished, visible_paths
from shardex.files.publication import put_claimed
from shardex.sources import LocalSource
from shardex.sources.memory import MemorySource


def add(target: Path, *names: str) -> None:
    stage = Stage(target, "append")
    for name in names:
        stage.place.put(name, name.encode())
    stage.publish()


def visible(folder: Path) -> list[str]:
    return [path for path in visible_paths(LocalSource(folder)) if not path.startswith(".shardex/")]


def records(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / ".shardex")) if (folder / ".shardex").exists() else []


@pytest.fixture
def target(tmp_path: Path) -> Path:
    stage = Stage(tmp_path / "set", "create")
    stage.place.put("1", b"1")
    stage.publish()
    return tmp_path / "set"


def unfinished(target: Path, *names: str, linked: int = 1) -> Path:
    """Leave the state of a writer that was killed after some links; returns its record."""
    (target / ".shardex").mkdir(exist_ok=True)
    inodes = {}
    for name in names:
        (target.parent / f"staged-{name}").write_text("killed")
        inodes[name] = (target.parent / f"staged-{name}").stat().st_ino
    for name in names[:linked]:
        os.link(target.parent / f"staged-{name}", target / name)
    record = target / ".shardex" / "append-000001.pending"
    record.touch()
    return write_record(record, inodes)


def write_record(record: Path, inodes: dict[str, int]) -> Path:
    record.write_text(json.dumps({"record": record.stat().st_ino, "files": inodes}))
    return record


def test_append_of_one_file_needs_no_record(target: Path) -> None:
    add(target, "2")
    assert visible(target) == ["1", "2"] and records(target) == []


def test_only_the_last_record_is_kept(target: Path) -> None:
    for number in range(1, 4):
        add(target, f"{number}a", f"{number}b")
        assert records(target) == [f"append-{number:06d}.done"]
    assert visible(target) == ["1", "1a", "1b", "2a", "2b", "3a", "3b"]


def test_leftovers_are_ignored_and_then_removed(target: Path) -> None:
    unfinished(target, "2", "3", "4", linked=2)
    assert visible(target) == ["1"] and find(target).paths == ("1", ".shardex/append-000001.pending")
    assert find(f"{target}/*").paths == ("1",) and find([target]).paths == ("1",)
    assert find(target / "2").paths == ("2",)  # a file that is named
    add(target, "2", "3")
    assert visible(target) == ["1", "2", "3"] and (target / "2").read_text() == "2"
    assert records(target) == ["append-000002.done"]


def test_overwrite_removes_leftovers(target: Path) -> None:
    unfinished(target, "2", "3")
    stage = Stage(target, "overwrite")
    stage.place.put("9", b"9")
    stage.publish()
    assert visible(target) == ["9"] and records(target) == []


def test_append_that_runs_is_not_undone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it links its files, readers see the old state, and another writer leaves its files alone."""
    (target.parent / "staged").mkdir()
    for name in ("2", "3"):
        (target.parent / "staged" / name).write_text("mine")
    link, seen = os.link, list[Any]()

    def link_and_look(source: str, place: str) -> None:
        link(source, place)
        undo_unfinished(str(target))
        seen.append((visible(target), sorted(os.listdir(target))))
        if place.endswith("2"):
            assert Stage(target, "append").existing[:3] == ["1", "2", "3"]

    monkeypatch.setattr(os, "link", link_and_look)
    link_together(str(target.parent / "staged"), str(target), ["2", "3"])
    assert seen == [(["1"], [".shardex", "1", "2", "3"][:count]) for count in (2, 3, 4)]
    assert visible(target) == ["1", "2", "3"]


def test_append_that_ends_while_another_writer_begins_is_not_undone(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer finds a pending record; it is renamed, and its lock released, before that writer looks at it."""
    record = unfinished(target, "2", "3", linked=2)
    flock = fcntl.flock

    def end_first(file: Any, how: int) -> None:
        record.rename(record.with_suffix(".done"))
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", end_first)
    undo_unfinished(str(target))
    assert visible(target) == ["1", "2", "3"] and records(target) == ["append-000001.done"]


@pytest.mark.parametrize("name", ["set", "claims"])
def test_append_that_ends_while_the_folder_is_listed(name: str, tmp_path: Path) -> None:
    """The record that was listed is gone when it is read."""
    (folder := tmp_path / name).mkdir()
    record = unfinished(folder, "2", "3", linked=2)

    class Ends(LocalSource):
        def paths(self, prefix: str = "") -> list[str]:
            found = super().paths(prefix)
            if record.exists():
                record.rename(record.with_suffix(".done"))
            return found

    assert visible_paths(Ends(folder)) == [".shardex/append-000001.done", "2", "3"]


def test_append_to_a_folder_inside_that_ends_while_it_is_listed(target: Path) -> None:
    """One of two files was linked when its folder was listed, and the append ends before its records are listed."""
    record = unfinished(target, "2", "3", linked=1)

    class Ends(LocalSource):
        def paths(self, prefix: str = "") -> list[str]:
            found = super().paths(prefix)
            if not record.exists():
                return found
            os.link(target.parent / "staged-3", target / "3")
            record.rename(record.with_suffix(".done"))
            return [path.replace(".pending", ".done") for path in found]

    found = visible_paths(Ends(target.parent))
    assert [path for path in found if path.startswith("set/")] == [
        f"set/{name}" for name in (".shardex/append-000001.done", "1", "2", "3")
    ]


def test_append_that_ends_while_a_glob_is_expanded(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two files was linked when the folder was listed, and the append ends before its record is read."""
    record = unfinished(target, "2", "3", linked=1)
    expand = glob.glob

    def end_after(pattern: str, *, recursive: bool) -> list[str]:
        found = expand(pattern, recursive=recursive)
        if record.exists():
            os.link(target.parent / "staged-3", target / "3")
            record.rename(record.with_suffix(".done"))
        return found

    monkeypatch.setattr(glob, "glob", end_after)
    assert find(f"{target}/*").paths == ("1", "2", "3")


def test_files_of_others_are_not_removed(target: Path) -> None:
    unfinished(target, "2", "3", "1", linked=1)
    undo_unfinished(str(target))
    assert visible(target) == ["1"] and (target / "1").read_text() == "1"


def test_published_files_are_not_hidden_by_another_writer(target: Path) -> None:
    """Two writers chose the same names; one has published, the other was killed before it could undo its record."""
    record = unfinished(target, "2", "3", linked=0)
    os.rename(record, record.with_name("append-000002.pending"))
    for name in ("2", "3"):
        (target / name).write_text("published")
    assert visible(target) == ["1", "2", "3"] and len(find(f"{target}/*").paths) == 3
    add(target, "4", "5")
    assert visible(target) == ["1", "2", "3", "4", "5"] and records(target) == ["append-000003.done"]


def test_one_of_several_appenders_succeeds(target: Path) -> None:
    stages = [Stage(target, "append") for _ in range(6)]
    for number, stage in enumerate(stages):
        for name in ("2", "3", "4"):
            stage.place.put(name, str(number).encode())
    won: list[int] = []

    def work(number: int) -> None:
        try:
            stages[number].publish()
            won.append(number)
        except AlreadyExistsError:
            stages[number].discard()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and visible(target) == ["1", "2", "3", "4"]
    assert {(target / name).read_text() for name in "234"} == {str(won[0])}
    assert not [name for name in records(target) if name.endswith("pending")]


def test_copy_of_an_unfinished_append_is_ignored(target: Path, tmp_path: Path) -> None:
    unfinished(target, "2-00001.x", "2-00002.x")
    shutil.copytree(target, tmp_path / "copy")
    stage = Stage(tmp_path / "copy", "append")
    assert stage.next_number("2", ".x") == 3
    stage.discard()
    assert visible(tmp_path / "copy") == ["1"]


def test_failed_append_is_undone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def fail(source: str, place: str) -> None:
        if source.endswith("1.pending") and not failed:
            failed.append(place)
            raise OSError(5, "no")
        rename(source, place)

    failed: list[str] = []
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="no"):
        add(target, "2", "3")
    assert visible(target) == ["1"] and not (target / "2").exists()
    assert records(target) == ["append-000001.done"]


def test_folders_of_an_unfinished_append_are_removed(target: Path) -> None:
    (target / "inner").mkdir()
    (target / "inner" / "mine").touch()
    names = ("new/2", "inner/3")
    staged = target.parent / "staged"
    for name in names:
        (staged / name).parent.mkdir(parents=True)
        (staged / name).touch()
    record = target / ".shardex" / "append-000001.pending"
    record.parent.mkdir()
    record.touch()
    write_record(record, {name: (staged / name).stat().st_ino for name in names})
    (target / "new").mkdir()
    for name in names:
        os.link(staged / name, target / name)
    undo_unfinished(str(target))
    assert not (target / "new").exists() and os.listdir(target / "inner") == ["mine"]


def test_folders_that_were_made_before_a_file_was_linked_are_removed(target: Path) -> None:
    (target / "new" / "deep").mkdir(parents=True)
    (target / "mine").mkdir()
    record = target / ".shardex" / "append-000001.pending"
    record.parent.mkdir()
    record.touch()
    write_record(record, {"new/deep/2": 1, "new/3": 1, "not-yet/4": 1})
    undo_unfinished(str(target))
    assert sorted(os.listdir(target)) == [".shardex", "1", "mine"]


def test_files_that_identify_a_dataset_are_linked_last(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked: list[str] = []
    link = os.link

    def note(source: str, place: str) -> None:
        linked.append(os.path.basename(place))
        link(source, place)

    monkeypatch.setattr(os, "link", note)
    stage = Stage(target, "append", publish_last=("2",))
    for name in ("2", "3", "4"):
        stage.place.put(name, b"")
    stage.publish()
    assert linked == ["append-000001.pending", "3", "4", "2"]


def test_append_without_hard_links(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, place: str) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    add(target, "2", "3")
    assert visible(target) == ["1", "2", "3"] and records(target) == ["append-000001.done"]
    with pytest.raises(FileExistsError):
        add(target, "3", "4")
    assert visible(target) == ["1", "2", "3"]


def test_damaged_and_hostile_records_raise(target: Path) -> None:
    record = unfinished(target, "2", "3")
    record.write_text("[]")
    with pytest.raises(FormatError, match=r"append-000001\.pending: expected the names of files .* remove this file"):
        find(target).paths  # noqa: B018
    (target.parent / "other").write_text("other")
    write_record(record, {"../other": (target.parent / "other").stat().st_ino})
    with pytest.raises(PathError):
        undo_unfinished(str(target))
    (target / "sub").symlink_to(target.parent)
    write_record(record, {"sub/other": (target.parent / "other").stat().st_ino})
    undo_unfinished(str(target))
    assert (target.parent / "other").exists()


def test_readers_see_whole_appends(target: Path) -> None:
    """One writer adds three files again and again, while others list the folder."""
    done, wrong = threading.Event(), list[Any]()

    def watch() -> None:
        while not done.is_set():
            if (len(names := visible(target)) - 1) % 3:
                wrong.append(names)

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    for number in range(2, 30):
        add(target, *(f"{number}{letter}" for letter in "abc"))
    done.set()
    for watcher in watchers:
        watcher.join()
    assert wrong == [] and len(visible(target)) == 1 + 28 * 3


# -- datasets -----------------------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "jsonl": {"shard_rows": 7},
    "tar": {"shard_rows": 7},
    "parquet": {"shard_rows": 7},
    "tokens": {"shard_size": 200},
}
CRASHES = """
import json, os, sys
import numpy as np, shardex as sx
def killed_at(count):
    seen = []
    def step(function):
        def call(*arguments, **options):
            seen.append(function)
            if len(seen) == count:
                os._exit(9)
            return function(*arguments, **options)
        return call
    os.link, os.rename = step(os.link), step(os.rename)
for folder, format, options, count in json.load(sys.stdin):
    samples = [{"x": np.arange(k, k + k % 5, dtype="int64")} for k in range(20, 40)]
    if not (child := os.fork()):
        killed_at(count)
        sx.write(folder, samples, {"x": sx.Array("int64", (None,))}, format=format, mode="append", **options)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def samples(first: int, last: int) -> list[dict[str, Any]]:
    return [{"x": np.arange(k, k + k % 5, dtype="int64")} for k in range(first, last)]


def values(folder: Path, format: str) -> list[Any]:
    ds = sx.open(
        folder, format=format, schema={"x": sx.Array("int64", (None,))} if format in ("jsonl", "tar") else None
    )
    return [sample["x"].tolist() for sample in ds]


@pytest.mark.parametrize(
    "format", [pytest.param(one, marks=[pytest.mark.long] * (one in ("jsonl", "tokens"))) for one in OPTIONS]
)
def test_killed_append_shows_the_old_or_the_new_samples(format: str, tmp_path: Path) -> None:
    """Killed before each link and rename; then the next append works."""
    schema = {"x": sx.Array("int64", (None,))}
    old, new, later = ([one["x"].tolist() for one in samples(*span)] for span in ((0, 20), (20, 40), (40, 60)))
    cases: list[Any] = []
    for count in (1, 2, 3, 5, 30):
        sx.write(tmp_path / str(count), samples(0, 20), schema, format=format, **OPTIONS[format])
        values(tmp_path / str(count), format)  # makes an index
        cases.append((str(tmp_path / str(count)), format, OPTIONS[format], count))
    ran = subprocess.run([sys.executable, "-c", CRASHES], input=json.dumps(cases), text=True, check=True, stdout=-1)
    codes = [int(line) for line in ran.stdout.split()]
    assert codes == [9, 9, 9, 9, 0]
    for (folder, *_), code in zip(cases, codes, strict=True):
        assert values(Path(folder), format) == (old if code else old + new)
        sx.write(folder, samples(40, 60), schema, format=format, mode="append", **OPTIONS[format])
        assert values(Path(folder), format) == (old if code else old + new) + later


def test_unfinished_upload_is_not_opened() -> None:
    place = MemorySource()

    class Killed(BaseException):
        pass

    def put(paths: Sequence[str]) -> None:
        place.put(paths[0], b"{}")
        place.remove = lambda path: None  # type: ignore[method-assign]
        raise Killed

    with pytest.raises(Killed):
        put_claimed(place, ["a.jsonl", "b.jsonl"], put)
    assert place.paths() == [".shardex/claim", "a.jsonl"]
    with pytest.raises(NotFoundError, match="a writer is still writing here, or was killed and left this file"):
        visible_paths(place)
    above = MemorySource({f"d/{path}": data for path, data in place.files.items()} | {"e/x": b""})
    assert visible_paths(above) == ["e/x"]
