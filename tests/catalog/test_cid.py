"""Content identifiers: DAG-CBOR by known vectors, CIDs of records and files, JSON of ATProto, damaged identifiers."""

from typing import Any

import pytest

from shardex.catalog import check_cid, cid_of, encode_dag_cbor
from shardex.catalog.cid import RAW, Link, from_lexicon_json
from shardex.errors import ChecksumError, FormatError

FILE = "bafkreifzjut3te2nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e"
"""The CID of the file "hello world", in the documents of IPFS."""
CBOR: list[tuple[Any, str]] = [
    (0, "00"),
    (23, "17"),
    (24, "1818"),
    (255, "18ff"),
    (256, "190100"),
    (2**32 - 1, "1affffffff"),
    (2**64 - 1, "1bffffffffffffffff"),
    (-1, "20"),
    (-25, "3818"),
    (-(2**64), "3bffffffffffffffff"),
    (1.5, "fb3ff8000000000000"),
    (0.0, "fb0000000000000000"),
    (None, "f6"),
    (True, "f5"),
    (False, "f4"),
    ("", "60"),
    ("ü", "62c3bc"),
    (b"\x01\x02", "420102"),
    ([1, [2, 3]], "8201820203"),
    ((), "80"),
    ({"aa": 1, "b": 2, "a": 3}, "a3616103616202626161" + "01"),
]
"""Values and their DAG-CBOR, by the examples of RFC 8949 and the rule that shorter keys come first."""


@pytest.mark.parametrize(("value", "expected"), CBOR)
def test_dag_cbor(value: Any, expected: str) -> None:
    assert encode_dag_cbor(value).hex() == expected


def test_link() -> None:
    """A tag, then the bytes of the CID after a zero."""
    assert encode_dag_cbor(Link(FILE)).hex()[:16] == "d82a582500015512"


def test_file() -> None:
    assert cid_of(b"hello world", RAW) == FILE
    check_cid(FILE, memoryview(b"hello world"), "file")
    with pytest.raises(ChecksumError, match=f"file: expected content with CID {FILE}, got bafkrei"):
        check_cid(FILE, b"hello worlds", "file")


@pytest.mark.parametrize(
    "wrong", ["", "b", "x" + FILE[1:], FILE.upper(), FILE[:-1], FILE + "a", FILE[:-1] + "f", "Qmabc", "bü"]
)
def test_what_is_no_cid(wrong: str) -> None:
    with pytest.raises(FormatError, match=r"expected (a|the) CID"):
        check_cid(wrong, b"hello world", "file")


def test_json_of_atproto() -> None:
    blob = {"$type": "blob", "ref": {"$link": FILE}, "mimeType": "*/*", "size": 11}
    assert from_lexicon_json([blob, {"$bytes": "AQI"}]) == [{**blob, "ref": Link(FILE)}, b"\1\2"]
    assert from_lexicon_json({"$link": FILE, "more": 1}) == {"$link": FILE, "more": 1}
    with pytest.raises(FormatError, match=r"expected bytes in base64 in \$bytes, got"):
        from_lexicon_json({"$bytes": "*"})
    deep: list[Any] = []
    for _ in range(500):
        deep = [deep]
    with pytest.raises(FormatError, match="at most 200 levels"):
        from_lexicon_json(deep)
