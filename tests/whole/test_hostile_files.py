"""Files that somebody made to harm the reader: pipes, links that lead out of a folder, small files that expand."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.columns import DecodeLimit
from shardex.errors import DuplicateKeyError, FormatError, PathError, ShardexError
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore:.*do not store the name of their field"),
]
SAMPLES = [{"n": k, "text": f"text {k}"} for k in range(20)]


ARRAYS = [{"x": np.arange(3) + k} for k in range(20)]


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def data_file(folder: Path) -> Path:
    return folder / read_manifest(LocalSource(folder), 1).fragments[0].groups[0].path


@pytest.mark.filterwarnings("ignore:.*making the index again")
@pytest.mark.parametrize("format", ["tar", "jsonl", "csv", "bins", "parquet", "columns_tar", "megatron", "npy"])
def test_pipe_instead_of_a_shard_is_refused(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "d", ARRAYS if format in ("columns_tar", "megatron", "npy") else SAMPLES, format=format)
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


def test_dataset_with_a_link_that_is_trusted_is_edited_and_checked(tmp_path: Path) -> None:
    """A user who keeps the data on another disk."""
    sx.write(tmp_path / "d", [{"k": "a", "x": 1}], {"k": str, "x": int}, key="k", progress=False)
    (tmp_path / "d" / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "d" / "data").symlink_to(tmp_path / "elsewhere")
    sx.write(tmp_path / "d", [{"k": "b", "x": 2}], mode="append", progress=False)
    with pytest.raises(DuplicateKeyError):
        sx.write(tmp_path / "d", [{"k": "b", "x": 2}], mode="append", progress=False)
    with pytest.raises(PathError, match="trust_paths=True"):
        sx.compact(tmp_path / "d")
    assert sx.compact(tmp_path / "d", trust_paths=True) == 3
    assert sx.verify(tmp_path / "d", trust_paths=True) == []
    assert [sample.x for sample in sx.open(tmp_path / "d", trust_paths=True)] == [1, 2]


def test_links_to_a_dataset_and_inside_it_are_followed(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", SAMPLES)
    (tmp_path / "name").symlink_to(tmp_path / "d")
    file = data_file(tmp_path / "d")
    os.rename(file, file.with_suffix(".moved"))
    file.symlink_to(file.with_suffix(".moved").name)
    assert len(list(sx.open(tmp_path / "name"))) == len(SAMPLES)


@pytest.mark.parametrize("format", ["jsonl", "csv", "tar"])
def test_links_to_shards_in_a_folder_are_followed(tmp_path: Path, format: str) -> None:
    """Users gather shards of several disks that way."""
    sx.write(tmp_path / "d", SAMPLES, format=format)
    (tmp_path / "links").mkdir()
    for path in (tmp_path / "d").iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    assert len(list(sx.open(tmp_path / "links"))) == len(SAMPLES)


# -- small files that expand -------------------------------------------------------------------------------------------

MIB = 1 << 20


def parquet(path: Path, column: Any, **options: Any) -> None:
    pq.write_table(pa.table({"s": column}), path, compression="zstd", **options)


def arrow(path: Path, column: Any, new: Any = pa.ipc.new_file, **options: Any) -> None:
    batch = pa.record_batch({"s": column})
    with (
        pa.OSFile(str(path), "wb") as file,
        new(file, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer,
    ):
        writer.write_batch(batch)


def repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def one_run(count: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int64()), pa.array([7], pa.int64()))


def same_view(text: str, count: int) -> pa.Array:
    view = struct.pack("<i4sii", len(text), text[:4].encode(), 0, 0)
    buffers = [None, *map(pa.py_buffer, (view * count, text.encode()))]
    try:
        return pa.Array.from_buffers(pa.string_view(), count, buffers)
    except ValueError as error:
        pytest.skip(f"pyarrow {pa.__version__} makes no array of views that share a text: {error}")


BOMBS: dict[str, Callable[[Path], None]] = {
    "dictionary.parquet": lambda path: parquet(path, repeated("x" * MIB, 50), store_schema=False),
    "texts.parquet": lambda path: parquet(path, ["x" * MIB] * 50, use_dictionary=False),
    "numbers.parquet": lambda path: parquet(path, np.zeros(6 * MIB), row_group_size=6 * MIB),
    "nulls.parquet": lambda path: parquet(path, pa.nulls(6 * MIB, pa.int64()), row_group_size=6 * MIB),
    "lists.parquet": lambda path: parquet(
        path, pa.ListArray.from_arrays([0, 50], repeated("x" * MIB, 50)), store_schema=False
    ),
    "delta.parquet": lambda path: parquet(
        path, ["x" * MIB] * 50, use_dictionary=False, column_encoding={"s": "DELTA_BYTE_ARRAY"}
    ),
    "file.arrow": lambda path: arrow(path, np.zeros(6 * MIB), compression="zstd"),
    "lz4.arrow": lambda path: arrow(path, np.zeros(6 * MIB), compression="lz4"),
    "stream.arrow": lambda path: arrow(path, np.zeros(6 * MIB), pa.ipc.new_stream, compression="zstd"),
    "dictionary.arrow": lambda path: arrow(
        path, pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * 50 * MIB])), compression="zstd"
    ),
    "runs.arrow": lambda path: arrow(path, one_run(6 * MIB)),
    "views.arrow": lambda path: arrow(path, same_view("x" * MIB, 50)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_file_that_expands_is_refused_before_it_is_decoded(tmp_path: Path, name: str) -> None:
    BOMBS[name](tmp_path / name)
    before = pa.total_allocated_bytes()
    with pytest.raises(FormatError, match=rf"{name}.*expected at most 33554432 bytes.*higher max_decoded_bytes"):
        list(sx.open(tmp_path / name, max_decoded_bytes=32 * MIB))
    assert pa.total_allocated_bytes() - before < 8 * MIB
    assert len(sx.open(tmp_path / name, max_decoded_bytes="1 GB").read([0])["s"]) == 1


def test_whole_columns_are_bounded(tmp_path: Path) -> None:
    """Each row group is small, but a query reads a column of all of them."""
    parquet(tmp_path / "a.parquet", np.zeros(6 * MIB), row_group_size=MIB)
    ds = sx.open(tmp_path / "a.parquet", max_decoded_bytes=32 * MIB)
    assert ds[6 * MIB - 1].s == 0
    with pytest.raises(FormatError, match=r"a.parquet.*column s up to here: expected at most 33554432 bytes"):
        ds.where("s = 1")


def test_environment_sets_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / "a.parquet", np.zeros(MIB))
    monkeypatch.setenv("SHARDEX_MAX_DECODED_BYTES", "1 MB")
    with pytest.raises(FormatError, match="expected at most 1000000 bytes after decoding"):
        sx.open(tmp_path / "a.parquet")[0]


def test_by_default_the_limit_grows_with_the_file(tmp_path: Path) -> None:
    """Large files that compress as usual need no setting; only a tiny file that expands a lot is suspicious."""
    limit = DecodeLimit()
    limit.check(1 << 30, 10, "a small file")
    limit.check(64 << 30, 1 << 30, "a large file")
    with pytest.raises(FormatError, match="got 4900000000 from 93000"):
        limit.check(4_900_000_000, 93_000, "a bomb")


def varint(number: int) -> bytes:
    """Return a number as Thrift writes it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def test_sizes_in_the_footer_are_not_believed(tmp_path: Path) -> None:
    """The pages say 50 MiB, the footer says a few bytes."""
    parquet(tmp_path / "a.parquet", ["x" * MIB] * 50, use_dictionary=False)
    column = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    data = (tmp_path / "a.parquet").read_bytes()
    said = varint(2 * column.total_uncompressed_size)
    assert said in data
    lie = bytes(byte & 0x80 for byte in said[:-1]) + b"\x00"  # the same length, but zero
    (tmp_path / "a.parquet").write_bytes(data.replace(said, lie))
    assert pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0).total_uncompressed_size == 0
    with pytest.raises(FormatError, match="expected at most 33554432 bytes"):
        list(sx.open(tmp_path / "a.parquet", max_decoded_bytes=32 * MIB))


