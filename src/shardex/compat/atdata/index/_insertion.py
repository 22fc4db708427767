"""`insert`: puts a dataset into the database of an index."""

import json
from contextlib import suppress
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._logging import get_logger
from shardex.compat.atdata._protocols import AbstractDataStore
from shardex.compat.atdata.index._entry import LocalDatasetEntry
from shardex.compat.atdata.index._schema import _build_schema_record, _parse_schema_ref, _schema_ref_from_type
from shardex.compat.atdata.providers import IndexProvider
from shardex.errors import ArgumentError
from shardex.files import expand_braces


def insert(
    ds: Dataset[Any],
    name: str,
    provider: IndexProvider,
    store: AbstractDataStore | None,
    schema_ref: str | None,
    metadata: dict[str, Any] | None,
    *,
    version: str | None = None,
    description: str | None = None,
    **options: Any,
) -> LocalDatasetEntry:
    """Store the shards, the schema if it is new, the entry, and a label with its name."""
    ref = schema_ref or _schema_ref_from_type(ds.sample_type, "1.0.0")
    parsed = _parse_schema_ref(ref)
    record = None if provider.get_schema_json(*parsed) else _build_schema_record(ds.sample_type, version=parsed[1])
    urls = _referenced(ds) if store is None else store.write_shards(ds, **options)
    if checksums := getattr(urls, "checksums", None):
        metadata = {**(metadata or {}), "checksums": checksums}
    if record is not None:
        provider.store_schema(*parsed, json.dumps(record))
    entry = LocalDatasetEntry(name, ref, list(urls), metadata)
    with suppress(KeyError):
        if (before := provider.get_entry_by_cid(entry.cid).name) != name:
            get_logger().warning("the dataset %s has the same shards, and becomes the dataset %s", before, name)
    provider.store_entry(entry)
    provider.store_label(name, entry.cid, version, description)
    return entry


def _referenced(ds: Dataset[Any]) -> list[str]:
    """Return the pattern of the shards of a dataset, or all of them where it does not name them."""
    if ds._added is not None:
        raise ArgumentError(
            "expected the samples of shards as they are, got those of filter, map or as_type: write them with "
            "data_store= or copy=True"
        )
    shards = ds.list_shards()
    return [ds.url] if expand_braces(ds.url) == shards else shards
