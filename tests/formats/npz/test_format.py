"""Arrays by name in .npz files, as numpy writes them."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FormatError, SchemaError, ShardexError, UnsafeError

ARRAYS: dict[str, Any] = {
    "x": np.arange(24, dtype=np.float32).reshape(4, 2, 3),
    "columns": np.asfortranarray(np.arange(8).reshape(4, 2)),
    "big": np.arange(4, dtype=">i2"),
    "y": np.array([True, False, True, True]),
    "name": np.array(["a", "né", "", "d"]),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_fields(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    ds = sx.open(tmp_path / "a.npz")
    assert str(ds.features) == "x float32[2, 3], columns int64[2], big int16, y bool, name text"
    found = ds.read([3, 0, 3])
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(np.asarray(found[name]), array[[3, 0, 3]])
    assert found["big"].dtype == np.int16 and found["name"] == ["d", "a", "d"]
    assert ds[1].name == "né" and ds[1].y is False and len(ds.where("big > 1 AND name <> ''")) == 1
    assert sx.open(tmp_path / "a.npz", schema={"big": sx.ClassLabel(num_classes=4)}).features["big"].kind == "class"


def test_several_files_are_shards(tmp_path: Path) -> None:
    for k in range(3):
        np.savez(tmp_path / f"{k}.npz", x=np.arange(k + 1) + 10 * k, s=np.array([f"{k}"] * (k + 1)))
    ds = sx.open(tmp_path)
    assert ds.read([5, 0, 2, 3, 1])["x"].tolist() == [22, 0, 11, 20, 10]
    assert [one.s for one in ds] == ["0", "1", "1", "2", "2", "2"]
    np.savez(tmp_path / "3.npz", x=np.zeros(2), s=np.array(["", ""]))
    with pytest.raises(SchemaError, match=r"3\.npz: expected x int64, s text, as in .*0\.npz, got x float64, s text"):
        sx.open(tmp_path)


def test_arrays_of_other_lengths_are_left_out_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=np.zeros((3, 2)), y_train=np.arange(3), x_test=np.zeros((1, 2)), n=3)
    with pytest.raises(SchemaError, match=r"x_train with 3, y_train with 3, x_test with 1, n with no axis; .* arrays="):
        sx.open(tmp_path / "mnist.npz")
    assert sx.open(tmp_path / "mnist.npz", arrays=["y_train", "x_train"]).fields == ["y_train", "x_train"]
    for names in ([], ["x_tran"]):
        with pytest.raises(FormatError, match=r"mnist\.npz: expected some of the arrays x_train, y_train, .* got"):
            sx.open(tmp_path / "mnist.npz", arrays=names)


def test_stored_arrays_are_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    array = sx.open(tmp_path / "a.npz").rows._found[0].array("x")  # type: ignore[attr-defined]
    assert array.base is not None and not array.flags.writeable and array.tolist() == list(range(100))


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.array([{}, 1], object), UnsafeError, r"a\.npz: .*loading it would run code"),
        (
            np.array(["2024-01-01"], "datetime64[D]"),
            SchemaError,
            r"a\.npz: expected numbers, or one text .* - at array x",
        ),
        (np.array([["a"]]), SchemaError, "expected numbers, or one text for each sample"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, array: Any, error: type[ShardexError], message: str) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(error, match=message):
        sx.open(tmp_path / "a.npz")


def test_other_archives_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.txt", "text")
    with pytest.raises(FormatError, match=r"a\.npz: expected \.npy members in an \.npz, got 'x\.txt'"):
        sx.open(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(FormatError, match=r"a\.npz: expected the arrays of an \.npz, got others"):
        sx.open(tmp_path / "a.npz")


def test_numpy_reads_what_was_written(tmp_path: Path) -> None:
    schema = {"x": sx.Array("int8", (2,)), "label": sx.ClassLabel(["a", "b"]), "s": str}
    values = np.zeros(2, np.int8)
    with sx.create(tmp_path / "d", schema, format="npz", shard_rows=2) as out:
        for k in range(3):
            values[:] = k
            out.append(x=values, label=k % 2, s="s" * k)
    with np.load(tmp_path / "d" / "part-00000.npz") as found:
        assert found["x"].tolist() == [[0, 0], [1, 1]] and found["x"].dtype == np.int8
        assert found["label"].tolist() == [0, 1] and found["s"].tolist() == ["", "s"]
    sx.write(tmp_path / "d", [{"x": [7, 7], "label": "a", "s": "!"}], schema, format="npz", mode="append")
    assert sx.open(tmp_path / "d").read(slice(None))["label"].tolist() == [0, 1, 0, 0]
    for bad in ({"x": list[str]}, {"x": int | None}, {"x": sx.Array("int8", (None,))}, {"x": bytes}):
        with pytest.raises(SchemaError, match=r"expected numbers, text or arrays of one shape .* - at field x"):
            sx.create(tmp_path / "e", bad, format="npz")
    with pytest.raises(SchemaError, match=re.escape("part-00000.npz: expected the fields it has (x int8[2], ")):
        sx.create(tmp_path / "d", {"x": int}, format="npz", mode="append")
    with pytest.raises(ArgumentError, match="at least 1 row"):
        sx.create(tmp_path / "f", {"x": int}, format="npz", shard_rows=0)
    with pytest.raises(SchemaError, match="ends with NUL"):
        sx.write(tmp_path / "g", [{"s": "a\0"}], format="npz")


def test_a_compressed_array_that_is_too_large_for_its_file_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.savez_compressed(stream, x=np.zeros(1000))
    data = bytearray(stream.getvalue())
    at = data.rindex(b"PK\x01\x02") + 24  # its uncompressed size
    data[at : at + 4] = (1 << 30).to_bytes(4, "little")
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.npz: expected the bytes of float64"):
        sx.open(tmp_path / "a.npz")
