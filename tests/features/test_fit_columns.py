"""Columns of values: the form depends on the feature alone, and every value is converted as `fit` converts it."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from shardex.errors import SchemaError
from shardex.features import Array, ClassLabel, Date, Feature, Json, Optional, Text, Value, conversions, stack_arrays
from shardex.kernel import MISSING, Columns, Masked, Ragged

WHERE = "sample {}".format


def fitted(values: list[Any], feature: Feature) -> Any:
    return feature.fit_column(values, WHERE, "x", stored=False)


@pytest.mark.parametrize(
    ("values", "feature", "kind"),
    [
        ([1, 2], Value("int8"), np.ndarray),
        (["a", "b"], ClassLabel(("a", "b")), np.ndarray),
        ([[1, 2], [3, 4]], Array("int8", (2,)), np.ndarray),
        ([[1, 2], [3, 4]], Array("int8", (None,)), Ragged),
        ([np.zeros((1, 2)), np.zeros((1, 2))], Array("float64", (None, None)), Ragged),
        ([np.zeros(2), np.zeros(2)], Array("float64"), list),
        ([np.zeros(()), np.zeros(())], Array("float64", ()), list),
        (["a", "b"], Text(), list),
        ([1, "a"], Json(), list),
        ([datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)], Date(), np.ndarray),
    ],
    ids=str,
)
def test_form_of_a_column(values: list[Any], feature: Feature, kind: type) -> None:
    assert isinstance(Columns({"x": fitted(values, feature)}, 2)["x"], kind) and len(fitted([], feature)) == 0
    for some in (values, [values[0], None], [MISSING, None], []):
        column: Any = fitted(some, Optional(feature))
        form: type[Any] = list if kind is list else Masked
        assert type(column) is form
        if kind is not list:
            assert column.mask.tolist() == [one is not None and one is not MISSING for one in some]
            assert isinstance(column.values, kind)


def test_errors_name_the_sample_among_missing_ones() -> None:
    with pytest.raises(SchemaError, match="got int 300, which is out of range - at sample 3, field x"):
        fitted([None, 1, None, 300], Optional(Value("int8")))
    with pytest.raises(SchemaError, match="expected int8, got none - at sample 1, field x"):
        fitted([1, None], Value("int8"))


def test_lengths_of_arrays_with_several_free_sizes_are_shapes_even_if_they_are_equal() -> None:
    for arrays in ([np.zeros((1, 2))] * 2, [np.zeros((1, 2)), np.zeros((2, 1))], []):
        column = stack_arrays(arrays, Array("float64", (None, None)))
        assert isinstance(column, Ragged) and column.shapes is not None
        assert column.shapes.tolist() == [[*one.shape] for one in arrays]


def test_cast_column_of_optional_values() -> None:
    masked = Masked.spread(np.array([1, 2], np.int8), np.array([True, False, True]))
    wide = Optional(Value("int16")).cast_column(masked)
    assert isinstance(wide, Masked) and wide == [1, None, 2] and wide.dtype == np.int16
    assert Value("int16").cast_column(masked) is None
    whole = Optional(Value("int16")).cast_column(np.array([1], np.int8))
    assert isinstance(whole, Masked) and whole == [1]


def test_columns_in_the_form_of_inferred_features() -> None:
    features = {
        "n": Optional(Value("int64")),
        "f": Value("float64"),
        "a": Array("int64", (None,)),
        "s": Optional(Text()),
    }
    plain = Columns({"n": [1, 2], "f": [1, 2], "a": [np.arange(2), np.arange(2)], "s": ["a", None]}).stack()
    found = conversions.in_form(plain, features)
    assert found["n"] == [1, 2] and isinstance(found["n"], Masked) and found["f"].dtype == np.float64
    assert isinstance(found["a"], Ragged) and found["s"] == ["a", None]
    assert conversions.in_form(Columns({"n": [None, MISSING]}), features)["n"].mask.tolist() == [False, False]
    assert (
        conversions.in_form(Columns({"f": np.array([2**53 + 1])}), features)["f"].dtype == np.int64
    )  # no float has this value


@pytest.mark.parametrize(
    ("found", "inferred"),
    [("int8", "int16"), ("int64", "uint64"), ("float32", "float64"), ("uint8", "float32"), ("int64", "float64")],
)
def test_numbers_have_the_dtype_of_the_feature_in_every_batch(found: str, inferred: str) -> None:
    for feature in (Value(inferred), Optional(Value(inferred))):
        column = conversions.in_form(Columns({"x": np.array([1, 2], found)}), {"x": feature})["x"]
        assert column.dtype == inferred and column.tolist() == [1, 2]


def test_numbers_that_the_dtype_does_not_hold_stay() -> None:
    for found, inferred in [([-1], "uint64"), ([300], "int8"), ([1.5], "int64"), ([True], "int64")]:
        column = np.array(found)
        assert conversions.in_form(Columns({"x": column}), {"x": Value(inferred)})["x"] is column
