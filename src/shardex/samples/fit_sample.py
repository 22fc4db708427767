"""Converts values to the fields of a class: one sample, or columns of many.

A fast check passes values that fit unchanged; `shardex.features` converts the others or raises an error. This module
adds the defaults of the class for missing values, and sample, field and class to error messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from shardex.columns import located
from shardex.errors import SchemaError
from shardex.features import Features, Json, Media, Optional, contains, describe, unwrap_optional
from shardex.kernel import MISSING, Column, Columns, values_of
from shardex.samples.class_record import Record, record_of

T = TypeVar("T")
Where = Callable[[int], str]
"""Returns the place of the k-th sample, for messages."""


def sample_from(kind: type[T], data: Mapping[str, Any], *, stored: bool = False) -> T:
    """Return a sample of a class from values, which must fit; optional fields and those with a default may be missing.

    `stored` values may have the form that `packed_values` returns.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> sample_from(Point, {"x": 3})
    Point(x=3, y=0.5)
    """
    if not isinstance(data, Mapping):
        raise SchemaError(f"expected a mapping of the fields of {kind.__name__}, got {describe(data)}")
    record = record_of(kind)
    if unknown := [str(name) for name in data if name not in record.features]:
        has = ", ".join(record.names)
        raise SchemaError(f"expected the fields {has} of {kind.__name__}, got {', '.join(unknown)} too")
    return record.make(_fitted(record, record.plain(data), stored=stored))


def _fitted(
    record: Record[Any], values: Mapping[str, Any], *, stored: bool = False, encoded: bool = False
) -> dict[str, Any]:
    """Return plain values converted to their features, with defaults for missing ones; `stored` as in `sample_from`.

    Images, audio and video stay as they are, unless they must be `encoded`.
    """
    out = {}
    for name, feature in record.features.items():
        try:
            value = values[name] if name in values else record.default(name)
            as_stored = stored and feature.plain() is not None
            out[name] = feature.fit(value, stored=as_stored or (not encoded and contains(feature, Media)))
        except SchemaError as error:
            raise located(error, f"field {name} of {record.kind.__name__}") from None
    return out


def packed_values(record: Record[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain values in the form that MessagePack holds."""
    out = _fitted(record, values, encoded=True)
    for name, feature in record.features.items():
        if (convert := feature.plain()) is not None and not isinstance(unwrap_optional(feature), Json):
            out[name] = convert(out[name])
    return out


class ClassFitter:
    """Converts values to the fields of a class; `stored` values may have the form in which files hold them.

    >>> from shardex.samples.class_record import record_of; from shardex.samples.packable import packable
    >>> @packable
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> fitter = ClassFitter(record_of(Point), stored=True)
    >>> fitter.sample({"x": 1}, ["x", "y"], lambda _: "sample 0")
    {'x': 1, 'y': 0.5}
    >>> fitter.columns(Columns({"x": ["a"]}), ["x"], lambda k: f"sample {k}")
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int64, got str 'a' - at sample 0, field x of Point
    """

    def __init__(self, record: Record[Any], *, stored: bool, features: Features | None = None) -> None:
        """Prepare for values of a class; `features` replace those of the class."""
        self._record = record
        self._stored = stored
        self._features = record.features if features is None else features
        self._unchanged = {name: feature.fits_unchanged() for name, feature in self._features.items()}

    def sample(self, values: Mapping[str, Any], names: Sequence[str], where: Where) -> dict[str, Any]:
        """Return the values of these fields of one sample."""
        out = {}
        for name in names:
            value = values.get(name, MISSING)
            out[name] = value if self._unchanged[name](value) else self._fit(name, value, 0, where)
        return out

    def columns(self, columns: Columns, names: Sequence[str], where: Where) -> Columns:
        """Return the columns of these fields."""
        missing = [MISSING] * len(columns)
        data = {name: self._column(name, columns.data.get(name, missing), where) for name in names}
        return Columns(data, len(columns))

    def _fit(self, name: str, value: Any, k: int, where: Where) -> Any:
        feature = self._features[name]
        try:
            if value is MISSING or (value is None and not isinstance(feature, Optional | Json)):
                value = self._record.default(name)
            return feature.fit(value, stored=self._stored)
        except SchemaError as error:
            raise located(error, f"{where(k)}, field {name} of {self._record.kind.__name__}") from None

    def _column(self, name: str, column: Column, where: Where) -> Column:
        feature = self._features[name]
        if isinstance(column, list):
            if not feature.stacked and all(map(self._unchanged[name], column)):
                return column
        elif (cast := feature.cast_column(column)) is not None:
            return cast
        values = list(values_of(column))
        for k, value in enumerate(values):
            if value is None or value is MISSING:
                values[k] = self._fit(name, value, k, where)
        try:
            return feature.fit_column(values, where, name, stored=self._stored)
        except SchemaError as error:
            raise SchemaError(f"{error} of {self._record.kind.__name__}") from None
