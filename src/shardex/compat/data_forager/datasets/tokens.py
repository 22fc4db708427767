"""`TokensDataset`: samples that are arrays of tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.compat.data_forager.datasets.common import Dataset
from shardex.compat.data_forager.sample_index import SampleIndex
from shardex.errors import SchemaError


class TokensDataset(Dataset):
    """Returns each sample as a read-only array of `token_dtype`; those of a batch can be written, as torch wants.

    An index of the original does not say which dtype the tokens have; one of shardex does, and another raises.
    """

    def __init__(self, sample_index: SampleIndex, token_dtype: Any, name: str | None = None, **kwargs: Any) -> None:
        super().__init__(sample_index, name=name, **kwargs)
        self._token_dtype: np.dtype[Any] = np.dtype(token_dtype)
        record = sample_index._record
        if record is not None and record.dtype is not None and np.dtype(record.dtype) != self._token_dtype:
            raise SchemaError(
                f"expected token_dtype={record.dtype}, with which the tokens were written, got {self._token_dtype}"
            )

    def _process_sample(self, sample_bytes: bytes) -> NDArray[Any]:
        if len(sample_bytes) % self._token_dtype.itemsize:
            raise SchemaError(
                f"expected tokens of {self._token_dtype}, got {len(sample_bytes)} bytes, which end in the middle of one"
            )
        return np.frombuffer(sample_bytes, self._token_dtype)

    def _for_batch(self, samples: list[Any]) -> list[Any]:
        return [writable(one) for one in samples]


def writable(array: Any) -> Any:
    """Return an array, copied if it is read-only: torch warns of those."""
    return array.copy() if isinstance(array, np.ndarray) and not array.flags.writeable else array
