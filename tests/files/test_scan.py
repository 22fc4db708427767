"""`scan_all`: scans in threads and in processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.errors import FormatError, WorkerError
from shardex.files import Scan, scan_all
from shardex.files import scan as scan_module
from shardex.formats.tar.members import TarScanner
from shardex.sources import ByteRange, LocalSource, Source


def tars(folder: Path, count: int) -> dict[str, int]:
    """Tars of one sample each, and their sizes."""
    for number in range(count):
        (folder / "a.txt").write_text("hello")
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            tar.add(folder / "a.txt", "a.txt")
    return {f"{number}.tar": (folder / f"{number}.tar").stat().st_size for number in range(count)}


@pytest.fixture
def _use_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_MIN_BYTES_FOR_PROCESSES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.usefixtures("_use_processes")
def test_processes_give_the_same_results(tmp_path: Path) -> None:
    sizes, source = tars(tmp_path, 5), LocalSource(tmp_path)
    found = scan_all(source, sizes, TarScanner(), progress=False)
    assert sorted(found) == sorted(sizes)
    for path, scan in found.items():
        here = TarScanner().scan(source, path)
        assert {n: c.tolist() for n, c in scan.items()} == {n: c.tolist() for n, c in here.items()}


class Dying:
    """A scanner that ends its process."""

    name, in_python = "dying", True

    def scan(self, source: Source, path: str) -> Scan:
        os._exit(3)


@pytest.mark.usefixtures("_use_processes")
def test_death_of_a_process_raises_and_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"ended with exit code 3 at task '\d\.tar'"):
        scan_all(LocalSource(tmp_path), tars(tmp_path, 2), Dying(), progress=False)


def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    """A script without ``if __name__ == "__main__"``, which multiprocessing would require."""
    tars(tmp_path, 3)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, shardex as sx, shardex.files.scan as scan\n"
        "scan._MIN_BYTES_FOR_PROCESSES = 0\n"
        "os.sched_getaffinity = lambda pid: {0, 1}\n"
        f"print(len(sx.open({str(tmp_path / '*.tar')!r})))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


WAITING = """
import os, pathlib, resource, sys, time
import numpy as np
from shardex.files import scan
from shardex.sources import LocalSource

class Waiting:
    name, in_python = "waiting", True

    def scan(self, source, path):
        folder = pathlib.Path(source.root)
        while path == "0" and len(list(folder.glob("*.done"))) < 35:
            time.sleep(0.01)
        (folder / f"{path}.done").touch()
        return {"offset": np.arange(4000)}

