"""Columns as a `pyarrow.Table`, for other tools: typed by the features where they can be written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns import MISSING, Column, Columns, Ragged
from shardex.layout import arrow_type, storage
from shardex.packer import packer_of
from shardex.schema import Array, Feature, Features, Opaque, Optional, Value

__all__ = ["to_table"]


def to_table(columns: Columns, features: Features) -> pa.Table:
    """One Arrow column per field.

    >>> to_table(Columns({"x": np.array([1, 2])}), Features.of({"x": "int64"})).to_pydict()
    {'x': [1, 2]}
    """
    return pa.table({name: _array(columns.data.get(name, []), feature) for name, feature in features.items()})


def _array(column: Column, feature: Feature) -> pa.Array:
    inner = feature.feature if isinstance(feature, Optional) else feature
    if isinstance(inner, Opaque):
        return pa.array(list(column))
    if isinstance(column, np.ndarray) and isinstance(inner, Value) and inner.dtype == column.dtype.name:
        return pa.array(column)
    if (
        isinstance(column, np.ndarray)
        and isinstance(inner, Array)
        and inner.fixed
        and inner.shape
        and inner.dtype == column.dtype.name
    ):
        values = pa.array(np.ascontiguousarray(column).reshape(-1).view(storage(column.dtype.name)))
        return pa.Array.from_buffers(arrow_type(inner), len(column), [None], 0, children=[values])
    if isinstance(column, Ragged) and isinstance(inner, Array) and inner.ragged and column.shapes is None:
        return _ragged(column, inner)
    return _built(column, feature)


def _ragged(column: Ragged, feature: Array) -> pa.Array:
    values = np.ascontiguousarray(column.values).reshape(-1).view(storage(column.dtype.name))
    step = values.size // max(1, len(column.values)) if len(column.values) else 1
    offsets = pa.py_buffer(np.ascontiguousarray(column.offsets * step))
    return pa.Array.from_buffers(arrow_type(feature), len(column), [None, offsets], 0, children=[pa.array(values)])


def _built(column: Column, feature: Feature) -> pa.Array:
    values: list[Any] = list(column)
    if any(value is None or value is MISSING for value in values):
        feature = feature if isinstance(feature, Optional) else Optional(feature)
        values = [None if value is MISSING else value for value in values]
    builder = packer_of(feature)
    for value in values:
        builder.append(value)
    return builder.finish()
