"""The types of fields: one class for each kind, which knows its values and how they are stored.

In: schemas as dicts or annotated classes, and values from users and files. Out: `Features` (name and type of each
field), and values that have the dtype and shape of their feature, or an error with the reason. `infer` makes features
from samples. Writers call `fit` and then a codec; readers call a codec and then `fit`: both accept the same values.

- `feature`: `Feature`, the base class, which says what a feature defines
- `kinds`: the table of all kinds; features of types and annotations; `Opaque`, the kind of Arrow types without another
- `value`, `text`, `json_value`, `class_label`, `decimals`: single values
- `array`, `array_values`, `array_arrow`: arrays; `dtypes`: names and limits of dtypes
- `time_feature`, `times`: dates and times
- `media`, `media_kinds`: images, audio and video
- `optional`: features with missing values, and the base class of features that are stored as another one
- `sequence`, `struct`: features that contain others
- `features`: `Features`; `infer`: features of samples
- `arrow_schema`: features as Arrow schemas and back; `hf_metadata` does this for files of Hugging Face `datasets`, and
  has the metadata of datasets
- `conversions`: whole samples and columns converted to their features, and as tables for SQL
- `codecs`: JSON, MessagePack, text, numbers, raw bytes, and arrays as `.npy` and in the compact format of atdata
"""

from shardex.features.array import Array
from shardex.features.arrow_schema import arrow_schema, features_of_arrow
from shardex.features.class_label import ClassLabel
from shardex.features.decimals import Decimal
from shardex.features.feature import Feature, describe
from shardex.features.features import Features, contains, told_apart
from shardex.features.json_value import Json
from shardex.features.kinds import Opaque, register
from shardex.features.media import Media
from shardex.features.media_kinds import Audio, Image, Video
from shardex.features.optional import Null, Optional, StoredAs, unwrap_optional
from shardex.features.sequence import Sequence
from shardex.features.struct import Map, Struct
from shardex.features.text import Bytes, Text
from shardex.features.time_feature import TimeFeature
from shardex.features.times import Date, Duration, Time, Timestamp
from shardex.features.value import Value
from shardex.lazy_door import TYPES, import_later

register(Optional, Array, Value, Text, Bytes, Image, Audio, Video, Timestamp, Date, Time, Duration, Decimal, ClassLabel)
register(Null, Sequence, Map, Json, Struct, Opaque)  # asked in this order

__all__ = [
    "Array",
    "Audio",
    "Bytes",
    "ClassLabel",
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
    "codecs",
    "contains",
    "conversions",
    "describe",
    "dtypes",
    "features_of_arrow",
    "hf_metadata",
    "infer",
    "kinds",
    "stack_arrays",
    "told_apart",
    "unwrap_optional",
]

if TYPES:
    from shardex.features import codecs, conversions, dtypes, hf_metadata, kinds
    from shardex.features.array_values import stack_arrays
    from shardex.features.infer import Inferred, infer
else:
    import_later(
        __name__,
        {
            "": "codecs conversions dtypes hf_metadata kinds",
            "array_values": "stack_arrays",
            "infer": "Inferred infer",
        },
    )
