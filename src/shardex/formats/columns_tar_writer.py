"""Writes the files that `columns_tar` reads: a SQLite table of samples, and a series of tars for each field.

Tables and names are those of synthefy-dataset-utils, so that its reader opens the result; the offsets in the table are
correct.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from shardex.errors import ArgumentError, SchemaError
from shardex.formats.sample_writer import SampleWriter, ShardSeries
from shardex.formats.tar_blocks import header, padding, tar_series
from shardex.schema import NPY, Array, Feature, Features, Json, Optional, Struct, Text, unwrap_optional

_OPTIONAL_FIELDS = ("id", "metadata")
OWNED = r"index\.sqlite(-wal|-shm|-journal)?|[^/]+_shards/shard_\d+\.tar"
_TABLES = """
CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT{columns});
CREATE TABLE fields (name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER);
"""


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
        columns = "".join(f', "{name}_offset" INTEGER, "{name}_shard" INTEGER' for name in arrays)
        # The file is invisible until it is complete and synced, so it needs no journal.
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA synchronous = OFF")
        self._table.executescript(_TABLES.format(columns=columns))
        self._table.execute("BEGIN")
        for name in arrays:
            # Absolute, because synthefy-dataset-utils appends to this path relative to its working folder.
            place = os.path.join(self._stage.path, f"{name}_shards") if _is_text(self._stage.path) else f"{name}_shards"
            os.makedirs(self._stage.place.path(f"{name}_shards"))
            self._table.execute("INSERT INTO fields VALUES (?, 0, ?)", (name, place))
        marks = ", ".join("?" * (2 + 2 * len(arrays)))
        self._insert = f"INSERT INTO samples VALUES ({marks})"

    def _encode(self, sample: Mapping[str, Any]) -> tuple[str | None, str, dict[str, bytes]]:
        """Return the id if there is one, the metadata as JSON, and the bytes of the arrays that are there."""
        arrays = {name: NPY.encode(sample[name]) for name in self._series if sample[name] is not None}
        return sample["id"], _json(sample["metadata"]), arrays

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
        name = f"sample_{self._counter + 1:012d}" if given is None else given
        if not name or re.search("[\0\ud800-\udfff]", name):
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


def _is_text(path: str) -> bool:
    """Return whether a path is UTF-8, so that SQLite can store it."""
    return not re.search("[\ud800-\udfff]", path)


def _check_features(features: Features) -> Features:
    """Return the features of samples: `id` and `metadata` are always allowed and never required."""
    seen: set[str] = set()
    for name, feature in features.items():
        inner = unwrap_optional(feature)
        if name in _OPTIONAL_FIELDS:
            _check_optional_field(name, inner)
        elif not isinstance(inner, Array):
            raise SchemaError(f"expected arrays, got {feature} - at field {name}; put other values into metadata")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.lower() in seen:
            raise SchemaError(
                f"expected a field name that SQL accepts unquoted, different from the others, got {name!r}"
            )
        seen.add(name.lower())
    return Features({**features, "id": Optional(Text()), "metadata": Optional(features.get("metadata", Json()))})


def _check_optional_field(name: str, inner: Feature) -> None:
    wanted = (Text,) if name == "id" else (Json, Struct)
    if not isinstance(inner, wanted):
        raise SchemaError(f"expected {name} to be {' or '.join(one.kind for one in wanted)}, got {inner}")


def _json(metadata: Any) -> str:
    try:
        return json.dumps(metadata or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(f"expected metadata that JSON can hold, got {metadata!r:.80}: {error}") from None
