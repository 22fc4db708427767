"""Describes the fields of samples (features), and converts values to them.

In: schemas as dicts or annotated classes, and values from users and files. Out: `Features` (name and type of each
field), and values that have the dtype and shape of their feature, or an error with the reason. `infer` makes features
from samples. Writers call `fit` and then a codec; readers call a codec and then `fit`: both accept the same values.

- `features`: the feature classes, `Features`, and features of types and annotations
- `infer`: features of samples
- `fit`: converts values, samples and columns to their features
- `codecs`: JSON, MessagePack, text, number and raw bytes codecs; the table of all codecs
- `array_codecs`: arrays as `.npy` and as the compact array format of atdata
"""

from shardex.schema.array_codecs import npy_header
from shardex.schema.codecs import (
    COMPACT,
    JSON,
    MSGPACK,
    NPY,
    NUMBER,
    RAW,
    TEXT,
    Codec,
    codec_by_name,
    codec_for_extension,
    encode_plain_json,
)
from shardex.schema.features import (
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
    check_fields,
    contains,
    dtype_text,
    feature_of,
    hints_of,
    nested_features,
    unwrap_optional,
)
from shardex.schema.fit import (
    cast_column,
    describe,
    dtype_bounds,
    fit,
    fit_array,
    fit_class,
    fit_column,
    fit_number,
    fit_sample,
    fits_unchanged,
    is_stacked,
    list_items,
    located,
    refuse_unknown_fields,
    struct_items,
    to_columns,
    to_sample,
)
from shardex.schema.infer import infer, infer_or_json

__all__ = [
    "COMPACT",
    "JSON",
    "MSGPACK",
    "NPY",
    "NUMBER",
    "RAW",
    "TEXT",
    "Array",
    "Bytes",
    "ClassLabel",
    "Codec",
    "Feature",
    "Features",
    "Json",
    "Opaque",
    "Optional",
    "Sequence",
    "Struct",
    "Text",
    "Value",
    "cast_column",
    "check_fields",
    "codec_by_name",
    "codec_for_extension",
    "contains",
    "describe",
    "dtype_bounds",
    "dtype_text",
    "encode_plain_json",
    "feature_of",
    "fit",
    "fit_array",
    "fit_class",
    "fit_column",
    "fit_number",
    "fit_sample",
    "fits_unchanged",
    "hints_of",
    "infer",
    "infer_or_json",
    "is_stacked",
    "list_items",
    "located",
    "nested_features",
    "npy_header",
    "refuse_unknown_fields",
    "struct_items",
    "to_columns",
    "to_sample",
    "unwrap_optional",
]
