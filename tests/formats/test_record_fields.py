"""The fields of records without a schema: keys and types of all of them, saved, sampled for large data."""

import io
import json
import os
import random
import tarfile
import tempfile
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, FieldError, SchemaError
from shardex.features import Features, Json, Optional, Value
from shardex.formats import open_rows, record_fields
from shardex.formats.jsonl import JsonLines
from shardex.formats.record_fields import KeyScan, feature_of_kinds

VALUES = st.sampled_from([None, True, 1, -(2**53), 2**53 + 1, 2**63, -(2**70), 1.5, "a", [1], {"k": 1}])
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", 'q"', "class", "é"]), VALUES)


def dump(path: Path, samples: list[Any]) -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), "utf-8")
    return path


def opened(path: Path, **options: Any) -> JsonLines:
    rows = open_rows(path, "jsonl", **options)
    assert isinstance(rows, JsonLines)
    return rows


@given(st.lists(OBJECTS), st.integers(1, 5))
def test_scan_finds_the_same_as_one_by_one(samples: list[dict[str, Any]], step: int) -> None:
    scan = KeyScan(lambda kind: msgspec.json.Decoder(kind).decode, msgspec.json.decode)
    for begin in range(0, len(samples), step):
        scan.add([json.dumps(one).encode() for one in samples[begin : begin + step]])
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    assert scan.rows == len(samples)
    assert set(scan.kinds) == set(names)
    for name in names:
        there = [one[name] for one in samples if name in one]
        kinds = {record_fields._kind(value) for value in there}
        expected = kinds | ({"missing"} if len(there) < len(samples) else set())
        assert feature_of_kinds(scan.kinds[name]) == feature_of_kinds(expected)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.one_of(OBJECTS, st.sampled_from([1, "text", None])), min_size=1), st.integers(1, 5))
def test_parts_of_a_file_have_the_fields_of_the_file(values: list[Any], step: int) -> None:
    broken = b'{"a": '
    lines = [json.dumps(value).encode() if value is not None else broken for value in values]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        (path := Path(folder, "a.jsonl")).write_bytes(b"\n".join(lines))
        whole = opened(path).features
        patch.setattr(record_fields, "_TASK_BYTES", 1)
        patch.setattr(record_fields, "_BLOCK_ROWS", step)
        rows = opened(path)
        assert (rows.features, list(rows.features)) == (whole, list(whole))
        found = cast(Any, rows)._found
        assert (found.rows, found.complete) == (len(lines), True)


def test_processes_find_the_same_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        dump(tmp_path / f"{number}.jsonl", [{"a": k, f"b{k // 100}": [], "c": k if k % 7 else 0.5} for k in range(500)])
    (tmp_path / "broken.jsonl").write_bytes(b"{\n")
    here = opened(tmp_path).features
    monkeypatch.setattr(record_fields, "_TASK_BYTES", 4000)
    monkeypatch.setattr(record_fields, "_BLOCK_ROWS", 10)
    monkeypatch.setattr(record_fields, "_BYTES_FOR_PROCESSES", 1)
    monkeypatch.setattr(record_fields, "_SECONDS_FOR_PROCESSES", 0)
    monkeypatch.setattr(record_fields, "cores", lambda: 2)
    rows = opened(tmp_path)
    scanned_here, scan_keys = list[int](), rows.scan_keys

    def scanning(some: Any, scan: Any) -> None:
        scanned_here.extend(some)
        scan_keys(some, scan)

    rows.scan_keys = scanning  # type: ignore[assignment, method-assign]
    assert (rows.features, list(rows.features)) == (here, ["a", "b0", "c", "b1", "b2", "b3", "b4"])
    assert 0 < len(scanned_here) < 500  # this process scans the first task only, to find out how long it takes


