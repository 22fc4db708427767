"""Values in the form that JSON and MessagePack hold: dates as text, maps as objects or pairs.

`fit` with `stored` accepts this form and turns it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from shardex.schema.codecs import plain_json
from shardex.schema.features import Map, Optional, Sequence, Struct, contains
from shardex.schema.leaf_features import Decimal, Feature, Json, Text
from shardex.schema.time_features import TimeFeature

Convert = Callable[[Any], Any]


def plain_form(feature: Feature) -> Convert | None:
    """Return the function that turns fitted values into what JSON and MessagePack hold; `None` if they hold them.

    Dates and times become ISO 8601 text (durations whole numbers), decimals text, maps objects or lists of pairs.
    Values of JSON fields lose their numpy objects; what JSON cannot hold is an error that names the inner key.

    >>> import datetime; from shardex.schema.time_features import Date
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
