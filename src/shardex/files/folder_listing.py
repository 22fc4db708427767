"""The files of a local folder with their sizes and times, found in one pass and saved: for folders of very many files.

`list_folder` looks at every file once, also in folders that are links, and saves the result as a sidecar if there are
many. A saved listing is used again if no folder has changed since: the time of a folder changes when a file in it is
added, removed or replaced. A file that was written in place is noticed when it is read: then `forget` removes the
listing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from shardex.errors import ChecksumError, storage_errors
from shardex.files.append_together import FOLDER
from shardex.files.patterns import natural_order
from shardex.files.sidecar import Sidecar, decode_sidecar, load_sidecars, remove_sidecar, save_sidecar
from shardex.kernel import Integers

if TYPE_CHECKING:
    from shardex.files.find import Files

VERSION = 1
KIND = "listing 1"
SAVED_FILES = 10_000
"""Number of files from which on a listing is saved: listing fewer takes less than a tenth of a second."""
_SCHEMA = pa.schema([("path", pa.large_string()), ("size", pa.int64()), ("modified", pa.int64())])
_TICK = 2_000_000_000
"""Nanoseconds: a folder that changed so shortly before it was listed may have changed once more at the same time."""
_LOOKED_AT = 64
"""Number of files whose sizes and times are compared when a saved listing is used."""


@dataclass(frozen=True)
class FolderListing:
    """Files of a folder in natural order; after them those in folders that are links, which only some formats read."""

    paths: tuple[str, ...]
    own: int
    """Number of files that are not in linked folders."""
    sizes: Integers
    modified: Integers
    """Times of the last change, in nanoseconds; -1 for a link to nothing."""

    @property
    def in_order(self) -> Sequence[str]:
        """All paths in natural order."""
        return self.paths if self.own == len(self.paths) else natural_order(self.paths)

    def numbers(self, paths: Sequence[str]) -> Integers:
        """Return the number of each path; without a table of all paths if they are in the same order."""
        if len(paths) == len(self.paths) and tuple(paths) == self.paths:
            return np.arange(len(paths))
        found, at, every = list[int](), 0, self.paths
        try:
            for path in paths:
                while every[at] != path:
                    at += 1
                found.append(at)
        except IndexError:
            number_of = {path: number for number, path in enumerate(every)}
            found = [number_of[path] for path in paths]
        return np.array(found, np.int64)


# -- looking at files -----------------------------------------------------------------------------------------------


@dataclass
class _Found:
    """A folder, and what is in it."""

    path: str
    modified: int
    linked: bool
    files: list[tuple[str, int, int]]
    folders: int


def _walk(root: str, path: str, linked: bool, above: frozenset[tuple[int, int]]) -> Iterator[_Found]:
    """Yield a folder and those in it; links to folders above them are left out."""
    full = os.path.join(root, path)
    state = os.stat(full)
    above |= {(state.st_dev, state.st_ino)}
    files, folders = list[tuple[str, int, int]](), list[tuple[str, bool]]()
    with os.scandir(full) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name == FOLDER:
                    continue
                folders.append((entry.name, linked or entry.is_symlink()))
                continue
            try:
                one = entry.stat()
                files.append((entry.name, one.st_size, one.st_mtime_ns))
            except FileNotFoundError:
                files.append((entry.name, 0, -1))
    yield _Found(path, state.st_mtime_ns, linked, files, len(folders))
    for name, is_link in folders:
        inner = os.path.join(path, name)
        if is_link:
            target = os.stat(os.path.join(root, inner))
            if (target.st_dev, target.st_ino) in above:
                continue
        yield from _walk(root, inner, is_link, above)


def list_folder(files: Files) -> FolderListing:
    """Return the saved listing of a local folder if it is up to date; otherwise look at all files, and save it."""
    if (saved := files.saved_listing) is not None:
        return saved
    root, begin = files.source.url, time.time_ns()
    with storage_errors(root, "list"):
        found = list(_walk(root, "", False, frozenset()))
    stats = {
        f"{folder.path}/{name}" if folder.path else name: (size, modified, folder.linked)
        for folder in found
        for name, size, modified in folder.files
    }
    own = [path for path in files.paths if path in stats]
    paths = own + natural_order([path for path, (_, _, linked) in stats.items() if linked])
    numbers = np.array([stats[path][:2] for path in paths], np.int64).reshape(-1, 2)
    listing = FolderListing(tuple(paths), len(own), numbers[:, 0].copy(), numbers[:, 1].copy())
    if len(paths) >= SAVED_FILES and not any(path.endswith(".pending") for path in files.paths if FOLDER in path):
        _save(files, listing, found, begin)
    return listing


# -- saving ---------------------------------------------------------------------------------------------------------


def _save(files: Files, listing: FolderListing, found: Sequence[_Found], begin: int) -> None:
    folders = [
        [one.path, 0 if one.modified > begin - _TICK else one.modified, len(one.files) + one.folders] for one in found
    ]
    arrays = [pa.array(listing.paths, pa.large_string()), pa.array(listing.sizes), pa.array(listing.modified)]
    sums = [_digest(array) for array in arrays]
    head = {"version": VERSION, "own": listing.own, "folders": folders, "blocks": [sums]}
    with suppress(UnicodeEncodeError):  # names that are no UTF-8
        save_sidecar(files, KIND, Sidecar(head, _SCHEMA, [arrays]))


def _digest(array: pa.Array) -> str:
    return xxhash.xxh3_64_hexdigest(b"".join(memoryview(one) for one in array.buffers() if one is not None))


def load_listing(files: Files) -> FolderListing | None:
    """Return the saved listing of a local folder if no folder has changed since."""
    for listing, folders in load_sidecars(files, KIND, _decode, "listing the files again"):
        if _fits(files, listing, folders):
            return listing
    return None


def forget(files: Files) -> None:
    """Remove the saved listing, because a file has changed that it describes."""
    remove_sidecar(files, KIND)


def _decode(data: memoryview, name: str) -> tuple[FolderListing, list[list[Any]]]:
    reader, head = decode_sidecar(data, name, VERSION, lambda _: _SCHEMA)
    batch = reader.get_batch(0)
    batch.validate(full=True)
    if [_digest(column) for column in batch.columns] != head["blocks"][0]:
        raise ChecksumError(f"{name}: expected the list of files that was written, got other bytes")
    sizes, modified = (np.frombuffer(batch.column(k).buffers()[1] or b"", np.int64, batch.num_rows) for k in (1, 2))
    return FolderListing(tuple(batch.column(0).to_pylist()), head["own"], sizes, modified), head["folders"]


def _fits(files: Files, listing: FolderListing, folders: Sequence[Sequence[Any]]) -> bool:
    """Return whether folders have the same times, or the same files; and some files the same sizes and times."""
    root = files.source.url
    try:
        changed = {path for path, modified, _ in folders if os.stat(os.path.join(root, path)).st_mtime_ns != modified}
        if changed and not _have_same_files(root, listing, {path: count for path, _, count in folders}, changed):
            return False
        for number in np.linspace(0, len(listing.paths) - 1, _LOOKED_AT, dtype=np.int64).tolist():
            if not _is_same(os.path.join(root, listing.paths[number]), listing, number):
                return False
    except OSError:
        return False
    return True


def _is_same(full: str, listing: FolderListing, number: int) -> bool:
    found = os.stat(full)
    return (found.st_size, found.st_mtime_ns) == (listing.sizes.item(number), listing.modified.item(number))


def _have_same_files(root: str, listing: FolderListing, counts: dict[str, int], changed: set[str]) -> bool:
    """Look at all files of folders whose time has changed: a sidecar was saved there, or a file was replaced."""
    only_root = changed == {""}
    seen = dict.fromkeys(changed, 0)
    for number, path in enumerate(listing.paths):
        if only_root and "/" in path:
            continue
        folder = path.rpartition("/")[0]
        if folder in seen:
            if not _is_same(os.path.join(root, path), listing, number):
                return False
            seen[folder] += 1
    for folder in changed:
        with os.scandir(os.path.join(root, folder)) as entries:
            names = [entry.is_dir() for entry in entries if entry.name != FOLDER]
        if len(names) != counts[folder] or names.count(False) != seen[folder]:
            return False
    return True
