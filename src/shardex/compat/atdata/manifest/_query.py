"""Finds samples by a condition on the tables of manifests."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shardex.compat.atdata.manifest._manifest import (
    JSON_SUFFIX,
    KEY,
    OFFSET,
    PARQUET_SUFFIX,
    ShardManifest,
    exists,
    sidecar_of,
)
from shardex.compat.atdata.manifest._proxy import Predicate
from shardex.errors import NotFoundError, QueryError, storage_errors


@dataclass(frozen=True)
class SampleLocation:
    """Where a sample is: its shard, its key, and the offset of its packed bytes in the tar."""

    shard: str
    key: str
    offset: int


class QueryExecutor:
    """Finds samples in manifests."""

    def __init__(self, manifests: "Iterable[ShardManifest | _Stored]") -> None:
        self._manifests = list(manifests)

    def query(self, where: Callable[[Any], Any]) -> list[SampleLocation]:
        """Return the samples that fulfil a condition, in the order of the manifests.

        `where` is a `Predicate`, or a function of the table (a DataFrame) that returns a boolean for each row.
        """
        found: list[SampleLocation] = []
        for number, one in enumerate(self._manifests):
            if isinstance(where, Predicate) and not where.may_match(one.aggregates):
                continue  # without reading the table
            manifest = self._manifests[number] = one.manifest() if isinstance(one, _Stored) else one
            found += _matches(manifest, where)
        return found

    @classmethod
    def from_directory(cls, directory: str | os.PathLike[str]) -> Self:
        """Return an executor over all manifests in a folder."""
        with storage_errors(directory, "list"):
            names = sorted(name for name in os.listdir(directory) if name.endswith(JSON_SUFFIX))
        folder = os.fspath(directory)
        return cls(_manifests_of(os.path.join(folder, name.removesuffix(JSON_SUFFIX) + ".tar") for name in names))

    @classmethod
    def from_shard_urls(cls, shard_urls: Sequence[str]) -> Self:
        """Return an executor over the manifests of these shards; shards without a manifest are left out."""
        return cls(_manifests_of(shard_urls))


def query_shards(shard_urls: Sequence[str], where: Callable[[Any], Any]) -> list[SampleLocation]:
    """Return the samples of shards that fulfil a condition; `FileNotFoundError` for a shard without a manifest."""
    missing = [url for url in shard_urls if not exists(sidecar_of(url, JSON_SUFFIX))]
    if missing:
        count = f"{len(missing)} of {len(shard_urls)} shards have none"
        problem = f"expected a manifest beside every shard, {count}; write them with write_samples(..., manifest=True)"
        raise NotFoundError(errno.ENOENT, problem, sidecar_of(missing[0], JSON_SUFFIX))
    return QueryExecutor.from_shard_urls(shard_urls).query(where)


class _Stored:
    """A manifest whose table is read when a query needs it."""

    def __init__(self, header: str, table: str) -> None:
        self._header, self._table = header, table
        self.aggregates = ShardManifest.from_json_only(header).aggregates

    def manifest(self) -> ShardManifest:
        """Return the whole manifest."""
        return ShardManifest.from_files(self._header, self._table)


def _manifests_of(shards: Iterable[str]) -> Iterator[ShardManifest | _Stored]:
    for shard in shards:
        header, table = sidecar_of(shard, JSON_SUFFIX), sidecar_of(shard, PARQUET_SUFFIX)
        if exists(header):
            yield _Stored(header, table) if exists(table) else ShardManifest.from_json_only(header)


def _matches(manifest: ShardManifest, where: Callable[[Any], Any]) -> Iterator[SampleLocation]:
    samples = manifest.samples
    if samples.empty:
        if manifest.num_samples:
            raise QueryError(f"expected a row for each sample of {manifest.shard_id}, got a manifest without rows")
        return
    found = np.asarray(where(samples))
    if found.shape != (len(samples),):
        raise QueryError(f"expected a boolean for each of {len(samples)} rows, got an array of shape {found.shape}")
    matching = samples[found.astype(bool)]
    for key, offset in zip(matching[KEY].tolist(), matching[OFFSET].tolist(), strict=True):
        yield SampleLocation(manifest.shard_id, key, int(offset))
