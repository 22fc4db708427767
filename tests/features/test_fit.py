"""Which values fit which feature, what they become, and the errors for the others."""

from __future__ import annotations

import datetime
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.errors import SchemaError
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    describe,
)
from shardex.features.array_values import fit_array
from shardex.kernel import MISSING
from shardex.samples import DictSample
from tests.strategies import datasets

PETS = ClassLabel(("cat", "dog"))


class Level(IntEnum):
    LOW = 1


@settings(deadline=None)
@given(datasets())
def test_values_that_fit_are_returned_unchanged(data: tuple[Features, list[dict[str, Any]]]) -> None:
    features, samples = data
    for sample in samples:
        assert DictSample({name: feature.fit(sample[name]) for name, feature in features.items()}) == sample


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (3, "int8", 3),
        (Level.LOW, "int8", 1),
        (np.int64(-128), "int8", -128),
        (np.array(7, np.uint64), "int8", 7),
        (2**64 - 1, "uint64", 2**64 - 1),
        (1, "float32", 1),
        (np.float64(0.1), "float16", 0.1),
        (np.float32(0.5), "float16", 0.5),
        (float("inf"), "float16", float("inf")),
        (-np.float32("inf"), "float16", -float("inf")),
        (True, "bool", True),
        (np.bool_(False), "bool", False),
    ],
)
def test_numbers_that_fit(value: Any, dtype: str, expected: Any) -> None:
    assert Value(dtype).fit(value) == expected
    assert Optional(Value(dtype)).fit(value) == expected


