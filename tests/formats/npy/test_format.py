"""Arrays in .npy files: what numpy saves, damaged files, and what is written."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import (
    ArgumentError,
    FormatError,
    RowError,
    SchemaError,
    ShardexError,
    TruncatedShardError,
    UnknownFormatError,
    UnsafeError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")


def save(path: Path, array: Any, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array, **options)
    return path


def every(ds: Any) -> list[list[Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`, and to have the stored lengths."""
    (name,) = ds.features
    samples = [array.tolist() for array in ds.rows.read(np.arange(len(ds)))[name]]
    assert samples == [one[name].tolist() for one in ds]
    assert [len(sample) for sample in samples] == ds.lengths(name).tolist()
    return samples


# -- reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint16", "int64", "float32", "bool", "complex64"])
def test_rows_are_read(tmp_path: Path, dtype: str) -> None:
    arrays = [np.arange(12).reshape(4, 3).astype(dtype), np.empty((0, 3), dtype), np.ones((1, 3), dtype)]
    for number, array in zip((2, 5, 10), arrays, strict=True):
        save(tmp_path / f"a{number}.npy", array)
    ds = sx.open(tmp_path)
    whole = np.concatenate(arrays)
    assert every(ds) == whole.tolist()
    assert ds.features == sx.Features({"tokens": sx.Array(dtype, (3,))})
    column: Any = ds.rows.read(np.array([4, 0]))["tokens"]
    assert column.dtype == dtype and column.tolist() == whole[[4, 0]].tolist()
    assert every(pickle.loads(pickle.dumps(ds))) == whole.tolist()
    assert every(sx.open(tmp_path / "a2.npy", field="x", format="npy")) == arrays[0].tolist()
    for row in (-1, 5):
        with pytest.raises(RowError):
            ds.rows.sample(row)


@pytest.mark.parametrize("shape", [(4, 3, 2), (1, 2, 2, 2), (0, 5, 1)])
def test_rows_of_arrays_of_any_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape), dtype="float32").reshape(shape)
    save(tmp_path / "a.npy", array)
    save(tmp_path / "b.npy", array[:1] + 1)
    both, ds = np.concatenate([array, array[:1] + 1]), sx.open(tmp_path, field="x")
    assert str(ds.features) == f"x float32[{', '.join(map(str, shape[1:]))}]" and len(ds) == len(both)
    assert ds.read(np.arange(len(ds)))["x"].tolist() == both.tolist() == [one.x.tolist() for one in ds]
    assert sx.open(tmp_path, schema={"y": sx.Array("float32", shape[1:])}).fields == ["y"]
    with pytest.raises(SchemaError, match=r"expected one array of shape .* - at field y"):
        sx.open(tmp_path, schema={"y": sx.Array("float32", (9,))})
    if len(ds):
        assert sx.write(tmp_path / "c", ds)[-1].x.shape == shape[1:]


