"""Writes samples as lines of JSON into numbered files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardex.errors import SchemaError
from shardex.features import Features
from shardex.files import find
from shardex.formats.json_text import JsonEncoder
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.formats.signatures import FORMATS, sure_format

JSON_LINES = FORMATS["jsonl"].extensions
"""Extensions of files of JSON lines."""
OWNED = r".*\.(jsonl|ndjson|json-lines)"
"""Regular expression of the files of a dataset."""


class LineWriter(SeriesWriter):
    """Writes samples as lines of JSON into numbered files; made by `jsonl.create`."""

    def __init__(self, path: str, features: Features, mode: str, shard_rows: int, shard_size: int, prefix: str) -> None:
        check_shard_options(shard_rows, shard_size, prefix)
        self._to_json = JsonEncoder(features)
        super().__init__(path, mode, features, OWNED)
        with self._abort_on_error():
            for existing in self._stage.existing:
                if existing.lower().endswith((".ndjson", ".json-lines")):
                    raise SchemaError(
                        f"{self.path}: expected nothing but .jsonl files to append to, got {existing} too"
                    )
            if self._stage.existing and (other := sure_format(find(self.path))):
                raise SchemaError(f"{self.path}: expected JSON lines to append to, got a folder of the format {other}")
            first = self._stage.next_number(prefix, ".jsonl")
        self._shards = ShardSeries(
            self._stage, lambda number: f"{prefix}-{number:05d}.jsonl", first, rows=shard_rows, size=shard_size
        )

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return self._to_json(sample) + b"\n"
