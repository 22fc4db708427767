"""`Decimal`: decimal numbers, stored as whole numbers of their last digit."""

from __future__ import annotations

import decimal
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.columns import Encoder, encoders
from shardex.errors import SchemaError
from shardex.features.feature import ArrowParts, Convert, Feature, hf_value, unfit
from shardex.kernel import MISSING, Column

MAX_DIGITS = 76
"""Most digits of a decimal number: those of Arrow's decimal256."""
_NARROW_DIGITS = 38
"""Digits of decimal128, and of the longest decimal number of DuckDB."""
_EXACT = decimal.Context(prec=1000, traps=[decimal.InvalidOperation, decimal.Inexact])


@dataclass(frozen=True, slots=True)
class Decimal(Feature):
    """A decimal number of at most `precision` digits (up to 76), `scale` of them after the point.

    >>> str(Decimal(10, 2))
    'decimal(10, 2)'
    """

    kind: ClassVar[str] = "decimal"
    precision: int
    scale: int = 0

    def __post_init__(self) -> None:
        if not (isinstance(self.precision, int) and 1 <= self.precision <= MAX_DIGITS and isinstance(self.scale, int)):
            raise SchemaError(
                f"expected a precision from 1 to {MAX_DIGITS} and a whole number as scale, "
                f"got {self.precision!r} and {self.scale!r}"
            )

    def __str__(self) -> str:
        return f"decimal({self.precision}, {self.scale})"

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `decimal.Decimal` with 38 digits, 9 of them after the point."""
        return cls(38, 9) if hint is decimal.Decimal else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a decimal number."""
        return cls.of_values([value]) if isinstance(value, decimal.Decimal) else None

    @classmethod
    def of_values(cls, values: Iterable[decimal.Decimal]) -> Feature:
        """Return the feature of decimal numbers: 38 digits if that is enough, as many after the point as they have."""
        before, after = (max(counts) for counts in zip(*map(digits_of, values), strict=True))
        if before + after > MAX_DIGITS:
            raise SchemaError(f"expected decimal numbers of {MAX_DIGITS} digits, got {before + after}")
        return cls(_NARROW_DIGITS if before + after <= _NARROW_DIGITS else MAX_DIGITS, after)

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of decimal types of any width."""
        return cls(kind.precision, kind.scale) if pa.types.is_decimal(kind) else None

    def join(self, other: Feature) -> Feature | None:
        """Return the most digits of both."""
        if not isinstance(other, Decimal):
            return None
        return Decimal(max(self.precision, other.precision), max(self.scale, other.scale))

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a decimal number with all digits after the point."""
        return scaled(unscaled(value, self, stored=stored), self)

    def plain(self) -> Convert | None:
        """Return `str`: JSON holds decimal numbers as text."""
        return str

    def arrow_type(self) -> pa.DataType:
        """Return the type decimal128, with more than 38 digits decimal256."""
        kind = pa.decimal128 if self.precision <= _NARROW_DIGITS else pa.decimal256
        return kind(self.precision, self.scale)

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for decimal types of the same digits."""
        return pa.types.is_decimal(kind) and (kind.precision, kind.scale) == (self.precision, self.scale)

    def encoder(self) -> Encoder:
        """Return an encoder of whole numbers of the last digit."""
        return encoders.WideUnits(self.arrow_type(), lambda value: unscaled(value, self))

    def from_arrow(self, array: pa.Array) -> Column:
        """Return decimal numbers."""
        return list(array.to_pylist())

    def queryable(self, *, inside: bool = False) -> bool:
        """Return True for numbers of at most 38 digits."""
        return self.precision <= _NARROW_DIGITS

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for the Arrow type."""
        return hf_value(str(self.arrow_type()))


def unscaled(value: Any, feature: Decimal, *, stored: bool = False) -> int:
    """Return a decimal number as whole number of its last digit; with `stored` it may also be text.

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
    if value is MISSING:
        raise unfit(feature, value)
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
