"""Exchange with other tools through Arrow: equal values, and no copies where none are needed."""

from __future__ import annotations

import datetime
import decimal
import operator
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset.memory_rows import ArrowRows
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import Array, Features, Json, Optional, Sequence, Struct, Text, Timestamp, Value
from shardex.kernel import Columns
from tests.strategies import datasets as any_dataset

TABLE = pa.table(
    {
        "x": pa.array(range(10), pa.int32()),
        "s": [None if k == 3 else f"né{k}" for k in range(10)],
        "b": [k % 3 == 0 for k in range(10)],
        "v": pa.array([[k, k + 0.5] for k in range(10)], pa.list_(pa.float32(), 2)),
        "r": [[*range(k % 4)] for k in range(10)],
        "t": [["a"] * (k % 3) for k in range(10)],
        "d": [{"a": k, "b": None if k % 2 else b"x"} for k in range(10)],
    }
)


def plain(samples: Any) -> list[dict[str, Any]]:
    """Samples with lists instead of arrays."""
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in s.items()} for s in samples
    ]


def address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


# -- from tables ----------------------------------------------------------------------------------------------------


def test_a_pyarrow_table_is_read() -> None:
    ds = sx.open(TABLE)
    assert str(ds.features) == (
        "x int32, s text or none, b bool, v float32[2], r int64[?], t list of text, "
        "d struct of (a int64, b bytes or none)"
    )
    assert plain(ds) == TABLE.to_pylist()
    assert [plain([ds[k]])[0] for k in (0, -1, 3)] == [TABLE.to_pylist()[k] for k in (0, -1, 3)]
    assert ds.where("x > 7").to_arrow().num_rows == 2


def test_nothing_is_copied() -> None:
    ds = sx.open(TABLE)
    base = TABLE["v"].chunk(0).values.buffers()[1].address
    assert [address(ds[k].v) for k in (0, 9)] == [base, base + 9 * 8]
    assert ds.to_arrow()["v"].chunk(0).values.buffers()[1].address == base
    assert ds[2:4].to_arrow()["x"].to_pylist() == [2, 3]


def slices() -> Iterator[pa.Table]:
    yield TABLE.slice(3)
    yield TABLE.slice(3, 4)
    yield pa.concat_tables([TABLE.slice(1, 2), TABLE.slice(0, 0), TABLE.slice(5, 5), TABLE.slice(2, 7)])
    yield TABLE.slice(4, 0)
    chunks = [TABLE["x"].slice(0, 4).chunk(0), TABLE["x"].slice(4).chunk(0)]
    yield TABLE.set_column(0, "x", pa.chunked_array(chunks))
    yield pa.table({"v": pa.FixedSizeListArray.from_arrays(pa.array(range(10)).slice(4), 2)})
    yield pa.table({"r": pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array(range(10)).slice(4))})
    yield pa.table({"d": pa.StructArray.from_arrays([pa.array(range(4)).slice(2)], ["a"])})


@pytest.mark.parametrize("table", [*slices()])
def test_sliced_tables(table: pa.Table) -> None:
    ds = sx.open(table)
    assert plain(ds) == table.to_pylist()
    assert plain(ds[k] for k in range(len(ds))) == table.to_pylist()
    assert ds.to_arrow().to_pylist() == table.to_pylist()
    assert ds[::-1].to_arrow().to_pylist() == table.to_pylist()[::-1]


@settings(deadline=None)
@given(any_dataset(), st.data())
def test_round_trip_of_any_features(data: tuple[Features, list[dict[str, Any]]], draw: st.DataObject) -> None:
    """A stream carries its features, so data from another tool keeps its types."""
    features, samples = data
    ds = sx.Dataset(_Rows(features, samples))
    if "\0" in str(features):
        with pytest.raises(SchemaError, match="got one with a NUL"):
            pa.table(ds)
        return
    reader = pa.RecordBatchReader.from_stream(ds)
    table = reader.read_all()
    table.validate(full=True)
    again = sx.open(table)
    assert list(again) == list(ds)
    assert {name: _bare(f) for name, f in again.features.items()} == {name: _bare(f) for name, f in features.items()}
    begin = draw.draw(st.integers(0, len(samples)))
    assert list(sx.open(table.slice(begin))) == samples[begin:]


