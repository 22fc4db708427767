"""The old place of `index` and `stores`; and `Repo`, an index and a store in one (`_repo_legacy`)."""

from shardex.compat.atdata.index import (
    REDIS_KEY_DATASET_ENTRY,
    REDIS_KEY_SCHEMA,
    BasicIndexEntry,
    Index,
    LocalDatasetEntry,
    LocalSchemaRecord,
    SchemaField,
    SchemaFieldType,
    SchemaNamespace,
    _build_schema_record,
    _increment_patch,
    _kind_str_for_sample_type,
    _make_schema_ref,
    _parse_schema_ref,
    _python_type_to_field_type,
    _schema_ref_from_type,
)
from shardex.compat.atdata.index._schema import T
from shardex.compat.atdata.local._repo_legacy import Repo
from shardex.compat.atdata.stores import LocalDiskStore, S3DataStore

LocalIndex = Index
"""The name of `Index` in old versions."""

__all__ = [
    "REDIS_KEY_DATASET_ENTRY",
    "REDIS_KEY_SCHEMA",
    "BasicIndexEntry",
    "Index",
    "LocalDatasetEntry",
    "LocalDiskStore",
    "LocalIndex",
    "LocalSchemaRecord",
    "Repo",
    "S3DataStore",
    "SchemaField",
    "SchemaFieldType",
    "SchemaNamespace",
    "T",
    "_build_schema_record",
    "_increment_patch",
    "_kind_str_for_sample_type",
    "_make_schema_ref",
    "_parse_schema_ref",
    "_python_type_to_field_type",
    "_schema_ref_from_type",
]
