"""`StableDataset`: the samples of one split, and `StableDatasetDict`: all splits, over datasets of shardex.

A `StableDataset` holds one `shardex.Dataset` of stored values, of which every view is a view, and says how stored
values become those of a sample: format, video options, transform.
"""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Self, SupportsIndex, overload

import numpy as np
import pyarrow as pa

from shardex.compat.stable_datasets._new_columns import (
    RowWriter,
    column_of,
    columns_of_rows,
    inferred_features,
    is_number,
    stacked_tensor,
    temporary_folder,
)
from shardex.compat.stable_datasets._video_decode import VideoDecodeConfig, with_decoded_videos
from shardex.compat.stable_datasets.backends.arrow_shards import AnyPath, ArrowBackend, view_table
from shardex.compat.stable_datasets.backends.protocol import BackendRows, StorageBackend
from shardex.compat.stable_datasets.cache import read_sharded_cache_meta, write_sharded_arrow_cache
from shardex.compat.stable_datasets.formatting import get_formatter
from shardex.compat.stable_datasets.iterable import StableIterableDataset
from shardex.compat.stable_datasets.samplers import Positions, ShardShuffleSampler, order_of, runs_by_shard
from shardex.compat.stable_datasets.schema import DatasetInfo, Features, Video
from shardex.dataset import Dataset, from_table, join
from shardex.errors import ArgumentError, RowError, ShardexError, TruncatedShardError
from shardex.order import Order, Span
from shardex.rows import normalise

Row = dict[str, Any]

_INFER_FROM = 100
"""Results of a function from which the features of new columns are found."""
_AT_ONCE = 64
"""Videos that a function of a batch decodes at once while all samples are read."""


class MissingPackageError(ShardexError, ImportError):
    """A package that only one method needs is not installed."""


