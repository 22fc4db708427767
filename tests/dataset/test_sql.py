"""SQL over datasets: the same results as Python over every kind of view, and no access to anything but the dataset."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import operator
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset import ListRows
from shardex.dataset import sql_syntax as sandbox
from shardex.dataset.combine import ConcatRows
from shardex.errors import ChecksumError, FormatError, QueryError
from tests.waiting import becomes_true

Samples = list[dict[str, Any]]

SCHEMA = {
    "n": "int32",
    "score": sx.Optional(sx.Value("float64")),
    "source": str,
    "ok": bool,
    "meta": sx.Json(),
    "vector": sx.Array("float32", (3,)),
    "grid": sx.Array("int16", (2, 3)),
    "tokens": sx.Array("int32", (None,)),
    "tags": list[str],
    "label": sx.ClassLabel(("cat", "dog")),
    "half": "float16",
    "forecast": sx.Optional(sx.Array("float32", (None, None))),
    "place": sx.Struct({"city": sx.Text(), "at": sx.Array("float64", (2,))}),
    "raw": bytes,
}


def samples(count: int = 40) -> Samples:
    return [
        {
            "n": k,
            "score": None if k % 5 == 0 else k / 10,
            "source": "xyz"[k % 3],
            "ok": k % 2 == 0,
            "meta": {"unit": "celsius" if k % 4 else "K", "n": k, "deep": {"list": [k, None]}},
            "vector": [k, k + 1, k + 2],
            "grid": [[k, 1, 2], [3, 4, -k]],
            "tokens": list(range(k % 4)),
            "tags": ["even"] if k % 2 == 0 else ["odd", "strange"],
            "label": k % 2,
            "half": k / 2,
            "forecast": None if k % 3 else np.ones((2, k), np.float32),
            "place": {"city": f"c{k % 7}", "at": [k, -k]},
            "raw": bytes([k]),
        }
        for k in range(count)
    ]


def written(path: Path, format: str = "arrow", **options: Any) -> sx.Dataset:
    return sx.write(path, samples(), SCHEMA, format=format, **options)


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> sx.Dataset:
    return written(tmp_path_factory.mktemp("query") / "native", shard_rows=7)


def found(ds: sx.Dataset, text: str, params: Any = None) -> list[int]:
    return [int(sample.n) for sample in ds.where(text, params).select("n")]


# -- answers -----------------------------------------------------------------------------------------------------

Holds = Callable[[dict[str, Any]], bool]

CONDITIONS: list[tuple[str, Holds]] = [
    ("n > 30", lambda s: s["n"] > 30),
    ("N > 30 AND Source = 'x'", lambda s: s["n"] > 30 and s["source"] == "x"),
    ("score > 2", lambda s: s["score"] is not None and s["score"] > 2),
    ("NOT score > 2", lambda s: s["score"] is not None and s["score"] <= 2),
    ("score IS NULL", lambda s: s["score"] is None),
    ("score IS NULL OR score < 1", lambda s: s["score"] is None or s["score"] < 1),
    ("coalesce(score, 9) > 3", lambda s: s["score"] is None or s["score"] > 3),
    ("score", lambda s: bool(s["score"])),
    ("ok", lambda s: s["ok"]),
    ("source IN ('x', 'y') AND source LIKE 'y%'", lambda s: s["source"] == "y"),
    ("length(source) = 1 AND n % 10 = 3", lambda s: s["n"] % 10 == 3),
    ("meta->>'$.unit' = 'celsius'", lambda s: s["meta"]["unit"] == "celsius"),
    ("meta->>'unit' = 'K' AND n > 3", lambda s: s["meta"]["unit"] == "K" and s["n"] > 3),
    ("meta.n > 35", lambda s: s["n"] > 35),
    ("meta.deep.list[0] = 3", lambda s: s["n"] == 3),
    ("meta->>'$.nothing' IS NULL", lambda s: True),
    ("vector[1] = 7", lambda s: s["n"] == 7),
    ("list_sum(vector) < 10", lambda s: 3 * s["n"] + 3 < 10),
    ("grid[2][3] = -5 AND grid[1][1] = 5", lambda s: s["n"] == 5),
    ("len(tokens) = 3", lambda s: s["n"] % 4 == 3),
    ("list_contains(tags, 'strange')", lambda s: s["n"] % 2 == 1),
    ("label = 1", lambda s: s["n"] % 2 == 1),
    ("half = 1.5", lambda s: s["n"] == 3),
    ("forecast IS NOT NULL", lambda s: s["n"] % 3 == 0),
    ("ds.forecast IS NULL AND n < 5", lambda s: s["n"] % 3 != 0 and s["n"] < 5),
    ("place.city = 'c3' AND place.at[2] < -20", lambda s: s["n"] % 7 == 3 and s["n"] > 20),
    ("raw = '\\x05'::BLOB OR octet_length(raw) > 1", lambda s: s["n"] == 5),
    ("_row BETWEEN 3 AND 5", lambda s: 3 <= s["n"] <= 5),
    ("n = (SELECT max(n) FROM ds)", lambda s: s["n"] == 39),
    ("n IN (SELECT i * 2 FROM range(3) t(i))", lambda s: s["n"] in (0, 2, 4)),
    ("true", lambda s: True),
    ("false", lambda s: False),
    ("NULL", lambda s: False),
    ("(n > 3)AND(n < 5)", lambda s: s["n"] == 4),
    ("n > 37 -- the last ones", lambda s: s["n"] > 37),
    ("/* the */ n > /* last */ 37", lambda s: s["n"] > 37),
    ("CASE WHEN n > 37 THEN ok ELSE false END", lambda s: s["n"] == 38),
]


@pytest.mark.parametrize(("text", "holds"), CONDITIONS, ids=[text for text, _ in CONDITIONS])
def test_where(ds: sx.Dataset, text: str, holds: Holds) -> None:
    expected = [s["n"] for s in samples() if holds(s)]
    assert found(ds, text) == expected
    assert found(ds[::-1], text.replace("_row", "39 - _row")) == expected[::-1]


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("n > ? AND source = ?", [30, "x"]),
        ("n > ? AND source = ?", (np.int16(30), np.str_("x"))),
        ("n > $low AND source = $source", {"low": np.float32(30), "source": "x"}),
        ("n > $1 AND source = $2 AND n > $1", [30, "x"]),
        ("n IN (SELECT unnest(?)) AND source = 'x'", [list(range(31, 40))]),
        ("n = ANY(?) AND source = 'x'", [np.arange(31, 40)]),
        ("(n > 30) = ? AND source = 'x'", [np.bool_(True)]),
        ("n > 30 AND source = 'x' AND ? IS NULL", [None]),
        ("n > 30 AND source = 'x'", []),
        ("n > 30 AND source = 'x'", {}),
    ],
)
def test_params(ds: sx.Dataset, text: str, params: Any) -> None:
    assert found(ds, text, params) == [33, 36, 39]


def test_sql(ds: sx.Dataset) -> None:
    answer = ds.sql("SELECT source, count(*) AS c, max(n) AS m FROM ds WHERE n > ? GROUP BY 1 ORDER BY 1", [5])
    assert isinstance(answer, pa.Table)
    assert answer.to_pylist() == [
        {"source": "x", "c": 12, "m": 39},
        {"source": "y", "c": 11, "m": 37},
        {"source": "z", "c": 11, "m": 38},
    ]
    assert ds.sql("SELECT count(forecast) AS f, count(score) AS s FROM ds").to_pylist() == [{"f": 14, "s": 32}]
    assert ds.sql("FROM ds SELECT n ORDER BY _row DESC LIMIT 2")["n"].to_pylist() == [39, 38]
    assert ds.sql("SELECT meta->>'$.unit' AS u, avg(score) AS a FROM ds GROUP BY ALL ORDER BY ALL")[
        "u"
    ].to_pylist() == [
        "K",
        "celsius",
    ]
    assert ds.sql("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_row_numbers_in_a_result_are_positions(ds: sx.Dataset) -> None:
    best = ds.sql("SELECT _row FROM ds ORDER BY score DESC NULLS LAST LIMIT 3")["_row"].to_pylist()
    assert [sample.n for sample in ds[best]] == [39, 38, 37]


def test_ds_may_appear_several_times(ds: sx.Dataset) -> None:
    joined = "SELECT a.n, b.source FROM ds a JOIN ds b ON a.n = b.n + 1 WHERE b.forecast IS NOT NULL AND a.n < 6"
    assert ds.sql(joined).to_pylist() == [{"n": 1, "source": "x"}, {"n": 4, "source": "x"}]
    assert ds.sql("SELECT count(*) AS c FROM ds JOIN ds b USING (n)").to_pylist() == [{"c": 40}]
    assert ds.select("n", "ok").sql("SELECT count(*) AS c FROM ds NATURAL JOIN ds b").to_pylist() == [{"c": 40}]
    with_two = "WITH t AS (SELECT n FROM ds WHERE ok) SELECT count(*) AS c FROM t, ds WHERE t.n = ds.n"
    assert ds.sql(with_two).to_pylist() == [{"c": 20}]


def test_all_fields(ds: sx.Dataset) -> None:
    answer = ds.sql("SELECT * FROM ds WHERE n = 3")
    assert answer.column_names == [name for name in SCHEMA if name != "forecast"]
    assert answer.to_pylist()[0]["grid"] == [[3, 1, 2], [3, 4, -3]]
    assert ds.sql("SELECT d FROM ds d WHERE d.n = 3")["d"].to_pylist()[0]["source"] == "x"
    assert ds.select("n").sql("SELECT * FROM ds PIVOT (sum(n) FOR n IN (1, 2))").column_names == ["1", "2"]


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_plain_files(ds: sx.Dataset, tmp_path: Path, format: str) -> None:
    names = [name for name in SCHEMA if name not in ("grid", "forecast")]
    table, path = ds.sql_columns(names), tmp_path / f"a.{format}"
    table = table.cast(pa.schema([field.remove_metadata() for field in table.schema]))
    table = table.set_column(2, "source", table["source"].dictionary_encode())
    if format == "parquet":
        pq.write_table(table, path, row_group_size=11)
    else:
        packed = pa.ipc.IpcWriteOptions(compression="zstd", unify_dictionaries=True)
        with pa.ipc.new_file(path, table.schema, options=packed) as out:
            out.write_table(table, max_chunksize=9)
    plain = sx.open(path, schema={"meta": sx.Json()})
    for text, _ in CONDITIONS:
        if "grid" not in text and "forecast" not in text:
            assert found(plain, text) == found(ds, text), text


# -- views -------------------------------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[sx.Dataset], sx.Dataset]] = {
    "all": lambda ds: ds,
    "a run": lambda ds: ds[3:33],
    "the first": lambda ds: ds[:30],
    "a few": lambda ds: ds[5:7],
    "one": lambda ds: ds[6:7],
    "none": lambda ds: ds[:0],
    "steps": lambda ds: ds[1::2],
    "back": lambda ds: ds[::-1],
    "picked": lambda ds: ds[[7, 3, 3, 39, 0] * 5],
    "shuffled": lambda ds: ds.shuffle(seed=2),
    "filtered": lambda ds: ds.where("n % 3 <> 1"),
    "filtered, then shuffled": lambda ds: ds.where("n % 3 <> 1").shuffle(1)[2:],
    "shuffled, then filtered": lambda ds: ds.shuffle(seed=1).where("n % 3 <> 1"),
    "one after another": lambda ds: sx.concat(ds[:9], ds[::-1], ds.where("false"), ds[3:4]),
    "side by side": lambda ds: sx.join(ds.select("n", "score"), ds[::-1].select("source", "forecast")),
    "mixed": lambda ds: sx.mix({"a": ds[:30], "b": ds[::-1]}, {"a": 0.7, "b": 0.3}, length=100, seed=1),
    "selected": lambda ds: ds.select("source", "forecast", "n", "score"),
    "a dataset of a dataset": lambda ds: sx.Dataset(ds[1:]),
    "a list": lambda ds: sx.open([dict(sample) for sample in ds.select("n", "score", "source", "forecast")]),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(ds: sx.Dataset, view: str) -> None:
    seen = VIEWS[view](ds)
    plain = list(seen.select("n", "score", "source", "forecast"))
    cases: list[tuple[str, Callable[[int, sx.DictSample], bool]]] = [
        ("n > 10 AND source <> 'y'", lambda k, s: s.n > 10 and s.source != "y"),
        ("score < 2", lambda k, s: s.score is not None and s.score < 2),
        ("forecast IS NULL", lambda k, s: s.forecast is None),
        ("_row % 3 = 1", lambda k, s: k % 3 == 1),
        ("n = (SELECT min(n) FROM ds)", lambda k, s: s.n == min(other.n for other in plain)),
        ("n > 10 AND _row > 2", lambda k, s: s.n > 10 and k > 2),
    ]
    for text, holds in cases:
        kept = seen.where(text)
        expected = [sample for k, sample in enumerate(plain) if holds(k, sample)]
        assert list(kept.select("n", "source")) == [sx.DictSample(n=s.n, source=s.source) for s in expected], text
        assert kept.fields == seen.fields
    totals = {"c": len(plain), "f": sum(s.forecast is not None for s in plain)}
    assert seen.sql("SELECT count(*) AS c, count(forecast) AS f FROM ds").to_pylist() == [totals]
    assert seen.sql("SELECT n FROM ds ORDER BY _row")["n"].to_pylist() == [s.n for s in plain]


def test_a_view_is_a_dataset(ds: sx.Dataset) -> None:
    kept = ds.where("n % 2 = 1")
    assert len(kept) == 20 and kept[3].n == 7 and kept[-1].n == 39
    assert kept[::2][1].n == 5 and kept.select("n").fields == ["n"]
    assert pickle.loads(pickle.dumps(kept))[3].n == 7
    assert sorted(n for batch in kept.shuffled(8, seed=1) for n in batch.n.tolist()) == list(range(1, 40, 2))
    assert kept.fingerprint not in (ds.fingerprint, ds.where("n % 2 = 0").fingerprint)
    loader = sx.Loader(kept, batch_size=4, shuffle=True, seed=0, fields=["n"])
    first = [n for batch in itertools.islice(loader, 2) for n in batch.n.tolist()]
    again = sx.Loader(kept, batch_size=4, shuffle=True, seed=0, fields=["n"])
    again.load_state_dict(loader.state_dict())
    rest = [n for batch in again for n in batch.n.tolist()]
    assert sorted(first + rest) == list(range(1, 40, 2))


def test_sql_sees_only_selected_fields(ds: sx.Dataset) -> None:
    with pytest.raises(QueryError, match=r'"source" not found .* the fields are n, ok$'):
        ds.select("n", "ok").where("source = 'x'")
    assert ds.where("source = 'x'").select("n")[1].n == 3


def test_no_samples(tmp_path: Path) -> None:
    empty = sx.write(tmp_path / "a", [], SCHEMA)
    assert len(empty.where("n > 3 AND forecast IS NOT NULL AND _row = 0")) == 0
    assert empty.sql("SELECT count(*) AS c, max(n) AS m FROM ds").to_pylist() == [{"c": 0, "m": None}]
    (tmp_path / "b.jsonl").write_text("")
    assert len(sx.open(tmp_path / "b.jsonl").where("true")) == 0


def test_parts_of_different_types() -> None:
    ints, floats, texts = sx.open([{"x": 1}, {"x": 2}]), sx.open([{"x": 2.5}]), sx.open([{"x": "a"}])
    both = sx.Dataset(ConcatRows([ints, floats]))
    assert both.sql("SELECT sum(x) AS s FROM ds").to_pylist() == [{"s": 5.5}]
    with pytest.raises(QueryError, match="expected fields of one type in all parts"):
        sx.Dataset(ConcatRows([ints, texts])).where("x = 1")


def test_names_of_fields(tmp_path: Path) -> None:
    odd = {"box.npy": 1, 'say "hi"': 2, "select": 3, "_ROW": 4, "é": 5}
    ds = sx.open([odd, {name: -value for name, value in odd.items()}])
    for text in ('"box.npy" = 1', '"say ""hi""" = 2', '"select" = 3', "_row = 4", "é = 5", "_row_ = 0"):
        assert len(ds.where(text)) == 1, text
    with pytest.raises(QueryError, match=r'the fields are "box.npy", "say ""hi""", select, _ROW, "é"'):
        ds.where("box.npy = 1")
    with pytest.raises(QueryError, match=r'at character 1; write a field .* in double quotes: "select"$'):
        ds.where("select = 3")
    with pytest.raises(QueryError, match=r'at character 4; write a field .* in double quotes: "at"$'):
        sx.open([{"at": 1}]).where("at > 0")
    twice = sx.open([{"x": 1, "X": 2}])
    with pytest.raises(QueryError, match="expected fields whose names differ by more than case, got x and X"):
        twice.where("x = 1")
    assert len(twice.select("X").where("x = 2")) == 1


