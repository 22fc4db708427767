"""Arrow types and arrays: those of the values that files store, without encodings such as views, and which have nulls.

Arrow has several encodings of the same values: extension types, run-end encoding, dictionaries, views. `storage_type`
is a type without them, and `storage_array` removes them from an array, so that all values of a feature are stored in a
few types; `features` maps each feature to an Arrow type and back. `null_paths` and `null_paths_of_counts` tell which
fields, and parts inside them, have nulls and are optional.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from shardex.errors import FormatError
from shardex.kernel import Integers

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


# -- arrays -------------------------------------------------------------------------------------------------------

T = TypeVar("T", pa.Table, pa.RecordBatch)


def storage_array(array: pa.Array, *, inside: bool = False) -> pa.Array:
    """Return the array in its storage type; a dictionary is kept, unless it is `inside` another array.

    >>> storage_array(pa.array([["a"], None], pa.list_(pa.string_view()))).type
    ListType(list<item: large_string>)
    """
    if isinstance(array, pa.ExtensionArray):
        return storage_array(array.storage, inside=inside)
    if isinstance(array, pa.RunEndEncodedArray):
        return storage_array(array.values, inside=inside).take(number_array(_run_of_each(array)))
    if isinstance(array, pa.DictionaryArray):
        values = storage_array(array.dictionary, inside=True)
        if inside:
            return values.take(array.indices)
        return (
            array
            if values is array.dictionary
            else pa.DictionaryArray.from_arrays(array.indices, values, ordered=array.type.ordered)
        )
    if (target := storage_type(array.type)) == array.type:
        return array
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return array.cast(target)
    return _rebuilt(array, target)


def _run_of_each(array: pa.RunEndEncodedArray) -> Integers:
    """Return the number of the run of each value."""
    ends = array.run_ends.to_numpy()
    return np.searchsorted(ends, np.arange(array.offset, array.offset + len(array)), "right")


def _rebuilt(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Return a nested array with its parts in their storage types."""
    if isinstance(array, pa.StructArray):
        parts = [storage_array(array.field(number), inside=True) for number in range(array.type.num_fields)]
        return pa.StructArray.from_arrays(
            parts, fields=list(target), mask=array.is_null() if array.null_count else None
        )
    values = storage_array(array.values, inside=True)
    if isinstance(array, pa.ListViewArray | pa.LargeListViewArray):
        return _without_view(array, values, target)
    buffers = array.buffers()[: target.num_buffers]
    return pa.Array.from_buffers(target, len(array), buffers, array.null_count, array.offset, [values])


