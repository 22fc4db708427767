"""`TokensWithAuxDataset`: samples of tokens and other arrays, such as a mask for the loss."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from shardex.compat.data_forager.datasets.common import Dataset
from shardex.compat.data_forager.datasets.tokens import writable
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.errors import ArgumentError, TruncatedShardError


class TokensWithAuxDataset(Dataset):
    """Returns each sample as a dict of read-only arrays by their names, as the schema of the index describes them.

    Those of a batch can be written, as torch wants.
    """

    @classmethod
    def create_from_index_on_filesystem(  # type: ignore[override]
        cls, base_path: str, name: str | None = None, *, index_data_folder: str = "index"
    ) -> Self:
        """Open the dataset whose index is in a folder of `base_path`."""
        return cls(sample_index=IndexStore(base_path, index_data_folder).load(), name=name)

    def __init__(self, sample_index: SampleIndex, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(sample_index, name=name, **kwargs)
        if sample_index.sample_schema is None:
            raise ArgumentError(
                "expected an index with sample_schema.json, got one without; use TokensDataset for samples of one array"
            )
        self._schema = schema = sample_index.sample_schema
        kinds = [(one, np.dtype(one.dtype)) for one in schema.arrays]
        self._arrays = [(one.name, dtype, one.offset) for one, dtype in kinds]
        self._end = max((one.offset + schema.sample_size * dtype.itemsize for one, dtype in kinds), default=0)

    def _process_sample(self, sample_bytes: bytes) -> dict[str, NDArray[Any]]:
        if len(sample_bytes) < self._end:
            raise TruncatedShardError(f"expected {self._end} bytes, as the schema says, got {len(sample_bytes)}")
        size = self._schema.sample_size
        return {name: np.frombuffer(sample_bytes, dtype, size, offset) for name, dtype, offset in self._arrays}

    def _for_batch(self, samples: list[Any]) -> list[Any]:
        dicts = (isinstance(one, dict) for one in samples)
        return [{n: writable(one) for n, one in some.items()} for some in samples] if all(dicts) else samples
