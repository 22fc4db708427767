"""`ManifestWriter`: stores a manifest in its two files."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardex.compat.atdata.manifest._manifest import JSON_SUFFIX, PARQUET_SUFFIX, ShardManifest
from shardex.errors import SchemaError
from shardex.sources import place_of


class ManifestWriter:
    """Writes the manifest of the shard ``{base_path}.tar``; each file appears whole."""

    def __init__(self, base_path: str | os.PathLike[str]) -> None:
        self._base = Path(base_path)

    @property
    def json_path(self) -> Path:
        """Path of the file with the header."""
        return self._base.with_name(self._base.name + JSON_SUFFIX)

    @property
    def parquet_path(self) -> Path:
        """Path of the file with a row for each sample."""
        return self._base.with_name(self._base.name + PARQUET_SUFFIX)

    def write(self, manifest: ShardManifest) -> tuple[Path, Path]:
        """Write both files and return their paths."""
        header = json.dumps(manifest.header_dict(), indent=2, allow_nan=False, ensure_ascii=False)
        table = io.BytesIO()
        pq.write_table(_table(manifest.samples), table)
        place = place_of(self._base.parent)
        place.put(self.parquet_path.name, table.getvalue())
        place.put(self.json_path.name, header.encode())
        return self.json_path, self.parquet_path


def _table(samples: Any) -> pa.Table:
    columns = {}
    for name in samples.columns:
        try:
            columns[name] = pa.array(samples[name], from_pandas=True)
        except pa.ArrowException as error:
            raise SchemaError(f"expected values of one type, got others: {error} - at field {name}") from None
        if pa.types.is_null(columns[name].type):  # a column of no values: other tools read no columns without a type
            columns[name] = columns[name].cast(pa.string())
    return pa.table(columns)
