"""Token files of Megatron-LM: ``name.bin`` holds the tokens, ``name.idx`` says where each sequence and document lies.

An ``.idx`` file has a header (magic, version, code of the dtype, number of sequences, number of document borders) and
three arrays: int32 lengths of sequences, int64 pointers to their first bytes, and int64 document borders: the number of
the first sequence of each document, and at the end the number of sequences. All is little-endian and not aligned. The
arrays are mapped and read in place. A sample is a document, whose sequences lie end to end, or with
``unit="sequences"`` a sequence. Writing makes one sequence of each sample.
"""

from __future__ import annotations

import bisect
import errno
import os
import struct
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import (
    ArgumentError,
    FormatError,
    NotFoundError,
    SchemaError,
    TruncatedShardError,
    UnknownFormatError,
)
from shardex.features import Features
from shardex.files import Files, Stage
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import CountedRecords, NumberRows, field_and_window, first_bytes, same_dtype
from shardex.formats.number_writer import NumberWriter, shard_limit
from shardex.formats.registry import Format
from shardex.formats.sample_writer import ShardSeries
from shardex.kernel import Integers, Ranges, digest
from shardex.sources import ByteRange, LocalSource, Source

__all__ = [
    "FORMAT",
]

MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
"""Names of the dtypes; the code of one is its place here, counted from 1."""
_OWNED = r"[^/]+\.(bin|idx)"
_UNITS = ("documents", "sequences")
_LONGEST = (1 << 31) - 1
_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class IndexHead:
    """Header of an ``.idx`` file, and the places of its arrays."""

    dtype: np.dtype[Any]
    sequences: int
    borders: int
    """Numbers in the array of document borders: one more than there are documents."""

    @property
    def pointers_at(self) -> int:
        """First byte of the pointers."""
        return _HEAD.size + 4 * self.sequences

    @property
    def borders_at(self) -> int:
        """First byte of the document borders."""
        return self.pointers_at + 8 * self.sequences

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.borders_at + 8 * self.borders

    @classmethod
    def read(cls, source: Source, path: str) -> IndexHead:
        """Read and check the header and the borders of the first and the last document."""
        name, size = source.full_name(path), source.stat(path).size
        if first_bytes(source, path, len(MAGIC)) != MAGIC:
            raise FormatError(f"{name}: expected an index of Megatron-LM, which begins with {MAGIC!r}, got other bytes")
        if size < _HEAD.size:
            raise TruncatedShardError(f"{name}: expected a header of {_HEAD.size} bytes, got {size} bytes")
        _, version, code, sequences, borders = _HEAD.unpack(source.read(path, [ByteRange(0, _HEAD.size)])[0])
        if version != 1 or not 1 <= code <= len(_DTYPES):
            raise FormatError(
                f"{name}: expected version 1 and a code of a dtype from 1 to {len(_DTYPES)}, "
                f"got version {version} and code {code}"
            )
        head = cls(np.dtype(_DTYPES[code - 1]), sequences, borders)
        head._check_size(name, size)
        ends = source.read(path, [ByteRange(head.borders_at, 8), ByteRange(head.size - 8, 8)])
        first, last = (int.from_bytes(end, "little", signed=True) for end in ends)
        if first != 0 or last != sequences:
            raise FormatError(
                f"{name}: expected documents from sequence 0 to {sequences}, got {first} to {last}; "
                "the index is damaged"
            )
        return head

    def _check_size(self, name: str, size: int) -> None:
        if self.sequences and size == self.size + self.sequences:
            raise FormatError(
                f"{name}: expected an index of tokens, got one of a multimodal dataset, with a mode for each of its "
                f"{self.sequences} sequences; such datasets cannot be read"
            )
        if size < self.size or not self.borders:
            raise TruncatedShardError(
                f"{name}: expected {self.size} bytes for {self.sequences} sequences and {self.borders} document "
                f"borders, got {size}"
            )
        if size > self.size:
            raise FormatError(
                f"{name}: expected {self.size} bytes for {self.sequences} sequences and {self.borders} document "
                f"borders, got {size}; the index is damaged"
            )


def _beside(path: str, extension: str) -> str:
    return os.path.splitext(path)[0] + extension


# -- reading --------------------------------------------------------------------------------------------------


