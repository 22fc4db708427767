"""The index that data-forager keeps beside lines or tokens: read in place, mapped and not copied, 24 bytes a sample.

``index/file_location.txt`` names the data files, one per line; ``index/sample_locations.bin`` holds the number of a
file, an offset and a length for each sample, as little-endian uint64. It knows neither sizes nor times of the files,
so every place is checked against its file when it is read. Used by `jsonl` and `tokens`, which decode the bytes.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property

import numpy as np

from shardex.errors import FormatError, PathError, RowError, TruncatedShardError
from shardex.files import Files, IndexedFile
from shardex.kernel import Integers, take
from shardex.sources import LocalSource, check_path

__all__ = ["ForagerIndex", "listed", "open_index"]

NAMES = "index/file_location.txt"
TABLE = "index/sample_locations.bin"
_WIDTH = 24
_AT_ONCE = 1 << 20


def listed(files: Files) -> tuple[str, ...] | None:
    """The data files that a data-forager index names, as it spells them; none if there is no such index."""
    if not files.folder or NAMES not in files.paths or TABLE not in files.paths:
        return None
    lines = bytes(files.source.load(NAMES)).splitlines()
    return tuple(os.fsdecode(line) for line in lines if line)


def open_index(files: Files, *, trust_paths: bool = False) -> tuple[Files, ForagerIndex]:
    """The data files of a folder with such an index, and the index."""
    names = listed(files) or ()
    data = _anywhere(files, names) if trust_paths else _below(files, names)
    return data, ForagerIndex(files, data)


def _below(files: Files, names: tuple[str, ...]) -> Files:
    for number, name in enumerate(names):
        try:
            check_path(name)
        except PathError as error:
            place = os.path.join(files.source.url, NAMES)
            raise PathError(
                f"{place}, line {number + 1}: {error}; if you trust this index, open it with trust_paths=True"
            ) from None
    return Files(files.source, names, files.what, files.folder)


def _anywhere(files: Files, names: tuple[str, ...]) -> Files:
    if files.source.is_remote:
        raise PathError(f"{files}: expected a local folder for trust_paths=True, got {files.source.url}")
    full = [os.path.normpath(os.path.join(files.source.url, name)) for name in names]
    root = os.path.commonpath([os.path.dirname(path) for path in full]) if full else files.source.url
    relative = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in full)
    return Files(LocalSource(root), relative, files.what, files.folder)


class ForagerIndex:
    """Where the samples of `data` lie, by the table in the folder `files`; made by `open_index`."""

    def __init__(self, files: Files, data: Files) -> None:
        self.name = os.path.join(files.source.url, TABLE)
        self._table = files.source.buffer_table((TABLE,))
        size = self._table.open(0).size
        if size % _WIDTH:
            raise FormatError(
                f"{self.name}: expected {_WIDTH} bytes for each sample, got {size} bytes, "
                f"which end in the middle of one; make the index again"
            )
        self._stamp = (files.source.stat(TABLE).tag, bytes(files.source.load(NAMES)))
        self._data = data
        self._starts: Integers = np.array([0, size // _WIDTH], np.int64)
        stats = zip(data.paths, data.stats(), strict=True)
        self.files = tuple(IndexedFile(path, stat.size, stat.tag, 0) for path, stat in stats)
        self._sizes: Integers = np.array([file.size for file in self.files], np.int64)

    def __len__(self) -> int:
        return int(self._starts[1])

    @cached_property
    def fingerprint(self) -> str:
        """Names the table, the files, their sizes and times."""
        plain = repr((self._stamp, [(file.path, file.size, file.tag) for file in self.files]))
        return hashlib.sha256(plain.encode(errors="surrogateescape")).hexdigest()[:16]

    def file(self, rows: Integers) -> Integers:
        """The number of the file that each row lies in."""
        return self.locate(rows)[0]

    def locate(
        self, rows: Integers, begin: str = "offset", length: str = "length"
    ) -> tuple[Integers, Integers, Integers]:
        """File, begin and length of each row, checked against the files."""
        out = np.empty((len(rows), 3), "<i8")
        take(self._table, self._starts, rows, _WIDTH, out)
        which, first, size = (np.ascontiguousarray(column, np.int64) for column in out.T)
        self._check(rows, which, first, size)
        return which, first, size

    def at(self, row: int, begin: str = "offset", length: str = "length") -> tuple[int, int, int]:
        """The same for one row."""
        if not 0 <= row < len(self):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        which, first, size = self._table.slice(0, row * _WIDTH, (row + 1) * _WIDTH).view("<i8").tolist()
        if not (0 <= which < len(self.files) and first >= 0 and 0 <= size <= self.files[which].size - first):
            self._check(np.array([row]), np.array([which]), np.array([first]), np.array([size]))
        return which, first, size

    def same_length(self) -> int | None:
        """The length that all samples have, if they have one; looks at the table until it finds another."""
        if not len(self):
            return None
        length = int(self._table.slice(0, 0, _WIDTH).view("<i8")[2])
        for begin in range(0, len(self), _AT_ONCE):
            some = self._table.slice(0, begin * _WIDTH, min(begin + _AT_ONCE, len(self)) * _WIDTH).view("<i8")[2::3]
            if (some != length).any():
                return None
        return length

    def _check(self, rows: Integers, which: Integers, first: Integers, size: Integers) -> None:
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
