"""`edit`: opens a transaction on a native dataset, which applies all its changes at the end, or none.

No existing file is rewritten. Appended samples become fragments, new values an overlay, deleted samples a list of ids,
a new field one file for each fragment; then one manifest lists all of them (`commit`). Values are written to the disk a
batch at a time, so memory does not grow with the transaction, except for the ids of edited rows.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.dataset import Dataset, in_classes_of, samples_of
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, FieldError, RowError, SchemaError, ShardexError, UnknownKeyError
from shardex.features import Features
from shardex.files import AllOrNothing, display_name
from shardex.formats import ShardRows
from shardex.jobs import discard_outdated
from shardex.kernel import Integers
from shardex.layers import changes, innermost_rows, lens_to
from shardex.native import (
    Changes,
    Fragment,
    LiveRows,
    Manifest,
    WriterHeartbeat,
    at_latest,
    commit,
    data_files,
    existing_place,
    latest_version,
    live_rows,
    read_manifest,
    refuse_duplicates,
)
from shardex.order import Span
from shardex.other_names import WRITER, missing_attribute
from shardex.progress import Bar
from shardex.rows import Keyed, normalise
from shardex.samples import Lens, fields_of, plain_value
from shardex.sources import path_text
from shardex.store.new_field import (
    EncodedRows,
    FieldFunction,
    PartValues,
    Take,
    Values,
    each_value,
    encode_values,
    take_given,
    write_files,
)
from shardex.workers import ExecutorLike

_MANY = (slice, list, tuple, range)
"""Types of keys or rows of many samples."""


def edit(
    path: str | os.PathLike[str] | Dataset[Any], *, progress: bool | None = None, trust_paths: bool = False
) -> Edit:
    """Open a transaction; use it in a ``with`` block, which publishes one new version at the end.

    `path` may be a native dataset that is open: row numbers are those of its version, and changes that others have
    published since are kept, or raise `CommitConflict`. `trust_paths` is for datasets with adopted shards (see
    `adopt`).

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp() + "/d"
    >>> ds = sx.write(folder, [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}, {"x": 3, "s": "c"}])
    >>> with edit(folder) as tx:
    ...     tx.update(0, s="changed"); tx.delete([1]); tx.append(x=4, s="d"); tx.add_field("y", "int64", [10, 20, 30])
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected fields to be changed before samples are appended, got y after 1 sample
    >>> with edit(folder) as tx:
    ...     tx.update(0, s="changed"); tx.delete([1]); tx.add_field("y", "int64", [10, 20, 30])
    >>> list(sx.open(folder)), len(ds)
    ([DictSample(x=1, s='changed', y=10), DictSample(x=3, s='c', y=30)], 3)
    """
    if not isinstance(path, Dataset):
        return Edit(path_text(path), progress, trust_paths)
    where, trusted = opened_native(path)
    return Edit(where, progress, trust_paths or trusted, path.version)


def opened_native(dataset: Dataset[Any]) -> tuple[str, bool]:
    """Return the path of a native dataset that is open, and whether it was opened with `trust_paths`."""
    rows = innermost_rows(dataset.rows)
    if dataset.version is None or not isinstance(rows, ShardRows) or not isinstance(rows.opened.what, str):
        raise ArgumentError(f"expected a native dataset, or the path of one, got {dataset!r}")
    if dataset.order != Span(len(rows)):
        raise ArgumentError(
            "expected a whole dataset, got a view, whose row numbers are others; give its path, "
            f"{display_name(rows.opened.what)}"
        )
    return rows.opened.what, bool(rows.opened.options.get("trust_paths"))


class Edit(AllOrNothing):
    """A transaction; row numbers are those of `dataset`, the version that it began with."""

    _noun = "transaction"

    def __init__(
        self, path: str, progress: bool | None = None, trust_paths: bool = False, version: int | None = None
    ) -> None:
        self._place, latest = existing_place(path)
        self.path = self._place.url
        begin = partial(self._open, trust_paths)
        self._version, self._base, self.dataset = (
            at_latest(self._place, begin, latest) if version is None else begin(version)
        )
        """The dataset as it was when the transaction began."""
        self._row_ids = self._base.row_ids
        self._quiet = None if progress is None else not progress
        self._features = dict(self._base.features.items())
        self._fields: list[tuple[commit.FieldChange, dict[int, data_files.DataFileWriter]]] = []
        self._appends: data_files.FragmentWriter | None = None
        self._updates: dict[str, commit.Updates] = {}
        self._updated: set[int] = set()
        self._deleted: list[Integers] = []
        self._deleted_files: list[data_files.DataFileWriter] = []
        self._parts: list[PartValues] = []
        self._heartbeat = WriterHeartbeat(self._place)
        self.version: int | None = None
        """Number of the version that was published, set at the end of the ``with`` block."""

    def _open(self, trust_paths: bool, version: int) -> tuple[int, Manifest, Dataset]:
        base = read_manifest(self._place, version)
        return version, base, open_dataset(self.path, version=version, trust_paths=trust_paths)

    def _content(self) -> str:
        if "_heartbeat" not in self.__dict__:  # the constructor raised
            return ""
        counts = {
            "appended": 0 if self._appends is None else self._appends.samples,
            "updated": len(self._updated),
            "deleted": sum(map(len, self._deleted)),
        }
        words = [f"{commit.counted(count, 'sample')} {what}" for what, count in counts.items() if count]
        return ", ".join([*words, *([f"{commit.counted(len(self._fields), 'field')} changed"] if self._fields else [])])

    # -- samples ----------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, WRITER)

    def append(self, sample: Any = None, /, **values: Any) -> None:
        """Add one sample at the end: a mapping, an instance of a `packable` class, or keywords."""
        self._check_open()
        if self._base.fragments.adopted is not None:
            raise ArgumentError(
                "expected no new samples in a dataset with adopted shards: add them to the shards, or copy the dataset"
            )
        if self._appends is None:
            self._appends = data_files.FragmentWriter(
                self._place, Features(self._features), key=self._base.key, generate_keys=self._base.generate_keys
            )
        try:
            self._appends.append({**({} if sample is None else fields_of(sample)), **_plain(values)})
        except SchemaError:
            raise
        except BaseException:  # samples of a batch may be lost
            self.abort()
            raise

    def extend(self, samples: Any) -> None:
        """Add many samples: of an iterable, a dataset, a DataFrame, or a dict of columns."""
        many = samples_of(samples)
        if isinstance(many, Dataset):
            many = in_classes_of(many.stored, Features(self._features))  # media are copied as they are
        for sample in Bar(many, desc="append", unit=" samples", disable=self._quiet, leave=False):
            self.append(sample)

    def update(self, where: Any, sample: Any = None, /, **values: Any) -> None:
        """Set new values of some fields of one sample: the one with this key, or, if the dataset has no key, with this
        row number. The values are keywords, or a mapping: ``update(3, s="a")``, ``update(3, {"s": "a"})``.

        For many samples, pass a list or an array of keys or rows, a slice or a mask, and for each field a list or an
        array with a value for each of them: ``update([3, 4], s=["a", "b"])``.
        """
        self._check_open()
        if sample is not None and not isinstance(sample, Mapping):
            raise ArgumentError(
                f"expected the new values as keywords or as a mapping, update(3, s='a'), got {type(sample).__name__}; "
                "put(3, view) writes back an instance of a class; many rows are update([3, 4], s=['a', 'b'])"
            )
        values = {**({} if sample is None else sample), **values}
        if not values:
            raise ArgumentError("expected at least one field with a new value, got none")
        for name in values:
            if name not in self._features:
                raise FieldError(f"expected one of the fields {', '.join(self._features)}, got {name!r}")
            if name == self._base.key:
                raise SchemaError(
                    f"expected another field than the key {name!r}: delete the sample and append it again"
                )
        values = _plain(values)
        if isinstance(where, _MANY):
            return self._update_many(where, values)
        if hasattr(where, "__array__") and np.ndim(where):  # an array, a Series or an Index
            return self._update_many(np.asarray(where), values)
        row, changed = int(self._ids(self._row(where))[0]), list[commit.Updates]()
        place = self._named(where)
        try:
            for name, value in values.items():
                updates = self._updates_of(name)
                updates.append(row, value, place)
                changed.append(updates)
        except BaseException:  # all fields or none
            for updates in changed:
                updates.remove_last()
            raise
        self._updated.add(row)
        with self._abort_on_error():  # samples of a batch may be lost
            for updates in changed:
                updates.spill()

    def _update_many(self, where: Any, values: dict[str, Any]) -> None:
        """Set values of many samples: all or, if one does not fit, none."""
        if self._keys is None:
            rows = normalise(where, len(self.dataset))
        elif isinstance(where, slice):
            raise ArgumentError(f"expected keys, as the dataset has the key {self._base.key!r}, got {where}")
        else:
            rows = self._keys.rows_of(where)
        places = rows if self._keys is None else where
        encoded: dict[str, pa.Array] = {}
        for name, some in values.items():
            known = some if isinstance(some, np.ndarray) else _listed(name, some)
            if len(known) != len(rows):
                raise ArgumentError(f"expected {len(rows)} values for the field {name}, one per row, got {len(known)}")
            encoded[name] = encode_values(name, self._features[name], known, lambda k: self._named(places[k]))
        if not len(rows):
            return
        ids = self._ids(rows)
        self._updated.update(ids.tolist())
        with self._abort_on_error():
            for name, array in encoded.items():
                self._updates_of(name).extend(ids, array)

    def _updates_of(self, name: str) -> commit.Updates:
        if name not in self._updates:
            self._updates[name] = commit.Updates(self._place, name, self._features[name])
        return self._updates[name]

    def _named(self, where: Any) -> str:
        """Return what error messages call a sample."""
        return f"sample {where}" if self._keys is None else f"the sample with key {where!r:.200}"

    def put(self, where: Any, view: Any, *, through: Lens[Any, Any] | None = None) -> None:
        """Write a view back into one sample, identified as in `update`: update the fields that differ.

        Without a lens (`through`), the fields of the view are those of the sample. If the view has other fields, a lens
        to its type must be registered, from exactly one type that the samples fit.
        """
        self._check_open()
        row = self._row(where)
        if int(self._ids(row)[0]) in self._updated:
            raise ArgumentError(
                f"expected a sample that this transaction has not updated yet, got {where!r}: a view is written "
                "into the values before the transaction; commit first"
            )
        lens = lens_to(view, self.dataset.features) if through is None else through
        if changed := changes(self.dataset.sample(int(row[0])), view, lens):
            self.update(where, **changed)

    def delete(self, where: Any = None, *, rows: Any = None) -> None:
        """Delete the samples with this key or these keys; or, if the dataset has no key or `rows` is passed, with these
        row numbers (one, several, a slice, a mask)."""
        self._check_open()
        if (where is None) == (rows is None):
            raise ArgumentError("expected either keys or rows to delete, got both or neither")
        mask = 'for a condition give a mask of the rows: tx.delete(rows=tx.dataset["n"] > 3)'
        if isinstance(where, str) and self._keys is None:
            raise ArgumentError(f"expected row numbers, got {where!r}; {mask}")
        if rows is None and self._keys is not None:
            try:
                found = self._keys.rows_of([where] if isinstance(where, int | str | bytes | np.integer) else where)
            except UnknownKeyError as error:
                error.add_note(mask)
                raise
        else:
            numbers = where if rows is None else rows
            found = normalise([numbers] if isinstance(numbers, int | np.integer) else numbers, len(self.dataset))
        self._deleted.append(self._ids(found))

    @property
    def _keys(self) -> Keyed | None:
        return self.dataset.rows.key_lookup

    def _row(self, where: Any) -> Integers:
        if self._keys is not None:
            return np.array([self._keys.row_of(where)])
        try:
            row = operator.index(where)
        except TypeError:
            raise ArgumentError(
                f"expected the number of a row, a list of them, a slice or a mask, got {where!r}"
            ) from None
        if not -len(self.dataset) <= row < len(self.dataset):
            raise RowError(f"expected a row from {-len(self.dataset)} to {len(self.dataset) - 1}, got {where}")
        return np.array([row % len(self.dataset)])

    def _ids(self, rows: Integers) -> Integers:
        return self._row_ids.ids(self._live.physical_rows(rows))

    @cached_property
    def _live(self) -> LiveRows:
        return live_rows(self.dataset.rows)

    # -- fields -----------------------------------------------------------------------------------------------

    def add_field(
        self,
        name: str,
        feature: Any,
        values: Any = None,
        *,
        batched: bool = False,
        batch_size: int = 256,
        workers: int | None = None,
        executor: ExecutorLike = None,
    ) -> None:
        """Add a field with a value for every sample: an array, any iterable, a dataset of one field, or a function
        that is called with each sample. Without values it must be optional, and no sample has one yet.

        With `batched` the function gets batches of `batch_size` samples (columns by name) and returns an array or a
        list with a value for each. `workers` processes call it at the same time, or an `executor`: "ray", the address
        of a Ray cluster, or an executor of `concurrent.futures`. The files are the same for every number of workers.
        With `workers`, also 1, or `executor`, a run that is killed or raises an error keeps its finished parts in a
        folder next to the dataset; the same call on the same version continues it. The commit removes the folder.
        """
        self._check_no_appends(name)
        if workers is not None or executor is not None:
            discard_outdated(self.path, self._version)
        change = commit.AddField(name, Features.of({name: feature})[name], {})
        features = commit.change_features(change, self._features)
        shards: dict[int, data_files.DataFileWriter] = {}
        if callable(values):
            rows = self._base.fragments.total
            function = FieldFunction(self.dataset, rows, name, change.feature, values, batched, batch_size)
            shards = self._computed_field(function, workers, executor)
        elif batched or workers not in (None, 1) or executor is not None:
            raise ArgumentError(
                f"expected a function for the field {name} with batched, workers or executor, got {values!r:.200}"
            )
        elif values is not None:
            shards = self._given_field(Features({name: change.feature}), values)
        elif not change.feature.optional:
            raise SchemaError(f"expected values for the field {name}, or a feature that is optional, got neither")
        self._fields.append((change, shards))
        self._features = features

    def drop_field(self, name: str) -> None:
        """Remove a field; older versions keep it."""
        self._rename_or_drop(commit.DropField(name))

    def rename_field(self, name: str, new: str) -> None:
        """Rename a field."""
        self._rename_or_drop(commit.RenameField(name, new))

    def _rename_or_drop(self, change: commit.DropField | commit.RenameField) -> None:
        name = change.name
        self._check_no_appends(name)
        if name == self._base.key:
            raise SchemaError(f"expected another field than the key {name!r}")
        features = Features(commit.change_features(change, self._features))
        if name in self._updates:
            raise SchemaError(f"expected a field to be changed before its values are, got {name!r} after some were")
        self._fields.append((change, {}))
        self._features = dict(features.items())

    def _check_no_appends(self, name: str) -> None:
        self._check_open()
        if self._appends is not None and (count := self._appends.samples):
            samples = commit.counted(count, "sample")
            raise SchemaError(f"expected fields to be changed before samples are appended, got {name} after {samples}")

    def _given_field(self, features: Features, values: Any) -> dict[int, data_files.DataFileWriter]:
        source = Values(min(features), values, self.dataset)
        return self._write_field(features, partial(take_given, features, source), self._quiet, source.finish)

    def _computed_field(
        self, function: FieldFunction, workers: int | None, executor: ExecutorLike
    ) -> dict[int, data_files.DataFileWriter]:
        """Write the results of a function, which is called here, or part by part by workers."""
        features = function.features
        if workers is None and executor is None:
            stream = EncodedRows(features, function.encoded(function.whole))
            return self._write_field(features, lambda live: stream.take, self._quiet)
        size = int(self._base.fragments.sizes.sum())
        parts = PartValues(self.path, self._version, function, size / max(1, function.rows))
        self._parts.append(parts)
        progress = None if self._quiet is None else not self._quiet
        try:
            with closing(parts.encoded(workers, executor, progress)) as encoded:
                stream = EncodedRows(features, encoded)
                return self._write_field(features, lambda live: stream.take, True)
        except BaseException as error:
            self._keep_parts(error)
            raise

    def _write_field(
        self,
        features: Features,
        take: Callable[[NDArray[np.bool_]], Take],
        quiet: bool | None,
        finish: Callable[[], None] = lambda: None,
    ) -> dict[int, data_files.DataFileWriter]:
        """Write the values of a new field with a progress bar; return the file of each fragment."""
        total, title = len(self.dataset), f"add {min(features)}"
        with Bar(total=total, desc=title, unit=" samples", disable=quiet, leave=False) as bar:
            return write_files(self._place, features, self._live_rows(), take, bar.update, finish)

    def _live_rows(self) -> Iterator[tuple[Fragment, NDArray[np.bool_]]]:
        """Yield every fragment, and which of its rows are not deleted."""
        at, live = 0, self._live
        for fragment in self._base.fragments:
            yield fragment, live.is_live(np.arange(at, at + fragment.rows))
            at += fragment.rows

    # -- the end ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Publish the new version; does nothing if there are no changes."""
        self._check_open()
        self.close()

    def _publish(self) -> None:
        changes = self._changes()
        if changes.words:
            self.version = commit.publish_next(
                self._place, self._version, partial(self._next, changes), self._heartbeat
            )
        self._heartbeat.close()
        for parts in self._parts:
            parts.finish()

    def _changes(self) -> Changes:
        appended = self._appends.finish() if self._appends is not None else []
        overlays = [updates.finish() for updates in self._updates.values() if updates]
        ids = np.unique(np.concatenate(self._deleted)) if self._deleted else np.empty(0, np.int64)
        deleted = None
        if len(ids):
            self._deleted_files.append(file := data_files.write_numbers(self._place, {"row": ids.astype(np.uint64)}))
            deleted = file.publish()
        fields = [
            replace(change, files={first: shard.publish() for first, shard in shards.items()})
            if isinstance(change, commit.AddField)
            else change
            for change, shards in self._fields
        ]
        changes = Changes(appended, fields, overlays, deleted, ids)
        changes.words = self._words(changes)
        return changes

    def _words(self, changes: Changes) -> str:
        """Return the description of the changes, for display."""
        counts = {
            "append": sum(fragment.rows for fragment in changes.appended),
            "update": len(np.unique(changes.updated_ids)),
            "delete": len(changes.deleted_ids),
        }
        fields = {
            commit.AddField: "add field {}",
            commit.DropField: "drop field {}",
            commit.RenameField: "rename field {}",
        }
        words = [fields[type(change)].format(change.name) for change in changes.fields]
        words += [f"{what}: {commit.counted(count, 'sample')}" for what, count in counts.items() if count]
        return ", ".join(words)

    def _next(self, changes: Changes, version: int) -> tuple[Manifest, Manifest]:
        """Return the manifest to publish after a version, and the one for which the changes were made."""
        latest = self._base if version == self._version else read_manifest(self._place, version)
        made = changes.apply(self._place, self._base, latest)
        refuse_duplicates(self._place, made, len(changes.appended))
        return made, self._base

    def _discard(self) -> None:
        if self._appends is not None:
            self._appends.discard()
        for updates in self._updates.values():
            updates.discard()
        for shard in [*self._deleted_files, *(shard for _, shards in self._fields for shard in shards.values())]:
            shard.discard()
        self._heartbeat.close()
        if self._parts:
            self._keep_parts(sys.exception())
            for parts in self._parts:
                parts.close()

    def _keep_parts(self, error: BaseException | None) -> None:
        """Keep the finished parts of jobs after an error, unless the next transaction begins with another version."""
        latest = self._version
        with suppress(ShardexError):  # the storage may be the reason of the error
            latest = latest_version(self._place)
        for parts in self._parts:
            if error is None or latest != self._version:
                parts.discard()
            else:
                parts.keep(error)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain_value(value) for name, value in values.items()}


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise ArgumentError(
            f"expected a list or an array of values for the field {name}, one per row, got {type(values).__name__}"
        )
    return list(each_value(name, values))
