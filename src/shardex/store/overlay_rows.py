"""Rows with later edits: some deleted, some with newer values of some fields, over tables that are never rewritten.

`Patch` is a file of newer values; `EditedRows` reads the newest value of each row and field. Fields without newer
values are read as if there were none, by one gather.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow import concat_columns, concat_tables, take_table
from shardex.formats import ShardRows, TableRows
from shardex.kernel import Columns, Integers
from shardex.rows import Table
from shardex.schema import Features, check_fields
from shardex.store.row_ids import Survivors

__all__ = ["EditedRows", "Patch"]


class Patch:
    """Newer values of some fields; `places` gives the place of each row of the table, -1 for rows that are no more.

    >>> from shardex.rows import ListRows
    >>> patch = Patch(ListRows([{"x": 5}, {"x": 6}, {"x": 7}]), lambda: np.array([8, 3, 8]))
    >>> found, at = patch.find(np.array([3, 4, 8])); found.tolist(), at.tolist()
    ([True, False, True], [1, 2])
    """

    def __init__(self, table: Table, places: Callable[[], Integers]) -> None:
        self.table = table
        self._read_places = places

    @cached_property
    def _sorted(self) -> tuple[Integers, Integers]:
        """Places in ascending order, and the row of the table that each is at; of several the last one counts."""
        places = self._read_places()
        order = np.argsort(places, kind="stable")
        ascending = places[order]
        last = np.append(ascending[1:] != ascending[:-1], True)[: len(order)] & (ascending >= 0)
        return ascending[last], order[last]

    def find(self, places: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Which places have newer values, and the rows of the table that hold these."""
        ascending, rows = self._sorted
        if not len(ascending):
            return np.zeros(len(places), np.bool_), rows
        at = np.minimum(np.searchsorted(ascending, places), len(ascending) - 1)
        found = ascending[at] == places
        return found, rows[at[found]]


class EditedRows(ShardRows):
    """The rows of a version that was edited."""

    in_python = False

    def __init__(
        self, base: TableRows, survivors: Survivors | None, patches: Sequence[tuple[Patch, list[str]]]
    ) -> None:
        self._base = base
        self._survivors = survivors
        self._patches: dict[str, tuple[Patch, ...]] = {
            name: tuple(patch for patch, fields in reversed(patches) if name in fields) for name in base.features
        }
        self._names = list(base.features)

    def __len__(self) -> int:
        return len(self._base) if self._survivors is None else len(self._survivors)

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        return self._base.features

    @property
    def fingerprint(self) -> str:
        """Changes when the data does."""
        return self._base.fingerprint

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return self._base.shard_names()

    def places(self, rows: Integers) -> Integers:
        """Where rows lie among all that are there, deleted ones too."""
        rows = np.ascontiguousarray(rows, np.int64)
        return rows if self._survivors is None else self._survivors.rows(rows)

    def alive(self, places: Integers) -> NDArray[np.bool_]:
        """Whether the row at each place is not deleted."""
        return np.ones(len(places), np.bool_) if self._survivors is None else self._survivors.alive(places)

    def shards(self, rows: Integers) -> list[str]:
        """The file that each row lies in."""
        return self._base.shards(self.places(rows))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Begin to fetch what is read soon; newer values are few."""
        self._base.advise(self.places(rows), fields)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """The newest value of each field."""
        names, places = check_fields(self._names, fields), self.places(rows)
        groups: dict[tuple[Patch, ...], list[str]] = {}
        for name in names:
            groups.setdefault(self._patches[name], []).append(name)
        parts = [self._patched(places, some, patches) for patches, some in groups.items()]
        data = {name: column for part in parts for name, column in part.data.items()}
        return Columns(data, len(places)).select(names)

    def _patched(self, places: Integers, names: list[str], patches: tuple[Patch, ...]) -> Columns:
        """Each row from the newest patch that has it, the others from below."""
        parts: list[Columns] = []
        where: list[Integers] = []
        left = np.arange(len(places))
        for patch in patches:
            found, at = patch.find(places[left])
            if len(at):
                parts.append(patch.table.read(at, names))
                where.append(left[found])
                left = left[~found]
        if not parts:
            return self._base.read(places, names)
        if len(left):
            parts.append(self._base.read(places[left], names))
            where.append(left)
        return Columns.scatter(parts, where)

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Whole fields; what was never edited is not copied."""
        return concat_columns(self._attribute(name) for name in names)

    def _attribute(self, name: str) -> pa.Table:
        found = self._base.sql_columns([name])
        if self._survivors is None and not self._patches[name]:
            return found
        newer = [patch.table.sql_columns([name]) for patch in self._patches[name]]
        return take_table(concat_tables([found, *newer]), self._newest(name))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a field."""
        newer = [patch.table.present(name) for patch in self._patches[name]]
        there: NDArray[np.bool_] = np.concatenate([self._base.present(name), *newer])[self._newest(name)]
        return there

    def _newest(self, name: str) -> Integers:
        """Where the value of each row is, if those of each patch come one after another behind those from below."""
        patches, places = self._patches[name], self.places(np.arange(len(self)))
        starts = np.cumsum([len(self._base), *(len(patch.table) for patch in patches)])
        newest = places.copy()
        for patch, start in zip(reversed(patches), starts[-2::-1], strict=True):
            found, at = patch.find(places)
            newest[found] = start + at
        return newest

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One row; arrays are read-only views of the files."""
        place = self.places(np.array([row]))
        found = self._base.sample(int(place[0]), fields)
        for name in found:
            for patch in self._patches[name]:
                if len(at := patch.find(place)[1]):
                    found[name] = patch.table.sample(int(at[0]), [name])[name]
                    break
        return found
