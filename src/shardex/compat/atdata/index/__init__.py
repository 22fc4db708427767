"""An index of datasets, schemas, lenses and labels by name.

- `_index`: `Index`
- `_network`: names on ATProto
- `_entry`: entries
- `_schema`: schema records
- `_namespace`: sample classes by name
"""

from shardex.compat.atdata.index._entry import (
    REDIS_KEY_DATASET_ENTRY,
    REDIS_KEY_SCHEMA,
    BasicIndexEntry,
    LocalDatasetEntry,
)
from shardex.compat.atdata.index._index import Index
from shardex.compat.atdata.index._namespace import SchemaNamespace
from shardex.compat.atdata.index._schema import (
    LocalSchemaRecord,
    SchemaField,
    SchemaFieldType,
    _build_schema_record,
    _increment_patch,
    _kind_str_for_sample_type,
    _make_schema_ref,
    _parse_schema_ref,
    _python_type_to_field_type,
    _schema_ref_from_type,
)

__all__ = [
    "REDIS_KEY_DATASET_ENTRY",
    "REDIS_KEY_SCHEMA",
    "BasicIndexEntry",
    "Index",
    "LocalDatasetEntry",
    "LocalSchemaRecord",
    "SchemaField",
    "SchemaFieldType",
    "SchemaNamespace",
    "_build_schema_record",
    "_increment_patch",
    "_kind_str_for_sample_type",
    "_make_schema_ref",
    "_parse_schema_ref",
    "_python_type_to_field_type",
    "_schema_ref_from_type",
]
