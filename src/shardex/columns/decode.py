"""Converts Arrow arrays of any type to columns: the inverse of `encode`.

Nulls become `None`, or the gaps of a `Masked` if the feature is optional; dictionary and extension arrays become their
values. `field_readers` reads most mapped fields faster, from their buffers; it uses this module for the rest,
`decoded_table` for all fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.fields import Field
from shardex.columns.storage import storage_array
from shardex.columns.types import number_array
from shardex.errors import FormatError
from shardex.kernel import Column, Columns, Integers, Masked, with_missing

Decode = Callable[[pa.Array, Field], Column]
"""Returns the values of a whole array, as `decode_array` does."""


def decode_array(array: pa.Array, feature: Field) -> Column:
    """Return the values of a whole array; a column of numbers is `Masked` if the feature is optional.

    >>> from shardex.features import Array, Optional
    >>> decode_array(pa.array([[1, 2], None]), Optional(Array("int64", (None,)))).to_list()
    [array([1, 2]), None]
    """
    array = storage_array(array)
    if isinstance(array, pa.DictionaryArray):
        return decode_array(array.dictionary_decode(), feature)
    if not array.null_count and not feature.optional:
        return feature.from_arrow(array)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    return with_missing(feature.from_arrow(array.drop_null() if array.null_count else array), valid)


def decode_value(array: pa.Array, row: int, feature: Field, decode: Decode = decode_array) -> Any:
    """Return one value of an array."""
    return Columns({"": decode(array.slice(row, 1), feature)}, 1).sample(0)[""]


def take_rows(
    rows: Integers,
    starts: Integers,
    features: Mapping[str, Field],
    arrays: Callable[[int], Mapping[str, pa.Array]],
    name: Callable[[int], str],
    decode: Decode = decode_array,
) -> Columns:
    """Return rows of arrays in chunks; `arrays(k)` returns the arrays of chunk k, which starts at row `starts[k]`."""
    chunks = np.searchsorted(starts, rows, "right") - 1
    order = np.argsort(chunks, kind="stable")
    places = np.split(order, np.flatnonzero(np.diff(chunks[order])) + 1)
    parts = []
    for positions in places if len(rows) else []:
        chunk = int(chunks[positions[0]])
        found, local = arrays(chunk), rows[positions] - starts[chunk]
        columns = {}
        for field, feature in features.items():
            try:
                columns[field] = decode(found[field].take(number_array(local)), feature)
            except (FormatError, pa.ArrowException) as error:
                row = _first_bad(found[field], local, feature, decode)
                where = f"{name(chunk)}, sample {starts[chunk] + row}, field {field}"
                raise FormatError(f"{error} - at {where}") from None
        parts.append(Columns(columns, len(positions)))
    if not parts:  # the form follows the feature here too
        return Columns({name: one.fit_column([], str, name, stored=False) for name, one in features.items()}, 0)
    whole = Columns.scatter(parts, places)
    whole.data.update({field: _writable(column) for field, column in whole.data.items()})
    return whole


def _writable(column: Column) -> Column:
    """Return the column in memory of its own; numpy sees memory of Arrow as read-only."""
    if isinstance(column, np.ndarray):
        return column if column.flags.writeable else column.copy()
    if isinstance(column, Masked) and isinstance(column.column, np.ndarray):
        return Masked(_writable(column.column), column.mask)
    return column


def _first_bad(array: pa.Array, rows: Integers, feature: Field, decode: Decode) -> int:
    """Return the first row that cannot be decoded."""
    for row in rows.tolist():
        try:
            decode_value(array, row, feature, decode)
        except (FormatError, pa.ArrowException):
            return int(row)
    return int(rows[0])


def python_values(array: pa.Array) -> list[Any]:
    """Return Python values; numpy values for times in nanoseconds, which Python cannot represent."""
    try:
        if getattr(array.type, "unit", "") == "ns":
            kind = "M8[ns]" if pa.types.is_timestamp(array.type) else "m8[ns]"
            return list(array.cast(pa.int64()).to_numpy().view(kind))
        return list(array.to_pylist())
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise FormatError(f"expected {array.type} values that Python can represent, got others: {error}") from None


def parts_of_lists(lists: pa.Array) -> tuple[Integers, pa.Array]:
    """Return `list_parts` of lists of any type, also of one length."""
    if pa.types.is_fixed_size_list(lists.type):
        return np.arange(len(lists) + 1) * lists.type.list_size, lists.flatten()
    return list_parts(lists)


def list_bounds(lists: pa.Array) -> Integers:
    """Return the start of each list in its values, and the end of the last one."""
    found: Integers = lists.offsets.to_numpy().astype(np.int64) if len(lists) else np.zeros(1, np.int64)
    return found


def list_parts(lists: pa.Array) -> tuple[Integers, pa.Array]:
    """Return the bounds of lists relative to the first start, and the values of all lists."""
    bounds = list_bounds(lists)
    return bounds - bounds[0], lists.values.slice(bounds[0], bounds[-1] - bounds[0])
