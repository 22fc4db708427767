"""Where each sample lies: `SampleLocation` for one, `SampleIndex` for all."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.compat.data_forager.sample_generators.schema import SampleSchema
from shardex.compat.formats.data_forager import IndexRecord, load_locations, load_schema, resolved
from shardex.errors import RowError, StaleIndexError
from shardex.sources import LocalSource


@dataclass
class SampleLocation:
    """Place of one sample: its file, first byte and number of bytes."""

    file_path: str
    byte_offset: int
    num_bytes: int

    def __str__(self) -> str:
        return f"file_path  : {self.file_path}\nbyte_offset: {self.byte_offset}\nnum_bytes  : {self.num_bytes}"


@dataclass
class SampleIndex:
    """Places of all samples.

    `sample_locations` has shape (samples, 3): number of the file in `file_locations`, offset and number of bytes. That
    of a stored index is a mapped file, which takes no memory; such an index is pickled as the place that it came from.
    """

    file_locations: list[str]
    sample_locations: NDArray[Any]
    sample_schema: SampleSchema | None = field(default=None)

    def __post_init__(self) -> None:
        self._loaded: _Loaded | None = None

    @classmethod
    def _load(cls, base_path: str, folder: str, stamp: str | None = None) -> SampleIndex:
        """Read a stored index; `stamp` is that of the index that was pickled."""
        names, table = load_locations(folder)
        schema, found = load_schema(folder), _stamp(folder)
        if stamp not in (None, found):
            raise StaleIndexError(f"{folder}: expected the index that was pickled, got one that was made later")
        index = cls([resolved(base_path, name) for name in names], table, SampleSchema._of(schema))
        index._loaded = _Loaded(
            base_path, folder, found, IndexRecord.read(LocalSource(folder)), list(index.file_locations), table
        )
        return index

    @property
    def _record(self) -> IndexRecord | None:
        """What the index says of its data files; None if it is not as it was loaded."""
        loaded = self._loaded
        if loaded is None or self.sample_locations is not loaded.table or self.file_locations != loaded.files:
            return None
        return loaded.record

    @property
    def _name(self) -> str:
        return "the index" if self._loaded is None else self._loaded.folder

    def __reduce__(self) -> tuple[Any, ...]:
        loaded = self._loaded
        same = loaded is not None and self.sample_locations is loaded.table and self.file_locations == loaded.files
        if loaded is None or not same or SampleSchema._of(load_schema(loaded.folder)) != self.sample_schema:
            return SampleIndex, (self.file_locations, np.array(self.sample_locations), self.sample_schema)
        return SampleIndex._load, (loaded.base_path, loaded.folder, loaded.stamp)

    def __len__(self) -> int:
        return int(self.sample_locations.shape[0])

    def __getitem__(self, idx: int) -> SampleLocation:
        if not -len(self) <= idx < len(self):
            raise RowError(f"expected a sample from {-len(self)} to {len(self) - 1}, got {idx}")
        number, offset, size = self.sample_locations[idx].tolist()
        return SampleLocation(self.file_locations[number], offset, size)


@dataclass(frozen=True)
class _Loaded:
    """Where an index came from, and what it was."""

    base_path: str
    folder: str
    stamp: str
    record: IndexRecord | None
    files: list[str]
    table: NDArray[Any]


def _stamp(folder: str) -> str:
    stat = LocalSource(folder).stat("sample_locations.bin")
    return f"{stat.size} {stat.tag} {os.path.realpath(folder)}"
