"""`Time`: a time of day."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features.feature import ArrowParts, Feature
from shardex.features.time_feature import (
    DAY,
    PER_SECOND,
    TimeFeature,
    check_unit,
    is_missing_time,
    numpy_nanoseconds,
    unrepresentable,
)

_ISO_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")


@dataclass(frozen=True, slots=True)
class Time(TimeFeature):
    """A time of day: `datetime.time` in samples, timedelta64 since midnight in columns, and in samples for `ns`.

    >>> str(Time("ms"))
    'time[ms]'
    """

    kind: ClassVar[str] = "time"
    unit: str = "us"

    def __post_init__(self) -> None:
        check_unit(self.unit)

    def __str__(self) -> str:
        return f"time[{self.unit}]"

    @property
    def dtype(self) -> str:
        """The dtype timedelta64 with the unit."""
        return f"timedelta64[{self.unit}]"

    @property
    def storage(self) -> str:
        """The dtype int32 for seconds and milliseconds, else int64."""
        return "int32" if self.unit in ("s", "ms") else "int64"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return times; numpy values for nanoseconds."""
        plain = np.asarray(column)
        if self.unit == "ns":
            return list(plain)
        return [self._time(one, plain[k]) for k, one in enumerate(plain.astype("m8[us]").view(np.int64).tolist())]

    def _time(self, microseconds: int, value: Any) -> dt.time:
        seconds, rest = divmod(microseconds, 10**6)
        if not 0 <= seconds < DAY:
            raise unrepresentable(self, value)
        return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)

    def number(self, value: Any) -> int:
        """Return the number of units since midnight."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.timedelta64):
            nanoseconds = numpy_nanoseconds(value)
        elif isinstance(value, dt.time) and value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            nanoseconds = (seconds * 10**6 + value.microsecond) * 1000
        else:
            raise self._unfit(value, " with a time zone" if isinstance(value, dt.time) else "")
        return self._exact(nanoseconds, value, range(DAY * PER_SECOND[self.unit]))

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text."""
        seconds, rest = divmod(self.number(value), PER_SECOND[self.unit])
        digits = len(str(PER_SECOND[self.unit])) - 1
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"{clock}.{rest:0{digits}d}" if digits else clock

    def stored_number(self, value: Any) -> int | None:
        """Return the number of ISO 8601 text."""
        if not isinstance(value, str):
            return None
        if (found := _ISO_TIME.fullmatch(value)) is None:
            raise SchemaError(f"expected {self} as ISO 8601 text, got {value!r:.80}")
        seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3] or 0)
        nanoseconds = seconds * 10**9 + int((found[4] or "").ljust(9, "0"))
        return self._exact(nanoseconds, value, range(DAY * PER_SECOND[self.unit]))

    # -- as a feature -----------------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `datetime.time`."""
        return cls() if hint is dt.time else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a time of day without a time zone."""
        return cls() if isinstance(value, dt.time) and value.tzinfo is None else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of times of 32 and 64 bits."""
        return cls(kind.unit) if pa.types.is_time(kind) else None

    def arrow_type(self) -> pa.DataType:
        """Return the type time32 for seconds and milliseconds, else time64."""
        return pa.time32(self.unit) if self.unit in ("s", "ms") else pa.time64(self.unit)
