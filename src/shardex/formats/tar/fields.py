"""One field of a sample as a file in a tar: extension and feature, encoding and decoding, columns of many values.

A tar stores each field of a sample as a member named ``key.extension``; only the extension describes the value.
This module maps a feature to an extension and back, encodes values, and decodes byte ranges to a column: by one gather
where all are `.npy` with the same header, otherwise one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.features import (
    COMPACT,
    JSON,
    MSGPACK,
    NPY,
    NPZ,
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
    Map,
    Media,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Value,
    codec_for_extension,
    contains,
    extensions_of_media,
    fit,
    media_of_extension,
    npy_header,
    to_columns,
    unwrap_optional,
)
from shardex.formats.json_text import refuse_lost_shape
from shardex.kernel import Column, Ragged, Ranges, with_missing

Where = Callable[[int], str]
"""Returns the location of the k-th value of a column, for error messages."""

_FEATURES: dict[Codec, Feature] = {
    JSON: Json(),
    MSGPACK: Json(),
    TEXT: Text(),
    NUMBER: Value("int64"),
    NPY: Array(),
}


def feature_of_extension(extension: str) -> Feature:
    """Return the feature of values with this extension; bytes if it is unknown.

    >>> [str(feature_of_extension(one)) for one in ("seg.json", "cls", "png", "bin")]
    ['json', 'int64', 'image', 'bytes']
    """
    return _FEATURES.get(codec_for_extension(extension)) or media_of_extension(extension) or Bytes()


def candidates(field: str, feature: Feature) -> list[str]:
    """Return the extensions that a field of a schema may have in a tar, the most likely one first.

    >>> from shardex.features import Image
    >>> candidates("history", Array()), candidates("image", Optional(Image()))[:2]
    (['history', 'history.npy'], ['image', 'image.png'])
    """
    inner = unwrap_optional(feature)
    if isinstance(inner, Media):
        return [field.lower(), *(f"{field.lower()}.{one}" for one in extensions_of_media(inner))]
    return [field.lower(), extension_of(field, feature).lower()]


def npz_feature(data: memoryview) -> Feature:
    """Return the feature of the arrays in an `.npz`: arrays of these names and dtypes, of any shape."""
    dtypes = {name: array.dtype for name, array in NPZ.decode(data).items()}
    found = {name: Array(dtype.name if dtype.kind in "biufc" else None) for name, dtype in dtypes.items()}
    return Struct(found) if found else Json()


def extension_of(field: str, feature: Feature) -> str:
    """Return the extension that a field is written with: its name, followed by an extension for the type if needed.

    Bytes keep their name, which is assumed to match their encoding. An image gets the extension that its feature names,
    whatever the encoding of its bytes is: all values of a field have the same one.

    >>> [extension_of(*one) for one in (("history", Array()), ("npy", Array()), ("jpg", Bytes()), ("id", Text()))]
    ['history.npy', 'npy', 'jpg', 'id.txt']
    """
    match inner := unwrap_optional(feature):
        case Media():
            known = extensions_of_media(inner)
            return field if field.rpartition(".")[2].lower() in known else f"{field}.{known[0]}"
        case Bytes():
            return field
        case Struct() if codec_for_extension(field) is NPZ:
            return field
        case Array():
            suffix, codecs = "npy", [NPY]
        case Text():
            suffix, codecs = "txt", [TEXT]
        case Value(dtype=dtype) if np.dtype(dtype).kind not in "iu":
            suffix, codecs = "json", [JSON]
        case Value() | ClassLabel():
            suffix, codecs = "cls", [NUMBER]
        case Opaque():
            raise SchemaError(f"expected a feature that can be written, got {feature} - at field {field}")
        case _:
            suffix, codecs = "json", [JSON, MSGPACK]
    extension = field if codec_for_extension(field) in codecs else f"{field}.{suffix}"
    if _codec(extension, feature) is JSON and contains(feature, Bytes):
        raise SchemaError(
            f"expected values that JSON can hold, got {feature} - at field {field} (name it {field}.msgpack)"
        )
    return extension


def encode(value: Any, extension: str, feature: Feature) -> bytes:
    """Encode a value that fits its feature."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Value) and isinstance(value, float) and math.isnan(value):
        return b"null"  # JSON has no NaN; a float that is read as null becomes NaN again
    if isinstance(inner, Value) and isinstance(value, float) and math.isinf(value):
        raise SchemaError(f"expected a number that JSON can hold, got {value} (an array of no dimensions can hold it)")
    if isinstance(inner, Array):
        return NPY.encode(value)
    codec = _codec(extension, feature)
    if codec is NPZ:
        return codec.encode(value)
    if codec is JSON and isinstance(inner, Map | Sequence | Struct):
        refuse_lost_shape(value, inner, extension)
    return codec.encode(value)


