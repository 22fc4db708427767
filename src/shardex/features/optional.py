"""`Optional` and `Null`: a value of a feature or `None`, and a field that has no value."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import Chunks, Collected, Encoder, FieldReader, ReadFile, encoders, field_readers
from shardex.errors import FormatError, SchemaError
from shardex.features.codecs import Codec
from shardex.features.feature import ArrowParts, Convert, Feature, Where, describe, hf_value, unfit
from shardex.features.kinds import feature_of, feature_of_annotated
from shardex.kernel import MISSING, Column, Integers, Masked, Ragged, TimeArray, values_of, with_missing


@dataclass(frozen=True, slots=True)
class Optional(Feature):
    """A value of a feature, or `None`."""

    kind: ClassVar[str] = "optional"
    optional: ClassVar[bool] = True
    nullable: ClassVar[bool] = True
    takes_none: ClassVar[bool] = True
    feature: Feature

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, feature: Any) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "feature", unwrap_optional(feature_of(self.feature)))

    def __str__(self) -> str:
        return f"{self.feature} or none"

    # -- parts ------------------------------------------------------------------------------------------------

    def parts(self) -> dict[str, Feature]:
        """Return the feature of the values."""
        return {"feature": self.feature}

    def with_parts(self, parts: Mapping[str, Feature]) -> Feature:
        """Return the other feature, optional."""
        return Optional(parts["feature"])

    @property
    def is_json(self) -> bool:  # type: ignore[override]
        """True if values are JSON."""
        return self.feature.is_json

    @property
    def _is_plain(self) -> bool:
        """True if only None stands for none."""
        return type(self.feature).is_missing is Feature.is_missing

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of a type or None."""
        origin, kinds = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated and types.NoneType in typing.get_args(kinds[0]):
            return cls(feature_of_annotated(hint))
        if origin not in (typing.Union, types.UnionType):
            return None
        rest = [kind for kind in kinds if kind is not types.NoneType]
        if len(rest) != 1:
            raise SchemaError(f"expected one type, or one type and None, got {hint}")
        return feature_of(rest[0]) if len(rest) == len(kinds) else cls(feature_of(rest[0]))

    # -- values and columns -----------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return None for a missing value."""
        return None if self.feature.is_missing(value) else self.feature.fit(value, stored=stored)

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for None, and for values that the feature leaves unchanged."""
        inner = self.feature.fits_unchanged()
        return lambda value: value is None or inner(value)

    def is_missing(self, value: Any) -> bool:
        """Return whether a value stands for none."""
        return self.feature.is_missing(value)

    def blank(self) -> Any:
        """Return None."""
        return None

    def plain(self) -> Convert | None:
        """Return the function of the feature, which leaves None as it is."""
        inner = self.feature.plain()
        return None if inner is None else lambda value: None if value is None else inner(value)

    @property
    def stacked(self) -> bool:
        """True if columns of the feature are arrays."""
        return self.feature.stacked

    def fit_column(self, values: list[Any], where: Where, name: str, *, stored: bool) -> Column:
        """Return the values as a column, `Masked` if they are stacked."""
        if not self.stacked:
            return [self.fit_at(value, k, where, name, stored=stored) for k, value in enumerate(values)]
        is_missing = self.feature.is_missing
        mask = np.array([not is_missing(value) for value in values], np.bool_)
        rows = np.flatnonzero(mask).tolist()
        some = values if len(rows) == len(values) else [values[row] for row in rows]
        return with_missing(self.feature.fit_column(some, lambda k: where(rows[k]), name, stored=stored), mask)

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return the column in the dtype of the values, `Masked`."""
        masked = Masked.whole(column)
        cast = self.feature.cast_column(masked.column)
        return None if cast is None or isinstance(cast, list | Masked) else Masked(cast, masked.mask)

    def in_form(self, column: Column) -> Column:
        """Return the column in the form of the values, `Masked`."""
        if not self.stacked:
            return column
        values = column.column if isinstance(column, Masked) else column
        times = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "mM"
        if isinstance(column, list) or (times and not isinstance(values, TimeArray)):
            given = list(column)
            found = Feature.in_form(self, given)
            return column if found is given else found
        masked = Masked.whole(column)
        values = self.feature.in_form(masked.column)
        return column if isinstance(values, list | Masked) else with_missing(values, masked.mask)

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension of files of the values."""
        return self.feature.file_extension(field)

    def codec(self, extension: str) -> Codec:
        """Return the codec of the values."""
        return self.feature.codec(extension)

    def to_file(self, value: Any, extension: str) -> bytes:
        """Return a value as the bytes of a file; a missing one has none."""
        return self.feature.to_file(value, extension)

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the function that reads the values."""
        return self.feature.of_file(extension)

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for arrays whose shape a list cannot hold; None has no shape."""
        if value is not None:
            self.feature.refuse_lost_shape(value, name)

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of the values."""
        return self.feature.arrow_type()

    def reads(self, kind: pa.DataType) -> bool:
        """Return whether the values can be read from an Arrow type."""
        return self.feature.reads(kind)

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return the feature with optional parts, optional."""
        inner = self.feature.with_nulls(parts)
        return None if inner is None else Optional(inner)

    def encoder(self) -> Encoder:
        """Return an encoder of values, some of which are null."""
        return encoders.Optionals(self.feature.encoder(), None if self._is_plain else self.feature.is_missing)

    def collected(self) -> Collected | None:
        """Return how C code collects the values; it knows no other missing values than None."""
        return self.feature.collected() if self._is_plain else None

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of the values, and a byte for each that says whether it is null."""
        return self.feature.sizes(array) + np.arange(len(array) + 1)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return the values, with nulls."""
        return self.feature.to_arrow(column)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return the values of an array without nulls."""
        return self.feature.from_arrow(array)

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read validity bits, and the values."""
        if pa.types.is_null(kind):  # which has no validity bits
            return FieldReader(name, self, chunks)
        return field_readers.OptionalReader(name, self, chunks, self.feature.reader(name, kind, chunks, read_file))

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether the values are media in structs."""
        return self.feature.holds_media(kind)

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return the bytes of structs."""
        return self.feature.without_structs(array, read_file)

    def queryable(self, *, inside: bool = False) -> bool:
        """Return whether SQL can read the values."""
        return self.feature.queryable(inside=inside)

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return the values in the form that SQL reads."""
        return self.feature.sql_column(column, name)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for the values, all of which may be missing there."""
        return self.feature.to_hf()

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return the same values in an Arrow type of Hugging Face."""
        return self.feature.array_to_hf(array, kind)


