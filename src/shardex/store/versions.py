"""Maintenance of the versions of a native dataset: `history`, `restore` and `clean`; `compact` has its own module.

All of them read manifests and publish new ones by put-if-absent; no data file is ever changed. Only `clean` removes
files: those that no kept version lists and that no active writer may be about to publish.
"""

from __future__ import annotations

import os
import secrets
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import msgspec

from shardex.errors import ArgumentError, CommitConflict, ShardexError, VersionExpired
from shardex.jobs import discard_outdated
from shardex.native import (
    WRITER_FILE,
    Manifest,
    WriterHeartbeat,
    at_latest,
    commit,
    existing_place,
    manifest_path,
    named_paths,
    path_of_copy,
    read_manifest,
    version_numbers,
    versions_in,
)
from shardex.rows import whole_number
from shardex.sources import Place

GRACE = 3600.0
"""Seconds for which `clean` keeps a file that no version lists: a writer may be about to publish it."""

Path = str | os.PathLike[str]


@dataclass(frozen=True)
class Version:
    """A version in the history."""

    number: int
    samples: int
    change: str
    """Description of the change."""
    made: str
    """Time of publication in UTC; only for display."""


def history(path: Path) -> list[Version]:
    """Return all versions that still exist, the oldest first.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp() + "/d"
    >>> _ = sx.write(folder, [{"x": 1}]), sx.write(folder, [{"x": 2}, {"x": 3}], mode="append")
    >>> [(version.number, version.samples, version.change) for version in history(folder)]
    [(1, 1, 'create: 1 sample'), (2, 3, 'append: 2 samples')]
    """
    place, _ = existing_place(path)
    return [Version(number, one.rows, one.change, one.made) for number, one in _manifests(place).items()]


def restore(path: Path, version: int) -> int:
    """Publish the content of an older version as a new version and return its number.

    Files that the current version does not use are copied inside the storage (linked, in a local folder).
    """
    place, latest = existing_place(path)
    old = read_manifest(place, version := whole_number("version", version, 1))
    latest, current = at_latest(place, lambda number: (number, read_manifest(place, number)), latest)
    with closing(WriterHeartbeat(place)) as heartbeat:
        # `clean` may be about to remove the files of the old version, but not new ones.
        used = set[str]()
        with suppress(ShardexError):  # if a list of the files of the current version is damaged, all are copied
            used = named_paths([current])
        paths = {path: path_of_copy(path) for path in old.paths_to_copy(used)}
        place.for_each(lambda path: place.copy(path, paths[path]), paths)
        again = msgspec.structs.replace(
            old.with_paths(paths), change=f"restore: version {version}", ids=max(current.ids, old.ids)
        )

        def after(number: int) -> tuple[Manifest, Manifest]:
            if number == latest:
                return again, current
            raise CommitConflict(
                f"{place.url}: expected version {latest} to stay the latest while version {version} is restored, "
                "another writer has published a newer one; check it and try again"
            )

        return commit.publish_next(place, latest, after, heartbeat)


def clean(path: Path, keep: int = 1, *, grace: float = GRACE) -> list[str]:
    """Remove all but the last `keep` versions and every data file that they do not use; return what was removed.

    Files younger than `grace` seconds are kept, because a writer may be about to publish them. So are older ones that
    may belong to an active writer, which has a heartbeat file. Ages are measured by the clock of the storage.
    Datasets that have a removed version open may fail at the next read. Next to a local dataset, the folders of killed
    jobs (`add_field` and `compact` with workers) are removed that began with an older version.
    """
    keep = whole_number("keep", keep, 1)
    _check_seconds("grace", grace)
    place, _ = existing_place(path)
    # Writers before versions: one that ends in between has published its files.
    now = _storage_time(place)
    writers_since = WriterHeartbeat.oldest_start(place, now, grace)
    kept = _manifests(place, keep)
    named = named_paths(kept.values())

    def remove_if_old(name: str) -> bool:
        """Remove a file that is old enough and that no live writer has written."""
        with suppress(FileNotFoundError):
            written = place.stat(name).modified
            if max(0.0, now - written) >= grace and written < writers_since:
                place.remove(name)
                return True
        return False

    # Manifests first, each removal synced: a power loss must not bring back a version whose files are gone.
    numbers = version_numbers.remove_versions(place, min(kept))
    waste = [name for name in place.paths() if WRITER_FILE.fullmatch(name) and name not in named]
    removed = [name for name, gone in zip(waste, place.for_each(remove_if_old, waste), strict=True) if gone]
    if not place.is_remote:
        version_numbers.shrink_tombstones(place, numbers)
    jobs = discard_outdated(place.url, max(kept))
    return [manifest_path(number) for number in numbers] + removed + jobs


def _check_seconds(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) >= 0:
        raise ArgumentError(f"expected {name} to be a number of seconds from 0, got {value!r}")


def _manifests(place: Place, last: int = 0) -> dict[int, Manifest]:
    """Return the manifests of the last versions, of all by default; the latest version is always among them."""
    while True:
        numbers = versions_in(place)[-last:]
        manifests = dict(zip(numbers, place.for_each(partial(_if_exists, place), numbers), strict=True))
        if manifests[numbers[-1]] is not None:  # else there are newer ones
            return {number: manifest for number, manifest in manifests.items() if manifest is not None}


def _if_exists(place: Place, version: int) -> Manifest | None:
    with suppress(VersionExpired):  # another `clean` has removed it meanwhile
        return read_manifest(place, version)
    return None


def _storage_time(place: Place) -> float:
    """Return the time by the clock of the storage, which may differ from ours."""
    probe = f".{secrets.token_hex(8)}.tmp"
    try:
        place.put(probe, b"")
        return place.stat(probe).modified
    finally:
        with suppress(FileNotFoundError):
            place.remove(probe)
