"""`Struct` and `Map`: named values within one field, and keys with values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.columns import (
    Chunks,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    arrow_values,
    decode_array,
    encoders,
    field_readers,
    number_array,
    refuse_unknown_fields,
)
from shardex.errors import FormatError, SchemaError
from shardex.features.array import Array
from shardex.features.codecs import NPZ, codec_for_extension
from shardex.features.feature import ArrowParts, Convert, Feature, as_part, describe, null_mask, readable, unfit
from shardex.features.features import Features
from shardex.features.json_value import Json
from shardex.features.kinds import Opaque, feature_of, hints_of
from shardex.features.sequence import Sequence
from shardex.features.text import Text
from shardex.kernel import MISSING, Column, Integers, values_of


@dataclass(frozen=True, slots=True)
class Struct(Feature):
    """Named values within one field.

    >>> str(Struct({"x": "int32", "y": str}))
    'struct of (x int32, y text)'
    """

    kind: ClassVar[str] = "struct"
    fields: Mapping[str, Feature]

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, fields: Mapping[str, Any]) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", Features.of(self.fields))

    def __str__(self) -> str:
        return f"struct of ({self.fields})"

    def parts(self) -> dict[str, Feature]:
        """Return the features of the members."""
        return dict(self.fields)

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return a struct of other members."""
        return Struct(parts)

    def nested(self, name: str) -> Iterator[tuple[str, Feature]]:
        """Iterate over this feature and all features inside it, each with the path of its field.

        >>> [(path, str(one)) for path, one in Struct({"a": str}).nested("x")]
        [('x', 'struct of (a text)'), ('x.a', 'text')]
        """
        yield name, self
        for inner, one in self.fields.items():
            yield from one.nested(f"{name}.{inner}")

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of a mapping of names to types, and of a class with annotations."""
        is_schema = isinstance(hint, Mapping) or (isinstance(hint, type) and hints_of(hint))
        return cls(Features.of(hint)) if is_schema else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of structs whose members have different names."""
        if not pa.types.is_struct(kind) or len({field.name for field in kind} - {""}) != kind.num_fields:
            return None
        return cls({field.name: parts.feature(field.type, field.name) for field in kind})

    def join(self, other: Feature) -> Feature | None:
        """Return JSON, which holds other dicts too; `infer` joins the members of structs."""
        return other if isinstance(other, Json) else None

    # -- values -----------------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a dict of fitted values."""
        return {name: self._fit_part(one, name, stored) for name, one in self.members_of(value, stored)}

    def _fit_part(self, value: Any, name: str, stored: bool) -> Any:
        try:
            return self.fields[name].fit(value, stored=stored)
        except SchemaError as error:
            raise SchemaError(f"{error} (in {name})") from None

    def members_of(self, value: Any, stored: bool = False) -> list[tuple[str, Any]]:
        """Return name and value of each member, `None` for optional ones that are missing.

        Unknown members raise an error; with `stored` they are ignored.

        >>> Struct({"x": "int8", "y": str | None}).members_of({"x": 1})
        [('x', 1), ('y', None)]
        """
        if not isinstance(value, Mapping):
            raise unfit(self, value)
        if not stored:
            refuse_unknown_fields(value, self.fields, self)
        for name, inner in self.fields.items():
            if name not in value and not inner.optional:
                raise SchemaError(f"expected {inner}, got {describe(MISSING)} (in {name})")
        return [(name, value.get(name)) for name in self.fields]

    def blank(self) -> Any:
        """Return a blank value of each member."""
        return {name: inner.blank() for name, inner in self.fields.items()}

    def plain(self) -> Convert | None:
        """Return the function that makes dicts of plain values."""
        parts = {name: one.plain() for name, one in self.fields.items()}
        found = {name: one for name, one in parts.items() if one is not None}
        if not found:
            return None
        return lambda values: {name: found[name](one) if name in found else one for name, one in values.items()}

    def file_extension(self, field: str) -> str:
        """Return the name of the field if it is that of an archive of arrays."""
        return field if codec_for_extension(field) is NPZ else Feature.file_extension(self, field)

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for arrays among the members whose shape a list cannot hold."""
        for part, one in self.fields.items():
            one.refuse_lost_shape(value[part], f"{name}.{part}")

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the type struct."""
        return pa.struct([inner.arrow_field(name) for name, inner in self.fields.items()])

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for structs of the same names whose members can be read."""
        names = [field.name for field in kind] if pa.types.is_struct(kind) else []
        return sorted(names) == sorted(self.fields) and all(
            readable(inner, kind.field(name).type) for name, inner in self.fields.items()
        )

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return a struct of members that may be missing."""
        found = {name: parts.with_nulls(inner, name) for name, inner in self.fields.items()}
        known = {name: one for name, one in found.items() if one is not None}
        return Struct(known) if len(known) == len(found) else None

    def encoder(self) -> Encoder:
        """Return an encoder of all members."""
        parts = {name: inner.encoder() for name, inner in self.fields.items()}
        return encoders.Structs(self.arrow_type(), parts, self.members_of)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of all members."""
        parts = [inner.sizes(array.field(number)) for number, inner in enumerate(self.fields.values())]
        return sum(parts, np.zeros(len(array) + 1, np.int64))

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of dicts."""
        if not self.fields:
            return [{} for _ in range(len(array))]
        columns = [values_of(decode_array(array.field(name), inner)) for name, inner in self.fields.items()]
        return [dict(zip(self.fields, row, strict=True)) for row in zip(*columns, strict=True)]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read single structs from the buffers of their members."""
        if self.holds_media(kind) or not self.fields:
            return Feature.reader(self, name, kind, chunks, read_file)
        return field_readers.StructReader(name, self, chunks, self.fields)

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether a member is media in structs."""
        kind = arrow_types.value_type(kind)
        return any(inner.holds_media(kind.field(name).type) for name, inner in self.fields.items())

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return structs with the bytes of structs of media."""
        if not self.holds_media(array.type):
            return array
        array = arrow_types.storage_array(array, inside=True)
        nulls = array.is_null() if array.null_count else None
        parts = [one.without_structs(array.field(name), read_file) for name, one in self.fields.items()]
        return pa.StructArray.from_arrays(parts, list(self.fields), mask=nulls)

    def queryable(self, *, inside: bool = False) -> bool:
        """Return True if there are members and SQL can read all of them."""
        return bool(self.fields) and all(one.queryable(inside=True) for one in self.fields.values())

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return a dict of the features of Hugging Face for the members."""
        if not self.fields:
            return Feature.to_hf(self)
        return {name: one.to_hf() for name, one in self.fields.items()}

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return structs of the members."""
        parts = [one.array_to_hf(array.field(name), kind.field(name).type) for name, one in self.fields.items()]
        return pa.StructArray.from_arrays(parts, list(self.fields), mask=null_mask(array))


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
        return f"{'pairs' if self.pairs else 'map'} of {self.key} to {as_part(self.value)}"

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
        return encoders.Maps(self.arrow_type(), self.key.encoder(), self.value.encoder(), self.pairs_of)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of keys, values and offsets."""
        entries = self.key.sizes(array.keys) + self.value.sizes(array.items)
        return entries[encoders.offset_sizes(array)] + 4 * np.arange(len(array) + 1)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return dicts or lists of tuples."""
        offsets, entries = arrow_values.list_parts(array)
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
        return self.value.holds_media(arrow_types.value_type(kind).item_type)

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return maps with the bytes of structs."""
        if not self.holds_media(array.type):
            return array
        bounds, entries = arrow_values.list_parts(arrow_types.storage_array(array, inside=True))
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
        bounds, entries = arrow_values.list_parts(array)
        items = Struct({"key": self.key, "value": self.value}).array_to_hf(entries, kind.value_type)
        return pa.ListArray.from_arrays(number_array(bounds.astype(np.int32)), items, mask=null_mask(array))


def _unchanged(value: Any) -> Any:
    return value