def unwrap_optional(feature: Feature) -> Feature:
    """Return the feature inside an `Optional`, any other feature unchanged.

    >>> from shardex.features import Text
    >>> str(unwrap_optional(Optional(Text())))
    'text'
    """
    return feature.feature if isinstance(feature, Optional) else feature


@dataclass(frozen=True, slots=True)
class Null(Feature):
    """No value: every sample has `None`."""

    kind: ClassVar[str] = "null"
    nullable: ClassVar[bool] = True
    takes_none: ClassVar[bool] = True

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of the type of None."""
        return cls() if hint is types.NoneType else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of the type null."""
        return cls() if pa.types.is_null(kind) else None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return None; any other value is an error."""
        if value is not None and value is not MISSING:
            raise SchemaError(f"expected none, got {describe(value)}")

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for None."""
        return lambda value: value is None

    def blank(self) -> Any:
        """Return None."""
        return None

    def arrow_type(self) -> pa.DataType:
        """Return the type null."""
        return pa.null()

    def encoder(self) -> Encoder:
        """Return an encoder that counts nulls."""
        return encoders.Nulls(self.fit)

    def sizes(self, array: pa.Array) -> Integers:
        """Return zeros: nulls take no bytes."""
        return np.zeros(len(array) + 1, np.int64)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of None."""
        return [None] * len(array)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for nulls."""
        return hf_value("null")


_BLANK = object()
"""The value of `blank`, which is stored as that of the other feature."""