def test_declared_rows_are_bounded(tmp_path: Path) -> None:
    """A null column takes no bytes, so a file can declare any number of rows."""
    arrow(tmp_path / "a.arrow", pa.nulls((1 << 31) - 1))
    with pytest.raises(FormatError, match="expected at most 1073741824 bytes after decoding, got 2147483647"):
        sx.open(tmp_path / "a.arrow")


def test_header_of_a_batch_that_contradicts_its_columns_is_refused(tmp_path: Path) -> None:
    """Arrow itself notices when it reads the batch, and aborts the process for a negative number."""
    arrow(tmp_path / "a.arrow", pa.array([[7]] * 1234567))
    data = (tmp_path / "a.arrow").read_bytes()
    rows = (1234567).to_bytes(8, "little")
    assert data.count(rows) >= 2
    for number in range(data.count(rows)):
        for other in (-1234567, 1 << 40):
            at = find_nth(data, rows, number)
            changed = data[:at] + other.to_bytes(8, "little", signed=True) + data[at + 8 :]
            (tmp_path / "b.arrow").write_bytes(changed)
            with pytest.raises(FormatError):
                list(sx.open(tmp_path / "b.arrow").read([0])["s"])


def find_nth(data: bytes, part: bytes, number: int) -> int:
    at = -1
    for _ in range(number + 1):
        at = data.index(part, at + 1)
    return at
