"""Maintenance of the versions of a native dataset: `history`, `restore`, `clean` and `compact`.

All of them read manifests and publish new ones by put-if-absent; no data file is ever changed. Only `clean` removes
files: those that no kept version lists and that no active writer may be about to publish.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, CommitConflict, VersionExpired
from shardex.kernel import Integers
from shardex.progress import Bar
from shardex.sources import Place
from shardex.store.commit import counted, publish_next, with_ids
from shardex.store.data_file_reader import read_ids
from shardex.store.data_files import FragmentWriter
from shardex.store.inventory import existing_place
from shardex.store.manifest import (
    DataFile,
    Fragment,
    Manifest,
    files_of,
    new_data_path,
    publish,
    read_manifest,
    with_paths,
)
from shardex.store.version_numbers import (
    at_latest,
    manifest_path,
    remove_versions,
    shrink_tombstones,
    versions_in,
)
from shardex.store.writer_heartbeat import WRITER_FILE, WriterHeartbeat, oldest_writer_start

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
    old = read_manifest(place, version)
    latest, current = at_latest(place, lambda number: (number, read_manifest(place, number)), latest)
    with closing(WriterHeartbeat(place)) as heartbeat:
        # `clean` may be about to remove the files of the old version, but not new ones.
        stay = {file.path for file in files_of(current)}
        files = {file.path: file for file in files_of(old) if file.path not in stay}
        paths = {path: new_data_path((batch.xxh3 for batch in f.batches), f.foot) for path, f in files.items()}
        place.for_each(lambda path: place.copy(path, paths[path]), paths)
        again = msgspec.structs.replace(
            with_paths(old, paths), change=f"restore: version {version}", ids=max(current.ids, old.ids)
        )
        heartbeat.check(again, current)
        if not publish(place, latest + 1, again):
            raise CommitConflict(
                f"{place.url}: expected version {latest} to stay the latest while version {version} is restored, "
                "another writer has published a newer one; check it and try again"
            )
        heartbeat.confirm(latest + 1)
    return latest + 1


def clean(path: Path, keep: int = 1, *, grace: float = GRACE) -> list[str]:
    """Remove all but the last `keep` versions and every data file that they do not use; return what was removed.

    Files younger than `grace` seconds are kept, because a writer may be about to publish them. So are older ones that
    may belong to an active writer, which has a heartbeat file. Ages are measured by the clock of the storage.
    Datasets that have a removed version open may fail at the next read.
    """
    if keep < 1:
        raise ArgumentError(f"expected at least one version to keep, got keep={keep}")
    place, _ = existing_place(path)
    # Writers before versions: one that ends in between has published its files.
    now = _storage_time(place)
    writers_since = oldest_writer_start(place, now, grace)
    kept = _manifests(place, keep)
    named = {file.path for manifest in kept.values() for file in files_of(manifest)}

    def remove_if_old(name: str) -> bool:
        """Remove a file that is old enough and that no live writer has written."""
        with suppress(FileNotFoundError):
            written = place.stat(name).modified
            if max(0.0, now - written) >= grace and written < writers_since:
                place.remove(name)
                return True
        return False

    # Manifests first, each removal synced: a power loss must not bring back a version whose files are gone.
    numbers = remove_versions(place, min(kept))
    waste = [name for name in place.paths() if WRITER_FILE.fullmatch(name) and name not in named]
    removed = [name for name, gone in zip(waste, place.for_each(remove_if_old, waste), strict=True) if gone]
    if not place.is_remote:
        shrink_tombstones(place, numbers)
    return [manifest_path(number) for number in numbers] + removed


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


# -- compaction -----------------------------------------------------------------------------------------------


def compact(
    path: Path, *, shard_size: int = 512 << 20, progress: bool | None = None, trust_paths: bool = False
) -> int | None:
    """Rewrite fragments that were edited, have their fields in several files, or are small.

    Samples keep their values, order and rows. Returns the number of the new version, or None if there was nothing to
    do. With `trust_paths` data files may be links out of the folder.
    """
    place, latest = existing_place(path)

    def open_version(version: int) -> tuple[int, Manifest, Dataset[Any]]:
        manifest = read_manifest(place, version)
        if any(fragment.adopted is not None for fragment in manifest.fragments):
            raise ArgumentError(f"{place.url}: expected a dataset without adopted shards to compact, got one with them")
        return version, manifest, open_dataset(place.url, version=version, trust_paths=trust_paths)

    version, base, ds = at_latest(place, open_version, latest)
    left, edited = _live_and_edited(place, base)
    small = [sum(file.size for file in fragment.groups) < shard_size // 2 for fragment in base.fragments]
    runs = list(_runs(np.logical_or(small, edited).tolist(), edited))
    if not runs:
        return None
    ends = np.cumsum([0, *left]).tolist()
    new: dict[int, list[Fragment]] = {}
    writers: list[FragmentWriter] = []
    bar = Bar(total=len(ds), desc="compact", unit=" samples", disable=None if progress is None else not progress)
    with closing(WriterHeartbeat(place)) as heartbeat:
        try:
            with bar:
                for begin, end in runs:
                    writers.append(FragmentWriter(place, base.features, shard_size=shard_size, key=base.key))
                    for columns in ds[ends[begin] : ends[end]].chunks():
                        writers[-1].write(columns)
                        bar.update(len(columns))
                    new[begin] = writers[-1].finish()

            def make(number: int) -> Manifest:
                latest = base if number == version else read_manifest(place, number)
                made = _compacted(place, base, latest, runs, new)
                heartbeat.check(made, latest)
                return made

            published = publish_next(place, version, make)
            heartbeat.confirm(published)
            return published
        except BaseException:
            for writer in writers:
                writer.discard()
            raise


def _live_and_edited(place: Place, manifest: Manifest) -> tuple[list[int], list[bool]]:
    """Return for each fragment the number of live rows, and whether it has edits or several files."""
    fragments, ids = manifest.fragments, manifest.row_ids
    ends = np.cumsum([one.rows for one in fragments])

    def per_fragment(files: list[DataFile]) -> Integers:
        found = [ids.physical_rows(read_ids(place, file)) for file in files]
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return np.bincount(np.searchsorted(ends, rows[rows >= 0], "right"), minlength=len(fragments))

    gone, changed = per_fragment(manifest.deleted), per_fragment(manifest.overlays)
    edited = [g + c > 0 or len(one.groups) > 1 for one, g, c in zip(fragments, gone, changed, strict=True)]
    return [one.rows - int(g) for one, g in zip(fragments, gone, strict=True)], [bool(one) for one in edited]


def _runs(rewritten: list[bool], edited: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield ranges of fragments to rewrite; a single small one without edits between large ones is kept."""
    for rewrite, group in groupby(range(len(rewritten)), key=rewritten.__getitem__):
        numbers = list(group)
        if rewrite and (len(numbers) > 1 or edited[numbers[0]]):
            yield numbers[0], numbers[-1] + 1


def _compacted(
    place: Place, base: Manifest, latest: Manifest, runs: list[tuple[int, int]], new: dict[int, list[Fragment]]
) -> Manifest:
    """Return the latest manifest with the runs of fragments of `base` replaced; others may only have appended."""
    same = (latest.deleted, latest.overlays, latest.schema) == (base.deleted, base.overlays, base.schema)
    if not same or latest.fragments[: len(base.fragments)] != base.fragments:
        raise CommitConflict(
            f"{place.url}: expected nothing but appended samples while fragments are rewritten, another writer did "
            f"more ({latest.change}); nothing was changed, compact again"
        )
    fragments, ids = list[Fragment](), latest.ids
    replaced = {number for begin, end in runs for number in range(begin, end)}
    for number, fragment in enumerate(latest.fragments):
        fragments, ids = with_ids(fragments, new.get(number, []), ids)
        if number not in replaced:
            fragments.append(fragment)
    words = f"compact: {counted(len(replaced), 'fragment')} into {sum(map(len, new.values()))}"
    return msgspec.structs.replace(latest, fragments=fragments, ids=ids, deleted=[], overlays=[], change=words)
