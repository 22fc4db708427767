"""`Struct`: named values within one field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from shardex.columns import Encoder, ReadFile, Structs, decode_array, refuse_unknown_fields, storage_array, value_type
from shardex.errors import SchemaError
from shardex.features.codecs import NPZ, codec_for_extension
from shardex.features.feature import ArrowParts, Convert, Feature, describe, null_mask, readable, unfit
from shardex.features.features import Features
from shardex.features.hints import hints_of
from shardex.kernel import MISSING, Column, Integers, values_of


@dataclass(frozen=True, slots=True)
class Struct(Feature):
    """Named values within one field.

    >>> str(Struct({"x": "int32", "y": str}))
    'struct of x int32, y text'
    """

    kind: ClassVar[str] = "struct"
    fields: Mapping[str, Feature]

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, fields: Mapping[str, Any]) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", Features.of(self.fields))

    def __str__(self) -> str:
        return f"struct of {self.fields}"

    def parts(self) -> dict[str, Feature]:
        """Return the features of the members."""
        return dict(self.fields)

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return a struct of other members."""
        return Struct(parts)

    def nested(self, name: str) -> Iterator[tuple[str, Feature]]:
        """Iterate over this feature and all features inside it, each with the path of its field.

        >>> [(path, str(one)) for path, one in Struct({"a": str}).nested("x")]
        [('x', 'struct of a text'), ('x.a', 'text')]
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
        return Structs(self.arrow_type(), parts, self.members_of)

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

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether a member is media in structs."""
        kind = value_type(kind)
        return any(inner.holds_media(kind.field(name).type) for name, inner in self.fields.items())

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return structs with the bytes of structs of media."""
        if not self.holds_media(array.type):
            return array
        array = storage_array(array, inside=True)
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
