"""Saving what is left: `recover` copies every sample of a damaged dataset that can be read into a new one.

Of a native dataset the newest manifest that is whole says what there was, and `wreck.py` reads what is left of that.
Without any manifest the data files are taken that are what their name says. Of other formats what can be read is read.
The damaged dataset is not changed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.arrow import arrow_type, features_of_arrow, to_table
from shardex.dataset import Dataset
from shardex.errors import AlreadyExistsError, FormatError, SchemaError, ShardexError
from shardex.files import STORE_FOLDER, Files, What, check_mode
from shardex.formats import open_file, open_files
from shardex.kernel import MISSING, Columns, Integers
from shardex.progress import Bar
from shardex.schema import JSON, Feature, Features, Json, Optional, infer_or_json
from shardex.sources import Place, place_of
from shardex.store.commit import Changes, apply, counted
from shardex.store.data_files import FragmentWriter
from shardex.store.inventory import data_files, native_place, versions_in
from shardex.store.manifest import DataFile, Manifest, manifest_path, publish, read_manifest
from shardex.store.remains import content_name
from shardex.store.sift import Bad, runs, sift_all, what_opens
from shardex.store.wreck import DamagedVersion, Lost
from shardex.store.writer_heartbeat import WriterHeartbeat

__all__ = ["Lost", "Recovered", "recover"]

_FIRST = 16


@dataclass(frozen=True)
class Recovered:
    """What `recover` did."""

    path: str
    """Where the samples are now."""
    samples: int
    """How many were saved."""
    lost: list[Lost]
    """What could not be saved, and why."""
    notes: list[str]
    """What else is not as it was."""
    version: int | None = None
    """The version whose samples these are; none if that is not known."""


def recover(path: What, target: str | os.PathLike[str], *, progress: bool | None = None, **options: Any) -> Recovered:
    """Save every whole sample of a damaged dataset into a new one at `target`; the options are those of `open`.

    >>> import tempfile, os, shardex as sx; folder = tempfile.mkdtemp()
    >>> _ = sx.write(folder + "/d", [{"x": k} for k in range(6)], shard_rows=2)
    >>> os.truncate(sx.open(folder + "/d").shards([3])[0], 100)
    >>> done = recover(folder + "/d", folder + "/saved")
    >>> done.samples, [one.samples for one in done.lost], [s.x for s in sx.open(folder + "/saved")]
    (4, [range(2, 4)], [0, 1, 4, 5])
    """
    out = _Output(path, place_of(target), progress)
    place = native_place(path)
    if place is None:
        return _recover_foreign(path, out, options)
    notes = []
    for number in reversed(versions_in(place)):
        try:
            manifest = read_manifest(place, number)
        except ShardexError as error:
            where = f"{place.url}/{manifest_path(number)}: "
            notes.append(f"version {number} is lost: {str(error).removeprefix(where)}")
            continue
        wreck = DamagedVersion(place, manifest, progress, bool(options.get("trust_paths")))
        return _recover_version(number, manifest, wreck, out, notes)
    return _recover_unnamed(place, out, notes)


def _recover_version(
    number: int, manifest: Manifest, wreck: DamagedVersion, out: _Output, notes: list[str]
) -> Recovered:
    lost, rows = wreck.lost(), wreck.rows
    there = np.ones(len(rows), np.bool_)
    for one in lost:
        if one.samples is not None:
            there[one.samples.start : one.samples.stop] = False
    new = Manifest(0, manifest.schema, [], manifest.key, manifest.generate_keys)
    if manifest.key is not None and not wreck.sure_of_deleted:
        new = Manifest(0, manifest.schema, [])
        notes.append(f"{manifest.key} is no key any more: deleted samples are back, and others may have their keys")
    saved, bad = out.save(new, sift_all(rows.read, left := np.flatnonzero(there)), len(left))
    lost += [Lost(rows.shards(np.array([some.start]))[0], some, why) for some, why in runs(bad)]
    return Recovered(out.path, saved, lost, notes + wreck.notes, number)


# -- without a manifest -------------------------------------------------------------------------------------------


def _recover_unnamed(place: Place, out: _Output, notes: list[str]) -> Recovered:
    """Take the samples of all files that are what their name says, and that have the fields that most samples have."""
    lost: list[Lost] = []
    kinds: dict[Features, dict[str, int]] = {}
    for path in sorted(data_files(place), key=lambda path: (place.stat(path).modified, path)):
        if content_name(place, path) != path:
            lost.append(Lost(path, None, "expected the content that its name tells of, got something else"))
        elif (found := _samples_in(place, path)) is not None:
            kinds.setdefault(found[0], {})[path] = found[1]
    if not kinds:
        raise FormatError(f"{place.url}: expected a manifest, or a data file that is whole, got neither")
    most = max(kinds, key=lambda features: (sum(kinds[features].values()), len(features)))
    for features, files in kinds.items():
        why = f"expected the fields {', '.join(most)}, which most samples have, got {', '.join(features)}"
        lost += [Lost(path, None, why) for path in files if features != most]
    rows = open_files(Files(place, tuple(kinds[most]), place.url), None)
    saved, bad = out.save(Manifest(0, most.to_json(), []), sift_all(rows.read, np.arange(len(rows))), len(rows))
    lost += [Lost(rows.shards(np.array([some.start]))[0], None, why) for some, why in runs(bad)]
    notes.append(
        "no manifest is left: the samples are in the order in which their files were written, and nobody can tell "
        "which of them were deleted or changed, or are there twice"
    )
    return Recovered(out.path, saved, lost, notes)


def _samples_in(place: Place, path: str) -> tuple[Features, int] | None:
    """The features of a whole file and its rows; none if it holds no samples, but ids, keys or newer values."""
    reader = open_file(place.load(path), path)
    told = (reader.schema.metadata or {}).get(b"shardex")
    if told is None or list(features := features_of_arrow(reader.schema)) != list(JSON.decode(told)):
        return None
    return features, sum(reader.get_batch(number).num_rows for number in range(reader.num_record_batches))


# -- other formats ------------------------------------------------------------------------------------------------


def _recover_foreign(path: What, out: _Output, options: dict[str, Any]) -> Recovered:
    with what_opens(path, **options) as found:
        ds, notes = found.dataset, []
        features = _features(ds)
        kept = Features({name: feature for name, feature in features.items() if _is_storable(feature)})
        if not kept:
            reason = "; ".join(f"{file}: {why}" for file, why in found.refused[:1])
            raise FormatError(f"{found.root}: expected samples that can be read, got none: {reason}")
        for name in features:
            if name not in kept:
                notes.append(f"the field {name} is left out: expected what can be stored, got {features[name]}")
        take = lambda rows: _fitted(ds.read(rows), kept)  # noqa: E731
        saved, bad = out.save(Manifest(0, kept.to_json(), []), sift_all(take, np.arange(len(ds))), len(ds))
        lost = [Lost(file, None, why) for file, why in found.refused]
        for rows, why in runs(bad):
            file, reason = found.blame_row(rows.start, why)
            lost.append(Lost(file, found.rows(rows), reason))
        return Recovered(out.path, saved, lost, notes)


def _features(ds: Dataset) -> Features:
    """The fields of a dataset, of which perhaps the first samples, by which it would tell them, are damaged."""
    try:
        return ds.features
    except ShardexError:
        for found in sift_all(ds.read, np.arange(len(ds))):
            if isinstance(found, Columns):
                return infer_or_json(found.to_samples()[:_FIRST])
        raise


def _is_storable(feature: Feature) -> bool:
    try:
        arrow_type(feature)
    except SchemaError:
        return False
    return True


def _fitted(columns: Columns, features: Features) -> Columns:
    """All the fields, or an error if some samples do not have what the features promise."""
    data = {name: columns.data.get(name, [None] * len(columns)) for name in features}
    for name, column in data.items():
        if isinstance(column, list) and not isinstance(features[name], Optional):
            nothing = (MISSING,) if isinstance(features[name], Json) else (MISSING, None)
            for number, value in enumerate(column):
                if any(value is one for one in nothing):
                    raise SchemaError(f"expected {features[name]}, got nothing - at sample {number}, field {name}")
    fitted = Columns(data, len(columns))
    to_table(fitted, features)
    return fitted


# -- writing ------------------------------------------------------------------------------------------------------


class _Output:
    """A new native dataset that takes what is saved."""

    def __init__(self, damaged: What, place: Place, progress: bool | None) -> None:
        check_mode(place, "create")
        self.path = place.url
        folder = place_of(damaged).url if isinstance(damaged, str | os.PathLike) else ""
        if folder and f"{self.path}/".startswith(f"{folder}/"):
            raise SchemaError(f"{self.path}: expected a target outside of the dataset {folder}, which stays as it is")
        self._place = place
        self._quiet = None if progress is None else not progress

    def save(self, empty: Manifest, found: Iterable[Columns | Bad], total: int) -> tuple[int, list[Bad]]:
        """Write what was found as the first version; gives the number of samples, and what cannot be read."""
        place, bad = self._place, list[Bad]()
        writer, presence = FragmentWriter(place, empty.features, key=empty.key), WriterHeartbeat(place)
        try:
            with Bar(total=total, unit=" samples", desc="save", disable=self._quiet) as bar:
                for one in found:
                    if isinstance(one, Columns):
                        writer.write(one)
                    else:
                        bad.append(one)
                    bar.update(len(one) if isinstance(one, Columns) else len(one.rows))
            changes = Changes(writer.finish(), words=f"recover: {counted(writer.samples, 'sample')}")
            made = apply(empty, empty, changes, _no_ids)
            presence.check(made, empty)
            if not publish(place, 1, made):
                raise AlreadyExistsError(errno.EEXIST, "somebody else made a dataset here meanwhile", self.path)
        except BaseException:
            writer.discard()
            presence.end()
            place.remove_empty_folders("data", STORE_FOLDER)
            raise
        presence.end()
        return writer.samples, bad


def _no_ids(file: DataFile) -> Integers:
    raise AssertionError("new samples replace no others")
