"""`Index`: the position of every sample of a record format, as columns of integers in a memory-mapped Arrow file.

`Index.of` scans the files that have no entry yet (`scan`) and saves the result (`sidecar`), of many files also now and
then before the end, so that a killed run can be continued. Only changed files are
scanned again; a file that was removed or became shorter is an error. Opening takes the same time for ten samples
and for a billion: a block of rows is checked against its checksum when it is first read. The format's
`Scanner` finds the samples of a file.
"""

from __future__ import annotations

import bisect
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.columns import number_array
from shardex.errors import ChecksumError, NotFoundError, RowError, StaleIndexError, TruncatedShardError
from shardex.files.find import Files
from shardex.files.packed_columns import Packing, pack_columns, packings_of, stored, to_header
from shardex.files.scan import Scan, Scanner, scan_each
from shardex.files.sidecar import (
    Sidecar,
    decode_sidecar,
    link_sidecar,
    load_related_sidecars,
    load_sidecars,
    remove_sidecar,
    save_sidecar,
)
from shardex.kernel import Integers, Segments, take
from shardex.sources import ByteRange, Source, Stat
from shardex.workers import ExecutorLike

VERSION = 2
"""Version of indexes; one of another version is made again."""
_BLOCK_ROWS = 1 << 18
SAVE_BYTES = 16 << 30
"""Size of files after whose scan the result is saved, while other files are scanned."""
_PROBE, _PROBES = 8 << 10, 8


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """State of a data file when it was scanned."""

    path: str
    size: int
    tag: str
    rows: int
    probe: str = field(default="", repr=False)
    """Checksum of some parts of a local file; empty for other files."""
    identity: str = field(default="", repr=False, compare=False)
    """The identity in the `Stat` of the file."""

    def has_stat(self, stat: Stat) -> bool:
        """Return whether size and tag are those of the file that was scanned."""
        return (stat.size, stat.tag) == (self.size, self.tag)

    def is_unchanged(self, stat: Stat | None, source: Source) -> bool:
        """Return whether this is still the file that was scanned, by its size and tag.

        A local file that was replaced or copied with its modification time has the same tag, but another identity: then
        parts of its content are compared.
        """
        if stat is None or not self.has_stat(stat):
            return False
        replaced = self.probe and stat.identity and stat.identity != self.identity
        return not replaced or probe(source, self.path, stat) == self.probe


