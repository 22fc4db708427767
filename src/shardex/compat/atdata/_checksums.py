"""SHA-256 checksums of shards."""

import hashlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from shardex.compat.atdata._protocols import IndexEntry
from shardex.errors import ShardexError, storage_errors
from shardex.sources import absolute_path, is_local

_CHUNK = 1 << 20


def sha256_file(path: str | os.PathLike[str], *, chunk_size: int = 8192) -> str:
    """Return the SHA-256 checksum of a file as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    with storage_errors(path, "read"), open(path, "rb") as file:
        while chunk := file.read(max(chunk_size, _CHUNK)):
            digest.update(chunk)
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """Return the SHA-256 checksum of bytes as 64 hexadecimal digits.

    >>> sha256_bytes(b"hello")[:16]
    '2cf24dba5fb0a30e'
    """
    return hashlib.sha256(data).hexdigest()


class ShardWriteResult(list[str]):
    """The URLs of shards that were written, with the checksum of each.

    >>> ShardWriteResult(["a.tar"], {"a.tar": "2cf2"}).checksums
    {'a.tar': '2cf2'}
    """

    checksums: dict[str, str]

    def __init__(self, urls: Iterable[str], checksums: Mapping[str, str]) -> None:
        super().__init__(urls)
        self.checksums = dict(checksums)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self), self.checksums)


def verify_checksums(entry: IndexEntry) -> dict[str, str]:
    """Compare the shards of an entry with the checksums in its metadata.

    The result for each shard is "ok", "mismatch", "skipped" (it has no checksum, or is not local) or "error:" with the
    reason.
    """
    stored = (entry.metadata or {}).get("checksums") or {}
    return {url: _verified(url, stored.get(url)) for url in entry.data_urls}


def _verified(url: str, stored: str | None) -> str:
    if stored is None or not is_local(url):
        return "skipped"
    try:
        return "ok" if sha256_file(absolute_path(url)) == stored else "mismatch"
    except ShardexError as error:
        return f"error:{error}"
