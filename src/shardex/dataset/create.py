"""Writes samples to shards of any format: `create` returns a `Writer`.

The writer infers the schema where none is given and passes samples to the writer of the format, which publishes them in
one step at the end. An exception inside ``with`` leaves the target unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from shardex.dataset.dataset import Dataset
from shardex.dataset.from_table import is_table
from shardex.dataset.open import open as open_dataset
from shardex.dataset.views import stored_samples
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Features, infer
from shardex.files import AllOrNothing
from shardex.formats import ShardWriter, check_options, format_named
from shardex.kernel import Columns
from shardex.layers import copied
from shardex.rows import Rows
from shardex.samples import Batch, DictSample, fields_of, is_sample_class, record_of
from shardex.sources import place_of

if TYPE_CHECKING:
    from shardex.dataset.open import Data

_INFER_FROM = 64


def create(
    path: str | os.PathLike[str], schema: Any = None, *, format: str = "arrow", mode: str = "create", **options: Any
) -> Writer:
    """Start writing a dataset to a folder or URL. Use it in a ``with`` block, which publishes the samples at its end.

    `schema` is a dict of fields, a class with annotations or Features; without one it is inferred from the first
    samples. `mode` is for a target that exists: "create" raises, "append" adds, "overwrite" replaces it.

    >>> import tempfile; folder = tempfile.mkdtemp() + "/d"
    >>> with create(folder, {"x": int}) as out:
    ...     out.append(x=1); out.append({"x": 2})
    >>> len(open_dataset(folder))
    2
    """
    return Writer(os.fspath(path), schema, format, mode, options)


class Writer(AllOrNothing):
    """Writes samples until it is closed; see `create`."""

    def __init__(self, path: str, schema: Any, format: str, mode: str, options: Mapping[str, Any]) -> None:
        module = format_named(format)
        options = check_options(module.create, format, options)
        self._place = place_of(path)
        self.path = self._place.url
        target = self.path  # `self` in the function would keep a writer that the user drops
        self._begin: Callable[[Features], ShardWriter] = lambda features: module.create(
            target, features, mode=mode, **options
        )
        self._waiting: list[dict[str, Any]] = []
        self._shards: ShardWriter | None = None
        self._inferred_from = 0
        """Number of samples from which the schema was inferred; 0 if it was given."""
        self.samples = 0
        """Number of samples appended."""
        if schema is None:
            schema = module.existing_schema(self._place, mode)
        if schema is not None:
            self._shards = self._begin(Features.of(schema))
        self._complete = record_of(schema).complete if is_sample_class(schema) else None
        """Adds the defaults of the class that is the schema, and converts its typed values; None without a class."""

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
        if self._shards is not None:
            try:
                self._shards.append(sample)
            except SchemaError as error:
                raise self._explained(error) from None
        else:
            self._wait(sample)
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
            self._start()

    def _start(self) -> None:
        """Infer the schema and write the waiting samples; if one does not fit, the writer is aborted."""
        with self._abort_on_error():
            self._shards = self._begin(infer(self._waiting))
            for sample in self._waiting:
                self._shards.append(sample)
        self._inferred_from = len(self._waiting)
        self._waiting = []

    def _explained(self, error: SchemaError) -> SchemaError:
        """Return an error of a sample that does not fit, with what to do if the schema was inferred."""
        if not self._inferred_from:
            return error
        advice = f"the schema was inferred from the first {self._inferred_from} samples, pass one that fits all"
        return SchemaError(f"{error}; {advice}")

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
        if isinstance(many, Dataset) and many.sample_type is DictSample:
            for columns in many.stored.chunks():  # media are copied as they are
                self._extend(columns)
            return
        iterator = iter(many.stored if isinstance(many, Dataset) else many)
        for sample in iterator:
            self.append(self._mapping(sample))
            if self._shards is not None and self._complete is None and not self._closed:
                break
        self._extend_from(iterator)

    def _extend_from(self, samples: Iterator[Any]) -> None:
        """Append samples by the fast path of the format, if it has one."""
        extend = getattr(self._shards, "extend", None)
        if extend is None:
            for sample in samples:
                self.append(self._mapping(sample))
            return
        before = self._shards.samples - self.samples  # type: ignore[union-attr]
        try:
            extend(samples, self._mapping)
        except SchemaError as error:
            raise self._explained(error) from None
        finally:
            self.samples = self._shards.samples - before  # type: ignore[union-attr]

    def _extend(self, columns: Columns) -> None:
        """Append columns: as they are, if the writer of the format takes columns."""
        write = None if self._complete is not None else getattr(self._shards, "write", None)
        if write is None or self._closed:
            return self.extend(stored_samples(columns))
        try:
            write(columns)
        except SchemaError as error:
            raise self._explained(error) from None
        self.samples += len(columns)

    def _publish(self) -> None:
        if self._shards is None:
            self._start()
        if self._shards is not None:
            self._shards.close()

    def _discard(self) -> None:
        self._waiting = []
        if self._shards is not None:
            self._shards.abort()


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
