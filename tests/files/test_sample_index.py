"""`Index`, with a scanner for files of records of one size."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    RowError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    TruncatedShardError,
)
from shardex.files import Files, Index, Scan, find
from shardex.files import scan as scan_module
from shardex.files.packed_columns import pack_columns, packings_of, to_header
from shardex.sources import ByteRange, Source, open_source
from shardex.sources.local import LocalDraft
from shardex.sources.memory import MemorySource
from tests.servers.faulty import FaultyServer

index_module = importlib.import_module(
    "shardex.files.sample_index"
)  # in the package, the function `index` may have that name

SCANNED: list[str] = []
"""Files that were scanned in this process since the test began."""


@dataclass(frozen=True)
class Records:
    """Finds records of one size; with a column of their first bytes, and one of their numbers if requested."""

    size: int = 10
    in_python: bool = False
    numbered: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"records of {self.size}"

    def scan(self, source: Source, path: str) -> Scan:
        SCANNED.append(path)
        (raw,) = source.read(path, [ByteRange(0, source.stat(path).size)])
        data = np.frombuffer(raw, np.uint8)
        if data.size % self.size:
            raise FormatError(f"{path}: expected records of {self.size} bytes, got {data.size} bytes")
        offsets = np.arange(0, data.size, self.size)
        scan: Scan = {"offset": offsets, "length": np.full(len(offsets), self.size), "first": data[:: self.size]}
        return scan | ({"number": np.arange(len(offsets)) + 1000} if path in self.numbered else {})


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SCANNED.clear()
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


def write(folder: Path, name: str, values: Iterator[int] | range | list[int], size: int = 10) -> None:
    """Write a file of records that begin with these values."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(bytes([value]).ljust(size, b"-") for value in values))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three files with records 0 to 29; the second is empty."""
    folder = tmp_path / "data"
    write(folder, "part-1.rec", range(12))
    write(folder, "part-2.rec", [])
    write(folder, "part-10.rec", range(12, 30))
    return folder


def files_of(folder: Path) -> Files:
    return find(folder).having(".rec")


def open_index(folder: Path, **options: Any) -> Index:
    SCANNED.clear()
    return Index.of(files_of(folder), Records(), **options)


def firsts(index: Index) -> list[int]:
    return [*map(int, index.read("first", np.arange(len(index))))]


def saved(folder: Path) -> Path:
    (path,) = folder.rglob("*.arrow")
    return path


