"""`Dataset.stack`: several fields as one array."""

from __future__ import annotations

import datetime
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, SchemaError

DATA: list[dict[str, Any]] = [
    {"a": float(k), "b": k, "flag": k % 2 == 0, "v": np.full(3, k, np.float32), "w": np.arange(3), "name": f"n{k}"}
    for k in range(6)
]


@pytest.fixture
def ds(tmp_path: Path) -> sx.Dataset:
    return sx.write(tmp_path / "d", DATA)


def test_fields_of_numbers_become_one_array(ds: sx.Dataset) -> None:
    view = ds.stack({"x": ["b", "a"]}, y=["v", "w"])
    assert view.fields == ["flag", "name", "x", "y"] and view.features["y"] == sx.Array("float64", (2, 3))
    assert view[2].x.tolist() == [2, 2] and view[2].y.tolist() == [[2, 2, 2], [0, 1, 2]]
    batch = next(iter(sx.Loader(view, 4, dtype="float32", fields=["x"])))
    assert batch.x.dtype == np.float32 and batch.x[:, 0].tolist() == [0, 1, 2, 3]
    assert pickle.loads(pickle.dumps(view))[1:3]["x"].tolist() == [[1, 1], [2, 2]]
    assert len(view.where("x[1] > 2 AND name = 'n4'")) == 1 and len(view.where("flag")) == 3


def test_the_dtype_is_that_of_numpy() -> None:
    data = sx.open(
        {"i": np.ones(2, np.int8), "u": np.ones(2, np.uint8), "f": np.ones(2, np.float32), "t": [True, False]}
    )
    kinds = {"iu": ["i", "u"], "if": ["i", "f"], "it": ["i", "t"], "tt": ["t"]}
    assert {name: data.stack({name: some})[0][name].dtype.name for name, some in kinds.items()} == {
        "iu": "int16",
        "if": "float32",
        "it": "int8",
        "tt": "bool",
    }


def test_a_field_may_be_stacked_twice() -> None:
    assert sx.open([{"a": 1, "b": 2}]).stack(x=["a", "b", "a"])["x"].tolist() == [[1, 2, 1]]


def test_missing_values_are_nan() -> None:
    data = sx.open([{"a": 1, "b": None}, {"a": None, "b": 2.5}])
    assert np.array_equal(data.stack(x=["a", "b"])["x"], [[1, np.nan], [np.nan, 2.5]], equal_nan=True)


def test_a_view_of_a_view(ds: sx.Dataset) -> None:
    view = ds.rename(a="first").select("name", "b", "first")[3:].stack(x=["first", "b"])
    assert view.fields == ["name", "x"] and view["x"].tolist() == [[3, 3], [4, 4], [5, 5]]
    assert view.select("x").rename(x="z")[0].z.tolist() == [3, 3]
    with pytest.raises(FieldError, match=r"expected one of the fields name, b, first, got 'flag'"):
        ds.rename(a="first").select("name", "b", "first").stack(x=["flag", "b"])


def test_other_fields_and_other_shapes_raise(ds: sx.Dataset) -> None:
    with pytest.raises(SchemaError, match=r"expected fields of numbers.*got text - at field name of x"):
        ds.stack(x=["a", "name"])
    with pytest.raises(
        SchemaError, match=r"expected fields of one shape.*got float64 in a and float32\[3\] in v - at field x"
    ):
        ds.stack(x=["a", "v"])
    with pytest.raises(ArgumentError, match="expected the name of a new field, got 'b', which is there"):
        ds.stack(b=["a"])
    with pytest.raises(ArgumentError, match="expected the names of the fields to stack, got 'ab' - at field x"):
        ds.stack(x="ab")
    with pytest.raises(ArgumentError, match="expected the names of the fields to stack"):
        ds.stack(x=[])
    days = sx.open([{"day": datetime.date(2024, 1, 1)}])
    with pytest.raises(SchemaError, match="at field day of x"):
        days.stack(x=["day"])
