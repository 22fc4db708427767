"""Features of dates and times, and the conversion of their values.

A value is a whole number of units: since 1970 (`Timestamp` in UTC, `Date` in days), since midnight (`Time`), or of a
time span (`Duration`). Samples hold values of `datetime`; for nanoseconds, which `datetime` cannot hold, values of
numpy. Columns are stacked arrays of datetime64 or timedelta64 (`kernel.TimeArray`). The form depends on the
feature only, never on the values.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError
from shardex.features.leaf_features import Feature
from shardex.kernel import TimeArray

UNITS = ("s", "ms", "us", "ns")
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86400
_INT64 = range(-(1 << 63) + 1, 1 << 63)
"""Numbers of units; the lowest one is NaT in numpy."""
_INT32 = range(-(1 << 31), 1 << 31)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)")


@dataclass(frozen=True, slots=True)
class TimeFeature(Feature):
    """Base class of the features of dates and times."""

    @property
    def dtype(self) -> str:
        """Dtype of a column."""
        raise NotImplementedError

    @property
    def storage(self) -> str:
        """Dtype of the numbers in files."""
        return "int64"

    def column(self, numbers: NDArray[Any]) -> TimeArray:
        """Return numbers of units as a column.

        >>> Date().column(np.array([0, 1], "int32"))
        TimeArray(['1970-01-01', '1970-01-02'], dtype='datetime64[D]')
        """
        return TimeArray(np.ascontiguousarray(numbers, np.int64).view(self.dtype), self)

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return the values of a column as samples hold them; `FormatError` for values that Python cannot hold.

        >>> Timestamp("s", "UTC").to_python(np.array([0], "datetime64[s]"))
        [datetime.datetime(1970, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)]
        """
        raise NotImplementedError

    def number(self, value: Any) -> int:
        """Return a value as number of units; `SchemaError` if that is not possible without loss."""
        raise NotImplementedError

    def text(self, value: Any) -> Any:
        """Return a value of a sample in the form that JSON holds: ISO 8601, a whole number for durations."""
        raise NotImplementedError

    def _exact(self, nanoseconds: int, value: Any, limits: range = _INT64) -> int:
        """Return nanoseconds in the unit of this feature."""
        number, rest = divmod(nanoseconds, 10**9 // _PER_SECOND[self.dtype.partition("[")[2][:-1]])
        if rest:
            raise SchemaError(f"expected {self}, got {_shown(value)}, which is more precise (declare a finer unit)")
        return self._within(number, value, limits)

    def _within(self, number: int, value: Any, limits: range) -> int:
        if number not in limits:
            raise SchemaError(f"expected {self}, got {_shown(value)}, which is out of range")
        return number

    def _unfit(self, value: Any, hint: str = "") -> SchemaError:
        return SchemaError(f"expected {self}, got {_shown(value)}{hint}")


def _shown(value: Any) -> str:
    text = f"{value.dtype} {value}" if isinstance(value, np.generic) else f"{type(value).__name__} {value!r}"
    return "none" if value is None else text[:120]


def _numpy_nanoseconds(value: Any) -> int:
    """Return a datetime64 or timedelta64 as nanoseconds, exactly: Python integers have no limit."""
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in "YM":
        value = value.astype("datetime64[D]")
    unit, count = np.datetime_data(value.dtype)
    if unit not in _TICKS:
        raise SchemaError(f"expected a time in units from weeks to nanoseconds, got {_shown(value)}")
    return int(value.view(np.int64)) * count * _TICKS[unit]


_TICKS = {
    "W": 7 * _DAY * 10**9,
    "D": _DAY * 10**9,
    "h": 3600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}
"""Nanoseconds of the units of numpy."""


def is_missing_time(value: Any) -> bool:
    """Return whether a value is NaT of numpy or pandas, which stands for a missing value.

    >>> is_missing_time(np.datetime64("NaT", "s")), is_missing_time(dt.date(2024, 1, 1)), is_missing_time(float("nan"))
    (True, False, False)
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return isinstance(value, dt.date | dt.timedelta) and value != value  # noqa: PLR0124


def _check_unit(unit: Any) -> None:
    if unit not in UNITS:
        raise SchemaError(f"expected one of the units {', '.join(UNITS)}, got {unit!r}")


def _all_of(kind: type, values: list[Any], feature: Feature, column: NDArray[Any]) -> list[Any]:
    """Return the values if all are of this type: numpy returns numbers for what Python cannot hold, None for NaT."""
    for k, value in enumerate(values):
        if type(value) is not kind:
            raise unrepresentable(feature, np.asarray(column)[k])
    return values


def unrepresentable(feature: Feature, value: Any) -> FormatError:
    """Return the error for a value that Python cannot hold."""
    return FormatError(
        f"expected {feature} that Python's datetime can hold, got {value} "
        "(batches, read and to_arrow hold it; or leave the field out with select)"
    )


# -- instants -------------------------------------------------------------------------------------------------

_EPOCH = dt.datetime(1970, 1, 1)


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
        _check_unit(self.unit)
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
        found = _all_of(dt.datetime, plain.tolist(), self, plain)
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
            return self._exact(_numpy_nanoseconds(value), value)
        if not isinstance(value, dt.datetime):
            raise self._unfit(value)
        if (value.tzinfo is None) != (self.zone is None):
            raise self._unfit(value, _ZONE_HINTS[self.zone is None])
        if value.tzinfo is not None:
            shift = value.utcoffset() or dt.timedelta(0)
            since = value.replace(tzinfo=None) - _EPOCH
        else:
            shift, since = dt.timedelta(0), value - _EPOCH
        nanoseconds = _nanoseconds(since) - _nanoseconds(shift)
        return self._exact(nanoseconds, value)

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text; with a zone in UTC, ending in Z."""
        plain = self.column(np.array([self.number(value)]))
        return f"{np.datetime_as_string(plain)[0]}{'' if self.zone is None else 'Z'}"


_ZONE_HINTS = {
    True: ' with a time zone (declare Timestamp("us", "UTC"), or remove the zone by .replace(tzinfo=None))',
    False: " without a time zone (add one: .replace(tzinfo=datetime.timezone.utc))",
}


def _nanoseconds(span: dt.timedelta) -> int:
    """Return a time span as nanoseconds; pandas adds nanoseconds to its spans."""
    microseconds = (span.days * _DAY + span.seconds) * 10**6 + span.microseconds
    return microseconds * 1000 + int(getattr(span, "nanoseconds", 0))


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
        """Days are stored in 32 bits."""
        return "int32"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return dates."""
        plain = np.asarray(column)
        return _all_of(dt.date, plain.tolist(), self, plain)

    def number(self, value: Any) -> int:
        """Return the number of days since 1970."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.datetime64):
            days, rest = divmod(_numpy_nanoseconds(value), _DAY * 10**9)
            if rest:
                raise self._unfit(value, ", which has a time of day")
            return self._within(days, value, _INT32)
        if isinstance(value, dt.datetime) or not isinstance(value, dt.date):
            raise self._unfit(value, " (use .date())" if isinstance(value, dt.datetime) else "")
        return value.toordinal() - _EPOCH.toordinal()

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text."""
        return str(np.datetime64(self.number(value), "D"))


# -- spans ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Time(TimeFeature):
    """A time of day: `datetime.time` in samples, timedelta64 since midnight in columns, and in samples for `ns`.

    >>> str(Time("ms"))
    'time[ms]'
    """

    kind: ClassVar[str] = "time"
    unit: str = "us"

    def __post_init__(self) -> None:
        _check_unit(self.unit)

    def __str__(self) -> str:
        return f"time[{self.unit}]"

    @property
    def dtype(self) -> str:
        """The dtype timedelta64 with the unit."""
        return f"timedelta64[{self.unit}]"

    @property
    def storage(self) -> str:
        """Seconds and milliseconds are stored in 32 bits."""
        return "int32" if self.unit in ("s", "ms") else "int64"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return times; numpy values for nanoseconds."""
        plain = np.asarray(column)
        if self.unit == "ns":
            return list(plain)
        return [self._time(one, plain[k]) for k, one in enumerate(plain.astype("m8[us]").view(np.int64).tolist())]

    def _time(self, microseconds: int, value: Any) -> dt.time:
        seconds, rest = divmod(microseconds, 10**6)
        if not 0 <= seconds < _DAY:
            raise unrepresentable(self, value)
        return dt.time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)

    def number(self, value: Any) -> int:
        """Return the number of units since midnight."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.timedelta64):
            nanoseconds = _numpy_nanoseconds(value)
        elif isinstance(value, dt.time) and value.tzinfo is None:
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            nanoseconds = (seconds * 10**6 + value.microsecond) * 1000
        else:
            raise self._unfit(value, " with a time zone" if isinstance(value, dt.time) else "")
        return self._exact(nanoseconds, value, range(_DAY * _PER_SECOND[self.unit]))

    def text(self, value: Any) -> Any:
        """Return ISO 8601 text."""
        seconds, rest = divmod(self.number(value), _PER_SECOND[self.unit])
        digits = len(str(_PER_SECOND[self.unit])) - 1
        clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        return f"{clock}.{rest:0{digits}d}" if digits else clock


@dataclass(frozen=True, slots=True)
class Duration(TimeFeature):
    """A time span: `datetime.timedelta` in samples, for `ns` a `numpy.timedelta64`; timedelta64 in columns.

    >>> str(Duration("s"))
    'duration[s]'
    """

    kind: ClassVar[str] = "duration"
    unit: str = "us"

    def __post_init__(self) -> None:
        _check_unit(self.unit)

    def __str__(self) -> str:
        return f"duration[{self.unit}]"

    @property
    def dtype(self) -> str:
        """The dtype timedelta64 with the unit."""
        return f"timedelta64[{self.unit}]"

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return time spans; numpy values for nanoseconds."""
        plain = np.asarray(column)
        return list(plain) if self.unit == "ns" else _all_of(dt.timedelta, plain.tolist(), self, plain)

    def number(self, value: Any) -> int:
        """Return the number of units."""
        if is_missing_time(value):
            raise self._unfit(value)
        if isinstance(value, np.timedelta64):
            return self._exact(_numpy_nanoseconds(value), value)
        if not isinstance(value, dt.timedelta):
            raise self._unfit(value)
        return self._exact(_nanoseconds(value), value)

    def text(self, value: Any) -> Any:
        """Return the number of units."""
        return self.number(value)


