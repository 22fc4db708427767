"""Codecs of JSON, MessagePack, text, numbers and bytes: values come back, damaged bytes raise FormatError."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.features.codecs import (
    CODECS,
    COMPACT,
    JSON,
    MSGPACK,
    NUMBER,
    RAW,
    TEXT,
    codec_by_name,
    codec_for_extension,
)

# -- plain values ---------------------------------------------------------------------------------------------------

plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=10,
)


@given(plain)
def test_msgpack_comes_back(value: Any) -> None:
    for spelled in (MSGPACK.encode(value), memoryview(MSGPACK.encode(value))):
        assert MSGPACK.decode(spelled) == value
    assert MSGPACK.decode(MSGPACK.encode({"raw": b"\0\xff"})) == {"raw": b"\0\xff"}


@given(plain.filter(lambda value: "inf" not in repr(value)))
def test_json_comes_back(value: Any) -> None:
    for spelled in (JSON.encode(value), memoryview(JSON.encode(value))):
        assert JSON.decode(spelled) == value


def test_plain_values_byte_by_byte() -> None:
    assert JSON.encode({"a": [1, 2.5, None, True, "é"]}) == '{"a":[1,2.5,null,true,"é"]}'.encode()
    for lost in (math.nan, [math.inf], {"a": b"bytes"}, {1: 2}, {"a": np.array([np.nan])}, object()):
        with pytest.raises(SchemaError, match="JSON"):
            JSON.encode(lost)
    assert MSGPACK.encode({"a": [1, None]}) == b"\x81\xa1a\x92\x01\xc0"


def test_numpy_in_plain_values() -> None:
    value = {"n": np.int16(3), "f": np.float32(0.5), "b": np.bool_(True), "a": np.array([[1, 2]], "<i2")}
    assert JSON.decode(JSON.encode(value)) == {"n": 3, "f": 0.5, "b": True, "a": [[1, 2]]}
    again = MSGPACK.decode(MSGPACK.encode(value))
    array = COMPACT.decode(again.pop("a"))
    assert array.dtype == "<i2" and array.tolist() == [[1, 2]]
    assert again == {"n": 3, "f": 0.5, "b": True}


@pytest.mark.parametrize("number_", [2**63, 2**64 - 1, -(2**63)])
def test_integers_of_64_bits(number_: int) -> None:
    assert JSON.decode(JSON.encode(number_)) == MSGPACK.decode(MSGPACK.encode(number_)) == number_


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JSON, object()),
        (JSON, {"a": object()}),
        (JSON, 1j),
        (JSON, "\ud800"),
        (JSON, np.array([1j])),
        (MSGPACK, object()),
        (MSGPACK, [object()]),
        (MSGPACK, 1j),
        (MSGPACK, 2**64),
        (MSGPACK, "\ud800"),
        (MSGPACK, np.array([None])),
    ],
)
def test_values_that_json_and_msgpack_cannot_hold_are_refused(codec: Any, value: Any) -> None:
    with pytest.raises(SchemaError, match="expected a value that"):
        codec.encode(value)


@pytest.mark.parametrize(
    ("codec", "data"),
    [
        (JSON, b""),
        (JSON, b"{"),
        (JSON, b"[1,]"),
        (JSON, b"nul"),
        (JSON, b'"\xff"'),
        (JSON, b'"\xed\xa0\x80"'),
        (JSON, b"1 2"),
        (JSON, b"NaN"),
        (JSON, b"["),
        (MSGPACK, b""),
        (MSGPACK, b"\xc1"),
        (MSGPACK, b"\x92\x01"),
        (MSGPACK, b"\x01\x01"),
        (MSGPACK, b"\xa1\xff"),
        (MSGPACK, b"\xdd\xff\xff\xff\xff"),
        (MSGPACK, b"\xdf\xff\xff\xff\xff"),
        (MSGPACK, b"\xc6\xff\xff\xff\xff"),
        (MSGPACK, b"\x81\x80\x01"),
        (TEXT, b"\xff"),
        (NUMBER, b""),
        (NUMBER, b"abc"),
        (NUMBER, b"\xff"),
    ],
)
def test_damaged_values_raise_format_error(codec: Any, data: bytes) -> None:
    with pytest.raises(FormatError, match="expected"):
        codec.decode(data)


def test_deep_nesting_is_refused_by_encode_and_decode() -> None:
    depth = 100_000
    for codec, data in ((JSON, b"[" * depth + b"]" * depth), (JSON, b'{"a":' * depth), (MSGPACK, b"\x91" * depth)):
        with pytest.raises(FormatError):
            codec.decode(data)
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    for codec in (JSON, MSGPACK):
        with pytest.raises(SchemaError):
            codec.encode(deep)
    while deep:  # level by level: freeing it at once would need a deep stack
        (deep,) = deep
    shallow: list[Any] = []
    for _ in range(100):
        shallow = [shallow]
    assert JSON.decode(JSON.encode(shallow)) == MSGPACK.decode(MSGPACK.encode(shallow)) == shallow


def test_msgpack_extension_types_stay_ext() -> None:
    assert isinstance(MSGPACK.decode(b"\xc7\x05\x05hello"), msgspec.msgpack.Ext)


# -- TEXT, bytes, numbers --------------------------------------------------------------------------------------------


@given(st.text())
def test_text_comes_back(value: str) -> None:
    assert TEXT.encode(value) == value.encode()
    for spelled in (value.encode(), memoryview(value.encode())):
        assert TEXT.decode(spelled) == value


@given(st.binary())
def test_bytes_come_back(value: bytes) -> None:
    for spelled in (value, bytearray(value), memoryview(value)):
        assert RAW.encode(spelled) == RAW.decode(spelled) == value


@given(st.one_of(st.integers(), st.floats(allow_nan=False)))
def test_numbers_come_back(value: float) -> None:
    again = NUMBER.decode(NUMBER.encode(value))
    assert again == value
    assert type(again) is type(value)


def test_numbers_as_other_tools_write_them() -> None:
    assert NUMBER.decode(b"7\n") == 7
    assert NUMBER.decode(b" -3 ") == -3
    assert NUMBER.decode(b"1e3") == 1000.0
    assert math.isnan(NUMBER.decode(b"nan"))
    assert NUMBER.encode(np.float32(0.5)) == b"0.5"
    assert NUMBER.encode(np.uint8(200)) == b"200"


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (TEXT, b"bytes"),
        (TEXT, 3),
        (TEXT, "\ud800"),
        (RAW, "text"),
        (RAW, 3),
        (NUMBER, "3"),
        (NUMBER, True),
        (NUMBER, 1j),
    ],
)
def test_values_of_another_type_are_refused(codec: Any, value: Any) -> None:
    with pytest.raises(SchemaError, match="expected"):
        codec.encode(value)


# -- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extension", "name"),
    [
        ("npy", "npy"),
        ("NPY", "npy"),
        ("left.npy", "npy"),
        ("json", "json"),
        ("seg.json", "json"),
        ("msgpack", "msgpack"),
        ("mp", "msgpack"),
        ("txt", "text"),
        ("cls", "number"),
        ("jpg", "raw"),
        ("bin", "raw"),
        ("", "raw"),
        ("pkl", "raw"),
        ("pickle", "raw"),
        ("pyd", "raw"),
        ("pth", "raw"),
        ("npz", "npz"),
    ],
)
def test_codecs_by_extension(extension: str, name: str) -> None:
    assert codec_for_extension(extension) is CODECS[name] is codec_by_name(name)


def test_an_unknown_codec_name_is_an_error() -> None:
    with pytest.raises(FormatError, match=r"expected one of the codecs compact, json, .*, got 'pickle'"):
        codec_by_name("pickle")


@pytest.mark.parametrize("codec", list(CODECS.values()))
@given(data=st.one_of(st.binary(max_size=40), st.binary(max_size=20).map(lambda data: b"\3<f4" + data)))
def test_random_bytes_decode_or_raise_shardex_error(codec: Any, data: bytes) -> None:
    with suppress(ShardexError):
        codec.decode(data)
