"""Reads the data files of a native dataset; Arrow gets no byte before its checksum was compared.

A `DataFileReader` is strict at first: a wrong size, a wrong foot (end of the file) or a damaged batch raises an error.
`examine` reads the whole file and lists all damage (`data_file_damage`); from then on the reader is tolerant: it reads
what is intact, even if the file is cut off or its foot is damaged, and `lost` tells which rows are not. `examine_files`
examines the files of whole versions, for `verify` and `recover`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex import jobs
from shardex.columns import buffer_layout, ipc
from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    TruncatedShardError,
    VersionExpired,
    with_next_step,
)
from shardex.files import display_name
from shardex.kernel import Integers
from shardex.native.data_file_damage import (
    Damage,
    Remains,
    Step,
    batch_in,
    check_columns,
    compare_blocks,
    decode_batch,
    examine_file,
    other_bytes,
    schema_bytes,
    schema_of_bytes,
)
from shardex.native.data_file_table import FileTable, check_counts, decode_table
from shardex.native.fragments import DataFile, FileUse, number_column
from shardex.progress import Bar
from shardex.sources import ByteRange, Source

if TYPE_CHECKING:
    from shardex.workers import ExecutorLike

_SCHEMAS: dict[int, pa.Schema] = {}
"""Schemas of data files, by their checksums: parsing one takes longer than all else when a file is opened."""
_KEPT_SCHEMAS = 256


class DataFileReader:
    """Record batches of one data file; `columns` are the columns that must be in it, under their names in the file.

    >>> import tempfile; from shardex import write; from shardex.native.manifest import read_manifest
    >>> from shardex.sources.local import LocalSource
    >>> place = LocalSource(write(tempfile.mkdtemp() + "/d", [{"x": 1}, {"x": 2}]).rows.opened.what)
    >>> file = read_manifest(place, 1).fragments[0].groups[0]
    >>> reader = DataFileReader(place, file, [pa.field("x", pa.int64())])
    >>> reader.batch(0).to_pydict(), reader.examine(), reader.readable
    ({'x': [1, 2]}, [], [0])
    """

    __slots__ = ("_columns", "_data", "_has_view", "_remains", "_source", "_table", "file")

    def __init__(self, source: Source, file: DataFile, columns: Sequence[pa.Field]) -> None:
        self._source = source
        self.file = file
        self._columns = columns
        self._data: memoryview | None = None
        self._table: FileTable | None = None
        self._has_view = False
        """True if the table is a view of the mapping."""
        self._remains: Remains | None = None

    # -- description -------------------------------------------------------------------------------------------

    @property
    def where(self) -> str:
        """Path or URL of the file, for error messages."""
        return f"{self._source.url}/{self.file.path}"

    @property
    def readable(self) -> Sequence[int]:
        """Numbers of the batches that can be read as a whole: all of them until `examine` has found damaged ones."""
        return range(self.file.count) if self._remains is None else list(self._remains.intact)

    @property
    def unchecked(self) -> Sequence[int]:
        """Numbers of the batches that can be read, but of which no checksum is left."""
        return [] if self._remains is None else self._remains.unchecked

    @property
    def damages(self) -> list[Damage] | None:
        """All damage of the file, or None before `examine`."""
        return None if self._remains is None else self._remains.damages

    @property
    def batch_rows(self) -> list[int]:
        """Number of rows of each batch; see `Remains.rows` for those of a damaged file."""
        found: list[int] = self.table.rows.tolist() if self._remains is None else self._remains.rows
        return found

    def lost(self, number: int, column: str) -> NDArray[np.bool_]:
        """Return which rows of a batch cannot be read in a column, as `examine` has found out."""
        remains, rows = self._remains, self.batch_rows[number]
        if remains is None or number in remains.intact:
            return np.zeros(rows, np.bool_)
        found = np.ones(rows, np.bool_)
        if number in remains.lost and column in remains.lost[number]:
            found[:] = False
            for begin, end in remains.lost[number][column].tolist():
                found[begin:end] = True
        return found

    def lost_in(self, columns: Iterable[str]) -> NDArray[np.bool_]:
        """Return which rows of the file cannot be read in one of some columns."""
        lost = [np.logical_or.reduce([self.lost(k, one) for one in columns]) for k in range(len(self.batch_rows))]
        return np.concatenate([np.empty(0, np.bool_), *lost])

    def is_readable_in_part(self, number: int) -> bool:
        """Return whether some rows of a damaged batch can be read."""
        return self._remains is not None and number in self._remains.lost

    @property
    def damaged(self) -> list[int]:
        """Numbers of the batches of which some rows, or all, may be lost."""
        whole = set(self.readable)
        return [number for number in range(len(self.batch_rows)) if number not in whole]

    def extent(self, number: int) -> tuple[int, int]:
        """Begin and end of a batch in the file."""
        return int(self.table.begin[number]), int(self.table.end[number])

    def foot(self) -> tuple[int, int]:
        """Begin and end of the foot: the bytes after the last batch."""
        return self.file.end, self.file.size

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def data(self) -> memoryview:
        """The mapped file; its size is checked, unless the reader is tolerant."""
        if (data := self._data) is None:
            data = self._map()
            if self._remains is None and len(data) != self.file.size:
                kind = TruncatedShardError if len(data) < self.file.size else ChecksumError
                error = kind(f"{self.where}: expected {self.file.size} bytes, got {len(data)}")
                raise with_next_step(error, display_name(self._source.url))
            self._data = data
        return data

    @property
    def table(self) -> FileTable:
        """Where batches and buffers lie, and the checksums of blocks; the foot is checked when it is first needed."""
        if (table := self._table) is None:
            if self._remains is not None and self._remains.table is not None:
                return self._remains.table
            data = self.data  # this name keeps the mapping if another thread closes the file
            table = self._read_table(data)
            check_columns(_schema_in(data, table, self.where), self._columns, self.where)
            self._table = table
        return table

    @property
    def needs_foot(self) -> bool:
        """Whether the table is read from the foot."""
        return self._remains is None or self._remains.table is None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the file, with the columns that are expected; that in its foot, if that is intact."""
        if self._remains is not None and self._remains.schema is not None:
            return schema_of_bytes(self._remains.schema)
        return _schema_in(self.data, self.table, self.where)

    def close(self) -> None:
        """Drop the mapping; the next read maps the file again."""
        self._data = None
        if self._has_view:
            self._table = None

    def check_blocks(self, blocks: Integers, data: Any = None) -> None:
        """Compare blocks of the file with their checksums; raise an error that names the first one with other bytes.

        The bytes must have been fetched. `data` is the mapping that is compared, if it is not that of the reader.
        """
        self._compare_blocks(self.data if data is None else data, self.table, blocks)

    def _compare_blocks(self, data: Any, table: FileTable, blocks: Any) -> None:
        try:
            compare_blocks(data, table, blocks, self.where)
        except ChecksumError as error:
            with_next_step(error, display_name(self._source.url))
            raise

    def batch(self, number: int) -> pa.RecordBatch:
        """Return one record batch as views of the mapped file; raise an error if it is damaged."""
        if self._remains is not None:
            return self._intact_batch(number, self._remains)
        data, table = self.data, self.table  # these names keep the mapping if another thread closes the file
        self._fetch([(int(table.begin[number]), int(table.end[number]))])
        self._compare_blocks(data, table, table.blocks(number))
        return batch_in(data, table, number, self.schema, f"{self.where}, batch {number}")

    def number_columns(self, names: Sequence[str]) -> dict[str, NDArray[np.uint64]]:
        """Return columns of numbers of the first batch, without Arrow objects; all columns of the file are such."""
        data = self.data  # this name keeps the mapping if another thread closes the file
        self._fetch([(0, self.file.size)])
        table, stored = self.table, self.schema.names
        self._compare_blocks(data, table, table.blocks(0))
        rows, found = int(table.rows[0]), {}
        if table.buffers.shape[1] != 2 * len(stored):
            raise FormatError(f"{self.where}: expected columns of numbers, got {table.buffers.shape[1]} buffers")
        for name in names:
            begin, size = table.buffers[0, 2 * stored.index(name) + 1].tolist()  # before it, a buffer of no nulls
            if size < 8 * rows:
                raise FormatError(f"{self.where}: expected {rows} numbers in the column {name}, got {size} bytes")
            found[name] = np.frombuffer(self._source.keep(data[begin : begin + 8 * rows]), np.uint64)
        return found

    def numbers(self, column: str) -> NDArray[np.uint64]:
        """Return a column of numbers; a single batch is not copied. If the reader is tolerant, lost numbers are 0."""
        parts = [self._numbers_in(number, column) for number in range(len(self.batch_rows))]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint64), *parts])

    def _numbers_in(self, number: int, column: str) -> NDArray[np.uint64]:
        if self._remains is None or number in self._remains.intact:
            array = self.batch(number).column(column)
            return np.frombuffer(array.buffers()[1], np.uint64, len(array))
        found, lost = np.zeros(self.batch_rows[number], np.uint64), self.lost(number, column)
        if not lost.all():
            begin, size = self.table.buffers[
                number, buffer_layout.column_layouts(self.schema)[column].buffer + 1
            ].tolist()
            self._fetch([(begin, begin + size)])
            found[~lost] = np.frombuffer(self.data, np.uint64, len(found), begin)[~lost]
        return found

    def _intact_batch(self, number: int, remains: Remains) -> pa.RecordBatch:
        if number not in remains.intact or remains.schema is None:
            raise FormatError(f"{self.where}: expected batch {number} to be intact, but it is damaged")
        begin, end = remains.extents[number]
        self._fetch([(begin, end)])
        data = self.data[begin:end]
        self._check_sum(data, remains.intact[number], f"batch {number}", begin, end)
        return decode_batch(data, number, schema_of_bytes(remains.schema), remains.rows[number], self.where)

    def _read_table(self, data: memoryview) -> FileTable:
        """Return the table of a mapped file; its foot is fetched and checked."""
        begin, end = self.foot()
        self._fetch([(begin, end)])
        foot = self._source.keep(view := data[begin:end])
        self._has_view = foot is view
        self._check_sum(foot, self.file.foot, "the foot", begin, end)
        table = decode_table(foot, begin, self.where)
        check_counts(table, self.file, self.where)
        return table

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._source.fetch(self.file.path, [ByteRange(begin, end - begin) for begin, end in ranges])

    def _map(self) -> memoryview:
        try:
            return self._source.map(self.file.path)
        except NotFoundError:
            error = VersionExpired(
                errno.ENOENT,
                "expected the files of the version that was opened, this one is gone: old versions were cleaned up, or "
                "it was removed by hand; open the dataset again; if that has the same error, the file is lost",
                self.where,
            )
            raise with_next_step(error, display_name(self._source.url)) from None

    def _check_sum(self, data: memoryview, expected: str, what: str, begin: int, end: int) -> None:
        if xxhash.xxh3_64_hexdigest(data) != expected:
            raise with_next_step(other_bytes(self.where, what, begin, end), display_name(self._source.url))

    # -- examining ---------------------------------------------------------------------------------------------

    def examine(self, step: Step = int) -> list[Damage]:
        """Read the whole file and return all damage; from then on the reader is tolerant."""
        return self.set_remains(examine_file(self._source, self.file, self._columns, step))

    def remains(self) -> Remains:
        """Examine the file, in another process, and return what `set_remains` takes."""
        return examine_file(self._source, self.file, self._columns)

    def set_remains(self, found: Remains) -> list[Damage]:
        """Make the reader tolerant: it reads what was found to be intact. Return the damage."""
        self.close()
        self._remains = found
        return found.damages

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a reader that has read nothing yet."""
        return _reader_of, (self._source, self.file, schema_bytes(pa.schema(self._columns)))


def _open(data: memoryview, table: FileTable, where: str) -> pa.ipc.RecordBatchFileReader:
    """Return the Arrow reader of a mapped file, whose foot is checked."""
    opened = ipc.open_ipc_file(data, where)
    if (count := opened.num_record_batches) != len(table):
        raise FormatError(f"{where}: expected {len(table)} batches, got {count}")
    return opened


def _schema_in(data: memoryview, table: FileTable, where: str) -> pa.Schema:
    """Return the schema in the footer of a file, which is checked; files with the same schema share it.

    A file that states the checksum of another schema is not trusted: others would get its columns.
    """
    found = _SCHEMAS.get(table.schema)
    if found is None:
        found = _open(data, table, where).schema
        if table.schema == xxhash.xxh3_64_intdigest(found.serialize()):
            if len(_SCHEMAS) >= _KEPT_SCHEMAS:
                _SCHEMAS.clear()
            _SCHEMAS[table.schema] = found
    return found


def _reader_of(source: Source, file: DataFile, columns: bytes) -> DataFileReader:
    return DataFileReader(source, file, list(schema_of_bytes(columns)))


def examine_files(
    source: Source,
    uses: Iterable[FileUse],
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
    for reader, remains in jobs.run_parts(DataFileReader.remains, readers.values(), size=_size, **where, **bar):
        reader.set_remains(remains)
    return readers


def _size(reader: DataFileReader) -> int:
    return reader.file.size


def read_numbers(source: Source, file: DataFile, column: str) -> NDArray[np.uint64]:
    """Return a column of numbers of a file; raise an error if the file is damaged."""
    return DataFileReader(source, file, [number_column(column)]).numbers(column)


def read_number_columns(source: Source, file: DataFile, names: Sequence[str]) -> dict[str, NDArray[np.uint64]]:
    """Return columns of numbers of a file of one batch, which holds nothing else; an error if the file is damaged."""
    reader = DataFileReader(source, file, [number_column(name) for name in names])
    if file.count != 1:
        raise FormatError(f"{reader.where}: expected one batch of numbers, got {file.count} batches")
    return reader.number_columns(names)


def read_ids(source: Source, file: DataFile) -> Integers:
    """Return the row ids in a file of deleted rows or of newer values."""
    return read_numbers(source, file, "row").astype(np.int64)
