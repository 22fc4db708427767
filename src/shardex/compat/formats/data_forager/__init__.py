"""The index of data-forager over files of lines or tokens: read as a dataset, written, and made for files anywhere."""

from shardex.compat.formats.data_forager.index import (
    IndexRecord,
    IndexTable,
    SampleBytes,
    decompressed_lines,
    find_lines_of,
    load_locations,
    load_schema,
    open_samples,
    state_of,
)
from shardex.compat.formats.data_forager.samples import ArraySpec, SampleSchema, resolved

__all__ = [
    "ArraySpec",
    "IndexRecord",
    "IndexTable",
    "SampleBytes",
    "SampleSchema",
    "decompressed_lines",
    "find_lines_of",
    "load_locations",
    "load_schema",
    "open_samples",
    "resolved",
    "state_of",
]