def _bare(feature: Any) -> Any:
    return feature.feature if isinstance(feature, Optional) else feature


class _Rows:
    def __init__(self, features: Features, samples: list[dict[str, Any]]) -> None:
        self.features, self.samples = features, samples

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, rows: Any, fields: Any = None) -> Columns:
        names = list(self.features) if fields is None else fields
        return Columns({name: [self.samples[row][name] for row in rows.tolist()] for name in names}, len(rows))


def test_schema_gives_features_that_arrow_types_lack() -> None:
    table = pa.table({"j": ['{"a": [1]}'], "v": [b"\1\0\2\0"], "c": [1]})
    ds = sx.open(table, schema={"j": Json(), "v": Array("int16", (2,)), "c": sx.ClassLabel(("a", "b"))})
    assert ds[0] == {"j": {"a": [1]}, "v": np.array([1, 2], np.int16), "c": 1}
    with pytest.raises(SchemaError, match="got 'nonsense' in the schema"):
        sx.open(table, schema={"nonsense": int})
    with pytest.raises(SchemaError, match=r"expected a feature that string can be read as, got int64 - at field j"):
        sx.open(table, schema={"j": int})


def test_json_columns_and_nested_nulls() -> None:
    table = pa.table(
        {
            "j": pa.array(['{"a": 1}', None], pa.json_()),
            "d": [{"a": {"b": None}}, {"a": {"b": 1}}],
            "l": [[{"q": None}], [{"q": "x"}]],
            "h": [[1, None], [2, 3]],
        }
    )
    ds = sx.open(table)
    assert ds.features["j"] == Optional(Json()) and ds[0].j == {"a": 1}
    assert ds.features["d"] == Struct({"a": Struct({"b": Optional(Value("int64"))})})
    assert ds.features["l"] == Sequence(Struct({"q": Optional(Text())}))
    assert plain(ds.select("d", "l", "h")) == table.select(["d", "l", "h"]).to_pylist()
    assert ds.select("d", "l").shuffle().to_arrow().num_rows == 2


def test_arrow_rows_have_a_fingerprint_and_pickle() -> None:
    rows = ArrowRows(TABLE)
    assert rows.fingerprint == ArrowRows(pa.concat_tables([TABLE.slice(0, 4), TABLE.slice(4)])).fingerprint
    assert rows.fingerprint != ArrowRows(TABLE.slice(1)).fingerprint
    again = pickle.loads(pickle.dumps(sx.open(TABLE, schema={"s": Text()})[2:5]))
    assert plain(again) == TABLE.to_pylist()[2:5]
    assert sx.open(again) is again


def test_invalid_arrow_table_raises() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 3], np.int32))
    bad = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"\xff\xfea")])
    ds = sx.open(pa.table({"s": bad}))
    with pytest.raises(FormatError, match="the table in memory, batch 0: expected valid Arrow data"):
        ds[0]


def test_duplicate_column_names_raise() -> None:
    with pytest.raises(FormatError, match="expected columns of different names"):
        sx.open(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]))


