"""`Repo`: shards in a folder of a bucket and entries in Redis, the index of old versions."""

import os
import posixpath
import secrets
import warnings
from collections.abc import Mapping
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata.index import Index, LocalDatasetEntry
from shardex.compat.atdata.stores import S3DataStore
from shardex.errors import ArgumentError
from shardex.features import codecs
from shardex.sources import open_source


class Repo:
    """An index in Redis whose datasets are copied to a folder of a bucket: use `Index` with `S3DataStore`."""

    def __init__(
        self,
        s3_credentials: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        hive_path: str | os.PathLike[str] | None = None,
        redis: Any = None,
    ) -> None:
        """`hive_path` is the bucket and the folder: ``bucket/folder``."""
        warnings.warn("Repo is deprecated. Use Index with S3DataStore instead", DeprecationWarning, stacklevel=2)
        self.hive_path, self._store = "" if hive_path is None else os.fspath(hive_path), None
        self.hive_bucket, _, self._folder = self.hive_path.partition("/")
        if s3_credentials is not None:
            if not self.hive_bucket:
                raise ArgumentError("Must specify hive path within bucket, such as 'bucket/folder'")
            self._store = S3DataStore(s3_credentials, bucket=self.hive_bucket)
        self.s3_credentials = None if self._store is None else self._store.credentials
        self.index = Index(redis=redis, atmosphere=None) if redis is not None else Index("redis", atmosphere=None)

    def insert(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        cache_local: bool = False,
        schema_ref: str | None = None,
        **kwargs: Any,
    ) -> tuple[LocalDatasetEntry, Dataset[Any]]:
        """Copy a dataset to the bucket and add it under a name; return its entry and the copy."""
        if self._store is None:
            raise ArgumentError("S3 credentials required for insert(). Initialize Repo with s3_credentials.")
        prefix = posixpath.join(self._folder, f"atdata--{secrets.token_hex(8)}")
        metadata, metadata_url = ds.metadata, None
        options = {"data_store": self._store, "prefix": prefix, "cache_local": cache_local, **kwargs}
        entry: Any = self.index.insert_dataset(ds, name=name, schema_ref=schema_ref, metadata=metadata, **options)
        if metadata is not None:
            folder = f"s3://{self.hive_bucket}/{prefix}"
            open_source(folder).put("metadata.msgpack", codecs.MSGPACK.encode(metadata))
            metadata_url = f"{folder}/metadata.msgpack"
        typed: Any = Dataset
        return entry, typed[ds.sample_type](self._store.source(entry.data_urls), metadata_url)
