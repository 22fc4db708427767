"""Encodes samples as compact JSON (`JsonEncoder`); what JSON would change or cannot hold raises an error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from shardex.errors import SchemaError
from shardex.features import Array, Feature, Features, encode_plain_json
from shardex.features import Bytes as BytesFeature


class JsonEncoder:
    """Encodes samples of these features; raises an error for features whose values JSON cannot hold.

    >>> JsonEncoder(Features.of({"x": Array("int64", (None,)), "s": str}))({"x": np.arange(3), "s": "a"})
    b'{"x":[0,1,2],"s":"a"}'
    """

    def __init__(self, features: Features) -> None:
        _refuse_bytes(features)
        self._shaped = {name: one for name, one in features.items() if any(_has_shape(one, name))}
        """Fields that hold arrays of several dimensions."""

    def __call__(self, sample: Mapping[str, Any]) -> bytes:
        """Return the JSON of a sample; an error names the field."""
        for name, feature in self._shaped.items():
            feature.refuse_lost_shape(sample[name], name)
        try:
            return encode_plain_json({name: _plain(value) for name, value in sample.items()})
        except SchemaError:
            for name, value in sample.items():  # which field?
                try:
                    encode_plain_json(_plain(value))
                except SchemaError as error:
                    raise SchemaError(f"{error} - at field {name}") from None
            raise


def _refuse_bytes(features: Features) -> None:
    """Refuse features whose values JSON cannot hold."""
    for name, feature in (inner for field, outer in features.items() for inner in outer.nested(field)):
        if isinstance(feature, BytesFeature):
            raise SchemaError(
                f"expected a feature that JSON can hold, got bytes - at field {name}; JSON has text but no bytes: "
                'decode them to text, or choose a format that has them ("arrow", "tar")'
            )
        if isinstance(feature, Array) and feature.dtype is not None and np.dtype(feature.dtype).kind not in "biuf":
            raise SchemaError(f"expected numbers that JSON can hold, got {feature} - at field {name}")


def _has_shape(feature: Feature, name: str) -> Iterator[bool]:
    parts = (part for _, part in feature.nested(name) if isinstance(part, Array))
    return (part.shape is None or len(part.shape) > 1 for part in parts)


def _plain(value: Any) -> Any:
    """Return the value without arrays. Values that JSON would change raise an error, except NaN: it becomes null."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufU":
        if value.dtype.kind == "f" and np.isinf(value).any():
            raise SchemaError(
                f"expected numbers that JSON can hold, got {value.dtype}{list(value.shape)} with infinity"
            )
        return value.tolist()
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, bytes | bytearray | memoryview):
        raise SchemaError("expected a value that JSON can hold, got bytes (decode them to text)")
    raise SchemaError(f"expected a value that JSON can hold, got {type(value).__name__} {value!r}"[:200])
