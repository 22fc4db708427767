"""`LocalSource`, beyond the contract in `test_protocols`: descriptors, mappings, crashes, full disks."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shardex.errors import (
    AccessDeniedError,
    NotFoundError,
    PathError,
    SourceError,
    StaleIndexError,
    StorageFullError,
    TruncatedShardError,
)
from shardex.sources import ByteRange, LocalSource, local, make_folder
from shardex.sources.local import sync_file
from tests.resident_pages import PAGE, become_resident, evict, resident_pages

linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


def run(code: str, *arguments: object) -> str:
    """Run Python code in a process of its own."""
    code = "import json, os, resource, sys\nfrom shardex.errors import *\nfrom shardex.sources.local import *\n" + code
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def mappings(path: Path) -> int:
    """Return how often a file is mapped into this process."""
    return Path("/proc/self/maps").read_text("utf-8").count(str(path))


def mount(*arguments: str | Path) -> None:
    """Mount a file system, or skip the test if that is not allowed."""
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot mount here")


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A folder to mount something on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    yield folder
    if os.path.ismount(folder):
        subprocess.run(["umount", folder], check=True)


# -- descriptors and mappings ---------------------------------------------------------------------------------------


@linux
def test_no_file_stays_open(tmp_path: Path) -> None:
    place = LocalSource(tmp_path)
    for k in range(30):
        place.put(f"{k}", bytes(10))
    before = len(os.listdir("/proc/self/fd"))
    kept = [(place.map(f"{k}"), place.read(f"{k}", [ByteRange(1, 2)]), place.stat(f"{k}")) for k in range(30)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(kept) == 30


@linux
def test_more_mapped_files_than_descriptors(tmp_path: Path) -> None:
    for k in range(2000):
        (tmp_path / f"{k}").write_bytes(b"%d" % k)
    run(
        """
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
place = LocalSource(sys.argv[1])
views = [place.map(f"{k}") for k in range(2000)]
assert [bytes(view) for view in views] == [b"%d" % k for k in range(2000)]
""",
        tmp_path,
    )


@linux
def test_a_file_is_unmapped_with_its_last_view(tmp_path: Path) -> None:
    place, path = LocalSource(tmp_path), tmp_path / "a"
    place.put("a", bytes(range(100)))
    view = place.map("a")
    part = view[10:20]
    array = np.frombuffer(part, np.uint8)[2:]
    assert mappings(path) == 1
    del view
    assert mappings(path) == 1
    del part
    assert array[0] == 12
    assert mappings(path) == 1
    del array
    assert mappings(path) == 0


def test_fetch_without_waiting_reads_ahead(disk_path: Path) -> None:
    path, place = disk_path / "a", LocalSource(disk_path)
    path.write_bytes(bytes(300 * PAGE))
    evict(path)
    place.fetch("a", [ByteRange(200 * PAGE, 9)])
    assert not resident_pages(path).any()

    ahead = [ByteRange(200 * PAGE, 3 * PAGE), ByteRange(10 * PAGE, 1)]
    assert become_resident(path, [10, 200, 201, 202], lambda: place.fetch("a", ahead, wait=False))
    assert not resident_pages(path)[250:].any()
    place.fetch("gone", [ByteRange(0, 1)], wait=False)  # a read raises the error


def test_a_mapping_is_read_only() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = LocalSource(folder)
        place.put("a", b"abc")
        array = np.frombuffer(place.map("a"), np.uint8)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


# -- writing --------------------------------------------------------------------------------------------------


CRASHES = [("put", "os.replace"), ("put", "os.fsync"), ("put_if_absent", "os.link"), ("put_if_absent", "os.fsync")]


def test_a_crash_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    for number in range(len(CRASHES)):
        LocalSource(tmp_path / str(number)).put("old", b"old content")
    run(
        """
for number, (verb, step) in enumerate(json.loads(sys.argv[2])):
    if not (child := os.fork()):
        exec(f"{step} = lambda *arguments: os._exit(9)")
        place = LocalSource(f"{sys.argv[1]}/{number}")
        getattr(place, verb)("old" if verb == "put" else "new", b"new content")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9, (verb, step)
""",
        tmp_path,
        json.dumps(CRASHES),
    )
    for number in range(len(CRASHES)):
        place = LocalSource(tmp_path / str(number))
        assert [path for path in place.paths() if not path.startswith(".")] == ["old"]
        assert bytes(place.map("old")) == b"old content"


def test_put_if_absent_by_processes_succeeds_once_per_name(tmp_path: Path) -> None:
    run(
        """
