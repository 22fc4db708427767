"""Manifests: the schema of a version of a native dataset, and its data files with their checksums.

A version is one JSON file, `_shardex/00000001.json`, created by put-if-absent; the highest number is current. The file
contains a checksum of itself. Paths are relative and checked. A row has an id that never changes; later versions use it
to list deleted rows and rows with newer values. `data_file_reader` and `version_reader` read data files, `data_files`
writes them, `commit` makes the next manifest.

What a native dataset consists of: `native_place` and `existing_place` find one, `paths_of_data_files` lists its files,
and `Manifest.uses` says what each file of a version is used for.
"""

from __future__ import annotations

import errno
import os
import re
import time
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from shardex.errors import (
    ChecksumError,
    FormatError,
    NotFoundError,
    RemoteChangedError,
    ShardexError,
    SourceError,
    VersionExpired,
    with_next_step,
)
from shardex.features import Features, arrow_schema
from shardex.files import What, display_name
from shardex.native.data_file_reader import read_number_columns
from shardex.native.fragment_list import FragmentList
from shardex.native.fragment_segments import (
    LARGEST,
    MOST_BATCHES,
    MOST_ROWS,
    InlineSegment,
    Run,
    RunSegment,
    own_paths,
    paths_of,
    shape_of,
)
from shardex.native.fragments import DATA_FILE, DataFile, FileUse, Fragment, RowIds, number_column, random_number
from shardex.native.version_numbers import claim_number, is_closed, is_tombstone, latest_version, manifest_path
from shardex.sources import Place, Source, check_path, place_of

FORMAT = 2
"""Version of the format. A manifest that names no file has number 1, which datasets of pre-releases had, too."""
_NUMBER = 8
"""Bytes of a row id, of a row number or of a hash."""


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """One version of a dataset. It has a dict for what is computed from its fields once."""

    rows: int
    """Number of samples: rows that are not deleted."""
    schema: dict[str, Any]
    fragments: FragmentList
    key: str | None = None
    """The field whose values are unique, if there is one."""
    generate_keys: bool = False
    """True if a sample without a key gets a random one."""
    ids: int = 0
    """Number of ids in use: the first id of the next fragment."""
    deleted: list[DataFile] = []
    """Files with the ids of deleted rows in the column `row`."""
    overlays: list[DataFile] = []
    """Files with newer values of fields for the rows with the ids in the column `row`; later files and rows win."""
    made: str = ""
    """Time of publication in UTC; only for display."""
    change: str = ""
    """Description of the change, for display."""
    commit: str = ""
    """A random number, so that no two manifests are equal."""
    shardex: int = 1
    metadata: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    """What the writer was told about the data; not stored if there is nothing."""

    @cached_property
    def features(self) -> Features:
        """Name and feature of each field."""
        return Features.from_json(self.schema)

    @property
    def row_ids(self) -> RowIds:
        """The ids of all rows."""
        return RowIds(self.fragments.firsts, self.fragments.rows)

    def files(self) -> Iterator[DataFile]:
        """Yield every data file that a version lists, also those that list fragments."""
        for run in self.fragments.runs:
            yield from run.own_files
        for fragment in self.fragments:
            yield from fragment.groups
            if fragment.keys is not None:
                yield fragment.keys
        yield from self.deleted
        yield from self.overlays

    def uses(self) -> Iterator[FileUse]:
        """Yield every use of a data file in a version."""
        schema, start = arrow_schema(self.features), 0
        key = () if self.key is None else (self.key,)
        for run in self.fragments.runs:
            yield FileUse(run.file, "fragments", tuple(map(number_column, run.columns)), ())
            for one in run.tables:
                yield FileUse(one.file, "keys", (number_column("hash"), number_column("row")), key)
        for number, fragment in enumerate(self.fragments):
            for file in fragment.groups:
                yield FileUse(file, "values", _columns(file, schema), tuple(file.fields), number, start)
            if fragment.keys is not None:
                yield FileUse(fragment.keys, "keys", (number_column("hash"), number_column("row")), key, number, start)
            start += fragment.rows
        for file in self.deleted:
            yield FileUse(file, "deleted", (number_column("row"),), ())
        for file in self.overlays:
            names = tuple(name for name, column in file.fields.items() if column != "row")
            yield FileUse(file, "newer values", (number_column("row"), *_columns(file, schema)), names)

    def paths_to_copy(self, there: set[str]) -> list[str]:
        """Return the paths of the data files that a version lists and that are not in `there`.

        The files of a run itself are left out if some of its fragments need a copy: they are written again then.
        """
        files = [file.path for file in (*self.deleted, *self.overlays)]
        for segment in self.fragments.segments:
            files += [path for path in paths_of(segment) if path not in there] or own_paths(segment)
        return list(dict.fromkeys(path for path in files if path not in there))

    def with_paths(self, paths: Mapping[str, str]) -> Manifest:
        """Return a manifest that names other files with the same content; `paths` has their new paths."""

        def moved(files: list[DataFile]) -> list[DataFile]:
            return [msgspec.structs.replace(file, path=paths.get(file.path, file.path)) for file in files]

        fragments = self.fragments.with_paths(paths)
        return msgspec.structs.replace(
            self, fragments=fragments, deleted=moved(self.deleted), overlays=moved(self.overlays)
        )


