"""Stores of shards, which wait for the catalog."""

from shardex.compat.atdata._waiting import WRITING, Waiting

__all__ = ["LocalDiskStore", "S3DataStore"]


class LocalDiskStore(Waiting, instead=WRITING, methods="root write_shards read_url supports_streaming"):
    """Shards in a folder of this machine."""


class S3DataStore(
    Waiting,
    instead='shardex.write("s3://bucket/name", dataset, format="tar"), and S3Source to read',
    methods="write_shards read_url supports_streaming",
):
    """Shards in a bucket."""
