"""Is a dataset whole? `verify` reads all of it and names every file, sample and field that is not.

Of a native dataset every byte is held against its checksum, and what files say of each other is compared. Shards of
other formats, which have no checksums, are read from the first sample to the last. Nothing is changed; saving what is
left is `salvage.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, NotFoundError, ShardexError
from shardex.files import STORE_FOLDER, What, display_name
from shardex.formats import TableRows
from shardex.kernel import Columns, Integers
from shardex.progress import Bar
from shardex.sources import Place
from shardex.store.inventory import Use, native_place, uses_of, versions_in
from shardex.store.keys import encode_keys, hash_keys
from shardex.store.manifest import DataFile, Fragment, Manifest, manifest_path, read_manifest
from shardex.store.remains import Fault, IntactBatches
from shardex.store.row_ids import RowIds, Survivors
from shardex.store.sift import Bad, runs, sift_all, what_opens
from shardex.store.version_reader import base_rows, read_ids, read_numbers

__all__ = ["Problem", "leftovers", "verify"]


@dataclass(frozen=True)
class Problem:
    """Something in a dataset that is not as it was written."""

    file: str
    """The file, from the dataset's folder on."""
    what: str
    """What was expected, and what was found."""
    samples: range | None = None
    """The samples that cannot be read because of it, by their rows in the newest version (or the one that was asked
    for); none where that is not known, or where only older versions need the file."""
    fields: tuple[str, ...] = ()
    """The fields that cannot be read; none where nothing can."""
    versions: tuple[int, ...] = ()
    """The versions that need the file."""


def verify(path: What, version: int | None = None, *, progress: bool | None = None, **options: Any) -> list[Problem]:
    """Check all versions of a dataset, or one, and say all that is wrong with it; an empty list is good news.

    A dataset of another format is read from its first sample to its last. The options are those of `open`.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp() + "/d"
    >>> _ = sx.write(folder, [{"x": 1}, {"x": 2}])
    >>> verify(folder)
    []
    """
    place = native_place(path)
    if place is not None:
        return _Inspection(place, version, bool(options.get("trust_paths"))).run(progress)
    if version is not None:
        raise FormatError(f"{path}: expected a dataset of shardex's own, which has versions, got something else")
    return list(_verify_foreign(path, progress, options))


def leftovers(path: str | os.PathLike[str]) -> list[str]:
    """Files in a native dataset that no version names, such as those of a writer that died or is not finished yet.

    `clean` removes those of them that shardex made. What only a damaged manifest names is among them.
    """
    place = native_place(path)
    if place is None:
        raise FormatError(f"{os.fspath(path)}: expected a dataset of shardex's own, got something else")
    named = set()
    for number in versions_in(place):
        named.add(manifest_path(number))
        try:
            named |= {use.file.path for use in uses_of(read_manifest(place, number))}
        except ShardexError:
            continue
    return [name for name in place.paths() if name not in named]


# -- other formats ------------------------------------------------------------------------------------------------


def _verify_foreign(path: What, progress: bool | None, options: dict[str, Any]) -> Iterator[Problem]:
    with what_opens(path, **options) as found:
        yield from (Problem(file, why) for file, why in found.refused)
        for samples, why in runs(_read_all(found.dataset.read, len(found.dataset), progress)):
            yield Problem(*found.blame_row(samples.start, why), found.rows(samples))


def _read_all(take: Any, length: int, progress: bool | None) -> Iterator[Bad]:
    quiet = None if progress is None else not progress
    with Bar(total=length, unit=" samples", desc="verify", disable=quiet) as bar:
        for found in sift_all(take, np.arange(length)):
            bar.update(len(found) if isinstance(found, Columns) else len(found.rows))
            if isinstance(found, Bad):
                yield found


# -- native datasets ----------------------------------------------------------------------------------------------

_MEANS = {
    "values": "",
    "keys": "; samples cannot be found by their keys",
    "deleted": "; nobody can tell which samples are deleted",
    "newer values": "; nobody can tell which samples have newer values",
}