place, gate = LocalSource(sys.argv[1]), os.pipe()
children = []
for number in range(8):
    if not (child := os.fork()):
        os.close(gate[1])
        os.read(gate[0], 1)  # until the parent closes its end
        won = [k for k in range(20) if place.put_if_absent(f"names/{k}", bytes([number]) * 5000)]
        place.put(f"won/{number}", json.dumps(won).encode())
        os._exit(0)
    children.append(child)
os.close(gate[1])
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
""",
        tmp_path,
    )
    won = {number: json.loads((tmp_path / "won" / str(number)).read_text()) for number in range(8)}
    assert sorted(k for names in won.values() for k in names) == list(range(20))
    for number, names in won.items():
        assert all((tmp_path / "names" / str(k)).read_bytes() == bytes([number]) * 5000 for k in names)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


@pytest.mark.parametrize(("free", "size"), [(1 << 20, 2 << 20), (4096, 6000), (0, 5000), (0, 100_000)])
@pytest.mark.parametrize("verb", ["put", "put_if_absent"])
def test_a_full_disk_leaves_the_old_files(mounted: Path, verb: str, free: int, size: int) -> None:
    mount("-t", "tmpfs", "-o", "size=1m", "none", mounted)
    place = LocalSource(mounted)
    place.put("old", b"old content")
    with open(mounted / "filler", "wb", buffering=0) as filler:
        while os.statvfs(mounted).f_bavail * 4096 > free:
            filler.write(bytes(4096))
    before = sorted(os.listdir(mounted))
    with pytest.raises(StorageFullError, match=str(mounted / "new")) as caught:
        getattr(place, verb)("new", bytes(size))
    assert isinstance(caught.value, OSError)
    assert sorted(os.listdir(mounted)) == before
    assert bytes(place.map("old")) == b"old content"


def test_put_makes_folders(tmp_path: Path) -> None:
    LocalSource(tmp_path / "a" / "b").put("c/d/e", b"x")
    assert (tmp_path / "a/b/c/d/e").read_bytes() == b"x"
    make_folder(str(tmp_path / "a" / "b"))
    make_folder(str(tmp_path / "q"))
    assert (tmp_path / "q").is_dir()


def test_a_file_in_place_of_a_folder_raises(tmp_path: Path) -> None:
    place = LocalSource(tmp_path)
    place.put("a", b"")
    with pytest.raises(NotFoundError, match="Not a directory"):
        place.put("a/b", b"")
    with pytest.raises(NotFoundError, match="cannot list"):
        LocalSource(tmp_path / "a").paths()
    with pytest.raises(SourceError):
        LocalSource(tmp_path.parent).put(tmp_path.name, b"a folder is there")
    with pytest.raises(SourceError):
        LocalSource(tmp_path.parent).map(tmp_path.name)
    assert os.listdir(tmp_path) == ["a"]


def test_a_draft_is_a_temporary_file_in_the_folder(tmp_path: Path) -> None:
    draft = LocalSource(tmp_path).draft()
    draft.file.write(b"abc")
    draft.close(3)
    (there,) = tmp_path.iterdir()
    assert there.name.endswith(".tmp") and there.read_bytes() == b"abc"
    draft.publish("x/y")
    assert os.listdir(tmp_path) == ["x"] and (tmp_path / "x/y").read_bytes() == b"abc"


# -- permissions ----------------------------------------------------------------------------------------------

AS_NOBODY = """
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
place = LocalSource(sys.argv[1])
for ask in (
    lambda: place.read("secret", []),
    lambda: place.map("secret"),
    lambda: place.put("new", b""),
    lambda: place.put_if_absent("new", b""),
    lambda: place.remove("secret"),
    lambda: LocalSource(sys.argv[1] + "/locked").paths(),
    lambda: place.map("locked/file"),
    lambda: LocalSource(sys.argv[1] + "/below").put("new", b""),
):
    try:
        ask()
    except AccessDeniedError as error:
        print(isinstance(error, PermissionError), sys.argv[1] in str(error))
