"""Entries of a manifest: a data file with its checksums, a fragment with its files, and the paths of data files.

They say what is in which file; `manifest` has the version that lists them, `data_file_reader` reads the files.

A row keeps its id in all versions. Its physical row is its number among the rows of all fragments, deleted ones
included; its row, the number that users see, counts only rows that are not deleted. `RowIds` and `LiveRows` convert
them by arithmetic on sorted arrays.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.kernel import Integers

DATA_FILE = r"data/([0-9a-f]{32})(-[0-9a-f]{16})?\.arrow"
"""Regular expression of the paths of data files, with their content and number; see `new_data_path`."""
_PATH = re.compile(DATA_FILE)


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """An Arrow file with some fields; the table of its batches is in its foot (see `data_file_table`)."""

    path: str
    size: int
    fields: dict[str, str]
    """Column of each field."""
    foot: str = ""
    """xxh3-64 of the bytes after the last batch."""
    end: int = 0
    """Offset of the end of the last batch, where the foot begins."""
    count: int = 0
    """Number of record batches."""
    rows: int = 0
    """Number of rows in the file."""


class Foreign(msgspec.Struct, frozen=True):
    """Adopted shards of another format: what was opened, with which options, and the fingerprint of their content."""

    what: str | list[str]
    format: str
    options: dict[str, Any]
    fingerprint: str
    fields: dict[str, str]
    """Name in the shards of each field."""


class Fragment(msgspec.Struct, frozen=True):
    """Consecutive rows with ids from `first` on; one file per group of fields, all with the same rows."""

    rows: int
    groups: list[DataFile]
    first: int = 0
    keys: DataFile | None = None
    """The key table: hashes of the keys with their rows, sorted (see `keys`)."""
    foreign: Foreign | None = None
    """The shards that hold some fields, if they were adopted."""

    @property
    def adopted(self) -> Foreign | None:
        """The shards that hold some fields; None also if all these fields were dropped."""
        return self.foreign if self.foreign is not None and self.foreign.fields else None

    @property
    def fields(self) -> list[str]:
        """The fields that are stored for its rows; the rows have no value for other fields."""
        adopted = [] if self.foreign is None else list(self.foreign.fields)
        return [*adopted, *(name for file in self.groups for name in file.fields)]


@dataclass(frozen=True)
class FileUse:
    """One use of a data file in a version."""

    file: DataFile
    kind: str
    """`values`, `keys`, `deleted`, `newer values`, or `fragments` for a file that lists fragments."""
    columns: tuple[pa.Field, ...]
    """The columns that readers expect in the file."""
    fields: tuple[str, ...]
    """The fields that cannot be read without the file; empty if no sample can."""
    fragment: int = -1
    """Number of the fragment, -1 if the file belongs to none."""
    start: int = 0
    """Physical row of the first row of the fragment."""


@cache
def number_column(name: str) -> pa.Field:
    """Return the Arrow field of a column of row ids, row numbers or hashes."""
    return pa.field(name, pa.uint64(), nullable=False)


def content_path(content: str) -> str:
    """Return the path that stands for the content of a data file, of which `content` is the xxh3-128 in hex."""
    return f"data/{content}.arrow"


def new_data_path(content: str, number: str | None = None) -> str:
    """Return the path of a new data file: that of its content, with a random number, or one given for a new folder.

    No two files ever have the same path, even if their content is equal. So a file that no version names is never
    named again, and `clean` can remove it at any time after it has looked at the versions.
    """
    return f"{content_path(content).removesuffix('.arrow')}-{number or random_number()}.arrow"


def path_of_copy(path: str, number: str | None = None) -> str:
    """Return the path of a new file with the content of the data file at `path`."""
    return new_data_path(content_of(path), number)


def content_of(path: str) -> str:
    """Return the xxh3-128 in the path of a data file, which stands for its content."""
    found = _PATH.fullmatch(path)
    return found[1] if found else xxhash.xxh3_128_hexdigest(path.encode())


def random_number() -> str:
    """Return 16 random hex digits."""
    return secrets.token_hex(8)


class RowIds:
    """Ids of physical rows: fragment k has `lengths[k]` rows with consecutive ids from `firsts[k]` on.

    >>> ids = RowIds([10, 0], [3, 2])
    >>> ids.ids(np.arange(5)).tolist(), ids.physical_rows(np.array([1, 12, 7])).tolist()
    ([10, 11, 12, 0, 1], [4, 2, -1])
    """

    def __init__(self, firsts: Sequence[int] | Integers, lengths: Sequence[int] | Integers) -> None:
        self._firsts = np.array(firsts, np.int64)
        self._starts: Integers = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        self._sorted = np.argsort(self._firsts, kind="stable")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def ids(self, physical: Integers) -> Integers:
        """Return the id of each physical row."""
        run = np.searchsorted(self._starts, physical, "right") - 1
        return self._firsts[run] + (physical - self._starts[run])

    def physical_rows(self, ids: Integers) -> Integers:
        """Return the physical row of each id, -1 for ids that no fragment has."""
        if not len(self._firsts):
            return np.full(len(ids), -1, np.int64)
        run = self._sorted[np.searchsorted(self._firsts[self._sorted], ids, "right") - 1]
        within = ids - self._firsts[run]
        there = (within >= 0) & (within < np.diff(self._starts)[run])
        return np.where(there, self._starts[run] + within, -1)


class LiveRows:
    """The rows that are not deleted, out of `length` physical rows; ids of no row (-1) in `deleted` are ignored.

    >>> live = LiveRows(5, np.array([0, 3, -1]))
    >>> live.physical_rows(np.arange(3)).tolist(), live.rows(np.array([4, 1])).tolist()
    ([1, 2, 4], [2, 0])
    >>> live.physical_row(2)
    4
    >>> live.is_live(np.array([3, 4])).tolist()
    [False, True]
    """

    def __init__(self, length: int, deleted: Integers) -> None:
        self._deleted = np.unique(deleted[deleted >= 0])
        self._length = length - len(self._deleted)
        self._before = self._deleted - np.arange(len(self._deleted))  # live rows before each deleted physical row

    def __len__(self) -> int:
        return self._length

    def physical_rows(self, rows: Integers) -> Integers:
        """Return the physical row of each row."""
        return rows + np.searchsorted(self._before, rows, "right") if len(self._deleted) else rows

    @cached_property
    def _before_view(self) -> memoryview:
        """`_before` for a search without arrays, which for one row is three times as fast."""
        return self._before.data

    def physical_row(self, row: int) -> int:
        """Return the physical row of one row."""
        return row + bisect_right(self._before_view, row)

    def rows(self, physical: Integers) -> Integers:
        """Return the row of each physical row; for a deleted one the next row."""
        return physical - np.searchsorted(self._deleted, physical, "left") if len(self._deleted) else physical

    def is_live(self, physical: Integers) -> NDArray[np.bool_]:
        """Return for each physical row whether it is not deleted."""
        if not len(self._deleted):
            return np.ones(len(physical), np.bool_)
        at = np.minimum(np.searchsorted(self._deleted, physical, "left"), len(self._deleted) - 1)
        live: NDArray[np.bool_] = self._deleted[at] != physical
        return live
