"""Maps features to Arrow types, and Arrow schemas to features.

=====================  ===================================================================
feature                Arrow type
=====================  ===================================================================
Value                  the number itself, or bool
Text, Json             large_string
Bytes, Array()         large_binary (arrays of any dtype in the compact format)
Image, Audio, Video    large_binary (also read: structs of `bytes` and `path`, see `media_structs`)
Array, fixed shape     fixed_size_list of the flattened elements
Array, ragged          large_list of the flattened elements (only the first size varies)
Array, other shapes    struct of `values` (large_list) and `shape` (list of int64)
ClassLabel             int32
Sequence, Struct, Map  large_list, struct, map
Timestamp, Duration    timestamp (with the zone), duration
Date, Time             date32, time32 or time64
Decimal                decimal128, with more than 38 digits decimal256
Null                   null
Optional               the same, nullable
=====================  ===================================================================

Booleans in arrays are stored as uint8, times as int64, complex numbers as pairs. `encode` writes these types, `decode`
and `field_readers` read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from shardex.arrow.hf_metadata import features_in_hf_metadata
from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.features import (
    JSON,
    SCALARS,
    UNITS,
    Array,
    Bytes,
    ClassLabel,
    Date,
    Decimal,
    Duration,
    Feature,
    Features,
    Image,
    Json,
    Map,
    Media,
    Null,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Time,
    Timestamp,
    Value,
    Video,
)

Path = tuple[str, ...]
"""A field, or a part inside it: its name, then the names of struct members, "item" of lists, "value" of maps."""
_NARROW_DIGITS = 38
_MOST_ITEMS = (1 << 31) - 1
"""Most items of a list of fixed size in Arrow."""
"""Digits of decimal128."""


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


def arrow_type(feature: Feature) -> pa.DataType:
    """Return the Arrow type of a feature."""
    match feature:
        case Value():
            return pa.from_numpy_dtype(np.dtype(feature.dtype))
        case Text() | Json():
            return pa.large_string()
        case Bytes() | Array(dtype=None):
            return pa.large_binary()
        case ClassLabel():
            return pa.int32()
        case Array():
            return _array_type(feature)
        case Sequence():
            return pa.large_list(_field("item", feature.feature))
        case Struct():
            return pa.struct([_field(name, inner) for name, inner in feature.fields.items()])
        case Optional():
            return arrow_type(feature.feature)
        case Timestamp():
            return pa.timestamp(feature.unit, feature.zone)
        case Date():
            return pa.date32()
        case Time():
            return pa.time32(feature.unit) if feature.unit in ("s", "ms") else pa.time64(feature.unit)
        case Duration():
            return pa.duration(feature.unit)
        case Decimal():
            kind = pa.decimal128 if feature.precision <= _NARROW_DIGITS else pa.decimal256
            return kind(feature.precision, feature.scale)
        case Map():
            return pa.map_(_field("key", feature.key), _field("value", feature.value))
        case Null():
            return pa.null()
    raise SchemaError(f"expected a feature that can be written, got {feature}")


def _array_type(feature: Array) -> pa.DataType:
    item = pa.field("item", pa.from_numpy_dtype(storage_dtype(np.dtype(feature.dtype))), nullable=False)
    if feature.fixed:
        if (items := items_per_row(feature)) > _MOST_ITEMS:
            raise SchemaError(f"expected arrays of one shape with at most {_MOST_ITEMS} elements, got {feature}")
        return pa.list_(item, items)
    if feature.ragged:
        return pa.large_list(item)
    size = -1 if feature.shape is None else len(feature.shape)
    shape = pa.list_(pa.field("item", pa.int64(), nullable=False), size)
    return pa.struct(
        [pa.field("values", pa.large_list(item), nullable=False), pa.field("shape", shape, nullable=False)]
    )


def items_per_row(feature: Array) -> int:
    """Return the stored elements per row of a fixed array, or per step of the first dimension of a ragged one."""
    pairs = 2 if np.dtype(feature.dtype).kind == "c" else 1
    return pairs * math.prod(fixed_sizes(feature))


def fixed_sizes(feature: Array) -> tuple[int, ...]:
    """Return the sizes of the shape that do not vary.

    >>> fixed_sizes(Array("uint8", (None, None, 3)))
    (3,)
    """
    return tuple(n for n in feature.shape or () if n is not None)


def _field(name: str, feature: Feature) -> pa.Field:
    return pa.field(name, arrow_type(feature), nullable=isinstance(feature, Optional | Null))


def arrow_schema(features: Features) -> pa.Schema:
    """Return the Arrow schema of a dataset, with the features as metadata."""
    plain = JSON.encode(features.to_json())
    return pa.schema([_field(name, feature) for name, feature in features.items()], metadata={"shardex": plain})


def schema_text(schema: pa.Schema) -> str:
    """Return names and types of a schema as text, for messages and comparisons.

    >>> schema_text(pa.schema([("x", pa.int32()), ("s", pa.string())]))
    'x int32, s string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema)


