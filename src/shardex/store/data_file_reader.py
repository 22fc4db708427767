"""Reads the data files of a native dataset; Arrow gets no byte before its checksum was compared.

A `DataFileReader` is strict at first: a wrong size, a wrong foot (end of the file) or a damaged batch raises an error.
`examine` reads the whole file and lists all damage; from then on the reader is tolerant and reads every intact batch,
even if the file is cut off or its foot is damaged. That works because a batch is self-contained except for the schema,
which is stored twice: before the first batch and in the foot. `examine_files` examines the files of whole versions, for
`verify` and `recover`. `matches_its_name` checks a file that no manifest describes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.arrow import FOOTER_TAIL, footer_blocks, footer_size, open_ipc_file, schema_text, valid_batch
from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    ShardexError,
    TruncatedShardError,
    VersionExpired,
)
from shardex.jobs import run_parts
from shardex.kernel import Integers
from shardex.progress import Bar
from shardex.sources import ByteRange, Source
from shardex.store.inventory import Use, number_column
from shardex.store.manifest import DataFile, content_path, without_numbers
from shardex.workers import ExecutorLike

_ARROW_ERRORS = (pa.ArrowException, OSError, ShardexError)
_MAGIC_SIZE = 8
_PIECE = 8 << 20

Step = Callable[[int], object]
"""Called with the number of bytes that were read, for a progress bar."""


@dataclass(frozen=True)
class Damage:
    """Damage of a data file: of one batch, or (`batch` is None) of a part that all batches depend on."""

    what: str
    batch: int | None = None


class DataFileReader:
    """Record batches of one data file; `columns` are the columns that must be in it, under their names in the file.

    >>> import tempfile; from shardex import write; from shardex.store.manifest import read_manifest
    >>> from shardex.sources.local import LocalSource
    >>> place = LocalSource(write(tempfile.mkdtemp() + "/d", [{"x": 1}, {"x": 2}]).rows.opened.what)
    >>> file = read_manifest(place, 1).fragments[0].groups[0]
    >>> reader = DataFileReader(place, file, [pa.field("x", pa.int64())])
    >>> reader.batch(0).to_pydict(), reader.examine(), reader.readable
    ({'x': [1, 2]}, [], [0])
    """

    __slots__ = ("_columns", "_data", "_intact", "_opened", "_schema", "_source", "damages", "file")

    def __init__(self, source: Source, file: DataFile, columns: Sequence[pa.Field]) -> None:
        self._source = source
        self.file = file
        self._columns = columns
        self._data: memoryview | None = None
        self._opened: tuple[memoryview, pa.ipc.RecordBatchFileReader] | None = None
        self._schema: pa.Schema | None = None
        self._intact: list[int] = []
        self.damages: list[Damage] | None = None
        """All damage of the file, or None before `examine`."""

    # -- description -------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """Path or URL of the file, for error messages."""
        return f"{self._source.url}/{self.file.path}"

    @property
    def readable(self) -> Sequence[int]:
        """Numbers of the batches that can be read: all of them until `examine` has found damaged ones."""
        return range(len(self.file.batches)) if self.damages is None else self._intact

    def extent(self, number: int) -> tuple[int, int]:
        """Begin and end of a batch in the file."""
        return self.file.batches[number].begin, self.file.batches[number].end

    def foot(self) -> tuple[int, int]:
        """Begin and end of the foot: the bytes after the last batch."""
        return self.file.batches[-1].end, self.file.size

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> memoryview:
        """The mapped file; its size is checked, unless the reader is tolerant."""
        if (data := self._data) is None:
            data = self._map()
            if self.damages is None and len(data) != self.file.size:
                kind = TruncatedShardError if len(data) < self.file.size else ChecksumError
                raise kind(f"{self.where}: expected {self.file.size} bytes, got {len(data)}")
            self._data = data
        return data

    def close(self) -> None:
        """Drop the mapping; the next read maps the file again."""
        self._data = self._opened = None

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch as views of the mapped file; raise an error if it is damaged."""
        reader = None
        if self.damages is None:  # the local names keep mapping and reader if another thread closes the file
            data, reader = self._opened = self._opened or self._open()
        elif number in self._intact:
            data = self.data
        else:
            raise FormatError(f"{self.where}: expected batch {number} to be intact, but it is damaged")
        begin, end = self.extent(number)
        self._fetch(begin, end)
        self._check_bytes(data[begin:end], number)
        return self._decode(data[begin:end], number, reader)

    def numbers(self, column: str) -> NDArray[np.uint64]:
        """Return a column of numbers from all readable batches; a single batch is not copied."""
        arrays = [self.batch(number).column(column) for number in self.readable]
        parts = [np.frombuffer(one.buffers()[1], np.uint64, len(one)) for one in arrays]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])

    def _fetch(self, begin: int, end: int) -> None:
        self._source.fetch(self.file.path, [ByteRange(begin, end - begin)])

    def _map(self) -> memoryview:
        try:
            return self._source.map(self.file.path)
        except NotFoundError:
            raise VersionExpired(
                errno.ENOENT,
                "expected the files of the version that was opened, this one is gone: old versions were cleaned up, or "
                "it was removed by hand; open the dataset again",
                self.where,
            ) from None

    def _open(self) -> tuple[memoryview, pa.ipc.RecordBatchFileReader]:
        """Return the mapped file and its Arrow reader; the foot and the schema in it are checked."""
        data, (begin, end) = self.data, self.foot()
        self._fetch(begin, end)
        self._check_foot(data[begin:end])
        opened = open_ipc_file(data, self.where)
        if (count := opened.num_record_batches) != len(self.file.batches):
            raise FormatError(f"{self.where}: expected {len(self.file.batches)} batches, got {count}")
        self._checked_schema(opened.schema)
        return data, opened

    def _checked_schema(self, schema: pa.Schema) -> pa.Schema:
        for column in self._columns:
            if column.name not in schema.names or schema.field(column.name).type != column.type:
                found = schema_text(schema)
                raise FormatError(f"{self.where}: expected a column {column.name} of {column.type}, got {found}")
        return schema

    def _check_foot(self, data: memoryview) -> None:
        self._check_sum(data, self.file.foot, "the foot", *self.foot())

    def _check_bytes(self, data: memoryview, number: int) -> None:
        self._check_sum(data, self.file.batches[number].xxh3, f"batch {number}", *self.extent(number))

    def _check_sum(self, data: memoryview, expected: str, what: str, begin: int, end: int) -> None:
        if xxhash.xxh3_64_hexdigest(data) != expected:
            raise ChecksumError(
                f"{self.where}: expected {what} (bytes {begin} to {end}) as it was written, got other bytes"
            )

    def _decode(
        self, data: memoryview, number: int, reader: pa.ipc.RecordBatchFileReader | None = None
    ) -> pa.RecordBatch:
        """Decode a batch whose checksum is right, by a reader of the file or from its bytes alone, which is slower."""
        where = f"{self.where}, batch {number}"
        if reader is not None:
            found = reader.get_batch(number)
        elif number == 0:  # its bytes begin with the schema
            found = pa.ipc.open_stream(pa.py_buffer(data[_MAGIC_SIZE:])).read_next_batch()
        else:
            found = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self._schema)
        if valid_batch(found, where).num_rows != (expected := self.file.batches[number].rows):
            raise FormatError(f"{where}: expected {expected} rows, got {found.num_rows}")
        return found

    # -- examining ---------------------------------------------------------------------------------------------

    def examine(self, step: Step = int) -> list[Damage]:
        """Read the whole file and return all damage; from then on the reader is tolerant.

        Bytes are read, not mapped: on a defective disk a read fails with an error, but access to a mapped page kills
        the process.
        """
        self.close()
        self._intact = []
        self.damages = self._find_damages(step)
        return self.damages

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reader that has read nothing yet."""
        return _reader_of, (self._source, self.file, _schema_bytes(pa.schema(self._columns)))

    def examined(self) -> tuple[list[Damage], list[int], bytes | None]:
        """Examine the file, in another process, and return what `set_examined` takes."""
        return self.examine(), self._intact, None if self._schema is None else _schema_bytes(self._schema)

    def set_examined(self, damages: list[Damage], intact: list[int], schema: bytes | None) -> None:
        """Set what `examined` returned for this file."""
        self.close()
        self.damages, self._intact = damages, intact
        self._schema = None if schema is None else _schema_of(schema)

    def _find_damages(self, step: Step) -> list[Damage]:
        try:
            size = self._source.stat(self.file.path).size
        except ShardexError as error:
            step(self.file.size)
            return [self._damage(error)]
        frame = self._frame_damage(size)
        found, bad_schema, unharmed = list[Damage](), list[Damage](), 0
        try:
            self._schema = self._checked_schema(self._any_schema(size, not frame))
        except _ARROW_ERRORS as error:
            bad_schema.append(self._damage(error))
        for number, batch in enumerate(self.file.batches):
            if batch.end <= size:
                try:
                    self._check_bytes(data := self._read(*self.extent(number)), number)
                    unharmed += 1
                    if self._schema is not None:
                        self._check_nulls(self._decode(data, number), number)
                        self._intact.append(number)
                except _ARROW_ERRORS as error:
                    found.append(self._damage(error, number))
            step(batch.end - batch.begin)
        step(self.file.size - self.file.batches[-1].end)
        if frame:
            found.insert(0, Damage(f"{frame}; {unharmed} of {len(self.file.batches)} batches are intact"))
        return [*found, *(bad_schema if unharmed else [])]

    def _check_nulls(self, batch: pa.RecordBatch, number: int) -> None:
        """Raise an error for nulls in a required column; `MappedTable` does so for readers."""
        for column in self._columns:
            if not column.nullable and batch.column(column.name).null_count:
                raise FormatError(f"expected a value in every row of batch {number}, got nulls in {column.name}")

    def _frame_damage(self, size: int) -> str:
        """Return what is wrong with the size or the foot; empty if nothing is."""
        if size != self.file.size:
            return f"expected {self.file.size} bytes, got {size}"
        try:
            self._check_foot(self._read(*self.foot()))
        except ShardexError as error:
            return self._damage(error).what
        return ""

    def _any_schema(self, size: int, foot_is_intact: bool) -> pa.Schema:
        """Return the schema in the bytes of the first batch, else that in the foot."""
        begin, end = self.extent(0)
        with suppress(ShardexError):
            if end <= size:
                self._check_bytes(data := self._read(begin, end), 0)
                return pa.ipc.open_stream(pa.py_buffer(data[_MAGIC_SIZE:])).schema
        if not foot_is_intact:  # Arrow must not parse bytes without a matching checksum
            raise FormatError("expected the schema in the first batch or in the foot, both are damaged")
        return open_ipc_file(self._source.load(self.file.path), self.where).schema

    def _read(self, begin: int, end: int) -> memoryview:
        return self._source.read(self.file.path, [ByteRange(begin, end - begin)])[0]

    def _damage(self, error: Exception, batch: int | None = None) -> Damage:
        """Describe an error without the name of the file and without the errno prefix."""
        text = str(getattr(error, "strerror", None) or error).removeprefix(self.where)
        return Damage(text.removeprefix(": ").removeprefix(", "), batch)


def _reader_of(source: Source, file: DataFile, columns: bytes) -> DataFileReader:
    return DataFileReader(source, file, list(_schema_of(columns)))


def _schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as bytes; pickle forgets that the items of a list of fixed size cannot be null."""
    found: bytes = schema.serialize().to_pybytes()
    return found