def test_nan_fits_every_float() -> None:
    assert all(np.isnan(Value(dtype).fit(np.nan)) for dtype in ("float16", "float32", "float64"))


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (128, "int8", "expected int8, got int 128, which is out of range"),
        (np.int64(-129), "int8", "expected int8, got int64 -129, which is out of range"),
        (-1, "uint8", "expected uint8, got int -1, which is out of range"),
        (2**64, "uint64", f"expected uint64, got int {2**64}, which is out of range"),
        (1e39, "float32", r"expected float32, got float 1e\+39, which is out of range"),
        (10**400, "float64", r"expected float64, got int 1\d*\.\.\.\d*, which is out of range"),
        (1.0, "int8", "expected int8, got float 1.0"),
        (np.float32(1), "int8", "expected int8, got float32 1.0"),
        (True, "int8", "expected int8, got bool True"),
        (np.bool_(True), "float32", "expected float32, got bool True"),
        (1, "bool", "expected bool, got int 1"),
        ("1", "int8", "expected int8, got str '1'"),
        (None, "int8", "expected int8, got none"),
        (np.zeros(1), "float64", r"expected float64, got float64\[1\]"),
        (np.timedelta64(5, "ns"), "int64", "expected int64, got timedelta64"),
        (1j, "float64", "expected float64, got complex 1j"),
    ],
)
def test_numbers_that_do_not_fit(value: Any, dtype: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Value(dtype).fit(value)


def test_classes() -> None:
    assert [PETS.fit(value) for value in ("dog", 0, np.uint8(1), np.array(1))] == [1, 0, 1, 1]
    for value, message in [
        ("cow", "expected one of the classes cat, dog, got 'cow'"),
        (2, "expected a class number below 2, got 2"),
        (np.array(2), "expected a class number below 2, got 2"),
        (-1, "expected a class number below 2, got -1"),
        (True, "expected class of 2, got bool True"),
        (1.0, "expected class of 2, got float 1.0"),
        (None, "expected class of 2, got none"),
    ]:
        with pytest.raises(SchemaError, match=message):
            PETS.fit(value)


@pytest.mark.parametrize(
    ("value", "feature", "expected"),
    [
        ([1, 2], Array("float32", (2,)), np.array([1, 2], np.float32)),
        ((0.1, 2), Array("float16", (2,)), np.array([0.1, 2], np.float16)),
        (range(3), Array("uint8", (None,)), np.arange(3, dtype=np.uint8)),
        ([1, 2j], Array("complex64", (2,)), np.array([1, 2j], np.complex64)),
        ([True], Array("bool", (1,)), np.array([True])),
        ([np.inf, np.nan], Array("float16", (2,)), np.array([np.inf, np.nan], np.float16)),
        ([], Array("int8", (None,)), np.zeros(0, np.int8)),
        ([], Array("int8", (None, 2)), np.zeros((0, 2), np.int8)),
        ([[], []], Array("int8", (2, 0)), np.zeros((2, 0), np.int8)),
        (3, Array("int8", ()), np.array(3, np.int8)),
        (np.float32(3), Array("float64", ()), np.array(3.0)),
        (np.arange(2, dtype=">i2"), Array("int16", (2,)), np.arange(2, dtype=np.int16)),
        (np.arange(2, dtype=np.uint8), Array("float32", (2,)), np.arange(2, dtype=np.float32)),
        (np.array([0.1, np.inf]), Array("float32", (2,)), np.array([0.1, np.inf], np.float32)),
        (np.array([2**24 + 1, 0]), Array("float32", (2,)), np.array([2**24, 0], np.float32)),
        (np.array([0, 255]), Array("uint8", (None,)), np.array([0, 255], np.uint8)),
        (np.zeros((0, 2)), Array("float32", (None, 2)), np.zeros((0, 2), np.float32)),
        (np.zeros((2, 3), np.int8).T, Array("int8", (3, None)), np.zeros((3, 2), np.int8)),
        (np.array(["2020-01-01"], "M8[D]"), Array("datetime64[us]", (1,)), np.array(["2020-01-01"], "M8[us]")),
        (np.ma.masked_array([1, 2], mask=[False, False]), Array("int64", (2,)), np.array([1, 2])),
        (np.array(["a"]), Array(), np.array(["a"])),
        ([1.5], Array(), np.array([1.5])),
    ],
)
def test_arrays_that_fit(value: Any, feature: Array, expected: Any) -> None:
    found = fit_array(value, feature)
    assert type(found) is np.ndarray
    assert DictSample(x=found) == {"x": expected}


@pytest.mark.parametrize(
    ("value", "feature", "message"),
    [
        ([1, 2, 3], Array("int8", (2,)), r"expected int8\[2\], got int64\[3\]$"),
        ([[1], [2]], Array("int8", (2,)), r"expected int8\[2\], got int64\[2, 1\]$"),
        (
            [[1], [2, 3]],
            Array("int8", (2,)),
            r"got list \[\[1\], \[2, 3\]\] that cannot become an array: rows of different",
        ),
        (
            [1, 300],
            Array("int8", (2,)),
            r"expected int8\[2\], got list \[1, 300\] with values from 1 to 300, which are out of range$",
        ),
        ([1.5], Array("int8", (1,)), r"expected int8\[1\], got list \[1.5\]$"),
        (
            [1e39],
            Array("float32", (1,)),
            r"expected float32\[1\], got list \[1e\+39\] with values from 1e\+39 to 1e\+39, which are out of range$",
        ),
        ([2**70], Array("float32", (1,)), r"expected float32\[1\], got list"),
        (["1"], Array("float32", (1,)), r"expected float32\[1\], got list \['1'\]$"),
        (["1"], Array(), r"expected any\[...\], got list \['1'\]$"),
        ([None], Array("float32", (1,)), r"expected float32\[1\], got list \[None\]$"),
        (None, Array("float32", (1,)), r"expected float32\[1\], got none$"),
        ("text", Array("float32", (1,)), r"expected float32\[1\], got str 'text'$"),
        (
            np.array([0, 1e39]),
            Array("float32", (2,)),
            r"float64\[2\] with values from 0.0 to 1e\+39, which are out of ra",
        ),
        (
            np.array([-1, 300]),
            Array("uint8", (2,)),
            r"got int64\[2\] with values from -1 to 300, which are out of range$",
        ),
        (np.zeros(2), Array("int64", (2,)), r"got float64\[2\] \(to accept the loss: .astype\('int64'\)\)$"),
        (np.zeros(2, "c8"), Array("float32", (2,)), r"got complex64\[2\] \(to accept the loss"),
        (np.zeros(2, "i1"), Array("bool", (2,)), r"got int8\[2\] \(to accept the loss"),
        (np.zeros(3), Array("float32", (2,)), r"expected float32\[2\], got float64\[3\]$"),
        (np.array([None]), Array(), r"expected any\[...\], got object\[1\]$"),
        (np.ma.masked_array([1.0], mask=[True]), Array("float64", (1,)), "got a masked array; fill it first"),
        (datetime.date(2020, 1, 1), Array("datetime64[us]", ()), "got date datetime.date"),
    ],
)
def test_arrays_that_do_not_fit(value: Any, feature: Array, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        fit_array(value, feature)


def test_an_object_that_fails_to_convert_is_refused() -> None:
    class Odd:
        def __array__(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("on another device")

    with pytest.raises(SchemaError, match=r"got Odd .* that cannot become an array: on another device"):
        fit_array(Odd(), Array("float32", (1,)))


@pytest.mark.parametrize(
    ("value", "feature", "message"),
    [
        (1, Text(), "expected text, got int 1"),
        ("a", Bytes(), "expected bytes, got str 'a'"),
        ("ab", Sequence(Text()), "expected list of text, got str 'ab'"),
        ({"a"}, Sequence(Text()), "expected list of text, got set {'a'}"),
        ({"a": 1}, Sequence(Text()), "expected list of text, got dict {'a': 1}"),
        (np.array(1), Sequence(Value("int8")), r"expected list of int8, got int64\[\]"),
        ([1, "a"], Sequence(Value("int8")), "expected int8, got str 'a'"),
        ([("x", 1)], Struct(Features.of({"x": "int8"})), r"expected struct of \(x int8\), got list \[\('x', 1\)\]"),
        ({"x": 1, "y": 2}, Struct(Features.of({"x": "int8"})), r"expected struct of \(x int8\), got 'y' too"),
        ({}, Struct(Features.of({"x": "int8"})), r"expected int8, got nothing \(declare a field .*\) \(in x\)"),
        ({"x": "a"}, Struct(Features.of({"x": "int8"})), r"expected int8, got str 'a' \(in x\)"),
        (MISSING, Json(), "expected json, got nothing"),
    ],
)
def test_other_values_that_do_not_fit(value: Any, feature: Feature, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        feature.fit(value)


def test_nested_values() -> None:
    feature = Sequence(Struct(Features.of({"x": Array("int8", (2,)), "note": str | None})))
    assert DictSample(v=feature.fit(({"x": [1, 2]},))) == {"v": [{"x": np.array([1, 2], np.int8), "note": None}]}
    assert Optional(Text()).fit(MISSING) is None
    assert Bytes().fit(bytearray(b"ab")) == b"ab"
    assert Sequence(Array("int64", (2,))).fit(np.array([[1, 2]]))[0].tolist() == [1, 2]


def test_stored_forms() -> None:
    assert np.isnan(Value("float32").fit(None, stored=True))
    assert np.array_equal(Array("float32", (2,)).fit([1, None], stored=True), [1, np.nan], equal_nan=True)
    assert Array("int16", (1,)).fit(b"\x03<i2\x01\x01\0\0\0\0\0\0\0\x05\0", stored=True) == [5]
    assert Struct(Features.of({"x": "int8"})).fit({"x": 1, "more": 2}, stored=True) == {"x": 1}
    bad: list[tuple[Any, Feature]] = [
        (None, Value("int8")),
        ([1, None], Array("int8", (2,))),
        (["a", None], Array("float32", (2,))),
    ]
    for value, feature in bad:
        with pytest.raises(SchemaError, match="expected"):
            feature.fit(value, stored=True)


@settings(deadline=None)
@given(st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner, max_size=30)))
def test_descriptions_stay_short(value: Any) -> None:
    assert len(describe([value] * 100)) <= 120
