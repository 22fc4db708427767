"""Checksums for files of formats that have none: computed on request and saved as an index of blocks (`sidecar`).

After files were opened with ``checksums=True``, they are checked whenever the same path or pattern is opened: reading a
sample in a changed block raises an error (`sources.checked_source`), and `verify` finds all changed blocks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from shardex.errors import ArgumentError, StaleIndexError
from shardex.files.compressed_files import content_of
from shardex.files.find import STORE_FOLDER, Files
from shardex.files.sample_index import Index
from shardex.files.scan import Scan
from shardex.sources import CheckedSource, Checksums, Source, block_checksums


@dataclass(frozen=True)
class SumScanner:
    """Scanner that computes the checksums of the blocks of a file."""

    name: str = "checksums 1"
    in_python: bool = False

    def scan(self, source: Source, path: str) -> Scan:
        """Return one checksum per block."""
        return {"xxh3": block_checksums(source.load(path))}


def with_checksums(files: Files, make: bool = False, **options: Any) -> Files:
    """Return the files with a source that checks them against their saved checksums; `make` computes these first.

    The options are those of `Index.of`.

    >>> import os, tempfile; from shardex.files.find import find; folder = tempfile.mkdtemp()
    >>> with open(os.path.join(folder, "a.jsonl"), "w") as file:
    ...     _ = file.write('{"x": 1}')
    >>> [type(with_checksums(find(folder), make).source).__name__ for make in (False, True, False)]
    ['LocalSource', 'CheckedSource', 'CheckedSource']
    """
    if files.packed is not None:
        return content_of(with_checksums(files.packed, make, **options), files)
    if (folder := files.source.data_folder) is None:
        if make:
            raise ArgumentError(f"{files}: expected local files for checksums=True; the cache checks remote files")
        return files
    if os.path.isdir(os.path.join(folder, STORE_FOLDER)):
        if make:
            raise ArgumentError(
                f"{files}: expected files without checksums, got a native dataset of shardex, which has its own"
            )
        return files
    index = Index.of(files.having(""), SumScanner(), **options) if make else _saved(files)
    if index is None:
        return files
    known = {file.path for file in index.files}

    def sums(path: str) -> Checksums | None:
        return index.scan_of(path)["xxh3"].astype("int64") if path in known else None

    return replace(files, source=CheckedSource(folder, sums))


def _saved(files: Files) -> Index | None:
    """Return the saved checksums; raises if a file has changed since. Files added later have none."""
    if (index := Index.saved(files, SumScanner())) is None:
        return None
    paths = set(files.having("").paths)
    for file in index.files:
        if file.path in paths and not file.has_stat(files.source.stat(file.path)):
            raise StaleIndexError(
                f"{files.source.url}/{file.path}: expected the file as it was when its checksums were made, but "
                "it has changed; if that is intended, make new checksums: open it with checksums=True"
            )
    return index
