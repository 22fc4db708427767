"""Writes a native dataset: data files under temporary names, and one manifest that publishes all of them at the end.

The same samples give files with the same content. Nothing is visible before the manifest exists, and files that a
crash leaves behind are in no manifest. If another writer has published a version in the meantime, an append is added to
it and an overwrite replaces it.

The parts of a job are small native datasets in the folder of the job. A part is finished when its manifest is published
and its record is in the folder (`jobs.JobFolder`). `JoinParts`, and `compact` of the room `store`, add the files of
parts to a dataset by linking them.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
from msgspec import UNSET

from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    CommitConflict,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardexError,
    VersionExpired,
)
from shardex.features import Features, arrow_schema, hf_metadata, told_apart
from shardex.files import STORE_FOLDER, AllOrNothing, Stage, check_mode
from shardex.formats import STAGE
from shardex.jobs import Commit, FinishedPart, JobFolder
from shardex.kernel import Columns
from shardex.native.commit import Changes, counted, publish_next
from shardex.native.data_file_reader import DataFileReader
from shardex.native.data_files import FragmentWriter
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import Fragment, path_of_copy
from shardex.native.key_lookup import check_key, refuse_duplicates
from shardex.native.manifest import Manifest, publish, read_manifest
from shardex.native.version_numbers import at_latest, latest_version, versions_in
from shardex.native.version_reader import VersionReader
from shardex.native.writer_heartbeat import WRITER_FILE, WriterHeartbeat
from shardex.rows import AbstractRows
from shardex.sources import Place, place_of

_MANIFESTS = 256
"""Manifests of parts that are read at once."""


class NativeParts:
    """The parts of a job as small native datasets in its folder: how one is written, read, and added to a dataset."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder

    def write(
        self,
        number: int,
        features: Features,
        write: Callable[[Place], list[Fragment]],
        key: str | None = None,
    ) -> FinishedPart:
        """Publish what `write` writes to a place as a finished part; return the record that counts."""
        inner = self.folder.new_part(number)
        place = place_of(self.folder.path(inner))
        try:
            fragments, ids = FragmentList().with_new(write(place), 0)
            publish(place, 1, Manifest(ids, features.to_json(), fragments, key, ids=ids))
        except BaseException:
            self.folder.discard(inner)
            raise
        return self.folder.finish(number, FinishedPart(inner, place.paths(), ids))

    def read(self, part: FinishedPart) -> list[pa.RecordBatch]:
        """Return the record batches of a part, as views of its files; checksums are compared."""
        place = place_of(self.folder.path(part.folder))
        manifest = read_manifest(place, 1)
        columns = list(arrow_schema(manifest.features))
        readers = [DataFileReader(place, file, columns) for one in manifest.fragments for file in one.groups]
        return [reader.batch(number) for reader in readers for number in reader.readable]

    def link(self, parts: Sequence[FinishedPart], path: str, temporary: str | None = None) -> list[list[Fragment]]:
        """Link or copy the data files of parts under new names into the dataset at `path`; return their fragments.

        `temporary` is a new folder that will become the dataset. Otherwise the names are noted in the folder of the job
        first: files that a killed run has linked are removed, because no version will ever name them.
        """
        fragments: list[list[Fragment]] = []
        names: dict[str, str] = {}
        for part, manifest in self._manifests(parts):
            paths = {
                file.path: path_of_copy(
                    file.path,
                    # In a new folder numbers are free: equal jobs give equal names.
                    None if temporary is None else f"{len(names) + number:016x}",
                )
                for number, file in enumerate(manifest.files())
            }
            names |= {f"{part.folder}/{old}": new for old, new in paths.items()}
            fragments.append(list(manifest.with_paths(paths).fragments))
        if self.folder.alone and temporary is None:
            place_of(path).remove_all(self.folder.linked)
            self.folder.linked = list(names.values())
        self.folder.copy_out(names, temporary)
        return fragments

    def _manifests(self, parts: Sequence[FinishedPart]) -> Iterator[tuple[FinishedPart, Manifest]]:
        """Yield each part with its manifest; some are read at once, because there may be many parts."""
        for begin in range(0, len(parts), _MANIFESTS):
            some = parts[begin : begin + _MANIFESTS]
            found = self.folder.place.for_each(
                lambda part: read_manifest(place_of(self.folder.path(part.folder)), 1), some
            )
            yield from zip(some, found, strict=True)

    @staticmethod
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
                f"{place.url}: expected all versions after {commit.version}, one of which may have the results of a "
                "job that was interrupted while it published them; some were removed by `clean`, so it is not known: "
                "look for the results in the latest version, remove the folder of the job (.job, next to the dataset), "
                "and run the job again if they are missing"
            )
        return False


def was_published(place: Place, fingerprint: str, versions: Iterable[int]) -> bool:
    """Return True if the job with this fingerprint has published one of these versions; removed ones are skipped."""
    for version in versions:
        with suppress(NotFoundError):
            if read_manifest(place, version).commit.startswith(fingerprint):
                return True
    return False