@pytest.mark.parametrize("thing", [3, np.zeros((2, 3))])
def test_what_is_no_table_raises(thing: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected paths, or data in memory: .* a DataFrame, a table or a Hugging"):
        sx.open(thing)


def test_arrow_data_without_columns_raises() -> None:
    with pytest.raises(FormatError, match="expected an Arrow table, got Int64Array"):
        sx.open(pa.array([1, 2]))


def test_a_column_may_have_the_name_of_a_method_of_rows() -> None:
    assert sx.open(pd.DataFrame({"read": [1, 2]}))[1] == {"read": 2}


def test_failing_arrow_stream_raises_format_error() -> None:
    class Broken:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            raise ValueError("the disk is on fire")

    with pytest.raises(FormatError, match="got Broken: the disk is on fire"):
        sx.open(Broken())


# -- other tools ------------------------------------------------------------------------------------------------------


def test_batches_and_readers() -> None:
    for data in (TABLE.to_batches()[0], TABLE.to_reader()):
        assert plain(sx.open(data)) == TABLE.to_pylist()


def test_polars_there_and_back() -> None:
    frame = pl.DataFrame(
        {
            "s": ["a", "é", None],
            "x": pl.Series([1, None, 3], dtype=pl.Int16),
            "l": [[1], [2, 3], []],
            "c": pl.Series(["u", "v", "u"], dtype=pl.Categorical),
            "v": pl.Series([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=pl.Array(pl.Float32, 2)),
            "t": [["q"], [], ["w", "x"]],
            "when": [datetime.datetime(2020, 1, 1), None, datetime.datetime(2021, 1, 1)],
            "d": [{"a": 1, "b": "x"}, {"a": 2, "b": None}, {"a": 3, "b": "z"}],
        }
    )
    ds = sx.open(frame)
    assert plain(ds) == frame.to_dicts()
    back = pl.DataFrame(ds)
    assert back.equals(frame.with_columns(pl.col("c").cast(pl.String)))
    assert pl.DataFrame(ds.shuffle(seed=1)).sort("l").to_dicts() == frame.sort("l").to_dicts()


def test_pandas_there_and_back() -> None:
    frame = pd.DataFrame({"s": ["a", "b", None], "x": [1.5, 2.5, 3.5], "c": pd.Categorical(["u", "v", "u"])})
    ds = sx.open(frame)
    assert [s.c for s in ds] == [0, 1, 0] and ds.fields == ["s", "x", "c"]
    assert ds[2].s is None
    back = pd.DataFrame.from_arrow(ds)
    assert back["x"].tolist() == [1.5, 2.5, 3.5] and back["c"].tolist() == ["u", "v", "u"]
    assert sx.open(ds.to_pandas())[0] == ds[0]


def test_categories_and_enums_are_classes_there_and_back(tmp_path: Path) -> None:
    dtype = pd.CategoricalDtype(["b", "a", "unused"])
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b", None], dtype=dtype), "n": pd.Categorical([3, 4, 3])})
    ds = sx.write(tmp_path / "a", frame)
    assert str(ds.features) == "c class of 3 or none, n int64" and [sample.c for sample in ds] == [1, 0, None]
    pd.testing.assert_series_equal(ds.to_pandas()["c"], frame["c"], check_categorical=True, check_dtype=False)
    for view in (ds, sx.open(pa.table(ds)), sx.open(ds.to_arrow()), sx.open(ds.to_pandas())):
        assert view.features["c"] == ds.features["c"] and [one.c for one in view] == [1, 0, None]

    assert pl.DataFrame(ds)["c"].cast(pl.String).to_list() == ["a", "b", None]
    enums = pl.DataFrame({"e": pl.Series(["x", "y", None], dtype=pl.Enum(["y", "x"]))})
    assert pl.DataFrame(sx.open(enums))["e"].cast(pl.String).to_list() == ["x", "y", None]
    ds = sx.open(duckdb.connect().sql("SELECT 'b'::ENUM('a', 'b') AS e"))
    assert str(ds.features) == "e class of 2" and ds[0].e == 1
    assert duckdb.connect().register("ds", ds).sql("SELECT e FROM ds WHERE e = 'b'").fetchall() == [("b",)]


def test_classes_are_written_by_name_where_a_schema_has_others_or_text(tmp_path: Path) -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b", None], ["b", "a"])})
    assert sx.write(tmp_path / "text", frame, {"c": str | None})["c"] == ["a", "b", None]
    assert sx.write(tmp_path / "numbers", frame, {"c": int | None})["c"].to_list() == [1, 0, None]
    path, other = tmp_path / "other", {"c": sx.Optional(sx.ClassLabel(["a", "b"]))}
    sx.write(path, frame, other)
    sx.write(path, frame, other, mode="append", workers=1)
    with sx.create(path, mode="append") as out:
        out.extend(frame)
    with sx.edit(path) as tx:
        tx.extend(frame)
    assert sx.open(path)["c"].to_list() == [0, 1, None] * 4
    with pytest.raises(SchemaError, match="expected one of the classes a, c, got 'b'"):
        sx.write(tmp_path / "lacking", frame, {"c": sx.Optional(sx.ClassLabel(["a", "c"]))})


def test_numbers_that_are_no_classes() -> None:
    some = pa.table({"c": [5, -1]})
    ds = sx.open(some, schema={"c": sx.ClassLabel([*"abcdef"])})
    assert ds.to_pandas()["c"].tolist() == ["f", np.nan] and ds.to_arrow()["c"].to_pylist() == [5, -1]
    with pytest.raises(FormatError, match="expected numbers of 1 classes, got others - at field c"):
        sx.open(some, schema={"c": sx.ClassLabel(["a"])}).to_pandas()


@pytest.mark.parametrize(
    ("index", "features"),
    [
        ([5, 7], "x int64"),
        (pd.RangeIndex(3, 5), "x int64"),
        (["a", "b"], "index text, x int64"),
        (pd.Index([5, 7], name="k"), "x int64, k int64"),
        (pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]), "level_0 int64, level_1 text, x int64"),
        (pd.to_datetime(["2024-01-01", "2024-01-02"]), "index timestamp[us], x int64"),
    ],
)
def test_indexes_of_pandas(index: Any, features: str) -> None:
    assert str(sx.open(pd.DataFrame({"x": [1, 2]}, index=index)).features) == features


