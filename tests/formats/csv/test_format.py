"""CSV files: types over all records, samples and batches alike, errors with file and line, writing."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, FormatError, SchemaError, UnknownFormatError
from shardex.features import ClassLabel, Features
from shardex.files import find
from shardex.formats import FORMATS, open_rows, record_fields
from shardex.formats import csv as csv_files
from shardex.formats.csv import CsvRows, CsvWriter
from tests.formats.jsonl.test_format import every, put

NUMBERS = itertools.count()
TEN = dt.datetime(2024, 1, 31, 10)
TEN_ONE = TEN.replace(second=1)


def opened(path: Path | list[Path], **options: Any) -> CsvRows:
    rows = open_rows(path, "csv", **options)
    assert isinstance(rows, CsvRows)
    return rows


def of(folder: Path, text: str, **options: Any) -> CsvRows:
    return opened(put(folder / str(next(NUMBERS)) / "a.csv", text.encode()), **options)


def column(rows: CsvRows, name: str) -> list[Any]:
    return [sample[name] for sample in every(rows)]


# -- types ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "feature", "values"),
    [
        (["1", "-2", "007"], "int64", [1, -2, 7]),
        (["1", " 2", "3 "], "int64", [1, 2, 3]),
        (["1", "", "3"], "int64 or none", [1, None, 3]),
        (["1", '""', "3"], "int64 or none", [1, None, 3]),
        (['"1"', '"2"', '""'], "int64 or none", [1, 2, None]),
        (["1", "2.5", "-1e3"], "float64", [1.0, 2.5, -1000.0]),
        (["+1", ".5", "5."], "float64", [1.0, 0.5, 5.0]),
        (["inf", "-inf", "1"], "float64", [math.inf, -math.inf, 1.0]),
        (["true", "False", "TRUE"], "bool", [True, False, True]),
        (["true", "", "false"], "bool or none", [True, None, False]),
        (["true", "1", "0"], "text", ["true", "1", "0"]),
        (["1", "a", "2.5"], "text", ["1", "a", "2.5"]),
        (["a", "", '""'], "text or none", ["a", None, ""]),
        (["a", '""', "b"], "text", ["a", "", "b"]),
        (["é", '"a,""b""\n"', " c "], "text", ["é", 'a,"b"\n', " c "]),
        (["9223372036854775807", "1"], "int64", [9223372036854775807, 1]),
        (["9223372036854775808", "1"], "text", ["9223372036854775808", "1"]),
        (["9007199254740993", "0.5"], "text", ["9007199254740993", "0.5"]),
        (["9007199254740992", "0.5"], "float64", [9007199254740992.0, 0.5]),
        (["9" * 5000, "0.5"], "text", ["9" * 5000, "0.5"]),
        (["1e300", "0.5"], "float64", [1e300, 0.5]),
        (["0x1F", "2"], "text", ["0x1F", "2"]),
        (["1_000", "2"], "text", ["1_000", "2"]),
        (["2024-01-31", "1500-02-01"], "date", [dt.date(2024, 1, 31), dt.date(1500, 2, 1)]),
        (["2024-01-31", "", "2024-02-30"], "text or none", ["2024-01-31", None, "2024-02-30"]),
        (["2024-01-31 10:00", "2024-02-01"], "timestamp[us]", [dt.datetime(2024, 1, 31, 10), dt.datetime(2024, 2, 1)]),
        (["2024-01-31T10:00:00.5", "2024-01-31 10:00:01"], "timestamp[us]", [TEN.replace(microsecond=500000), TEN_ONE]),
        (
            ["2024-01-31T10:00:00Z", "2024-01-31T12:00:01+02:00"],
            "timestamp[us, UTC]",
            [TEN.replace(tzinfo=dt.UTC), TEN_ONE.replace(tzinfo=dt.UTC)],
        ),
        (["2024-01-31T10:00:00.123456789"], "timestamp[ns]", [np.datetime64("2024-01-31T10:00:00.123456789")]),
        (["2024-01-31", "2024-01-31T10:00:00Z"], "text", ["2024-01-31", "2024-01-31T10:00:00Z"]),
        (["10:00:00", "11:00:00"], "text", ["10:00:00", "11:00:00"]),
        (["0000-01-01"], "text", ["0000-01-01"]),
        (["01/02/2024", "31.01.2024"], "text", ["01/02/2024", "31.01.2024"]),
        (["NA", "1"], "text", ["NA", "1"]),
        ([",", ","], None, None),
    ],
)
def test_types_are_those_of_all_cells(
    tmp_path: Path, cells: list[str], feature: str | None, values: list[Any] | None
) -> None:
    rows = of(tmp_path, "n,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    if feature is None:
        with pytest.raises(FormatError, match=r"a\.csv, line 2: expected 2 cells \(n, x\), got 3: b'0,,'"):
            every(rows)
        return
    assert str(rows.features["x"]) == feature
    assert repr(column(rows, "x")) == repr(values)


def test_types_are_found_in_all_blocks_and_files_and_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_BLOCK_ROWS", 10)
    monkeypatch.setattr(record_fields, "_SAVED_BYTES", 0)
    put(tmp_path / "1.csv", b"a,b,c\n" + b"1,2,x\n" * 35 + b"1.5,,y\n")
    put(tmp_path / "2.csv", b"a,b,c\n" + b"1,2,x\n" * 5)
    rows = opened(tmp_path)
    assert str(rows.features) == "a float64, b int64 or none, c text" and len(rows) == 41
    assert {path.name.partition("-")[0] for path in (tmp_path / ".shardex").iterdir()} == {"csv"}
    assert len(list((tmp_path / ".shardex").iterdir())) == 2
    scanned: list[int] = []
    monkeypatch.setattr(CsvRows, "scan_keys", lambda self, rows, scan: scanned.append(len(rows)))
    assert opened(tmp_path).features == rows.features and not scanned
    put(tmp_path / "3.csv", b"a,b,c\n" + b"1,2,x\n" * 7)
    assert str(opened(tmp_path).features) == str(rows.features) and scanned == [7], "only the new file is read"


def test_saved_types_belong_to_the_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_SAVED_BYTES", 0)
    put(tmp_path / "a.csv", b"a,b;c\n1,2;NA\n3,4;5\n")
    for _ in range(2):
        assert str(opened(tmp_path).features) == "a int64, b;c text"
        assert str(opened(tmp_path, delimiter=";").features) == "a,b text, c text"
        assert str(opened(tmp_path, delimiter=";", missing=["NA"]).features) == "a,b text, c int64 or none"
        assert str(opened(tmp_path, names=["x", "y"]).features) == "x int64, y text"
        assert str(opened(tmp_path, header=False).features) == "f0 text, f1 text"


def test_a_sample_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_SAMPLED_BLOCKS", 2)
    monkeypatch.setattr(record_fields, "_SAMPLED_ROWS", 2)
    text = "n,x\n" + "".join(f"{k},{k}\n" for k in range(20)) + "20,odd\n21,\n22,1\n23,2\n"
    rows = of(tmp_path, text, infer_from="sample")
    assert rows.sampled_rows == 4 and str(rows.features) == "n int64, x int64"
    message = (
        r"a\.csv, line 22: expected int64, got 'odd' - at field x; the types were found in 4 of 24 samples: open with"
    )
    for read in (lambda: rows.sample(20), lambda: rows.read(np.arange(24))):
        with pytest.raises(SchemaError, match=message):
            read()
    with pytest.raises(SchemaError, match=r"line 23: expected int64, got an empty cell - at field x; the types were"):
        rows.read(np.array([21]))
    assert str(of(tmp_path, text, infer_from="all").features) == "n int64, x text or none"
    with pytest.raises(ArgumentError, match="infer_from"):
        of(tmp_path, text, infer_from="some")


def test_missing_names_other_texts_without_value(tmp_path: Path) -> None:
    text = 'a,b\n1,x\nNA,NA\n,"NA"\n'
    rows = of(tmp_path, text, missing=["NA", "-"])
    assert every(rows) == [{"a": 1, "b": "x"}, {"a": None, "b": None}, {"a": None, "b": "NA"}]
    assert str(of(tmp_path, text).features) == "a text or none, b text"
    with pytest.raises(ArgumentError, match="expected a list of texts for the option missing, got 'NA'"):
        of(tmp_path, text, missing="NA")


# -- names ----------------------------------------------------------------------------------------------------


def test_header_and_names(tmp_path: Path) -> None:
    text = '"a b",é\n1,x\n'
    assert every(of(tmp_path, text)) == [{"a b": 1, "é": "x"}]
    assert every(of(tmp_path, text, header=False)) == [{"f0": "a b", "f1": "é"}, {"f0": "1", "f1": "x"}]
    assert every(of(tmp_path, text, names=["n", "s"])) == [{"n": 1, "s": "x"}]
    assert every(of(tmp_path, "1,x\n", header=False, names=["n", "s"])) == [{"n": 1, "s": "x"}]
    assert every(of(tmp_path, ",a\n0,1\n")) == [{"f0": 0, "a": 1}], "pandas writes its index without a name"
    with pytest.raises(ArgumentError, match="expected names for 2 columns, got 1"):
        of(tmp_path, text, names=["n"])
    with pytest.raises(SchemaError, match="expected columns with different names, got 'a' twice; name them"):
        of(tmp_path, "a,a\n1,2\n")
    assert every(of(tmp_path, "a,a\n1,2\n", names=["a", "b"])) == [{"a": 1, "b": 2}]
    with pytest.raises(FormatError, match="expected lines that end in newlines, got carriage returns"):
        of(tmp_path, "a,b\r1,2\r")


def test_all_files_have_the_same_columns(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"")
    put(tmp_path / "b.csv", b"x,y\n1,2\n")
    put(tmp_path / "c.csv", b"x,y\n")
    assert every(opened(tmp_path)) == [{"x": 1, "y": 2}]
    put(tmp_path / "d.csv", b"y,x\n1,2\n")
    with pytest.raises(FormatError, match=r"d\.csv: expected the columns x, y as in the first file, got y, x; open"):
        opened(tmp_path)


def test_delimiters(tmp_path: Path) -> None:
    put(tmp_path / "a.tsv", b"a\tb\n1,5\t2\n")
    assert every(opened(tmp_path)) == [{"a": "1,5", "b": 2}]
    assert every(of(tmp_path / "d", "a;b\n1;'x;\n'\n", delimiter=";", quote="'")) == [{"a": 1, "b": "x;\n"}]
    assert every(of(tmp_path / "d", 'a,b\n1,5"\n', quote="")) == [{"a": 1, "b": '5"'}]
    put(tmp_path / "b.csv", b"a,b\n")
    with pytest.raises(ArgumentError, match=r"expected files with one delimiter, got \.csv and \.tsv files"):
        opened(tmp_path)
    with pytest.raises(ArgumentError, match="expected one ASCII character for the option delimiter, got ''"):
        of(tmp_path / "d", "a", delimiter="")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.csv"], True),
        (["a.TSV", "b.tab"], True),
        (["a.csv", "notes.md", "LICENSE", "dataset_info.json"], True),
        (["metadata.csv", "a.parquet"], False),
        (["a.txt"], False),
        ([".hidden.csv"], False),
        ([], False),
    ],
)
def test_recognise(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        put(tmp_path / name)
    assert bool(FORMATS["csv"].match(find(tmp_path))) is expected


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", b"x\n1\n")
    put(tmp_path / "notes.md", b"read me\n")
    put(tmp_path / "a.log", b"x\n1\n2\n")
    assert len(opened(tmp_path)) == len(sx.open(tmp_path)) == 1
    assert len(opened(tmp_path / "a.log")) == 2
    put(tmp_path / "other" / "a.md", b"x")
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.csv, .*, got 1 others; .* a pattern"):
        opened(tmp_path / "other")


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_other_delimiters_are_recognised(tmp_path: Path, delimiter: str) -> None:
    text = 'n,m;x;t\n1;2,5;a\n2;3,5;"b;c"\n'.replace("n,m", "n").replace(";", delimiter)
    rows = of(tmp_path, text)
    assert every(rows) == [{"n": 1, "x": "2,5", "t": "a"}, {"n": 2, "x": "3,5", "t": f"b{delimiter}c"}]
    assert pickle.loads(pickle.dumps(rows)).sample(1) == rows.sample(1)
    assert list(of(tmp_path, f'"a{delimiter}b"\n1\n').features) == [f"a{delimiter}b"], (
        "one column, whose name is quoted"
    )
    assert list(of(tmp_path, f"a{delimiter}b,c\n1,2\n").features) == [f"a{delimiter}b", "c"]


@pytest.mark.parametrize("text", ["x;y z\n1\n2\n", "a;b|c\n1;2|3\n"])
def test_doubtful_delimiters_raise(tmp_path: Path, text: str) -> None:
    with pytest.raises(
        FormatError, match=r"a\.csv: expected cells that are separated by commas, .* pass delimiter=';', or"
    ):
        of(tmp_path, text)
    assert len(of(tmp_path, text, delimiter=",").features) == 1


def test_tables_of_other_tools(tmp_path: Path) -> None:
    frame = pd.DataFrame({"day": pd.date_range("2024-01-30", periods=3), "x": [1.5, None, 2.0], "t": ["a;b", "", "c"]})
    frame["at"] = pd.date_range("2024-01-01", periods=3, freq="h", tz="UTC")
    frame.to_csv(tmp_path / "pandas.csv", index=False, sep=";")
    pl.from_pandas(frame).write_csv(tmp_path / "polars.csv")
    duckdb.sql(f"COPY (SELECT * FROM frame) TO '{tmp_path}/duckdb.csv' (DELIMITER ';')")
    for name in ("pandas", "polars", "duckdb"):
        ds = sx.open(tmp_path / f"{name}.csv")
        assert ds[1]["x"] is None and ds[0]["t"] == "a;b", name
        assert [str(one)[:10] for one in ds["day"]] == ["2024-01-30", "2024-01-31", "2024-02-01"]
        assert str(ds.features["at"]).startswith("timestamp[") and np.asarray(ds["at"])[2].astype(
            "M8[h]"
        ) == np.datetime64("2024-01-01T02")


# -- reading --------------------------------------------------------------------------------------------------


def test_batches_are_typed_and_writable(tmp_path: Path) -> None:
    rows = of(
        tmp_path, "n,x,ok,s,m\n" + "".join(f"{k},{k / 2},{'true' if k % 2 else 'false'},t{k},\n" for k in range(9))
    )
    columns = rows.read(np.array([8, 0, 8]))
    assert columns["n"].dtype == np.int64 and columns["n"].tolist() == [8, 0, 8] and columns["n"].flags.writeable
    assert columns["x"].tolist() == [4.0, 0.0, 4.0] and columns["ok"].dtype == np.bool_
    assert columns["s"] == ["t8", "t0", "t8"] and columns["m"] == [None] * 3
    assert rows.read(np.array([1]), ["s", "n"]).names == ["s", "n"]
    assert rows.read(np.arange(0)).names == ["n", "x", "ok", "s", "m"] and rows.read(np.arange(3), []).names == []
    assert pickle.loads(pickle.dumps(rows)).sample(3) == rows.sample(3)
    ds = sx.open(tmp_path)
    assert ds.where("ok AND x > 1")["n"].tolist() == [3, 5, 7]
    assert ds.to_arrow().column("s").to_pylist() == [f"t{k}" for k in range(9)]
    assert next(iter(sx.Loader(ds, 4))).x.tolist() == [0.0, 0.5, 1.0, 1.5]


def test_large_reads_are_those_of_arrow(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = pa.table(
        {
            "n": random.integers(-9, 9, 30_000),
            "x": random.random(30_000),
            "s": [f'"{k}",\n' * (k % 4) for k in range(30_000)],
        }
    )
    pa.csv.write_csv(table, tmp_path / "a.csv")
    ds = sx.open(tmp_path)
    assert ds.to_arrow().to_pydict() == table.to_pydict()
    some = random.integers(0, len(ds), 5000)
    assert ds.read(some)["s"] == table["s"].take(some).to_pylist()


def test_reads_that_are_too_large_for_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = of(tmp_path, "n,s\n" + "".join(f"{k},t{k}\n" for k in range(50)))
    monkeypatch.setattr(csv_files, "_MOST_BYTES", 20)
    assert rows.read(np.arange(49, -1, -1))["n"].tolist() == list(range(49, -1, -1))


SCALARS = st.fixed_dictionaries(
    {
        "s": st.text(st.characters(codec="utf-8"), max_size=8),
        "t": st.none() | st.text(st.sampled_from('",\n\r ;1a'), max_size=4),
        "n": st.integers(-(1 << 63), (1 << 63) - 1),
        "m": st.none() | st.integers(-9, 9),
        "x": st.floats(allow_nan=False),
        "ok": st.booleans() | st.none(),
    }
)
ANY = {"s": str, "t": str | None, "n": int, "m": int | None, "x": float, "ok": bool | None}


@settings(max_examples=20)
@given(st.lists(SCALARS, min_size=1, max_size=6))
def test_any_scalars_are_read_as_they_were_written(samples: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sx.write(Path(folder) / "d", samples, ANY, format="csv", shard_rows=3)
        rows = opened(Path(folder) / "d", schema=Features.of(ANY))
        assert repr(every(rows)) == repr([{name: one[name] for name in ANY} for one in samples])
        plain = opened(Path(folder) / "d")
        assert [one["n"] for one in every(plain)] == [one["n"] for one in samples]


def test_schema(tmp_path: Path) -> None:
    text = "n,x,label,day,s,span,empty\n1,0.1,dog,2024-01-31,007,5,\n2,inf,0,2024-02-01,,6,\n"
    schema = {
        "n": "int8",
        "x": "float32",
        "label": ClassLabel(("cat", "dog")),
        "day": dt.date,
        "s": str,
        "span": sx.Duration("s"),
        "empty": sx.Optional(sx.Value("float16")),
        "nowhere": str | None,
    }
    rows = of(tmp_path, text, schema=Features.of(schema))
    assert rows.features == Features.of(schema)
    first = {"n": 1, "x": float(np.float32(0.1)), "label": 1, "day": dt.date(2024, 1, 31), "s": "007"}
    samples = every(rows)
    assert samples[0] == {**first, "span": dt.timedelta(seconds=5), "empty": None, "nowhere": None}
    assert samples[1]["s"] == "" and samples[1]["label"] == 0
    assert rows.read(np.arange(2))["n"].dtype == np.int8
    assert str(of(tmp_path, text, schema=Features.of({"s": str})).features) == "s text"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"n": "int8"}, r"a\.csv, line 3: expected int8, got '300' - at field n"),
        ({"x": float}, r"a\.csv, line 3: expected float64, got 'odd' - at field x"),
        (
            {"e": float},
            r"a\.csv, line 2: expected float64, got an empty cell - at field e; declare it .* float \| None",
        ),
        ({"x": dt.date}, r"expected date as ISO 8601 text, got '1.5' - at .*a\.csv, line 2, field x"),
    ],
)
def test_values_that_do_not_fit_the_schema(tmp_path: Path, schema: Any, message: str) -> None:
    rows = of(tmp_path, "n,x,e\n1,1.5,\n300,odd,\n", schema=Features.of(schema))
    with pytest.raises(SchemaError, match=message):
        rows.read(np.arange(2))
    with pytest.raises(SchemaError, match=message):
        [rows.sample(0), rows.sample(1)]


def test_a_schema_of_other_columns_or_features_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="expected a column y, got x - at field y"):
        of(tmp_path, "x\n1\n", schema=Features.of({"y": int}))
    with pytest.raises(SchemaError, match=r"expected a feature that a cell of a CSV file can hold .* - at field x"):
        of(tmp_path, "x\n1\n", schema=Features.of({"x": list[int]}))


# -- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1", r"a\.csv, line 4: expected 2 cells \(a, b\), got 1: b'1'"),
        ("1,2,3", r"a\.csv, line 4: expected 2 cells \(a, b\), got 3: b'1,2,3'"),
        ("1,x\ry", r"a\.csv, line 4: expected carriage returns in quotes only"),
        ('1,"x"\ry', r"a\.csv, line 4: expected carriage returns in quotes only"),
        ("1,\udcff,3", r"a\.csv, line 4: expected UTF-8"),
        ("1,\udcff", r"a\.csv, line 4: expected UTF-8, got b'1,.xff': .* in column 3; convert the file .* pandas"),
    ],
)
def test_wrong_records_are_named(tmp_path: Path, line: str, message: str) -> None:
    put(tmp_path / "a.csv", f'a,b\n1,"x\ny"\n{line}\n2,z\n'.encode(errors="surrogateescape"))
    rows = opened(tmp_path)
    assert str(rows.features["a"]) == "int64" and rows.sample(2) == {"a": 2, "b": "z"}
    for read in (lambda: rows.read(np.arange(3)), lambda: rows.sample(1), lambda: rows.read(np.array([1]), ["b"])):
        with pytest.raises(FormatError, match=message):
            read()
    assert rows.read(np.array([0, 2]))["b"] == ["x\ny", "z"]


def test_names_that_are_no_utf8_are_named(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", "a,K\xe4se\n1,2\n".encode("latin-1"))
    with pytest.raises(
        FormatError, match=r"a\.csv: expected names of columns in UTF-8, .*; convert the file .* pandas"
    ):
        sx.open(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("option", "instead"),
    [("decimal", "pandas.read_csv(...)"), ("encoding", "pandas.read_csv(...)"), ("sep", "delimiter=")],
)
def test_options_of_pandas_have_a_hint(tmp_path: Path, option: str, instead: str) -> None:
    put(tmp_path / "a.csv", b"a\n1\n")
    options: dict[str, Any] = {option: ","}
    with pytest.raises(ArgumentError, match=re.escape(f"got {option!r}: use {instead}")):
        sx.open(tmp_path / "a.csv", **options)


# -- writing --------------------------------------------------------------------------------------------------

ODD = ["", " ", "a,b", 'say "x"', "two\nlines\r\n", "\ufeffx", "é", "\tx ", "#", "1", "\x00", "'"]


def test_all_values_are_read_as_they_were_written(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"s": text, "n": k, "x": k / 3, "ok": k % 2 == 0, "o": None if k % 2 else text, "m": None if k % 3 else -k}
        for k, text in enumerate(ODD)
    ]
    ds = sx.write(tmp_path / "d", samples, format="csv", shard_rows=5)
    assert [dict(one) for one in ds] == samples
    assert str(ds.features) == "s text, n int64, x float64, ok bool, o text or none, m int64 or none"
    assert len(list((tmp_path / "d").glob("part-*.csv"))) == 3
    assert all(path.read_bytes().startswith(b"s,n,x,ok,o,m\n") for path in (tmp_path / "d").glob("*.csv"))
    for path in sorted((tmp_path / "d").glob("*.csv"))[:1]:
        assert pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(newlines_in_values=True)).num_rows == 5


def test_numbers_of_all_kinds_are_written(tmp_path: Path) -> None:
    schema = {"h": "float16", "f": "float32", "d": "float64", "u": "uint64", "i": "int8", "day": dt.date}
    samples: list[dict[str, Any]] = [
        {"h": 0.5, "f": np.float32(0.1), "d": 1e-300, "u": (1 << 64) - 1, "i": -128, "day": dt.date(2024, 1, 31)},
        {"h": math.inf, "f": -math.inf, "d": math.nan, "u": 0, "i": 127, "day": dt.date(1, 1, 1)},
    ]
    sx.write(tmp_path / "d", samples, schema, format="csv")
    found = sx.open(tmp_path / "d", schema=schema)
    assert repr([dict(one) for one in found]) == repr([{**one, "f": float(one["f"])} for one in samples])
    assert str(sx.open(tmp_path / "d").features) == "h float64, f float64, d float64, u text, i int64, day date"


def test_samples_without_values(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "n", [{"x": None}, {"x": 1}], {"x": int | None}, format="csv")
    assert [one.x for one in ds] == [None, 1]
    with pytest.raises(SchemaError, match=r"expected a value, got None - at field x; .* would be blank"):
        sx.write(tmp_path / "s", [{"x": None}], {"x": str | None}, format="csv")
    empty = sx.write(tmp_path / "e", [], {"x": int, "y": str}, format="csv")
    assert len(empty) == 0 and str(empty.features) == "x text, y text"


@pytest.mark.parametrize("schema", [{"x": bytes}, {"x": sx.Array("int8", (2,))}, {"x": sx.Json()}, {"x": list[str]}])
def test_features_that_a_cell_cannot_hold_are_refused(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(SchemaError, match="expected a feature that a cell of a CSV file can hold"):
        CsvWriter(str(tmp_path / "d"), Features.of(schema))
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("workers", [None, 2])
def test_append(tmp_path: Path, workers: int | None) -> None:
    samples = [{"a": k, "b": f"t{k}"} for k in range(10)]
    sx.write(tmp_path / "d", sx.open(samples), format="csv", shard_rows=4, workers=workers)
    ds = sx.write(tmp_path / "d", sx.open(samples), format="csv", mode="append", workers=workers)
    assert [dict(one) for one in ds] == samples * 2
    before = sorted(path.name for path in (tmp_path / "d").iterdir())
    with pytest.raises(SchemaError, match=r"expected the fields a, b to append, as in part-00000\.csv, got b, a"):
        sx.write(tmp_path / "d", sx.open([{"b": "x", "a": 1}]), format="csv", mode="append", workers=workers)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == before


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="expected text that UTF-8 can hold"):
        sx.write(tmp_path / "d", [{"s": "\ud800"}], format="csv")


def test_batches_of_times_are_writable(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "t,d,o\n2024-01-01 10:00:00,2024-01-01,2024-01-01\n2024-01-02 11:00:00,2024-01-02,\n"
    )
    ds = sx.open(tmp_path / "a.csv")
    for batch in (next(ds.ordered(2)), next(iter(sx.Loader(ds, 2)))):
        batch.t[0] += np.timedelta64(1, "us")
        batch.d[0] += np.timedelta64(1, "D")
        assert batch.d[0] == np.datetime64("2024-01-02") and batch.t[0] == np.datetime64("2024-01-01T10:00:00.000001")
    assert ds[0].t == dt.datetime(2024, 1, 1, 10) and ds[1].o is None
    assert ds.sliding(1).ordered(2).__next__().t.flags.writeable
