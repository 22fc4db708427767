"""Files with checksums of blocks, for tests of `CheckedTable`: their tables are made from what Arrow reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardex.columns import BatchBuilder
from shardex.columns.checked_table import CheckedTable
from shardex.columns.file_blocks import FileSizes
from shardex.errors import ChecksumError
from shardex.features import Features, arrow_schema
from shardex.kernel import Bytes, Integers, Segments

Batches = Sequence[Sequence[Mapping[str, Any]]]


@dataclass
class Table:
    """The table of a file."""

    rows: Integers
    end: Integers
    block: int
    buffers: Integers
    nulls: Integers
    sums: list[int] = field(default_factory=list)

    @property
    def begin(self) -> Integers:
        return np.append(0, self.end[:-1])

    @property
    def first_block(self) -> Integers:
        return np.append(0, np.cumsum((self.end - 1) // self.block - self.begin // self.block + 1))

    def all_blocks(self) -> list[tuple[int, int]]:
        """Begin and end of each block."""
        return [
            (max(begin, number * self.block), min(end, (number + 1) * self.block))
            for begin, end in zip(self.begin.tolist(), self.end.tolist(), strict=True)
            for number in range(begin // self.block, (end - 1) // self.block + 1)
        ]

    def extents(self, blocks: Integers) -> tuple[Integers, Integers]:
        begin, end = np.array(self.all_blocks())[blocks].T
        return begin, end - begin


class File:
    """An Arrow file in memory; `changed` may be written to, after its checksums were made."""

    def __init__(self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], name: str, block: int = 0) -> None:
        sink = pa.BufferOutputStream()
        ends = []
        with pa.ipc.new_file(sink, schema) as out:
            for batch in batches:
                out.write_batch(batch)
                ends.append(sink.tell())
        self.changed = np.frombuffer(sink.getvalue(), np.uint8).copy()
        self.where, self.schema = name, schema
        self.checked: list[int] = []
        self.closed = self.opened = 0
        self.table = self._table(np.array(ends), block)

    def _table(self, ends: Integers, block: int) -> Table:
        reader = pa.ipc.open_file(pa.py_buffer(self.changed))
        base = self.changed.__array_interface__["data"][0]
        found = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        spans = [[_span(one, base) for column in batch.columns for one in _buffers(column)] for batch in found]
        nulls = [[one.null_count for column in batch.columns for one in _parts(column)] for batch in found]
        rows = np.array([batch.num_rows for batch in found])
        table = Table(rows, ends, block or 1 << 62, np.array(spans).reshape(len(rows), -1, 2), np.array(nulls))
        table.buffers[..., 0] = np.where(table.buffers[..., 1] > 0, table.buffers[..., 0], table.begin[:, None])
        table.sums = [xxhash.xxh3_64_intdigest(self.changed[a:b].data) for a, b in table.all_blocks()]
        return table

    @property
    def data(self) -> memoryview:
        self.opened += 1
        return self.changed.data.toreadonly()

    def check_blocks(self, blocks: Integers, data: Bytes) -> None:
        extents = self.table.all_blocks()
        for number in blocks.tolist():
            self.checked.append(number)
            begin, end = extents[number]
            if xxhash.xxh3_64_intdigest(data[begin:end].data) != self.table.sums[number]:
                raise ChecksumError(f"{self.where}: expected bytes {begin} to {end} as they were written")

    def close(self) -> None:
        self.closed += 1


def _parts(array: pa.Array) -> Iterable[pa.Array]:
    yield array
    if isinstance(array, pa.StructArray):
        for number in range(array.type.num_fields):
            yield from _parts(array.field(number))
    elif isinstance(array, pa.MapArray):
        entries = pa.StructArray.from_arrays([array.keys, array.items], fields=list(array.type.field(0).type))
        yield from _parts(entries)
    elif isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray):
        yield from _parts(array.values)


def _buffers(array: pa.Array) -> list[pa.Buffer | None]:
    """Buffers in the order of the IPC format, which has none for arrays of nulls."""
    found, left = [], array.buffers()
    for part in _parts(array):
        own = part.type.num_buffers
        if not pa.types.is_null(part.type):
            found += left[:own]
        left = left[own:]
    return found


def _span(buffer: pa.Buffer | None, base: int) -> tuple[int, int]:
    return (0, 0) if buffer is None or not buffer.size else (buffer.address - base, buffer.size)


def file_of(features: Features, batches: Batches, name: str = "file", block: int = 0) -> File:
    """Return a file with these batches of samples."""
    builder, made = BatchBuilder(features, arrow_schema(features)), []
    for batch in batches:
        for sample in batch:
            builder.append(sample)
        made.append(builder.finish())
    return File(builder.schema, made, name, block)


def table_of(features: Features, files: Sequence[File | None], rows: Sequence[int] = ()) -> CheckedTable:
    """Return a table of files; None stands for a file of the number of `rows` without values."""
    known = FileSizes(
        np.array([rows[k] if one is None else int(one.table.rows.sum()) for k, one in enumerate(files)], np.int64),
        np.array([1 if one is None else len(one.table.rows) for one in files], np.int64),
        np.array([0 if one is None else one.table.end[-1] for one in files], np.int64),
        np.array([0 if one is None else len(one.changed) for one in files], np.int64),
    )

    def open_file(number: int) -> tuple[File, dict[str, str]] | None:
        file = files[number]
        return None if file is None else (file, {})

    def open_mapped(number: int) -> None:
        file = files[number]
        assert file is not None
        mapped.put(number, file.data)

    mapped = Segments(len(files), open_mapped)
    schema = BatchBuilder(features, arrow_schema(features)).schema
    return CheckedTable(features, schema, known, open_file, mapped)
