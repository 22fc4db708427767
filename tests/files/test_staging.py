"""`AllOrNothing` and `StagedWriter`: what close and abort do, in any order and after errors.
`Stage`: a folder is published completely or not at all."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from shardex.errors import AlreadyExistsError, ArgumentError, ClosedError, SourceError
from shardex.files import MODES, AllOrNothing, Stage, StagedWriter, check_mode, visible_paths
from shardex.files.publication import LocalPublication
from shardex.sources import LocalSource


class Recorder(AllOrNothing):
    """Records the calls of its duties; publishing fails on request."""

    path = "target"

    def __init__(self, error: BaseException | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def _publish(self) -> None:
        self.calls.append("publish")
        if self._error is not None:
            raise self._error

    def _discard(self) -> None:
        self.calls.append("discard")


def test_duties_are_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        AllOrNothing()  # type: ignore[abstract]


def test_close_publishes_once() -> None:
    writer = Recorder()
    writer.close()
    writer.close()
    writer.abort()
    assert writer.calls == ["publish"]


def test_abort_discards_once_and_close_raises_afterwards() -> None:
    writer = Recorder()
    writer.abort()
    writer.abort()
    with pytest.raises(ClosedError, match="target: expected an open writer, this one was aborted; nothing was written"):
        writer.close()
    assert writer.calls == ["discard"]


def test_failed_publish_discards() -> None:
    writer = Recorder(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        writer.close()
    with pytest.raises(ClosedError, match="was aborted"):
        writer.close()
    assert writer.calls == ["publish", "discard"]


def test_with_block_closes_or_aborts() -> None:
    with Recorder() as writer:
        pass
    assert writer.calls == ["publish"]
    with pytest.raises(KeyError), Recorder() as writer:
        raise KeyError("a")
    assert writer.calls == ["discard"]


class Lines(StagedWriter):
    """Writes one file of lines when it finishes."""

    def __init__(self, path: Path, mode: str = "create", lines: list[bytes | str] | None = None) -> None:
        super().__init__(path, mode, r".*\.txt")
        with self._abort_on_error():
            self._number = self._stage.next_number("part", ".txt")
        self._lines = lines or []

    def _finish(self) -> None:
        self._stage.append(f"part-{self._number:05d}.txt", self._lines, 0)


def test_staged_writer_publishes_its_files(tmp_path: Path) -> None:
    Lines(tmp_path / "d", lines=[b"a"]).close()
    Lines(tmp_path / "d", "append", lines=[b"b"]).close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()} == {
        "part-00000.txt": b"a",
        "part-00001.txt": b"b",
    }


def test_failed_staged_writer_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Lines(tmp_path / "d", lines=["text"]).close()
    Lines(tmp_path / "d").abort()
    assert list(tmp_path.iterdir()) == []


def test_staged_writer_whose_constructor_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "z.txt").write_bytes(b"")
    with pytest.raises(ArgumentError, match="pass a prefix that sorts after it"):
        Lines(tmp_path / "d", "append")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


Content = dict[str, str]


def content(folder: Path) -> Content:
    """Return all files below a folder, hidden ones too, except records of finished appends."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".done"]
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def publish(target: Path, mode: str, files: Content) -> None:
    stage = Stage(target, mode)
    for name, text in files.items():
        stage.place.put(name, text.encode())
    stage.publish()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "set"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", ["nothing", "an empty folder", "no parent"])
def test_publish_new_folder(target: Path, mode: str, before: str) -> None:
    if before == "an empty folder":
        target.mkdir()
    elif before == "no parent":
        target = target / "a" / "b"
    stage = Stage(target, mode)
    assert stage.existing == []
    stage.place.put("x/1", b"one")
    assert not target.exists() or not os.listdir(target)
    stage.publish()
    assert content(target) == {"x/1": "one"}
    assert os.listdir(target.parent) == [target.name]


@pytest.mark.parametrize("mode", MODES)
def test_publish_without_files_makes_an_empty_folder(target: Path, mode: str) -> None:
    publish(target, mode, {})
    assert content(target) == {}


def test_create_raises_if_something_exists(target: Path) -> None:
    publish(target, "create", {"1": "one"})
    with pytest.raises(AlreadyExistsError, match='pass mode="append" or mode="overwrite"'):
        Stage(target, "create")
    assert content(target.parent) == {"set/1": "one"}


def test_append_adds_files(target: Path) -> None:
    publish(target, "create", {"2": "two", "10": "ten"})
    stage = Stage(target, "append")
    assert stage.existing == ["2", "10"]
    stage.place.put("11", b"eleven")
    stage.place.put("sub/12", b"twelve")
    assert content(target) == {"2": "two", "10": "ten"}
    stage.publish()
    assert content(target.parent) == {"set/2": "two", "set/10": "ten", "set/11": "eleven", "set/sub/12": "twelve"}


