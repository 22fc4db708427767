"""What a sample of several arrays is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from shardex.compat.formats import data_forager


@dataclass
class ArraySpec:
    """One array of a sample: its name, its dtype, and its first byte in the sample."""

    name: str
    dtype: str
    offset: int


@dataclass
class SampleSchema:
    """Arrays of `sample_size` numbers each; the bytes of a sample are computed if they are not given."""

    sample_size: int
    arrays: list[ArraySpec] = field(default_factory=list)
    total_bytes_per_sample: int | None = None

    def __post_init__(self) -> None:
        if self.total_bytes_per_sample is None and self.arrays:
            self.total_bytes_per_sample = sum(self.sample_size * np.dtype(one.dtype).itemsize for one in self.arrays)

    @classmethod
    def _of(cls, schema: data_forager.SampleSchema | None) -> SampleSchema | None:
        """Return what the index files describe."""
        if schema is None:
            return None
        arrays = [ArraySpec(one.name, one.dtype, one.offset) for one in schema.arrays]
        return cls(schema.sample_size, arrays, schema.total_bytes_per_sample)

    def _to_core(self) -> data_forager.SampleSchema:
        arrays = [data_forager.ArraySpec(one.name, one.dtype, one.offset) for one in self.arrays]
        return data_forager.SampleSchema(self.sample_size, arrays, self.total_bytes_per_sample)

    def _to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self._to_core()), indent=2)
