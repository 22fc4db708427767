"""`Network`: what an index does with names on ATProto, by the publishers and loaders of `atmosphere`."""

import importlib
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._exceptions import EntryNotFoundError
from shardex.compat.atdata._logging import get_logger
from shardex.compat.atdata._protocols import IndexEntry
from shardex.errors import ArgumentError, ShardexError

BLOB_BYTES = 50_000_000
"""Limit of one blob."""


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
        atmosphere, uri = _atmosphere(), name
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
        addressed = [(getattr(one, "uri", "") or one.get("uri", ""), one.get("value") or one) for one in found]
        return [atmosphere.AtmosphereIndexEntry(*one) for one in addressed]

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return the record of a schema."""
        found: dict[str, Any] = _atmosphere().SchemaLoader(self.client).get(ref)
        return found

    def most_bytes(self, maxsize: int | None, force: bool) -> int:
        """Return the limit of shards that become blobs."""
        if maxsize is not None and maxsize > BLOB_BYTES and not force:
            raise ArgumentError(
                f"maxsize={maxsize} exceeds PDS blob limit ({BLOB_BYTES} bytes). Pass force=True to bypass."
            )
        return BLOB_BYTES if maxsize is None else maxsize

    def insert(self, ds: Dataset[Any], *, name: str, version: str | None = None, **options: Any) -> IndexEntry:
        """Publish a dataset: local shards as blobs or into a store, others at their URLs; and a label with its name."""
        uri = str(_module("_index").publish_dataset(self.client, ds, name=name, **options))
        self._label(name, uri, version, options.get("description"))
        return self.get(uri, None)

    def promote(self, entry: IndexEntry, index: Any, **options: Any) -> str:
        """Publish an entry of an index, and a label with its name; return its address."""
        promote: Any = importlib.import_module("shardex.compat.atdata.promote")
        uri = str(promote.promote_to_atmosphere(entry, index, self.client, **options))
        version = index.get_schema(entry.schema_ref).get("version")
        self._label(options.get("name") or entry.name, uri, version, options.get("description"))
        return uri

    def promote_dataset(self, ds: Dataset[Any], sample_type: type, schema_version: str, **options: Any) -> str:
        """Publish a dataset with the schema of a class, and a label with its name; return its address."""
        schema = _atmosphere().SchemaPublisher(self.client).publish(sample_type, version=schema_version)
        entry: Any = self.insert(ds, schema_ref=str(schema), version=schema_version, **options)
        return str(entry.uri)

    def _label(self, name: str, uri: str, version: str | None, description: str | None) -> None:
        try:
            _atmosphere().LabelPublisher(self.client).publish(name, uri, version=version, description=description)
        except ShardexError as error:  # the dataset is published
            get_logger().warning("%s was published at %s, and its label was not: %s", name, uri, error)


def _atmosphere() -> Any:
    return importlib.import_module("shardex.compat.atdata.atmosphere")


def _module(name: str) -> Any:
    return importlib.import_module(f"shardex.compat.atdata.atmosphere.{name}")
