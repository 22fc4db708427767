"""Tables of data files: buffers where Arrow finds them, checksums of all bytes, an error for every contradiction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.dataset import dataset

import shardex as sx
from shardex.columns import BLOCK
from shardex.columns.ipc import BatchLayout
from shardex.errors import ChecksumError, FormatError
from shardex.features import arrow_schema
from shardex.native import data_files
from shardex.native.data_file_reader import DataFileReader
from shardex.native.data_file_table import END_OF_STREAM, FileTable, decode_table, encode_table
from shardex.native.fragments import DataFile
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource
from shardex.sources.memory import MemorySource

SCHEMA = sx.Features.of({"n": "int8", "s": str, "v": sx.Array("float32", (None,)), "o": int | None})


def samples(count: int) -> list[dict[str, object]]:
    return [
        {"n": k, "s": "é" * k, "v": np.arange(k, dtype=np.float32), "o": None if k % 2 else k} for k in range(count)
    ]


def written(folder: Path, count: int = 30, batch_bytes: int = 400) -> tuple[DataFile, bytes]:
    """Write samples as one file of small batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "BATCH_BYTES", batch_bytes)
        sx.write(folder, samples(count), SCHEMA)
    (file,) = read_manifest(LocalSource(folder), 1).fragments[0].groups
    return file, (folder / file.path).read_bytes()


def reader_of(file: DataFile, data: bytes) -> DataFileReader:
    return DataFileReader(MemorySource({file.path: data}), file, list(arrow_schema(SCHEMA)))


def buffers_of(array: pa.Array) -> list[pa.Buffer | None]:
    """Buffers of an array in the order of the format, without parts that the format leaves out."""
    found: list[pa.Buffer | None] = array.buffers()
    return found


def check_table(table: FileTable, data: bytes) -> None:
    """All numbers of a table are what Arrow says about the file."""
    mapped = pa.py_buffer(data)
    opened = pa.ipc.open_file(mapped)
    assert len(table) == opened.num_record_batches
    for number in range(len(table)):
        batch = opened.get_batch(number)
        assert table.rows[number] == batch.num_rows
        expected = [buffer for column in batch.columns for buffer in buffers_of(column)]
        assert len(expected) == len(table.buffers[number])
        for buffer, (at, size) in zip(expected, table.buffers[number].tolist(), strict=True):
            assert table.begin[number] <= at <= at + size <= table.end[number]
            assert size == (0 if buffer is None else buffer.size)
            assert buffer is None or not size or buffer.address - mapped.address == at


def test_buffers_and_rows_are_those_of_arrow(tmp_path: Path) -> None:
    file, data = written(tmp_path / "d")
    reader = reader_of(file, data)
    check_table(reader.table, data)
    assert len(reader.table) == 5 and reader.table.nulls.sum() == 15
    assert reader.table.begin[0] == 0 and reader.table.end[-1] == file.end
    reader.check_blocks(np.arange(reader.table.first_block[-1]))


def test_other_bytes_in_a_block(tmp_path: Path) -> None:
    file, data = written(tmp_path / "d")
    for number, (begin, end) in enumerate(zip(*(reader_of(file, data).table.extents(np.arange(3))), strict=True)):
        for at in (begin, begin + end - 1):
            found = reader_of(file, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            with pytest.raises(ChecksumError, match=rf"batch \d+ \(bytes {begin} to {begin + end}\) as it was written"):
                found.check_blocks(np.arange(3))
            found.check_blocks(np.array([k for k in range(3) if k != number]))


# -- contradictions -------------------------------------------------------------------------------------------------


def foot_of(rows: list[int], end: list[int], buffers: object, nulls: object, sums: list[int]) -> bytes:
    """Encode a table, with any numbers."""
    layouts = [
        BatchLayout(count, np.array(some, np.int64), np.array(spans, np.int64).reshape(-1, 2))
        for count, some, spans in zip(rows, nulls, buffers, strict=True)  # type: ignore[call-overload]
    ]
    return END_OF_STREAM + encode_table(rows, end, layouts, np.array(sums, np.uint32), 0)


BLOCKS = -(-100_000 // BLOCK) + 1
GOOD: dict[str, Any] = {
    "rows": [3, 2],
    "end": [100_000, 100_800],
    "buffers": [[[512, 24], [99_200, 800]], [[100_400, 0], [100_400, 400]]],
    "nulls": [[0], [1]],
    "sums": list(range(BLOCKS)),
}


def test_table_is_decoded_as_it_was_encoded() -> None:
    table = decode_table(foot_of(**GOOD), 100_800, "x")
    assert table.rows.tolist() == [3, 2] and table.end.tolist() == [100_000, 100_800] and table.total_rows == 5
    assert table.first_block.tolist() == [0, BLOCKS - 1, BLOCKS] and table.sums.tolist() == list(range(BLOCKS))
    assert table.buffers.tolist() == GOOD["buffers"] and table.nulls.tolist() == GOOD["nulls"]
    begin, size = table.extents(np.array([0, BLOCKS - 2, BLOCKS - 1]))
    last = (BLOCKS - 2) * BLOCK
    assert begin.tolist() == [0, last, 100_000] and size.tolist() == [BLOCK, 100_000 - last, 800]
    shifted = b"?" + foot_of(**GOOD)  # views of bytes that are not aligned
    assert decode_table(memoryview(shifted)[1:], 100_800, "x").sums.tolist() == list(range(BLOCKS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [0, 5]}, "expected batches with rows, got one without"),
        ({"rows": [-1, 5]}, "expected batches with rows, got one without"),
        ({"end": [100_800, 100_800]}, "expected batches one after another up to byte 100800"),
        ({"end": [0, 100_800]}, "expected batches one after another"),
        ({"end": [-8, 100_800]}, "expected batches one after another"),
        ({"end": [100_000, 100_808]}, "expected batches one after another"),
        ({"end": [2**63 - 1, 100_800]}, "expected batches one after another"),
        ({"sums": list(range(BLOCKS - 1))}, f"expected checksums of {BLOCKS} blocks, got {BLOCKS - 1}"),
        ({"sums": list(range(BLOCKS + 1))}, f"expected checksums of {BLOCKS} blocks, got {BLOCKS + 1}"),
        ({"nulls": [[0], [-1]]}, "expected counts of nulls, got negative ones"),
        (
            {"buffers": [[[512, 24], [99_200, 801]], GOOD["buffers"][1]]},
            "inside their batches, got other ones in batch 0",
        ),
        ({"buffers": [GOOD["buffers"][0], [[99_992, 0], [100_400, 400]]]}, "got other ones in batch 1"),
        ({"buffers": [[[513, 24], [99_200, 800]], GOOD["buffers"][1]]}, "got other ones in batch 0"),
        ({"buffers": [[[512, -8], [99_200, 800]], GOOD["buffers"][1]]}, "got other ones in batch 0"),
        ({"buffers": [[[-(2**63), 2**63 - 1], [99_200, 800]], GOOD["buffers"][1]]}, "got other ones in batch 0"),
        ({"rows": [], "end": [], "buffers": [], "nulls": [], "sums": []}, "expected batches, got none"),
    ],
)
def test_table_that_contradicts_itself_raises(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=f"x.arrow: .*{message}"):
        decode_table(foot_of(**{**GOOD, **changes}), 100_800, "x.arrow")