def _schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(data))


def examine_files(
    source: Source,
    uses: Iterable[Use],
    title: str,
    progress: bool | None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> dict[str, DataFileReader]:
    """Examine each file once, with all columns that the uses expect in it, and return its reader by its path.

    `workers` and `executor` are those of `run_parts`; in this process the progress bar moves within files, too.
    """
    files: dict[str, tuple[DataFile, dict[pa.Field, None]]] = {}
    for use in uses:
        _, columns = files.get(use.file.path, (use.file, {}))
        files[use.file.path] = use.file, columns | dict.fromkeys(use.columns)
    readers = {path: DataFileReader(source, file, list(columns)) for path, (file, columns) in files.items()}
    total, quiet = sum(file.size for file, _ in files.values()), None if progress is None else not progress
    bar: dict[str, Any] = {"total": total, "unit": "B", "unit_scale": True, "desc": title}
    if workers in (None, 1) and executor is None:
        with Bar(disable=quiet, **bar) as shown:
            for reader in readers.values():
                reader.examine(shown.update)
        return readers
    where: dict[str, Any] = {"workers": workers, "executor": executor, "progress": progress}
    for reader, state in run_parts(DataFileReader.examined, readers.values(), size=_size, **where, **bar):
        reader.set_examined(*state)
    return readers


def _size(reader: DataFileReader) -> int:
    return reader.file.size


def read_numbers(source: Source, file: DataFile, column: str) -> NDArray[np.uint64]:
    """Return a column of numbers of a file; raise an error if the file is damaged."""
    return DataFileReader(source, file, [number_column(column)]).numbers(column)


def read_ids(source: Source, file: DataFile) -> Integers:
    """Return the row ids in a file of deleted rows or of newer values."""
    return read_numbers(source, file, "row").astype(np.int64)


# -- without a manifest ------------------------------------------------------------------------------------------


def matches_its_name(source: Source, path: str) -> bool:
    """Return True if a data file has the content that its name stands for; False if it is damaged."""
    try:
        size = source.stat(path).size
        length = footer_size(_bytes(source, path, max(0, size - FOOTER_TAIL), size), size, path)
        _, batches = footer_blocks(_bytes(source, path, size - length, size - FOOTER_TAIL), size, path)
        ends = sorted(block.end for block in batches)
        *digests, foot = (_digest(source, path, begin, end) for begin, end in pairwise([0, *ends, size]))
    except ShardexError:
        return False
    return content_path(digests, foot).encode() == without_numbers(path.encode())


def _bytes(source: Source, path: str, begin: int, end: int) -> bytes:
    return bytes(source.read(path, [ByteRange(begin, end - begin)])[0])


def read_pieces(source: Source, path: str, begin: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes of a file from `begin` to `end`, some MiB at a time."""
    for at in range(begin, end, _PIECE):
        yield source.read(path, [ByteRange(at, min(_PIECE, end - at))])[0]


def _digest(source: Source, path: str, begin: int, end: int) -> str:
    digest = xxhash.xxh3_64()
    for piece in read_pieces(source, path, begin, end):
        digest.update(piece)
    return digest.hexdigest()
