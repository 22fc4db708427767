"""Commits a transaction: applies its changes to the newest version, and rebases them after concurrent commits.

`Changes` are applied to the newest manifest, and the result is published by put-if-absent. If another writer published
first, they are applied again to its version: appends, and edits of other rows or fields, can be rebased; a change of
the same rows and fields is a `CommitConflict` that names both. Reads no data except the ids of edited rows. `Updates`
writes the new values of one field for a transaction, with the ids of their rows, into one file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from shardex.columns import BatchBuilder, number_array
from shardex.errors import CommitConflict, FieldError, SchemaError, ShardexError
from shardex.features import Feature, Features, arrow_schema, hf_metadata
from shardex.kernel import Integers
from shardex.native.data_file_reader import read_ids
from shardex.native.data_files import BATCH_BYTES, DataFileWriter, write_numbers
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import DataFile, Fragment
from shardex.native.key_lookup import with_merged_keys
from shardex.native.manifest import Manifest, publish
from shardex.native.version_numbers import at_latest, latest_version
from shardex.native.writer_heartbeat import WriterHeartbeat
from shardex.sources import Place

_TRIES = 1000
_FEW = 3

Named = TypeVar("Named")
ReadIds = Callable[[DataFile], Integers]


@dataclass(frozen=True)
class AddField:
    """A new field with a file for each fragment, by the first id of the fragment; without files it has no values."""

    name: str
    feature: Feature
    files: Mapping[int, DataFile]


@dataclass(frozen=True)
class DropField:
    """Removal of a field."""

    name: str
    new: None = None


@dataclass(frozen=True)
class RenameField:
    """A new name for a field."""

    name: str
    new: str


FieldChange = AddField | DropField | RenameField


@dataclass(frozen=True)
class Overlay:
    """A file of newer values, and the ids of its rows."""

    file: DataFile
    ids: Integers

    @property
    def fields(self) -> set[str]:
        """The fields with newer values."""
        return set(self.file.fields)


@dataclass
class Changes:
    """All changes of a transaction."""

    appended: list[Fragment] = field(default_factory=list)
    fields: list[FieldChange] = field(default_factory=list)
    overlays: list[Overlay] = field(default_factory=list)
    deleted: DataFile | None = None
    deleted_ids: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    words: str = ""
    """Description for display (see `counted`)."""

    @property
    def updated_ids(self) -> Integers:
        """Ids of the rows that are updated, in the order of the updates."""
        return _concatenated(overlay.ids for overlay in self.overlays)

    @property
    def edited_ids(self) -> Integers:
        """Ids of the rows that are updated or deleted."""
        return np.unique(_concatenated([self.deleted_ids, self.updated_ids]))

    def apply(self, place: Place, base: Manifest, latest: Manifest) -> Manifest:
        """Return `latest` with these changes, which were made for `base`."""
        ids = partial(read_ids, place)
        if latest is not base:
            _refuse_conflicts(base, latest, self, ids)
        features, fragments, overlays = dict(latest.features.items()), latest.fragments, latest.overlays
        for change in self.fields:
            features = change_features(change, features)
            fragments, overlays = _change_files(change, fragments, overlays)
        fragments, used = fragments.with_new(self.appended, latest.ids)
        files, deleted = latest.deleted, latest.fragments.total - latest.rows
        if self.deleted:
            files = [*files, self.deleted]
            deleted = len(np.unique(_concatenated(map(ids, files))))  # two files may list the same row
        return msgspec.structs.replace(
            latest,
            rows=fragments.total - deleted,
            schema=Features(features).to_json(),
            fragments=fragments,
            ids=used,
            deleted=files,
            overlays=[*overlays, *(overlay.file for overlay in self.overlays)],
            change=self.words,
            metadata=_edited_metadata(latest, self),
        )


def counted(count: int, noun: str) -> str:
    """Return a number with a noun in singular or plural.

    >>> counted(1, "sample"), counted(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def publish_next(
    place: Place,
    version: int,
    make: Callable[[int], tuple[Manifest, Manifest]],
    heartbeat: WriterHeartbeat,
    commit: str | None = None,
) -> int:
    """Publish what `make(version)` returns as the next version and return its number.

    `make` returns the manifest, and an older one whose files were there before; `commit` is that of the manifest, if
    given. If other writers have published that number first, or `clean` has removed the version that `make` reads,
    `make` is called again with the number of the latest version.
    """

    def prepared(number: int) -> tuple[int, Manifest]:
        made, before = make(number)
        made = with_runs(place, made)
        heartbeat.check(made, before)
        return number, made

    for _ in range(_TRIES):
        version, made = at_latest(place, prepared, version)
        if publish(place, version + 1, made, commit):
            heartbeat.confirm(version + 1)
            return version + 1
        with suppress(ShardexError):  # no version names these files, and `clean` removes them, too
            place.remove_all(made.fragments.written)
        version = latest_version(place)
    raise CommitConflict(
        f"{place.url}: expected to publish a version in {_TRIES} tries, but other writers published first every time"
    )


def with_runs(place: Place, manifest: Manifest) -> Manifest:
    """Return a manifest that lists few fragments itself; the others are written to files (see `fragment_list`)."""
    fragments = manifest.fragments.stored_in_runs(lambda columns: write_numbers(place, columns).publish())
    fragments = with_merged_keys(place, fragments) if fragments.written else fragments
    return msgspec.structs.replace(manifest, fragments=fragments)


def _edited_metadata(latest: Manifest, changes: Changes) -> dict[str, Any] | msgspec.UnsetType:
    """Return the metadata of a dataset that is changed; a cache is marked, unless it only gets new fields."""
    metadata = latest.metadata
    made_by = (
        metadata.get(hf_metadata.MADE_BY) if metadata and latest.commit else None
    )  # not in a dataset that is being created
    other_fields = any(not isinstance(change, AddField) for change in changes.fields)
    edited = changes.appended or changes.overlays or changes.deleted or other_fields
    if not edited or not metadata or not isinstance(made_by, Mapping):
        return metadata
    return {**metadata, hf_metadata.MADE_BY: {**made_by, "edited": True}}


# -- fields ---------------------------------------------------------------------------------------------------


def change_features(change: FieldChange, features: Mapping[str, Feature]) -> dict[str, Feature]:
    """Return the fields after a change; an error if it is not possible."""
    name = change.name
    if isinstance(change, AddField):
        if name in features:
            raise SchemaError(f"expected a new field, got {name!r}, which exists already; update changes values")
        return {**features, name: change.feature}
    if name not in features:
        raise FieldError(f"expected one of the fields {', '.join(features)}, got {name!r}")
    if change.new in features:
        raise SchemaError(f"expected a new name for {name!r}, got {change.new!r}, which exists already")
    changed = _renamed(change, features)
    if not changed:
        raise SchemaError(f"expected another field to stay, got {name!r}, which is the last one")
    return changed


def _change_files(
    change: FieldChange, fragments: FragmentList, overlays: list[DataFile]
) -> tuple[FragmentList, list[DataFile]]:
    """Return the files after a change of the fields in them; those without a field are left out."""
    if isinstance(change, AddField):
        if not change.files:
            return fragments, overlays
        added = [
            msgspec.structs.replace(one, groups=[*one.groups, change.files[one.first]])
            if one.first in change.files
            else one
            for one in fragments
        ]
        return FragmentList(added), overlays
    changed = (msgspec.structs.replace(file, fields=_renamed(change, file.fields)) for file in overlays)
    return fragments.renamed(partial(_renamed, change)), [file for file in changed if file.fields]


def _renamed(change: DropField | RenameField, fields: Mapping[str, Named]) -> dict[str, Named]:
    """Return values by the new names of their fields."""
    names = ((change.new if name == change.name else name, value) for name, value in fields.items())
    return {name: value for name, value in names if name is not None}


# -- conflicts ------------------------------------------------------------------------------------------------


def _refuse_conflicts(base: Manifest, latest: Manifest, changes: Changes, ids: ReadIds) -> None:
    """Raise an error if the changes cannot be rebased onto the commits since `base`."""
    theirs = _Since(base, latest, ids)
    _refuse_field_conflicts(base, latest, changes, theirs)
    fills = any(isinstance(change, AddField) and change.files for change in changes.fields)
    if theirs.removed_fragments and (len(changes.edited_ids) or fills):
        raise CommitConflict(f"{_both(changes, latest)}: both changed the same fragments; run yours again")
    if theirs.restored and fills:
        raise CommitConflict(
            f"{_both(changes, latest)}: they restored deleted rows, which have no value for a field that yours adds"
        )
    if changes.appended and latest.key != base.key:
        raise CommitConflict(
            f"{_both(changes, latest)}: the key is {latest.key} now, and was {base.key}; run yours again"
        )
    if len(rows := np.intersect1d(changes.updated_ids, theirs.deleted)):
        raise CommitConflict(f"{_both(changes, latest)}: they deleted {_some(rows)} of the rows that yours changes")
    for overlay in theirs.overlays:
        if len(rows := np.intersect1d(changes.deleted_ids, overlay.ids)):
            raise CommitConflict(f"{_both(changes, latest)}: they changed {_some(rows)}, which yours deletes")
        for own in changes.overlays:
            shared = own.fields & overlay.fields
            if shared and len(rows := np.intersect1d(own.ids, overlay.ids)):
                raise CommitConflict(
                    f"{_both(changes, latest)}: both changed the field {min(shared)} of {_some(rows)}; run yours again"
                )


class _Since:
    """Changes of others between two versions."""

    def __init__(self, base: Manifest, latest: Manifest, ids: ReadIds) -> None:
        before_deleted, after_deleted = ({_content(file.path) for file in one.deleted} for one in (base, latest))
        self.deleted = _concatenated(
            [ids(file) for file in latest.deleted if _content(file.path) not in before_deleted]
        )
        self.restored = not before_deleted <= after_deleted
        self.overlays = [Overlay(file, ids(file)) for file in _added(base.overlays, latest.overlays)]
        self.removed_fragments = not np.isin(base.fragments.firsts, latest.fragments.firsts).all()
        self.appended = bool((latest.fragments.firsts >= base.ids).any())
        before, after = base.features, latest.features
        self.fields = {name for name in (*before, *after) if before.get(name) != after.get(name)}
        # A field with the same name and feature may be another one: dropped and added again, or renamed twice.
        now = _columns_by_first(latest.fragments)
        for first, columns in _columns_by_first(base.fragments).items():
            if first in now:
                there = now[first]
                self.fields |= {name for name, column in columns.items() if there.get(name, column) != column}


def _added(before: list[DataFile], after: list[DataFile]) -> Iterator[DataFile]:
    """Yield the files that a later version has in addition; several may have equal content."""
    left = Counter((_content(file.path), *sorted(file.fields.items())) for file in before)
    for file in after:
        identity = (_content(file.path), *sorted(file.fields.items()))
        left[identity] -= 1
        if left[identity] < 0:
            yield file


def _content(path: str) -> str:
    """Return the part of a path that stands for the content: a restored version names copies of files."""
    return path[: len("data/") + 32]


def _columns_by_first(fragments: FragmentList) -> dict[int, dict[str, tuple[str, str]]]:
    """Return the content of the file and the column of each field, by the first id of each fragment."""
    found: dict[int, dict[str, tuple[str, str]]] = {}
    for segment in fragments.segments:
        theirs = segment.adopted.fields if segment.adopted is not None else {}
        columns: list[dict[str, tuple[str, str]]] = [
            {name: ("", column) for name, column in theirs.items()} for _ in range(len(segment))
        ]
        for group, fields in enumerate(segment.groups):
            for own, path in zip(columns, segment.files(group).paths(), strict=True):
                own |= {name: (_content(path), column) for name, column in fields.items()}
        found |= dict(zip(segment.firsts.tolist(), columns, strict=True))
    return found


def _concatenated(some: Iterable[Integers]) -> Integers:
    return np.concatenate([np.empty(0, np.int64), *some])


def _refuse_field_conflicts(base: Manifest, latest: Manifest, changes: Changes, theirs: _Since) -> None:
    own = {name for c in changes.fields for name in (c.name, getattr(c, "new", None)) if name}
    used = own | {name for overlay in changes.overlays for name in overlay.fields}
    changed = {name for overlay in theirs.overlays for name in overlay.fields}
    if shared := (used & theirs.fields) | (own & changed):
        raise CommitConflict(f"{_both(changes, latest)}: both change the field {min(shared)}; run yours again")
    added = [c for c in changes.fields if isinstance(c, AddField)]
    if theirs.appended and any(not c.feature.optional for c in added):
        raise CommitConflict(
            f"{_both(changes, latest)}: they appended samples, which have no value for the field {added[0].name} that "
            "yours adds; run yours again"
        )
    if changes.appended and theirs.fields:
        features = latest.features
        late = [name for name in theirs.fields if name in base.features or not features[name].optional]
        if late:
            raise CommitConflict(
                f"{_both(changes, latest)}: they added, changed or removed the field {min(late)}, which the "
                "samples that yours appends do not match; run yours again"
            )


def _both(changes: Changes, latest: Manifest) -> str:
    return (
        f"expected changes that can be applied after those of others, but yours ({changes.words}) and theirs "
        f"({latest.change}) conflict"
    )


def _some(ids: Integers) -> str:
    few: list[Any] = ids[:_FEW].tolist()
    return f"row{'s' * (len(ids) > 1)} with id {', '.join(map(str, few))}{' ...' * (len(ids) > _FEW)}"


class Updates:
    """New values of one field with the ids of their rows.

    Each field has its own file: of two updates of a row the later one must win, whatever other fields they change.
    """

    def __init__(self, place: Place, name: str, feature: Feature) -> None:
        self._place = place
        self._name = name
        self._builder = BatchBuilder(Features({name: feature}), arrow_schema(Features({name: feature})))
        # The column is not named after the field, so that a field may be called "row".
        values = self._builder.schema.field(0).with_name("value")
        self._schema = pa.schema([pa.field("row", pa.uint64(), nullable=False), values])
        self._shard: DataFileWriter | None = None
        self._waiting: list[int] = []
        self._ids: list[Integers] = []

    def append(self, row: int, value: Any, place: str) -> None:
        """Add the new value of a row; errors say `place`."""
        self._builder.place = place
        self._builder.append({self._name: value})
        self._waiting.append(row)

    def extend(self, rows: Integers, values: pa.Array) -> None:
        """Write the new values of many rows."""
        self._flush()
        step = max(1, BATCH_BYTES * len(rows) // max(1, values.nbytes))
        for at in range(0, len(rows), step):
            self._write(rows[at : at + step], values[at : at + step])

    def remove_last(self) -> None:
        """Remove the value that was added last."""
        self._builder.remove_last()
        self._waiting.pop()

    def spill(self) -> None:
        """Write the buffered values if they are large enough."""
        if self._builder.nbytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write(np.array(self._waiting, np.int64), self._builder.finish().column(0))
            self._waiting.clear()

    def _write(self, ids: Integers, values: pa.Array) -> None:
        self._shard = self._shard or DataFileWriter(self._place, self._schema)
        rows = number_array(ids.astype(np.uint64))
        self._shard.write(pa.RecordBatch.from_arrays([rows, values], schema=self._schema))
        self._ids.append(ids)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ids)

    def finish(self) -> Overlay:
        """Publish the file and return it as an overlay."""
        self._flush()
        assert self._shard is not None
        self._shard.finish()
        file = msgspec.structs.replace(self._shard.publish(), fields={self._name: "value"})
        return Overlay(file, np.concatenate(self._ids))

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._shard is not None:
            self._shard.discard()
