"""Reads of native datasets fetch and check the blocks that they touch, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.columns import BLOCK
from shardex.errors import ChecksumError
from shardex.native import data_file_table, data_files
from shardex.native.data_file_reader import DataFileReader
from shardex.native.data_file_table import FileTable
from shardex.native.manifest import read_manifest
from shardex.native.version_reader import VersionReader
from shardex.sources import CachedSource, LocalSource
from shardex.store import verify
from tests.fake_remote import FakeRemote, missing_pages_filled
from tests.resident_pages import PAGE, evict, resident_pages

SCHEMA = {"x": sx.Array("uint8", (1000,)), "t": str, "n": int}
ROWS = 12_000


def sample(k: int) -> dict[str, Any]:
    return {"x": np.full(1000, k % 251, np.uint8), "t": f"text {k} " * (k % 5), "n": k}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("blocks") / "d"
    sx.write(found, (sample(k) for k in range(ROWS)), SCHEMA)
    return found


def table_of(folder: Path) -> tuple[Path, FileTable]:
    """Return the only data file of a dataset, and its table."""
    source = LocalSource(folder)
    file = read_manifest(source, 1).fragments[0].groups[0]
    return folder / file.path, DataFileReader(source, file, []).table


@pytest.fixture
def flipped(folder: Path) -> Iterator[tuple[Path, FileTable, int]]:
    """Flip a byte of `x` of row 700, in a block that row 0 does not touch."""
    path, table = table_of(folder)
    good = path.read_bytes()
    at = int(table.buffers[0, 2, 0]) + 1000 * 700 + 17
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    yield folder, table, at
    path.write_bytes(good)


def test_damage_is_found_by_reads_that_touch_it_and_by_verify(flipped: tuple[Path, FileTable, int]) -> None:
    folder, table, at = flipped
    ds = sx.open(folder)
    assert sx.DictSample(ds[0]) == sample(0)
    assert ds.read([0, 5_000], ["x"])["x"][1].tolist() == sample(5_000)["x"].tolist()
    assert ds.read([700], ["n"])["n"].tolist() == [700]
    begin = at // table.block * table.block
    where = rf"\.arrow: expected batch 0 \(bytes {begin} to {begin + table.block}\) as it was written"
    for read in (lambda: ds.read([699, 0]), lambda: ds[700], lambda: ds.read([700], ["x"]), lambda: list(ds[695:705])):
        with pytest.raises(ChecksumError, match=where):
            read()
    with pytest.raises(ChecksumError):
        ds.rows.column("x")
    assert len(ds.where("n >= 0").select("n")) == ROWS
    assert any("batch 0" in str(one) for one in sx.verify(folder))


def test_cold_rows_are_read_without_what_is_around_them(disk_path: Path) -> None:
    """Of a file that is not in memory, the blocks of the rows are read, however far the system reads ahead."""
    sx.write(disk_path / "d", (sample(k) for k in range(ROWS)), SCHEMA)
    path, table = table_of(disk_path / "d")
    ds = sx.open(disk_path / "d")
    ds.read(np.arange(2))  # in memory: from now on blocks are not announced
    evict(path)
    rows = np.random.default_rng(2).permutation(ROWS)[:40]
    assert ds.read(rows, ["x", "n"])["n"].tolist() == rows.tolist()
    pages = resident_pages(path)
    assert pages[: len(pages) // 2].sum() * PAGE < 40 * 4 * table.block  # at its end is the table, which was in memory


def test_damage_of_a_neighbour_in_memory_is_no_error(folder: Path) -> None:
    """Blocks in memory are checked in groups; a damaged one matters only to rows that are in it."""
    path, table = table_of(folder)
    good = path.read_bytes()
    begin = int(table.buffers[0, 2, 0])
    at = -(-(begin + 50_000) // (2 * table.block)) * 2 * table.block + table.block  # the second block of a group
    path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
    try:
        ds, row = sx.open(folder), (at - begin) // 1000
        ds.read([0])
        assert ds.read([row - 2], ["x"])["x"][0, 0] == (row - 2) % 251
        with pytest.raises(ChecksumError):
            ds.read([row], ["x"])
    finally:
        path.write_bytes(good)


def test_files_with_larger_blocks(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (data_file_table, data_files):
            patch.setattr(module, "BLOCK", 4 * BLOCK)
        sx.write(tmp_path / "d", (sample(k) for k in range(5000)), SCHEMA)
    path, table = table_of(tmp_path / "d")
    assert table.block == 4 * BLOCK
    ds, rows = sx.open(tmp_path / "d"), np.random.default_rng(3).permutation(5000)
    for some in np.split(rows, 10):
        assert [sx.DictSample(one) for one in ds[some]] == [sample(int(k)) for k in some]
    at = int(table.buffers[0, 2, 0]) + 1000 * 700
    path.write_bytes(path.read_bytes()[:at] + b"?" + path.read_bytes()[at + 1 :])
    with pytest.raises(ChecksumError):
        sx.open(tmp_path / "d").read([700])


@pytest.mark.parametrize("times", [1, 2])
def test_threads_that_check_the_same_blocks(tmp_path: Path, times: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (data_file_table, data_files):
            patch.setattr(module, "BLOCK", times * BLOCK)
        sx.write(tmp_path / "d", (sample(k) for k in range(4000)), SCHEMA)
    for seed in range(15):
        ds, rows = sx.open(tmp_path / "d"), np.random.default_rng(seed).permutation(4000)[:600]
        ds.read([0])
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _, ds=ds, rows=rows: ds.read(rows, ["n", "x"]), range(4)):
                assert found["n"].tolist() == rows.tolist() and (found["x"][:, 0] == rows % 251).all()


def test_reads_of_half_a_batch_ignore_damage_in_the_other_half(folder: Path) -> None:
    """When half of a batch is checked, the rest is checked, too; its damage concerns only reads of it."""
    path, table = table_of(folder)
    good = path.read_bytes()
    begin, rows = int(table.buffers[0, 2, 0]), int(table.rows[0])
    bad = begin + 1000 * (rows // 2) + 500
    path.write_bytes(good[:bad] + bytes([good[bad] ^ 1]) + good[bad + 1 :])
    try:
        for step in (1, 3, 16):
            ds = sx.open(folder)
            some = np.arange(0, rows, step)
            some = some[abs(some - rows // 2) > 40]
            for part in (some, some[: len(some) // 2], some):
                assert ds.read(part, ["x"])["x"][:, 0].tolist() == (part % 251).tolist()
            with pytest.raises(ChecksumError):
                ds.read([rows // 2], ["x"])
    finally:
        path.write_bytes(good)


def test_damage_is_an_error_of_the_rows_that_need_it_however_often_it_was_found(
    flipped: tuple[Path, FileTable, int],
) -> None:
    """From the fourth sample on a batch is checked as a whole; if that fails, other rows are read all the same."""
    folder, table, at = flipped
    ds, begin = sx.open(folder), at // table.block * table.block - int(table.buffers[0, 2, 0])
    bad = range(begin // 1000, -(-(begin + table.block) // 1000))
    assert 700 in bad
    for row in [*np.random.default_rng(0).integers(0, 1500, 40).tolist(), *range(695, 710)]:
        if row in bad:
            with pytest.raises(ChecksumError):
                ds[row]
        else:
            assert sx.DictSample(ds[row]) == sample(row)


def remote_rows(folder: Path, cache: Path, limit: int | None = None) -> tuple[Any, FakeRemote]:
    remote = FakeRemote(folder)
    source = CachedSource(remote, cache, limit, access="ranged")
    manifest = read_manifest(LocalSource(folder), 1)
    return VersionReader(source, manifest).rows(manifest.features), remote


def test_remote_reads_fetch_blocks_in_few_round_trips(folder: Path, tmp_path: Path) -> None:
    rows, remote = remote_rows(folder, tmp_path / "cache")
    assert remote.reads == []
    wanted = np.random.default_rng(1).permutation(ROWS)[:64]
    with missing_pages_filled():
        found = rows.read(wanted, ["x", "n"])
        assert found["n"].tolist() == wanted.tolist()
        assert (found["x"][:, 0] == wanted % 251).all()
        foot = 2 * BLOCK + int(read_manifest(LocalSource(folder), 1).fragments[0].groups[0].size / BLOCK * 8) + 8192
        assert remote.bytes_read < foot + 64 * 4 * BLOCK
        before = len(remote.reads)
        texts = rows.read(np.sort(wanted)[:4], ["t"])["t"]
        assert texts == [sample(int(k))["t"] for k in np.sort(wanted)[:4]]
        assert len(remote.reads) - before <= 2


def test_threads_read_while_the_cache_evicts(folder: Path, tmp_path: Path) -> None:
    with missing_pages_filled():
        rows, _ = remote_rows(folder, tmp_path / "cache", limit=2 << 20)
        stop = threading.Event()

        def work(seed: int) -> int:
            random, reads = np.random.default_rng(seed), 0
            while reads < 25 and not stop.is_set():
                some = random.integers(0, ROWS, 40)
                found = rows.read(some, ["t", "x", "n"])
                assert found["n"].tolist() == some.tolist() and (found["x"][:, 9] == some % 251).all()
                assert found["t"] == [sample(int(k))["t"] for k in some]
                assert sx.DictSample(rows.sample(int(some[0]))) == sample(int(some[0]))
                reads += 1
            return reads

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, range(4))) == [25] * 4


def test_many_fields_take_time_by_field_not_by_pairs_of_fields(tmp_path: Path) -> None:
    """With a look at all columns of a file for each field, an Arrow table would take minutes."""
    sx.write(tmp_path / "wide", [{f"f{k}": None if row else 1.0 for k in range(6_000)} for row in range(2)])
    ds, begin = sx.open(tmp_path / "wide"), time.process_time()
    assert ds.to_arrow().column(5_999).to_pylist() == [1.0, None] and time.process_time() - begin < 5
    begin = time.process_time()
    assert not verify(tmp_path / "wide") and time.process_time() - begin < 1
