"""`Opaque`: an Arrow type that has no feature of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from shardex.errors import SchemaError
from shardex.features.feature import Feature, unfit
from shardex.kernel import MISSING


@dataclass(frozen=True, slots=True)
class Opaque(Feature):
    """An Arrow type that has no feature of its own (unions, intervals); read as Python values, never written."""

    kind: ClassVar[str] = "opaque"
    type: str

    def __str__(self) -> str:
        return self.type

    @property
    def opaque(self) -> bool:
        """True: there is no feature of its own."""
        return True

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the value."""
        if value is MISSING:
            raise unfit(self, value)
        return value

    def blank(self) -> Any:
        """Return None."""
        return None

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for all types."""
        return True

    def file_extension(self, field: str) -> str:
        """Raise an error: opaque values are not written."""
        raise SchemaError(f"expected a feature that can be written, got {self} - at field {field}")

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the array."""
        return array
