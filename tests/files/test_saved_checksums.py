"""Checksums of files of other formats: reading a changed byte raises."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import ArgumentError, ChecksumError, ShardexError, StaleIndexError
from shardex.files.saved_checksums import BLOCK
from tests.formats.cases import WITH_BORDERS, format_case

FORMATS = [name for name in WITH_BORDERS if name not in ("arrow", "columns_tar", "data_forager")]
"""All but those that have checksums, or an index, of their own."""


def write(folder: Path, format: str, rows: int = 30) -> sx.Dataset:
    case = format_case(format, rows)
    case.stored(folder)
    return case.opened(folder)


def flip(path: Path, at: int) -> None:
    """Change a byte of a file but not its size and modification time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(1)[0]
        file.seek(at)
        file.write(bytes([old ^ 0x10]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def data_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and ".shardex" not in path.parts]


@pytest.mark.parametrize("format", FORMATS)
def test_any_changed_byte_raises(format: str, tmp_path: Path) -> None:
    write(tmp_path / "d", format)
    right = [repr(sample) for sample in sx.index(tmp_path / "d", checksums=True)]
    paths = data_files(tmp_path / "d")
    for path in paths:
        size = path.stat().st_size
        for at in range(0, size, max(1, size * len(paths) // 60)):
            flip(path, at)
            with pytest.raises(ShardexError):
                assert [repr(sample) for sample in sx.open(tmp_path / "d")] != right, "a changed byte that nobody reads"
            flip(path, at)
    assert [repr(sample) for sample in sx.open(tmp_path / "d")] == right


@pytest.mark.parametrize("read", [lambda ds, k: ds[k], lambda ds, k: ds.read([k]), lambda ds, k: list(ds[k : k + 1])])
def test_samples_outside_the_changed_block_stay_readable(read: Callable[[Any, int], object], tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"v": bytes(40_000)} for _ in range(100)], {"v": bytes}, format="tar")
    (path,) = data_files(tmp_path / "d")
    sx.index(tmp_path / "d", checksums=True)
    flip(path, BLOCK + 5)
    ds = sx.open(tmp_path / "d")
    assert read(ds, 0) is not None and read(ds, 99) is not None
    with pytest.raises(ChecksumError, match=f"expected bytes {BLOCK} to {2 * BLOCK} as they were when checksums were"):
        read(ds, 30)
    bad = {row for problem in sx.verify(tmp_path / "d", progress=False) for row in problem.samples or ()}
    assert bad and bad < set(range(20, 60))
    saved = sx.recover(tmp_path / "d", tmp_path / "saved", progress=False)
    assert len(sx.open(tmp_path / "saved")) == 100 - len(bad) == saved.samples


def test_changed_file_raises_until_checksums_are_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    sx.index(path, checksums=True)
    path.write_text('{"n": 1}\n{"n": 2}\n')
    with pytest.raises(StaleIndexError, match="checksums=True"):
        sx.open(path)
    assert len(sx.index(path, checksums=True)) == 2 and len(sx.open(path)) == 2


def test_files_added_later_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    sx.index(tmp_path, checksums=True)
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n')
    assert [sample.n for sample in sx.open(tmp_path)] == [1, 2]


def test_other_processes_check_too(tmp_path: Path) -> None:
    write(tmp_path / "d", "tar")
    sx.index(tmp_path / "d", checksums=True)
    data = pickle.dumps(sx.open(tmp_path / "d"))
    flip(data_files(tmp_path / "d")[0], 600)
    with pytest.raises(ChecksumError):
        list(pickle.loads(data))


def test_checksums_of_native_dataset_raise(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"n": 1}])
    with pytest.raises(ArgumentError, match="which has its own"):
        sx.index(tmp_path / "d", checksums=True)


def test_checked_files_are_scanned_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sx.write(tmp_path / "d", [{"v": bytes(500)} for _ in range(60)], {"v": bytes}, format="tar", shard_rows=20)
    sx.index(tmp_path / "d", checksums=True)
    monkeypatch.setattr("shardex.files.scan._MIN_BYTES_FOR_PROCESSES", 0)
    assert len(sx.open(tmp_path / "d", rebuild=True)) == 60
