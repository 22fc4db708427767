"""`ManifestBuilder`: collects what the manifest of one shard says, sample by sample."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from shardex.compat.atdata.manifest._aggregates import create_aggregate
from shardex.compat.atdata.manifest._fields import resolve_manifest_fields
from shardex.compat.atdata.manifest._manifest import KEY, OFFSET, SIZE, ShardManifest, import_pandas
from shardex.errors import SchemaError


class ManifestBuilder:
    """Collects the values of samples while a shard is written; `build` returns its manifest.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Sample:
    ...     label: str
    >>> builder = ManifestBuilder(Sample, "train-000000")
    >>> builder.add_sample(key="a", offset=512, size=9, sample=Sample("dog"))
    >>> manifest = builder.build()
    >>> manifest.num_samples, manifest.aggregates["label"]["value_counts"]
    (1, {'dog': 1})
    """

    def __init__(
        self,
        sample_type: type,
        shard_id: str,
        schema_version: str = "1.0.0",
        source_job_id: str | None = None,
        parent_shards: Sequence[str] | None = None,
        pipeline_version: str | None = None,
    ) -> None:
        self._sample_type, self._shard_id, self._schema_version = sample_type, shard_id, schema_version
        given = {"source_job_id": source_job_id, "parent_shards": parent_shards, "pipeline_version": pipeline_version}
        self._provenance = {name: value for name, value in given.items() if value}
        fields = resolve_manifest_fields(sample_type)
        self._aggregates = {name: create_aggregate(one.aggregate) for name, one in fields.items()}
        self._columns: dict[str, list[Any]] = {name: [] for name in (KEY, OFFSET, SIZE, *fields)}

    def add_sample(self, *, key: str, offset: int, size: int, sample: Any) -> None:
        """Add a sample: its key, and where its packed bytes are in the tar."""
        self.add_values(key, offset, size, self.values_of(sample))

    def values_of(self, sample: Any) -> dict[str, Any]:
        """Return the values of a sample that are in the manifest."""
        return {name: _plain(getattr(sample, name, None)) for name in self._aggregates}

    def add_values(self, key: str, offset: int, size: int, values: Mapping[str, Any]) -> None:
        """Add a sample by the values that `values_of` returned."""
        row = {KEY: key, OFFSET: offset, SIZE: size, **values}
        for name, column in self._columns.items():
            column.append(row[name])
        for name, aggregate in self._aggregates.items():
            if values[name] is not None:
                try:
                    aggregate.add(values[name])
                except (TypeError, ValueError) as error:
                    raise SchemaError(f"{error} - at field {name} of the manifest, sample {key}") from None

    def build(self) -> ShardManifest:
        """Return the manifest of the samples added so far."""
        return ShardManifest(
            shard_id=self._shard_id,
            schema_type=self._sample_type.__name__,
            schema_version=self._schema_version,
            num_samples=len(self._columns[KEY]),
            size_bytes=sum(self._columns[SIZE]),
            created_at=datetime.now(UTC),
            aggregates={name: one.to_dict() for name, one in self._aggregates.items()},
            samples=import_pandas().DataFrame(self._columns),
            provenance=dict(self._provenance),
        )


def _plain(value: Any) -> Any:
    """Return a value without numpy types; sets and tuples as lists."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, set | frozenset | tuple) else value
