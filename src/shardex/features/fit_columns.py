"""Columns of the values of one field each, in a form that depends on the feature alone.

`fit_column` converts values to their feature by `fit`, `to_columns` those of several fields. `in_form` takes columns
that were stacked as they are, `cast_column` columns that another feature has. Numbers and arrays of one shape are
stacked, arrays of different shapes `Ragged`, both `Masked` if the feature is optional; other values are lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features.features import Features, Optional, unwrap_optional
from shardex.features.fit import Where, can_cast, fit_at, has_shape, is_missing
from shardex.features.leaf_features import Array, ClassLabel, Feature, Value
from shardex.features.time_features import TimeFeature
from shardex.kernel import Column, Columns, Masked, Ragged, TimeArray, with_missing


def to_columns(values: Mapping[str, list[Any]], length: int, schema: Features | None, where: Where) -> Columns:
    """Return the decoded values of each field as columns, converted to the schema if there is one."""
    if schema is None:
        return Columns(values, length).stack()
    return Columns({n: fit_column(column, schema[n], where, n, stored=True) for n, column in values.items()}, length)


def in_form(columns: Columns, features: Mapping[str, Feature]) -> Columns:
    """Return columns of values that were stacked as they are, in the form that their (inferred) features have.

    >>> in_form(Columns({"x": np.array([1])}), {"x": Optional(Value("int64"))})["x"].mask
    array([ True])
    """
    return Columns({n: _in_form(c, features.get(n)) for n, c in columns.data.items()}, len(columns))


def _in_form(column: Column, feature: Feature | None) -> Column:
    if feature is None or not is_stacked(feature):
        return column
    values = column.column if isinstance(column, Masked) else column
    times = isinstance(unwrap_optional(feature), TimeFeature) and not isinstance(values, TimeArray)
    if isinstance(column, list) or times:  # numpy stacks time spans, but in any unit
        try:
            return fit_column(list(column), feature, str, "", stored=False)
        except SchemaError:  # the feature was inferred from other samples
            return column
    if isinstance(feature, Optional):
        masked = Masked.whole(column)
        values = _in_form(masked.column, feature.feature)
        return column if isinstance(values, list | Masked) else with_missing(values, masked.mask)
    if isinstance(feature, Array) and isinstance(column, np.ndarray) and not feature.fixed:
        ragged = len(feature.shape or ()) == column.ndim - 1
        return Ragged.from_stacked(column, shaped=not feature.ragged) if ragged else column
    if isinstance(feature, Value) and isinstance(column, np.ndarray) and column.dtype != feature.dtype:
        return _widened(column, np.dtype(feature.dtype))
    return column


def _widened(column: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers in a wider dtype; unchanged if it does not hold all of them."""
    if column.dtype.kind not in "iuf" or not can_cast(column, dtype, typed=False):
        return column
    wide = column.astype(dtype)
    return wide if np.array_equal(wide.astype(column.dtype), column, equal_nan=True) else column


def fit_column(values: list[Any], feature: Feature, where: Where, name: str, *, stored: bool) -> Column:
    """Return the values of one field as a column, in a form that depends on the feature alone.

    >>> fit_column([1, 2.5], Value("float32"), "sample {}".format, "x", stored=False)
    array([1. , 2.5], dtype=float32)
    >>> fit_column([1, None], Optional(Value("int8")), "sample {}".format, "x", stored=False).values
    array([1, 0], dtype=int8)
    """
    if isinstance(feature, Optional):
        if not is_stacked(feature):
            return [fit_at(value, feature, k, where, name, stored=stored) for k, value in enumerate(values)]
        mask = np.array([not is_missing(value, feature) for value in values], np.bool_)
        rows = np.flatnonzero(mask).tolist()
        some = values if len(rows) == len(values) else [values[row] for row in rows]
        present = fit_column(some, feature.feature, lambda k: where(rows[k]), name, stored=stored)
        return with_missing(present, mask)
    if (column := _stack_lists(values, feature)) is not None:
        return column
    fitted = [fit_at(value, feature, k, where, name, stored=stored) for k, value in enumerate(values)]
    if isinstance(feature, Value | ClassLabel):
        with np.errstate(over="ignore"):
            return np.array(fitted, feature.dtype if isinstance(feature, Value) else np.int32)
    if isinstance(feature, TimeFeature):
        return feature.column(np.array([feature.number(value) for value in fitted], np.int64))
    return stack_arrays(fitted, feature) if isinstance(feature, Array) else fitted