# -- what is read ------------------------------------------------------------------------------------------------


class Watched:
    """Rows of a list that record which fields were read."""

    def __init__(self, rows: Samples) -> None:
        self._rows = sx.open(rows).rows
        self.asked: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def features(self) -> sx.Features:
        return sx.Features.of({"a": int, "b": int, "c": sx.Optional(sx.Value("int64")), "d": sx.Optional(sx.Array())})

    def read(self, rows: Any, fields: Any = None) -> sx.Columns:
        self.asked.append(list(fields))
        return self._rows.read(rows, fields)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("SELECT count(*) FROM ds", []),
        ("SELECT _row FROM ds", []),
        ("SELECT a FROM ds WHERE c IS NULL", [["c"], ["a"]]),
        ("SELECT count(d) FROM ds", [["d"]]),
        ("SELECT count(DISTINCT c) FROM ds", [["c"]]),
        ("SELECT B + 1 AS a FROM ds", [["b"]]),
        ("SELECT t.x FROM (SELECT b AS x FROM ds) t", [["b"]]),
        ("SELECT list_transform([1], lambda x: x + c) FROM ds", [["c"]]),
        ("SELECT c FROM ds WHERE c IS NOT NULL", [["c"]]),
        ("SELECT * EXCLUDE (a) FROM ds", [["a", "b", "c"]]),
        ("SELECT COLUMNS('a') FROM ds", [["a", "b", "c"]]),
        ("SELECT ds FROM ds WHERE d IS NULL", [["d"], ["a", "b", "c"]]),
    ],
)
def test_only_named_fields_are_read(text: str, asked: list[list[str]]) -> None:
    rows = Watched([{"a": 1, "b": 2, "c": 3, "d": None}, {"a": 1, "b": 2, "c": None, "d": np.ones(2)}])
    sx.open(rows).sql(text)
    assert rows.asked == asked


