"""Writes what `columns_tar` reads: a table of samples, and for each field a series of tars.

Tables and names are those of synthefy-dataset-utils, so that its reader opens the result; the offsets in the table
are true ones. All of it becomes visible at once, when the writer is closed.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Mapping
from typing import Any

from shardex.errors import ClosedError, SchemaError
from shardex.files import MODES, Stage
from shardex.formats.tar_blocks import TarOutput, header, padding
from shardex.schema import NPY, Array, Feature, Features, Json, Optional, Struct, Text, fit_sample

__all__ = ["ColumnsWriter"]

_GIVEN = ("id", "metadata")
_OWNED = r"index\.sqlite(-wal|-shm|-journal)?|[^/]+_shards/shard_\d+\.tar"
_TABLES = """
CREATE TABLE samples (id TEXT PRIMARY KEY, meta_json TEXT{columns});
CREATE TABLE fields (name TEXT PRIMARY KEY, num_shards INTEGER, base_dir TEXT);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER);
"""


class _Series:
    """The tars of one field."""

    def __init__(self, stage: Stage, field: str, rows: int) -> None:
        self._stage, self._field, self._most = stage, field, rows
        self._rows = 0
        self.number = -1
        self._out: TarOutput | None = None

    def write(self, name: str, data: bytes) -> tuple[int, int]:
        """Where the bytes begin, and in which tar."""
        if self._out is None or self._rows >= self._most:
            self.close()
            self._out = TarOutput(self._stage, f"{self._field}_shards/shard_{self.number + 1:04d}.tar")
            self.number, self._rows = self.number + 1, 0
        head = header(name, len(data))
        offset = self._out.size + len(head)
        self._out.write(head + data + padding(len(data)))
        self._rows += 1
        return offset, self.number

    def close(self) -> None:
        if self._out is not None:
            self._out.close()


class ColumnsWriter:
    """Writes samples into a table and series of tars; made by `columns_tar.create`."""

    def __init__(self, path: str, features: Features, mode: str, samples_per_shard: int) -> None:
        if mode == "append" and mode in MODES:
            raise SchemaError(
                'expected mode "create" or "overwrite", got "append", which this format has not learned yet'
            )
        if samples_per_shard < 1:
            raise SchemaError(f"expected at least one sample per shard, got {samples_per_shard}")
        self._features = _check_features(features)
        arrays = [name for name in features if name not in _GIVEN]
        self._stage: Stage | None = Stage(path, mode, _OWNED, publish_last=("index.sqlite",))
        self._series = {name: _Series(self._stage, name, samples_per_shard) for name in arrays}
        self._table = sqlite3.connect(self._stage.place.path("index.sqlite"), isolation_level=None)
        self._total = self._counter = 0
        self._begin(arrays)

    def _begin(self, arrays: list[str]) -> None:
        assert self._stage is not None
        columns = "".join(f', "{name}_offset" INTEGER, "{name}_shard" INTEGER' for name in arrays)
        # Nobody sees the file before it is whole and synced, so it needs no journal of its own.
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("PRAGMA synchronous = OFF")
        self._table.executescript(_TABLES.format(columns=columns))
        self._table.execute("BEGIN")
        for name in arrays:
            # Absolute, because the other writer appends where this says, seen from its own working folder.
            place = os.path.join(self._stage.path, f"{name}_shards")
            os.makedirs(self._stage.place.path(f"{name}_shards"))
            self._table.execute("INSERT INTO fields VALUES (?, 0, ?)", (name, place))
        marks = ", ".join("?" * (2 + 2 * len(arrays)))
        self._insert = f"INSERT INTO samples VALUES ({marks})"

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample; `id` and `metadata` may be left out."""
        if self._stage is None:
            raise ClosedError("expected an open writer, got one that was closed")
        fitted = fit_sample(sample, self._features, self._total)
        metadata = _json(fitted.get("metadata"), self._total)
        encoded = {name: NPY.encode(fitted[name]) for name in self._series if fitted[name] is not None}
        given = fitted.get("id")
        name = self._id(given)
        places = {field: self._series[field].write(f"{name}.npy", data) for field, data in encoded.items()}
        row = [number for field in self._series for number in places.get(field, (None, None))]
        self._table.execute(self._insert, [name, metadata, *row])
        self._counter += given is None
        self._total += 1

    def _id(self, given: str | None) -> str:
        name = f"sample_{self._counter + 1:012d}" if given is None else given
        if not name or re.search("[\0\ud800-\udfff]", name):
            raise SchemaError(f"expected an id that a tar can hold as a name, got {name!r} - at sample {self._total}")
        if self._table.execute("SELECT 1 FROM samples WHERE id = ?", (name,)).fetchone():
            raise SchemaError(
                f"expected an id of its own for each sample, got {name!r} again - at sample {self._total}"
            )
        return name

    def close(self) -> None:
        """Publish the folder."""
        if (stage := self._stage) is None:
            return
        for name, series in self._series.items():
            series.close()
            self._table.execute("UPDATE fields SET num_shards = ? WHERE name = ?", (series.number + 1, name))
        self._table.execute("INSERT OR REPLACE INTO counters VALUES ('sample_id', ?)", (self._counter,))
        self._table.execute("COMMIT")
        self._table.close()
        stage.publish()
        self._stage = None

    def abort(self) -> None:
        """Remove what was written."""
        if self._stage is not None:
            self._table.close()
            self._stage.discard()
            self._stage = None


def _check_features(features: Features) -> Features:
    """The features to hold samples against: `id` and `metadata` may always be given, and always be left out."""
    seen: set[str] = set()
    for name, feature in features.items():
        inner = feature.feature if isinstance(feature, Optional) else feature
        if name in _GIVEN:
            _check_given(name, inner)
        elif not isinstance(inner, Array):
            raise SchemaError(f"expected arrays, got {feature} - at field {name}; put other values into metadata")
        elif not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.lower() in seen:
            raise SchemaError(f"expected a field name that SQL takes as it is, different from the others, got {name!r}")
        seen.add(name.lower())
    return Features({**features, "id": Optional(Text()), "metadata": Optional(features.get("metadata", Json()))})


def _check_given(name: str, inner: Feature) -> None:
    wanted = (Text,) if name == "id" else (Json, Struct)
    if not isinstance(inner, wanted):
        raise SchemaError(f"expected {name} to be {' or '.join(one.kind for one in wanted)}, got {inner}")


def _json(metadata: Any, row: int) -> str:
    try:
        return json.dumps(metadata or {})
    except (TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            f"expected metadata that JSON can hold, got {metadata!r:.80}: {error} - at sample {row}"
        ) from None
