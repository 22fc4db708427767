"""`shardex.ray.sink`: all rows once and in order, any format, one commit, nothing left after an error."""

from __future__ import annotations

import datetime
import decimal
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, ArgumentError

FEATURES = {
    "i": "int64",
    "x": sx.Array("float32", (2, 3)),
    "n": sx.Array("float64", (None, 2)),
    "name": str,
    "meta": sx.Json(),
    "maybe": sx.Optional(sx.Value("int64")),
}


def sample(k: int) -> dict[str, Any]:
    return {
        "i": k,
        "x": np.full((2, 3), k, "float32"),
        "n": np.ones((k % 3 + 1, 2)),
        "name": f"n{k}",
        "meta": {"k": [k]},
        "maybe": None if k % 3 else k,
    }


@pytest.fixture
def data(ray_cluster: Any, tmp_path: Path) -> Iterator[Any]:
    """200 samples as a `ray.data.Dataset` of four blocks, which keep their order."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.execution_options.preserve_order = False, True
    with sx.create(tmp_path / "data", FEATURES) as out:
        out.extend(sample(k) for k in range(200))
    yield ray.data.read_datasource(sx.ray.source(tmp_path / "data"), override_num_blocks=4)
    context.execution_options.preserve_order = False


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar"])
def test_same_samples(data: Any, tmp_path: Path, format: str) -> None:
    data.write_datasink(sx.ray.sink(tmp_path / "out", FEATURES, format=format))
    found = sx.open(tmp_path / "out")
    assert len(found) == 200
    found = found.rename({name: name.split(".")[0] for name in found.fields if "." in name})  # those of tars
    assert [int(row["i"]) for row in found] == list(range(200))
    assert found[199]["name"] == "n199" and np.asarray(found[7]["x"]).tolist() == [[7] * 3] * 2
    assert leftovers(tmp_path) == []


def test_schema_of_the_source_is_kept(data: Any, tmp_path: Path) -> None:
    data.write_datasink(sx.ray.sink(tmp_path / "out"))
    found, before = sx.open(tmp_path / "out"), sx.open(tmp_path / "data")
    assert {name: str(found.features[name]) for name in ("i", "x", "n", "name")} == {
        name: str(before.features[name]) for name in ("i", "x", "n", "name")
    }
    assert found["i"].tolist() == list(range(200)) and found[5].n.shape == (3, 2)


def test_blocks_of_functions(data: Any, tmp_path: Path) -> None:
    """The schema is that of the written blocks, not that of those before the function."""

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        return {"twice": batch["x"] * 2, "text": np.array(["a"] * len(batch["x"]))}

    data.map_batches(double).write_datasink(sx.ray.sink(tmp_path / "out"))
    found = sx.open(tmp_path / "out")
    assert str(found.features["twice"]) == "float32[2, 3]" and str(found.features["text"]) == "text"
    assert found[:]["twice"][:, 0, 0].tolist() == [2.0 * k for k in range(200)]


def test_modes(data: Any, tmp_path: Path) -> None:
    out, few = tmp_path / "out", data.limit(10)
    few.write_datasink(sx.ray.sink(out, FEATURES))
    with pytest.raises(AlreadyExistsError):
        sx.ray.sink(out)
    few.write_datasink(sx.ray.sink(out, mode="append"))
    assert sx.open(out)["i"].tolist() == [*range(10), *range(10)]
    once = sx.ray.sink(out, FEATURES, mode="overwrite")
    few.write_datasink(once)
    assert len(sx.open(out)) == 10
    with pytest.raises(ArgumentError, match="got one that was used"):
        few.write_datasink(once)


def test_no_rows(data: Any, tmp_path: Path) -> None:
    data.filter(lambda row: False).write_datasink(sx.ray.sink(tmp_path / "out", FEATURES))
    assert len(sx.open(tmp_path / "out")) == 0
    assert leftovers(tmp_path) == []


def test_error_leaves_nothing(data: Any, tmp_path: Path) -> None:
    def fail(row: dict[str, Any]) -> dict[str, Any]:
        assert row["i"] != 150
        return row

    with pytest.raises(Exception, match="AssertionError"):
        data.map(fail).write_datasink(sx.ray.sink(tmp_path / "out", FEATURES))
    assert not (tmp_path / "out").exists() and leftovers(tmp_path) == []


def test_value_that_does_not_fit(data: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"write task \d+; give a schema"):
        data.write_datasink(sx.ray.sink(tmp_path / "out", {**FEATURES, "maybe": "int64"}))
    assert not (tmp_path / "out").exists() and leftovers(tmp_path) == []


def test_task_that_runs_again(data: Any, tmp_path: Path) -> None:
    """A process is killed while it writes: Ray runs its task again, and no row is there twice."""
    flag = tmp_path / "killed"

    def kill_once(row: dict[str, Any]) -> dict[str, Any]:
        if row["i"] == 120 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return row

    data.map(kill_once).write_datasink(sx.ray.sink(tmp_path / "out", FEATURES))
    assert flag.exists() and sx.open(tmp_path / "out")["i"].tolist() == list(range(200))


EVERY_FEATURE = {
    "maybe_array": sx.Optional(sx.Array("float32", (3,))),
    "half": sx.Array("float16", (2,)),
    "complex": sx.Array("complex64", (2,)),
    "flags": sx.Array("bool", (2, 2)),
    "any_shape": sx.Array("int32", (None, None)),
    "any_array": sx.Array(None, None),
    "empty": sx.Array("float32", (0,)),
    "scalar": sx.Array("int16", ()),
    "words": sx.Sequence(sx.Text()),
    "struct": sx.Struct({"a": sx.Value("int8"), "b": sx.Text()}),
    "map": sx.Map(sx.Text(), sx.Value("int64")),
    "label": sx.ClassLabel(("cat", "dog")),
    "decimal": sx.Decimal(10, 2),
    "moment": sx.Timestamp("ns", "Europe/Berlin"),
    "day": sx.Date(),
    "clock": sx.Time("us"),
    "span": sx.Duration("ms"),
    "raw": sx.Bytes(),
    "nothing": sx.Null(),
    "large": sx.Value("uint64"),
    "maybe_flag": sx.Optional(sx.Value("bool")),
}


def every_feature(k: int) -> dict[str, Any]:
    return {
        "maybe_array": None if k % 2 else np.full(3, k, "float32"),
        "half": np.full(2, k / 4, "float16"),
        "complex": np.full(2, k + 1j, "complex64"),
        "flags": np.full((2, 2), k % 2 == 0),
        "any_shape": np.full((k % 3, 2 + k % 2), k, "int32"),
        "any_array": np.full((1,) * (k % 3) + (2,), k, "int8" if k % 2 else "float64"),
        "empty": np.zeros(0, "float32"),
        "scalar": np.int16(k),
        "words": ["a", "", "é"][: k % 4],
        "struct": {"a": k, "b": f"b{k}"},
        "map": {f"k{number}": number for number in range(k % 3)},
        "label": k % 2,
        "decimal": decimal.Decimal(k) / 4,
        "moment": np.datetime64("2024-01-31T12:00", "ns") + k,
        "day": datetime.date(2024, 1, 1 + k),
        "clock": datetime.time(1, 2, k, 5),
        "span": datetime.timedelta(milliseconds=k),
        "raw": bytes([k, 0, 255]),
        "nothing": None,
        "large": 2**64 - 1 - k,
        "maybe_flag": [True, False, None][k % 3],
    }


def test_every_feature_comes_back(data: Any, tmp_path: Path) -> None:
    """Samples with fields of all kinds go through Ray and are the same; with the schema of the source."""
    import ray.data

    with sx.create(tmp_path / "all", EVERY_FEATURE) as out:
        out.extend(every_feature(k) for k in range(12))
    before = sx.open(tmp_path / "all")
    read = ray.data.read_datasource(sx.ray.source(before), override_num_blocks=3)
    assert read.count() == len(read.take_all()) == 12
    read.write_datasink(sx.ray.sink(tmp_path / "out", before.features))
    found = sx.open(tmp_path / "out")
    assert found.features == before.features
    for one, other in zip(before, found, strict=True):
        for name in before.fields:
            assert type(one[name]) is type(other[name]), name
            assert np.array_equal(one[name], other[name]) and np.shape(one[name]) == np.shape(other[name]), name
            assert getattr(one[name], "dtype", None) == getattr(other[name], "dtype", None), name
