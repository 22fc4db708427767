"""Copies many byte ranges of many buffers into columns, in one call.

In: buffers (memory-mapped files, Arrow buffers) in a `Segments` table, and the rows or byte ranges to copy. Out: one
column for each field (`Columns`): a numpy array, a `Ragged` array, one of these with a mask (`Masked`), or a list.
Other rooms handle files and schemas.

`row_ranges` and `locate` turn row numbers into byte `Ranges`; the kernel copies them: C code that releases the GIL, or
numpy code with the same results where it was not built (then with a warning) or with ``SHARDEX_KERNEL=numpy``.

- `buffers`: tables of numbered buffers that are opened and fetched on demand; chooses the kernel
- `gather`: copies ranges and rows out of a table; which blocks of a read are not checked yet; xxh3-64 of many ranges
- `packing`: cuts a stream into pieces, puts items into bins and groups
- `json_lines`: parses lines of JSON into columns
- `_gather.c` with the files that it includes; `numpy_kernel` with `numpy_pieces`: the two kernels
- `_collect.c`: copies samples that are written into buffers
- `columns`: the columns that reads return; `ragged`: arrays of different shapes
- `array_pool`: reuses the memory of large arrays
- `threads`: how many threads a call may use
- `write_behind`, `_write_behind.c`: writes to a file in a thread, with checksums of its blocks
- `fingerprint`: hashes any value, to recognise data that changed
"""

from shardex.kernel import gather, json_lines, packing
from shardex.kernel.array_pool import allocating, keep_freed_memory, pooled_empty
from shardex.kernel.buffers import KERNEL, Bytes, Fetch, FetchedSegments, Integers, Segments, collect_kernel
from shardex.kernel.columns import (
    MISSING,
    Column,
    Columns,
    Masked,
    TimeArray,
    byte_size,
    is_tensor,
    missing_value,
    values_of,
    with_missing,
)
from shardex.kernel.fingerprint import digest
from shardex.kernel.gather import Ranges, locate, row_ranges, take, unchecked_ranges, value_reader
from shardex.kernel.ragged import Ragged, arrays_of, ends_of, value_mask
from shardex.kernel.threads import cores, set_threads, threads
from shardex.kernel.write_behind import BlockWriter

__all__ = [
    "KERNEL",
    "MISSING",
    "BlockWriter",
    "Bytes",
    "Column",
    "Columns",
    "Fetch",
    "FetchedSegments",
    "Integers",
    "Masked",
    "Ragged",
    "Ranges",
    "Segments",
    "TimeArray",
    "allocating",
    "arrays_of",
    "byte_size",
    "collect_kernel",
    "cores",
    "digest",
    "ends_of",
    "gather",
    "is_tensor",
    "json_lines",
    "keep_freed_memory",
    "locate",
    "missing_value",
    "packing",
    "pooled_empty",
    "row_ranges",
    "set_threads",
    "take",
    "threads",
    "unchecked_ranges",
    "value_mask",
    "value_reader",
    "values_of",
    "with_missing",
]
