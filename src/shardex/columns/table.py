"""`Table`: fields of numbered rows. Tables of files, and all rows (`shardex.rows`), derive from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.kernel import Columns, Integers


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
