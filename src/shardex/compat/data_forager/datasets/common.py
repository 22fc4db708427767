"""`Dataset`, the base class of datasets over an index, and `SubsampledDataset`, a random part of any dataset."""

from __future__ import annotations

import abc
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Self, SupportsIndex

import numpy as np

from shardex.compat.data_forager._named import Named
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.compat.formats.data_forager import SampleBytes, open_samples
from shardex.errors import ArgumentError, RowError
from shardex.rows import normalise


class Dataset(Named, metaclass=abc.ABCMeta):
    """Samples at the places of an index; a subclass says in `_process_sample` what the bytes of one mean.

    Files are mapped when they are first read, so a dataset can be used in threads, in forked and spawned processes and
    workers of a torch `DataLoader`, before or after it was read, and has no open files.
    """

    __rows: SampleBytes | None = None  # private: subclasses of users have attributes of their own

    @classmethod
    def create_from_index_on_filesystem(
        cls, base_path: str, index_data_folder: str = "index", name: str | None = None, **kwargs: Any
    ) -> Self:
        """Open the dataset whose index is in a folder of `base_path`; `kwargs` are those of the class."""
        return cls(IndexStore(base_path, index_data_folder=index_data_folder).load(), name=name, **kwargs)

    def __init__(self, sample_index: SampleIndex, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._sample_index = sample_index

    def initialize(self) -> None:
        """Look at the data files; called by the first access."""
        index = self._sample_index
        self.__rows = open_samples(index.file_locations, index.sample_locations, index._record, index._name)

    @property
    def is_initialized(self) -> bool:
        """Whether the data files were looked at."""
        return self.__rows is not None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_Dataset__rows"}

    def __len__(self) -> int:
        return len(self._sample_index)

    def __getitem__(self, idx: Any) -> Any:
        """Return a sample; for a slice, a list or an array of numbers, a list of samples."""
        try:
            row = operator.index(idx)
        except TypeError:
            return self._many(positions_of(idx, len(self)))
        if isinstance(idx, bool | np.bool_):
            raise ArgumentError(f"expected idx to be int or slice, got {idx!r}")
        rows = self._opened()
        size = len(self._sample_index)
        if not -size <= row < size:
            raise RowError(f"expected a sample from {-size} to {size - 1}, got {row}")
        row = row + size if row < 0 else row
        return self._processed(rows.record(row).tobytes(), row)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return many samples, read at once; a torch `DataLoader` calls it for each batch."""
        return self._for_batch(self._many(positions_of(list(indices), len(self))))

    def _for_batch(self, samples: list[Any]) -> list[Any]:
        """Return samples as the `collate_fn` of a `DataLoader` gets them."""
        return samples

    def _many(self, rows: Any) -> list[Any]:
        if type(self).__getitem__ is not Dataset.__getitem__:  # a subclass does more
            return [self[row] for row in rows.tolist()]
        return list(map(self._processed, self._opened().read_bytes(rows), rows.tolist()))

    def _opened(self) -> SampleBytes:
        if self.__rows is None:
            self.initialize()
        assert self.__rows is not None
        return self.__rows

    def _processed(self, data: bytes, row: int) -> Any:
        try:
            return self._process_sample(data)
        except Exception as error:
            raise self._located(error, f"{self._opened().location(row)}, sample {row}") from error.__cause__

    def _located(self, error: Exception, place: str) -> Exception:
        """Return an error of `_process_sample` with the place of the sample."""
        error.add_note(f"at {place}")
        return error

    @abc.abstractmethod
    def _process_sample(self, sample_bytes: bytes) -> Any:
        """Return the sample that these bytes mean."""


def positions_of(idx: Any, size: int) -> Any:
    """Return the positions that an index means, or raise an error that is an IndexError or a ValueError."""
    if isinstance(idx, slice):
        return np.arange(size)[idx]
    found = np.asarray(idx) if isinstance(idx, list | tuple | range | np.ndarray) else None
    if found is None or (found.size and found.dtype.kind not in "iub"):
        raise ArgumentError(f"expected idx to be int or slice, or a list of numbers, got {idx!r:.100}")
    return normalise(found if found.size else np.zeros(0, np.int64), size)


class SubsampledDataset:
    """A random part of a dataset: ``int(subsample_factor * len(dataset))`` samples, the same ones for the same seed.

    They are in the order of the dataset, or with `random_order` shuffled.
    """

    def __init__(
        self, dataset: Any, subsample_factor: float, seed: int | None = None, random_order: bool = False
    ) -> None:
        if not 0 < subsample_factor <= 1:
            raise ArgumentError(
                f"expected subsample_factor to be more than 0 and not more than 1, got {subsample_factor}"
            )
        self._dataset, self._subsample_factor = dataset, subsample_factor
        size = len(dataset)
        chosen = np.random.default_rng(seed).choice(size, size=int(subsample_factor * size), replace=False)
        self._indices = chosen if random_order else np.sort(chosen)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, idx: SupportsIndex | slice | Sequence[int]) -> Any:
        """Return a sample; for a slice, a list or an array of numbers, a list of samples."""
        try:
            number = operator.index(idx)  # type: ignore[arg-type]
        except TypeError:
            return self.__getitems__(positions_of(idx, len(self)).tolist())
        return self._dataset[int(self._indices[positions_of([number], len(self))[0]])]

    def __iter__(self) -> Iterator[Any]:
        return (self._dataset[one] for one in self._indices.tolist())

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return many samples, at once if the dataset can do that."""
        chosen = self._indices[positions_of(list(indices), len(self))].tolist()
        many = getattr(self._dataset, "__getitems__", None)
        return [self._dataset[one] for one in chosen] if many is None else list(many(chosen))
