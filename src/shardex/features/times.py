"""`Timestamp`, `Date`, `Time` and `Duration`: kinds of dates and times. `time_feature` has what they share."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError
from shardex.features.feature import ArrowParts, Feature, hf_value
from shardex.features.time_feature import (
    DAY,
    EPOCH,
    INT32,
    PER_SECOND,
    UNITS,
    TimeFeature,
    all_of,
    check_unit,
    finer,
    is_missing_time,
    nanoseconds_of,
    numpy_nanoseconds,
    numpy_unit,
    unrepresentable,
)

_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")
_ISO_TIMESTAMP = re.compile(r"[+-]?\d{4,}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?")


@dataclass(frozen=True, slots=True)
class Timestamp(TimeFeature):
    """A date with a time of day. With a `zone` ("UTC", "Europe/Berlin", "+02:00") it is an instant, stored in UTC.

    In samples a `datetime`, aware if there is a zone; for `ns` a `numpy.datetime64`, in UTC if there is a zone.
    Columns are datetime64 arrays, in UTC if there is a zone.

    >>> str(Timestamp("ms")), str(Timestamp(zone="Europe/Berlin"))
    ('timestamp[ms]', 'timestamp[us, Europe/Berlin]')
    """

    kind: ClassVar[str] = "timestamp"
    unit: str = "us"
    zone: str | None = None

    def __post_init__(self) -> None:
        check_unit(self.unit)
        if self.zone is not None and not (isinstance(self.zone, str) and self.zone):
            raise SchemaError(f'expected the name of a time zone such as "UTC", got {self.zone!r}')

    def __str__(self) -> str:
        return f"timestamp[{self.unit}{'' if self.zone is None else ', ' + self.zone}]"

    @property
    def dtype(self) -> str:
        """The dtype datetime64 with the unit."""
        return f"datetime64[{self.unit}]"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return datetimes; numpy values for nanoseconds."""
        plain = np.asarray(column)
        if self.unit == "ns":
            return list(plain)
        found = all_of(dt.datetime, plain.tolist(), self, plain)
        if self.zone is None:
            return found
        zone = time_zone(self.zone)
        if zone is dt.UTC:
            return [one.replace(tzinfo=zone) for one in found]
        try:
            return [one.replace(tzinfo=dt.UTC).astimezone(zone) for one in found]
        except OverflowError:
            return [self._in_zone(one, zone) for one in found]

    def _in_zone(self, one: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
        try:
            return one.replace(tzinfo=dt.UTC).astimezone(zone)
        except OverflowError:
            raise unrepresentable(self, one) from None

    def number(self, value: Any) -> int:
        """Return the number of units since 1970, in UTC if there is a zone."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.datetime64):
            return self._exact(numpy_nanoseconds(value), value)
        if not isinstance(value, dt.datetime):
            raise self._unfit(value)
        if (value.tzinfo is None) != (self.zone is None):
            raise self._unfit(value, _ZONE_HINTS[self.zone is None])
        if value.tzinfo is not None:
            shift = value.utcoffset() or dt.timedelta(0)
            since = value.replace(tzinfo=None) - EPOCH
        else:
            shift, since = dt.timedelta(0), value - EPOCH
        nanoseconds = nanoseconds_of(since) - nanoseconds_of(shift)
        return self._exact(nanoseconds, value)

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text; with a zone in UTC, ending in Z."""
        plain = self.column(np.array([self.number(value)]))
        return f"{np.datetime_as_string(plain)[0]}{'' if self.zone is None else 'Z'}"

    def stored_number(self, value: Any) -> int | None:
        """Return the number of ISO 8601 text."""
        if not isinstance(value, str):
            return None
        plain = value.removesuffix("Z") if self.zone else value
        if _ISO_TIMESTAMP.fullmatch(plain):
            return self.number(np.datetime64(plain))
        try:
            return self.number(dt.datetime.fromisoformat(value))
        except ValueError:
            raise SchemaError(f"expected {self} as ISO 8601 text, got {value!r:.80}") from None

    # -- as a feature -----------------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `datetime.datetime`, and of the dtypes datetime64 of the units."""
        if isinstance(hint, str) and (unit := hint.removeprefix("datetime64[")[:-1]) in UNITS:
            return cls(unit) if hint == f"datetime64[{unit}]" else None
        return cls() if hint is dt.datetime else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a date with a time of day of `datetime`, numpy or pandas."""
        if isinstance(value, np.datetime64):
            return None if np.datetime_data(value.dtype)[0] in ("Y", "M", "W", "D") else cls(numpy_unit(value))
        if not isinstance(value, dt.datetime):
            return None
        unit = "ns" if getattr(value, "nanosecond", 0) else "us"  # pandas has them
        return cls(unit, None if value.tzinfo is None else zone_name(value.tzinfo, value))

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of timestamps, with their unit and zone."""
        return cls(kind.unit, kind.tz or None) if pa.types.is_timestamp(kind) else None

    def join(self, other: Feature) -> Feature | None:
        """Return the finer unit, and UTC for instants of different zones."""
        if not isinstance(other, Timestamp) or (self.zone is None) != (other.zone is None):
            return None
        return Timestamp(finer(self.unit, other.unit), self.zone if self.zone == other.zone else "UTC")

    def arrow_type(self) -> pa.DataType:
        """Return the type timestamp with the unit and the zone."""
        return pa.timestamp(self.unit, self.zone)


_ZONE_HINTS = {
    True: ' with a time zone (declare Timestamp("us", "UTC"), or remove the zone by .replace(tzinfo=None))',
    False: " without a time zone (add one: .replace(tzinfo=datetime.timezone.utc))",
}


@lru_cache(256)
def time_zone(name: str) -> dt.tzinfo:
    """Return the time zone of an Arrow type: a name of the zone database, or an offset such as +02:00.

    >>> time_zone("UTC"), time_zone("-05:30")
    (datetime.timezone.utc, datetime.timezone(datetime.timedelta(days=-1, seconds=66600)))
    """
    if name.upper() in ("UTC", "Z"):
        return dt.UTC
    if found := _OFFSET.fullmatch(name):
        offset = dt.timedelta(hours=int(found[2]), minutes=int(found[3]))
        return dt.timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):
        raise FormatError(
            f"expected a time zone that this machine knows, got {name!r} (install tzdata; batches need no zone)"
        ) from None


