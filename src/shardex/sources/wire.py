"""The wire to an object store: single requests through obstore, and the loop that many of them wait in at once.

`ObjectSource` says which bytes it wants; here a request is sent, its answer is looked at, and what went wrong is put
into our words: `Again` if another attempt may help, an error of ours if not. obstore's own threads do not survive a
fork, so the loop and all connections belong to one process, and a child of a process that used them is told so.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import os
import re
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from shardex.errors import (
    AccessDeniedError,
    ForkSafetyError,
    NotFoundError,
    PathError,
    RemoteChangedError,
    RemoteError,
    SourceError,
)
from shardex.ranges import ByteRange
from shardex.source import Stat
from shardex.sources.keyring import Settings, scrub

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

__all__ = ["Again", "Bucket", "ObstoreWire", "Wire", "connect", "run", "same"]

T = TypeVar("T")

_FORKED = (
    "expected remote storage to be used in a process that was started afresh, got a child forked from one that used "
    "it already, where every request would hang; start workers by the method 'forkserver' or 'spawn'"
)


class Again(Exception):
    """A request that failed in a way that another attempt may mend; says what happened."""


class Wire(Protocol):
    """Single requests: one attempt each."""

    async def head(self, key: str) -> Stat:
        """Size, tag and time of a file."""

    async def peek(self, key: str) -> Stat:
        """The same by a request for the file, which is then not read."""

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Bytes of a file that is still the pinned one; maybe fewer than wanted, if the server says so."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one connection reaches: a bucket, or a host with the query that all its URLs end in."""

    scheme: str
    name: str
    query: str = ""


# -- one loop and one set of connections for each process -------------------------------------------------------------


class _Process:
    """What must not be shared between processes."""

    def __init__(self, forked: bool = False) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wires: dict[tuple[Bucket, int], ObstoreWire] = {}
        self.forked = forked
        """Whether a process above this one has used obstore."""


_process = _Process()


def _begin_child() -> None:
    global _process
    _process = _Process(_process.forked or bool(_process.wires))


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
    except BaseException:
        future.cancel()  # nobody waits for it any more, after a KeyboardInterrupt
        raise


def connect(bucket: Bucket, settings: Settings, where: str) -> ObstoreWire:
    """The connection of this process to a bucket."""
    if _process.forked:
        raise ForkSafetyError(errno.EDEADLK, _FORKED, where)
    with _process.lock:
        key = bucket, id(settings)  # the wire keeps the settings, so the number stays theirs
        if key not in _process.wires:
            _process.wires[key] = ObstoreWire(bucket, settings, where)
        return _process.wires[key]


# -- obstore ----------------------------------------------------------------------------------------------------------


class ObstoreWire:
    """Requests to one bucket. It never pickles: obstore would write the secrets down."""

    def __init__(self, bucket: Bucket, settings: Settings, where: str) -> None:
        self.settings = settings
        self.slots = asyncio.Semaphore(int(settings.number("concurrency")))
        self.conditional: bool | None = None
        """Whether the store keeps its word on conditions; unknown until it was tried."""
        self._bucket = bucket
        try:
            self.store = _store(bucket, settings, retries=0)
        except Exception as error:
            failure = RemoteError(errno.EINVAL, f"cannot be opened: {reason(error)}", where)
        else:
            return
        raise failure

    def __reduce__(self) -> str:
        raise TypeError("a connection is not pickled: send the URL, and open it there")

    async def head(self, key: str) -> Stat:
        """Ask for a file's headers."""
        import obstore

        try:
            return _stat(await obstore.head_async(self.store, key))
        except Exception as error:
            failure = translate(error, key)
        raise failure

    async def peek(self, key: str) -> Stat:
        """Ask for a file, and read only the headers."""
        import obstore

        try:
            return _stat((await obstore.get_async(self.store, key)).meta)
        except Exception as error:
            failure = translate(error, key)
        raise failure

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Ask for a range; look at the headers before the body comes."""
        import obstore

        try:
            answer = await obstore.get_async(self.store, key, options={"range": (wanted.begin, wanted.end)})
            same(_stat(answer.meta), pinned, key)
            return memoryview(await answer.bytes_async())
        except RemoteError:
            raise
        except Exception as error:
            failure = translate(error, key)
        raise failure

    def list(self, prefix: str) -> Listing:
        """The files below a prefix."""
        return Listing(self.store, prefix)


class Listing:
    """The keys below a prefix, some at a time; after a failure it goes on behind the last one."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store, self._prefix, self._last = store, prefix, ""
        self._stream: AsyncIterator[Sequence[ObjectMeta]] | None = None

    async def more(self) -> list[str]:
        """Some more keys; none at the end."""
        import obstore

        try:
            if self._stream is None:
                after = self._last or None
                self._stream = obstore.list(
                    self._store, self._prefix or None, offset=after, chunk_size=1000
                ).__aiter__()
            keys = sorted(one["path"] for one in await anext(self._stream, []))
        except Exception as error:
            self._stream, failure = None, translate(error, self._prefix)
        else:
            self._last = keys[-1] if keys else self._last
            return keys
        raise failure


