"""An index of datasets by name, which waits for the catalog; entries and schema records work."""

from shardex.compat.atdata._waiting import FILES, Waiting
from shardex.compat.atdata.index._entry import (
    REDIS_KEY_DATASET_ENTRY,
    REDIS_KEY_SCHEMA,
    BasicIndexEntry,
    LocalDatasetEntry,
)
from shardex.compat.atdata.index._schema import (
    LocalSchemaRecord,
    SchemaField,
    SchemaFieldType,
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
]


class Index(
    Waiting,
    instead=FILES,
    methods="write_samples write insert_dataset get_dataset datasets list_datasets label get_label labels list_labels "
    "publish_schema get_schema get_schema_record get_schema_type schemas list_schemas load_schema decode_schema "
    "decode_schema_as store_lens get_lens load_lens lenses list_lenses find_lenses search promote_entry "
    "promote_dataset add_entry get_entry get_entry_by_name list_entries all_entries entries clear_stubs types "
    "get_import_path repos atmosphere provider data_store stub_dir",
):
    """Datasets, schemas, lenses and labels by name."""