def test_periods_of_pandas_are_refused() -> None:
    periods = pd.period_range("2024-01", periods=2, freq="M")
    for data in (pd.DataFrame({"p": periods}), {"p": pd.Series(periods)}):
        with pytest.raises(
            SchemaError, match=r'got periods of pandas - at field p; make dates .* frame\["p"\]\.dt\.to_t'
        ):
            sx.open(data)


def test_duckdb_there_and_back(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"k": k, "name": f"n{k % 3}"} for k in range(1000)], shard_rows=100)
    connection = duckdb.connect().register("ds", ds)
    found = sx.open(connection.sql("SELECT name, sum(k)::BIGINT AS total FROM ds GROUP BY name ORDER BY name"))
    assert [s.name for s in found] == ["n0", "n1", "n2"] and sum(s.total for s in found) == 499_500


def test_pyarrow_reads_any_view(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": k, "v": np.full((2, 3), k, np.int8)} for k in range(50)], format="parquet")
    for view in (ds, ds[10:20], ds[::-3], ds.shuffle(seed=1), sx.concat(ds, ds), ds.select("x"), ds[:0]):
        table = pa.table(view)
        assert table["x"].to_pylist() == [s.x for s in view]
        assert view.to_arrow().equals(table)
        assert plain(sx.open(table)) == plain(view)


def test_to_arrow_does_not_copy_mapped_files(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"v": np.arange(100, dtype=np.int32)} for _ in range(20)])
    assert ds.to_arrow()["v"].chunk(0).values.buffers()[1].address == address(ds[0].v)


