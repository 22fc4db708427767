"""Codecs of JSON, MessagePack, text, numbers and bytes: values come back, damaged bytes raise FormatError."""

from __future__ import annotations

import io
import math
import pickle
import struct
import warnings
import zipfile
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, ShardexError, UnsafeError
from shardex.features.codecs import (
    CODECS,
    COMPACT,
    JSON,
    MSGPACK,
    NPY,
    NPY_MAGIC,
    NPZ,
    NUMBER,
    RAW,
    TEXT,
    codec_by_name,
    codec_for_extension,
    decode_npy,
    npy_header,
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


ARRAYS = [COMPACT, NPY]

shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
simple = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    npst.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    npst.datetime64_dtypes(endianness="?"),
    npst.timedelta64_dtypes(endianness="?"),
    npst.unicode_string_dtypes(endianness="?", max_len=5),
    npst.byte_string_dtypes(max_len=5),
)
structured = st.one_of(
    npst.array_dtypes(subtype_strategy=simple, max_size=3),
    st.just(np.dtype([("a", "<f4"), ("nested", [("b", ">i2", (2,)), ("c", "U3")])])),
)


@st.composite
def arrays(draw: st.DrawFn, dtypes: st.SearchStrategy[Any]) -> NDArray[Any]:
    """Arrays of random bytes in C order, in Fortran order, or strided."""
    dtype, shape = np.dtype(draw(dtypes)), draw(shapes)
    data = np.random.default_rng(draw(st.integers(0, 999))).bytes(dtype.itemsize * math.prod(shape))
    if dtype.kind in "U":
        return np.array(draw(st.lists(st.text(max_size=dtype.itemsize // 4), max_size=4)), dtype)
    array: NDArray[Any] = np.ndarray(shape, dtype, data) if dtype.kind != "b" else np.ndarray(shape, "u1", data) > 100
    lie = draw(st.integers(0, 2))
    return np.asfortranarray(array) if lie == 1 else array[::-1] if lie == 2 and array.ndim else array


def alike(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Return whether dtype, shape and bytes are equal, so that NaN and NaT equal themselves."""
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


# -- arrays -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:Stored array in format")  # for names that are not ASCII
@pytest.mark.parametrize("codec", ARRAYS)
@given(array=arrays(st.one_of(simple, structured)))
def test_arrays_come_back(codec: Any, array: NDArray[Any]) -> None:
    data = codec.encode(array)
    assert isinstance(data, bytes)
    for spelled in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        again = codec.decode(spelled)
        assert alike(again, array)
        assert not again.flags.writeable


@given(array=arrays(simple))
def test_npy_is_what_numpy_writes(array: NDArray[Any]) -> None:
    stream = io.BytesIO()
    np.save(stream, array)
    assert NPY.encode(array) == stream.getvalue()
    assert alike(COMPACT.decode(stream.getvalue()), array)  # older files hold .npy instead


def test_decoded_arrays_share_the_bytes() -> None:
    array = np.arange(1000.0)
    for codec in ARRAYS:
        data = codec.encode(array)
        assert np.shares_memory(codec.decode(data), np.frombuffer(data, np.uint8))


def test_fortran_order() -> None:
    array = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert NPY.decode(NPY.encode(array)).flags.f_contiguous
    assert COMPACT.decode(COMPACT.encode(array)).flags.c_contiguous


@pytest.mark.parametrize("codec", ARRAYS)
@pytest.mark.parametrize("value", [[1, 2], 1.5, "text", b"bytes", True, np.float32(1), [[1], [2]], []])
def test_values_that_numpy_converts_are_encoded(codec: Any, value: Any) -> None:
    assert alike(codec.decode(codec.encode(value)), np.asarray(value))


GOLDEN = [
    (np.array([[1, 2, 3], [4, 5, 6]], "<f4"), b"\3<f4\2" + struct.pack("<2q6f", 2, 3, 1, 2, 3, 4, 5, 6)),
    (np.array(7, ">i2"), b"\3>i2\0\0\7"),
    (np.zeros((0, 3), "|b1"), b"\3|b1\2" + struct.pack("<2q", 0, 3)),
    (np.array([True, False]), b"\3|b1\1" + struct.pack("<q", 2) + b"\1\0"),
    (np.array(["é"], "<U2"), b"\3<U2\1" + struct.pack("<q", 1) + "é\0".encode("utf-32-le")),
    (np.array([b"ab", b"c"]), b"\3|S2\1" + struct.pack("<q", 2) + b"abc\0"),
    (np.array(["1970-01-03"], "<M8[D]"), b"\6<M8[D]\1" + struct.pack("<2q", 1, 2)),
    (np.array([3], "<m8[25us]"), b"\x09<m8[25us]\1" + struct.pack("<2q", 1, 3)),
    (np.asfortranarray(np.array([[1, 2], [3, 4]], "u1")), b"\3|u1\2" + struct.pack("<2q", 2, 2) + b"\1\2\3\4"),
]


@pytest.mark.parametrize(("array", "data"), GOLDEN, ids=lambda value: str(getattr(value, "dtype", "")))
def test_compact_format_byte_by_byte(array: NDArray[Any], data: bytes) -> None:
    assert COMPACT.encode(array) == data
    assert alike(COMPACT.decode(data), array)


def test_masked_array_is_stored_without_its_mask() -> None:
    masked = np.ma.array([1, 2], mask=[False, True])
    assert NPY.decode(NPY.encode(masked)).tolist() == COMPACT.decode(COMPACT.encode(masked)).tolist() == [1, 2]


def test_compact_writes_npy_for_dtypes_it_cannot_name() -> None:
    array = np.zeros(2, "i4,f8")
    assert COMPACT.encode(array) == NPY.encode(array)
    assert COMPACT.encode(np.zeros(2, "V3")) == NPY.encode(np.zeros(2, "V3"))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions_are_read(version: tuple[int, int]) -> None:
    array = np.zeros(2, [("ü" if version[0] > 1 else "u", "<f4"), ("日" if version[0] > 2 else "n", "<i2")])
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.lib.format.write_array(stream, array, version)
    assert NPY.decode(stream.getvalue()).dtype == array.dtype


def test_npy_header() -> None:
    data = NPY.encode(np.asfortranarray(np.zeros((2, 3), "<i2")))
    assert npy_header(memoryview(data)) == (128, np.dtype("<i2"), (2, 3), True)


# -- damaged arrays --------------------------------------------------------------------------------------------------


def npy_of(header: bytes, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    return NPY_MAGIC + version + struct.pack("<H" if version[0] == 1 else "<I", len(header)) + header + data


def compact_of(dtype: bytes, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    return struct.pack(f"<B{len(dtype)}sB{len(shape)}q", len(dtype), dtype, len(shape), *shape) + data


HEADER = b"{'descr': %s, 'fortran_order': False, 'shape': %s, }"

BROKEN_NPY = [
    b"",
    b"\x93NUM",
    b"not npy at all",
    NPY_MAGIC,
    NPY_MAGIC + b"\1\0",
    NPY_MAGIC + b"\1\0\xff\xff",
    NPY_MAGIC + b"\2\0\xff\xff\xff\xff",
    NPY_MAGIC + b"\2\0\1",
    npy_of(b""),
    npy_of(b"garbage"),
    npy_of(b"{}"),
    npy_of(HEADER % (b"'<f4'", b"(2,)"), b"1234567"),
    npy_of(HEADER % (b"'<f4'", b"(2,)"), b"123456789"),
    npy_of(HEADER % (b"'<f4'", b"(-2,)")),
    npy_of(HEADER % (b"'<f4'", b"(-1, -2)"), b"12345678"),
    npy_of(HEADER % (b"'<f4'", b"(9223372036854775807,)")),
    npy_of(HEADER % (b"'<f4'", b"(4611686018427387904, 4)")),
    npy_of(HEADER % (b"'<f4'", b"(0, 4611686018427387904, 4)")),
    npy_of(HEADER % (b"'<f4'", b"(" + b"1, " * 65 + b")"), b"1234"),
    npy_of(HEADER % (b"'<f4'", b"3"), b"123456789012"),
    npy_of(HEADER % (b"'<f4'", b"(1.0,)"), b"1234"),
    npy_of(HEADER % (b"'nonsense'", b"(2,)")),
    npy_of(HEADER % (b"3", b"(2,)")),
    npy_of(HEADER % (b"[('a', '<f4'), ('a', '<f4')]", b"(2,)")),
    npy_of(HEADER % (b"'<U999999999'", b"(1,)"), b"1234"),
    npy_of(HEADER % (b"'|S0'", b"(1099511627776,)"), b"1"),
    npy_of(b"{'descr': " + b"(" * 5000 + b")" * 5000 + b"}"),
    npy_of(b"{'descr': " + b"-" * 50_000 + b"1}"),
    npy_of(b"__import__('os').system('true')"),
    npy_of(HEADER % (b"'<f4'", b"(1,)"), b"1234", version=b"\4\0"),
    npy_of(HEADER % (b"'<f4'", b"(1,)"), b"1234", version=b"\1\1"),
    npy_of(b"{'descr': '\xff'}", version=b"\3\0"),
]

BROKEN_COMPACT = [
    b"",
    b"\3",
    b"\3<f4",
    b"\3<f4\1",
    b"\3<f4\2" + bytes(15),
    b"\xff" * 20,
    b"\0\0",
    compact_of(b"<f4", (2,), b"1234567"),
    compact_of(b"<f4", (2,), b"123456789"),
    compact_of(b"<f4", (-2,)),
    compact_of(b"<f4", (-1, -2), b"12345678"),
    compact_of(b"<f4", (2**62, 4)),
    compact_of(b"<f4", (2**63 - 1,)),
    compact_of(b"<f4", (0, 2**62, 4)),
    compact_of(b"<f4", (1,) * 65, b"1234"),
    compact_of(b"<f3", (1,), b"123"),
    compact_of(b"<q9", (1,), b"123"),
    compact_of(b"f4", (1,), b"1234"),
    compact_of(b"float32", (1,), b"1234"),
    compact_of(b"<f4,<f4", (1,), bytes(8)),
    compact_of(b"(2,)<f4", (1,), bytes(8)),
    compact_of(b"|V4", (1,), b"1234"),
    compact_of(b"|S0", (2**40,)),
    compact_of(b"<U999999999", (2**40,)),
    compact_of(b"<M8[nonsense]", (1,), bytes(8)),
    compact_of(b"<M8[xx]", (1,), bytes(8)),
    compact_of(b"\xff\xfe", (1,), bytes(8)),
    compact_of(b"", (1,), bytes(8)),
]


@pytest.mark.parametrize(
    ("codec", "data"),
    [*((NPY, data) for data in BROKEN_NPY), *((COMPACT, data) for data in BROKEN_COMPACT + BROKEN_NPY)],
)
def test_damaged_arrays_raise_format_error(codec: Any, data: bytes) -> None:
    with pytest.raises(FormatError, match="expected"):
        codec.decode(data)


@pytest.mark.parametrize("codec", ARRAYS)
@given(array=arrays(simple), data=st.data())
def test_truncated_arrays_raise_format_error(codec: Any, array: NDArray[Any], data: st.DataObject) -> None:
    encoded = codec.encode(array)
    for damaged in (encoded[: data.draw(st.integers(0, len(encoded) - 1))], encoded + b"x"):
        with pytest.raises(FormatError):
            codec.decode(damaged)


@pytest.mark.filterwarnings("ignore:Stored array in format")  # for names that are not ASCII
@pytest.mark.parametrize("codec", ARRAYS)
@given(array=arrays(st.one_of(simple, structured)), data=st.data())
def test_flipped_bytes_decode_or_raise_shardex_error(codec: Any, array: NDArray[Any], data: st.DataObject) -> None:
    encoded = bytearray(codec.encode(array))
    for _ in range(3):
        encoded[data.draw(st.integers(0, min(len(encoded), 140) - 1))] = data.draw(st.integers(0, 255))
    with warnings.catch_warnings(), suppress(ShardexError):
        warnings.simplefilter("ignore")
        assert codec.decode(bytes(encoded)).nbytes <= len(encoded)


class Bomb:
    """An object whose pickle fails the test when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle was run",)


@pytest.mark.parametrize("codec", ARRAYS)
@pytest.mark.parametrize(
    "array",
    [
        np.array([None, "a"]),
        np.array([{}], object),
        np.zeros(1, [("a", object)]),
        np.array(["x"], np.dtypes.StringDType()),
    ],
    ids=str,
)
def test_objects_are_never_stored(codec: Any, array: NDArray[Any]) -> None:
    with pytest.raises(SchemaError, match="objects are never stored"):
        codec.encode(array)


def test_objects_are_never_loaded() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([Bomb()]), allow_pickle=True)
    nested = npy_of(HEADER % (b"[('a', '<f4'), ('b', '|O')]", b"(1,)"), bytes(12))
    for data in (stream.getvalue(), nested):
        for codec in ARRAYS:
            with pytest.raises(UnsafeError, match="loading it would run code"):
                codec.decode(data)
    with pytest.raises(UnsafeError, match="loading it would run code"):
        COMPACT.decode(compact_of(b"|O", (1,), pickle.dumps(Bomb())))


@pytest.mark.parametrize("codec", ARRAYS)
def test_ragged_lists_are_refused(codec: Any) -> None:
    with pytest.raises(SchemaError, match="expected an array"):
        codec.encode([[1], [2, 3]])


@pytest.mark.parametrize("dtype", ["|V0", "<U0", "|S0"])
def test_elements_without_bytes_are_limited(dtype: str) -> None:
    """Any number of them fits into no bytes, and to copy them would take for ever."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (1000000000000,), }}\n".encode()
    with pytest.raises(FormatError, match="elements without bytes"):
        decode_npy(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)


def test_npz() -> None:
    arrays = {"x": np.arange(6, dtype="i2").reshape(2, 3), "y": np.array(0.5), "z": np.array(["a", "bc"])}
    data = NPZ.encode(arrays)
    assert data == NPZ.encode(arrays), "the same bytes every time"
    for found in (NPZ.decode(data), dict(np.load(io.BytesIO(data)))):
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            assert found[name].dtype == array.dtype
    for wrong in (3, [1], {1: [2]}):
        with pytest.raises(SchemaError, match="expected a dict of arrays"):
            NPZ.encode(wrong)


def test_bad_npz() -> None:
    def archive(name: str, data: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as made:
            made.writestr(name, data)
        return out.getvalue()

    good = NPZ.encode({"x": np.arange(100)})
    for bad in (b"", b"PK", good[:-30], archive("x.txt", b"text"), archive("x.npy", b"no array")):
        with pytest.raises(FormatError):
            NPZ.decode(bad)
    pickled = io.BytesIO()
    np.savez(pickled, x=np.array([{}], object))
    with pytest.raises(UnsafeError):
        NPZ.decode(pickled.getvalue())