# -- what it holds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_block", [1, 5, 1 << 18])
def test_position_of_every_sample(data: Path, rows_per_block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_ROWS", rows_per_block)
    index = open_index(data)
    assert len(index) == 30
    assert index.columns == ("offset", "length", "first")
    assert [(file.path, file.size, file.rows) for file in index.files] == [
        ("part-1.rec", 120, 12),
        ("part-2.rec", 0, 0),
        ("part-10.rec", 180, 18),
    ]
    assert index.spans == {"offset": (0, 170), "length": (10, 10), "first": (0, 29)}
    rows = np.random.default_rng(0).permutation(30)
    expected = [(0, 10 * k, 10) if k < 12 else (2, 10 * (k - 12), 10) for k in rows.tolist()]
    assert list(zip(*(column.tolist() for column in index.locate(rows)), strict=True)) == expected
    assert index.file(rows).tolist() == [number for number, _, _ in expected]
    assert index.read("first", rows).tolist() == rows.tolist()
    assert [index.at(k) for k in rows.tolist()] == expected
    assert index.values(13) == (2, {"offset": 10, "length": 10, "first": 13})


def test_rows_outside_raise(data: Path) -> None:
    index = open_index(data)
    for row in (-1, 30, 2**62):
        with pytest.raises(RowError):
            index.read("first", np.array([0, row]))
        with pytest.raises(RowError, match=f"expected a row from 0 to 29, got {row}"):
            index.at(row)


@pytest.mark.parametrize("names", [[], ["a.rec"], ["a.rec", "b.rec"]])
def test_files_without_samples(tmp_path: Path, names: list[str]) -> None:
    (tmp_path / "data").mkdir()
    for name in names:
        write(tmp_path / "data", name, [])
    for _ in range(2):
        index = open_index(tmp_path / "data")
        assert len(index) == 0
        assert [column.tolist() for column in index.locate(np.array([], np.int64))] == [[], [], []]
        with pytest.raises(RowError):
            index.read("offset", np.array([0]))
        with pytest.raises(RowError):
            index.at(0)


def test_column_of_only_some_files(data: Path) -> None:
    scanner = Records(numbered=("part-10.rec",))
    for _ in range(2):
        index = Index.of(files_of(data), scanner)
        assert index.read("number", np.array([0, 11, 12, 29])).tolist() == [0, 0, 1000, 1017]
        assert index.spans["number"] == (0, 1017)
    write(data, "part-11.rec", [7])
    assert Index.of(files_of(data), scanner).read("number", np.array([29, 30])).tolist() == [1017, 0]


def test_negative_numbers_raise(data: Path) -> None:
    class Negative(Records):
        def scan(self, source: Source, path: str) -> Scan:
            return {"offset": np.array([-1])}

    with pytest.raises(SchemaError, match="expected a scan to return integers from 0 on, got -1 - at column offset"):
        Index.of(files_of(data), Negative())


def test_columns_use_narrow_types(tmp_path: Path) -> None:
    class Far(Records):
        def scan(self, source: Source, path: str) -> Scan:
            offsets = np.arange(400_000) * 10_000_000  # as in a file of 4 TB
            return {"offset": offsets, "length": np.full(400_000, 3 << 30)}

    write(tmp_path, "a.rec", [1])
    index = Index.of(files_of(tmp_path), Far())
    assert index.nbytes / len(index) <= 24
    assert os.path.getsize(saved(tmp_path)) == index.nbytes
    assert index.at(399_999) == (0, 399_999 * 10_000_000, 3 << 30)


def tar_like(parts: int, longest: int, rows: int = 20_000) -> Scan:
    """Return the columns that a tar has whose samples have so many parts of 100 to `longest` bytes."""
    random, offset, columns = np.random.default_rng(0), np.full(rows, 512), dict[str, Any]()
    for part in range(parts):
        length = random.integers(100, longest, rows)
        columns |= {f"{part}.offset": offset, f"{part}.length": length}
        offset = offset + (length + 511) // 512 * 512 + 512
    ends = np.cumsum(offset - 512)
    return {"start": np.concatenate([[0], ends[:-1]]), **columns}


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("longest", [2_000, 50_000, 1_000_000])
def test_size_of_the_index_of_tars(tmp_path: Path, parts: int, longest: int) -> None:
    class Tars(Records):
        def scan(self, source: Source, path: str) -> Scan:
            return tar_like(parts, longest)

    write(tmp_path, "a.rec", [1])
    index, columns = Index.of(files_of(tmp_path), Tars()), tar_like(parts, longest)
    assert os.path.getsize(saved(tmp_path)) / len(index) <= 24 + 4 * (parts - 1)
    rows = np.random.default_rng(1).permutation(len(index))[:50]
    assert {name: index.read(name, rows).tolist() for name in index.columns} == {
        name: column[rows].tolist() for name, column in columns.items()
    }
    assert index.values(int(rows[0]))[1] == {name: int(column[rows[0]]) for name, column in columns.items()}
    assert index.values(int(rows[0]), ["start"])[1] == {"start": int(columns["start"][rows[0]])}
    again = index.scan_of("a.rec")
    assert all(np.array_equal(again[name], column) for name, column in columns.items())


@given(
    st.lists(st.integers(0, (1 << 64) - 1) | st.integers(0, 1000).map(lambda n: 4096 + 512 * n), min_size=1),
    st.integers(0, 9),
    st.integers(1, 3),
)
def test_packed_columns_have_their_values(values: list[int], shift: int, files: int) -> None:
    column = np.array(values, np.uint64) >> np.uint64(shift) << np.uint64(shift)
    parts = np.array_split(column, files)
    scans = [{"first": np.arange(len(part)), "x": part} for part in parts]
    spans, packings = pack_columns(scans)
    assert spans["x"] == (int(column.min()), int(column.max()))
    packing = packings_of({"packings": to_header(packings)})["x"]
    assert packing == packings["x"]
    expected = column.view(np.int64)
    if packing.dtype is None:
        assert len(set(values)) == 1 or len({*column.tolist()}) == 1
        assert packing.getter(None)(0) == int(column[0])
    else:
        stored = packing.pack(column)
        assert stored.dtype == packing.dtype and stored.itemsize <= np.min_scalar_type(int(column.max())).itemsize
        assert np.array_equal(packing.unpack(stored), expected)
        assert [packing.getter(stored)(row) for row in range(len(column))] == column.tolist()


def test_index_of_another_version_is_made_again(data: Path) -> None:
    before = firsts(open_index(data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "VERSION", 1)
        open_index(data, rebuild=True)
    with pytest.warns(UserWarning, match="expected an index of version 2, got 1; making the index again"):
        assert firsts(open_index(data)) == before
    assert len(SCANNED) == 3
    assert firsts(open_index(data)) == before and SCANNED == []


# -- opened again ----------------------------------------------------------------------------------------------------


def test_index_is_saved_next_to_the_data_and_mapped(data: Path) -> None:
    first = open_index(data)
    assert sorted(SCANNED) == ["part-1.rec", "part-10.rec", "part-2.rec"]
    again = open_index(data)
    assert SCANNED == []
    assert again.name == first.name == str(saved(data))
    assert saved(data).parent == data / ".shardex"
    assert firsts(again) == list(range(30))
    assert again.fingerprint == first.fingerprint
    if os.path.exists("/proc/self/maps"):
        assert again.name in Path("/proc/self/maps").read_text("utf-8")


def test_only_a_changed_file_is_scanned_again(data: Path) -> None:
    before = open_index(data).fingerprint
    write(data, "part-1.rec", range(100, 114))
    index = open_index(data)
    assert SCANNED == ["part-1.rec"]
    assert firsts(index) == [*range(100, 114), *range(12, 30)]
    assert index.fingerprint != before
    assert firsts(open_index(data)) == [*range(100, 114), *range(12, 30)]
    assert SCANNED == []


def test_file_of_same_size_and_other_time_is_scanned_again(data: Path) -> None:
    open_index(data)
    write(data, "part-10.rec", range(112, 130))
    os.utime(data / "part-10.rec", ns=(1, 1))
    assert firsts(open_index(data)) == [*range(12), *range(112, 130)]
    assert SCANNED == ["part-10.rec"]


def test_only_an_added_file_is_scanned(data: Path) -> None:
    open_index(data)
    write(data, "part-3.rec", [77])
    write(data, "sub/part-0.rec", [88])
    assert firsts(open_index(data)) == [*range(12), 77, *range(12, 30), 88]
    assert sorted(SCANNED) == sorted(["part-3.rec", "sub/part-0.rec"])


def test_other_spellings_of_a_path_scan_nothing_again(data: Path) -> None:
    first = open_index(data)
    for spelling, rows in [("*.rec", range(30)), ("part-{1,10}.rec", range(30)), ("part-1.rec", range(12))]:
        index = open_index(data / spelling)
        assert SCANNED == [] and firsts(index) == list(rows) and index.name != first.name
        assert os.path.samefile(index.name, first.name) == (len(index.files) == 3)  # no copy
    write(data, "part-1.rec", range(100, 112))
    os.utime(data / "part-1.rec", ns=(1, 1))
    assert firsts(open_index(data / "*.rec")) == [*range(100, 112), *range(12, 30)]
    assert SCANNED == ["part-1.rec"]
    assert firsts(open_index(data)) == [*range(100, 112), *range(12, 30)]
    assert SCANNED == []


def put_records(folder: str) -> None:
    for name, numbers in (("part-1.rec", range(12)), ("part-2.rec", range(0)), ("part-10.rec", range(12, 30))):
        open_source(folder).put(name, b"".join(bytes([one]).ljust(10, b"-") for one in numbers))


def test_other_spellings_of_a_url_scan_nothing_again(bucket: str) -> None:
    put_records(f"{bucket}/data")
    spellings: list[Any] = [
        f"{bucket}/data",
        f"{bucket}/data/",
        f"{bucket}/data/*.rec",
        f"{bucket}/data/part-{{1,2,10}}.rec",
        f"{bucket}/data/part-{{1..10..9}}.rec",
        [f"{bucket}/data/part-1.rec", f"{bucket}/data/part-10.rec"],
        f"{bucket}/data/part-10.rec",
    ]
    for number, spelling in enumerate(spellings):
        SCANNED.clear()
        index = Index.of(find(spelling).having(".rec"), Records())
        expected = range(12, 30) if number == len(spellings) - 1 else range(30)
        assert firsts(index) == list(expected) and bool(SCANNED) == (number == 0)
    open_source(f"{bucket}/data").put("part-1.rec", b"new-------" * 12)
    SCANNED.clear()
    Index.of(find(f"{bucket}/data/*.rec"), Records())
    assert SCANNED == ["part-1.rec"]


def test_other_spellings_of_files_on_a_web_server_scan_nothing_again(web: FaultyServer) -> None:
    web.files.update({f"d/{k}.rec": bytes([k]).ljust(10, b"-") * 3 for k in range(3)})
    root = f"{web.url()}/d"
    spellings: list[Any] = [f"{root}/{{0..2}}.rec", f"{root}/{{0,1,2}}.rec", [f"{root}/{k}.rec" for k in range(3)]]
    for number, spelling in enumerate([*spellings, f"{root}/2.rec"]):
        SCANNED.clear()
        index = Index.of(find(spelling).having(".rec"), Records())
        assert firsts(index)[-3:] == [2, 2, 2] and bool(SCANNED) == (number == 0)


def test_other_spellings_with_a_damaged_index_scan_again(data: Path) -> None:
    open_index(data)
    for path in data.glob(".shardex/records-*"):
        path.write_bytes(path.read_bytes()[:-200])
    assert firsts(open_index(data / "*.rec")) == list(range(30))
    assert sorted(SCANNED) == sorted(["part-1.rec", "part-2.rec", "part-10.rec"])


def test_file_that_another_process_adds_and_indexes_meanwhile_is_not_gone(data: Path) -> None:
    listed = files_of(data)
    write(data, "part-20.rec", range(30, 40))
    open_index(data)
    assert firsts(Index.of(listed, Records())) == list(range(30))
    assert firsts(open_index(data)) == list(range(40))


def test_removed_file_raises(data: Path) -> None:
    open_index(data)
    os.remove(data / "part-10.rec")
    with pytest.raises(
        StaleIndexError, match=r"part-10.rec: expected this file with 18 samples, it is gone .*rebuild=True"
    ):
        open_index(data)
    assert firsts(open_index(data, rebuild=True)) == list(range(12))
    assert firsts(open_index(data)) == list(range(12))
    assert SCANNED == []


def test_file_removed_after_listing_raises(data: Path) -> None:
    open_index(data)
    files = files_of(data)
    os.remove(data / "part-10.rec")
    with pytest.raises(NotFoundError, match=r"part-10.rec"):
        Index.of(files, Records())


def test_shortened_file_raises(data: Path) -> None:
    open_index(data)
    write(data, "part-10.rec", range(12, 20))
    with pytest.raises(
        TruncatedShardError, match=r"part-10.rec: expected at least 180 bytes .* got 80; .*rebuild=True"
    ):
        open_index(data)
    assert firsts(open_index(data, rebuild=True)) == list(range(20))


def test_together_scans_all_files_again(data: Path) -> None:
    open_index(data)
    write(data, "part-1.rec", range(5))
    os.remove(data / "part-10.rec")
    assert firsts(open_index(data, together=True)) == list(range(5))
    assert sorted(SCANNED) == sorted(["part-1.rec", "part-2.rec"])


def test_rebuild_scans_everything(data: Path) -> None:
    open_index(data)
    open_index(data, rebuild=True)
    assert len(SCANNED) == 3


def test_index_that_another_process_replaces_at_once_is_not_used(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process indexes one more file, and saves its index right after ours."""
    expected = firsts(open_index(data))
    names = [file.path for file in open_index(data).files]
    write(data, "part-3.rec", [9])
    assert len(open_index(data)) == len(expected) + 1
    theirs = saved(data).read_bytes()
    (data / "part-3.rec").unlink()
    publish = LocalDraft.publish

    def publish_before_another(draft: LocalDraft, path: str) -> None:
        publish(draft, path)
        (data / path).write_bytes(theirs)

    monkeypatch.setattr(LocalDraft, "publish", publish_before_another)
    index = open_index(data, rebuild=True)
    assert firsts(index) == expected and [file.path for file in index.files] == names


def test_failed_scan_saves_nothing(data: Path) -> None:
    (data / "part-2.rec").write_bytes(b"odd")
    with pytest.raises(FormatError, match=r"part-2.rec: expected records of 10 bytes"):
        open_index(data)
    assert not list(data.rglob("*.arrow"))


# -- a run that was killed ----------------------------------------------------------------------------------------


@pytest.fixture
def stopped(data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of which some files were scanned and saved, when a scan failed: part-1, part-2 and part-10 are good."""
    monkeypatch.setattr(index_module, "SAVE_BYTES", 100)
    write(data, "part-11.rec", range(30, 45))
    (data / "part-12.rec").write_bytes(b"odd")
    with pytest.raises(FormatError, match=r"part-12\.rec"):
        open_index(data, executor="inline")
    assert sorted(SCANNED) == sorted(["part-1.rec", "part-2.rec", "part-10.rec", "part-11.rec", "part-12.rec"])
    assert len(list(data.rglob("unfinished-*.arrow"))) == 3
    write(data, "part-12.rec", [45])
    return data


def test_files_that_were_scanned_are_not_scanned_again(stopped: Path) -> None:
    index = open_index(stopped)
    assert SCANNED == ["part-12.rec"]
    continued = saved(stopped).read_bytes()  # nothing else is left
    assert firsts(index) == list(range(46))
    open_index(stopped, rebuild=True)
    assert len(SCANNED) == 5
    assert saved(stopped).read_bytes() == continued


def test_rebuild_does_not_use_what_a_killed_run_saved(stopped: Path) -> None:
    assert firsts(open_index(stopped, rebuild=True)) == list(range(46))
    assert len(SCANNED) == 5
    assert saved(stopped)


def test_file_that_changed_after_a_killed_run_is_scanned_again(stopped: Path) -> None:
    write(stopped, "part-1.rec", range(100, 113))
    os.remove(stopped / "part-10.rec")  # no complaint: there was no index of it
    assert firsts(open_index(stopped)) == [*range(100, 113), *range(30, 46)]
    assert sorted(SCANNED) == sorted(["part-1.rec", "part-12.rec"])


def test_index_from_before_a_killed_run_still_complains(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_index(data)
    monkeypatch.setattr(index_module, "SAVE_BYTES", 1)
    write(data, "part-11.rec", range(30, 45))
    (data / "part-12.rec").write_bytes(b"odd")
    with pytest.raises(FormatError, match=r"part-12\.rec"):
        open_index(data, executor="inline")
    assert list(data.rglob("unfinished-*.arrow"))
    os.remove(data / "part-1.rec")
    with pytest.raises(StaleIndexError, match=r"part-1\.rec: expected this file with 12 samples, it is gone"):
        open_index(data)


@pytest.mark.parametrize("damage", ["header", "block"])
def test_damaged_result_of_a_killed_run_is_not_used(stopped: Path, damage: str) -> None:
    path = next(stopped.rglob("unfinished-0-*.arrow"))
    content = bytearray(path.read_bytes())
    content[content.rindex(bytes(range(12))) if damage == "block" else -100] ^= 1
    path.write_bytes(content)
    if damage == "block":
        index = open_index(stopped)
    else:
        with pytest.warns(UserWarning, match="scanning the files in it again"):
            index = open_index(stopped)
    assert firsts(index) == list(range(46))
    assert set(SCANNED) >= {"part-1.rec", "part-12.rec"}
    assert saved(stopped)


KILLED = """
import os, signal, sys
import shardex as sx
from shardex.files import sample_index
from shardex.formats.lines import LineScanner
from shardex.sources.local import LocalDraft

sample_index.SAVE_BYTES, left = 1000, int(sys.argv[2])

def counted(function, log):
    def call(self, *arguments):
        global left
        for _ in range(2):
            if not (left := left - 1):
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(self, *arguments) if _ == 0 else result
        if log:
            print(arguments[1], flush=True)
        return result
    return call

LineScanner.scan = counted(LineScanner.scan, True)
LocalDraft.publish = counted(LocalDraft.publish, False)
print(len(sx.index(sys.argv[1], executor="inline")))
"""
"""Index a folder; kill this process before or after the n-th scan or write."""


def test_killed_process_is_continued(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for number in range(12):
        write(folder, f"{number}.jsonl", [48 + number % 10], 600)
    sx.index(folder)
    expected = saved(folder).read_bytes()
    shutil.rmtree(folder / ".shardex")
    scanned: list[str] = []
    for moment in (2, 5, 7, 10, 0):
        command = [sys.executable, "-c", KILLED, str(folder), str(moment)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == (-signal.SIGKILL if moment else 0), done.stderr
        scanned += done.stdout.split()
    assert scanned.pop() == "12"
    assert set(scanned) == {f"{number}.jsonl" for number in range(12)}
    assert len(scanned) < 18
    assert saved(folder).read_bytes() == expected


def test_different_patterns_have_different_indexes(data: Path) -> None:
    open_index(data)
    assert len(Index.of(find(str(data / "part-1*.rec")), Records())) == 30
    assert len(Index.of(find([data / "part-10.rec", data / "part-1.rec", data / "part-1.rec"]), Records())) == 42
    assert len(Index.of(files_of(data), Records(5))) == 60
    assert len(list(data.rglob("*.arrow"))) == 4
    assert len(open_index(data)) == 30
    assert SCANNED == []


def test_index_is_found_after_the_folder_was_moved(data: Path, tmp_path: Path) -> None:
    open_index(data)
    shutil.move(data, tmp_path / "elsewhere")
    assert firsts(open_index(tmp_path / "elsewhere")) == list(range(30))
    assert SCANNED == []


def test_files_in_memory_are_indexed_in_the_cache(tmp_path: Path) -> None:
    source = MemorySource({"a.rec": b"a" * 30})
    for expected in (["a.rec"], []):
        SCANNED.clear()
        index = Index.of(Files(source, ("a.rec",), "memory:mine"), Records())
        assert index.read("first", np.arange(3)).tolist() == [97] * 3
        assert expected == SCANNED
    assert saved(tmp_path / "cache").parents[1] == tmp_path / "cache" / "index"


# -- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["garbage", "nothing", "half", "another version", "an Arrow file"])
def test_damaged_index_is_rebuilt_with_a_warning(data: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if damage == "another version":
        monkeypatch.setattr(index_module, "VERSION", 999)
    open_index(data)
    monkeypatch.undo()
    whole = saved(data).read_bytes()
    if damage in ("garbage", "nothing", "half"):
        saved(data).write_bytes({"garbage": b"garbage" * 100, "nothing": b"", "half": whole[: len(whole) // 2]}[damage])
    elif damage == "an Arrow file":
        table = pa.table({"offset": [1, 2]})
        with pa.ipc.new_file(str(saved(data)), table.schema) as writer:
            writer.write_table(table)
    with pytest.warns(UserWarning, match=r"\.arrow: expected .*; making the index again"):
        assert firsts(open_index(data)) == list(range(30))
    assert len(SCANNED) == 3
    assert firsts(open_index(data)) == list(range(30))
    assert SCANNED == []


def test_flipped_byte_raises_when_its_block_is_read(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_ROWS", 6)
    open_index(data)
    damaged = bytearray(saved(data).read_bytes())
    at = damaged.index(bytes(range(18, 24)))  # the first bytes of the records of the fourth block
    damaged[at] ^= 1
    saved(data).write_bytes(damaged)
    index = open_index(data)
    assert SCANNED == []
    assert index.read("first", np.array([0, 12, 29])).tolist() == [0, 12, 29]
    for touch in (lambda: index.read("offset", np.array([18])), lambda: index.at(20), lambda: index.values(23)):
        with pytest.raises(ChecksumError, match=rf"{saved(data)}, block 3: .* rebuild=True"):
            touch()
    write(data, "part-11.rec", [1])  # what is kept of an index is checked too
    with pytest.raises(ChecksumError, match="block 3"):
        open_index(data)
    assert firsts(open_index(data, rebuild=True)) == [*range(30), 1]


def test_any_flipped_byte_gives_right_numbers_or_an_error(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_ROWS", 16)
    open_index(data)
    whole = saved(data).read_bytes()
    expected = [column.tolist() for column in open_index(data).locate(np.arange(30))]
    wrong, refused = [], 0
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        try:
            index = Index(memoryview(bytes(damaged)), "an index")
            if [column.tolist() for column in index.locate(np.arange(30))] != expected:
                wrong.append(at)
        except ShardexError:
            refused += 1
    assert wrong == []
    assert refused > len(whole) // 4


def test_truncated_index_raises(data: Path) -> None:
    open_index(data)
    whole = saved(data).read_bytes()
    for size in range(0, len(whole), 7):
        with pytest.raises(ShardexError):
            Index(memoryview(whole[:size]), "an index")


# -- where it is saved -----------------------------------------------------------------------------------------------

AS_OTHER_USER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.files.test_sample_index import *
folder, cache = Path(sys.argv[1]) / "data", Path(sys.argv[1]) / "cache"
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.environ["SHARDEX_CACHE"] = str(cache)
for _ in range(2):
    index = open_index(folder)
    print(index.name.startswith(str(cache)), firsts(index) == list(range(30)), len(SCANNED))
os.environ["SHARDEX_CACHE"] = str(folder / "no" / "place")
for _ in range(2):
    index = open_index(folder)
    print("in memory" in index.name, firsts(index) == list(range(30)), len(SCANNED))
"""


def test_read_only_folder_is_indexed_in_the_cache_or_in_memory(data: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own are closed to others
        place = Path(folder)
        shutil.copytree(data, place / "data")
        (place / "cache").mkdir()
        for path, mode in ((place, 0o755), (place / "data", 0o555), (place / "cache", 0o777)):
            path.chmod(mode)
        command = [sys.executable, "-c", AS_OTHER_USER, folder, str(Path(__file__).parents[2])]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (place / "data").chmod(0o755)
    assert done.stdout.split("\n")[:4] == ["True True 3", "True True 0", "True True 3", "True True 3"]


def test_outdated_read_only_index_does_not_hide_the_one_in_the_cache(data: Path, tmp_path: Path) -> None:
    open_index(data)
    old, content = saved(data), saved(data).read_bytes()
    os.utime(data / "part-1.rec", ns=(1, 1))  # as after a copy that does not keep times
    shutil.rmtree(old.parent)
    old.parent.write_bytes(b"a file, so that nothing can be put here")
    open_index(data)
    new = saved(tmp_path / "cache")
    os.remove(old.parent)
    old.parent.mkdir()
    old.write_bytes(content)
    assert open_index(data).name == str(new)
    assert SCANNED == []
    shutil.rmtree(tmp_path / "cache")
    assert open_index(data).name == str(old)
    assert SCANNED == ["part-1.rec"]


# -- in parallel -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_parallel_scans_give_the_same_index(data: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20, 30):
        write(data, f"part-{number}.rec", range(number))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    open_index(data)
    alone = saved(data).read_bytes()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(scan_module, "_MIN_BYTES_FOR_PROCESSES", -1)
    SCANNED.clear()
    Index.of(files_of(data), Records(in_python=kind == "processes"), rebuild=True)
    assert saved(data).read_bytes() == alone
    assert len(SCANNED) == (13 if kind == "threads" else 0)


def test_error_in_another_process_is_raised(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "part-2.rec").write_bytes(b"odd")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(scan_module, "_MIN_BYTES_FOR_PROCESSES", -1)
    with pytest.raises(FormatError, match=r"part-2.rec: expected records of 10 bytes"):
        Index.of(files_of(data), Records(in_python=True))


def test_threads_read_one_index(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_BLOCK_ROWS", 2)
    index = open_index(data)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: firsts(index) == list(range(30)), range(32)))


def test_threads_build_one_index(data: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: firsts(Index.of(files_of(data), Records())) == list(range(30)), range(16)))
    assert os.listdir(data / ".shardex") == [saved(data).name]


# -- progress -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("progress", "shown"), [(True, True), (False, False), (None, False)])
def test_progress_bar_is_shown(
    data: Path, progress: bool | None, shown: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    Index.of(files_of(data), Records(), progress=progress)
    assert ("index: 100%" in capsys.readouterr().err) == shown
    Index.of(files_of(data), Records(), progress=progress)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("how", ["replaced", "overwritten"])
def test_file_of_equal_size_and_time_is_scanned_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    assert [sample.text for sample in sx.open(tmp_path)] == ["one", "two", "three"]
    times = path.stat()
    other = path if how == "overwritten" else tmp_path / "other"
    other.write_text("a\nlonger line\n")
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (times.st_size, times.st_mtime_ns)
    assert [sample.text for sample in sx.open(tmp_path)] == ["a", "longer line"]


def test_copy_of_a_folder_with_its_index_is_not_scanned_again(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.txt").write_text("one\ntwo\n")
    before = sx.open(tmp_path / "d")
    shutil.copytree(tmp_path / "d", tmp_path / "copy")
    os.chmod(tmp_path / "d" / "a.txt", 0o600)
    for folder in ("copy", "d"):
        (index,) = (tmp_path / folder / ".shardex").iterdir()
        written = index.stat()
        assert [sample.text for sample in sx.open(tmp_path / folder)] == ["one", "two"]
        now = index.stat()
        assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    assert sx.open(tmp_path / "copy").fingerprint == before.fingerprint


def test_index_of_an_earlier_version_is_still_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files have neither a checksum of parts nor an identity."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "probe", lambda *_: "")
        fingerprint = sx.open(tmp_path).fingerprint
    (index,) = (tmp_path / ".shardex").iterdir()
    written = index.stat().st_mtime_ns
    os.chmod(tmp_path / "a.txt", 0o600)
    assert sx.open(tmp_path).fingerprint == fingerprint and index.stat().st_mtime_ns == written
