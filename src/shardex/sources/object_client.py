"""The wire to an object store: single requests through obstore, and the loop that many of them wait in at once.

obstore is called in threads, not by its `async` functions: those call back into Python from threads of their own, which
aborts the process if it ends at that moment (one exit in six of short programs on a busy machine). And its threads do
not survive a fork: whatever a child asks would hang for ever. So the loop and all connections belong to one process,
and a child of a process that has used them is told so at once.
"""

from __future__ import annotations

import base64
import errno
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from shardex.errors import ForkSafetyError, RemoteError, ShardexError
from shardex.sources.byte_ranges import ByteRange
from shardex.sources.credentials import SLOWEST, Settings, noted
from shardex.sources.protocols import Stat
from shardex.sources.retry import Again, reason, same, stat_of, translate

if TYPE_CHECKING:
    import asyncio

    from obstore import ObjectMeta
    from obstore.store import ObjectStore

__all__ = [
    "LARGEST_READ",
    "LARGEST_WRITE",
    "Bucket",
    "ObjectWire",
    "Wire",
    "aside",
    "connect",
    "headers_for",
    "run",
    "slots",
]

T = TypeVar("T")

_MINE = "shardex-writer"
_PART = 16 << 20
_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
LARGEST_READ = 8 << 20
"""The most that one request reads."""
LARGEST_WRITE = 128 << 20
"""The most that is written by one request, and not in parts."""


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
        self.used = self.forked = forked
        """Whether this process has used obstore, or one above it."""


_process = _Process()


