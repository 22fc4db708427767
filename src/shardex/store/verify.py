"""`verify`: reads a whole dataset and lists every damaged file with the samples and fields in it.

In a native dataset every byte is compared with its checksum, and manifests, ids and keys with each other. Shards of
other formats, which have no checksums, are read from the first sample to the last. Nothing is changed; `recover` copies
what can be read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypedDict

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FormatError, NotFoundError, PathError, ShardexError, VersionExpired
from shardex.features import arrow_schema
from shardex.files import STORE_FOLDER, What, display_name
from shardex.formats import TableRows
from shardex.jobs import Part, cut_rows, run_parts
from shardex.kernel import Integers
from shardex.native import (
    Damage,
    DataFile,
    DataFileReader,
    FileUse,
    Fragment,
    LiveRows,
    Manifest,
    RunSegment,
    VersionReader,
    examine_files,
    keys,
    manifest_path,
    named_paths,
    native_place,
    read_ids,
    read_manifest,
    read_numbers,
    version_numbers,
    versions_in,
)
from shardex.sources import Place
from shardex.store.edit import opened_native
from shardex.store.readable_rows import (
    Read,
    UnreadableRows,
    open_readable_files,
    read_readable,
    runs_of_fields,
    unreadable_ranges,
)
from shardex.workers import ExecutorLike

_PARTS, _PART_ROWS = 256, 1024
"""Largest number of parts into which the rows of another format are cut, and the least number of rows in a part."""
_MOST_RANGES = 64
"""Most ranges of samples that are reported of one batch; the last one holds all others."""


@dataclass(frozen=True)
class Problem:
    """A damaged or missing part of a dataset."""

    file: str
    """Path of the file in the dataset's folder."""
    what: str
    """What was expected, and what was found."""
    samples: range | None = None
    """Rows of the samples that cannot be read, in the newest version (or the requested one): no rows if no sample needs
    the damaged bytes; None if they are not known, or if only older versions use the file."""
    fields: tuple[str, ...] = ()
    """The fields that cannot be read; empty if none can."""
    versions: tuple[int, ...] = ()
    """The versions that use the file."""


def verify(
    path: What | Dataset[Any],
    version: int | None = None,
    *,
    workers: int | None = None,
    executor: ExecutorLike = None,
    progress: bool | None = None,
    **options: Any,
) -> list[Problem]:
    """Check all versions of a dataset, or one, and return all problems: an empty list if there are none.

    `path` may be a native dataset that is open. A dataset of another format is read from its first sample to its last.
    The options are those of `open`. `workers` is the number of processes that read; `executor` runs them elsewhere:
    "ray", an address of Ray, or an executor of `concurrent.futures`. The problems and their order are the same.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp() + "/d"
    >>> _ = sx.write(folder, [{"x": 1}, {"x": 2}])
    >>> verify(folder)
    []
    """
    if isinstance(path, Dataset):
        path, trusted = opened_native(path)
        options = {"trust_paths": trusted, **options}
    place = native_place(path)
    where: _Where = {"workers": workers, "executor": executor, "progress": progress}
    if str(path).startswith("memory://") and (workers, executor) != (None, None):
        raise ArgumentError(f"{path}: expected no workers and no executor: other processes do not see this memory")
    if place is not None:
        return _Inspection(place, version, bool(options.get("trust_paths")), where).run()
    if version is not None:
        raise FormatError(f"{path}: expected a native dataset, which has versions, got something else")
    return list(_verify_foreign(path, where, options))


class _Where(TypedDict, total=False):
    """Where a dataset is read, and whether there is a progress bar: arguments of `run_parts`."""

    workers: int | None
    executor: ExecutorLike
    progress: bool | None


def leftovers(path: str | os.PathLike[str]) -> list[str]:
    """Return the files in a native dataset that no version uses, such as those of a writer that died or still writes.

    `clean` removes those that shardex wrote. Files that only a damaged manifest lists are included. If a list of the
    files of a version is damaged, no data file is included: it is not known which ones the version uses.
    """
    place = native_place(path)
    if place is None:
        raise FormatError(f"{os.fspath(path)}: expected a native dataset, got something else")
    manifests = list[Manifest]()
    for number in versions_in(place):
        with suppress(ShardexError):
            manifests.append(read_manifest(place, number))
    try:
        named = named_paths(manifests)
    except ShardexError:
        named = set(place.paths("data/"))
    return [name for name in place.paths() if name not in named and not version_numbers.is_version_name(name)]


# -- other formats ------------------------------------------------------------------------------------------------


def _verify_foreign(path: What, where: _Where, options: dict[str, Any]) -> Iterator[Problem]:
    with open_readable_files(path, **options) as found:
        yield from (Problem(file, why) for file, why in found.refused)
        for samples, why in _unreadable(found.dataset.read, len(found.dataset), where):
            yield Problem(*found.split_row_error(samples.start, why), found.original_rows(samples))


