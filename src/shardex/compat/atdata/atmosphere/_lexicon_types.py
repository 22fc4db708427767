"""The records of ``science.alt.dataset`` as classes: `to_record` returns the JSON of one, `from_record` reads it.

A class has the fields of its lexicon, in snake case. What a record says is checked when it is read: a field that is
missing, or has another type, is named. Records with the storage and the metadata of old versions are read, too.
"""

import base64
import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import msgspec

from shardex.compat.atdata._exceptions import SchemaError
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE

__all__ = [
    "LEXICON_NAMESPACE",
    "BlobEntry",
    "DatasetMetadata",
    "DatasetSize",
    "HttpShardEntry",
    "JsonSchemaFormat",
    "LexCodeHash",
    "LexCodeReference",
    "LexDatasetEntry",
    "LexLabelRecord",
    "LexLensRecord",
    "LexLensVerification",
    "LexSchemaRecord",
    "S3ShardEntry",
    "ShardChecksum",
    "ShardManifestRef",
    "StorageBlobs",
    "StorageHttp",
    "StorageS3",
    "StorageUnion",
    "decode_metadata_raw",
    "storage_from_record",
]


def _now() -> datetime:
    return datetime.now(UTC)


class _Lexicon:
    """A part of a record: its fields that are not None, by their names in camel case."""

    KIND: ClassVar[str] = ""
    """What its ``$type`` has after the namespace; empty for parts without one."""

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON."""
        values = {name: getattr(self, name) for name in _hints(type(self))}
        known = {_camel(name): _json(value) for name, value in values.items() if value is not None}
        return {"$type": f"{LEXICON_NAMESPACE}.{self.KIND}", **known} if self.KIND else known

    @classmethod
    def from_record(cls, d: Mapping[str, Any]) -> Self:
        """Return what JSON says."""
        if not isinstance(d, Mapping):
            raise SchemaError(f"expected the parts of {cls.__name__}, got {d!r:.200}")
        found = {name: _value(cls, name, d[_camel(name)]) for name in _hints(cls) if d.get(_camel(name)) is not None}
        needed = [
            one.name
            for one in dataclasses.fields(cls)  # type: ignore[arg-type]
            if one.default is one.default_factory is dataclasses.MISSING
        ]
        if missing := [_camel(name) for name in needed if name not in found]:
            raise SchemaError(f"expected {cls.__name__} with {', '.join(missing)}, got {', '.join(d) or 'nothing'}")
        return cls(**found)


_known: dict[type, dict[str, Any]] = {}
"""The types of the fields of each class, by name."""


def _hints(kind: type) -> dict[str, Any]:
    if kind not in _known:
        types = typing.get_type_hints(kind)
        _known[kind] = {one.name: types[one.name] for one in dataclasses.fields(kind)}
    return _known[kind]


def _camel(name: str) -> str:
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(map(str.capitalize, rest))


def _json(value: Any) -> Any:
    if isinstance(value, _Lexicon):
        return value.to_record()
    if isinstance(value, list):
        return [_json(one) for one in value]
    return value.isoformat() if isinstance(value, datetime) else value


def _value(owner: type, name: str, given: Any) -> Any:
    """Return the value of a field from JSON."""
    hint = _hints(owner)[name]
    kinds = [one for one in typing.get_args(hint) if one is not type(None)]
    if typing.get_origin(hint) in (list, dict):
        kinds = [hint]
    if set(kinds) == set(typing.get_args(StorageUnion)):
        return storage_from_record(given)
    kind = kinds[0] if kinds else hint
    plain, items = typing.get_origin(kind) or kind, typing.get_args(kind)
    if issubclass(plain, _Lexicon):
        return plain.from_record(given)
    try:
        if plain is list and isinstance(given, list) and issubclass(items[0], _Lexicon):
            return [items[0].from_record(one) for one in given]
        return datetime.fromisoformat(given) if plain is datetime else msgspec.convert(given, kind)
    except (msgspec.ValidationError, ValueError, TypeError) as error:
        if isinstance(error, SchemaError):
            raise
        expected = f"expected {_camel(name)} of {owner.__name__} to be {plain.__name__}"
        raise SchemaError(f"{expected}, got {given!r:.200}") from None


# -- storage --------------------------------------------------------------------------------------------------------


@dataclass
class ShardChecksum(_Lexicon):
    """The checksum of a shard: an algorithm such as sha256, and hexadecimal digits."""

    algorithm: str
    digest: str


@dataclass
class HttpShardEntry(_Lexicon):
    """A shard at a URL."""

    url: str
    checksum: ShardChecksum


@dataclass
class StorageHttp(_Lexicon):
    """Shards on web servers."""

    KIND = "storageHttp"
    shards: list[HttpShardEntry]


@dataclass
class S3ShardEntry(_Lexicon):
    """A shard in a bucket."""

    key: str
    checksum: ShardChecksum


@dataclass
class StorageS3(_Lexicon):
    """Shards in a bucket of S3."""

    KIND = "storageS3"
    bucket: str
    shards: list[S3ShardEntry]
    region: str | None = None
    endpoint: str | None = None


@dataclass
class BlobEntry(_Lexicon):
    """A shard that is a blob on the server of an account."""

    blob: dict[str, Any]
    checksum: ShardChecksum | None = None


@dataclass
class StorageBlobs(_Lexicon):
    """Shards that are blobs on the server of an account."""

    KIND = "storageBlobs"
    blobs: list[BlobEntry]


@dataclass
class _StorageExternal(_Lexicon):
    """Shards at URLs, in old records."""

    urls: list[str]


StorageUnion = StorageHttp | StorageS3 | StorageBlobs


def storage_from_record(d: Mapping[str, Any]) -> StorageUnion:
    """Return the storage that JSON says; the URLs of old records become shards without a checksum.

    >>> storage_from_record({"$type": "ac.foundation.dataset.storageExternal", "urls": ["s3://b/a.tar"]}).shards[0].url
    's3://b/a.tar'
    """
    kind = storage_kind(d)
    if kind == "external":
        none = ShardChecksum("none", "")
        return StorageHttp([HttpShardEntry(url, none) for url in _StorageExternal.from_record(d).urls])
    if kind == "blobs" and isinstance(blobs := d.get("blobs"), list):
        # In old records blobs stand there without the entry around them.
        old = [isinstance(one, Mapping) and "blob" not in one for one in blobs]
        d = {"blobs": [{"blob": one} if is_old else one for one, is_old in zip(blobs, old, strict=True)]}
    if kind == "blobs":
        return StorageBlobs.from_record(d)
    return StorageHttp.from_record(d) if kind == "http" else StorageS3.from_record(d)


def storage_kind(storage: Mapping[str, Any]) -> str:
    """Return "http", "s3", "blobs", or "external" for that of old records."""
    name = str(storage.get("$type", ""))
    for kind in ("Http", "S3", "Blobs", "External"):
        if name.rpartition(".")[2] == f"storage{kind}":
            return kind.lower()
    raise SchemaError(f"Unknown storage type: {name!r:.200}")


# -- datasets -------------------------------------------------------------------------------------------------------


@dataclass
class DatasetSize(_Lexicon):
    """How large a dataset is."""

    samples: int | None = None
    bytes_: int | None = None
    shards: int | None = None


@dataclass
class ShardManifestRef(_Lexicon):
    """The blobs with the manifest of a shard."""

    header: dict[str, Any]
    samples: dict[str, Any] | None = None


@dataclass
class DatasetMetadata(_Lexicon):
    """What is known about a whole dataset; names that the lexicon does not have are in `custom`.

    >>> DatasetMetadata.from_dict({"split": "train", "model": "bert"})
    DatasetMetadata(source_uri=None, ..., split='train', custom={'model': 'bert'})
    """

    source_uri: str | None = None
    created_by: str | None = None
    version: str | None = None
    processing_steps: list[str] | None = None
    split: str | None = None
    custom: dict[str, Any] | None = None

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Return the metadata of a flat dict, with names in snake or camel case."""
        known = {spelling: name for name in _hints(cls) for spelling in (name, _camel(name)) if name != "custom"}
        own = d.get("custom")
        more = {name: one for name, one in d.items() if name not in known and name != "custom"}
        more |= own if isinstance(own, Mapping) else {}
        return cls(**{known[name]: one for name, one in d.items() if name in known}, custom=more or None)

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dict of what is known."""
        known = {name: getattr(self, name) for name in _hints(type(self)) if name != "custom"}
        return {**(self.custom or {}), **{name: value for name, value in known.items() if value is not None}}


def decode_metadata_raw(raw: Any) -> dict[str, Any] | None:
    """Return the metadata of a record as a flat dict: JSON, or MessagePack as v0.2.3 writes it."""
    if isinstance(raw, Mapping) and raw.keys() != {"$bytes"}:
        return DatasetMetadata.from_record(raw).to_dict()
    try:
        packed = base64.b64decode(_padded(raw["$bytes"])) if isinstance(raw, Mapping) else raw
        return None if packed is None else msgspec.msgpack.decode(packed, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise SchemaError(f"expected metadata as JSON or MessagePack, got {raw!r:.200}: {error}") from None


def _padded(text: str) -> str:
    return text + "=" * (-len(text) % 4)


def has_fraction(value: Any) -> bool:
    """Return True if there is a number that JSON of ATProto cannot have: it has whole numbers only."""
    if isinstance(value, Mapping | list | tuple):
        return any(map(has_fraction, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, float)


@dataclass
class LexDatasetEntry(_Lexicon):
    """A dataset."""

    KIND = "entry"
    name: str
    schema_ref: str
    storage: StorageUnion
    created_at: datetime = field(default_factory=_now)
    description: str | None = None
    metadata: DatasetMetadata | None = None
    tags: list[str] | None = None
    size: DatasetSize | None = None
    license: str | None = None
    metadata_schema_ref: str | None = None
    content_metadata: dict[str, Any] | None = None
    manifests: list[ShardManifestRef] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON; metadata with fractions as MessagePack, since JSON of ATProto has none."""
        record = super().to_record()
        if self.metadata is not None and has_fraction(record["metadata"]):
            packed = msgspec.msgpack.encode(self.metadata.to_dict())
            record["metadata"] = {"$bytes": base64.b64encode(packed).decode().rstrip("=")}
        return record

    @classmethod
    def from_record(cls, d: Mapping[str, Any]) -> Self:
        """Return what JSON says."""
        flat = decode_metadata_raw(d.get("metadata"))
        metadata = None if flat is None else DatasetMetadata.from_dict(flat)
        made = super().from_record({name: one for name, one in d.items() if name != "metadata"})
        return dataclasses.replace(made, metadata=metadata)


