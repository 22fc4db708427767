"""Any part of a compressed file can be read from its access points, and no wrong byte is ever returned."""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.errors import ChecksumError, FormatError, StaleIndexError, TruncatedShardError
from shardex.sources import ByteRange, LocalSource
from shardex.sources.access_points import (
    CELL,
    LARGEST_UNIT,
    SPACING,
    AccessPoints,
    CellSums,
    Point,
    PointSource,
    raw_stream,
)
from shardex.sources.compression import read_all
from shardex.sources.find_points import frame_runs, gzip_points, zstd_points
from shardex.sources.memory import MemorySource
from shardex.sources.protocols import Source
from tests.compressed_files import fast_gzip, in_parts, text, zstd, zstd_with_size
from tests.waiting import becomes_true

SIZE = 3_500_000


def points_of(source: Source, path: str, kind: str = "gzip") -> AccessPoints | None:
    size, sums = source.stat(path).size, CellSums()
    if kind == "gzip":
        return AccessPoints.of(kind, size, "tag", gzip_points(read_all(source, path, size), path, sums), sums)
    runs = frame_runs(read_all(source, path, size), path)
    if runs is None:
        return None
    read = lambda begin, length: source.read(path, [ByteRange(begin, length)])[0]  # noqa: E731
    return AccessPoints.of(kind, size, "tag", zstd_points(runs, read, path, sums), sums)


def opened(packed: bytes, kind: str = "gzip") -> PointSource:
    inner = MemorySource({"a": packed})
    points = points_of(inner, "a", kind)
    assert points is not None
    saved = AccessPoints.decode(points.encode())
    assert saved is not None
    source = PointSource(inner)
    source.add("a", saved, inner.stat("a"))
    return source


def agrees(source: PointSource, data: bytes, reads: int = 60) -> None:
    random = np.random.default_rng(1)
    assert source.stat("a").size == len(data)
    begins = random.integers(0, len(data) + 1, reads).tolist()
    ranges = [ByteRange(k, min(int(n), len(data) - k)) for k, n in zip(begins, random.zipf(1.2, reads), strict=True)]
    ranges += [ByteRange(0, len(data)), ByteRange(len(data), 0), ByteRange(max(0, len(data) - 1), min(1, len(data)))]
    for some in (ranges, ranges[:1]):
        assert [bytes(one) for one in source.read("a", some)] == [data[one.begin : one.end] for one in some]


def named(data: bytes, name: bytes) -> bytes:
    """A member whose header has a long file name."""
    plain = fast_gzip(data)
    return plain[:3] + b"\x08" + plain[4:10] + name + b"\0" + plain[10:]


def strategy(data: bytes, number: int) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, 31, 8, number)
    return packer.compress(data) + packer.flush()


