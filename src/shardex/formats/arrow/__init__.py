"""Arrow IPC files and streams of other tools: read in place, and written with a given Arrow schema."""

from shardex.formats.arrow.files import EXTENSIONS, is_empty_cache, map_table, open_files
from shardex.formats.arrow.writer import ArrowFilesWriter

__all__ = [
    "EXTENSIONS",
    "ArrowFilesWriter",
    "is_empty_cache",
    "map_table",
    "open_files",
]
