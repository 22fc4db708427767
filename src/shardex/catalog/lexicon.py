"""Records as the lexicon of datasets on ATProto has them (``science.alt.dataset.*``), and back.

An entry, schema or lens has what other programs read (name, storage, schema, size), and beside it the whole record as
JSON text: ATProto has no numbers with fractions, which options may have. Those of other programs, also under the old
names ``ac.foundation.dataset.*``, have no such text: entries become records of tar files (see `foreign_entries`).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from shardex.catalog.cid import from_lexicon_json
from shardex.catalog.foreign_entries import foreign_record, name_of
from shardex.catalog.records import (
    CatalogRecord,
    DatasetRecord,
    LensRecord,
    R,
    SchemaRecord,
    decode,
    encode,
    from_plain,
)
from shardex.catalog.xrpc import Account, StoredRecord
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import Array, Bytes, Feature, Features, Json, Optional, Sequence, Text, Value
from shardex.sources import is_local

ENTRY, LABEL, SCHEMA, LENS = (f"science.alt.dataset.{kind}" for kind in ("entry", "label", "schema", "lens"))
OLD_ENTRY, OLD_SCHEMA, OLD_LENS = (f"ac.foundation.dataset.{kind}" for kind in ("record", "sampleSchema", "lens"))
_DIGITS = "234567abcdefghijklmnopqrstuvwxyz"
_NO_CHECKSUM = {"algorithm": "none", "digest": ""}
_ARRAY = {"$ref": "https://alt.science/schemas/atdata-ndarray-bytes/1.0.0#/$defs/ndarray"}
_BYTES = {"type": "string", "format": "byte", "contentEncoding": "base64"}
_FEATURES: Mapping[str, Feature] = {
    **dict.fromkeys(("string", "str"), Text()),
    **dict.fromkeys(("integer", "int"), Value("int64")),
    **dict.fromkeys(("number", "float"), Value("float64")),
    **dict.fromkeys(("boolean", "bool"), Value("bool")),
    "bytes": Bytes(),
}
"""Features for the types of JSON schemas, and of fields in old schemas."""


def collections_of(key: str) -> tuple[str, str]:
    """Return the collections of the records with keys that begin like this one: where they are written, and the old.

    >>> collections_of("_schemas/Point"), collections_of("corpus")[0]
    (('science.alt.dataset.schema', 'ac.foundation.dataset.sampleSchema'), 'science.alt.dataset.entry')
    """
    if key.startswith(SchemaRecord.folder):
        return SCHEMA, OLD_SCHEMA
    return (LENS, OLD_LENS) if key.startswith(LensRecord.folder) else (ENTRY, OLD_ENTRY)


def key_of(*parts: str) -> str:
    """Return the key of a record: always the same one for these parts, in the form of keys made of times (TID).

    >>> key_of("corpus", "3"), len(key_of("corpus")) == len(key_of("corpus", "4"))
    ('2ouru5kdlzo5r', True)
    """
    number = int.from_bytes(hashlib.sha256("\0".join(parts).encode()).digest()[:8]) >> 1
    return "".join(_DIGITS[number >> shift & 31] for shift in range(60, -1, -5))


# -- writing --------------------------------------------------------------------------------------------------


def entry_of(record: DatasetRecord, schema_uri: str, writer: str) -> dict[str, Any]:
    """Return the entry of a record; texts are cut to the limits of the lexicon, the record has all of them."""
    if private := [url for url in record.urls if is_local(url) or url.startswith("memory://")]:
        raise ArgumentError(
            f"{record}: expected URLs that others can read, as records on ATProto are public, got {private[0]!r:.200}; "
            "copy the data to a bucket or a web server"
        )
    size = {"samples": record.samples, "bytes": record.bytes, "shards": record.shards or None}
    entry = {
        "$type": ENTRY,
        "name": record.name,
        "schemaRef": schema_uri,
        "storage": _storage_of(record),
        "description": record.description[:5000],
        "tags": [tag[:150] for tag in record.tags],
        "size": {name: number for name, number in size.items() if number is not None},
        "license": record.license[:200],
        "createdAt": record.created,
        "shardexRecord": encode(record).decode(),
        "shardexWriter": writer,
    }
    return {name: value for name, value in entry.items() if value not in ("", [])}


def _storage_of(record: DatasetRecord) -> dict[str, Any]:
    def checksum(url: str) -> dict[str, str]:
        algorithm, _, digest = record.checksums.get(url, "").partition(":")
        return {"algorithm": algorithm, "digest": digest} if digest else _NO_CHECKSUM

    buckets = {url.removeprefix("s3://").partition("/")[0] for url in record.urls}
    if len(buckets) == 1 and all(url.startswith("s3://") for url in record.urls):
        (bucket,) = buckets
        shards = [{"key": url.removeprefix(f"s3://{bucket}/"), "checksum": checksum(url)} for url in record.urls]
        return {"$type": "science.alt.dataset.storageS3", "bucket": bucket, "shards": shards}
    shards = [{"url": url, "checksum": checksum(url)} for url in record.urls]
    return {"$type": "science.alt.dataset.storageHttp", "shards": shards}


def label_of(name: str, uri: str, version: str, created: str, **own: int) -> dict[str, Any]:
    """Return the label that lets a name, and a version or tag, stand for an entry; `own` is for this catalog."""
    return {"$type": LABEL, "name": name, "datasetUri": uri, "version": version, "createdAt": created, "shardex": own}


def release_of(record: SchemaRecord | LensRecord, writer: str, uri_of: Callable[[str], str]) -> dict[str, Any]:
    """Return what is published of a schema or a lens; `uri_of` returns the URI of a published schema."""
    known = {
        "name": record.name,
        "description": record.description[:5000],
        "createdAt": record.created,
        "shardexRecord": encode(record).decode(),
        "shardexWriter": writer,
    }
    if isinstance(record, SchemaRecord):
        return {**schema_of(record), **known, "version": record.version}
    code = {name: record.code.get(name, "") for name in ("repository", "commit", "path")}
    return {
        "$type": LENS,
        "getterCode": code,
        "putterCode": code,
        "version": record.version,
        "sourceSchema": uri_of(record.source),
        "targetSchema": uri_of(record.view),
        **known,
    }


def schema_of(record: DatasetRecord | SchemaRecord) -> dict[str, Any]:
    """Return the schema of the samples, in JSON schema, without the time at which it is created."""
    optional = {name for name, plain in record.schema.items() if plain.get("kind") == "optional"}
    properties = {name: _json_schema(plain) for name, plain in record.schema.items()}
    schema: dict[str, Any] = {
        "$type": "science.alt.dataset.schema#jsonSchemaFormat",
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    if _ARRAY in properties.values():
        schema["arrayFormatVersions"] = {"ndarrayBytes": "1.0.0"}
    title = "".join(part.capitalize() for part in record.name.replace("/", "-").replace(".", "-").split("-"))
    plain = {"name": title[:100], "version": "1.0.0", "schemaType": "jsonSchema", "schema": schema}
    return {"$type": SCHEMA, **plain, "atdataSchemaVersion": 1}


def _json_schema(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a feature, from its JSON form."""
    kind, dtype = plain.get("kind"), str(plain.get("dtype", ""))
    if kind in ("optional", "sequence"):
        inner = _json_schema(plain.get("feature", {}))
        return inner if kind == "optional" else {"type": "array", "items": inner}
    if kind == "value":
        return {"type": {"b": "boolean", "i": "integer", "u": "integer", "f": "number"}.get(dtype[:1], "string")}
    if kind == "array":
        return _ARRAY
    if kind in ("struct", "map", "json"):
        return {"type": "object"}
    return _BYTES if kind in ("bytes", "image", "audio", "video", "media") else {"type": "string"}