_UNUSED_IDS = 1 << 48
"""First id if the latest manifest is damaged: larger than any id in use."""


class ArrowWriter(AllOrNothing):
    """Writes samples as a new native dataset or version, which `close` publishes.

    A shard ends at `shard_size` bytes or `shard_rows` rows; with `exact_shards` before the sample with which it would
    have more bytes, else after the batch of 2 MiB with which it has as many. `key` names a field whose values are
    unique and can be looked up by `Dataset.get`. With `generate_keys` a sample without a key gets one: 32 random hex
    digits. `metadata` is stored with the data, for all of it; an append keeps that of the dataset.
    """

    recovers = False
    """True if the samples are those of a damaged dataset, which may have some keys twice."""
    commit: Commit | None = None
    """The publication of a job, which several runs may try to make at the same time."""
    _unpublished: Manifest | None = None
    """The files that `written` returned."""
    refuse: Callable[[int], None] = staticmethod(lambda version: None)
    """Raises an error if another run of the job has published by this version."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str,
        shard_size: int = 512 << 20,
        shard_rows: int | None = None,
        key: str | None = None,
        generate_keys: bool = False,
        metadata: Mapping[str, Any] | None = None,
        exact_shards: bool = False,
    ) -> None:
        self._place = place_of(path)
        self.path = self._place.url
        self._features = features
        self._metadata = hf_metadata.plain_metadata(metadata) if metadata else UNSET
        self._mode = mode
        kind = self._place.root_kind()
        self.version, self._base = at_latest(
            self._place,
            lambda version: (version, self._base_manifest(version, key, generate_keys)),
            check_place(self._place, mode),
        )
        self._new_folder = kind == "missing" or (not self.version and bool(self._place.paths()))  # of another writer
        self._fragments = FragmentWriter(
            self._place,
            features,
            shard_size=shard_size,
            shard_rows=shard_rows,
            key=self._base.key,
            generate_keys=self._base.generate_keys,
            exact=exact_shards,
        )
        self._added: list[Fragment] = []
        self._heartbeat = WriterHeartbeat(self._place)

    def _base_manifest(self, version: int, key: str | None, generate_keys: bool) -> Manifest:
        """Return the manifest that the new samples are added to: the latest one for an append, else an empty one."""
        if self._mode != "append" or not version:
            check_key(key, self._features, generate_keys)
            ids = self._used_ids(version)
            return Manifest(
                0, self._features.to_json(), FragmentList(), key, generate_keys, ids, metadata=self._metadata
            )
        manifest = read_manifest(self._place, version)
        if manifest.features != self._features:
            has, got = told_apart(manifest.features, self._features)
            raise SchemaError(f"{self.path}: expected the fields it has ({has}), got {got}")
        if key is not None and key != manifest.key:
            raise ArgumentError(f"{self.path}: expected the key it has ({manifest.key}), got {key!r}")
        if self._metadata is not UNSET and self._metadata != manifest.metadata:
            raise hf_metadata.other_metadata(self.path, manifest.metadata or {}, self._metadata)
        return manifest

    def _used_ids(self, version: int) -> int:
        """Return the number of ids that are in use; they are not used again, even if all samples are replaced."""
        try:
            return read_manifest(self._place, version).ids if version else 0
        except ShardexError:  # a damaged dataset may be overwritten
            return _UNUSED_IDS

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample."""
        if self._closed:
            self._check_open()
        try:
            self._fragments.append(sample)
        except SchemaError:
            raise
        except BaseException:
            self.abort()
            raise

    def extend(self, samples: Iterable[Any], convert: Callable[[Any], Mapping[str, Any]]) -> None:
        """Add many samples; `convert` makes mappings of those that are no dicts."""
        self._check_open()
        iterator = iter(samples)
        while self._fragments.fill(iterator, convert):
            self._check_open()  # the iterator may have closed it
            with self._abort_on_error():
                self._fragments.flush()

    @property
    def samples(self) -> int:
        """Number of samples added."""
        return self._fragments.samples

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: all of them or, if one does not fit, none."""
        self._check_open()
        try:
            self._fragments.write(columns)
        except SchemaError:
            raise
        except BaseException:
            self.abort()
            raise

    def add_files(self, fragments: Iterable[Fragment]) -> None:
        """Add fragments whose files are already in the folder."""
        added = list(fragments)
        if self._base.key is not None and any(fragment.keys is None for fragment in added):
            raise SchemaError(
                f"{self.path}: expected samples that were written with the key {self._base.key}, got some without: "
                "another writer has made this dataset meanwhile; write them again"
            )
        self._added += added

    def written(self) -> AbstractRows:
        """Return the samples that were added; nothing can be added or published any more."""
        fragments, ids = FragmentList().with_new(self._fragments.finish(), 0)
        self._unpublished = Manifest(ids, self._features.to_json(), fragments, ids=ids)
        return VersionReader(self._place, self._unpublished).rows(self._features)

    def _publish(self) -> None:
        """Publish the version."""
        samples = self._fragments.samples + sum(fragment.rows for fragment in self._added)
        words = f"{'recover' if self.recovers else self._mode}: {counted(samples, 'sample')}"
        changes = Changes([*self._fragments.finish(), *self._added], words=words)
        number = None if self.commit is None else self.commit.number
        publish_next(self._place, self.version, partial(self._next, changes), self._heartbeat, number)
        self._heartbeat.close()

    def _next(self, changes: Changes, version: int) -> tuple[Manifest, Manifest]:
        """Return the manifest to publish after a version, and the one that it is made of."""
        self.refuse(version)
        if version != self.version:
            if self._mode == "create":
                raise AlreadyExistsError(errno.EEXIST, "another writer has created a dataset here meanwhile", self.path)
            self._base = self._base_manifest(version, self._base.key, self._base.generate_keys)
        made = changes.apply(self._place, self._base, self._base)
        if not self.recovers:
            refuse_duplicates(self._place, made, len(changes.appended))
        return made, self._base

    def _discard(self) -> None:
        """Remove temporary files. Published ones stay: a manifest that names them may have been published."""
        self._fragments.discard()
        if self._unpublished is not None:
            self._place.remove_all([file.path for file in self._unpublished.files()])
        self._heartbeat.close()
        if self._new_folder or self.recovers:
            self._place.remove_empty_folders("data", STORE_FOLDER)


def check_place(place: Place, mode: str) -> int:
    """Check that a dataset can be written to a place, and return the number of its latest version, 0 if it has none."""
    if place.root_kind() == "file":
        raise AlreadyExistsError(errno.EEXIST, "expected a folder, got a file", place.url)
    version = latest_version(place)
    leftovers = not version and _only_leftovers(place)
    there = check_mode(place, "overwrite" if leftovers and mode == "create" else mode, known=bool(version or leftovers))
    if there and not version and not leftovers:
        raise FormatError(f"{place.url}: expected a dataset that shardex wrote, got a folder without a manifest")
    return version


class JoinParts:
    """Publishes the native datasets that are the parts of a job as one, or as a version of an existing one."""

    def __call__(
        self,
        folder: JobFolder,
        parts: Sequence[FinishedPart],
        path: str,
        features: Features,
        *,
        mode: str,
        began: int | None = None,
        **options: Any,
    ) -> None:
        """Publish the parts at `path`; a new local dataset is made in the folder of the job and then renamed."""
        if mode != "create" or place_of(path).root_kind() != "missing":
            return _add_parts(folder, parts, ArrowWriter(path, features, mode=mode, **options), began=began)
        temporary = folder.path(STAGE)
        shutil.rmtree(temporary, ignore_errors=True)  # of a run that was killed
        stage = Stage(path, mode, folder=temporary)
        _add_parts(folder, parts, ArrowWriter(temporary, features, mode=mode, **options), temporary)
        stage.publish()

    def state(self, path: str) -> int:
        """Return the number of the latest version."""
        return latest_version(place_of(path))

    def can_append(self, path: str) -> bool:
        """Return True: a version can be added anywhere."""
        return True

    def was_joined(self, folder: JobFolder, parts: Sequence[FinishedPart], path: str) -> bool:
        """Return True if the parts were published: a version since then has the number of that publication."""
        commit = folder.commit
        return commit is not None and NativeParts.is_published(place_of(path), commit)

    def part_options(self, path: str, mode: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the options of the user, with those for the keys of a dataset that is appended to."""
        if mode != "append" or not latest_version(place := place_of(path)):
            return options
        latest = at_latest(place, partial(read_manifest, place))
        return options if latest.key is None else {**options, "key": latest.key, "generate_keys": latest.generate_keys}

    def check(self, path: str, mode: str) -> None:
        """Raise an error if `path` has files that are not those of a native dataset, or a dataset in mode "create"."""
        check_place(place_of(path), mode)


def _add_parts(
    folder: JobFolder,
    parts: Sequence[FinishedPart],
    writer: ArrowWriter,
    temporary: str | None = None,
    began: int | None = None,
) -> None:
    """Link or copy the data files of all parts under new names, and publish a manifest with all fragments.

    Raises an error if another run of the job has published after the version `began`.
    """
    with writer:
        writer.commit = commit = folder.begin_commit(first := writer.version)
        checked = first if began is None else began

        def refuse(version: int) -> None:
            nonlocal checked
            place, after = place_of(path), range(checked + 1, version + 1)
            if (version != first and NativeParts.is_published(place, commit)) or was_published(
                place, folder.fingerprint, after
            ):
                raise folder.published_meanwhile()
            checked = version

        path, writer.refuse = writer.path, refuse
        for fragments in NativeParts(folder).link(parts, writer.path, temporary):
            writer.add_files(fragments)


def _only_leftovers(place: Place) -> bool:
    """Return True if a folder holds only files that a killed writer leaves behind."""
    if place.root_kind() != "folder":
        return False
    return all(map(WRITER_FILE.fullmatch, place.paths()))
