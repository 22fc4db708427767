"""Values of JSON keys extracted for SQL: their types, reuse, updates, and repair after damage."""

from __future__ import annotations

import json
import os
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.dataset import index
from shardex.errors import ArgumentError, ChecksumError, QueryError, ShardexError, StaleIndexError
from shardex.files import scan
from shardex.formats import extracted_columns as extract
from shardex.formats.jsonl import JsonLines
from shardex.formats.tar import TarRows

pytestmark = pytest.mark.filterwarnings("ignore:.*no sample has the key '(gone|never)'")

LINES: list[Any] = [
    {
        "id": k,
        "score": k / 4 if k % 3 else k,
        "ok": k % 2 == 0,
        "lang": ["de", "en", "fr"][k % 3],
        "mixed": [k, "text", None, [1]][k % 4],
        "deep": {"list": [k]},
        "huge": 10**30 + k,
        "gone": None,
        **({"note": f"é{k}"} if k > 20 else {}),
    }
    for k in range(40)
]
KEYS = ["id", "score", "ok", "lang", "mixed", "deep", "huge", "gone", "note", "never"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


def write(path: Path, lines: Sequence[Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "data" / "a.jsonl", LINES[:25])
    write(tmp_path / "data" / "b.jsonl", LINES[25:])
    return tmp_path / "data"


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the files that were decoded for extraction."""
    seen: list[str] = []
    taken = extract.KeyScanner.scan

    def watched(self: extract.KeyScanner, source: Any, path: str) -> Any:
        seen.append(path)
        return taken(self, source, path)

    monkeypatch.setattr(extract.KeyScanner, "scan", watched)
    return seen


def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("expected no sample to be decoded")

    for kind in (JsonLines, TarRows):
        monkeypatch.setattr(kind, "read", refuse)


def ids(ds: sx.Dataset) -> list[int]:
    return [sample.id for sample in ds]


def kept_file(folder: Path) -> Path:
    (path,) = (folder / ".shardex").glob("*-attributes-*.arrow")
    return path


# -- lines ---------------------------------------------------------------------------------------------------------


def test_columns_have_the_type_of_their_values(folder: Path) -> None:
    found = index(folder, KEYS).extracted
    assert {name: str(feature) for name, feature in found.items()} == {
        "id": "int64 or none",
        "score": "float64 or none",
        "ok": "bool or none",
        "lang": "text or none",
        "mixed": "json or none",
        "deep": "json or none",
        "huge": "json or none",
        "gone": "json or none",
        "note": "text or none",
        "never": "json or none",
    }


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("id > 30", lambda s: s["id"] > 30),
        ("score >= 5", lambda s: s["score"] >= 5),
        ("ok AND lang = 'de'", lambda s: s["ok"] and s["lang"] == "de"),
        ("mixed->>'$' = 'text'", lambda s: s["mixed"] == "text"),
        ("mixed IS NULL", lambda s: s["mixed"] is None),
        ("(mixed->0) = 1", lambda s: s["mixed"] == [1]),
        ("deep.list[0] = 7", lambda s: s["id"] == 7),
        ("(huge->>'$')::HUGEINT % 5 = 1", lambda s: s["huge"] % 5 == 1),
        ("gone IS NULL AND never IS NULL", lambda s: True),
        ("note = 'é33'", lambda s: s["id"] == 33),
        ("note IS NOT NULL AND _row % 2 = 0", lambda s: s["id"] > 20 and s["id"] % 2 == 0),
    ],
)
def test_where_on_extracted_keys_decodes_no_samples(
    folder: Path, text: str, holds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [s["id"] for s in LINES if holds(s)]
    index(folder, KEYS)
    found = sx.open(folder)
    with monkeypatch.context() as patch:
        no_reading(patch)
        kept, back, few = found.where(text), found[::-1].where(text), found[38:39].where(text.replace("_row", "38"))
    assert ids(kept) == expected
    if "_row" not in text:
        assert ids(back) == expected[::-1] and ids(few) == [k for k in expected if k == 38]


def test_keys_that_were_not_extracted_are_read(folder: Path) -> None:
    ds = index(folder, ["lang"])
    assert ids(ds.where("lang = 'de' AND id > 30 AND deep.list[0] < 37")) == [33, 36]
    assert ds.sql("SELECT lang, count(*) AS c FROM ds WHERE ok GROUP BY 1 ORDER BY 1").to_pylist() == [
        {"lang": "de", "c": 7},
        {"lang": "en", "c": 6},
        {"lang": "fr", "c": 7},
    ]
    with pytest.raises(QueryError, match='"nothing" not found'):
        ds.where("nothing IS NULL OR nothing = 'x'")
    assert len(ds.where("note IS NOT NULL AND note <> ''")) == 19
    assert len(index(folder, ["note"]).where("note IS NOT NULL")) == 19


def test_lines_that_are_no_objects_have_the_key_value(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [1, 2.5, {"value": 4, "x": 1}])
    assert len(index(tmp_path / "a.jsonl", ["value", "x"]).where("value > 2 AND (x = 1 OR x IS NULL)")) == 2


def test_schema_of_another_type_overrides_extracted_column(folder: Path) -> None:
    index(folder, ["id", "lang"])
    schema = {"id": "int64", "lang": sx.ClassLabel(("de", "en", "fr")), "ok": bool}
    ds = sx.open(folder, schema=schema)
    assert list(ds.extracted) == ["id"]
    assert len(ds.where("lang = 2 AND id < 10 AND ok")) == 2


# -- updates -------------------------------------------------------------------------------------------------------


def test_extracted_columns_are_loaded_on_reopen(folder: Path, decoded: list[str]) -> None:
    index(folder, ["lang"])
    assert decoded == ["a.jsonl", "b.jsonl"]
    for ds in (index(folder, ["lang"]), sx.open(folder), sx.open(folder, attributes=["lang"])):
        assert len(ds.where("lang = 'de'")) == 14
    assert len(decoded) == 2
    assert list(sx.open(str(folder / "*.jsonl")).extracted) == []  # another dataset, as for the index


def test_only_a_new_file_is_decoded(folder: Path, decoded: list[str]) -> None:
    index(folder, ["lang", "id"])
    write(folder / "c.jsonl", [{"lang": "de", "id": 40, "score": 0}])
    del decoded[:]
    assert ids(sx.open(folder).where("lang = 'de' AND id > 35")) == [36, 39, 40]
    assert decoded == ["c.jsonl"]


def test_only_a_changed_file_is_decoded(folder: Path, decoded: list[str]) -> None:
    index(folder, ["lang", "id"])
    write(folder / "b.jsonl", [*LINES[25:], {"lang": "de", "id": 41, "score": 0}])
    del decoded[:]
    assert ids(index(folder, ["id"]).where("lang = 'de' AND id > 35")) == [36, 39, 41]
    assert decoded == ["b.jsonl"]


@pytest.mark.parametrize(
    ("value", "feature", "text"),
    [(0.5, "float64 or none", "id = 0.5 OR id = 39"), ("x", "json or none", "id::TEXT IN ('\"x\"', '39')")],
)
def test_new_file_may_widen_a_type(folder: Path, decoded: list[str], value: Any, feature: str, text: str) -> None:
    index(folder, ["id", "never"])
    write(folder / "c.jsonl", [{"id": value, "never": "now"}])
    del decoded[:]
    ds = index(folder, ["id"])
    assert (str(ds.extracted["id"]), str(ds.extracted["never"])) == (feature, "text or none")
    assert len(ds.where(text)) == 2 and len(ds.where("never = 'now'")) == 1
    assert decoded == ["c.jsonl"]


def test_more_keys_are_added_to_earlier_ones(folder: Path) -> None:
    index(folder, ["lang"])
    assert list(index(folder, ["id", "lang"]).extracted) == ["lang", "id"]
    assert list(sx.open(folder).extracted) == ["lang", "id"]
    assert list(index(folder, ["ok"], rebuild=True).extracted) == ["lang", "id", "ok"]


def test_files_that_change_while_open_raise(folder: Path) -> None:
    ds = sx.open(folder)
    write(folder / "b.jsonl", LINES)
    with pytest.raises(StaleIndexError):
        ds.rows.extraction.extract(["lang"], rebuild=False, progress=None)  # type: ignore[attr-defined]
    assert not list((folder / ".shardex").glob("*attributes*"))


def test_sidecar_location(folder: Path, tmp_path: Path) -> None:
    (folder / ".shardex").write_text("no folder")
    index(folder, ["lang"])
    assert [path.name.partition("-")[0] for path in sorted((tmp_path / "cache" / "index").glob("*/*"))] == [
        "jsonl",
        "lines",
    ]
    assert len(sx.open(folder).where("lang = 'de'")) == 14
    (tmp_path / "moved").mkdir()
    os.rename(folder / "a.jsonl", tmp_path / "moved" / "a.jsonl")
    index(tmp_path / "moved", ["lang"])
    os.rename(tmp_path / "moved", tmp_path / "again")
    assert list(sx.open(tmp_path / "again").extracted) == ["lang"]


def test_without_a_writable_folder_columns_stay_in_memory(folder: Path, tmp_path: Path) -> None:
    (folder / ".shardex").write_text("no folder")
    (tmp_path / "cache").write_text("no folder")
    ds = index(folder, ["lang"])
    assert list(ds.extracted) == ["lang"] and len(ds.where("lang = 'de'")) == 14
    again = pickle.loads(pickle.dumps(ds))
    assert list(again.extracted) == [] and len(again.where("lang = 'de'")) == 14


def test_extraction_in_worker_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index(folder, KEYS)
    alone = kept_file(folder).read_bytes()
    monkeypatch.setattr(scan, "_MIN_BYTES_FOR_PROCESSES", -1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    index(folder, KEYS, rebuild=True)
    assert kept_file(folder).read_bytes() == alone


def test_large_files_have_several_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "_BLOCK_ROWS", 7)
    ds = index(folder, KEYS)
    assert ds.sql_columns(["lang"])["lang"].num_chunks == 7
    assert ids(ds.where("note IS NOT NULL AND ok AND score > 5")) == [22, 24, 26, 28, 30, 32, 34, 36, 38]


def test_empty_files_have_no_values(tmp_path: Path) -> None:
    write(tmp_path / "data" / "a.jsonl", [])
    assert len(index(tmp_path / "data", ["x"]).where("x = '1'")) == 0
    write(tmp_path / "data" / "b.jsonl", [{"x": 1}])
    assert len(index(tmp_path / "data", ["x"]).where("x = 1")) == 1


def test_invalid_json_error_names_the_line(folder: Path) -> None:
    with (folder / "b.jsonl").open("a") as file:
        file.write("{bad\n")
    with pytest.raises(ShardexError, match=r"b\.jsonl, line 16"):
        index(folder, ["lang"])


# -- damage --------------------------------------------------------------------------------------------------------


def test_flipped_bytes_never_give_wrong_values(folder: Path) -> None:
    write(folder / "a.jsonl", LINES[20:26])
    (folder / "b.jsonl").unlink()
    keys = ["id", "ok", "lang", "note"]
    text = (
        "SELECT count(id) AS i, sum(id) AS s, count(note) AS e, string_agg(lang, '' ORDER BY id) AS l FROM ds WHERE ok"
    )
    right = index(folder, keys).sql(text).to_pylist()
    file = kept_file(folder)
    whole = file.read_bytes()
    noticed = 0
    for at in range(0, len(whole), 11):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        try:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                assert sx.open(folder).sql(text).to_pylist() == right, at
            noticed += bool(warned)
        except (ChecksumError, QueryError):
            noticed += 1
    assert noticed > 10


def test_damaged_sidecar_is_extracted_again(folder: Path) -> None:
    index(folder, ["lang"])
    data = bytearray(kept_file(folder).read_bytes())
    place = data.index(b"deenfrde")
    data[place] ^= 1
    kept_file(folder).write_bytes(data)
    with pytest.warns(UserWarning, match="block 0: expected the values of lang that were written.* extracting them"):
        assert len(sx.open(folder).where("lang = 'de'")) == 14
    assert len(sx.open(folder).where("lang = 'de'")) == 14


def test_file_that_is_no_sidecar_is_replaced(folder: Path) -> None:
    index(folder, ["lang"])
    kept_file(folder).write_bytes(b"nonsense")
    with pytest.warns(UserWarning, match="expected an index, got something else"):
        assert len(sx.open(folder).where("lang = 'de'")) == 14
    index_again = pytest.warns(UserWarning, match="must be extracted again")
    with index_again:
        assert list(index(folder, ["lang"]).extracted) == ["lang"]


# -- tars ----------------------------------------------------------------------------------------------------------


def tars(path: Path) -> sx.Dataset:
    schema = {"json": sx.Json(), "meta.json": sx.Optional(sx.Json()), "bin": bytes, "cls": int}
    some = [
        {
            "json": {"lang": ["de", "en"][k % 2], "n": k} if k % 5 else ["no object"],
            "meta.json": None if k % 3 else {"lang": "xx", "site": f"s{k}"},
            "bin": bytes(100),
            "cls": k,
        }
        for k in range(20)
    ]
    return sx.write(path, some, schema, format="tar", shard_rows=8)


def test_keys_of_json_in_tars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tars(tmp_path / "tars")
    index(tmp_path / "tars", ["lang", "n", "site"])
    ds = sx.open(tmp_path / "tars")
    with monkeypatch.context() as patch:
        no_reading(patch)
        german, other = ds.where("lang = 'de' AND n > 10"), ds[::-1].where("lang = 'xx' OR site = 's9'")
        none = ds.where("site IS NULL AND lang IS NULL")
    assert [s.cls for s in german] == [12, 14, 16, 18]
    assert [s.cls for s in other] == [15, 9, 0]
    assert [s.cls for s in none] == [5, 10]
    assert [s.cls for s in ds.where("json.n = 7 AND cls = 7")] == [7]
    assert "lang" not in ds.fields and ds.select("cls").where("n = 3")[0].cls == 3


def test_key_named_like_a_field_stays_a_field(tmp_path: Path) -> None:
    sx.write(tmp_path / "t", [{"json": {"cls": "a"}, "cls": 5}], {"json": sx.Json(), "cls": int}, format="tar")
    ds = index(tmp_path / "t", ["cls"])
    assert list(ds.extracted) == [] and len(ds.where("cls = 5")) == 1


def test_keys_of_msgpack_maps_in_tars(tmp_path: Path) -> None:
    some = [{"msgpack": {"lang": "de", "n": k}} for k in range(5)]
    sx.write(tmp_path / "t", some, {"msgpack": sx.Json()}, format="tar")
    ds = index(tmp_path / "t", ["lang"])
    assert len(ds.where("lang = 'de' AND n > 2")) == 2
    assert len(sx.open(tmp_path / "t").where("n IS NOT NULL")) == 5


# -- datasets of datasets --------------------------------------------------------------------------------------------


def test_extracted_columns_of_concat_and_join(tmp_path: Path) -> None:
    tars(tmp_path / "a")
    tars(tmp_path / "b")
    a, b = index(tmp_path / "a", ["lang", "n"]), index(tmp_path / "b", ["n"])
    both = sx.concat(a, b[::-1])
    assert list(both.extracted) == ["n"]
    assert [s.cls for s in both.where("n > 17")] == [18, 19, 19, 18]
    row = sx.open([{"row": k} for k in range(20)])
    wide = sx.join(row, a.select("bin"))
    assert list(wide.extracted) == ["lang", "n"]
    assert [s.row for s in wide.where("lang = 'en' AND row > 15 AND n IS NOT NULL")] == [17, 19]
    assert [s.row for s in sx.mix([wide[:10], wide[10:]], length=20).where("n = 13")] == [13]


# -- options -------------------------------------------------------------------------------------------------------


def test_wrong_attributes_option_raises(folder: Path, tmp_path: Path) -> None:
    for keys in ("lang", [""], [3]):
        with pytest.raises(ArgumentError, match="expected a list of keys for the option attributes"):
            index(folder, keys)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="to extract attributes from"):
        sx.open(folder, decode="text", attributes=["lang"])
    native = sx.write(tmp_path / "native", [{"x": 1}])
    with pytest.raises(ArgumentError, match="expected options of the format arrow"):
        index(tmp_path / "native", ["x"])
    assert list(native.extracted) == []
    assert "attributes" not in index(folder, ["lang"]).rows.opened.options  # type: ignore[attr-defined]
    assert list(index(folder).extracted) == ["lang"]


def test_types_narrow_again_after_a_file_is_repaired(tmp_path: Path) -> None:
    """A file with other values makes the column JSON; when the file is repaired, the column has numbers again."""
    (tmp_path / "a.jsonl").write_text('{"k": 9007199254740993}\n')
    (tmp_path / "b.jsonl").write_text('{"k": "oops"}\n')
    index(str(tmp_path / "*.jsonl"), attributes=["k"])
    (tmp_path / "b.jsonl").write_text('{"k": 12, "note": "mended"}\n')
    ds = sx.open(str(tmp_path / "*.jsonl"))
    (row,) = ds.sql("SELECT any_value(typeof(k)) AS t, sum(k)::BIGINT AS s FROM ds").to_pylist()
    assert row == {"t": "BIGINT", "s": 9007199254741005}


def test_a_key_that_no_sample_has_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"m": {"s": 1}, "n": 2}\n' * 3)
    with pytest.warns(UserWarning, match=r"no sample has the key 'm\.s', so conditions with it match nothing"):
        ds = sx.open(tmp_path / "a.jsonl", attributes=["n", "m.s"])
    assert len(ds.where("n = 2")) == 3