def _without_view(array: pa.Array, values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return lists, whose items follow each other, of a list view, whose items may be anywhere in the values."""
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    starts = array.offsets.to_numpy().astype(np.int64)
    sizes = np.where(valid, array.sizes.to_numpy(), 0).astype(np.int64)
    ends = np.cumsum(sizes)
    items = np.repeat(starts - (ends - sizes), sizes) + np.arange(sizes.sum())
    offsets = np.concatenate([[0], ends]).astype(np.int64 if pa.types.is_large_list(target) else np.int32)
    kind = pa.LargeListArray if pa.types.is_large_list(target) else pa.ListArray
    mask = array.is_null() if array.null_count else None
    return kind.from_arrays(number_array(offsets), values.take(number_array(items)), type=target, mask=mask)


def with_schema(data: T, schema: pa.Schema) -> T:
    """Return a table or batch in the types of a schema; columns that have them are not cast: slices of some may not."""
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(data.columns, schema, strict=True)
    ]
    return type(data).from_arrays(columns, schema=schema)


# -- size -----------------------------------------------------------------------------------------------------


def expanded_size(batch: pa.RecordBatch | pa.Table) -> int:
    """Return the bytes that `storage_array` makes of run ends, views and inner dictionaries, which can be huge."""
    return sum(_expanded(chunk) for column in batch.columns for chunk in getattr(column, "chunks", [column]))


def _expanded(array: pa.Array, *, inside: bool = False) -> int:
    if isinstance(array, pa.ExtensionArray):
        return _expanded(array.storage, inside=inside)
    if isinstance(array, pa.RunEndEncodedArray):
        counts = np.diff(array.run_ends.to_numpy(zero_copy_only=False).astype(np.int64), prepend=0)
        return int(counts @ _value_sizes(array.values)) if len(counts) else 0
    if isinstance(array, pa.DictionaryArray):
        largest = int(_value_sizes(array.dictionary).max(initial=0)) if inside else 0
        return largest * len(array)
    if pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type):
        return int(_value_sizes(array).sum())
    if isinstance(array, pa.StructArray):
        return sum(_expanded(array.field(number), inside=True) for number in range(array.type.num_fields))
    if isinstance(array, pa.ListViewArray | pa.LargeListViewArray):
        largest = int(_value_sizes(array.values).max(initial=0))
        return largest * int(array.sizes.to_numpy().astype(np.int64).sum())
    return _expanded(array.values, inside=True) if array.type.num_fields and hasattr(array, "values") else 0


def _value_sizes(array: pa.Array) -> Integers:
    """Return the size of each value of an array."""
    kind = array.type
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        views = np.frombuffer(array.buffers()[1] or b"", np.int32)[4 * array.offset :][: 4 * len(array) : 4]
        return np.where(array.is_valid().to_numpy(zero_copy_only=False), views, 0).astype(np.int64)
    if is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        from pyarrow import compute  # takes 40 ms to import, and few files need it

        lengths = compute.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    size = -(-kind.bit_width // 8) if pa.types.is_primitive(kind) else array.nbytes  # of nested ones, the most
    return np.full(len(array), size, np.int64)


# -- nulls ----------------------------------------------------------------------------------------------------


def null_paths(name: str, arrays: Sequence[pa.Array], *, in_memory: bool = True) -> set[Path]:
    """Return the path of a column and of the parts inside it that have nulls.

    Without `in_memory` only the counts in the metadata are used: the values are not fetched or not validated yet.

    >>> sorted(null_paths("x", [pa.array([[1, None], None])]))
    [('x',), ('x', 'item')]
    """
    return {path for array in arrays for path in _null_paths(array, (name,), in_memory)}


def _null_paths(array: pa.Array, path: Path, in_memory: bool) -> Iterator[Path]:
    if isinstance(array, pa.ExtensionArray):
        yield from _null_paths(array.storage, path, in_memory)
        return
    if isinstance(array, pa.RunEndEncodedArray):  # its own null count is always 0
        yield from _null_paths(array.values, path, in_memory)
        return
    if isinstance(array, pa.DictionaryArray):
        yield from _null_paths(array.dictionary, path, in_memory)
    if array.null_count and not pa.types.is_null(array.type):
        yield path
    if isinstance(array, pa.StructArray):
        for number, field in enumerate(array.type):
            yield from _null_paths(array.field(number), (*path, field.name), in_memory)
    elif isinstance(array, pa.FixedSizeListArray):
        if (items := _fixed_items(array, in_memory)) is not None:
            yield from _null_paths(items, (*path, "item"), in_memory)
    elif isinstance(array, pa.MapArray):
        yield from _null_paths(_items(array, in_memory).field(1), (*path, "value"), in_memory)
    elif hasattr(array, "values"):
        yield from _null_paths(_items(array, in_memory), (*path, "item"), in_memory)


def _items(array: pa.Array, in_memory: bool) -> pa.Array:
    """Return the items of lists; of a slice only its own."""
    values = array.values
    if not in_memory or not (values.null_count or values.type.num_fields) or not _is_valid(array):
        return values
    if not len(array) or not (is_list(array.type) or pa.types.is_map(array.type)):
        return values if len(array) else values.slice(0, 0)
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return values.slice(begin, end - begin)


def _is_valid(array: pa.Array) -> bool:
    """Return whether values of the array may be read: the table may come from a damaged file."""
    try:
        array.validate()
    except pa.ArrowException:
        return False
    return True


def _fixed_items(array: pa.FixedSizeListArray, in_memory: bool) -> pa.Array | None:
    """Return the items of lists that are not null; None if the nulls in them are all below null lists."""
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if not array.null_count or not items.null_count:
        return items
    if in_memory and _is_valid(array):
        return array.flatten()
    return items if items.null_count > array.null_count * size else None


def null_paths_of_counts(schema: pa.Schema, counts: Sequence[int]) -> set[Path]:
    """Return the paths that have nulls, given the null counts in the header of a batch, in the order of its fields.

    >>> sorted(null_paths_of_counts(pa.schema([("x", pa.list_(pa.int8())), ("y", pa.int8())]), [0, 2, 1]))
    [('x', 'item'), ('y',)]
    """
    left = iter(counts)
    found: set[Path] = set()
    for field in schema:
        _take_counts(field.type, (field.name,), left, found)
    return found


def _take_counts(kind: pa.DataType, path: Path, left: Iterator[int], found: set[Path], hidden: int = 0) -> None:
    """Take the counts of a type and of the types inside it; `hidden` nulls may be below nulls of the parent."""
    if isinstance(kind, pa.BaseExtensionType):
        _take_counts(kind.storage_type, path, left, found, hidden)
        return
    count = next(left, 0)
    if pa.types.is_run_end_encoded(kind):
        next(left, 0)
        _take_counts(kind.value_type, path, left, found)
        return
    if count > hidden and not pa.types.is_null(kind):
        found.add(path)
    if pa.types.is_map(kind):
        next(left, 0)
        _take_counts(kind.key_type, (*path, "key"), left, set())
        _take_counts(kind.item_type, (*path, "value"), left, found)
    elif pa.types.is_fixed_size_list(kind):
        _take_counts(kind.value_type, (*path, "item"), left, found, count * kind.list_size)
    elif not pa.types.is_dictionary(kind):
        is_struct = pa.types.is_struct(kind) or pa.types.is_union(kind)
        for number in range(kind.num_fields):
            part = kind.field(number)
            _take_counts(part.type, (*path, part.name if is_struct else "item"), left, found)


def nullable_paths(field: pa.Field, path: Path = ()) -> Iterator[Path]:
    """Return the paths of a field, and of the parts inside it, that the schema allows to be null.

    >>> sorted(nullable_paths(pa.field("x", pa.list_(pa.field("item", pa.int8(), nullable=False)))))
    [('x',)]
    """
    path, kind = (*path, field.name), value_type(field.type)
    if field.nullable and not pa.types.is_null(kind):
        yield path
    if pa.types.is_map(kind):
        yield from nullable_paths(kind.item_field.with_name("value"), path)
    elif pa.types.is_struct(kind):
        for part in kind:
            yield from nullable_paths(part, path)
    elif is_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from nullable_paths(kind.value_field.with_name("item"), path)


def is_number_item(field: pa.Field, path: Path) -> bool:
    """Return whether the part of a field at this path is a number in a list, whose lists are arrays without nulls.

    >>> is_number_item(pa.field("x", pa.list_(pa.int8())), ("x", "item"))
    True
    """
    kind, inside_list = value_type(field.type), False
    for name in path[1:]:
        inside_list = not (pa.types.is_struct(kind) or pa.types.is_map(kind))
        part = kind.item_type if pa.types.is_map(kind) else kind.value_type if inside_list else kind.field(name).type
        kind = value_type(part)
    return inside_list and bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