def _store(bucket: Bucket, settings: Settings, *, retries: int) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    timeout = timedelta(seconds=settings.number("timeout"))
    client: dict[str, Any] = {
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "timeout": "1day",  # the whole request has its limit in Python, which knows how long it should take
        "user_agent": "shardex",
        "pool_max_idle_per_host": str(int(settings.number("concurrency"))),
    }
    for name in ("allow_http", "allow_invalid_certificates"):
        if name in settings.values:
            client[name] = settings.values[name]
    options: Any = {"client_options": client, "retry_config": {"max_retries": retries}}
    config: Any = settings.store(bucket.scheme)
    if bucket.scheme == "s3":
        return S3Store(bucket.name, **config, **options)
    if bucket.scheme == "gs":
        return GCSStore(bucket.name, **config, **options)
    if bucket.scheme == "az":
        return AzureStore(bucket.name, **config, **options)
    client |= {"allow_http": bucket.scheme == "http", "default_headers": headers_for(settings)}
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


def stat_of(size: int, tag: str | None, modified: datetime | None) -> Stat:
    """What the headers of an answer say; without an ETag, time and size must do for one."""
    seconds = modified.timestamp() if modified else 0.0
    return Stat(size, tag or f"{seconds:.0f}-{size}", seconds)


def same(found: Stat, pinned: Stat, key: str) -> None:
    """Nothing, if two answers speak of the same file."""
    untagged = f"{found.modified:.0f}-{found.size}"
    if found.size == pinned.size and found.tag in (pinned.tag, untagged if found.modified == pinned.modified else ""):
        return
    raise RemoteChangedError(
        errno.ESTALE,
        f"expected the file of {pinned.size} bytes with the tag {pinned.tag} that was there when it was first looked "
        f"at, got one of {found.size} bytes with the tag {found.tag}; open the dataset again to read the new one",
        key,
    )


# -- what went wrong --------------------------------------------------------------------------------------------------


def translate(error: BaseException, key: str) -> SourceError | PathError | Again:
    """An error of obstore in our words."""
    import obstore.exceptions as theirs

    text = reason(error)
    status = int(found[1]) if (found := re.search(r"status code: (\d{3})", str(error))) else 0
    if isinstance(error, FileNotFoundError) or status == 404:
        return NotFoundError(errno.ENOENT, text, key)
    if isinstance(error, theirs.PermissionDeniedError | theirs.UnauthenticatedError) or status in (401, 403):
        return AccessDeniedError(errno.EACCES, f"{text}; see shardex.storage for keys and tokens", key)
    if isinstance(error, theirs.InvalidPathError):
        return PathError(f"{key}: expected a path that an object store can hold: {text}")
    final = isinstance(error, theirs.UnknownConfigurationKeyError | ValueError | TypeError)
    if final or (400 <= status < 500 and status not in (408, 409, 425, 429)) or "kind: Builder" in str(error):
        return RemoteError(errno.EINVAL, text, key)
    return Again(text)


def reason(error: BaseException) -> str:
    """One line of what obstore says, without its insides and without secrets."""
    text = str(error).partition("\n\nDebug source:")[0]
    inner = str(error)
    code, message = (re.search(rf"<{name}>([^<]*)</{name}>", inner) for name in ("Code", "Message"))
    if status := re.search(r"status code: (\d{3}[ A-Za-z]*)", text):
        said = ": ".join(match[1] for match in (code, message) if match)
        return scrub(f"{status[1].strip()}{said and f' ({said})'}")
    if "kind: Builder" in inner and "BadScheme" in inner:
        return "http:// is not encrypted and was not allowed; set allow_http=True with shardex.storage"
    for mark, meaning in (
        ("TimedOut", "no answer, or no more of it, in time"),
        ("ConnectionRefused", "connection refused"),
        ("UnexpectedEof", "the answer broke off"),
        ("IncompleteMessage", "the connection broke off"),
        ("ConnectionReset", "the connection was reset"),
        ("dns error", "no such host"),
    ):
        if mark in inner:
            return meaning
    return scrub(text.splitlines()[0].strip() if text.strip() else type(error).__name__)
