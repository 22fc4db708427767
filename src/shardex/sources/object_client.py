"""Single requests to an object store or web server through obstore, and the event loop in which requests wait.

obstore is called in threads, not by its `async` functions: those call back into Python from their own threads, which
aborts the process if it exits at that moment (one exit in six of short programs on a busy machine). Its threads do not
survive a fork, and every request of a forked child would hang. So the loop and all clients belong to one process, and
`connect` raises an error in a child of a process that has used them.
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
from shardex.sources.credentials import MIN_SPEED, Settings, is_in_use
from shardex.sources.protocols import Stat
from shardex.sources.retry import RetryableError, check_unchanged, one_line, stat_from_headers, translate_error

if TYPE_CHECKING:
    import asyncio

    from obstore import ObjectMeta
    from obstore.store import ObjectStore

T = TypeVar("T")

_WRITER = "shardex-writer"
_PART = 16 << 20
_DOWNLOAD_PIECE = 1 << 20
_ENVIRONMENT = {"s3": "AWS", "gs": "GOOGLE", "az": "AZURE"}
LARGEST_READ = 8 << 20
"""Maximum size of one read request in bytes."""
LARGEST_WRITE = 128 << 20
"""Maximum size of a write in one request; larger files are uploaded in parts."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Target of one client: a bucket, or a host and the query at the end of all its URLs."""

    scheme: str
    name: str
    query: str = ""


class Client(Protocol):
    """Single requests to one bucket or host, one attempt each."""

    settings: Settings
    slots: asyncio.Semaphore

    async def head(self, key: str, *, by_get: bool = False) -> Stat:
        """Return size, tag and time of a file; `by_get` sends a GET request whose body is not read."""

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Return bytes of a file that has not changed since `pinned`; the caller checks how many."""


# -- one event loop and one set of clients per process ----------------------------------------------------------------


class _ProcessState:
    """Loop and clients of this process, which a forked child must not use."""

    def __init__(self, forked: bool = False) -> None:
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clients: dict[tuple[Bucket, int], ObjectClient] = {}
        self.used = self.forked = forked
        """True if this process or one that it was forked from has used obstore."""


_process = _ProcessState()


def _reset_child() -> None:
    _process.__init__(_process.used)  # type: ignore[misc]


os.register_at_fork(after_in_child=_reset_child)


def run_in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop of this process and return its result."""
    import asyncio

    with _process.lock:
        if _process.loop is None:
            _process.loop = asyncio.new_event_loop()
            threading.Thread(target=_process.loop.run_forever, name="shardex-requests", daemon=True).start()
    future = asyncio.run_coroutine_threadsafe(work, _process.loop)
    try:
        return future.result()
    finally:
        future.cancel()  # after a KeyboardInterrupt its result is not needed


