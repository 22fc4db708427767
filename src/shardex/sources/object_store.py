"""Files in an object store or on a web server: ``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``.

Ranges that lie near each other are fetched together, large ones in pieces, many at once. Every answer is checked
against what is known of the file since it was first looked at; what fails is tried again (`patience`). Sources share
the connections of their process (`wire`) and find their secrets in the keyring. A web server is only read.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from shardex.errors import (
    AccessDeniedError,
    ConditionalPutError,
    NotFoundError,
    RemoteError,
    RemoteReadError,
    RemoteWriteError,
    TruncatedShardError,
    storage_errors,
)
from shardex.sources.byte_ranges import ByteRange, plan
from shardex.sources.credentials import changes, settings_for, shown, without_secrets
from shardex.sources.guarded_http import GuardedWire, check_untrusted
from shardex.sources.object_client import LARGEST_READ, LARGEST_WRITE, Bucket, ObjectWire, Wire, connect, run
from shardex.sources.protocols import Place, Stat, inside
from shardex.sources.retry import Again, Request, Traffic, all_of

__all__ = ["ObjectSource"]

T = TypeVar("T")


class ObjectSource(Place):
    """A folder in a bucket or on a web server; source, and where the storage can be written, sink.

    >>> place = ObjectSource("https://data.example/sets?token=abc")
    >>> place, place.url
    (ObjectSource('https://data.example/sets?***'), 'https://data.example/sets?token=abc')
    """

    gap = 512 << 10
    """Bytes between two ranges that are read rather than asked for twice: they come in about the same time."""

    def __init__(self, url: str, *, trusted: bool = True) -> None:
        self._url = without_secrets(url) if trusted else check_untrusted(url)
        self._trusted = trusted
        parts = urlsplit(self._url)
        self._web = parts.scheme in ("http", "https")
        self._bucket = Bucket(parts.scheme, parts.netloc, parts.query)
        self._root = (unquote(parts.path) if self._web else parts.path).strip("/")
        self._pins: dict[str, Stat] = {}
        self._wire: tuple[Wire, int, int] | None = None
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"ObjectSource({shown(self._url)!r})"

    def __reduce__(self) -> tuple[Callable[..., ObjectSource], tuple[str, bool]]:
        return _again, (self._url, self._trusted)

    @property
    def url(self) -> str:
        """The root; a query in it belongs to every file below."""
        return self._url

    # -- reading ------------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        """Size, ETag and time of a file as it is now; the first one is what all reads expect."""
        key, refused = self._key(path), False
        try:
            found = self._ask(path, "look at", lambda: self._connect(path).head(key))
        except (AccessDeniedError, RemoteError) as error:
            refused = self._web and type(error) in (AccessDeniedError, RemoteError)
            if not refused:
                raise
        if refused:
            found = self._ask(
                path, "look at", lambda: self._connect(path).peek(key)
            )  # what is signed for GET allows no HEAD
        self._pins.setdefault(path, found)
        return found

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Fetch ranges: near ones together, large ones in pieces, many at once."""
        size = self._pinned(path).size
        for one in ranges:
            if one.end > size:
                expected = f"expected bytes {one.begin} to {one.end}, got a file of {size} bytes"
                raise TruncatedShardError(f"{self._shown(path)}: {expected}")
        steps = plan(ranges, gap=self.gap, largest=LARGEST_READ)
        blocks = self._fetch(path, [step.range for step in steps])
        out: list[memoryview] = [memoryview(b"")] * len(ranges)
        for step, block in zip(steps, blocks, strict=True):
            for number in step.wanted:
                begin = ranges[number].begin - step.range.begin
                out[number] = block[begin : begin + ranges[number].length]
        return out

    def map(self, path: str) -> memoryview:
        """Fetch all of a file: nothing here is loaded as it is touched."""
        return self._fetch(path, [ByteRange(0, self._pinned(path).size)])[0]

    def paths(self, prefix: str = "") -> list[str]:
        """Every file below, sorted; a web server cannot be asked that."""
        if self._web:
            hint = "a web server does not list its files; give their names, or a pattern such as part-{000..127}.tar"
            raise RemoteError(errno.ENOTSUP, hint, shown(self._url))
        more = self._store(prefix).list("/".join(filter(None, [self._root, prefix.rpartition("/")[0]])))
        found: list[str] = []
        while some := self._ask(prefix, "list", more):
            found += some
        start = len(self._root) + 1 if self._root else 0
        return sorted(key[start:] for key in found if key[start:].startswith(prefix))

    def _pinned(self, path: str) -> Stat:
        inside(path)
        return self._pins.get(path) or self.stat(path)

    def _fetch(self, path: str, wanted: Sequence[ByteRange]) -> list[memoryview]:
        """Each range as one block; all that they need is asked for at once."""
        out: list[memoryview] = [memoryview(b"")] * len(wanted)
        wire, work = self._connect(path), list[Awaitable[None]]()

        async def whole(number: int, one: ByteRange) -> None:
            out[number] = await self._piece(wire, path, one)

        async def part(block: memoryview, at: int, one: ByteRange) -> None:
            block[at : at + one.length] = await self._piece(wire, path, one)

        for number, one in enumerate(wanted):
            if 0 < one.length <= LARGEST_READ:
                work.append(whole(number, one))
            elif one.length:
                block = np.empty(one.length, np.uint8).data
                out[number] = block.toreadonly()
                for at in range(0, one.length, LARGEST_READ):
                    work.append(part(block, at, ByteRange(one.begin + at, min(LARGEST_READ, one.length - at))))
        if work:
            run(all_of(work))
        return out

    async def _piece(self, wire: Wire, path: str, wanted: ByteRange) -> memoryview:
        key, pinned = self._key(path), self._pins[path]

        async def once() -> memoryview:
            data = await wire.get(key, wanted, pinned)
            self.traffic.bytes_read += len(data)
            if len(data) != wanted.length:
                raise Again(f"an answer of {len(data)} bytes that should have {wanted.length}")
            return data

        doing = f"read bytes {wanted.begin} to {wanted.end}"
        async with wire.slots:
            request = Request(doing, self._shown(path), wanted.length)
            return await request.patiently(once, wire.settings, self.traffic)

    def _ask(self, path: str, doing: str, once: Callable[[], Awaitable[T]], size: int = -1) -> T:
        """One request, alone; a write if it sends `size` bytes."""
        wire = self._connect(path)
        failed: type[RemoteError] = RemoteReadError if size < 0 else RemoteWriteError
        request = Request(doing, self._shown(path), max(size, 0), failed)

        async def ask() -> T:
            async with wire.slots:
                return await request.patiently(once, wire.settings, self.traffic)

        return run(ask())

    # -- writing ------------------------------------------------------------------------------------------------------

    def put(self, path: str, data: Any) -> None:
        """Upload a file, in parts if it is large."""
        self.upload(path, memoryview(data).cast("B"))

    def upload(self, path: str, data: memoryview) -> str:
        """Upload a file; the tag it got."""
        key = self._writable(path)
        self._pins.pop(path, None)
        wire = self._store(path)
        send = wire.upload if data.nbytes > LARGEST_WRITE else wire.put
        return self._ask(path, "write", lambda: send(key, data), data.nbytes)

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create a file, on the condition that there is none; an error where the store ignores conditions."""
        key, view = self._writable(path), memoryview(data).cast("B")
        self._probe(path)
        self._pins.pop(path, None)
        return self._create(path, key, view)

    def _create(self, path: str, key: str, data: memoryview) -> bool:
        """Create a file. When an answer was lost, the file itself says whether it is ours."""
        wire, writer, sent = self._store(path), secrets.token_hex(16), 0

        async def create() -> bool:
            nonlocal sent
            sent += 1
            return await wire.create(key, data, writer) or (sent > 1 and await wire.writer(key) == writer)

        return self._ask(path, "create", create, data.nbytes)

    def _probe(self, path: str) -> None:
        """Find out, once for each connection, whether the store keeps conditions: create the same file twice."""
        wire = self._store(path)
        if wire.keeps_conditions is None:
            key = self._aside()
            try:
                first, second = (self._create(path, key, memoryview(b"probe")) for _ in range(2))
            finally:
                self._ask(path, "tidy up after creating", lambda: wire.delete(key), 0)
            wire.keeps_conditions = first and not second
        if not wire.keeps_conditions:
            raise ConditionalPutError(
                errno.ENOTSUP,
                "expected a store that refuses to create what is there already, got one that overwrites it: two "
                "writers would lose each other's work; write elsewhere and copy, or use another store",
                self._shown(path),
            )

    def draft(self) -> ObjectDraft:
        """A local temporary file that `publish` uploads."""
        self._writable("draft")
        return ObjectDraft(self)

    def touch(self, path: str) -> None:
        """Copy a file onto itself; by a detour, since S3 refuses the direct way."""
        key, aside, wire = self._writable(path), self._aside(), self._store(path)
        self._pins.pop(path, None)
        if self._bucket.scheme != "s3":
            return self._ask(path, "touch", lambda: wire.copy(key, key), 0)
        size = self._ask(path, "touch", lambda: wire.head(key)).size
        self._ask(path, "touch", lambda: wire.copy(key, aside), size)
        try:
            self._ask(path, "touch", lambda: wire.copy(aside, key), size)
        finally:
            self._ask(path, "tidy up after touching", lambda: wire.delete(aside), 0)

    def remove(self, path: str) -> None:
        """Delete a file."""
        key, wire = self._writable(path), self._store(path)
        self._ask(path, "remove", lambda: wire.head(key))
        self._pins.pop(path, None)
        with suppress(NotFoundError):  # the answer to an earlier attempt was lost
            self._ask(path, "remove", lambda: wire.delete(key), 0)

    def _writable(self, path: str) -> str:
        key = self._key(path)
        if self._web:
            hint = "a web server is only read; write to a folder or a bucket"
            raise AccessDeniedError(errno.EROFS, hint, shown(self._url))
        return key

    # -- where it is --------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        """What the bucket calls a file."""
        return f"{self._root}/{inside(path)}" if self._root else inside(path)

    def _aside(self) -> str:
        """A free name, of the kind that is cleaned up if it stays."""
        return self._key(f".{secrets.token_hex(8)}.tmp")

    def _shown(self, path: str) -> str:
        """The address of a file, for people."""
        root, query, rest = shown(self._url).partition("?")
        return f"{root}/{path}{query}{rest}"

    def _connect(self, path: str) -> Wire:
        """The connection to read through: of this process, and as the keyring has it now."""
        if self._wire is None or self._wire[1:] != (os.getpid(), changes()):
            settings = settings_for(self._url)
            guarded = self._web and not self._trusted
            wire = (
                GuardedWire(self._bucket, settings) if guarded else connect(self._bucket, settings, self._shown(path))
            )
            self._wire = wire, os.getpid(), changes()
        return self._wire[0]

    def _store(self, path: str) -> ObjectWire:
        """The connection to list and to write through."""
        wire = self._connect(path)
        assert isinstance(wire, ObjectWire), "a guarded web server is neither listed nor written"
        return wire


def _again(url: str, trusted: bool) -> ObjectSource:
    """A source that was pickled: what it knew of files stays behind."""
    return ObjectSource(url, trusted=trusted)


class ObjectDraft:
    """A temporary file of this machine that becomes an object by `publish`; it vanishes with the process."""

    def __init__(self, place: ObjectSource) -> None:
        self._place = place
        with storage_errors(tempfile.gettempdir(), "create a temporary file in"):
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by publish or discard

    @property
    def file(self) -> BinaryIO:
        """Write here."""
        return self._file

    def close(self, size: int) -> None:
        """End the writing; an error if another number of bytes is there than were given."""
        with storage_errors(tempfile.gettempdir(), "write a temporary file in"):
            self._file.flush()
            if (found := os.fstat(self._file.fileno()).st_size) != size:
                raise OSError(errno.EIO, f"expected {size} bytes on the disk, got {found}")

    def publish(self, path: str) -> None:
        """Upload what was written."""
        inside(path)
        with storage_errors(tempfile.gettempdir(), "write a temporary file in"):
            self._file.flush()
            size = os.fstat(self._file.fileno()).st_size
            data = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        tag = self._place.upload(path, memoryview(data))
        found = self._place.stat(path)
        if found.size != size or (tag and found.tag != tag):
            raise RemoteWriteError(
                errno.EIO,
                f"expected {size} bytes with the tag {tag} to be there, got {found.size} with the tag {found.tag}",
                f"{shown(self._place.url)}/{path}",
            )
        self.discard()

    def discard(self) -> None:
        """Drop the file."""
        self._file.close()
