"""A SQLite table and tars for each field, the format of synthefy-dataset-utils: a dataset, or changed in place."""

from shardex.compat.formats.columns_tar.lookup import ColumnsLookup, StoredSample
from shardex.compat.formats.columns_tar.session import ColumnsSession, NewShard
from shardex.compat.formats.columns_tar.table import TableError, metadata_json

__all__ = [
    "ColumnsLookup",
    "ColumnsSession",
    "NewShard",
    "StoredSample",
    "TableError",
    "metadata_json",
]
