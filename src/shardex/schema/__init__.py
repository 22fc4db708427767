"""What samples are made of: the types of fields (features), codecs between bytes and values, and values made to fit.

In: schemas as dicts or annotated classes, values of users and files. Out: `Features`, and values that match them.
A schema becomes `Features` (from annotations) or is inferred from samples. Writers and readers pass values through
`fit` before and after the codecs, so the same values are accepted everywhere.

features      feature classes, `Features`, features of types and annotations
infer         features of samples
fit           values, samples and columns made to fit features
codecs        codecs of JSON, MessagePack, text, numbers and bytes; the table of all codecs
array_codecs  arrays as `.npy` and in the compact format
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
    feature_of,
    hints_of,
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
    "describe",
    "dtype_bounds",
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
    "npy_header",
    "refuse_unknown_fields",
    "struct_items",
    "to_columns",
    "to_sample",
    "unwrap_optional",
]
