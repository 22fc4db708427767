"""The index that data-forager writes for files of lines or tokens: mapped and read in place, 24 bytes a sample.

``index/file_location.txt`` names the data files, one per line; ``index/sample_locations.bin`` holds file number, offset
and length of each sample as little-endian uint64. It stores neither sizes nor times of the files, so each location is
checked against its file when it is read. `jsonl` and `tokens` use it and decode the bytes.
"""

from __future__ import annotations

import os

import numpy as np

from shardex.errors import FormatError, PathError, TruncatedShardError
from shardex.files import Files
from shardex.formats.record_rows import MappedIndex
from shardex.kernel import Integers
from shardex.sources import LocalSource, check_path

NAMES = "index/file_location.txt"
TABLE = "index/sample_locations.bin"
_ENTRIES_AT_ONCE = 1 << 20


def listed_files(files: Files) -> tuple[str, ...] | None:
    """Return the data files that a data-forager index lists, as written in it; None if there is no such index."""
    if not files.folder or NAMES not in files.paths or TABLE not in files.paths:
        return None
    lines = bytes(files.source.load(NAMES)).splitlines()
    return tuple(os.fsdecode(line) for line in lines if line)


def open_index(files: Files, *, trust_paths: bool = False) -> tuple[Files, ForagerIndex]:
    """Return the data files of a folder with a data-forager index, and the index."""
    names = listed_files(files) or ()
    data = _files_anywhere(files, names) if trust_paths else _files_in_folder(files, names)
    return data, ForagerIndex(files, data)


def _files_in_folder(files: Files, names: tuple[str, ...]) -> Files:
    for number, name in enumerate(names):
        try:
            check_path(name)
        except PathError as error:
            place = os.path.join(files.source.url, NAMES)
            raise PathError(
                f"{place}, line {number + 1}: {error}; if you trust this index, open it with trust_paths=True"
            ) from None
    return Files(files.source, names, files.what, files.folder)


def _files_anywhere(files: Files, names: tuple[str, ...]) -> Files:
    if files.source.is_remote:
        raise PathError(f"{files}: expected a local folder for trust_paths=True, got {files.source.url}")
    full = [os.path.normpath(os.path.join(files.source.url, name)) for name in names]
    root = os.path.commonpath([os.path.dirname(path) for path in full]) if full else files.source.url
    relative = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in full)
    return Files(LocalSource(root), relative, files.what, files.folder)


class ForagerIndex(MappedIndex):
    """Locations of the samples in `data`, by the index in the folder `files`; made by `open_index`."""

    def __init__(self, files: Files, data: Files) -> None:
        super().__init__(files, TABLE, "q", data)
        self._stamp = ((files.source.stat(TABLE).tag, bytes(files.source.load(NAMES))),)

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row, checked against the file."""
        which, first, size = self._entry(row)
        if not (0 <= which < len(self.files) and first >= 0 and 0 <= size <= self.files[which].size - first):
            self._checked(*(np.array([value]) for value in (row, which, first, size)))
        return which, first, size

    def same_length(self) -> int | None:
        """Return the length of all samples if it is equal, else None; stops reading at the first that differs."""
        if not len(self):
            return None
        length = self._entry(0)[2]
        for begin in range(0, len(self), _ENTRIES_AT_ONCE):
            end = min(begin + _ENTRIES_AT_ONCE, len(self))
            lengths = self._table.slice(0, begin * self._width, end * self._width).view(self._dtype)[2::3]
            if (lengths != length).any():
                return None
        return length

    def _checked(self, rows: Integers, *entries: Integers) -> tuple[Integers, Integers, Integers]:
        which, first, size = entries
        unknown = (which < 0) | (which >= len(self.files))
        if unknown.any():
            k = int(unknown.argmax())
            raise FormatError(
                f"{self.name}: expected the number of a file below {len(self.files)}, got {which[k]} "
                f"- at sample {rows[k]}; the index is damaged, make it again"
            )
        sizes = self._sizes[which]
        bad = (first < 0) | (size < 0) | (first > sizes) | (size > sizes - first)
        if bad.any():
            k = int(bad.argmax())
            raise TruncatedShardError(
                f"{self._data.name(int(which[k]))}: expected {size[k]} bytes from {first[k]} on for sample {rows[k]}, "
                f"as {self.name} says, got a file of {sizes[k]} bytes; if the file changed, make the index again"
            )
        return which, first, size
