"""`PDSBlobStore`: shards as blobs on the server of an account."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardex.compat.atdata._checksums import sha256_bytes
from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._sources import BlobSource
from shardex.compat.atdata.atmosphere.client import Atmosphere
from shardex.compat.atdata.atmosphere.records import PublishedBlobs
from shardex.errors import ArgumentError

__all__ = ["PDS_BLOB_LIMIT_BYTES", "PDS_TOTAL_DATASET_LIMIT_BYTES", "PDSBlobStore", "ShardUploadResult"]

PDS_BLOB_LIMIT_BYTES, PDS_TOTAL_DATASET_LIMIT_BYTES = 50_000_000, 1_000_000_000
"""Limits of a shard and of a dataset, for inserts into an index."""

_MOST_READ = 60_000_000
"""More than any server takes as one blob: what is larger is refused by its size, and not read to the end."""


class ShardUploadResult(list[str]):
    """The addresses of uploaded shards, with their references and SHA-256 by address."""

    def __init__(
        self, urls: Sequence[str], blob_refs: Sequence[dict[str, Any]], checksums: dict[str, str] | None = None
    ) -> None:
        super().__init__(urls)
        self.blob_refs = list(blob_refs)
        self.checksums = checksums or {}


@dataclass
class PDSBlobStore:
    """Stores shards as blobs of an account.

    A server forgets blobs that no record refers to: publish one soon (`DatasetPublisher.publish_with_blob_refs`).
    """

    client: Any

    def write_shards(
        self,
        ds: Dataset[Any],
        *,
        prefix: str,
        limit: int | None = None,
        **kwargs: Any,
    ) -> ShardUploadResult:
        """Upload the shards of a dataset as they are, and return their addresses ``at://did/blob/cid``.

        Raises before the upload that would make them larger than `limit` bytes together. Blobs have no folders, so
        `prefix` is not used; nor are `maxcount` and `maxsize` of v0.2.3, as no new shards are written.
        """
        self.client._ensure_authenticated()
        if not (names := ds.list_shards()):
            raise ArgumentError("No shards to upload: expected a dataset with at least one shard")
        refs, checksums, total = list[dict[str, Any]](), dict[str, str](), 0
        for name in names:
            with ds.source.open_shard(name) as stream:
                data = stream.read(_MOST_READ)
            total += len(data)
            if limit is not None and total > limit:
                raise ArgumentError(
                    f"Dataset exceeds atmosphere limit ({limit} bytes). Pass force=True to bypass, or copy the shards "
                    "to a bucket and publish their URLs"
                )
            ref = self.client.upload_blob(data, mime_type="application/x-tar")
            refs.append(ref)
            checksums[f"at://{self.client.did}/blob/{ref['ref']['$link']}"] = sha256_bytes(data)
        urls = [f"at://{self.client.did}/blob/{one['ref']['$link']}" for one in refs]
        return ShardUploadResult(urls, refs, checksums)

    def read_url(self, url: str) -> str:
        """Return the web address of a blob; other URLs are returned as they are."""
        return self.client.get_blob_url(*_parts(url)) if url.startswith("at://") else url

    def supports_streaming(self) -> bool:
        """Return whether shards can be read without downloading them first."""
        return True

    def create_source(self, urls: Sequence[str]) -> BlobSource:
        """Return a source of these blobs."""
        blobs = [*map(_parts, urls)]
        if isinstance(self.client, Atmosphere):
            return PublishedBlobs.of(self.client, blobs)
        return BlobSource([{"did": did, "cid": cid} for did, cid in blobs])


def _parts(url: str) -> tuple[str, str]:
    """Return the DID and the CID in the address of a blob."""
    did, *rest = url.removeprefix("at://").split("/")
    if not url.startswith("at://"):
        raise ArgumentError(f"Not an AT URI: {url}")
    if len(rest) != 2 or rest[0] != "blob":
        raise ArgumentError(f"Invalid blob AT URI: expected at://did/blob/cid, got {url}")
    return did, rest[1]