scan._MIN_BYTES_FOR_PROCESSES = 0
os.sched_getaffinity = lambda pid: {0, 1}
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
print(len(scan.scan_all(LocalSource(sys.argv[1]), {str(k): 1 for k in range(80)}, Waiting(), False)))
"""


def test_results_that_wait_for_an_earlier_file_hold_no_files_open(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("80\n", 0), done.stderr


class Failing:
    """A scanner that raises for one file."""

    name = "failing"

    def __init__(self, in_python: bool) -> None:
        self.in_python = in_python

    def scan(self, source: Source, path: str) -> Scan:
        if path == "1.tar":
            raise FormatError(f"{path}: expected a tar")
        return {"start": np.zeros(1, np.int64)}


@pytest.mark.usefixtures("_use_processes")
@pytest.mark.parametrize("in_python", [False, True])
def test_error_of_a_scan_is_raised(tmp_path: Path, in_python: bool) -> None:
    with pytest.raises(FormatError, match=r"1\.tar: expected a tar"):
        scan_all(LocalSource(tmp_path), tars(tmp_path, 3), Failing(in_python), progress=False)


class FailingInReverse:
    """A scanner that raises for all files, for the first one last."""

    name, in_python = "failing", False

    def __init__(self) -> None:
        self.second_failed = threading.Event()

    def scan(self, source: Source, path: str) -> Scan:
        if path == "0.tar":
            assert self.second_failed.wait(60)
        else:
            self.second_failed.set()
        raise FormatError(f"{path}: expected a tar")


def test_of_several_errors_that_of_the_first_file_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with pytest.raises(FormatError, match=r"0\.tar: expected a tar"):
        scan_all(LocalSource(tmp_path), tars(tmp_path, 4), FailingInReverse(), progress=False)


@pytest.mark.parametrize(
    ("workers", "executor", "here"), [(1, None, True), (2, None, False), (2, "threads", True), (None, "inline", True)]
)
def test_workers_and_executor_decide_where_files_are_scanned(
    tmp_path: Path, workers: int | None, executor: str | None, here: bool
) -> None:
    class Where:
        name, in_python = "where", False

        def scan(self, source: Source, path: str) -> int:
            return os.getpid()

    sizes = dict.fromkeys("abcd", 1)
    found = scan_all(LocalSource(tmp_path), sizes, Where(), False, workers=workers, executor=executor)
    assert list(found) == list(sizes)
    assert (set(found.values()) == {os.getpid()}) == here
    assert here or len(set(found.values())) == 2


class Letters:
    """A scanner whose result for a file is its text, and for a part of it too."""

    name = "letters"

    def __init__(self, in_python: bool = False) -> None:
        self.in_python = in_python

    def scan(self, source: Source, path: str) -> tuple[str, int]:
        return bytes(source.load(path)).decode(), 1

    def scan_range(self, source: Source, path: str, part: ByteRange) -> str:
        if (found := bytes(source.read(path, [part])[0]).decode()) == "!":
            raise FormatError(f"{path}: expected letters at {part.begin}")
        return found

    def join(self, source: Source, path: str, parts: Iterable[str]) -> tuple[str, int]:
        return "".join(parts := list(parts)), len(parts)


@pytest.fixture
def letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[LocalSource, dict[str, int]]:
    """Some files, of which big ones have parts of one byte."""
    monkeypatch.setattr(scan_module, "PART_BYTES", 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    texts = {"a": "x", "b": "one", "c": "", "d": "two"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return LocalSource(tmp_path), {name: len(text) for name, text in texts.items()}


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"executor": "threads"}])
def test_big_files_are_scanned_in_parts(letters: tuple[LocalSource, dict[str, int]], options: dict[str, Any]) -> None:
    found = scan_all(*letters, Letters(), progress=False, **options)
    assert list(found.items()) == [("a", ("x", 1)), ("b", ("one", 3)), ("c", ("", 1)), ("d", ("two", 3))]


@pytest.mark.parametrize("options", [{"workers": 1}, {"executor": "inline"}])
def test_one_worker_scans_whole_files(letters: tuple[LocalSource, dict[str, int]], options: dict[str, Any]) -> None:
    found = scan_all(*letters, Letters(), progress=False, **options)
    assert {count for _, count in found.values()} == {1}


@pytest.mark.usefixtures("_use_processes")
def test_parts_are_scanned_in_processes_if_the_scanner_holds_the_gil(
    letters: tuple[LocalSource, dict[str, int]],
) -> None:
    assert scan_all(*letters, Letters(in_python=True), progress=False)["d"] == ("two", 3)


def test_error_of_a_part_is_raised(letters: tuple[LocalSource, dict[str, int]]) -> None:
    source, sizes = letters
    source.put("b", b"o!e")
    with pytest.raises(FormatError, match="b: expected letters at 1"):
        scan_all(source, sizes, Letters(), progress=False)


def test_executor_of_the_user(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        found = scan_all(LocalSource(tmp_path), tars(tmp_path, 3), TarScanner(), False, executor=threads)
    assert len(found) == 3


@pytest.mark.long
def test_ray(tmp_path: Path, ray_cluster: Any) -> None:
    sizes, source = tars(tmp_path, 3), LocalSource(tmp_path)
    here, there = (
        scan_all(source, sizes, TarScanner(), progress=False, executor=executor) for executor in ("inline", "ray")
    )
    assert list(here) == list(there)
    for path, scan in here.items():
        assert {n: c.tolist() for n, c in scan.items()} == {n: c.tolist() for n, c in there[path].items()}
