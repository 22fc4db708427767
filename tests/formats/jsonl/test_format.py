"""JSON Lines and text lines: finding, decoding, errors with file, line and column, writing."""

import bz2
import codecs
import gzip
import json
import lzma
import math
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    FieldError,
    FormatError,
    RowError,
    SchemaError,
    StaleIndexError,
    StorageFullError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Array, Bytes, ClassLabel, Features, Json, Optional, Struct, Text, Value
from shardex.features import Sequence as SequenceFeature
from shardex.files import Scan, Stage, find
from shardex.files import scan as scan_module
from shardex.formats import FORMATS, lines, open_rows
from shardex.formats.jsonl import JsonLines, LineWriter
from shardex.formats.lines import LineRows, LineScanner
from shardex.kernel import Ragged
from shardex.rows import AbstractRows, Rows
from shardex.sources import ByteRange, LocalSource, Source, Stat
from shardex.sources.memory import MemorySource
from tests.servers.faulty import FaultyServer

FIXTURES = Path(__file__).parents[2] / "fixtures" / "data-forager"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text("utf-8"))


def put(path: Path, *parts: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(parts))
    return path


def dump(path: Path, *samples: Any) -> Path:
    return put(path, *(json.dumps(sample).encode() + b"\n" for sample in samples))


def opened(path: Path | str | list[Path], **options: Any) -> JsonLines:
    rows = open_rows(path, "jsonl", **options)
    assert isinstance(rows, JsonLines)
    return rows


def texts(path: Path, **options: Any) -> LineRows:
    rows = open_rows(path, "jsonl", **{"decode": "text", **options})
    assert isinstance(rows, LineRows)
    return rows