def _begin_child() -> None:
    _process.__init__(_process.used)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Have the loop do some work, and wait for it."""
    import asyncio

    with _process.lock:
        if _process.loop is None:
            _process.loop = asyncio.new_event_loop()
            threading.Thread(target=_process.loop.run_forever, name="shardex-wire", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(work, _process.loop)
    try:
        return future.result()
    finally:
        future.cancel()  # after a KeyboardInterrupt nobody waits for it any more


async def aside(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Do something that blocks in a thread; who is called off does not wait for its end."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(threads, work)


def slots(settings: Settings) -> asyncio.Semaphore:
    """As many as requests may be under way at once."""
    import asyncio

    return asyncio.Semaphore(int(settings.number("concurrency")))


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
            _process.wires = {key: wire for key, wire in _process.wires.items() if noted(wire.settings)}
            _process.wires[key] = ObjectWire(bucket, settings, where)
            _process.used = True
        return _process.wires[key]


# -- obstore ----------------------------------------------------------------------------------------------------------


class ObjectWire:
    """Requests to one bucket through obstore."""

    def __init__(self, bucket: Bucket, settings: Settings, where: str) -> None:
        self.settings = settings
        self.slots = slots(settings)
        # Twice as many as wait at once: a thread whose request took too long is left alone until that ends by itself.
        self._threads = ThreadPoolExecutor(2 * int(settings.number("concurrency")), thread_name_prefix="shardex-wire")
        self.keeps_conditions: bool | None = None
        """Whether the store refuses to create what is there; unknown until it was tried."""
        try:
            self._store = _store(bucket, settings, retries=0, largest=LARGEST_READ)
            self._uploads = _store(bucket, settings, retries=0, largest=LARGEST_WRITE)
            self._parts = _store(bucket, settings, retries=int(settings.number("retries")), largest=_PART)
            return
        except Exception as error:
            text = reason(error)
        raise RemoteError(errno.EINVAL, f"cannot be opened: {text}; see shardex.storage", where)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a connection holds secrets and is not pickled: send the URL, and open it there")

    async def _call(self, key: str, work: Callable[[], T]) -> T:
        """What obstore answers, in a thread; its errors become ours, and keep nothing of its own."""
        try:
            return await aside(self._threads, work)
        except (ShardexError, Again):
            raise
        except Exception as error:
            failure = translate(error, key)
        raise failure

    async def head(self, key: str) -> Stat:
        """Ask for a file's headers."""
        import obstore

        return await self._call(key, lambda: _stat(obstore.head(self._store, key)))

    async def peek(self, key: str) -> Stat:
        """Ask for a file, and read only the headers."""
        import obstore

        return await self._call(key, lambda: _stat(obstore.get(self._store, key).meta))

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Ask for a range; look at the headers before the body comes."""
        import obstore

        def read() -> memoryview:
            answer = obstore.get(self._store, key, options={"range": (wanted.begin, wanted.end)})
            same(_stat(answer.meta), pinned, key)
            return memoryview(answer.bytes())

        return await self._call(key, read)

    def list(self, prefix: str) -> Callable[[], Awaitable[list[str]]]:
        """A function that gives some keys below a prefix, then some more, and none at the end.

        After a failure it goes on behind the last key."""
        import obstore

        stream: Iterator[Sequence[ObjectMeta]] | None = None
        last = ""

        def some(
            taken: Iterator[Sequence[ObjectMeta]] | None, after: str
        ) -> tuple[list[str], Iterator[Sequence[ObjectMeta]]]:
            taken = taken or iter(obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000))
            return sorted(one["path"] for one in next(taken, [])), taken

        async def more() -> list[str]:
            nonlocal stream, last
            # A thread that nobody waits for any more goes on taking keys from its stream, so that is not used again.
            taken, stream = stream, None
            keys, taken = await self._call(prefix, lambda: some(taken, last))
            stream, last = taken, keys[-1] if keys else last
            return keys

        return more

    async def put(self, key: str, data: memoryview) -> str:
        """Create or replace a file in one request; its tag."""
        import obstore

        return await self._call(key, lambda: obstore.put(self._uploads, key, data, use_multipart=False)["e_tag"] or "")

    async def upload(self, key: str, data: memoryview) -> str:
        """The same in many parts, each of which is tried again by itself."""
        import obstore

        def send() -> str:
            sent = obstore.put(self._parts, key, data, use_multipart=True, chunk_size=_PART, max_concurrency=8)
            return sent["e_tag"] or ""

        return await self._call(key, send)

    async def create(self, key: str, data: memoryview, writer: str) -> bool:
        """Create a file that notes its writer; false if there is one."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def send() -> bool:
            marks = {_MINE: writer}
            try:
                obstore.put(self._uploads, key, data, mode="create", use_multipart=False, attributes=marks)
                return True
            except AlreadyExistsError as error:
                if "status code: 409" in str(error):
                    raise Again("409 Conflict: somebody else writes it at this moment") from None
                return False

        return await self._call(key, send)

    async def writer(self, key: str) -> str:
        """Who created a file."""
        import obstore

        return await self._call(key, lambda: str(obstore.get(self._store, key).attributes.get(_MINE, "")))

    async def copy(self, key: str, to: str) -> None:
        """Copy a file inside the bucket."""
        import obstore

        await self._call(key, lambda: obstore.copy(self._uploads, key, to))

    async def delete(self, key: str) -> None:
        """Delete a file; most stores do not say whether there was one."""
        import obstore

        await self._call(key, lambda: obstore.delete(self._store, key))


def _store(bucket: Bucket, settings: Settings, *, retries: int, largest: int) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    timeout = settings.number("timeout")
    client: Any = {
        "connect_timeout": timedelta(seconds=min(timeout, 5)),
        "read_timeout": timedelta(seconds=timeout),
        "timeout": timedelta(seconds=timeout + largest / SLOWEST),
        "user_agent": "shardex",
        "pool_max_idle_per_host": str(int(settings.number("concurrency"))),
    }
    for name in ("allow_http", "allow_invalid_certificates"):
        # Options that are given make obstore forget those of the environment.
        told = os.environ.get(f"{_ENVIRONMENT.get(bucket.scheme, 'HTTP')}_{name.upper()}", "").lower()
        client[name] = settings.values.get(name, told in ("1", "true", "yes"))
    if bucket.scheme in ("http", "https"):
        client |= {"allow_http": bucket.scheme == "http", "default_headers": headers_for(settings)}
    patience = timedelta(seconds=settings.number("deadline"))
    options: Any = {"client_options": client, "retry_config": {"max_retries": retries, "retry_timeout": patience}}
    config: Any = settings.store(bucket.scheme)
    match bucket.scheme:
        case "s3":
            return S3Store(bucket.name, disable_bulk_delete=True, **config, **options)  # not every S3 has it
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
