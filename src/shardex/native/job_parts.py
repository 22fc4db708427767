"""Parts of jobs as small native datasets in the folder of the job: how one is written, read, and added to a dataset.

A part is finished when its manifest is published and its record is in the folder (`jobs.JobFolder`). `join` of `writer`
and `compact` add the files of parts to a dataset by linking them; `computed_field` reads their batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

from shardex.errors import CommitConflict, NotFoundError, VersionExpired
from shardex.features import Features, arrow_schema
from shardex.jobs import Commit, FinishedPart, JobFolder
from shardex.native.commit import with_ids
from shardex.native.data_file_reader import DataFileReader
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment, path_of_copy
from shardex.native.manifest import Manifest, files_of, publish, read_manifest, with_paths
from shardex.native.version_numbers import versions_in
from shardex.sources import Place, place_of

_MANIFESTS = 256
"""Manifests of parts that are read at once."""


def write_part(
    folder: JobFolder,
    number: int,
    features: Features,
    write: Callable[[Place], list[Fragment]],
    key: str | None = None,
) -> FinishedPart:
    """Publish what `write` writes to a place as a finished part; return the record that counts."""
    inner = folder.new_part(number)
    place = place_of(folder.path(inner))
    try:
        fragments, ids = with_ids(FragmentList(), write(place), 0)
        publish(place, 1, Manifest(ids, features.to_json(), fragments, key, ids=ids))
    except BaseException:
        folder.discard(inner)
        raise
    return folder.finish(number, FinishedPart(inner, place.paths(), ids))


def read_part(folder: JobFolder, part: FinishedPart) -> list[pa.RecordBatch]:
    """Return the record batches of a part, as views of its files; checksums are compared."""
    place = place_of(folder.path(part.folder))
    manifest = read_manifest(place, 1)
    columns = list(arrow_schema(manifest.features))
    readers = [DataFileReader(place, file, columns) for one in manifest.fragments for file in one.groups]
    return [reader.batch(number) for reader in readers for number in reader.readable]


def link_parts(
    folder: JobFolder, parts: Sequence[FinishedPart], path: str, temporary: str | None = None
) -> list[list[Fragment]]:
    """Link or copy the data files of parts under new names into the dataset at `path`; return their fragments.

    `temporary` is a new folder that will become the dataset. Otherwise the names are noted in the folder of the job
    first: files that a killed run has linked are removed, because no version will ever name them.
    """
    fragments: list[list[Fragment]] = []
    names: dict[str, str] = {}
    for part, manifest in _manifests(folder, parts):
        paths = {
            file.path: path_of_copy(
                file.path,
                # In a new folder numbers are free: equal jobs give equal names.
                None if temporary is None else f"{len(names) + number:016x}",
            )
            for number, file in enumerate(files_of(manifest))
        }
        names |= {f"{part.folder}/{old}": new for old, new in paths.items()}
        fragments.append(list(with_paths(manifest, paths).fragments))
    if folder.alone and temporary is None:
        place_of(path).remove_all(folder.linked)
        folder.linked = list(names.values())
    folder.copy_out(names, temporary)
    return fragments


def _manifests(folder: JobFolder, parts: Sequence[FinishedPart]) -> Iterator[tuple[FinishedPart, Manifest]]:
    """Yield each part with its manifest; some are read at once, because there may be many parts."""
    for begin in range(0, len(parts), _MANIFESTS):
        some = parts[begin : begin + _MANIFESTS]
        found = folder.place.for_each(lambda part: read_manifest(place_of(folder.path(part.folder)), 1), some)
        yield from zip(some, found, strict=True)


def was_published(place: Place, fingerprint: str, versions: Iterable[int]) -> bool:
    """Return True if the job with this fingerprint has published one of these versions; removed ones are skipped."""
    for version in versions:
        with suppress(NotFoundError):
            if read_manifest(place, version).commit.startswith(fingerprint):
                return True
    return False


def is_published(place: Place, commit: Commit) -> bool:
    """Return True if a job has published its version, which is looked for since the job began to publish.

    Raises an error if this is not known, because `clean` has removed such versions: to publish again might add the
    samples twice, or remove files that later versions have kept.
    """
    versions = versions_in(place) if place.root_kind() == "folder" else []
    since = [version for version in versions if version > commit.version]
    removed = bool(since) and since[0] > commit.version + 1
    for version in since:
        try:
            if read_manifest(place, version).commit == commit.number:
                return True
        except VersionExpired:
            removed = True
    if removed:
        raise CommitConflict(
            f"{place.url}: expected all versions after {commit.version}, one of which may have the results of a job "
            "that was interrupted while it published them; some were removed by `clean`, so it is not known: look for "
            "the results in the latest version, remove the folder of the job (.job, next to the dataset), and run the "
            "job again if they are missing"
        )
    return False
