"""Entries of an index: the name, the schema and the shards of a dataset."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from shardex.compat.atdata._cid import generate_cid
from shardex.compat.atdata._exceptions import EntryNotFoundError
from shardex.errors import FormatError
from shardex.features import codecs

REDIS_KEY_DATASET_ENTRY = "LocalDatasetEntry"
REDIS_KEY_SCHEMA = "LocalSchema"


@dataclass
class LocalDatasetEntry:
    """A dataset in an index; its identifier is that of its schema and shards.

    >>> LocalDatasetEntry("mnist", "atdata://local/schema/Digit@1.0.0", ["mnist.tar"]).cid[:8]
    'bafyreid'
    """

    name: str
    schema_ref: str
    data_urls: list[str]
    metadata: dict[str, Any] | None = None
    _cid: str | None = field(default=None, repr=False)
    _legacy_uuid: str | None = field(default=None, repr=False)

    @property
    def cid(self) -> str:
        """The content identifier."""
        if self._cid is None:
            self._cid = generate_cid({"schema_ref": self.schema_ref, "data_urls": list(self.data_urls)})
        return self._cid

    @property
    def wds_url(self) -> str:
        """The URL of the first shard, the name of `data_urls` in old versions."""
        return self.data_urls[0] if self.data_urls else ""

    @property
    def sample_kind(self) -> str:
        """The name of `schema_ref` in old versions."""
        return self.schema_ref

    def to_stored(self) -> dict[str, Any]:
        """Return the values that a database has; shards and metadata are MessagePack."""
        stored: dict[str, Any] = {
            "cid": self.cid,
            "name": self.name,
            "schema_ref": self.schema_ref,
            "data_urls": codecs.MSGPACK.encode(list(self.data_urls)),
        }
        if self.metadata is not None:
            stored["metadata"] = codecs.MSGPACK.encode(self.metadata)
        if self._legacy_uuid is not None:
            stored["legacy_uuid"] = self._legacy_uuid
        return stored

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Return the entry of the values that a database has."""
        try:
            name, schema_ref, packed = (stored[key] for key in ("name", "schema_ref", "data_urls"))
        except KeyError as error:
            raise FormatError(f"expected an entry with name, schema_ref and data_urls, got none of {error}") from None
        urls, metadata = codecs.MSGPACK.decode(packed), stored.get("metadata")
        if not isinstance(urls, list) or not all(isinstance(one, str) for one in urls):
            raise FormatError(f"expected a list of URLs, got {urls!r:.100} - at data_urls of the entry {name!r}")
        known = None if metadata is None else codecs.MSGPACK.decode(metadata)
        return cls(name, schema_ref, urls, known, stored.get("cid") or None, stored.get("legacy_uuid") or None)

    def write_to(self, redis: Any) -> None:
        """Store the entry on a server of Redis, in place of one with the same identifier."""
        key = f"{REDIS_KEY_DATASET_ENTRY}:{self.cid}"
        with redis.pipeline(transaction=True) as requests:
            requests.delete(key)
            requests.hset(key, mapping=self.to_stored())
            requests.execute()

    @classmethod
    def from_redis(cls, redis: Any, cid: str) -> Self:
        """Return the entry with an identifier; `KeyError` if the server has none."""
        found: dict[bytes, bytes] = redis.hgetall(f"{REDIS_KEY_DATASET_ENTRY}:{cid}")
        if not found:
            raise EntryNotFoundError(f"{REDIS_KEY_DATASET_ENTRY} not found: {cid}")
        return cls.from_hash(found)

    @classmethod
    def from_hash(cls, found: Mapping[bytes, bytes]) -> Self:
        """Return the entry of the values of a hash of Redis."""
        packed = (b"data_urls", b"metadata")
        return cls.from_stored({key.decode(): one if key in packed else one.decode() for key, one in found.items()})


BasicIndexEntry = LocalDatasetEntry