def flushed(data: bytes) -> bytes:
    """Many small blocks, which begin at bytes and at bits."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    parts = (data[at : at + 5000] for at in range(0, len(data), 5000))
    out = [
        packer.compress(part) + packer.flush(zlib.Z_SYNC_FLUSH if k % 2 else zlib.Z_PARTIAL_FLUSH)
        for k, part in enumerate(parts)
    ]
    return b"".join(out) + packer.flush()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "one member": gzip.compress,
    "fast": fast_gzip,
    "stored": lambda data: gzip.compress(data, 0),
    "members": lambda data: in_parts(fast_gzip, data, 700_001),
    "small members": lambda data: in_parts(fast_gzip, data, 3_001),
    "members and zeros": lambda data: in_parts(lambda part: fast_gzip(part) + bytes(777), data, 1_300_000),
    "members and many zeros": lambda data: in_parts(lambda part: fast_gzip(part) + bytes(300_000), data, 300_000),
    "empty members": lambda data: fast_gzip(b"") + in_parts(lambda part: fast_gzip(part) + fast_gzip(b""), data, 9**6),
    "long headers": lambda data: in_parts(lambda part: named(part, b"n" * 400_000), data, 1_500_000),
    "fixed codes": lambda data: strategy(data, zlib.Z_FIXED),
    "runs": lambda data: strategy(data, zlib.Z_RLE),
    "flushed": flushed,
    "flushed members": lambda data: in_parts(flushed, data, SPACING - 9000),
}


@pytest.mark.parametrize("form", list(PACKED))
def test_gzip(form: str) -> None:
    data = text(SIZE)
    source = opened(PACKED[form](data))
    agrees(source, data)
    points = source.points["a"]
    if form != "runs":
        assert len(points.plain) > 2 and np.diff(points.plain).min() >= SPACING
    assert len(points.encode()) < len(data) // 30


@pytest.mark.parametrize("size", [0, 1, CELL, CELL + 1, SPACING])
def test_short_files(size: int) -> None:
    data = text(2 * SPACING)[:size]
    agrees(opened(fast_gzip(data)), data)


def test_data_that_does_not_compress_and_data_that_does() -> None:
    noise = np.random.default_rng(0).bytes(3_000_000)
    agrees(opened(fast_gzip(noise)), noise)
    zeros = bytes(20_000_000)
    agrees(opened(fast_gzip(zeros)), zeros)


@pytest.mark.parametrize("pack", [zstd, zstd_with_size])
@pytest.mark.parametrize("part", [2_000_000, 300_000, 999])
def test_zstd_of_several_frames(pack: object, part: int) -> None:
    data = text(SIZE if part > 1000 else SIZE // 4)
    assert callable(pack)
    skippable = b"\x5e\x2a\x4d\x18\x07\0\0\0" + bytes(7)
    agrees(opened(skippable + in_parts(pack, data, part) + skippable, "zstd"), data)


def test_zstd_without_random_access_has_no_points() -> None:
    assert points_of(MemorySource({"a": zstd(text(100_000))}), "a", "zstd") is None
    large = zstd(bytes(LARGEST_UNIT + 1))
    assert points_of(MemorySource({"a": large + large}), "a", "zstd") is None
    sums = CellSums()
    sums.add(bytes(LARGEST_UNIT + 1))
    assert AccessPoints.of("gzip", 9, "tag", [Point(80, 0)], sums) is None


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_files_that_are_cut_off_or_damaged_have_no_points(kind: str) -> None:
    packed = in_parts(fast_gzip if kind == "gzip" else zstd, text(400_000), 150_000)
    for size in (len(packed) // 2, len(packed) - 1, 7):
        with pytest.raises(
            TruncatedShardError, match=rf"a: expected complete {kind} data, the file ends at byte {size}"
        ):
            points_of(MemorySource({"a": packed[:size]}), "a", kind)
    with pytest.raises(
        FormatError, match=rf"expected {kind} data, got damaged bytes at about byte {len(packed) // 10}"
    ):
        points_of(MemorySource({"a": packed + b"hello"}), "a", kind)
    if kind == "gzip":
        for at in (-5, -1, len(packed) // 2):
            changed = bytearray(packed)
            changed[at] ^= 255
            with pytest.raises(FormatError, match="got damaged bytes at about byte"):
                points_of(MemorySource({"a": bytes(changed)}), "a", kind)


def test_a_file_that_changes_raises(tmp_path: Path) -> None:
    data = text(SIZE)
    (tmp_path / "a").write_bytes(fast_gzip(data))
    inner = LocalSource(tmp_path)
    points = points_of(inner, "a")
    assert points is not None
    source = PointSource(inner)
    source.add("a", points, inner.stat("a"))
    assert bytes(source.read("a", [ByteRange(9, 9)])[0]) == data[9:18]
    before = os.stat(tmp_path / "a")
    (tmp_path / "a").write_bytes(fast_gzip(text(SIZE, 1)))
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StaleIndexError, match="a: expected the file that was opened, got another"):
        source.read("a", [ByteRange(9, 9)])


def test_wrong_points_and_changed_bytes_are_never_wrong_data() -> None:
    data = text(SIZE)
    packed = fast_gzip(data)
    inner = MemorySource({"a": packed})
    points = points_of(inner, "a")
    assert points is not None
    for wrong in (
        replace(points, bits=points.bits + 1),
        replace(points, plain=points.plain + (points.plain > 0)),
        replace(points, sums=points.sums + np.uint64(1)),
        replace(points, windows=points.windows[1:] + points.windows[:1]),
        replace(
            points,
            windows=points.windows[1:] + points.windows[:1],
            window_sums=np.roll(points.window_sums, -1),
        ),
    ):
        source = PointSource(inner)
        source.add("a", wrong, inner.stat("a"))
        with pytest.raises((FormatError, ChecksumError)):
            source.read("a", [ByteRange(SIZE // 2, 5)])
    changed = bytearray(packed)
    changed[len(packed) // 2 : len(packed) // 2 + 9] = bytes(9)
    inner.files["a"] = bytes(changed)
    source = PointSource(inner)
    source.add("a", points, inner.stat("a"))
    with pytest.raises((FormatError, ChecksumError), match=r"memory:/a: expected"):
        source.read("a", [ByteRange(0, SIZE)])
    assert bytes(source.read("a", [ByteRange(0, 99)])[0]) == data[:99]


def test_a_range_after_the_end_raises() -> None:
    with pytest.raises(TruncatedShardError, match="expected bytes up to 6, got content of 4 bytes"):
        opened(fast_gzip(b"text")).read("a", [ByteRange(2, 4)])


def test_saved_points_that_are_damaged_are_not_used() -> None:
    data = text(SIZE)
    source = opened(fast_gzip(data))
    points = source.points["a"]
    saved = bytes(points.encode())
    for at in range(100, len(saved), len(saved) // 40):
        changed = bytearray(saved)
        changed[at] ^= 4
        if (found := AccessPoints.decode(memoryview(changed))) is None:
            continue
        assert (found.size, found.tag) == (points.size, "tag")
        again = PointSource(source.inner)
        again.add("a", found, source.inner.stat("a"))
        with suppress(ChecksumError):
            assert bytes(again.read("a", [ByteRange(0, len(data))])[0]) == data
    assert AccessPoints.decode(memoryview(saved[:1000])) is None


def test_many_threads_read_at_the_same_time() -> None:
    data = text(SIZE)
    source, barrier = opened(PACKED["members"](data)), threading.Barrier(8)

    def read(seed: int) -> bool:
        barrier.wait()
        begins = np.random.default_rng(seed).integers(0, SIZE - 100, 20).tolist()
        return all(bytes(source.read("a", [ByteRange(k, 100)])[0]) == data[k : k + 100] for k in begins)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_units_are_decompressed_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    data, made = text(SIZE), list[int]()
    source, unit = opened(fast_gzip(data)), AccessPoints.unit

    def noted(self: AccessPoints, number: int, *arguments: Any) -> bytes:
        made.append(number)
        return unit(self, number, *arguments)

    monkeypatch.setattr(AccessPoints, "unit", noted)
    source.fetch("a", [ByteRange(SPACING + 10, 2 * SPACING)], wait=False)
    assert becomes_true(lambda: len(made) >= 2)
    assert bytes(source.read("a", [ByteRange(SPACING + 10, 2 * SPACING)])[0]) == data[SPACING + 10 : 3 * SPACING + 10]
    assert len(made) == len(set(made)), "each once"
    source.inner.files["a"] = b"\0" * 3_000_000  # type: ignore[attr-defined]
    source.fetch("a", [ByteRange(0, 10)], wait=False)
    assert becomes_true(lambda: not source._ahead)


def test_streams_that_begin_at_each_bit() -> None:
    data = text(3000)
    seen = set[int]()
    for skipped in range(1, 900, 11):
        packer = zlib.compressobj(6, zlib.DEFLATED, -15)
        first = packer.compress(data[:skipped]) + packer.flush(zlib.Z_PARTIAL_FLUSH)
        packed = first + packer.compress(data[skipped:]) + packer.flush()
        for bit in range(8):  # the last bits are written with the next block
            try:
                stream, begin = raw_stream(memoryview(packed)[len(first) :], bit, data[:skipped])
                found = stream.decompress(begin)
            except zlib.error:
                continue
            if found == data[skipped:] and stream.eof:
                seen.add(bit)
    assert seen == set(range(8))
