"""Arrow buffers as columns: encoders, readers and tables, which know no feature and are given functions.

In: values and columns of `Field`s, and Arrow record batches. Out: record batches to write, columns and samples, and
tables for SQL and other tools. `fields` says what this room asks of the type of a field; `features` has those types.

Writing: `batch_builder` appends samples to a collector of `collect`, or takes columns as they are. Reading:
`mapped_table` copies straight from the buffers of memory-mapped batches, `checked_table` from those of files with
checksums; `decoded_table` decodes Parquet row groups and compressed batches. Nested types, which the kernel cannot
copy, are converted by `arrow_values`.

Modules that other rooms import as a whole (``from shardex.columns import encoders``):

- `arrow_types`: Arrow types and arrays without encodings such as views; which parts have nulls
- `arrow_values`: Arrow arrays to columns; images, audio and video of Hugging Face `datasets` to bytes
- `encoders`: the values of one field to an Arrow array
- `field_readers`: readers of values of one width, lists and missing values; rows as record batches
- `list_readers`: readers of text, bytes and arrays of different lengths
- `tables`: columns to a table; stored columns as DuckDB reads them
- `ipc`: positions of the batches in an Arrow IPC file
- `buffer_layout`: which buffers of a batch belong to a column, and which rows need damaged bytes

The others:

- `fields`: `Field`; the base class of all tables and rows; names of fields, and places of values, in errors
- `collect`: samples to one Arrow array per field
- `batch_builder`: samples to record batches
- `mapped_table`: memory-mapped record batches as one table
- `checked_table`: files with checksums as one table; `block_checks` checks the blocks that are read
- `file_blocks`: where the blocks of a file are
- `decoded_table`: Parquet row groups and compressed batches as one table, with a cache
"""

from shardex.lazy_door import TYPES, import_later

__all__ = [
    "BLOCK",
    "CACHE_BYTES",
    "MOST_ROWS",
    "MOST_SIZES",
    "BatchBuilder",
    "CheckedTable",
    "Chunks",
    "Collected",
    "DecodeLimit",
    "DecodedTable",
    "EncodedColumns",
    "Encoder",
    "FieldReader",
    "FileSizes",
    "MappedTable",
    "ReadFile",
    "Table",
    "arrow_types",
    "arrow_values",
    "buffer_layout",
    "check_fields",
    "decode_array",
    "encoders",
    "field_readers",
    "ipc",
    "list_readers",
    "located",
    "number_array",
    "refuse_unknown_fields",
    "tables",
    "to_table",
]

if TYPES:
    from shardex.columns import (
        arrow_types,
        arrow_values,
        buffer_layout,
        encoders,
        field_readers,
        ipc,
        list_readers,
        tables,
    )
    from shardex.columns.arrow_types import number_array
    from shardex.columns.arrow_values import ReadFile, decode_array
    from shardex.columns.batch_builder import BatchBuilder, EncodedColumns
    from shardex.columns.checked_table import CheckedTable
    from shardex.columns.collect import MOST_ROWS, MOST_SIZES, Collected
    from shardex.columns.decoded_table import CACHE_BYTES, DecodedTable, DecodeLimit
    from shardex.columns.encoders import Encoder
    from shardex.columns.field_readers import Chunks, FieldReader
    from shardex.columns.fields import Table, check_fields, located, refuse_unknown_fields
    from shardex.columns.file_blocks import BLOCK, FileSizes
    from shardex.columns.mapped_table import MappedTable
    from shardex.columns.tables import to_table
else:
    import_later(
        __name__,
        {
            "": "arrow_types arrow_values buffer_layout encoders field_readers ipc list_readers tables",
            "arrow_types": "number_array",
            "arrow_values": "ReadFile decode_array",
            "batch_builder": "BatchBuilder EncodedColumns",
            "checked_table": "CheckedTable",
            "collect": "MOST_ROWS MOST_SIZES Collected",
            "decoded_table": "CACHE_BYTES DecodedTable DecodeLimit",
            "encoders": "Encoder",
            "field_readers": "Chunks FieldReader",
            "fields": "Table check_fields located refuse_unknown_fields",
            "file_blocks": "BLOCK FileSizes",
            "mapped_table": "MappedTable",
            "tables": "to_table",
        },
    )
