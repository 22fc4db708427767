"""The room formats."""

from shardex.formats.arrow_files import EXTENSIONS, open_file, open_files, validated
from shardex.formats.registry import (
    FORMATS,
    Keyed,
    ShardRows,
    ShardWriter,
    check_options,
    format_named,
    open_rows,
    recognise,
    stored_schema,
)
from shardex.formats.table_rows import Table, TableRows
from shardex.formats.tar_blocks import members
from shardex.formats.tar_members import split_name

__all__ = [
    "EXTENSIONS",
    "FORMATS",
    "Keyed",
    "ShardRows",
    "ShardWriter",
    "Table",
    "TableRows",
    "check_options",
    "format_named",
    "members",
    "open_file",
    "open_files",
    "open_rows",
    "recognise",
    "split_name",
    "stored_schema",
    "validated",
]