def test_one_dimension_is_read_in_windows(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16))
    save(tmp_path / "b.npy", np.arange(5, dtype=np.uint16))
    assert every(sx.open(tmp_path, window=4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]
    whole = sx.open(tmp_path)
    assert every(whole) == [list(range(10)), list(range(5))]
    assert str(whole.features) == "tokens uint16[?]"
    assert every(sx.open(tmp_path, schema={"x": sx.Array("uint16", (5,))}))[1:] == [[5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    with pytest.raises(SchemaError, match="expected one array of uint16, got x int8"):
        sx.open(tmp_path, schema={"x": sx.Array("int8", (5,))})
    assert [one.tokens.tolist() for one in whole.windows(5)][2] == [0, 1, 2, 3, 4]


def test_every_version_and_order_of_the_header_is_read(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(tmp_path / "a.npy", "wb") as file:
            np.lib.format.write_array(file, array, version)
        assert every(sx.open(tmp_path / "a.npy")) == array.tolist()
    save(tmp_path / "b.npy", np.asfortranarray(array[:1]))
    assert every(sx.open(tmp_path / "b.npy")) == [[0, 1, 2]]
    save(tmp_path / "b.npy", np.asfortranarray(array))
    with pytest.raises(FormatError, match=r"b\.npy: expected rows one after another, got columns \(Fortran order\)"):
        sx.open(tmp_path / "b.npy")
    data = bytearray((tmp_path / "a.npy").read_bytes())
    long = data[:8] + (700).to_bytes(4, "little") + data[12:].split(b"\n")[0].ljust(699) + b"\n" + array.tobytes()
    (tmp_path / "a.npy").write_bytes(long)
    assert np.load(tmp_path / "a.npy").tolist() == every(sx.open(tmp_path / "a.npy")) == array.tolist()


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.array([{"a": 1}], object), UnsafeError, "expected an array of numbers, .* loading it would run code"),
        (np.array(["a"]), SchemaError, "expected a little-endian dtype of numbers"),
        (np.zeros(2, [("a", "i4")]), SchemaError, "expected a little-endian dtype of numbers"),
        (np.zeros(2, ">i4"), SchemaError, "expected a little-endian dtype of numbers"),
        (np.zeros(2, "M8[s]"), SchemaError, "expected a little-endian dtype of numbers"),
        (np.array(3), FormatError, r"expected an array of rows, .*, got shape \(\)"),
        (np.zeros((2, 2, 0)), FormatError, r"expected an array of rows, .*, got shape \(2, 2, 0\)"),
        (np.zeros((2, 2, 2), order="F"), FormatError, r"expected rows one after another, got columns"),
        (np.zeros((2, 0)), FormatError, r"expected an array of rows, .*, got shape \(2, 0\)"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, error: type[ShardexError], message: str) -> None:
    path = save(tmp_path / "a.npy", array, allow_pickle=True)
    with pytest.raises(error, match=rf"a\.npy: {message}"):
        sx.open(path)


def test_arrays_that_do_not_belong_together_raise(tmp_path: Path) -> None:
    save(tmp_path / "a.npy", np.zeros((2, 3), "u2"))
    for other, message in (
        (np.zeros((2, 3), "i4"), r"b\.npy: expected uint16, as in .*a\.npy, got int32"),
        (np.zeros((2, 4), "u2"), r"b\.npy: expected an array of shape \(rows, 3\), as in .*a\.npy, got \(2, 4\)"),
        (np.zeros(2, "u2"), r"b\.npy: expected an array of shape \(rows, 3\)"),
    ):
        save(tmp_path / "b.npy", other)
        with pytest.raises(SchemaError, match=message):
            sx.open(tmp_path)
    for options in ({"window": 3}, {"schema": {"x": sx.Array("uint16", (2,))}}):
        with pytest.raises(ArgumentError, match="expected no window: each row, of 3 numbers, is a sample"):
            sx.open(tmp_path / "a.npy", **options)


def test_damaged_files_raise(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npy", np.arange(6, dtype="u2").reshape(2, 3))
    data = path.read_bytes()
    ds = sx.open(path)
    for size in (139, 128, 100, 8, 6):
        path.write_bytes(data[:size])
        with pytest.raises(FormatError, match=r"a\.npy: expected"):
            sx.open(path, format="npy")
    with pytest.raises(TruncatedShardError):
        ds[0]
    path.write_bytes(data + data)
    with pytest.raises(
        FormatError, match=r"a\.npy: expected 140 bytes for one array of uint16 and shape \(2, 3\), got 280"
    ):
        sx.open(path)
    for wrong in (b"(-2, 3)", b"(2, -3)", b"(9**9)"):
        path.write_bytes(data.replace(b"(2, 3)", wrong))
        with pytest.raises(FormatError, match=r"a\.npy: expected"):
            sx.open(path)
    path.write_bytes(b"")
    with pytest.raises(UnknownFormatError):
        sx.open(path)


def test_recognition_leaves_other_files_alone(tmp_path: Path) -> None:
    save(tmp_path / "labels.npy", np.arange(3))
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(UnknownFormatError, match=r"choose .* format=\"jsonl\" or format=\"npy\""):
        sx.open(tmp_path)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.npy, got . others"):
        sx.open(tmp_path, format="npy")


# -- writing --------------------------------------------------------------------------------------------------


def test_rows_are_written(tmp_path: Path) -> None:
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    schema = {"x": sx.Array("float32", (3,))}
    made = sx.write(tmp_path / "d", [{"x": row} for row in array], schema, format="npy", shard_size=300)
    assert sorted(os.listdir(tmp_path / "d")) == ["part-00000.npy"]
    assert np.load(tmp_path / "d/part-00000.npy").tolist() == array.tolist() == every(made)
    with open(tmp_path / "d/part-00000.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == ((5, 3), False, np.dtype("float32"))
    sx.write(tmp_path / "d", [{"x": row} for row in array], schema, format="npy", shard_size=24, mode="append")
    shards = [np.load(tmp_path / f"d/part-{k:05d}.npy").tolist() for k in range(4)]
    assert shards[1:] == [array[:2].tolist(), array[2:4].tolist(), array[4:].tolist()]
    assert every(sx.open(tmp_path / "d")) == [*array.tolist(), *array.tolist()]
    assert every(sx.write(tmp_path / "none", [], schema, format="npy")) == []
    assert np.load(tmp_path / "none/part-00000.npy").shape == (0, 3)
    for other in ({"x": sx.Array("float64", (3,))}, {"x": sx.Array("float32", (4,))}):
        with pytest.raises(SchemaError, match=r"expected rows as in this array of float32 and shape \(5, 3\)"):
            sx.create(tmp_path / "d", other, format="npy", mode="append")


def test_what_rows_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SchemaError, match=r"expected arrays of one length above 0, .*got x uint16\[\?\]; make some with"
    ):
        sx.create(tmp_path / "d", {"x": sx.Array("uint16", (None,))}, format="npy")
    schemas: Any = [{"x": sx.Array("uint16", (2, 2))}, {"x": int}, {"x": sx.Array("M8[s]", (2,))}]
    for schema in schemas:
        with pytest.raises(SchemaError):
            sx.create(tmp_path / "d", schema, format="npy")
    assert not os.listdir(tmp_path)


def test_jobs_write_the_same_samples(tmp_path: Path) -> None:
    array = np.arange(900, dtype=np.int32).reshape(300, 3)
    source = sx.write(tmp_path / "a", [{"x": row} for row in array], {"x": sx.Array("int32", (3,))})
    options: Any = {"transform": lambda sample: {"x": sample.x}, "workers": 2, "executor": "threads", "shard_size": 500}
    made = sx.write(tmp_path / "b", source, {"x": sx.Array("int32", (3,))}, format="npy", **options)
    assert every(made) == array.tolist()
    more = sx.write(tmp_path / "b", source, {"x": sx.Array("int32", (3,))}, format="npy", mode="append", **options)
    assert every(more) == [*array.tolist(), *array.tolist()]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(0, 20), st.integers(1, 60), st.sampled_from(["uint8", "int16", "bool"]))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory, width: int, count: int, shard_size: int, dtype: str
) -> None:
    array = np.arange(count * width).reshape(count, width).astype(dtype)
    folder = tmp_path_factory.mktemp("n") / "d"
    made = sx.write(
        folder, [{"x": row} for row in array], {"x": sx.Array(dtype, (width,))}, format="npy", shard_size=shard_size
    )
    assert every(made) == array.tolist()
    assert np.concatenate([np.load(path) for path in sorted(folder.iterdir())]).tolist() == array.tolist()
