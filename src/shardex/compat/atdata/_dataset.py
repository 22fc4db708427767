"""`Dataset`: typed samples in shards, in order, shuffled, in batches, by key or position, through lenses and functions.

A dataset is a source of shards, the class that samples were packed from, and steps (`_steps`) that are applied to every
sample when it is read, also in batches. The core finds and reads the packed bytes of samples.
"""

import dataclasses
import operator
import os
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, SupportsIndex, TypeVar, overload

from shardex.compat.atdata._exceptions import SampleKeyError
from shardex.compat.atdata._export import columns_of, row_of, write_parquet
from shardex.compat.atdata._process_shards import process_shards
from shardex.compat.atdata._protocols import DataSource
from shardex.compat.atdata._samples import DictSample, SampleBatch, field_types
from shardex.compat.atdata._shards import PACKED, Shards
from shardex.compat.atdata._sources import URLSource, load
from shardex.compat.atdata._steps import Steps, ViewOfAny, view_of
from shardex.compat.atdata._stream import SampleStream, Shuffle, kept_rows, samples_of
from shardex.compat.atdata.manifest import SampleLocation, query_fields, query_shards
from shardex.errors import ArgumentError, FormatError, RowError
from shardex.features import codecs, describe
from shardex.rows import normalise, whole_number

ST = TypeVar("ST")
RT = TypeVar("RT")


