"""Describes the fields of samples (features), and converts values to them.

In: schemas as dicts or annotated classes, and values from users and files. Out: `Features` (name and type of each
field), and values that have the dtype and shape of their feature, or an error with the reason. `infer` makes features
from samples. Writers call `fit` and then a codec; readers call a codec and then `fit`: both accept the same values.

- `leaf_features`: features of numbers, text, bytes, JSON, arrays, classes, decimals, nulls
- `time_features`: features of dates and times, and the conversion of their values
- `media_features`: features of images, audio and video
- `features`: features that contain others, `Features`, and features of types and annotations
- `type_aliases`: what the type aliases in annotations stand for
- `infer`: features of samples
- `fit`, `fit_columns`: convert values, samples and columns to their features
- `plain_form`: values in the form that JSON and MessagePack hold, metadata of datasets
- `decimals`: decimal numbers as whole numbers
- `codecs`: JSON, MessagePack, text, number and raw bytes codecs; the table of all codecs
- `array_codecs`: arrays as `.npy` and as the compact array format of atdata
"""

from shardex.features.array_codecs import npy_header
from shardex.features.codecs import (
    COMPACT,
    JSON,
    MSGPACK,
    NPY,
    NPZ,
    NUMBER,
    RAW,
    TEXT,
    Codec,
    codec_by_name,
    codec_for_extension,
    encode_plain_json,
)
from shardex.features.decimals import unscaled
from shardex.features.features import (
    Features,
    Map,
    Optional,
    Sequence,
    Struct,
    check_fields,
    contains,
    feature_of,
    hints_of,
    nested_features,
    stored_form,
    unwrap_optional,
)
from shardex.features.fit import (
    check_keys,
    describe,
    dtype_bounds,
    fit,
    fit_array,
    fit_class,
    fit_null,
    fit_number,
    fit_sample,
    fits_unchanged,
    has_shape,
    is_missing,
    list_items,
    located,
    map_items,
    refuse_unknown_fields,
    shape_of_empty_list,
    struct_items,
    to_sample,
)
from shardex.features.fit_columns import cast_column, fit_column, in_form, is_stacked, stack_arrays, to_columns
from shardex.features.infer import infer, infer_or_json
from shardex.features.leaf_features import (
    SCALARS,
    Array,
    Bytes,
    ClassLabel,
    Decimal,
    Feature,
    Json,
    Null,
    Opaque,
    Text,
    Value,
    dtype_text,
)
from shardex.features.media_features import (
    IMAGE_MODES,
    NO_MEDIA,
    Audio,
    Image,
    Media,
    Video,
    channels_last,
    extensions_of_media,
    fit_media,
    is_pil_image,
    is_tensor,
    media_of_extension,
)
from shardex.features.plain_form import MADE_BY, copied_metadata, other_metadata, plain_form, plain_metadata
from shardex.features.time_features import UNITS, Date, Duration, Time, TimeFeature, Timestamp
from shardex.features.type_aliases import without_aliases

__all__ = [
    "COMPACT",
    "IMAGE_MODES",
    "JSON",
    "MADE_BY",
    "MSGPACK",
    "NO_MEDIA",
    "NPY",
    "NPZ",
    "NUMBER",
    "RAW",
    "SCALARS",
    "TEXT",
    "UNITS",
    "Array",
    "Audio",
    "Bytes",
    "ClassLabel",
    "Codec",
    "Date",
    "Decimal",
    "Duration",
    "Feature",
    "Features",
    "Image",
    "Json",
    "Map",
    "Media",
    "Null",
    "Opaque",
    "Optional",
    "Sequence",
    "Struct",
    "Text",
    "Time",
    "TimeFeature",
    "Timestamp",
    "Value",
    "Video",
    "cast_column",
    "channels_last",
    "check_fields",
    "check_keys",
    "codec_by_name",
    "codec_for_extension",
    "contains",
    "copied_metadata",
    "describe",
    "dtype_bounds",
    "dtype_text",
    "encode_plain_json",
    "extensions_of_media",
    "feature_of",
    "fit",
    "fit_array",
    "fit_class",
    "fit_column",
    "fit_media",
    "fit_null",
    "fit_number",
    "fit_sample",
    "fits_unchanged",
    "has_shape",
    "hints_of",
    "in_form",
    "infer",
    "infer_or_json",
    "is_missing",
    "is_pil_image",
    "is_stacked",
    "is_tensor",
    "list_items",
    "located",
    "map_items",
    "media_of_extension",
    "nested_features",
    "npy_header",
    "other_metadata",
    "plain_form",
    "plain_metadata",
    "refuse_unknown_fields",
    "shape_of_empty_list",
    "stack_arrays",
    "stored_form",
    "struct_items",
    "to_columns",
    "to_sample",
    "unscaled",
    "unwrap_optional",
    "without_aliases",
]
