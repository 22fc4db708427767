"""Tables of pandas, polars, pyarrow, DuckDB and Hugging Face: in, out, and back."""

import datasets
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

import shardex as sx

frame = pd.DataFrame({"city": ["Bern", "Graz", "Oslo"], "people": [134, 290, 709]})
ds = sx.open(frame)
assert ds[1].city == "Graz" and ds["people"].tolist() == [134, 290, 709]
stored = sx.write("cities", frame)
pd.testing.assert_frame_equal(stored.to_pandas(), frame, check_dtype=False)
assert stored.where("people > 200").to_pandas()["city"].tolist() == ["Graz", "Oslo"]

polars = pl.DataFrame({"x": [1, 2, 3], "tags": [["a"], [], ["b", "c"]], "note": ["n", None, "m"]})
assert sx.open(polars)[2].tags == ["b", "c"] and sx.open(polars)[1].note is None
back = pl.DataFrame(sx.write("polars", polars))
assert back.to_dict(as_series=False) == polars.to_dict(as_series=False)

polars.write_parquet("some.parquet")
assert sx.open("some.parquet").sort("x", descending=True)["x"].tolist() == [3, 2, 1]

table = pa.table({"x": pa.array([1, 2], pa.int8()), "v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})
assert sx.open(table)["v"].shape == (2, 2) and pa.table(sx.open(table)).schema.field("x").type == pa.int8()

connection = duckdb.connect()
connection.register("cities", stored)
assert connection.sql("SELECT max(people) FROM cities").fetchall() == [(709,)]

hub = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [0, 1, 0]})
hub = hub.cast_column("label", datasets.ClassLabel(names=["bad", "good"]))
ours = sx.open(hub)
assert ours.features["label"] == sx.ClassLabel(["bad", "good"]) and ours["text"] == ["a", "b", "c"]
assert sx.write("hub", hub).features["label"] == ours.features["label"]
assert ours.shuffle(seed=0).to_huggingface().features["label"].names == ["bad", "good"]

columns = sx.open({"x": [1, 2, 3], "name": ["a", "b", "c"]})
assert (columns + columns)[3].name == "a" and sx.concat([columns, columns, columns])["x"].sum() == 18
