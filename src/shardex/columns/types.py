"""Arrow types: those of the values that files store, without encodings such as views, and what they hold.

`features` maps each feature to an Arrow type and back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FormatError

Path = tuple[str, ...]
"""A field, or a part inside it: its name, then the names of struct members, "item" of lists, "value" of maps."""


def number_array(values: NDArray[Any]) -> pa.Array:
    """Return numpy numbers as an Arrow array without a copy; `pa.array` would import pandas if it is installed.

    >>> number_array(np.array([True, False])).to_pylist(), str(number_array(np.array([7], "f4")).type)
    ([True, False], 'float')
    """
    data = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)], 0)


def number_dtype(kind: pa.DataType) -> np.dtype[Any]:
    """Return the dtype of an Arrow type of numbers or booleans; `to_pandas_dtype` needs pandas before pyarrow 26.

    >>> number_dtype(pa.float16()), number_dtype(pa.uint8()), number_dtype(pa.bool_())
    (dtype('float16'), dtype('uint8'), dtype('bool'))
    """
    return np.dtype({"halffloat": "float16", "float": "float32"}.get(str(kind), str(kind)))


def storage_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which elements of a dtype are stored.

    >>> storage_dtype("bool"), storage_dtype("complex64"), storage_dtype("datetime64[us]")
    (dtype('uint8'), dtype('float32'), dtype('int64'))
    """
    kind = np.dtype(dtype)
    if kind.kind == "c":
        return np.dtype(f"f{kind.itemsize // 2}")
    if kind.kind == "b":
        return np.dtype(np.uint8)
    return np.dtype(np.int64) if kind.kind in "mM" else kind


def schema_text(schema: pa.Schema) -> str:
    """Return names and types of a schema as text, for messages and comparisons.

    >>> schema_text(pa.schema([("x", pa.int32()), ("s", pa.string())]))
    'x int32, s string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def check_column_names(schema: pa.Schema) -> None:
    """Raise `FormatError` for empty or repeated column names, and for names at any depth that are not UTF-8."""
    try:
        _walk_names(schema)
    except UnicodeDecodeError as error:
        raise FormatError(f"expected names in UTF-8, got {error.object!r}") from None
    if len({*schema.names}) != len(schema.names) or "" in schema.names:
        raise FormatError(f"expected columns of different names, got {', '.join(map(repr, schema.names))}")


def _walk_names(fields: Iterable[pa.Field]) -> None:
    for field in fields:
        str(field.name)
        _walk_names(field.type.field(number) for number in range(field.type.num_fields))


@lru_cache(1024)
def storage_type(kind: pa.DataType, *, inside: bool = False) -> pa.DataType:
    """Return the type without extension types, run-end encoding, views, and dictionaries inside other types.

    >>> storage_type(pa.uuid()), storage_type(pa.list_(pa.string_view()))
    (FixedSizeBinaryType(fixed_size_binary[16]), ListType(list<item: large_string>))
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type, inside=inside)
    if types.is_run_end_encoded(kind):
        return storage_type(kind.value_type, inside=inside)
    if types.is_dictionary(kind):
        values = storage_type(kind.value_type, inside=True)
        return values if inside else pa.dictionary(kind.index_type, values, kind.ordered)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_list_view(kind):
        return storage_type(pa.list_(kind.value_field))
    if types.is_large_list_view(kind):
        return storage_type(pa.large_list(kind.value_field))
    return _map_parts(kind, lambda part: storage_type(part, inside=True))


def value_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values: the storage type, for dictionaries that of their values."""
    kind = storage_type(kind)
    return value_type(kind.value_type) if pa.types.is_dictionary(kind) else kind


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_binary(kind: pa.DataType) -> bool:
    """Return whether values are bytes."""
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def has_offsets(kind: pa.DataType) -> bool:
    """Return whether values are text or bytes of different lengths."""
    return is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists of any length, with offsets."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


_HF_PARTS = frozenset({"bytes", "path"})
STABLE_PARTS = frozenset({"mode", "path", "bytes", "extension", "media_type", "size", "checksum"})
"""Parts of the structs in which stable-datasets stores videos."""


def is_media_struct(kind: pa.DataType) -> bool:
    """Return whether values are structs of `bytes` and `path`, as Hugging Face and stable-datasets store media.

    >>> is_media_struct(pa.struct([("bytes", pa.binary()), ("path", pa.string())])), is_media_struct(pa.binary())
    (True, False)
    """
    if not pa.types.is_struct(kind) or {field.name for field in kind} not in (_HF_PARTS, STABLE_PARTS):
        return False
    data, path = (value_type(kind.field(name).type) for name in ("bytes", "path"))
    is_bytes = is_binary(data) and not pa.types.is_fixed_size_binary(data)
    return is_bytes and (is_text(path) or pa.types.is_null(path))


def map_type(kind: pa.DataType, replace: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with the types of its values, inside lists, structs and dictionaries, replaced by a function.

    >>> map_type(pa.large_list(pa.string_view()), storage_type)
    LargeListType(large_list<item: large_string>)
    """
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, map_type(kind.value_type, replace), kind.ordered)
    if kind.num_fields and (mapped := _map_parts(kind, lambda part: map_type(part, replace))) is not kind:
        return mapped
    return replace(kind)


def _map_parts(kind: pa.DataType, replace: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a list, struct or map with the types of its parts replaced; any other type unchanged."""
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(replace(field.type)) for field in kind])
    if types.is_map(kind):
        key, value = kind.key_field, kind.item_field
        return pa.map_(key.with_type(replace(key.type)), value.with_type(replace(value.type)), kind.keys_sorted)
    if not (is_list(kind) or types.is_fixed_size_list(kind)):
        return kind
    item = kind.value_field.with_type(replace(kind.value_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(item, kind.list_size)
    return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)


def has_shape(found: tuple[int | None, ...], expected: tuple[int | None, ...] | None) -> bool:
    """Return whether a shape is the expected one, in which None stands for any size."""
    if expected is None:
        return True
    if len(found) != len(expected):
        return False
    for size, wanted in zip(found, expected, strict=True):  # noqa: SIM110 (`all` takes twice as long)
        if wanted is not None and size != wanted:
            return False
    return True
