"""Scans that run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from shardex.errors import ShardexError
from shardex.files import Scan, scan_all
from shardex.files import scan as scan_module
from shardex.formats.tar_members import TarScanner
from shardex.sources import LocalSource, Source


def tars(folder: Path, count: int) -> dict[str, int]:
    """Tars of one sample each, and their sizes."""
    for number in range(count):
        (folder / "a.txt").write_text("hello")
        with tarfile.open(folder / f"{number}.tar", "w") as tar:
            tar.add(folder / "a.txt", "a.txt")
    return {f"{number}.tar": (folder / f"{number}.tar").stat().st_size for number in range(count)}


@pytest.fixture
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "_WORTH_PROCESSES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


@pytest.mark.usefixtures("_apart")
def test_processes_find_what_this_one_finds(tmp_path: Path) -> None:
    sizes, source = tars(tmp_path, 5), LocalSource(tmp_path)
    found = scan_all(source, sizes, TarScanner(), progress=False)
    assert sorted(found) == sorted(sizes)
    for path, scan in found.items():
        here = TarScanner().scan(source, path)
        assert {n: c.tolist() for n, c in scan.items()} == {n: c.tolist() for n, c in here.items()}


class Dying:
    """A scanner that takes its process along."""

    name, in_python = "dying", True

    def scan(self, source: Source, path: str) -> Scan:
        os._exit(3)


@pytest.mark.usefixtures("_apart")
def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ShardexError, match="the process died with code 3"):
        scan_all(LocalSource(tmp_path), tars(tmp_path, 2), Dying(), progress=False)


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """What multiprocessing asks of a script's main module is not asked here."""
    tars(tmp_path, 3)
    script = tmp_path / "script.py"
    script.write_text(
        "import os, shardex as sx, shardex.files.scan as scan\n"
        "scan._WORTH_PROCESSES = 0\n"
        "os.sched_getaffinity = lambda pid: {0, 1}\n"
        f"print(len(sx.open({str(tmp_path / '*.tar')!r})))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr
