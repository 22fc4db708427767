"""Finds all damage of a data file, and which of its batches can be read all the same.

`examine_file` reads a whole file and compares every byte with its checksum. Of a batch with damaged blocks, only the
rows that need one are lost (`Remains.lost`). A batch is self-contained except for the schema, which is stored twice:
before the first batch and in the foot. So batches of a file that is cut off, or whose foot is damaged, are found by
following the messages of the Arrow stream. The checksums of a file are in its foot: a foot that is damaged is made
again from the batches, and if it has the checksum in the manifest, all of them are intact. Batches whose checksums are
lost are read, but `Remains.unchecked` lists them. `file_by_name` describes a file that no manifest describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.columns import arrow_types, buffer_layout, ipc
from shardex.errors import ChecksumError, FormatError, ShardexError
from shardex.kernel import Integers, gather
from shardex.native.data_file_table import (
    END_OF_STREAM,
    MAGIC_SIZE,
    FileTable,
    block_extents,
    check_counts,
    decode_table,
    encode_table,
    table_of_layouts,
    with_offset,
)
from shardex.native.fragments import DataFile, content_of
from shardex.sources import ByteRange, Source

_ARROW_ERRORS = (pa.ArrowException, OSError, ShardexError)
_ARROW_MAGIC = b"ARROW1\0\0"
_PIECE = 8 << 20

Step = Callable[[int], object]
"""Called with the number of bytes that were read, for a progress bar."""


@dataclass(frozen=True)
class Damage:
    """Damage of a data file: of one batch, or (`batch` is None) of a part that all batches depend on."""

    what: str
    batch: int | None = None


@dataclass
class Remains:
    """What is left of a data file."""

    rows: list[int]
    """Number of rows of each batch; the rows of all batches that were not found are counted at the first of these."""
    damages: list[Damage] = field(default_factory=list)
    extents: list[tuple[int, int]] = field(default_factory=list)
    """Begin and end of each batch that was found."""
    intact: dict[int, str] = field(default_factory=dict)
    """Checksum of each batch that can be read."""
    lost: dict[int, dict[str, Integers]] = field(default_factory=dict)
    """Of each batch that can be read in part: the rows that need damaged blocks, as begins and ends, of each column."""
    unchecked: list[int] = field(default_factory=list)
    """Batches that can be read, but of which no checksum is left."""
    schema: bytes | None = None
    """The schema of the batches as Arrow writes it; None if it is lost."""
    table: FileTable | None = None
    """What was found out about the batches of a file whose foot is damaged; None if the foot has their table."""


def examine_file(source: Source, file: DataFile, columns: Sequence[pa.Field], step: Step = int) -> Remains:
    """Read a whole file and return all damage and what can be read; `columns` are those that must be in it.

    Bytes are read, not mapped: on a defective disk a read fails with an error, but access to a mapped page kills the
    process.
    """
    try:
        size = source.stat(file.path).size
    except ShardexError as error:
        step(file.size)
        return Remains([file.rows], [damage_of(error, f"{source.url}/{file.path}")])
    return _Examination(source, file, columns, size).run(step)


def _extents(table: FileTable) -> list[tuple[int, int]]:
    return list(zip(table.begin.tolist(), table.end.tolist(), strict=True))


def _all_rows(file: DataFile, known: list[int]) -> list[int]:
    missing = file.count - len(known)
    return [*known, file.rows - sum(known), *[0] * (missing - 1)] if missing else known


def damage_of(error: Exception, where: str, batch: int | None = None) -> Damage:
    """Describe an error without the name of the file and without the errno prefix."""
    text = str(getattr(error, "strerror", None) or error).removeprefix(where)
    return Damage(text.removeprefix(": ").removeprefix(", "), batch)


def other_bytes(where: str, what: str, begin: int, end: int, more: str = "") -> ChecksumError:
    """Return the error for bytes that differ from their checksum."""
    return ChecksumError(f"{where}: expected {what} (bytes {begin} to {end}{more}) as it was written, got other bytes")


def _runs(mask: NDArray[np.bool_]) -> Integers:
    """Return begin and end of each run of rows that are marked.

    >>> _runs(np.array([True, True, False, True])).tolist()
    [[0, 2], [3, 4]]
    """
    edges = np.diff(np.concatenate([[False], mask, [False]]).view(np.int8))
    return np.flatnonzero(edges).reshape(-1, 2)


def check_columns(schema: pa.Schema, columns: Sequence[pa.Field], where: str) -> None:
    """Raise an error if a schema does not have these columns."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for column in columns:
        if kinds.get(column.name) != column.type:
            raise FormatError(
                f"{where}: expected a column {column.name} of {column.type}, got {arrow_types.schema_text(schema)}"
            )


def compare_blocks(data: Any, table: FileTable, blocks: Any, where: str, origin: int = 0) -> None:
    """Raise an error for the first of some blocks that has other bytes; `data` begins at `origin` in the file."""
    begin, size = table.extents(blocks)
    if len(blocks) and (end := int((begin + size).max()) - origin) > len(data):
        raise ChecksumError(f"{where}: expected {end} bytes, got {len(data)}")
    if (bad := gather.first_difference(data, begin - origin, size, table.sums[blocks])) >= 0:
        at, batch = int(begin[bad]), int(table.batch_of(blocks[bad : bad + 1])[0])
        raise other_bytes(where, f"batch {batch}", at, at + int(size[bad]))


def decode_batch(data: Any, number: int, schema: pa.Schema, rows: int, where: str) -> pa.RecordBatch:
    """Decode a batch from its bytes alone, and validate it; those of batch 0 begin with the schema."""
    if number == 0:
        found = pa.ipc.open_stream(pa.py_buffer(data[MAGIC_SIZE:])).read_next_batch()
        if not found.schema.equals(schema):
            raise FormatError(f"{where}: expected the columns {arrow_types.schema_text(schema)}, got others in batch 0")
    else:
        found = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), schema)
    return checked_batch(found, rows, f"{where}, batch {number}")


def batch_in(data: Any, table: FileTable, number: int, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Return a batch of a mapped file, made of the buffers that its table names, and validate it."""
    layouts, spans = buffer_layout.column_layouts(schema), table.buffers[number].tolist()
    check_layouts(layouts, table, where)

    def buffer(which: int) -> Any:
        begin, size = spans[which]
        return np.frombuffer(data, np.uint8, size, begin)

    rows = int(table.rows[number])
    try:
        arrays = [buffer_layout.array_of(layout, rows, buffer, table.nulls[number]) for layout in layouts.values()]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (pa.ArrowException, FormatError) as error:
        raise FormatError(f"{where}: expected valid Arrow data, got a damaged batch: {error}") from None
    return checked_batch(batch, rows, where)


def check_layouts(layouts: Mapping[str, buffer_layout.Layout], table: FileTable, where: str) -> None:
    """Raise an error if a table does not have the buffers of these columns, or not their counts of nulls."""
    every = [part for layout in layouts.values() for part in layout.all()]
    buffers, found = sum(part.own_buffers for part in every), (table.buffers.shape[1], table.nulls.shape[1])
    if found != (buffers, len(every)):
        expected = f"{buffers} buffers of {len(every)} arrays"
        raise FormatError(f"{where}: expected {expected} in each batch, got {found[0]} of {found[1]}")


def checked_batch(batch: pa.RecordBatch, rows: int, where: str) -> pa.RecordBatch:
    """Return a batch if it is valid and has this number of rows."""
    if ipc.valid_batch(batch, where).num_rows != rows:
        raise FormatError(f"{where}: expected {rows} rows, got {batch.num_rows}")
    return batch


@dataclass
class _Batch:
    """What the bytes of a batch say about it, for a foot that is made again."""

    head: bytes
    layout: ipc.BatchLayout
    sums: Any
    schema: int
    """Checksum of the schema, 0 unless it is the first batch."""


class _Examination:
    def __init__(self, source: Source, file: DataFile, columns: Sequence[pa.Field], size: int) -> None:
        self._source, self._file, self._columns, self._size = source, file, columns, size
        self._where = f"{source.url}/{file.path}"
        self._table: FileTable | None = None
        self._schema: pa.Schema | None = None
        self._batches: dict[int, _Batch] = {}
        self._unharmed: list[int] = []
        self._bad_schema: list[Damage] = []
        self._foot_is_intact = False
        self._is_proven = False
        """True if the foot that was made again is the one that was written."""
        self._remains = Remains([])

    def run(self, step: Step) -> Remains:
        """Return what is left of the file."""
        file, found = self._file, self._remains
        foot, frame = self._foot()
        self._foot_is_intact = not frame
        found.rows, found.extents = self._find_batches(foot)
        self._find_schema(foot)
        for number, (begin, end) in enumerate(found.extents):
            self._examine(number)
            step(end - begin)
        step(file.size - (found.extents[-1][1] if found.extents else 0))
        if (frame and len(self._unharmed) < file.count) or not self._is_checked:
            self._prove(foot)
        if frame:
            found.damages.insert(0, Damage(f"{frame}; {self._summary()}"))
        if not self._is_checked:
            found.unchecked = list(found.intact)
        found.damages += self._bad_schema if self._unharmed else []
        found.schema = None if self._schema is None else schema_bytes(self._schema)
        found.table = self._found_table() if frame else None
        return found

    def _found_table(self) -> FileTable:
        """Return a table of what can be read, for a file whose foot is damaged; other batches have no buffers."""
        found = self._remains
        intact = [self._batches.get(k) if k in found.intact else None for k in range(self._file.count)]
        layouts = [None if one is None else one.layout for one in intact]
        ends = [end for _, end in found.extents] + [self._file.end] * (len(intact) - len(found.extents))
        return table_of_layouts(found.rows, ends, layouts, [None if one is None else one.sums for one in intact])

    @property
    def _is_checked(self) -> bool:
        return self._table is not None or self._is_proven

    def _summary(self) -> str:
        count = f"{len(self._unharmed)} of {self._file.count} batches"
        if self._is_checked or not self._unharmed:
            return f"{count} are intact"
        return f"{count} can be read, but not checked, because the foot had their checksums"

    # -- foot ------------------------------------------------------------------------------------------------

    def _foot(self) -> tuple[bytes, str]:
        """Return the bytes of the foot that are left, and what is wrong with them or with the size of the file."""
        file = self._file
        try:
            foot = bytes(self._read(file.end, min(self._size, file.size))) if self._size > file.end else b""
        except ShardexError as error:
            return b"", damage_of(error, self._where).what
        if self._size != file.size:
            return foot, f"expected {file.size} bytes, got {self._size}"
        if xxhash.xxh3_64_hexdigest(foot) != file.foot:
            return foot, damage_of(other_bytes(self._where, "the foot", file.end, file.size), self._where).what
        return foot, ""

    def _find_batches(self, foot: bytes) -> tuple[list[int], list[tuple[int, int]]]:
        """Return rows and extents of the batches: by the manifest, the table, or the headers of the batches."""
        file = self._file
        if (table := self._table_in(foot)) is None or not self._foot_is_intact:
            rows, extents = self._follow_stream()
            is_other = table is not None and (rows, extents) != (table.rows.tolist(), _extents(table))
            if table is None or (is_other and len(rows) == file.count):
                return _all_rows(file, rows), extents
        self._table = table
        return table.rows.tolist(), _extents(table)

    def _table_in(self, foot: bytes) -> FileTable | None:
        """Return the table in the foot, None if it is lost."""
        try:
            table = decode_table(foot, self._file.end, self._where)
            check_counts(table, self._file, self._where)
        except FormatError as error:
            if self._foot_is_intact:
                self._remains.damages.append(damage_of(error, self._where))
            return None
        return table

    def _follow_stream(self) -> tuple[list[int], list[tuple[int, int]]]:
        """Return rows and extents of the batches that the headers in the stream name, up to the first damaged one."""
        rows, extents, begin = list[int](), list[tuple[int, int]](), 0
        end = min(self._file.end, self._size)
        with suppress(*_ARROW_ERRORS):
            block = self._message(MAGIC_SIZE)[0]
            while len(rows) < self._file.count:
                block, head = self._message(block.end)
                count = ipc.batch_layout(head, "").rows
                if block.end > end or not 0 < count <= self._file.rows - sum(rows):
                    break
                rows.append(count)
                extents.append((begin, begin := block.end))
        return rows, extents

    def _message(self, at: int) -> tuple[ipc.Block, bytes]:
        """Return position and header of the message at a byte of the file."""
        length = ipc.message_head_size(self._read(at, at + 8)) if at + 8 <= self._size else self._size
        head = bytes(self._read(at, at + length)) if at + length <= self._size else b""
        found = ipc.message_at(head, 0, self._where)
        if found is None:
            raise FormatError("expected a message, got the end of the stream")
        return found._replace(begin=at), head

    # -- schema ----------------------------------------------------------------------------------------------

    def _find_schema(self, foot: bytes) -> None:
        try:
            self._schema = self._any_schema(foot)
            check_columns(self._schema, self._columns, self._where)
        except _ARROW_ERRORS as error:
            self._schema = None
            self._bad_schema.append(damage_of(error, self._where))

    def _any_schema(self, foot: bytes) -> pa.Schema:
        """Return the schema in the bytes of the first batch, else that in the foot."""
        extents = self._remains.extents
        with suppress(ShardexError):
            if extents and extents[0][1] <= self._size:
                self._check(data := self._read(*extents[0]), 0)
                schema = pa.ipc.open_stream(pa.py_buffer(data[MAGIC_SIZE:])).schema
                arrow_types.check_column_names(schema)
                return schema
        if not self._foot_is_intact:  # Arrow must not parse bytes without a matching checksum
            raise FormatError("expected the schema in the first batch or in the foot, both are damaged")
        return ipc.open_ipc_file(_ARROW_MAGIC + foot, self._where).schema

    # -- batches ---------------------------------------------------------------------------------------------

    def _examine(self, number: int) -> None:
        begin, end = self._remains.extents[number]
        if end > self._size:
            return
        try:
            data = self._read(begin, end)
            self._describe(data, number)
            self._check(data, number)
            self._keep(data, number)
        except _ARROW_ERRORS as error:
            self._remains.damages.append(damage_of(error, self._where, number))

    def _describe(self, data: Any, number: int) -> None:
        """Store the layout, rows and schema that the bytes of a batch contain; a damaged header is passed over."""
        begin, schema = self._remains.extents[number][0], 0
        with suppress(FormatError):
            block = ipc.message_at(data, 0 if number else MAGIC_SIZE, "")
            if number == 0 and block is not None:
                schema = xxhash.xxh3_64_intdigest(data[block.begin : block.end])
                block = ipc.message_at(data, block.end, "")
            if block is not None:
                head = bytes(data[block.begin : block.begin + block.head])
                layout = with_offset(ipc.batch_layout(head, ""), begin + block.begin + block.head)
                sums = gather.checksums(data, *block_extents(begin, begin + len(data)))
                self._batches[number] = _Batch(head, layout, sums, schema)

    def _check(self, data: Any, number: int) -> None:
        """Raise an error if the bytes of a batch differ from their checksums."""
        if self._table is not None and not self._is_proven:
            self._compare_blocks(data, self._table, number)

    def _compare_blocks(self, data: Any, table: FileTable, number: int) -> None:
        """Raise an error if blocks of a batch are damaged; note which rows need them, if the foot is intact."""
        blocks, origin = table.blocks(number), int(table.begin[number])
        begin, size = table.extents(blocks)
        if not len(bad := np.flatnonzero(gather.checksums(data, begin - origin, size) != table.sums[blocks])):
            return
        cuts = np.flatnonzero(np.diff(bad) != 1)
        damaged = begin[bad[[0, *(cuts + 1)]]], (begin + size)[bad[[*cuts, -1]]]
        if self._foot_is_intact and self._schema is not None:
            layouts, rows, buffers = (
                buffer_layout.column_layouts(self._schema),
                int(table.rows[number]),
                table.buffers[number],
            )
            check_layouts(layouts, table, self._where)
            self._remains.lost[number] = {
                name: _runs(buffer_layout.rows_that_need(damaged, layout, rows, buffers, data, origin))
                for name, layout in layouts.items()
            }
        more = f", and {len(cuts)} more ranges of bytes" if len(cuts) else ""
        raise other_bytes(self._where, f"batch {number}", int(damaged[0][0]), int(damaged[1][0]), more)

    def _keep(self, data: Any, number: int) -> None:
        """Decode a batch whose bytes are as they were written, and note that it can be read."""
        self._unharmed.append(number)
        if self._schema is None:
            return
        described = self._batches.get(number)  # Arrow may crash if it gets such bytes
        ipc.batch_is_compressed(b"" if described is None else described.head, self._where)
        batch = decode_batch(data, number, self._schema, self._remains.rows[number], self._where)
        for column in self._columns:  # `MappedTable` does so for readers
            if not column.nullable and batch.column(column.name).null_count:
                raise FormatError(f"expected a value in every row of batch {number}, got nulls in {column.name}")
        self._compare_with_table(number)
        self._remains.intact[number] = xxhash.xxh3_64_hexdigest(data)

    def _compare_with_table(self, number: int) -> None:
        table, found = self._table, self._batches.get(number)
        if table is None or found is None or not self._foot_is_intact:
            return
        same = np.array_equal(table.buffers[number], found.layout.buffers) and (number or table.schema == found.schema)
        if not same or not np.array_equal(table.nulls[number], found.layout.nulls):
            raise FormatError(f"expected the table in the foot to agree with the header of batch {number}, it does not")

    def _prove(self, foot: bytes) -> None:
        """Make the foot again from the batches; if it is the one that was written, all batches are intact."""
        file, batches = self._file, [self._batches.get(number) for number in range(self._file.count)]
        described = [one for one in batches if one is not None]
        if len(described) < file.count or len({one.layout.buffers.shape for one in described}) > 1:
            return
        rows, ends = [one.layout.rows for one in described], [end for _, end in self._remains.extents]
        sums = np.concatenate([one.sums for one in described])
        table = encode_table(rows, ends, [one.layout for one in described], sums, described[0].schema)
        if xxhash.xxh3_64_hexdigest(END_OF_STREAM + table + foot[len(END_OF_STREAM) + len(table) :]) != file.foot:
            return
        again = [number for number in range(file.count) if number not in self._remains.intact]
        self._is_proven, self._unharmed = True, list(self._remains.intact)
        self._remains.damages = [one for one in self._remains.damages if one.batch not in again]
        if self._schema is None:
            self._bad_schema.clear()
            self._find_schema(foot)
        for number in again:
            self._examine(number)

    def _read(self, begin: int, end: int) -> memoryview:
        return self._source.read(self._file.path, [ByteRange(begin, end - begin)])[0]


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as bytes; pickle forgets that the items of a list of fixed size cannot be null."""
    found: bytes = schema.serialize().to_pybytes()
    return found


def schema_of_bytes(data: bytes) -> pa.Schema:
    """Return the schema that `schema_bytes` has made bytes of."""
    return pa.ipc.read_schema(pa.py_buffer(data))


# -- without a manifest ------------------------------------------------------------------------------------------


def file_by_name(source: Source, path: str) -> tuple[DataFile, pa.Schema] | None:
    """Return the entry that a manifest would have for a data file, and its schema; None if its name does not match.

    The name of a file stands for its foot, which has the checksums of the batches: they may be damaged.
    """
    try:
        size = source.stat(path).size
        length = ipc.footer_size(_bytes(source, path, max(0, size - ipc.FOOTER_TAIL), size), size, path)
        _, blocks = ipc.footer_blocks(_bytes(source, path, size - length, size - ipc.FOOTER_TAIL), size, path)
        end = max((block.end for block in blocks), default=0)
        foot = _bytes(source, path, end, size)
        if content_of(path) != xxhash.xxh3_128_hexdigest(foot):
            return None
        table, schema = decode_table(foot, end, path), ipc.open_ipc_file(_ARROW_MAGIC + foot, path).schema
    except ShardexError:
        return None
    fields = {name: name for name in schema.names}
    return DataFile(path, size, fields, xxhash.xxh3_64_hexdigest(foot), end, len(table), table.total_rows), schema


def _bytes(source: Source, path: str, begin: int, end: int) -> bytes:
    return bytes(source.read(path, [ByteRange(begin, end - begin)])[0])


def read_pieces(source: Source, path: str, begin: int, end: int) -> Iterator[memoryview]:
    """Yield the bytes of a file from `begin` to `end`, some MiB at a time."""
    for at in range(begin, end, _PIECE):
        yield source.read(path, [ByteRange(at, min(_PIECE, end - at))])[0]
