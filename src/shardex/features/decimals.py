"""Decimal numbers as whole numbers of their last digit, the form in which Arrow stores them, and back."""

from __future__ import annotations

import decimal
import reprlib
from typing import Any

import numpy as np

from shardex.errors import SchemaError
from shardex.features.leaf_features import Decimal

_EXACT = decimal.Context(prec=1000, traps=[decimal.InvalidOperation, decimal.Inexact])


def unscaled(value: Any, feature: Decimal, *, stored: bool = False) -> int:
    """Return a decimal number as whole number of its last digit; with `stored` it may also be text.

    >>> import decimal
    >>> unscaled(decimal.Decimal("1.5"), Decimal(5, 2)), unscaled(-3, Decimal(5, 2))
    (150, -300)
    """
    number = _to_decimal(value, feature, stored)
    try:
        scaled = _EXACT.scaleb(number, feature.scale)
        whole = int(_EXACT.to_integral_exact(scaled))
    except (decimal.Inexact, decimal.InvalidOperation):
        digits = f"{feature.scale} digits after the point"
        raise SchemaError(f"expected {feature}, got {value!r:.80}, which has more than {digits}") from None
    if abs(whole) >= 10**feature.precision:
        raise SchemaError(f"expected {feature}, got {value!r:.80}, which has more than {feature.precision} digits")
    return whole


def _to_decimal(value: Any, feature: Decimal, stored: bool) -> decimal.Decimal:
    if isinstance(value, np.integer):
        value = int(value)
    if stored and isinstance(value, str):
        try:
            value = decimal.Decimal(value)
        except decimal.InvalidOperation:
            raise SchemaError(f"expected {feature}, got the text {reprlib.repr(value)}") from None
    if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal):
        hint = " (a float is not exact: use Decimal(str(x)))" if isinstance(value, float | np.floating) else ""
        raise SchemaError(f"expected {feature}, got {type(value).__name__} {reprlib.repr(value)}{hint}")
    if isinstance(value, decimal.Decimal) and not value.is_finite():
        raise SchemaError(f"expected {feature}, got {value}, which is not a number that it can hold")
    return decimal.Decimal(value)


def scaled(whole: int, feature: Decimal) -> decimal.Decimal:
    """Return the decimal number of a whole number of its last digit.

    >>> scaled(150, Decimal(5, 2))
    Decimal('1.50')
    """
    return decimal.Decimal((whole < 0, tuple(map(int, str(abs(whole)))), -feature.scale))


def digits_of(value: decimal.Decimal) -> tuple[int, int]:
    """Return the number of digits before and after the point.

    >>> digits_of(decimal.Decimal("12.50")), digits_of(decimal.Decimal("1E3"))
    ((2, 2), (4, 0))
    """
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise SchemaError(f"expected a decimal number, got {value}")
    return max(len(digits) + exponent, 1), max(-exponent, 0)
