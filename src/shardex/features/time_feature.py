"""`TimeFeature`: what features of dates and times have in common; conversion of their values.

A value is a whole number of units: since 1970 (`Timestamp` in UTC, `Date` in days), since midnight (`Time`), or of a
time span (`Duration`). Samples hold values of `datetime`; for nanoseconds, which `datetime` cannot hold, values of
numpy. Columns are stacked arrays of datetime64 or timedelta64 (`kernel.TimeArray`). The form depends on the
feature only, never on the values.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import Chunks, Encoder, FieldReader, ReadFile, encoders, field_readers, tables
from shardex.errors import FormatError, SchemaError
from shardex.features.feature import Convert, Feature, hf_value, unfit
from shardex.kernel import MISSING, Column, Masked, Ragged, TimeArray

UNITS = ("s", "ms", "us", "ns")
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
DAY = 86400
_INT64 = range(-(1 << 63) + 1, 1 << 63)
"""Numbers of units; the lowest one is NaT in numpy."""
INT32 = range(-(1 << 31), 1 << 31)
EPOCH = dt.datetime(1970, 1, 1)
_MS_PER_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class TimeFeature(Feature):
    """Base class of the features of dates and times."""

    @property
    def dtype(self) -> str:
        """The dtype of a column."""
        raise NotImplementedError

    @property
    def storage(self) -> str:
        """The dtype of the numbers in files."""
        return "int64"

    def column(self, numbers: NDArray[Any]) -> TimeArray:
        """Return numbers of units as a column.

        >>> from shardex.features import Date
        >>> Date().column(np.array([0, 1], "int32"))
        TimeArray(['1970-01-01', '1970-01-02'], dtype='datetime64[D]')
        """
        return TimeArray(np.ascontiguousarray(numbers, np.int64).view(self.dtype), self)

    def to_python(self, column: NDArray[Any]) -> list[Any]:
        """Return the values of a column as samples hold them; `FormatError` for values that Python cannot hold.

        >>> from shardex.features import Timestamp
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
        number, rest = divmod(nanoseconds, 10**9 // PER_SECOND[self.dtype.partition("[")[2][:-1]])
        if rest:
            raise SchemaError(f"expected {self}, got {_shown(value)}, which is more precise (declare a finer unit)")
        return self._within(number, value, limits)

    def _within(self, number: int, value: Any, limits: range) -> int:
        if number not in limits:
            raise SchemaError(f"expected {self}, got {_shown(value)}, which is out of range")
        return number

    def _unfit(self, value: Any, hint: str = "") -> SchemaError:
        return SchemaError(f"expected {self}, got {_shown(value)}{hint}")

    def stored_number(self, value: Any) -> int | None:
        """Return the number of units of a value of the form that `text` returns; None for other values."""
        raise NotImplementedError

    # -- as a feature -----------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a date or time as samples hold it."""
        if value is MISSING:
            raise unfit(self, value)
        number = self.number(from_text(value, self) if stored else value)
        try:
            return self.to_python(self.column(np.array([number])))[0]
        except FormatError as error:
            raise SchemaError(str(error)) from None

    def is_missing(self, value: Any) -> bool:
        """Return True for None and NaT."""
        return value is None or value is MISSING or is_missing_time(value)

    def blank(self) -> Any:
        """Return the time 0."""
        return np.zeros((), self.dtype)[()]

    def plain(self) -> Convert | None:
        """Return the function that makes ISO 8601 text, or whole numbers for durations."""
        return self.text

    @property
    def stacked(self) -> bool:
        """True: columns are arrays of times."""
        return True

    def stack(self, fitted: list[Any]) -> Column:
        """Return times as a `TimeArray`."""
        return self.column(np.array([self.number(value) for value in fitted], np.int64))

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return a column of this feature."""
        if isinstance(column, TimeArray):
            return column if column.feature == self else None
        return Feature.cast_column(self, column)

    def in_form(self, column: Column) -> Column:
        """Return values that numpy stacked, but in any unit, in that of this feature."""
        if isinstance(column, TimeArray):
            return column
        values = list(column)
        found = Feature.in_form(self, values)
        return column if found is values else found

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for times of this unit, or of a finer one: Parquet stores seconds as milliseconds."""
        return self.units_per_stored(kind) is not None

    def units_per_stored(self, kind: pa.DataType) -> int | None:
        """Return how many stored units are one unit of this feature; None if its values cannot be read from the type.

        >>> from shardex.features import Time
        >>> Time("s").units_per_stored(pa.time32("ms")), Time("us").units_per_stored(pa.time32("ms"))
        (1000, None)
        """
        expected = self.arrow_type()
        if expected == kind:
            return 1
        same = (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration)
        if not any(one(kind) and one(expected) for one in same):
            return None
        steps = UNITS.index(kind.unit) - UNITS.index(expected.unit)
        zones = getattr(kind, "tz", None) == getattr(expected, "tz", None)
        return 1000**steps if zones and steps > 0 else None

    def encoder(self) -> Encoder:
        """Return an encoder of numbers of units."""
        return encoders.Units(self.arrow_type(), self.storage, self.number)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return stacked dates and times of this unit; None if some are missing."""
        if isinstance(column, Masked):
            return tables.masked_to_arrow(column, self.to_arrow)
        if not isinstance(column, np.ndarray) or column.dtype != self.dtype:
            return None
        if column.ndim != 1 or np.isnat(column).any():
            return None
        numbers = np.ascontiguousarray(column).view(np.int64).view(np.ndarray)
        stored = numbers.astype(self.storage)
        if (stored != numbers).any():
            return None
        return pa.Array.from_buffers(self.arrow_type(), len(stored), [None, pa.py_buffer(stored)], 0)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return stored numbers as a `TimeArray`."""
        numbers = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_numpy(zero_copy_only=False)
        return self.stored_column(numbers, array.type)

    def stored_column(self, numbers: NDArray[Any], kind: pa.DataType) -> TimeArray:
        """Return stored numbers of dates or times as a column; they may be in a finer unit (date64: milliseconds)."""
        date64 = pa.types.is_date64(kind)
        per_unit = _MS_PER_DAY if date64 else self.units_per_stored(kind) or 1
        if per_unit == 1:
            return self.column(numbers)
        whole, rest = np.divmod(numbers, per_unit)
        if rest.any() and not date64:
            raise FormatError(f"expected {self}, got {kind} values that are more precise (declare a finer unit)")
        return self.column(whole)

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read the buffer of numbers."""
        if pa.types.is_temporal(kind):
            return field_readers.TimeReader(name, self, chunks, kind, lambda numbers: self.stored_column(numbers, kind))
        return Feature.reader(self, name, kind, chunks, read_file)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for the Arrow type."""
        return hf_value(str(self.arrow_type()))


def _shown(value: Any) -> str:
    text = f"{value.dtype} {value}" if isinstance(value, np.generic) else f"{type(value).__name__} {value!r}"
    return "none" if value is None else text[:120]


def numpy_nanoseconds(value: Any) -> int:
    """Return a datetime64 or timedelta64 as nanoseconds, exactly: Python integers have no limit."""
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in "YM":
        value = value.astype("datetime64[D]")
    unit, count = np.datetime_data(value.dtype)
    if unit not in _TICKS:
        raise SchemaError(f"expected a time in units from weeks to nanoseconds, got {_shown(value)}")
    return int(value.view(np.int64)) * count * _TICKS[unit]


_TICKS = {
    "W": 7 * DAY * 10**9,
    "D": DAY * 10**9,
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


def check_unit(unit: Any) -> None:
    """Raise an error for what is no unit."""
    if unit not in UNITS:
        raise SchemaError(f"expected one of the units {', '.join(UNITS)}, got {unit!r}")


def all_of(kind: type, values: list[Any], feature: Feature, column: NDArray[Any]) -> list[Any]:
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


def nanoseconds_of(span: dt.timedelta) -> int:
    """Return a time span as nanoseconds; pandas adds nanoseconds to its spans."""
    microseconds = (span.days * DAY + span.seconds) * 10**6 + span.microseconds
    return microseconds * 1000 + int(getattr(span, "nanoseconds", 0))


def from_text(value: Any, feature: TimeFeature) -> Any:
    """Return a value of the form that `text` returns as samples hold it; other values unchanged.

    >>> from shardex.features import Date, Duration
    >>> from_text("2024-01-31", Date()), from_text(1500, Duration("ms"))
    (datetime.date(2024, 1, 31), datetime.timedelta(seconds=1, microseconds=500000))
    """
    number = feature.stored_number(value)
    return value if number is None else feature.to_python(feature.column(np.array([number])))[0]


def numpy_unit(value: np.datetime64 | np.timedelta64) -> str:
    """Return the unit of a feature for a time of numpy."""
    unit = np.datetime_data(value.dtype)[0]
    return unit if unit in UNITS else "s" if unit in ("W", "D", "h", "m") else "ns"


def finer(a: str, b: str) -> str:
    """Return the finer unit.

    >>> finer("s", "us")
    'us'
    """
    return UNITS[max(UNITS.index(a), UNITS.index(b))]