def test_a_small_view_reads_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    big, rows = sx.open([{"x": k} for k in range(10_000)]), set()
    read = ListRows.read

    def watched(self: ListRows, some: Any, fields: Any = None) -> sx.Columns:
        rows.update(some.tolist())
        return read(self, some, fields)

    monkeypatch.setattr(ListRows, "read", watched)
    assert len(big[5000:5010].where("x > 5007")) == 2 and rows == set(range(5000, 5010))


def test_presence_in_tars_is_known_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"png": bytes, "seg": sx.Optional(sx.Array("int8", (2, 2))), "cls": int}
    some = [{"png": b"x", "seg": None if k % 2 else np.zeros((2, 2), "int8"), "cls": k} for k in range(10)]
    tars = sx.write(tmp_path / "tars", some, schema, format="tar", shard_rows=4)
    reads: list[Any] = []
    monkeypatch.setattr(type(tars.rows), "read", lambda self, rows, fields=None: reads.append(fields))
    assert len(tars.where("seg IS NOT NULL AND png IS NOT NULL")) == 5 and not reads
    assert len(tars[::-1].where("seg IS NULL AND __key__ IS NOT NULL")) == 5 and not reads


def test_json_lines_whose_types_change(tmp_path: Path) -> None:
    first = "".join(f'{{"a": {k}, "b": "s", "c": 1, "d": {k}}}\n' for k in range(20))
    (tmp_path / "a.jsonl").write_text(first + '{"a": 2.5, "b": [1], "d": 99999999999999999999}\n{"c": null}\n')
    ds = sx.open(tmp_path / "a.jsonl")
    assert len(ds.where("a > 2 AND a < 3")) == 1 and len(ds.where("a IS NULL")) == 1
    assert len(ds.where("b->>'$' = 's'")) == 20 and len(ds.where("(b->0) = 1")) == 1
    assert len(ds.where("c = 1")) == 20 and len(ds.where("c IS NULL")) == 2
    assert len(ds.where("(d->>'$')::HUGEINT > 5")) == 15


def test_field_in_many_small_chunks(tmp_path: Path) -> None:
    wide = [{"x": np.zeros(300_000, np.float32), "n": k, "s": "t" * 300} for k in range(12)]
    ds = sx.write(tmp_path / "a", wide, {"x": sx.Array("float32", (300_000,)), "n": int, "s": str})
    assert ds.sql_columns(["n"])["n"].num_chunks == 1 < ds.sql_columns(["s"])["s"].num_chunks
    assert found(ds, "n % 5 = 2 AND s LIKE 't%' AND x[1] = 0 AND x IS NOT NULL") == [2, 7]


