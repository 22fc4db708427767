"""Manifests: what is in a shard, in two files beside it, so that samples are found without opening shards.

``train-000000.manifest.json`` has the number of samples and a summary of each field, ``train-000000.manifest.parquet``
one row for each sample: its key, the place of its packed bytes in the tar, and the values of its small fields.

- `_fields`: which fields of a sample class are in manifests
- `_aggregates`: summaries of the values of a field
- `_builder`, `_manifest`, `_writer`: make, hold and store one manifest
- `_query`: finds samples by a condition
- `_proxy`: conditions, written as comparisons of fields
"""

from shardex.compat.atdata.manifest._aggregates import (
    CategoricalAggregate,
    NumericAggregate,
    SetAggregate,
    create_aggregate,
)
from shardex.compat.atdata.manifest._builder import ManifestBuilder
from shardex.compat.atdata.manifest._fields import AggregateKind, ManifestField, resolve_manifest_fields
from shardex.compat.atdata.manifest._manifest import MANIFEST_FORMAT_VERSION, ShardManifest
from shardex.compat.atdata.manifest._proxy import F, FieldProxy, Predicate, query_fields
from shardex.compat.atdata.manifest._query import QueryExecutor, SampleLocation, query_shards
from shardex.compat.atdata.manifest._writer import ManifestWriter

__all__ = [
    "MANIFEST_FORMAT_VERSION",
    "AggregateKind",
    "CategoricalAggregate",
    "F",
    "FieldProxy",
    "ManifestBuilder",
    "ManifestField",
    "ManifestWriter",
    "NumericAggregate",
    "Predicate",
    "QueryExecutor",
    "SampleLocation",
    "SetAggregate",
    "ShardManifest",
    "create_aggregate",
    "query_fields",
    "query_shards",
    "resolve_manifest_fields",
]
