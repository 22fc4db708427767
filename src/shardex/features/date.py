"""`Date`: a day."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features.feature import ArrowParts, Feature, hf_value
from shardex.features.time_feature import (
    DAY,
    EPOCH,
    INT32,
    TimeFeature,
    all_of,
    is_missing_time,
    numpy_nanoseconds,
)

_ISO_DATE = re.compile(r"[+-]?\d{4,}-\d\d-\d\d")


@dataclass(frozen=True, slots=True)
class Date(TimeFeature):
    """A day: `datetime.date` in samples, datetime64[D] in columns."""

    kind: ClassVar[str] = "date"

    @property
    def dtype(self) -> str:
        """The dtype datetime64 in days."""
        return "datetime64[D]"

    @property
    def storage(self) -> str:
        """The dtype int32."""
        return "int32"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return dates."""
        plain = np.asarray(column)
        return all_of(dt.date, plain.tolist(), self, plain)

    def number(self, value: Any) -> int:
        """Return the number of days since 1970."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.datetime64):
            days, rest = divmod(numpy_nanoseconds(value), DAY * 10**9)
            if rest:
                raise self._unfit(value, ", which has a time of day")
            return self._within(days, value, INT32)
        if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
            raise self._unfit(value, " (use .date())" if isinstance(value, dt.datetime) else "")
        return value.toordinal() - EPOCH.toordinal()

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text."""
        return str(np.datetime64(self.number(value), "D"))

    def stored_number(self, value: Any) -> int | None:
        """Return the number of ISO 8601 text."""
        if not isinstance(value, str):
            return None
        if _ISO_DATE.fullmatch(value):
            return self.number(np.datetime64(value, "D"))
        raise SchemaError(f"expected {self} as ISO 8601 text, got {value!r:.80}")

    # -- as a feature -----------------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `datetime.date`, and of the dtype datetime64[D]."""
        return cls() if hint is dt.date or hint in ("date", "datetime64[D]") else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a date of `datetime`, and of days, weeks, months and years of numpy."""
        if isinstance(value, np.datetime64):
            return cls() if np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D") else None
        return cls() if isinstance(value, dt.date) and not isinstance(value, dt.datetime) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of dates of 32 and 64 bits."""
        return cls() if pa.types.is_date(kind) else None

    def arrow_type(self) -> pa.DataType:
        """Return the type date32."""
        return pa.date32()

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for dates of 32 and 64 bits."""
        return bool(pa.types.is_date(kind))

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for dates of 32 bits."""
        return hf_value("date32")