def zone_name(zone: dt.tzinfo, value: dt.datetime) -> str:
    """Return the name under which a zone is stored; its present offset if it has no name.

    >>> zone_name(dt.timezone(dt.timedelta(hours=2)), dt.datetime(2024, 1, 1)), zone_name(dt.UTC, dt.datetime.now())
    ('+02:00', 'UTC')
    """
    if zone is dt.UTC:
        return "UTC"
    if name := getattr(zone, "key", None) or getattr(zone, "zone", None):
        return str(name)
    seconds = int((zone.utcoffset(value) or dt.timedelta(0)).total_seconds())
    sign, minutes = "-" if seconds < 0 else "+", abs(seconds) // 60
    return "UTC" if not seconds else f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"


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


_ISO_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")


@dataclass(frozen=True, slots=True)
class _Timedelta(TimeFeature):
    """Base class of times that are timedelta64 in columns."""

    unit: str = "us"

    def __post_init__(self) -> None:
        check_unit(self.unit)

    def __str__(self) -> str:
        return f"{self.kind}[{self.unit}]"

    @property
    def dtype(self) -> str:
        """The dtype timedelta64 with the unit."""
        return f"timedelta64[{self.unit}]"


@dataclass(frozen=True, slots=True)
class Time(_Timedelta):
    """A time of day: `datetime.time` in samples, timedelta64 since midnight in columns, and in samples for `ns`.

    >>> str(Time("ms"))
    'time[ms]'
    """

    kind: ClassVar[str] = "time"

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


@dataclass(frozen=True, slots=True)
class Duration(_Timedelta):
    """A time span: `datetime.timedelta` in samples, for `ns` a `numpy.timedelta64`; timedelta64 in columns.

    >>> str(Duration("s"))
    'duration[s]'
    """

    kind: ClassVar[str] = "duration"

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
