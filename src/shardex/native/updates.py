"""Writes the overlay of one field: new values of existing samples, in batches, into one file.

A transaction (`edit`) has one `Updates` for each field that it updates. The file holds the ids of rows and their new
values.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardex.columns import BatchBuilder, number_array
from shardex.features import Feature, Features, arrow_schema
from shardex.kernel import Integers
from shardex.native.commit import Overlay
from shardex.native.data_files import BATCH_BYTES, DataFileWriter
from shardex.sources import Place


class Updates:
    """New values of one field with the ids of their rows.

    Each field has its own file: of two updates of a row the later one must win, whatever other fields they change.
    """

    def __init__(self, place: Place, name: str, feature: Feature) -> None:
        self._place = place
        self._name = name
        self._builder = BatchBuilder(Features({name: feature}), arrow_schema(Features({name: feature})))
        # The column is not named after the field, so that a field may be called "row".
        values = self._builder.schema.field(0).with_name("value")
        self._schema = pa.schema([pa.field("row", pa.uint64(), nullable=False), values])
        self._shard: DataFileWriter | None = None
        self._waiting: list[int] = []
        self._ids: list[Integers] = []

    def append(self, row: int, value: Any, place: str) -> None:
        """Add the new value of a row; errors say `place`."""
        self._builder.place = place
        self._builder.append({self._name: value})
        self._waiting.append(row)

    def extend(self, rows: Integers, values: pa.Array) -> None:
        """Write the new values of many rows."""
        self._flush()
        step = max(1, BATCH_BYTES * len(rows) // max(1, values.nbytes))
        for at in range(0, len(rows), step):
            self._write(rows[at : at + step], values[at : at + step])

    def remove_last(self) -> None:
        """Remove the value that was added last."""
        self._builder.remove_last()
        self._waiting.pop()

    def spill(self) -> None:
        """Write the buffered values if they are large enough."""
        if self._builder.nbytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._write(np.array(self._waiting, np.int64), self._builder.finish().column(0))
            self._waiting.clear()

    def _write(self, ids: Integers, values: pa.Array) -> None:
        self._shard = self._shard or DataFileWriter(self._place, self._schema)
        rows = number_array(ids.astype(np.uint64))
        self._shard.write(pa.RecordBatch.from_arrays([rows, values], schema=self._schema))
        self._ids.append(ids)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ids)

    def finish(self) -> Overlay:
        """Publish the file and return it as an overlay."""
        self._flush()
        assert self._shard is not None
        self._shard.finish()
        file = msgspec.structs.replace(self._shard.publish(), fields={self._name: "value"})
        return Overlay(file, np.concatenate(self._ids))

    def discard(self) -> None:
        """Remove the temporary file."""
        if self._shard is not None:
            self._shard.discard()