@pytest.mark.parametrize(
    ("field", "value"), [(1, 8), (2, 0), (2, BLOCK // 2), (2, 20_000), (2, 2**63), (3, 2**62), (5, 1)]
)
def test_numbers_in_the_header_that_are_wrong_raise(field: int, value: int) -> None:
    foot = bytearray(foot_of(**GOOD))
    foot[8 + 8 * field : 16 + 8 * field] = value.to_bytes(8, "little")
    with pytest.raises(FormatError, match=r"x: expected"):
        decode_table(bytes(foot), 100_800, "x")


@given(st.data())
def test_random_changes_of_a_table_raise_or_keep_all_numbers_in_bounds(data: st.DataObject) -> None:
    """Also tables whose checksum is right may be wrong: readers rely on what is checked here."""
    foot = bytearray(foot_of(**GOOD))
    for _ in range(data.draw(st.integers(1, 4))):
        at = 8 * data.draw(st.integers(0, len(foot) // 8 - 1))
        number = data.draw(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-16, 110_000)))
        foot[at : at + 8] = number.to_bytes(8, "little", signed=True)
    cut = data.draw(st.one_of(st.just(len(foot)), st.integers(0, len(foot))))
    try:
        table = decode_table(bytes(foot[:cut]), 100_800, "x")
    except FormatError:
        return
    assert table.rows.min() > 0 and table.end[-1] == 100_800 and np.all(table.begin < table.end)
    begin, size = table.extents(np.arange(len(table.sums)))
    assert begin.min() == 0 and size.min() > 0 and np.all(begin[1:] == begin[:-1] + size[:-1])
    assert begin[-1] + size[-1] == 100_800
    first, length = table.buffers[..., 0], table.buffers[..., 1]
    assert np.all(first >= table.begin[:, None]) and np.all(length >= 0)
    assert np.all(first + length <= table.end[:, None])


@given(st.binary(max_size=400))
def test_random_bytes_are_no_table(foot: bytes) -> None:
    for start in (b"", END_OF_STREAM + b"SXTABLE2"):
        with pytest.raises(FormatError):
            decode_table(start + foot, 1000, "x")


def test_foot_with_a_matching_checksum_that_contradicts_the_manifest_raises(tmp_path: Path) -> None:
    file, data = written(tmp_path / "d")
    for changes in ({"count": 4}, {"rows": 29}):
        with pytest.raises(FormatError, match=r"expected \d+ batches with \d+ rows, got 5 with 30"):
            reader_of(msgspec.structs.replace(file, **changes), data).batch(0)
    with pytest.raises(ChecksumError, match="expected the foot"):
        reader_of(msgspec.structs.replace(file, end=file.end - 8), data).batch(0)


def test_every_byte_is_checked_before_it_is_used(tmp_path: Path) -> None:
    """A flipped byte of the file is an error of the batch that has it, or of the file; other batches are read."""
    file, data = written(tmp_path / "d", 12)
    table = reader_of(file, data).table
    expected = [reader_of(file, data).batch(number).to_pylist() for number in range(len(table))]
    for at in range(len(data)):
        reader = reader_of(file, data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        for number in range(len(table)):
            if table.begin[number] <= at < table.end[number] or at >= file.end:
                with pytest.raises(ChecksumError):
                    reader.batch(number)
            else:
                assert reader.batch(number).to_pylist() == expected[number]


def test_plain_arrow_readers_read_the_file(tmp_path: Path) -> None:
    file, data = written(tmp_path / "d")
    path = str(tmp_path / "d" / file.path)
    expected = sx.open(tmp_path / "d").to_arrow()
    for opened in (pa.memory_map(path), pa.OSFile(path), pa.BufferReader(data)):
        assert pa.ipc.open_file(opened).read_all().to_pylist() == expected.to_pylist()
    with pa.ipc.open_stream(pa.py_buffer(data[8:])) as stream:  # the file without its magic is a stream
        assert stream.read_all().to_pylist() == expected.to_pylist()
    assert dataset(path, format="ipc").to_table().to_pylist() == expected.to_pylist()