# -- from an Arrow schema ---------------------------------------------------------------------------------------


def features_of_arrow(schema: pa.Schema, declared: Features | None = None, nulls: Collection[Path] = ()) -> Features:
    """Return the features of an Arrow schema: declared by the user, else from its metadata, else from its types.

    Fields and parts in `nulls`, which have null values, are optional. Lists of numbers are arrays, unless they have
    nulls inside.

    >>> print(features_of_arrow(pa.schema([("x", pa.list_(pa.float32(), 3)), ("s", pa.string()), ("t", pa.date32())])))
    x float32[3], s text, t date
    >>> print(features_of_arrow(pa.schema([("x", pa.list_(pa.float32()))]), nulls={("x", "item")}))
    x list of float32 or none
    >>> print(features_of_arrow(pa.schema([("x", pa.binary())]), Features.of({"x": Array("int8", (2, 2))})))
    x int8[2, 2]
    """
    check_column_names(schema)
    declared = declared or Features({})
    for name in declared:
        if name not in schema.names:
            raise SchemaError(f"expected one of the fields {', '.join(schema.names)}, got {name!r} in the schema")
    written = _features_in_metadata(schema)
    return Features(
        {field.name: _read_as(field, declared.get(field.name), written.get(field.name), nulls) for field in schema}
    )


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


def _features_in_metadata(schema: pa.Schema) -> Mapping[str, Feature]:
    """Return the features that a file was written with; none if the metadata is invalid."""
    if not schema.metadata or b"shardex" not in schema.metadata:
        return _media(schema) | features_in_hf_metadata(schema, lambda kind: _from_type(kind, (), ()))
    try:
        return Features.from_json(JSON.decode(schema.metadata[b"shardex"]))
    except ShardexError:
        return {}


_STABLE_CLASSES: dict[bytes, Feature] = {b"Image": Image(None), b"Video": Video()}


def _media(schema: pa.Schema) -> dict[str, Feature]:
    """Return the fields that stable-datasets has marked as media; it notes no more of a feature than its class."""
    names = {field.name: (field.metadata or {}).get(b"stable_datasets.feature") for field in schema}
    return {name: _STABLE_CLASSES[found] for name, found in names.items() if found in _STABLE_CLASSES}


def _read_as(field: pa.Field, declared: Feature | None, written: Feature | None, nulls: Collection[Path]) -> Feature:
    path = (field.name,)
    if declared is not None:
        if not _readable(declared, field.type):
            raise SchemaError(
                f"expected a feature that {field.type} can be read as, got {declared} - at field {field.name}"
            )
        return _optional_if(path in nulls, _with_nulls(declared, path, nulls) or declared)
    # Another tool may have changed the column and kept the metadata.
    kept = written is not None and _readable(written, field.type)
    found = _with_nulls(written, path, nulls) if written is not None and kept else None
    return _optional_if(path in nulls, found or _from_type(field.type, path, nulls))


def _optional_if(null: bool, feature: Feature) -> Feature:
    return Optional(feature) if null and not isinstance(feature, Null) else feature


def _with_nulls(feature: Feature, path: Path, nulls: Collection[Path]) -> Feature | None:
    """Return the feature with optional parts where there are nulls; `None` if it cannot have such parts."""

    def part(inner: Feature, name: str) -> Feature | None:
        found = _with_nulls(inner, (*path, name), nulls)
        return found and _optional_if((*path, name) in nulls, found)

    match feature:
        case Optional():
            inner = _with_nulls(feature.feature, path, nulls)
            return inner and Optional(inner)
        case Sequence():
            item = part(feature.feature, "item")
            return item and Sequence(item)
        case Struct():
            parts = {name: part(inner, name) for name, inner in feature.fields.items()}
            return None if None in parts.values() else Struct({name: one for name, one in parts.items() if one})
        case Map():
            value = part(feature.value, "value")
            return value and Map(feature.key, value, feature.pairs)
        case Array(dtype=str(dtype), shape=(_,)) if (*path, "item") in nulls and dtype in SCALARS:
            return Sequence(Optional(Value(dtype)))
        case Array() if (*path, "item") in nulls:
            return None
    return feature


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


def _from_type(kind: pa.DataType, path: Path, nulls: Collection[Path]) -> Feature:
    if (*path, "item") not in nulls and (tensor := _from_tensor_type(kind)) is not None:
        return tensor
    if isinstance(kind, getattr(pa, "JsonType", ())):  # not in pyarrow 18
        return Json()
    types, kind = pa.types, value_type(kind)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return Value(number_dtype(kind).name)
    if is_text(kind):
        return Text()
    if is_binary(kind):
        return Bytes()
    if types.is_fixed_size_list(kind) or is_list(kind):
        return _from_list_type(kind, path, nulls)
    if types.is_struct(kind) and len({field.name for field in kind} - {""}) == kind.num_fields:
        return Struct({field.name: _part(field.type, (*path, field.name), nulls) for field in kind})
    if types.is_map(kind):
        return Map(_from_type(kind.key_type, (*path, "key"), ()), _part(kind.item_type, (*path, "value"), nulls))
    return _from_simple_type(kind)


