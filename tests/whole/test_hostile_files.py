"""Files that somebody made to harm the reader: pipes instead of files, links that lead out of a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import shardex as sx
from shardex.errors import PathError, ShardexError
from shardex.sources import LocalSource
from shardex.store.manifest import read_manifest

pytestmark = pytest.mark.timeout(60)
SAMPLES = [{"n": k, "text": f"text {k}"} for k in range(20)]


ARRAYS = [{"x": np.arange(3) + k} for k in range(20)]


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def data_file(folder: Path) -> Path:
    return folder / read_manifest(LocalSource(folder), 1).fragments[0].groups[0].path


@pytest.mark.filterwarnings("ignore:.*making the index again")
@pytest.mark.parametrize("format", ["tar", "jsonl", "bins", "parquet", "columns_tar"])
def test_pipe_instead_of_a_shard_is_refused(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "d", ARRAYS if format == "columns_tar" else SAMPLES, format=format)
    for path in [path for path in (tmp_path / "d").rglob("*") if path.is_file()]:
        replace_by_pipe(path)
    with pytest.raises(ShardexError):
        list(sx.open(tmp_path / "d", format=format))


@pytest.mark.parametrize(
    "part", [data_file, lambda folder: folder / "_shardex" / "00000001.json"], ids=["data", "manifest"]
)
def test_pipe_in_a_native_dataset_is_refused(tmp_path: Path, part: Callable[[Path], Path]) -> None:
    sx.write(tmp_path / "d", SAMPLES)
    replace_by_pipe(part(tmp_path / "d"))
    with pytest.raises(ShardexError, match=r"expected a regular file, got a pipe \(FIFO\)"):
        list(sx.open(tmp_path / "d"))


def test_pipe_instead_of_an_index_is_replaced(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", SAMPLES, format="jsonl")
    sx.open(tmp_path / "d")
    (index,) = (tmp_path / "d" / ".shardex").iterdir()
    replace_by_pipe(index)
    with pytest.warns(UserWarning, match="expected a regular file, got a pipe"):
        assert len(sx.open(tmp_path / "d")) == len(SAMPLES)
    assert index.is_file()


def test_link_out_of_a_native_dataset_is_refused_unless_it_is_trusted(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", SAMPLES, key="n")
    os.rename(tmp_path / "d" / "data", tmp_path / "elsewhere")
    (tmp_path / "d" / "data").symlink_to(tmp_path / "elsewhere")
    ds = sx.open(tmp_path / "d")
    for read in (lambda: ds[0], lambda: ds.get(3), ds.to_arrow):
        with pytest.raises(PathError, match=r"expected a file inside the dataset's folder, got a link to .*elsewhere"):
            read()
    assert len(list(sx.open(tmp_path / "d", trust_paths=True))) == len(SAMPLES)


def test_links_to_a_dataset_and_inside_it_are_followed(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", SAMPLES)
    (tmp_path / "name").symlink_to(tmp_path / "d")
    file = data_file(tmp_path / "d")
    os.rename(file, file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved").name)
    assert len(list(sx.open(tmp_path / "name"))) == len(SAMPLES)


@pytest.mark.parametrize("format", ["jsonl", "tar"])
def test_links_to_shards_in_a_folder_are_followed(tmp_path: Path, format: str) -> None:
    """Users gather shards of several disks that way."""
    sx.write(tmp_path / "d", SAMPLES, format=format)
    (tmp_path / "links").mkdir()
    for path in (tmp_path / "d").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    assert len(list(sx.open(tmp_path / "links"))) == len(SAMPLES)