class Dataset(Generic[ST]):
    """Samples of a class in tar shards: ``Dataset[T]("data-{000000..000009}.tar")``."""

    url: str
    """The pattern of the shards, or the first shard of another source."""
    metadata_url: str | None

    def __init__(
        self, source: DataSource | str | None = None, metadata_url: str | None = None, *, url: str | None = None
    ) -> None:
        """`source` is a path, a URL or a brace pattern of these, or a source of shards; `url` its former name."""
        given = url if source is None else source
        if given is None:
            raise ArgumentError("expected a source of shards, or url=, got none")
        self._source: DataSource = URLSource(os.fspath(given)) if isinstance(given, str | os.PathLike) else given
        self.url = self._source.url if isinstance(self._source, URLSource) else next(iter(self.list_shards()), "")
        self.metadata_url = metadata_url
        self._metadata: dict[str, Any] | None = None
        self._content_metadata: Any = None
        self._shards = Shards(self._source)
        self._added: tuple[Any, Steps] | None = None
        """The sample type and the steps of a view of another dataset."""
        self._kept: tuple[Any, Any] | None = None
        """The rows of all samples, and of those that the conditions keep."""

    # -- what it is -------------------------------------------------------------------------------------------------

    @property
    def sample_type(self) -> type[ST]:
        """The type of the samples: ``Dataset[T](...)`` gives it."""
        kind: type[ST] = self._stored_type() if self._added is None else self._added[0]
        return kind

    def _stored_type(self) -> Any:
        for one in (vars(self).get("__orig_class__"), *getattr(type(self), "__orig_bases__", ())):
            if (given := typing.get_args(one)) and not isinstance(given[0], TypeVar):
                return given[0]
        raise AttributeError("expected a dataset with a sample type, Dataset[T](...), got one without")

    @property
    def batch_type(self) -> type[SampleBatch[ST]]:
        """The type of the batches: ``SampleBatch[T]``."""
        kind: Any = SampleBatch
        return kind[self.sample_type]  # type: ignore[no-any-return]

    @property
    def source(self) -> DataSource:
        """The source of the shards."""
        return self._source

    @property
    def _steps(self) -> Steps:
        return Steps(self._stored_type()) if self._added is None else self._added[1]

    def _view(self, kind: Any, steps: Steps) -> "Dataset[Any]":
        """Return a dataset of the same shards with other steps."""
        made: Dataset[Any] = Dataset(self._source, self.metadata_url)
        made._metadata, made._content_metadata = self._metadata, self._content_metadata
        made._shards, made._added = self._shards, (kind, steps)
        return made

    def __repr__(self) -> str:
        kind = "" if self._added is None and "__orig_class__" not in vars(self) else f"[{self.sample_type.__name__}]"
        return f"{type(self).__name__}{kind}({self.url!r})"

    def list_shards(self) -> list[str]:
        """Return the names of all shards."""
        return self._source.list_shards()

    @property
    def shards(self) -> Iterator[str]:
        """The names of all shards, one after the other."""
        return iter(self.list_shards())

    @property
    def shard_list(self) -> list[str]:
        """The names of all shards: use `list_shards`."""
        warnings.warn("shard_list is deprecated, use list_shards()", DeprecationWarning, stacklevel=2)
        return self.list_shards()

    @property
    def schema(self) -> dict[str, Any]:
        """The names and types of the fields; those of a `DictSample` are not known."""
        if self.sample_type is DictSample:
            return {"_data": dict}
        return field_types(self.sample_type) if dataclasses.is_dataclass(self.sample_type) else {}

    @property
    def column_names(self) -> list[str]:
        """The names of the fields; none for a `DictSample`."""
        return list(self.schema) if dataclasses.is_dataclass(self.sample_type) else []

    @property
    def metadata(self) -> dict[str, Any] | None:
        """What is stored at `metadata_url`, as MessagePack, about the whole dataset."""
        if self._metadata is None and self.metadata_url is not None:
            self._metadata = codecs.MSGPACK.decode(load(self.metadata_url))
        return self._metadata

    @property
    def content_metadata(self) -> Any:
        """What was given about the whole dataset when it was written: a sample, or a dict."""
        return self._content_metadata

    @content_metadata.setter
    def content_metadata(self, value: Any) -> None:
        self._content_metadata = value

    @property
    def fields(self) -> Any:
        """The fields that are in manifests, for conditions: ``ds.query(ds.fields.score > 0.9)``."""
        return query_fields(self.sample_type)

    def query(self, where: Callable[[Any], Any]) -> list[SampleLocation]:
        """Return where the samples are that fulfil a condition, by the manifests beside the shards.

        `where` is a comparison of `fields`, or a function of a DataFrame that returns a boolean for each row. It is
        about stored samples: `filter`, `map` and lenses of this dataset do not count.
        """
        addresses = getattr(self._source, "addresses", list)  # S3Source sets its keys there
        return query_shards(addresses(self.list_shards()), where)

    def describe(self) -> dict[str, Any]:
        """Return the type, the fields, the shards and the metadata."""
        shards = self.list_shards()
        return {
            "sample_type": self.sample_type.__name__,
            "fields": self.schema,
            "num_shards": len(shards),
            "shards": shards,
            "url": self.url,
            "metadata": self.metadata,
        }

    # -- views ------------------------------------------------------------------------------------------------------

    def as_type(self, other: type[RT]) -> "Dataset[RT]":
        """Return a view with samples of another type: by a lens, by the names of the fields, or by several lenses."""
        get = ViewOfAny(other) if self._steps.maps else view_of(self.sample_type, other)
        return self._view(other, self._steps.and_then("view", get))

    def filter(self, predicate: Callable[[ST], Any]) -> "Dataset[ST]":
        """Return a view of the samples for which a function is true; it is called when they are read."""
        return self._view(self.sample_type, self._steps.and_then("filter", _function(predicate)))

    def map(self, fn: Callable[[ST], Any]) -> "Dataset[Any]":
        """Return a view of the results of a function, which may be anything; it is called when they are read."""
        return self._view(self.sample_type, self._steps.and_then("map", _function(fn)))

    # -- reading ----------------------------------------------------------------------------------------------------

    @overload
    def ordered(self, batch_size: None = None) -> SampleStream[ST]: ...
    @overload
    def ordered(self, batch_size: int) -> SampleStream[SampleBatch[ST]]: ...
    def ordered(self, batch_size: int | None = None) -> SampleStream[Any]:
        """Return all samples in order, or batches of them; the last batch may be smaller."""
        return SampleStream(self._shards, self._steps, self.sample_type, batch_size)

    @overload
    def shuffled(
        self,
        buffer_shards: int = 100,
        buffer_samples: int = 10_000,
        batch_size: None = None,
        *,
        seed: int | None = None,
    ) -> SampleStream[ST]: ...
    @overload
    def shuffled(
        self, buffer_shards: int = 100, buffer_samples: int = 10_000, *, batch_size: int, seed: int | None = None
    ) -> SampleStream[SampleBatch[ST]]: ...
    @overload
    def shuffled(
        self, buffer_shards: int, buffer_samples: int, batch_size: int, *, seed: int | None = None
    ) -> SampleStream[SampleBatch[ST]]: ...
    def shuffled(
        self,
        buffer_shards: int = 100,
        buffer_samples: int = 10_000,
        batch_size: int | None = None,
        *,
        seed: int | None = None,
    ) -> SampleStream[Any]:
        """Return all samples in random order, or batches of them.

        The order is a shuffle of all samples, for which no buffers are needed. Only shards that cannot be read in
        place (blobs, those of own sources) come in random order, and at least `buffer_samples` are shuffled at once.
        Every iteration has another order; those of a `seed` are the same in every run. Workers that a torch
        `DataLoader` starts for every epoch know no earlier epochs, so with a seed they repeat the first.
        """
        how = Shuffle(
            whole_number("buffer_samples", buffer_samples, 0), None if seed is None else whole_number("seed", seed)
        )
        return SampleStream(self._shards, self._steps, self.sample_type, batch_size, how)

    def __iter__(self) -> Iterator[ST]:
        return iter(self.ordered())

    def __len__(self) -> int:
        """Return the number of samples: from the index of the shards, or counted once if there is a condition."""
        return len(self._rows())

    def _rows(self) -> Any:
        """Return the rows of the samples; with a condition all samples are read once to find them."""
        rows = self._shards.all()
        if not self._steps.filters:
            return rows
        if self._kept is None or self._kept[0] is not rows:
            self._kept = rows, kept_rows(rows, self._steps)
        return self._kept[1]

    @overload
    def __getitem__(self, index: SupportsIndex) -> ST: ...
    @overload
    def __getitem__(self, index: slice | Sequence[SupportsIndex]) -> list[ST]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return the sample at a position, or a list for a slice or positions; negative ones count from the end."""
        found = self.select(normalise(index, len(self)).tolist())
        return found[0] if isinstance(index, SupportsIndex) else found

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[ST]:
        """Return many samples, in this order; a torch `DataLoader` calls this."""
        return self.select(indices)

    def head(self, n: int = 5) -> list[ST]:
        """Return the first samples."""
        return list(islice(self.ordered(), n))

    def get(self, key: str) -> ST:
        """Return the sample with a key; `SampleKeyError` if there is none."""
        row = self._shards.row_of(key)
        found = list(samples_of(self._shards.all()[row : row + 1], self._steps)) if row is not None else []
        if not found:
            raise SampleKeyError(key)
        return found[0]  # type: ignore[no-any-return]

    def select(self, indices: Sequence[SupportsIndex]) -> list[ST]:
        """Return the samples at these positions, in this order."""
        positions = [operator.index(one) for one in indices]
        rows = self._rows()
        if wrong := [one for one in positions if not 0 <= one < len(rows)]:
            raise RowError(f"expected positions of samples from 0 to {len(rows) - 1}, got {wrong[:10]}")
        return list(samples_of(rows[positions], self._steps))

    def wrap(self, sample: Mapping[str, Any]) -> ST:
        """Return the sample of a raw one of WebDataset: its packed bytes are under ``msgpack``."""
        found: ST = self._steps.typed()(_packed_of(sample, bytes))
        return found

    def wrap_batch(self, batch: Mapping[str, Any]) -> SampleBatch[ST]:
        """Return the batch of a raw one of WebDataset: a list of packed bytes is under ``msgpack``."""
        steps = self._steps.typed()
        return self.batch_type([steps(one) for one in _packed_of(batch, list)])

    # -- shards -----------------------------------------------------------------------------------------------------

    def process_shards(
        self,
        fn: Callable[[list[ST]], Any],
        *,
        shards: Sequence[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        on_shard_error: Callable[[str, Exception], None] | None = None,
    ) -> dict[str, Any]:
        """Return the results of a function that gets all samples of a shard, by shard.

        If it fails for some shards, `PartialFailureError` has the results of the others. `checkpoint` is a file with
        the names of shards that are done, which are left out; it is removed when all are done.
        """

        def work(shard: str) -> Any:
            found = self._shards.in_turn([shard], keep=False)
            return fn([sample for rows in found for sample in samples_of(rows, self._steps)])

        names = self.list_shards() if shards is None else list(shards)
        return process_shards(work, names, checkpoint, on_shard_error)

    # -- other tools ------------------------------------------------------------------------------------------------

    def to_dict(self, limit: int | None = None) -> dict[str, list[Any]]:
        """Return all samples, or the first, as a list of values for each field."""
        return columns_of(self._first(limit))

    def to_pandas(self, limit: int | None = None) -> Any:
        """Return all samples, or the first, as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame([row_of(one) for one in self._first(limit)])

    def _first(self, limit: int | None) -> Iterator[ST]:
        return islice(self.ordered(), limit)

    def to_parquet(
        self,
        path: str | os.PathLike[str],
        sample_map: Callable[[ST], Mapping[str, Any]] | None = None,
        maxcount: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Write a Parquet file, or files of at most `maxcount` samples: ``{stem}-000000{suffix}`` and so on.

        `sample_map` makes a dict of a sample; other arguments are those of `pandas.DataFrame.to_parquet`.
        """
        write_parquet(self.ordered(), path, sample_map or row_of, maxcount, self.column_names, kwargs)


def _function(function: Any) -> Callable[[Any], Any]:
    if not callable(function):
        raise ArgumentError(f"expected a function of a sample, got {describe(function)}")
    return function  # type: ignore[no-any-return]


def _packed_of(raw: Mapping[str, Any], kind: type) -> Any:
    if PACKED not in raw:
        raise FormatError(f"expected packed bytes under {PACKED!r}, got only {', '.join(raw) or 'nothing'}")
    if not isinstance(raw[PACKED], kind):
        raise FormatError(f"expected {kind.__name__} under {PACKED!r}, got {type(raw[PACKED]).__name__}")
    return raw[PACKED]
