"""`recover`: copies every readable sample of a damaged dataset into a new dataset.

For a native dataset it uses the newest readable manifest, with a tolerant `VersionReader`; lists of fragments that are
damaged are made again from older versions, which list the same fragments themselves. Without any manifest it uses
the data files that match their name, which stands for their checksums. Datasets of other formats are read sample by
sample (`readable_rows`). The damaged dataset is not changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import to_table
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FormatError, NotFoundError, SchemaError, ShardexError, VersionExpired
from shardex.features import Feature, Features, Inferred, Json, codecs, features_of_arrow, hf_metadata
from shardex.files import What, check_mode
from shardex.kernel import MISSING, Columns, Integers, Masked
from shardex.native import (
    ArrowWriter,
    DataFile,
    FileUse,
    Fragment,
    FragmentList,
    Manifest,
    VersionReader,
    examine_files,
    file_by_name,
    manifest_path,
    native_place,
    paths_of_data_files,
    read_manifest,
    relisted,
    versions_in,
)
from shardex.sources import Place, place_of
from shardex.store.readable_rows import (
    UnreadableRows,
    open_readable_files,
    read_readable,
    runs_of_fields,
    unreadable_ranges,
    with_bar,
)

_FIRST = 16
_MANY_ROWS = 1 << 31


@dataclass(frozen=True)
class Lost:
    """Samples that could not be saved."""

    file: str
    """The damaged file."""
    samples: range | None
    """Rows of the samples in the damaged dataset; None if they are not known."""
    why: str
    fields: tuple[str, ...] = ()
    """The fields that cannot be read; empty if they are not known."""


@dataclass(frozen=True)
class Recovered:
    """Result of `recover`."""

    path: str
    """Path or URL of the new dataset."""
    samples: int
    """Number of samples that were saved."""
    lost: list[Lost]
    """The samples that could not be saved, and why."""
    notes: list[str]
    """Other differences from the damaged dataset."""
    version: int | None = None
    """The version that was recovered; None if no manifest was readable."""


def recover(path: What, target: str | os.PathLike[str], *, progress: bool | None = None, **options: Any) -> Recovered:
    """Copy every sample that can be read into a new dataset at `target`; the options are those of `open`.

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
    notes, unlisted, numbers = list[str](), list[Lost](), versions_in(place)[::-1]
    for at, number in enumerate(numbers):
        try:
            manifest = read_manifest(place, number)
        except VersionExpired:  # `clean` removed it
            continue
        except ShardexError as error:
            where = f"{place.url}/{manifest_path(number)}: "
            notes.append(f"version {number} is lost: {str(error).removeprefix(where)}")
            continue
        try:
            manifest.fragments.load()
        except ShardexError as error:
            if (listed := relisted(place, manifest, numbers[at + 1 :])) is not None:
                notes.append(f"a list of files was made again from those of older versions: {error}")
                found = _recover_version(place, number, listed, bool(options.get("trust_paths")), out, notes)
                return replace(found, lost=[*unlisted, *found.lost])
            notes.append(f"version {number} is lost, because a list of its files is: {error}")
            if not unlisted:
                why = f"expected the {manifest.rows} samples of version {number}, got an older version: {error}"
                unlisted = [Lost(manifest_path(number), None, why)]
            continue
        found = _recover_version(place, number, manifest, bool(options.get("trust_paths")), out, notes)
        return replace(found, lost=[*unlisted, *found.lost])
    found = _recover_unnamed(place, out, notes)
    return replace(found, lost=[*unlisted, *found.lost])


def _recover_version(
    place: Place, number: int, manifest: Manifest, trust_paths: bool, out: _Output, notes: list[str]
) -> Recovered:
    version = _DamagedVersion(place, manifest, trust_paths, out.progress)
    rows, lost = version.rows, version.lost()
    readable = np.ones(len(rows), np.bool_)
    for one in lost:
        if one.samples is not None:
            readable[one.samples.start : one.samples.stop] = False
    key = {"key": manifest.key, "generate_keys": manifest.generate_keys}
    if manifest.key is not None and version.has_undeleted_samples:
        key = {}
        notes.append(
            f"{manifest.key} is no longer a key: deleted samples are back and may have the same keys as others"
        )
    given = {**key, "metadata": hf_metadata.copied_metadata(manifest.metadata or {}) or None}
    saved, bad = out.save(rows.read, np.flatnonzero(readable), manifest.features, **given)
    for some, why in bad:
        lost.append(Lost(rows.shards(np.array([some.start]))[0].removeprefix(f"{place.url}/"), some, why))
    return Recovered(out.path, saved, lost, notes + version.notes, number)