# -- reading --------------------------------------------------------------------------------------------------


def record_of(stored: StoredRecord, account: Account) -> CatalogRecord:
    """Return the record of an entry, a schema or a lens, whoever wrote it; of a foreign one, the number is 1."""
    text = stored.value.get("shardexRecord")
    if isinstance(text, str):
        return decode(text.encode(), stored.uri)
    try:
        collection = stored.uri.split("/")[3]
        if collection in (SCHEMA, OLD_SCHEMA):
            return _foreign_schema(stored)
        return _foreign_lens(stored) if collection in (LENS, OLD_LENS) else _foreign(stored, account)
    except (
        LookupError,
        TypeError,
        AttributeError,
        ValueError,
        RecursionError,
        SchemaError,
        msgspec.MsgspecError,
    ) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(
            f"{stored.uri}: expected a record as other programs write it, got one with {error!r:.200}"
        ) from None


def _foreign(stored: StoredRecord, account: Account) -> DatasetRecord:
    entry = stored.value
    shards = _shards_of(entry["storage"], account)
    known = {name: entry.get(name) for name in ("description", "tags", "license")}
    size = entry.get("size") or {}
    more = {"schema_ref": entry.get("schemaRef"), "content_metadata": entry.get("contentMetadata")}
    if "metadata" in entry:
        more["metadata"] = _metadata_of(entry["metadata"])
    return foreign_record(
        entry["name"],
        stored.cid,
        [url for url, _ in shards],
        stored.uri,
        **{name: value for name, value in known.items() if value},
        **{name: size[name] for name in ("samples", "bytes", "shards") if size.get(name) is not None},
        **{name: value for name, value in more.items() if value},
        checksums={url: checksum for url, checksum in shards if checksum},
        created=entry.get("createdAt", ""),
    )


