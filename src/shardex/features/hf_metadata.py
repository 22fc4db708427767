"""Features of Hugging Face `datasets` in their JSON form, which the metadata of its Arrow and Parquet files holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardex.errors import ArgumentError, SchemaError
from shardex.features.array import Array
from shardex.features.class_label import ClassLabel
from shardex.features.feature import Feature
from shardex.features.features import Features
from shardex.features.json_value import Json
from shardex.features.media import HF_OPTIONS
from shardex.features.media_kinds import IMAGE_MODES
from shardex.features.sequence import Sequence
from shardex.features.struct import Struct

_KEY = b"huggingface"

FeatureOfType = Callable[[pa.DataType], Feature]


def features_in_hf_metadata(schema: pa.Schema, feature_of_type: FeatureOfType) -> dict[str, Feature]:
    """Return the features that the metadata of a schema has and the Arrow types do not; none if it is invalid."""
    try:
        described = msgspec.json.decode((schema.metadata or {})[_KEY])["info"]["features"]
        found = {
            field.name: feature_of_hf(described[field.name], field.type, feature_of_type)
            for field in schema
            if field.name in described
        }
    except (KeyError, TypeError, ValueError, AttributeError, SchemaError):  # whatever another tool made of it
        return {}
    return {name: feature for name, feature in found.items() if feature is not None and not isinstance(feature, Array)}


def feature_of_hf(plain: Any, kind: pa.DataType, feature_of_type: FeatureOfType) -> Feature | None:
    """Return the feature of a Hugging Face feature in JSON form, or None if its Arrow type determines it.

    >>> plain = {"feature": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "_type": "List"}
    >>> str(feature_of_hf(plain, pa.list_(pa.int64()), lambda kind: Json()))
    'list of class of 2'
    """
    return _feature(plain, kind, feature_of_type, inside=False)


def _feature(plain: Any, kind: pa.DataType, feature_of_type: FeatureOfType, *, inside: bool) -> Feature | None:
    match plain:
        case {"_type": "ClassLabel", "names": list(names)} if names:
            return ClassLabel(tuple(names))
        case {"_type": "List" | "LargeList" | "Sequence", "feature": item} if hasattr(kind, "value_type"):
            found = _feature(item, kind.value_type, feature_of_type, inside=True)
            return None if found is None else Sequence(found)
        case {"_type": "Json"}:
            return Json()
        case {"_type": "Image" | "Audio" | "Video"}:
            return media_of_hf(plain)
        case {"_type": str(name), "dtype": dtype, "shape": shape} if name.startswith("Array") and not inside:
            return _array(dtype, shape)
        case dict() if "_type" not in plain and pa.types.is_struct(kind):
            return _struct(plain, kind, feature_of_type)
    return None


# -- images, audio and video ----------------------------------------------------------------------------------


def media_of_hf(plain: Mapping[str, Any]) -> Feature:
    """Return the feature of images, audio or video in JSON form.

    >>> media_of_hf({"_type": "Image", "mode": "L"}), media_of_hf({"_type": "Audio", "sampling_rate": 8000})
    (Image(mode='L'), Audio(rate=8000))
    """
    known: dict[str, Any] = {"kind": plain["_type"].lower(), "decode": plain.get("decode", True)}
    if known["kind"] == "image":
        known["mode"] = mode if (mode := plain.get("mode")) in IMAGE_MODES else None
    elif known["kind"] == "audio":
        known |= {"rate": plain.get("sampling_rate"), "mono": plain.get("num_channels") == 1}
    identity = plain.get("id")
    if isinstance(identity, str) and identity.startswith(HF_OPTIONS):
        with suppress(TypeError, ValueError):
            own = msgspec.json.decode(identity[len(HF_OPTIONS) :])
            return Features.from_json({"x": {**own, **known}})["x"]
    return Features.from_json({"x": known})["x"]


def _array(dtype: str, shape: list[int | None]) -> Array | None:
    if np.dtype(dtype).kind not in "iuf" or 0 in shape:
        return None
    array = Array(dtype, tuple(shape))
    return array if array.fixed or array.ragged else None


def _struct(plain: Mapping[str, Any], kind: pa.DataType, feature_of_type: FeatureOfType) -> Struct:
    fields = [kind.field(number) for number in range(kind.num_fields)]
    parts = {one.name: _feature(plain.get(one.name), one.type, feature_of_type, inside=True) for one in fields}
    return Struct({one.name: parts[one.name] or feature_of_type(one.type) for one in fields})


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata of a dataset as it will be read again; raise an error if JSON cannot hold it.

    >>> plain_metadata({"eos": 3, "roles": ("user", "assistant")})
    {'eos': 3, 'roles': ['user', 'assistant']}
    """
    try:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(dict(metadata)))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ArgumentError(f"expected metadata that JSON can hold, got {metadata!r:.200}: {error}") from None
    return plain


MADE_BY = "cache"
"""Key of the metadata that say which generator has made exactly these samples."""


def copied_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for a copy of a dataset, which may have other samples: without what `cache` relies on.

    >>> copied_metadata({"eos": 3, "cache": {"generator": "squares"}})
    {'eos': 3}
    """
    return {name: value for name, value in metadata.items() if name != MADE_BY}


def other_metadata(path: str, here: Mapping[str, Any], given: Mapping[str, Any]) -> SchemaError:
    """Return the error for data that is appended with other metadata than that of the dataset."""
    names = [name for name in {**here, **given} if here.get(name) != given.get(name)]
    found = ", ".join(f"{name}: {here.get(name)!r} and {given.get(name)!r}"[:200] for name in names)
    return SchemaError(f"{path}: expected data with the metadata of this dataset, got other ({found})")
