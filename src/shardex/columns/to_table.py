"""Columns as a `pyarrow.Table`, for other tools; the features give the Arrow types.

Stacked columns become Arrow arrays without a copy, lists of Python values at once (`Field.to_arrow`); all others go
through the encoders, value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.encode import Optionals, with_nulls
from shardex.columns.encode_values import offsets_of
from shardex.columns.fields import Field, located
from shardex.columns.types import number_array
from shardex.errors import SchemaError
from shardex.kernel import MISSING, Column, Columns, Masked, Ragged, values_of


def to_table(
    columns: Columns,
    features: Mapping[str, Field],
    types: Mapping[str, pa.DataType] | None = None,
    first: int = 0,
    *,
    stored: bool = False,
) -> pa.Table:
    """Return one Arrow column per field; `types` of opaque fields; `first`: number of the first sample, for errors.

    Bytes of images, audio and video are checked, unless they come from `stored` samples.

    >>> from shardex.features import Features
    >>> to_table(Columns({"x": np.array([1, 2])}), Features.of({"x": "int64"})).to_pydict()
    {'x': [1, 2]}
    """
    kinds = types or {}
    wanted = {n: f.stored_form() if stored else f for n, f in features.items()}
    return pa.table({n: _array(columns.data.get(n, []), f, n, kinds.get(n), first) for n, f in wanted.items()})


def _array(column: Column, feature: Field, name: str, kind: pa.DataType | None, first: int) -> pa.Array:
    if feature.opaque:
        return _inferred(column, name, kind)
    array = None if isinstance(column, list) else feature.to_arrow(column)
    return _encoded(column, feature, name, first) if array is None else array


def _inferred(column: Column, name: str, kind: pa.DataType | None) -> pa.Array:
    try:
        return pa.array(values_of(column), kind)
    except (pa.ArrowException, TypeError) as error:
        raise SchemaError(f"expected values that Arrow can infer a type for, got {error} - at field {name}") from None


def _encoded(column: Column, feature: Field, name: str, first: int) -> pa.Array:
    values = values_of(column)
    if type(MISSING) in {*map(type, values)}:
        values = [None if value is MISSING else value for value in values]
    if (array := feature.to_arrow(values)) is not None:
        return array
    encoder = feature.encoder()
    if not feature.takes_none and any(value is None for value in values):
        encoder = Optionals(encoder)
    for number, value in enumerate(values):
        try:
            encoder.append(value)
        except SchemaError as error:
            raise located(error, f"sample {first + number}, field {name}") from None
    return encoder.finish()


# -- for the features -----------------------------------------------------------------------------------------


def masked_to_arrow(column: Masked, convert: Callable[[Any], pa.Array | None]) -> pa.Array | None:
    """Return values that may be missing as an array, given the function for those that are not."""
    values = column.column
    if isinstance(values, Ragged) and not column.mask.all():
        values = Masked.spread(values[column.mask], column.mask).column
    elif isinstance(values, np.ndarray) and values.dtype.kind in "biufcMm":  # zeros, as the encoders write them
        values = column.filled(0).column
    array = convert(values)
    return array if array is None or column.mask.all() else with_nulls(array, column.mask)


def of_python_values(values: list[Any], kind: type, convert: Callable[[list[Any]], pa.Array]) -> pa.Array | None:
    """Convert all values at once, ten times as fast, if they are of one Python type or None; else return `None`."""
    if not (kinds := {*map(type, values)}) <= {kind, type(None)}:
        return None
    filler = kind()
    filled = values if type(None) not in kinds else [filler if value is None else value for value in values]
    try:
        array = convert(filled)
    except (OverflowError, UnicodeEncodeError):
        return None
    return array if filled is values else with_nulls(array, np.array([value is not None for value in values], np.bool_))


def numbers_to_arrow(values: list[Any], dtype: str) -> pa.Array:
    """Return numbers as an array."""
    return number_array(np.array(values, dtype))


def texts_to_arrow(values: list[str]) -> pa.Array:
    """Return strings as an array."""
    joined = "".join(values)
    data = joined.encode()
    lengths = map(len, values) if len(data) == len(joined) else (len(value.encode()) for value in values)
    return _blobs(lengths, len(values), data, pa.large_string())


def bytes_to_arrow(values: list[bytes]) -> pa.Array:
    """Return bytes as an array."""
    return _blobs(map(len, values), len(values), b"".join(values), pa.large_binary())


def _blobs(lengths: Iterable[int], count: int, data: bytes, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets_of(lengths, count)), pa.py_buffer(data)], 0)
