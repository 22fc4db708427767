"""Files in an object store or on a web server: ``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``.

Ranges close to each other are fetched together, large ones in pieces, many concurrently. Every answer is checked
against the first stat of the file, and failed requests are retried (`retry`). Sources share the clients of their
process (`object_client`) and get their secrets from `credentials`. A web server can only be read.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import numpy as np

from shardex.errors import (
    AccessDeniedError,
    AddressError,
    ConditionalPutError,
    NotFoundError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
    TruncatedShardError,
)
from shardex.sources.byte_ranges import ByteRange, read_merged
from shardex.sources.credentials import credentials_version, redact_url, settings_for, strip_credentials
from shardex.sources.guarded_http import GuardedClient, check_untrusted
from shardex.sources.object_client import (
    LARGEST_READ,
    Bucket,
    Client,
    ObjectClient,
    connect,
    run_in_loop,
)
from shardex.sources.protocols import Place, Stat, TemporaryDraft, check_path
from shardex.sources.retry import RequestCounts, RetryableError, gather_or_cancel, run_with_retries

T = TypeVar("T")

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _split(url: str) -> SplitResult:
    """Split a URL; in the name of an object ``#`` has no meaning, and no letter is dropped."""
    try:
        parts = urlsplit(url, allow_fragments=url.startswith("http"))
    except ValueError as error:
        raise AddressError(f"expected a well-formed URL, got {redact_url(url)!r}: {error}") from None
    if _CONTROL.search(url):
        raise AddressError(f"expected a URL without control characters, got {redact_url(url)!r}")
    if not url.startswith("http") and (refused := {"?", "\\"}.intersection(url)):
        raise AddressError(
            f"expected a name in a bucket without {' and '.join(sorted(refused))}, got {redact_url(url)!r}"
        )
    return parts


