"""What this room asks of fields and of rows: `Field`, the type of a field, and `Table`, fields of numbered rows.

Tables of files, and all rows (`shardex.rows`), derive from `Table`. Names of fields, and places of values, in errors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import ArgumentError, SchemaError, unknown_field
from shardex.kernel import Column, Columns, Integers, Masked, Ragged

if TYPE_CHECKING:
    from shardex.columns.arrow_values import ReadFile
    from shardex.columns.collect import Collected
    from shardex.columns.encoders import Encoder
    from shardex.columns.field_readers import Chunks, FieldReader


class Field(Protocol):
    """The type of a field: its Arrow type, and the functions that turn values into arrays of this type and back."""

    optional: ClassVar[bool]
    """True if a value may be missing: a column of numbers or arrays is `Masked`."""
    nullable: ClassVar[bool]
    """True if arrays may have nulls."""
    takes_none: ClassVar[bool]
    """True if `None` is a value."""

    @property
    def opaque(self) -> bool:
        """True if this type, or a part of it, is an Arrow type that is read only."""

    def stored_form(self) -> Field:
        """Return the type of what files hold: bytes in the place of media."""

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type in which values are written."""

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a value converted to this type; `SchemaError` if it does not fit."""

    def fit_column(self, values: list[Any], where: Callable[[int], str], name: str, *, stored: bool) -> Column:
        """Return converted values as a column."""

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return a stacked column in this dtype if every value fits, else None."""

    def encoder(self) -> Encoder:
        """Return a new encoder."""

    def collected(self) -> Collected | None:
        """Return how C code collects values; None if an encoder must."""

    def sizes(self, array: pa.Array) -> Integers:
        """Return how much `nbytes` of the encoder grows by the first 0, 1, 2 and so on values."""

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return a column as an array at once; None if its values must be encoded one by one."""

    def from_arrow(self, array: pa.Array) -> Column:
        """Return the values of an array without nulls, in its storage type."""

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Return a reader of a field of this type that is stored as an Arrow type."""

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether this is media, or has a part that is, which an Arrow type holds as structs."""

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return an array with the bytes of media in the place of structs."""

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return a stored column in the form that SQL reads."""

    @property
    def is_json(self) -> bool:
        """True if values are JSON, in which null is no value."""


def check_fields(known: Sequence[str], fields: Sequence[str] | None) -> list[str]:
    """Return the fields to read: those in `fields`, or all that are `known`. An unknown name raises `FieldError`.

    >>> check_fields(["x", "y"], ["y"]), check_fields(["x", "y"], None)
    (['y'], ['x', 'y'])
    """
    if fields is None:
        return list(known)
    if isinstance(fields, str):
        raise ArgumentError(f"expected a list of field names, got the text {fields!r}")
    for name in fields:
        if name not in known:
            raise unknown_field(name, known)
    return list(fields)


def refuse_unknown_fields(values: Mapping[str, Any], known: Mapping[str, Any], expected: Any = None) -> None:
    """Raise `SchemaError` if a sample has a field that is not known."""
    for name in values:
        if name not in known:
            raise SchemaError(f"expected {expected or 'the fields ' + ', '.join(known)}, got {name!r} too")


def located(error: SchemaError, place: str) -> SchemaError:
    """Return the error with the place of the value: `raise located(error, "sample 3, field x") from None`."""
    return SchemaError(f"{error} - at {place}")


class Table(ABC):
    """Fields of numbered rows; the methods that are not abstract have defaults that read."""

    __slots__ = ()

    @property
    @abstractmethod
    def features(self) -> Mapping[str, Any]:
        """Name and feature of each field."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return these fields (None: all) of these rows, in this order; row numbers are from 0 to len - 1."""

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the fields of one row, from 0 to len - 1."""
        return self.read(np.array([row]), fields).sample(0)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:  # noqa: B027
        """Start fetching what a `read` of these rows needs, without waiting; by default there is nothing to fetch.

        Bad data and bad row numbers are not reported here but by the read. Safe while another thread reads.
        """

    def read_views(self, rows: Integers, fields: Sequence[str] | None, views: Collection[str]) -> Columns:
        """Read like `read`, but the stored media of the fields `views` may be views of files instead of copies."""
        return self.read(rows, fields)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """A whole field as an Arrow column, if it is stored as one; otherwise None."""
        return None

    @abstractmethod
    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields as SQL sees them."""

    @abstractmethod
    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each row whether it has a value for a field."""
