"""Where a native dataset lies: the `Place` that a path or an address means, and what to do there with many files.

Everything that writes datasets asks here, so that a folder and a bucket are the same to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from shardex.sources.local import LocalSource
from shardex.sources.protocols import Place
from shardex.sources.url import absolute, is_url, open_source

__all__ = ["drop_folders", "each", "is_local", "place_of"]

Given = TypeVar("Given")
Found = TypeVar("Found")

_AT_ONCE = 16


def place_of(path: str | os.PathLike[str]) -> Place:
    """The place that a local path or an address means; there may be nothing yet.

    >>> place_of("/data/weather").url, place_of("memory://lab/weather/").url
    ('/data/weather', 'memory://lab/weather')
    """
    text = os.fspath(path)
    if is_url(text) and not text.startswith(("file://", "pipe:")):
        return open_source(text)
    return LocalSource(absolute(text))


def is_local(place: Place) -> bool:
    """Whether files lie in a folder of this machine, where a file that is written aside is at its place already."""
    return isinstance(place, LocalSource)


def each(place: Place, do: Callable[[Given], Found], many: Iterable[Given]) -> list[Found]:
    """Do the same with many files: one after another in a folder, several at once where every answer takes a while.

    >>> each(LocalSource("."), len, ["a", "bc"])
    [1, 2]
    """
    if is_local(place):
        return [do(one) for one in many]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(do, many))


def drop_folders(place: Place, *folders: str) -> None:
    """Remove folders that a writer made and left empty, and then the dataset's own; elsewhere there are none."""
    if isinstance(place, LocalSource):
        for folder in (*folders, ""):
            with suppress(OSError):  # not empty, or never made
                os.rmdir(os.path.join(place.root, folder))
