"""`Feature`: the base class of the types of fields, and what each of them defines.

A feature is one class: its options are the fields of a frozen dataclass, its methods say which types and
values it stands for (`of_hint`, `of_value`, `of_arrow`), which values fit (`fit`, `fit_column`), how they are stored as
Arrow arrays and read again (`arrow_type` to `reader`), in plain records (`plain`), and in files of other tools. Each
method has a default. `kinds` lists the classes.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import (
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    arrow_values,
    decode_array,
    encoders,
    located,
    tables,
)
from shardex.errors import SchemaError
from shardex.features.codecs import JSON, MSGPACK, NPZ, Codec, codec_for_extension
from shardex.kernel import MISSING, Column, Integers, Masked, Ragged

Where = Callable[[int], str]
"""Returns the place of the k-th sample of a read, for messages."""
Convert = Callable[[Any], Any]
_repr = reprlib.Repr()
_repr.maxlevel, _repr.maxstring, _repr.maxother = 2, 60, 60


@dataclass(frozen=True, slots=True)
class Feature:
    """The type of one field; each subclass is one kind. `str()` gives the short form used in messages."""

    kind: ClassVar[str]
    optional: ClassVar[bool] = False
    """True if a value may be missing."""
    nullable: ClassVar[bool] = False
    """True if Arrow arrays may have nulls."""
    takes_none: ClassVar[bool] = False
    """True if `None` is a value."""
    is_json: ClassVar[bool] = False
    """True if values are JSON, in which null is no value."""

    def __str__(self) -> str:
        return self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which `Features.from_json` reads."""
        return {"kind": self.kind, **{f.name: _to_json(getattr(self, f.name)) for f in dataclasses.fields(self)}}

    # -- parts ------------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Feature]:
        """Return the features inside, by the names that `Path` has for them."""
        return {}

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return this feature with others inside."""
        return self

    def nested(self, name: str) -> Iterator[tuple[str, Feature]]:
        """Iterate over this feature and all features inside it, each with the path of its field."""
        yield name, self
        for part in self.parts().values():
            yield from part.nested(name)

    def stored_form(self) -> Feature:
        """Return this feature with bytes in the place of images, audio and video: what files and rows hold."""
        parts = self.parts()
        return self.with_parts({name: part.stored_form() for name, part in parts.items()}) if parts else self

    @property
    def opaque(self) -> bool:
        """True if this is an Arrow type that has no feature of its own, or has such a part."""
        return any(part.opaque for part in self.parts().values())

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of a type or annotation, or of the name of a dtype; None for those of other kinds."""
        return None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a value; None for values of other kinds."""
        return None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of an Arrow type, without a name for it in metadata; None for types of other kinds."""
        return None

    def join(self, other: Feature) -> Feature | None:
        """Return a feature of this kind that fits the values of both; None if there is none."""
        return None

    def in_list(self) -> Feature | None:
        """Return the feature of lists of these values, if it is another one than `Sequence`."""
        return None

    def in_arrow_list(self, size: int | None) -> Feature | None:
        """Return the feature of Arrow lists of these values (of one size), if it is another one than `Sequence`."""
        return None

    # -- values -----------------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a value converted to this feature, as samples hold it; `SchemaError` if it does not fit.

        With `stored`, it may also have the form in which JSON and MessagePack hold it.
        """
        raise NotImplementedError

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a fast function: True if `fit` would return a value unchanged, False if `fit` must be called."""
        return lambda value: False

    def is_missing(self, value: Any) -> bool:
        """Return whether a value stands for none, in a field that may have none."""
        return value is None or value is MISSING

    def blank(self) -> Any:
        """Return a value to store in rows that are deleted, such as 0 or "".

        >>> from shardex.features import Struct
        >>> Struct({"a": "int8", "b": str}).blank()
        {'a': np.int8(0), 'b': ''}
        """
        return 0

    def plain(self) -> Convert | None:
        """Return the function that turns fitted values into what JSON and MessagePack hold; None if they hold them."""
        return None

    # -- columns ----------------------------------------------------------------------------------------------

    @property
    def stacked(self) -> bool:
        """True if a column is an array rather than a list, if no value is missing."""
        return False

    def fit_column(self, values: list[Any], where: Where, name: str, *, stored: bool) -> Column:
        """Return the values of one field as a column, in a form that depends on the feature alone."""
        if (column := self.quick_column(values)) is not None:
            return column
        return self.stack([self.fit_at(value, k, where, name, stored=stored) for k, value in enumerate(values)])

    def fit_at(self, value: Any, k: int, where: Where, name: str, *, stored: bool) -> Any:
        """Return `fit` of a value; an error names the place of the k-th sample and the field."""
        try:
            return self.fit(value, stored=stored)
        except SchemaError as error:
            raise located(error, f"{where(k)}, field {name}") from None

    def quick_column(self, values: list[Any]) -> Column | None:
        """Return a column by one call of numpy, if all values are Python numbers or lists that fit; else None."""
        return None

    def stack(self, fitted: list[Any]) -> Column:
        """Return fitted values as a column."""
        return fitted

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return a stacked column in this dtype if checks of whole arrays show that every value fits, else None."""
        if isinstance(column, Masked):
            return self.cast_column(column.column) if column.mask.all() else None
        return None

    def in_form(self, column: Column) -> Column:
        """Return a column of values that were stacked as they are, in the form that this feature has."""
        if isinstance(column, list) and self.stacked:
            try:
                return self.fit_column(list(column), str, "", stored=False)
            except SchemaError:  # the feature was inferred from other samples
                return column
        return column

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension of files, one for each value: the name of the field, and one for the type if needed."""
        return named(field, "json", JSON, MSGPACK)

    def codec(self, extension: str) -> Codec:
        """Return the codec of files of this extension."""
        known = codec_for_extension(extension)
        return known if known in (MSGPACK, NPZ) else JSON

    def to_file(self, value: Any, extension: str) -> bytes:
        """Return a fitted value as the bytes of a file; JSON may not lose shapes of arrays."""
        codec = self.codec(extension)
        if codec is JSON:
            self.refuse_lost_shape(value, extension)
        return codec.encode(value)

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the function that reads a value of the bytes of a file.

        >>> from shardex.features import Value
        >>> Value("float32").of_file("cls")(memoryview(b"7"))
        7.0
        """
        decode = self.codec(extension).decode
        return lambda data: self.fit(decode(data), stored=True)

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for an array without elements whose shape a list cannot hold and the feature does not tell."""

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type in which values are written."""
        raise SchemaError(f"expected a feature that can be written, got {self}")

    def arrow_field(self, name: str) -> pa.Field:
        """Return the Arrow field of values with a name."""
        return pa.field(name, self.arrow_type(), nullable=self.nullable)

    def reads(self, kind: pa.DataType) -> bool:
        """Return whether values of an Arrow type (a `value_type`) can be read as this feature."""
        return bool(kind == self.arrow_type())

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return this feature with optional parts where an Arrow array has nulls; None if it cannot have such parts."""
        return self

    def encoder(self) -> Encoder:
        """Return a new encoder of values."""
        raise SchemaError(f"expected a feature that can be written, got {self}")

    def collected(self) -> Collected | None:
        """Return how C code collects values; None if an encoder must."""
        return None

    def sizes(self, array: pa.Array) -> Integers:
        """Return how much `nbytes` of the encoder grows by the first 0, 1, 2 and so on values."""
        return encoders.row_sizes(array)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return a column as an array at once; None if its values must be encoded one by one."""
        return None

    def from_arrow(self, array: pa.Array) -> Column:
        """Return the values of an array without nulls, in its storage type."""
        return arrow_values.python_values(array)

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Return a reader of a field that is stored as an Arrow type."""
        decode = arrow_values.media_decoder(read_file) if self.holds_media(kind) else decode_array
        return FieldReader(name, self, chunks, decode)

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether this is media, or has a part that is, which an Arrow type holds as structs."""
        return False

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return an array with the bytes of media in the place of structs."""
        return array

    # -- SQL --------------------------------------------------------------------------------------------------

    def queryable(self, *, inside: bool = False) -> bool:
        """Return whether SQL can read the values; `IS NULL` works for every field."""
        return True

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return a stored column in the form that SQL reads."""
        return tables.cast_for_sql(column, self, name)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the JSON form of the feature of Hugging Face `datasets` for the same values."""
        raise SchemaError(f"expected a feature that Hugging Face has, got {self}")

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the same values in an Arrow type of Hugging Face."""
        return narrow(array, kind)


class ArrowParts:
    """Where an Arrow type is: makes features of the types inside it, and knows which parts have nulls."""

    def __init__(
        self,
        path: arrow_types.Path,
        nulls: Any,
        feature_of: Callable[[pa.DataType, ArrowParts], Feature],
        optional: Convert,
    ) -> None:
        self.path, self.nulls = path, nulls
        self._feature_of, self._optional = feature_of, optional

    def has_nulls(self, name: str) -> bool:
        """Return whether a part has nulls."""
        return (*self.path, name) in self.nulls

    def without_nulls(self) -> ArrowParts:
        """Return the same place, without nulls inside."""
        return ArrowParts(self.path, (), self._feature_of, self._optional)

    def within(self, name: str) -> ArrowParts:
        """Return the place of a part."""
        return ArrowParts((*self.path, name), self.nulls, self._feature_of, self._optional)

    def feature(self, kind: pa.DataType, name: str) -> Feature:
        """Return the feature of a part, optional if it has nulls."""
        return self.made_optional(self._feature_of(kind, self.within(name)), name)

    def with_nulls(self, feature: Feature, name: str) -> Feature | None:
        """Return the feature of a part, with optional parts where it has nulls; None if it cannot have them."""
        found = feature.with_nulls(self.within(name))
        return None if found is None else self.made_optional(found, name)

    def made_optional(self, feature: Feature, name: str) -> Feature:
        """Return a feature, optional if the part of this name has nulls."""
        found: Feature = self._optional(feature) if self.has_nulls(name) else feature
        return found


def named(field: str, extension: str, *codecs: Codec) -> str:
    """Return the name of a field, followed by an extension unless it ends with one of these codecs.

    >>> named("id", "json", JSON), named("id.msgpack", "json", JSON, MSGPACK)
    ('id.json', 'id.msgpack')
    """
    return field if codec_for_extension(field) in codecs else f"{field}.{extension}"


def narrow(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return an array with 32-bit offsets; a slice that starts too far inside its buffer is copied."""
    try:
        return array.cast(kind)
    except pa.ArrowInvalid:
        return pa.concat_arrays([array]).cast(kind)


