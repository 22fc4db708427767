"""Data files of native datasets in tests: their tables, and files that are changed together with their checksums."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import xxhash

from shardex.columns.ipc import footer_blocks, footer_size
from shardex.kernel import gather
from shardex.native.data_file_reader import DataFileReader
from shardex.native.data_file_table import END_OF_STREAM, FileTable, decode_table
from shardex.native.fragments import DataFile
from shardex.sources import LocalSource


def table_of(folder: Path, file: DataFile) -> FileTable:
    """Return the table of a file of a local dataset, as copies: the file may be damaged later."""
    found = DataFileReader(LocalSource(folder), file, []).table
    names = ("rows", "end", "buffers", "nulls", "sums")
    return dataclasses.replace(found, **{name: getattr(found, name).copy() for name in names})


def with_new_sums(data: bytes, path: str, fields: dict[str, str]) -> tuple[bytes, DataFile]:
    """Return a file of version 2 whose checksums match its bytes, and its entry for a manifest."""
    footer = data[len(data) - footer_size(data[-10:], len(data), "") :]
    end = max(block.end for block in footer_blocks(footer, len(data), "")[1])
    table = decode_table(data[end:], end, "")
    sums = gather.checksums(data, *table.extents(np.arange(len(table.sums))))
    size = int.from_bytes(data[end + 16 : end + 24], "little")
    at = end + len(END_OF_STREAM) + size - 4 * (len(sums) + len(sums) % 2)
    data = data[:at] + sums.tobytes() + data[at + 4 * len(sums) :]
    return data, entry_of(data, end, table, path, fields)


def entry_of(data: bytes, end: int, table: FileTable, path: str, fields: dict[str, str]) -> DataFile:
    """Return the entry of a file for a manifest."""
    return DataFile(
        path,
        len(data),
        fields,
        foot=xxhash.xxh3_64_hexdigest(data[end:]),
        end=end,
        count=len(table),
        rows=table.total_rows,
    )
