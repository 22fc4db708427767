"""Stores of shards: a folder of this machine (`_disk`), a bucket (`_s3`)."""

from shardex.compat.atdata.stores._disk import LocalDiskStore
from shardex.compat.atdata.stores._s3 import S3DataStore

__all__ = ["LocalDiskStore", "S3DataStore"]