def cast_column(column: NDArray[Any] | Ragged | Masked, feature: Feature) -> Column | None:
    """Return a stacked column in the feature's dtype if its dtype and shape show that every value fits, else `None`.

    >>> cast_column(np.array([1, 2], "int8"), Value("int16"))
    array([1, 2], dtype=int16)
    """
    if isinstance(feature, Optional):
        masked = Masked.whole(column)
        cast = cast_column(masked.column, feature.feature)
        return None if cast is None or isinstance(cast, list | Masked) else Masked(cast, masked.mask)
    if isinstance(column, Masked):
        return cast_column(column.column, feature) if column.mask.all() else None
    inner = feature
    if isinstance(inner, TimeFeature):
        return column if isinstance(column, TimeArray) and column.feature == inner else None
    if isinstance(inner, Value) and isinstance(column, np.ndarray) and column.ndim == 1:
        safe = np.can_cast(column.dtype, inner.dtype, "safe") and (column.dtype.kind == "b") == (inner.dtype == "bool")
        return column.astype(inner.dtype, copy=False) if safe else None
    if not isinstance(inner, Array) or inner.dtype not in (None, column.dtype):
        return None
    if isinstance(column, np.ndarray):
        return column if column.ndim > 1 and has_shape(column.shape[1:], inner.shape) else None
    if inner.shape is None:
        return column
    return column if column.shapes is None and has_shape((None, *column.inner), inner.shape) else None


def is_stacked(feature: Feature) -> bool:
    """Return whether a column of this feature is an array rather than a list, if no value is missing."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Array):
        return inner.dtype is not None and bool(inner.shape)
    return isinstance(inner, Value | ClassLabel | TimeFeature)


def _stack_lists(values: list[Any], feature: Feature) -> Column | None:
    """Return the column by one numpy call if all values are Python numbers or lists that fit, else `None`."""
    kinds = set(map(type, values))
    if isinstance(feature, Value) and kinds <= {{"b": bool, "f": float}.get(np.dtype(feature.dtype).kind, int)}:
        try:
            with np.errstate(over="ignore"):
                return np.array(values, feature.dtype)
        except OverflowError:
            return None
    if isinstance(feature, Array) and feature.dtype and feature.fixed and feature.shape and kinds <= {list}:
        try:
            array = np.asarray(values)
        except ValueError:
            return None
        has_shape = array.shape == (len(values), *(feature.shape or ()))
        if has_shape and can_cast(array, np.dtype(feature.dtype), typed=False):
            return array.astype(feature.dtype, copy=False)
    return None


def stack_arrays(arrays: list[NDArray[Any]], feature: Array) -> Column:
    """Return arrays that fit a feature stacked, as `Ragged` if their shapes may differ, as a list if it has no shape.

    >>> stack_arrays([np.zeros(2, "int8"), np.ones(2, "int8")], Array("int8", (None,)))
    Ragged(2 rows of int8)
    """
    shape = feature.shape or ()
    if not shape:
        return list(arrays)  # stacking arrays without dimensions would turn them into numbers
    if feature.fixed:
        return np.stack(arrays) if arrays else np.empty((0, *(n or 0 for n in shape)), feature.dtype)
    if arrays:
        return Ragged.from_arrays(arrays, shaped=not feature.ragged)
    if not feature.ragged:
        none = np.empty((0, len(shape)), np.int64)
        return Ragged.from_values(np.empty(0, feature.dtype), np.zeros(1, np.int64), shapes=none)
    inner = tuple(n or 0 for n in shape[1:])
    return Ragged.from_values(np.empty((0, *inner), feature.dtype), np.zeros(1, np.int64), inner)
