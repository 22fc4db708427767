"""Lines that the kernel parses, against the same lines decoded one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.formats import record_fields
from shardex.formats.jsonl import JsonLines
from shardex.formats.jsonl.columns import LineColumns, accepts
from shardex.formats.record_fields import KeyScan
from shardex.formats.record_rows import DictRows
from shardex.kernel import Columns, Masked, Ranges, Segments
from shardex.kernel.buffers import KERNEL

only_c = pytest.mark.skipif(KERNEL != "c", reason="the numpy kernel decodes all lines")


def write(path: Path, samples: list[Any]) -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def opened(path: Path, **options: Any) -> JsonLines:
    rows = sx.open(str(path), **options).rows
    assert isinstance(rows, JsonLines)
    return rows


def same(a: Any, b: Any) -> bool:
    """True if two columns have the same form, dtype and values."""
    if isinstance(a, Masked):
        return isinstance(b, Masked) and (a.mask == b.mask).all() and same(a.column, b.column)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return type(a) is type(b) and a == b


def assert_same(a: Columns, b: Columns) -> None:
    assert a.names == b.names and len(a) == len(b)
    assert all(same(a.data[name], b.data[name]) for name in a.names)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    samples = [{"id": k, "text": f"täxt \n{k}", "score": k / 3, "good": k % 3 == 0} for k in range(1000)]
    return write(tmp_path / "corpus.jsonl", samples)


@only_c
def test_the_kernel_parses_usual_lines(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = opened(corpus)
    expected = DictRows.read(rows, np.arange(1000))
    monkeypatch.setattr(DictRows, "read", lambda *_: pytest.fail("lines were decoded"))
    assert not rows.in_python
    assert_same(rows.read(np.arange(1000)), expected)
    some = np.array([7, 3, 999, 3])
    assert rows.read(some, ["score", "id"]).to_samples() == [{"score": k / 3, "id": k} for k in some.tolist()]
    assert rows.read(some, []).names == []


@only_c
def test_the_fields_of_usual_lines_are_found_without_decoding_all(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, add = list[bytes](), KeyScan.add

    def adding(scan: KeyScan, lines: list[bytes]) -> None:
        decoded.extend(lines)
        add(scan, lines)

    monkeypatch.setattr(KeyScan, "add", adding)
    features = opened(corpus).features
    assert [str(feature) for feature in features.values()] == ["int64", "text", "float64", "bool"]
    assert len(decoded) == 64


def test_values_that_the_kernel_refuses_are_decoded(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"a": 10**30, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "lone \ud800"}]
    rows = opened(write(tmp_path / "a.jsonl", samples))
    assert rows.read(np.arange(3)).to_samples() == samples
    nested = opened(write(tmp_path / "b.jsonl", [{"a": 1, "b": [1, 2]}, {"a": 2, "b": {"c": 1}}]))
    assert nested.in_python
    assert nested.read(np.arange(2), ["a"]).to_samples() == [{"a": 1}, {"a": 2}]


def test_a_damaged_line_is_an_error_that_names_it(corpus: Path) -> None:
    lines = corpus.read_bytes().splitlines()
    lines[500] = b'{"id": 500, "text": "cut off'
    corpus.write_bytes(b"\n".join(lines))
    rows = opened(corpus)
    assert rows.read(np.arange(500)).to_samples()[499]["id"] == 499
    with pytest.raises(ShardexError, match=r"corpus\.jsonl, line 501"):
        rows.read(np.arange(1000))


def test_missing_values_without_optional_are_errors(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"a": 1}, {"a": None}, {}])
    with pytest.raises(SchemaError, match="line 2"):
        opened(path, schema={"a": int}).read(np.arange(3))
    found = opened(path, schema={"a": int | None}).read(np.arange(3))
    assert found.to_samples() == [{"a": 1}, {"a": None}, {"a": None}]


def test_a_key_that_the_sampled_lines_lack_is_an_error(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"a": k} for k in range(200_000)]
    samples[777] = {"a": 777, "b": "new"}
    rows = opened(write(tmp_path / "a.jsonl", samples), infer_from="sample")
    if rows.sampled_rows is None or "b" in rows.features:
        pytest.fail("expected a sample without line 777")
    with pytest.raises(SchemaError, match="'b' too"):
        rows.read(np.arange(700, 800))


def test_names_with_quotes_are_no_keys_of_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", [{"a": 1, "b": 2}])
    rows = opened(path, schema={'a":1,"b': int | None})
    assert rows.read(np.arange(1)).to_samples() == [rows.sample(0)] == [{'a":1,"b': None}]
    assert rows.in_python


def test_keys_that_are_no_text_are_errors_of_the_schema(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"\\ud800": 1, "a": 2}\n' * 100)
    with pytest.raises(SchemaError, match="field name"):
        _ = opened(tmp_path / "a.jsonl").features


def test_a_key_that_comes_twice_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"t": "a"}\n{"t": "\\x", "t": "ok"}\n')
    with pytest.raises(FormatError, match="line 2"):
        opened(tmp_path / "a.jsonl", schema={"t": str}).read(np.arange(2))


def test_large_files_without_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_fields, "_BYTES_FOR_PROCESSES", 1)
    monkeypatch.setattr(record_fields, "cores", lambda: 2)
    (tmp_path / "a.jsonl").write_bytes(b"\n" * 100)
    assert len(sx.open(str(tmp_path / "a.jsonl"))) == 0
    assert not opened(tmp_path / "a.jsonl").features


def test_rows_that_are_read_several_times_are_parsed_once(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, lengths, ranges = opened(corpus), list[int](), JsonLines.ranges
    assert len(rows.features) == 4

    def counted(self: JsonLines, some: Any) -> Ranges:
        lengths.append(len(some))
        return ranges(self, some)

    monkeypatch.setattr(JsonLines, "ranges", counted)
    windows = (np.arange(500, 600, 2)[:, None] + np.arange(64)).reshape(-1)
    assert_same(rows.read(windows), Columns.concat([rows.read(windows[:900]), rows.read(windows[900:])]))
    assert lengths[0] == 162  # rows 500 to 661: the last window begins at 598


# -- random lines -------------------------------------------------------------------------------------------------

numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8"), max_size=8)
values = [
    st.integers(-(2**54), 2**54),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    texts,
    st.none(),
    numbers | texts | st.lists(st.integers(), max_size=2),
]


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Objects with the same keys, each with values of one kind; some are missing or null."""
    columns = {name: draw(st.sampled_from(values)) for name in draw(st.lists(st.sampled_from("abcd"), unique=True))}
    optional = {name: draw(st.booleans()) for name in columns}

    def record() -> dict[str, Any]:
        chosen = {}
        for name, value in columns.items():
            if not optional[name] or (how := draw(st.integers(0, 5))) > 1:
                chosen[name] = draw(value)
            elif how:
                chosen[name] = None
        return chosen

    return [record() for _ in range(draw(st.integers(1, 6)))]