class _Stored(Manifest, frozen=True):
    """A manifest as it is written."""

    fragments: list[Fragment]  # type: ignore[assignment]
    """The fragments that are in no run."""
    runs: list[Run] | msgspec.UnsetType = msgspec.UNSET
    """Older fragments, which are listed in files; not stored if there are none."""


def named_paths(manifests: Iterable[Manifest]) -> set[str]:
    """Return the paths of all data files that some versions list; a run that many of them share is read once."""
    found, seen = set[str](), set[Any]()
    for manifest in manifests:
        found.update(file.path for file in (*manifest.deleted, *manifest.overlays))
        for segment in manifest.fragments.segments:
            if (identity := segment.identity) is None or identity not in seen:
                seen.add(identity)
                found.update(own_paths(segment), paths_of(segment))
    return found


def fingerprint_of(manifest: Manifest) -> str:
    """Return the fingerprint of the content of a version: the same for every arrangement of fragments in runs."""
    edits = [*manifest.deleted, *manifest.overlays]
    digest = xxhash.xxh3_64()
    digest.update(msgspec.json.encode([manifest.schema, [[file.path[:37], file.fields] for file in edits]]))
    for groups, some in groupby(manifest.fragments.segments, key=lambda one: list(one.groups)):
        segments = list(some)
        columns = [np.concatenate([one.rows for one in segments])]
        if edits:  # they name rows by their ids
            columns.append(np.concatenate([one.firsts for one in segments]))
        for group in range(len(groups)):
            columns.append(np.concatenate([one.files(group).contents() for one in segments]))
        adopted = [one.adopted for one in segments if one.adopted is not None]
        digest.update(msgspec.json.encode([groups, len(columns[0]), adopted]))
        for column in columns:
            digest.update(column.tobytes())
    return digest.hexdigest()


class _Sealed(msgspec.Struct):
    xxh3: str
    manifest: msgspec.Raw


class _Numbered(msgspec.Struct):
    shardex: int


def publish(place: Place, version: int, manifest: Manifest, commit: str | None = None) -> bool:
    """Publish a version, with a random number or with `commit`; return False if the number of the version is used."""
    _check(manifest)  # otherwise readers would raise the error
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    named = {"made": made, "commit": commit or random_number(), "shardex": FORMAT if any(manifest.files()) else 1}
    plain = encode_manifest(msgspec.structs.replace(manifest, **named))
    sealed = _Sealed(xxhash.xxh3_64_hexdigest(plain), msgspec.Raw(plain))
    return claim_number(place, version, sealed.xxh3, msgspec.json.encode(sealed) + b"\n")


def encode_manifest(manifest: Manifest) -> bytes:
    """Return a manifest as JSON, without its checksum."""
    values = {name: getattr(manifest, name) for name in Manifest.__struct_fields__}
    values["fragments"] = manifest.fragments.inline
    return msgspec.json.encode(_Stored(**values, runs=manifest.fragments.runs or msgspec.UNSET))


def read_manifest(source: Source, version: int) -> Manifest:
    """Read and check a version's manifest."""
    path = manifest_path(version)
    where = f"{source.url}/{path}"
    try:
        data = bytes(source.load(path))
        removed = is_tombstone(data)
    except NotFoundError:
        if not (removed := is_closed(source, version)):
            latest = latest_version(source)
            raise NotFoundError(errno.ENOENT, f"no version {version}; the current one is {latest}", where) from None
    except RemoteChangedError:  # a manifest is replaced only by a tombstone
        removed = True
    if removed:
        what = f"version {version} was removed by `clean`; the current one is {latest_version(source)}"
        raise VersionExpired(errno.ENOENT, what, where)
    try:
        manifest = _decode(data, source)
        _check(manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        damage = FormatError(f"{where}: expected a manifest, got something else: {error}")
        raise with_next_step(damage, display_name(source.url)) from None
    except ChecksumError as error:
        raise with_next_step(ChecksumError(f"{where}: {error}"), display_name(source.url)) from None
    except ShardexError as error:
        raise type(error)(f"{where}: {error}") from None
    return manifest


def is_intact(source: Source, version: int) -> bool:
    """Return True if a manifest has its checksum: if it cannot be read all the same, a newer shardex has made it."""
    try:
        sealed = msgspec.json.decode(bytes(source.load(manifest_path(version))), type=_Sealed)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, NotFoundError):
        return False
    return xxhash.xxh3_64_hexdigest(sealed.manifest) == sealed.xxh3


