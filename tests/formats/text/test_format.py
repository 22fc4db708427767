"""Text files: lines and whole files, errors with file and line, writing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, FormatError, SchemaError, UnknownFormatError
from shardex.features import Features, Text
from shardex.files import find
from shardex.formats import FORMATS, open_rows
from shardex.formats.lines import TextRows
from shardex.formats.text import DocumentRows, TextWriter
from tests.formats.jsonl.test_format import every, put

pytestmark = pytest.mark.filterwarnings("ignore:.*do not store the name of their field")


def opened(path: Path | list[Path], **options: Any) -> TextRows:
    rows = open_rows(path, "text", **options)
    assert isinstance(rows, TextRows)
    return rows


def test_text_keeps_blank_lines(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", "één\r\n\n  \ntwo".encode())
    rows = opened(tmp_path)
    assert [sample["text"] for sample in every(rows)] == ["één", "", "  ", "two"]
    assert rows.features == Features({"text": Text()})
    raw = opened(tmp_path, decode="bytes")
    assert [sample["data"] for sample in every(raw)] == ["één".encode(), b"", b"  ", b"two"]
    assert raw.read(np.array([3]), []).names == []
    named = opened(tmp_path, schema=Features.of({"line": str}))
    assert named.sample(0) == {"line": "één"}
    with pytest.raises(FieldError, match="expected one of the fields text, got 'x'"):
        rows.read(np.array([0]), ["x"])
    with pytest.raises(SchemaError, match='expected one field of text for decode="text", got n int64'):
        opened(tmp_path, schema=Features.of({"n": int}))


def test_text_that_is_not_utf8_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"good\nb\xffd\n")
    message = r'a\.txt, line 2, column 2: expected UTF-8, got b.*; open with decode="bytes"'
    with pytest.raises(FormatError, match=message):
        opened(tmp_path).read(np.array([0, 1]))
    with pytest.raises(FormatError, match=message):
        opened(tmp_path).sample(1)
    assert opened(tmp_path, decode="bytes").sample(1) == {"data": b"b\xffd"}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a.txt", "b.TXT"], True),
        (["a.txt", "b.parquet"], False),
        (["a.jsonl", "notes.txt"], False),
        ([".hidden.txt"], False),
        ([], False),
    ],
)
def test_recognise(tmp_path: Path, names: list[str], expected: bool) -> None:
    for name in names:
        put(tmp_path / name)
    assert bool(FORMATS["text"].match(find(tmp_path))) is expected


def test_text_files_are_recognised(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"one\ntwo\n")
    assert sx.open(tmp_path)["text"] == sx.open(tmp_path / "a.txt")["text"] == ["one", "two"]
    assert sx.open(tmp_path, decode="bytes")["data"] == [b"one", b"two"]
    put(tmp_path / "notes.md", b"read me\n")
    assert len(opened(tmp_path)) == 2 and len(opened(tmp_path / "notes.md")) == 1
    with pytest.raises(ArgumentError, match=r'expected decode to be "text" or "bytes" .* open with format="jsonl"'):
        opened(tmp_path, decode="json")
    put(tmp_path / "other" / "a.xyz", b"x")
    with pytest.raises(UnknownFormatError, match=r"expected files that end in \.txt, got 1 others; .* a pattern"):
        opened(tmp_path / "other")


# -- documents ------------------------------------------------------------------------------------------------


def test_each_file_is_one_document(tmp_path: Path) -> None:
    contents = ["one\n\ntwo\r\n", "", "é", "\n"]
    for number, text in enumerate(contents):
        put(tmp_path / f"{number}.txt", text.encode())
    put(tmp_path / "4.txt", b"\xef\xbb\xbfmarked")
    rows = opened(tmp_path, lines=False)
    assert isinstance(rows, DocumentRows)
    assert [one["text"] for one in every(rows)] == [*contents, "marked"]
    assert rows.read(np.array([3, 0]))["text"] == ["\n", "one\n\ntwo\r\n"]
    assert [Path(name).name for name in rows.shards(np.array([4, 0]))] == ["4.txt", "0.txt"]
    assert len(opened(tmp_path)) == 6, "lines again, through another index"
    assert rows.fingerprint != opened(tmp_path).fingerprint


def test_a_document_that_is_not_utf8_raises(tmp_path: Path) -> None:
    put(tmp_path / "a.txt", b"x" * 100 + b"\xff" + b"y" * 100)
    with pytest.raises(FormatError, match=r"a\.txt, column 101: expected UTF-8, got b'x+\\xffy+'"):
        opened(tmp_path, lines=False).read(np.array([0]))


# -- writing --------------------------------------------------------------------------------------------------


def test_texts_are_written_as_lines(tmp_path: Path) -> None:
    texts = ["one", "", "  ", "é\rx", "\x85\u2028"] * 3
    ds = sx.write(tmp_path / "d", [{"line": text} for text in texts], format="text", shard_rows=4)
    assert ds["line"] == texts and len(list((tmp_path / "d").glob("*.txt"))) == 4
    sx.write(tmp_path / "d", [{"line": "more"}], format="text", mode="append")
    assert sx.open(tmp_path / "d")["text"] == [*texts, "more"]


@pytest.mark.parametrize("text", ["a\nb", "a\r", "\ufeffa", "\ud800"])
def test_text_that_a_line_cannot_hold_raises(tmp_path: Path, text: str) -> None:
    with pytest.raises(SchemaError, match=r"expected text that .* can hold, got .* - at sample 0"):
        sx.write(tmp_path / "d", [{"text": text}], format="text")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("schema", [{"a": str, "b": str}, {"n": int}, {"t": str | None}])
def test_other_fields_are_refused(tmp_path: Path, schema: Any) -> None:
    with pytest.raises(SchemaError, match=r"expected one field of text for the format text, got .* format jsonl"):
        TextWriter(str(tmp_path / "d"), Features.of(schema))


# -- documents ------------------------------------------------------------------------------------------------


def test_documents_are_one_sample_each(tmp_path: Path) -> None:
    put(tmp_path / "a.md", b"# A\n\ntext\n")
    put(tmp_path / "sub" / "b.html", b"<p>\n")
    put(tmp_path / "test_c.py", b"import d\n")
    put(tmp_path / "train_c.py", b"import e\n")
    put(tmp_path / "LICENSE", b"free")
    put(tmp_path / "README.md", b"about\n")
    texts = ["# A\n\ntext\n", "about\n", "<p>\n", "import d\n", "import e\n"]
    assert sx.open(tmp_path)["text"] == texts
    assert sx.open(tmp_path / "a.md")[0].text == texts[0]
    assert len(sx.open(tmp_path / "a.md", lines=True)) == 3


def test_documents_and_lines_must_be_told_apart(tmp_path: Path) -> None:
    put(tmp_path / "a.md", b"a\nb\n")
    put(tmp_path / "a.txt", b"c\nd\n")
    with pytest.raises(ArgumentError, match=r"or documents \(\.md, .*\), got both; open with lines=False if"):
        sx.open(tmp_path)
    assert (len(sx.open(tmp_path, lines=False)), len(sx.open(tmp_path, lines=True))) == (2, 4)
    put(tmp_path / "other" / "README.md", b"about")
    put(tmp_path / "other" / "a.txt", b"c\nd\n")
    assert sx.open(tmp_path / "other")["text"] == ["c", "d"]
