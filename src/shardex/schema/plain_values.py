"""Plain values, as JSON and MessagePack hold them, made to fit a schema: one by one, or many into columns.

Formats whose samples are dicts of plain values read and write through here: `fit_sample` checks a sample before it
is written, `to_columns` and `to_sample` turn what was decoded into what the schema promises (lists into arrays,
names of classes into numbers). Without a schema values stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.kernel import MISSING, Column, Columns, Ragged
from shardex.schema.features import Array, ClassLabel, Feature, Features, Optional, Value
from shardex.schema.fit import castable, fit

__all__ = ["fit_sample", "to_columns", "to_sample"]

Sample = Mapping[str, Any]
Where = Callable[[int], str]
"""Says where the k-th sample of a read lies, for messages."""


def fit_sample(sample: Sample, features: Features, row: int) -> dict[str, Any]:
    """The sample as the features hold it: every field there, optional ones filled with `None`.

    >>> fit_sample({"x": [1, 2]}, Features.of({"x": Array("int8", (2,)), "s": str | None}), 0)
    {'x': array([1, 2], dtype=int8), 's': None}
    """
    for name in sample:
        if name not in features:
            raise SchemaError(f"expected the fields {', '.join(features)}, got {name!r} too - at sample {row}")
    out = {}
    for name, feature in features.items():
        try:
            out[name] = fit(sample.get(name, MISSING), feature)
        except SchemaError as error:
            raise SchemaError(f"{error} - at sample {row}, field {name}") from None
    return out


def to_columns(
    values: Mapping[str, list[Any]], length: int, schema: Features | None, where: Where, *, stored: bool = True
) -> Columns:
    """Values of each field as columns, by the schema if there is one; `stored` ones may have the forms of files."""
    if schema is None:
        return Columns(values, length).stack()
    return Columns({n: _column(column, schema[n], _field_at(where, n), stored) for n, column in values.items()}, length)


def to_sample(
    sample: dict[str, Any], names: SequenceOf[str] | None, schema: Features | None, where: Where
) -> dict[str, Any]:
    """Fields of one decoded sample: all or those named, by the schema if there is one."""
    if schema is None:
        return sample if names is None else {name: sample.get(name) for name in names}
    wanted = list(schema) if names is None else names
    return {n: _fit_at(sample.get(n, MISSING), schema[n], 0, _field_at(where, n)) for n in wanted}


def _field_at(where: Where, name: str) -> Where:
    return lambda k: f"{where(k)}, field {name}"


# -- many values ----------------------------------------------------------------------------------------------


def _fit_at(value: Any, feature: Feature, k: int, where: Where, stored: bool = True) -> Any:
    try:
        return fit(value, feature, stored=stored)
    except SchemaError as error:
        raise SchemaError(f"{error} - at {where(k)}") from None


def _column(values: list[Any], feature: Feature, where: Where, stored: bool) -> Column:
    if isinstance(feature, Optional):
        if any(value is None or value is MISSING for value in values):
            return [_fit_at(value, feature, k, where, stored) for k, value in enumerate(values)]
        feature = feature.feature
    if (column := _column_at_once(values, feature)) is not None:
        return column
    fitted = [_fit_at(value, feature, k, where, stored) for k, value in enumerate(values)]
    if isinstance(feature, Value):
        with np.errstate(over="ignore"):
            return np.array(fitted, feature.dtype)
    if isinstance(feature, ClassLabel):
        return np.array(fitted, np.int32)
    if isinstance(feature, Array) and feature.dtype and feature.shape is not None:
        return _arrays(fitted, feature)
    return fitted


def _column_at_once(values: list[Any], feature: Feature) -> Column | None:
    """The column by one numpy call, where all values are as they should be."""
    kinds = set(map(type, values))
    if isinstance(feature, Value) and kinds <= {{"b": bool, "f": float}.get(np.dtype(feature.dtype).kind, int)}:
        try:
            with np.errstate(over="ignore"):
                return np.array(values, feature.dtype)
        except OverflowError:
            return None
    if isinstance(feature, Array) and feature.dtype and feature.fixed and kinds <= {list}:
        try:
            array = np.asarray(values)
        except ValueError:
            return None
        stacked = array.shape == (len(values), *(feature.shape or ()))
        if stacked and castable(array, np.dtype(feature.dtype), typed=False):
            return array.astype(feature.dtype, copy=False)
    return None


def _arrays(arrays: list[NDArray[Any]], feature: Array) -> Column:
    shape = feature.shape or ()
    if not shape:
        return list(arrays)  # stacked, arrays of no dimensions would be numbers
    if feature.fixed:
        return np.stack(arrays) if arrays else np.empty((0, *(n or 0 for n in shape)), feature.dtype)
    if arrays:
        return Ragged.from_arrays(arrays)
    inner = tuple(n or 0 for n in shape[1:])
    return Ragged.from_values(np.empty((0, *inner), feature.dtype), np.zeros(1, np.int64), inner)
