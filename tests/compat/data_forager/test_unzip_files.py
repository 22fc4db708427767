"""Decompressed files: names, command line, damage."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from shardex.compat.data_forager.unzip_files import get_gzip_ext_pos, unzip_file, unzip_files


def test_files_are_decompressed_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.jsonl.gz", "sub/b.gz.old.gzip", "C.GZ"):
        (tmp_path / name).write_bytes(gzip.compress(name.encode()))
    unzip_files(str(tmp_path))
    unzip_files(str(tmp_path))
    found = {path.name: path.read_text() for path in (tmp_path / "unzipped").iterdir()}
    assert found == {"a.jsonl": "a.jsonl.gz", "b.gz.old": "sub/b.gz.old.gzip", "C": "C.GZ"}
    assert get_gzip_ext_pos("a.b") == -1 and get_gzip_ext_pos("a.gz") == 1


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"text"))
    command = [sys.executable, "-m", "shardex.compat.data_forager.unzip_files", "--input-files-path", str(tmp_path)]
    subprocess.run([*command, "--output-path", str(tmp_path / "out")], check=True)
    assert (tmp_path / "out/a").read_bytes() == b"text"


def test_two_files_of_one_name_raise_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.gz", "sub/a.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    with pytest.raises(FileExistsError, match="expected different names"):
        unzip_files(str(tmp_path))
    assert not (tmp_path / "unzipped").exists()


DAMAGED = [gzip.compress(b"text" * 100)[:-9], b"no gzip", gzip.compress(b"x")[:10] + b"\xff" * 20]


@pytest.mark.parametrize("data", DAMAGED, ids=["cut off", "no gzip", "other bytes"])
def test_damaged_files_leave_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(ValueError, match=r"a.gz: expected a whole gzip file"):
        unzip_file(str(tmp_path / "a.gz"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.gz"]
