"""The room kernel."""

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
