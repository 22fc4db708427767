"""`Backend`: where a catalog stores its records, as the methods that each kind of storage implements.

The versions of a name are the numbers 1, 2, 3, ... without gaps. A number belongs to one record for ever: when that is
removed, the number stays used. `Catalog` makes compare-and-swap, names, errors and search out of this.

Datasets, schemas and lenses are stored alike, under the `key` and the `number` of their records: the names of datasets
are their keys, those of schemas and lenses begin with ``_schemas/`` and ``_lenses/``.

Another package adds a backend by an entry point of the group ``shardex.catalogs``: a function, or a class, that gets a
URL, by the scheme of the URL.
"""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from shardex.catalog.records import CatalogRecord, DatasetRecord, RecordQuery
from shardex.errors import AddressError, ArgumentError, FormatError
from shardex.plugins import load, plugins
from shardex.sources import absolute_path, is_url, redact_url

T = TypeVar("T")
GROUP = "shardex.catalogs"
"""Group of the entry points of backends of other packages, by URL scheme."""
_FOLDER = "shardex.catalog.record_folder:RecordFolder"
_REDIS = "shardex.catalog.redis:RedisServer"
SCHEMES = {
    "sqlite": "shardex.catalog.sqlite_file:SqliteFile",
    "file": _FOLDER,
    "memory": _FOLDER,
    "s3": _FOLDER,
    "gs": _FOLDER,
    "az": _FOLDER,
    "redis": _REDIS,
    "rediss": _REDIS,
    "at": "shardex.catalog.atproto:AtprotoAccount",
}
"""Where the backend for a URL is, by scheme."""
_DATABASES = (".db", ".sqlite", ".sqlite3")


class Backend(ABC):
    """Stores records by name and version. Methods may be called from many threads and processes at the same time."""

    url: str
    """Where it is, as users write it, without secrets."""
    is_remote: bool = True
    """True if others may write here: what records name is then bounded (see `addresses`)."""

    @abstractmethod
    def head(self, name: str) -> tuple[CatalogRecord | None, int]:
        """Return the newest record of a name, and the highest number that was ever used (0 for an unknown name)."""

    @abstractmethod
    def read(self, name: str, which: int | str | None = None) -> CatalogRecord | None:
        """Return the record with this number or tag, or the newest one; None if there is none. One request if possible.

        A tag may name a version that was removed.
        """

    @abstractmethod
    def append(self, name: str, version: int, record: CatalogRecord | None) -> bool:
        """Use the next number: durably store a record, or None for a number that was removed; return True.

        Return False and change nothing if the number is used. `version` is one more than a number that `head` has
        returned, so callers leave no gap. Of several callers with the same number exactly one gets True.
        """

    @abstractmethod
    def remove(self, name: str, version: int) -> None:
        """Remove a record; its number stays used."""

    @abstractmethod
    def history(self, name: str) -> list[CatalogRecord]:
        """Return all records of a name, oldest first; damaged ones are left out, with a warning (`readable`)."""

    @abstractmethod
    def names(self, prefix: str = "") -> Iterator[str]:
        """Yield all names that begin with `prefix`, sorted; also names of which all versions were removed.

        Without a prefix those of schemas and lenses may be among them.
        """

    @abstractmethod
    def tags(self, name: str) -> dict[str, int]:
        """Return the version of each tag of a name."""

    @abstractmethod
    def set_tag(self, name: str, tag: str, version: int | None) -> None:
        """Let a tag name a version, or remove the tag. Of several callers the last one decides."""

    def newest(self, prefix: str = "") -> Iterator[CatalogRecord]:
        """Yield the newest record of each name that begins with `prefix`, sorted by name; with a warning for others."""
        found = (readable(partial(self.read, name)) for name in self.names(prefix))
        return (record for record in found if record is not None)

    def search(self, query: RecordQuery) -> Iterator[DatasetRecord]:
        """Yield the newest record of each dataset that matches, sorted by name; by default all are read."""
        return (one for one in self.newest() if isinstance(one, DatasetRecord) and query.matches(one))

    def close(self) -> None:  # noqa: B027
        """Release connections; the next call makes new ones."""


def readable(read: Callable[[], T | None]) -> T | None:
    """Return the record that is read; None, with a warning, if it is damaged: the others can still be listed."""
    try:
        return read()
    except FormatError as error:
        warnings.warn(f"{error}; it is left out", stacklevel=3)
        return None


def backend_at(where: str | os.PathLike[str]) -> Backend:
    """Return the backend for a path or a URL; nothing has to exist there yet.

    >>> backend_at("/data/catalog.db").url, backend_at("sqlite:///data/x").url, backend_at("s3://bucket/catalog").url
    ('/data/catalog.db', '/data/x', 's3://bucket/catalog')
    """
    if not (text := os.fspath(where)):
        raise ArgumentError("expected the path or URL of a catalog, got an empty text")
    if not is_url(text):
        scheme, text = ("sqlite" if text.endswith(_DATABASES) else "file"), absolute_path(text)
    else:
        scheme = text.partition("://")[0].lower()
    if scheme in SCHEMES:
        made = load(SCHEMES[scheme])(text)
        assert isinstance(made, Backend)
        return made
    others = plugins(GROUP, SCHEMES)
    if scheme not in others:
        known = ", ".join(f"{name}://" for name in (*SCHEMES, *others))
        raise AddressError(
            f"expected a catalog: a file that ends in .db or .sqlite, a folder, or a URL that begins with {known}, got "
            f"{redact_url(text)!r}"
        )
    return others[scheme].call(Backend, text)  # type: ignore[type-abstract]
