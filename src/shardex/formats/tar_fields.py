"""One field of a sample as bytes of its own: what its name says, what its feature says, and a column of many.

A tar keeps each field of a sample as a file of its own, a *part*, and all it tells of it is the extension. Here a
feature gets its extension and an extension its feature, values become bytes, and ranges of bytes become a column:
by one gather where all are `.npy` of one kind, one by one where they are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import SchemaError, ShardexError
from shardex.kernel import Column, Columns, Ranges
from shardex.schema import (
    COMPACT,
    JSON,
    MSGPACK,
    NPY,
    NUMBER,
    RAW,
    TEXT,
    Array,
    Bytes,
    ClassLabel,
    Codec,
    Feature,
    Features,
    Json,
    Opaque,
    Optional,
    Struct,
    Text,
    Value,
    codec_for_extension,
    fit,
    npy_header,
    to_columns,
)
from shardex.schema import Sequence as SequenceOf

__all__ = ["Where", "column", "decoder", "encode", "feature_of_part", "part_name", "value", "with_gaps"]

Where = Callable[[int], str]
"""Says where the k-th value of a column lies, for messages."""

_FEATURES: dict[Codec, Feature] = {
    JSON: Json(),
    MSGPACK: Json(),
    TEXT: Text(),
    NUMBER: Value("int64"),
    NPY: Array(),
}


def feature_of_part(part: str) -> Feature:
    """What a part holds, as far as its name tells.

    >>> str(feature_of_part("seg.json")), str(feature_of_part("cls")), str(feature_of_part("jpg"))
    ('json', 'int64', 'bytes')
    """
    return _FEATURES.get(codec_for_extension(part), Bytes())


def part_name(field: str, feature: Feature) -> str:
    """The part that a field is written as: its own name if that says how to read it, else with an extension.

    Bytes keep their name, whatever it is: they are taken to be encoded as it says.

    >>> part_name("history", Array()), part_name("npy", Array()), part_name("jpg", Bytes()), part_name("id", Text())
    ('history.npy', 'npy', 'jpg', 'id.txt')
    """
    match _inner(feature):
        case Bytes():
            return field
        case Array():
            extension, own = "npy", [NPY]
        case Text():
            extension, own = "txt", [TEXT]
        case Value(dtype=dtype) if np.dtype(dtype).kind not in "iu":
            extension, own = "json", [JSON]
        case Value() | ClassLabel():
            extension, own = "cls", [NUMBER]
        case Opaque():
            raise SchemaError(f"expected a feature that can be written, got {feature} - at field {field}")
        case _:
            extension, own = "json", [JSON, MSGPACK]
    part = field if codec_for_extension(field) in own else f"{field}.{extension}"
    if _codec(part, feature) is JSON and _has_bytes(feature):
        raise SchemaError(
            f"expected values that JSON can hold, got {feature} - at field {field} (name it {field}.msgpack)"
        )
    return part


def encode(value: Any, part: str, feature: Feature) -> bytes:
    """The bytes of a value that fits its feature (`fit` has seen it)."""
    inner = _inner(feature)
    if isinstance(inner, Value) and isinstance(value, float) and math.isnan(value):
        return b"null"  # what JSON has for it; a float that is read as null is NaN again
    if isinstance(inner, Value) and isinstance(value, float) and math.isinf(value):
        raise SchemaError(f"expected a number that JSON can hold, got {value} (an array of no dimensions can hold it)")
    return NPY.encode(value) if isinstance(inner, Array) else _codec(part, feature).encode(value)


def decoder(part: str, feature: Feature) -> Callable[[memoryview], Any]:
    """What turns the bytes of one part into its value.

    >>> decoder("cls", Value("float32"))(memoryview(b"7"))
    7.0
    """
    decode, inner = _codec(part, feature).decode, _inner(feature)
    if isinstance(inner, Value):
        kind = np.dtype(inner.dtype).type
        return lambda data: kind(fit(decode(data), inner, stored=True)).item()
    if isinstance(inner, Text | Bytes | Json) or inner == Array():
        return decode
    return lambda data: fit(decode(data), inner, stored=True)


def value(decode: Callable[[memoryview], Any], data: memoryview, part: str, where: Where, k: int = 0) -> Any:
    """The value of one part; an error says where it lies."""
    try:
        return decode(data)
    except ShardexError as error:
        raise type(error)(f"{error} - at {where(k)}, field {part}") from error


def column(ranges: Ranges, part: str, feature: Feature, where: Where) -> Column:
    """The values of many parts of one name."""
    inner = _inner(feature)
    if isinstance(inner, Bytes):
        return ranges.bytes()
    if isinstance(inner, Text):
        try:
            return ranges.text()
        except UnicodeDecodeError:
            pass  # one by one, to say which it is
    if isinstance(inner, Array) and (stacked := _stacked(ranges, inner)) is not None:
        return stacked
    decode = _codec(part, feature).decode
    values = [value(decode, view, part, where, k) for k, view in enumerate(ranges.views())]
    made = to_columns({part: values}, len(values), Features({part: inner}), where)
    return (made.stack() if isinstance(inner, Array) else made).data[part]


def with_gaps(present: NDArray[np.bool_], values: Column) -> Column:
    """The values where they belong, `None` between them."""
    if present.all():
        return values
    out: list[Any] = [None] * len(present)
    rest: Sequence[Any] = Columns({"": values}).to_samples()
    for place, sample in zip(np.flatnonzero(present).tolist(), rest, strict=True):
        out[place] = sample[""]
    return out


def _inner(feature: Feature) -> Feature:
    return feature.feature if isinstance(feature, Optional) else feature


def _codec(part: str, feature: Feature) -> Codec:
    """How a part is read when its feature is known: the feature decides, the name only between forms of it."""
    named = codec_for_extension(part)
    match _inner(feature):
        case Array():
            return COMPACT  # which reads .npy too
        case Text():
            return TEXT
        case Bytes():
            return RAW
        case Value() | ClassLabel():
            return named if named is JSON else NUMBER
    return named if named is MSGPACK else JSON


def _has_bytes(feature: Feature) -> bool:
    match feature:
        case Bytes():
            return True
        case Optional() | SequenceOf():
            return _has_bytes(feature.feature)
        case Struct():
            return any(map(_has_bytes, feature.fields.values()))
    return False


def _stacked(ranges: Ranges, feature: Array) -> NDArray[Any] | None:
    """All arrays in one, if they are `.npy` with one header between them; none if they must be looked at one by one."""
    if not len(ranges) or (ranges.length != ranges.length[0]).any():
        return None
    try:
        start, dtype, shape, fortran = npy_header(ranges[:1].views()[0])
    except ShardexError:
        return None
    size = dtype.itemsize * math.prod(shape)
    if fortran or not shape or not dtype.itemsize or size != int(ranges.length[0]) - start:
        return None
    if not _as_declared(dtype, shape, feature):
        return None
    heads = Ranges(ranges.segments, ranges.which, ranges.begin, np.full(len(ranges), start)).padded(start)
    if (heads != heads[0]).any():
        return None
    data, _ = Ranges(ranges.segments, ranges.which, ranges.begin + start, np.full(len(ranges), size)).packed()
    return data.view(dtype).reshape(len(ranges), *shape)


def _as_declared(dtype: np.dtype[Any], shape: tuple[int, ...], feature: Array) -> bool:
    if feature.dtype is None:
        return True
    if dtype != np.dtype(feature.dtype):
        return False
    if feature.shape is None:
        return True
    return len(shape) == len(feature.shape) and all(n in (None, m) for n, m in zip(feature.shape, shape, strict=True))