def probe(source: Source, path: str, stat: Stat) -> str:
    """Return a checksum of the beginning, the end and some parts between them; empty for a file without identity.

    >>> from shardex.sources.memory import MemorySource
    >>> probe(MemorySource({"a": b"text"}), "a", Stat(4, "tag"))
    ''
    """
    if not stat.identity:
        return ""
    size = stat.size
    begins = [size * k // _PROBES for k in range(_PROBES)] + [max(0, size - _PROBE)]
    parts = source.read(path, [ByteRange(begin, min(_PROBE, size - begin)) for begin in begins])
    return xxhash.xxh3_64_hexdigest(b"".join(parts))


class Index:
    """Positions of the samples of files. `starts[k]` is the first row of block k, `file_of_block[k]` its file."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.name = name
        self.nbytes = len(data)
        self._reader, head = decode_sidecar(data, name, VERSION, lambda head: _schema(packings_of(head)))
        self.scanner: str = head["scanner"]
        self.root: str | None = head.get("root")
        self.files = tuple(IndexedFile(**file) for file in head["files"])
        self._blocks: list[dict[str, int]] = head["blocks"]
        self.file_of_block: Integers = np.array([block["file"] for block in self._blocks], np.int64)
        self.starts: Integers = np.cumsum([0, *(block["rows"] for block in self._blocks)], dtype=np.int64)
        self.spans: dict[str, tuple[int, int]] = {name: (low, high) for name, (low, high) in head["spans"].items()}
        """Smallest and largest value of each column."""
        self._packings = packings_of(head)
        self._types = stored(self._packings)
        self._columns = {name: Segments(len(self._blocks), self._open_block, self._block_name) for name in self._types}
        self._scans: dict[int, Scan] = {}
        """Stored columns of the open blocks."""
        self._open: dict[int, dict[str, Callable[[int], int]]] = {}
        """For each open block and column, a function that returns the value of a row of the block."""
        self._firsts: list[int] = self.starts.tolist()

    @classmethod
    def of(
        cls,
        files: Files,
        scanner: Scanner,
        *,
        rebuild: bool = False,
        progress: bool | None = None,
        together: bool = False,
        workers: int | None = None,
        executor: ExecutorLike = None,
    ) -> Index:
        """Return the saved index of these files if it is up to date; otherwise scan the changed files and save it.

        With `together` all files are scanned again if one has changed: for a table and the files that it points to.
        """
        saved = [] if rebuild else _load(files, scanner)
        for index in saved:
            if index.fits(files):
                return index
        if not saved and not rebuild and (related := _of_other_path(files, scanner)) is not None:
            return related
        old = saved[0] if saved and not together else None
        stats = dict(zip(files.paths, files.stats(), strict=True))
        scans: dict[str, Scan] = {}
        if old is not None:
            old.refuse_losses(files, stats)
            scans = old.unchanged_scans(files, stats)
        unfinished = _UnfinishedIndex(files, scanner, stats)
        if not rebuild and not together:
            scans = unfinished.load() | scans
            if len(scans) < len(stats):
                scans = _related_scans(files, scanner, stats) | scans
        todo = {path: stats[path].size for path in files.paths if path not in scans}
        for path, scan in scan_each(files.source, todo, scanner, progress, workers=workers, executor=executor):
            scans[path] = scan
            if len(scans) < len(stats):
                unfinished.add(path, scan)
        data = encode(scanner.name, files, [stats[path] for path in files.paths], [scans[path] for path in files.paths])
        index = cls(*save_sidecar(files, scanner.name, data))
        unfinished.remove()
        return index

    @classmethod
    def saved(cls, files: Files, scanner: Scanner) -> Index | None:
        """Return the saved index, even if it is out of date; None if there is none."""
        return next(iter(_load(files, scanner)), None)

    @classmethod
    def in_memory(cls, files: Files, scanner: Scanner) -> Index:
        """Scan the files now and return an index that is not saved."""
        scans = [scanner.scan(files.source, path) for path in files.paths]
        data = encode(scanner.name, files, files.stats(), scans)
        return cls(data.encode(), f"the index of {files} in memory")

    def __len__(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of scanner, paths, sizes and tags of the indexed files."""
        files = [{"path": one.path, "size": one.size, "tag": one.tag, "rows": one.rows} for one in self.files]
        encoded = msgspec.json.encode([self.scanner, files])
        return hashlib.sha256(encoded).hexdigest()[:16]

    def fits(self, files: Files) -> bool:
        """Return whether these are the indexed files, unchanged."""
        if tuple(file.path for file in self.files) != files.paths:
            return False
        stats = zip(self.files, files.stats(), strict=True)
        return all(file.is_unchanged(stat, files.source) for file, stat in stats)

    def refuse_losses(self, files: Files, stats: dict[str, Stat]) -> None:
        """Raise if an indexed file was removed or is shorter than before."""
        for file in self.files:
            full, remedy = files.source.full_name(file.path), "if that is intended, open with rebuild=True"
            if file.path not in stats:
                with suppress(NotFoundError):
                    files.source.stat(file.path)
                    continue  # another process has added and indexed it since these files were listed
                raise StaleIndexError(
                    f"{full}: expected this file with {file.rows} samples, it is gone ({self.name} lists it); {remedy}"
                )
            if (size := stats[file.path].size) < file.size:
                raise TruncatedShardError(
                    f"{full}: expected at least {file.size} bytes as when it was indexed, got {size}; {remedy}"
                )

    def unchanged_scans(self, files: Files, stats: dict[str, Stat]) -> dict[str, Scan]:
        """Return the scan of each of these files that has not changed since it was indexed."""
        same = [file.path for file in self.files if file.is_unchanged(stats.get(file.path), files.source)]
        return {path: self.scan_of(path) for path in same}

    def file(self, rows: Integers) -> Integers:
        """Return the number of the file of each row."""
        return self.file_of_block[np.searchsorted(self.starts, rows, "right") - 1]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._packings)

    def read(self, column: str, rows: Integers) -> Integers:
        """Return the values of a column at these rows."""
        # An index without rows has no columns.
        packing = self._packings[column] if len(self) else Packing(0, 0, np.dtype(np.int64))
        if packing.dtype is None:
            self._refuse_outside(rows)
            return np.full(len(rows), packing.base, np.int64)
        out = np.empty(len(rows), packing.dtype)
        take(self._columns[column] if len(self) else Segments(0), self.starts, rows, out.itemsize, out)
        return packing.unpack(out)

    def _refuse_outside(self, rows: Integers) -> None:
        if len(outside := rows[(rows < 0) | (rows >= len(self))]):
            raise RowError(f"expected rows from 0 to {len(self) - 1}, got {outside[0]}")

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row, by the columns of these names."""
        first, size = self.read("offset", rows), self.read("length", rows)  # raises for rows outside
        return self.file(rows), first, size

    def lengths(self) -> Integers:
        """Return the length of every row, by the column of this name."""
        blocks = [self._scans.get(number) or self._block(number) for number in range(len(self._blocks))]
        lengths = [np.empty(0, np.int64), *(self._values_of(block, "length") for block in blocks)]
        return np.concatenate(lengths, dtype=np.int64)

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row, as integers."""
        number, block, local = self._find(row)
        return self._blocks[number]["file"], block["offset"](local), block["length"](local)

    def values(self, row: int, columns: Sequence[str] | None = None) -> tuple[int, dict[str, int]]:
        """Return the file of one row, and its values in these columns, by default in all."""
        number, block, local = self._find(row)
        if columns is not None:
            return self._blocks[number]["file"], {name: block[name](local) for name in columns}
        return self._blocks[number]["file"], {name: get(local) for name, get in block.items()}

    def _find(self, row: int) -> tuple[int, dict[str, Callable[[int], int]], int]:
        number = bisect.bisect_right(self._firsts, row) - 1
        if not 0 <= number < len(self._blocks):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        if (block := self._open.get(number)) is None:
            self._open_block(number)
            block = self._open[number]
        return number, block, row - self._firsts[number]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {file.path: number for number, file in enumerate(self.files)}

    def scan_of(self, path: str) -> Scan:
        """Return all columns of one file, as its scan returned them."""
        first, last = self.file_of_block.searchsorted([self._numbers[path], self._numbers[path] + 1]).tolist()
        blocks = [self._block(number) for number in range(first, last)]
        return {
            name: np.concatenate([np.empty(0, np.uint8), *(self._values_of(block, name) for block in blocks)])
            for name in self._packings
        }

    def _values_of(self, block: Scan, name: str) -> NDArray[Any]:
        """Return the values of a column in a block."""
        packing = self._packings[name]
        if packing.dtype is None:
            return np.full(_rows(block), packing.base, np.min_scalar_type(packing.base))
        return block[name] if packing.is_plain else packing.unpack(block[name])

    def _block_name(self, number: int) -> str:
        return f"{self.name}, block {number}"

    def _block(self, number: int) -> Scan:
        block: Scan = {}
        with suppress(pa.ArrowException, OSError, ValueError):
            batch = self._reader.get_batch(number)
            batch.validate()  # a damaged batch header may declare more bytes than exist
            # From the buffers: `to_numpy` would import pandas where it is installed, which takes a third of a second.
            block = {
                name: np.frombuffer(batch.column(name).buffers()[1] or b"", dtype, batch.num_rows)
                for name, dtype in self._types.items()
            }
        expected = self._blocks[number]
        if _rows(block) != expected["rows"] or _digest(block) != expected["xxh3"]:
            raise ChecksumError(
                f"{self._block_name(number)}: expected the rows that were written, got other bytes; "
                "open with rebuild=True (or delete the file) to make the index again"
            )
        return block

    def _open_block(self, number: int) -> None:
        block = self._block(number)
        for name, column in block.items():
            self._columns[name].put(number, column)
        self._scans[number] = block
        self._open[number] = {name: one.getter(block.get(name)) for name, one in self._packings.items()}


