"""Addresses: which source an URL means. `open_source` is where every URL that is opened comes through.

A scheme that is not in `SCHEMES` is refused, so nothing that is not listed here can be reached. Paths without a scheme
are local and are not for this module.
"""

from __future__ import annotations

from collections.abc import Callable

from shardex.errors import PathError
from shardex.source import Place
from shardex.sources.memory import MemorySource

__all__ = ["SCHEMES", "is_url", "open_source"]

_memory: dict[str, MemorySource] = {}


def is_url(text: str) -> bool:
    """Whether an address says its scheme.

    >>> is_url("s3://bucket/key"), is_url("C:/data"), is_url("a/b")
    (True, False, False)
    """
    return "://" in text


def open_source(url: str) -> Place:
    """The source at an URL; its paths are what comes below.

    >>> place = open_source("memory://test/data")
    >>> place.put("a", b"1"); bytes(open_source("memory://test/data").load("a"))
    b'1'
    >>> open_source("gopher://x/")
    Traceback (most recent call last):
    shardex.errors.PathError: expected an address that begins with memory://, got 'gopher://x/'
    """
    scheme, found, _ = url.partition("://")
    if not found or scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise PathError(f"expected an address that begins with {known}, got {url!r}")
    return SCHEMES[scheme](url.rstrip("/"))


def _open_memory(url: str) -> Place:
    """Files in the memory of this process, the same for everybody who knows the name."""
    return _memory.setdefault(url, MemorySource(url=url))


SCHEMES: dict[str, Callable[[str], Place]] = {"memory": _open_memory}
