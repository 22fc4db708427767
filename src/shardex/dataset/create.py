"""Writes samples to shards of any format: `create` returns a `Writer`.

The writer infers the schema where none is given and passes samples to the writer of the format, which publishes them in
one step at the end. An exception inside ``with`` leaves the target unchanged.

The schema is inferred from the first samples. If a later one needs wider features (a float among integers, `None`,
another shape, a new field), the writer finds those of all samples if they are in memory, else those of the samples so
far. What it has written is written again: at once while the stream is short, else together with more, so that each
sample is written a few times at most.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from operator import length_hint
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex import dataset as room
from shardex.dataset.dataset import Dataset
from shardex.dataset.from_table import is_table
from shardex.dataset.open import open as open_dataset
from shardex.dataset.views import stored_samples
from shardex.errors import ArgumentError, SchemaError, ShardexError
from shardex.features import ClassLabel, Features, Inferred, Null, Optional, Text, unwrap_optional
from shardex.files import AllOrNothing, Stage
from shardex.formats import ShardWriter, check_options, format_named, open_rows, option_types, target_format
from shardex.kernel import Column, Columns, Masked, Ragged
from shardex.layers import ClassNameRows, copied
from shardex.other_names import WRITER, missing_attribute
from shardex.rows import AbstractRows, Rows
from shardex.samples import Batch, DictSample, fields_of, is_sample_class, record_of
from shardex.sources import path_text, place_of

if TYPE_CHECKING:
    from shardex.dataset.open import Data

_INFER_FROM = 64
_LIMITS = ("shard_rows", "shard_size")
_UNLIMITED = 1 << 62


def create(
    path: str | os.PathLike[str],
    schema: Any = None,
    *,
    format: str | None = None,
    mode: str = "create",
    register: str | None = None,
    **options: Any,
) -> Writer:
    """Start writing a dataset to a folder or URL. Use it in a ``with`` block, which publishes the samples at its end.

    A name such as ``a.parquet`` is one file of this format (.parquet, .jsonl, .csv, .txt, .tar, .npy); other names are
    folders, in the native format or in `format`. `schema` is a dict of fields, a class with annotations or Features;
    without one it is inferred from the samples. `mode` is for a target that exists: "create" raises, "append" adds,
    "overwrite" replaces it. With ``register="@name"`` the dataset is the next version of this name in a catalog (see
    `Catalog`).

    >>> import tempfile; folder = tempfile.mkdtemp() + "/d"
    >>> with create(folder, {"x": int}) as out:
    ...     out.append(x=1); out.append({"x": 2})
    >>> len(open_dataset(folder))
    2
    """
    return Writer(path_text(path), schema, format, mode, options, register, warn=True)


class Writer(AllOrNothing):
    """Writes samples until it is closed; see `create`."""

    _file: Stage | None = None
    """Publishes the one file of a target that is a file; the format writes it as a folder into this stage."""

    def __init__(
        self,
        path: str,
        schema: Any,
        format: str | None,
        mode: str,
        options: Mapping[str, Any],
        register: str | None = None,
        *,
        warn: bool = False,
    ) -> None:
        format, is_file = target_format(path, format)
        module, self._format = format_named(format), format
        self._registration = None if register is None else room.references.Registration(register)
        options = check_options(module.create, format, options)
        self._place = place_of(path)
        self.path = self._place.url
        if is_file:
            options = _of_one_file(options, module.create, self.path)
            self._file = Stage(path, mode, one_file=True)
        # `self` in the function would keep a writer that the user drops
        target, mode = (self.path, mode) if self._file is None else (self._file.place.path("shards"), "create")
        self.open_options: dict[str, Any] = {}
        """Options of `open` with which the samples have the names that they were written with."""

        def begin(features: Features, found: dict[str, Any] = self.open_options) -> ShardWriter:
            shards = module.create(target, features, mode=mode, **options)
            found.update(names_lost(format, features, warn=warn))
            return shards

        self._begin: Callable[[Features], ShardWriter] = begin
        self._waiting: list[dict[str, Any]] = []
        self._shards: ShardWriter | None = None
        self.inferred: Inferred | None = None
        """The inferred schema; None if it was given."""
        self._narrower: list[tuple[ShardWriter, Features]] = []
        """Writers of the samples before those of `_shards`, whose features do not fit all samples."""
        self._written_again = 0
        """Number of samples when they were last written again."""
        self._in_memory: Sequence[Any] | None = None
        """All samples, if they are in memory and `extend` adds them."""
        self._adding: Any = None
        """The sample that `extend` is adding."""
        self.samples = 0
        """Number of samples appended."""
        self._is_part = isinstance(schema, Inferred)
        self._appends = mode == "append" and not is_file
        if schema is None and self._file is None:
            schema = module.existing_schema(self._place, mode)
        self._schema = None if schema is None or isinstance(schema, Inferred) else Features.of(schema)
        """The schema that was given, or that the target has."""
        if schema is not None:
            with self._abort_on_error():
                self.inferred = schema if isinstance(schema, Inferred) else None
                self._shards = self._begin(schema.strict if isinstance(schema, Inferred) else Features.of(schema))
        self._complete = record_of(schema).complete if is_sample_class(schema) else None
        """Adds the defaults of the class that is the schema, and converts its typed values; None without a class."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, WRITER)

    def _content(self) -> str:
        count = getattr(self, "samples", 0)  # missing if the constructor raised
        return f"{count:,} sample{'s' * (count != 1)}" if count else ""

    def append(self, sample: Any = None, /, **fields: Any) -> None:
        """Append one sample: a mapping, an instance of a `packable` class, a dataclass or the like, or keywords."""
        sample = fields if sample is None else self._mapping(sample)
        if fields and sample is not fields:
            sample = {**sample, **fields}
        if self._complete is not None:
            sample = self._complete(sample)
        self._check_open()
        if self._shards is None:
            self._wait(sample)
        elif self.inferred is None:
            self._shards.append(sample)
        else:
            self._append_or_widen(sample)
        self.samples += 1

    def _mapping(self, sample: Any) -> Mapping[str, Any]:
        if type(sample) is dict or isinstance(sample, Mapping):
            return sample
        try:
            fields = fields_of(sample)
        except SchemaError as error:
            raise SchemaError(f"{error} - at sample {self.samples}") from None
        if self._shards is None and not self._waiting and not self._closed and is_sample_class(type(sample)):
            self._shards = self._begin(Features.of(type(sample)))
        return fields

    def _wait(self, sample: Mapping[str, Any]) -> None:
        self._waiting.append({name: copied(value) for name, value in sample.items()})
        if len(self._waiting) == _INFER_FROM:
            with self._abort_on_error():
                self._start(Inferred.of(self._waiting))

    def _start(self, inferred: Inferred) -> None:
        """Begin to write with an inferred schema; if one of the waiting samples does not fit, the writer is aborted."""
        with self._abort_on_error():
            if self._appends and inferred.without_values:
                inferred = _known_in(inferred, self.path, self._format)
            self.inferred, self._shards = inferred, self._begin(inferred.strict)
            for sample in self._waiting:
                self._shards.append(sample)
        self._waiting = []

    # -- wider features -------------------------------------------------------------------------------------------

    def _append_or_widen(self, sample: Mapping[str, Any]) -> None:
        assert self._shards is not None and self.inferred is not None
        try:
            if not (checks := self.inferred.checks) or _fits(checks, sample):
                return self._shards.append(sample)
            refusal = None
        except SchemaError as error:
            refusal = error
        self._widen(sample, refusal)
        self._shards.append(sample)

    def _widen(self, sample: Mapping[str, Any], refusal: SchemaError | None = None) -> None:
        """Continue with wider features that fit a sample too; raise an error if there are none.

        :param refusal: the error of the writer
        """
        assert self._shards is not None and self.inferred is not None
        try:
            if self._in_memory is None:
                wider = self.inferred.wider(sample)
            else:
                wider = Inferred.of(list(map(self._mapping, self._in_memory)))
        except SchemaError as error:
            raise (error if self._in_memory is not None else self._explained(refusal or error)) from None
        before, features = self.inferred.features, wider.features
        if features == before:
            if refusal is not None:
                raise self._explained(refusal)
            self.inferred = wider
            return
        with self._abort_on_error():
            shards = self._begin(wider.strict)
            self._narrower.append((self._shards, before))
            self._shards, self.inferred = shards, wider
            if self.samples >= 2 * self._written_again:
                self._write_again()

    def _write_again(self) -> None:
        """Write the samples that were written with narrower features to the current shards, which have none."""
        assert self._shards is not None
        for shards, features in self._narrower:
            for columns in samples_in(shards.written(), features, self._format).chunks():
                if (write := getattr(self._shards, "write", None)) is not None:
                    write(columns)
                else:
                    for sample in stored_samples(columns):
                        self._shards.append(sample)
            shards.abort()
        self._narrower, self._written_again = [], self.samples

    def _explained(self, error: SchemaError) -> SchemaError:
        """Return an error of the next sample, which does not fit an inferred schema, with what to do."""
        text = re.sub(r" - at sample \d+", f" - at sample {self.samples}", str(error), count=1)
        return SchemaError(f"{text}; the schema was inferred from other samples, pass one that fits all")

    def append_batch(self, batch: Any = None, /, **columns: Any) -> None:
        """Append the samples of a batch: a `Batch`, `Columns`, a dict of columns, or columns by keyword.

        The native format and Parquet write whole arrays as they are.

        >>> import tempfile; import numpy as np; folder = tempfile.mkdtemp() + "/d"
        >>> with create(folder, {"x": "float32", "name": str}) as out:
        ...     out.append_batch(x=np.arange(3, dtype=np.float32), name=["a", "b", "c"])
        >>> open_dataset(folder)[2]
        DictSample(x=2.0, name='c')
        """
        if batch is not None and columns:
            raise ArgumentError("expected a batch or columns by keyword, got both")
        self.extend(columns if batch is None else batch)

    def extend(self, samples: Iterable[Any] | Data | Columns | Batch) -> None:
        """Append many samples: of an iterable, a DataFrame, a `Batch`, `Columns`, or a dict of columns.

        If a sample does not fit, those of an iterable before it are appended; of columns none is.
        """
        if isinstance(samples, Batch):
            samples = samples.columns
        columns = samples if isinstance(samples, Columns) else _as_columns(samples)
        if columns is not None:
            return self._extend(columns)
        many = samples_of(samples)
        if isinstance(many, Dataset) and self._schema is not None:
            many = in_classes_of(many, self._schema)
        if isinstance(many, Dataset) and many.sample_type is DictSample:
            for columns in many.stored.chunks():  # media are copied as they are
                self._extend(columns)
            return
        self.extend_by(iter(many.stored if isinstance(many, Dataset) else many), many)

    def extend_by(self, iterator: Iterator[Any], samples: Any) -> None:
        """Append samples by an iterator of them, which may count them for a progress bar."""
        if isinstance(samples, list | tuple) and not self.samples:
            self._in_memory = samples
        for sample in iterator:
            self.append(self._mapping(sample))
            if self._shards is not None and self._complete is None and not self._closed:
                break
        self._extend_from(iterator)
        self._in_memory = None

    def _extend_from(self, samples: Iterator[Any]) -> None:
        """Append samples by the fast path of the format, if it has one."""
        while (extend := getattr(self._shards, "extend", None)) is not None:
            before, self._adding = self._shards.samples - self.samples, None  # type: ignore[union-attr]
            known = self.inferred is None or (not self.inferred.checks and self._left(samples) is not None)
            try:
                extend(samples if known else self._noted(samples), self._mapping)
            except SchemaError:
                if self.inferred is None or (not known and self._adding is None):  # an error of the iterator
                    raise
                if known:
                    self._adding = self._in_memory[-1 - (self._left(samples) or 0)]  # type: ignore[index]
            finally:
                self.samples = self._shards.samples - before  # type: ignore[union-attr]
            if self._adding is None:
                return
            self.append(self._mapping(self._adding))
        for sample in samples:
            self.append(self._mapping(sample))

    def _left(self, samples: Iterator[Any]) -> int | None:
        """Return how many samples in memory are left; None if the iterator cannot say it."""
        known = self._in_memory is not None and hasattr(samples, "__length_hint__")
        return length_hint(samples) if known else None

    def _noted(self, samples: Iterator[Any]) -> Iterator[Any]:
        """Yield samples up to one that needs wider features, and note the one that is being added."""
        assert self.inferred is not None
        checks = self.inferred.checks
        for sample in samples:
            self._adding = sample
            if checks and not _fits(checks, sample if type(sample) is dict else self._mapping(sample)):
                return
            yield sample
            self._adding = None

    def _extend(self, columns: Columns) -> None:
        """Append columns: as they are, if the writer of the format takes columns."""
        if self._shards is None and not self._waiting and not self._closed and len(columns):
            self._start(Inferred.of_values({name: _each_kind(one) for name, one in columns.data.items()}))
        write = None if self._complete is not None else getattr(self._shards, "write", None)
        if write is None or self._closed or not self._fits(columns):
            return self._extend_from(iter(stored_samples(columns)))
        try:
            write(columns)
        except SchemaError:
            if self.inferred is None:
                raise
            return self._extend_from(iter(stored_samples(columns)))
        self.samples += len(columns)

    def close(self) -> None:
        """Publish everything, and register it; if publishing fails, discard everything. Closing again does nothing."""
        registration = None if self._closed else self._registration
        super().close()
        if registration is not None:
            registration.put(open_dataset(self.path, format=self._format, **self.open_options))

    def _fits(self, columns: Columns) -> bool:
        """Return whether no column needs wider features, as far as a writer would not refuse it."""
        checks = {} if self.inferred is None else self.inferred.checks
        return all(all(map(check, _each_kind(columns.data.get(name, [])))) for name, check in checks.items())

    def _publish(self) -> None:
        if self._shards is None:
            self._start(Inferred.of(self._waiting))
        if self._narrower and self.inferred is not None and self._shards is not None:
            self._narrower.append((self._shards, self.inferred.features))
            self._shards = self._begin(self.inferred.strict)
            self._write_again()
        if self._shards is not None:
            self._shards.close()
        if self._file is not None:
            self._file.publish()
            self._index_again()
        if self.inferred is not None and not self._is_part:
            warn_without_values(self.path, self.inferred, self.samples)

    def _index_again(self) -> None:
        """Replace the index of a file that was replaced: a shorter file would look as if it was cut off."""
        has_index = "rebuild" in option_types(format_named(self._format).open)
        if self._file is not None and self._file.mode == "overwrite" and has_index:
            open_dataset(self.path, format=self._format, rebuild=True)

    def _discard(self) -> None:
        self._waiting = []
        for shards in [self._shards, *(one for one, _ in self._narrower)]:
            if shards is not None:
                shards.abort()
        if self._file is not None:
            self._file.discard()


