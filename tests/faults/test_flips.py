"""Damaged files: readers raise errors of shardex, never others, never crash, hang or fill the memory.

Every byte of every file of an edited dataset is changed in turn: readers never get wrong values. Files of every format
are damaged at random (`mutations`). One process reads all of it, thousands of times: a crash, a hang or a mapping left
behind would end it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import shardex as sx
from shardex.errors import ShardexError
from shardex.native.fragments import DataFile
from shardex.native.manifest import Manifest, read_manifest
from shardex.native.version_numbers import manifest_path
from shardex.sources import LocalSource
from shardex.store import history
from tests.faults.mutations import MAKERS
from tests.faults.processes import FULL
from tests.faults.states import signature

ROOT = Path(__file__).parents[2]
MASKS = [0xFF, *(1 << bit for bit in range(8))] if FULL else [0xFF]
STRIDE = 1 if FULL else 13
"""Distance of the bytes that are changed; each file begins with another one."""
VERSION = 2
FILES: dict[str, Callable[[Manifest], list[DataFile | None]]] = {
    "data": lambda one: [fragment.groups[0] for fragment in one.fragments],
    "added field": lambda one: [fragment.groups[1] for fragment in one.fragments],
    "keys": lambda one: [fragment.keys for fragment in one.fragments],
    "edits": lambda one: [*one.overlays, *one.deleted],
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def folder(room: Path) -> Path:
    """A dataset of two fragments with keys, newer values, a deleted row and an added field."""
    sx.write(room / "d", [{"n": k, "s": f"text {k}"} for k in range(4)], {"n": int, "s": str}, shard_rows=2, key="n")
    with sx.edit(room / "d", progress=False) as tx:
        tx.add_field("e", "int16", range(4))
        tx.update(1, s="newer")
        tx.delete(3)
    return room / "d"


def damaged(path: Path) -> Iterator[int]:
    """Change the bytes of a file one after another; yield the position of each while it is wrong."""
    good = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for at in range(len(good) % STRIDE, len(good), STRIDE):
            for mask in MASKS:
                file.seek(at)
                file.write(bytes([good[at] ^ mask]))
                yield at
            file.seek(at)
            file.write(good[at : at + 1])
    assert path.read_bytes() == good


def in_one_go(ds: sx.Dataset) -> str:
    return signature(ds)


def one_by_one(ds: sx.Dataset) -> str:
    return signature(ds[row] for row in range(len(ds)))


def by_key(ds: sx.Dataset) -> str:
    return signature(ds.get(key) for key in range(3))


def errors(folder: Path, version: int, right: str) -> list[str]:
    """Read all in three ways, which must give the right values or an error; return the errors."""
    try:
        ds = sx.open(folder, version=version)
    except ShardexError as error:
        return [str(error)]
    found = []
    for read in (in_one_go, one_by_one, by_key):
        try:
            assert read(ds) == right
        except ShardexError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("kind", FILES)
def test_data_files(folder: Path, kind: str) -> None:
    """Reading values of a damaged file raises an error that names the file; no wrong value is read."""
    right = signature(sx.open(folder))
    assert right == by_key(sx.open(folder)) and not errors(folder, VERSION, right)
    for file in FILES[kind](read_manifest(LocalSource(folder), VERSION)):
        assert file is not None
        for at in damaged(folder / file.path):
            found = errors(folder, VERSION, right)
            assert found and all(file.path in words for words in found), f"byte {at} of {file.path}: {found}"
    assert not errors(folder, VERSION, right)


@pytest.mark.parametrize("version", [1, VERSION])
def test_manifests(folder: Path, version: int) -> None:
    """Opening a version with a damaged manifest raises; other versions can be read."""
    name, other = manifest_path(version), 3 - version
    right = signature(sx.open(folder, version=other))
    for at in damaged(folder / name):
        for read in (lambda: sx.open(folder, version=version), lambda: history(folder)):
            with pytest.raises(ShardexError, match=name):
                read()
        if version == VERSION:
            with pytest.raises(ShardexError, match=name):
                sx.open(folder)
            with pytest.raises(ShardexError, match=name):
                sx.edit(folder)
        if at % 50 == 0:
            assert signature(sx.open(folder, version=other)) == right


def test_truncated_files(folder: Path) -> None:
    """As after an incomplete copy; also empty, as some file systems leave a file that was not synced."""
    right = signature(sx.open(folder))
    for path in LocalSource(folder).paths():
        if path == manifest_path(1):
            continue
        good = (folder / path).read_bytes()
        for size in [*range(0, len(good), 1 if FULL else 101), len(good) - 1]:
            (folder / path).write_bytes(good[:size])
            found = errors(folder, VERSION, right)
            assert found or good[size:] == b"\n"
            assert all(path in words for words in found), f"{path} with {size} bytes: {found}"
        (folder / path).write_bytes(good)
    assert not errors(folder, VERSION, right)


FORMATS = [[name] for name in MAKERS] if FULL else [list(MAKERS)]
CASES = 1500 if FULL else 10
ABORTS = ("level histogram size mismatch", "ColumnMetaData type does not match")
"""Known defect of pyarrow 26: `RowGroupMetaData.column` aborts the process if a Parquet footer contradicts itself."""


@pytest.mark.parametrize("names", FORMATS, ids=lambda names: names[0] if len(names) == 1 else "all")
def test_random_damage(room: Path, names: list[str]) -> None:
    """Whatever happened to a file, it is read or refused; native datasets give no wrong value."""
    first = 0
    while first < CASES:
        lines, errors = mutated(room, first, names)
        wrong = [line["wrong"] for line in lines if "wrong" in line]
        assert not wrong, "\n\n".join(wrong[:3])
        if "end" in lines[-1]:
            return
        assert any(one in errors for one in ABORTS), f"the process ended in the case {lines[-1]}: {errors[-3000:]}"
        first = int(lines[-1]["begin"].rpartition(" ")[2]) + 1


def mutated(room: Path, first: int, names: list[str]) -> tuple[list[dict[str, str]], str]:
    """Run cases from `first` on; return the lines that the process printed, and its errors."""
    shutil.rmtree(room / "run", ignore_errors=True)
    (room / "run").mkdir()
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.mutations", str(room / "run")]
    done = subprocess.run(
        [*command, str(first), str(CASES - first), *names],
        cwd=ROOT,
        env={**os.environ, "SHARDEX_CACHE": str(room / "cache")},
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr
