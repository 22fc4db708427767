"""Files of raw numbers as windows or as samples of stored lengths."""

from shardex.formats.tokens.files import STREAMS
from shardex.formats.tokens.format import DTYPES, checked_dtype, dtype_of_names

__all__ = [
    "DTYPES",
    "STREAMS",
    "checked_dtype",
    "dtype_of_names",
]
