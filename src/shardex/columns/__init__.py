"""Arrow buffers as columns: encoders, readers and tables, which know no feature and are given functions.

In: values and columns of `Field`s, and Arrow record batches. Out: record batches to write, columns and samples, and
tables for SQL and other tools. `fields` says what this room asks of the type of a field; `features` has those types.

Writing: `batch_builder` appends samples to a collector of `collect`, or takes columns as they are. Reading:
`mapped_table` copies straight from the buffers of memory-mapped batches, `checked_table` from those of files with
checksums; `decoded_table` decodes Parquet row groups and compressed batches. Nested types, which the kernel cannot
copy, are converted by `decode`.

- `fields`: `Field`; names of fields, and places of values, in errors
- `types`: Arrow types, without encodings such as views
- `storage`: Arrow arrays without encodings such as views; which parts have nulls
- `encode_values`: numbers, text and bytes of one field to an Arrow array
- `encode`: arrays, nested and missing values of one field to an Arrow array
- `collect`: samples to one Arrow array per field
- `batch_builder`: samples to record batches
- `to_table`: columns to a table
- `decode`: Arrow arrays to columns
- `media_structs`: images, audio and video of Hugging Face `datasets` to bytes
- `chunks`: rows as record batches, and the reader of fields of any type
- `list_readers`: readers of text, bytes and arrays of different lengths
- `field_readers`: readers of values of one width, lists and missing values
- `table`: the base class of all tables and rows
- `mapped_table`: memory-mapped record batches as one table
- `checked_table`: files with checksums as one table; `block_checks` checks the blocks that are read
- `file_blocks`: where the blocks of a file are
- `buffer_layout`: which buffers of a batch belong to a column, and which rows need damaged bytes
- `decoded_table`: Parquet row groups and compressed batches as one table, with a cache
- `sql_columns`: stored columns as DuckDB reads them
- `ipc_footer`: positions of the batches in an Arrow IPC file
"""

from shardex.columns.batch_builder import BatchBuilder, EncodedColumns
from shardex.columns.buffer_layout import Layout, array_of, column_layouts, rows_that_need
from shardex.columns.checked_table import CheckedTable
from shardex.columns.chunks import Chunks, FieldReader
from shardex.columns.collect import MOST_ROWS, MOST_SIZES, Collected
from shardex.columns.decode import decode_array, list_bounds, list_parts, parts_of_lists, python_values
from shardex.columns.decoded_table import CACHE_BYTES, DecodedTable, DecodeLimit
from shardex.columns.encode import (
    FixedArrays,
    Maps,
    Optionals,
    RaggedArrays,
    Sequences,
    ShapedArrays,
    Structs,
    shaped_arrays,
    with_nulls,
)
from shardex.columns.encode_values import (
    Blobs,
    ConvertedEncoder,
    Encoder,
    Nulls,
    Numbers,
    Texts,
    Units,
    WideUnits,
    offset_sizes,
    row_sizes,
    width,
)
from shardex.columns.field_readers import BoolReader, FixedWidthReader, OptionalReader, SequenceReader, TimeReader
from shardex.columns.fields import Field, check_fields, located, refuse_unknown_fields
from shardex.columns.file_blocks import BLOCK, FileSizes
from shardex.columns.ipc_footer import (
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
from shardex.columns.list_readers import BytesReader, FreeShapeReader, MediaReader, RaggedReader, ShapedReader
from shardex.columns.mapped_table import MappedTable
from shardex.columns.media_structs import ReadFile, bytes_of_structs, media_decoder, no_file
from shardex.columns.sql_columns import (
    as_nested_lists,
    cast_for_sql,
    concat_columns,
    sql_table,
    take_table,
    true_or_null,
    valid_mask,
    without_json_null,
)
from shardex.columns.storage import (
    expanded_size,
    is_number_item,
    null_paths,
    null_paths_of_counts,
    nullable_paths,
    storage_array,
    with_schema,
)
from shardex.columns.table import Table
from shardex.columns.to_table import (
    bytes_to_arrow,
    masked_to_arrow,
    numbers_to_arrow,
    of_python_values,
    texts_to_arrow,
    to_table,
)
from shardex.columns.types import (
    Path,
    check_column_names,
    has_offsets,
    has_shape,
    is_binary,
    is_list,
    is_media_struct,
    is_text,
    number_array,
    number_dtype,
    schema_text,
    storage_dtype,
    value_type,
)

__all__ = [
    "BLOCK",
    "CACHE_BYTES",
    "FOOTER_TAIL",
    "MOST_ROWS",
    "MOST_SIZES",
    "BatchBuilder",
    "BatchLayout",
    "Blobs",
    "Block",
    "BoolReader",
    "BytesReader",
    "CheckedTable",
    "Chunks",
    "Collected",
    "ConvertedEncoder",
    "DecodeLimit",
    "DecodedTable",
    "EncodedColumns",
    "Encoder",
    "Field",
    "FieldReader",
    "FileSizes",
    "FixedArrays",
    "FixedWidthReader",
    "FreeShapeReader",
    "Layout",
    "MappedTable",
    "Maps",
    "MediaReader",
    "Nulls",
    "Numbers",
    "OptionalReader",
    "Optionals",
    "Path",
    "RaggedArrays",
    "RaggedReader",
    "ReadFile",
    "SequenceReader",
    "Sequences",
    "ShapedArrays",
    "ShapedReader",
    "Structs",
    "Table",
    "Texts",
    "TimeReader",
    "Units",
    "WideUnits",
    "array_of",
    "as_nested_lists",
    "batch_is_compressed",
    "batch_layout",
    "bytes_of_structs",
    "bytes_to_arrow",
    "cast_for_sql",
    "check_column_names",
    "check_fields",
    "column_layouts",
    "concat_columns",
    "decode_array",
    "decompressed_size",
    "expanded_size",
    "footer_blocks",
    "footer_size",
    "has_offsets",
    "has_shape",
    "is_binary",
    "is_list",
    "is_media_struct",
    "is_number_item",
    "is_text",
    "list_bounds",
    "list_parts",
    "located",
    "masked_to_arrow",
    "media_decoder",
    "message_at",
    "message_head_size",
    "no_file",
    "null_paths",
    "null_paths_of_counts",
    "nullable_paths",
    "number_array",
    "number_dtype",
    "numbers_to_arrow",
    "of_python_values",
    "offset_sizes",
    "open_ipc_file",
    "parts_of_lists",
    "python_values",
    "refuse_unknown_fields",
    "row_sizes",
    "rows_that_need",
    "schema_text",
    "shaped_arrays",
    "sql_table",
    "storage_array",
    "storage_dtype",
    "stream_blocks",
    "take_table",
    "texts_to_arrow",
    "to_table",
    "true_or_null",
    "valid_batch",
    "valid_mask",
    "value_type",
    "width",
    "with_nulls",
    "with_schema",
    "without_json_null",
]
