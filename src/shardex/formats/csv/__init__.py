"""CSV and TSV files: an index of records, cells parsed as Arrow columns whose types are found over all records."""

from shardex.formats.csv.format import CsvRows, open

__all__ = [
    "CsvRows",
    "open",
]
