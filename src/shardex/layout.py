"""How features lie in Arrow: the type each is stored as, the features of a foreign schema, and values back from arrays.

=====================  ===================================================================
feature                Arrow type
=====================  ===================================================================
Value                  the number itself, or bool
Text, Json             large_string
Bytes, Array()         large_binary (arrays of any dtype in the compact form)
Array, fixed shape     fixed_size_list of the flattened elements
Array, first size free large_list of the flattened elements
Array, other shapes    struct of `values` (large_list) and `shape` (list of int32)
ClassLabel             int32
Sequence, Struct       large_list, struct
Optional               the same, nullable
=====================  ===================================================================

Truth values in arrays lie as uint8, times as int64, complex numbers as pairs. Readers of Arrow files and the
builders use this; fast reads go past it, straight to the buffers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex import codec
from shardex.columns import Column, Ragged
from shardex.errors import FormatError, SchemaError
from shardex.schema import (
    Array,
    Bytes,
    ClassLabel,
    Feature,
    Features,
    Json,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
)

__all__ = ["arrow_schema", "arrow_type", "column_of", "features_of_arrow", "storage"]


def storage(dtype: str) -> np.dtype[Any]:
    """The dtype that elements lie as, for dtypes Arrow has no list of.

    >>> storage("bool"), storage("complex64"), storage("datetime64[us]")
    (dtype('uint8'), dtype('float32'), dtype('int64'))
    """
    kind = np.dtype(dtype)
    if kind.kind == "c":
        return np.dtype(f"f{kind.itemsize // 2}")
    return {"b": np.dtype("u1"), "M": np.dtype("i8"), "m": np.dtype("i8")}.get(kind.kind, kind)


def arrow_type(feature: Feature) -> pa.DataType:
    """The Arrow type of a feature."""
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
    raise SchemaError(f"expected a feature that can be written, got {feature}")


def _array_type(feature: Array) -> pa.DataType:
    assert feature.dtype is not None
    item = pa.field("item", pa.from_numpy_dtype(storage(feature.dtype)), nullable=False)
    if feature.fixed:
        return pa.list_(item, items_per_row(feature))
    if feature.ragged:
        return pa.large_list(item)
    size = -1 if feature.shape is None else len(feature.shape)
    shape = pa.list_(pa.field("item", pa.int32(), nullable=False), size)
    return pa.struct([pa.field("values", pa.large_list(item), nullable=False), pa.field("shape", shape, nullable=False)])


def items_per_row(feature: Array) -> int:
    """Stored elements per row of a fixed array, or per step of a ragged one."""
    assert feature.dtype is not None and feature.shape is not None
    pairs = 2 if np.dtype(feature.dtype).kind == "c" else 1
    return pairs * int(np.prod([n for n in feature.shape if n is not None], dtype=np.int64))


def _field(name: str, feature: Feature) -> pa.Field:
    return pa.field(name, arrow_type(feature), nullable=isinstance(feature, Optional))


def arrow_schema(features: Features) -> pa.Schema:
    """The Arrow schema of a dataset; the features go along as metadata, so that a file tells what it holds."""
    plain = codec.by_name("json").encode(features.to_json())
    return pa.schema([_field(name, feature) for name, feature in features.items()], metadata={"shardex": plain})


# -- from a foreign schema ------------------------------------------------------------------------------------


def features_of_arrow(schema: pa.Schema) -> Features:
    """The features that a file tells of itself, or those that its types suggest.

    >>> print(features_of_arrow(pa.schema([("x", pa.list_(pa.float32(), 3)), ("s", pa.string()), ("t", pa.date32())])))
    x float32[3], s text, t date32[day]
    """
    if schema.metadata and b"shardex" in schema.metadata:
        own = Features.from_json(codec.by_name("json").decode(schema.metadata[b"shardex"]))
        if list(own) == schema.names:
            return own
    return Features({field.name: _feature(field.type) for field in schema})


def _feature(kind: pa.DataType) -> Feature:
    types = pa.types
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return Value(np.dtype(kind.to_pandas_dtype()).name)
    if types.is_string(kind) or types.is_large_string(kind):
        return Text()
    if types.is_binary(kind) or types.is_large_binary(kind):
        return Bytes()
    if types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind):
        inner = _feature(kind.value_type)
        size = kind.list_size if types.is_fixed_size_list(kind) else None
        if isinstance(inner, Value) and inner.dtype != "bool":
            return Array(inner.dtype, (size,))
        if size is not None and isinstance(inner, Array) and inner.fixed and inner.shape:
            return Array(inner.dtype, (size, *inner.shape))
        return Sequence(inner)
    if types.is_struct(kind):
        return Struct({field.name: _feature(field.type) for field in kind})
    return Opaque(str(kind))


# -- values back ------------------------------------------------------------------------------------------------


def column_of(array: pa.Array | pa.ChunkedArray, feature: Feature) -> Column:
    """The values of a whole array; `None` where it has nulls."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    inner = feature.feature if isinstance(feature, Optional) else feature
    if not array.null_count:
        return _column(array, inner)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    values = iter(_list(_column(array.drop_null(), inner)))
    return [next(values) if ok else None for ok in valid.tolist()]