class StableDataset:
    """The samples of a dataset as dicts: by position, as views, and in order.

    The rows are those of a `backend`, of Arrow files (`shard_paths`, or all of the cache in `shard_dir`), or of a
    `table`. Files are mapped, all of them: `max_open_shards` has no effect.

    >>> from shardex.compat.stable_datasets.schema import DatasetInfo, Features, Value
    >>> features = Features({"x": Value("int64")})
    >>> ds = StableDataset(features, DatasetInfo(features), table=pa.table({"x": [5, 6, 7]}))
    >>> len(ds), ds[-1], [row["x"] for row in ds[1:]]
    (3, {'x': 7}, [6, 7])
    """

    def __init__(
        self,
        features: Features,
        info: DatasetInfo,
        *,
        backend: StorageBackend | None = None,
        shard_paths: Sequence[AnyPath] | None = None,
        shard_row_counts: Sequence[int] | None = None,
        shard_dir: AnyPath | None = None,
        table: pa.Table | None = None,
        num_rows: int | None = None,
        max_open_shards: int = 4,
    ) -> None:
        operator.index(max_open_shards)
        self._features = features if isinstance(features, Features) else Features(features)
        self._info = info
        self._format_type: str | None = None
        self._decode_images = True
        self._video: VideoDecodeConfig | None = None
        self._transform: Callable[[Any], Any] | None = None
        if backend is None:
            shards = _shards(shard_paths, shard_row_counts, shard_dir)
            backend = ArrowBackend(
                **shards, table=table, schema=None if table is not None else _types(self._features, shards)
            )
        self._adopt(backend)
        if num_rows is not None and num_rows != len(self):
            raise TruncatedShardError(f"expected {num_rows} rows as num_rows says, got {len(self)}")
        self._prepare()

    def _adopt(self, backend: StorageBackend) -> None:
        """Take the rows of a backend, with the columns that the features name."""
        arrow = backend if isinstance(backend, ArrowBackend) else None
        data = Dataset(BackendRows(backend)) if arrow is None else arrow.data
        names = list(self._features)
        self._data: Dataset = data if data.fields == names else data.select(names)
        self._schema: pa.Schema = backend.schema
        self._counts = arrow.shard_row_counts if arrow is not None and arrow.is_file_backed else None
        folder: Any = getattr(backend, "cache_dir", None)
        self._cache_dir = None if folder is None else Path(folder)

    def _prepare(self) -> None:
        if self._video is not None and not isinstance(self._features.get(self._video.column), Video):
            self._video = None  # its column was removed
        self._formatter = get_formatter(self._format_type, self._features, self._decode_images, self._cache_dir)

    def _copy(self, **changes: Any) -> Self:
        """Return a dataset that differs in some attributes."""
        made = object.__new__(type(self))
        vars(made).update({**vars(self), **changes})
        made._prepare()
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_formatter"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._prepare()

    def __repr__(self) -> str:
        form = "" if self._format_type is None else f", format={self._format_type!r}"
        return f"{type(self).__name__}(num_rows={len(self)}, features={dict(self._features)}{form})"

    # -- properties --------------------------------------------------------------------------------------------

    @property
    def features(self) -> Features:
        """Names and features of the columns."""
        return self._features

    @property
    def info(self) -> DatasetInfo:
        """What the builder says of the dataset."""
        return self._info

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self._features)

    @property
    def num_rows(self) -> int:
        """Number of samples."""
        return len(self._data)

    @property
    def table(self) -> pa.Table:
        """The stored values of all samples of this view."""
        return view_table(self._data, self._schema)

    # -- samples -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._data)

    @overload
    def __getitem__(self, idx: slice) -> Self: ...
    @overload
    def __getitem__(self, idx: SupportsIndex) -> Any: ...
    def __getitem__(self, idx: Any) -> Any:
        """Return a sample for a number, which may be negative, and a view for a slice."""
        if isinstance(idx, slice):
            return self._copy(_data=self._data[idx])
        try:
            position = operator.index(idx)
        except TypeError:
            raise ArgumentError(
                f"expected a whole number or a slice, got {type(idx).__name__}; select(...) takes lists"
            ) from None
        length = len(self._data)
        if not -length <= position < length:
            raise RowError(f"expected a position from {-length} to {length - 1}, got {position}")
        row = self._formatter.format_row(self._data.sample(position % length))
        if self._video is not None:
            (row,) = with_decoded_videos([row], [position % length], self._video, self._cache_dir)
        return row if self._transform is None else self._transform(row)

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return many samples, in this order; a torch DataLoader calls this."""
        positions = normalise(indices, len(self))
        return self._finished(self._data.read(positions).to_samples(), positions.tolist())

    def __iter__(self) -> Iterator[Any]:
        return self._in_order(Span(len(self)))

    def iter_epoch(self, *, shuffle_shards: bool = True, seed: int | None = None) -> Iterator[Any]:
        """Iterate over all samples, shard by shard in random order; without a seed in another order every time.

        A view that is not in the order of the shards, such as a shuffled one, keeps its order.
        """
        runs = self.stored_runs()
        if shuffle_shards:
            numbers = list(range(len(runs)))
            np.random.default_rng(seed).shuffle(numbers)
            runs = [runs[number] for number in numbers]
        return chain.from_iterable(self._in_order(order_of(run)) for run in runs)

    def _in_order(self, order: Order) -> Iterator[Any]:
        first, size = 0, _AT_ONCE if self._video is not None and self._video.decode_fn_batched is not None else 1
        for columns in self._data.chunks(order):
            stored = columns.to_samples()
            if self._video is None:  # most datasets
                rows = map(self._formatter.format_row, stored)
                yield from rows if self._transform is None else map(self._transform, rows)
                continue
            positions = order.rows(np.arange(first, first + len(stored))).tolist()
            first += len(stored)
            for k in range(0, len(stored), size):
                yield from self._finished(stored[k : k + size], positions[k : k + size])

    def _finished(self, stored: Sequence[Mapping[str, Any]], positions: Sequence[int]) -> list[Any]:
        """Return samples of stored values: formatted, videos decoded, transformed."""
        rows: list[Any] = [self._formatter.format_row(row) for row in stored]
        if self._video is not None:
            rows = with_decoded_videos(rows, positions, self._video, self._cache_dir)
        return rows if self._transform is None else [self._transform(row) for row in rows]

    # -- shards ------------------------------------------------------------------------------------------------

    def positions_by_shard(self) -> list[Positions]:
        """Return the positions of the samples of each shard; of data in memory, all of them together."""
        return runs_by_shard(self._data.order, self._counts)[0]

    def stored_runs(self) -> list[Positions]:
        """Return the positions of the samples of each shard; all together if they are not in the order of shards."""
        runs, in_order = runs_by_shard(self._data.order, self._counts)
        return runs if in_order else [range(len(self))]

    # -- views -------------------------------------------------------------------------------------------------

    def select(self, indices: Any) -> Self:
        """Return a view of the samples at these positions, in this order; negative ones count from the end."""
        given = indices if isinstance(indices, list | tuple | range | np.ndarray) else list(indices)
        return self._copy(_data=self._data[normalise(given, len(self))])

    def shuffle(self, seed: int = 42) -> Self:
        """Return a view in random order."""
        return self.select(np.random.default_rng(seed).permutation(len(self)))

    def filter(self, fn: Callable[[Any], Any], *, batched: bool = False, batch_size: int = 1000) -> Self:
        """Return a view of the samples for which a function is true.

        With `batched` the function gets a dict with a list of the same values for each column, and returns a list.
        """
        if not batched:
            return self.select(np.flatnonzero([bool(fn(row)) for row in self]))
        kept: list[bool] = []
        rows = iter(self)
        while some := list(islice(rows, _checked_size(batch_size))):
            mask = [bool(one) for one in fn(columns_of_rows(some))]
            if len(mask) != len(some):
                raise ArgumentError(f"expected {len(some)} results for a batch of {len(some)} samples, got {len(mask)}")
            kept += mask
        return self.select(np.flatnonzero(kept))

    def train_test_split(self, test_size: float = 0.1, seed: int = 42) -> StableDatasetDict:
        """Return views of random samples, "train" and "test", which together are all."""
        if isinstance(test_size, bool) or not 0 <= test_size <= 1:
            raise ArgumentError(f"expected test_size from 0 to 1, the share of the test samples, got {test_size!r}")
        order = np.random.RandomState(seed).permutation(len(self))
        cut = int(len(self) * (1 - test_size))
        return StableDatasetDict({"train": self.select(order[:cut]), "test": self.select(order[cut:])})

    def with_format(self, format_type: str | None) -> Self:
        """Return a view with samples in a format.

        None: PIL images, numpy arrays and values of Python; "numpy"; "torch"; "raw": stored values.
        """
        return self._copy(_format_type=format_type)

    def with_transform(self, fn: Callable[[Any], Any] | None) -> Self:
        """Return a view whose samples are the results of a function of each sample, called when it is read."""
        if fn is not None and not callable(fn):
            raise ArgumentError(f"expected a function of one sample or None, got {type(fn).__name__}")
        return self._copy(_transform=fn)

    def set_decode(self, decode: bool) -> Self:
        """Return a view with images decoded, or as the stored bytes."""
        return self._copy(_decode_images=bool(decode))

    def set_video_decode(self, config: VideoDecodeConfig | Mapping[str, Any] | None = None, **kwargs: Any) -> Self:
        """Return a view that decodes a column of videos by these options; without any, one that does not."""
        if config is None and not kwargs:
            return self._copy(_video=None)
        chosen = VideoDecodeConfig.of(config, kwargs)
        if not isinstance(self._features.get(chosen.column), Video):
            known = [name for name, feature in self._features.items() if isinstance(feature, Video)]
            raise ArgumentError(f"expected a column of videos ({', '.join(known) or 'none'}), got {chosen.column!r}")
        return self._copy(_video=chosen)

    # -- columns -----------------------------------------------------------------------------------------------

    def add_column(self, name: str, column: Any) -> Self:
        """Return a dataset with one more column: Arrow data, an array, or a list with a value for each sample."""
        if name in self._features:
            raise ArgumentError(f"expected a name that no column has, got {name!r}")
        values, feature = column_of(column, name)
        if len(values) != len(self):
            raise ArgumentError(
                f"expected {len(self)} values, one for each sample, got {len(values)} - at column {name}"
            )
        added = pa.table({name: values})
        return self._copy(
            _data=join(self._data, from_table(added)),
            _features=Features({**self._features, name: feature}),
            _schema=_fields(self._schema, self._features).append(added.schema.field(0)),
            _counts=None,
        )

    def remove_columns(self, columns: str | Iterable[str]) -> Self:
        """Return a view without these columns."""
        names = [columns] if isinstance(columns, str) else list(columns)
        data = self._data.drop(names)
        return self._copy(_data=data, _features=Features({name: self._features[name] for name in data.fields}))

    def rename_column(self, old_name: str, new_name: str) -> Self:
        """Return a view with another name for a column."""
        return self.rename_columns({old_name: new_name})

    def rename_columns(self, mapping: Mapping[str, str]) -> Self:
        """Return a view with other names for some columns: old and new names."""
        if not mapping:
            return self
        fields = [
            field.with_name(mapping.get(field.name, field.name)) for field in _fields(self._schema, self._features)
        ]
        return self._copy(
            _data=self._data.rename(mapping),
            _features=Features({mapping.get(name, name): one for name, one in self._features.items()}),
            _schema=pa.schema(fields),
            _video=self._video and replace(self._video, column=mapping.get(self._video.column, self._video.column)),
        )

    # -- new data ----------------------------------------------------------------------------------------------

    def map(
        self,
        fn: Callable[..., Any],
        *,
        batched: bool = False,
        batch_size: int = 1000,
        with_indices: bool = False,
        remove_columns: str | Sequence[str] | None = None,
        features: Features | None = None,
        cache_dir: AnyPath | None = None,
    ) -> Self:
        """Return a dataset of the results of a function, which are written to a cache now.

        The function gets a sample in the format of this dataset (and its number, `with_indices`), and returns a dict of
        columns; with `batched`, a dict of lists. Columns that were there keep their features, those of new ones are
        `features`, or found in the first results. Without `cache_dir` the cache is a temporary folder, which exists
        as long as this process.
        """
        removed = {remove_columns} if isinstance(remove_columns, str) else {*(remove_columns or ())}
        writer = RowWriter(self._formatter)
        size = _checked_size(batch_size)
        rows = writer.mapped(self._stored_rows(size if batched else None), fn, batched, with_indices)
        first = list(islice(rows, _INFER_FROM))
        if features is None:
            found = inferred_features([result for result, _ in first], self._features) if first else self._features
            features = Features({name: one for name, one in found.items() if name not in removed})
        written = ({name: value for name, value in row.items() if name not in removed} for _, row in chain(first, rows))
        lineage = {
            "operation": "map",
            "batched": batched,
            "with_indices": with_indices,
            "remove_columns": sorted(removed) or None,
            "source_num_rows": len(self),
        }
        return self._written(written, features, cache_dir, batch_size, lineage)

    def flatten_indices(self, cache_dir: AnyPath | None = None) -> Self:
        """Return this view as a cache of its own, in order; a dataset that is no view is returned as it is."""
        if self._data.order == Span(len(self._data.rows)):
            return self
        stored = get_formatter(None, self._features, False, self._cache_dir)
        rows = RowWriter(stored).unchanged(self._stored_rows())
        lineage = {"operation": "flatten_indices", "source_num_rows": len(self._data.rows)}
        return self._written(rows, self._features, cache_dir, 1000, lineage)

    def _stored_rows(self, size: int | None = None) -> Iterator[list[Row]]:
        """Return the stored values of all samples, `size` samples at a time, or as many as are read together."""
        if size is None:
            yield from (columns.to_samples() for columns in self._data.chunks())
        else:
            for begin in range(0, len(self), size):
                yield self._data.read(np.arange(begin, min(begin + size, len(self)))).to_samples()

    def _written(
        self, rows: Iterator[Row], features: Features, folder: AnyPath | None, batch_size: int, lineage: dict[str, Any]
    ) -> Self:
        target = temporary_folder(f"shardex-{lineage['operation']}-") if folder is None else Path(folder)
        meta = write_sharded_arrow_cache(enumerate(rows), features, target, batch_size=batch_size, lineage=lineage)
        counts = meta.shard_row_counts
        written = StableDataset(features, self._info, shard_paths=meta.shard_paths, shard_row_counts=counts)
        kept = ("_data", "_features", "_schema", "_counts")
        return self._copy(**{name: getattr(written, name) for name in kept}, _cache_dir=target)

    def to_tensordict(self, columns: Sequence[str] | None = None) -> Any:
        """Return the columns of numbers, and of lists of one length, as a ``tensordict.TensorDict``."""
        try:
            tensordict = importlib.import_module("tensordict")
        except ImportError:
            raise MissingPackageError(
                "to_tensordict needs the package tensordict, which is not installed: pip install tensordict"
            ) from None
        names = [name for name in self._features if columns is None or name in columns]
        plain = [name for name in names if is_number(self._features[name])]
        found = self._data.select(plain).read(slice(None))
        tensors = {name: stacked_tensor(found[name], name) for name in plain}
        return tensordict.TensorDict(tensors, batch_size=[len(self)])

    # -- torch -------------------------------------------------------------------------------------------------

    def make_sampler(self, kind: str = "shard_shuffle", **kwargs: Any) -> ShardShuffleSampler:
        """Return a sampler for a torch DataLoader: "shard_shuffle", with the options `seed` and `within_shard`."""
        if kind != "shard_shuffle":
            raise ArgumentError(f"expected the kind 'shard_shuffle', got {kind!r}")
        return ShardShuffleSampler(self, **kwargs)

    def as_iterable(
        self,
        *,
        shuffle: bool = False,
        seed: int = 0,
        buffer_size: int = 10_000,
        transform: Callable[[Any], Any] | None = None,
    ) -> StableIterableDataset:
        """Return the samples as a stream that the workers of a torch DataLoader share."""
        return StableIterableDataset(self, shuffle=shuffle, seed=seed, buffer_size=buffer_size, transform=transform)


class StableDatasetDict(dict[str, StableDataset]):
    """The splits of a dataset by name."""

    def set_video_decode(
        self, config: VideoDecodeConfig | Mapping[str, Any] | None = None, **kwargs: Any
    ) -> StableDatasetDict:
        """Return the splits as views that decode videos by these options."""
        return StableDatasetDict({name: one.set_video_decode(config, **kwargs) for name, one in self.items()})


# -- parts --------------------------------------------------------------------------------------------------------


def _shards(paths: Sequence[AnyPath] | None, counts: Sequence[int] | None, folder: AnyPath | None) -> dict[str, Any]:
    """Return paths and numbers of rows of the shards: given, or those of the cache in a folder."""
    if folder is not None and paths is None:
        meta = read_sharded_cache_meta(Path(folder))
        return {"shard_paths": meta.shard_paths, "shard_row_counts": meta.shard_row_counts}
    if folder is not None and paths is not None:
        paths = [os.path.join(folder, path) for path in paths]  # absolute paths stay as they are
    return {"shard_paths": paths, "shard_row_counts": counts}


def _types(features: Features, shards: Mapping[str, Any]) -> pa.Schema | None:
    """Return the Arrow types of a dataset without shards, which only its features know."""
    return None if shards["shard_paths"] else features.to_arrow_schema()


def _fields(schema: pa.Schema, features: Features) -> pa.Schema:
    return pa.schema([schema.field(name) for name in features])


def _checked_size(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ArgumentError(f"expected batch_size to be a whole number of 1 or more, got {size!r}")
    return int(size)
