"""The index that data-forager writes for files of lines or tokens: mapped and read in place, 24 bytes a sample.

``index/file_location.txt`` names the data files, one per line; ``index/sample_locations.bin`` holds file number, offset
and length of each sample as little-endian uint64. It stores neither sizes nor times of the files, so each location is
checked against its file when it is read.

``index/sample_schema.json`` is there if a sample holds several arrays, such as tokens and a loss mask: it names them
and says where each begins in a sample (`SampleSchema`); `SampleArrayRows` reads them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import FormatError, PathError, SchemaError, TruncatedShardError
from shardex.features import Array, Features
from shardex.files import Files
from shardex.formats import MappedIndex, RecordRows, number_dtype
from shardex.kernel import Columns, Integers, Ranges, Segments, digest
from shardex.sources import LocalSource, Source, check_path

NAMES = "index/file_location.txt"
TABLE = "index/sample_locations.bin"
SCHEMA = "index/sample_schema.json"
_ENTRIES_AT_ONCE = 1 << 20


def listed_files(files: Files) -> tuple[str, ...] | None:
    """Return the data files that a data-forager index lists, as written in it; None if there is no such index."""
    if not files.folder or NAMES not in files.paths or TABLE not in files.paths:
        return None
    lines = bytes(files.source.load(NAMES)).splitlines()
    return tuple(os.fsdecode(line) for line in lines if line)


def has_schema(files: Files) -> bool:
    """Return True for a folder with a data-forager index whose samples hold several arrays."""
    return files.folder and all(path in files.paths for path in (SCHEMA, NAMES, TABLE))


def open_index(files: Files, *, trust_paths: bool = False) -> tuple[Files, ForagerIndex]:
    """Return the data files of a folder with a data-forager index, and the index."""
    names, source = listed_files(files) or (), files.source
    data = _files_anywhere(files, names) if trust_paths else _files_in_folder(files, names)
    stamp = source.stat(TABLE).tag, bytes(source.load(NAMES))
    return data, ForagerIndex(source.full_name(TABLE), source.buffer_table((TABLE,)), data, stamp)


def _files_in_folder(files: Files, names: tuple[str, ...]) -> Files:
    for number, name in enumerate(names):
        try:
            check_path(name)
        except PathError as error:
            place = files.source.full_name(NAMES)
            raise PathError(
                f"{place}, line {number + 1}: {error}; if you trust this index, open it with trust_paths=True"
            ) from None
    return Files(files.source, names, files.what, files.folder)


def _files_anywhere(files: Files, names: tuple[str, ...]) -> Files:
    if files.source.is_remote:
        raise PathError(f"{files}: expected a local folder for trust_paths=True, got {files.source.url}")
    root, relative = common_folder([resolved(files.source.url, name) for name in names], files.source.url)
    return Files(LocalSource(root), relative, files.what, files.folder)


def common_folder(paths: Sequence[str], otherwise: str) -> tuple[str, tuple[str, ...]]:
    """Return the folder that holds all these files, and their paths in it; without files the other folder."""
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else otherwise
    return root, tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in paths)


def resolved(base: str, name: str) -> str:
    """Return the absolute path of a data file that an index in the folder `base` names.

    Names are relative to the folder. Before 0.1.6 the package wrote them relative to the working folder, so they began
    with the path of the folder or a part of it: ``data/a.jsonl`` in the index of ``/home/me/data``.
    """
    full = os.path.normpath(os.path.join(base, name))
    if os.path.exists(full) or os.path.isabs(name):
        return full
    last, parts = os.path.normpath(base).split(os.sep), os.path.normpath(name).split(os.sep)
    for count in range(len(parts) - 1, 0, -1):
        inside = os.path.join(base, *parts[count:])
        if parts[:count] == last[-count:] and os.path.exists(inside):
            return inside
    from_here = os.path.abspath(name)
    return from_here if os.path.exists(from_here) else full


class ForagerIndex(MappedIndex):
    """Locations of the samples in `data`, by a table of three numbers for each; `stamp` identifies the table."""

    def __init__(self, name: str, table: Segments, data: Files, stamp: tuple[Any, ...]) -> None:
        super().__init__(name, table, "q", data)
        self._stamp = (stamp,)

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
        return length if self.first_other(length) is None else None

    def first_other(self, length: int) -> tuple[int, int] | None:
        """Return the first sample that has not this length in bytes, and its length; None if all have it."""
        for begin in range(0, len(self), _ENTRIES_AT_ONCE):
            end = min(begin + _ENTRIES_AT_ONCE, len(self))
            lengths = self._table.slice(0, begin * self._width, end * self._width).view(self._dtype)[2::3]
            if (other := lengths != length).any():
                k = int(other.argmax())
                return begin + k, int(lengths[k])
        return None

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


# -- samples of several arrays ----------------------------------------------------------------------------------------


class ArraySpec(msgspec.Struct, frozen=True):
    """One array of a sample, as ``sample_schema.json`` describes it."""

    name: str
    dtype: str
    offset: int
    """Bytes from the beginning of the sample."""


class SampleSchema(msgspec.Struct, frozen=True):
    """Content of ``sample_schema.json``: arrays of one length in each sample."""

    sample_size: int
    """Numbers in each array."""
    arrays: list[ArraySpec]
    total_bytes_per_sample: int | None = None

    @classmethod
    def read(cls, source: Source, path: str = SCHEMA) -> SampleSchema:
        """Read and check the file."""
        name = source.full_name(path)
        try:
            found = msgspec.json.decode(source.load(path), type=SampleSchema)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(f"{name}: expected the arrays of a sample, got something else: {error}") from None
        if problem := found._problem():
            raise FormatError(f"{name}: {problem}")
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of a sample."""
        total = sum(self.sample_size * np.dtype(one.dtype).itemsize for one in self.arrays)
        return total if self.total_bytes_per_sample is None else self.total_bytes_per_sample

    @property
    def features(self) -> Features:
        """Name and feature of each array."""
        return Features({one.name: Array(np.dtype(one.dtype).name, (self.sample_size,)) for one in self.arrays})

    def _problem(self) -> str | None:
        names = [one.name for one in self.arrays]
        if self.sample_size < 1 or not names:
            return f"expected arrays of at least one number, got {len(names)} arrays of {self.sample_size}"
        if len(set(names)) < len(names):
            return f"expected arrays of different names, got {', '.join(names)}"
        try:
            widths = [self.sample_size * number_dtype(one.dtype).itemsize for one in self.arrays]
        except SchemaError as error:
            return str(error)
        end, last = 0, ""
        for one, width in sorted(zip(self.arrays, widths, strict=True), key=lambda pair: pair[0].offset):
            if one.offset < end:
                where = f"after {last}, which ends at {end}" if last else "inside the sample"
                return f"expected the array {one.name} {where}, got it at {one.offset}"
            end, last = one.offset + width, one.name
        if end > self.nbytes:
            return f"expected arrays inside a sample of {self.nbytes} bytes, got {last}, which ends at {end}"
        return None