class ObjectSource(Place):
    """A folder in a bucket or on a web server.

    >>> place = ObjectSource("https://data.example/sets?token=abc")
    >>> place, place.url
    (ObjectSource('https://data.example/sets?***'), 'https://data.example/sets?token=abc')
    """

    gap = 128 << 10
    """Two ranges with at most this many bytes between them are read by one request: it takes about the same time."""

    def __init__(self, url: str, *, trusted: bool = True) -> None:
        self.url = strip_credentials(url) if trusted else check_untrusted(url)
        self._trusted = trusted
        parts = _split(self.url)
        self._is_web = parts.scheme in ("http", "https")
        self._bucket = Bucket(parts.scheme, parts.netloc, parts.query)
        self._root = (unquote(parts.path) if self._is_web else parts.path).strip("/")
        self._pins: dict[str, Stat] = {}
        self._client: tuple[Client, int, int] | None = None
        self.traffic = RequestCounts()

    def __repr__(self) -> str:
        return f"ObjectSource({redact_url(self.url)!r})"

    def __reduce__(self) -> tuple[Callable[..., ObjectSource], tuple[()]]:
        return partial(ObjectSource, self.url, trusted=self._trusted), ()  # without the stats of files

    # -- reading ------------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        """Return the current size, ETag and time of a file; reads check against those of the first call."""
        key, refused = self._key(path), False
        try:
            found = self._ask(path, "look at", lambda: self._connect(path).head(key))
        except (AccessDeniedError, RemoteError) as error:
            refused = self._is_web and type(error) in (AccessDeniedError, RemoteError)
            if not refused:
                raise
        if refused:
            # A URL that is signed for GET does not allow HEAD.
            found = self._ask(path, "look at", lambda: self._connect(path).head(key, by_get=True))
        self._pins.setdefault(path, found)
        return found

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Read ranges: close ones together, large ones in pieces, many concurrently."""
        size = self._pinned(path).size
        for one in ranges:
            if one.end > size:
                expected = f"expected bytes {one.begin} to {one.end}, got a file of {size} bytes"
                raise TruncatedShardError(f"{self._redacted(path)}: {expected}")
        return read_merged(ranges, partial(self._fetch, path), gap=self.gap, largest=LARGEST_READ)

    def map(self, path: str) -> memoryview:
        """Read the whole file into memory."""
        return self._fetch(path, [ByteRange(0, self._pinned(path).size)])[0]

    def download(self, path: str, out: BinaryIO) -> None:
        """Write the whole file to an open one; a web server, which may not know ranges, is asked for all of it."""
        client = self._connect(path)
        if not self._is_web or not isinstance(client, ObjectClient):
            return super().download(path, out)
        key, pinned, target = self._key(path), self._pinned(path), _Attempts(out)

        async def once() -> None:
            found = await client.download(key, pinned, target.begin())
            self.traffic.bytes_read += found
            if found != pinned.size:
                raise RetryableError(f"an answer of {found} bytes instead of {pinned.size}")

        where = self._redacted(path)
        try:
            run_in_loop(run_with_retries(once, client, self.traffic, "download", where, pinned.size))
        finally:
            target.end()
        return None

    def paths(self, prefix: str = "") -> list[str]:
        """Return the paths of all files; a web server cannot list them."""
        return [path for path, _ in self._list(prefix)]

    def listing(self, prefix: str = "") -> dict[str, Stat]:
        """Return size and tag of all files; a web server cannot list them."""
        return dict(self._list(prefix))

    def pin(self, stats: Mapping[str, Stat]) -> None:
        """Check reads of files against these stats, as if `stat` had returned them."""
        for path, stat in stats.items():
            self._pins.setdefault(path, stat)

    def _list(self, prefix: str) -> list[tuple[str, Stat]]:
        if self._is_web:
            hint = (
                "a web server does not list its files; give their names, or a pattern such as part-{000..127}.tar; "
                "native datasets, which need a listing, are read from a folder or from s3://, gs:// or az://"
            )
            raise RemoteError(errno.ENOTSUP, hint, redact_url(self.url))
        more = self._writing_client(prefix).list("/".join(filter(None, [self._root, prefix.rpartition("/")[0]])))
        found: list[tuple[str, Stat]] = []
        while some := self._ask(prefix, "list", more):
            found += some
        start = len(self._root) + 1 if self._root else 0
        inside = ((key[start:], stat) for key, stat in found if key[start:].startswith(prefix))
        return sorted(inside, key=lambda pair: pair[0])

    def _pinned(self, path: str) -> Stat:
        check_path(path)
        return self._pins.get(path) or self.stat(path)

    def _fetch(self, path: str, wanted: Sequence[ByteRange]) -> list[memoryview]:
        """Return each range as one block; all requests run concurrently."""
        out: list[memoryview] = [memoryview(b"")] * len(wanted)
        client, work = self._connect(path), list[Awaitable[None]]()

        async def whole(number: int, one: ByteRange) -> None:
            out[number] = await self._read_piece(client, path, one)

        async def part(block: memoryview, at: int, one: ByteRange) -> None:
            block[at : at + one.length] = await self._read_piece(client, path, one)

        for number, one in enumerate(wanted):
            if 0 < one.length <= LARGEST_READ:
                work.append(whole(number, one))
            elif one.length:
                block = np.empty(one.length, np.uint8).data
                out[number] = block.toreadonly()
                for at in range(0, one.length, LARGEST_READ):
                    work.append(part(block, at, ByteRange(one.begin + at, min(LARGEST_READ, one.length - at))))
        if work:
            run_in_loop(gather_or_cancel(work))
        return out

    async def _read_piece(self, client: Client, path: str, wanted: ByteRange) -> memoryview:
        key, pinned = self._key(path), self._pins[path]

        async def once() -> memoryview:
            data = await client.get(key, wanted, pinned)
            self.traffic.bytes_read += len(data)
            if len(data) != wanted.length:
                raise RetryableError(f"an answer of {len(data)} bytes instead of {wanted.length}")
            return data

        doing = f"read bytes {wanted.begin} to {wanted.end}"
        return await run_with_retries(once, client, self.traffic, doing, self._redacted(path), wanted.length)

    def _ask(self, path: str, doing: str, once: Callable[[], Awaitable[T]], size: int = -1) -> T:
        """Run one request; it is a write if it sends `size` bytes."""
        failed: type[RemoteError] = RemoteReadError if size < 0 else RemoteWriteError
        client, where = self._connect(path), self._redacted(path)
        return run_in_loop(run_with_retries(once, client, self.traffic, doing, where, max(size, 0), failed))

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, path: str, data: Any) -> None:
        """Upload a file, in parts if it is large."""
        self.upload(path, memoryview(data).cast("B"))

    def upload(self, path: str, data: memoryview) -> str:
        """Upload a file; return its tag."""
        key = self._writable(path)
        self._pins.pop(path, None)
        client = self._writing_client(path)
        return self._ask(path, "write", lambda: client.put(key, data), data.nbytes)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create a file on the condition that it does not exist; raise an error if the store ignores conditions."""
        key, view = self._writable(path), memoryview(data).cast("B")
        self._probe(path)
        self._pins.pop(path, None)
        return self._create(path, key, view)

    def _create(self, path: str, key: str, data: memoryview) -> bool:
        """Create a file. If the response was lost, its writer attribute shows whether this call created it."""
        client, writer, sent = self._writing_client(path), secrets.token_hex(16), 0

        async def create() -> bool:
            nonlocal sent
            sent += 1
            return await client.create(key, data, writer) or (sent > 1 and await client.writer(key) == writer)

        return self._ask(path, "create", create, data.nbytes)

    def _probe(self, path: str) -> None:
        """Raise an error if the store ignores conditions; tested once per client by creating a file twice."""
        client = self._writing_client(path)
        if client.create_is_conditional is None:
            key = self._temporary_key()
            try:
                first, second = (self._create(path, key, memoryview(b"probe")) for _ in range(2))
            finally:
                self._ask(path, "clean up after creating", lambda: client.delete(key), 0)
            client.create_is_conditional = first and not second
        if not client.create_is_conditional:
            raise ConditionalPutError(
                errno.ENOTSUP,
                "expected a store that refuses to create a file that exists, got one that overwrites it: concurrent "
                "writers would lose data; write to a local folder and copy it, or use another store",
                self._redacted(path),
            )

    def draft(self) -> TemporaryDraft:
        """Start a local temporary file that `publish` uploads."""
        self._writable("draft")
        return TemporaryDraft(self._upload_and_check)

    def _upload_and_check(self, path: str, data: memoryview) -> None:
        tag = self.upload(path, data)
        found = self.stat(path)
        if found.size != data.nbytes or (tag and found.tag != tag):
            expected = f"expected {data.nbytes} bytes with the tag {tag} after the upload"
            got = f"got {found.size} with the tag {found.tag}"
            raise RemoteWriteError(errno.EIO, f"{expected}, {got}", self._redacted(path))

    def copy(self, path: str, to: str) -> None:
        """Copy a file inside the bucket."""
        key, target, client = self._writable(path), self._writable(to), self._writing_client(path)
        self._pins.pop(to, None)
        size = self._ask(path, "copy", lambda: client.head(key)).size
        self._ask(path, "copy", lambda: client.copy(key, target), size)

    def remove(self, path: str) -> None:
        """Delete a file."""
        key, client = self._writable(path), self._writing_client(path)
        self._ask(path, "remove", lambda: client.head(key))
        self._pins.pop(path, None)
        with suppress(NotFoundError):  # an earlier attempt deleted it and its answer was lost
            self._ask(path, "remove", lambda: client.delete(key), 0)

    def _writable(self, path: str) -> str:
        key = self._key(path)
        if self._is_web:
            hint = "a web server is only read; write to a folder or a bucket"
            raise AccessDeniedError(errno.EROFS, hint, redact_url(self.url))
        return key

    # -- addresses and clients ----------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        """Return the key of a file in the bucket."""
        return f"{self._root}/{check_path(path)}" if self._root else check_path(path)

    def _temporary_key(self) -> str:
        """Return an unused key that `clean` removes if it is left over."""
        return self._key(f".{secrets.token_hex(8)}.tmp")

    def _redacted(self, path: str) -> str:
        """Return the address of a file for messages."""
        root, query, rest = redact_url(self.url).partition("?")
        return f"{root}/{path}{query}{rest}"

    def _connect(self, path: str) -> Client:
        """Return the client of this process for reading, with the current credentials."""
        if self._client is None or self._client[1:] != (os.getpid(), credentials_version()):
            settings = settings_for(self.url)
            guarded = self._is_web and not self._trusted
            client: Client = (
                GuardedClient(self._bucket, settings)
                if guarded
                else connect(self._bucket, settings, self._redacted(path))
            )
            self._client = client, os.getpid(), credentials_version()
        return self._client[0]

    def _writing_client(self, path: str) -> ObjectClient:
        """Return the client for listing and writing."""
        client = self._connect(path)
        assert isinstance(client, ObjectClient), "a guarded web server is neither listed nor written"
        return client


class _Attempts:
    """A file that several attempts write, each from the beginning; threads of earlier ones can no longer write."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._lock, self._number = out, threading.Lock(), 0

    def begin(self) -> Callable[[Any], int]:
        """Empty the file and return the function that writes to it."""
        number = self.end()
        self._out.seek(0)
        self._out.truncate()

        def write(piece: Any) -> int:
            with self._lock:
                if number != self._number:
                    raise RetryableError("an attempt that is over")
                return self._out.write(piece)

        return write

    def end(self) -> int:
        """Let no earlier attempt write."""
        with self._lock:
            self._number += 1
            return self._number