@dataclass(frozen=True, slots=True)
class StoredAs(Feature):
    """A feature whose values are stored as those of another feature: the simplest way to add a kind.

    Files, SQL and other tools see values of the feature `storage()`. Where the kind is not known, the data opens with
    that feature, and a warning. A subclass has a `kind` and three methods; `of_hint` and `of_value` let a type and its
    values stand for it.

    >>> import pathlib
    >>> from shardex.features import Text
    >>> @dataclass(frozen=True, slots=True)
    ... class Path(StoredAs):
    ...     kind = "path"
    ...     def storage(self): return Text()
    ...     def to_storage(self, value): return str(value)
    ...     def from_storage(self, stored): return pathlib.PurePosixPath(stored)
    >>> Path().fit("a/b"), Path().to_json()
    (PurePosixPath('a/b'), {'kind': 'path', 'stored': {'kind': 'text'}})
    """

    def storage(self) -> Feature:
        """Return the feature of what is stored, always the same one for equal features."""
        raise NotImplementedError

    def to_storage(self, value: Any) -> Any:
        """Return what is stored for a value of a sample; TypeError or ValueError if it does not fit."""
        raise NotImplementedError

    def from_storage(self, stored: Any) -> Any:
        """Return the value of a sample that is stored as this; ValueError if it is damaged."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, with the feature of what is stored."""
        return {**Feature.to_json(self), "stored": self.storage().to_json()}

    # -- values -----------------------------------------------------------------------------------------------

    def _lowered(self, value: Any) -> Any:
        """Return what is stored for a value; `SchemaError` if it does not fit."""
        if value is _BLANK:
            return self.storage().blank()
        if value is None or value is MISSING:
            raise unfit(self, value)
        try:
            return self.storage().fit(self.to_storage(value))
        except SchemaError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise unfit(self, value, f": {error}") from None

    def _raised(self, stored: Any) -> Any:
        """Return the value that is stored as this; `FormatError` if it is damaged."""
        try:
            return self.from_storage(stored)
        except (TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"expected {self}, stored as {self.storage()}, got {stored!r:.80}: {error}") from None

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a value as samples hold it."""
        if stored and value is not None and value is not MISSING and self.of_value(value) is None:
            return self._raised(self.storage().fit(value, stored=True))
        return self._raised(self._lowered(value))

    def blank(self) -> Any:
        """Return what is stored as a blank value."""
        return _BLANK

    def plain(self) -> Convert | None:
        """Return the function that turns values into the plain form of what is stored."""
        plain = self.storage().plain()
        return self._lowered if plain is None else lambda value: plain(self._lowered(value))

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of what is stored."""
        return self.storage().arrow_type()

    def reads(self, kind: pa.DataType) -> bool:
        """Return whether what is stored can be read from an Arrow type."""
        return self.storage().reads(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of what is stored for a value."""
        return encoders.ConvertedEncoder(self.storage().encoder(), self._lowered)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of what is stored."""
        return self.storage().sizes(array)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return a list of values."""
        return [self._raised(one) for one in values_of(self.storage().from_arrow(array))]

    def queryable(self, *, inside: bool = False) -> bool:
        """Return whether SQL can read what is stored."""
        return self.storage().queryable(inside=inside)

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return what is stored in the form that SQL reads."""
        return self.storage().sql_column(column, name)

    # -- files of other tools ---------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension of files of what is stored."""
        return self.storage().file_extension(field)

    def codec(self, extension: str) -> Codec:
        """Return the codec of what is stored."""
        return self.storage().codec(extension)

    def to_file(self, value: Any, extension: str) -> bytes:
        """Return what is stored as the bytes of a file."""
        return self.storage().to_file(self._lowered(value), extension)

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the function that reads what is stored and converts it to a value."""
        read = self.storage().of_file(extension)
        return lambda data: self._raised(read(data))

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for what is stored."""
        return self.storage().to_hf()

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return what is stored in an Arrow type of Hugging Face."""
        return self.storage().array_to_hf(array, kind)
