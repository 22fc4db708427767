"""`Null`: no value."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.columns import Encoder, Nulls
from shardex.errors import SchemaError
from shardex.features.feature import ArrowParts, Feature, describe, hf_value
from shardex.kernel import MISSING, Column, Integers


@dataclass(frozen=True, slots=True)
class Null(Feature):
    """No value: every sample has `None`."""

    kind: ClassVar[str] = "null"
    nullable: ClassVar[bool] = True
    takes_none: ClassVar[bool] = True

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of the type of None."""
        return cls() if hint is types.NoneType else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of the type null."""
        return cls() if pa.types.is_null(kind) else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return None; any other value is an error."""
        if value is not None and value is not MISSING:
            raise SchemaError(f"expected none, got {describe(value)}")

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for None."""
        return lambda value: value is None

    def blank(self) -> Any:
        """Return None."""
        return None

    def arrow_type(self) -> pa.DataType:
        """Return the type null."""
        return pa.null()

    def encoder(self) -> Encoder:
        """Return an encoder that counts nulls."""
        return Nulls(self.fit)

    def sizes(self, array: pa.Array) -> Integers:
        """Return zeros: nulls take no bytes."""
        return np.zeros(len(array) + 1, np.int64)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of None."""
        return [None] * len(array)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for nulls."""
        return hf_value("null")
