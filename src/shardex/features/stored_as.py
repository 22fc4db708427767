"""`StoredAs`: base class of features whose values are stored as those of another feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from shardex.columns import Encoder, encoders
from shardex.errors import FormatError, SchemaError
from shardex.features.codecs import Codec
from shardex.features.feature import Convert, Feature, unfit
from shardex.kernel import MISSING, Column, Integers, values_of

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
