"""`Sequence`: a list of values of one feature."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
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
)
from shardex.features.dtypes import NUMBER_KINDS
from shardex.features.feature import ArrowParts, Convert, Feature, as_part, null_mask, readable, unfit
from shardex.features.kinds import feature_of
from shardex.kernel import Column, Integers, values_of


@dataclass(frozen=True, slots=True)
class Sequence(Feature):
    """A list of values of one feature."""

    kind: ClassVar[str] = "sequence"
    feature: Feature

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, feature: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature", feature_of(self.feature))

    def __str__(self) -> str:
        return f"list of {as_part(self.feature)}"

    def parts(self) -> dict[str, Feature]:
        """Return the feature of the items."""
        return {"item": self.feature}

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return lists of other items."""
        return Sequence(parts["item"])

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of lists, and of tuples of any length, of one type."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        is_one_type = len(arguments) in (1, 2) and arguments[1:] in ((), (...,))
        return cls(feature_of(arguments[0])) if origin in (list, tuple) and is_one_type else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of lists, or what the items make of them, such as arrays of numbers."""
        fixed = pa.types.is_fixed_size_list(kind)
        if not fixed and not arrow_types.is_list(kind):
            return None
        item = parts.feature(kind.value_type, "item")  # once: each kind would descend again
        return item.in_arrow_list(kind.list_size if fixed else None) or cls(item)

    # -- values -----------------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a list of fitted values."""
        fit = self.feature.fit
        return [fit(one, stored=stored) for one in self.items_of(value)]

    def items_of(self, value: Any) -> Iterable[Any]:
        """Return the values of a list as an iterable; numbers of an array as Python numbers.

        >>> Sequence("int8").items_of(np.array([1, 2]))
        [1, 2]
        """
        if isinstance(value, np.ndarray) and value.ndim:
            return value.tolist() if value.ndim == 1 and value.dtype.kind in NUMBER_KINDS else value
        if not isinstance(value, SequenceOf) or isinstance(value, str | bytes | bytearray | memoryview):
            raise unfit(self, value)
        return value

    def blank(self) -> Any:
        """Return an empty list."""
        return []

    def plain(self) -> Convert | None:
        """Return the function that makes lists of plain items."""
        item = self.feature.plain()
        return None if item is None else lambda values: [item(one) for one in values]

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for arrays among the items whose shape a list cannot hold."""
        for one in value:
            self.feature.refuse_lost_shape(one, name)

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the type large_list."""
        return pa.large_list(self.feature.arrow_field("item"))

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for lists whose items can be read."""
        is_lists = arrow_types.is_list(kind) or pa.types.is_fixed_size_list(kind)
        return is_lists and readable(self.feature, kind.value_type)

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return lists of items that may be missing."""
        item = parts.with_nulls(self.feature, "item")
        return None if item is None else Sequence(item)

    def encoder(self) -> Encoder:
        """Return an encoder of offsets and items."""
        return encoders.Sequences(self.arrow_type(), self.feature.encoder(), self.items_of)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of items and offsets."""
        return self.feature.sizes(array.values)[encoders.offset_sizes(array)] + 8 * np.arange(len(array) + 1)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of lists."""
        offsets, values = arrow_values.parts_of_lists(array)
        items = values_of(decode_array(values, self.feature))
        return [items[a:b] for a, b in pairwise(offsets.tolist())]

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read single lists of simple values from their buffers."""
        if self.holds_media(kind):
            return Feature.reader(self, name, kind, chunks, read_file)
        return field_readers.SequenceReader(name, self, chunks, self.feature)

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether the items are media in structs."""
        return self.feature.holds_media(arrow_types.value_type(kind).value_type)

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return lists with the bytes of structs."""
        if not self.holds_media(array.type):
            return array
        array = arrow_types.storage_array(array, inside=True)
        nulls = array.is_null() if array.null_count else None
        if pa.types.is_fixed_size_list(array.type):
            array = array.cast(pa.large_list(array.type.value_field))
        bounds, values = arrow_values.list_parts(array)
        items = self.feature.without_structs(values, read_file)
        return pa.LargeListArray.from_arrays(number_array(bounds), items, mask=nulls)

    def queryable(self, *, inside: bool = False) -> bool:
        """Return whether SQL can read the items."""
        return self.feature.queryable(inside=True)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for lists."""
        return {"_type": "List", "feature": self.feature.to_hf()}

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return lists with 32-bit offsets."""
        bounds, values = arrow_values.list_parts(array)
        items = self.feature.array_to_hf(values, kind.value_type)
        return pa.ListArray.from_arrays(number_array(bounds.astype(np.int32)), items, mask=null_mask(array))
