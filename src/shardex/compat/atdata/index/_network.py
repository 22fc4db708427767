"""`Network`: what an index does with names on ATProto, by the publishers and loaders of `atmosphere`."""

import importlib
import os
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._exceptions import EntryNotFoundError
from shardex.compat.atdata._logging import get_logger
from shardex.compat.atdata._protocols import IndexEntry
from shardex.compat.atdata._sources import S3Source
from shardex.errors import ArgumentError, ShardexError
from shardex.sources import absolute_path, is_local

_BLOB_BYTES, _TOTAL_BYTES = 50_000_000, 1_000_000_000
"""Limits of one blob, and of a dataset in blobs."""
_OF_ENTRY = ("description", "tags", "license", "metadata")


class Network:
    """A session of ATProto, made at its first use if none is given."""

    def __init__(self, client: Any = None) -> None:
        self._client = client

    @property
    def client(self) -> Any:
        """The session."""
        if self._client is None:
            self._client = _atmosphere().Atmosphere()
        return self._client

    def get(self, name: str, handle: str | None, version: str | None = None) -> IndexEntry:
        """Return the dataset at an address ``at://...``, or that a label of an account means."""
        atmosphere = _atmosphere()
        uri = name
        if not name.startswith("at://"):
            if not handle or not name:
                raise EntryNotFoundError(
                    f"Cannot resolve atmosphere label without a handle: {name or handle!r}. Use @handle/name format."
                )
            uri = str(atmosphere.LabelLoader(self.client).resolve(handle, name, version))
        entry: IndexEntry = atmosphere.AtmosphereIndexEntry(uri, atmosphere.DatasetLoader(self.client).get(uri))
        return entry

    def list_datasets(self) -> list[IndexEntry]:
        """Return the datasets of the account."""
        atmosphere = _atmosphere()
        found = atmosphere.DatasetLoader(self.client).list_all()
        return [atmosphere.AtmosphereIndexEntry(one.get("uri", ""), one.get("value", one)) for one in found]

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return the record of a schema."""
        found: dict[str, Any] = _atmosphere().SchemaLoader(self.client).get(ref)
        return found

    def limits(self, given: dict[str, Any], force: bool) -> dict[str, Any]:
        """Return the limits of shards that become blobs."""
        size = given["maxsize"]
        if size is not None and size > _BLOB_BYTES and not force:
            raise ArgumentError(
                f"maxsize={size} exceeds PDS blob limit ({_BLOB_BYTES} bytes). Pass force=True to bypass."
            )
        return {**given, "maxsize": _BLOB_BYTES if size is None else size}

    def insert(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None,
        data_store: Any = None,
        force: bool = False,
        copy: bool = False,
        version: str | None = None,
        schema_version: str = "1.0.0",
        **options: Any,
    ) -> IndexEntry:
        """Publish a dataset: local shards as blobs or into a store, others at their URLs; and a label with its name."""
        about = {key: options.pop(key, None) for key in _OF_ENTRY}
        about["metadata"] = ds._metadata if about["metadata"] is None else about["metadata"]
        atmosphere, copied = _atmosphere(), copy or data_store is not None
        if isinstance(ds.source, S3Source) and not copied:
            raise ArgumentError(
                "Dataset uses a credentialed source, whose URLs a public record would show to all. Pass copy=True to "
                "copy its samples, by default to blobs of the PDS."
            )
        shards = ds.list_shards()
        if not copied and not all(map(is_local, shards)):
            uri = self.publish_urls(shards, ds.sample_type, schema_version, schema_ref, version, name=name, **about)
            return self.get(uri, None)
        total = sum(os.path.getsize(absolute_path(one)) for one in shards if is_local(one))
        if total > _TOTAL_BYTES and not force:
            raise ArgumentError(
                f"Total dataset size ({total} bytes) exceeds atmosphere limit ({_TOTAL_BYTES} bytes). "
                "Pass force=True to bypass."
            )
        schema = schema_ref or self._schema(ds.sample_type, schema_version)
        store = data_store or atmosphere.PDSBlobStore(self.client)
        urls = store.write_shards(ds, prefix=name, **options)
        blobs, checksums = getattr(urls, "blob_refs", None), getattr(urls, "checksums", None) or {}
        if blobs:
            made = importlib.import_module("shardex.compat.atdata.atmosphere._lexicon_types").ShardChecksum
            given = [made(algorithm="sha256", digest=checksums[one]) for one in urls if one in checksums]
            more = {"checksums": given if len(given) == len(blobs) else None}
            uri = atmosphere.DatasetPublisher(self.client).publish_with_blob_refs(
                blobs, schema, name=name, **about, **more
            )
            self._label(name, str(uri), version, about["description"])
        else:
            if checksums:
                about["metadata"] = {**(about["metadata"] or {}), "checksums": checksums}
            uri = self.publish_urls(list(urls), ds.sample_type, schema_version, schema, version, name=name, **about)
        return self.get(str(uri), None)

    def publish_urls(
        self,
        urls: list[str],
        sample_type: type,
        schema_version: str,
        schema_ref: str | None = None,
        version: str | None = None,
        *,
        name: str,
        **about: Any,
    ) -> str:
        """Publish shards at URLs, and a label with their name; return the address."""
        if local := [one for one in urls if is_local(one)]:
            raise ArgumentError(f"expected shards at URLs, which others can read, got the local path {local[0]}")
        schema = schema_ref or self._schema(sample_type, schema_version)
        uri = _atmosphere().DatasetPublisher(self.client).publish_with_urls(urls, schema, name=name, **about)
        self._label(name, str(uri), version or schema_version, about.get("description"))
        return str(uri)

    def promote(self, entry: IndexEntry, index: Any, **options: Any) -> str:
        """Publish an entry of an index."""
        promote: Any = importlib.import_module("shardex.compat.atdata.promote")
        return str(promote.promote_to_atmosphere(entry, index, self.client, **options))

    def _schema(self, sample_type: type, version: str) -> str:
        return str(_atmosphere().SchemaPublisher(self.client).publish(sample_type, version=version))

    def _label(self, name: str, uri: str, version: str | None, description: str | None) -> None:
        try:
            _atmosphere().LabelPublisher(self.client).publish(name, uri, version=version, description=description)
        except ShardexError as error:  # the dataset is published
            get_logger().warning("%s was published at %s, and its label was not: %s", name, uri, error)


def _atmosphere() -> Any:
    return importlib.import_module("shardex.compat.atdata.atmosphere")
