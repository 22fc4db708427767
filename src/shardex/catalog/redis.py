"""`RedisServer`: a catalog on a Redis or Valkey server, ``redis://host:port/database/prefix``; ``rediss://`` with TLS.

All keys begin with the prefix (by default ``shardex``); no other key is written:

- ``PREFIX:versions:NAME``, a hash: the JSON record of each version, empty for one that was removed
- ``PREFIX:terms:NAME``, a hash: for each version a token of its writer, and the terms that find it; which are indexed
- ``PREFIX:tags:NAME``, a hash: the version of each tag
- ``PREFIX:names``, a sorted set of all names
- ``PREFIX:index``, a sorted set: each term of a newest record, then its name

Each change is one Lua script, which the server runs alone and logs as a whole, so nothing is half-written. A lost
connection is made again and its request repeated; `append` tells by its token whether the first attempt succeeded.

What atdata put on this server can be read under names that the catalog does not have (see `foreign_entries`).
"""

from __future__ import annotations

import errno
import heapq
import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from shardex.catalog.backend import Backend, readable
from shardex.catalog.foreign_entries import record_of_redis, with_versions
from shardex.catalog.names import PART
from shardex.catalog.records import CatalogRecord, DatasetRecord, RecordQuery, decode, encode, searched, words_in
from shardex.errors import (
    AccessDeniedError,
    AddressError,
    MissingExtraError,
    RemoteError,
    SourceError,
    StorageFullError,
)
from shardex.sources import credentials, redact_url

if TYPE_CHECKING:
    from redis import Redis

_ATDATA = "LocalDatasetEntry:"
_CHUNK = 500
"""Names or records per request when all are read."""
_SECONDS = 10
"""How long entries of atdata are kept in memory."""

_SHARED = """
local function newest(versions)
  for version = redis.call('HLEN', versions), 1, -1 do
    local text = redis.call('HGET', versions, version)
    if text ~= '' then return version, text end
  end
  return 0, false
end

local function terms_of(terms, version)
  local found = redis.call('HGET', terms, version)
  return found and cjson.decode(found) or {}
end

local function index_newest(versions, terms, index, name)
  local now, before = tostring((newest(versions))), redis.call('HGET', terms, 'indexed')
  if now == before then return end
  if before then
    for i, term in ipairs(terms_of(terms, before)) do redis.call('ZREM', index, term .. '\\0' .. name) end
  end
  for i, term in ipairs(terms_of(terms, now)) do
    if i > 1 then redis.call('ZADD', index, 0, term .. '\\0' .. name) end
  end
  redis.call('HSET', terms, 'indexed', now)
end
"""
_HEAD = "local version, text = newest(KEYS[1]) return {text, redis.call('HLEN', KEYS[1])}"
_READ = """
local version = ARGV[1]
if version == '' then local found, text = newest(KEYS[1]) return text end
if not tonumber(version) then version = redis.call('HGET', KEYS[2], version) end
return version and redis.call('HGET', KEYS[1], version)
"""
_APPEND = """
local versions, terms, names, index = unpack(KEYS)
local name, version, text, own = unpack(ARGV)
local used = redis.call('HLEN', versions)
if tonumber(version) <= used then return terms_of(terms, version)[1] == cjson.decode(own)[1] and 1 or 0 end
if tonumber(version) > used + 1 then return redis.error_reply('ERR expected version ' .. used + 1) end
redis.call('HSET', versions, version, text)
redis.call('HSET', terms, version, own)
redis.call('ZADD', names, 0, name)
index_newest(versions, terms, index, name)
return 1
"""
_REMOVE = """
local versions, terms, names, index = unpack(KEYS)
local name, version = unpack(ARGV)
if redis.call('HEXISTS', versions, version) == 0 then return 0 end
redis.call('HSET', versions, version, '')
index_newest(versions, terms, index, name)
redis.call('HSET', terms, version, cjson.encode({terms_of(terms, version)[1]}))
return 1
"""
_SCRIPTS = {"head": _HEAD, "read": _READ, "append": _APPEND, "remove": _REMOVE}


