"""One field of a sample as a file in a tar: extension and feature, encoding and decoding, columns of many values.

A tar stores each field of a sample as a member named ``key.extension``; only the extension describes the value.
This module maps a feature to an extension and back, encodes values, and decodes byte ranges to a column: by one gather
where all are `.npy` with the same header, otherwise one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.features import (
    Array,
    Bytes,
    Feature,
    Features,
    Json,
    Media,
    Optional,
    Struct,
    Text,
    Value,
    codecs,
    contains,
    conversions,
    unwrap_optional,
)
from shardex.kernel import Column, Ragged, Ranges, with_missing

Where = Callable[[int], str]
"""Returns the location of the k-th value of a column, for error messages."""

_FEATURES: dict[codecs.Codec, Feature] = {
    codecs.JSON: Json(),
    codecs.MSGPACK: Json(),
    codecs.TEXT: Text(),
    codecs.NUMBER: Value("int64"),
    codecs.NPY: Array(),
}


def feature_of_extension(extension: str) -> Feature:
    """Return the feature of values with this extension; bytes if it is unknown.

    >>> [str(feature_of_extension(one)) for one in ("seg.json", "cls", "png", "bin")]
    ['json', 'int64', 'image', 'bytes']
    """
    return _FEATURES.get(codecs.codec_for_extension(extension)) or Media.of_extension(extension) or Bytes()


def candidates(field: str, feature: Feature) -> list[str]:
    """Return the extensions that a field of a schema may have in a tar, the most likely one first.

    >>> from shardex.features import Image, Optional
    >>> candidates("history", Array()), candidates("image", Optional(Image()))[:2]
    (['history', 'history.npy'], ['image', 'image.png'])
    """
    inner = unwrap_optional(feature)
    if isinstance(inner, Media):
        return [field.lower(), *(f"{field.lower()}.{one}" for one in inner.file_extensions())]
    return [field.lower(), extension_of(field, feature).lower()]


def as_member(feature: Feature, extension: str | None) -> Feature:
    """Return the feature of a declared field in members of an extension: arrays in files of images are images.

    >>> str(as_member(Array("uint8"), "jpg")), str(as_member(Array("uint8"), "jpg.npy"))
    ("image(format='jpeg')", 'uint8[...]')
    """
    if extension is None or not isinstance(unwrap_optional(feature), Array):
        return feature
    media = Media.of_extension(extension)
    return feature if media is None else Optional(media) if feature.optional else media


# -- the schema in a tar --------------------------------------------------------------------------------------------


def to_record(features: Features, extensions: Mapping[str, str]) -> bytes:
    """Return the features of the fields that the extensions do not tell, as JSON; empty if there are none.

    Bytes that are called like an extension are files of that kind, and are read as such. If the first sample may lack
    a field, the others have null in the JSON: it says the order of all fields.

    >>> to_record(Features({"jpg": Bytes(), "n": Value("int64")}), {"jpg": "jpg", "n": "n.cls"})
    b'{"n":{"kind":"value","dtype":"int64"}}'
    """
    told = {name for name, feature in features.items() if isinstance(unwrap_optional(feature), Bytes)}
    told |= {name for name, feature in features.items() if feature_of_extension(name) == feature}
    untold = {name: one for name, one in features.items() if name not in told or extensions[name].lower() != name}
    if not untold:
        return b""
    plain = Features(untold).to_json()
    ordered = any(feature.optional for feature in features.values())
    return msgspec.json.encode({name: plain.get(name) for name in features} if ordered else plain)


def from_record(record: bytes, where: str) -> tuple[Features, list[str]]:
    """Return the features that `to_record` has encoded, and the names of the fields; an error names the tar."""
    try:
        plain = msgspec.json.decode(record or b"{}", type=dict[str, Any])
        return Features.from_json({name: one for name, one in plain.items() if one is not None}), list(plain)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ShardexError) as error:
        raise FormatError(f"{where}: expected a schema in the tar, got {record[:40]!r}: {error}") from None


def joined(known: Features, more: Features, where: str, declared: Container[str] = ()) -> Features:
    """Return the features of several tars; a field that only some of them have is optional.

    A field with two types raises an error, unless it is one of `declared`, whose features are not used.
    """
    fields = {}
    for name in {**known, **more}:
        one, other = known.get(name), more.get(name)
        if one and other and name not in declared and unwrap_optional(one) != unwrap_optional(other):
            raise SchemaError(
                f"{where}: expected the field {name!r} as {one}, as in the tars before, got {other}; name its type "
                "with schema="
            )
        fields[name] = one if one == other and one else Optional(one or other)
    return Features(fields)


# -- types of values ------------------------------------------------------------------------------------------------


def npy_feature(header: memoryview) -> Feature:
    """Return the feature of arrays with this header of a `.npy`; any array if the header does not determine them."""
    try:
        _, dtype, shape, _ = codecs.npy_header(header)
        return Array(dtype.name, shape) if dtype.isnative and shape and all(shape) else Array()
    except ShardexError:
        return Array()


def npz_feature(data: memoryview) -> Feature:
    """Return the feature of the arrays in an `.npz`: arrays of these names and dtypes, of any shape."""
    dtypes = {name: array.dtype for name, array in codecs.NPZ.decode(data).items()}
    found = {name: Array(dtype.name if dtype.kind in "biufc" else None) for name, dtype in dtypes.items()}
    return Struct(found) if found else Json()


def extension_of(field: str, feature: Feature) -> str:
    """Return the extension that a field is written with: its name, followed by an extension for the type if needed.

    Bytes keep their name, which is assumed to match their encoding. An image gets the extension that its feature names,
    whatever the encoding of its bytes is: all values of a field have the same one.

    >>> [extension_of(*one) for one in (("history", Array()), ("npy", Array()), ("jpg", Bytes()), ("id", Text()))]
    ['history.npy', 'npy', 'jpg', 'id.txt']
    """
    extension = feature.file_extension(field)
    if feature.codec(extension) is codecs.JSON and contains(feature, Bytes):
        raise SchemaError(
            f"expected values that JSON can hold, got {feature} - at field {field} (name it {field}.msgpack)"
        )
    return extension


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
    decode = feature.codec(extension).decode
    values = [value(decode, view, extension, where, k) for k, view in enumerate(ranges.views())]
    columns = conversions.to_columns({extension: values}, len(values), Features({extension: inner}), where)
    return (columns.stack() if isinstance(inner, Array) else columns).data[extension]


def optional_column(
    ranges: Ranges, present: NDArray[np.bool_], extension: str, feature: Feature, where: Where
) -> Column:
    """Decode the values of one field in the samples where it is present."""
    if not present.all() and not feature.optional:
        sample = where(int(present.argmin()))
        raise FormatError(f"{sample}: expected the field {extension!r}, the sample has none; declare it optional")
    places = np.flatnonzero(present).tolist()
    values = column(ranges[present], extension, feature, lambda k: where(places[k]))
    return with_missing(values, present) if feature.optional else values


def _stacked(ranges: Ranges, feature: Array) -> NDArray[Any] | None:
    """Return all arrays in one, if they are `.npy` with the same header; None if they must be decoded one by one."""
    if not len(ranges) or (ranges.length != ranges.length[0]).any():
        return None
    try:
        start, dtype, shape, fortran = codecs.npy_header(ranges[:1].views()[0])
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
