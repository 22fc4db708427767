"""Where a native dataset lies: the `Place` that a path or an address means, and what to do there with many files.

Everything that writes datasets asks here, so that a folder and a bucket are the same to it.

Addresses: which source an URL means. `open_source` is where every URL that is opened comes through.

A scheme that is not in `SCHEMES` is refused, so nothing that is not listed here can be reached. Paths without a scheme
are local and are not for this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from shardex.errors import AddressError, UnknownFormatError, UnsafeError
from shardex.sources.credentials import shown
from shardex.sources.local import LocalSource
from shardex.sources.memory import MemorySource
from shardex.sources.object_store import ObjectSource
from shardex.sources.protocols import Place

__all__ = ["SCHEMES", "absolute", "is_url", "open_source", "place_of", "split"]

_memory: dict[str, MemorySource] = {}


def is_url(text: str) -> bool:
    """Whether an address says its scheme.

    >>> is_url("s3://bucket/key"), is_url("C:/data"), is_url("a/b")
    (True, False, False)
    """
    return "://" in text


def absolute(what: str) -> str:
    """Where a local path lies; commands and addresses of other places are refused."""
    if what.startswith("pipe:"):
        raise UnsafeError(f"expected a path, got {what!r}: shardex never runs commands")
    if "://" in what and not what.startswith("file://"):
        raise UnknownFormatError(f"expected a local path, got {what!r}, which lies elsewhere")
    return os.path.abspath(os.path.expanduser(what.removeprefix("file://")))


def open_source(url: str, *, trusted: bool = True) -> Place:
    """The source at an URL; its paths are what comes below.

    An URL that comes from data and not from the user is opened with ``trusted=False``: then it may name a bucket, or a
    web server at a public address, and nothing else (`guarded`).

    >>> place = open_source("memory://test/data")
    >>> place.put("a", b"1"); bytes(open_source("memory://test/data").load("a"))
    b'1'
    >>> open_source("gopher://x/")
    Traceback (most recent call last):
    shardex.errors.AddressError: expected an address that begins with memory://, s3://, ..., got 'gopher://x/'
    """
    scheme, found, rest = url.partition("://")
    scheme = scheme.lower()
    if not found or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise AddressError(f"expected an address that begins with {known}, got {shown(url)!r}")
    place, query, rest = rest.partition("?")
    return SCHEMES[scheme](f"{scheme}://{place.rstrip('/')}{query}{rest}", trusted)


def split(url: str) -> tuple[str, str]:
    """The folder of a file's URL, as `open_source` takes it, and the file's path below.

    >>> split("s3://bucket/sets/a.tar")
    ('s3://bucket/sets', 'a.tar')
    >>> split("https://host/sets/a.tar?X-Amz-Signature=0f3a")
    ('https://host/sets?X-Amz-Signature=0f3a', 'a.tar')
    """
    place, query, rest = url.partition("?")
    folder, _, name = place.rpartition("/")
    return folder + query + rest, name


def _open_memory(url: str, trusted: bool) -> Place:
    """Files in the memory of this process, the same for everybody who knows the name."""
    if not trusted:
        raise AddressError(f"expected data to name a bucket or a web server, got {url!r}")
    return _memory.setdefault(url, MemorySource(url=url))


def _open_objects(url: str, trusted: bool) -> Place:
    if url.endswith("://"):
        raise AddressError(f"expected the name of a bucket or a host, got {url!r}")
    return ObjectSource(url, trusted=trusted)


SCHEMES: dict[str, Callable[[str, bool], Place]] = {
    "memory": _open_memory,
    "s3": _open_objects,
    "gs": _open_objects,
    "az": _open_objects,
    "http": _open_objects,
    "https": _open_objects,
}
"""What can be opened, and by whom: an URL, and whether the user gave it."""


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place that a local path or an address means; there may be nothing yet.

    >>> place_of("/data/weather").url, place_of("memory://lab/weather/").url
    ('/data/weather', 'memory://lab/weather')
    """
    text = os.fspath(path)
    if is_url(text) and not text.startswith(("file://", "pipe:")):
        return open_source(text)
    return LocalSource(absolute(text))
