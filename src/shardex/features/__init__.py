"""The types of fields: one class for each kind, which knows its values and how they are stored.

In: schemas as dicts or annotated classes, and values from users and files. Out: `Features` (name and type of each
field), and values that have the dtype and shape of their feature, or an error with the reason. `infer` makes features
from samples. Writers call `fit` and then a codec; readers call a codec and then `fit`: both accept the same values.

- `feature`: `Feature`, the base class, which says what a feature defines
- `kinds`: the table of all kinds, and `Opaque`, the kind of Arrow types that have no other
- `value`, `text`, `json_value`, `class_label`, `decimals`: single values
- `array`, `array_values`, `array_arrow`: arrays; `dtypes`: names and limits of dtypes
- `time_feature`, `times`: dates and times
- `media`, `media_kinds`: images, audio and video
- `optional`, `sequence`, `struct`: features that contain others
- `stored_as`: base class of features that are stored as another one
- `features`: `Features`
- `hints`: features of types and annotations; `infer`: features of samples
- `arrow_schema`: features as Arrow schemas and back; `hf_metadata` does this for files of Hugging Face `datasets`, and
  has the metadata of datasets
- `samples`: whole samples converted to their features, and as tables for SQL
- `codecs`: JSON, MessagePack, text, number and raw bytes codecs; the table of all codecs
- `array_codecs`: arrays as `.npy` and as the compact array format of atdata
"""

from shardex.features.array import Array
from shardex.features.array_arrow import items_per_row
from shardex.features.array_codecs import NPY_MAGIC, npy_header
from shardex.features.array_values import is_tensor, stack_arrays
from shardex.features.arrow_schema import arrow_schema, features_of_arrow
from shardex.features.class_label import ClassLabel
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
from shardex.features.decimals import Decimal
from shardex.features.dtypes import SCALARS, dtype_bounds, dtype_text
from shardex.features.feature import Feature, describe
from shardex.features.features import Features, contains
from shardex.features.hf_metadata import MADE_BY, copied_metadata, feature_of_hf, other_metadata, plain_metadata
from shardex.features.hints import feature_of, hints_of, without_aliases
from shardex.features.infer import Inferred, infer, infer_or_json
from shardex.features.json_value import Json
from shardex.features.kinds import Opaque, register
from shardex.features.media import Media, channels_last, is_pil_image, media_of_extension
from shardex.features.media_kinds import Audio, Image, Video
from shardex.features.optional import Null, Optional, unwrap_optional
from shardex.features.samples import (
    concat_tables,
    feature_of_values,
    fit_sample,
    in_form,
    samples_table,
    to_columns,
    to_sample,
)
from shardex.features.sequence import Sequence
from shardex.features.stored_as import StoredAs
from shardex.features.struct import Map, Struct
from shardex.features.text import Bytes, Text
from shardex.features.time_feature import UNITS, TimeFeature
from shardex.features.times import Date, Duration, Time, Timestamp
from shardex.features.value import Value

register(Optional, Array, Value, Text, Bytes, Image, Audio, Video, Timestamp, Date, Time, Duration, Decimal, ClassLabel)
register(Null, Sequence, Map, Json, Struct, Opaque)  # asked in this order

__all__ = [
    "COMPACT",
    "JSON",
    "MADE_BY",
    "MSGPACK",
    "NPY",
    "NPY_MAGIC",
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
    "Inferred",
    "Json",
    "Map",
    "Media",
    "Null",
    "Opaque",
    "Optional",
    "Sequence",
    "StoredAs",
    "Struct",
    "Text",
    "Time",
    "TimeFeature",
    "Timestamp",
    "Value",
    "Video",
    "arrow_schema",
    "channels_last",
    "codec_by_name",
    "codec_for_extension",
    "concat_tables",
    "contains",
    "copied_metadata",
    "describe",
    "dtype_bounds",
    "dtype_text",
    "encode_plain_json",
    "feature_of",
    "feature_of_hf",
    "feature_of_values",
    "features_of_arrow",
    "fit_sample",
    "hints_of",
    "in_form",
    "infer",
    "infer_or_json",
    "is_pil_image",
    "is_tensor",
    "items_per_row",
    "media_of_extension",
    "npy_header",
    "other_metadata",
    "plain_metadata",
    "samples_table",
    "stack_arrays",
    "to_columns",
    "to_sample",
    "unwrap_optional",
    "without_aliases",
]
