"""Content identifiers are those of IPLD: known vectors, canonical order of keys, and refused values."""

import hashlib
from typing import Any

import pytest

from shardex.compat.atdata import generate_cid, verify_cid
from shardex.compat.atdata._cid import _cbor, generate_cid_from_bytes, parse_cid
from shardex.errors import SchemaError

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
    assert _cbor(value).hex() == expected


def test_known_identifiers() -> None:
    """Those of the empty map and of one entry are in the documents and tests of IPLD."""
    assert generate_cid({}) == "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"
    assert generate_cid({"hello": "world"}) == "bafyreidykglsfhoixmivffc5uwhcgshx4j465xwqntbmu43nb2dzqwfvae"
    assert generate_cid_from_bytes(b"\xa0") == generate_cid({})


def test_parse() -> None:
    found = parse_cid(generate_cid({"hello": "world"}))
    assert (found["version"], found["codec"], found["hash"]["code"], found["hash"]["size"]) == (1, 0x71, 0x12, 32)
    cbor = b"\xa1\x65hello\x65world"
    assert found["hash"]["digest"] == hashlib.sha256(cbor).digest()
    for wrong in ("", "b", "Qm123", "bafy!", generate_cid([1])[:-8]):
        with pytest.raises(ValueError, match="content identifier"):
            parse_cid(wrong)


def test_verify() -> None:
    cid = generate_cid({"a": [1, 2.5, None, b"x"], "b": True})
    assert verify_cid(cid, {"b": True, "a": (1, 2.5, None, b"x")})
    assert not verify_cid(cid, {"b": True, "a": [1, 2.5, None, b"y"]})
    assert generate_cid(1) != generate_cid(1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, {3}, object(), 2**64, -(2**64) - 1, "\ud800"])
def test_refused_values(value: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        generate_cid({"x": [value]})
    assert isinstance(caught.value, ValueError)


def test_data_that_contains_itself() -> None:
    data: list[Any] = []
    data.append(data)
    with pytest.raises(ValueError, match="inside itself"):
        generate_cid(data)
