"""Writes the files that `columns_tar` reads: a SQLite table of samples, and a series of tars for each field.

Tables and names are those of synthefy-dataset-utils, so that its reader opens the result; the offsets in the table are
correct.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from typing import Any

from shardex.errors import ArgumentError, SchemaError
from shardex.formats.columns_tar_table import (
    check_field_name,
    is_possible_id,
    metadata_json,
    numbered_id,
    schema_sql,
    stored_folder,
)
from shardex.formats.sample_writer import SampleWriter, ShardSeries
from shardex.formats.tar_blocks import header, padding, tar_series
from shardex.schema import NPY, Array, Feature, Features, Json, Optional, Struct, Text, unwrap_optional

_OPTIONAL_FIELDS = ("id", "metadata")
OWNED = r"index\.sqlite(-wal|-shm|-journal)?|[^/]+_shards/(shard_\d+\.tar|\.shard_\d+\.tar\.[0-9a-f]+\.tmp)"


class ColumnsWriter(SampleWriter):
    """Writes samples into a table and a series of tars per field; made by `columns_tar.create`."""

    def __init__(self, path: str, features: Features, mode: str, samples_per_shard: int) -> None:
        if mode == "append":
            raise ArgumentError('expected mode "create" or "overwrite", got "append", which is not supported yet')
        if samples_per_shard < 1:
            raise ArgumentError(f"expected at least one sample per shard, got {samples_per_shard}")
        arrays = [name for name in features if name not in _OPTIONAL_FIELDS]
        super().__init__(path, mode, _check_features(features), OWNED, publish_last=("index.sqlite",))
        self._series = {
            name: tar_series(self._stage, f"{name}_shards/shard_{{:04d}}.tar".format, rows=samples_per_shard)
            for name in arrays
        }
        self._table = sqlite3.connect(self._stage.place.path("index.sqlite"), isolation_level=None)
        self._counter = 0
        self._begin(arrays)

    def _begin(self, arrays: list[str]) -> None:
        # The file is invisible until it is complete and synced, so it needs no journal.
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA synchronous = OFF")
        self._table.executescript(schema_sql(arrays))
        self._table.execute("BEGIN")
        for name in arrays:
            os.makedirs(self._stage.place.path(f"{name}_shards"))
            self._table.execute("INSERT INTO fields VALUES (?, 0, ?)", (name, stored_folder(self._stage.path, name)))
        marks = ", ".join("?" * (2 + 2 * len(arrays)))
        self._insert = f"INSERT INTO samples VALUES ({marks})"

    def _encode(self, sample: Mapping[str, Any]) -> tuple[str | None, str, dict[str, bytes]]:
        """Return the id if there is one, the metadata as JSON, and the bytes of the arrays that are there."""
        arrays = {name: NPY.encode(sample[name]) for name in self._series if sample[name] is not None}
        return sample["id"], metadata_json(sample["metadata"]), arrays

    def _store(self, record: tuple[str | None, str, dict[str, bytes]]) -> None:
        given, metadata, arrays = record
        name = self._id(given)
        places = {field: self._write(self._series[field], f"{name}.npy", data) for field, data in arrays.items()}
        row = [number for field in self._series for number in places.get(field, (None, None))]
        self._table.execute(self._insert, [name, metadata, *row])
        self._counter += given is None

    @staticmethod
    def _write(series: ShardSeries, name: str, data: bytes) -> tuple[int, int]:
        """Add a member; return the offset of its bytes and the number of its tar."""
        content = data + padding(len(data))
        series.write(header(name, len(data)) + content)
        return series.size - len(content), series.number

    def _id(self, given: str | None) -> str:
        name = numbered_id(self._counter + 1) if given is None else given
        if not is_possible_id(name):
            raise SchemaError(f"expected an id that a tar can hold as a name, got {name!r} - at sample {self._samples}")
        if self._table.execute("SELECT 1 FROM samples WHERE id = ?", (name,)).fetchone():
            raise SchemaError(
                f"expected a different id for each sample, got {name!r} again - at sample {self._samples}"
            )
        return name

    def _finish(self) -> None:
        for name, series in self._series.items():
            if series.rows:
                series.finish()
            shards = series.number + bool(series.rows)
            self._table.execute("UPDATE fields SET num_shards = ? WHERE name = ?", (shards, name))
        self._table.execute("INSERT OR REPLACE INTO counters VALUES ('sample_id', ?)", (self._counter,))
        self._table.execute("COMMIT")
        self._table.close()

    def _discard(self) -> None:
        self._table.close()
        super()._discard()


def _check_features(features: Features) -> Features:
    """Return the features of samples: `id` and `metadata` are always allowed and never required."""
    seen: set[str] = set()
    for name, feature in features.items():
        inner = unwrap_optional(feature)
        if name in _OPTIONAL_FIELDS:
            _check_optional_field(name, inner)
        elif not isinstance(inner, Array):
            raise SchemaError(f"expected arrays, got {feature} - at field {name}; put other values into metadata")
        else:
            check_field_name(name, seen)
        seen.add(name.lower())
    return Features({**features, "id": Optional(Text()), "metadata": Optional(features.get("metadata", Json()))})


def _check_optional_field(name: str, inner: Feature) -> None:
    wanted = (Text,) if name == "id" else (Json, Struct)
    if not isinstance(inner, wanted):
        raise SchemaError(f"expected {name} to be {' or '.join(one.kind for one in wanted)}, got {inner}")
