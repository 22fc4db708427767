"""The old place of `index` and `stores`."""

from shardex.compat.atdata._waiting import FILES, Waiting
from shardex.compat.atdata.index import (
    REDIS_KEY_DATASET_ENTRY,
    REDIS_KEY_SCHEMA,
    BasicIndexEntry,
    Index,
    LocalDatasetEntry,
    LocalSchemaRecord,
    SchemaField,
    SchemaFieldType,
)
from shardex.compat.atdata.stores import LocalDiskStore, S3DataStore

__all__ = [
    "REDIS_KEY_DATASET_ENTRY",
    "REDIS_KEY_SCHEMA",
    "BasicIndexEntry",
    "Index",
    "LocalDatasetEntry",
    "LocalDiskStore",
    "LocalSchemaRecord",
    "Repo",
    "S3DataStore",
    "SchemaField",
    "SchemaFieldType",
]


class Repo(Waiting, instead=FILES, methods="insert"):
    """A store and an index in one, of old versions."""
