"""Records and names: what is kept through a round trip, what is refused, and which field an error names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardex.catalog import Content, DatasetRecord, decode, encode, parse, to_plain
from shardex.catalog.records import MOST_BYTES
from shardex.errors import ArgumentError, FormatError

PLAIN: dict[str, Any] = {"name": "a", "version": 1, "fingerprint": "0", "urls": ["/a"], "format": "tar", "samples": 5}


def decoded(**changes: Any) -> DatasetRecord:
    record = decode(json.dumps({**PLAIN, **changes}).encode(), "here")
    assert isinstance(record, DatasetRecord)
    return record


def test_unknown_fields_are_kept() -> None:
    record = decoded(quality={"score": [1, None]}, extra=3)
    assert record.extra == {"quality": {"score": [1, None]}, "extra": 3}
    assert decode(encode(record), "here") == record
    assert to_plain(record) == {**PLAIN, "quality": {"score": [1, None]}, "extra": 3}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("samples", "5", r"here: expected a record .*got `str` - at field `samples`"),
        ("samples", -1, ">= 0"),
        ("samples", 1 << 70, "field `samples`"),
        ("version", 0, ">= 1"),
        ("version", 1.5, "got `float`"),
        ("urls", [], "length >= 1"),
        ("urls", ["x" * 5000], r"field `urls\[0\]`"),
        ("tags", ["x"] * 31, "length <= 30"),
        ("tags", [""], "length >= 1"),
        ("description", "x" * 100_001, "field `description`"),
        ("options", [], "field `options`"),
        ("parents", [{"name": "a"}], "fingerprint"),
        ("name", "../a", "expected a name such as"),
        ("trusted", "yes", "field `trusted`"),
        ("checksums", {"a": 1}, "field `checksums"),
    ],
)
def test_a_wrong_field_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decoded(**{field: value})


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{", b"\xff", b'{"a": "\xff"}', b'{"name": 1}', b"null", b'{"x":' * 100_000, b"1" * (MOST_BYTES + 1)],
    ids=["empty", "list", "cut", "binary", "bad text", "name", "null", "deep", "large"],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError, match="here: expected a record"):
        decode(data, "here")


def test_a_record_that_could_not_be_read_is_not_stored() -> None:
    content: dict[str, Any] = {"fingerprint": "0", "urls": ["/a"], "format": "tar", "samples": 1}
    with pytest.raises(ArgumentError, match=r"a@1: record: expected .* length <= 30"):
        encode(DatasetRecord(name="a", version=1, tags=["x"] * 31, **content))
    with pytest.raises(ArgumentError, match="bytes"):
        encode(DatasetRecord(name="a", version=1, schema={"x" * 100: "y" * MOST_BYTES}, **content))


def test_what_is_opened() -> None:
    options = {"schema": {"x": {"kind": "text"}}, "window": 4}
    content = Content(fingerprint="0", urls=["/a", "/b"], format="tokens", samples=1, options=options)
    assert content.what == ["/a", "/b"]
    assert str(content.open_options["schema"]) == "x text" and content.open_options["window"] == 4
    wrong = Content(fingerprint="0", urls=["/a"], format="tokens", samples=1, options={"schema": {"x": 1}})
    with pytest.raises(FormatError, match="JSON form of a feature"):
        _ = wrong.open_options


def test_addresses_are_written_as_they_are_read() -> None:
    for text in ("corpus", "team/corpus@3", "corpus:stable"):
        assert str(parse(text)) == text
