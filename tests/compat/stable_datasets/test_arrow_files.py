"""Arrow files of a given schema: batches, shards, errors, all or nothing."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.compat.stable_datasets import _arrow_files as module
from shardex.compat.stable_datasets._arrow_files import ArrowFilesWriter
from shardex.errors import ShardexError
from shardex.formats.arrow import map_table

SCHEMA = pa.schema([("x", pa.int16()), ("data", pa.binary())])


def describe(names: list[str], rows: list[int]) -> dict[str, Any]:
    """The smallest metadata that `open` understands."""
    return {"shard_filenames": names, "shard_row_counts": rows}


def write(path: Path, count: int, size: int = 1, **options: Any) -> None:
    """Write samples numbered from 0."""
    with ArrowFilesWriter(path, SCHEMA, describe, **options) as out:
        for n in range(count):
            out.append({"x": n, "data": bytes([n % 256]) * size})
        assert out.samples == count


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, [[10]]),
        ({"batch_rows": 4}, [[4, 4, 2]]),
        ({"batch_rows": 4, "shard_size": 1}, [[4], [4], [2]]),
        ({"batch_rows": 2, "shard_size": 25}, [[2, 2], [2, 2], [2]]),
        ({"batch_rows": 5, "shard_size": math.inf}, [[5, 5]]),
    ],
)
def test_batches_and_shards(tmp_path: Path, options: dict[str, Any], rows: list[list[int]]) -> None:
    write(tmp_path / "a", 10, **options)
    metadata = json.loads((tmp_path / "a" / "_metadata.json").read_text())
    assert metadata["shard_row_counts"] == [sum(some) for some in rows]
    found = [pa.ipc.open_file(str(tmp_path / "a" / name)) for name in metadata["shard_filenames"]]
    assert [[one.get_batch(k).num_rows for k in range(one.num_record_batches)] for one in found] == rows
    assert [one.x for one in sx.open(tmp_path / "a")] == list(range(10))


def test_large_rows_are_written_in_shorter_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 1000)
    write(tmp_path / "a", 10, size=300)
    reader = pa.ipc.open_file(str(tmp_path / "a" / "shard-00000.arrow"))
    assert [reader.get_batch(k).num_rows for k in range(reader.num_record_batches)] == [4, 4, 2]


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_compressed(tmp_path: Path, compression: str) -> None:
    write(tmp_path / "a", 3, size=10_000, compression=compression)
    assert (tmp_path / "a" / "shard-00000.arrow").stat().st_size < 10_000
    assert sx.open(tmp_path / "a")[2].data == b"\x02" * 10_000
    assert map_table(tmp_path / "a" / "shard-00000.arrow")["x"].to_pylist() == [0, 1, 2]


def test_no_samples(tmp_path: Path) -> None:
    write(tmp_path / "a", 0)
    assert os.listdir(tmp_path / "a") == ["_metadata.json"]
    assert len(sx.open(tmp_path / "a")) == 0


def test_wrong_value_is_named(tmp_path: Path) -> None:
    def write_some() -> None:
        with ArrowFilesWriter(tmp_path / "a", SCHEMA, describe, batch_rows=3) as out:
            for n in (0, 1, 2, 3, 4, 1 << 20, 6):
                out.append({"x": n, "data": None})

    with pytest.raises(ShardexError, match=r"expected int16, got .*sample 5, field x") as raised:
        write_some()
    assert isinstance(raised.value, ValueError)
    assert os.listdir(tmp_path) == []


def test_an_error_leaves_the_old_files(tmp_path: Path) -> None:
    write(tmp_path / "a", 4)
    out = ArrowFilesWriter(tmp_path / "a", SCHEMA, describe, batch_rows=1)
    out.append({"x": 9, "data": b""})
    out.abort()
    assert os.listdir(tmp_path) == ["a"]
    assert len(sx.open(tmp_path / "a")) == 4


def test_readers_keep_the_old_files(tmp_path: Path) -> None:
    write(tmp_path / "a", 6, batch_rows=2, shard_size=1)
    table, old = map_table(tmp_path / "a" / "shard-00002.arrow"), sx.open(tmp_path / "a")
    write(tmp_path / "a", 3)
    assert table["x"].to_pylist() == [4, 5]
    assert [one.x for one in old] == list(range(6))
    assert [one.x for one in sx.open(tmp_path / "a")] == list(range(3))


def test_files_of_others_are_not_removed(tmp_path: Path) -> None:
    write(tmp_path / "a", 1)
    (tmp_path / "a" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="overwriting would remove it"):
        write(tmp_path / "a", 1)
    write(tmp_path / "a", 2, others=r"notes\.txt")
    assert len(sx.open(tmp_path / "a")) == 2


@pytest.mark.parametrize(
    "options", [{"batch_rows": 0}, {"batch_rows": 1.5}, {"shard_size": 0}, {"compression": "gzip"}]
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        write(tmp_path / "a", 1, **options)
    with pytest.raises(ValueError, match="at least one column"):
        ArrowFilesWriter(tmp_path / "a", pa.schema([]), describe)


def test_a_wrong_description_is_refused_before_samples_are_written(tmp_path: Path) -> None:
    with pytest.raises(ShardexError, match=r"expected a description that JSON can hold, got .*Path"):
        ArrowFilesWriter(tmp_path / "a", SCHEMA, lambda names, rows: {"made of": tmp_path})
    assert not os.listdir(tmp_path)
    write(tmp_path / "a", 3, batch_rows=np.int64(2))
    assert len(sx.open(tmp_path / "a")) == 3


def test_map_table_refuses_damaged_files(tmp_path: Path) -> None:
    write(tmp_path / "a", 3)
    path = tmp_path / "a" / "shard-00000.arrow"
    data = path.read_bytes()
    for wrong in (data[:-20], b"ARROW1", b"no Arrow file", b""):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="expected"):
            map_table(path)
    with pytest.raises(FileNotFoundError):
        map_table(tmp_path / "none.arrow")
