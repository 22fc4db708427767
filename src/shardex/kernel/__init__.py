"""The room kernel."""

from shardex.kernel.array_pool import empty
from shardex.kernel.buffers import Fetch, Integers
from shardex.kernel.columns import MISSING, Column, Columns, Ragged, within
from shardex.kernel.fingerprint import digest
from shardex.kernel.gather import Bytes, Ranges, Segments, line_ends, locate, one_value, permute, spread, take

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
    "empty",
    "line_ends",
    "locate",
    "one_value",
    "permute",
    "spread",
    "take",
    "within",
]
