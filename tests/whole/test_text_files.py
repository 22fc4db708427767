"""Text formats read the same samples, however lines end: one table over all of them, plain and compressed."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import FormatError, NotFoundError, UnknownFormatError

SAMPLES = [{"n": k, "s": f"é {k}"} for k in range(5)]
TEXTS = [{"text": one["s"]} for one in SAMPLES]


def lines(samples: list[dict[str, Any]]) -> list[str]:
    return [json.dumps(one, ensure_ascii=False) for one in samples]


def array(samples: list[dict[str, Any]]) -> list[str]:
    return json.dumps(samples, indent=1, ensure_ascii=False).split("\n")


def table(sign: str) -> Callable[[list[dict[str, Any]]], list[str]]:
    return lambda samples: [f"n{sign}s", *(f"{one['n']}{sign}{one['s']}" for one in samples)]


FORMATS: dict[str, tuple[str, Callable[[list[dict[str, Any]]], list[str]], list[dict[str, Any]]]] = {
    "jsonl": ("a.jsonl", lines, SAMPLES),
    "json lines": ("a.json", lines, SAMPLES),
    "json array": ("a.json", array, SAMPLES),
    "csv": ("a.csv", table(","), SAMPLES),
    "tsv": ("a.tsv", table("\t"), SAMPLES),
    "text": ("a.txt", lambda samples: [one["s"] for one in samples], TEXTS),
}
"""File name, lines of the file for some samples, and the samples that are read."""

ENDS = list(itertools.product(["\n", "\r\n"], [True, False], [True, False], ["plain", "gz"]))


def put(folder: Path, name: str, data: bytes, packing: str = "plain") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{name}.gz" if packing == "gz" else name)
    path.write_bytes(gzip.compress(data) if packing == "gz" else data)
    return path


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    """All samples, which are the same one by one, in one read, and from the folder."""
    ds = sx.open(path, **options)
    found = [dict(one) for one in ds]
    assert [dict(ds[k]) for k in range(len(ds))] == found == [dict(one) for one in sx.open(path.parent, **options)]
    assert ds.read(range(len(ds))).to_samples() == found
    return found


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(("end", "mark", "last", "packing"), ENDS)
@pytest.mark.parametrize("name", FORMATS)
def test_ends_of_lines_and_a_byte_order_mark(
    tmp_path: Path, name: str, end: str, mark: bool, last: bool, packing: str
) -> None:
    file, make, samples = FORMATS[name]
    text = "\ufeff" * mark + end.join(make(SAMPLES)) + end * last
    assert read(put(tmp_path / "d", file, text.encode(), packing)) == samples


@pytest.mark.parametrize("blank", ["", "   ", " \r"])
@pytest.mark.parametrize("name", FORMATS)
def test_blank_lines(tmp_path: Path, name: str, blank: str) -> None:
    """They are no samples, but for lines of text."""
    file, make, samples = FORMATS[name]
    text = f"{blank}\n" + f"\n{blank}\n".join(make(SAMPLES)) + f"\n{blank}\n{blank}\n"
    found = read(put(tmp_path / "d", file, text.encode()))
    if name == "text":
        assert found[1::2] == [*samples, {"text": blank.removesuffix("\r")}]
        assert {one["text"] for one in found[::2]} == {blank.removesuffix("\r")}
    else:
        assert found == samples


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_file_has_no_samples(tmp_path: Path, name: str, data: bytes) -> None:
    file, make, samples = FORMATS[name]
    path = put(tmp_path / "d", file, data)
    assert read(path) == []
    with pytest.raises(IndexError):
        sx.open(path)[0]
    put(tmp_path / "d", f"b{Path(file).suffix}", "\n".join(make(SAMPLES)).encode())
    assert [dict(one) for one in sx.open(tmp_path / "d")] == samples, "next to a file that has some"


@pytest.mark.parametrize("name", ["csv", "tsv", "json array"])
def test_a_file_without_records_has_no_samples(tmp_path: Path, name: str) -> None:
    file, make, _ = FORMATS[name]
    path = put(tmp_path / "d", file, "\n".join(make([])).encode())
    assert read(path) == [] and sx.open(path).fields == ([] if name == "json array" else ["n", "s"])


def test_an_empty_text_file_is_an_empty_document(tmp_path: Path) -> None:
    assert read(put(tmp_path / "d", "a.txt", b"\xef\xbb\xbf"), lines=False) == [{"text": ""}]


@pytest.mark.parametrize("format", [None, "jsonl", "csv", "text"])
def test_an_empty_folder_is_refused(tmp_path: Path, format: str | None) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(
        UnknownFormatError, match=r"expected (shards of a known format .* got an empty folder|files that)"
    ):
        sx.open(tmp_path / "d", format=format)
    with pytest.raises(NotFoundError):
        sx.open(tmp_path / "none", format=format)


@pytest.mark.parametrize(
    ("file", "lines"),
    [
        ("a.jsonl", ["{}", "", "{", "{}"]),
        ("a.json", ["{}", "", "{", "{}"]),
        ("a.csv", ["n,s", "", "1", "1,2"]),
        ("a.tsv", ["n\ts", "", "1\t2\t3", "1\t2"]),
        ("a.txt", ["a", "", "b\udcff", "c"]),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("packing", ["plain", "gz"])
def test_errors_name_file_and_line(tmp_path: Path, file: str, lines: list[str], end: str, packing: str) -> None:
    data = ("\ufeff" + end.join(lines)).encode(errors="surrogateescape")
    path = put(tmp_path / "d", file, data, packing)
    with pytest.raises(FormatError, match=rf"d/{path.name}, line 3[,:] .*expected"):
        list(sx.open(path))
    if not file.endswith(".txt"):
        with pytest.warns(UserWarning, match=rf"1 of \d lines are left out, .* the first: .*d/{path.name}, line 3$"):
            left = sx.open(path, bad_lines="skip")
        assert len(list(left)) == len(left) == (2 if file.startswith("a.json") else 1)
