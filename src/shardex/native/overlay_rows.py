"""Rows of an edited version: base rows without the deleted ones, and with newer values from overlays.

`OverlayTable` is one file of newer values; `EditedRows` reads the newest value of each row and field. A field without
overlays is read from the base rows alone, by one gather.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import Table, check_fields, tables
from shardex.features import conversions
from shardex.formats import ShardRows, TableRows
from shardex.kernel import Columns, Integers
from shardex.native.fragments import LiveRows
from shardex.rows import AbstractRows, lengths_in, remember


class OverlayTable:
    """Newer values of some fields; `physical` returns the physical row for each row of the table, -1 for a row that no
    longer exists.

    If a physical row occurs several times, the last one counts.

    >>> from shardex.dataset import ListRows
    >>> overlay = OverlayTable(ListRows([{"x": 5}, {"x": 6}, {"x": 7}]), lambda: np.array([8, 3, 8]))
    >>> found, at = overlay.find(np.array([3, 4, 8])); found.tolist(), at.tolist()
    ([True, False, True], [1, 2])
    >>> overlay.row_of(8), overlay.row_of(4)
    (2, -1)
    """

    def __init__(self, table: Table, physical: Callable[[], Integers]) -> None:
        self.table = table
        self._read_physical = physical

    @cached_property
    def _sorted(self) -> tuple[Integers, Integers]:
        """Physical rows in ascending order, and the row of the table that holds each one's value."""
        physical = self._read_physical()
        order = np.argsort(physical, kind="stable")
        ascending = physical[order]
        last = np.append(ascending[1:] != ascending[:-1], True)[: len(order)] & (ascending >= 0)
        return ascending[last], order[last]

    def find(self, physical: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Return which physical rows have newer values, and the rows of the table that hold them."""
        ascending, rows = self._sorted
        if not len(ascending):
            return np.zeros(len(physical), np.bool_), rows
        at = np.minimum(np.searchsorted(ascending, physical), len(ascending) - 1)
        found = ascending[at] == physical
        return found, rows[at[found]]

    @cached_property
    def _views(self) -> tuple[memoryview, memoryview]:
        """`_sorted` for a search without arrays, which for one row is five times as fast."""
        ascending, rows = self._sorted
        return ascending.data, rows.data

    def row_of(self, physical: int) -> int:
        """Return the row of the table that holds the newer values of a physical row, -1 if it has none."""
        ascending, rows = self._views
        at = bisect_left(ascending, physical)
        return rows[at] if at < len(ascending) and ascending[at] == physical else -1


class EditedRows(ShardRows):
    """Rows of a version with deleted rows or overlays, the oldest first."""

    in_python = False

    def __init__(self, base: TableRows, live: LiveRows, overlays: Sequence[tuple[OverlayTable, list[str]]]) -> None:
        self._base = base
        self.live = live
        self._overlays: dict[str, tuple[OverlayTable, ...]] = {
            name: tuple(overlay for overlay, fields in reversed(overlays) if name in fields) for name in base.features
        }
        """The overlays of each field, the newest first."""
        self.features = base.features
        self._names = list(base.features)
        self._groups: dict[tuple[str, ...] | None, _Groups] = {}
        """The fields of single samples, grouped by their overlays, by what was asked for."""

    def __len__(self) -> int:
        return len(self.live)

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the version."""
        return self._base.fingerprint

    def shard_names(self) -> list[str]:
        """Return the names of the files, for error messages."""
        return self._base.shard_names()

    def physical_rows(self, rows: Integers) -> Integers:
        """Return the physical row of each row."""
        return self.live.physical_rows(np.ascontiguousarray(rows, np.int64))

    def shards(self, rows: Integers) -> list[str]:
        """Return the path of the file that holds the first fields of each row."""
        return self._base.shards(self.physical_rows(rows))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching base values that are read soon; overlays are small."""
        self._base.advise(self.physical_rows(rows), fields)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return the newest values of fields."""
        names, physical = check_fields(self._names, fields), self.physical_rows(rows)
        parts = [self._read_group(physical, some, overlays) for overlays, some in self._grouped(names).items()]
        data = {name: column for part in parts for name, column in part.data.items()}
        return Columns(data, len(physical)).select(names)

    def _grouped(self, names: Sequence[str]) -> _Groups:
        """Return fields by their overlays."""
        groups: _Groups = {}
        for name in names:
            groups.setdefault(self._overlays[name], []).append(name)
        return groups

    def _read_group(self, physical: Integers, names: list[str], overlays: tuple[OverlayTable, ...]) -> Columns:
        """Read fields that have the same overlays: each row from the newest overlay that has it, or from the base."""
        parts: list[Columns] = []
        where: list[Integers] = []
        left = np.arange(len(physical))
        for overlay in overlays:
            found, at = overlay.find(physical[left])
            if len(at):
                parts.append(overlay.table.read(at, names))
                where.append(left[found])
                left = left[~found]
        if not parts:
            return self._base.read(physical, names)
        if len(left):
            parts.append(self._base.read(physical[left], names))
            where.append(left)
        return Columns.scatter(parts, where)

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields, as SQL sees them; fields without edits are not copied."""
        return tables.concat_columns(self._attribute(name) for name in names)

    def _attribute(self, name: str) -> pa.Table:
        found = self._base.sql_columns([name])
        if len(self) == len(self._base) and not self._overlays[name]:
            return found
        newer = [overlay.table.sql_columns([name]) for overlay in self._overlays[name]]
        return tables.take_table(conversions.concat_tables([found, *newer]), self._newest(name))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value for a field."""
        newer = [overlay.table.present(name) for overlay in self._overlays[name]]
        there: NDArray[np.bool_] = np.concatenate([self._base.present(name), *newer])[self._newest(name)]
        return there

    def lengths(self, name: str) -> Integers:
        """Return the length of the newest array of each row."""
        (name,) = check_fields(self._names, [name])
        newer = [lengths_in(overlay.table, name) for overlay in self._overlays[name]]
        return np.concatenate([self._base.lengths(name), *newer])[self._newest(name)]

    def _newest(self, name: str) -> Integers:
        """Return the number of each row's value in the base values followed by those of each overlay."""
        overlays, physical = self._overlays[name], self.physical_rows(np.arange(len(self)))
        starts = np.cumsum([len(self._base), *(len(overlay.table) for overlay in overlays)])
        newest = physical.copy()
        for overlay, start in zip(reversed(overlays), starts[-2::-1], strict=True):
            found, at = overlay.find(physical)
            newest[found] = start + at
        return newest

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return one row; arrays are read-only views of the files."""
        key = fields if fields is None or type(fields) is tuple else tuple(check_fields(self._names, fields))
        if (groups := self._groups.get(key)) is None:
            groups = remember(self._groups, key, self._grouped(check_fields(self._names, key)))
        physical = self.live.physical_row(row)
        newer: dict[str, Any] = {}
        for overlays, names in groups.items():
            for overlay in overlays:
                if (at := overlay.row_of(physical)) >= 0:
                    newer |= overlay.table.sample(at, names)
                    break
        if not newer:
            return self._base.sample(physical, key)
        names = check_fields(self._names, key)
        found = self._base.sample(physical, tuple(name for name in names if name not in newer)) | newer
        return {name: found[name] for name in names}


_Groups = dict[tuple[OverlayTable, ...], list[str]]
"""Names of fields by their overlays, the newest first."""


def live_rows(rows: AbstractRows) -> LiveRows:
    """Return which physical rows of a version are not deleted."""
    rows = rows.stored
    return rows.live if isinstance(rows, EditedRows) else LiveRows(len(rows), np.empty(0, np.int64))