def _unreadable(read: Read, length: int, where: _Where) -> Iterator[tuple[range, str]]:
    """Yield the ranges of rows that cannot be read, with the reason; the rows are read part by part."""
    parts = cut_rows(length, max(_PART_ROWS, -(-length // _PARTS)))
    found = run_parts(
        partial(_unreadable_in, read), parts, size=_rows, total=length, desc="verify", unit=" samples", **where
    )
    return unreadable_ranges(one for _, some in found for one in some)


def _rows(part: Part) -> int:
    return part.end - part.begin


def _unreadable_in(read: Read, part: Part) -> list[UnreadableRows]:
    found = read_readable(read, range(part.begin, part.end))
    return [one for one in found if isinstance(one, UnreadableRows)]


# -- native datasets ----------------------------------------------------------------------------------------------

_CONSEQUENCE = {
    "values": "",
    "fragments": "",
    "keys": "; samples cannot be found by their keys",
    "deleted": "; it is not known which samples are deleted",
    "newer values": "; it is not known which samples have newer values",
}


class _Inspection:
    """Checks all files of some versions of a dataset and collects the problems."""

    def __init__(self, place: Place, version: int | None, trust_paths: bool, where: _Where) -> None:
        self._place = place
        self._where = where
        self._trust_paths = trust_paths
        self._problems: list[Problem] = []
        self._damaged: set[str] = set()
        self._examined: dict[str, DataFileReader] = {}
        self._ids_in: dict[str, Integers] = {}
        self._manifests = self._read_manifests(versions_in(place) if version is None else [version])

    def _read_manifests(self, numbers: list[int]) -> dict[int, Manifest]:
        """Return the manifests that can be read, and report the others."""
        found = {}
        if not numbers:
            self._report(STORE_FOLDER, "expected a manifest, got only data: it was never finished, or it is lost")
        for number in range(numbers[0], numbers[-1] + 1) if numbers else ():
            path = manifest_path(number)
            try:
                manifest = read_manifest(self._place, number)
                arrow_schema(manifest.features)  # raises an error for fields that cannot be stored
                found[number] = manifest
            except NotFoundError as error:
                if len(numbers) == 1:
                    raise
                if isinstance(error, VersionExpired):  # `clean` removed it
                    continue
                what = "expected a manifest, as there are older and newer ones; it is missing"
                self._report(path, what, versions=(number,))
            except ShardexError as error:
                self._report(path, str(error).removeprefix(f"{self._place.url}/{path}: "), versions=(number,))
        return self._with_readable_runs(found)

    def _with_readable_runs(self, manifests: dict[int, Manifest]) -> dict[int, Manifest]:
        """Return the versions whose lists of fragments can be read, and report the others; each list is read once."""
        read: dict[str, RunSegment] = {}
        damaged: dict[str, tuple[str, list[int]]] = {}
        for number, manifest in manifests.items():
            for segment in manifest.fragments.run_segments:
                path = segment.run.file.path
                if path in damaged:
                    damaged[path][1].append(number)
                    continue
                try:
                    segment.load(read.get(path))
                    read[path] = segment
                except ShardexError as error:
                    text = str(getattr(error, "strerror", None) or error).removeprefix(f"{self._place.url}/{path}: ")
                    damaged[path] = text, [number]
        for path, (text, numbers) in damaged.items():
            what = f"{text}; it is not known which files hold the samples of these versions"
            self._report(path, what, versions=tuple(numbers))
        lost = {number for _, numbers in damaged.values() for number in numbers}
        return {number: manifest for number, manifest in manifests.items() if number not in lost}

    def run(self) -> list[Problem]:
        """Return all problems."""
        if self._manifests:
            self._check_files()
            for number, manifest in self._manifests.items():
                self._attempt(number, partial(self._check_ids, number, manifest))
            newest = max(self._manifests)
            self._attempt(newest, partial(self._check_keys, self._newest))
            self._attempt(newest, partial(self._check_foreign, self._newest))
        return self._problems

    def _attempt(self, number: int, check: Callable[[], None]) -> None:
        """Check a version; an error that ends the check is a problem of the version."""
        try:
            check()
        except PathError:
            raise
        except ShardexError as error:
            self._report(manifest_path(number), str(error), versions=(number,))

    @cached_property
    def _newest(self) -> Manifest:
        return self._manifests[max(self._manifests)]

    def _report(self, file: str, what: str, samples: range | None = None, **more: Any) -> None:
        self._problems.append(Problem(file, what, samples, **more))

    # -- files ------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        uses: dict[str, list[tuple[int, FileUse]]] = {}
        for number, manifest in self._manifests.items():
            for use in manifest.uses():
                uses.setdefault(use.file.path, []).append((number, use))
        every = (use for some in uses.values() for _, use in some)
        readers = examine_files(self._place, every, "verify", **self._where)
        self._examined = readers
        damages = {path: [*(readers[path].damages or ()), *_disagreements(some)] for path, some in uses.items()}
        self._damaged = {path for path, found in damages.items() if found}
        for path, found in damages.items():
            for damage in found:
                self._report_damage(damage, uses[path])

    def _report_damage(self, damage: Damage, uses: list[tuple[int, FileUse]]) -> None:
        versions = tuple(dict.fromkeys(number for number, _ in uses))
        what = damage.what + _CONSEQUENCE[uses[-1][1].kind]
        current = [use for number, use in uses if self._manifests[number] is self._newest]
        for use in current or [uses[-1][1]]:
            for samples, fields in self._lost(use, damage.batch) if current else [(None, use.fields)]:
                self._report(use.file.path, what, samples, fields=fields, versions=versions)

    def _lost(self, use: FileUse, batch: int | None) -> list[tuple[range | None, tuple[str, ...]]]:
        """Return the samples of the newest version that need damaged bytes, with their fields; most in one range.

        Samples whose damaged values are replaced by newer ones are included.
        """
        reader = self._examined[use.file.path]
        if batch is None or use.kind != "values" or not reader.is_readable_in_part(batch):
            return [(self._samples(use, batch), use.fields)]
        begin = use.start + sum(reader.batch_rows[:batch])
        runs = list(runs_of_fields({name: reader.lost(batch, use.file.fields[name]) for name in use.fields}))
        if len(runs) > _MOST_RANGES:
            last = {name for _, fields in runs[_MOST_RANGES - 1 :] for name in fields}
            rest = range(runs[_MOST_RANGES - 1][0].start, runs[-1][0].stop)
            runs[_MOST_RANGES - 1 :] = [(rest, tuple(name for name in use.fields if name in last))]
        found = [(self._range(begin + rows.start, begin + rows.stop), fields) for rows, fields in runs]
        found = [(samples, fields) for samples, fields in found if samples is None or samples]
        return found or [(self._range(begin, begin), use.fields)]

    def _samples(self, use: FileUse, batch: int | None) -> range | None:
        """Return the samples of the newest version that need a file, or one batch of it."""
        if use.fragment < 0:
            return range(self._newest.rows)
        begin, end = use.start, use.start + self._newest.fragments[use.fragment].rows
        if batch is not None and use.kind == "values":
            rows = self._examined[use.file.path].batch_rows
            begin += sum(rows[:batch])
            end = begin + rows[batch]
        return self._range(begin, end)

    def _range(self, begin: int, end: int) -> range | None:
        """Return the samples in a range of physical rows; None if it is not known which ones are deleted."""
        return None if self._live is None else range(*self._live.rows(np.array([begin, end])).tolist())

    @cached_property
    def _live(self) -> LiveRows | None:
        return self._live_rows(self._newest)

    # -- ids --------------------------------------------------------------------------------------------------

    def _live_rows(self, manifest: Manifest) -> LiveRows | None:
        """Return the rows of a version that are not deleted; None if a list of deleted rows is damaged."""
        if not self._damaged.isdisjoint(file.path for file in manifest.deleted):
            return None
        ids = manifest.row_ids
        deleted = [ids.physical_rows(self._ids(file)) for file in manifest.deleted]
        return LiveRows(len(ids), np.concatenate([np.empty(0, np.int64), *deleted]))

    def _ids(self, file: DataFile) -> Integers:
        if file.path not in self._ids_in:
            self._ids_in[file.path] = read_ids(self._place, file)
        return self._ids_in[file.path]

    def _check_ids(self, number: int, manifest: Manifest) -> None:
        """Check that no id is used twice, that the ids in files exist, and the number of samples."""
        path, versions = manifest_path(number), (number,)
        order = np.argsort(manifest.fragments.firsts, kind="stable")
        firsts, rows = manifest.fragments.firsts[order], manifest.fragments.rows[order]
        for first in firsts[1:][firsts[1:] < firsts[:-1] + rows[:-1]].tolist():
            self._report(path, f"expected every id once, got {first} in two fragments", versions=versions)
        for file in (*manifest.deleted, *manifest.overlays):
            if file.path not in self._damaged and (most := int(self._ids(file).max())) >= manifest.ids:
                what = f"expected ids below {manifest.ids}, got {most} in {file.path}"
                self._report(path, what, versions=versions)
        if (live := self._live_rows(manifest)) is not None and len(live) != manifest.rows:
            self._report(path, f"expected {manifest.rows} samples, {len(live)} are left", versions=versions)

    # -- keys -------------------------------------------------------------------------------------------------

    def _check_keys(self, manifest: Manifest) -> None:
        """Check that the key table of each fragment matches its keys, and that no two samples have the same key."""
        if manifest.key is None:
            return
        reader = VersionReader(self._place, manifest, trust_paths=self._trust_paths)
        rows = reader.base_rows(manifest.features.select([manifest.key]))
        hashes, physical, checked, start = [], [], [], 0
        for number, fragment in enumerate(manifest.fragments):
            files = fragment.groups if fragment.keys is None else [*fragment.groups, fragment.keys]
            if self._damaged.isdisjoint(file.path for file in files):
                hash, row = self._check_key_table(manifest, fragment, rows, start)
                hashes.append(hash)
                physical.append(row.astype(np.int64) + start)
                checked.append(number)
            start += fragment.rows
        self._check_merged_tables(manifest, dict(zip(checked, zip(hashes, physical, strict=True), strict=True)))
        if hashes and self._live is not None:
            self._check_unique(manifest.key, np.concatenate(hashes), np.concatenate(physical), rows, self._live)

    def _check_merged_tables(
        self, manifest: Manifest, known: Mapping[int, tuple[NDArray[np.uint64], Integers]]
    ) -> None:
        """Report key tables of several fragments that have other hashes or rows than the fragments."""
        first = 0
        for segment in manifest.fragments.segments:
            for one in segment.run.tables if isinstance(segment, RunSegment) else ():
                numbers = range(first + one.begin, first + one.end)
                if one.file.path in self._damaged or not all(number in known for number in numbers):
                    continue
                begin = int(manifest.fragments.rows[: numbers[0]].sum())
                parts = [known[number] for number in numbers]
                tables = [keys.KeyTable(hash, (rows - begin).astype(np.uint64)) for hash, rows in parts]
                found = [read_numbers(self._place, one.file, name) for name in ("hash", "row")]
                if not np.array_equal(keys.merge_tables(tables, [0] * len(tables)), found):
                    samples = self._range(begin, begin + sum(map(len, tables)))
                    key = manifest.key or ""
                    what = f"expected the hashes of the keys in {key} of {len(tables)} fragments, got others"
                    self._report(one.file.path, what, samples, fields=(key,))
            first += len(segment)

    def _check_key_table(
        self, manifest: Manifest, fragment: Fragment, rows: TableRows, start: int
    ) -> NDArray[np.uint64]:
        """Return the hashes of a fragment's keys with their rows; report it if its key table has others."""
        key = manifest.key or ""
        expected = keys.encode_keys(keys.hash_keys(rows.read(np.arange(start, start + fragment.rows), [key])[key]))
        found = [] if fragment.keys is None else [read_numbers(self._place, fragment.keys, n) for n in ("hash", "row")]
        if not np.array_equal(expected, found):
            file = manifest_path(max(self._manifests)) if fragment.keys is None else fragment.keys.path
            samples = self._range(start, start + fragment.rows)
            self._report(file, f"expected the hashes of the keys in {key}, got others", samples, fields=(key,))
        return expected

    def _check_unique(
        self, key: str, hashes: NDArray[np.uint64], physical: Integers, rows: TableRows, live: LiveRows
    ) -> None:
        is_live = live.is_live(physical)
        order = np.argsort(hashes[is_live], kind="stable")
        hashes, physical = hashes[is_live][order], physical[is_live][order]
        equal = np.flatnonzero(hashes[1:] == hashes[:-1])
        some = physical[np.union1d(equal, equal + 1)]
        seen: dict[Any, int] = {}
        for value, row in zip(rows.read(some, [key])[key], live.rows(some).tolist(), strict=True):
            if (other := seen.setdefault(value, row)) != row:
                what = f"expected every key once, got {value!r:.200} in samples {other} and {row}"
                self._report(manifest_path(max(self._manifests)), what, range(row, row + 1), fields=(key,))

    # -- adopted shards ---------------------------------------------------------------------------------------

    def _check_foreign(self, manifest: Manifest) -> None:
        """Read the fields that are stored in adopted shards, where no newer value replaces them, in this process."""
        reader = VersionReader(self._place, manifest, trust_paths=self._trust_paths, examined=self._examined)
        for fragment in manifest.fragments:
            if (foreign := fragment.adopted) is not None:
                fields = tuple(foreign.fields)
                rows = reader.rows(manifest.features.select(fields))
                for samples, why in _unreadable(rows.read, len(rows), {"progress": self._where["progress"]}):
                    known = samples if self._live is not None else None
                    self._report(display_name(foreign.what), why, known, fields=fields)


def _disagreements(uses: list[tuple[int, FileUse]]) -> Iterator[Damage]:
    """Yield a damage for each version that describes a file differently than the newest; field names may differ."""
    newest = uses[-1][1].file
    for number, use in uses:
        if msgspec.structs.replace(use.file, fields=newest.fields) != newest:
            yield Damage(f"expected the same size and checksums in all versions, got others in version {number}")