@dataclass(frozen=True)
class _Part:
    """Place of an array in a sample, in bytes."""

    begin: int
    width: int
    dtype: np.dtype[Any]


def open_arrays(files: Files, *, schema: Features | None = None, trust_paths: bool = False) -> SampleArrayRows:
    """Open a folder with ``sample_schema.json``; `schema` may name some of its arrays."""
    described = SampleSchema.read(files.source)
    data, index = open_index(files, trust_paths=trust_paths)
    if (other := index.first_other(described.nbytes)) is not None:
        raise FormatError(
            f"{index.name}: expected samples of {described.nbytes} bytes, as {SCHEMA} says, "
            f"got {other[1]} - at sample {other[0]}; one of both is damaged or of other data"
        )
    rows = SampleArrayRows(data, index, described)
    if schema is not None and any(rows.features.get(name) != feature for name, feature in schema.items()):
        raise SchemaError(f"{files}: expected {rows.features}, as {SCHEMA} says, got {schema}")
    return rows


class SampleArrayRows(RecordRows):
    """Samples of several arrays of one length, one after another in each sample; made by `open_arrays`."""

    in_python = False

    def __init__(self, files: Files, index: ForagerIndex, described: SampleSchema) -> None:
        super().__init__(files, index)
        self.features = described.features
        kinds = [(one, np.dtype(one.dtype)) for one in described.arrays]
        size = self._size = described.sample_size
        self._parts = {one.name: _Part(one.offset, size * dtype.itemsize, dtype) for one, dtype in kinds}
        self._described = described

    @cached_property
    def fingerprint(self) -> str:
        """A short text that changes when the index, its schema or the data files change."""
        return digest(self.index.fingerprint, msgspec.to_builtins(self._described))

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these arrays, each by one gather of its bytes."""
        whole, size = self.ranges(rows), (len(rows), self._size)
        names = check_fields(list(self._parts), fields)
        return Columns({name: self._values(whole, self._parts[name]).reshape(size) for name in names}, len(rows))

    def _values(self, whole: Ranges, part: _Part) -> NDArray[Any]:
        return self._part_of(whole, part.begin, part.width).packed()[0].view(part.dtype)

    def _part_of(self, whole: Ranges, begin: int, width: int) -> Ranges:
        return Ranges(whole.segments, whole.which, whole.begin + begin, np.full(len(whole), width))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arrays of one sample, read-only views of the file where they are aligned."""
        data, found = self.record(row), {}
        for name in check_fields(list(self._parts), fields):
            part = self._parts[name]
            array = data[part.begin : part.begin + part.width].view(part.dtype)
            found[name] = array if array.flags.aligned else _read_only_copy(array)
        return found

    def lengths(self, name: str) -> Integers:
        """Return the length of an array in each sample: all have the same."""
        check_fields(list(self._parts), [name])
        return np.full(len(self), self._size, np.int64)

    def needed_ranges(self, rows: Integers, fields: Sequence[str] | None) -> Ranges:
        """Return the bytes from the first to the last of these arrays, for each sample."""
        parts = [self._parts[name] for name in check_fields(list(self._parts), fields)]
        begin = min((part.begin for part in parts), default=0)
        end = max((part.begin + part.width for part in parts), default=0)
        return self._part_of(self.ranges(rows), begin, end - begin)


def _read_only_copy(array: NDArray[Any]) -> NDArray[Any]:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
