"""`compact`: rewrites fragments that were edited, have their fields in several files, or are small.

Each run of such fragments is cut into parts of about one shard. The cuts depend on the dataset and the shard size only,
so the new files are the same for every number of workers. Without workers the parts are written into the dataset one
after another. With workers each is a small native dataset in the folder of the job (`NativeParts`), and their files are
linked into the dataset at the end; a run that was killed is continued.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import numpy as np

from shardex.columns import to_table
from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, CommitConflict, ShardexError
from shardex.features import Features
from shardex.jobs import FinishedPart, JobFolder, Part, continue_parts, cut_rows, discard_outdated
from shardex.kernel import Integers
from shardex.native import (
    DataFile,
    Fragment,
    FragmentList,
    Manifest,
    NativeParts,
    WriterHeartbeat,
    at_latest,
    commit,
    data_files,
    existing_place,
    latest_version,
    read_ids,
    read_manifest,
)
from shardex.progress import Bar
from shardex.sources import Place
from shardex.workers import ExecutorLike, function_fingerprint, raise_if_cancelled

_VERSION = 1
"""Part of the fingerprint of a job: a higher number if the same job would write other bytes."""
_MEASURED = 64
"""Number of samples from which the size of all is estimated, where the sizes of files do not show it."""
_FULL = 7 / 8
"""Size of a part, as a share of the shard size, so that few parts need a second shard."""


def compact(
    path: str | os.PathLike[str],
    *,
    shard_size: int = 512 << 20,
    workers: int | None = None,
    executor: ExecutorLike = None,
    progress: bool | None = None,
    trust_paths: bool = False,
) -> int | None:
    """Rewrite fragments that were edited, have their fields in several files, or are small.

    Samples keep their values, order and rows. Returns the number of the new version, or None if there was nothing to
    do. With `trust_paths` data files may be links out of the folder.

    `workers` processes work at the same time, or an `executor`: "ray", the address of a Ray cluster, or an executor of
    `concurrent.futures`. The files are the same for every number of workers. With one of them, also ``workers=1``, a
    run that is killed is continued by the next one, if the dataset has not changed.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp() + "/d"
    >>> _ = sx.write(folder, [{"x": k} for k in range(5)], shard_rows=1)
    >>> compact(folder), compact(folder), sx.store.history(folder)[-1].change
    (2, None, 'compact: 5 fragments into 1')
    """
    place, latest = existing_place(path)

    def open_version(version: int) -> tuple[int, Manifest, Dataset[Any]]:
        manifest = read_manifest(place, version)
        if manifest.fragments.adopted is not None:
            raise ArgumentError(f"{place.url}: expected a dataset without adopted shards to compact, got one with them")
        return version, manifest, open_dataset(place.url, version=version, trust_paths=trust_paths).stored

    version, base, ds = at_latest(place, open_version, latest)
    discard_outdated(place.url, version)
    plan = _Plan(place, base, ds, shard_size)
    if not plan.runs:
        return None
    rewrite = Rewrite(ds, base.features, base.key, shard_size)
    with closing(WriterHeartbeat(place)) as heartbeat:
        run = _Commit(place, version, base, plan, heartbeat)
        if workers is None and executor is None:
            return _compact_here(run, rewrite, progress)
        return _compact_in_parts(run, rewrite, workers, executor, progress)


@dataclass(frozen=True)
class Rewrite:
    """Writes a range of samples as new fragments."""

    dataset: Dataset[Any]
    features: Features
    key: str | None
    shard_size: int

    def __call__(self, part: Part, place: Place, step: Callable[[int], object] = int) -> data_files.FragmentWriter:
        """Write the samples of a part to files, which are complete but not published."""
        writer = data_files.FragmentWriter(place, self.features, shard_size=self.shard_size, key=self.key)
        try:
            for columns in self.dataset[part.begin : part.end].chunks():
                raise_if_cancelled()
                writer.write(columns)
                step(len(columns))
            writer.complete()
        except BaseException:
            writer.discard()
            raise
        return writer


@dataclass(frozen=True)
class CompactJob:
    """Writes one part into the folder of a job; a worker calls it."""

    rewrite: Rewrite
    folder: JobFolder

    def __call__(self, part: Part) -> FinishedPart:
        """Write the samples of a part as a small native dataset."""
        write = self.rewrite
        return NativeParts(self.folder).write(
            part.number, write.features, lambda place: write(part, place).finish(), key=write.key
        )


def _compact_here(run: _Commit, rewrite: Rewrite, progress: bool | None) -> int:
    """Write all parts into the dataset, then publish their files."""
    plan, writers = run.plan, list[data_files.FragmentWriter]()
    bar = Bar(total=plan.rows, desc="compact", unit=" samples", disable=None if progress is None else not progress)
    try:
        with bar:
            for part in plan.parts:
                writers.append(rewrite(part, run.place, bar.update))
        return run.publish([writer.finish() for writer in writers])
    except BaseException:
        for writer in writers:
            writer.discard()
        raise


def _compact_in_parts(
    run: _Commit, rewrite: Rewrite, workers: int | None, executor: ExecutorLike, progress: bool | None
) -> int:
    """Let workers write the parts, or continue; then link their files into the dataset."""
    place, parts = run.place, run.plan.parts
    inputs = (_VERSION, "compact", rewrite.dataset, run.version, rewrite.shard_size, parts)
    folder = JobFolder(place.url, function_fingerprint(inputs))
    with folder.opened():
        folder.base = run.version
        finished = folder.finished()
        try:
            job = CompactJob(rewrite, folder)
            for _ in continue_parts(
                job, parts, finished, workers=workers, executor=executor, desc="compact", progress=progress
            ):
                pass
            with folder.locked(finished):
                number = folder.begin_commit(run.version)
                if NativeParts.is_published(place, number):
                    raise folder.published_meanwhile()
                linked = NativeParts(folder).link([finished[part.number] for part in parts], place.url)
                published = run.publish(linked, number.number)
        except BaseException as error:
            latest = run.version
            with suppress(ShardexError):  # the storage may be the reason of the error
                latest = latest_version(place)
            if latest == run.version:
                folder.explain(error, len(parts))
                raise
            folder.discard_all()  # the next run begins with another version
            if isinstance(error, FileExistsError | FileNotFoundError):  # another run of this job has ended
                raise run.conflict(read_manifest(place, latest)) from error
            raise
        folder.remove()
    return published


# -- what is rewritten --------------------------------------------------------------------------------------------


class _Plan:
    """Which fragments are rewritten, and in which parts."""

    def __init__(self, place: Place, base: Manifest, ds: Dataset[Any], shard_size: int) -> None:
        left, edited = _live_and_edited(place, base)
        sizes = base.fragments.sizes.tolist()
        rows = base.fragments.rows.tolist()
        rewritten = [one or size < shard_size // 2 for one, size in zip(edited, sizes, strict=True)]
        self.runs = list(_runs(rewritten, edited))
        """Ranges of fragments that become new ones."""
        self.parts: list[Part] = []
        self.run_of_part: list[int] = []
        """First fragment of the run of each part."""
        ends = np.cumsum([0, *left]).tolist()
        for begin, end in self.runs:
            live = [sizes[k] * left[k] / max(1, rows[k]) for k in range(begin, end)]
            self._cut(begin, ends[begin], ends[end], _shards(ds, ends[begin], ends[end], sum(live), shard_size))

    def _cut(self, run: int, begin: int, end: int, count: int) -> None:
        for part in cut_rows(end - begin, max(1, -(-(end - begin) // count))):
            self.parts.append(Part(len(self.parts), begin + part.begin, begin + part.end))
            self.run_of_part.append(run)

    @property
    def rows(self) -> int:
        """Number of samples that are rewritten."""
        return sum(part.end - part.begin for part in self.parts)


def _shards(ds: Dataset[Any], begin: int, end: int, file_bytes: float, shard_size: int) -> int:
    """Return into how many shards some samples are to be written, from the size of the files that hold them now.

    If many of these bytes are of dropped fields, or of the ends of very small files, the size is that of some samples.
    """
    if file_bytes <= shard_size:
        return 1
    rows = np.unique(np.linspace(begin, end - 1, _MEASURED).astype(np.int64))
    measured = to_table(ds.read(rows), ds.features, stored=True).nbytes / len(rows) * (end - begin)
    size = file_bytes if measured > file_bytes / 2 else measured
    return 1 if size <= shard_size else int(np.ceil(size / (shard_size * _FULL)))


def _live_and_edited(place: Place, manifest: Manifest) -> tuple[list[int], list[bool]]:
    """Return for each fragment the number of live rows, and whether it has edits or several files."""
    fragments, ids = manifest.fragments, manifest.row_ids
    ends = np.cumsum(fragments.rows)

    def per_fragment(files: list[DataFile]) -> Integers:
        found = [ids.physical_rows(read_ids(place, file)) for file in files]
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *found]))
        return np.bincount(np.searchsorted(ends, rows[rows >= 0], "right"), minlength=len(fragments))

    gone, changed = per_fragment(manifest.deleted), per_fragment(manifest.overlays)
    several = [len(one.groups) > 1 for one in fragments.segments for _ in range(len(one))]
    edited = (gone + changed > 0) | np.array(several, np.bool_)
    return (fragments.rows - gone).tolist(), edited.tolist()


def _runs(rewritten: list[bool], edited: list[bool]) -> Iterator[tuple[int, int]]:
    """Yield ranges of fragments to rewrite; a single small one without edits between large ones is kept."""
    for rewrite, group in groupby(range(len(rewritten)), key=rewritten.__getitem__):
        numbers = list(group)
        if rewrite and (len(numbers) > 1 or edited[numbers[0]]):
            yield numbers[0], numbers[-1] + 1


# -- the commit ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Commit:
    """Publishes new fragments in place of those that were rewritten."""

    place: Place
    version: int
    base: Manifest
    plan: _Plan
    heartbeat: WriterHeartbeat

    def publish(self, fragments: Sequence[list[Fragment]], named: str | None = None) -> int:
        """Publish the fragments of each part; return the number of the version."""
        new: dict[int, list[Fragment]] = {}
        for run, some in zip(self.plan.run_of_part, fragments, strict=True):
            new.setdefault(run, []).extend(some)
        return commit.publish_next(self.place, self.version, partial(self._next, new), self.heartbeat, named)

    def _next(self, new: dict[int, list[Fragment]], version: int) -> tuple[Manifest, Manifest]:
        latest = self.base if version == self.version else read_manifest(self.place, version)
        return self._compacted(latest, new), latest

    def _compacted(self, latest: Manifest, new: dict[int, list[Fragment]]) -> Manifest:
        """Return the latest manifest with the fragments of `base` replaced; others may only have appended."""
        base = self.base
        same = (latest.deleted, latest.overlays, latest.schema) == (base.deleted, base.overlays, base.schema)
        if not same or latest.fragments[: len(base.fragments)] != base.fragments:
            raise self.conflict(latest)
        fragments, ids, at = FragmentList(), latest.ids, 0
        for begin, end in self.plan.runs:
            fragments = fragments.with_appended(latest.fragments[at:begin])
            fragments, ids = fragments.with_new(new.get(begin, []), ids)
            at = end
        fragments = fragments.with_appended(latest.fragments[at:])
        replaced = sum(end - begin for begin, end in self.plan.runs)
        words = f"compact: {commit.counted(replaced, 'fragment')} into {sum(map(len, new.values()))}"
        return msgspec.structs.replace(latest, fragments=fragments, ids=ids, deleted=[], overlays=[], change=words)

    def conflict(self, latest: Manifest) -> CommitConflict:
        """Return the error for changes of others."""
        return CommitConflict(
            f"{self.place.url}: expected nothing but appended samples while fragments are rewritten, another writer "
            f"did more ({latest.change}); nothing was changed, compact again"
        )
