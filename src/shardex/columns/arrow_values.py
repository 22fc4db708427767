"""Converts Arrow arrays of any type to columns: the inverse of `encoders`.

Nulls become `None`, or the gaps of a `Masked` if the feature is optional; dictionary and extension arrays become their
values. `field_readers` reads most mapped fields faster, from their buffers; it uses this module for the rest,
`decoded_table` for all fields.

Images, audio and video as Hugging Face `datasets` stores them, structs of `bytes` and `path`, become bytes. So do the
videos of stable-datasets, whose structs have more parts, and whose paths begin at a folder of its own. Where `bytes` is
null, the file at `path` is read by a function that rows give: it knows which files may be read. `arrow_types` decides
that a struct holds media.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns.arrow_types import STABLE_PARTS, number_array, storage_array
from shardex.columns.fields import Field
from shardex.errors import FormatError, ShardexError
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


# -- media in structs ---------------------------------------------------------------------------------------------

_STABLE_FOLDER = "_assets/video/"
"""Where stable-datasets keeps the files of videos, in the folder of the shards."""
ReadFile = Callable[[str], bytes]
"""Returns the content of the file at a path that a table holds; `ShardexError` if it must not or cannot be read."""


def no_file(path: str) -> bytes:
    """Raise an error: this table has no folder in which paths could be looked up."""
    raise FormatError(f"expected the bytes of a file, got only its path {path!r}")


def media_decoder(read_file: ReadFile) -> Decode:
    """Return `decode_array` for arrays that may hold media as structs."""

    def decode(array: pa.Array, feature: Field) -> Column:
        return decode_array(feature.without_structs(array, read_file), feature)

    return decode


def bytes_of_structs(array: pa.StructArray, expected: object, read_file: ReadFile) -> pa.Array:
    """Return the bytes of media in structs; they are copied only if a file is read.

    >>> array = pa.array([{"bytes": b"a", "path": None}, {"bytes": None, "path": "b.png"}])
    >>> bytes_of_structs(array, "images", str.encode).to_pylist()
    [b'a', b'b.png']
    """
    parts = dict(zip((field.name for field in array.type), array.flatten(), strict=True))
    data, paths = parts["bytes"], parts["path"]
    if data.null_count == array.null_count:
        return data.cast(pa.large_binary())
    begin = _STABLE_FOLDER if len(parts) == len(STABLE_PARTS) else ""
    found = [
        _file(path and begin + path, expected, read_file) if there and one is None else one
        for one, path, there in zip(data.to_pylist(), paths.to_pylist(), array.is_valid().to_pylist(), strict=True)
    ]
    return pa.array(found, pa.large_binary())


def _file(path: str | None, expected: object, read_file: ReadFile) -> bytes:
    if path is None:
        raise FormatError(f"expected the bytes or the path of {expected}, got neither")
    try:
        return read_file(path)
    except FormatError:
        raise
    except ShardexError as error:
        raise FormatError(f"expected the bytes of {expected} or the path of a file, got {path!r}: {error}") from error
