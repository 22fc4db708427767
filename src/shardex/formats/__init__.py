"""The room formats."""

from shardex.formats.arrow_files import EXTENSIONS, open_file, open_files, validated
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
    "open_file",
    "open_files",
    "open_rows",
    "recognise",
    "validated",
]