class _DamagedVersion:
    """One version whose files were all examined: which samples can be read, and which are lost."""

    def __init__(self, place: Place, manifest: Manifest, trust_paths: bool, progress: bool | None) -> None:
        self._uses = [use for use in manifest.uses() if use.kind not in ("keys", "fragments")]
        self._files = examine_files(place, self._uses, "examine", progress)
        for use in self._uses:
            _check_rows(place, use.file)
        reader = VersionReader(place, manifest, trust_paths=trust_paths, examined=self._files)
        self.rows = reader.rows(manifest.features)
        """All samples; reading a lost one is an error."""
        self._live = reader.live_rows
        self._overlays = reader.overlays(manifest.features)
        self.has_undeleted_samples = any(self._lost_ids(file) for file in manifest.deleted)
        """True if a list of deleted rows is damaged, so that deleted samples are back."""

    def _lost_ids(self, file: DataFile) -> int:
        """Return how many rows of a file of row ids are lost."""
        return int(np.count_nonzero(self._files[file.path].lost_in({"row", *file.fields.values()})))

    @property
    def notes(self) -> list[str]:
        """Differences from the damaged dataset in samples that can be read."""
        found = []
        for use in self._uses:
            reader = self._files[use.file.path]
            if unchecked := sum(reader.batch_rows[number] for number in reader.unchecked):
                found.append(f"{unchecked} rows of {use.file.path} are not checked: the checksums in its foot are lost")
            count = 0 if use.kind == "values" else self._lost_ids(use.file)
            if count and use.kind == "deleted":
                found.append(f"{count} deleted samples are back: {use.file.path} is damaged")
            elif count:
                fields = ", ".join(use.fields)
                found.append(
                    f"{count} newer values of {fields} are lost, older ones are back: {use.file.path} is damaged"
                )
        return found

    def lost(self) -> list[Lost]:
        """Return the samples with a value that cannot be read, and that no newer value replaces."""
        found = []
        for use in self._uses:
            reader = self._files[use.file.path]
            begins = use.start + np.cumsum([0, *reader.batch_rows])
            for number in reader.damaged if use.kind == "values" else ():
                begin = int(begins[number])
                damages = reader.damages or ()
                why = next(one.what for one in (*(one for one in damages if one.batch == number), *damages))
                parts = runs_of_fields({n: self._lost_values(begin, number, n, use) for n in use.fields})
                for some, fields in parts:
                    rows = self._live.rows(np.array([begin + some.start, begin + some.stop]))
                    found.append(Lost(use.file.path, range(*rows.tolist()), why, fields))
        return [one for one in found if one.samples]

    def _lost_values(self, begin: int, number: int, name: str, use: FileUse) -> NDArray[np.bool_]:
        """Return which rows of a batch, which begins at a physical row, have lost their value of a field."""
        lost = self._files[use.file.path].lost(number, use.file.fields[name])
        which = np.flatnonzero(lost)
        replaced = [overlay.find(begin + which)[0] for overlay, fields in self._overlays if name in fields]
        for one in replaced:
            lost[which[one]] = False
        return lost


def _check_rows(place: Place, file: DataFile) -> None:
    """Raise an error if the manifest claims many more rows than the file can hold: each takes some memory."""
    if file.rows <= _MANY_ROWS:
        return
    with suppress(NotFoundError):
        if file.rows <= 8 * place.stat(file.path).size:
            return
    raise FormatError(f"{place.url}/{file.path}: expected as many rows as its bytes can hold, got {file.rows}")


# -- without a manifest -------------------------------------------------------------------------------------------


def _recover_unnamed(place: Place, out: _Output, notes: list[str]) -> Recovered:
    """Save the samples of all files that match their name and whose fields are those of most samples."""
    lost: list[Lost] = []
    kinds: dict[Features, list[DataFile]] = {}
    for path in sorted(paths_of_data_files(place), key=lambda path: (place.stat(path).modified, path)):
        if (found := file_by_name(place, path)) is None:
            lost.append(Lost(path, None, "expected content that matches the checksum in its name, got other bytes"))
        elif (features := _features_of_samples(found[1])) is not None:
            kinds.setdefault(features, []).append(found[0])
    if not kinds:
        raise FormatError(f"{place.url}: expected a manifest, or an intact data file, got neither")
    most = max(kinds, key=lambda features: (sum(file.rows for file in kinds[features]), len(features)))
    for features, files in kinds.items():
        why = f"expected the fields {', '.join(most)}, which most samples have, got {', '.join(features)}"
        lost += [Lost(file.path, None, why) for file in files if features != most]
    fragments, ids = FragmentList().with_new([Fragment(file.rows, [file]) for file in kinds[most]], 0)
    made = _recover_version(place, 0, Manifest(ids, most.to_json(), fragments, ids=ids), False, out, notes)
    lost += [Lost(one.file, None, one.why) for one in made.lost]
    notes = [
        *made.notes,
        "no manifest can be used: the samples are in the order in which their files were written, and it is not known "
        "which of them were deleted or changed, or are duplicates",
    ]
    return Recovered(out.path, made.samples, lost, notes)