def test_one_answer_for_keys_that_appear_late(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.jsonl", [{"a": 1}] * 500 + [{"a": 1, "b": 2}] * 500)
    ds = sx.open(path)
    assert ds.fields == ["a", "b"]
    assert ds.features == Features({"a": Value("int64"), "b": Optional(Value("int64"))})
    assert dict(ds[0]) == {"a": 1, "b": None}
    assert dict(ds[999]) == {"a": 1, "b": 2}
    assert ds.to_arrow().to_pydict() == {"a": [1] * 1000, "b": [None] * 500 + [2] * 500}
    assert ds.to_pandas()["b"].count() == 500
    assert len(ds.where("b = 2")) == 500
    assert ds.sql("SELECT sum(b) AS s FROM ds").to_pydict() == {"s": [1000]}
    assert all("b" in batch.columns.names for batch in ds.ordered(100))
    copy = sx.write(tmp_path / "copy", ds)
    assert [dict(one) for one in copy] == [dict(one) for one in ds]


def test_integers_among_floats_are_floats_everywhere(tmp_path: Path) -> None:
    ds = sx.open(dump(tmp_path / "a.jsonl", [{"x": 1}, {"x": 2}, {"x": 0.5}, {"x": None}]))
    assert str(ds.features) == "x float64 or none"
    assert [type(one["x"]) for one in (ds[0], ds[1], *ds.take(2))] == [float] * 4
    assert cast(Any, ds.read([0, 1])["x"]).dtype == np.float64
    assert ds.to_arrow().column("x").to_pylist() == [1.0, 2.0, 0.5, None]


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([1, "a"], Json()),
        ([[1], [2.5]], Json()),
        ([{"k": 1}, None], Optional(Json())),
        ([None, None], Optional(Json())),
        ([1, 2**63], Json()),
        ([0.5, 2**53 + 1], Json()),
        ([2**63 - 1, -(2**63)], Value("int64")),
        ([True, 1], Json()),
    ],
)
def test_feature_fits_all_values(tmp_path: Path, values: list[Any], feature: Any) -> None:
    ds = sx.open(dump(tmp_path / "a.jsonl", [{"x": value} for value in values]))
    assert ds.features == Features({"x": feature})
    assert [one["x"] for one in ds] == values
    assert sx.open(ds.to_arrow()).read([0, 1]).to_samples() == [{"x": value} for value in values]


def test_scan_is_saved_and_only_new_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_SAVED_BYTES", 0)
    scanned: list[int] = []
    scan_keys = JsonLines.scan_keys

    def counted(self: JsonLines, rows: Any, scan: KeyScan) -> None:
        scanned.append(len(rows))
        scan_keys(self, rows, scan)

    monkeypatch.setattr(JsonLines, "scan_keys", counted)
    dump(tmp_path / "a.jsonl", [{"a": 1}] * 3)
    assert str(opened(tmp_path).features) == str(opened(tmp_path).features) == "a int64"
    assert scanned == [3]
    dump(tmp_path / "b.jsonl", [{"b": "x"}] * 2)
    assert str(opened(tmp_path).features) == "a int64 or none, b text or none"
    assert scanned == [3, 2]
    dump(tmp_path / "a.jsonl", [{"a": 1.5}] * 4)
    assert str(opened(tmp_path).features) == "a float64 or none, b text or none"
    assert scanned == [3, 2, 4]
    for spelling in ("*.jsonl", "{a,b}.jsonl", "b.jsonl"):  # other paths to the same files
        assert "b text" in str(opened(tmp_path / spelling).features)
    assert scanned == [3, 2, 4]


@pytest.mark.parametrize("infer_from", ["all", "sample"])
def test_file_of_equal_size_and_time_is_scanned_again(
    tmp_path: Path, infer_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_fields, "_SAVED_BYTES", 0)
    before = dump(tmp_path / "a.jsonl", [{"a": 1}] * 5).stat()
    assert list(opened(tmp_path / "a.jsonl", infer_from=infer_from).features) == ["a"]
    dump(tmp_path / "a.jsonl", [{"b": 1}] * 5)
    os.utime(tmp_path / "a.jsonl", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert list(opened(tmp_path / "a.jsonl", infer_from=infer_from).features) == ["b"]


def test_large_files_are_sampled_and_other_lines_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "COMPLETE_BYTES", 100)
    monkeypatch.setattr(record_fields, "_SAMPLED_BLOCKS", 2)
    monkeypatch.setattr(record_fields, "_SAMPLED_ROWS", 5)
    samples: list[Any] = [{"a": k, "f": 0.5} for k in range(50)]
    samples[20] = {"a": 20, "f": 1, "late": 1}
    samples[30] = {"a": "text", "f": 1}
    path = dump(tmp_path / "a.jsonl", samples)
    rows = opened(path)
    assert rows.sampled_rows == 10
    assert str(rows.features) == "a int64, f float64"
    assert rows.sample(31) == samples[31]
    assert rows.sample(20, ["f"]) == {"f": 1.0}
    remedy = r'the fields were found in 10 of 50 samples: open with infer_from="all"'
    for read in (rows.sample, lambda row: rows.read(np.array([row]))):
        with pytest.raises(SchemaError, match=f"a.jsonl, line 21: expected the fields a, f, got 'late' too; {remedy}"):
            read(20)
        with pytest.raises(SchemaError, match=f"expected int64, got str 'text' - at .*line 31, field a; {remedy}"):
            read(30)
    with pytest.raises(FieldError, match=remedy):
        rows.read(np.array([20]), ["late"])
    whole = opened(path, infer_from="all")
    assert whole.sampled_rows is None
    assert str(whole.features) == "a json, f float64, late int64 or none"
    assert whole.sample(20) == {"a": 20, "f": 1.0, "late": 1}
    assert opened(path, infer_from="sample").sampled_rows == 10
    with pytest.raises(ArgumentError, match='expected infer_from to be "all" or "sample"'):
        opened(path, infer_from="some")