def decoder(extension: str, feature: Feature) -> Callable[[memoryview], Any]:
    """Return the function that decodes one value.

    >>> decoder("cls", Value("float32"))(memoryview(b"7"))
    7.0
    """
    decode, inner = _codec(extension, feature).decode, unwrap_optional(feature)
    if isinstance(inner, Value):
        kind = np.dtype(inner.dtype).type
        return lambda data: kind(fit(decode(data), inner, stored=True)).item()
    if isinstance(inner, Text | Bytes | Json) or inner == Array():
        return decode
    return lambda data: fit(decode(data), inner, stored=True)


def value(decode: Callable[[memoryview], Any], data: memoryview, extension: str, where: Where, k: int = 0) -> Any:
    """Decode one value; an error names its location."""
    try:
        return decode(data)
    except ShardexError as error:
        raise type(error)(f"{error} - at {where(k)}, field {extension}") from error


def column(ranges: Ranges, extension: str, feature: Feature, where: Where) -> Column:
    """Decode the values of one field in many samples."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Bytes):
        return ranges.bytes()
    if isinstance(inner, Text):
        try:
            return ranges.text()
        except UnicodeDecodeError:
            pass  # decode one by one, for an error that names the sample
    if isinstance(inner, Array) and (stacked := _stacked(ranges, inner)) is not None:
        return stacked if inner.shape is None or inner.fixed else Ragged.from_stacked(stacked, shaped=not inner.ragged)
    decode = _codec(extension, feature).decode
    values = [value(decode, view, extension, where, k) for k, view in enumerate(ranges.views())]
    columns = to_columns({extension: values}, len(values), Features({extension: inner}), where)
    return (columns.stack() if isinstance(inner, Array) else columns).data[extension]


def optional_column(
    ranges: Ranges, present: NDArray[np.bool_], extension: str, feature: Feature, where: Where
) -> Column:
    """Decode the values of one field in the samples where it is present."""
    if not present.all() and not isinstance(feature, Optional):
        sample = where(int(present.argmin()))
        raise FormatError(f"{sample}: expected the field {extension!r}, the sample has none; declare it optional")
    places = np.flatnonzero(present).tolist()
    values = column(ranges[present], extension, feature, lambda k: where(places[k]))
    return with_missing(values, present) if isinstance(feature, Optional) else values


def _codec(extension: str, feature: Feature) -> Codec:
    """Return the codec of a field: chosen by the feature; if that allows several, by the extension."""
    named = codec_for_extension(extension)
    match unwrap_optional(feature):
        case Array():
            return COMPACT  # which reads .npy too
        case Text():
            return TEXT
        case Bytes():
            return RAW
        case Value() | ClassLabel():
            return named if named is JSON else NUMBER
    return named if named in (MSGPACK, NPZ) else JSON


def _stacked(ranges: Ranges, feature: Array) -> NDArray[Any] | None:
    """Return all arrays in one, if they are `.npy` with the same header; None if they must be decoded one by one."""
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