def open(
    files: Files, *, schema: Features | None = None, field: str | None = None, unit: str = "documents"
) -> NumberRows:
    """Open the documents of ``.bin`` and ``.idx`` files, or their sequences."""
    if unit not in _UNITS:
        raise ArgumentError(f"expected unit to be one of {', '.join(_UNITS)}, got {unit!r}")
    data, tables = _pairs(files)
    index = MegatronIndex(data, tables, unit)
    name, size = field_and_window(files, schema, index.dtype, None)
    if size is not None and len(other := np.setdiff1d(index.lengths() // index.dtype.itemsize, size)):
        raise SchemaError(f"{files}: expected documents of {size} numbers, as in {schema}, got one of {other[0]}")
    return NumberRows(data, index, {field or name or "tokens": index.dtype}, None)


def _pairs(files: Files) -> tuple[Files, Files]:
    """Return the files of tokens and their indexes."""
    stems = dict.fromkeys(os.path.splitext(path)[0] for path in files.having(".idx", ".bin").paths)
    if not stems:
        raise UnknownFormatError(f"{files}: expected files that end in .bin and .idx, got {len(files.paths)} others")
    data = Files(files.source, tuple(f"{stem}.bin" for stem in stems), files.what, files.folder)
    tables = Files(files.source, tuple(f"{stem}.idx" for stem in stems), files.what, files.folder)
    there = {*files.paths} if files.folder else set()
    for one, other in ((data, tables), (tables, data)):
        for number, path in enumerate(one.paths):
            if path not in there and not _exists(files.source, path):
                problem = f"expected it next to {other.name(number)}: both belong together"
                raise NotFoundError(errno.ENOENT, problem, one.name(number))
    return data, tables


def _exists(source: Source, path: str) -> bool:
    try:
        source.stat(path)
    except NotFoundError:
        return False
    return True


class MegatronIndex(CountedRecords):
    """Locations of documents or sequences, by the mapped ``.idx`` files; made by `open`."""

    def __init__(self, data: Files, tables: Files, unit: str) -> None:
        self._data, self._tables, self._whole = data, tables, unit == "documents"
        self._stamps = [(path, one.size, one.tag) for path, one in zip(tables.paths, tables.stats(), strict=True)]
        self._heads = tables.source.for_each(partial(IndexHead.read, tables.source), tables.paths)
        self.dtype = same_dtype(tables, [head.dtype for head in self._heads])
        self._table = tables.source.buffer_table(tables.paths)
        self._mapped: dict[int, tuple[NDArray[Any], ...]] = {}
        counts = [head.borders - 1 if self._whole else head.sequences for head in self._heads]
        super().__init__(data, data.stats(), counts)
        self._sizes: Integers = np.array([file.size for file in self.files], np.int64)
        places = [(head.pointers_at, head.borders_at, head.sequences) for head in self._heads]
        self._pointers_at, self._borders_at, self._sequences = np.array(places, np.int64).reshape(-1, 3).T
        self._check_ends()

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the files, their sizes or times, or the unit change."""
        return digest(self._whole, self._stamps, [(file.path, file.size, file.tag) for file in self.files])

    def locate(self, rows: Integers) -> tuple[Integers, Integers, Integers]:
        """Return file, offset and length of each row, checked against the files."""
        which = self._checked_file(rows)
        local = rows - self._starts[which]
        if not self._whole:
            return which, *self._checked(rows, which, *self._sequence(which, local))
        borders = self._numbers(which, self._borders_at[which] + 8 * local, 16, "<i8").reshape(-1, 2)
        first, end = borders[:, 0], borders[:, 1]
        if (bad := (first < 0) | (end < first) | (end > self._sequences[which])).any():
            k = int(bad.argmax())
            self._refuse_borders(int(which[k]), int(rows[k]), int(first[k]), int(end[k]))
        begin, length = (np.zeros(len(rows), np.int64) for _ in range(2))
        some = np.flatnonzero(first < end)
        begin[some], length[some] = self._sequence(which[some], first[some])
        if len(several := some[end[some] - first[some] > 1]):
            length[several] = self._joined(rows, which, first, end, several, begin)
        return which, *self._checked(rows, which, begin, length)

    def _sequence(self, which: Integers, sequence: Integers) -> tuple[Integers, Integers]:
        """Return offset and length of sequences, in bytes."""
        begin = self._numbers(which, self._pointers_at[which] + 8 * sequence, 8, "<i8")
        return begin, self._numbers(which, _HEAD.size + 4 * sequence, 4, "<i4") * self.dtype.itemsize

    def _joined(
        self, rows: Integers, which: Integers, first: Integers, end: Integers, several: Integers, begin: Integers
    ) -> Integers:
        """Return the lengths of documents of several sequences, which must lie end to end."""
        counts = end[several] - first[several]
        sequence = np.repeat(first[several] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        pointer, size = self._sequence(np.repeat(which[several], counts), sequence)
        offset = np.cumsum(size) - size
        starts = np.cumsum(counts) - counts
        expected = np.repeat(begin[several] - offset[starts], counts) + offset
        if (bad := pointer != expected).any():
            k = int(np.searchsorted(starts, int(bad.argmax()), "right")) - 1
            raise FormatError(
                f"{self._tables.name(int(which[several[k]]))}: expected the sequences of a document end to end in the "
                f'file, got others between them - at sample {rows[several[k]]}; open with unit="sequences"'
            )
        found: Integers = np.add.reduceat(size, starts)
        return found

    def _numbers(self, which: Integers, begin: Integers, width: int, dtype: str) -> Integers:
        data, _ = Ranges(self._table, which, begin, np.full(len(which), width)).packed()
        return data.view(dtype).astype(np.int64)

    def _checked(self, rows: Integers, which: Integers, begin: Integers, length: Integers) -> tuple[Integers, Integers]:
        sizes = self._sizes[which]
        if (bad := (begin < 0) | (length < 0) | (begin > sizes) | (length > sizes - begin)).any():
            k = int(bad.argmax())
            self._refuse_place(int(which[k]), f"sample {rows[k]}", int(begin[k]), int(length[k]))
        return begin, length

    def at(self, row: int) -> tuple[int, int, int]:
        """Return file, offset and length of one row, checked against the file."""
        if not 0 <= row < len(self):
            self._refuse(row)
        which = bisect.bisect_right(self._firsts, row) - 1
        sequence = row - self._firsts[which]
        if not self._table.closable:  # else the file is remote, and its pages are fetched for each read
            sizes, pointers, borders = self._arrays(which)
            first, end = (
                (borders.item(sequence), borders.item(sequence + 1)) if self._whole else (sequence, sequence + 1)
            )
            if end - first == 1 and 0 <= first < len(sizes):
                begin, length = pointers.item(first), sizes.item(first) * self.dtype.itemsize
                if begin >= 0 and 0 <= length <= self.files[which].size - begin:
                    return which, begin, length
        _, begins, lengths = self.locate(np.array([row]))
        return which, int(begins[0]), int(lengths[0])

    def _arrays(self, which: int) -> tuple[NDArray[Any], ...]:
        """Return the lengths, the pointers and the document borders of a local file, mapped."""
        if (found := self._mapped.get(which)) is None:
            head, data = self._heads[which], self._table.open(which)
            ends = (_HEAD.size, head.pointers_at, head.borders_at, head.size)
            kinds = zip(pairwise(ends), ("<i4", "<i8", "<i8"), strict=True)
            found = self._mapped[which] = tuple(data[begin:end].view(kind) for (begin, end), kind in kinds)
        return found

    def _aligned(self, which: int, begin: int, end: int, dtype: str) -> NDArray[Any]:
        """Return a copy of one array: numpy is several times as fast with aligned numbers."""
        return self._table.slice(which, begin, end).copy().view(dtype)

    def lengths(self) -> Integers:
        """Return the length of every row, in bytes."""
        found = [np.empty(0, np.int64), *map(self._lengths_of, range(len(self._heads)))]
        return np.concatenate(found) * self.dtype.itemsize

    def _lengths_of(self, which: int) -> Integers:
        head = self._heads[which]
        sizes = self._aligned(which, _HEAD.size, head.pointers_at, "<i4")
        if (bad := sizes < 0).any():
            k = int(bad.argmax())
            raise FormatError(
                f"{self._tables.name(which)}: expected lengths of at least 0, got {sizes[k]} at sequence {k}"
            )
        if not self._whole:
            return sizes.astype(np.int64)
        borders = self._aligned(which, head.borders_at, head.size, "<i8")
        if np.array_equal(borders, np.arange(len(sizes) + 1)):  # one sequence in each document
            return sizes.astype(np.int64)
        if (bad := (borders[:-1] > borders[1:]) | (borders[:-1] < 0) | (borders[1:] > head.sequences)).any():
            k = int(bad.argmax())
            self._refuse_borders(which, self._firsts[which] + k, int(borders[k]), int(borders[k + 1]))
        ends: Integers = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        found: Integers = np.diff(ends[borders])
        return found

    def _check_ends(self) -> None:
        """Raise an error if the last sequence is not inside its file, as in a file that was cut off."""
        files = np.flatnonzero(self._sequences)
        last = self._sequences[files] - 1
        begins, lengths = self._sequence(files, last)
        for number, sequence, begin, length in zip(
            *map(np.ndarray.tolist, (files, last, begins, lengths)), strict=True
        ):
            if begin < 0 or not 0 <= length <= self.files[number].size - begin:
                self._refuse_place(number, f"sequence {sequence}", begin, length)

    def _refuse_borders(self, which: int, row: int, first: int, end: int) -> None:
        raise FormatError(
            f"{self._tables.name(which)}: expected documents of sequences below {self._heads[which].sequences}, "
            f"got one from sequence {first} to {end} - at sample {row}; the index is damaged"
        )

    def _refuse_place(self, which: int, what: str, begin: int, length: int) -> None:
        raise TruncatedShardError(
            f"{self._data.name(which)}: expected {length} bytes from {begin} on for {what}, as "
            f"{self._tables.name(which)} says, got a file of {self._sizes[which]} bytes; the file is cut off, or the "
            "index damaged or of other data"
        )


# -- writing --------------------------------------------------------------------------------------------------


class _IndexedShards(ShardSeries):
    """Files of tokens; each has an index, which is written when the file is complete."""

    def __init__(self, stage: Stage, name: Callable[[int], str], first: int, size: int, dtype: np.dtype[Any]) -> None:
        super().__init__(stage, name, first, size=size)
        self._dtype = dtype
        self.lengths = array("i")
        """Lengths of the sequences of the current file."""

    def finish(self) -> None:
        """Complete the current file, and write its index."""
        super().finish()
        size = 0
        for piece in _index_pieces(self.lengths, self._dtype):
            size = self._stage.append(_beside(self.path, ".idx"), [piece], size)

    def _begin_next(self) -> None:
        super()._begin_next()
        self.lengths = array("i")


def _index_pieces(lengths: array[int], dtype: np.dtype[Any]) -> Iterator[bytes]:
    """Yield the bytes of an index of documents of one sequence."""
    sizes = np.frombuffer(lengths, np.int32)
    yield _HEAD.pack(MAGIC, 1, _DTYPES.index(dtype.name) + 1, len(sizes), len(sizes) + 1)
    yield sizes.astype("<i4", copy=False).tobytes()
    end = 0
    for begin in range(0, len(sizes), _AT_ONCE):
        ends = end + np.cumsum(sizes[begin : begin + _AT_ONCE], dtype="<i8") * dtype.itemsize
        yield np.concatenate([[end], ends[:-1]]).astype("<i8").tobytes()
        end = int(ends[-1])
    for begin in range(0, len(sizes) + 1, _AT_ONCE):
        yield np.arange(begin, min(begin + _AT_ONCE, len(sizes) + 1), dtype="<i8").tobytes()


class MegatronWriter(NumberWriter):
    """Writes ``.bin`` and ``.idx`` files: each sample becomes a document of one sequence.

    `dtype` converts integers: Megatron-LM has no uint32. Without `shard_size` there is one pair of files.
    """

    _shards: _IndexedShards

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        dtype: str | None = None,
        prefix: str = "part",
        shard_size: int | None = None,
    ) -> None:
        size = shard_limit(shard_size)
        super().__init__(path, mode, features, _OWNED, dtype, _DTYPES, prefix=prefix, extension=".bin", size=size)

    def _series(self, name: Callable[[int], str], first: int, rows: int, size: int) -> ShardSeries:
        return _IndexedShards(self._stage, name, first, size, self.dtype)

    def _check_existing(self) -> None:
        for path in self._stage.existing:
            if path.endswith(".idx") and (found := IndexHead.read(LocalSource(self.path), path).dtype) != self.dtype:
                raise SchemaError(f"{self.path}: expected numbers of {found}, as in {path}, got {self.dtype}")

    def _encode(self, sample: Any) -> Any:
        found = super()._encode(sample)
        if len(found) > _LONGEST:
            raise SchemaError(f"expected at most {_LONGEST} numbers in a sequence, got {len(found)}")
        return found

    def _store(self, record: Any) -> None:
        super()._store(record)
        self._shards.lengths.append(len(record))


FORMAT = Format(
    open, MegatronWriter, JoinShards(_OWNED, ".bin"), part_format="tokens", only_arrays=True, only_field="tokens"
)