def _known_in(inferred: Inferred, path: str, format: str) -> Inferred:
    """Return inferred features in which a field without values has the type that it has in the dataset at `path`."""
    try:
        there = open_dataset(path, format=format).features
    except ShardexError:  # there is none, or options are needed to open it
        return inferred
    unknown = {name for name in inferred.without_values if unwrap_optional(inferred.fields[name]) == Null()}
    known = {name: Optional(there[name]) for name in unknown & there.keys()}
    return Inferred({name: known.get(name, feature) for name, feature in inferred.fields.items()})


def in_classes_of(dataset: Dataset[Any], schema: Features) -> Dataset[Any]:
    """Return a dataset that is to be written with a schema: by name where this has other classes, or text."""
    have = {name: unwrap_optional(feature) for name, feature in dataset.features.items()}
    want = {name: unwrap_optional(feature) for name, feature in schema.items()}
    named = {name for name, feature in want.items() if isinstance(feature, ClassLabel | Text)}
    classes = {name: feature for name, feature in have.items() if isinstance(feature, ClassLabel) and name in named}
    labels = {name: feature for name, feature in classes.items() if feature != want[name]}
    return dataset._over(ClassNameRows(dataset.rows, labels)).select(*have) if labels else dataset


def _of_one_file(options: Mapping[str, Any], create: Any, path: str) -> dict[str, Any]:
    """Return the options of a writer without limits; ArgumentError for options of several shards."""
    if given := [name for name in (*_LIMITS, "prefix") if name in options]:
        raise ArgumentError(
            f"{path}: expected no {given[0]}= with a name of one file, got {options[given[0]]!r}; write shards to a "
            "folder, whose name has no extension, and choose the format with format="
        )
    return {**options, **{name: _UNLIMITED for name in _LIMITS if name in option_types(create)}}


