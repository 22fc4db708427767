"""Datasets as records: their names, their schemas, and where their shards are."""

import dataclasses
import hashlib
import io
from collections.abc import Sequence
from typing import IO, Any, Self, TypeVar

from shardex.catalog import Account
from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._exceptions import SchemaError
from shardex.compat.atdata._protocols import DataSource, Packable
from shardex.compat.atdata._samples import DictSample
from shardex.compat.atdata._schema_codec import _schema_to_type
from shardex.compat.atdata._sources import BlobSource, UntrustedURLs, URLSource
from shardex.compat.atdata.atmosphere._lexicon_types import (
    BlobEntry,
    DatasetMetadata,
    HttpShardEntry,
    LexDatasetEntry,
    S3ShardEntry,
    ShardChecksum,
    StorageBlobs,
    StorageHttp,
    StorageS3,
    StorageUnion,
    decode_metadata_raw,
    storage_from_record,
    storage_kind,
)
from shardex.compat.atdata.atmosphere._publishing import Loader, Publisher
from shardex.compat.atdata.atmosphere._types import AtUri
from shardex.compat.atdata.atmosphere.client import Atmosphere, client_of
from shardex.compat.atdata.atmosphere.schema import SchemaLoader, SchemaPublisher
from shardex.errors import AddressError, ArgumentError, FormatError
from shardex.files import expand_braces
from shardex.sources import is_local

__all__ = ["DatasetLoader", "DatasetPublisher"]

ST = TypeVar("ST")