class _UnfinishedIndex:
    """Indexes of some of the files, saved while others are scanned: a run after a killed one need not scan these again.

    They are numbered sidecars, next to an older index of all files, which stays as it is until it is replaced.
    """

    def __init__(self, files: Files, scanner: Scanner, stats: dict[str, Stat]) -> None:
        self._files, self._scanner, self._stats = files, scanner, stats
        self._saved = 0
        self._new: dict[str, Scan] = {}
        self._size = 0

    def load(self) -> dict[str, Scan]:
        """Return the scans of files that a run before has saved, if they have not changed since."""
        scans: dict[str, Scan] = {}
        while found := load_sidecars(self._files, self._kind(self._saved), Index, "scanning the files in it again"):
            for index in found:
                with suppress(ChecksumError):  # then its files are scanned again
                    scans |= index.unchanged_scans(self._files, self._stats)
            self._saved += 1
        return scans

    def add(self, path: str, scan: Scan) -> None:
        """Add the scan of a file; save those that were added, if they have a certain size."""
        self._new[path] = scan
        self._size += self._stats[path].size
        if self._size >= SAVE_BYTES:
            some = replace(self._files, listed=tuple(self._new))
            stats = [self._stats[path] for path in self._new]
            data = encode(self._scanner.name, some, stats, list(self._new.values()))
            save_sidecar(self._files, self._kind(self._saved), data)
            self._saved, self._new, self._size = self._saved + 1, {}, 0

    def remove(self) -> None:
        """Remove what was saved, also by another run."""
        number = 0
        while remove_sidecar(self._files, self._kind(number)) or number < self._saved:
            number += 1

    def _kind(self, number: int) -> str:
        return f"unfinished-{number} {self._scanner.name}"


