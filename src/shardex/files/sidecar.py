"""Where what we derive from files is kept: beside them in `.shardex/`, or in the cache folder where that is read-only
or the files lie elsewhere.

A kept file is named by what the user opened and by what it holds, so that opening the same again finds it. What it
says and whether it still fits the files is for its reader to judge.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator

from shardex.errors import NotFoundError, SourceError
from shardex.files.find import Files
from shardex.sources import CachedSource, LocalSource, default_folder

__all__ = ["keep", "kept"]


def kept(files: Files, kind: str) -> Iterator[tuple[memoryview, str]]:
    """What is kept of this kind, and where: first beside the data, which may be out of date and not ours to replace."""
    for place, path in _places(files, kind):
        try:
            data = place.map(path)
        except NotFoundError:
            continue
        yield data, os.path.join(place.url, path)


def keep(files: Files, kind: str, data: memoryview) -> tuple[memoryview, str]:
    """Keep bytes in the first place that lets us, in memory if none does; what was kept, and where."""
    for place, path in _places(files, kind):
        try:
            place.put(path, data)
            return place.map(path), os.path.join(place.url, path)
        except SourceError:
            continue
    return data, f"the index of {files} in memory"


def _places(files: Files, kind: str) -> list[tuple[LocalSource, str]]:
    cache = files.source.folder if isinstance(files.source, CachedSource) else default_folder()
    places = [] if cache is None else [(LocalSource(cache), f"index/{_file_name(kind, files.what)}")]
    if isinstance(files.source, LocalSource):
        root = files.source.root
        # Named by how the files are called from there: the folder may be moved, index and all.
        inner = [os.path.relpath(one, root) for one in ([files.what] if isinstance(files.what, str) else files.what)]
        places.insert(0, (LocalSource(root), f".shardex/{_file_name(kind, inner)}"))
    return places


def _file_name(kind: str, what: object) -> str:
    key = hashlib.sha256(repr((what, kind)).encode()).hexdigest()[:16]
    return f"{kind.partition(' ')[0]}-{key}.arrow"
