"""Containers of samples: recognise files, open them as rows, write samples to shards. One module or a few per format.

In: files that `files.find` found, or a path to write to. Out: `ShardRows`, `ShardWriter`. `registry` has the table of
formats and imports a format's module when it is first needed; each defines a `Format`. Reading record formats: an index
gives file, offset and length of each sample, `record_rows` turns rows into byte ranges, and the format decodes them.
Reading Arrow and Parquet: tables of the arrow room, joined by `table_rows`. Writing: `sample_writer` encodes samples
into staged shards. The native format is `store.format`, a room above.

registry            table of formats, opening files by format
record_rows         rows that are byte ranges of files
table_rows          rows of Arrow and Parquet files
sample_writer       writers that encode one sample at a time, numbered shards
extracted_columns   values of JSON keys extracted for SQL
arrow_files         Arrow IPC files and streams of other tools
parquet             Parquet files, reading and writing
jsonl, jsonl_lines  JSON Lines and text files; finding and writing lines
tar                 WebDataset tars as rows
tar_members         samples in tars: finding, writing, damaged tars
tar_fields          one field of a sample as a file in a tar
tar_blocks          headers of tars
tar_remote_headers  headers of remote tars with few requests
columns_tar         SQLite table and tars per field (synthefy-dataset-utils)
columns_tar_writer  writer of the same
tokens, token_files raw numbers: windows, or samples of stored lengths; their files
bins                packets in numbered bins (splitdataloader)
data_forager        the index of data-forager
"""

from shardex.formats.arrow_files import EXTENSIONS, open_files
from shardex.formats.registry import (
    FORMATS,
    Format,
    ShardRows,
    ShardWriter,
    check_options,
    format_named,
    open_rows,
    recognise,
)
from shardex.formats.table_rows import TableRows

__all__ = [
    "EXTENSIONS",
    "FORMATS",
    "Format",
    "ShardRows",
    "ShardWriter",
    "TableRows",
    "check_options",
    "format_named",
    "open_files",
    "open_rows",
    "recognise",
]
