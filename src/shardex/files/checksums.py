"""Checksums for files that carry none: made once, on request, and kept beside the files as an index of their blocks.

Files that were opened with ``checksums=True`` are checked from then on, by everybody who opens them in the same way: a
block that has changed is an error when a sample in it is read (`sources/checked.py`), and `verify` finds all of them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from shardex.errors import SchemaError, StaleIndexError
from shardex.files.find import STORE_FOLDER, Files
from shardex.files.sample_index import Index
from shardex.files.scan import Scan
from shardex.sources import CheckedSource, Checksums, Source, block_checksums

__all__ = ["with_checksums"]


@dataclass(frozen=True)
class SumScanner:
    """Makes the checksums of a file."""

    name: str = "checksums 1"
    in_python: bool = False

    def scan(self, source: Source, path: str) -> Scan:
        """One number for each block."""
        return {"xxh3": block_checksums(source.load(path))}


def with_checksums(files: Files, make: bool = False, *, rebuild: bool = False, progress: bool | None = None) -> Files:
    """The files, checked against the checksums that were made of them; with `make` these are made, or made anew.

    >>> import os, tempfile; from shardex.files.find import find; folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.jsonl"), "w") as file:
    ...     _ = file.write('{"x": 1}')
    >>> [type(with_checksums(find(folder), make).source).__name__ for make in (False, True, False)]
    ['LocalSource', 'CheckedSource', 'CheckedSource']
    """
    if files.source.is_remote:
        if make:
            raise SchemaError(
                f"{files}: expected local files to make checksums of; those that lie elsewhere are checked by the cache"
            )
        return files
    if os.path.isdir(os.path.join(files.source.url, STORE_FOLDER)):
        if make:
            raise SchemaError(
                f"{files}: expected files without checksums, got a dataset of shardex's own, which has some"
            )
        return files
    data = files.having("")
    index = Index.of(data, SumScanner(), rebuild=rebuild, progress=progress) if make else _kept(data)
    if index is None:
        return files
    known = {file.path for file in index.files}

    def sums(path: str) -> Checksums | None:
        return index.scan_of(path)["xxh3"].astype("int64") if path in known else None

    return replace(files, source=CheckedSource(files.source.url, sums))


def _kept(files: Files) -> Index | None:
    """The checksums that were made before; files that came later have none, those that changed are an error."""
    index = Index.saved(files, SumScanner())
    there = set(files.paths)
    for file in index.files if index is not None else ():
        if file.path in there and not file.is_still(files.source.stat(file.path)):
            raise StaleIndexError(
                f"{files.source.url}/{file.path}: expected the file as it was when checksums were made, it has "
                "changed; if that is meant, make them anew: open it with checksums=True"
            )
    return index
