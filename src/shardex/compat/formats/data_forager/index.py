"""Index files of data-forager in any folder: written for files that lie elsewhere, and read with the files they name.

`IndexTable` writes the files of an index to a stage. `IndexRecord` is a file that the package does not know: it says
how the data files were when they were indexed, so that a changed file raises an error instead of returning garbage, and
which dtype tokens have. `open_samples` returns the bytes of samples.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.compat.formats.data_forager.samples import NAMES, SCHEMA, TABLE, ForagerIndex, SampleSchema, common_folder
from shardex.errors import ArgumentError, FormatError, NotFoundError, PathError, StaleIndexError, TruncatedShardError
from shardex.files import Files, Index, IndexedFile, Scan, Stage, find, probe, scan_each
from shardex.formats import LineRows, LineScanner, map_files
from shardex.formats.jsonl import JSON_LINES
from shardex.kernel import Integers, Segments
from shardex.sources import ByteRange, LocalSource, Source, Stat, compression

RECORD = "shardex.json"
"""Name of the file with the `IndexRecord`."""
_VERSION = 1
ENTRIES_AT_ONCE = 1 << 18
_NAMES, _TABLE, _SCHEMA = (os.path.basename(path) for path in (NAMES, TABLE, SCHEMA))


class IndexRecord(msgspec.Struct, frozen=True):
    """How the data files were when they were indexed, in the order of their numbers, and the dtype of tokens."""

    files: list[IndexedFile | None]
    """None for a file that was not there."""
    dtype: str | None = None
    version: int = _VERSION

    @classmethod
    def read(cls, source: Source, path: str = RECORD) -> IndexRecord | None:
        """Read the record of an index; None if it has none, or one of a later version."""
        try:
            found = msgspec.json.decode(source.load(path), type=cls)
        except NotFoundError:
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            name = source.full_name(path)
            raise FormatError(f"{name}: expected the state of data files, got something else: {error}") from None
        return found if found.version == _VERSION else None


def state_of(path: str) -> IndexedFile | None:
    """Return the state of a data file for a record; None if there is no such file."""
    source, name = LocalSource(os.path.dirname(path)), os.path.basename(path)
    try:
        stat = source.stat(name)
    except NotFoundError:
        return None
    return IndexedFile(name, stat.size, stat.tag, 0, probe(source, name, stat))


# -- writing --------------------------------------------------------------------------------------------------


class IndexTable:
    """Writes the files of an index into a folder of a stage.

    >>> import tempfile; target = os.path.join(tempfile.mkdtemp(), "index")
    >>> stage = Stage(target, "create"); table = IndexTable(stage)
    >>> table.add_many(table.number("a.jsonl"), np.array([0, 3]), np.array([3, 4])); table.finish(); stage.publish()
    >>> np.fromfile(os.path.join(target, "sample_locations.bin"), "<u8").tolist()
    [0, 0, 3, 0, 3, 4]
    """

    def __init__(self, stage: Stage, folder: str = "") -> None:
        self._stage, self._folder = stage, folder
        os.makedirs(stage.place.path(folder) if folder else stage.place.root, exist_ok=True)
        self.entries, self._size = array("Q"), 0
        """Places that are not written yet (file, offset and length of each sample); bytes of the table that are."""
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """The data files, in the order of their numbers."""
        return list(self._numbers)

    def number(self, name: str) -> int:
        """Return the number of a data file; a new one is listed."""
        found = self._numbers.get(name)
        if found is None:
            if "\n" in name or not name:
                raise PathError(f"expected a path without newlines, which an index cannot hold, got {name!r}")
            found = self._numbers[name] = len(self._numbers)
        return found

    def add(self, number: int, offset: int, length: int) -> None:
        """Add the place of a sample."""
        if len(self.entries) >= 3 * ENTRIES_AT_ONCE:
            self.flush()
        self.entries.extend((number, offset, length))

    def add_many(self, number: int, offsets: NDArray[Any], lengths: NDArray[Any]) -> None:
        """Add the places of many samples of one file."""
        self.flush()
        for begin in range(0, len(offsets), ENTRIES_AT_ONCE):
            part = slice(begin, begin + ENTRIES_AT_ONCE)
            table = np.empty((len(offsets[part]), 3), "<u8")
            table[:, 0], table[:, 1], table[:, 2] = number, offsets[part], lengths[part]
            self._append(table.tobytes())

    def flush(self) -> None:
        """Write the places that are not written yet."""
        self._append(np.frombuffer(self.entries, np.uint64).astype("<u8").tobytes())
        self.entries = array("Q")

    def _append(self, data: bytes) -> None:
        self._size = self._stage.append(self._path(_TABLE), [data], self._size)

    def finish(self, schema: SampleSchema | None = None, record: IndexRecord | None = None) -> None:
        """Write all files."""
        self.flush()
        place = self._stage.place
        if schema is not None:
            place.put(self._path(_SCHEMA), msgspec.json.format(msgspec.json.encode(schema), indent=2))
        if record is not None:
            place.put(self._path(RECORD), msgspec.json.encode(record))
        place.put(self._path(_NAMES), b"".join(os.fsencode(name) + b"\n" for name in self._numbers))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name


@dataclass(frozen=True)
class _FileLines:
    """Finds the lines of a file with their ends: all of them, or of JSON lines those that are not blank."""

    in_python: bool = False
    name = "lines of JSON or text"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the lines of one file."""
        return _scanner(path).scan(source, path)

    def scan_range(self, source: Source, path: str, part: ByteRange) -> Scan:
        """Return offsets and lengths of the lines that begin in a part of a file."""
        return _scanner(path).scan_range(source, path, part)

    def join(self, source: Source, path: str, parts: Iterable[Scan]) -> Scan:
        """Return the lines of a file, given those of its parts."""
        return _scanner(path).join(source, path, parts)