def test_columns_are_not_copied(ds: sx.Dataset) -> None:
    table = ds.sql_columns(["vector", "n", "tokens", "grid"])
    again = ds.sql_columns(["vector", "n", "tokens", "grid"])
    where = [
        [b and b.address for c in t[name].chunks for b in c.buffers()]
        for t in (table, again)
        for name in t.column_names
    ]
    assert where[:4] == where[4:]


# -- order -------------------------------------------------------------------------------------------------------


def test_order_over_many_batches_and_threads(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    values = random.integers(0, 1000, 200_000)
    batches = pa.table({"v": values, "t": [str(v) * 3 for v in values]}).to_batches(max_chunksize=777)
    with pa.ipc.new_file(tmp_path / "a.arrow", batches[0].schema) as out:
        for batch in batches:
            out.write_batch(batch)
    ds = sx.open(tmp_path / "a.arrow")
    expected = np.flatnonzero((values > 300) & (values % 7 == 3))

    def work(_: int) -> bool:
        return bool(
            (
                ds.where("v > 300 AND t::HUGEINT % 7 = t::HUGEINT % 7 AND v % 7 = 3").order.rows(
                    np.arange(len(expected))
                )
                == expected
            ).all()
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    shuffled = ds.shuffle(seed=5)
    kept = shuffled.where("v > 300 AND v % 7 = 3").read(slice(None), ["v"])["v"]
    every = shuffled.read(slice(None), ["v"])["v"]
    assert (kept == every[(every > 300) & (every % 7 == 3)]).all()


# -- nothing else in reach -----------------------------------------------------------------------------------------

SECRET = pa.table({"x": [1]})


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM (SELECT * FROM glob('/*'))",
        "SELECT (SELECT content FROM read_blob('/etc/hostname')) FROM ds",
        "SELECT 1 FROM ds, read_csv('/etc/passwd') p",
        "SELECT 1 FROM ds JOIN (ds b JOIN parquet_scan('x') p ON true) ON true",
        "SELECT * FROM read_text('/etc/hostname') PIVOT (count(*) FOR size IN (1))",
        "WITH a AS (SELECT * FROM sniff_csv('/etc/passwd')) SELECT * FROM a",
        "WITH RECURSIVE a AS (SELECT 1 UNION ALL SELECT * FROM read_text('x')) SELECT * FROM a",
        "SELECT * FROM ds WHERE EXISTS (FROM read_text('x'))",
        "SELECT 1 FROM ds ORDER BY (SELECT size FROM read_text('x'))",
        "SELECT 1 LIMIT (SELECT size FROM read_text('x'))",
        "SELECT 1 FROM ds UNION SELECT size FROM read_text('/etc/hostname')",
        "SELECT * FROM SECRET",
        "SELECT * FROM samples",
        "SELECT * FROM main.ds",
        "SELECT * FROM memory.main.ds",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM pg_catalog.pg_class",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('ds')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT * FROM arrow_scan(1, 2, 3)",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM pragma_version()",
        "DESCRIBE ds",
        "SUMMARIZE ds",
        "SHOW TABLES",
    ],
)
def test_other_tables_are_refused(ds: sx.Dataset, text: str) -> None:
    with pytest.raises(QueryError, match=r"the only table is ds, this reads \S+ - at character \d+$|only SELECT"):
        ds.sql(text)


@pytest.mark.parametrize(
    "call", ["current_setting('x')", "Write_Log('x')", "'x'.json_serialize_plan()", "main.write_log('x')"]
)
def test_unsafe_functions_are_refused(ds: sx.Dataset, call: str) -> None:
    with pytest.raises(QueryError, match=r"it may not call \w+ - at character \d+$"):
        ds.sql(f"SELECT {call} FROM ds")
    with pytest.raises(QueryError, match=r"it may not call \w+ - at character \d+$"):
        ds.where(f"n > 3 AND {call} IS NULL")


@pytest.mark.parametrize(
    "text",
    [
        "COPY ds TO 'x.csv'",
        "COPY (SELECT 1) TO 'x.csv'",
        "EXPORT DATABASE 'x'",
        "ATTACH 'x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "RESET threads",
        "PRAGMA version",
        "CALL pragma_version()",
        "CREATE TABLE t (x INT)",
        "CREATE TABLE t AS SELECT 1",
        "CREATE MACRO f(x) AS x",
        "INSERT INTO ds VALUES (1)",
        "DELETE FROM ds",
        "DROP VIEW ds",
        "EXPLAIN SELECT 1",
        "EXPLAIN ANALYZE SELECT 1",
        "BEGIN",
        "PREPARE p AS SELECT 1",
        "VACUUM",
        "USE memory",
        "PIVOT ds ON n",
        "WITH t AS (COPY ds TO 'x.csv') SELECT 1",
        "WITH t AS (DELETE FROM ds RETURNING *) SELECT * FROM t",
        "WITH t AS (INSERT INTO ds VALUES (1) RETURNING *) SELECT * FROM t",
        "WITH t AS (UPDATE ds SET n = 1 RETURNING *) SELECT * FROM t",
        "SELECT * FROM (WITH t AS (COPY ds TO 'x.csv') SELECT 1)",
        "SELECT (WITH t AS (COPY ds TO 'x.csv') SELECT 1)",
        "WITH t AS (WITH u AS (DELETE FROM ds RETURNING *) SELECT * FROM u) SELECT * FROM t",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW ds",
        "SELECT 1;; COPY ds TO 'x.csv'",
        "",
        "  -- nothing",
    ],
)
def test_other_statements_raise(ds: sx.Dataset, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match=r"only SELECT is supported|expected one SELECT|syntax error"):
        ds.sql(text)
    with pytest.raises(QueryError):
        ds.where(text)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "true) UNION ALL SELECT (1",
        "true) UNION ALL SELECT content FROM read_text('/etc/hostname') WHERE (true",
        "true UNION SELECT 1",
        "true) OR (true",
        "true) LIMIT (1",
        "true LIMIT 1",
        "true ORDER BY n",
        "true) ORDER BY (n",
        "true GROUP BY n",
        "true) GROUP BY (n",
        "true) HAVING (true",
        "true) QUALIFY (true",
        "true) WINDOW w AS (PARTITION BY n",
        "true USING SAMPLE 1",
        "true; SELECT 1",
        "true; DROP VIEW ds",
        "true;",
        "true /*",
        "true */",
        "(true",
        "true)",
        "n AS m",
        "n, source",
        "SELECT true",
        "FROM ds",
        "*",
        "n > 3 n < 5",
        "'",
        '"',
        "$$",
        "true \0",
        "(SELECT true FROM read_text('x'))",
        "n IN (SELECT size FROM read_text('x'))",
        "n IN (WITH t AS (COPY ds TO 'x.csv') SELECT 1)",
        "count(*) > 1",
        "unnest([true])",
        "row_number() OVER () > 1",
    ],
)
def test_condition_must_be_one_expression(ds: sx.Dataset, text: str) -> None:
    with pytest.raises(QueryError, match=re.escape(f"got {text!r}:")):
        ds.where(text)


