"""New values of old samples: one field's, collected in memory, written a batch at a time, in the end one file of them.

A transaction has one `Updates` for each field that it updates. The file is an overlay: ids of rows, and beside each the
value that it has from now on.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from shardex.arrow import BatchBuilder, number_array
from shardex.kernel import Integers
from shardex.schema import Feature, Features
from shardex.sources import Place
from shardex.store.commit import Overlay
from shardex.store.data_files import BATCH_BYTES, ShardWriter

__all__ = ["Updates"]


class Updates:
    """New values of one field, written as they come, with the ids of their rows. (One field, because of two updates of
    a row the later one must win, whichever other fields they are about.)"""

    def __init__(self, place: Place, name: str, feature: Feature) -> None:
        self._place = place
        self._name = name
        self._builder = BatchBuilder(Features({name: feature}))
        # The columns have names of their own, so that a field may be called anything.
        values = self._builder.schema.field(0).with_name("value")
        self._schema = pa.schema([pa.field("row", pa.uint64(), nullable=False), values])
        self._shard: ShardWriter | None = None
        self._waiting: list[int] = []
        self._ids: list[Integers] = []

    def append(self, row: int, value: Any) -> None:
        """Note the new value of a row."""
        self._builder.append({self._name: value})
        self._waiting.append(row)

    def withdraw(self) -> None:
        """Forget the last one."""
        self._builder.remove_last()
        self._waiting.pop()

    def spill(self) -> None:
        """Write to the disk what has become large."""
        if self._builder.nbytes >= BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        self._shard = self._shard or ShardWriter(self._place, self._schema)
        ids = np.array(self._waiting, np.int64)
        values = self._builder.finish()
        rows = number_array(ids.astype(np.uint64))
        self._shard.write(pa.RecordBatch.from_arrays([rows, *values.columns], schema=self._schema))
        self._ids.append(ids)
        self._waiting.clear()

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ids)

    def finish(self) -> Overlay:
        """The file of all of them."""
        self._flush()
        assert self._shard is not None
        self._shard.finish()
        file = msgspec.structs.replace(self._shard.publish(), fields={self._name: "value"})
        return Overlay(file, np.concatenate(self._ids))

    def discard(self) -> None:
        """Forget them."""
        if self._shard is not None:
            self._shard.discard()
