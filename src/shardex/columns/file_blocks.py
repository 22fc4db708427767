"""Where the blocks of a data file are, for which checksums are stored, and the flags that say which were checked.

The table of a file (`BatchTable`) lists its batches and their blocks. One flag stands for each `BLOCK` bytes of a
file, a page of memory; a file may have larger blocks, and then several flags stand for each. `block_checks` reads and
sets them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.kernel import Bytes, Integers

BLOCK_SHIFT = 12
BLOCK = 1 << BLOCK_SHIFT
"""Bytes for which one flag stands, and size of the blocks that are written.

It is a page of memory, the least that a disk reads for a mapped file: a batch of 256 random rows of four fields of a
cold disk takes 16 ms, with blocks of 8 KiB 20 ms.
"""
FINISHED = 1 << 40
"""Stands for the number of checked blocks of a batch whose rest was checked at once."""


class BatchTable(Protocol):
    """Where the batches of a file are: rows, begin and end of each; its blocks, and the buffers and nulls in it."""

    @property
    def rows(self) -> Integers:
        """Rows of each batch."""

    @property
    def begin(self) -> Integers:
        """Begin of each batch in the file."""

    @property
    def end(self) -> Integers:
        """End of each batch in the file."""

    @property
    def block(self) -> int:
        """Size of the blocks that have a checksum, a multiple of `BLOCK`; they begin at its multiples in the file."""

    @property
    def first_block(self) -> Integers:
        """Number of the first block of each batch, and the number of all."""

    def extents(self, blocks: Integers) -> tuple[Integers, Integers]:
        """Return where blocks begin in the file, and their sizes: those at the ends of a batch are cut there."""

    @property
    def buffers(self) -> Integers:
        """Begin in the file and size of each buffer of each batch: batches x buffers x 2."""

    @property
    def nulls(self) -> Integers:
        """Number of nulls of each array: batches x nodes."""


class CheckedFile(Protocol):
    """A file with checksums of its blocks."""

    @property
    def where(self) -> str:
        """Its name for messages."""

    @property
    def table(self) -> BatchTable:
        """Its table, fetched and checked."""

    @property
    def schema(self) -> pa.Schema:
        """The columns whose buffers `table` lists."""

    @property
    def data(self) -> memoryview:
        """The mapped file; of a remote one only what was fetched while the view is held may be read."""

    def check_blocks(self, blocks: Integers, data: Bytes) -> None:
        """Compare the checksums of blocks of the mapped file; raise an error for the first one that differs."""

    def close(self) -> None:
        """Drop every view of the file."""


@dataclass(frozen=True)
class FileSizes:
    """What is known of files before they are opened: rows, batches, end of the last batch and size of each."""

    rows: Integers
    counts: Integers
    ends: Integers
    sizes: Integers


@dataclass(slots=True)
class OpenedFile:
    """A file whose table is known."""

    file: CheckedFile
    table: BatchTable
    first_flag: Integers
    """The first flag of each batch, counted from the first of the file, and the number of all."""
    data: Bytes | None = field(default=None)
    """The mapped file; None while it is closed."""
    checked: Integers = field(init=False)
    """How many blocks of each batch were checked, `FINISHED` if the rest was."""
    left: int = field(init=False)
    """Number of batches that are not finished."""

    unchecked: int = field(init=False)
    """Number of blocks that were not checked; threads may count a block twice."""

    def __post_init__(self) -> None:
        self.unchecked = int(self.first_flag[-1])
        self.left = len(self.first_flag) - 1
        self.checked = np.zeros(self.left, np.int64)

    def pages(self, batch: Integers, flags: Integers) -> Integers:
        """Return for which `BLOCK` bytes of the file flags stand, given their batches."""
        return (self.table.begin[batch] >> BLOCK_SHIFT) + flags - self.first_flag[batch]

    def blocks_of(self, flags: Integers) -> tuple[Integers, Integers]:
        """Return the blocks of a file for which flags stand, distinct, with the batch of each."""
        table = self.table
        batch = np.searchsorted(self.first_flag, flags, "right") - 1
        ratio, first = table.block >> BLOCK_SHIFT, table.begin[batch] // table.block
        which = table.first_block[batch] + self.pages(batch, flags) // ratio - first
        new = first_of_equals(which)  # flags are sorted, and so are the blocks
        return batch[new], which[new]

    def flags_of(self, batch: Integers, blocks: Integers) -> Integers:
        """Return all flags of these blocks."""
        begin, size = self.table.extents(blocks)
        first = begin >> BLOCK_SHIFT
        counts = (begin + size - 1 >> BLOCK_SHIFT) - first + 1
        firsts = self.first_flag[batch] + first - (self.table.begin[batch] >> BLOCK_SHIFT)
        return np.repeat(firsts - (np.cumsum(counts) - counts), counts) + np.arange(int(counts.sum()))


def distinct(numbers: Integers) -> Integers:
    """Return the distinct numbers, sorted; `np.unique` would import numpy.ma, which takes 12 ms.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    found: Integers = np.sort(numbers)
    return found[first_of_equals(found)]


def first_of_equals(numbers: Integers) -> NDArray[np.bool_]:
    """Return which numbers of a sorted array differ from the one before.

    >>> first_of_equals(np.array([1, 1, 3])).tolist()
    [True, False, True]
    """
    found = np.ones(len(numbers), np.bool_)
    found[1:] = numbers[1:] != numbers[:-1]
    return found
