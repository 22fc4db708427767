"""Features inferred from samples."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image
import pytest

from shardex.errors import SchemaError
from shardex.features import (
    Array,
    Audio,
    Bytes,
    Date,
    Decimal,
    Duration,
    Feature,
    Features,
    Image,
    Inferred,
    Json,
    Optional,
    Sequence,
    Struct,
    Text,
    Timestamp,
    Value,
    Video,
    infer,
)

INT, FLOAT = Value("int64"), Value("float64")


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([True], Value("bool")),
        ([1, 2], INT),
        ([1, 2.5], FLOAT),
        ([np.int8(1), np.int16(1)], Value("int16")),
        ([np.float32(1), np.float32(2)], Value("float32")),
        ([np.float32(1), 1.5], FLOAT),
        (["a", np.str_("b")], Text()),
        ([b"a", bytearray(b"b"), memoryview(b"c")], Bytes()),
        ([[1, 2], {"a": 1}, (3,)], Json()),
        ([[1.0, 2.0], []], Array("float64", (None,))),
        ([[1, 2], (3,)], Array("int64", (None,))),
        ([[1], [2.5]], Array("float64", (None,))),
        ([[2**64 - 1], [0]], Array("uint64", (None,))),
        ([[2**64]], Json()),
        ([[-1, 2**63]], Json()),
        ([[True], [False]], Array("bool", (None,))),
        ([[True, 1]], Json()),
        ([[np.float32(1)], [np.float32(2)]], Array("float32", (None,))),
        ([[[1, 2]], [[3, 4], [5, 6]], []], Array("int64", (None, 2))),
        ([[[1]], [[3, 4]]], Sequence(Array("int64", (None,)))),
        ([[[1], []], [[3.5, 4]]], Sequence(Array("float64", (None,)))),
        ([[[[1, 2]]], [[[3, 4]]]], Array("int64", (None, 1, 2))),
        ([["a"], []], Sequence(Text())),
        ([["a", None], []], Sequence(Optional(Text()))),
        ([[1, None]], Sequence(Optional(INT))),
        ([[b"a"], [b""]], Sequence(Bytes())),
        ([[np.zeros(2, "i2")], [np.zeros(3, "i2")]], Sequence(Array("int16", (None,)))),
        ([[datetime.date(2020, 1, 1)]], Sequence(Date())),
        ([[], []], Json()),
        ([[[]], [[], []]], Json()),
        ([[1, "a"]], Json()),
        ([[{"a": 1}]], Sequence(Struct({"a": int}))),
        ([[{"a": 1}], [{"b": 1}]], Json()),
        ([{"a": 1, "b": None}, {"b": "x", "a": 2}], Struct({"a": int, "b": str | None})),
        ([{"a": {"b": np.array([1], "i2")}}, None], Optional(Struct({"a": Struct({"b": Array("int16", (1,))})}))),
        ([{"a": 1}, {"a": "x"}], Json()),
        ([{"a": 1}, {"a": 1, "b": 2}], Json()),
        ([{"a": 1, "b": None}, {"a": 2, "b": None}], Json()),
        ([{"a": [1, "x"]}], Json()),
        ([{}], Json()),
        ([{1: "a"}], Json()),
        ([{"": "a"}], Json()),
        ([{f"k{k}": k for k in range(300)}], Json()),
        ([Path("a.jpg"), Path("b.JPEG")], Image(format="jpeg")),
        ([Path("a.jpg"), Path("b.png")], Image()),
        ([Path("a.wav"), Path("b.mp3")], Audio()),
        ([Path("a.mp4"), None], Optional(Video())),
        ([[1], None], Optional(Array("int64", (None,)))),
        ([None, 1], Optional(INT)),
        ([1, 2**63], Value("uint64")),
        ([1, None, 2**64 - 1], Optional(Value("uint64"))),
        ([[1, None, 2**63]], Sequence(Optional(Value("uint64")))),
        ([-1, 2**63], INT),
        ([None], Optional(Json())),
        ([np.zeros(3, "f4"), np.zeros(3, "f4")], Array("float32", (3,))),
        ([np.zeros((3, 2)), np.zeros((4, 2))], Array("float64", (None, 2))),
        ([np.zeros((3, 2)), np.zeros((4, 2)), np.zeros((4, 3))], Array("float64", (None, None))),
        ([np.zeros(3), np.zeros((4, 2))], Array("float64")),
        ([np.zeros(3), np.zeros((4, 2)), np.zeros(3)], Array("float64")),
        ([np.zeros(3), np.zeros(3, "f4")], Array("float64", (3,))),
        ([np.zeros(3, "i2"), np.zeros(4, "i4"), np.zeros(3, "i2")], Array("int32", (None,))),
        ([np.zeros(3), np.zeros(3, "i8"), np.zeros(3)], Array()),
        ([np.zeros(3, "u8"), np.zeros(3, "i8")], Array()),
        ([2**53, 0.5], FLOAT),
        ([[2**60], [0.5]], Array("float64", (None,))),
        ([np.array(["a"])], Array()),
        ([np.zeros(3, ">f4")], Array()),
        ([np.zeros(3, "M8[s]")], Array("datetime64[s]", (3,))),
        ([np.array(1)], Array("int64", ())),
    ],
)
def test_infer(values: list[Any], feature: Feature) -> None:
    assert infer([{"x": value} for value in values]) == Features({"x": feature})


def test_infer_many_fields() -> None:
    assert infer([]) == Features({})
    assert infer([{"a": 1}, {"b": "x"}]) == Features({"a": Optional(INT), "b": Optional(Text())})


@pytest.mark.parametrize(
    "values",
    [[1, "a"], [True, 1], [[1], 1], [np.zeros(2), 1], [b"", ""], [{1, 2}], [object()], [1j], [np.array([None])]],
)
def test_samples_of_mixed_types_are_refused(values: list[Any]) -> None:
    with pytest.raises(SchemaError, match=r"at (sample 1, )?field x"):
        infer([{"x": value} for value in values])


@pytest.mark.parametrize(
    "values",
    [[2**53 + 1, 0.5], [0.5, np.int64(2**53 + 1)], [[2**53 + 1], [0.5]], [[0.5, 2**53 + 1]]],
)
def test_integers_that_float64_would_round_are_refused(values: list[Any]) -> None:
    with pytest.raises(SchemaError, match=r"float64 holds, got 9007199254740993, .* at field x"):
        infer([{"x": value} for value in values])
    assert Inferred.or_json([{"x": value} for value in values]).features["x"] == Json()


@pytest.mark.parametrize(
    ("values", "late", "feature"),
    [
        ([1], 2.5, FLOAT),
        ([1.5], 2, FLOAT),
        ([1], None, Optional(INT)),
        ([None], 1, Optional(INT)),
        ([None], "a", Optional(Text())),
        ([None], [], Optional(Json())),
        ([None], [1], Optional(Array("int64", (None,)))),
        ([[]], [1], Array("int64", (None,))),
        ([[]], ["a"], Sequence(Text())),
        ([[[]]], [["a"]], Sequence(Sequence(Text()))),
        ([[1]], [2.5], Array("float64", (None,))),
        ([[1]], [None], Sequence(Optional(INT))),
        ([["a"]], ["b", None], Sequence(Optional(Text()))),
        ([["a"]], [], Sequence(Text())),
        ([[[1, 2]]], [[1], [2, 3]], Sequence(Array("int64", (None,)))),
        ([[[1, 2]]], [[1, 2, 3]], Array("int64", (None, None))),
        ([{"a": 1}], None, Optional(Struct({"a": int}))),
        ([{"a": 1}], [1, "a"], Json()),
        ([np.zeros(3, "f4")], np.zeros(4, "f4"), Array("float32", (None,))),
        ([np.zeros(3, "f4")], np.zeros((4, 1), "f4"), Array("float32")),
        ([np.zeros(3, "f4")], np.zeros(3), Array("float64", (3,))),
        ([np.zeros(3, "f4")], [0.1], Array("float64", (None,))),
        ([np.zeros(3, "i8")], np.zeros(3), Array()),
        ([np.float32(1)], 0.1, FLOAT),
        ([np.int8(1)], 1000, INT),
        ([np.datetime64("2024-01-01", "s")], np.datetime64("2024-01-01T00:00:00.5", "ms"), Timestamp("ms")),
        ([datetime.date(2024, 1, 31)], pd.NaT, Optional(Date())),
        ([decimal.Decimal("1.5")], decimal.Decimal("1.25"), Decimal(38, 2)),
    ],
)
def test_features_of_a_stream_become_wider(values: list[Any], late: Any, feature: Feature) -> None:
    found = Inferred.of([{"x": value} for value in values])
    wider = found.wider({"x": late})
    assert wider.features == Features({"x": feature})
    assert all(wider.checks.get("x", bool)(value) for value in [late, *values] if "x" in wider.checks)


def test_a_field_that_comes_late_is_optional() -> None:
    found = Inferred.of([{"x": 1}])
    assert found.wider({"y": "a"}).features == Features({"x": Optional(INT), "y": Optional(Text())})


@pytest.mark.parametrize(("value", "late"), [(1, "a"), ("a", 1), (1, True), ([1], ["a"]), (b"", ""), (1, [1])])
def test_other_kinds_do_not_make_features_wider(value: Any, late: Any) -> None:
    with pytest.raises(SchemaError, match=r"expected values of one kind, got .* and .* - at field x"):
        Inferred.of([{"x": value}]).wider({"x": late})


@pytest.mark.parametrize(
    ("values", "known", "new"),
    [
        ([None], [None], [0, "a", [], {}]),
        ([[]], [[], None], [[1], ["a"]]),
        ([np.float32(1)], [np.float32(2), None], [1.5, np.float64(0.1)]),
        ([[np.zeros(3, "f4")]], [[np.zeros(3, "f4"), np.zeros(3, "f4")]], [[np.zeros(3)]]),
        ([PIL.Image.new("L", (2, 2))], [PIL.Image.new("L", (3, 3))], [PIL.Image.new("RGB", (2, 2))]),
    ],
)
def test_values_that_writers_would_change_do_not_fit(values: list[Any], known: list[Any], new: list[Any]) -> None:
    found = Inferred.of([{"x": value} for value in values])
    assert all(map(found.checks["x"], known))
    assert not any(map(found.checks["x"], new))


def test_without_values() -> None:
    found = Inferred.of([{"a": None, "b": [], "c": 1, "d": {}}, {"a": None, "b": [[]], "c": None, "d": {}}])
    assert found.without_values == ["a", "b"]
    assert str(found.features) == "a json or none, b json, c int64 or none, d json"
    assert not Inferred.of([{"n": 1, "x": np.zeros(3)}]).checks


_LOWEST = np.array([-(1 << 63)])  # NaT as a time: one without a unit, which numpy deprecates


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([pd.NaT, None], Timestamp("us")),
        ([_LOWEST.view("M8")[0]], Timestamp("us")),
        ([_LOWEST.view("m8")[0]], Duration("us")),
        ([np.datetime64("NaT", "D")], Date()),
        ([np.timedelta64("NaT", "ms"), np.timedelta64("NaT", "s")], Duration("ms")),
        ([pd.NaT, datetime.date(2024, 1, 31)], Date()),
    ],
)
def test_a_field_of_missing_times_is_a_time(values: list[Any], feature: Feature) -> None:
    assert infer([{"x": value} for value in values])["x"] == Optional(feature)


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (pd.NA, r"got NAType \(give None"),
        ({1, 2}, r"got set \(make a list of it\)"),
        (range(3), r"got range \(make a list of it\)"),
        (1j, "got complex - at field x"),
    ],
)
def test_values_without_a_feature_raise_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(SchemaError, match=advice):
        infer([{"x": value}])


def test_tensors_are_arrays_and_numbers() -> None:
    import torch

    for values, feature in (
        ([torch.zeros(2, dtype=torch.int16)], Array("int16", (2,))),
        ([torch.zeros(2), np.zeros(2, "f4")], Array("float32", (2,))),
        ([torch.tensor(3), torch.tensor(4)], INT),
        ([torch.tensor(0.5)], Value("float32")),
        ([[torch.zeros(2)], [torch.zeros(2)]], Sequence(Array("float32", (2,)))),
    ):
        assert infer([{"x": value} for value in values])["x"] == feature
    with pytest.raises(SchemaError, match="cannot become an array: Got unsupported ScalarType BFloat16 - at field x"):
        infer([{"x": torch.zeros(2, dtype=torch.bfloat16)}])


def test_paths_that_are_no_media_say_what_to_do() -> None:
    with pytest.raises(
        SchemaError, match=r"'notes/a.txt', no image, audio or video \(pass what .*, or its name as str"
    ):
        infer([{"x": PurePosixPath("notes/a.txt")}])
    with pytest.raises(SchemaError, match=r"expected values of one kind, got image.* and audio"):
        infer([{"x": Path("a.png")}, {"x": Path("a.wav")}])


def test_decimal_that_is_no_number_names_the_field() -> None:
    with pytest.raises(SchemaError, match="expected a decimal number, got NaN - at field price"):
        infer([{"price": decimal.Decimal("NaN")}])
