"""The table of a data file: where its batches and their buffers lie, and a checksum of each block of bytes.

A file holds its table in its foot, between the end of the Arrow stream and the Arrow footer, where Arrow readers do not
look. `encode_table` makes the bytes, `decode_table` returns views of them, with every number checked.
`table_of_layouts` makes the table of a file whose foot is damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import BLOCK, ipc
from shardex.errors import FormatError
from shardex.kernel import Integers
from shardex.native.fragments import DataFile

MAGIC_SIZE = 8
"""Bytes of a file before the schema."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_MAGIC = b"SXTABLE2"
_HEADER = struct.Struct("<8s7Q")
_MOST_ROWS = 1 << 31
"""Most rows of a batch that has fewer bits than rows, because all of them are null."""

Sums = NDArray[np.uint32]


@dataclass(frozen=True)
class FileTable:
    """Where the batches of a file and their buffers lie, and the checksums of its blocks.

    Blocks begin at multiples of their size in the file, like pages of memory, so that a disk reads no page for nothing.
    Those at the begin and the end of a batch hold only bytes of the batch. Blocks have numbers in the file.
    """

    rows: Integers
    """Number of rows of each batch."""
    end: Integers
    """Offset of the end of each batch; it begins where the one before ends, the first one at 0."""
    block: int
    """Size of a block in bytes."""
    buffers: Integers
    """Begin in the file and size of each buffer of each batch, in the order of the format: three axes."""
    nulls: Integers
    """Null count of each field of each batch, and of the parts inside it: two axes."""
    sums: Sums = field(repr=False)
    """Checksum of each block: the low 32 bits of its xxh3-64."""
    schema: int = 0
    """xxh3-64 of the message with the schema; 0 if it is not known."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def total_rows(self) -> int:
        """Number of rows of all batches."""
        return sum(self.rows.tolist())

    @cached_property
    def begin(self) -> Integers:
        """Offset of the begin of each batch."""
        begin = np.zeros(len(self.end), np.int64)
        begin[1:] = self.end[:-1]
        return begin

    @cached_property
    def first_block(self) -> Integers:
        """Number of the first block of each batch, and the number of all blocks at the end."""
        return _first_blocks(self.begin, self.end, self.block)

    def blocks(self, batch: int) -> Integers:
        """Return the numbers of the blocks of a batch."""
        return np.arange(self.first_block[batch], self.first_block[batch + 1])

    def extents(self, blocks: Integers) -> tuple[Integers, Integers]:
        """Return where blocks begin in the file, and their sizes."""
        batch = self.batch_of(blocks)
        whole = (blocks + (self.begin // self.block - self.first_block[:-1])[batch]) * self.block
        begin = np.maximum(whole, self.begin[batch])
        return begin, np.minimum(self.end[batch], whole + self.block) - begin

    def batch_of(self, blocks: Integers) -> Integers:
        """Return the batch of each block."""
        return np.searchsorted(self.first_block, blocks, side="right") - 1


def _first_blocks(begin: Integers, end: Integers, block: int) -> Integers:
    first = np.zeros(len(end) + 1, np.int64)
    np.cumsum((end - 1) // block - begin // block + 1, out=first[1:])
    return first


def block_extents(begin: int, end: int) -> tuple[Integers, Integers]:
    """Return where the blocks of a batch at these bytes of a file begin in the batch, and their sizes.

    >>> [numbers.tolist() for numbers in block_extents(BLOCK - 100, BLOCK + 300)]
    [[0, 100], [100, 300]]
    """
    cuts = np.arange(begin // BLOCK + 1, -(-end // BLOCK)) * BLOCK - begin
    bounds = np.concatenate([[0], cuts, [end - begin]])
    return bounds[:-1], np.diff(bounds)


def encode_table(
    rows: Sequence[int], end: Sequence[int], layouts: Sequence[ipc.BatchLayout], sums: Sums, schema: int
) -> bytes:
    """Return the bytes of a table; the buffers of `layouts` begin at offsets in the file."""
    buffers, nodes = (len(layouts[0].buffers), len(layouts[0].nulls)) if layouts else (0, 0)
    arrays: list[Any] = [rows, end, [one.buffers for one in layouts], [one.nulls for one in layouts]]
    stored = sums.astype("<u4").tobytes() + bytes(len(sums) % 2 * 4)  # the table is a multiple of 8 bytes
    body = b"".join([*(np.array(one, "<i8").tobytes() for one in arrays), stored])
    size = _HEADER.size + len(body)
    return _HEADER.pack(_MAGIC, size, BLOCK, len(rows), len(sums), buffers, nodes, schema) + body


def decode_table(foot: Any, end: int, where: str) -> FileTable:
    """Return the table in the foot, which begins at `end`, as views; `where` is the path of the file for errors.

    Every number is checked, so that a wrong one is an error here and not later.

    >>> layout = ipc.BatchLayout(3, np.array([0]), np.array([[0, 0], [64, 24]]))
    >>> table = encode_table([3], [88], [layout], np.array([7], np.uint32), 0)
    >>> decode_table(END_OF_STREAM + table, 88, "x.arrow").buffers.tolist()
    [[[0, 0], [64, 24]]]
    """
    try:
        magic, size, block, count, blocks, buffers, nodes, schema = _HEADER.unpack_from(foot, len(END_OF_STREAM))
    except struct.error:
        raise FormatError(f"{where}: expected a table of batches in a foot of {len(foot)} bytes, got none") from None
    lengths = [count, count, 2 * count * buffers, count * nodes]
    expected = _HEADER.size + 8 * (sum(lengths) + -(-blocks // 2))
    if magic != _MAGIC or size != expected or size > len(foot) - len(END_OF_STREAM):
        raise FormatError(f"{where}: expected a table of batches in the foot, got something else")
    if block < BLOCK or block & (block - 1) or block > 1 << 40:
        raise FormatError(f"{where}: expected blocks of {BLOCK} bytes, or of a larger power of two, got {block}")
    if not count:
        raise FormatError(f"{where}: expected batches, got none")
    at = len(END_OF_STREAM) + _HEADER.size
    numbers = np.frombuffer(foot, "<i8", sum(lengths), at).astype(np.int64)  # a copy: they are often used
    stops = list(accumulate(lengths))
    rows, ends, spans, nulls = (numbers[stop - n : stop] for n, stop in zip(lengths, stops, strict=True))
    sums = np.require(np.frombuffer(foot, "<u4", blocks, at + numbers.nbytes), np.uint32, "A")
    table = FileTable(rows, ends, block, spans.reshape(count, buffers, 2), nulls.reshape(count, nodes), sums, schema)
    _check_table(table, end, where)
    return table


def check_counts(table: FileTable, file: DataFile, where: str) -> None:
    """Raise an error if a table contradicts the manifest."""
    if len(table) != file.count or table.total_rows != file.rows:
        raise FormatError(
            f"{where}: expected {file.count} batches with {file.rows} rows, got {len(table)} with {table.total_rows}"
        )


def _check_table(table: FileTable, end: int, where: str) -> None:
    """Raise an error for a table that contradicts itself."""
    if table.rows.min() < 1:
        raise FormatError(f"{where}: expected batches with rows, got one without")
    if np.any(table.rows > np.maximum(8 * (table.end - table.begin), _MOST_ROWS)):
        raise FormatError(
            f"{where}: expected batches with as many rows as their bytes can hold, got {table.rows.max()} rows"
        )
    if np.any(table.end <= table.begin) or table.end[-1] != end:
        raise FormatError(f"{where}: expected batches one after another up to byte {end}, got others")
    if len(table.sums) != (blocks := table.first_block[-1]):
        raise FormatError(f"{where}: expected checksums of {blocks} blocks, got {len(table.sums)}")
    if table.nulls.size and table.nulls.min() < 0:
        raise FormatError(f"{where}: expected counts of nulls, got negative ones")
    if (misplaced := _misplacement(table)).size and misplaced.min() < 0:
        bad = misplaced_buffers(table)[0]
        raise FormatError(f"{where}: expected all buffers inside their batches, got other ones in batch {bad}")


def _misplacement(table: FileTable) -> Integers:
    """Return a negative number for each buffer outside of the bytes of its batch, or not aligned to 8 bytes.

    The sign of a bitwise "or" is that of any negative operand. If none is negative, none has overflowed.
    """
    at, size = table.buffers[..., 0], table.buffers[..., 1]
    left = table.end[:, None] - at
    return at | size | (at - table.begin[:, None]) | left | (left - size) | -(at & 7)


def misplaced_buffers(table: FileTable) -> Integers:
    """Return the batches that have a buffer outside of their bytes, or not aligned to 8 bytes."""
    return np.flatnonzero((_misplacement(table) < 0).any(axis=1))


def table_of_layouts(
    rows: Sequence[int], end: Sequence[int], found: Sequence[ipc.BatchLayout | None], sums: Sequence[Sums | None]
) -> FileTable:
    """Return a table of batches of which layouts and checksums of blocks were found; None for those that are lost.

    A batch without a layout, or with one that leaves the batch, gets empty buffers.
    """
    bounds = np.array([0, *end], np.int64)
    counts = np.diff(_first_blocks(bounds[:-1], bounds[1:], BLOCK)).tolist()
    parts = [np.zeros(n, np.uint32) if one is None else one for n, one in zip(counts, sums, strict=True)]
    shapes = [(len(one.buffers), len(one.nulls)) for one in found if one is not None]
    buffers, nodes = shapes[0] if shapes else (0, 0)
    table = FileTable(
        rows=np.array(rows, np.int64),
        end=bounds[1:],
        block=BLOCK,
        buffers=np.zeros((len(found), buffers, 2), np.int64),
        nulls=np.zeros((len(found), nodes), np.int64),
        sums=np.concatenate([np.empty(0, np.uint32), *parts]),
    )
    for number, one in enumerate(found):
        if one is not None and (len(one.buffers), len(one.nulls)) == (buffers, nodes):
            table.buffers[number], table.nulls[number] = one.buffers, one.nulls
    bad = misplaced_buffers(table)
    table.buffers[bad, :, 0], table.buffers[bad, :, 1] = table.begin[bad, None], 0
    return table


def with_offset(layout: ipc.BatchLayout, body: int) -> ipc.BatchLayout:
    """Return a layout with the offsets of buffers in a file, of which the body of the batch begins at `body`."""
    return layout._replace(buffers=layout.buffers + np.array([body, 0]))
