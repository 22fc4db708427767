"""`BatchBuilder`: collects samples, appended one by one, into Arrow record batches for the Arrow and Parquet writers.

A sample is appended whole or not at all: if an encoder (`encode`) refuses a value, or anything else fails, the encoders
of all fields drop their values of that sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from shardex.arrow.encode import encoder_of
from shardex.arrow.types import arrow_schema
from shardex.errors import SchemaError
from shardex.kernel import MISSING
from shardex.schema import Features, fit, located, refuse_unknown_fields


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
        self._encoders = [encoder_of(feature) for feature in features.values()]
        self._appends = [(name, encoder.append) for name, encoder in zip(features, self._encoders, strict=True)]
        self._expected = len(features) or -1  # -1 sends every sample to the check, which raises
        self.rows = 0
        """Samples in the current batch."""
        self.finished = 0
        """Samples in the finished batches."""
        self.place = ""
        """What errors call the next sample; by default its number among those appended."""

    @property
    def nbytes(self) -> int:
        """Approximate size of the current batch."""
        return sum(encoder.nbytes for encoder in self._encoders)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Append one sample, whole or not at all."""
        name: str | None = None
        try:
            for name, append in self._appends:
                append(sample[name])
            if len(sample) != self._expected:
                name = None
                if not self.features:
                    raise SchemaError("expected a schema with at least one field, got none")
                refuse_unknown_fields(sample, self.features)
            self.rows += 1
        except SchemaError as error:
            self._truncate()
            raise self._located(error, name) from None
        except BaseException as error:
            self._truncate()
            if not isinstance(error, KeyError) or name is None or name in sample:
                raise
            self.append(self._complete(sample))

    def remove_last(self) -> None:
        """Remove the last sample of the current batch."""
        self.rows -= 1
        self._truncate()

    def _complete(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sample with `None` for the optional fields that it lacks; `append` raises for unknown fields."""
        complete = dict(sample)
        for name, feature in self.features.items():
            if name not in sample:
                try:
                    complete[name] = fit(MISSING, feature)
                except SchemaError as error:
                    raise self._located(error, name) from None
        return complete

    def _located(self, error: SchemaError, name: str | None) -> SchemaError:
        field = "" if name is None else f", field {name}"
        return located(error, f"{self.place or f'sample {self.finished + self.rows}'}{field}")

    def _truncate(self) -> None:
        for encoder in self._encoders:
            encoder.truncate(self.rows)

    def finish(self) -> pa.RecordBatch:
        """Return the collected samples as one batch and start the next."""
        batch = pa.RecordBatch.from_arrays([encoder.finish() for encoder in self._encoders], schema=self.schema)
        self.finished += self.rows
        self.rows = 0
        return batch
