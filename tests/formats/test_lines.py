"""Wrong lines by policy: an error that names the line, or left out of the index with a warning."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import ArgumentError, FormatError, ShardexError
from shardex.formats import lines, open_rows
from tests.formats.jsonl.test_format import every, put

JSON = b'{"a": 1}\n{"a": 2\n\n{"a": NaN}\nnot json\n"\xff"\n{"a": 4}\n{"a"\n'
CSV = b'a,b\n1,x\n2\n\n3,"y\nz"\n4,5,6\n7,\xff\n8,x\ry\n9,w\n10,"open\n11,v\n'


def skipped(path: Path, **options: Any) -> Any:
    with pytest.warns(UserWarning, match=" lines are left out, expected ") as found:
        rows = open_rows(path, bad_lines="skip", **options)
    (warning,) = found
    return rows, str(warning.message)


def test_wrong_json_lines_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", JSON)
    put(tmp_path / "b.jsonl", b'{"a": 5}\n')
    rows, message = skipped(tmp_path)
    assert [repr(one["a"]) for one in every(rows)] == ["1.0", "nan", "4.0", "5.0"]
    names = "; ".join(f"{tmp_path / 'a.jsonl'}, line {line}" for line in (2, 5, 6))
    assert message == f"{tmp_path}: 4 of 8 lines are left out, expected JSON; the first: {names}"
    assert rows.location(2).endswith("a.jsonl, line 7")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = open_rows(tmp_path, bad_lines="skip")
    assert repr(every(again)) == repr(every(rows)) and again.fingerprint == rows.fingerprint
    assert len(open_rows(tmp_path)) == 8 and open_rows(tmp_path).fingerprint != rows.fingerprint
    with pytest.raises(FormatError, match=r'a\.jsonl, line 2, .*expected JSON, .* or open with bad_lines="skip"'):
        every(open_rows(tmp_path))


def test_wrong_records_are_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a.csv", CSV)
    with pytest.raises(FormatError, match=r'a\.csv, line 11: expected a quote that ends .* or with bad_lines="skip"'):
        open_rows(tmp_path)
    rows, message = skipped(tmp_path)
    assert every(rows) == [{"a": 1, "b": "x"}, {"a": 3, "b": "y\nz"}, {"a": 9, "b": "w"}, {"a": 11, "b": "v"}]
    assert str(rows.features) == "a int64, b text"
    places = "; ".join(f"{tmp_path / 'a.csv'}, line {line}" for line in (3, 7, 8))
    assert message == f"{tmp_path}: 5 of 9 lines are left out, expected records of 2 cells; the first: {places}"


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_blocks_do_not_change_what_is_left_out(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_BLOCK", block)
    put(tmp_path / "a.csv", CSV)
    assert [one["a"] for one in every(skipped(tmp_path)[0])] == [1, 3, 9, 11]


def test_only_wrong_records_without_broken_quotes_are_found_by_arrow(tmp_path: Path) -> None:
    lines = [f"{k},x{k}" if k % 10 else f"{k}" for k in range(1000)]
    put(tmp_path / "a.csv", "\n".join(["a,b", *lines]).encode())
    rows, message = skipped(tmp_path)
    assert len(rows) == 900 and "100 of 1,000 lines" in message and rows.sample(9) == {"a": 11, "b": "x11"}


def test_data_without_wrong_lines_gives_no_warning(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"1\n\n2\r\n")
    put(tmp_path / "b" / "a.csv", b"x\n1\n\n2\r\n")
    put(tmp_path / "c" / "a.csv", b"")
    assert every(open_rows(tmp_path / "a.jsonl", bad_lines="skip")) == [{"value": 1}, {"value": 2}]
    assert every(open_rows(tmp_path / "b", bad_lines="skip")) == [{"x": 1}, {"x": 2}]
    assert len(open_rows(tmp_path / "c", bad_lines="skip")) == 0


def test_a_file_that_has_only_wrong_lines_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"1\n")
    put(tmp_path / "b.jsonl", b"x\ny\n")
    with pytest.raises(FormatError, match=r"b\.jsonl: expected JSON, got 2 wrong lines, such as b'x'"):
        open_rows(tmp_path, bad_lines="skip")


def test_a_file_that_grows_is_checked_again(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", b"1\nx\n")
    assert len(skipped(path)[0]) == 1
    with path.open("ab") as file:
        file.write(b"2\ny\n")
    rows, message = skipped(path)
    assert every(rows) == [{"value": 1}, {"value": 2}] and "2 of 4 lines" in message


def test_arrays_are_checked_by_element(tmp_path: Path) -> None:
    put(tmp_path / "a.json", b'[{"a": "\xff"}, {"a": "b"},\n {"a": "c"}]')
    rows, message = skipped(tmp_path)
    assert every(rows) == [{"a": "b"}, {"a": "c"}] and "1 of 3 lines" in message
    assert "element 2 " in rows.location(1)


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    put(tmp_path / "a.jsonl", b"1\n")
    with pytest.raises(ArgumentError, match='expected bad_lines to be "raise" or "skip", got \'keep\''):
        sx.open(tmp_path, bad_lines="keep")
    for options in ({"decode": "text"}, {"attributes": ["a"]}):
        with pytest.raises(ArgumentError, match='expected JSON lines without attributes for bad_lines="skip"'):
            sx.open(tmp_path, bad_lines="skip", **options)


def test_datasets_of_right_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"n": k}) if k % 3 else "wrong" for k in range(60)]
    put(tmp_path / "a.jsonl", "\n".join(lines).encode())
    with pytest.warns(UserWarning, match="20 of 60 lines"):
        ds = sx.open(tmp_path, bad_lines="skip")
    right = [k for k in range(60) if k % 3]
    assert ds["n"].tolist() == right and ds.where("n > 50")["n"].tolist() == [k for k in right if k > 50]
    copy = sx.write(tmp_path / "copy", ds, transform=lambda sample: sample, workers=2)
    assert copy["n"].tolist() == right
    assert sorted(np.concatenate([batch.n for batch in sx.Loader(ds, 7, shuffle=True, workers=1)]).tolist()) == right


SIGNS = st.sampled_from([b'"', b",", b"\n", b"\r", b"\xff", b"{", b"]", b"1", b" ", b"\x00"])


@settings(max_examples=25)
@given(st.sampled_from(["a.csv", "a.jsonl"]), st.lists(st.tuples(st.integers(0, 200), SIGNS), max_size=6))
def test_all_that_is_left_of_a_damaged_file_can_be_read(name: str, damage: list[tuple[int, bytes]]) -> None:
    table = b"n,s\r\n" + b"".join(b'%d,"a ""%d"",\n"\r\n' % (k, k) for k in range(9))
    data = table if name == "a.csv" else b"".join(b'{"n": %d, "s": "x"}\n' % k for k in range(9))
    for at, sign in damage:
        data = data[:at] + sign + data[at:]
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            rows: Any = open_rows(put(Path(folder) / name, data), bad_lines="skip")
        except ShardexError:
            return  # the header, or all lines
        found = rows.read(np.arange(len(rows))).to_samples()
        assert [{name: rows.sample(k)[name] for name in one} for k, one in enumerate(found)] == found