def _from_simple_type(kind: pa.DataType) -> Feature:
    types = pa.types
    if types.is_timestamp(kind):
        return Timestamp(kind.unit, kind.tz or None)
    if types.is_date(kind):
        return Date()
    if types.is_time(kind):
        return Time(kind.unit)
    if types.is_duration(kind):
        return Duration(kind.unit)
    if types.is_decimal(kind):
        return Decimal(kind.precision, kind.scale)
    return Null() if types.is_null(kind) else Opaque(str(kind))


def _part(kind: pa.DataType, path: Path, nulls: Collection[Path]) -> Feature:
    return _optional_if(path in nulls, _from_type(kind, path, nulls))


def _from_tensor_type(kind: pa.DataType) -> Feature | None:
    """Return the feature of Arrow's extension type for tensors, `None` for other types and permuted dimensions."""
    if not isinstance(kind, pa.FixedShapeTensorType) or (order := kind.permutation or []) != sorted(order):
        return None
    if not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        return None
    array = Array(number_dtype(kind.value_type).name, tuple(kind.shape))
    return array if _readable(array, kind) else None


def _from_list_type(kind: pa.DataType, path: Path, nulls: Collection[Path]) -> Feature:
    inner = _part(kind.value_type, (*path, "item"), nulls)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
    if isinstance(inner, Value) and inner.dtype != "bool":
        return Array(inner.dtype, (size,))
    if size is not None and isinstance(inner, Array) and inner.fixed:
        return Array(inner.dtype, (size, *(inner.shape or ())))
    return Sequence(inner)


def _readable(feature: Feature, kind: pa.DataType) -> bool:
    """Return whether values of an Arrow type can be read as this feature."""
    kind = value_type(kind)
    match feature:
        case Optional():
            return _readable(feature.feature, kind)
        case Value() | Null():
            return bool(kind == arrow_type(feature))
        case Timestamp() | Time() | Duration():
            return units_per_stored(feature, kind) is not None
        case Date():
            return bool(pa.types.is_date(kind))
        case Decimal():
            decimal = pa.types.is_decimal(kind)
            return decimal and (kind.precision, kind.scale) == (feature.precision, feature.scale)
        case Map():
            parts = (feature.key, "key_type"), (feature.value, "item_type")
            return pa.types.is_map(kind) and all(_readable(one, getattr(kind, name)) for one, name in parts)
        case ClassLabel():
            return bool(pa.types.is_integer(kind))
        case Media():
            return is_binary(kind) or is_media_struct(kind)
        case Text() | Bytes() | Json() | Array(dtype=None):
            return is_binary(kind) or (is_text(kind) and not isinstance(feature, Array))
        case Array():
            return is_binary(kind) or _holds_array(feature, kind)
        case Sequence():
            return (is_list(kind) or pa.types.is_fixed_size_list(kind)) and _readable(feature.feature, kind.value_type)
        case Struct():
            names = [field.name for field in kind] if pa.types.is_struct(kind) else []
            return sorted(names) == sorted(feature.fields) and all(
                _readable(inner, kind.field(name).type) for name, inner in feature.fields.items()
            )
    return True


def units_per_stored(feature: Timestamp | Time | Duration, kind: pa.DataType) -> int | None:
    """Return how many stored units are one unit of the feature; `None` if its values cannot be read from the type.

    Parquet has no seconds: they are stored as milliseconds.

    >>> units_per_stored(Time("s"), pa.time32("ms")), units_per_stored(Time("us"), pa.time32("ms"))
    (1000, None)
    """
    expected = arrow_type(feature)
    if expected == kind:
        return 1
    if not any(
        same(kind) and same(expected) for same in (pa.types.is_timestamp, pa.types.is_time, pa.types.is_duration)
    ):
        return None
    steps = UNITS.index(kind.unit) - UNITS.index(feature.unit)
    zones = getattr(kind, "tz", None) == getattr(expected, "tz", None)
    return 1000**steps if zones and steps > 0 else None


def _holds_array(feature: Array, kind: pa.DataType) -> bool:
    """Return True if a type is the storage type of the array, or lists of the same elements."""
    expected = arrow_type(feature)
    if pa.types.is_struct(expected):
        return _holds_shapes(expected, kind)
    item, items = expected.value_type, 1
    if is_list(kind):
        return bool(kind.value_type == item)
    while pa.types.is_fixed_size_list(kind):
        kind, items = kind.value_type, items * kind.list_size
    return bool(kind == item) and feature.fixed and items == items_per_row(feature)


def _holds_shapes(expected: pa.StructType, kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind) or [field.name for field in kind] != ["values", "shape"]:
        return False
    values, shape = kind.field("values").type, kind.field("shape").type
    sized = expected.field("shape").type
    fits = shape == sized or (is_list(shape) and shape.value_type == sized.value_type)
    return fits and is_list(values) and bool(values.value_type == expected.field("values").type.value_type)