def _list(column: Column) -> list[Any]:
    if isinstance(column, np.ndarray):
        return column.tolist() if column.ndim == 1 and column.dtype.kind in "biuf" else list(column)
    return column.to_list() if isinstance(column, Ragged) else column


def _column(array: pa.Array, feature: Feature) -> Column:
    match feature:
        case Value() | ClassLabel():
            return np.asarray(array.to_numpy(zero_copy_only=False))
        case Text():
            return list(array.to_pylist())
        case Bytes():
            return list(array.to_pylist())
        case Json():
            decode = codec.by_name("json").decode
            return [decode(text) for text in array.cast(pa.large_binary()).to_pylist()]
        case Array() if _is_binary(array.type):
            return [array_of_bytes(raw, feature) for raw in array.to_pylist()]
        case Array():
            return _arrays(array, feature)
        case Sequence():
            offsets = array.offsets.to_numpy()
            values = _list(column_of(array.values, feature.feature))
            return [values[a:b] for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
        case Struct():
            columns = [_list(column_of(array.field(name), inner)) for name, inner in feature.fields.items()]
            return [dict(zip(feature.fields, row, strict=True)) for row in zip(*columns, strict=True)]
    return list(array.to_pylist())


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def array_of_bytes(raw: bytes, feature: Array) -> NDArray[Any]:
    """An array kept as bytes: bare elements if dtype and shape are known, else the compact form.

    >>> array_of_bytes(b"\\1\\0\\2\\0", Array("int16", (2,)))
    array([1, 2], dtype=int16)
    """
    if feature.dtype is None or feature.shape is None:
        return codec.by_name("compact").decode(raw)  # type: ignore[no-any-return]
    dtype = np.dtype(feature.dtype)
    known = int(np.prod([n for n in feature.shape if n is not None], dtype=np.int64)) * dtype.itemsize
    free = feature.shape.count(None)
    if free > 1 or (len(raw) != known if not free else not known or len(raw) % known):
        raise FormatError(f"expected the bytes of {feature}, got {len(raw)} bytes")
    return np.frombuffer(raw, dtype).reshape([-1 if n is None else n for n in feature.shape])


def _arrays(array: pa.Array, feature: Array) -> Column:
    assert feature.dtype is not None
    dtype = np.dtype(feature.dtype)
    if pa.types.is_struct(array.type):
        return _shaped(array, dtype)
    assert feature.shape is not None
    flat = array
    while pa.types.is_fixed_size_list(flat.type):
        flat = flat.flatten()
    if flat is not array:
        if flat.null_count:
            return list(array.to_pylist())
        values = flat.to_numpy(zero_copy_only=False).view(dtype).reshape(len(array), *_sizes(feature))
        return values if feature.shape else [np.asarray(value) for value in values]
    offsets = array.offsets.to_numpy()
    items = array.values.slice(offsets[0], offsets[-1] - offsets[0])
    if items.null_count:
        return list(array.to_pylist())
    values = np.asarray(items.to_numpy(zero_copy_only=False)).view(dtype)
    inner = tuple(n for n in feature.shape[1:] if n is not None)
    step = items_per_row(feature)
    return Ragged.from_values(values.reshape(-1, *inner), (offsets - offsets[0]) // step, inner)


def _sizes(feature: Array) -> tuple[int, ...]:
    assert feature.shape is not None
    return tuple(n for n in feature.shape if n is not None)


def _shaped(array: pa.StructArray, dtype: np.dtype[Any]) -> list[NDArray[Any]]:
    values, shapes = array.field("values"), array.field("shape")
    offsets = values.offsets.to_numpy().tolist()
    flat = np.asarray(values.values.to_numpy(zero_copy_only=False))
    rows = (flat[a:b].view(dtype) for a, b in zip(offsets[:-1], offsets[1:], strict=True))
    return [row.reshape(shape) for row, shape in zip(rows, shapes.to_pylist(), strict=True)]