# -- from the form of JSON ------------------------------------------------------------------------------------


def from_text(value: Any, feature: TimeFeature) -> Any:
    """Return a value of the form that `text` returns as samples hold it; other values unchanged.

    >>> from_text("2024-01-31", Date()), from_text(1500, Duration("ms"))
    (datetime.date(2024, 1, 31), datetime.timedelta(seconds=1, microseconds=500000))
    """
    number: int | None = None
    if isinstance(feature, Duration):
        number = value if type(value) is int else None
    elif isinstance(value, str):
        number = _PARSERS[type(feature)](value, feature)
    return value if number is None else feature.to_python(feature.column(np.array([number])))[0]


def _parse_timestamp(text: str, feature: Timestamp) -> int:
    plain = text.removesuffix("Z") if feature.zone else text
    if _ISO_TIMESTAMP.fullmatch(plain):
        return feature.number(np.datetime64(plain))
    try:
        return feature.number(dt.datetime.fromisoformat(text))
    except ValueError:
        raise SchemaError(f"expected {feature} as ISO 8601 text, got {text!r:.80}") from None


def _parse_date(text: str, feature: Date) -> int:
    if _ISO_DATE.fullmatch(text):
        return feature.number(np.datetime64(text, "D"))
    raise SchemaError(f"expected {feature} as ISO 8601 text, got {text!r:.80}")


def _parse_time(text: str, feature: Time) -> int:
    if (found := _ISO_TIME.fullmatch(text)) is None:
        raise SchemaError(f"expected {feature} as ISO 8601 text, got {text!r:.80}")
    seconds = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3] or 0)
    nanoseconds = seconds * 10**9 + int((found[4] or "").ljust(9, "0"))
    return feature._exact(nanoseconds, text, range(_DAY * _PER_SECOND[feature.unit]))


_ISO_DATE = re.compile(r"[+-]?\d{4,}-\d\d-\d\d")
_ISO_TIMESTAMP = re.compile(r"[+-]?\d{4,}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?")
_ISO_TIME = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?")
_PARSERS: dict[type, Callable[[str, Any], int]] = {Timestamp: _parse_timestamp, Date: _parse_date, Time: _parse_time}
