"""Publishing datasets of a local index on ATProto."""

from collections.abc import Sequence
from typing import Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._schema_codec import _schema_to_type
from shardex.compat.atdata._sources import URLSource
from shardex.compat.atdata.atmosphere._index import publish_dataset
from shardex.compat.atdata.atmosphere.schema import SchemaLoader, SchemaPublisher, schema_record
from shardex.errors import ArgumentError

__all__ = ["promote_to_atmosphere"]


def promote_to_atmosphere(
    local_entry: Any,
    local_index: Any,
    atmosphere_client: Any,
    *,
    data_store: Any = None,
    name: str | None = None,
    description: str | None = None,
    tags: Sequence[str] | None = None,
    license: str | None = None,
) -> str:
    """Publish a dataset of a local index with its schema, and return its address.

    Shards on this machine are uploaded: to `data_store`, or as blobs of the account. A schema that the account has
    published already is not published again.
    """
    if not local_entry.data_urls:
        raise ArgumentError(f"Local entry {local_entry.name!r} has no data URLs")
    record = local_index.get_schema(local_entry.schema_ref)
    sample_type, version = _schema_to_type(record), record.get("version", "1.0.0")
    schema_ref = _find_or_publish_schema(sample_type, version, atmosphere_client, description=record.get("description"))
    typed: Any = Dataset
    uri = publish_dataset(
        atmosphere_client,
        typed[sample_type](URLSource.of(local_entry.data_urls)),
        name=name or local_entry.name,
        schema_ref=schema_ref,
        data_store=data_store,
        metadata=local_entry.metadata,
        description=description,
        tags=None if tags is None else list(tags),
        license=license,
    )
    return str(uri)


def _find_or_publish_schema(sample_type: type[Any], version: str, client: Any, description: str | None = None) -> str:
    """Return the address of a schema with name, version and fields of a class; publish it if there is none."""
    schema = schema_record(sample_type, version).to_record()["schema"]
    for one in SchemaLoader(client)._matching(None, {"name": sample_type.__name__, "version": version}):
        if one.get("schema") == schema and getattr(one, "uri", ""):
            return str(one.uri)  # type: ignore[attr-defined]
    return str(SchemaPublisher(client).publish(sample_type, version=version, description=description))
