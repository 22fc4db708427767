"""`Timestamp`: a date with a time of day, perhaps in a time zone."""

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
from shardex.features.feature import ArrowParts, Feature
from shardex.features.time_feature import (
    EPOCH,
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