def _foreign_release(stored: StoredRecord, kind: type[R], **known: Any) -> R:
    value = stored.value
    plain = {"kind": kind.__struct_config__.tag, "name": name_of(value["name"]), "number": 1, **known}
    more = {"title": value["name"]} if plain["name"] != value["name"] else {}
    told = {"description": value.get("description") or "", "created": value.get("createdAt") or ""}
    return from_plain({**more, **told, **plain}, stored.uri, kind)


def _foreign_schema(stored: StoredRecord) -> SchemaRecord:
    """Return the record of a schema: a JSON schema, or a list of fields in old ones."""
    value = stored.value
    body = value.get("schema") or {}
    fields = [(name, one, name not in body.get("required", ())) for name, one in body.get("properties", {}).items()]
    fields += [(one["name"], one["fieldType"], one.get("optional", False)) for one in value.get("fields", ())]
    found = {name: Optional(_feature_of(one)) if optional else _feature_of(one) for name, one, optional in fields}
    return _foreign_release(stored, SchemaRecord, version=value["version"], schema=Features(found).to_json())


def _foreign_lens(stored: StoredRecord) -> LensRecord:
    """Return the record of a lens, whose getter and putter are code somewhere: where is all that is read of them."""
    value = stored.value
    parts = ((which, value.get(f"{which}Code") or {}) for which in ("getter", "putter"))
    code = {f"{which} {name}": str(text) for which, part in parts for name, text in part.items() if name[:1] != "$"}
    ends = {"source": value["sourceSchema"], "view": value["targetSchema"]}
    return _foreign_release(stored, LensRecord, version=value.get("version", "1.0.0"), code=code, **ends)


def _feature_of(plain: Mapping[str, Any]) -> Feature:
    """Return the feature for a type: any JSON value if it says nothing that is known here."""
    name, reference = plain.get("primitive") or plain.get("type"), f"{plain.get('$type')} {plain.get('$ref')}"
    if "ndarray" in reference:
        return Array()
    if name == "array" or "#array" in reference:
        return Sequence(_feature_of(plain.get("items") or {}))
    if plain.get("format") == "byte" or plain.get("contentEncoding") == "base64":
        return Bytes()
    return _FEATURES.get(str(name), Json())


def _metadata_of(plain: Any) -> Any:
    """Return the metadata of an entry: MessagePack in bytes, or JSON in old ones."""
    found = from_lexicon_json(plain)
    return msgspec.to_builtins(msgspec.msgpack.decode(found)) if isinstance(found, bytes) else found


def _shards_of(storage: Mapping[str, Any], account: Account) -> list[tuple[str, str]]:
    """Return URL and checksum of each shard of one of the kinds of storage."""
    kind = storage["$type"].rpartition(".")[2]
    if kind == "storageExternal":
        return [(url, "") for url in msgspec.convert(storage["urls"], list[str])]
    if kind == "storageHttp":
        return [(one["url"], _checksum(one)) for one in storage["shards"]]
    if kind == "storageS3":
        return [(f"s3://{storage['bucket']}/{one['key']}", _checksum(one)) for one in storage["shards"]]
    if kind == "storageBlobs":
        found = (one.get("blob", one)["ref"]["$link"] for one in storage["blobs"])
        return [(f"at://{account.did}/blob/{cid}", f"sha256:{_digest(cid)}") for cid in found]
    raise ValueError(f"storage of the kind {kind!r:.100}")


def _checksum(shard: Mapping[str, Any]) -> str:
    checksum = shard.get("checksum") or _NO_CHECKSUM
    return f"{checksum['algorithm']}:{checksum['digest']}" if checksum["digest"] else ""


def _digest(cid: str) -> str:
    return base64.b32decode(cid[1:].upper() + "=" * (-len(cid[1:]) % 8))[4:].hex()
