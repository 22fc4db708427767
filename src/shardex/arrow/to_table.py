"""Columns as a `pyarrow.Table`, for other tools: typed by the features where they can be written.

What is stacked already becomes an Arrow array without a copy; the rest goes through packers, value by value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.decode import list_of
from shardex.arrow.encode import packer_of
from shardex.arrow.types import arrow_type, items_per_row, numbers, sizes, storage
from shardex.errors import SchemaError
from shardex.kernel import MISSING, Column, Columns, Ragged
from shardex.schema import Array, Feature, Features, Json, Opaque, Optional, Sequence, Struct, Text, Value

__all__ = ["is_opaque", "to_table"]


def to_table(
    columns: Columns, features: Features, types: Mapping[str, pa.DataType] | None = None, first: int = 0
) -> pa.Table:
    """One Arrow column per field; `types` are those of opaque fields, `first` is the number of the first sample.

    >>> to_table(Columns({"x": np.array([1, 2])}), Features.of({"x": "int64"})).to_pydict()
    {'x': [1, 2]}
    """
    kinds = types or {}
    return pa.table({n: _array(columns.data.get(n, []), f, n, kinds.get(n), first) for n, f in features.items()})


def _array(column: Column, feature: Feature, name: str, kind: pa.DataType | None, first: int) -> pa.Array:
    inner = feature.feature if isinstance(feature, Optional) else feature
    if is_opaque(inner):
        return _guessed(column, name, kind)
    if isinstance(inner, Value | Array) and not isinstance(column, list) and _as_said(column.dtype, inner.dtype):
        made = _ragged(column, inner) if isinstance(column, Ragged) else _stacked(column, inner)
        if made is not None:
            return made
    return _packed(column, feature, name, first)


def _as_said(found: np.dtype[Any], wanted: str | None) -> bool:
    """Whether numbers are of a dtype, also in the order of their bytes."""
    return wanted is not None and found == np.dtype(wanted)


def is_opaque(feature: Feature) -> bool:
    """Whether a feature is one that only values of Arrow have, or has such a part.

    >>> is_opaque(Sequence(Opaque("date32[day]"))), is_opaque(Sequence(Text()))
    (True, False)
    """
    match feature:
        case Opaque():
            return True
        case Optional() | Sequence():
            return is_opaque(feature.feature)
        case Struct():
            return any(map(is_opaque, feature.fields.values()))
    return False


def _guessed(column: Column, name: str, kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(list_of(column), kind)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaError(f"expected values that Arrow can guess the type of, got {error} - at field {name}") from None


def _stacked(column: NDArray[Any], feature: Value | Array) -> pa.Array | None:
    if isinstance(feature, Value):
        return numbers(column) if column.ndim == 1 else None
    if not feature.shape or column.shape[1:] != feature.shape:
        return None
    values = numbers(np.ascontiguousarray(column).reshape(-1).view(storage(column.dtype)))
    return pa.Array.from_buffers(arrow_type(feature), len(column), [None], 0, children=[values])


def _ragged(column: Ragged, feature: Value | Array) -> pa.Array | None:
    if isinstance(feature, Value) or not feature.ragged or column.shapes is not None or column.inner != sizes(feature):
        return None
    values = numbers(np.ascontiguousarray(column.values).reshape(-1).view(storage(column.dtype)))
    offsets = pa.py_buffer(np.ascontiguousarray(column.offsets * items_per_row(feature)))
    return pa.Array.from_buffers(arrow_type(feature), len(column), [None, offsets], 0, children=[values])


def _packed(column: Column, feature: Feature, name: str, first: int) -> pa.Array:
    values = [None if value is MISSING else value for value in list_of(column)]
    if (made := _plain(values, feature.feature if isinstance(feature, Optional) else feature)) is not None:
        return made
    if any(value is None for value in values) and not isinstance(feature, Optional | Json):  # null is a value of JSON
        feature = Optional(feature)
    packer = packer_of(feature)
    for number, value in enumerate(values):
        try:
            packer.append(value)
        except SchemaError as error:
            raise SchemaError(f"{error} - at sample {first + number}, field {name}") from None
    return packer.finish()


_PLAIN: dict[Feature, type] = {Text(): str, Value("int64"): int, Value("float64"): float, Value("bool"): bool}


def _plain(values: list[Any], feature: Feature) -> pa.Array | None:
    """Python's own numbers and texts by few calls, which is ten times as fast; none if some are anything else."""
    kind = _PLAIN.get(feature)
    if kind is None or not {*map(type, values)} <= {kind, type(None)}:
        return None
    there = np.array([value is not None for value in values], np.bool_)
    blank = kind()
    filled = values if there.all() else [blank if value is None else value for value in values]
    try:
        made = numbers(np.array(filled, feature.dtype)) if isinstance(feature, Value) else _texts(filled)
    except (OverflowError, UnicodeEncodeError):
        return None
    valid = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(made.type, len(values), [valid, *made.buffers()[1:]])


def _texts(values: list[str]) -> pa.Array:
    joined = "".join(values)
    data = joined.encode()
    lengths = map(len, values) if len(data) == len(joined) else (len(value.encode()) for value in values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    return pa.Array.from_buffers(pa.large_string(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
