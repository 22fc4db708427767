"""Decimal numbers: exact conversion, refusals, inference."""

from __future__ import annotations

from decimal import Decimal as Number
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import SchemaError
from shardex.features import Decimal, infer
from shardex.features.decimals import scaled, unscaled


@given(st.decimals(allow_nan=False, allow_infinity=False, places=9, min_value=-(10**60), max_value=10**60))
def test_whole_numbers_of_the_last_digit_are_exact(value: Number) -> None:
    feature = Decimal(76, 9)
    assert scaled(unscaled(value, feature), feature) == value == feature.fit(str(value), stored=True)


def test_integers_and_the_scale() -> None:
    assert str(Decimal(5, 2).fit(3)) == "3.00" and str(Decimal(5, 2).fit(np.int8(-3))) == "-3.00"
    assert Decimal(5, -2).fit(Number("1E3")) == 1000 and unscaled(Number("1E3"), Decimal(5, -2)) == 10


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Number("1.234"), "more than 2 digits after the point"),
        (Number(1000), "more than 5 digits"),
        (Number("NaN"), "not a number that it can hold"),
        (Number("Infinity"), "not a number that it can hold"),
        (1.5, r"a float is not exact: use Decimal\(str\(x\)\)"),
        (True, "got bool"),
        ("1.5", "got str"),
    ],
)
def test_values_that_do_not_fit(value: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        Decimal(5, 2).fit(value)


def test_bad_text_and_bad_declarations() -> None:
    with pytest.raises(SchemaError, match="got the text 'x'"):
        Decimal(5, 2).fit("x", stored=True)
    for wrong in ((0, 0), (77, 0), ("5", 0)):
        with pytest.raises(SchemaError, match="expected a precision from 1 to 76"):
            Decimal(*wrong)


def test_inference() -> None:
    assert infer([{"x": Number("1.5")}, {"x": Number("22.25")}])["x"] == Decimal(38, 2)
    assert infer([{"x": Number("1" * 40)}, {"x": Number("0.5")}])["x"] == Decimal(76, 1)
    with pytest.raises(SchemaError, match="expected decimal numbers of 76 digits, got 90"):
        infer([{"x": Number("1" * 90)}])