def samples_in(written: AbstractRows | str, features: Features, format: str) -> Dataset:
    """Return the samples that a writer of a format has made: its rows, or the folder with its files."""
    rows = open_rows(written, format, wanted=features) if isinstance(written, str) else written
    names = list(features)
    if (name_field := format_named(format).name_field) in rows.features and name_field not in features:
        names.append(str(name_field))
    return Dataset(rows).select(names).stored


def warn_without_values(path: str, inferred: Inferred, samples: int) -> None:
    """Warn of fields whose type is not known, because no sample has a value."""
    for name in inferred.without_values if samples else ():
        warnings.warn(
            f"{path}: the field {name} has no values in all {samples:,} samples, only None or empty lists: it is "
            f"stored as {inferred.features[name]}; pass a schema to store it as another type",
            stacklevel=2,
        )


def _fits(checks: Mapping[str, Callable[[Any], bool]], sample: Mapping[str, Any]) -> bool:
    """Return whether the values of a sample need no wider features, as far as a writer would not refuse them."""
    return all(check(sample.get(name)) for name, check in checks.items())


def _each_kind(column: Column) -> list[Any]:
    """Return values that have all types and shapes of a column: of an array one."""
    if isinstance(column, list):
        return column
    if isinstance(column, Masked):
        return [*_each_kind(column.column), *[None] * (not column.mask.all())]
    return [column[k] for k in range(len(column))] if isinstance(column, Ragged) else [*column[:1]]


