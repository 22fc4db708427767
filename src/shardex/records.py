"""Samples as byte ranges: what tar, JSONL, tokens and bins share. An `Index` says where, a mapping gives the bytes.

`RecordRows` turns rows into `Ranges` of the mapped files; a format decodes them into columns. A file that is no
longer as long as it was indexed is refused when it is first touched, before a page of it is read.
"""

from __future__ import annotations

from shardex.errors import TruncatedShardError
from shardex.format import ShardRows
from shardex.gather import Integers, Ranges, Segments
from shardex.index import Index
from shardex.shards import Files

__all__ = ["RecordRows", "map_files"]


def map_files(files: Files, sizes: list[int]) -> Segments:
    """A table of the files, each mapped when it is first touched, if it still has its size (or more)."""

    def open_file(number: int) -> None:
        data = files.source.map(files.paths[number])
        if len(data) < sizes[number]:
            raise TruncatedShardError(f"{files.name(number)}: expected {sizes[number]} bytes as when it was indexed, got {len(data)}")
        table.put(number, data)

    table = Segments(len(files.paths), open_file, files.name)
    return table


class RecordRows(ShardRows):
    """Rows over indexed files. Subclasses add `features` and `read`."""

    def __init__(self, files: Files, index: Index) -> None:
        self.files = files
        self.index = index
        self.data = map_files(files, [file.size for file in index.files])

    def __len__(self) -> int:
        return len(self.index)

    @property
    def fingerprint(self) -> str:
        """Names the indexed files, their sizes and times."""
        return self.index.fingerprint

    def shard_names(self) -> list[str]:
        """The files, as messages name them."""
        return [self.files.name(number) for number in range(len(self.files.paths))]

    def ranges(self, rows: Integers, begin: str = "offset", length: str = "length") -> Ranges:
        """Where these rows lie, by two columns of the index."""
        return Ranges(self.data, self.index.file(rows), self.index.read(begin, rows), self.index.read(length, rows))

    def where(self, row: int) -> str:
        """The file of a row, for messages."""
        return self.files.name(int(self.index.file_of_block[self.index.starts.searchsorted(row, "right") - 1]))
