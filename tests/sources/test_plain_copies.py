"""Decompressed copies: complete or absent, made once, never out of date, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shardex.errors import SourceError, StorageFullError
from shardex.sources import plain_copies
from shardex.sources.plain_copies import PlainCopies
from tests.waiting import becomes_true

SLOW = """
import sys, time
from shardex.sources.plain_copies import PlainCopies

def pieces():
    yield b"x" * 100_000
    print("begun", flush=True)
    sys.stdin.readline()
    yield b"y" * 100_000

view = PlainCopies(sys.argv[1]).make("a", "1", pieces())
print(len(view), bytes(view[:1]), flush=True)
"""


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "plain"))


def test_a_copy_is_made_once_for_each_state(tmp_path: Path) -> None:
    copies = PlainCopies(str(tmp_path))
    assert copies.find("a", "1") is None
    first = copies.make("a", "1", [b"one ", b"", b"two"])
    assert bytes(first) == b"one two" and bytes(copies.make("a", "1", [b"not used"])) == b"one two"
    assert bytes(PlainCopies(str(tmp_path)).find("a", "1") or b"") == b"one two"
    assert len(names(tmp_path)) == 1
    assert bytes(copies.make("b", "1", [b"other"])) == b"other" and len(names(tmp_path)) == 2
    assert bytes(copies.make("a", "2", [])) == b""
    assert len(names(tmp_path)) == 2, "the copy of the earlier state is removed"
    assert copies.find("a", "1") is None and bytes(first) == b"one two"


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("the data is damaged")

    copies = PlainCopies(str(tmp_path))
    with pytest.raises(RuntimeError, match="damaged"):
        copies.make("a", "1", broken())
    assert names(tmp_path) == [] and copies.find("a", "1") is None


def test_a_killed_process_leaves_nothing_after_the_next_use(tmp_path: Path) -> None:
    child = start(tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    assert any(name.endswith(".tmp") for name in names(tmp_path))
    alive = start(tmp_path / "other")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert PlainCopies(str(tmp_path)).find("a", "1") is None
    assert bytes(PlainCopies(str(tmp_path)).make("b", "1", [b"b"])) == b"b"
    assert len(names(tmp_path)) == 1
    assert alive.communicate("go\n")[0].endswith("200000 b'x'\n")


def test_files_of_a_running_process_are_kept(tmp_path: Path) -> None:
    child = start(tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    assert bytes(PlainCopies(str(tmp_path)).make("b", "1", [b"b"])) == b"b"
    assert len(names(tmp_path)) == 3  # the copy, and the temporary file and the lock of the process
    assert child.communicate("go\n")[0] == "200000 b'x'\n"
    assert len(names(tmp_path)) == 2


def test_processes_that_need_the_same_copy_wait_for_it(tmp_path: Path) -> None:
    child = start(tmp_path)
    assert child.stdout is not None and child.stdout.readline() == "begun\n"
    copies, asked = PlainCopies(str(tmp_path)), threading.Event()

    def never() -> Iterator[bytes]:
        asked.set()
        yield b"wrong"

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(copies.make, "a", "1", never()) for _ in range(2)]
        assert child.communicate("go\n")[0] == "200000 b'x'\n"
        for one in waiting:
            assert len(one.result()) == 200_000
    assert not asked.is_set()
    assert becomes_true(lambda: len(names(tmp_path)) == 1)


def test_the_limit_removes_copies_that_were_not_used_for_longest(tmp_path: Path) -> None:
    for number in range(4):
        PlainCopies(str(tmp_path), 90 << 20).make(f"a{number}", "1", [bytes(20 << 20)])
        os.utime(PlainCopies(str(tmp_path)).path(f"a{number}", "1"), (number, number))
    copies = PlainCopies(str(tmp_path), 90 << 20)
    assert copies.find("a0", "1") is not None
    copies.make("b", "1", [bytes(20 << 20)])
    left = [number for number in range(4) if os.path.exists(copies.path(f"a{number}", "1"))]
    assert 0 in left and 1 not in left and 3 in left
    with pytest.raises(StorageFullError, match="expected decompressed copies of at most 30000000 bytes, got more; set"):
        PlainCopies(str(tmp_path), "30 MB").make("c", "1", [bytes(1 << 20)] * 40)
    assert not any(name.endswith((".tmp", ".lock")) for name in names(tmp_path))


def test_copies_that_are_made_at_the_same_time_are_limited_together(tmp_path: Path) -> None:
    copies = PlainCopies(str(tmp_path), "3 MB")

    def pieces() -> Iterator[bytes]:
        yield bytes(2_000_000)
        with pytest.raises(StorageFullError, match="expected decompressed copies of at most 3000000 bytes"):
            copies.make("b", "1", [bytes(2_000_000)])
        yield bytes(500_000)

    assert len(copies.make("a", "1", pieces())) == 2_500_000
    assert len(copies.make("c", "1", [bytes(400_000)])) == 400_000 and len(names(tmp_path)) == 2


def test_a_process_maps_a_limited_number_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_copies, "_MOST_MAPPINGS", 3)
    copies, many = PlainCopies(str(tmp_path)), {f"a{k}": bytes([k]) * (5000 if k % 2 else 50) for k in range(10)}
    views = {file: copies.make(file, "1", [data]) for file, data in many.items()}
    assert {file: bytes(view) for file, view in views.items()} == many
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert maps.read_text().count(f"{tmp_path}/plain/") == 3


def test_a_folder_that_cannot_be_used_raises_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SourceError, match=r"cannot make decompressed copies there: .*; set another folder with cache="):
        PlainCopies(str(tmp_path / "file")).make("a", "1", [b"a"])


def test_a_full_disk_raises_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit of the file size makes writes fail as a full disk does."""
    code = (
        "import resource, signal, sys; from shardex.sources.plain_copies import PlainCopies\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (99999, 99999))\n"
        "PlainCopies(sys.argv[1]).make('a', '1', [bytes(50_000)] * 3)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "StorageFullError" in done.stderr
    assert f"cannot decompress to {tmp_path}/plain: File too large; free disk space, set another" in done.stderr
    assert names(tmp_path) == []
