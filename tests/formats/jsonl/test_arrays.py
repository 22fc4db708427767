"""Files that end in .json: arrays and lines are told apart, elements are read in place, errors name the element."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import FormatError
from shardex.files import find
from shardex.formats import lines as line_finder
from shardex.formats import open_rows
from shardex.formats.jsonl.arrays import JsonScanner, array_begin, scanner_of
from shardex.formats.lines import LineScanner
from shardex.sources.memory import MemorySource
from shardex.sources.url import SCHEMES
from tests.fake_remote import fake_remote_url, open_fake_remote
from tests.formats.jsonl.test_format import every, opened, put

SAMPLES = [{"n": k, "text": f"é{k}\n", "v": [k, {}]} for k in range(7)]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SAMPLES),
        json.dumps(SAMPLES, indent=2),
        json.dumps(SAMPLES) + "\n\n",
        "\ufeff \r\n" + json.dumps(SAMPLES, indent=1, ensure_ascii=False).replace("\n", "\r\n"),
        "[\n" + ",\n".join(map(json.dumps, SAMPLES)) + "\n]\n",
        "".join(json.dumps(sample) + "\n" for sample in SAMPLES),
        "\ufeff\n" + "\r\n\r\n".join(map(json.dumps, SAMPLES)),
    ],
)
def test_arrays_and_lines_have_the_same_samples(tmp_path: Path, text: str) -> None:
    put(tmp_path / "a.json", text.encode())
    rows = opened(tmp_path / "a.json")
    assert every(rows) == SAMPLES and str(rows.features) == "n int64, text text, v json"
    assert [dict(one) for one in sx.open(tmp_path)] == SAMPLES
    assert sx.open(tmp_path)[5:2:-1]["n"].tolist() == [5, 4, 3]
    assert pickle.loads(pickle.dumps(rows)).sample(3) == SAMPLES[3]
    assert len(sx.index(tmp_path, attributes=["n"]).where("n > 4")) == 2


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[1, 2]", [1, 2]),
        ("[1, 2]\n[3]\n", [[1, 2], [3]]),
        ("[]\n[3]\n", [[], [3]]),
        ("[1,\n2]", [1, 2]),
        ("[[1],\n[2]]\n", [[1], [2]]),
        ("[[1, 2], [3]]\n \n", [[1, 2], [3]]),
        ("[NaN, 2]\n[3]\n", [[float("nan"), 2], [3]]),
        ('["a", null, true,\n 1.5]', ["a", None, True, 1.5]),
        ("[]", []),
        ("[\n]", []),
        ("", []),
        (" \n\n", []),
        ("7\n8", [7, 8]),
        ('"[\n', None),
    ],
)
def test_what_is_an_array(tmp_path: Path, text: str, values: list[Any] | None) -> None:
    put(tmp_path / "a.json", text.encode())
    rows = opened(tmp_path / "a.json")
    if values is None:
        with pytest.raises(FormatError, match=r"a\.json, line 1, .* expected JSON"):
            every(rows)
    else:
        assert repr([one["value"] for one in every(rows)]) == repr(values)


VALUES = st.recursive(
    st.none() | st.text(max_size=4) | st.floats(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=2), x, max_size=2),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=4))
def test_elements_are_those_of_the_standard_library(values: list[Any]) -> None:
    for text in (json.dumps(values), json.dumps(values, indent=1), json.dumps(values, ensure_ascii=False)):
        data = text.encode(errors="surrogatepass")
        if array_begin(memoryview(data)) is None:  # two lines, the first of them a value
            continue
        scan = JsonScanner().scan(MemorySource({"a.json": data}), "a.json")
        pairs = zip(scan["offset"].tolist(), scan["length"].tolist(), strict=True)
        found = [json.loads(data[begin : begin + length]) for begin, length in pairs]
        assert repr(found) == repr(values)


def test_files_of_lines_keep_their_index(tmp_path: Path) -> None:
    put(tmp_path / "a.json", b'{"a": 1}\n{"a": 2}\n')
    assert scanner_of(find(tmp_path)) == LineScanner(skip_blank=True)
    put(tmp_path / "b.json", b"[1]")
    assert scanner_of(find(tmp_path)) == JsonScanner()
    rows = opened(tmp_path)
    assert [one.get("a", one["value"]) for one in every(rows)][:2] == [1, 2] and len(rows) == 3
    assert rows.location(1).endswith("a.json, line 2")
    assert rows.location(2).endswith("b.json, element 0 (from 0, at byte 1)")
    put(tmp_path / "c.jsonl", b"[1]\n")
    assert every(opened(tmp_path / "c.jsonl")) == [{"value": [1]}]


def test_a_wrong_element_is_named(tmp_path: Path) -> None:
    put(tmp_path / "a.json", b'[{"a": 1},\n {"a": "\xff"}]')
    rows = opened(tmp_path, schema=sx.Features.of({"a": str}))
    with pytest.raises(FormatError, match=r"a\.json, element 1 \(from 0, at byte 12\), column 8 .*expected JSON"):
        rows.read(np.array([1]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"a": 1},\n{"a": }]', r"line 2 \(byte 17 of the file\): expected JSON lines or one array"),
        ("[1,\n2", "line 2 .* truncated"),
        ("[1,\n2]\n3", "line 3 .* trailing"),
        ("[NaN,\n2", "line 2 .*Expecting|line 2 .*expected ',' or ']'"),
        ("[NaN,\n2]\nx", "line 3 .* trailing"),
        ("[NaN,\n]", "line 2 .*Expecting value"),
        ("[" * 100_000, "recursion"),
    ],
)
def test_an_array_that_is_no_json_raises(tmp_path: Path, text: str, message: str) -> None:
    put(tmp_path / "a.json", text.encode())
    with pytest.raises(FormatError, match=r"a\.json, .*" + message):
        opened(tmp_path)


# -- objects ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [7, 1000])
def test_the_samples_are_the_elements_of_the_only_list(tmp_path: Path, indent: int | None, size: int) -> None:
    samples = [{**SAMPLES[0], "n": k} for k in range(size)]
    put(tmp_path / "a.json", b"\xef\xbb\xbf \n" + json.dumps({"data": samples}, indent=indent).encode() + b"\n")
    rows = opened(tmp_path)
    assert every(rows) == samples and "element 3 (from 0, at byte" in rows.location(3)
    put(tmp_path / "b.json", json.dumps({"other": samples[:2]}, indent=indent).encode())
    assert len(sx.open(tmp_path)) == size + 2


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("empty", [{"data": []}, {"Rows": []}, []])
def test_an_empty_list_of_samples_has_none(tmp_path: Path, indent: int | None, empty: Any) -> None:
    put(tmp_path / "a.json", json.dumps(empty, indent=indent).encode())
    assert len(sx.open(tmp_path)) == 0
    put(tmp_path / "b.json", json.dumps({"other": []}, indent=indent).encode())
    assert [dict(one) for one in sx.open(tmp_path / "b.json")] == [{"other": []}]
    put(tmp_path / "c.json", json.dumps({"data": [], "version": 1}, indent=indent).encode())
    with pytest.raises(FormatError, match="an object with a list 'data' beside version; open with field='data'"):
        len(sx.open(tmp_path / "c.json"))
    assert len(sx.open(tmp_path / "c.json", field="data")) == 0


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_of_one_object_is_one_sample(tmp_path: Path, indent: int | None) -> None:
    """As labelme and others write one file for each image."""
    samples = [{"path": f"{k}.jpg", "shapes": [{"label": "cat", "points": [k, 2.5]}], "v": {}} for k in range(3)]
    for number, sample in enumerate(samples):
        put(tmp_path / f"{number}.json", json.dumps(sample, indent=indent).encode() + b"\n\n")
    put(tmp_path / "dataset_info.json", b"{}")
    ds = sx.open(tmp_path)
    assert [dict(one) for one in ds] == samples and ds.read([2, 0])["path"] == ["2.jpg", "0.jpg"]
    assert [dict(one) for one in sx.open(tmp_path / "1.json")] == samples[1:2]


@pytest.mark.parametrize("indent", [None, 1])
def test_a_list_beside_other_values_must_be_chosen(tmp_path: Path, indent: int | None) -> None:
    put(tmp_path / "a.json", json.dumps({"version": "1", "data": SAMPLES}, indent=indent).encode())
    message = (
        r"a\.json: .* got an object with a list 'data' beside version; open with field='data' .* or with field=False"
    )
    with pytest.raises(FormatError, match=message):
        len(sx.open(tmp_path))
    assert [dict(one) for one in sx.open(tmp_path, field="data")] == SAMPLES
    assert [dict(one) for one in sx.open(tmp_path, field=False)] == [{"version": "1", "data": SAMPLES}]
    with pytest.raises(FormatError, match="expected an object with a list 'version', got one with version, data"):
        len(sx.open(tmp_path, field="version"))
    put(tmp_path / "b.json", json.dumps(SAMPLES).encode())
    with pytest.raises(FormatError, match="expected an object with a list 'data', got an array; open without field="):
        len(sx.open(tmp_path / "b.json", field="data"))


@pytest.mark.parametrize("orient", [None, "split", "columns"])
def test_tables_that_pandas_writes_by_columns_raise(tmp_path: Path, orient: Any) -> None:
    frame = pd.DataFrame({"n": [1, 2], "t": ["a", "b"]})
    frame.to_json(tmp_path / "a.json", orient=orient)
    with pytest.raises(
        FormatError, match=r"got the columns of a table, as pandas .* orient=\"records\"\), or open with"
    ):
        sx.open(tmp_path / "a.json")
    assert len(sx.open(tmp_path / "a.json", field=False)) == 1
    frame.to_json(tmp_path / "b.json", orient="records", indent=2)
    assert [dict(one) for one in sx.open(tmp_path / "b.json")] == frame.to_dict("records")


def test_json_of_other_tools(tmp_path: Path) -> None:
    frame = pd.DataFrame({"n": [1, 2], "t": ["a", "b"]})
    pl.from_pandas(frame).write_json(tmp_path / "polars.json")
    pl.from_pandas(frame).write_ndjson(tmp_path / "polars.ndjson")
    duckdb.sql(f"COPY (SELECT * FROM frame) TO '{tmp_path}/duckdb.json'")
    duckdb.sql(f"COPY (SELECT * FROM frame) TO '{tmp_path}/array.json' (ARRAY true)")
    hub = datasets.Dataset.from_pandas(frame)
    hub.to_json(tmp_path / "hub.json")
    hub.to_json(tmp_path / "hub-array.json", lines=False)
    for path in tmp_path.glob("*json"):
        assert [dict(one) for one in sx.open(path)] == frame.to_dict("records"), path


def test_objects_that_python_alone_reads(tmp_path: Path) -> None:
    put(tmp_path / "a.json", b'{\n"x": NaN, "data": [{"a": 1}]\n}\n')
    assert every(opened(tmp_path)) == [{"x": pytest.approx(np.nan, nan_ok=True), "data": [{"a": 1}]}]
    put(tmp_path / "b.json", b'{\n"x": 1,\n}\n')
    with pytest.raises(FormatError, match=r"b\.json, line 1, column 2"):
        _ = sx.open(tmp_path / "b.json")[0]


def test_long_first_lines_are_lines(tmp_path: Path) -> None:
    samples = [{"text": "x" * 9000}, {"text": "y" * 2_000_000}]
    for order in (samples, samples[::-1]):
        put(tmp_path / "a.json", "".join(json.dumps(one) + "\n" for one in order).encode())
        assert [dict(one) for one in sx.open(tmp_path)] == order


def test_remote_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(SCHEMES, "fakeremote", open_fake_remote)
    put(tmp_path / "d" / "a.json", json.dumps(SAMPLES, indent=1).encode())
    for access in ("auto", "ranged"):
        rows = open_rows(fake_remote_url(tmp_path / "d"), access=access)
        assert every(rows) == SAMPLES and "element 3" in rows.location(3)  # type: ignore[attr-defined]


def test_pieces_do_not_change_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_finder, "_PIECE", 8)
    data = b" " * 300 + b"[1]" + b" " * 300 + b"\n" * 3000 + b"[2]"
    assert array_begin(memoryview(data)) is None
    assert array_begin(memoryview(data[:-3])) == 300
