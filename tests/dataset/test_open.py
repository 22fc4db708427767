"""`open` and `write` take what users have in memory: columns, tables of other tools, samples of any kind."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import shardex as sx
from shardex.errors import ArgumentError, SchemaError, ShardexError, UnknownFormatError

X = np.arange(4, dtype="int16")
V = np.arange(8, dtype="float32").reshape(4, 2)


def tables() -> dict[str, Any]:
    columns = {"x": X, "name": ["a", "b", "c", "d"]}
    return {
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "pyarrow": pa.table(columns),
        "columns": columns,
        "huggingface": datasets.Dataset.from_dict(columns).cast_column("x", datasets.Value("int16")),
    }


@pytest.mark.parametrize("kind", list(tables()))
def test_tables_are_opened_and_written(tmp_path: Path, kind: str) -> None:
    table = tables()[kind]
    for ds in (sx.open(table), sx.write(tmp_path / "d", table), sx.write(tmp_path / "e", table, format="jsonl")):
        assert ds["x"].tolist() == [0, 1, 2, 3] and ds[1].name == "b"
    assert str(sx.open(table).features) == str(sx.open(tmp_path / "d").features) == "x int16, name text"
    assert [batch.x.tolist() for batch in sx.Loader(table, 3)] == [[0, 1, 2], [3]]
    with sx.create(tmp_path / "f") as out:
        out.extend(table)
    assert sx.open(tmp_path / "f")["name"] == ["a", "b", "c", "d"]


def test_columns_of_arrays() -> None:
    import torch

    ds = sx.open({"x": X, "v": V, "t": torch.arange(4), "s": np.array(list("abcd")), "r": [X[:k] for k in range(4)]})
    assert str(ds.features) == "x int16, v float32[2], t int64, s text, r int16[?]"
    assert ds[2].v.tolist() == [4, 5] and ds[-1].s == "d" and ds[3].r.tolist() == [0, 1, 2]
    assert ds.read([3, 1], ["v"])["v"].tolist() == [[6, 7], [2, 3]]
    assert len(ds.where("x > 1 AND s <> 'd'")) == 1
    assert pickle.loads(pickle.dumps(ds))[1].t == 1
    assert ds.fingerprint == sx.open({**ds.rows.columns.data}).fingerprint  # type: ignore[attr-defined]
    assert sx.open({"x": X[:0]}).features["x"] == sx.Value("int16")


def test_columns_that_are_none_raise() -> None:
    with pytest.raises(SchemaError, match=r"columns of one length, got \{'x': 4, 'y': 2\}"):
        sx.open({"x": X, "y": [1, 2]})
    with pytest.raises(ArgumentError, match=r"got str - at field train; .*load_dataset\(data_files="):
        sx.open({"train": "a.jsonl"})
    with pytest.raises(ArgumentError, match="got int - at field x; wrap one sample in a list"):
        sx.open({"x": 1})
    with pytest.raises(ArgumentError, match="expected no format"):
        sx.open({"x": X}, format="tar")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "expected paths, or data in memory: .*, got NoneType"),
        (3, "got int"),
        (pl.LazyFrame({"x": [1]}), r"got LazyFrame: call collect\(\) first"),
        (pd.Series([1, 2], name="x"), r"got Series: .*to_frame\(\)"),
        ({}, "expected at least one column"),
    ],
    ids=["None", "int", "LazyFrame", "Series", "empty dict"],
)
def test_data_that_is_no_dataset_says_what_to_do(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(sx.ShardexError, match=message):
        sx.open(data)
    with pytest.raises(sx.ShardexError, match=message):
        sx.write(tmp_path / "d", data)


def test_iterators_are_written_but_not_opened(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"got generator, which has no random access: store it with write\(path, "):
        sx.open(one for one in [{"x": 1}])  # type: ignore[call-overload]
    assert sx.write(tmp_path / "d", (one for one in [{"x": 1}]))[0].x == 1
    with pytest.raises(ArgumentError, match=r"got ndarray: name it, \{'x': array\}"):
        sx.open(X)  # type: ignore[call-overload]


def test_a_table_takes_a_schema_and_a_type() -> None:
    ds = sx.open(pa.table({"j": ['{"a": 1}']}), schema={"j": dict})
    assert ds[0].j == {"a": 1}


def test_a_dataset_dict_of_hugging_face_needs_a_split() -> None:
    hub = datasets.DatasetDict(train=tables()["huggingface"])
    with pytest.raises(ArgumentError, match="expected one split, got all of train"):
        sx.open(hub)
    assert len(sx.open(hub["train"])) == 4


def test_write_takes_paths_and_rows(tmp_path: Path) -> None:
    first = sx.write(tmp_path / "a", [{"x": 1}, {"x": 2}])
    assert sx.write(tmp_path / "b", tmp_path / "a", format="parquet")["x"].tolist() == [1, 2]
    assert sx.write(tmp_path / "c", str(tmp_path / "a"), format="tar")["x"].tolist() == [1, 2]
    assert sx.write(tmp_path / "d", first.rows)["x"].tolist() == [1, 2]
    files = sorted((tmp_path / "b").glob("*.parquet"))
    assert sx.write(tmp_path / "e", files)["x"].tolist() == [1, 2]


COLUMNS = {
    "Int64": (pd.Series([1, None], dtype="Int64"), "int64 or none", [1, None]),
    "str": (pd.Series(["a", None], dtype="str"), "text or none", ["a", None]),
    "boolean": (pd.array([True, None], dtype="boolean"), "bool or none", [True, None]),
    "categories": (pd.Categorical(["x", None, "y"][:2], ["y", "x"]), "class of 2 or none", [1, None]),
    "numbers as categories": (pd.Categorical([7, 5]), "int64", [7, 5]),
    "polars enum": (pl.Series(["x", None], dtype=pl.Enum(["y", "x"])), "class of 2 or none", [1, None]),
    "polars categories": (pl.Series(["x", None], dtype=pl.Categorical), "text or none", ["x", None]),
    "NaT": (pd.Series(pd.to_datetime(["2024-01-31", None])), "timestamp[us] or none", [datetime(2024, 1, 31), None]),
    "zone": (pd.date_range("2024-01-31", periods=2, tz="UTC", unit="us"), "timestamp[us, UTC]", None),
    "numpy days": (np.array(["2024-01-31", "NaT"], "M8[D]"), "date or none", [date(2024, 1, 31), None]),
    "numpy spans": (np.array([1, 2], "m8[s]"), "duration[s]", [timedelta(seconds=1), timedelta(seconds=2)]),
    "polars": (pl.Series([1, None], dtype=pl.Int8), "int8 or none", [1, None]),
    "polars text": (pl.Series(["a", None]), "text or none", ["a", None]),
    "pyarrow": (pa.array([[1], None]), "int64[?] or none", None),
    "chunked": (pa.chunked_array([[1.5], [2.5]]), "float64", [1.5, 2.5]),
    "NaN": (pd.Series([1.5, None], dtype="float32"), "float32 or none", [1.5, None]),
    "NaN of numpy": (np.array([1.5, np.nan], "float32"), "float32", None),  # not a missing value in a plain array
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_other_tools_keep_types_and_missing_values(name: str, tmp_path: Path) -> None:
    column, feature, values = COLUMNS[name]
    ds = sx.open({"v": np.zeros((2, 3)), "c": column, "s": ["a", "b"]})
    assert str(ds.features) == f"v float64[3], c {feature}, s text"
    if values is not None:
        assert [sample.c for sample in ds] == values
        assert [sample.c for sample in sx.write(tmp_path / "d", ds)] == values
    assert pickle.loads(pickle.dumps(ds)).fingerprint == ds.fingerprint
    with pytest.raises(SchemaError, match=r"columns of one length, got \{.*'c': 2"):
        sx.open({"c": column, "s": ["a", "b", "c"]})


def sidecars(folder: Path) -> dict[str, bytes]:
    """Remove the files that `index` has stored, and return their content."""
    paths = [path for path in folder.rglob("*") if ".shardex" in path.parts and path.is_file()]
    found = {path.name: path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    return found


@pytest.mark.parametrize(
    ("format", "options"),
    [("jsonl", {"attributes": ["x"], "checksums": True}), ("tar", {}), ("tokens", {}), ("columns_tar", {})],
)
def test_index_is_the_same_for_all_workers_and_executors(tmp_path: Path, format: str, options: dict[str, Any]) -> None:
    samples: list[Any] = [{"x": number, "t": "a" * number} for number in range(30)]
    if format == "tokens":
        samples = [{"tokens": np.arange(number + 1, dtype="uint16")} for number in range(30)]
    if format == "columns_tar":
        samples = [{"v": np.full(3, number, "float32")} for number in range(30)]
    cut: dict[str, Any] = {"samples_per_shard": 5} if format == "columns_tar" else {"shard_size": 200}
    sx.write(tmp_path / "d", samples, format=format, **cut)
    sidecars(tmp_path)
    found = []
    with ThreadPoolExecutor(2) as threads:
        for where in ({}, {"workers": 1}, {"workers": 2}, {"executor": "threads"}, {"executor": threads}):
            assert len(sx.index(tmp_path / "d", **options, **where)) == 30
            found.append(sidecars(tmp_path))
    assert found[0] and all(one == found[0] for one in found)


def test_a_list_of_patterns_is_counted_as_paths_and_its_files_as_files(tmp_path: Path) -> None:
    for k in range(3):
        (tmp_path / f"{k}.txt").write_text("x")
        (tmp_path / f"{k}.md").write_text("x")
        (tmp_path / f"{k}.q").write_bytes(b"\0")
    patterns = [f"{tmp_path}/*.txt", f"{tmp_path}/*.md"]
    assert repr(sx.open(patterns, lines=False)).endswith("6 shards, 2 paths)")
    with pytest.raises(UnknownFormatError, match=r"^3 files from .*\*.q on: expected"):
        sx.open([f"{tmp_path}/*.q"])


def test_datasets_of_the_names_of_other_libraries(tmp_path: Path) -> None:
    from shardex.compat import atdata

    sx.write(tmp_path / "d.tar", [{"x": 1}])
    other: Any = atdata.Dataset[atdata.DictSample](str(tmp_path / "d.tar"))
    for call in (sx.open, lambda what: sx.Loader(what, 2)):
        with pytest.raises(
            ShardexError, match=r"Dataset: open its files, sx.open\(path\), or of typed samples sx.open"
        ):
            call(other)
