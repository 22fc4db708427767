"""Chooses the source for a path or a URL.

`open_source` opens every URL whose scheme is in `SCHEMES`, or which a package adds by an entry point of the group
``shardex.sources``: a function like those of the table. `place_of` also takes local paths. How a source reads and
writes is left to the module of its class.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import unquote

from shardex import sources
from shardex.errors import AddressError, ArgumentError, UnknownFormatError, UnsafeError
from shardex.plugins import load, plugins
from shardex.sources.credentials import redact_url
from shardex.sources.local import LocalSource
from shardex.sources.protocols import Place, check_text

GROUP = "shardex.sources"
"""Group of the entry points of sources of other packages: functions that open a URL, by scheme."""

_OTHER_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"} | dict.fromkeys(
    ("abfs", "abfss", "adl", "azure", "wasb"), "az"
)
"""Schemes of Spark and fsspec, and those of shardex."""
_ADVICE = {"hf": ": load it with the package datasets, sx.open(datasets.load_dataset(...)), or give its https:// URL"}
_memory: dict[str, Place] = {}


def is_url(text: str) -> bool:
    """Return True if the text has a scheme.

    >>> is_url("s3://bucket/key"), is_url("C:/data"), is_url("a/b")
    (True, False, False)
    """
    return "://" in text


def is_local(text: str) -> bool:
    """Return True for paths and ``file://`` URLs, and for commands, which `absolute_path` refuses.

    >>> is_local("a/b"), is_local("file:///a/b"), is_local("s3://bucket/key")
    (True, True, False)
    """
    return not is_url(text) or text.startswith(("file://", "pipe:"))


def absolute_path(text: str) -> str:
    """Return a local path or ``file:`` URL, which is percent-encoded, as an absolute path; refuse other URLs.

    >>> absolute_path("file:///a/b%20c"), absolute_path("file:/a/b"), absolute_path("file://localhost/a")
    ('/a/b c', '/a/b', '/a')
    """
    check_text(text)
    if text.startswith("pipe:"):
        raise UnsafeError(f"expected a path, got {text!r}: shardex never runs commands")
    if "://" in text and not text.startswith("file://"):
        raise UnknownFormatError(f"expected a local path, got the URL {text!r}")
    if text.startswith("file:/"):
        host, slash, path = text[7:].partition("/") if text.startswith("file://") else ("", "/", text[6:])
        if host not in ("", "localhost") or not slash:
            raise AddressError(
                f"expected an absolute path after file://, such as file:///data/js, got {text!r}; give a relative path "
                "without file://"
            )
        return os.path.abspath(f"/{unquote(path)}")
    return os.path.abspath(os.path.expanduser(text))


def path_text(path: str | os.PathLike[str]) -> str:
    """Return a path or a URL as text; raise `ArgumentError` if it is neither.

    >>> path_text([{"x": 1}])
    Traceback (most recent call last):
    shardex.errors.ArgumentError: expected a path or a URL as the first argument, got list
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"expected a path or a URL as the first argument, got {type(path).__name__}")
    return os.fspath(path)


def place_of(path: str | os.PathLike[str]) -> Place:
    """Return the place at a local path or a URL; nothing has to exist there yet.

    >>> place_of("/data/weather").url, place_of("memory://lab/weather/").url
    ('/data/weather', 'memory://lab/weather')
    """
    text = os.fspath(path)
    return LocalSource(absolute_path(text)) if is_local(text) else open_source(text)


def parent_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder or URL that holds a dataset, and the name of the dataset in it. Local links are followed.

    >>> parent_of("https://host/data/weather?key=x"), parent_of("/nowhere/weather")
    (('https://host/data?key=x', 'weather'), ('/nowhere', 'weather'))
    """
    text = os.fspath(path)
    if is_local(text):
        parent, name = os.path.split(os.path.realpath(absolute_path(text)))
        return parent, name
    address, query, rest = text.partition("?")
    scheme, _, inner = address.rstrip("/").partition("://")
    parent, found, name = inner.rpartition("/")
    if not found:
        raise AddressError(f"expected a folder in a bucket, got the whole of {redact_url(text)!r}: name a folder in it")
    return f"{scheme}://{parent}{query}{rest}", name


def child_of(parent: str, name: str) -> str:
    """Return the path or URL of a name in a folder: the inverse of `parent_of`.

    >>> child_of("https://host/data?key=x", "weather"), child_of("/nowhere", "weather")
    ('https://host/data/weather?key=x', '/nowhere/weather')
    """
    if not is_url(parent):
        return os.path.join(parent, name)
    address, query, rest = parent.partition("?")
    return f"{address.rstrip('/')}/{name}{query}{rest}"


def open_source(url: str, *, trusted: bool = True) -> Place:
    """Return the place at a URL; paths of files are relative to it.

    Pass ``trusted=False`` for a URL that comes from data and not from the user: it may only name a bucket, or a web
    server with a public address (`guarded_http`).

    >>> place = open_source("memory://test/data")
    >>> place.put("a", b"1"); bytes(open_source("memory://test/data").load("a"))
    b'1'
    >>> open_source("gopher://x/")
    Traceback (most recent call last):
    shardex.errors.AddressError: expected an address that begins with file://, memory://, s3://, ..., got 'gopher://x/'
    """
    scheme, found, rest = check_text(url).partition("://")
    scheme = scheme.lower()
    place, query, rest = rest.partition("?")
    address = f"{scheme}://{place.rstrip('/')}{query}{rest}"
    if found and scheme in SCHEMES:
        return SCHEMES[scheme](address, trusted)
    others = plugins(GROUP, SCHEMES)
    if not found or scheme not in others:
        known = ", ".join(f"{name}://" for name in ("file", *SCHEMES, *others))
        hint = f": use {_OTHER_SCHEMES[scheme]}://" if scheme in _OTHER_SCHEMES else _ADVICE.get(scheme, "")
        raise AddressError(f"expected an address that begins with {known}, got {redact_url(url)!r}{hint}")
    return others[scheme].call(Place, address, trusted)  # type: ignore[type-abstract]


def _open_memory(url: str, trusted: bool) -> Place:
    """Return the files in the memory of this process that have this URL."""
    if not trusted:
        raise AddressError(f"expected data to name a bucket or a web server, got {url!r}")
    return _memory.setdefault(url, sources.memory.MemorySource(url=url))


def _open_objects(url: str, trusted: bool) -> Place:
    if url.endswith("://"):
        raise AddressError(f"expected the name of a bucket or a host, got {url!r}")
    return sources.object_store.ObjectSource(url, trusted=trusted)


def _open_blobs(url: str, trusted: bool) -> Place:
    """Return the blobs of an account of ATProto; their class is found by its name, as the room `catalog` is above."""
    found: Place = load("shardex.catalog.blobs:AccountBlobs")(url, trusted)
    return found


SCHEMES: dict[str, Callable[[str, bool], Place]] = {
    "memory": _open_memory,
    "s3": _open_objects,
    "gs": _open_objects,
    "az": _open_objects,
    "http": _open_objects,
    "https": _open_objects,
    "at": _open_blobs,
}
"""Function that opens a URL, by scheme; it gets the URL and whether the URL is trusted."""
