"""The parser of JSON lines against the decoder of the standard library: what it accepts has the same values."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardex.kernel import Ranges, Segments, json_lines, set_threads
from shardex.kernel.buffers import KERNEL

pytestmark = pytest.mark.skipif(KERNEL != "c", reason="the numpy kernel has no parser")

Kinds = dict[str, json_lines.JsonKind]
ALL: Kinds = {"i": "integer", "n": "number", "b": "bool", "t": "text"}


def ranges(lines: list[bytes]) -> Ranges:
    """Each line in a buffer of its own, so that a sanitizer finds every byte that is read behind its end."""
    table = Segments(len(lines))
    for number, line in enumerate(lines):
        table.put(number, np.frombuffer(bytearray(line), np.uint8))
    return Ranges(table, np.arange(len(lines)), np.zeros(len(lines)), [len(line) for line in lines])


def parse(lines: list[bytes], kinds: Kinds, strict: bool = False) -> list[dict[str, Any]] | None:
    """The values of each line as dicts without missing keys; None if a line is refused."""
    parser = json_lines.JsonLineParser.of(kinds, strict=strict)
    assert parser is not None
    found = parser.parse(ranges(lines))
    if found is None:
        return None
    samples: list[dict[str, Any]] = [{} for _ in lines]
    for name, column in found.items():
        for sample, value, present in zip(samples, column.values, column.present.tolist(), strict=True):
            if present:
                sample[name] = None if present == 2 else getattr(value, "item", lambda value=value: value)()
    return samples


def one(line: str | bytes, kinds: Kinds = ALL, strict: bool = False) -> dict[str, Any] | None:
    found = parse([line.encode() if isinstance(line, str) else line], kinds, strict)
    return None if found is None else found[0]


def same_bits(a: float, b: float) -> bool:
    return struct.pack("d", a) == struct.pack("d", b)


def test_all_kinds() -> None:
    line = '{"i": -7, "n": 2.5, "b": true, "t": "text"}'
    assert one(line) == {"i": -7, "n": 2.5, "b": True, "t": "text"}
    assert one('{"t": null,"b":false , "i" :0}') == {"t": None, "b": False, "i": 0}
    assert one("{}") == one(" { } ") == {}


def test_keys_in_any_order() -> None:
    assert one('{"t": "a", "other": [1, {"x": "]"}], "i": 1}') == {"t": "a", "i": 1}
    assert one('{"tt": 1, "": 2, "t": "x"}') == {"t": "x"}


def test_keys_that_come_twice_are_refused() -> None:
    assert one('{"t": "\\x", "t": "a"}') is None  # the first text is no JSON
    assert one(b'{"t": "\xff", "t": null}') is None
    assert one('{"i": 1, "i": 1}') is None


def test_blanks_may_differ_from_line_to_line() -> None:
    lines = [b'{"i": 1, "t": "a", "pad": 0}', b'{"i":    2 ,\t"t" :"b"  , "pad": 0}', b'{"i":3,"t":"c","pad": 0} ']
    lines += [b'{"i": %6d, "t": "d", "pad": 0}' % k for k in (4, 50_000)]
    found = parse(lines, {"i": "integer", "t": "text"})
    assert found == [{"i": k, "t": t} for k, t in [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (50_000, "d")]]


def test_other_keys_are_refused_if_strict() -> None:
    assert one('{"i": 1, "x": 2}', strict=False) == {"i": 1}
    assert one('{"i": 1, "x": 2}', strict=True) is None


@pytest.mark.parametrize(
    "line",
    [
        "", " ", "[]", "1", "{", '{"', '{"i', '{"i"', '{"i":', '{"i": ', '{"i": 1', '{"i": 1,', '{"i": 1,}',
        '{,"i": 1}', '{"i": 1}}', '{"i": 1} x', '{"i" 1}', '{"i": 1 "t": ""}', "{'i': 1}", '{i: 1}', '{"i": 01}',
        '{"i": +1}', '{"i": -}', '{"i": 1.}', '{"n": .5}', '{"n": 1e}', '{"n": 1e+}', '{"n": NaN}', '{"n": Infinity}',
        '{"n": 0x1}', '{"n": 1_0}', '{"b": tru}', '{"b": True}', '{"b": nul}', '{"b": fals', '{"t": "a}',
        '{"t": "\n"}', '{"t": "\\x"}', '{"t": "\\u12"}', '{"t": "\\u12g4"}', '{"t": "\\', '{"t": "\\"}',
        '{"x": "\\x"}', '{"x": "\\ud800"}', '{"x": [1,]}', '{"x": [1}', '{"x": {"a"}}', '{"x": {"a": 1,}}', '{"x": [}',
        '{"x": {1: 2}}', '{"x": --1}', '{"x": }', '{"x": {"\\q": 1}}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused(line: str) -> None:
    assert one(line) is None
    with pytest.raises((msgspec.DecodeError, AssertionError)):
        assert isinstance(msgspec.json.decode(line), dict)


@pytest.mark.parametrize(
    "line",
    [
        '{"i": 1.0}', '{"i": 1e3}', '{"i": true}', '{"i": "1"}', '{"i": [1]}', '{"i": 9223372036854775808}',
        '{"i": -9223372036854775809}', '{"i": 12345678901234567890123}', '{"n": 9007199254740993}', '{"n": true}',
        '{"n": "1"}', '{"n": 1e400}', '{"n": 1e-400}', '{"b": 1}', '{"b": "true"}', '{"t": 1}', '{"t": {}}',
        '{"t": "\\ud800"}', '{"t": "\\udc00\\ud800"}', '{"t": "\\ud800x"}', '{"\\u0069": 1}',
        '{"x": ' + 80 * "[" + 80 * "]" + "}",
    ],
)  # fmt: skip
def test_values_for_a_complete_decoder_are_refused(line: str) -> None:
    assert one(line) is None


def test_text_that_is_no_utf8_is_refused() -> None:
    assert one(b'{"t": "\xff"}') is None
    assert one(b'{"t": "\xff\\n"}') is None
    assert one(b'{"t": "\xed\xa0\x80"}') is None


def test_integers_to_the_limits_of_int64() -> None:
    for value in (2**63 - 1, -(2**63), 10**18, -(10**18), 0):
        assert one(f'{{"i": {value}}}') == {"i": value}


def test_floats_are_told_from_integers() -> None:
    assert one('{"n": 3}', {"n": "float"}) is None
    assert one('{"n": 3.0}', {"n": "float"}) == {"n": 3.0}
    zero = one('{"n": -0}')
    assert zero is not None and math.copysign(1, zero["n"]) == 1  # an integer, which has no sign of zero
    zero = one('{"n": -0.0}')
    assert zero is not None and math.copysign(1, zero["n"]) == -1


@pytest.mark.parametrize("special", ['"', "\\", "\n", "\x1f", "é"])
def test_special_characters_anywhere_in_long_texts(special: str) -> None:
    values = [{"t": at * "a" + special + (300 - at) * " ", "i": at} for at in range(300)]
    assert parse([json.dumps(value, ensure_ascii=False).encode() for value in values], ALL) == values
    for at in range(0, 300, 7):
        assert one('{"t": "' + at * "a" + "\x01" + (300 - at) * "a" + '"}') is None
        assert one('{"t": "' + at * "a") is None


def test_texts_may_be_left_out() -> None:
    parser = json_lines.JsonLineParser.of({"t": "text", "i": "integer"}, strict=True)
    assert parser is not None
    found = parser.parse(ranges([b'{"t": "\xff", "i": 5}']), texts=False)
    assert found is not None
    assert found["t"].values is None and found["t"].present.tolist() == [1] and found["i"].values.tolist() == [5]


@pytest.mark.parametrize("key", ['a":1,"b', "a\\n", "a\tb", "\ud800", '"'])
def test_no_parser_for_keys_that_are_escaped_in_lines(key: str) -> None:
    assert json_lines.JsonLineParser.of({"x": "integer", key: "integer"}, strict=False) is None


def test_no_parser_for_other_kinds_and_many_keys() -> None:
    assert json_lines.JsonLineParser.of({"a": None}, strict=False) is None
    assert json_lines.JsonLineParser.of({f"k{n}": "text" for n in range(257)}, strict=False) is None


def test_no_keys_and_no_lines() -> None:
    assert one('{"x": 1}', {}) == {}
    assert parse([], ALL) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_many_lines_in_threads(threads: int) -> None:
    samples = [{"i": k, "n": k / 7, "b": k % 2 == 0, "t": f"line {k} " * (k % 60)} for k in range(20_000)]
    lines = [json.dumps(sample).encode() for sample in samples]
    set_threads(threads)
    try:
        assert parse(lines, ALL, strict=True) == samples
        lines[12_345] = b"{"
        assert parse(lines, ALL) is None
    finally:
        set_threads(None)


digits = st.text("0123456789", min_size=1, max_size=24)
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e9, 1e9).map("{:.17g}".format),
    st.floats(-1e-3, 1e-3).map("{:.16e}".format),
    st.floats(-1e3, 1e3).map("{:.6f}".format),
    st.builds("{}{}.{}".format, st.sampled_from(["", "-"]), st.integers(0, 10**19), digits),
    st.builds("{}.{}e{}".format, st.integers(0, 9), digits, st.integers(-40, 40)),
    st.integers(-(2**64), 2**64).map(str),
)


@given(numbers)
@example("9007199254740993.0")
@example("0." + 1010 * "0" + "1e1011")
@example("0." + 990 * "0" + "1e991")
@example("0.500000000000000166533453693773481063544750213623046875")
@example("8.41e21")
@example("9007199254740992.5")
@example("1.00000000000000011102230246251565")
def test_numbers_are_the_nearest_floats(text: str) -> None:
    found = one(f'{{"n": {text}}}')
    if found is not None:
        assert same_bits(found["n"], float(json.loads(text)))
    significant = len(text.lstrip("-0.").split("e")[0].replace(".", ""))
    if "e" not in text and "." in text and significant <= 19 and len(text.split(".")[1]) <= 27:
        assert found is not None  # usual numbers are parsed


@given(st.integers(1, 2**64 - 1), st.integers(-27, -1))
@example(2**64 - 1, -27)
@example(2**53 + 1, -1)
def test_long_numbers_are_the_nearest_floats(whole: int, exponent: int) -> None:
    found = one(f'{{"n": {whole}e{exponent}}}')
    if len(str(whole)) <= 19:
        assert found is not None
        assert same_bits(found["n"], float(f"{whole}e{exponent}"))


texts = st.text(st.characters(codec="utf-8"))


@given(st.lists(texts, max_size=4), st.booleans())
def test_texts(values: list[str], ascii_only: bool) -> None:
    lines = [json.dumps({"t": value}, ensure_ascii=ascii_only).encode() for value in values]
    assert parse(lines, {"t": "text"}) == [{"t": value} for value in values]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.sampled_from(["i", "n", "b", "t", "x", "y"]), json_values, max_size=6)
wanted: dict[str, Any] = {"i": int, "n": float, "b": bool, "t": str}


@given(st.lists(objects, max_size=3), st.sampled_from([None, 1]), st.booleans())
def test_objects(values: list[dict[str, Any]], indent: int | None, ascii_only: bool) -> None:
    found = parse([json.dumps(one, ensure_ascii=ascii_only, indent=indent).encode() for one in values], ALL)
    if found is not None:
        assert found == [{k: v for k, v in one.items() if k in ALL} for one in values]
        for sample in found:
            assert all(
                v is None or (isinstance(v, wanted[k]) and (k == "b") == (type(v) is bool)) for k, v in sample.items()
            )


@given(objects, st.data())
def test_damaged_lines_are_refused_or_have_their_values(value: dict[str, Any], data: st.DataObject) -> None:
    line = bytearray(json.dumps(value, ensure_ascii=False).encode())
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(line) - 1))
        line[at : at + data.draw(st.integers(0, 1))] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b",", b"}", b"0", b"\x00", b" ", b"\xc3", b"-"])
        )
        if not line:
            return
    found = one(bytes(line))
    if found is None:
        return
    decoded = json.loads(line.decode(errors="replace"))  # keys that are not wanted may be no UTF-8
    assert found == {k: v for k, v in decoded.items() if k in ALL}
