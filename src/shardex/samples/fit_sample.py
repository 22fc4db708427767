"""Values that were read or made, checked against the fields of a class: one sample, or columns of many.

Most values are what they should be, which a look at their type tells; the others are made to fit (`fit.py`) or refused
with the field and the place. Fields that a sample lacks get the default that the class has for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shardex.errors import SchemaError
from shardex.kernel import MISSING, Column, Columns
from shardex.samples.class_record import Record
from shardex.schema import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Optional,
    Text,
    Value,
    absent,
    fit,
    to_columns,
)

__all__ = ["Fitter"]

Where = Callable[[int], str]
"""Says where the k-th sample lies, for messages."""


class Fitter:
    """Checks samples of a class; `stored` values may have the forms that files give them.

    >>> from shardex.samples.class_record import record_of; from shardex.samples.packable import packable
    >>> @packable
    ... class Point:
    ...     x: int
    ...     y: float = 0.5
    >>> fitter = Fitter(record_of(Point), stored=True)
    >>> fitter.sample({"x": 1}, ["x", "y"], lambda _: "sample 0")
    {'x': 1, 'y': 0.5}
    >>> fitter.columns(Columns({"x": ["a"]}), ["x"], lambda k: f"sample {k}")
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int64, got str 'a' - at sample 0, field x of Point
    """

    def __init__(self, record: Record[Any], *, stored: bool) -> None:
        self._record = record
        self._stored = stored
        self._right = {name: _looks_right(feature) for name, feature in record.features.items()}

    def sample(self, values: Mapping[str, Any], names: Sequence[str], where: Where) -> dict[str, Any]:
        """The values of these fields."""
        out = {}
        for name in names:
            value = values.get(name, MISSING)
            out[name] = value if self._right[name](value) else self._fit(name, value, 0, where)
        return out

    def columns(self, columns: Columns, names: Sequence[str], where: Where) -> Columns:
        """The columns of these fields."""
        lacking = [MISSING] * len(columns)
        data = {name: self._column(name, columns.data.get(name, lacking), where) for name in names}
        return Columns(data, len(columns))

    def _fit(self, name: str, value: Any, k: int, where: Where) -> Any:
        try:
            value = self._filled(name, value)
            return value if value is None else fit(value, self._record.features[name], stored=self._stored)
        except SchemaError as error:
            raise SchemaError(f"{error} - at {where(k)}, {self._called(name)}") from None

    def _called(self, name: str) -> str:
        return f"field {name} of {self._record.kind.__name__}"

    def _filled(self, name: str, value: Any) -> Any:
        """The value, or what stands for one that is not there; JSON may be null, any other value only if it says so."""
        feature = self._record.features[name]
        if value is MISSING and name in self._record.defaults:
            value = self._record.plain({name: self._record.defaults[name]()})[name]
        if value is not MISSING and (value is not None or feature == Json()):
            return value
        if isinstance(feature, Optional):
            return None
        if value is None and name in self._record.defaults:
            return self._filled(name, MISSING)
        raise absent(feature)

    def _column(self, name: str, column: Column, where: Where) -> Column:
        feature = self._record.features[name]
        if (quick := _as_it_is(column, feature)) is not None:
            return quick
        if isinstance(column, list) and all(map(self._right[name], column)) and not _is_stacked(feature):
            return column
        values = list(column)
        if isinstance(column, np.ndarray) and column.ndim == 1:
            values = column.tolist()
        for k, value in enumerate(values):
            if value is None or value is MISSING:
                values[k] = self._fit(name, value, k, where)
        features = Features({name: feature})
        try:
            made = to_columns({name: values}, len(values), features, where, stored=self._stored)
        except SchemaError as error:
            raise SchemaError(f"{error} of {self._record.kind.__name__}") from None
        return made.data[name]


def _is_stacked(feature: Feature) -> bool:
    """Whether columns of it are arrays, if nothing lacks."""
    inner = feature.feature if isinstance(feature, Optional) else feature
    if isinstance(inner, Array):
        return inner.dtype is not None and inner.shape is not None
    return isinstance(inner, Value | ClassLabel)


def _as_it_is(column: Column, feature: Feature) -> Column | None:
    """The column if its dtype and shape say that all values fit, widened if need be; none if each must be looked at."""
    inner = feature.feature if isinstance(feature, Optional) else feature
    if isinstance(inner, Value) and isinstance(column, np.ndarray) and column.ndim == 1:
        wider = np.can_cast(column.dtype, inner.dtype, "safe") and (column.dtype.kind == "b") == (inner.dtype == "bool")
        return column.astype(inner.dtype, copy=False) if wider else None
    if isinstance(inner, Array) and not isinstance(column, list):
        if inner.dtype is not None and column.dtype != inner.dtype:
            return None
        if isinstance(column, np.ndarray):
            return column if column.ndim > 1 and _has_shape(column.shape[1:], inner.shape) else None
        if inner.shape is None:
            return column
        return column if column.shapes is None and _has_shape((None, *column.inner), inner.shape) else None
    return None


def _has_shape(found: tuple[int | None, ...], wanted: tuple[int | None, ...] | None) -> bool:
    return wanted is None or (
        len(found) == len(wanted) and all(n in (None, m) for m, n in zip(found, wanted, strict=True))
    )


_TYPES = {"bool": bool, "float64": float}
_LARGEST = 1 << 63


def _looks_right(feature: Feature) -> Callable[[Any], bool]:
    """A quick look at one value that tells whether it fits as it is; if not, it may still be made to."""
    match feature:
        case Optional():
            inner = _looks_right(feature.feature)
            return lambda value: value is None or inner(value)
        case Text():
            return lambda value: type(value) is str
        case Bytes():
            return lambda value: type(value) is bytes
        case Json():
            return lambda value: value is not MISSING
        case Value(dtype="int64"):
            return lambda value: type(value) is int and -_LARGEST <= value < _LARGEST
        case Value() if feature.dtype in _TYPES:
            kind = _TYPES[feature.dtype]
            return lambda value: type(value) is kind
        case Array():
            dtype, shape = None if feature.dtype is None else np.dtype(feature.dtype), feature.shape
            return lambda value: (
                type(value) is np.ndarray and (dtype is None or value.dtype == dtype) and _has_shape(value.shape, shape)
            )
    return lambda value: False