def _decode(data: bytes, source: Source) -> Manifest:
    sealed = msgspec.json.decode(data, type=_Sealed)
    if xxhash.xxh3_64_hexdigest(sealed.manifest) != sealed.xxh3:
        raise ChecksumError("expected the manifest as it was written, got other bytes")
    if (number := msgspec.json.decode(sealed.manifest, type=_Numbered).shardex) not in range(1, FORMAT + 1):
        raise FormatError(f"expected a manifest of format {FORMAT}, got {number}; use a newer shardex")
    stored = msgspec.json.decode(sealed.manifest, type=_Stored)
    values = {name: getattr(stored, name) for name in Manifest.__struct_fields__}
    values["fragments"] = FragmentList.stored(
        stored.fragments, stored.runs or (), partial(read_number_columns, source), stored.ids
    )
    return Manifest(**values)


def _check(manifest: Manifest) -> None:
    """Raise an error for contradictions in a manifest, even if its checksum is right."""
    features, fragments = manifest.features, manifest.fragments
    if manifest.key is not None and manifest.key not in features:
        raise FormatError(f"expected the key to be one of the fields {', '.join(features)}, got {manifest.key!r:.200}")
    if not 0 <= manifest.ids <= LARGEST:
        raise FormatError(f"expected up to {LARGEST} ids, got {manifest.ids}")
    for fragment in fragments.inline:
        for file in fragment.groups:
            _check_file(file, fragment.rows)
        if not 0 <= fragment.rows <= MOST_ROWS:
            raise FormatError(f"expected fragments of at most {MOST_ROWS} rows, got one of {fragment.rows}")
        if not 0 <= fragment.first <= manifest.ids - fragment.rows:
            raise FormatError(
                f"expected ids below {manifest.ids}, got a fragment of {fragment.rows} from {fragment.first}"
            )
    for segment in fragments.segments:
        adopted = segment.adopted.fields if segment.adopted is not None else {}
        names = [name for fields in (adopted, *segment.groups) for name in fields]
        _check_fields(names, features, segment.total)
    for file in [*manifest.deleted, *manifest.overlays]:
        _check_file(file, file.rows, _NUMBER)
    for fragment in fragments.inline:
        if fragment.keys is not None:
            _check_file(fragment.keys, fragment.rows, 2 * _NUMBER)
    for run in fragments.runs:
        _check_file(run.file, run.fragments, len(run.columns) * _NUMBER)
        ends = [place for one in run.tables for place in (one.begin, one.end)]
        if ends != sorted(ends) or not all(0 <= place <= run.fragments for place in ends) or (ends and not run.keys):
            raise FormatError(f"expected key tables of fragments, in order, got {run.tables}")
        for one in run.tables:
            _check_file(one.file, one.file.rows, 2 * _NUMBER)
    for overlay in manifest.overlays:
        if not overlay.fields.keys() <= set(features):
            raise FormatError(f"expected newer values of the fields {', '.join(features)}, got {list(overlay.fields)}")
    most = fragments.total
    least = most - sum(file.rows for file in manifest.deleted)
    if not least <= manifest.rows <= most:
        raise FormatError(
            f"expected fragments of {manifest.rows} rows in all, got {most}, {most - least} of them deleted"
        )


def _check_fields(found: list[str], features: Features, rows: int) -> None:
    names = set(found)
    if len(names) != len(found) or not names <= set(features):
        raise FormatError(f"expected the fields {', '.join(features)} in every fragment, got {', '.join(found)}")
    for name, feature in features.items():
        if name not in names and not feature.optional and rows:
            raise FormatError(f"expected the fields {', '.join(features)} in every fragment, got none for {name}")


def _check_file(file: DataFile, rows: int, width: int = 0) -> None:
    """Raise an error for contradictions in the entry of a file, in which each row takes `width` bytes or more."""
    check_path(file.path)
    if not (file.end or file.count or file.rows):
        raise FormatError(
            f"expected a dataset of format {FORMAT}, got one of format 1, which only pre-releases of shardex wrote: "
            f"{file.path} has no table of batches; write the dataset again"
        )
    if not 0 < file.end <= file.size <= LARGEST:
        raise FormatError(f"expected batches inside the {file.size} bytes of {file.path}, got {file.end} bytes of them")
    if not 0 < file.count <= file.rows:
        raise FormatError(f"expected batches with rows in {file.path}, got {file.count} with {file.rows} rows")
    if file.rows != rows:
        raise FormatError(f"expected {rows} rows in {file.path}, got {file.rows}")
    if file.count > MOST_BATCHES:
        raise FormatError(f"expected at most {MOST_BATCHES} batches in {file.path}, got {file.count}")
    if rows > MOST_ROWS or rows * width > file.size:
        raise FormatError(f"expected fewer than {rows} rows in the {file.size} bytes of {file.path}")