def test_arrow_stream_does_not_load_everything(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", ({"v": np.full(5_000, k, np.float32)} for k in range(2000)))
    tracemalloc.start()
    rows = seen = 0
    for batch in pa.RecordBatchReader.from_stream(ds):
        rows, seen = rows + batch.num_rows, max(seen, batch.num_rows)
    assert (rows, seen < 400) == (2000, True)  # about 6 MB at once
    assert tracemalloc.get_traced_memory()[1] < 2000 * 20_000 / 2
    tracemalloc.stop()


def test_features_survive_parquet_written_by_pyarrow(tmp_path: Path) -> None:
    schema = {"v": Array("float32", (2, 3)), "j": Json(), "c": sx.ClassLabel(("a", "b"))}
    ds = sx.write(tmp_path / "d", [{"v": np.ones((2, 3), "f4"), "j": {"a": 1}, "c": 1}], schema)
    pq.write_table(ds.to_arrow(), tmp_path / "x.parquet")
    again = sx.open(tmp_path / "x.parquet")
    assert again.features == ds.features and again[0] == ds[0]


# -- types that only Arrow has ----------------------------------------------------------------------------------------


def test_arrow_only_types_round_trip(tmp_path: Path) -> None:
    day, moment = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC)
    table = pa.table(
        {
            "day": pa.array([None, *[day] * 99]),
            "at": pa.array([moment] * 100, pa.timestamp("ms", "UTC")),
            "ns": pa.array([1, 2] * 50, pa.timestamp("ns")),
            "money": pa.array([decimal.Decimal("1.50")] * 100, pa.decimal128(12, 2)),
            "map": pa.array([[("a", 1)]] * 100, pa.map_(pa.string(), pa.int64())),
            "inside": pa.array([{"day": day}] * 100),
            "row": range(100),
        }
    )
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as file:
        file.write_table(table)
    for ds in (sx.open(tmp_path / "x.arrow"), sx.open(table)):
        assert ds.features["at"] == Timestamp("ms", "UTC")
        assert ds.to_arrow().to_pydict() == table.to_pydict()
        mixed = ds.shuffle()
        assert sorted(mixed.to_arrow().to_pylist(), key=operator.itemgetter("row")) == table.to_pylist()
        assert mixed.to_arrow().schema.types == ds.to_arrow().schema.types
        assert pa.table(ds.select("day", "at", "ns", "money")).equals(table.select(["day", "at", "ns", "money"]))
        shuffled = pa.table(ds.shuffle().select("day", "at", "ns", "money"))
        assert shuffled.schema.equals(table.select(["day", "at", "ns", "money"]).schema)
    assert sx.open(tmp_path / "x.arrow").take(0).to_arrow().num_rows == 0


def test_error_of_a_misfit_value_names_its_sample(tmp_path: Path) -> None:
    lines = "".join('{"x": 1}\n' for _ in range(500)) + '{"x": "a"}\n'
    (tmp_path / "a.jsonl").write_text(lines)
    ds = sx.open(tmp_path / "a.jsonl").map(lambda one: {"y": one.x})
    with pytest.raises(SchemaError, match=r"expected int64, got str 'a' - at sample 500 of .*, field y"):
        ds.to_arrow()
    with pytest.raises(Exception, match=r"at sample 500 of .*, field y"):
        pl.DataFrame(ds)


def test_columns_of_missing_values_have_the_form_of_the_field() -> None:
    """Fixed lists and dictionaries with nulls: a read of nulls only was a list, other reads were masked arrays."""
    fixed = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    ds = sx.open(pa.table({"fixed": fixed, "coded": pa.array([7, None]).dictionary_encode()}))
    for rows in ([0], [1], [0, 1], []):
        columns = ds.read(rows)
        assert columns["fixed"].values.shape == (len(rows), 2) and columns["coded"].values.dtype == np.int64
        assert columns["fixed"].mask.tolist() == columns["coded"].mask.tolist() == [row == 0 for row in rows]


@pytest.mark.parametrize("values", [[1.0, float("nan")], [1.0, 2.0], ["a", None]])
def test_a_series_has_the_values_of_its_frame(values: list[Any]) -> None:
    frame = pd.DataFrame({"x": values})
    framed, single = sx.open(frame), sx.open({"x": frame["x"]})
    assert single.features == framed.features and list(single) == list(framed)