def test_queries_leave_no_state(ds: sx.Dataset) -> None:
    ds.where("n > 3")
    with pytest.raises(sandbox.RefusedError, match="does not exist"):
        sandbox.run("SELECT * FROM ds2", None, pa.table({"x": [1]}))
    for name, value in {"lock_configuration": True, "enable_external_access": False, "temp_directory": ""}.items():
        assert sandbox.run(f"SELECT current_setting('{name}') AS s", None, SECRET).to_pylist() == [{"s": value}]
    for text in ("FROM SECRET", "FROM read_text('/etc/hostname')", "COPY (SELECT 1) TO '/tmp/x'", "SET threads = 1"):
        with pytest.raises(sandbox.RefusedError):  # the second wall, behind the one that looks at the tree
            sandbox.run(text, None, SECRET)


# -- limits ------------------------------------------------------------------------------------------------------

ENDLESS = "SELECT count(*) FROM ds, range(1000000000) a(i), range(1000) b(j) WHERE (a.i * b.j) % 7 = n"


def test_timeout(ds: sx.Dataset) -> None:
    with pytest.raises(QueryError, match="expected a result within the timeout, got none; use a longer timeout"):
        ds.sql(ENDLESS, timeout=0.2)
    with pytest.raises(QueryError, match="within the timeout"):
        ds.where(f"n > ({ENDLESS})", timeout=0)
    assert found(ds, "n > 38") == [39]
    assert ds.sql("SELECT max(n) AS m FROM ds", timeout=60)["m"].to_pylist() == [39]
    assert becomes_true(lambda: not [one for one in threading.enumerate() if "shardex-query" in one.name])