_DATA = re.compile(DATA_FILE)


def native_place(path: What) -> Place | None:
    """Return the place of a native dataset, even if all its manifests are lost; None if it is not a native dataset."""
    if not isinstance(path, str | os.PathLike):
        return None
    place = place_of(path)
    if place.root_kind() != "folder":
        return None
    try:
        return place if latest_version(place) or paths_of_data_files(place) else None
    except SourceError as error:
        if error.errno == errno.ENOTSUP:  # a web server, which cannot list files
            return None
        raise


def existing_place(path: str | os.PathLike[str]) -> tuple[Place, int]:
    """Return the place of a native dataset and its latest version; raise an error if there is none."""
    place = place_of(path)
    where = display_name(place.url)
    if (kind := place.root_kind()) != "folder":
        expected = "expected the folder of a native dataset, which has versions, got"
        if kind == "file":
            raise SourceError(errno.ENOTDIR, f"{expected} a file", where)
        raise NotFoundError(errno.ENOENT, f"{expected} nothing", where)
    if not (latest := latest_version(place)):
        found = "a folder with other files" if place.paths() else "nothing"
        raise FormatError(
            f"{where}: expected a native dataset, which has versions and can be edited, got {found}; `sx.write` copies "
            "data into a native dataset, `sx.adopt` makes one over shards of another format"
        )
    return place, latest


def paths_of_data_files(place: Place) -> list[str]:
    """Return the paths of all files with the name of a data file, also those that no manifest lists."""
    return [path for path in place.paths("data/") if _DATA.fullmatch(path)]


def _columns(file: DataFile, schema: pa.Schema) -> tuple[pa.Field, ...]:
    known = dict(zip(schema.names, schema, strict=True))  # looked up by name, as a file may have many columns
    return tuple(known[name].with_name(column) for name, column in file.fields.items() if name in known)


# -- damaged lists of fragments --------------------------------------------------------------------------------------


def relisted(place: Place, manifest: Manifest, older: Sequence[int]) -> Manifest | None:
    """Return a version whose damaged lists of fragments are replaced by what older versions list.

    A fragment is in the manifest of the version that appended it before it gets into a list. None if the older versions
    have not exactly the fragments that are missing: some were removed, or have other fields.
    """
    damaged = [one for one in manifest.fragments.run_segments if not _can_load(one)]
    known = [one for one in manifest.fragments.segments if one not in damaged]
    taken = sorted((int(a), int(a + n)) for segment in known for a, n in zip(segment.firsts, segment.rows, strict=True))
    found = _fragments_of(place, older, {one.shape for one in damaged}, taken)
    replaced = dict[RunSegment, InlineSegment]()
    for segment in damaged:
        some = [one for one in found if shape_of(one) == segment.shape][: len(segment)]
        if len(some) != len(segment) or sum(one.rows for one in some) != segment.total:
            return None
        replaced[segment] = InlineSegment(some, segment.shape)
        found = [one for one in found if one not in some]
    if found:  # of samples that were removed since: it is not known which fragments are missing
        return None
    segments = [replaced.get(one, one) if isinstance(one, RunSegment) else one for one in manifest.fragments.segments]
    return msgspec.structs.replace(manifest, fragments=FragmentList.of(segments))


def _fragments_of(
    place: Place, versions: Iterable[int], shapes: Container[Any], taken: list[tuple[int, int]]
) -> list[Fragment]:
    """Return the fragments of some shapes that versions list, in the order of their ids; the newest of each id.

    `taken` are ranges of ids that are left out.
    """
    found, seen = dict[int, Fragment](), set[str]()
    for number in versions:
        try:
            segments = read_manifest(place, number).fragments.segments
        except ShardexError:
            continue
        for segment in segments:
            if isinstance(segment, RunSegment):
                if segment.run.file.path in seen or not _can_load(segment):
                    continue
                seen.add(segment.run.file.path)
            for one in (segment.fragment(k) for k in range(len(segment))) if segment.shape in shapes else ():
                ids = one.first, one.first + one.rows
                at = bisect_left(taken, ids)
                if (not at or taken[at - 1][1] <= ids[0]) and (at == len(taken) or taken[at][0] >= ids[1]):
                    found[one.first] = one
                    taken.insert(at, ids)
    return [found[first] for first in sorted(found)]


def _can_load(segment: RunSegment) -> bool:
    try:
        segment.load()
    except ShardexError:
        return False
    return True
