"""Whether media files are samples, or figures beside the shards of another format."""

from __future__ import annotations

from collections.abc import Sequence

from shardex.files import Files, list_folder
from shardex.formats.folder.files import EXTENSIONS, FILE_NAME, MediaFiles, class_folders
from shardex.formats.signatures import LIKELY, NO, SURE
from shardex.sources import ByteRange

_TABLES = (".csv", ".tsv")
"""Extensions of tables, which often lie beside media files: solutions, lists of files."""
_SHARDS = (".tar", ".parquet", ".pq", ".arrow", ".feather", ".ipc", ".jsonl", ".ndjson", ".npy", ".bin", *_TABLES)
"""Extensions of other formats."""
_MANY = 10
"""With this many media files for each shard of another format, they are the samples, not figures beside the shards."""
_HEAD = 64 << 10


def recognise(files: Files) -> int:
    """Recognise media files; class folders, or metadata that name files, make it sure even with tables beside them.

    Media beside shards of other formats are samples only if there are more of them.
    """
    if not files.extensions.isdisjoint(EXTENSIONS) and files.extensions.isdisjoint(_SHARDS):
        return LIKELY
    found = MediaFiles.of(files.paths)
    if not found.kinds and files.has_linked_folders:
        found = MediaFiles.of(list_folder(files).paths)
    if not found.kinds:
        return NO
    sure = bool(found.tables) and _names_files(files, found.tables[0])
    shards = [path for path in found.others if path.lower().endswith(_SHARDS)] + found.tables * (not sure)
    if shards:
        return _sureness(found.media, shards, sure)
    return SURE if sure else LIKELY


def _names_files(files: Files, table: str) -> bool:
    """Return whether the first lines of a table say that it is about files."""
    size = min(files.source.stat(table).size, _HEAD)
    return FILE_NAME.encode() in bytes(files.source.read(table, [ByteRange(0, size)])[0])


def _sureness(media: Sequence[str], shards: Sequence[str], sure: bool) -> int:
    """Return how sure it is that media files beside shards of other formats are the samples."""
    if len(media) <= len(shards):
        return NO
    tables, folders = all(path.lower().endswith(_TABLES) for path in shards), class_folders(media)
    if sure or (tables and folders):
        return SURE
    return LIKELY if tables or folders or len(media) > _MANY * len(shards) else NO
