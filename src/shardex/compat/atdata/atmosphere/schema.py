"""Schemas of sample classes as records."""

from collections.abc import Mapping
from typing import Any

from shardex.compat.atdata._exceptions import SchemaError
from shardex.compat.atdata._logging import log_operation
from shardex.compat.atdata._schema_codec import _local_record
from shardex.compat.atdata.atmosphere._lexicon_types import JsonSchemaFormat, LexSchemaRecord
from shardex.compat.atdata.atmosphere._publishing import Loader, Publisher
from shardex.compat.atdata.atmosphere._types import AtUri
from shardex.compat.atdata.index._schema import _build_schema_record, kind_of
from shardex.errors import ArgumentError, CatalogError

__all__ = ["SchemaLoader", "SchemaPublisher"]

_JSON = {
    "str": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte", "contentEncoding": "base64"},
}
_ARRAY = {"$ref": "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"}


class SchemaPublisher(Publisher):
    """Publishes the schemas of sample classes."""

    PROCEDURE = "publishSchema"

    def publish(
        self,
        sample_type: type[Any],
        *,
        name: str | None = None,
        version: str = "1.0.0",
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
        rkey: str | None = None,
    ) -> AtUri:
        """Publish the schema of a class made by ``@packable``, and return its address."""
        with log_operation("SchemaPublisher.publish", schema=sample_type.__name__, version=version):
            record = schema_record(sample_type, version)
            record.name, record.description, record.metadata = name or record.name, description, metadata
            return self._create(record, rkey)


def schema_record(sample_type: type[Any], version: str) -> LexSchemaRecord:
    """Return the record of a sample class, with its fields in JSON schema."""
    record = _build_schema_record(sample_type, version=version)
    try:
        properties = {one["name"]: _json_schema(one["fieldType"]) for one in record["fields"]}
    except KeyError as error:
        raise SchemaError(f"Unsupported type for schema field: {error} - at {sample_type.__name__}") from None
    body: dict[str, Any] = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}
    body |= {"properties": properties}
    required = [one["name"] for one in record["fields"] if not one["optional"]]
    arrays = {"ndarrayBytes": "1.0.0"} if _ARRAY in properties.values() else None
    schema = JsonSchemaFormat(body | ({"required": required} if required else {}), arrays)
    return LexSchemaRecord(record["name"], version, "jsonSchema", schema)


def _json_schema(field_type: Mapping[str, Any]) -> dict[str, Any]:
    kind = kind_of(field_type)
    if kind == "array":
        return {"type": "array", "items": _json_schema(field_type["items"])}
    return _ARRAY if kind == "ndarray" else _JSON[field_type["primitive"]]


class SchemaLoader(Loader):
    """Loads schemas."""

    KIND, CALLED, TYPE = "schema", "schema", LexSchemaRecord

    def get(self, uri: str | AtUri) -> dict[str, Any]:
        """Return the schema at an address, or that of ``@handle/Name@version``."""
        if isinstance(uri, str) and uri.startswith("@"):
            return self.resolve(*_parse_handle_schema_ref(uri))
        record = super().get(uri)
        _local_record(record)  # raises if the record has a later version
        return record

    def get_typed(self, uri: str | AtUri) -> LexSchemaRecord:
        """Return the schema at an address as a `LexSchemaRecord`."""
        return LexSchemaRecord.from_record(self.get(uri))

    def resolve(self, handle_or_did: str, schema_id: str, version: str | None = None) -> dict[str, Any]:
        """Return the schema of an account with a name; without a version the one that was created last."""
        found = self._from_appview("resolveSchema", handle=handle_or_did, schemaId=schema_id, version=version)
        if found is not None:
            return self._checked(found.get("record", found), f"@{handle_or_did}/{schema_id}")
        wanted = {"name": schema_id, **({} if version is None else {"version": version})}
        matching = self._matching(self.client.resolve_did(handle_or_did), wanted)
        if not matching:
            which = f" version {version!r}" if version else ""
            raise CatalogError(f"Schema {schema_id!r}{which} not found in repository {handle_or_did!r}")
        return max(matching, key=lambda one: str(one.get("createdAt", "")))

    def list_all(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the schemas of an account, by default of the own one."""
        found = self._all_from_appview("listSchemas", "schemas", repo, limit)
        return self.client.list_schemas(repo=repo, limit=limit) if found is None else found


def _parse_handle_schema_ref(ref: str) -> tuple[str, str, str]:
    """Return the parts of a schema of an account.

    >>> _parse_handle_schema_ref("@alice.example.com/Digit@1.0.0")
    ('alice.example.com', 'Digit', '1.0.0')
    """
    owner, _, rest = ref.removeprefix("@").partition("/")
    name, at, version = rest.rpartition("@")
    if not ref.startswith("@") or not owner or not rest:
        raise ArgumentError(f"Invalid handle schema ref: {ref}. Expected @handle/TypeName@version")
    if not at or not name or not version:
        raise ArgumentError(f"Handle schema ref must include version: {ref}. Expected @handle/TypeName@version")
    return owner, name, version