def test_append_never_replaces_and_is_all_or_nothing(target: Path) -> None:
    publish(target, "create", {"2": "two"})
    stage = Stage(target, "append")
    for name in ("1", "2", "3"):
        stage.place.put(name, b"new")
    with pytest.raises(AlreadyExistsError):
        stage.publish()
    assert content(target) == {"2": "two"}
    stage.discard()
    assert os.listdir(target.parent) == ["set"]


@pytest.mark.parametrize("before", [{"s-0": "old"}, {"s-0": "old", "s-1": "old", "s-2": "old"}, {}])
@pytest.mark.parametrize("new", [{"s-0": "new"}, {"s-0": "new", "s-1": "new"}])
@pytest.mark.parametrize("inside", [True, False])
def test_append_in_place_of_other_files(target: Path, before: Content, new: Content, inside: bool) -> None:
    publish(target, "create", {"other": "kept", "s-x": "kept", **before})
    stage = Stage(target, "append", folder=str(target / ".new.tmp") if inside else None, replaces=r"s-\d+")
    for name, text in new.items():
        stage.place.put(name, text.encode())
    assert content(target).items() >= {"other": "kept", **before}.items()
    stage.publish()
    assert content(target) == {"other": "kept", "s-x": "kept", **new}


@pytest.mark.parametrize("names", [["s-{}"], ["s-{}", "t-{}"]])
def test_several_writers_append_to_a_new_folder(target: Path, names: list[str]) -> None:
    stages = [Stage(target, "append") for _ in range(6)]
    for number, stage in enumerate(stages):
        for name in names:
            stage.place.put(name.format(number), b"new")
    threads = [threading.Thread(target=stage.publish) for stage in stages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert content(target) == {name.format(number): "new" for number in range(6) for name in names}


def test_folder_that_appears_while_files_are_published(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(target, "append")
    stage.place.put("2", b"two")
    publish(target, "create", {"1": "one"})
    monkeypatch.setattr(LocalPublication, "check", lambda _: False)
    stage.publish()
    assert content(target) == {"1": "one", "2": "two"}


def test_several_writers_replace_the_same_files(target: Path) -> None:
    publish(target, "create", {"s-0": "old", "s-1": "old", "other": "kept"})

    def write(number: int) -> None:
        for round_ in range(5):
            stage = Stage(target, "append", replaces=r"s-\d+")
            for name in range(number + 1):
                stage.place.put(f"s-{name}", f"{number} {round_}".encode())
            stage.publish()

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = content(target)
    assert found.pop("other") == "kept"
    assert len(set(found.values())) == 1
    assert len(found) == 1 + int(found["s-0"].split()[0])


def test_failed_replacement_is_undone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(target, "create", {"s-0": "old", "s-1": "old"})
    stage = Stage(target, "append", replaces=r"s-\d+")
    for name in ("s-0", "s-1", "s-2"):
        stage.place.put(name, b"new")
    real = os.link
    monkeypatch.setattr(os, "link", lambda a, b: _full() if b.endswith("s-2") else real(a, b))
    with pytest.raises(SourceError, match="No space"):
        stage.publish()
    stage.discard()
    assert content(target) == {"s-0": "old", "s-1": "old"}


KILLED_WHILE_REPLACING = """
import os, sys
from shardex.files import Stage
def counted(real, left):
    def call(*arguments, **options):
        left.append(None)
        return os._exit(9) if len(left) > step else real(*arguments, **options)
    return call
for step, target in enumerate(sys.argv[1:]):
    if not (child := os.fork()):
        stage = Stage(target, "append", replaces=r"s-\\d+")
        for name in ("s-0", "s-1", "s-2"):
            stage.place.put(name, b"new")
        calls = []
        os.link, os.rename = counted(os.link, calls), counted(os.rename, calls)
        stage.publish()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_killed_while_replacing_leaves_no_mixture(tmp_path: Path) -> None:
    targets = [tmp_path / str(step) for step in range(12)]
    for target in targets:
        publish(target, "create", {"s-0": "old", "s-1": "old"})
    command = [sys.executable, "-c", KILLED_WHILE_REPLACING, *map(str, targets)]
    codes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    seen = []
    for target in targets:
        visible = [name for name in visible_paths(LocalSource(str(target))) if "/" not in name]
        seen.append({name: (target / name).read_text() for name in visible})
    assert all(len(set(one.values())) <= 1 for one in seen)
    assert (codes[0], seen[0]) == ("9", {"s-0": "old", "s-1": "old"})
    assert (codes[-1], seen[-1]) == ("0", {"s-0": "new", "s-1": "new", "s-2": "new"})
    assert codes.count("9") > 5


def _full() -> None:
    raise OSError(28, "No space left on device")


def test_overwrite_replaces_all_files(target: Path) -> None:
    publish(target, "create", {"1": "one", "sub/2": "two"})
    publish(target, "overwrite", {"3": "three"})
    assert content(target.parent) == {"set/3": "three"}


@pytest.mark.parametrize("mode", MODES)
def test_discard_leaves_the_target_unchanged(target: Path, mode: str) -> None:
    publish(target, "create", {"1": "one"})
    if mode != "create":
        stage = Stage(target, mode)
        stage.place.put("2", b"two")
        stage.discard()
        stage.discard()
    assert content(target.parent) == {"set/1": "one"}


@pytest.mark.parametrize("mode", ["append", "overwrite", "create"])
def test_target_that_is_a_file_raises(target: Path, mode: str) -> None:
    target.write_text("a file")
    with pytest.raises(AlreadyExistsError):
        Stage(target, mode)
    assert content(target.parent) == {"set": "a file"}


def test_check_mode(target: Path) -> None:
    with pytest.raises(ArgumentError, match="expected mode to be one of create, append, overwrite, got 'w'"):
        check_mode(LocalSource(target), "w")
    assert not check_mode(LocalSource(target), "create")
    publish(target, "create", {"1": "one"})
    assert check_mode(LocalSource(target), "append")


# -- several writers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "after"),
    [("create", {"1": "theirs"}), ("append", {"1": "theirs", "2": "mine"}), ("overwrite", {"2": "mine"})],
)
def test_another_writer_publishes_first(target: Path, mode: str, after: Content) -> None:
    stage = Stage(target, mode)
    stage.place.put("2", b"mine")
    publish(target, "create", {"1": "theirs"})
    if mode == "create":
        with pytest.raises(AlreadyExistsError):
            stage.publish()
        stage.discard()
    else:
        stage.publish()
    assert content(target.parent) == {f"set/{name}": text for name, text in after.items()}


def test_only_one_of_several_creators_succeeds(target: Path) -> None:
    stages = [Stage(target, "create") for _ in range(8)]
    for number, stage in enumerate(stages):
        stage.place.put("who", str(number).encode())
    won: list[int] = []

    def work(number: int) -> None:
        try:
            stages[number].publish()
            won.append(number)
        except AlreadyExistsError:
            stages[number].discard()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert content(target.parent) == {"set/who": str(won[0])}


def test_link_to_the_folder_stays_a_link(tmp_path: Path, target: Path) -> None:
    publish(tmp_path / "real", "create", {"1": "one"})
    target.symlink_to(tmp_path / "real")
    publish(target, "append", {"2": "two"})
    assert content(tmp_path / "real") == {"1": "one", "2": "two"}
    publish(target, "overwrite", {"3": "three"})
    assert target.is_symlink()
    assert content(tmp_path / "real") == {"3": "three"}
    assert sorted(os.listdir(tmp_path)) == ["real", "set"]


def test_readers_of_the_old_folder_are_not_disturbed(target: Path) -> None:
    publish(target, "create", {"1": "old" * 5000, "2": "old" * 5000})
    mapped = LocalSource(target).map("1")
    array = np.frombuffer(mapped, np.uint8)
    descriptor = os.open(target, os.O_RDONLY)
    publish(target, "overwrite", {"1": "new"})
    assert bytes(mapped) == array.tobytes() == b"old" * 5000
    assert os.listdir(descriptor) == []  # the folder they opened is gone, and is not the new one
    os.close(descriptor)
    assert content(target) == {"1": "new"}


def test_overwrite_is_atomic_for_readers(target: Path) -> None:
    publish(target, "create", {str(k): "0" for k in range(5)})
    broken: list[object] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            try:
                descriptor = os.open(target, os.O_RDONLY)
            except OSError as error:
                broken.append(error)
                continue
            names = os.listdir(descriptor)  # the new ones, the old ones, or fewer while these are removed
            os.close(descriptor)
            if not set(names) <= {str(k) for k in range(5)}:
                broken.append(names)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(10):
        publish(target, "overwrite", {str(k): str(number) for k in range(5)})
    done.set()
    watcher.join()
    assert broken == []


# -- crashes ----------------------------------------------------------------------------------------------------


BEFORE = [
    ("create", "os.fsync"),
    ("create", "os.rename"),
    ("append", "os.fsync"),
    ("append", "os.link"),
    ("overwrite", "os.fsync"),
    ("overwrite", "publication._exchange"),
]
AFTER = [(mode, "shutil.rmtree") for mode in MODES]
CRASHES = """
import json, os, shutil, sys
from shardex.files import publication, staging
for target, mode, step in json.load(sys.stdin):
    if not (child := os.fork()):
        stage = staging.Stage(target, mode)
        stage.place.put("9", b"new")
        exec(f"{step} = lambda *arguments, **options: os._exit(9)")
        stage.publish()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, (mode, step)
"""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """Target folders of processes that were killed at a step of publishing."""
    folders = {case: tmp_path_factory.mktemp("crash") / "set" for case in BEFORE + AFTER}
    for (mode, _), target in folders.items():
        if mode != "create":
            publish(target, "create", {"1": "one"})
    cases = json.dumps([(str(target), *case) for case, target in folders.items()])
    subprocess.run([sys.executable, "-c", CRASHES], input=cases, text=True, check=True)
    return folders


@pytest.mark.parametrize("case", BEFORE)
def test_crash_before_publishing_leaves_the_old_files(
    crashed: dict[tuple[str, str], Path], case: tuple[str, str]
) -> None:
    target, mode = crashed[case], case[0]
    assert content(target) == ({} if mode == "create" else {"1": "one"})
    publish(target, mode, {"2": "two"})
    assert content(target) == ({"1": "one"} if mode == "append" else {}) | {"2": "two"}


@pytest.mark.parametrize("case", AFTER)
def test_crash_after_publishing_leaves_the_new_files(
    crashed: dict[tuple[str, str], Path], case: tuple[str, str]
) -> None:
    assert content(crashed[case]) == ({"1": "one"} if case[0] == "append" else {}) | {"9": "new"}


def test_overwrite_without_renameat2(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    publish(target, "create", {"1": "one"})
    publish(target, "overwrite", {"2": "two"})
    assert content(target.parent) == {"set/2": "two"}


def test_failed_exchange_is_undone(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(target, "create", {"1": "one"})
    stage = Stage(target, "overwrite")
    stage.place.put("2", b"two")
    rename = os.rename

    def fail(source: str, place: str) -> None:
        if place == str(target) and not source.endswith(".old"):
            raise OSError(5, "no")
        rename(source, place)

    monkeypatch.setattr(ctypes, "CDLL", lambda *arguments, **options: object())
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(SourceError, match="cannot write: no"):
        stage.publish()
    assert content(target) == {"1": "one"}
    stage.discard()
    assert os.listdir(target.parent) == ["set"]


# -- writing into the stage ----------------------------------------------------------------------------------------


def test_append_to_a_file_can_be_repeated(target: Path) -> None:
    stage = Stage(target, "create")
    assert stage.append("a", [b"one", memoryview(b"two")], 0) == 6
    assert stage.append("a", [b"lost"], 6) == 10
    assert stage.append("a", [b"three"], 6) == 11
    assert stage.append("a", [], 11) == 11
    stage.publish()
    assert content(target) == {"a": "onetwothree"}


def test_next_number_follows_existing_shards(target: Path) -> None:
    assert Stage(target, "create").next_number("s", ".tar") == 0
    publish(target, "create", {"s-00000.tar": "", "s-00011.tar": "", "s-x.txt": ""})
    stage = Stage(target, "append")
    assert stage.next_number("s", ".tar") == 12
    assert stage.next_number("t", ".tar") == 0
    with pytest.raises(ArgumentError, match="pass a prefix that sorts after it"):
        stage.next_number("a", ".tar")


def test_next_number_while_another_writer_adds_shards(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(target, "create", {"s-00000.tar": "0"})
    stage, paths = Stage(target, "append"), LocalSource.paths

    def add_after(place: LocalSource, prefix: str = "") -> list[str]:
        found = paths(place, prefix)
        for number in (len(found), len(found) + 1):
            (target / f"s-{number:05d}.tar").write_text("1")
        return found

    monkeypatch.setattr(LocalSource, "paths", add_after)
    assert stage.next_number("s", ".tar") == 1


def test_the_temporary_folder_is_made_with_the_first_file(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "new", "create")
    assert os.listdir(tmp_path) == []
    stage.append("a", [b"1"], 0)
    assert len(os.listdir(tmp_path)) == 1
    stage.discard()
    assert os.listdir(tmp_path) == []
    Stage(tmp_path / "empty", "create").publish()
    assert os.listdir(tmp_path) == ["empty"]


def test_a_target_in_a_file_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match="Not a directory"):
        Stage(tmp_path / "file" / "new", "create")
