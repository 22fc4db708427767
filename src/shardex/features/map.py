"""`Map`: keys with values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.columns import (
    Encoder,
    Maps,
    ReadFile,
    decode_array,
    list_parts,
    number_array,
    offset_sizes,
    storage_array,
    value_type,
)
from shardex.errors import FormatError, SchemaError
from shardex.features.array import Array
from shardex.features.feature import ArrowParts, Convert, Feature, describe, null_mask, readable, unfit
from shardex.features.hints import feature_of
from shardex.features.json_value import Json
from shardex.features.opaque import Opaque
from shardex.features.sequence import Sequence
from shardex.features.struct import Struct
from shardex.features.text import Text
from shardex.kernel import Column, Integers, values_of


@dataclass(frozen=True, slots=True)
class Map(Feature):
    """Keys with values. In samples a dict; with `pairs`, or if keys cannot be keys of a dict, a list of tuples.

    Each key of a dict occurs once; `pairs` also holds keys that occur several times.

    >>> str(Map(str, int)), Map(str, int).is_dict, Map({"x": int}, str).is_dict
    ('map of text to int64', True, False)
    """

    kind: ClassVar[str] = "map"
    key: Feature
    value: Feature
    pairs: bool = False

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, key: Any, value: Any, pairs: bool = False) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", feature_of(self.key))
        object.__setattr__(self, "value", feature_of(self.value))
        if self.key.nullable:
            raise SchemaError(f"expected keys that are never missing, got {self.key}")

    @property
    def is_dict(self) -> bool:
        """True if samples hold dicts."""
        return not self.pairs and not isinstance(self.key, Array | Json | Map | Opaque | Sequence | Struct)

    def __str__(self) -> str:
        return f"{'pairs' if self.pairs else 'map'} of {self.key} to {self.value}"

    def parts(self) -> dict[str, Feature]:
        """Return the features of keys and values."""
        return {"key": self.key, "value": self.value}

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return a map of other keys and values."""
        return Map(parts["key"], parts["value"], self.pairs)

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of maps, with optional values if some are null."""
        if not pa.types.is_map(kind):
            return None
        return cls(parts.without_nulls().feature(kind.key_type, "key"), parts.feature(kind.item_type, "value"))

    # -- values -----------------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a dict or a list of tuples of fitted keys and values."""
        fitted = [(self.key.fit(k, stored=stored), self.value.fit(v, stored=stored)) for k, v in self.pairs_of(value)]
        return dict(fitted) if self.is_dict else fitted

    def pairs_of(self, value: Any) -> list[tuple[Any, Any]]:
        """Return keys and values of a map, given as a mapping or as pairs.

        >>> Map(str, int).pairs_of({"a": 1}), Map(str, int).pairs_of([("a", 1)])
        ([('a', 1)], [('a', 1)])
        """
        if isinstance(value, Mapping):
            return list(value.items())
        if not isinstance(value, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in value):
            raise unfit(self, value)
        pairs = [(key, one) for key, one in value]
        if self.is_dict:
            self.check_keys([key for key, _ in pairs])
        return pairs

    def check_keys(self, keys: SequenceOf[Any]) -> None:
        """Raise if a key of a map that is a dict occurs twice."""
        try:
            repeated = len(set(keys)) < len(keys)
        except TypeError:
            raise SchemaError(f"expected keys of {self}, got {describe(keys)}") from None
        if repeated:
            again = next(key for number, key in enumerate(keys) if key in keys[:number])
            raise SchemaError(
                f"expected each key once, got {describe(again)} twice "
                "(declare it as Map(..., pairs=True), a list of pairs)"
            )

    def blank(self) -> Any:
        """Return an empty dict."""
        return {}

    def plain(self) -> Convert | None:
        """Return the function that makes objects of maps with text as keys, and lists of pairs of other maps."""
        key, value = self.key.plain() or _unchanged, self.value.plain() or _unchanged
        if self.is_dict and isinstance(self.key, Text):
            return lambda pairs: {name: value(one) for name, one in pairs.items()}
        return lambda pairs: [[key(k), value(v)] for k, v in (pairs.items() if isinstance(pairs, Mapping) else pairs)]

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for arrays among the values whose shape a list cannot hold."""
        for one in value.values() if isinstance(value, Mapping) else (one for _, one in value):
            self.value.refuse_lost_shape(one, name)

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the type map."""
        return pa.map_(self.key.arrow_field("key"), self.value.arrow_field("value"))

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for maps whose keys and values can be read."""
        return pa.types.is_map(kind) and readable(self.key, kind.key_type) and readable(self.value, kind.item_type)

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return a map of values that may be missing."""
        value = parts.with_nulls(self.value, "value")
        return None if value is None else Map(self.key, value, self.pairs)

    def encoder(self) -> Encoder:
        """Return an encoder of offsets, keys and values."""
        return Maps(self.arrow_type(), self.key.encoder(), self.value.encoder(), self.pairs_of)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of keys, values and offsets."""
        entries = self.key.sizes(array.keys) + self.value.sizes(array.items)
        return entries[offset_sizes(array)] + 4 * np.arange(len(array) + 1)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return dicts or lists of tuples."""
        offsets, entries = list_parts(array)
        keys, values = values_of(decode_array(entries.field(0), self.key)), decode_array(entries.field(1), self.value)
        pairs = list(zip(keys, values_of(values), strict=True))
        found = [pairs[a:b] for a, b in pairwise(offsets.tolist())]
        if not self.is_dict:
            return found
        dicts = [dict(some) for some in found]
        for one, some in zip(dicts, found, strict=True):
            if len(one) < len(some):
                self._refuse_repeated([key for key, _ in some])
        return dicts

    def _refuse_repeated(self, keys: list[Any]) -> None:
        try:
            self.check_keys(keys)
        except SchemaError as error:
            raise FormatError(str(error)) from None

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether the values are media in structs."""
        return self.value.holds_media(value_type(kind).item_type)

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return maps with the bytes of structs."""
        if not self.holds_media(array.type):
            return array
        bounds, entries = list_parts(storage_array(array, inside=True))
        items = self.value.without_structs(entries.field(1), read_file)
        return pa.MapArray.from_arrays(number_array(bounds.astype("int32")), entries.field(0), items)

    def queryable(self, *, inside: bool = False) -> bool:
        """Return True if SQL can read keys and values."""
        return self.key.queryable(inside=True) and self.value.queryable(inside=True)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for lists of structs of key and value."""
        return {"_type": "List", "feature": {"key": self.key.to_hf(), "value": self.value.to_hf()}}

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return lists of structs."""
        bounds, entries = list_parts(array)
        items = Struct({"key": self.key, "value": self.value}).array_to_hf(entries, kind.value_type)
        return pa.ListArray.from_arrays(number_array(bounds.astype(np.int32)), items, mask=null_mask(array))


def _unchanged(value: Any) -> Any:
    return value