def _features_of_samples(schema: pa.Schema) -> Features | None:
    """Return the features of a file; None if it holds ids, keys or newer values."""
    stored = (schema.metadata or {}).get(b"shardex")
    if stored is None or list(features := features_of_arrow(schema)) != list(codecs.JSON.decode(stored)):
        return None
    return features


# -- other formats ------------------------------------------------------------------------------------------------


def _recover_foreign(path: What, out: _Output, options: dict[str, Any]) -> Recovered:
    with open_readable_files(path, **options) as found:
        ds, notes = found.dataset, []
        features = _features(ds)
        kept = Features({name: feature for name, feature in features.items() if _is_storable(feature)})
        if not kept:
            reason = "; ".join(f"{file}: {why}" for file, why in found.refused[:1])
            raise FormatError(f"{found.root}: expected samples that can be read, got none: {reason}")
        for name in features:
            if name not in kept:
                notes.append(f"the field {name} is left out: its values cannot be stored ({features[name]})")
        saved, bad = out.save(lambda rows: _fitted(ds.read(rows), kept), np.arange(len(ds)), kept, metadata=ds.metadata)
        lost = [Lost(file, None, why) for file, why in found.refused]
        for rows, why in bad:
            file, reason = found.split_row_error(rows.start, why)
            lost.append(Lost(file, found.original_rows(rows), reason))
        return Recovered(out.path, saved, lost, notes)


def _features(ds: Dataset) -> Features:
    """Return the fields of a dataset, inferred from its first readable samples if its first ones are damaged."""
    try:
        return ds.features
    except ShardexError:
        for found in read_readable(ds.read, range(len(ds))):
            if isinstance(found, Columns):
                return Inferred.or_json(found.to_samples()[:_FIRST]).features
        raise


def _is_storable(feature: Feature) -> bool:
    try:
        feature.arrow_type()
    except SchemaError:
        return False
    return True


def _fitted(columns: Columns, features: Features) -> Columns:
    """Return columns with all the fields; an error if values are missing or do not fit the features."""
    data = {name: columns.data.get(name, [None] * len(columns)) for name in features}
    for name, column in data.items():
        if isinstance(column, list | Masked) and not features[name].optional:
            nothing = (MISSING,) if isinstance(features[name], Json) else (MISSING, None)
            for number, value in enumerate(column):
                if any(value is one for one in nothing):
                    raise SchemaError(f"expected {features[name]}, got nothing - at sample {number}, field {name}")
    fitted = Columns(data, len(columns))
    to_table(fitted, features)
    return fitted


# -- writing ------------------------------------------------------------------------------------------------------


class _Output:
    """The new native dataset at the target."""

    def __init__(self, damaged: What, place: Place, progress: bool | None) -> None:
        check_mode(place, "create", remedy="name a target that does not exist")
        self.path = place.url
        folder = place_of(damaged).url if isinstance(damaged, str | os.PathLike) else ""
        if folder and f"{self.path}/".startswith(f"{folder}/"):
            raise ArgumentError(f"{self.path}: expected a target outside of the dataset {folder}")
        self.progress = progress

    def save(
        self, read: Callable[[Integers], Columns], rows: Integers, features: Features, **options: Any
    ) -> tuple[int, list[tuple[range, str]]]:
        """Write all rows that can be read as the first version; return their number, and why the others cannot."""
        saved, bad = 0, list[UnreadableRows]()
        with ArrowWriter(self.path, features, mode="create", **options) as writer:
            writer.recovers = True
            for one in with_bar(read_readable(read, rows), len(rows), "save", self.progress):
                if isinstance(one, Columns):
                    writer.write(one)
                    saved += len(one)
                else:
                    bad.append(one)
        return saved, list(unreadable_ranges(bad))