"""


def test_missing_permissions_raise() -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = LocalSource(folder)
        place.put("secret", b"x")
        place.put("locked/file", b"x")
        os.chmod(place.path("secret"), 0)
        os.chmod(place.path("locked"), 0)
        os.chmod(folder, 0o555)
        assert run(AS_NOBODY, folder).split() == ["True"] * 16
        os.chmod(folder, 0o755)
        os.chmod(place.path("locked"), 0o755)


def test_a_read_only_disk_can_be_read(mounted: Path) -> None:
    place = LocalSource(mounted)
    mount("-t", "tmpfs", "-o", "size=1m", "none", mounted)
    place.put("a", b"x")
    mount("-o", "remount,ro", mounted)
    assert bytes(place.map("a")) == b"x"
    for ask in (lambda: place.put("b", b""), lambda: place.remove("a"), place.draft):
        with pytest.raises(AccessDeniedError, match="Read-only"):
            ask()


def test_remove_empty_folders_keeps_files(tmp_path: Path) -> None:
    place = LocalSource(tmp_path / "d")
    for folder in ("a", "b"):
        os.makedirs(tmp_path / "d" / folder)
    place.put("b/x", b"")
    place.remove_empty_folders("a", "b", "c")
    assert os.listdir(tmp_path / "d") == ["b"]
    place.remove("b/x")
    place.remove_empty_folders("b")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder"])
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer would wait for ever, and reading a device may have effects."""
    path = tmp_path / "a"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(str(path))
        case "device":
            path.symlink_to(os.devnull)
        case _:
            path.mkdir()
    place = LocalSource(tmp_path)
    for read in (lambda: place.map("a"), lambda: place.load("a"), lambda: place.read("a", [ByteRange(0, 1)])):
        with pytest.raises(SourceError, match=r"regular file|No such device"):
            read()


@pytest.mark.parametrize("wait", [0, 1000], ids=["threads", "one thread"])
def test_many_files_are_loaded_in_order(tmp_path: Path, wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_WAITED", wait)
    source, names = LocalSource(tmp_path), [f"{k}.bin" for k in range(50)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(bytes([number]) * number)
    some = [names[k] for k in (*range(49, -1, -1), 3, 3)]
    for count in (0, 1, 4, 5, 20, 52):
        loaded = source.load_all(some[:count], source.stats(some[:count]))
        assert loaded == [(tmp_path / name).read_bytes() for name in some[:count]]
    known = source.stats(names)
    (tmp_path / "7.bin").write_bytes(b"short")
    (tmp_path / "8.bin").write_bytes(b"long enough")
    (tmp_path / "9.bin").unlink()
    os.mkfifo(tmp_path / "9.bin")
    (tmp_path / "10.bin").unlink()
    errors = {7: TruncatedShardError, 8: StaleIndexError, 9: SourceError, 10: NotFoundError}
    for number, error in errors.items():
        with pytest.raises(error, match=rf"/{number}\.bin"):
            source.load_all([*names[20:40], names[number]], [*known[20:40], known[number]])


def test_a_contained_source_notices_folders_that_become_links(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "a").write_bytes(b"secret")
    root.mkdir()
    place = LocalSource(root).contained()
    with pytest.raises(NotFoundError):
        place.stat("data/a")
    (root / "data").symlink_to(outside)
    with pytest.raises(PathError, match="got a link to"):
        place.load("data/a")
    (root / "data").unlink()
    (root / "data").mkdir()
    (root / "data" / "a").write_bytes(b"inside")
    assert [bytes(place.load("data/a")) for _ in range(2)] == [b"inside"] * 2
    (root / "data").rename(root / "other")
    (root / "data").symlink_to(outside)
    with pytest.raises(PathError, match="got a link to"):
        place.load("data/a")
    (root / "other" / "b").symlink_to(outside / "a")
    assert bytes(place.load("other/a")) == b"inside"
    with pytest.raises(PathError, match="got a link to"):
        place.load("other/b")


@pytest.mark.parametrize("command", [fcntl.F_SETFD, 0x7FFFFFFF], ids=["known", "unknown"])
def test_full_sync_of_macos(tmp_path: Path, command: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """F_SETFD, which makes a descriptor inheritable, stands for F_FULLFSYNC, which Linux lacks."""
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", command, raising=False)
    with open(tmp_path / "a", "wb") as file:
        sync_file(file.fileno())
        assert os.get_inheritable(file.fileno()) == (command == fcntl.F_SETFD)


def test_an_error_of_full_sync_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", fcntl.F_SETFD, raising=False)
    with pytest.raises(OSError, match="Bad file descriptor"):
        sync_file(1 << 20)
