"""Where bytes live: the contracts `Source` (read) and `Sink` (write).

A source knows paths below its root and byte ranges, nothing of shards or samples. Paths are relative, written
with slashes, and never leave the root (`inside` checks). The parts lie beside this file, in `sources/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, runtime_checkable

from shardex.errors import PathError
from shardex.sources.byte_ranges import ByteRange

__all__ = ["Draft", "Place", "Sink", "Source", "Stat", "inside"]


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a file without reading it."""

    size: int
    tag: str
    """Changes when the content does: a modification time or an ETag."""
    modified: float = 0.0
    """When it was written, by the storage's own clock, in seconds since 1970."""


@runtime_checkable
class Source(Protocol):
    """Reads byte ranges of files below a root."""

    @property
    def url(self) -> str:
        """The root, in the form that opens it again."""

    def stat(self, path: str) -> Stat:
        """Size and tag of a file."""

    def paths(self, prefix: str = "") -> list[str]:
        """All files whose path begins with `prefix`, sorted."""

    def read(self, path: str, ranges: Sequence[ByteRange]) -> list[memoryview]:
        """The bytes of each range; an error if the file ends before one does."""

    def load(self, path: str) -> memoryview:
        """All bytes of a file, all of them there; for small files."""

    def map(self, path: str) -> memoryview:
        """The whole file as one read-only buffer, loaded as it is touched; holds no file open.

        Of a file that lies elsewhere only those bytes may be looked at that `fetch` was asked for."""

    def fetch(self, path: str, ranges: Sequence[ByteRange], *, wait: bool = True) -> None:
        """Have these ranges be there in what `map` gave; with ``wait=False`` only begin to."""


class Draft(Protocol):
    """A file being written that nobody sees until it is published."""

    @property
    def file(self) -> BinaryIO:
        """Write here."""

    def close(self, size: int) -> None:
        """End the writing; an error if not all of it is there, which is so many bytes."""

    def publish(self, path: str) -> None:
        """Make what was written durable, and visible under `path`, in one step; it is as new as if written now."""

    def discard(self) -> None:
        """Forget what was written; does nothing after `publish`."""


@runtime_checkable
class Sink(Protocol):
    """Writes whole files below a root, each durable and visible at once or not at all."""

    def put(self, path: str, data: Any) -> None:
        """Create or replace a file."""

    def put_if_absent(self, path: str, data: Any) -> bool:
        """Create a file; false, and nothing changed, if somebody else has created it already.

        Of several who try exactly one succeeds and is told so. A storage that cannot promise it is an error."""

    def draft(self) -> Draft:
        """Begin a file too large to hold in memory."""

    def touch(self, path: str) -> None:
        """Have a file be as new as if it were written now; an error if it is not there."""

    def remove(self, path: str) -> None:
        """Delete a file."""


@runtime_checkable
class Place(Source, Sink, Protocol):
    """Where files can be read and written."""


def inside(path: str) -> str:
    """The path itself, if it stays inside its root and is spelled in the one way that a listing spells it.

    >>> inside("data/a.arrow")
    'data/a.arrow'
    >>> inside("../secret")
    Traceback (most recent call last):
    shardex.errors.PathError: expected a relative path inside the dataset's folder, got '../secret'
    """
    if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\\" in path or "\0" in path or path[1:2] == ":":
        raise PathError(f"expected a relative path inside the dataset's folder, got {path!r}")
    return path