def in_memory(samples: list[dict[str, Any]], ascii_only: bool = True) -> Ranges:
    lines = [json.dumps(sample, ensure_ascii=ascii_only).encode() for sample in samples]
    ends = np.cumsum([len(line) for line in lines])
    begins = np.append(0, ends[:-1])
    return Ranges(Segments.of(b"".join(lines)), np.zeros(len(lines)), begins, ends - begins)


@given(records(), st.booleans())
def test_columns_equal_those_of_decoded_lines(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]], with_schema: bool
) -> None:
    path = write(tmp_path_factory.mktemp("lines") / "a.jsonl", samples)
    rows = opened(path)
    if with_schema:
        rows = opened(path, schema=rows.features)
    every = np.arange(len(samples))
    assert_same(rows.read(every), DictRows.read(rows, every))
    for name in rows.features:
        assert_same(rows.read(every[::-1], [name]), DictRows.read(rows, every[::-1], [name]))


@given(records(), records())
def test_accepted_lines_add_nothing_to_the_kinds(known: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    def scanned(samples: list[dict[str, Any]]) -> dict[str, list[str]]:
        scan = KeyScan(lambda kind: msgspec.json.Decoder(kind).decode, json.loads)
        scan.add([json.dumps(sample).encode() for sample in samples])
        return scan.kinds

    for samples in (new, known):
        if accepts(scanned(known), in_memory(samples)):
            assert scanned(known + samples) == scanned(known)


@only_c
def test_kinds_are_told_apart() -> None:
    def accepted(kinds: list[str], *samples: dict[str, Any]) -> bool:
        return accepts({"a": kinds}, in_memory(list(samples)))

    assert accepted(["int"], {"a": 2**53}) and not accepted(["int"], {"a": 2**53 + 1})
    assert accepted(["long"], {"a": 2**60}) and not accepted(["long"], {"a": 2**60}, {"a": 1})
    assert accepted(["int", "long"], {"a": 2**60}, {"a": 1}) and not accepted(["int", "long"], {"a": 2**63})
    assert accepted(["float"], {"a": 0.5}) and not accepted(["float"], {"a": 0.5}, {"a": 1})
    assert accepted(["float", "int"], {"a": 0.5}, {"a": 1}) and not accepted(["float", "int"], {"a": 2**53 + 1})
    assert accepted(["missing", "text"], {"a": "x"}, {}) and not accepted(["missing", "text"], {"a": None})
    assert accepted(["null", "text"], {"a": None}) and not accepted(["null", "text"], {})
    assert accepted(["null"], {"a": None}) and not accepted(["null"], {"a": "x"})
    assert not accepted(["text"], {"a": "x", "b": 1}) and not accepted(["int", "text"], {"a": 1})


def test_no_reader_for_other_features() -> None:
    assert LineColumns.of(sx.Features({"a": sx.Array("int64", (None,))}), strict=False) is None
