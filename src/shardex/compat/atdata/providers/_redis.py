"""`RedisProvider`: an index in the keys that atdata has in Redis.

``LocalDatasetEntry:CID`` and ``Label:NAME@VERSION`` are hashes, ``LocalSchema:NAME@VERSION`` and
``LocalLens:NAME@VERSION`` texts. Labels also have the time at which they were stored, which says which one is the
newest; those of atdata do not, and count as older.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from shardex.compat.atdata._exceptions import EntryNotFoundError
from shardex.compat.atdata.index._entry import REDIS_KEY_DATASET_ENTRY, REDIS_KEY_SCHEMA, LocalDatasetEntry
from shardex.compat.atdata.providers._base import IndexProvider, Label, Stored, _find_latest_semver
from shardex.errors import ArgumentError

_LENS = "LocalLens"
_CHUNK = 500
"""Keys per request when all of a kind are read."""


class RedisProvider(IndexProvider):
    """An index on a Redis server, given by a client of the package redis, which must return bytes."""

    def __init__(self, redis: Any) -> None:
        pool = getattr(redis, "connection_pool", None)
        if getattr(pool, "connection_kwargs", {}).get("decode_responses"):
            raise ArgumentError("expected a client that returns bytes, got Redis(decode_responses=True)")
        self._redis = redis

    @property
    def redis(self) -> Any:
        """The client."""
        return self._redis

    def store_entry(self, entry: LocalDatasetEntry) -> None:
        entry.write_to(self._redis)

    def get_entry_by_cid(self, cid: str) -> LocalDatasetEntry:
        return LocalDatasetEntry.from_redis(self._redis, cid)

    def get_entry_by_name(self, name: str) -> LocalDatasetEntry:
        """Return the entry of the newest label, which is found without reading all; others are looked for."""
        try:
            found = self.get_entry_by_cid(self.get_label(name)[0])
        except EntryNotFoundError:
            found = None
        if found is not None and found.name == name:
            return found
        named = {one.cid: one for one in self.iter_entries() if one.name == name}
        if not named:
            raise EntryNotFoundError(f"No entry with name: {name}")
        return named[min(named)]

    def iter_entries(self) -> Iterator[LocalDatasetEntry]:
        for stored in self._hashes(f"{REDIS_KEY_DATASET_ENTRY}:*"):
            yield LocalDatasetEntry.from_hash(stored)

    def store_schema(self, name: str, version: str, schema_json: str) -> None:
        self._redis.set(f"{REDIS_KEY_SCHEMA}:{name}@{version}", schema_json)

    def get_schema_json(self, name: str, version: str) -> str | None:
        return _text(self._redis.get(f"{REDIS_KEY_SCHEMA}:{name}@{version}"))

    def iter_schemas(self) -> Iterator[Stored]:
        """Yield all schemas; old versions of atdata put the module before the name."""
        return ((name.rpartition(".")[2], *rest) for name, *rest in self._texts(REDIS_KEY_SCHEMA))  # type: ignore[misc]

    def store_label(self, name: str, cid: str, version: str | None = None, description: str | None = None) -> None:
        label = {"cid": cid, "name": name, "version": version or "", "created_at": datetime.now(UTC).isoformat()}
        key = f"Label:{name}@{version or ''}"
        with self._redis.pipeline(transaction=True) as requests:
            requests.delete(key)  # with the description of the one before
            requests.hset(key, mapping=label | ({} if description is None else {"description": description}))
            requests.execute()

    def get_label(self, name: str, version: str | None = None) -> tuple[str, str | None]:
        if version is not None:
            if found := self._redis.hgetall(f"Label:{name}@{version}"):
                return _label(found)[1], version or None
            raise EntryNotFoundError.of_label(name, version)
        of_name = re.sub(r"([*?\[\]\\])", r"\\\1", name)
        labels = [(stored, _label(stored)) for stored in self._hashes(f"Label:{of_name}@*")]
        found = [(stored.get(b"created_at", b""), label) for stored, label in labels if label[0] == name]
        if not found:
            raise EntryNotFoundError.of_label(name, None)
        newest = max(time for time, _ in found)
        tied = {version or "": cid for time, (_, cid, version) in found if time == newest}
        latest = _find_latest_semver(tied) or max(tied)
        return tied[latest], latest or None

    def iter_labels(self) -> Iterator[Label]:
        return (_label(stored) for stored in self._hashes("Label:*"))

    def store_lens(self, name: str, version: str, lens_json: str) -> None:
        self._redis.set(f"{_LENS}:{name}@{version}", lens_json)

    def get_lens_json(self, name: str, version: str) -> str | None:
        return _text(self._redis.get(f"{_LENS}:{name}@{version}"))

    def iter_lenses(self) -> Iterator[Stored]:
        return self._texts(_LENS)

    def close(self) -> None:
        self._redis.close()

    # -- all keys of a kind -------------------------------------------------------------------------------------------

    def _keys(self, pattern: str) -> Iterator[list[bytes]]:
        keys = iter(sorted(set(self._redis.scan_iter(match=pattern, count=10 * _CHUNK))))  # some may come twice
        while chunk := list(islice(keys, _CHUNK)):
            yield chunk

    def _hashes(self, pattern: str) -> Iterator[dict[bytes, bytes]]:
        for chunk in self._keys(pattern):
            with self._redis.pipeline(transaction=False) as requests:
                for key in chunk:
                    requests.hgetall(key)
                yield from filter(None, requests.execute())

    def _texts(self, kind: str) -> Iterator[Stored]:
        for chunk in self._keys(f"{kind}:*@*"):
            for key, text in zip(chunk, self._redis.mget(chunk), strict=True):
                name, _, version = key.decode().removeprefix(f"{kind}:").rpartition("@")
                if text is not None:
                    yield name, version, text.decode()


def _label(stored: dict[bytes, bytes]) -> Label:
    name, cid, version = (stored.get(key, b"").decode() for key in (b"name", b"cid", b"version"))
    return name, cid, version or None


def _text(found: bytes | None) -> str | None:
    return None if found is None else found.decode()
