"""`S3DataStore`: shards in a bucket of S3, or of a server that speaks its protocol."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shardex.compat.atdata._checksums import ShardWriteResult
from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._sources import S3Source
from shardex.compat.atdata.stores._disk import write_below
from shardex.errors import ArgumentError, storage_errors
from shardex.sources import open_source, storage

_KEYS = ("AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class S3DataStore:
    """Shards in a bucket: ``s3://BUCKET/PREFIX/data--NUMBER--000000.tar``, with a manifest beside each if asked for.

    `credentials` is a dict or an ``.env`` file with ``AWS_ENDPOINT``, ``AWS_ACCESS_KEY_ID`` and
    ``AWS_SECRET_ACCESS_KEY``.
    """

    def __init__(self, credentials: str | os.PathLike[str] | Mapping[str, Any], *, bucket: str) -> None:
        self.credentials = dict(credentials) if isinstance(credentials, Mapping) else _s3_env(credentials)
        self.bucket = bucket

    def write_shards(
        self, ds: Dataset[Any], *, prefix: str, cache_local: bool = False, **kwargs: Any
    ) -> ShardWriteResult:
        """Write the samples to new shards, and return their URLs, with checksums.

        Shards are made in a temporary folder; if one cannot be uploaded, those before it are removed. `cache_local` is
        accepted for compatibility.
        """
        folder = f"s3://{self.bucket}/{prefix}"
        storage(folder, **self.source([f"{folder}/0"]).storage_settings())
        place, sent = open_source(folder), list[str]()
        with tempfile.TemporaryDirectory() as here:
            written = write_below(Path(here), ds, prefix, kwargs)
            made = Path(here, prefix)
            try:
                for path in sorted(made.iterdir()):
                    sent.append(path.name)
                    place.put(path.name, np.memmap(path, np.uint8, "r"))
            except BaseException:
                place.remove_all(sent)
                raise
            urls = {one: f"{folder}/{Path(one).name}" for one in written}
        return ShardWriteResult(urls.values(), {urls[one]: digest for one, digest in written.checksums.items()})

    def source(self, urls: list[str]) -> S3Source:
        """Return the source of these shards, which reads them with the keys of this store."""
        names = {"endpoint": "ENDPOINT", "access_key": "ACCESS_KEY_ID", "secret_key": "SECRET_ACCESS_KEY"}
        given = {name: self.credentials.get(f"AWS_{key}") for name, key in (names | {"region": "REGION"}).items()}
        return S3Source.from_urls(urls, **given)

    def read_url(self, url: str) -> str:
        """Return the address of a shard at the endpoint of the credentials, if they have one."""
        endpoint = self.credentials.get("AWS_ENDPOINT")
        return f"{endpoint.rstrip('/')}/{url.removeprefix('s3://')}" if endpoint and url.startswith("s3://") else url

    def supports_streaming(self) -> bool:
        """Return True: shards are read where they are."""
        return True


def _s3_env(credentials_path: str | os.PathLike[str]) -> dict[str, str]:
    """Return the keys in an ``.env`` file: lines ``NAME=value``, with or without quotes and ``export``."""
    with storage_errors(credentials_path, "read"):
        lines = Path(credentials_path).read_text(encoding="utf-8").splitlines()
    pairs = [line.strip().removeprefix("export ").partition("=") for line in lines if line.strip()[:1] not in ("", "#")]
    found = {name.strip(): value.strip().strip("'\"") for name, _, value in pairs}
    if missing := [name for name in _KEYS if name not in found]:
        raise ArgumentError(f"Missing required keys in {credentials_path}: {', '.join(missing)}")
    return {name: found[name] for name in (*_KEYS, "AWS_REGION") if name in found}