def _scanner(path: str) -> LineScanner:
    return LineScanner(path.lower().endswith(JSON_LINES), with_ends=True)


def find_lines_of(paths: Sequence[str], desc: str, progress: bool | None = None) -> Iterator[tuple[str, Scan]]:
    """Yield each of these local files with offsets and lengths of its lines; several files are scanned at once.

    Lengths include the newline. In JSON lines blank ones are left out; a byte order mark always is.
    """
    root, relative = common_folder([os.path.abspath(path) for path in paths], os.getcwd())
    source, given = LocalSource(root), dict(zip(relative, paths, strict=True))
    if len(given) < len(paths):
        twice = next(path for path in paths if list(paths).count(path) > 1)
        raise ArgumentError(f"expected each file once, got {twice} twice")
    before = dict(zip(relative, source.stats(relative), strict=True))
    sizes = {path: stat.size for path, stat in before.items()}
    for path, found in scan_each(source, sizes, _FileLines(), progress, desc):
        if source.stat(path) != before[path]:
            raise StaleIndexError(f"{source.full_name(path)}: expected a file that stays as it is, got changes")
        yield given[path], found


def decompressed_lines(path: str) -> LineRows | None:
    """Return the lines of a compressed file, without their ends; None if its name is not that of a compressed one."""
    if compression.plain_name(path) is None:
        return None
    files = find(path)
    scanner = LineScanner(files.paths[0].lower().endswith(JSON_LINES))
    return LineRows(files, Index.in_memory(files, scanner), "bytes", None)


# -- reading --------------------------------------------------------------------------------------------------


def load_locations(folder: str) -> tuple[list[str], NDArray[np.uint64]]:
    """Return the names of the data files, and the mapped table of places, of shape (samples, 3)."""
    source = LocalSource(folder)
    names = [os.fsdecode(line) for line in bytes(source.load(_NAMES)).split(b"\n") if line]
    data = np.frombuffer(source.map(_TABLE), np.uint8)
    if data.size % 24:
        raise FormatError(
            f"{source.full_name(_TABLE)}: expected 24 bytes for each sample, got {data.size} bytes, which end in a "
            "partial entry; make the index again"
        )
    return names, data.view("<u8").reshape(-1, 3)


def load_schema(folder: str) -> SampleSchema | None:
    """Return the arrays of a sample; None if the index does not describe them."""
    source = LocalSource(folder)
    if not os.path.exists(source.full_name(_SCHEMA)):
        return None
    return SampleSchema.read(source, _SCHEMA)


def open_samples(
    paths: Sequence[str], table: NDArray[np.uint64], record: IndexRecord | None = None, name: str = "the index"
) -> SampleBytes:
    """Return the samples at these places of local files, as bytes; `name` is that of the index, for messages."""
    return SampleBytes([os.path.abspath(path) for path in paths], np.ascontiguousarray(table, "<u8"), record, name)


class SampleBytes(LineRows):
    """Samples as bytes; a file whose size or time differs from the one in the record raises an error when it is first
    read.
    """

    def __init__(self, paths: Sequence[str], table: NDArray[np.uint64], record: IndexRecord | None, name: str) -> None:
        root, relative = common_folder(paths, os.getcwd())
        files = Files(LocalSource(root), relative, root, False)
        super().__init__(files, ForagerIndex(name, Segments.of(table), files, (len(table),)), "bytes", None)
        if record is not None and len(record.files) == len(paths):
            self._known = record.files
            self.data = map_files(files, self.index.files, self._check)

    def _check(self, number: int) -> None:
        known, source, path = self._known[number], self.files.source, self.files.paths[number]
        if known is None or known.has_stat(stat := source.stat(path)):
            return
        if stat.size < known.size:
            raise TruncatedShardError(
                f"{source.full_name(path)}: expected {known.size} bytes as when it was indexed, got {stat.size}; "
                "restore the file, or make the index again"
            )
        if known.probe and probe(source, path, Stat(known.size, stat.tag, identity=stat.identity)) != known.probe:
            raise StaleIndexError(
                f"{source.full_name(path)}: expected the file that was indexed, got another content; make the index "
                "again"
            )

    def read_bytes(self, rows: Integers) -> list[bytes]:
        """Return the bytes of many samples."""
        return self.ranges(rows).bytes()