def test_memory_limit(ds: sx.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(QueryError, match="could not allocate"):
        ds.sql("SELECT count(DISTINCT i) FROM range(30000000) t(i)", memory_limit="40MB")
    assert not list(tmp_path.iterdir())
    assert len(ds.where("n > 30", memory_limit="1GB")) == 9
    with pytest.raises(QueryError, match="Memory must have a number"):
        ds.where("n > 30", memory_limit="much")


def test_ctrl_c_ends_a_query(tmp_path: Path) -> None:
    code = f"""
        import shardex as sx
        ds = sx.open([{{"n": 1}}])
        try:
            print("begin", flush=True)
            ds.sql({ENDLESS!r})
        except KeyboardInterrupt:
            print("stopped", len(ds.where("n = 1")), flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "begin\n"
        process = psutil.Process(child.pid)
        before = process.cpu_times().user
        assert becomes_true(lambda: process.cpu_times().user > before + 0.3)  # DuckDB is at work
        child.send_signal(signal.SIGINT)
        assert child.communicate(timeout=60)[0] == "stopped 1\n"
    assert child.returncode == 0


# -- forks -------------------------------------------------------------------------------------------------------


def ask(ds: sx.Dataset, results: Any) -> None:
    results.put((found(ds, "n > 36"), ds.sql("SELECT count(*) AS c FROM ds").to_pylist()))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(ds: sx.Dataset, method: str) -> None:
    found(ds, "n > 3")
    context: Any = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    children = [context.Process(target=ask, args=(ds, results)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    assert [results.get() for _ in children] == [([37, 38, 39], [{"c": 40}])] * 2
    assert found(ds, "n > 38") == [39]


FORKING = """
import os, sys, threading, time
import shardex as sx
ds = sx.open([{"n": k} for k in range(10)])
len(ds.where("n > 3"))
if "busy" in sys.argv:
    threading.Thread(target=ds.sql, args=("SELECT sum(a.i) FROM range(20000000) a(i), range(10)",)).start()
    time.sleep(0.1)
for query in (True, False):
    child = os.fork()
    if child == 0:
        assert not query or len(ds.where("n > 5")) == 4
        sys.exit(7)  # which tears down the interpreter, and whatever of DuckDB is in it
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), len(ds.where("n > 3")))
"""


@pytest.mark.parametrize("how", ["idle", "busy"])
def test_fork_after_a_query(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKING, how], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "7 6\n" * 2, done.stderr


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "params", "message"),
    [
        ("nn > 3", None, r'"nn" not found in FROM clause - at character 1; the fields are n, score, source, '),
        ("n > 3 AND\n  nn > 3", None, r"- at character 13; the fields are n, "),
        ("'é' = 'é' AND nn > 3", None, r"- at character 15; the fields are n, "),
        ("n >", None, r"syntax error .* - at character 3$"),
        ("n > 'a'", None, r"Could not convert string 'a' to INT32 - at character 5$"),
        ("f(n)", None, r"Function with name f does not exist"),
        ("n > ?", None, r"Values were not provided for the following parameters: 1$"),
        ("n > ?", [1, 2], r"excess parameters: 2$"),
        ("n > $a", {"b": 1}, r"Values were not provided for the following parameters: a$"),
        ("n > $a", {"a": 1, "b": 1}, r"excess parameters: b$"),
        ("n > ? AND n < $a", [1], r"Mixing named and positional parameters"),
        ("n > ?", [object()], r"Unable to transform python value"),
        ("forecast[1] > 1", None, r"got float32\[\?, \?\] or none - at field forecast; .*\(forecast IS NOT NULL\)"),
        ("error('boo')", None, r"got \"error\('boo'\)\": boo$"),
        ("source::INT = 1", None, r"Could not convert string 'x' to INT32"),
    ],
)
def test_messages(ds: sx.Dataset, text: str, params: Any, message: str) -> None:
    with pytest.raises(QueryError, match=message):
        ds.where(text, params)


def test_arguments_of_other_types(ds: sx.Dataset) -> None:
    with pytest.raises(QueryError, match="expected SQL as text, got int"):
        ds.where(3)  # type: ignore[arg-type]
    for params in (3, "abc", {1}):
        with pytest.raises(QueryError, match=r"expected a list of values for each \? or a dict for each \$name, got"):
            ds.where("n > ?", params)  # type: ignore[arg-type]


def test_long_and_deep_conditions(ds: sx.Dataset) -> None:
    assert found(ds, "(" * 150 + "n > 38" + ")" * 150) == [39]
    assert found(ds, " OR ".join(f"n = {k}" for k in range(1000))) == list(range(40))
    assert found(ds, "n" + " + n" * 100 + " > 0") == list(range(1, 40))
    for text in ("(" * 300 + "n", "n" + " + n" * 3000 + " > 0", "NOT " * 3000 + "ok", "n IN " + "[" * 5000):
        with pytest.raises(QueryError):
            ds.where(text)
    for text in ("(" * 5000, "'" + "a" * 1_000_000 + "' = source"):
        with pytest.raises(QueryError, match=r"expected at most .* pass long values as params"):
            ds.where(text)


# -- bad data ----------------------------------------------------------------------------------------------------


def test_damaged_batches_raise_before_arrow_reads_them(tmp_path: Path) -> None:
    written(tmp_path / "a")
    (file,) = (tmp_path / "a" / "data").glob("*.arrow")
    data = bytearray(file.read_bytes())
    numbers = sx.open(tmp_path / "a")["n"]
    data[data.index(numbers.tobytes())] ^= 1
    file.write_bytes(data)
    with pytest.raises(ChecksumError, match="got other bytes"):
        sx.open(tmp_path / "a").where("n > 3")


def test_bad_offsets_raise(tmp_path: Path) -> None:
    offsets, texts = pa.py_buffer(np.array([0, 1 << 30, 2], np.int32)), pa.py_buffer(b"ab")
    batch = pa.record_batch({"s": pa.Array.from_buffers(pa.string(), 2, [None, offsets, texts])})
    with pa.ipc.new_file(tmp_path / "a.arrow", batch.schema) as out:
        out.write_batch(batch)
    with pytest.raises(FormatError, match="got a damaged batch"):
        sx.open(tmp_path / "a.arrow").where("s = 'a'")


def test_invalid_utf8_raises(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": [b"a", b"\xff"], "j": [b"{}", b"{"]}), tmp_path / "a.parquet")
    ds = sx.open(tmp_path / "a.parquet", schema={"s": str, "j": sx.Json()})
    with pytest.raises(FormatError, match="at field s"):
        ds.where("s = 'a'")
    with pytest.raises(QueryError, match="Malformed JSON"):
        ds.where("j->>'$.a' = 'b'")
    arrays = sx.open(tmp_path / "a.parquet", schema={"s": sx.Array("int8", (1,))})
    assert len(arrays.where("s IS NOT NULL")) == 2
    with pytest.raises(QueryError, match=r"got int8\[1\] stored as bytes - at field s"):
        arrays.where("s[1] = 1")


# -- any condition -----------------------------------------------------------------------------------------------

Truth = bool | None
Sample = dict[str, Any]


@dataclass
class Expression:
    """SQL with its parameters, and the same expression in Python; `None` is NULL."""

    sql: str
    params: list[Any]
    value: Callable[[Sample], Any]


def both(a: Truth, b: Truth) -> Truth:
    return False if a is False or b is False else None if a is None or b is None else True


def either(a: Truth, b: Truth) -> Truth:
    return True if a is True or b is True else None if a is None or b is None else False


def known(function: Callable[..., Any]) -> Callable[..., Any]:
    """Most SQL functions: NULL if any argument is."""
    return lambda *values: None if any(value is None for value in values) else function(*values)


def combined(form: str, function: Callable[..., Any], *parts: Expression) -> Expression:
    return Expression(
        form.format(*(part.sql for part in parts)),
        [param for part in parts for param in part.params],
        lambda sample: function(*(part.value(sample) for part in parts)),
    )


def column(name: str) -> Expression:
    return Expression(name, [], lambda sample: sample[name])


def constant(value: Any) -> Expression:
    return Expression("?", [value], lambda _: value)


COMPARISONS = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
INTEGERS = st.integers(-5, 5)
FLOATS = st.floats(-5, 5, width=16)
TEXTS = st.text("aé\U0001f600'\"\0 \\", max_size=3)

numbers_of = st.sampled_from([column("a"), column("b")]) | INTEGERS.map(constant) | FLOATS.map(constant)
sums = st.builds(lambda x, y: combined("({} + {})", known(operator.add), x, y), numbers_of, numbers_of)
texts_of = st.just(column("s")) | TEXTS.map(constant)


def compared(kind: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def make(sign: str, x: Expression, y: Expression) -> Expression:
        return combined(f"{{}} {sign} {{}}", known(COMPARISONS[sign]), x, y)

    return st.builds(make, st.sampled_from(sorted(COMPARISONS)), kind, kind)


atoms = st.one_of(
    compared(numbers_of | sums),
    compared(texts_of),
    st.just(column("t")),
    st.sampled_from("abst").map(lambda name: combined("{} IS NULL", lambda v: v is None, column(name))),
    st.sampled_from("abst").map(lambda name: combined("{} IS NOT NULL", lambda v: v is not None, column(name))),
    st.lists(INTEGERS, min_size=1, max_size=3).map(
        lambda some: Expression("a = ANY(?)", [some], lambda sample: known(lambda a: a in some)(sample["a"]))
    ),
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda x, y: combined("({} AND {})", both, x, y), inner, inner),
        st.builds(lambda x, y: combined("({} OR {})", either, x, y), inner, inner),
        inner.map(lambda x: combined("(NOT {})", known(operator.not_), x)),
        inner.map(lambda x: combined("({}) IS NULL", lambda v: v is None, x)),
        inner.map(lambda x: combined("({})", lambda v: v, x)),
    ),
    max_leaves=8,
)
some_samples = st.lists(
    st.fixed_dictionaries(
        {"a": st.none() | INTEGERS, "b": st.none() | FLOATS, "s": st.none() | TEXTS, "t": st.none() | st.booleans()}
    ),
    max_size=12,
)
KINDS = {"a": sx.Value("int64"), "b": sx.Value("float64"), "s": sx.Text(), "t": sx.Value("bool")}
OPTIONAL = sx.Features.of({name: sx.Optional(kind) for name, kind in KINDS.items()})


class Typed(ListRows):
    """A list with given features, which may be empty or hold only `None`."""

    features = OPTIONAL
    _names = tuple(OPTIONAL)  # type: ignore[assignment]


@settings(deadline=None, max_examples=100)
@given(some_samples, expressions, st.data())
def test_any_condition(some: Samples, expression: Expression, data: st.DataObject) -> None:
    ds = sx.open(Typed(some))
    expected = [k for k, sample in enumerate(some) if expression.value(sample) is True]
    assert ds.where(expression.sql, expression.params).order.rows(np.arange(len(expected))).tolist() == expected
    order = data.draw(st.lists(st.integers(0, len(some) - 1), max_size=20)) if some else []
    view = ds[order].where(expression.sql, expression.params)
    assert list(view) == [some[k] for k in order if expression.value(some[k]) is True]


@settings(deadline=None, max_examples=12)
@given(some=some_samples, asked=st.lists(expressions, min_size=5, max_size=5), rows=st.integers(1, 5))
def test_any_condition_on_files(some: Samples, asked: list[Expression], rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        native = sx.write(f"{folder}/a", some, OPTIONAL, shard_rows=rows)
        parquet = sx.write(f"{folder}/b", some, OPTIONAL, format="parquet", row_group_rows=rows)
        for expression in asked:
            expected = [sample for sample in some if expression.value(sample) is True]
            for ds in (native, parquet):
                assert list(ds.where(expression.sql, expression.params)) == expected, expression.sql


@settings(deadline=None, max_examples=100)
@given(st.text("xn1 ()'\"-*/;,.=<>$?[]{}\n\0éSELECTFROMdsWHERE|&:#@!~^%+\\", max_size=40))
def test_any_text_is_answered_or_refused(text: str) -> None:
    ds = sx.open([{"x": 1, "n": 2}, {"x": 3, "n": 4}])
    with suppress(QueryError):
        assert len(ds.where(text)) <= 2
    with suppress(QueryError):
        ds.sql(text)


# -- values that are not all alike ----------------------------------------------------------------------------


def lines(path: Path, *values: Any) -> str:
    path.write_text("".join(f"{json.dumps({'k': value})}\n" for value in values))
    return str(path)


def test_text_and_json_parts_become_json(tmp_path: Path) -> None:
    texts, mixed = sx.open(lines(tmp_path / "a.jsonl", "x", "y")), sx.open(lines(tmp_path / "b.jsonl", "x", 7, None))
    for both in (sx.concat(texts, mixed), sx.concat(mixed, texts), sx.mix([texts, mixed])):
        found = both.where("k->>'$' = 'x'")
        assert len(found) == sum(sample.k == "x" for sample in both) and {sample.k for sample in found} == {"x"}
    assert [sample.k for sample in sx.concat(mixed, texts).where("k->>'$' = '7'")] == [7]


def test_sql_over_adopted_shards(tmp_path: Path) -> None:
    """Values of all kinds, also with updates on top."""
    path = lines(tmp_path / "a.jsonl", *["x"] * 20, 7)
    sx.adopt(path, tmp_path / "beside")
    ds = sx.open(tmp_path / "beside", trust_paths=True)
    assert len(ds.where("k->>'$' = 'x'")) == len(sx.open(path).where("k->>'$' = 'x'")) == 20
    with sx.edit(tmp_path / "beside", trust_paths=True) as tx:
        tx.update(0, k="z")
    edited = sx.open(tmp_path / "beside", trust_paths=True)
    assert [sample.k for sample in edited.where("k->>'$' IN ('z', '7')")] == ["z", 7]


def test_null_tests_on_adopted_tars(tmp_path: Path) -> None:
    kind = sx.Optional(sx.Array("float32", (None, None)))
    parts = [{"json": {"k": k}, "v.npy": np.zeros((2, k), "f4") if k % 2 else None} for k in range(5)]
    sx.write(tmp_path / "tars", parts, {"json": dict, "v.npy": kind}, format="tar")
    sx.adopt(tmp_path / "tars", tmp_path / "beside")
    ds = sx.open(tmp_path / "beside", trust_paths=True)
    assert [sample.json["k"] for sample in ds.where('"v.npy" IS NOT NULL')] == [1, 3]


def test_big_endian_numbers() -> None:
    class Swapped(ListRows):
        def read(self, rows: Any, fields: Any = None) -> Any:
            found = super().read(rows, fields)
            return type(found)({"x": np.asarray(found["x"]).astype(">i8")}, len(found))

    ds = sx.open(Swapped([{"x": 1}, {"x": 2}]))
    assert [sample.x for sample in ds.where("x = 2")] == [2] and ds.to_arrow().to_pydict() == {"x": [1, 2]}


# -- what the names in a statement stand for ------------------------------------------------------------------


def test_positional_columns_and_column_aliases() -> None:
    ds = sx.open([{"a": 5, "b": "x"}])
    assert ds.sql("SELECT #2, #1 FROM ds").to_pylist() == [{"b": "x", "a": 5}]
    assert ds.sql("SELECT q, p FROM ds AS d(p, q)").to_pylist() == [{"q": "x", "p": 5}]


def test_catalog_names_in_with_are_refused() -> None:
    text = "SELECT s.* FROM (WITH sqlite_master AS (SELECT 1) FROM sqlite_master) q, sqlite_master s"
    with pytest.raises(QueryError, match="sqlite_master"):
        sx.open([{"a": 5}]).sql(text)


def test_names_that_differ_by_case_only_are_refused_with_a_star_too() -> None:
    with pytest.raises(QueryError, match="differ by more than case"):
        sx.open([{"row": 1, "Row": 2}]).sql("SELECT * FROM ds")


def test_nested_numpy_parameters() -> None:
    ds = sx.open([{"a": 5}])
    params: list[Any] = [{"x": np.int64(3)}, np.datetime64("2026-01-02T03:04:05", "ns"), np.array([1, 2])]
    (row,) = ds.sql("SELECT ? AS a, ? AS b, ? AS c FROM ds", params).to_pylist()
    assert (row["a"], str(row["b"]), row["c"]) == ({"x": 3}, "2026-01-02 03:04:05", [1, 2])


@pytest.mark.parametrize("text", ["abs(" * 350 + "a" + ")" * 350 + " > 0", "[" * 500, "a = 1" + " OR a = 1" * 20_000])
def test_too_deep_or_too_long_sql_is_refused(text: str) -> None:
    with pytest.raises(QueryError):
        sx.open([{"a": 5}]).where(text)


# -- limits that functions do not look at ---------------------------------------------------------------------


def test_timeout_returns_although_a_function_cannot_be_interrupted() -> None:
    """The error comes in time, and the next query gets a new database."""
    ds, slow = sx.open([{"a": 5}]), "SELECT levenshtein(repeat('a', 40000), repeat('b', 40000)) FROM ds"
    before = set(threading.enumerate())
    with pytest.raises(QueryError, match="timeout"):
        ds.sql(slow, timeout=0.1)
    (running,) = set(threading.enumerate()) - before
    assert ds.sql("SELECT a FROM ds").to_pylist() == [{"a": 5}]
    assert becomes_true(lambda: not running.is_alive())


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), -1.0])
def test_bad_timeouts_raise(timeout: float) -> None:
    with pytest.raises(QueryError, match="timeout in seconds"):
        sx.open([{"a": 5}]).where("a = 5", timeout=timeout)


# -- text inside JSON ---------------------------------------------------------------------------------------------

META = [
    {"meta": {"q": "good" if k % 2 else "bad", "n": {"t": "x y"}, "k": k, "it's": "a", "l": [f"t{k}", {"u": "v"}]}}
    for k in range(10)
]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("meta.q = 'good'", 5),
        ("META.q = 'good' AND meta.k > 3", 3),
        ("'good' <> ds.meta.q OR meta.n.t = 'other'", 5),
        ("meta.q IN ('good', 'bad')", 10),
        ("meta.q NOT IN ('good', '3')", 5),
        ("meta.n.t = 'x y'", 10),
        ("meta.\"it's\" = 'a'", 10),
        ("meta.nothing = 'a'", 0),
        ("meta.q LIKE 'g%'", 5),
        ("meta.q NOT LIKE 'g%' AND meta.q ILIKE 'B%'", 5),
        ("meta.q LIKE '%oo%'", 5),
        ("meta.q > 'c' AND meta.q = 'good'", 5),
        ("meta.q = '\"good\"'", 5),
        ("meta.k = 3", 1),
        ("meta.k = '3'", 1),
        ("meta.l[0] = 't3'", 1),
        ("meta.l[0] LIKE 't%' AND meta.l[0] <> 't3'", 9),
        ("meta.l[0] IN ('t3', 't4') AND ds.meta.l[1].u = 'v'", 2),
        ("meta['l'][1]['u'] = 'v' AND meta['q'] = 'good'", 5),
        ("meta.l[-2] = 't3' OR meta.l[7] = 't3'", 1),
        ('meta.l[1] = \'{"u":"v"}\'', 10),
    ],
)
def test_text_inside_json_is_compared_as_text(text: str, count: int) -> None:
    assert len(sx.open(META).where(text)) == count


@pytest.mark.parametrize("format", ["jsonl", "tar", "parquet", None])
def test_null_inside_json_is_null(tmp_path: Path, format: str | None) -> None:
    samples = [{"n": n, "k": k} for k, n in enumerate([{"a": 1}, {"a": None}, {}, {"a": {"b": None}}, {"a": [None]}])]
    ds = sx.write(tmp_path / "d", samples, {"n": sx.Json(), "k": int}, format=format)
    assert [one["k"] for one in ds.where("n.a IS NULL")] == [1, 2]
    assert [one["k"] for one in ds.where("N.a IS NOT NULL AND k < ?", [4])] == [0, 3]
    assert [one["k"] for one in ds.where("n.a.b IS NULL AND NOT n['a'] IS NULL")] == [0, 3, 4]
    assert len(ds.where("n.a[0] IS NOT NULL OR n IS NULL")) == 0
    assert ds.sql("SELECT count(n.a) AS a, count(n) AS n FROM ds").to_pylist() == [{"a": 3, "n": 5}]


LABELS = [{"label": k % 3 if k < 9 else None, "digit": 9 - k} for k in range(10)]
CLASSES = {"label": sx.Optional(sx.ClassLabel(["tea", "coffee", "o'x"])), "digit": sx.ClassLabel(num_classes=10)}


@pytest.mark.parametrize(
    ("text", "params", "count"),
    [
        ("label = 'coffee'", None, 3),
        ("'coffee' = ds.label", None, 3),
        ("LABEL <> 'tea'", None, 6),
        ("label IN ('tea', 'o''x')", None, 6),
        ("label NOT IN ('tea')", None, 6),
        ("label LIKE 'co%' OR label > 'tea'", None, 3),
        ("label = ?", ["tea"], 3),
        ("label = ?", [1], 3),
        ("label IN ($a, $b)", {"a": "tea", "b": "coffee"}, 6),
        ("label = 1", None, 3),
        ("label = '1' AND label < 2", None, 3),
        ("digit = '3' AND label = 'tea'", None, 1),
    ],
)
def test_classes_are_compared_by_name(text: str, params: Any, count: int, tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", LABELS, CLASSES)
    assert len(ds.where(text, params)) == count
    assert ds.sql(f"SELECT count(*) AS n FROM ds WHERE {text}", params).to_pydict() == {"n": [count]}


def test_unknown_classes_and_text_in_double_quotes_say_what_to_write(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", LABELS, CLASSES)
    for text, params in [("label = 'cofee'", None), ("label IN ('tea', 'cofee')", None), ("label <> ?", ["cofee"])]:
        with pytest.raises(QueryError, match="expected one of the classes tea, coffee, o'x, got 'cofee'"):
            ds.where(text, params)
    with pytest.raises(
        QueryError, match=r"character 9; a text is in single quotes: 'coffee'; the fields are label, digit"
    ):
        ds.where('label = "coffee"')


IDS = ["123", 123, "abc", None, True, "true", "null", [1], "[1]"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("meta.id = '123'", ["123", 123]),
        ("meta.id LIKE '123'", ["123", 123]),
        ("meta.id IN ('123', 'abc')", ["123", 123, "abc"]),
        ("meta.id = '\"123\"'", ["123"]),
        ("meta.id = 'true'", [True, "true"]),
        ("meta.id = 'null'", ["null"]),
        ("meta.id = '[1]'", [[1], "[1]"]),
        ("meta.id <> '123' AND meta.id <> 'abc'", [True, "true", "null", [1], "[1]"]),
        ("meta.id BETWEEN 'a' AND 'b'", ["abc"]),
        ("meta.id NOT BETWEEN 'a' AND 'z'", ["123", 123, [1], "[1]"]),
    ],
)
def test_text_inside_json_that_looks_like_a_number_is_compared_as_text(text: str, found: list[Any]) -> None:
    """The text "123" equals '123', whatever other texts the condition has."""
    ds = sx.open([{"meta": {"id": one}} for one in IDS])
    assert [sample.meta["id"] for sample in ds.where(text)] == found
    assert len(ds.where("meta.id = ?", ["123"])) == 2


def test_text_inside_json_is_compared_with_parameters() -> None:
    ds = sx.open(META)
    assert len(ds.where("meta.q = ?", ["good"])) == len(ds.where("meta.q = $q", {"q": "good"})) == 5
    assert len(ds.where("meta.k = ? AND meta.q IN (?, ?)", [3, "good", "bad"])) == 1
    assert len(ds.where("meta.k = ?", [3])) == 1
    assert ds.sql("SELECT count(*) AS n FROM ds t WHERE t.meta.q = 'good'")["n"].to_pylist() == [5]


def test_other_comparisons_of_text_inside_json_say_how() -> None:
    with pytest.raises(
        QueryError, match=r"Malformed JSON.*; a text inside JSON is compared as field->>'\$.key' = 'text'"
    ):
        sx.open(META).where("meta.q = concat('go', 'od')")


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "bins", "tar"])
@pytest.mark.parametrize("feature", [sx.Json(), sx.Optional(sx.Json())])
def test_null_of_json_is_null_in_every_view(tmp_path: Path, format: str, feature: Any) -> None:
    schema = {"j": feature, "n": int}
    samples = [{"j": None if k % 2 else {"k": k}, "n": k} for k in range(50)]
    sx.write(tmp_path / "d", samples, schema, format=format)
    ds = sx.open(tmp_path / "d", schema=schema)
    views = {"whole": ds, "small": ds[:2], "reversed": ds[::-1], "sliced": ds[10:40], "list": sx.open(samples)}
    for name, view in views.items():
        expected = sum(one["j"] is None for one in view)
        assert len(view.where("j IS NULL")) == expected, name
        assert len(view.where("j IS NULL OR (j IS NOT NULL AND j.k < 0)")) == expected, name
        assert view.sql("SELECT count(j) AS c FROM ds").to_pydict() == {"c": [len(view) - expected]}
    assert all(one["j"] is None for one in ds.where("j IS NULL"))


def test_star_has_the_order_of_the_fields(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": 1, "lang": "a", "b": 3}\n')
    assert sx.index(tmp_path / "a.jsonl", ["lang", "id"]).sql("SELECT * FROM ds").column_names == ["id", "lang", "b"]
    joined = sx.open({"d": np.array(["2024-01-31"], "M8[D]"), "x": [1], "e": np.array(["2024-01-31"], "M8[D]")})
    assert joined.sql("SELECT * FROM ds").column_names == ["d", "x", "e"]


@pytest.mark.parametrize(
    ("condition", "params", "count"),
    [
        ("m.s >= 0.5", None, 100),
        ("m.s > 0.3", None, 139),
        ("m.s = 0.3", None, 1),
        ("m.s BETWEEN 0.1 AND 0.2", None, 21),
        ("m['s'] > 0", None, 199),
        ("m.s IN (0.3, 0.5, 7)", None, 2),
        ("m.s > ?", [0], 199),
        ("m.s BETWEEN ? AND 0.2", [0.1], 21),
        ("m.big = 9007199254740993", None, 1),
        ("m.big > ?", [2**53 + 1], 198),
        ("x > 0.3", None, 139),
    ],
)
def test_numbers_inside_json_are_not_rounded_to_the_digits_of_others(
    tmp_path: Path, condition: str, params: Any, count: int
) -> None:
    rows: list[Any] = [{"m": {"s": k / 200, "big": 2**53 + k}, "x": k / 200} for k in range(200)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ds = sx.open(tmp_path / "a.jsonl", schema={"m": sx.Json(), "x": sx.Json()})
    assert len(ds.where(condition, params)) == count
