"""Writes the data files of a native dataset: under temporary names, synced, then renamed.

`ShardWriter` writes one Arrow file and computes its checksums; `FragmentWriter` splits samples into batches and shards.
A file is part of a dataset only if a manifest lists it (`commit`), so files that a crash leaves behind are never read.
In a local folder finished files keep their temporary names until the end. Remote ones are uploaded one by one as they
are finished, so that this machine needs disk space for only one.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardex.arrow import BatchBuilder, number_array
from shardex.errors import ArgumentError, storage_errors
from shardex.kernel import Columns
from shardex.schema import Array, Bytes, Feature, Features, Json, Optional, Struct, Text
from shardex.sources import Draft, Place
from shardex.store.keys import encode_keys, hash_keys
from shardex.store.manifest import Batch, DataFile, Fragment, new_data_path

BATCH_BYTES = 2 << 20
"""Size of a batch. The checksum of a batch is compared when a row of it is first read: half a millisecond for 2 MiB,
page faults included."""


class _HashingFile:
    """A file that computes checksums while it is written; `cut` returns that of the bytes since the last `cut`."""

    def __init__(self, draft: Draft, where: str) -> None:
        self._draft = draft
        self._where = where
        self._digest = xxhash.xxh3_64()
        self.position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._digest.update(data)
        with storage_errors(self._where, "write"):
            self._draft.file.write(data)
        self.position += len(data)
        return len(data)

    def cut(self) -> str:
        digest, self._digest = self._digest.hexdigest(), xxhash.xxh3_64()
        return digest

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class ShardWriter:
    """One Arrow file: written under a temporary name, finished, then published under a name of its own."""

    def __init__(self, place: Place, schema: pa.Schema) -> None:
        self._place = place
        self._draft = place.draft()
        self._sink = _HashingFile(self._draft, place.url)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema)
        self._fields = {name: name for name in schema.names}
        self._batches: list[Batch] = []
        self._foot = ""
        self._published: DataFile | None = None
        self.rows = 0

    @property
    def size(self) -> int:
        """Number of bytes written."""
        return self._sink.position

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a record batch."""
        # Arrow writes the schema with the first batch, so the bytes of that batch begin with the file.
        begin = self._batches[-1].end if self._batches else 0
        self._writer.write_batch(batch)
        self._batches.append(Batch(batch.num_rows, begin, self._sink.position, self._sink.cut()))
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Write the foot and close the file, so that few files are open at a time; upload it if it is remote."""
        self._writer.close()
        del self._writer
        self._foot = self._sink.cut()
        with storage_errors(self._place.url, "write"):
            self._draft.close(self._sink.position)
        if self._place.is_remote:
            self.publish()

    def publish(self) -> DataFile:
        """Give the file its name and return its entry for a manifest."""
        if self._published is not None:
            return self._published
        path = new_data_path((batch.xxh3 for batch in self._batches), self._foot)
        self._draft.publish(path)
        self._published = DataFile(path, self._sink.position, self._fields, self._batches, self._foot)
        return self._published

    def discard(self) -> None:
        """Remove the temporary file, if it is not published."""
        self._draft.discard()


def write_numbers(place: Place, columns: Mapping[str, np.ndarray[Any, Any]]) -> ShardWriter:
    """Write columns of numbers into a finished file, as one batch, so that a reader can map them without a copy."""
    schema = pa.schema([(name, pa.from_numpy_dtype(column.dtype)) for name, column in columns.items()])
    shard = ShardWriter(place, schema)
    try:
        arrays = [number_array(np.ascontiguousarray(column)) for column in columns.values()]
        if len(arrays[0]):
            shard.write(pa.record_batch(arrays, schema))
        shard.finish()
    except BaseException:
        shard.discard()
        raise
    return shard


def _offset_bytes(feature: Feature) -> int:
    """Return the size of the offsets of one value, but for values inside of lists."""
    if isinstance(feature, Optional):
        return _offset_bytes(feature.feature)
    if isinstance(feature, Struct):
        return sum(map(_offset_bytes, feature.fields.values()))
    any_array = isinstance(feature, Array) and feature.dtype is None
    return 8 if any_array or isinstance(feature, Text | Json | Bytes) else 0


class FragmentWriter:
    """Writes samples as fragments, one shard each; holds at most one batch in memory.

    A shard ends after the batch with which it has `shard_size` bytes; if `exact`, before the sample with which it would
    have more.
    """

    def __init__(
        self,
        place: Place,
        features: Features,
        *,
        shard_size: int = 512 << 20,
        shard_rows: int | None = None,
        key: str | None = None,
        generate_keys: bool = False,
        exact: bool = False,
    ) -> None:
        if shard_size < 1 or (shard_rows is not None and shard_rows < 1):
            raise ArgumentError(f"expected shards of at least 1 byte and 1 row, got {shard_size} and {shard_rows}")
        self._place = place
        self._builder = BatchBuilder(features)
        self._shard_size, self._shard_rows = shard_size, math.inf if shard_rows is None else shard_rows
        self._key = key
        self._generated = key if generate_keys else None
        self._hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._next_check = 1
        """Number of buffered samples at which their size is checked."""
        self._exact = exact
        self._shard: ShardWriter | None = None
        self._done: list[tuple[ShardWriter, ShardWriter | None]] = []

    @property
    def samples(self) -> int:
        """Number of samples added."""
        return self._builder.finished + self._builder.rows

    def append(self, sample: Mapping[str, Any]) -> None:
        """Add one sample."""
        builder = self._builder
        if self._generated is not None and sample.get(self._generated) is None:
            sample = {**sample, self._generated: uuid.uuid4().hex}
        builder.append(sample)
        if builder.rows >= self._next_check:
            self._flush_if_full(sample)

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        if self._generated is not None or self._exact:
            for sample in columns.to_samples():
                self.append(sample)
            return
        builder, encoded, begin = self._builder, self._builder.encode(columns), 0
        while begin < len(columns):
            wanted = encoded.sizes[begin] + BATCH_BYTES - builder.nbytes
            enough = max(begin + 1, int(np.searchsorted(encoded.sizes, wanted)))
            full = self._check_at(builder.rows + enough - begin)
            end = min(begin + full - builder.rows, len(columns))
            builder.add(encoded, begin, end)
            if builder.rows == full:
                self._flush()
            begin = end
        if builder.rows and len(columns):
            builder.copy_last(encoded)
        self._next_check = self._check_at(builder.rows + 1)

    def _flush_if_full(self, last: Mapping[str, Any]) -> None:
        """Write a batch if it is large enough or fills the shard; set after how many samples to check again."""
        if self._exact and self._is_too_large():
            self._builder.remove_last()
            self._flush()
            self._finish_shard()
            self._builder.append(last)
        if self._builder.rows == self._room() or self._builder.nbytes >= BATCH_BYTES:
            self._flush()
        self._next_check = self._check_at(self._builder.rows + 1)

    def _is_too_large(self) -> bool:
        """Return True if the last sample makes the shard too large and is not the only one."""
        written, rows = (self._shard.size, self._shard.rows) if self._shard else (0, 0)
        size = written + self._builder.nbytes + self._overhead + self._row_overhead * self._builder.rows
        return size > self._shard_size and rows + self._builder.rows > 1

    @cached_property
    def _overhead(self) -> int:
        """Bytes of a file besides samples: the schema, twice, and what Arrow writes for a batch and its columns."""
        return 2 * int(self._builder.schema.serialize().size) + 512 + 256 * len(self._builder.schema)

    @cached_property
    def _row_overhead(self) -> int:
        """Bytes of a sample that `BatchBuilder` does not count: where a text or other bytes begin."""
        return sum(map(_offset_bytes, self._builder.features.values()))

    def _check_at(self, rows: int) -> Any:
        """Return the first number of samples, from `rows` on, at which the size of a batch is checked."""
        if self._exact:
            return rows
        return min(-(-rows // 16) * 16 if rows > 16 else 1 << (rows - 1).bit_length(), self._room())

    def _room(self) -> Any:
        return self._shard_rows - (self._shard.rows if self._shard else 0)

    def _flush(self) -> None:
        # In this thread: a separate thread for the disk made writing slower, 1.2x for series and 1.7x for images,
        # because it competes for the GIL with the thread that collects samples.
        if self._builder.rows:
            try:
                self._write(self._builder.finish())
            except BaseException:  # the samples of the batch are lost: nothing may be published
                self.discard()
                raise

    def _write(self, batch: pa.RecordBatch) -> None:
        self._shard = self._shard or ShardWriter(self._place, self._builder.schema)
        if self._key is not None:
            self._hashes.append(hash_keys(batch.column(self._key).to_pylist()))
        self._shard.write(batch)
        if self._shard.size >= self._shard_size or self._shard.rows == self._shard_rows:
            self._finish_shard()

    def _finish_shard(self) -> None:
        if self._shard is not None:
            self._shard.finish()
            self._done.append((self._shard, self._key_file()))
            self._shard = None

    def _key_file(self) -> ShardWriter | None:
        if self._key is None:
            return None
        hashes, rows = encode_keys(np.concatenate(self._hashes))
        self._hashes.clear()
        return write_numbers(self._place, {"hash": hashes, "row": rows})

    def complete(self) -> None:
        """Write buffered samples and close the last file."""
        self._flush()
        self._finish_shard()

    def finish(self) -> list[Fragment]:
        """Write buffered samples, publish all files and return the fragments, which have no ids yet."""
        self.complete()
        return [
            Fragment(shard.rows, [shard.publish()], keys=None if keys is None else keys.publish())
            for shard, keys in self._done
        ]

    def discard(self) -> None:
        """Remove temporary files. Published ones stay: a manifest that names them may have been published."""
        done: Sequence[ShardWriter | None] = [one for both in self._done for one in both]
        for shard in (*done, self._shard):
            if shard is not None:
                shard.discard()
