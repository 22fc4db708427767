"""`Duration`: a time span."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.features.feature import ArrowParts, Feature
from shardex.features.time_feature import (
    UNITS,
    TimeFeature,
    all_of,
    check_unit,
    finer,
    is_missing_time,
    nanoseconds_of,
    numpy_nanoseconds,
    numpy_unit,
)


@dataclass(frozen=True, slots=True)
class Duration(TimeFeature):
    """A time span: `datetime.timedelta` in samples, for `ns` a `numpy.timedelta64`; timedelta64 in columns.

    >>> str(Duration("s"))
    'duration[s]'
    """

    kind: ClassVar[str] = "duration"
    unit: str = "us"

    def __post_init__(self) -> None:
        check_unit(self.unit)

    def __str__(self) -> str:
        return f"duration[{self.unit}]"

    @property
    def dtype(self) -> str:
        """The dtype timedelta64 with the unit."""
        return f"timedelta64[{self.unit}]"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return time spans; numpy values for nanoseconds."""
        plain = np.asarray(column)
        return list(plain) if self.unit == "ns" else all_of(dt.timedelta, plain.tolist(), self, plain)

    def number(self, value: Any) -> int:
        """Return the number of units."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.timedelta64):
            return self._exact(numpy_nanoseconds(value), value)
        if not isinstance(value, dt.timedelta):
            raise self._unfit(value)
        return self._exact(nanoseconds_of(value), value)

    def text(self, value: Any) -> Any:
        """Return the number of units."""
        return self.number(value)

    def stored_number(self, value: Any) -> int | None:
        """Return a whole number."""
        return value if type(value) is int else None

    # -- as a feature -----------------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `datetime.timedelta`, and of the dtypes timedelta64 of the units."""
        if isinstance(hint, str) and (unit := hint.removeprefix("timedelta64[")[:-1]) in UNITS:
            return cls(unit) if hint == f"timedelta64[{unit}]" else None
        return cls() if hint is dt.timedelta else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a time span of `datetime`, numpy or pandas."""
        if isinstance(value, np.timedelta64):
            return cls(numpy_unit(value))
        if not isinstance(value, dt.timedelta):
            return None
        return cls("ns" if getattr(value, "nanoseconds", 0) else "us")  # pandas has them

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of durations of any unit."""
        return cls(kind.unit) if pa.types.is_duration(kind) else None

    def join(self, other: Feature) -> Feature | None:
        """Return the finer unit."""
        return Duration(finer(self.unit, other.unit)) if isinstance(other, Duration) else None

    def arrow_type(self) -> pa.DataType:
        """Return the type duration with the unit."""
        return pa.duration(self.unit)