def names_lost(format: str, features: Features, *, warn: bool = True) -> dict[str, Any]:
    """Return the option of `open` that gives a field its name, where files do not store it, after a warning."""
    module = format_named(format)
    if (name := module.lost_name(features)) is None:
        return {}
    if warn:
        warnings.warn(
            f"files of the format {format} do not store the name of their field: {name!r} is read as "
            f"{module.only_field!r}, unless they are opened with field={name!r} or a class",
            stacklevel=4,
        )
    return {"field": name}


def _as_columns(samples: Any) -> Columns | None:
    """Return a dict of numbers by column, in arrays of one length, or lists, as columns; None for everything else."""
    if type(samples) is not dict or not samples:
        return None
    for name, column in samples.items():
        numbers = type(column) is np.ndarray and column.ndim and column.dtype.kind in "biufc"
        if not isinstance(name, str) or not (numbers or type(column) is list):
            return None
    lengths = {len(column) for column in samples.values()}
    return Columns(samples) if len(lengths) == 1 else None


def samples_of(samples: Any) -> Any:
    """Return an iterable of samples; anything else that `open` takes is opened as a dataset.

    >>> list(samples_of({"x": [1, 2]})), samples_of([{"x": 1}])
    ([DictSample(x=1), DictSample(x=2)], [{'x': 1}])
    """
    if isinstance(samples, Dataset | Iterator) and not is_table(samples):
        return samples
    paths = list(samples[:1]) if isinstance(samples, list | tuple) else [samples]
    if any(isinstance(one, str | os.PathLike) for one in paths):
        return open_dataset(samples)
    rows = isinstance(samples, Rows) and not isinstance(samples, Dataset)
    iterable = isinstance(samples, Iterable) or (isinstance(samples, Sized) and hasattr(samples, "__getitem__"))
    if rows or is_table(samples) or isinstance(samples, Mapping) or not iterable:
        return open_dataset(samples)  # an error for what cannot be opened
    return samples
