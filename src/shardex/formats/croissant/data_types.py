"""Features as the data types of Croissant, and back: integers, floats, text, booleans, times, media, and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shardex.features import (
    Array,
    Audio,
    ClassLabel,
    Date,
    Decimal,
    Feature,
    Image,
    Optional,
    Sequence,
    Text,
    Time,
    Timestamp,
    Value,
    Video,
    unwrap_optional,
)

_KINDS = {"b": "Boolean", "i": "Integer", "u": "Integer", "f": "Float"}
_CLASSES: dict[type[Feature], str] = {
    Text: "Text",
    ClassLabel: "Integer",
    Decimal: "Float",
    Date: "Date",
    Timestamp: "DateTime",
    Time: "Time",
    Image: "ImageObject",
    Audio: "AudioObject",
    Video: "VideoObject",
}
_DTYPES = {"Boolean": "bool", "Integer": "int64", "Float": "float64"}
_FEATURES: dict[str, Feature] = {"Text": Text(), "ImageObject": Image(), "AudioObject": Audio(), "VideoObject": Video()}
_SAME = {"URL": "Text", "Number": "Float"} | {f"Float{bits}": "Float" for bits in (16, 32, 64)}
_SAME |= {f"{sign}Int{bits}": "Integer" for sign in ("", "U") for bits in (8, 16, 32, 64)}


class DataType(NamedTuple):
    """The type of a field: the name of a type of schema.org, and the sizes of an array, -1 for any."""

    name: str
    shape: tuple[int, ...] | None = None


def data_type(feature: Feature) -> DataType | None:
    """Return the type of a feature; None if Croissant has none.

    >>> data_type(Array("float32", (3, None))), data_type(Optional(Text()))
    (DataType(name='Float', shape=(3, -1)), DataType(name='Text', shape=None))
    """
    plain = unwrap_optional(feature)
    if isinstance(plain, Sequence):
        item = data_type(plain.feature)
        return None if item is None else DataType(item.name, (-1, *(item.shape or ())))
    if isinstance(plain, Array | Value) and plain.dtype is not None:
        name = _KINDS.get(np.dtype(plain.dtype).kind)
        sizes = plain.shape if isinstance(plain, Array) else ()
        shape = None if sizes == () else tuple(-1 if size is None else size for size in sizes or (None,))
        return None if name is None else DataType(name, shape)
    known = _CLASSES.get(type(plain))
    return None if known is None else DataType(known)


def declared_type(field: Mapping[str, Any]) -> DataType | None:
    """Return the type that a field of a record set declares; None if it has none that a feature has.

    >>> declared_type({"dataType": ["wd:Q1", "cr:Int8"], "isArray": True, "arrayShape": "3,-1"})
    DataType(name='Integer', shape=(3, -1))
    """
    given = field.get("dataType")
    for one in given if isinstance(given, list) else [given]:
        name = str(one).replace("/", ":").rpartition(":")[2]
        name = _SAME.get(name, name)
        if name in _DTYPES or name in _CLASSES.values():
            is_array = field.get("isArray") or field.get("repeated")
            try:
                sizes = tuple(map(int, str(field.get("arrayShape") or "-1").split(",")))
            except ValueError:
                sizes = (-1,)
            return DataType(name, sizes if is_array else None)
    return None


def feature_as_declared(found: Feature, declared: DataType, *, exact: bool) -> Feature | None:
    """Return the feature that a declared type has, which may be the one that was found; None if it has none.

    `exact` says that files store their types: they are kept if they are only narrower than those that are declared.

    >>> feature_as_declared(Value("int64"), DataType("Text"), exact=False)
    Text()
    """
    there, sizes = data_type(found), declared.shape or ()
    is_number = declared.name in _DTYPES
    if there is not None:
        same = there.name == declared.name or {there.name, declared.name} <= {"Date", "DateTime"}
        narrower = exact and (there.name, declared.name) == ("Integer", "Float")
        lists = isinstance(unwrap_optional(found), Sequence) and is_number and sizes and not exact
        if (same or narrower) and not lists:
            return found
    if sizes and is_number:
        wanted: Feature = Array(_DTYPES[declared.name], tuple(None if size < 0 else size for size in sizes))
    elif not sizes and (is_number or declared.name in _FEATURES):
        wanted = Value(_DTYPES[declared.name]) if is_number else _FEATURES[declared.name]
    else:
        return None
    return Optional(wanted) if found.takes_none else wanted