async def run_in_thread(threads: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Run a blocking function in a thread; a caller that is cancelled does not wait for its end."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(threads, work)


def request_slots(settings: Settings) -> asyncio.Semaphore:
    """Return a semaphore for the number of concurrent requests."""
    import asyncio

    return asyncio.Semaphore(int(settings.number("concurrency")))


def connect(bucket: Bucket, settings: Settings, where: str) -> ObjectClient:
    """Return the client of this process for a bucket."""
    if _process.forked:
        raise ForkSafetyError(
            errno.EDEADLK,
            "expected a freshly started process, got a child forked from one that has used remote storage, in "
            "which every request would hang; start workers by the method 'forkserver' or 'spawn'",
            where,
        )
    with _process.lock:
        key = bucket, id(settings)  # the client keeps the settings alive, so the id is not used again
        if key not in _process.clients:
            _process.clients = {key: client for key, client in _process.clients.items() if is_in_use(client.settings)}
            _process.clients[key] = ObjectClient(bucket, settings, where)
            _process.used = True
        return _process.clients[key]


# -- obstore ----------------------------------------------------------------------------------------------------------


class ObjectClient:
    """Requests to one bucket through obstore."""

    def __init__(self, bucket: Bucket, settings: Settings, where: str) -> None:
        self.settings = settings
        self._bucket = bucket
        self.slots = request_slots(settings)
        # Twice as many as concurrent requests: the thread of a request that timed out is busy until that request ends.
        self._threads = ThreadPoolExecutor(2 * int(settings.number("concurrency")), thread_name_prefix="shardex-http")
        self.create_is_conditional: bool | None = None
        """True if the store refuses to create a file that exists; None before that was tested."""
        try:
            self._store = _store(bucket, settings, retries=0, largest=LARGEST_READ)
            self._uploads = _store(bucket, settings, retries=0, largest=LARGEST_WRITE)
            self._parts = _store(bucket, settings, retries=int(settings.number("retries")), largest=_PART)
            return
        except Exception as error:
            text = one_line(error)
        raise RemoteError(errno.EINVAL, f"cannot be opened: {text}; see shardex.storage", where)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client holds secrets and is not pickled: send the URL and open it in the other process")

    async def _call(self, key: str, work: Callable[[], T]) -> T:
        """Call obstore in a thread and translate its errors, without the original error as context."""
        try:
            return await run_in_thread(self._threads, work)
        except (ShardexError, RetryableError):
            raise
        except Exception as error:
            failure = translate_error(error, key)
        raise failure

    async def head(self, key: str, *, by_get: bool = False) -> Stat:
        """Send a HEAD request, or a GET request of which only the headers are read."""
        import obstore

        def ask() -> Stat:
            return _stat(obstore.get(self._store, key).meta if by_get else obstore.head(self._store, key))

        return await self._call(key, ask)

    async def get(self, key: str, wanted: ByteRange, pinned: Stat) -> memoryview:
        """Request a range; check the headers before the body is read."""
        import obstore

        def read() -> memoryview:
            # A web server without ranges can send a whole file.
            is_whole = self._bucket.scheme.startswith("http") and (wanted.begin, wanted.end) == (0, pinned.size)
            span = (wanted.begin, wanted.end)
            answer = obstore.get(self._store, key, options={} if is_whole else {"range": span})
            check_unchanged(_stat(answer.meta), pinned, key)
            return memoryview(answer.bytes())

        return await self._call(key, read)

    async def download(self, key: str, pinned: Stat, write: Callable[[Any], int]) -> int:
        """Request a whole file without a range, write it piece by piece, and return its size."""
        import obstore

        def read() -> int:
            # The limit for a request grows with its size.
            store = _store(self._bucket, self.settings, retries=0, largest=pinned.size)
            answer = obstore.get(store, key)
            check_unchanged(_stat(answer.meta), pinned, key)
            return sum(map(write, answer.stream(min_chunk_size=_DOWNLOAD_PIECE)))

        return await self._call(key, read)

    def list(self, prefix: str) -> Callable[[], Awaitable[list[tuple[str, Stat]]]]:
        """Return a function that returns the next keys below a prefix with their stats, and an empty list at the end.

        After an error, calling it again continues after the last key returned.
        """
        import obstore

        stream: Iterator[Sequence[ObjectMeta]] | None = None
        last = ""

        def some(
            taken: Iterator[Sequence[ObjectMeta]] | None, after: str
        ) -> tuple[list[tuple[str, Stat]], Iterator[Sequence[ObjectMeta]]]:
            taken = taken or iter(obstore.list(self._store, prefix or None, offset=after or None, chunk_size=1000))
            return sorted(((one["path"], _stat(one)) for one in next(taken, [])), key=lambda pair: pair[0]), taken

        async def more() -> list[tuple[str, Stat]]:
            nonlocal stream, last
            # The thread of a cancelled request still takes keys from its stream, so that stream is not used again.
            taken, stream = stream, None
            found, taken = await self._call(prefix, lambda: some(taken, last))
            stream, last = taken, found[-1][0] if found else last
            return found

        return more

    async def put(self, key: str, data: memoryview) -> str:
        """Create or replace a file in one request, or if it is large in parts that are retried; return its tag."""
        import obstore

        store, options = self._uploads, dict[str, Any](use_multipart=False)
        if data.nbytes > LARGEST_WRITE:
            store, options = self._parts, {"use_multipart": True, "chunk_size": _PART, "max_concurrency": 8}
        return await self._call(key, lambda: obstore.put(store, key, data, **options)["e_tag"] or "")

    async def create(self, key: str, data: memoryview, writer: str) -> bool:
        """Create a file with the name of its writer as an attribute; return False if it exists."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        def send() -> bool:
            attributes = {_WRITER: writer}
            try:
                obstore.put(self._uploads, key, data, mode="create", use_multipart=False, attributes=attributes)
                return True
            except AlreadyExistsError as error:
                if "status code: 409" in str(error):
                    raise RetryableError("409 Conflict: another writer is writing it") from None
                return False

        return await self._call(key, send)

    async def writer(self, key: str) -> str:
        """Return the writer that created a file."""
        import obstore

        return await self._call(key, lambda: str(obstore.get(self._store, key).attributes.get(_WRITER, "")))

    async def copy(self, key: str, to: str) -> None:
        """Copy a file inside the bucket."""
        import obstore

        await self._call(key, lambda: obstore.copy(self._uploads, key, to))

    async def delete(self, key: str) -> None:
        """Delete a file; most stores do not report whether it existed."""
        import obstore

        await self._call(key, lambda: obstore.delete(self._store, key))


def _store(bucket: Bucket, settings: Settings, *, retries: int, largest: int) -> ObjectStore:
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    timeout = settings.number("timeout")
    client: Any = {
        "connect_timeout": timedelta(seconds=min(timeout, 5)),
        "read_timeout": timedelta(seconds=timeout),
        "timeout": timedelta(seconds=timeout + largest / MIN_SPEED),
        "user_agent": "shardex",
        "pool_max_idle_per_host": str(int(settings.number("concurrency"))),
    }
    for name in ("allow_http", "allow_invalid_certificates"):
        # Explicit options make obstore ignore those of the environment.
        allowed = os.environ.get(f"{_ENVIRONMENT.get(bucket.scheme, 'HTTP')}_{name.upper()}", "").lower()
        client[name] = settings.values.get(name, allowed in ("1", "true", "yes"))
    if bucket.scheme in ("http", "https"):
        client |= {"allow_http": bucket.scheme == "http", "default_headers": auth_headers(settings)}
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


def auth_headers(settings: Settings) -> dict[str, str]:
    """Return the authorization headers and extra headers for a web server."""
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
    return stat_from_headers(meta["size"], meta["e_tag"], meta["last_modified"])