class DatasetPublisher(Publisher):
    """Publishes datasets."""

    PROCEDURE = "publishDataset"

    def publish(
        self,
        dataset: Dataset[Any],
        *,
        name: str,
        schema_uri: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,
        auto_publish_schema: bool = True,
        schema_version: str = "1.0.0",
        metadata_schema_uri: str | None = None,
        auto_publish_metadata_schema: bool = True,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish a dataset whose shards are at URLs that others can read, and the schemas that it needs."""
        urls = checked_urls(dataset.list_shards())
        if schema_uri is None and not auto_publish_schema:
            raise ArgumentError("schema_uri is required when auto_publish_schema=False")
        schemas, content = SchemaPublisher(self.client), dataset.content_metadata
        if schema_uri is None:
            schema_uri = str(schemas.publish(dataset.sample_type, version=schema_version))
        if isinstance(content, Packable):
            if metadata_schema_uri is None and auto_publish_metadata_schema:
                metadata_schema_uri = str(schemas.publish(type(content), version=schema_version))
            content = dataclasses.asdict(content)  # type: ignore[call-overload]
        return self.publish_with_urls(
            urls,
            schema_uri,
            name=name,
            description=description,
            tags=tags,
            license=license,
            metadata=dataset.metadata,
            metadata_schema_ref=metadata_schema_uri if content is not None else None,
            content_metadata=content,
            rkey=rkey,
        )

    def publish_with_urls(
        self,
        urls: list[str],
        schema_uri: str,
        *,
        name: str,
        checksums: list[ShardChecksum] | None = None,
        rkey: str | None = None,
        **about: Any,
    ) -> AtUri:
        """Publish a dataset of shards at URLs.

        `about` has description, tags, license, metadata (a flat dict), content_metadata and metadata_schema_ref.
        """
        checked = _checksums(checksums, checked_urls(urls), "urls")
        return self._publish(StorageHttp([*map(HttpShardEntry, urls, checked)]), name, schema_uri, rkey, **about)

    def publish_with_s3(
        self,
        bucket: str,
        keys: list[str],
        schema_uri: str,
        *,
        name: str,
        region: str | None = None,
        endpoint: str | None = None,
        checksums: list[ShardChecksum] | None = None,
        rkey: str | None = None,
        **about: Any,
    ) -> AtUri:
        """Publish a dataset of shards in a bucket, without keys of access; `about` as `publish_with_urls`."""
        shards = [*map(S3ShardEntry, keys, _checksums(checksums, keys, "keys"))]
        return self._publish(StorageS3(bucket, shards, region, endpoint), name, schema_uri, rkey, **about)

    def publish_with_blob_refs(
        self,
        blob_refs: list[dict[str, Any]],
        schema_uri: str,
        *,
        name: str,
        checksums: list[ShardChecksum] | None = None,
        rkey: str | None = None,
        **about: Any,
    ) -> AtUri:
        """Publish a dataset of blobs, whose references `Atmosphere.upload_blob` has returned; `about` as above."""
        blobs = [*map(BlobEntry, blob_refs, _checksums(checksums, blob_refs, "blob_refs"))]
        return self._publish(StorageBlobs(blobs), name, schema_uri, rkey, **about)

    def publish_with_blobs(
        self,
        blobs: list[bytes],
        schema_uri: str,
        *,
        name: str,
        mime_type: str = "application/x-tar",
        rkey: str | None = None,
        **about: Any,
    ) -> AtUri:
        """Upload the bytes of shards as blobs, and publish a dataset of them; `about` as `publish_with_urls`."""
        refs = [self.client.upload_blob(one, mime_type) for one in blobs]
        checksums = [ShardChecksum("sha256", hashlib.sha256(one).hexdigest()) for one in blobs]
        return self.publish_with_blob_refs(refs, schema_uri, name=name, checksums=checksums, rkey=rkey, **about)

    def _publish(
        self,
        storage: StorageUnion,
        name: str,
        schema_uri: str,
        rkey: str | None,
        *,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,
        metadata: DatasetMetadata | dict[str, Any] | None = None,
        metadata_schema_ref: str | None = None,
        content_metadata: dict[str, Any] | None = None,
    ) -> AtUri:
        entry = LexDatasetEntry(name, schema_uri, storage, description=description, tags=tags or [], license=license)
        entry.metadata = DatasetMetadata.from_dict(metadata) if isinstance(metadata, dict) else metadata
        entry.metadata_schema_ref, entry.content_metadata = metadata_schema_ref, content_metadata
        return self._create(entry, rkey)


def checked_urls(urls: Sequence[str]) -> list[str]:
    """Return the addresses of shards if there are some, and others can read them."""
    if not urls:
        raise ArgumentError("Dataset has no storage URLs: expected at least one shard, got none")
    if private := [*filter(is_private, urls)]:
        raise ArgumentError(
            "expected URLs that others can read, as records on ATProto are public, got the local path "
            f"{private[0]!r:.200}: upload the shards as blobs (PDSBlobStore), or copy them to a bucket or a web server"
        )
    return list(urls)


def _checksums(checksums: list[ShardChecksum] | None, shards: Sequence[Any], called: str) -> list[ShardChecksum]:
    """Return a checksum for each shard; "none" for those that are not known."""
    if checksums and len(checksums) != len(shards):
        raise ArgumentError(f"checksums length ({len(checksums)}) must match {called} length ({len(shards)})")
    return checksums or [ShardChecksum("none", "") for _ in shards]


class DatasetLoader(Loader):
    """Loads datasets, whatever storage they have."""

    KIND, CALLED, TYPE = "entry", "dataset", LexDatasetEntry

    def get(self, uri: str | AtUri) -> dict[str, Any]:
        """Return the record of a dataset."""
        found = self._from_appview("getEntry", uri=str(uri))
        if found is None:
            return super().get(uri)
        return self._checked(found.get("record") or found.get("value") or found, uri)

    def get_typed(self, uri: str | AtUri) -> LexDatasetEntry:
        """Return the record of a dataset as a `LexDatasetEntry`."""
        return LexDatasetEntry.from_record(self.get(uri))

    def list_all(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the datasets of an account, by default of the own one."""
        found = self._all_from_appview("listEntries", "entries", repo, limit)
        return self.client.list_datasets(repo=repo, limit=limit) if found is None else found

    def get_storage_type(self, uri: str | AtUri) -> str:
        """Return "http", "s3", "blobs", or "external" for URLs in a record of an old version."""
        return storage_kind(self.get(uri).get("storage") or {})

    def get_urls(self, uri: str | AtUri) -> list[str]:
        """Return the URLs of the shards."""
        return urls_of(storage_from_record(self.get(uri).get("storage") or {}))

    def get_s3_info(self, uri: str | AtUri) -> dict[str, Any]:
        """Return bucket, keys, region and endpoint."""
        storage = storage_from_record(plain := self.get(uri).get("storage") or {})
        if not isinstance(storage, StorageS3):
            raise SchemaError(f"Dataset does not use S3 storage. Storage type: {plain.get('$type')}")
        keys = [one.key for one in storage.shards]
        return {"bucket": storage.bucket, "keys": keys, "region": storage.region, "endpoint": storage.endpoint}

    def get_blobs(self, uri: str | AtUri) -> list[dict[str, Any]]:
        """Return the blobs as the record has them."""
        storage: dict[str, Any] = self.get(uri).get("storage") or {}
        if storage_kind(storage) != "blobs":
            kind = f"Storage type: {storage.get('$type')}. Use get_urls() instead."
            raise SchemaError(f"Dataset does not use blob storage. {kind}")
        return list(storage.get("blobs") or [])

    def get_blob_urls(self, uri: str | AtUri) -> list[str]:
        """Return the URLs of the blobs."""
        if (found := self._from_appview("resolveBlobs", uris=[str(uri)])) is not None:
            return [one["url"] for one in found.get("blobs", []) if one.get("url") and "error" not in one]
        owner = AtUri.parse(str(uri)).authority
        return [self.client.get_blob_url(owner, cid) for cid in cids_of(storage_from_record(self.get(uri)["storage"]))]

    def get_metadata(self, uri: str | AtUri) -> dict[str, Any] | None:
        """Return the metadata as a flat dict."""
        return decode_metadata_raw(self.get(uri).get("metadata"))

    def get_metadata_typed(self, uri: str | AtUri) -> DatasetMetadata | None:
        """Return the metadata as `DatasetMetadata`."""
        return self.get_typed(uri).metadata

    def get_content_metadata(self, uri: str | AtUri) -> dict[str, Any] | None:
        """Return what was stored about the content."""
        return self.get(uri).get("contentMetadata")

    def get_metadata_schema_ref(self, uri: str | AtUri) -> str | None:
        """Return the address of the schema of `get_content_metadata`."""
        return self.get(uri).get("metadataSchemaRef")

    def to_dataset(self, uri: str | AtUri, sample_type: type[ST]) -> Dataset[ST]:
        """Return the dataset with samples of a class; URLs of other people's records must be public."""
        return dataset_of(self.client, str(uri), self.get(uri), sample_type)


def urls_of(storage: StorageUnion) -> list[str]:
    """Return the URLs of shards that are no blobs."""
    if isinstance(storage, StorageBlobs):
        raise SchemaError("Dataset uses blob storage, not URLs. Use get_blob_urls() instead.")
    if isinstance(storage, StorageHttp):
        return [one.url for one in storage.shards]
    place = f"{storage.endpoint.rstrip('/')}/{storage.bucket}" if storage.endpoint else f"s3://{storage.bucket}"
    return [f"{place}/{one.key}" for one in storage.shards]


def cids_of(storage: StorageUnion) -> list[str]:
    """Return the identifiers of blobs."""
    if not isinstance(storage, StorageBlobs):
        raise SchemaError("Dataset does not use blob storage. Use get_urls() instead.")
    refs = [one.blob.get("ref") for one in storage.blobs]
    found = [ref.get("$link") if isinstance(ref, dict) else ref for ref in refs]
    if wrong := [one for one in found if not isinstance(one, str)]:
        raise SchemaError(f"expected blobs with a reference to a CID, got {wrong[0]!r:.100}")
    return [*map(str, found)]


def dataset_of(client: Any, uri: str, record: dict[str, Any], sample_type: Any = None) -> Dataset[Any]:
    """Return the dataset of a record; without a class, with samples of the class of its schema."""
    storage, owner = storage_from_record(record.get("storage") or {}), AtUri.parse(uri).authority
    if isinstance(storage, StorageBlobs):
        source: DataSource = PublishedBlobs.of(client, [(owner, cid) for cid in cids_of(storage)])
    else:
        mine = client.is_authenticated and owner in (client.did, client.handle)
        kind = URLSource if mine else UntrustedURLs
        source = kind.of([one for url in _public(urls_of(storage), uri) for one in expand_braces(url)])
    if not source.list_shards():
        raise FormatError(f"Dataset record at {uri} has no storage URLs")
    if sample_type is None:
        schema = record.get("schemaRef")
        sample_type = _schema_to_type(SchemaLoader(client).get(schema)) if schema else DictSample
    typed: Any = Dataset
    made: Dataset[Any] = typed[sample_type](source)
    made._content_metadata = record.get("contentMetadata")
    return made


def _public(urls: list[str], uri: str) -> list[str]:
    """Return the URLs of a record if they are no paths of files of this machine."""
    for url in urls:
        if is_private(url):
            raise AddressError(f"{uri}: expected the URL of a shard, got the local path {url!r:.200}")
    return urls


def is_private(url: str) -> bool:
    """Return True for the address of a file that only this machine can read."""
    return is_local(url) or url.startswith(("memory://", "file:"))


@dataclasses.dataclass
class PublishedBlobs(BlobSource):
    """Blobs of accounts, which are checked against their CIDs when they are read."""

    accounts: dict[str, Account] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, client: Atmosphere, blobs: Sequence[tuple[str, str]]) -> Self:
        """Return the source of blobs, by the handle or DID of their owners and their CIDs."""
        owners = {name: client.account_of(name) for name, _ in blobs}
        refs = [{"did": owners[name].did, "cid": cid} for name, cid in blobs]
        return cls(refs, accounts={one.did: one for one in owners.values()})

    def _endpoint(self, did: str) -> str:
        return self.accounts[did].server

    def open_shard(self, shard_id: str) -> IO[bytes]:
        """Return a stream of a blob."""
        self.addresses([shard_id])  # raises if there is none of this name
        did, _, cid = shard_id.removeprefix("at://").split("/")
        return io.BytesIO(client_of(self.accounts[did]).get_blob(did, cid))


def load_at_uri(uri: str, sample_type: Any = None, client: Any = None) -> Dataset[Any]:
    """Return the dataset of a record at ``at://account/collection/key``: the branch of `load_dataset`."""
    client = Atmosphere() if client is None else client
    return dataset_of(client, uri, DatasetLoader(client).get(uri), sample_type)