class RedisServer(Backend):
    """Records on a Redis server.

    >>> RedisServer("redis://:secret@localhost:6379/0/team").url
    'redis://localhost:6379/0/team'
    """

    def __init__(self, url: str) -> None:
        self.url = credentials.strip_credentials(url).rstrip("/")
        self._scheme, _, rest = self.url.partition("://")
        server, _, path = rest.partition("/")
        self._host, _, port = server.rpartition(":") if ":" in server.rpartition("]")[2] else (server, "", "6379")
        match = re.fullmatch(rf"(?:([0-9]+)(?:/|$))?({PART}(?:[/:]{PART})*)?", unquote(path))
        if not self._host or not port.isdecimal() or match is None:
            expected = "redis://host:port/number/prefix, the number of a database and a prefix of all keys"
            raise AddressError(f"expected a URL such as {expected}, got {redact_url(url)!r}")
        database, self._prefix = match[1], match[2] or "shardex"
        self._port, self._database = int(port), int(database or 0)
        self._entries_until, self._entries_kept = 0.0, dict[str, list[DatasetRecord]]()
        self._keeps_keys = False

    def head(self, name: str) -> tuple[CatalogRecord | None, int]:
        text, used = self._run("head", [self._versions(name)])
        return self._decode(text, name), int(used)

    def read(self, name: str, which: int | str | None = None) -> CatalogRecord | None:
        keys = [self._versions(name), self._tags(name)]
        found = self._decode(self._run("read", keys, [which or ""]), name)
        if found is None and not isinstance(which, str) and not self._knows(name):
            of_atdata = self._entries().get(name, [])
            found = next((one for one in reversed(of_atdata) if which in (None, one.version)), None)
        return found

    def append(self, name: str, version: int, record: CatalogRecord | None) -> bool:
        self._check_keeps_keys()
        terms = [secrets.token_hex(8), *(_terms(record) if isinstance(record, DatasetRecord) else ())]
        text = encode(record) if record else b""
        return bool(self._run("append", self._changed(name), [name, version, text, json.dumps(terms)]))

    def remove(self, name: str, version: int) -> None:
        self._run("remove", self._changed(name), [name, version])

    def history(self, name: str) -> list[CatalogRecord]:
        with self._errors():
            found = self._client.hgetall(self._versions(name))
        texts = (found[number] for number in sorted(found, key=int))
        records = [record for text in texts if (record := readable(partial(self._decode, text, name)))]
        return records if found else [*self._entries().get(name, [])]

    def names(self, prefix: str = "") -> Iterator[str]:
        foreign = (name for name in self._entries() if name.startswith(prefix))
        return (name for name, _ in groupby(heapq.merge(self._own_names(prefix), foreign)))

    def tags(self, name: str) -> dict[str, int]:
        with self._errors():
            return {tag.decode(): int(version) for tag, version in self._client.hgetall(self._tags(name)).items()}

    def set_tag(self, name: str, tag: str, version: int | None) -> None:
        with self._errors():
            if version is None:
                self._client.hdel(self._tags(name), tag)
            else:
                self._client.hset(self._tags(name), tag, str(version))

    def newest(self, prefix: str = "") -> Iterator[CatalogRecord]:
        return self._newest_of(self.names(prefix))

    def search(self, query: RecordQuery) -> Iterator[DatasetRecord]:
        """Yield what the index has for the rarest term and matches; and entries of atdata, which have no index."""
        wanted = [f"w:{word}" for word in query.words]
        wanted += [f"t:{tag}\0" for tag in query.tags] + [f"f:{field}\0" for field in query.fields]
        if not wanted:
            return super().search(query)
        ranges = [(b"[" + text.encode(), b"(" + text.encode() + b"\xff") for text in wanted]
        with self._errors(), self._client.pipeline(transaction=False) as requests:
            for one in ranges:
                requests.zlexcount(self._key("index"), *one)
            counts = requests.execute()
        rarest = ranges[counts.index(min(counts))]
        with self._errors():
            found = {one.rpartition(b"\0")[2].decode() for one in self._client.zrangebylex(self._key("index"), *rarest)}
        foreign = (name for name, records in self._entries().items() if query.matches(records[-1]))
        some = self._newest_of(sorted({*found, *foreign}))
        return (one for one in some if isinstance(one, DatasetRecord) and query.matches(one))

    def close(self) -> None:
        self.__dict__.pop("_scripts", None)
        if client := self.__dict__.pop("_client", None):
            client.close()

    # -- keys and values --------------------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))

    def _versions(self, name: str) -> str:
        return self._key("versions", name)

    def _tags(self, name: str) -> str:
        return self._key("tags", name)

    def _changed(self, name: str) -> list[str]:
        """Return the keys that a change of a name writes."""
        return [self._versions(name), self._key("terms", name), self._key("names"), self._key("index")]

    def _decode(self, text: bytes | None, name: str) -> CatalogRecord | None:
        return decode(text, f"{self.url}: {name}") if text else None

    def _knows(self, name: str) -> bool:
        with self._errors():
            return bool(self._client.exists(self._versions(name)))

    def _own_names(self, prefix: str) -> Iterator[str]:
        begin, end = b"[" + prefix.encode(), b"(" + prefix.encode() + b"\xff"
        while True:
            with self._errors():
                found = self._client.zrangebylex(self._key("names"), begin, end, start=0, num=_CHUNK)
            yield from map(bytes.decode, found)
            if len(found) < _CHUNK:
                return
            begin = b"(" + found[-1]

    def _newest_of(self, names: Iterable[str]) -> Iterator[CatalogRecord]:
        """Yield the newest record of each name, some hundred by one request."""
        rest = iter(names)
        while chunk := list(islice(rest, _CHUNK)):
            with self._errors(), self._client.pipeline(transaction=False) as requests:
                for name in chunk:
                    self._scripts["head"](keys=[self._versions(name)], client=requests)
                answers = requests.execute()
            for name, (text, used) in zip(chunk, answers, strict=True):
                foreign = [] if used else self._entries().get(name, [])
                if found := foreign[-1] if foreign else readable(partial(self._decode, text, name)):
                    yield found

    def _entries(self) -> dict[str, list[DatasetRecord]]:
        """Return the records that atdata put on this server, by name; kept for seconds, as all keys have to be read."""
        if time.monotonic() > self._entries_until:
            self._entries_kept = with_versions(self._scan())
            self._entries_until = time.monotonic() + _SECONDS
        return self._entries_kept

    def _scan(self) -> Iterator[DatasetRecord]:
        with self._errors():
            keys = self._client.scan_iter(match=f"{_ATDATA}*", count=10 * _CHUNK)
            while chunk := list(islice(keys, _CHUNK)):
                with self._client.pipeline(transaction=False) as requests:
                    for key in chunk:
                        requests.hgetall(key)
                    found = (readable(partial(record_of_redis, one, self.url)) for one in requests.execute() if one)
                    yield from filter(None, found)

    # -- requests ---------------------------------------------------------------------------------------------

    @cached_property
    def _client(self) -> Redis:
        try:
            from redis import Redis
            from redis.backoff import EqualJitterBackoff
            from redis.exceptions import ConnectionError, TimeoutError
            from redis.retry import Retry
        except ImportError:
            raise MissingExtraError("redis", "redis", "a catalog on Redis") from None
        settings = credentials.settings_for(self.url)
        texts = {name: settings.values.get(name) for name in ("username", "password")}
        files = ("ca_file", "ssl_ca_certs"), ("certificate_file", "ssl_certfile"), ("key_file", "ssl_keyfile")
        strict = not settings.values.get("allow_invalid_certificates")
        tls = {
            **{theirs: settings.values.get(ours) for ours, theirs in files},
            "ssl": True,
            "ssl_cert_reqs": "required" if strict else "none",
            "ssl_check_hostname": strict,
        }
        return Redis(
            host=self._host.strip("[]"),
            port=self._port,
            db=self._database,
            protocol=2,
            **{name: text or None for name, text in texts.items()},
            **(tls if self._scheme == "rediss" else {}),
            socket_timeout=settings.number("timeout"),
            socket_connect_timeout=settings.number("timeout"),
            retry=Retry(EqualJitterBackoff(cap=1, base=0.02), int(settings.number("retries"))),
            retry_on_error=[ConnectionError, TimeoutError],
        )

    @cached_property
    def _scripts(self) -> dict[str, Any]:
        return {name: self._client.register_script(_SHARED + text) for name, text in _SCRIPTS.items()}

    def _check_keeps_keys(self) -> None:
        """Raise if the server removes keys when its memory is full: numbers of versions would be used again."""
        if not self._keeps_keys:
            with self._errors():
                memory = self._client.info("memory")
            policy = memory.get("maxmemory_policy", "noeviction")
            if memory.get("maxmemory") and policy.startswith("allkeys"):
                remedy = "set noeviction, or use another server for the catalog"
                raise RemoteError(
                    errno.EINVAL, f"expected a server that keeps all keys, got {policy}: {remedy}", self.url
                )
            self._keeps_keys = True

    def _run(self, script: str, keys: list[str], arguments: Sequence[str | bytes | int] = ()) -> Any:
        with self._errors():
            return self._scripts[script](keys=keys, args=arguments)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the server and its client as ours."""
        try:
            from redis.exceptions import RedisError
        except ImportError:
            raise MissingExtraError("redis", "redis", "a catalog on Redis") from None
        try:
            yield
        except RedisError as error:
            raise _translated(error, self.url) from None


def _terms(record: DatasetRecord) -> list[str]:
    """Return what a record is found by: words, tags, and fields."""
    words = {word for text in searched(record) for word in words_in(text)}
    return [
        *(f"w:{word}" for word in sorted(words)),
        *(f"t:{tag}" for tag in record.tags),
        *(f"f:{field}" for field in record.schema),
    ]


_PASSWORD = "expected the password of the server, set it by sx.storage({url!r}, password=...)"
_REMEDIES: dict[str, tuple[type[SourceError], int, str]] = {
    "Authentication": (AccessDeniedError, errno.EACCES, _PASSWORD),
    "NoPermission": (AccessDeniedError, errno.EACCES, "the user may not do this: allow it by ACL SETUSER"),
    "OutOfMemory": (
        StorageFullError,
        errno.ENOSPC,
        "nothing was stored; raise maxmemory of the server, or remove keys",
    ),
    "ReadOnly": (AccessDeniedError, errno.EROFS, "nothing was stored; use the URL of the primary server"),
    "MISCONF": (StorageFullError, errno.EIO, "nothing was stored; the server cannot save to its disk, see its log"),
    "WRONGTYPE": (RemoteError, errno.EINVAL, "another program uses keys of this prefix; use another prefix in the URL"),
    "NOREPLICAS": (RemoteError, errno.EAGAIN, "nothing was stored; too few replicas are connected"),
}
"""What to do about an error, by what its class or its text contains."""


def _translated(error: Exception, url: str) -> SourceError:
    from redis.exceptions import ConnectionError, TimeoutError

    text = credentials.redact(str(error))
    for part, (kind, number, remedy) in _REMEDIES.items():
        if part in f"{type(error).__name__}: {text}":
            told = remedy.replace(
                _PASSWORD, f"expected the user and password of the server: sx.storage({url!r}, password=...)"
            )
            return kind(number, f"{told}; it said: {text:.300}", url)
    if isinstance(error, TimeoutError):
        return RemoteError(errno.ETIMEDOUT, "no answer in time; whether a change was made is not known", url)
    if isinstance(error, ConnectionError):
        return RemoteError(
            errno.ECONNREFUSED, f"cannot reach Redis, check the URL and that the server runs: {text:.300}", url
        )
    return RemoteError(errno.EPROTO, f"expected an answer, got: {text:.500}", url)
