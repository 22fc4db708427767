"""Which rows lie in which chunk of a table: the arithmetic under the fields of mapped batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardex.kernel import Integers, Ranges, Segments

__all__ = ["Chunks"]


class Chunks:
    """Runs of rows from `starts[k]` to `starts[k + 1]`; `open(k)` must fill the segments of run k, `name(k)` names it.

    >>> chunks = Chunks(np.array([0, 3, 4]), print, "chunk {}".format)
    >>> chunks.of(np.array([3, 0])).tolist(), chunks.rows_in(0)
    ([1, 0], 3)
    """

    __slots__ = ("_made", "far", "name", "open", "starts")

    def __init__(
        self, starts: Integers, open: Callable[[int], None], name: Callable[[int], str], far: bool = False
    ) -> None:
        self.starts = starts
        self.open = open
        self.name = name
        self.far = far
        """Whether chunks lie in files that may have to be let go: `forget` closes them."""
        self._made: list[Segments] = []

    def of(self, rows: Integers) -> Integers:
        """The chunk that each row lies in."""
        return np.searchsorted(self.starts, rows, "right") - 1

    def rows_in(self, chunk: int) -> int:
        """How many rows a chunk has."""
        return int(self.starts[chunk + 1] - self.starts[chunk])

    def segments(self) -> Segments:
        """A table of one buffer per chunk, opened with the chunk."""
        made = Segments(len(self.starts) - 1, self.open, self.name, forgets=self.far)
        self._made.append(made)
        return made

    def forget(self, chunk: int) -> None:
        """Close the segments of a chunk; reads that look at them keep them until they have ended."""
        for one in self._made:
            one.forget(chunk)

    def bits(self, segments: Segments, rows: Integers) -> NDArray[np.bool_]:
        """The bit of each row, in buffers that hold one for each."""
        packed, _ = self.bytes_of_bits(segments, rows).packed()
        local = rows - self.starts[self.of(rows)]
        return ((packed >> (local & 7).astype(np.uint8)) & 1).astype(np.bool_)

    def bytes_of_bits(self, segments: Segments, rows: Integers) -> Ranges:
        """The byte that the bit of each row lies in."""
        chunk = self.of(rows)
        return Ranges(segments, chunk, (rows - self.starts[chunk]) >> 3, np.ones(len(rows), np.int64))
