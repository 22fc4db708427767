"""A source of compressed files behaves as one of plain files, whichever way they are read."""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from shardex.errors import ArgumentError, FormatError, StaleIndexError, TruncatedShardError
from shardex.kernel import Ranges
from shardex.sources import ByteRange, CachedSource, CompressedFile, DecompressedSource, LocalSource
from shardex.sources.access_points import AccessPoints
from shardex.sources.page_file import PAGE
from tests.compressed_files import PACKERS, fast_gzip, in_parts, text, zipped, zstd
from tests.fake_remote import FakeRemote

SIZE = 3_000_000
KINDS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}


def source_of(folder: Path, way: str | None = None, **options: object) -> DecompressedSource:
    packed: dict[str, CompressedFile] = {}
    for path in sorted(os.listdir(folder / "data")):
        stem, _, extension = path.rpartition(".")
        if extension in KINDS:
            packed[stem] = CompressedFile(path, KINDS[extension])
    return DecompressedSource(LocalSource(folder / "data"), packed, way, folder / "cache", **options)  # type: ignore[arg-type]


CONTENT = {
    "gz.jsonl": text(SIZE, 0),
    "bz2.jsonl": text(SIZE // 10, 1),
    "xz.jsonl": text(SIZE // 10, 2),
    "zst.jsonl": text(SIZE // 2, 3),
    "frames.jsonl": text(SIZE, 4),
    "plain.jsonl": text(SIZE // 10, 5),
}


@cache
def files() -> dict[str, bytes]:
    found = {f"{name}.jsonl.{name}": pack(CONTENT[f"{name}.jsonl"]) for name, pack in PACKERS.items()}
    found["frames.jsonl.zst"] = in_parts(zstd, CONTENT["frames.jsonl"], 500_000)
    return found | {"plain.jsonl": CONTENT["plain.jsonl"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    for name, data in files().items():
        (tmp_path / "data" / name).write_bytes(data)
    return tmp_path


def agrees(source: DecompressedSource) -> None:
    random = np.random.default_rng(0)
    for path, data in CONTENT.items():
        begins = random.integers(0, len(data) - 1000, 20).tolist()
        assert source.stat(path).size == len(data)
        assert [bytes(one) for one in source.read(path, [ByteRange(k, 1000) for k in begins])] == [
            data[k : k + 1000] for k in begins
        ]
        view = source.map(path)
        source.fetch(path, [ByteRange(begins[0], 1000)])
        assert bytes(view[begins[0] : begins[0] + 1000]) == data[begins[0] : begins[0] + 1000]
        assert bytes(source.load(path)) == data


@pytest.mark.parametrize("way", [None, "copy"])
def test_each_kind(folder: Path, way: str | None) -> None:
    source = source_of(folder, way)
    assert source.is_remote == (way is None) and source.data_folder == str(folder / "data")
    assert source.paths() == sorted(CONTENT)
    agrees(source)
    agrees(pickle.loads(pickle.dumps(source)))
    copies = os.listdir(folder / "cache" / "plain")
    assert len(copies) == (5 if way else 3)
    assert len(list((folder / "data" / ".shardex").glob("points-*"))) == (0 if way else 2)


@pytest.mark.parametrize("way", [None, "copy"])
def test_tables_of_the_kernel(folder: Path, way: str | None) -> None:
    source = source_of(folder, way)
    paths, random = list(CONTENT), np.random.default_rng(0)
    table = source.buffer_table(paths)
    which = random.integers(0, len(paths), 300)
    begin, length = random.integers(0, SIZE // 10 - 100, 300), random.integers(0, 100, 300)
    found = Ranges(table, which, begin, length).bytes()
    expected = [
        CONTENT[paths[w]][b : b + n] for w, b, n in zip(which.tolist(), begin.tolist(), length.tolist(), strict=True)
    ]
    assert found == expected
    only = source.buffer_table(["gz.jsonl"])
    assert Ranges(only, np.zeros(9, np.int64), begin[:9], length[:9]).bytes() == [
        CONTENT["gz.jsonl"][b : b + n] for b, n in zip(begin[:9].tolist(), length[:9].tolist(), strict=True)
    ]


def test_later_opens_decompress_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = source_of(folder).stats(list(CONTENT))

    def refuse(*arguments: object) -> None:
        raise AssertionError("decompressed again")

    monkeypatch.setattr(DecompressedSource, "_make", refuse)
    again = source_of(folder)
    assert again.stats(list(CONTENT)) == stats
    agrees(again)


def test_sizes_and_tags_do_not_depend_on_the_way(folder: Path) -> None:
    assert source_of(folder).stats(list(CONTENT)) == source_of(folder, "copy").stats(list(CONTENT))


def test_access_points_only(folder: Path) -> None:
    source = source_of(folder, "access_points")
    assert source.stat("gz.jsonl").size == len(CONTENT["gz.jsonl"])
    for path in ("bz2.jsonl", "zst.jsonl"):
        with pytest.raises(ArgumentError, match=rf"{path}\.\w+: expected gzip, or zstd .* compressed=\"copy\""):
            source.stat(path)


@pytest.mark.parametrize("way", [None, "copy"])
@pytest.mark.parametrize("extension", list(PACKERS))
def test_a_file_that_changed_is_decompressed_again(tmp_path: Path, way: str | None, extension: str) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / f"a.{extension}"
    first, second = (PACKERS[extension](text(10_000, seed)) for seed in (1, 2))
    path.write_bytes(first)
    opened = source_of(tmp_path, way)
    before, times = opened.stat("a"), os.stat(path)
    assert bytes(opened.load("a")) == text(10_000, 1)
    path.write_bytes(second)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # even if the time is the same
    now = source_of(tmp_path, way)
    assert bytes(now.load("a")) == text(10_000, 2) and now.stat("a").tag != before.tag
    assert len(os.listdir(tmp_path / "cache" / "plain")) <= 1 if (tmp_path / "cache").exists() else way is None


def test_a_file_that_changes_while_it_is_decompressed_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.gz").write_bytes(fast_gzip(text(10_000)))
    read = LocalSource.read

    def changing(self: LocalSource, path: str, ranges: list[ByteRange]) -> list[memoryview]:
        if ranges[0].length > 5000:
            os.utime(tmp_path / "data" / "a.gz", (1, 1))
        return read(self, path, ranges)

    (tmp_path / "data" / "a.gz").write_bytes(fast_gzip(text(100_000)))
    monkeypatch.setattr(LocalSource, "read", changing)
    for way in (None, "copy"):
        (tmp_path / "data" / "a.gz").write_bytes(fast_gzip(text(100_000)))
        with pytest.raises(StaleIndexError, match=r"a\.gz: expected a file that does not change while"):
            source_of(tmp_path, way).stat("a")
    assert not os.listdir(tmp_path / "cache" / "plain")


@pytest.mark.parametrize("way", [None, "copy"])
@pytest.mark.parametrize("extension", list(PACKERS))
def test_damaged_files_raise_and_leave_nothing(tmp_path: Path, way: str | None, extension: str) -> None:
    (tmp_path / "data").mkdir()
    packed = PACKERS[extension](text(200_000))
    (tmp_path / "data" / f"a.{extension}").write_bytes(packed[:-20])
    with pytest.raises(
        TruncatedShardError, match=rf"a\.{extension}: expected complete .* ends at byte {len(packed) - 20}"
    ):
        source_of(tmp_path, way).stat("a")
    (tmp_path / "data" / f"a.{extension}").write_bytes(b"plain text, in spite of its name")
    with pytest.raises(FormatError, match=rf"a\.{extension}: expected a compressed file, as its name says, got one"):
        source_of(tmp_path, way).stat("a")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert left == [tmp_path / "data" / f"a.{extension}"]


def test_data_that_cannot_be_written_next_to_has_points_in_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "data" / ".shardex").write_bytes(b"a file, so there can be no folder of this name")
    assert source_of(folder).stat("gz.jsonl").size == len(CONTENT["gz.jsonl"])
    assert len(list((folder / "cache" / "index").glob("points-*"))) == 1
    monkeypatch.setattr(DecompressedSource, "_make", None)
    assert source_of(folder).stat("gz.jsonl").size == len(CONTENT["gz.jsonl"])


def test_without_a_cache_copies_are_in_memory(folder: Path) -> None:
    packed = {"bz2.jsonl": CompressedFile("bz2.jsonl.bz2", "bzip2")}
    source = DecompressedSource(LocalSource(folder / "data"), packed, folder=False)
    assert bytes(source.load("bz2.jsonl")) == CONTENT["bz2.jsonl"] and source.cache_folder is None
    with source.local_file("bz2.jsonl") as path:
        assert path is None


def test_a_copy_that_another_process_removes_stays_readable(folder: Path) -> None:
    source = source_of(folder, "copy")
    source.stat("bz2.jsonl")
    with source.local_file("bz2.jsonl") as path:
        assert path is not None and Path(path).read_bytes() == CONTENT["bz2.jsonl"]
    for name in os.listdir(folder / "cache" / "plain"):
        os.unlink(folder / "cache" / "plain" / name)
    assert bytes(source.load("bz2.jsonl")) == CONTENT["bz2.jsonl"]
    assert bytes(source_of(folder, "copy").load("bz2.jsonl")) == CONTENT["bz2.jsonl"]


@pytest.mark.parametrize("way", [None, "copy"])
def test_remote_files(folder: Path, way: str | None) -> None:
    remote = FakeRemote(folder / "data")
    packed = {f"{name}.jsonl": CompressedFile(f"{name}.jsonl.{name}", KINDS[name]) for name in KINDS}
    packed |= {"frames.jsonl": CompressedFile("frames.jsonl.zst", "zstd")}

    def opened() -> DecompressedSource:
        inner = CachedSource(remote, folder / "cache", access="ranged")
        return DecompressedSource(inner, packed, way, folder / "cache")

    agrees(opened())
    assert len(list((folder / "cache").glob("index/points-*"))) == (0 if way else 2)
    if way is None:  # with saved points, only the bytes around a range are read
        for page in (folder / "cache" / "pages").iterdir():
            page.unlink()
        remote.reads.clear()
        found = opened().read("gz.jsonl", [ByteRange(SIZE // 2, 9)])[0]
        assert bytes(found) == CONTENT["gz.jsonl"][SIZE // 2 : SIZE // 2 + 9]
        assert remote.bytes_read < remote.stat("gz.jsonl.gz").size


def test_members_of_archives(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"b.txt": text(SIZE), "c.txt.gz": fast_gzip(b"c")}))
    packed = {
        "a.zip/b.txt": CompressedFile("a.zip", "zip", "b.txt"),
        "a.zip/c.txt": CompressedFile("a.zip", "zip", "c.txt.gz", "gzip"),
    }
    source = DecompressedSource(LocalSource(tmp_path), packed, folder=tmp_path / "cache")
    assert bytes(source.load("a.zip/b.txt")) == text(SIZE) and bytes(source.load("a.zip/c.txt")) == b"c"
    assert source.full_name("a.zip/c.txt") == f"{tmp_path}/a.zip/c.txt.gz"


def test_what_was_chosen_is_said(
    folder: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "shardex"):
        source_of(folder, progress=True).stats(list(CONTENT))
    assert len(caplog.messages) == 2
    assert "2 compressed files (" in caplog.messages[0]
    assert "decompressed): read in place through access points (" in caplog.messages[0]
    assert "3 compressed files (" in caplog.messages[1] and f"copy in {folder}/cache/plain (" in caplog.messages[1]
    shown = capfd.readouterr().err
    assert "decompress:" in shown and "shardex: 3 compressed files (" in shown
    source_of(folder).stats(list(CONTENT))
    assert capfd.readouterr().err == ""


READER = """
import hashlib, pickle, sys
source = pickle.load(open(sys.argv[1], "rb"))
print({path: hashlib.sha256(source.load(path)).hexdigest() for path in source.packed})
"""


def start(source: DecompressedSource, folder: Path) -> subprocess.Popen[str]:
    """Start a process that reads all files."""
    (folder / "source.pickle").write_bytes(pickle.dumps(source))
    run = [sys.executable, "-c", READER, str(folder / "source.pickle")]
    return subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("way", [None, "copy"])
def test_processes_at_the_same_time(folder: Path, way: str | None) -> None:
    source = source_of(folder, way)
    expected = {path: hashlib.sha256(CONTENT[path]).hexdigest() for path in source.packed}
    children = [start(source, folder) for _ in range(2)]
    for child in children:
        assert child.communicate() == (f"{expected}\n", "")
    assert not [path for path in folder.rglob("*") if path.name.endswith((".tmp", ".lock"))]


def test_a_killed_process_is_continued(folder: Path) -> None:
    """Killed at some moments, with access points and copies; the next open makes the rest, and nothing is left over."""
    for number, way in enumerate([None, "copy", None]):
        child = start(source_of(folder, way), folder)
        while child.poll() is None and not list(folder.glob("cache/plain/*")):
            time.sleep(0.002)
        time.sleep(0.01 * number)
        child.kill()
        child.communicate()
        agrees(source_of(folder, way))
        for found in folder.glob("cache/plain/*"):
            assert found.suffix not in (".tmp", ".lock")
            found.unlink()
        for found in (folder / "data").glob(".shardex/points-*"):
            assert AccessPoints.decode(memoryview(found.read_bytes())) is not None
            found.unlink()


def test_a_forked_child_reads(folder: Path) -> None:
    source = source_of(folder)
    agrees(source)
    child = os.fork()
    if child == 0:
        fine = False
        try:
            agrees(source)
            fine = True
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_readers_do_not_wait_again_and_again_for_an_array_that_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardex.sources.decompressed_source._PAGES_IN_MEMORY", 1)
    monkeypatch.setattr("shardex.sources.page_cache._WAIT", 0)
    source = source_of(folder)
    table, data = source.buffer_table(["gz.jsonl"]), CONTENT["gz.jsonl"]
    kept = table.slice(0, 1000, 2000)
    for begin in range(0, SIZE - 1000, 100_000):
        assert table.slice(0, begin, begin + 1000).tobytes() == data[begin : begin + 1000]
    (file,) = source._pages._cache._files.values()
    assert file.is_held and file.wait_again > time.monotonic() and kept.tobytes() == data[1000:2000]
    file.wait_again, file.waits = 0.0, 5  # later they try again: the array may be gone
    assert table.slice(0, 550_000, 550_010).tobytes() == data[550_000:550_010]
    assert file.wait_again > time.monotonic() and file.waits == 0
    del kept
    assert table.slice(0, 5, 10).tobytes() == data[5:10]
    assert file.waits == 0 and file.resident <= 2 * PAGE


def test_memory_is_limited_for_a_large_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.sources.decompressed_source._PAGES_IN_MEMORY", SIZE // 4)
    monkeypatch.setattr("shardex.sources.access_points._KEPT_UNITS", 1)
    source = source_of(folder)
    table, data = source.buffer_table(["gz.jsonl"]), CONTENT["gz.jsonl"]

    def read(number: int) -> float:
        resident = []
        for at in range(0, SIZE - 60_000, 50_000):
            begin = np.array([(at + number * SIZE // 3) % (SIZE - 60_000)])
            (found,) = Ranges(table, np.zeros(1, np.int64), begin, np.array([60_000])).bytes()
            assert found == data[begin[0] : begin[0] + 60_000]
            resident.append(sum(file.resident for file in source._pages._cache._files.values()))
        return float(np.mean(resident))

    assert read(0) < SIZE * 0.8
    with ThreadPoolExecutor(3) as pool:  # readers at the same time keep pages as long as they overlap
        assert len(list(pool.map(read, range(3)))) == 3
