"""Samples, one after another, into Arrow record batches of one schema: what the Arrow and Parquet writers fill.

A sample is taken whole or not at all: its fields go to packers (`packer.py`), and if one of them refuses its value,
or anything else goes wrong on the way, all forget what they have of that sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from shardex.arrow.encode import packer_of
from shardex.arrow.types import arrow_schema
from shardex.errors import SchemaError
from shardex.schema import Features, Optional, absent

__all__ = ["BatchBuilder"]


class BatchBuilder:
    """Collects samples into record batches.

    >>> from shardex.schema import Array
    >>> batch = BatchBuilder(Features.of({"x": Array("int8", (2,)), "s": str}))
    >>> batch.append({"x": [1, 2], "s": "a"})
    >>> batch.finish().to_pylist()
    [{'x': [1, 2], 's': 'a'}]
    >>> batch.append({"x": [1, 2, 3], "s": "a"})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int8[2], got int64[3] - at sample 1, field x
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.schema = arrow_schema(features)
        self._packers = [packer_of(feature) for feature in features.values()]
        self._appends = [(name, packer.append) for name, packer in zip(features, self._packers, strict=True)]
        self._expected = len(features) or -1  # without fields no sample is as expected
        self.rows = 0
        """Samples in the batch being collected."""
        self.finished = 0
        """Samples in the batches before."""

    @property
    def nbytes(self) -> int:
        """About how much has been collected."""
        return sum(packer.nbytes for packer in self._packers)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample, whole or not at all."""
        name: str | None = None
        try:
            for name, append in self._appends:
                append(sample[name])
            if len(sample) != self._expected:
                name = None
                self._check_names(sample)
            self.rows += 1
        except SchemaError as error:
            self._truncate()
            raise self._located(error, name) from None
        except BaseException as error:
            self._truncate()
            if not isinstance(error, KeyError) or name is None or name in sample:
                raise
            self.append(self._filled(sample))

    def withdraw(self) -> None:
        """Forget the last sample of the batch."""
        self.rows -= 1
        self._truncate()

    def _check_names(self, sample: Mapping[str, Any]) -> None:
        if not self.features:
            raise SchemaError("expected a schema with at least one field, got none")
        for name in sample:
            if name not in self.features:
                raise SchemaError(f"expected the fields {', '.join(self.features)}, got {name!r} too")

    def _filled(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample with `None` for the optional fields that it lacks."""
        for name, feature in self.features.items():
            if name not in sample and not isinstance(feature, Optional):
                raise self._located(absent(feature), name) from None
        # Names that the schema lacks stay, so that they are refused.
        return {**dict.fromkeys(self.features), **sample}

    def _located(self, error: SchemaError, name: str | None) -> SchemaError:
        field = "" if name is None else f", field {name}"
        return SchemaError(f"{error} - at sample {self.finished + self.rows}{field}")

    def _truncate(self) -> None:
        for packer in self._packers:
            packer.truncate(self.rows)

    def finish(self) -> pa.RecordBatch:
        """The samples collected, as one batch that is valid until the next `append`."""
        batch = pa.RecordBatch.from_arrays([packer.finish() for packer in self._packers], schema=self.schema)
        self.finished += self.rows
        self.rows = 0
        return batch