def test_objects_with_any_keys_are_one_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "MAX_KEYS", 200)  # thousands of fields take long
    samples = [{f"key{k}": k} for k in range(record_fields.MAX_KEYS + 2)]
    ds = sx.open(dump(tmp_path / "a.jsonl", samples))
    assert ds.features == Features({"value": Json()})
    assert [one["value"] for one in ds] == samples
    assert ds[7]["value"] == {"key7": 7}
    empty = sx.open(dump(tmp_path / "b.jsonl", [{"": 1}]))
    assert empty[0]["value"] == {"": 1}
    assert empty.read([0])["value"] == [{"": 1}]
    for one, found in ((ds, samples[:2]), (empty, [{"": 1}])):
        assert one.take(2)["value"] == found
        assert one[0] == one.select("value")[0] == {"value": found[0]}
        assert len(one.where("value IS NULL")) == 0
    assert len(ds.where("value.key7 = 7")) == 1


def test_random_lines_give_one_answer(tmp_path: Path) -> None:
    choose = random.Random(0)
    values: list[Any] = [None, True, 1, 2.5, "a", [1, "x"], {"k": [1]}]
    for number in range(20):
        keys = {name: choose.sample(values, choose.randint(1, 3)) for name in "abcd"}
        samples = [{n: choose.choice(v) for n, v in keys.items() if choose.random() < 0.8} for _ in range(40)]
        ds = sx.open(dump(tmp_path / f"{number}.jsonl", samples))
        expected = [{name: sample.get(name) for name in ds.fields} for sample in samples]
        assert [dict(one) for one in ds] == expected
        assert [dict(ds[k]) for k in range(len(ds))] == expected
        assert [one for batch in ds.ordered(7) for one in batch.columns.to_samples()] == expected
        assert sx.open(ds.to_arrow()).read(np.arange(40)).to_samples() == expected
        for name in ds.fields:
            assert len(ds.where(f'"{name}" IS NULL')) == sum(one[name] is None for one in expected)


def dump_maps(path: Path, samples: list[Any]) -> None:
    with tarfile.open(path, "w") as tar:
        for number, sample in enumerate(samples):
            data = msgspec.msgpack.encode(sample)
            info = tarfile.TarInfo(f"{number:04d}.msgpack")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def test_maps_in_tars_have_the_keys_of_all_samples(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"a": k} for k in range(30)] + [{"a": 0.5, "late": "x"}]
    dump_maps(tmp_path / "a.tar", samples)
    ds = sx.open(tmp_path / "a.tar")
    assert str(ds.features) == "__key__ text, a float64, late text or none"
    assert [one["late"] for one in ds] == [None] * 30 + ["x"]
    assert repr(ds[3]["a"]) == repr(ds.read([3, 4])["a"].tolist()[0]) == "3.0"
    assert ds.to_arrow().column("late").null_count == 30


@pytest.mark.parametrize(
    ("samples", "found"),
    [([{"": 1}], "an empty key"), ([{f"k{k}": k} for k in range(202)], "more than .* different keys")],
    ids=["empty", "many"],
)
def test_maps_in_tars_that_are_no_samples_are_refused(
    tmp_path: Path, samples: list[Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_fields, "MAX_KEYS", 200)  # thousands of fields take long
    dump_maps(tmp_path / "a.tar", samples)
    with pytest.raises(SchemaError, match=f"expected maps of fields, got {found}"):
        _ = sx.open(tmp_path / "a.tar").features
