"""Values in the form that JSON and MessagePack hold: dates as text, maps as objects or pairs; metadata of datasets.

`fit` with `stored` accepts this form and turns it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shardex.errors import ArgumentError, SchemaError
from shardex.features.codecs import plain_json
from shardex.features.features import Map, Optional, Sequence, Struct, contains
from shardex.features.leaf_features import Decimal, Feature, Json, Text
from shardex.features.time_features import TimeFeature

Convert = Callable[[Any], Any]


def plain_form(feature: Feature) -> Convert | None:
    """Return the function that turns fitted values into what JSON and MessagePack hold; `None` if they hold them.

    Dates and times become ISO 8601 text (durations whole numbers), decimals text, maps objects or lists of pairs.
    Values of JSON fields lose their numpy objects; what JSON cannot hold is an error that names the inner key.

    >>> import datetime; from shardex.features.time_features import Date
    >>> plain_form(Sequence(Date()))([datetime.date(2024, 1, 31)]), plain_form(Text())
    (['2024-01-31'], None)
    """
    return _convert(feature) if contains(feature, TimeFeature | Decimal | Map | Json) else None


def _convert(feature: Feature) -> Convert:
    match feature:
        case TimeFeature():
            return feature.text
        case Decimal():
            return str
        case Json():
            return plain_json
        case Optional():
            inner = _convert(feature.feature)
            return lambda value: None if value is None else inner(value)
        case Sequence():
            item = _convert(feature.feature)
            return lambda values: [item(one) for one in values]
        case Struct():
            parts = {name: _convert(one) for name, one in feature.fields.items()}
            return lambda values: {name: parts[name](one) for name, one in values.items()}
        case Map():
            return _convert_map(feature)
    return _unchanged


def _convert_map(feature: Map) -> Convert:
    key, value = _convert(feature.key), _convert(feature.value)
    if feature.is_dict and isinstance(feature.key, Text):
        return lambda pairs: {name: value(one) for name, one in pairs.items()}
    return lambda pairs: [[key(k), value(v)] for k, v in (pairs.items() if isinstance(pairs, Mapping) else pairs)]


def _unchanged(value: Any) -> Any:
    return value


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