class _Inspection:
    """One look at all that some versions of a dataset consist of."""

    def __init__(self, place: Place, version: int | None, trust_paths: bool) -> None:
        self._place = place
        self._trust_paths = trust_paths
        self._problems: list[Problem] = []
        self._damaged: set[str] = set()
        self._ids_in: dict[str, Integers] = {}
        self._manifests = self._read_manifests(versions_in(place) if version is None else [version])

    def _read_manifests(self, numbers: list[int]) -> dict[int, Manifest]:
        """Those that can be read, and word of the others."""
        found = {}
        if not numbers:
            self._say(STORE_FOLDER, "expected a manifest, got only data: it was never finished, or it is lost")
        for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
            path = manifest_path(number)
            try:
                found[number] = read_manifest(self._place, number)
            except NotFoundError:
                if len(numbers) == 1:
                    raise
                self._say(path, "expected a manifest, there are older and newer ones; it is gone", versions=(number,))
            except ShardexError as error:
                self._say(path, str(error).removeprefix(f"{self._place.url}/{path}: "), versions=(number,))
        return found

    def run(self, progress: bool | None) -> list[Problem]:
        """All problems."""
        if self._manifests:
            self._check_files(progress)
            for number, manifest in self._manifests.items():
                self._check_ids(number, manifest)
            self._check_keys(self._newest)
            self._check_foreign(self._newest, progress)
        return self._problems

    @cached_property
    def _newest(self) -> Manifest:
        return self._manifests[max(self._manifests)]

    def _say(self, file: str, what: str, samples: range | None = None, **more: Any) -> None:
        self._problems.append(Problem(file, what, samples, **more))

    # -- files ------------------------------------------------------------------------------------------------

    def _check_files(self, progress: bool | None) -> None:
        uses: dict[str, list[tuple[int, Use]]] = {}
        for number, manifest in self._manifests.items():
            for use in uses_of(manifest):
                uses.setdefault(use.file.path, []).append((number, use))
        quiet, total = None if progress is None else not progress, sum(some[-1][1].file.size for some in uses.values())
        with Bar(total=total, unit="B", unit_scale=True, desc="verify", disable=quiet) as bar:
            faults = {path: self._faults(some, bar.update) for path, some in uses.items()}
        self._damaged = {path for path, found in faults.items() if found}
        for path, found in faults.items():
            for fault in found:
                self._report(fault, uses[path])

    def _faults(self, uses: list[tuple[int, Use]], step: Any) -> list[Fault]:
        """What is wrong with one file; versions may call its columns by other names, and agree on all else."""
        file = uses[-1][1].file
        columns = dict.fromkeys(column for _, use in uses for column in use.columns)
        faults = IntactBatches(self._place, file, list(columns)).examine(step)
        for number, use in uses:
            if msgspec.structs.replace(use.file, fields=file.fields) != file:
                faults.append(Fault(f"expected the same size and checksums in all versions, {number} has others"))
        return faults

    def _report(self, fault: Fault, uses: list[tuple[int, Use]]) -> None:
        versions = tuple(dict.fromkeys(number for number, _ in uses))
        what = fault.what + _MEANS[uses[-1][1].kind]
        current = [use for number, use in uses if self._manifests[number] is self._newest]
        for use in current or [uses[-1][1]]:
            samples = self._samples(use, fault.batch) if current else None
            self._say(use.file.path, what, samples, fields=use.fields, versions=versions)

    def _samples(self, use: Use, batch: int | None) -> range | None:
        """The samples of the newest version that need a file, or one batch of it."""
        if use.fragment < 0:
            return range(self._newest.rows)
        begin, end = use.start, use.start + self._newest.fragments[use.fragment].rows
        if batch is not None and use.kind == "values":
            begin += sum(one.rows for one in use.file.batches[:batch])
            end = begin + use.file.batches[batch].rows
        return self._range(begin, end)

    def _range(self, begin: int, end: int) -> range | None:
        """The samples at these places, if it is known which ones are deleted."""
        if self._survivors is None:
            return None
        return range(*self._survivors.positions(np.array([begin, end])).tolist())

    @cached_property
    def _survivors(self) -> Survivors | None:
        if self._damaged.intersection(file.path for file in self._newest.deleted):
            return None
        return Survivors(sum(one.rows for one in self._newest.fragments), self._gone(self._newest))

    # -- ids --------------------------------------------------------------------------------------------------

    def _gone(self, manifest: Manifest) -> Integers:
        """The places of deleted rows."""
        ids = RowIds([one.first for one in manifest.fragments], [one.rows for one in manifest.fragments])
        found = np.concatenate([np.empty(0, np.int64), *(ids.places(self._ids(file)) for file in manifest.deleted)])
        return np.unique(found[found >= 0])

    def _ids(self, file: DataFile) -> Integers:
        if file.path not in self._ids_in:
            self._ids_in[file.path] = read_ids(self._place, file)
        return self._ids_in[file.path]

    def _check_ids(self, number: int, manifest: Manifest) -> None:
        """Whether ids were given once, those in files were given, and as many samples are left as there should be."""
        path, versions = manifest_path(number), (number,)
        for before, after in pairwise(sorted(manifest.fragments, key=lambda one: one.first)):
            if after.first < before.first + before.rows:
                self._say(path, f"expected every id once, got {after.first} in two fragments", versions=versions)
        for file in (*manifest.deleted, *manifest.overlays):
            if file.path not in self._damaged and (most := int(self._ids(file).max())) >= manifest.ids:
                what = f"expected ids below {manifest.ids}, got {most} in {file.path}"
                self._say(path, what, versions=versions)
        if self._damaged.isdisjoint(file.path for file in manifest.deleted):
            left = sum(one.rows for one in manifest.fragments) - len(self._gone(manifest))
            if left != manifest.rows:
                self._say(path, f"expected {manifest.rows} samples, {left} are left", versions=versions)

    # -- keys -------------------------------------------------------------------------------------------------

    def _check_keys(self, manifest: Manifest) -> None:
        """Whether every fragment has the table that its keys give, and no two samples have one key."""
        if manifest.key is None:
            return
        rows = base_rows(self._place, manifest, manifest.features.select([manifest.key]))
        hashes, places, start = [], [], 0
        for fragment in manifest.fragments:
            files = fragment.groups if fragment.keys is None else [*fragment.groups, fragment.keys]
            if self._damaged.isdisjoint(file.path for file in files):
                hash, row = self._table(manifest, fragment, rows, start)
                hashes.append(hash)
                places.append(row.astype(np.int64) + start)
            start += fragment.rows
        if hashes and self._survivors is not None:
            self._check_unique(manifest.key, np.concatenate(hashes), np.concatenate(places), rows)

    def _table(self, manifest: Manifest, fragment: Fragment, rows: TableRows, start: int) -> NDArray[np.uint64]:
        """The hashes of a fragment's keys with their rows, and word if the file of them has others."""
        key = manifest.key or ""
        expected = encode_keys(hash_keys(rows.read(np.arange(start, start + fragment.rows), [key])[key]))
        found = [] if fragment.keys is None else [read_numbers(self._place, fragment.keys, n) for n in ("hash", "row")]
        if not np.array_equal(expected, found):
            file = manifest_path(max(self._manifests)) if fragment.keys is None else fragment.keys.path
            samples = self._range(start, start + fragment.rows)
            self._say(file, f"expected the hashes of the keys in {key}, got others", samples, fields=(key,))
        return expected

    def _check_unique(self, key: str, hashes: NDArray[np.uint64], places: Integers, rows: TableRows) -> None:
        assert self._survivors is not None
        alive = self._survivors.alive(places)
        order = np.argsort(hashes[alive], kind="stable")
        hashes, places = hashes[alive][order], places[alive][order]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1])
        some = places[np.union1d(twins, twins + 1)]
        seen: dict[Any, int] = {}
        for value, row in zip(rows.read(some, [key])[key], self._survivors.positions(some).tolist(), strict=True):
            if (other := seen.setdefault(value, row)) != row:
                what = f"expected every key once, got {value!r:.200} in samples {other} and {row}"
                self._say(manifest_path(max(self._manifests)), what, range(row, row + 1), fields=(key,))

    # -- shards elsewhere -------------------------------------------------------------------------------------

    def _check_foreign(self, manifest: Manifest, progress: bool | None) -> None:
        """Read the fields that lie in somebody else's shards."""
        for fragment in manifest.fragments:
            if fragment.foreign is not None:
                fields = tuple(fragment.foreign.fields)
                rows = base_rows(self._place, manifest, manifest.features.select(fields), self._trust_paths)
                for places, why in runs(_read_all(rows.read, len(rows), progress)):
                    samples = self._range(places.start, places.stop)
                    self._say(display_name(fragment.foreign.what), why, samples, fields=fields)
