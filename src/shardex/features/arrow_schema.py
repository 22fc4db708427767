"""Features as Arrow schemas and back.

=====================  ===================================================================
feature                Arrow type
=====================  ===================================================================
Value                  the number itself, or bool
Text, Json             large_string
Bytes, Array()         large_binary (arrays of any dtype in the compact format)
Image, Audio, Video    large_binary (also read: structs of `bytes` and `path`)
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
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from shardex.columns import arrow_types
from shardex.errors import SchemaError, ShardexError
from shardex.features.codecs import JSON
from shardex.features.feature import ArrowParts, Feature, readable
from shardex.features.features import Features
from shardex.features.hf_metadata import features_in_hf_metadata
from shardex.features.kinds import Opaque, all_kinds
from shardex.features.media_kinds import Image, Video
from shardex.features.optional import Optional


def arrow_schema(features: Features) -> pa.Schema:
    """Return the Arrow schema of a dataset, with the features as metadata."""
    plain = JSON.encode(features.to_json())
    return pa.schema([feature.arrow_field(name) for name, feature in features.items()], metadata={"shardex": plain})


# -- from an Arrow schema ---------------------------------------------------------------------------------------


def features_of_arrow(
    schema: pa.Schema, declared: Features | None = None, nulls: Collection[arrow_types.Path] = ()
) -> Features:
    """Return the features of an Arrow schema: declared by the user, else from its metadata, else from its types.

    Fields and parts in `nulls`, which have null values, are optional. Lists of numbers are arrays, unless they have
    nulls inside.

    >>> from shardex.features import Array
    >>> print(features_of_arrow(pa.schema([("x", pa.list_(pa.float32(), 3)), ("s", pa.string()), ("t", pa.date32())])))
    x float32[3], s text, t date
    >>> print(features_of_arrow(pa.schema([("x", pa.list_(pa.float32()))]), nulls={("x", "item")}))
    x list of (float32 or none)
    >>> print(features_of_arrow(pa.schema([("x", pa.binary())]), Features.of({"x": Array("int8", (2, 2))})))
    x int8[2, 2]
    """
    arrow_types.check_column_names(schema)
    declared = declared or Features({})
    for name in declared:
        if name not in schema.names:
            raise SchemaError(f"expected one of the fields {', '.join(schema.names)}, got {name!r} in the schema")
    written = _features_in_metadata(schema)
    return Features(
        {field.name: _read_as(field, declared.get(field.name), written.get(field.name), nulls) for field in schema}
    )


def _features_in_metadata(schema: pa.Schema) -> Mapping[str, Feature]:
    """Return the features that a file was written with; none if the metadata is invalid."""
    if not schema.metadata or b"shardex" not in schema.metadata:
        return _media(schema) | features_in_hf_metadata(schema, lambda kind: _from_type(kind, _parts((), ())))
    try:
        return Features.from_json(JSON.decode(schema.metadata[b"shardex"]))
    except ShardexError:
        return {}


_STABLE_CLASSES: dict[bytes, Feature] = {b"Image": Image(None), b"Video": Video()}


def _media(schema: pa.Schema) -> dict[str, Feature]:
    """Return the fields that stable-datasets has marked as media; it notes no more of a feature than its class."""
    names = {field.name: (field.metadata or {}).get(b"stable_datasets.feature") for field in schema}
    return {name: _STABLE_CLASSES[found] for name, found in names.items() if found in _STABLE_CLASSES}


def _read_as(
    field: pa.Field, declared: Feature | None, written: Feature | None, nulls: Collection[arrow_types.Path]
) -> Feature:
    parts, has_nulls = _parts((field.name,), nulls), (field.name,) in nulls
    if declared is not None:
        if not readable(declared, field.type):
            raise SchemaError(
                f"expected a feature that {field.type} can be read as, got {declared} - at field {field.name}"
            )
        return _optional_if(has_nulls, declared.with_nulls(parts) or declared)
    # Another tool may have changed the column and kept the metadata.
    kept = written is not None and readable(written, field.type)
    found = written.with_nulls(parts) if written is not None and kept else None
    return _optional_if(has_nulls, found or _from_type(field.type, parts))


def _optional_if(null: bool, feature: Feature) -> Feature:
    return Optional(feature) if null and not feature.nullable else feature


def _parts(path: arrow_types.Path, nulls: Collection[arrow_types.Path]) -> ArrowParts:
    return ArrowParts(path, nulls, _from_type, lambda feature: _optional_if(True, feature))


def _from_type(kind: pa.DataType, parts: ArrowParts) -> Feature:
    """Return the feature of an Arrow type, of an extension type or of the values that it stores."""
    extension = (kind,) if isinstance(kind, pa.BaseExtensionType) else ()
    for one in (*extension, kind := arrow_types.value_type(kind)):
        for known in all_kinds():
            if (found := known.of_arrow(one, parts)) is not None:
                return found
    return Opaque(str(kind))