@dataclass
class LexLabelRecord(_Lexicon):
    """A name, with a version or without, that stands for a dataset."""

    KIND = "label"
    name: str
    dataset_uri: str
    created_at: datetime = field(default_factory=_now)
    version: str | None = None
    description: str | None = None


# -- schemas --------------------------------------------------------------------------------------------------------


@dataclass
class JsonSchemaFormat(_Lexicon):
    """A schema in JSON schema."""

    schema_body: dict[str, Any]
    array_format_versions: dict[str, str] | None = None

    def to_record(self) -> dict[str, Any]:
        """Return it as JSON: the parts of the JSON schema itself."""
        more = {"arrayFormatVersions": self.array_format_versions} if self.array_format_versions else {}
        return {"$type": f"{LEXICON_NAMESPACE}.schema#jsonSchemaFormat", **self.schema_body, **more}

    @classmethod
    def from_record(cls, d: Mapping[str, Any]) -> Self:
        """Return what JSON says."""
        body = {name: one for name, one in d.items() if name not in ("$type", "arrayFormatVersions")}
        return super().from_record({"schemaBody": body, "arrayFormatVersions": d.get("arrayFormatVersions")})


@dataclass
class LexSchemaRecord(_Lexicon):
    """The schema of a sample class."""

    KIND = "schema"
    name: str
    version: str
    schema_type: str
    schema: JsonSchemaFormat
    created_at: datetime = field(default_factory=_now)
    description: str | None = None
    metadata: dict[str, Any] | None = None
    atdata_schema_version: int = 1


# -- lenses ---------------------------------------------------------------------------------------------------------


@dataclass
class LexCodeReference(_Lexicon):
    """Where code is: shown to people, never imported."""

    repository: str
    commit: str
    path: str
    branch: str | None = None
    language: str | None = None


@dataclass
class LexLensRecord(_Lexicon):
    """A lens between two schemas."""

    KIND = "lens"
    name: str
    source_schema: str
    target_schema: str
    getter_code: LexCodeReference
    putter_code: LexCodeReference
    created_at: datetime = field(default_factory=_now)
    description: str | None = None
    language: str | None = None
    metadata: dict[str, Any] | None = None
    source_schema_version: str | None = None
    target_schema_version: str | None = None


@dataclass
class LexCodeHash(_Lexicon):
    """The checksum of code."""

    algorithm: str
    digest: str


@dataclass
class LexLensVerification(_Lexicon):
    """Says that its author has verified a version of a lens."""

    KIND = "lensVerification"
    lens: str
    lens_commit: str
    verification_method: str
    created_at: datetime = field(default_factory=_now)
    code_hash: LexCodeHash | None = None
    proof_ref: LexCodeReference | None = None
    description: str | None = None
