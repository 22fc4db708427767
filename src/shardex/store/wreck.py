"""What is left of one version of a native dataset, as rows: its whole batches, whatever became of those around them.

Reading is as in `stored.py`, but batch by batch (`remains.py`), so that a file that was cut off, or that lost its foot,
gives all that it has. Which samples cannot be read is known by arithmetic before any is. Where a list of deleted rows
or of newer values is damaged, what is left of it counts, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow import MappedTable, arrow_schema
from shardex.files import display_name
from shardex.formats import TableRows
from shardex.kernel import Integers
from shardex.progress import Bar
from shardex.rows import Table
from shardex.schema import Features
from shardex.sources import Place
from shardex.store.inventory import Use, uses_of
from shardex.store.manifest import DataFile, Fragment, Manifest
from shardex.store.overlay_rows import EditedRows, Patch
from shardex.store.remains import Fault, IntactBatches
from shardex.store.row_ids import RowIds, Survivors
from shardex.store.version_reader import base_rows

__all__ = ["DamagedVersion", "Lost"]

_Pieces = list[tuple[DataFile | None, int, int]]
"""A file (none where a field has no values), the number of a batch in it, and its rows."""


@dataclass(frozen=True)
class Lost:
    """Samples that could not be saved."""

    file: str
    """The file that is to blame."""
    samples: range | None
    """Their rows in the damaged dataset; none if that is not known."""
    why: str


class DamagedVersion:
    """A version, after a look at all its files."""

    def __init__(self, place: Place, manifest: Manifest, progress: bool | None, trust_paths: bool) -> None:
        self._place = place
        self._manifest = manifest
        self._trust_paths = trust_paths
        self._uses = [use for use in uses_of(manifest) if use.kind != "keys"]
        self._remains: dict[str, IntactBatches] = {}
        self._faults: dict[str, list[Fault]] = {}
        self._examine(None if progress is None else not progress)

    def _examine(self, quiet: bool | None) -> None:
        sizes = {use.file.path: use.file.size for use in self._uses}
        with Bar(total=sum(sizes.values()), unit="B", unit_scale=True, desc="look", disable=quiet) as bar:
            for use in self._uses:
                if use.file.path not in self._remains:
                    remains = IntactBatches(self._place, use.file, use.columns)
                    self._faults[use.file.path] = remains.examine(bar.update)
                    self._remains[use.file.path] = remains

    # -- what is known of it ----------------------------------------------------------------------------------

    def _missing(self, file: DataFile) -> Integers:
        """The batches of a file that cannot be read."""
        whole = self._remains[file.path].whole
        return np.array([number for number in range(len(file.batches)) if number not in whole], np.int64)

    def _why(self, file: DataFile, batch: int) -> str:
        faults = self._faults[file.path]
        return next((one.what for one in faults if one.batch == batch), faults[0].what)

    @property
    def sure_of_deleted(self) -> bool:
        """Whether all that was deleted stays so."""
        return not any(len(self._missing(file)) for file in self._manifest.deleted)

    @property
    def notes(self) -> list[str]:
        """What is not as it was in samples that can be read."""
        found = []
        for use in self._uses:
            count = sum(use.file.batches[number].rows for number in self._missing(use.file))
            if count and use.kind == "deleted":
                found.append(f"{count} deleted samples are back: {use.file.path} is damaged")
            elif count and use.kind == "newer values":
                fields = ", ".join(use.fields)
                found.append(
                    f"{count} newer values of {fields} are lost, older ones are back: {use.file.path} is damaged"
                )
        return found

    def lost(self) -> list[Lost]:
        """The samples that cannot be read."""
        found = []
        for use in self._uses:
            for number in self._missing(use.file).tolist() if use.kind == "values" else ():
                begin = use.start + sum(batch.rows for batch in use.file.batches[:number])
                places = np.arange(begin, begin + use.file.batches[number].rows)
                needed = places[self._survivors.alive(places) & self._needed(places, use)]
                why = self._why(use.file, number)
                rows = self._survivors.positions(needed)
                found += [Lost(use.file.path, run, why) for run in _ranges(rows)]
        return found

    def _needed(self, places: Integers, use: Use) -> NDArray[np.bool_]:
        """Which rows have a value in this file that no newer one hides."""
        needed = np.zeros(len(places), np.bool_)
        for name in use.fields:
            hidden = [patch.find(places)[0] for patch, fields in self._patches if name in fields]
            needed |= ~np.logical_or.reduce([np.zeros(len(places), np.bool_), *hidden])
        return needed

    # -- its rows ---------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> EditedRows:
        """All samples; to read one that is lost is an error."""
        manifest, features = self._manifest, self._manifest.features
        elsewhere = {name for one in manifest.fragments if one.foreign is not None for name in one.foreign.fields}
        tables: list[Table] = []
        if elsewhere:
            there = features.select([name for name in features if name in elsewhere])
            tables.append(base_rows(self._place, manifest, there, self._trust_paths))
        groups: dict[tuple[str, ...], list[str]] = {}
        for name in features:
            if name not in elsewhere:
                files = [_file_of(one, name) for one in manifest.fragments]
                groups.setdefault(tuple(file.path if file else "" for file in files), []).append(name)
        for names in groups.values():
            pieces = [piece for one in manifest.fragments for piece in _pieces(one, names[0])]
            tables.append(self._table(features.select(names), pieces))
        shards = [
            display_name(one.foreign.what) if one.foreign else next((file.path for file in one.groups), "")
            for one in manifest.fragments
        ]
        base = TableRows(tables, [one.rows for one in manifest.fragments], features, "", shards)
        return EditedRows(base, self._survivors, self._patches)

    def _table(self, features: Features, pieces: _Pieces) -> MappedTable:
        schema = arrow_schema(features)

        def load(number: int) -> pa.RecordBatch:
            file, batch, rows = pieces[number]
            if file is None:
                return pa.RecordBatch.from_arrays([pa.nulls(rows, one.type) for one in schema], schema=schema)
            found = self._remains[file.path].batch(batch)
            return pa.RecordBatch.from_arrays([found.column(file.fields[name]) for name in features], schema=schema)

        return MappedTable(features, schema, [rows for _, _, rows in pieces], load, "batch {}".format)

    @cached_property
    def _ids(self) -> RowIds:
        return RowIds([one.first for one in self._manifest.fragments], [one.rows for one in self._manifest.fragments])

    @cached_property
    def _survivors(self) -> Survivors:
        gone = [self._places(file) for file in self._manifest.deleted]
        places = np.concatenate([np.empty(0, np.int64), *gone])
        return Survivors(len(self._ids), places[places >= 0])

    @cached_property
    def _patches(self) -> list[tuple[Patch, list[str]]]:
        found = []
        for use in self._uses:
            if use.kind == "newer values" and self._remains[use.file.path].whole:
                features = self._manifest.features.select(use.fields)
                table = self._table(features, self._whole(use.file))
                found.append((Patch(table, partial(self._places, use.file)), list(use.fields)))
        return found

    def _places(self, file: DataFile) -> Integers:
        """Where the rows are whose ids lie in the whole batches of a file."""
        batches = [self._remains[file.path].batch(number) for _, number, _ in self._whole(file)]
        ids = [np.frombuffer(one.column("row").buffers()[1], np.int64, one.num_rows) for one in batches]
        return self._ids.places(np.concatenate([np.empty(0, np.int64), *ids]))

    def _whole(self, file: DataFile) -> _Pieces:
        return [(file, number, file.batches[number].rows) for number in sorted(self._remains[file.path].whole)]


def _file_of(fragment: Fragment, name: str) -> DataFile | None:
    return next((file for file in fragment.groups if name in file.fields), None)


def _pieces(fragment: Fragment, name: str) -> _Pieces:
    file = _file_of(fragment, name)
    if file is None:
        return [(None, 0, fragment.rows)]
    return [(file, number, batch.rows) for number, batch in enumerate(file.batches)]


def _ranges(rows: Integers) -> Iterator[range]:
    """Ascending numbers as runs."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        if len(run):
            yield range(int(run[0]), int(run[-1]) + 1)
