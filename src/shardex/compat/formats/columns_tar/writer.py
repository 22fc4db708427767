"""Writes the files that `columns_tar` reads: a SQLite table of samples, and a series of tars for each field.

Tables and names are those of synthefy-dataset-utils, so that its reader opens the result; the offsets in the table are
correct. In mode "append" new tars are published first, and then all rows by one transaction.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from shardex.compat.formats.columns_tar.session import ColumnsSession
from shardex.compat.formats.columns_tar.table import (
    COUNTER,
    TABLE,
    check_field_name,
    is_possible_id,
    metadata_json,
    numbered_id,
    schema_sql,
    stored_folder,
)
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import Array, Feature, Features, Json, Optional, Struct, Text, codecs, unwrap_optional
from shardex.formats import SampleWriter, ShardSeries
from shardex.formats.tar import header, padding, tar_series

_OPTIONAL_FIELDS = ("id", "metadata")
OWNED = r"index\.sqlite(-wal|-shm|-journal)?|[^/]+_shards/(shard_\d+\.tar|\.shard_\d+\.tar\.[0-9a-f]+\.tmp)"


class ColumnsWriter(SampleWriter):
    """Writes samples into a table and a series of tars per field; made by `columns_tar.create`."""

    def __init__(self, path: str, features: Features, mode: str, samples_per_shard: int) -> None:
        if samples_per_shard < 1:
            raise ArgumentError(f"expected at least one sample per shard, got {samples_per_shard}")
        arrays = [name for name in features if name not in _OPTIONAL_FIELDS]
        super().__init__(path, mode, _check_features(features), OWNED, publish_last=(TABLE,))
        with self._abort_on_error():
            self._before = _Existing(self.path, self._stage.existing) if self._stage.existing else None
            """The dataset that samples are appended to."""
            first = {name: 0 if self._before is None else self._before.next_tar(name) for name in arrays}
            self._series = {
                name: tar_series(
                    self._stage, f"{name}_shards/shard_{{:04d}}.tar".format, number, rows=samples_per_shard
                )
                for name, number in first.items()
            }
            # In mode "append" a table that SQLite keeps in a temporary file, because only its rows are published.
            target = "" if self._before is not None else self._stage.place.path(TABLE)
            self._table = sqlite3.connect(target, isolation_level=None)
            self._counter = 0 if self._before is None else self._before.counter
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
        arrays = {name: codecs.NPY.encode(sample[name]) for name in self._series if sample[name] is not None}
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
        known = self._before is not None and self._before.session.has(name)
        if known or self._table.execute("SELECT 1 FROM samples WHERE id = ?", (name,)).fetchone():
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
        if self._before is None:
            self._table.close()

    def _publish(self) -> None:
        """Move the files to the target; in mode "append" then add the rows to its table, which publishes them."""
        super()._publish()
        if self._before is not None:
            self._before.add(self._table, list(self._series))
            self._close()

    def _discard(self) -> None:
        self._close()
        super()._discard()

    def _close(self) -> None:
        for one in (getattr(self, "_table", None), getattr(self, "_before", None)):  # missing if a constructor raised
            if one is not None:
                one.close()


class _Existing:
    """The dataset that a writer appends to. Its tars stay as they are: new samples are in new ones."""

    def __init__(self, path: str, files: Sequence[str]) -> None:
        if TABLE not in files:
            raise FormatError(f"{path}: expected a folder with {TABLE} to append to, got one without")
        self._files = files
        self.session = ColumnsSession(path)
        (self.counter,) = self.session.table.execute("SELECT value FROM counters WHERE name = ?", (COUNTER,)).fetchone()

    def next_tar(self, field: str) -> int:
        """Return the number of the next tar of a field."""
        tar = re.compile(rf"{re.escape(field)}_shards/shard_(\d+)\.tar")
        return max((int(found[1]) for found in map(tar.fullmatch, self._files) if found), default=-1) + 1

    def add(self, table: sqlite3.Connection, fields: list[str]) -> None:
        """Add all rows of another table, whose tars are there: all of them or none."""
        self.session.add_fields(fields)
        columns = ["id", "meta_json", *(f"{name}_{column}" for name in fields for column in ("offset", "shard"))]
        (counter,) = table.execute("SELECT value FROM counters").fetchone()
        shards = table.execute("SELECT num_shards, name FROM fields").fetchall()
        self.session.insert(columns, table.execute("SELECT * FROM samples"), counter, shards)

    def close(self) -> None:
        """Close the table."""
        self.session.close()


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