def null_mask(array: pa.Array) -> pa.Array | None:
    """Return which values are null, None if none is."""
    return array.is_null() if array.null_count else None


def hf_value(dtype: str) -> dict[str, Any]:
    """Return the JSON form of a single value of Hugging Face."""
    return {"_type": "Value", "dtype": dtype}


def readable(feature: Feature, kind: pa.DataType) -> bool:
    """Return whether values of any Arrow type can be read as a feature."""
    return feature.reads(arrow_types.value_type(kind))


def describe(value: Any) -> str:
    """Return a short form of a value for messages.

    >>> describe(np.zeros((2, 3))), describe(np.int8(3)), describe("a"), describe(None)
    ('float64[2, 3]', 'int8 3', "str 'a'", 'none')
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, np.generic):
        return f"{value.dtype} {value}"
    if value is MISSING:
        return "nothing (declare a field that may be missing as optional)"
    return "none" if value is None else f"{type(value).__name__} {_repr.repr(value)}"[:120]


def as_part(feature: Feature) -> str:
    """Return the text of a feature inside the text of another one, with parentheses if that would be ambiguous.

    >>> from shardex.features import Optional, Text
    >>> as_part(Text()), as_part(Optional(Text()))
    ('text', '(text or none)')
    """
    return f"({feature})" if feature.optional else str(feature)


def unfit(feature: Feature, value: Any, hint: str = "") -> SchemaError:
    """Return the error for a value that does not fit a feature."""
    return SchemaError(f"expected {feature}, got {describe(value)}{hint}")


def _to_json(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value
