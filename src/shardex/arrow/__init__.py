"""Features as Arrow types, values into Arrow arrays, Arrow arrays into columns.

In: features, samples, Arrow batches that are mapped or decoded. Out: record batches to write, columns and samples that
were read, tables for SQL and other tools. `types` has the table of Arrow types; everything else follows it.
Writing: `batch_builder` appends samples to the encoders of `encode`. Reading: `mapped_table` copies from the buffers
of mapped batches with `field_readers`, `decoded_table` decodes groups; both use `decode` for what needs Arrow.

types          Arrow types of features, features of Arrow schemas
encode         values of one field into an Arrow array
batch_builder  samples into record batches
to_table       columns into a table
decode         Arrow arrays into columns
field_readers  readers of one field over mapped batches
mapped_table   mapped record batches as one table
decoded_table  Parquet row groups and compressed batches as one table, with a cache
sql_columns    fields in the form that SQL reads
ipc_footer     readers of Arrow IPC files, positions of their batches
"""

from shardex.arrow.batch_builder import BatchBuilder
from shardex.arrow.decode import decode_array, storage_array, to_list
from shardex.arrow.decoded_table import CACHE_BYTES, DecodedTable
from shardex.arrow.ipc_footer import (
    FOOTER_TAIL,
    Block,
    batch_is_compressed,
    footer_blocks,
    footer_size,
    open_ipc_file,
    valid_batch,
)
from shardex.arrow.mapped_table import MappedTable
from shardex.arrow.sql_columns import (
    concat_columns,
    concat_tables,
    feature_of_values,
    is_queryable,
    samples_table,
    sql_table,
    take_table,
    true_or_null,
    valid_mask,
)
from shardex.arrow.to_table import is_opaque, to_table
from shardex.arrow.types import (
    arrow_schema,
    arrow_type,
    check_column_names,
    features_of_arrow,
    is_list,
    items_per_row,
    number_array,
    schema_text,
    storage_type,
)

__all__ = [
    "CACHE_BYTES",
    "FOOTER_TAIL",
    "BatchBuilder",
    "Block",
    "DecodedTable",
    "MappedTable",
    "arrow_schema",
    "arrow_type",
    "batch_is_compressed",
    "check_column_names",
    "concat_columns",
    "concat_tables",
    "decode_array",
    "feature_of_values",
    "features_of_arrow",
    "footer_blocks",
    "footer_size",
    "is_list",
    "is_opaque",
    "is_queryable",
    "items_per_row",
    "number_array",
    "open_ipc_file",
    "samples_table",
    "schema_text",
    "sql_table",
    "storage_array",
    "storage_type",
    "take_table",
    "to_list",
    "to_table",
    "true_or_null",
    "valid_batch",
    "valid_mask",
]
