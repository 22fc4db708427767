"""Columns from the names of folders, in Parquet tables that pyarrow, polars and DuckDB partitioned."""

from __future__ import annotations

import datetime
import decimal
import pickle
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import dataset, parquet

import shardex as sx
from shardex.errors import SchemaError

TABLE = pa.table({"x": list(range(12)), "part": [k % 4 for k in range(12)], "lang": ["a b", "é", None] * 4})


def by_pyarrow(folder: Path) -> None:
    parquet.write_to_dataset(TABLE, folder, partition_cols=["part", "lang"])


def by_pyarrow_dataset(folder: Path) -> None:
    fields = pa.schema([("part", pa.int64()), ("lang", pa.string())])
    dataset.write_dataset(TABLE, folder, format="parquet", partitioning=dataset.partitioning(fields, flavor="hive"))


def by_polars(folder: Path) -> None:
    import polars as pl

    frame = pl.from_arrow(TABLE)
    assert isinstance(frame, pl.DataFrame)
    frame.write_parquet(folder, partition_by=["part", "lang"])


def by_duckdb(folder: Path) -> None:
    with duckdb.connect() as connection:
        connection.register("t", TABLE)
        connection.execute(f"COPY t TO '{folder}' (FORMAT parquet, PARTITION_BY (part, lang))")


@pytest.mark.parametrize("write", [by_pyarrow, by_pyarrow_dataset, by_polars, by_duckdb])
def test_folders_of_other_tools_are_columns(tmp_path: Path, write: Any) -> None:
    write(tmp_path / "d")
    expected = sorted(TABLE.to_pylist(), key=lambda one: one["x"])
    ds = sx.open(tmp_path / "d")
    assert str(ds.features).startswith("x int64") and str(ds.features).endswith("part int64, lang text or none")
    whole = sorted(map(dict, ds), key=lambda one: one["x"])
    assert whole == expected
    assert [dict(ds[k]) for k in range(12)] == [dict(one) for one in ds]
    assert sorted(one.x for one in ds.where("part = 3 AND lang IS NOT NULL")) == [
        one["x"] for one in expected if one["part"] == 3 and one["lang"]
    ]
    assert len(ds.where("lang IS NULL")) == len(ds[::-1].where("lang IS NULL AND part >= 0")) == 4
    assert ds.select("lang", "part").read([0, 1]).names == ["lang", "part"]
    assert sorted(ds.to_arrow().to_pylist(), key=lambda one: one["x"]) == expected
    assert next(ds.ordered(12)).part.dtype == np.int64
    assert list(pickle.loads(pickle.dumps(ds))) == list(ds)
    assert list(map(dict, sx.write(tmp_path / "copy", ds))) == list(map(dict, ds))


def file(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path)


def test_types_of_folders(tmp_path: Path) -> None:
    for day in ("01", "02", "10"):
        file(tmp_path / f"day={day}" / "v=1.5" / "0.parquet", x=[1, 2])
    ds = sx.open(tmp_path)
    assert str(ds.features) == "x int64, day int64, v text" and ds[4].day == 10
    schema = {"day": str, "v": "float32"}
    ds = sx.open(tmp_path, schema=schema)
    assert str(ds.features) == "x int64, day text, v float32"
    assert ds[0] == {"x": 1, "day": "01", "v": 1.5} and ds.read([0])["v"].dtype == np.float32
    named = sx.open(tmp_path, schema={"day": sx.ClassLabel(("01", "02", "10")), "x": "int64"})
    assert named[5].day == 2
    with pytest.raises(SchemaError, match=r"expected int64, got float 1.5 - at the folder v=1.5, field v; .* schema="):
        sx.open(tmp_path, schema={"v": int})
    with pytest.raises(SchemaError, match="expected one of the fields x, got 'w'"):
        sx.open(tmp_path, schema={"w": int})


def test_numbers_that_are_missing(tmp_path: Path) -> None:
    for day in ("1", "__HIVE_DEFAULT_PARTITION__"):
        file(tmp_path / f"day={day}" / "0.parquet", x=[1, 2])
    ds = sx.open(tmp_path)
    assert str(ds.features) == "x int64, day int64 or none" and [one.day for one in ds] == [1, 1, None, None]
    assert len(ds.where("day IS NULL")) == len(ds.where("day IS NULL AND coalesce(day, 0) = 0")) == 2
    assert ds.to_arrow().column("day").to_pylist() == [1, 1, None, None]


def test_files_without_common_folders_have_no_such_columns(tmp_path: Path) -> None:
    file(tmp_path / "a=1" / "0.parquet", x=[1])
    file(tmp_path / "b=1" / "0.parquet", x=[2])
    assert sx.open(tmp_path).fields == ["x"]
    assert sx.open(tmp_path / "a=1" / "0.parquet").fields == ["x"]
    assert sx.open(tmp_path / "a=*" / "*.parquet").fields == ["x"]


def test_column_in_the_files_counts(tmp_path: Path) -> None:
    file(tmp_path / "a=1" / "0.parquet", x=[1], a=[7])
    file(tmp_path / "a=2" / "0.parquet", x=[2], a=[8])
    ds = sx.open(tmp_path)
    assert ds.fields == ["x", "a"] and ds.read([0, 1])["a"].tolist() == [7, 8]
    assert sx.open(tmp_path / "a=*" / "*.parquet").fields == ["x", "a"]


def test_dates_and_decimals_in_folders(tmp_path: Path) -> None:
    table = pa.table({"x": range(3), "day": ["2024-01-30", "2024-01-31", None], "price": ["1.50", "2", "3.25"]})
    parquet.write_to_dataset(table, tmp_path / "d", partition_cols=["day", "price"])
    schema = {"x": int, "day": datetime.date | None, "price": sx.Decimal(5, 2)}
    ds = sx.open(tmp_path / "d", schema=schema).sort("x")
    assert [s.day for s in ds] == [datetime.date(2024, 1, 30), datetime.date(2024, 1, 31), None]
    assert [s.price for s in ds] == [decimal.Decimal("1.50"), decimal.Decimal("2.00"), decimal.Decimal("3.25")]
    assert [s.x for s in ds.where("day > '2024-01-30' OR price > 3")] == [1, 2]
    assert [s.x for s in ds.where("day IS NULL")] == [s.x for s in ds.where("day IS NULL AND price > 0")] == [2]
    assert list(sx.write(tmp_path / "copy", ds)) == list(ds)
    assert next(iter(sx.Loader(ds, 3))).day.dtype == "datetime64[D]"
    with pytest.raises(
        SchemaError, match=r"expected date as ISO 8601 text, got '1.50' - at the folder price=1.50, field price"
    ):
        sx.open(tmp_path / "d", schema={"x": int, "price": datetime.date})["price"]
