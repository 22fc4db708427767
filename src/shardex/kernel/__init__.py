"""Room `kernel`: copy many byte ranges of many buffers into columns; the lowest room.

In come buffers (mapped files, Arrow buffers) in a `Segments` table and the position of values in them; out come numpy
arrays, `Ragged` arrays and lists, one column per field (`Columns`). Files, formats and schemas are unknown here.

A read makes `Ranges` of row numbers (`row_ranges`, `locate`) and copies them in one call of the kernel: C code that
releases the GIL, or numpy code with the same results (``SHARDEX_KERNEL=numpy``).

- `buffers`: tables of numbered buffers, opened and fetched on demand; choice of the kernel
- `gather`: ranges and rows copied out of tables
- `_gather.c`, `numpy_kernel`: the two kernels
- `columns`: the columns that reads return
- `array_pool`: reused memory for large arrays
- `fingerprint`: fingerprints of any value
"""

from shardex.kernel.array_pool import pooled_empty
from shardex.kernel.buffers import Fetch, Integers
from shardex.kernel.columns import MISSING, Column, Columns, Ragged, value_mask
from shardex.kernel.fingerprint import digest
from shardex.kernel.gather import Bytes, Ranges, Segments, line_ends, locate, permute, row_ranges, take, value_reader

__all__ = [
    "MISSING",
    "Bytes",
    "Column",
    "Columns",
    "Fetch",
    "Integers",
    "Ragged",
    "Ranges",
    "Segments",
    "digest",
    "line_ends",
    "locate",
    "permute",
    "pooled_empty",
    "row_ranges",
    "take",
    "value_mask",
    "value_reader",
]