def every(rows: Any, fields: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return all samples, checked to be the same by `read` and by `sample`."""
    samples = cast(list[dict[str, Any]], rows.read(np.arange(len(rows)), fields).to_samples())
    assert repr(samples) == repr([rows.sample(k, fields) for k in range(len(rows))])
    return samples


def write(path: Path, features: Any, samples: Sequence[dict[str, Any]], **options: Any) -> Path:
    writer = LineWriter(str(path), Features.of(features), **options)
    for sample in samples:
        writer.append(sample)
    writer.close()
    return path


# -- finding lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "found", "all_found"),
    [
        (b"", [], []),
        (b"\n", [], [b""]),
        (b"1", [b"1"], [b"1"]),
        (b"1\n2", [b"1", b"2"], [b"1", b"2"]),
        (b"1\r\n\r\n2\r\n", [b"1", b"2"], [b"1", b"", b"2"]),
        (b"1\n\n \n\t\r\n" + b" " * 99 + b"\n2\n", [b"1", b"2"], [b"1", b"", b" ", b"\t", b" " * 99, b"2"]),
        (b" 1 \n  2  \n", [b" 1 ", b"  2  "], [b" 1 ", b"  2  "]),
        (b"\xef\xbb\xbf1\n2\n", [b"1", b"2"], [b"1", b"2"]),
        (b"\xef\xbb\xbf", [], []),
        (b"\xef\xbb\xbf\n1", [b"1"], [b"", b"1"]),
        (b"\xef\xbb", [b"\xef\xbb"], [b"\xef\xbb"]),
        (b"\r\n\r", [], [b"", b"\r"]),
        (b"a\rb\n", [b"a\rb"], [b"a\rb"]),
        (b"\n\n1\n\n\n2\n\n", [b"1", b"2"], [b"", b"", b"1", b"", b"", b"2", b""]),
    ],
)
def test_line_ends_of_all_kinds_are_found(data: bytes, found: list[bytes], all_found: list[bytes]) -> None:
    source = MemorySource({"a": data})
    for expected, skip in ((found, True), (all_found, False)):
        scan = LineScanner(skip_blank=skip).scan(source, "a")
        pairs = zip(scan["offset"].tolist(), scan["length"].tolist(), strict=True)
        assert [data[offset : offset + length] for offset, length in pairs] == expected


@given(
    st.lists(st.sampled_from([b"", b" ", b"\t ", b"{}", b"a\r", b"\r", b"x" * 50, b" y "]), max_size=30), st.booleans()
)
def test_piece_size_does_not_change_the_lines(parts: list[bytes], ended: bool) -> None:
    data = b"\n".join(parts) + b"\n" * ended
    source = MemorySource({"a": data})
    whole = [LineScanner(skip_blank=skip).scan(Mapped({"a": data}), "a") for skip in (True, False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_PIECE", 8)
        for skip, expected in zip((True, False), whole, strict=True):
            scan = LineScanner(skip_blank=skip).scan(source, "a")
            assert all(np.array_equal(scan[name], expected[name]) for name in expected)
    kept = data.split(b"\n")[:-1] if data.endswith(b"\n") or not data else data.split(b"\n")
    assert len(whole[1]["offset"]) == len(kept)
    assert len(whole[0]["offset"]) == sum(bool(line.strip()) for line in kept)


class Mapped(MemorySource):
    """Files in memory that are read like local ones; others are read like remote ones."""

    is_remote = False


@given(
    st.sampled_from([b"", codecs.BOM_UTF8]),
    st.lists(
        st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"\t ", b"{}", b"\n\n", b"x" * 20, codecs.BOM_UTF8]), max_size=30
    ).map(b"".join),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_parts_of_a_file_give_the_lines_of_the_file(
    start: bytes, text: bytes, size: int, skip_blank: bool, remote: bool
) -> None:
    data, scanner = start + text, LineScanner(skip_blank)
    source = MemorySource({"a": data}) if remote else Mapped({"a": data})
    whole = scanner.scan(source, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_PIECE", 7)
        patch.setattr(lines, "_SAMPLE", 2)
        parts = [ByteRange(at, min(size, len(data) - at)) for at in range(0, len(data), size)] or [ByteRange(0, 0)]
        joined = scanner.join(source, "a", [scanner.scan_range(source, "a", part) for part in parts])
    assert {name: (column.dtype, column.tolist()) for name, column in joined.items()} == {
        name: (column.dtype, column.tolist()) for name, column in whole.items()
    }


def test_parts_of_a_remote_file_are_scanned(web: FaultyServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "PART_BYTES", 1000)
    monkeypatch.setattr(lines, "_PIECE", 300)
    samples = [{"n": k, "s": "x" * (k % 50)} for k in range(150)]
    web.files["a.jsonl"] = codecs.BOM_UTF8 + b"".join(json.dumps(one).encode() + b"\r\n\n" for one in samples)
    assert every(opened(f"{web.url()}/a.jsonl")) == samples


def test_line_numbers_of_rows_in_any_order(tmp_path: Path) -> None:
    text = b"\n".join(b"" if k % 5 == 3 else b'{"n": %d}' % k for k in range(1, 200))
    put(tmp_path / "a.jsonl", text)
    put(tmp_path / "b.jsonl", b"\n\n" + text)
    rows, numbers = opened(tmp_path), [k for k in range(1, 200) if k % 5 != 3]
    for row in [5, 2, 150, 0, 80, 80, len(numbers) + 3, 3, len(rows) - 1, len(numbers), len(numbers) - 1]:
        name, first = ("a", 0) if row < len(numbers) else ("b", 2)
        assert rows.location(row) == f"{tmp_path / name}.jsonl, line {numbers[row % len(numbers)] + first}"


@pytest.mark.parametrize("source", [MemorySource, Mapped])
def test_longest_line(source: type[MemorySource], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_PIECE", 8)
    monkeypatch.setattr(lines, "_LONGEST_LINE", 64)
    scan = LineScanner(skip_blank=True).scan(source({"a": b"1\n" + b"x" * 64 + b"\n2"}), "a")
    assert scan["length"].tolist() == [1, 64, 1]
    for last in (b"", b"\n", b"\n2"):
        with pytest.raises(FormatError, match="a: expected lines of up to 64 bytes, got a longer one at offset 2"):
            LineScanner(skip_blank=True).scan(source({"a": b"1\n" + b"x" * 200 + last}), "a")


def test_file_that_becomes_shorter_during_the_scan_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"1\n2\n")

    class Longer(LocalSource):
        def stat(self, path: str) -> Stat:
            return replace(super().stat(path), size=5)

    with pytest.raises(TruncatedShardError, match=r"a\.jsonl: expected 5 bytes, got 4"):
        LineScanner(skip_blank=True).scan(Longer(tmp_path), "a.jsonl")


# -- JSON -----------------------------------------------------------------------------------------------------


def test_objects_become_fields(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {"n": 1, "s": "é", "x": 0.5}, {"n": 2, "s": "日本", "x": 1.5})
    rows = opened(tmp_path)
    assert isinstance(rows, Rows)
    assert isinstance(rows, AbstractRows)
    assert str(rows.features) == "n int64, s text, x float64"
    columns = rows.read(np.array([1, 0, 1]))
    assert columns.names == ["n", "s", "x"]
    assert cast(Any, columns["n"]).tolist() == [2, 1, 2]
    assert cast(Any, columns["n"]).dtype == np.int64
    assert columns["s"] == ["日本", "é", "日本"]
    assert rows.sample(1) == {"n": 2, "s": "日本", "x": 1.5}
    assert rows.sample(0, ["x"]) == {"x": 0.5}
    assert rows.read(np.array([0]), ["x", "n"]).names == ["x", "n"]
    assert len(rows.read(np.array([0, 1]), [])) == 2
    assert rows.shard_names() == [str(tmp_path / "a.jsonl")]


def test_other_values_become_one_field(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b'[1, 2]\n"text"\n3\nnull\n{"k": 1}\n')
    rows = opened(tmp_path)
    values: list[Any] = [[1, 2], "text", 3, None]
    assert every(rows) == [*({"value": value, "k": None} for value in values), {"value": None, "k": 1}]
    assert rows.read(np.arange(5), ["value"])["value"] == [[1, 2], "text", 3, None, None]
    assert rows.features == Features({"value": Optional(Json()), "k": Optional(Value("int64"))})


def test_lines_with_different_keys(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"a": 1}, {"a": 2, "b": "x"}, {"b": "y"}, {}]
    rows = opened(dump(tmp_path / "a.jsonl", *samples))
    assert every(rows) == [{"a": None, "b": None, **sample} for sample in samples]
    assert rows.read(np.arange(4))["a"] == [1, 2, None, None]
    assert rows.read(np.arange(4), ["a", "b"])["b"] == [None, "x", "y", None]
    assert every(rows, ["b"])[0] == {"b": None}
    assert str(rows.features) == "a int64 or none, b text or none"


def test_fields_of_later_lines_are_fields(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", *({"a": k} for k in range(20)), {"a": 1, "late": 2})
    dump(tmp_path / "b.jsonl", {"a": 1, "other": "x"})
    rows = opened(tmp_path)
    assert str(rows.features) == "a int64, late int64 or none, other text or none"
    assert rows.sample(0) == {"a": 0, "late": None, "other": None}
    assert rows.sample(20) == {"a": 1, "late": 2, "other": None}
    assert rows.read(np.array([0, 20]), ["late"])["late"] == [None, 2]
    with pytest.raises(FieldError, match="expected one of the fields a, late, other, got 'z'"):
        rows.read(np.array([0]), ["z"])
    assert opened(tmp_path, schema=Features.of({"late": int | None})).read(np.array([0, 20]))["late"] == [None, 2]


def test_field_of_several_types_is_json(tmp_path: Path) -> None:
    rows = opened(dump(tmp_path / "a.jsonl", {"id": 1}, {"id": "x"}, {"id": [1]}))
    assert rows.features == Features({"id": Json()})
    assert rows.read(np.arange(3))["id"] == [1, "x", [1]]


def test_field_names_with_quotes_are_read(tmp_path: Path) -> None:
    sample = {'a"b': 1, "c\\d": 2, "e\n": 3, "": 4, "class": 5, "é": 6}
    put(tmp_path / "a.jsonl", json.dumps({k: v for k, v in sample.items() if k}).encode())
    rows = opened(tmp_path)
    for name in list(sample)[:3] + list(sample)[4:]:
        assert rows.read(np.array([0]), [name]).to_samples() == [{name: sample[name]}]


def test_many_field_selections_are_read(tmp_path: Path) -> None:
    names = [f"f{k}" for k in range(70)]
    rows = opened(dump(tmp_path / "a.jsonl", {name: k for k, name in enumerate(names)}))
    for k, name in enumerate(names):
        assert rows.read(np.array([0]), [name, name]).to_samples() == [{name: k}]


def test_nan_and_surrogates_written_by_python_are_read(tmp_path: Path) -> None:
    rows = opened(
        put(tmp_path / "a.jsonl", b'{"x": NaN, "y": 1}\n{"x": -Infinity, "y": 2}\n{"x": "\\ud800", "y": 3}\n')
    )
    values = rows.read(np.arange(3))["x"]
    assert math.isnan(values[0])
    assert values[1:] == [-math.inf, "\ud800"]
    assert cast(Any, rows.read(np.arange(3), ["y"])["y"]).tolist() == [1, 2, 3]
    assert rows.sample(1)["x"] == -math.inf


def test_empty_files_and_empty_datasets_are_read(tmp_path: Path) -> None:
    for name, data in (("a", b""), ("b", b"\n \n"), ("c", b'{"n": 1}'), ("d", b"")):
        put(tmp_path / f"{name}.jsonl", data)
    rows = opened(tmp_path)
    assert every(rows) == [{"n": 1}]
    assert rows.read(np.empty(0, np.int64)).names == ["n"]
    assert cast(Any, rows.read(np.empty(0, np.int64))["n"]).dtype == np.int64
    nothing = opened(tmp_path / "a.jsonl")
    assert len(nothing) == 0
    assert nothing.features == Features({})
    assert len(nothing.read(np.empty(0, np.int64))) == 0
    with pytest.raises(RowError):
        nothing.sample(0)


@pytest.mark.parametrize("row", [-1, 2, 10**12])
def test_rows_out_of_range_raise(tmp_path: Path, row: int) -> None:
    rows = opened(dump(tmp_path / "a.jsonl", {"n": 1}, {"n": 2}))
    with pytest.raises(RowError):
        rows.read(np.array([0, row]))
    with pytest.raises(RowError):
        rows.sample(row)


def test_str_for_fields_raises(tmp_path: Path) -> None:
    rows = opened(dump(tmp_path / "a.jsonl", {"n": 1}))
    with pytest.raises(ArgumentError, match="expected a list of field names"):
        rows.read(np.array([0]), "n")


def test_files_are_read_in_natural_order(tmp_path: Path) -> None:
    for name in ("part10.jsonl", "Part2.JSONL", "part1.ndjson", "sub/part0.json-lines"):
        dump(tmp_path / name, {"from": name})
    found = [sample["from"] for sample in every(opened(tmp_path))]
    assert found == ["part1.ndjson", "Part2.JSONL", "part10.jsonl", "sub/part0.json-lines"]
    some = opened([tmp_path / "part10.jsonl", tmp_path / "part1.ndjson"])
    assert [sample["from"] for sample in every(some)] == ["part10.jsonl", "part1.ndjson"]


def test_rows_pickle_as_what_was_opened(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {"n": 1})
    rows = opened(tmp_path, schema=Features.of({"n": "int16"}))
    again = pickle.loads(pickle.dumps(rows))
    assert again.fingerprint == rows.fingerprint
    assert again.features == rows.features
    assert again.sample(0) == {"n": 1}
    dump(tmp_path / "a.jsonl", {"n": 1}, {"n": 2})
    with pytest.raises(StaleIndexError, match="expected the data that was opened"):
        pickle.loads(pickle.dumps(rows))


# -- with a schema --------------------------------------------------------------------------------------------

SCHEMA = {
    "x": Array("float32", (2,)),
    "free": Array("int16", (None,)),
    "label": ClassLabel(("cat", "dog")),
    "n": Value("uint8"),
    "maybe": Optional(Array("int64", (1,))),
    "nested": Struct({"a": Value("int64"), "b": SequenceFeature(Text())}),
    "any": Array(),
}
LINE: dict[str, Any] = {
    "x": [1, 2.5], "free": [1], "label": "dog", "n": 7, "maybe": None, "nested": {"a": 1, "b": ["z"]}, "any": [[1], [2]]
}  # fmt: skip


def test_schema_reads_lists_as_arrays(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {**LINE, "more": 1}, {**LINE, "free": [], "label": 0, "maybe": [5], "x": [None, 1]})
    rows = opened(tmp_path, schema=Features.of(SCHEMA))
    columns = rows.read(np.array([0, 1]))
    assert columns.names == list(SCHEMA)
    x = cast(Any, columns["x"])
    assert x.dtype == np.float32
    assert x.shape == (2, 2)
    assert np.isnan(x[1, 0])
    assert x[0].tolist() == [1, 2.5]
    assert isinstance(columns["free"], Ragged)
    assert [a.tolist() for a in columns["free"]] == [[1], []]
    assert columns["free"].dtype == np.int16
    assert cast(Any, columns["label"]).tolist() == [1, 0]
    assert cast(Any, columns["n"]).dtype == np.uint8
    assert columns["maybe"][0] is None
    assert columns["maybe"][1].tolist() == [5]
    assert columns["nested"] == [{"a": 1, "b": ["z"]}] * 2
    one = rows.sample(0, ["x", "label", "maybe"])
    assert one["x"].dtype == np.float32
    assert one["label"] == 1
    assert one["maybe"] is None
    assert cast(Any, rows.read(np.array([1]), ["maybe"])["maybe"]).tolist() == [[5]]
    for name, column in rows.read(np.empty(0, np.int64)).data.items():
        assert len(column) == 0, name


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("x", [1], r"expected float32\[2\], got int64\[1\]"),
        ("x", [1, "a"], r"expected float32\[2\], got list \[1, 'a'\]"),
        ("x", [[1], [2, 3]], r"expected float32\[2\], got list .* that cannot become an array"),
        ("free", [1, 70_000], r"expected int16\[\?\], got list \[1, 70000\]"),
        ("free", [1.5], r"expected int16\[\?\], got list \[1.5\]"),
        ("label", "cow", "expected one of the classes cat, dog, got 'cow'"),
        ("label", 2, "expected a class number below 2, got 2"),
        ("label", 1.5, "expected class of 2, got float 1.5"),
        ("n", 256, "expected uint8, got int 256"),
        ("n", -1, "expected uint8, got int -1"),
        ("n", "1", "expected uint8, got str '1'"),
        ("n", True, "expected uint8, got bool True"),
        ("n", None, "expected uint8, got none"),
        ("nested", [], r"expected struct of .*, got list \[\]"),
        ("nested", {"a": 1}, "expected list of text, got nothing"),
    ],
)
def test_value_that_does_not_fit_error_names_the_line(tmp_path: Path, field: str, value: Any, message: str) -> None:
    put(tmp_path / "a.jsonl", b"\n", json.dumps(LINE).encode(), b"\n\n", json.dumps({**LINE, field: value}).encode())
    rows = opened(tmp_path, schema=Features.of(SCHEMA))
    place = rf" - at .*a\.jsonl, line 4, field {field}$"
    with pytest.raises(SchemaError, match=message + ".*" + place):
        rows.read(np.array([0, 1]))
    with pytest.raises(SchemaError, match=message + ".*" + place):
        rows.sample(1)


def test_missing_field_raises_unless_optional(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {"a": 1}, {})
    with pytest.raises(SchemaError, match=r"expected int64, got nothing .* - at .*a.jsonl, line 2, field a"):
        opened(tmp_path, schema=Features.of({"a": int})).read(np.arange(2))
    assert opened(tmp_path, schema=Features.of({"a": int | None})).read(np.arange(2))["a"] == [1, None]


# -- bad lines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "column", "why"),
    [
        (b'{"a": }', 7, "Expecting value"),
        (b'{"a": 1', 8, "Expecting ',' delimiter"),
        ('{"é": "é" x}'.encode(), 13, "Expecting"),
        (b'{"a": "\xff"}', 8, "not UTF-8.*convert the file"),
        (b"[" * 100_000, 1, "recursion"),
        (b"{} {}", 4, "Extra data"),
    ],
)
def test_invalid_json_error_names_line_and_column(tmp_path: Path, line: bytes, column: int, why: str) -> None:
    before = b'{"a": 1}\r\n\r\n{"a": 2}\r\n'
    put(tmp_path / "a.jsonl", before, line, b"\n" + b'{"a": 3}\n')
    rows = opened(tmp_path)
    place = rf"a\.jsonl, line 4, column {column} \(byte {len(before) + column - 1} of the file\): expected JSON, got b"
    remedy = r'repair or remove the line, or open with bad_lines="skip" or decode="text"'
    for fields in (None, ["a"]):
        with pytest.raises(FormatError, match=f"{place}.*{why}.*{remedy}"):
            opened(tmp_path, schema=Features.of({"a": int})).read(np.arange(4), fields)
    with pytest.raises(FormatError, match=f"{place}.*{why}"):
        rows.sample(2)
    assert str(rows.features) == "a int64"
    assert rows.sample(3) == {"a": 3}
    assert len(texts(tmp_path, decode="text" if "UTF-8" not in why else "bytes")) == 5


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([b'{"a": 1', b'}{"a": 2}', b'{"a": 3}'], 1),
        ([b'{"a": {"b": 1}', b"}", b'{"a": 3}{"a": 4}'], 1),
        ([b'{"a": 1}{"a": 2}', b'{"a": {}', b"}"], 1),
        ([b'{"a": 1}', b'{"a": "x', b'y{}"}'], 2),
        ([b'{"a": 1}', b'[{"a": 2}]', b'{"a": 3}{}'], 3),
        ([b'{"a": "x}', b'{y"}', b'{"a": 1}{"a": 2}'], 1),
        ([b'{"a}', b'{": 1}', b'{"a": 1}{"a": 2}'], 1),
    ],
    ids=["value", "object", "two-values", "text", "array", "text-with-braces", "key-with-braces"],
)
def test_no_value_reaches_into_the_next_line(tmp_path: Path, lines: list[bytes], wrong: int) -> None:
    """Lines that follow each other are decoded at once, with the results and errors of single lines."""
    put(tmp_path / "a.jsonl", b"\n".join(lines))
    rows = open_rows(str(tmp_path / "a.jsonl"), schema=Features({"a": Json()}))
    with pytest.raises(FormatError, match=rf"a\.jsonl, line {wrong}, column"):
        rows.read(np.arange(len(lines)))


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b" \n", b"\n  "])
def test_lines_in_order_equal_single_lines(tmp_path: Path, end: bytes) -> None:
    samples = [{"a": k, "b": "é\n" * (k % 3), **({"c": [k]} if k % 2 else {})} for k in range(40)]
    text = end.join(json.dumps(sample).encode() for sample in samples)
    rows = open_rows(str(put(tmp_path / "a.jsonl", text).parent))
    expected = [rows.sample(k) for k in range(40)]
    assert rows.read(np.arange(40)).to_samples() == expected
    assert rows.read(np.arange(5, 9)).to_samples() == expected[5:9]
    assert rows.read(np.arange(40)[::-1]).to_samples() == expected[::-1]
    assert rows.read(np.arange(3, 30, 2), ["c", "a"]).to_samples() == [
        {"c": one["c"], "a": one["a"]} for one in expected[3:30:2]
    ]


def test_error_shows_the_start_of_a_long_line(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"x" * 10_000)
    with pytest.raises(FormatError) as caught:
        opened(tmp_path).sample(0)
    assert "x" * 60 in str(caught.value)
    assert "x" * 61 not in str(caught.value)


# -- recognising ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.jsonl"], True),
        (["a.NDJSON", "b.json-lines"], True),
        (["a.txt", "b.TXT"], False),
        (["a.jsonl", "notes.txt"], True),
        (["a.json", "b.JSON"], True),
        (["a.json", "b.txt"], False),
        (["a.json", "b.jsonl"], True),
        ([".hidden.jsonl"], False),
        (["_parts/a.jsonl"], False),
        ([], False),
    ],
)
def test_recognise(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        put(tmp_path / name)
    assert bool(FORMATS["jsonl"].match(find(tmp_path))) is expected


def test_which_files_of_a_folder_are_read(tmp_path: Path) -> None:
    dump(tmp_path / "a.jsonl", {"n": 1})
    put(tmp_path / "notes.txt", b"read me\n")
    put(tmp_path / "a.log", b"one\ntwo\n")
    assert len(opened(tmp_path)) == 1
    assert len(texts(tmp_path / "a.log")) == 2
    assert len(open_rows([tmp_path / "a.jsonl", tmp_path / "a.log"], "jsonl")) == 3
    with pytest.raises(ArgumentError, match='expected decode to be "json", "text" or "bytes", got \'xml\''):
        open_rows(tmp_path, "jsonl", decode="xml")
    (tmp_path / "other").mkdir()
    put(tmp_path / "other" / "a.csv")
    with pytest.raises(UnknownFormatError, match=r"expected files that end in .jsonl, .*, got 1 others; .* a pattern"):
        open_rows(tmp_path / "other", "jsonl")
    with pytest.raises(ArgumentError, match=r"expected options of the format jsonl \(.* decode, .*got 'speed'"):
        open_rows(tmp_path, "jsonl", speed=1)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.txt", "a.log", "a"])
def test_json_lines_are_parsed_whatever_the_file_is_called(tmp_path: Path, name: str) -> None:
    dump(tmp_path / "d" / name, {"a": 1}, {"a": 2})
    assert every(opened(tmp_path / "d" / name)) == [{"a": 1}, {"a": 2}]
    if name.endswith((".jsonl", ".json", ".txt")):
        assert every(opened(tmp_path / "d")) == [{"a": 1}, {"a": 2}]
    if name.endswith((".jsonl", ".json")):
        assert every(open_rows(tmp_path / "d" / name)) == every(open_rows(tmp_path / "d")) == [{"a": 1}, {"a": 2}]
    assert [one["text"] for one in every(texts(tmp_path / "d" / name))] == ['{"a": 1}', '{"a": 2}']


def test_a_line_that_is_no_json_raises_whatever_the_file_is_called(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"{}\nplain text\n")
    with pytest.raises(FormatError, match=r"a\.txt, line 2, column 1 .*expected JSON, got b'plain text'"):
        opened(tmp_path / "a.txt").sample(1)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_raises_before_lines_are_cut(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.jsonl").write_bytes('\ufeff{"a": 1}\n{"a": 2}\n'.encode(encoding))
    with pytest.raises(FormatError, match=r"expected UTF-8, got a file that begins with .* UTF-16; convert it"):
        open_rows(tmp_path / "a.jsonl")


@pytest.mark.parametrize(("pack", "tool"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")])
def test_compressed_lines_by_another_name_raise(tmp_path: Path, pack: Callable[[bytes], bytes], tool: str) -> None:
    put(tmp_path / "a.jsonl", pack(b'{"a": 1}\n' * 100))
    with pytest.raises(FormatError, match=f"a.jsonl: expected lines of text, got a file compressed by {tool}; rename"):
        open_rows(tmp_path / "a.jsonl", "jsonl")
    assert every(open_rows(tmp_path / "a.jsonl", "jsonl", compressed="copy", cache=tmp_path)) == [{"a": 1}] * 100
    put(tmp_path / "b.txt", b"BZh is no compressed text\n")
    assert texts(tmp_path / "b.txt").sample(0) == {"text": "BZh is no compressed text"}


# -- the index ------------------------------------------------------------------------------------------------


def test_only_a_changed_file_is_scanned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[str] = []
    scan = LineScanner.scan

    def watched(self: LineScanner, source: Source, path: str) -> Scan:
        scanned.append(path)
        return scan(self, source, path)

    monkeypatch.setattr(LineScanner, "scan", watched)
    for name in "abc":
        dump(tmp_path / f"{name}.jsonl", {"n": name})
    opened(tmp_path)
    assert sorted(scanned) == ["a.jsonl", "b.jsonl", "c.jsonl"]
    opened(tmp_path)
    assert len(scanned) == 3
    dump(tmp_path / "b.jsonl", {"n": "b"}, {"n": "b2"})
    assert [sample["n"] for sample in every(opened(tmp_path))] == ["a", "b", "b2", "c"]
    assert scanned[3:] == ["b.jsonl"]
    dump(tmp_path / "aa.jsonl", {"n": "new"})
    assert [sample["n"] for sample in every(opened(tmp_path))] == ["a", "new", "b", "b2", "c"]
    assert scanned[4:] == ["aa.jsonl"]
    opened(tmp_path, rebuild=True, progress=False)
    assert len(scanned) == 9


def test_vanished_file_raises(tmp_path: Path) -> None:
    for name in "ab":
        dump(tmp_path / f"{name}.jsonl", {"n": name})
    opened(tmp_path)
    (tmp_path / "b.jsonl").unlink()
    with pytest.raises(
        StaleIndexError, match=r"b\.jsonl: expected this file with 1 samples, it is gone .* rebuild=True"
    ):
        opened(tmp_path)
    assert len(opened(tmp_path, rebuild=True)) == 1


def test_shortened_file_raises(tmp_path: Path) -> None:
    path = dump(tmp_path / "a.jsonl", {"n": 1}, {"n": 2})
    rows = opened(tmp_path)
    os.truncate(path, 9)
    with pytest.raises(
        TruncatedShardError, match=r"a\.jsonl: expected at least 18 bytes as when it was indexed, got 9"
    ):
        opened(tmp_path)
    with pytest.raises(TruncatedShardError, match=r"a\.jsonl: expected 18 bytes as when it was indexed, got 9"):
        rows.read(np.array([0]))
    with pytest.raises(TruncatedShardError, match=r"a\.jsonl: expected 18 bytes as when it was indexed, got 9"):
        rows.sample(0)


def test_text_and_json_have_separate_indexes(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"1\n\n2\n")
    assert [len(opened(tmp_path)), len(texts(tmp_path, decode="text")), len(opened(tmp_path))] == [2, 3, 2]


def test_scanner_finds_the_same_lines_as_data_forager(tmp_path: Path) -> None:
    folder = shutil.copytree(FIXTURES / "jsonl_basic", tmp_path / "d")
    shutil.rmtree(folder / "index")
    assert every(opened(folder)) == EXPECTED["jsonl_basic"]["samples"]


# -- writing --------------------------------------------------------------------------------------------------


def test_written_lines_are_compact_json(tmp_path: Path) -> None:
    features = {"x": Array("float32", (2,)), "n": int, "s": str, "o": str | None, "j": Json()}
    samples: list[dict[str, Any]] = [
        {
            "x": np.array([0.5, 1], np.float32),
            "n": np.int64(1),
            "s": "é\n",
            "o": None,
            "j": {"a": [np.float32(1), (2,)]},
        },
        {"x": [1, 2], "n": 2, "s": "", "j": None},
    ]
    write(tmp_path / "d", features, samples)
    assert sorted(os.listdir(tmp_path / "d")) == ["part-00000.jsonl"]
    assert (tmp_path / "d" / "part-00000.jsonl").read_bytes().decode() == (
        '{"x":[0.5,1.0],"n":1,"s":"é\\n","o":null,"j":{"a":[1.0,[2]]}}\n{"x":[1.0,2.0],"n":2,"s":"","o":null,"j":null}\n'
    )
    rows = opened(tmp_path / "d", schema=Features.of(features))
    assert cast(Any, rows.read(np.arange(2))["x"]).tolist() == [[0.5, 1], [1, 2]]


def test_shards_by_rows_and_by_size(tmp_path: Path) -> None:
    samples = [{"n": k} for k in range(10)]
    write(tmp_path / "rows", {"n": int}, samples, shard_rows=4)
    assert sorted(os.listdir(tmp_path / "rows")) == [f"part-0000{k}.jsonl" for k in range(3)]
    write(tmp_path / "size", {"n": int}, samples, shard_size=20, prefix="train")
    sizes = [path.stat().st_size for path in sorted((tmp_path / "size").iterdir())]
    assert sizes == [16] * 5
    assert (tmp_path / "size" / "train-00004.jsonl").exists()
    write(tmp_path / "tiny", {"n": int}, samples, shard_size=1)
    assert len(os.listdir(tmp_path / "tiny")) == 10
    for name in ("rows", "size", "tiny"):
        assert every(opened(tmp_path / name)) == samples


def test_large_writes_are_flushed_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_PIECE", 64)
    samples = [{"n": k, "s": "x" * (k % 50)} for k in range(100)]
    assert every(opened(write(tmp_path / "d", {"n": int, "s": str}, samples, shard_rows=33))) == samples


def test_append_continues_the_numbering(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"n": int}, [{"n": 0}])
    write(path, {"n": int}, [{"n": 1}, {"n": 2}], mode="append", shard_rows=1)
    write(path, {"n": int}, [], mode="append")
    assert sorted(os.listdir(path)) == [".shardex", *(f"part-0000{k}.jsonl" for k in range(3))]
    assert every(opened(path)) == [{"n": k} for k in range(3)]
    write(path, {"n": int}, [{"n": 3}], mode="append")
    assert every(opened(path)) == [{"n": k} for k in range(4)]


def test_append_that_would_not_sort_last_raises(tmp_path: Path) -> None:
    dump(tmp_path / "d" / "z.jsonl", {"n": 1})
    with pytest.raises(ArgumentError, match=r"expected shards that sort before part-00000\.jsonl, got z\.jsonl"):
        LineWriter(str(tmp_path / "d"), Features.of({"n": int}), mode="append")
    put(tmp_path / "e" / "a.ndjson")
    with pytest.raises(SchemaError, match=r"expected nothing but \.jsonl files to append to, got a\.ndjson too"):
        LineWriter(str(tmp_path / "e"), Features.of({"n": int}), mode="append")
    assert sorted(os.listdir(tmp_path)) == ["d", "e"]


def test_modes(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"n": int}, [{"n": 1}])
    with pytest.raises(AlreadyExistsError, match="there already"):
        LineWriter(str(path), Features.of({"n": int}))
    write(path, {"s": str}, [{"s": "new"}], mode="overwrite")
    assert every(opened(path)) == [{"s": "new"}]
    writer = LineWriter(str(path), Features.of({"n": int}), mode="overwrite")
    writer.append({"n": 5})
    writer.abort()
    writer.abort()
    assert every(opened(path)) == [{"s": "new"}]
    assert os.listdir(tmp_path) == ["d"]
    with pytest.raises(ClosedError, match="expected an open writer"):
        writer.append({"n": 5})


def test_nothing_is_visible_before_close(tmp_path: Path) -> None:
    writer = LineWriter(str(tmp_path / "d"), Features.of({"n": int}))
    writer.append({"n": 1})
    assert not (tmp_path / "d").exists()
    writer.close()
    writer.close()
    assert every(opened(tmp_path / "d")) == [{"n": 1}]


def test_append_after_a_full_disk_loses_no_taken_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = iter([False, True, True])
    append = Stage.append

    def failing(self: Stage, path: str, pieces: Sequence[Any], size: int) -> int:
        if next(full, False):
            append(self, path, [b"torn"], size)
            raise StorageFullError(28, "cannot write: no room", path)
        return append(self, path, pieces, size)

    monkeypatch.setattr(Stage, "append", failing)
    writer = LineWriter(str(tmp_path / "d"), Features.of({"n": int}))
    writer._shards._buffer = 20
    taken = []
    for k in range(20):
        try:
            writer.append({"n": k})
            taken.append({"n": k})
        except StorageFullError:
            continue
    writer.close()
    assert len(taken) == 18
    assert every(opened(tmp_path / "d")) == taken


def test_writing_no_samples(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"n": int}, [])
    rows = opened(path, schema=Features.of({"n": int}))
    assert len(rows) == 0
    assert FORMATS["jsonl"].match(find(path))


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (bytes, "got bytes - at field f; JSON has text but no bytes: decode them to text, or choose a format"),
        (Optional(SequenceFeature(Bytes())), "got bytes - at field f; JSON has text but no bytes"),
        (Struct({"a": Bytes()}), r"got bytes - at field f\.a; JSON has text but no bytes"),
        (Array("complex64", (1,)), r"expected numbers that JSON can hold, got complex64\[1\] - at field f"),
    ],
)
def test_features_that_json_cannot_hold_raise(tmp_path: Path, feature: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        LineWriter(str(tmp_path / "d"), Features.of({"f": feature}))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (
            {"j": {"deep": [b"x"]}},
            "expected a value that JSON can hold, got bytes .* - at sample 1",
        ),
        ({"j": math.inf}, "expected a value that JSON can hold, got float inf"),
        (
            {"j": np.array([np.inf])},
            r"expected a value that JSON can hold, got float inf \(in \[0\]\) - at sample 1, field j",
        ),
        ({"j": {1: 2}}, "expected text as a key of a JSON object, got int 1"),
        ({"j": object()}, "expected a value that JSON can hold, got object"),
        ({"j": "\ud800"}, "expected a value that JSON can hold"),
        ({}, r"expected json, got nothing .* - at sample 1, field j"),
        ({"j": 1, "k": 2}, "expected the fields j, got 'k' too - at sample 1"),
    ],
)
def test_refused_sample_is_not_written(tmp_path: Path, sample: dict[str, Any], message: str) -> None:
    writer = LineWriter(str(tmp_path / "d"), Features.of({"j": Json()}))
    writer.append({"j": 1})
    with pytest.raises(SchemaError, match=message):
        writer.append(sample)
    writer.append({"j": 2})
    writer.close()
    assert every(opened(tmp_path / "d")) == [{"j": 1}, {"j": 2}]


@pytest.mark.parametrize(
    "options", [{"shard_rows": 0}, {"shard_size": 0}, {"prefix": "../x"}, {"prefix": ".x"}, {"prefix": ""}]
)
def test_wrong_shard_options_raise(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="expected"):
        LineWriter(str(tmp_path / "d"), Features.of({"n": int}), **options)
    assert not os.listdir(tmp_path)


def test_nan_is_written_as_null_and_read_as_nan(tmp_path: Path) -> None:
    features = {"v": Value("float32"), "x": Array("float64", (None,))}
    path = write(tmp_path / "d", features, [{"v": math.nan, "x": [1.5, math.nan]}])
    assert (path / "part-00000.jsonl").read_bytes() == b'{"v":null,"x":[1.5,null]}\n'
    sample = opened(path, schema=Features.of(features)).sample(0)
    assert math.isnan(sample["v"])
    assert np.isnan(sample["x"][1])


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.fixed_dictionaries({"a": values, "b": values}), max_size=8), st.integers(1, 4))
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]], shard_rows: int) -> None:
    path = tmp_path_factory.mktemp("r") / "d"
    write(path, {"a": Json(), "b": Json()}, samples, shard_rows=shard_rows)
    rows = opened(path, schema=Features.of({"a": Json(), "b": Json()}))
    assert every(rows) == samples
    assert every(rows, ["b"]) == [{"b": sample["b"]} for sample in samples]
    written = b"".join(file.read_bytes() for file in sorted(path.glob("*.jsonl")))
    assert [json.loads(line) for line in written.splitlines()] == samples


def test_uint64_arrays_are_read_back(tmp_path: Path) -> None:
    values = [[2**63, 1], [0, 2**64 - 1], [3, 4]]
    feature = Array("uint64", (None,))
    write(tmp_path / "d", {"x": feature}, [{"x": np.array(value, np.uint64)} for value in values])
    rows = opened(tmp_path / "d", schema=Features({"x": feature}))
    assert [rows.sample(k)["x"].tolist() for k in range(3)] == values
    assert [one["x"].tolist() for one in rows.read(np.arange(3)).to_samples()] == values
    dump(tmp_path / "bad.jsonl", {"x": [2**63, -1]})
    with pytest.raises(SchemaError, match=r"expected uint64\[\?\], got list"):
        opened(tmp_path / "bad.jsonl", schema=Features({"x": feature})).sample(0)


@pytest.mark.parametrize(
    ("feature", "shape"),
    [
        (Array("float64", (None, 3)), (0, 3)),
        (Array("float64", (2, 0, 3)), (2, 0, 3)),
        (Array("float64", (None, None)), (0, 0)),
        (Array("float64", (None, None)), (2, 0)),
        (Array("float64", (None, None, 4)), (2, 0, 4)),
        (SequenceFeature(Array("float64", (None, 4))), (0, 4)),
    ],
)
def test_shapes_of_empty_arrays_are_kept(tmp_path: Path, feature: Any, shape: tuple[int, ...]) -> None:
    nested = isinstance(feature, SequenceFeature)
    value: Any = [np.zeros(shape)] if nested else np.zeros(shape)
    rows = opened(write(tmp_path / "d", {"x": feature}, [{"x": value}]), schema=Features({"x": feature}))
    for found in (rows.sample(0)["x"], rows.read(np.arange(1)).sample(0)["x"]):
        assert (found[0] if nested else found).shape == shape


@pytest.mark.parametrize(
    ("feature", "shape"),
    [(Array("float64", (None, None)), (0, 3)), (Array(), (0, 3)), (Struct({"a": Array()}), (2, 0, 1))],
)
def test_empty_arrays_whose_shape_would_be_lost_raise(tmp_path: Path, feature: Any, shape: tuple[int, ...]) -> None:
    value: Any = {"a": np.zeros(shape)} if isinstance(feature, Struct) else np.zeros(shape)
    with pytest.raises(SchemaError, match=r"whose shape a list cannot hold - at field x.* - at sample 0"):
        write(tmp_path / "d", {"x": feature}, [{"x": value}])
