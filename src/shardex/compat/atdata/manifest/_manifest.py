"""`ShardManifest`: what is in one shard, in memory and in its two files."""

import io
import json
import os
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardex.compat.atdata._sources import load
from shardex.errors import FormatError, MissingExtraError, NotFoundError
from shardex.sources import parent_of, place_of

if TYPE_CHECKING:
    import pandas as pd

MANIFEST_FORMAT_VERSION = "1.0.0"
JSON_SUFFIX, PARQUET_SUFFIX = ".manifest.json", ".manifest.parquet"
KEY, OFFSET, SIZE = "__key__", "__offset__", "__size__"
_HEADER = ("shard_id", "schema_type", "schema_version", "num_samples", "size_bytes", "created_at")


@dataclass
class ShardManifest:
    """What is in one shard: a header with summaries of fields, and a table with a row for each sample.

    The table has the columns ``__key__``, ``__offset__`` and ``__size__`` (where the packed sample is in the tar), and
    one for each field of the manifest.
    """

    shard_id: str
    schema_type: str
    schema_version: str
    num_samples: int
    size_bytes: int
    created_at: datetime
    aggregates: dict[str, dict[str, Any]]
    samples: "pd.DataFrame"
    provenance: dict[str, Any] = field(default_factory=dict)

    def header_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file."""
        header = {"manifest_version": MANIFEST_FORMAT_VERSION, **{name: getattr(self, name) for name in _HEADER}}
        header |= {"created_at": self.created_at.isoformat(), "aggregates": self.aggregates}
        return {**header, "provenance": self.provenance} if self.provenance else header

    @classmethod
    def from_files(cls, json_path: str | os.PathLike[str], parquet_path: str | os.PathLike[str]) -> Self:
        """Return the manifest in these two files, at paths or URLs."""
        header = _load_header(json_path)
        columns = [name for name, one in header.aggregates.items() if one.get("type") == "set"]
        return cls(**vars(header) | {"samples": _load_samples(parquet_path, columns)})

    @classmethod
    def from_json_only(cls, json_path: str | os.PathLike[str]) -> Self:
        """Return a manifest with the summaries only; its table is empty."""
        return cls(**vars(_load_header(json_path)))


def import_pandas() -> Any:
    """Return the module pandas: the tables of manifests are DataFrames."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("pandas", "pandas", "a manifest of atdata") from None
    return pandas


def sidecar_of(shard: str, suffix: str) -> str:
    """Return the path or URL of a file of the manifest of a shard.

    >>> sidecar_of("data/train-000000.tar", ".manifest.json"), sidecar_of("s3://b/a.tar?region=x", ".manifest.json")
    ('data/train-000000.manifest.json', 's3://b/a.manifest.json?region=x')
    """
    address, query, rest = shard.partition("?") if "://" in shard else (shard, "", "")
    return f"{address.removesuffix('.tar')}{suffix}{query}{rest}"


def exists(path: str) -> bool:
    """Return True if a file exists at a path or URL."""
    folder, name = parent_of(path)
    try:
        place_of(folder).stat(name)
    except NotFoundError:
        return False
    return True


def _load_header(path: str | os.PathLike[str]) -> ShardManifest:
    try:
        found = json.loads(load(os.fspath(path)))
        values = {name: found[name] for name in _HEADER}
        values |= {"created_at": datetime.fromisoformat(found["created_at"])}
        aggregates, provenance = dict(found.get("aggregates", {})), dict(found.get("provenance", {}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{os.fspath(path)}: expected the manifest of a shard, got something else: {error}") from None
    return ShardManifest(**values, aggregates=aggregates, provenance=provenance, samples=import_pandas().DataFrame())


def _load_samples(path: str | os.PathLike[str], lists: list[str]) -> Any:
    """Return the table of a manifest; `lists` are columns of lists, which atdata stores as JSON."""
    data = load(os.fspath(path))
    try:
        table = pq.read_table(io.BytesIO(data))
        frame = table.to_pandas()
        for name in lists:
            if name in frame:
                frame[name] = [_list_of(value) for value in frame[name]]
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise FormatError(
            f"{os.fspath(path)}: expected a Parquet table of samples, got something else: {error}"
        ) from None
    return frame


def _list_of(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return json.loads(value)
    return list(value) if isinstance(value, list | np.ndarray) else None
