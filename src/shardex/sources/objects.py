"""Files in an object store or on a web server: ``s3://``, ``gs://``, ``az://``, ``http://``, ``https://``.

Ranges that lie near each other are fetched together, large ones in pieces, many at once. Every answer is checked
against what is known of the file since it was first looked at; what fails is tried again, with pauses, until its
deadline. Sources share the connections of their process (`wire`) and find their secrets in the keyring.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import numpy as np

from shardex.errors import (
    AccessDeniedError,
    ForkSafetyError,
    RemoteError,
    RemoteReadError,
    ShardexError,
    SourceError,
    TruncatedShardError,
)
from shardex.ranges import ByteRange, plan
from shardex.source import Stat, inside
from shardex.sources.keyring import changes, settings_for, shown, without_secrets
from shardex.sources.wire import Again, Bucket, ObstoreWire, connect, run

__all__ = ["ObjectSource", "Traffic"]

T = TypeVar("T")

_GAP = 512 << 10
_LARGEST = 8 << 20
_SLOWEST = 128 << 10
"""Bytes per second that every connection must reach: what is asked for may take that long, and its timeout longer."""


@dataclass(slots=True)
class Traffic:
    """What a source has asked of its server, retries included."""

    requests: int = 0
    bytes_read: int = 0


class ObjectSource:
    """A folder in a bucket, or on a web server (read-only there); source and sink.

    >>> place = ObjectSource("https://data.example/sets?token=abc")
    >>> place, place.url
    (ObjectSource('https://data.example/sets?***'), 'https://data.example/sets?token=abc')
    """

    def __init__(self, url: str) -> None:
        self._url = without_secrets(url)
        parts = urlsplit(self._url)
        self._web = parts.scheme in ("http", "https")
        self._bucket = Bucket(parts.scheme, parts.netloc, parts.query)
        self._root = (unquote(parts.path) if self._web else parts.path).strip("/")
        self._pins: dict[str, Stat] = {}
        self._wire: tuple[ObstoreWire, int, int] | None = None
        self.traffic = Traffic()

    def __repr__(self) -> str:
        return f"ObjectSource({shown(self._url)!r})"

    def __reduce__(self) -> tuple[type[ObjectSource], tuple[str]]:
        return ObjectSource, (self._url,)

    @property
    def url(self) -> str:
        """The root; a query in it belongs to every file below."""
        return self._url

    # -- reading ------------------------------------------------------------------------------------------------------

    def stat(self, path: str) -> Stat:
        """Size, ETag and time of a file as it is now; the first one is what all reads expect."""
        key = self._key(path)
        try:
            found = self._ask(path, "look at", lambda wire: wire.head(key))
        except (AccessDeniedError, RemoteError) as error:
            if not self._web or isinstance(error, RemoteReadError | ForkSafetyError):
                raise
            found = self._ask(path, "look at", lambda wire: wire.peek(key))  # what is signed for GET allows no HEAD
        self._pins.setdefault(path, found)
        return found

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """Fetch ranges: near ones together, large ones in pieces, many at once."""
        self._key(path)
        size = (self._pins.get(path) or self.stat(path)).size
        for one in ranges:
            if one.end > size:
                raise TruncatedShardError(
                    f"{self._shown(path)}: expected bytes {one.begin} to {one.end}, got a file of {size} bytes"
                )
        steps = plan(ranges, gap=_GAP, largest=_LARGEST)
        blocks = self._fetch(path, [step.range for step in steps])
        out: list[memoryview] = [memoryview(b"")] * len(ranges)
        for step, block in zip(steps, blocks, strict=True):
            for number in step.wanted:
                begin = ranges[number].begin - step.range.begin
                out[number] = block[begin : begin + ranges[number].length]
        return out

    def load(self, path: str) -> memoryview:
        """Fetch all of a file."""
        self._key(path)
        size = (self._pins.get(path) or self.stat(path)).size
        return self.read(path, [ByteRange(0, size)])[0]

    def map(self, path: str) -> memoryview:
        """Fetch all of a file: nothing here can be loaded as it is touched."""
        return self.load(path)

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Nothing to do: what `map` gave is all there."""

    def paths(self, prefix: str = "") -> list[str]:
        """Every file below, sorted; a web server cannot be asked that."""
        if self._web:
            raise RemoteError(
                errno.ENOTSUP,
                "a web server does not list its files; give their names, or a pattern such as part-{000..127}.tar",
                shown(self._url),
            )
        folder = "/".join(filter(None, [self._root, prefix.rpartition("/")[0]]))
        listing = self._connect(prefix).list(folder)
        found: list[str] = []
        while some := self._ask(prefix, "list", lambda _: listing.more()):
            found += some
        start = len(self._root) + 1 if self._root else 0
        return sorted(key[start:] for key in found if key[start:].startswith(prefix))

    def _fetch(self, path: str, wanted: Sequence[ByteRange]) -> list[memoryview]:
        """Each range as one block."""
        out: list[memoryview] = [memoryview(b"")] * len(wanted)
        work: list[Awaitable[None]] = []
        wire = self._connect(path)

        async def whole(number: int, one: ByteRange) -> None:
            out[number] = await self._piece(wire, path, one)

        async def part(block: memoryview, at: int, one: ByteRange) -> None:
            block[at : at + one.length] = await self._piece(wire, path, one)

        for number, one in enumerate(wanted):
            if 0 < one.length <= _LARGEST:
                work.append(whole(number, one))
            elif one.length:
                block = memoryview(np.empty(one.length, np.uint8))
                out[number] = block.toreadonly()
                for at in range(0, one.length, _LARGEST):
                    work.append(part(block, at, ByteRange(one.begin + at, min(_LARGEST, one.length - at))))
        if work:
            run(_all(work))
        return out

    async def _piece(self, wire: ObstoreWire, path: str, wanted: ByteRange) -> memoryview:
        key, pinned = self._key(path), self._pins[path]

        async def once() -> memoryview:
            data = await wire.get(key, wanted, pinned)
            self.traffic.bytes_read += len(data)
            if len(data) != wanted.length:
                raise Again(f"an answer of {len(data)} bytes that should have {wanted.length}")
            return data

        return await self._patiently(wire, path, f"read bytes {wanted.begin} to {wanted.end}", once, wanted.length)

    # -- patience -----------------------------------------------------------------------------------------------------

    def _ask(self, path: str, doing: str, ask: Callable[[ObstoreWire], Awaitable[T]], *, size: int = 0) -> T:
        """One request, alone."""
        wire = self._connect(path)
        return run(self._patiently(wire, path, doing, lambda: ask(wire), size))

    async def _patiently(
        self, wire: ObstoreWire, path: str, doing: str, once: Callable[[], Awaitable[T]], size: int
    ) -> T:
        """Try until it works, but neither too often nor too long."""
        number = wire.settings.number
        retries, allowed = number("retries"), number("deadline") + size / _SLOWEST
        async with wire.slots:
            end = (begin := time.monotonic()) + allowed
            for attempt in itertools.count(1):
                self.traffic.requests += 1
                try:
                    async with asyncio.timeout(min(end - time.monotonic(), number("timeout") + size / _SLOWEST)):
                        return await once()
                except TimeoutError:
                    reason = "no answer in time"
                except Again as error:
                    reason = str(error)
                except ShardexError as error:
                    failure = self._named(error, path, doing)
                    break
                pause = random.uniform(
                    0, min(10, 0.1 * 2**attempt)
                )  # so that many who failed at once do not come back at once
                if attempt > retries or time.monotonic() + pause > end:
                    failure = self._given_up(
                        path, doing, f"{attempt} attempts and {time.monotonic() - begin:.1f} s", reason
                    )
                    break
                await asyncio.sleep(pause)
        raise failure

    def _given_up(self, path: str, doing: str, spent: str, reason: str) -> ShardexError:
        return RemoteReadError(
            errno.EIO,
            f"cannot {doing}: expected an answer, got none that is good in {spent}, the last was: {reason}; "
            "check the server, or set retries, timeout and deadline with shardex.storage",
            self._shown(path),
        )

    def _named(self, error: ShardexError, path: str, doing: str) -> ShardexError:
        """The error with the file's whole address in it."""
        if isinstance(error, SourceError):
            return type(error)(error.errno, f"cannot {doing}: {error.strerror}", self._shown(path))
        return error

    # -- where it is --------------------------------------------------------------------------------------------------

    def _key(self, path: str) -> str:
        """What the bucket calls a file."""
        return f"{self._root}/{inside(path)}" if self._root else inside(path)

    def _shown(self, path: str) -> str:
        """The address of a file, for people."""
        root, query, _ = shown(self._url).partition("?")
        return f"{root}/{path}{query and '?***'}"

    def _connect(self, path: str) -> ObstoreWire:
        """This process's connection; looked up anew when the keyring has changed or the process is another."""
        if self._wire is None or self._wire[1:] != (os.getpid(), changes()):
            wire = connect(self._bucket, settings_for(self._url), self._shown(path))
            self._wire = wire, os.getpid(), changes()
        return self._wire[0]


async def _all(work: Sequence[Awaitable[None]]) -> None:
    """Do all at once; when one fails, the others are called off."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