def _rows(scan: Scan) -> int:
    return len(next(iter(scan.values()), ()))


# -- bytes of the saved file -----------------------------------------------------------------------------------


def encode(scanner: str, data: Files, stats: Sequence[Stat], scans: Sequence[Scan]) -> Sidecar:
    """Return an index: a sidecar whose header lists the files, and the blocks with their checksums."""
    files = [
        IndexedFile(path, stat.size, stat.tag, _rows(scan), probe(data.source, path, stat), stat.identity)
        for path, stat, scan in zip(data.paths, stats, scans, strict=True)
    ]
    spans, packings = pack_columns(scans)
    blocks = [
        (
            number,
            {name: packings[name].pack(_piece(scan, name, begin, files[number].rows)) for name in stored(packings)},
        )
        for number, scan in enumerate(scans)
        for begin in range(0, files[number].rows, _BLOCK_ROWS)
    ]
    heads = [{"file": number, "rows": _rows(block), "xxh3": _digest(block)} for number, block in blocks]
    entries = [asdict(file) for file in files]
    head = {
        "version": VERSION,
        "scanner": scanner,
        "root": _root(data),
        "files": entries,
        "blocks": heads,
        "spans": spans,
        "packings": to_header(packings),
    }
    return Sidecar(
        head, _schema(packings), [[number_array(column) for column in block.values()] for _, block in blocks]
    )


def _schema(packings: Mapping[str, Packing]) -> pa.Schema:
    return pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in stored(packings).items()])


def _piece(scan: Scan, name: str, begin: int, rows: int) -> NDArray[Any]:
    end = min(begin + _BLOCK_ROWS, rows)
    return scan[name][begin:end] if name in scan else np.zeros(end - begin, np.uint8)


def _digest(block: Scan) -> int:
    digest = xxhash.xxh3_64()
    for column in block.values():
        digest.update(np.ascontiguousarray(column).data)
    return digest.intdigest()


# -- loading ------------------------------------------------------------------------------------------------


def _of_other_path(files: Files, scanner: Scanner) -> Index | None:
    """Return an index that was made for another path to exactly these files, from now on for this path too."""
    for index in _related(files, scanner):
        if index.fits(files):
            index.name = link_sidecar(files, scanner.name, index.name)
            return index
    return None


def _related_scans(files: Files, scanner: Scanner, stats: dict[str, Stat]) -> dict[str, Scan]:
    """Return the scans of unchanged files in indexes that were made for other paths to them."""
    scans: dict[str, Scan] = {}
    for index in _related(files, scanner):
        with suppress(ChecksumError):
            scans = index.unchanged_scans(files, stats) | scans
        if len(scans) == len(stats):
            break
    return scans


def _related(files: Files, scanner: Scanner) -> Iterator[Index]:
    for index in load_related_sidecars(files, scanner.name, Index):
        if index.scanner == scanner.name and index.root == _root(files):
            yield index


def _root(files: Files) -> str:
    """Return what paths of files are relative to: the URL, or for local files the path from the folder of the index."""
    source = files.source
    return source.url if source.data_folder is None else os.path.relpath(source.url, source.data_folder)


def _load(files: Files, scanner: Scanner) -> list[Index]:
    """Return the saved indexes; damaged ones are left out with a warning."""
    found = load_sidecars(files, scanner.name, Index, "making the index again")
    return [index for index in found if index.scanner == scanner.name]
