"""Converts features to Arrow types, values to Arrow arrays, and Arrow arrays to columns.

In: features, samples, and Arrow record batches. Out: record batches to write, columns and samples, and tables for SQL
and other tools. All modules use the mapping between features and Arrow types in `types`.

Writing: `batch_builder` appends samples to a collector of `collect`, or takes columns as they are. Reading:
`mapped_table` copies straight from the buffers of memory-mapped batches, `checked_table` from those of files with
checksums; `decoded_table` decodes Parquet row groups and compressed batches. Nested types, which the kernel cannot
copy, are converted by `decode`.

- `types`: Arrow types of features, and features of Arrow schemas
- `hf_metadata`: features in the metadata of files that Hugging Face `datasets` wrote
- `storage`: Arrow arrays without encodings such as views; which parts have nulls
- `encode_values`: numbers, dates, text and bytes of one field to an Arrow array
- `encode`: values of one field to an Arrow array
- `collect`: samples to one Arrow array per field
- `batch_builder`: samples to record batches
- `to_table`: columns to a table
- `decode`: Arrow arrays to columns
- `media_structs`: images, audio and video of Hugging Face `datasets` to bytes
- `chunks`: rows as record batches, and the reader of fields of any type
- `list_readers`: readers of text, bytes and arrays of different lengths
- `field_readers`: the reader of each field of memory-mapped batches
- `mapped_table`: memory-mapped record batches as one table
- `checked_table`: files with checksums as one table; `block_checks` checks the blocks that are read
- `file_blocks`: where the blocks of a file are
- `buffer_layout`: which buffers of a batch belong to a column, and which rows need damaged bytes
- `decoded_table`: Parquet row groups and compressed batches as one table, with a cache
- `sql_columns`: fields as the columns that DuckDB reads
- `ipc_footer`: positions of the batches in an Arrow IPC file
"""

from shardex.arrow.batch_builder import BatchBuilder, EncodedColumns
from shardex.arrow.buffer_layout import Layout, array_of, column_layouts, rows_that_need
from shardex.arrow.checked_table import CheckedTable
from shardex.arrow.collect import MOST_ROWS
from shardex.arrow.decode import decode_array, list_bounds, list_parts
from shardex.arrow.decoded_table import CACHE_BYTES, DecodedTable, DecodeLimit
from shardex.arrow.file_blocks import BLOCK, FileSizes
from shardex.arrow.hf_metadata import feature_of_hf, media_to_hf
from shardex.arrow.ipc_footer import (
    FOOTER_TAIL,
    BatchLayout,
    Block,
    batch_is_compressed,
    batch_layout,
    decompressed_size,
    footer_blocks,
    footer_size,
    message_at,
    message_head_size,
    open_ipc_file,
    stream_blocks,
    valid_batch,
)
from shardex.arrow.mapped_table import MappedTable
from shardex.arrow.media_structs import ReadFile, no_file
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
from shardex.arrow.storage import (
    expanded_size,
    is_number_item,
    null_paths,
    null_paths_of_counts,
    nullable_paths,
    with_schema,
)
from shardex.arrow.to_table import to_table
from shardex.arrow.types import (
    Path,
    arrow_schema,
    arrow_type,
    check_column_names,
    features_of_arrow,
    items_per_row,
    number_array,
    number_dtype,
    schema_text,
)

__all__ = [
    "BLOCK",
    "CACHE_BYTES",
    "FOOTER_TAIL",
    "MOST_ROWS",
    "BatchBuilder",
    "BatchLayout",
    "Block",
    "CheckedTable",
    "DecodeLimit",
    "DecodedTable",
    "EncodedColumns",
    "FileSizes",
    "Layout",
    "MappedTable",
    "Path",
    "ReadFile",
    "array_of",
    "arrow_schema",
    "arrow_type",
    "batch_is_compressed",
    "batch_layout",
    "check_column_names",
    "column_layouts",
    "concat_columns",
    "concat_tables",
    "decode_array",
    "decompressed_size",
    "expanded_size",
    "feature_of_hf",
    "feature_of_values",
    "features_of_arrow",
    "footer_blocks",
    "footer_size",
    "is_number_item",
    "is_queryable",
    "items_per_row",
    "list_bounds",
    "list_parts",
    "media_to_hf",
    "message_at",
    "message_head_size",
    "no_file",
    "null_paths",
    "null_paths_of_counts",
    "nullable_paths",
    "number_array",
    "number_dtype",
    "open_ipc_file",
    "rows_that_need",
    "samples_table",
    "schema_text",
    "sql_table",
    "stream_blocks",
    "take_table",
    "to_table",
    "true_or_null",
    "valid_batch",
    "valid_mask",
    "with_schema",
]
