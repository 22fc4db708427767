"""`AtmosphereIndex`: datasets and schemas of accounts, found by their addresses."""

import warnings
from collections.abc import Iterator
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._schema_codec import _schema_to_type
from shardex.compat.atdata._sources import S3Source
from shardex.compat.atdata.atmosphere._lexicon_types import (
    ShardChecksum,
    StorageBlobs,
    decode_metadata_raw,
    storage_from_record,
)
from shardex.compat.atdata.atmosphere._types import AtUri
from shardex.compat.atdata.atmosphere.client import Atmosphere
from shardex.compat.atdata.atmosphere.records import DatasetLoader, DatasetPublisher, cids_of, is_private, urls_of
from shardex.compat.atdata.atmosphere.schema import SchemaLoader, SchemaPublisher
from shardex.compat.atdata.atmosphere.store import PDS_TOTAL_DATASET_LIMIT_BYTES, PDSBlobStore, ShardUploadResult
from shardex.errors import ArgumentError


class AtmosphereIndexEntry:
    """A dataset of an account: its address and its record."""

    def __init__(self, uri: str, record: dict[str, Any], _client: Any = None) -> None:
        self._uri, self._record, self._client = uri, record, _client

    def __repr__(self) -> str:
        return f"AtmosphereIndexEntry({self.name!r}, {self._uri!r})"

    @property
    def name(self) -> str:
        """The name of the dataset."""
        return str(self._record.get("name", ""))

    @property
    def schema_ref(self) -> str:
        """The address of the schema."""
        return str(self._record.get("schemaRef", ""))

    @property
    def data_urls(self) -> list[str]:
        """The URLs of the shards."""
        if not (plain := self._record.get("storage")):
            return []
        if not isinstance(storage := storage_from_record(plain), StorageBlobs):
            return urls_of(storage)
        client, owner = self._client or Atmosphere(), AtUri.parse(self._uri).authority
        return [client.get_blob_url(owner, cid) for cid in cids_of(storage)]

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What was stored about the whole dataset."""
        return decode_metadata_raw(self._record.get("metadata"))

    @property
    def uri(self) -> str:
        """The address of the record."""
        return self._uri


class AtmosphereIndex:
    """Datasets and schemas on ATProto; `Index(atmosphere=client)` has them beside local ones."""

    def __init__(self, client: Any, *, data_store: PDSBlobStore | None = None) -> None:
        """With a `data_store` shards are uploaded to it; without one, those that are not on the web are blobs."""
        message = "AtmosphereIndex is deprecated. Use atdata.Index(atmosphere=client) instead"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.client, self._data_store = client, data_store
        self._schemas, self._datasets = SchemaLoader(client), DatasetLoader(client)

    @property
    def data_store(self) -> PDSBlobStore | None:
        """Where shards are uploaded."""
        return self._data_store

    def insert_dataset(
        self, ds: Dataset[Any], *, name: str, schema_ref: str | None = None, **kwargs: Any
    ) -> AtmosphereIndexEntry:
        """Publish a dataset; see `publish_dataset` for what `kwargs` may have."""
        options = {"data_store": self._data_store, **kwargs}
        uri = publish_dataset(self.client, ds, name=name, schema_ref=schema_ref, **options)
        return self.get_dataset(str(uri))

    def get_dataset(self, ref: str) -> AtmosphereIndexEntry:
        """Return the dataset at an address."""
        return AtmosphereIndexEntry(ref, self._datasets.get(ref), self.client)

    @property
    def datasets(self) -> Iterator[AtmosphereIndexEntry]:
        """All datasets of the own account."""
        return iter(self.list_datasets())

    def list_datasets(self, repo: str | None = None) -> list[AtmosphereIndexEntry]:
        """Return the datasets of an account, by default of the own one."""
        return [AtmosphereIndexEntry(*_parts(one), self.client) for one in self._datasets.list_all(repo=repo)]

    def publish_schema(self, sample_type: type[Any], *, version: str = "1.0.0", **kwargs: Any) -> str:
        """Publish the schema of a sample class, and return its address."""
        return str(SchemaPublisher(self.client).publish(sample_type, version=version, **kwargs))

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return the schema at an address, or that of ``@handle/Name@version``."""
        return self._schemas.get(ref)

    @property
    def schemas(self) -> Iterator[dict[str, Any]]:
        """All schemas of the own account."""
        return iter(self.list_schemas())

    def list_schemas(self, repo: str | None = None) -> list[dict[str, Any]]:
        """Return the schemas of an account, by default of the own one."""
        return [_parts(one)[1] for one in self._schemas.list_all(repo=repo)]

    def get_schema_type(self, ref: str) -> type[Any]:
        """Return a sample class made of a schema."""
        return _schema_to_type(self.get_schema(ref))

    def decode_schema(self, ref: str) -> type[Any]:
        """Return a sample class made of a schema: the name of `get_schema_type` in v0.2.3."""
        return self.get_schema_type(ref)


def _parts(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return address and content of a record of a list; those of an AppView are inside."""
    return str(getattr(record, "uri", "") or record.get("uri", "")), record.get("value") or record


def publish_dataset(
    client: Any,
    ds: Dataset[Any],
    *,
    name: str,
    schema_ref: str | None = None,
    data_store: Any = None,
    force: bool = False,
    copy: bool = False,
    metadata: dict[str, Any] | None = None,
    **about: Any,
) -> AtUri:
    """Publish a dataset with its schema, and return its address; `about` is description, tags and license.

    Shards on this machine are uploaded to `data_store`, by default as blobs of the account, of at most 1 GB together
    unless `force` is True; with `copy` those at URLs are uploaded too.
    """
    keys = isinstance(ds.source, S3Source) and bool(ds.source.access_key or ds.source.endpoint)
    if keys and not copy and data_store is None:
        raise ArgumentError(
            "expected shards that others can read, got a bucket with own keys or an own endpoint, which a public "
            "record would show: pass copy=True to copy the shards to blobs"
        )
    schema_ref = schema_ref or str(SchemaPublisher(client).publish(ds.sample_type))
    about |= {"name": name, "metadata": ds.metadata if metadata is None else metadata}
    publisher, urls = DatasetPublisher(client), ds.list_shards()
    if copy or data_store is not None or any(map(is_private, urls)):
        store = PDSBlobStore(client) if data_store is None else data_store
        limit = None if force else PDS_TOTAL_DATASET_LIMIT_BYTES
        options = {"limit": limit} if isinstance(store, PDSBlobStore) else {}
        urls = store.write_shards(ds, prefix=name, **options)
    if isinstance(urls, ShardUploadResult):
        sums = [ShardChecksum("sha256", urls.checksums[url]) for url in urls]
        return publisher.publish_with_blob_refs(urls.blob_refs, schema_ref, checksums=sums, **about)
    return publisher.publish_with_urls(urls, schema_ref, **about)
