"""The wire to an object store: single requests through obstore, and the loop that many of them wait in at once.

obstore's own threads do not survive a fork: whatever a child asks would hang for ever. So the loop and all connections
belong to one process, and a child of a process that has used them is told so at once.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from shardex.errors import ForkSafetyError, RemoteError, ShardexError
from shardex.ranges import ByteRange
from shardex.source import Stat
from shardex.sources.answers import Again, reason, same, stat_of, translate
from shardex.sources.keyring import Settings

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

__all__ = ["Bucket", "Listing", "ObjectWire", "Wire", "connect", "headers_for", "run"]

T = TypeVar("T")

_MINE = "shardex-writer"
_PART = 16 << 20


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one connection reaches: a bucket, or a host with the query that all its URLs end in."""

    scheme: str
    name: str
    query: str = ""


class Wire(Protocol):
    """Single requests to one bucket, one attempt each."""

    settings: Settings
    slots: asyncio.Semaphore

    async def head(self, key: str) -> Stat:
        """Size, tag and time of a file."""

    async def peek(self, key: str) -> Stat:
        """The same by a request for the file, which is then not read."""

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Bytes of a file that is still the pinned one; how many, the caller checks."""


# -- one loop and one set of connections for each process -------------------------------------------------------------


class _Process:
    """What must not be shared between processes."""

    def __init__(self, forked: bool = False) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wires: dict[tuple[Bucket, int], ObjectWire] = {}
        self.forked = forked
        """Whether a process above this one has used obstore."""


_process = _Process()


def _begin_child() -> None:
    _process.__init__(_process.forked or bool(_process.wires))  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Have the loop do some work, and wait for it."""
    with _process.lock:
        if _process.loop is None:
            _process.loop = asyncio.new_event_loop()
            threading.Thread(target=_process.loop.run_forever, name="shardex-wire", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(work, _process.loop)
    try:
        return future.result()
    finally:
        future.cancel()  # after a KeyboardInterrupt nobody waits for it any more


def connect(bucket: Bucket, settings: Settings, where: str) -> ObjectWire:
    """The connection of this process to a bucket."""
    if _process.forked:
        raise ForkSafetyError(
            errno.EDEADLK,
            "expected a process that was started afresh, got a child forked from one that has used remote storage, in "
            "which every request would hang; start workers by the method 'forkserver' or 'spawn'",
            where,
        )
    with _process.lock:
        key = bucket, id(settings)  # the wire keeps the settings, so no others get their number
        if key not in _process.wires:
            _process.wires[key] = ObjectWire(bucket, settings, where)
        return _process.wires[key]


# -- obstore ----------------------------------------------------------------------------------------------------------


class ObjectWire:
    """Requests to one bucket through obstore."""

    def __init__(self, bucket: Bucket, settings: Settings, where: str) -> None:
        self.settings = settings
        self.slots = asyncio.Semaphore(int(settings.number("concurrency")))
        self.keeps_conditions: bool | None = None
        """Whether the store refuses to create what is there; unknown until it was tried."""
        try:
            self._store = _store(bucket, settings, retries=0)
            self._uploads = _store(bucket, settings, retries=int(settings.number("retries")))
            return
        except Exception as error:
            text = reason(error)
        raise RemoteError(errno.EINVAL, f"cannot be opened: {text}; see shardex.storage", where)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection holds secrets and is not pickled: send the URL, and open it there")

    async def head(self, key: str) -> Stat:
        """Ask for a file's headers."""
        import obstore

        return _stat(await _asked(obstore.head_async(self._store, key), key))

    async def peek(self, key: str) -> Stat:
        """Ask for a file, and read only the headers."""
        import obstore

        return _stat((await _asked(obstore.get_async(self._store, key), key)).meta)

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Ask for a range; look at the headers before the body comes."""
        import obstore

        asked = obstore.get_async(self._store, key, options={"range": (wanted.begin, wanted.end)})
        answer = await _asked(asked, key)
        same(_stat(answer.meta), pinned, key)
        return memoryview(await _asked(answer.bytes_async(), key))

    def list(self, prefix: str) -> Listing:
        """The files below a prefix."""
        return Listing(self._store, prefix)

    async def put(self, key: str, data: memoryview) -> str:
        """Create or replace a file in one request; its tag."""
        import obstore

        return (await _asked(obstore.put_async(self._store, key, data, use_multipart=False), key))["e_tag"] or ""

    async def upload(self, key: str, data: memoryview) -> str:
        """The same in many parts, each of which is tried again by itself."""
        import obstore

        sent = obstore.put_async(self._uploads, key, data, use_multipart=True, chunk_size=_PART, max_concurrency=8)
        return (await _asked(sent, key))["e_tag"] or ""

    async def create(self, key: str, data: memoryview, writer: str) -> bool:
        """Create a file that notes its writer; false if there is one."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        marks = {_MINE: writer}
        try:
            await obstore.put_async(self._store, key, data, mode="create", use_multipart=False, attributes=marks)
            return True
        except AlreadyExistsError as error:
            if "status code: 409" not in str(error):
                return False
            failure: Exception = Again("409 Conflict: somebody else writes it at this moment")
        except Exception as error:
            failure = translate(error, key)
        raise failure

    async def writer(self, key: str) -> str:
        """Who created a file."""
        import obstore

        return str((await _asked(obstore.get_async(self._store, key), key)).attributes.get(_MINE, ""))

    async def copy(self, key: str, to: str) -> None:
        """Copy a file inside the bucket."""
        import obstore

        await _asked(obstore.copy_async(self._store, key, to), key)

    async def delete(self, key: str) -> None:
        """Delete a file; most stores do not say whether there was one."""
        import obstore

        await _asked(obstore.delete_async(self._store, key), key)


async def _asked(answer: Any, key: str) -> Any:
    """What obstore answers; its errors become ours, and keep nothing of its own."""
    try:
        return await answer
    except ShardexError:
        raise
    except Exception as error:
        failure = translate(error, key)
    raise failure


class Listing:
    """The keys below a prefix, some at a time; after a failure it goes on behind the last one."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store, self._prefix, self._last = store, prefix, ""
        self._stream: AsyncIterator[Sequence[ObjectMeta]] | None = None

    async def more(self) -> list[str]:
        """Some more keys; none at the end."""
        import obstore

        if self._stream is None:
            after = self._last or None
            self._stream = obstore.list(self._store, self._prefix or None, offset=after, chunk_size=1000).__aiter__()
        try:
            some = await _asked(anext(self._stream, []), self._prefix)
        except BaseException:
            self._stream = None
            raise
        keys = sorted(one["path"] for one in some)
        self._last = keys[-1] if keys else self._last
        return keys


def _store(bucket: Bucket, settings: Settings, *, retries: int) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    timeout = timedelta(seconds=settings.number("timeout"))
    client: Any = {
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "timeout": "1day",  # the whole request has its limit in Python, which knows how long it may take
        "user_agent": "shardex",
        "pool_max_idle_per_host": str(int(settings.number("concurrency"))),
    }
    for name in ("allow_http", "allow_invalid_certificates"):
        if name in settings.values:
            client[name] = settings.values[name]
    if bucket.scheme in ("http", "https"):
        client |= {"allow_http": bucket.scheme == "http", "default_headers": headers_for(settings)}
    patience = timedelta(seconds=settings.number("deadline"))
    options: Any = {"client_options": client, "retry_config": {"max_retries": retries, "retry_timeout": patience}}
    config: Any = settings.store(bucket.scheme)
    match bucket.scheme:
        case "s3":
            return S3Store(bucket.name, **config, **options)
        case "gs":
            return GCSStore(bucket.name, **config, **options)
        case "az":
            return AzureStore(bucket.name, **config, **options)
        case _:
            return HTTPStore(f"{bucket.scheme}://{bucket.name}/{bucket.query and '?'}{bucket.query}", **options)


def headers_for(settings: Settings) -> dict[str, str]:
    """The headers that let us in at a web server."""
    values = settings.values
    headers: dict[str, str] = {}
    if "username" in values or "password" in values:
        pair = f"{values.get('username', '')}:{values.get('password', '')}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    if "token" in values:
        headers["Authorization"] = f"Bearer {values['token']}"
    more = values.get("headers")
    return headers | (more if isinstance(more, dict) else {})


def _stat(meta: ObjectMeta) -> Stat:
    return stat_of(meta["size"], meta["e_tag"], meta["last_modified"])
