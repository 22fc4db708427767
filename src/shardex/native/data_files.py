"""Writes the data files of a native dataset: under temporary names, synced, then renamed.

`DataFileWriter` writes one Arrow file and computes its checksums; `FragmentWriter` splits samples into batches and
shards. A file is part of a dataset only if a manifest lists it (`commit`): files that a crash leaves behind are never
read. In a local folder finished files keep their temporary names until the end. Remote ones are uploaded one by one as
they are finished, so that this machine needs disk space for only one.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from shardex.columns import BLOCK, MOST_ROWS, BatchBuilder, EncodedColumns, ipc, number_array
from shardex.errors import ArgumentError, storage_errors
from shardex.features import Array, Bytes, Feature, Features, Json, Struct, Text, arrow_schema, unwrap_optional
from shardex.kernel import BlockWriter, Columns
from shardex.native.data_file_table import END_OF_STREAM, MAGIC_SIZE, encode_table, with_offset
from shardex.native.fragments import DataFile, Fragment, new_data_path
from shardex.native.keys import encode_keys, hash_keys
from shardex.sources import Place

BATCH_BYTES = 2 << 20
"""Size of a batch."""
_SMALL = 64 << 10
"""Buffers below this size are copied together before they are written."""


class _Messages:
    """What Arrow writes to a file, kept as a list of buffers until `take`; no byte is copied."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._position = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._parts.append(data)
        self._position += len(data)
        return len(data)

    def take(self) -> list[Any]:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class DataFileWriter:
    """One Arrow file: written under a temporary name, finished, then published under a name of its own.

    With `later` a thread may write the batches: their memory must not change until `wait` or `finish` returns.
    """

    def __init__(self, place: Place, schema: pa.Schema, *, later: bool = False) -> None:
        self._place = place
        self._draft = place.draft()
        self._blocks = BlockWriter(self._draft.file, BLOCK, later=later and not self._draft.is_elsewhere)
        self._sink = _Messages()
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema)
        self._fields = {name: name for name in schema.names}
        self._ends: list[int] = []
        self._layouts: list[ipc.BatchLayout] = []
        self._schema = 0
        self._foot = self._content = ""
        self._published: DataFile | None = None
        self.rows = 0

    @property
    def size(self) -> int:
        """Number of bytes written."""
        return self._blocks.size

    def write(self, batch: pa.RecordBatch) -> None:
        """Add a record batch."""
        # Arrow writes the schema with the first batch, so the bytes of that batch begin with the file.
        self._writer.write_batch(batch)
        parts = _join_small(self._sink.take())
        self._layouts.append(self._layout(_leading_bytes(parts)))
        self._write(parts)
        self._ends.append(self.size)
        self.rows += batch.num_rows

    def _layout(self, start: bytes) -> ipc.BatchLayout:
        """Return what the header of a batch says; `start` is where its bytes begin, with the whole header."""
        where, at = self._place.url, 0
        if not self._ends:
            schema = ipc.message_at(start, MAGIC_SIZE, where)
            assert schema is not None
            self._schema, at = xxhash.xxh3_64_intdigest(start[schema.begin : schema.end]), schema.end
        message = ipc.message_at(start, at, where)
        assert message is not None
        body = message.begin + message.head
        return with_offset(ipc.batch_layout(start[at:body], where), self.size + body)

    def _write(self, parts: list[Any]) -> None:
        with storage_errors(self._place.url, "write"):
            self._blocks.write(parts)

    def wait(self) -> None:
        """Wait until all batches are written."""
        with storage_errors(self._place.url, "write"):
            self._blocks.wait()

    def finish(self) -> None:
        """Write the foot and close the file, so that few files are open at a time; upload it if it is remote."""
        self._writer.close()
        del self._writer
        end = b"".join(self._sink.take())
        with storage_errors(self._place.url, "write"):
            sums = self._blocks.checksums()
        rows = [layout.rows for layout in self._layouts]
        table = encode_table(rows, self._ends, self._layouts, sums, self._schema)
        assert end.startswith(END_OF_STREAM) or not rows
        foot = END_OF_STREAM + table + end[len(END_OF_STREAM) :]
        self._foot, self._content = xxhash.xxh3_64_hexdigest(foot), xxhash.xxh3_128_hexdigest(foot)
        self._write([foot])
        with storage_errors(self._place.url, "write"):
            self._blocks.wait()
            self._blocks.close()
            self._draft.close(self.size)
        if self._draft.is_elsewhere:
            self.publish()

    def publish(self) -> DataFile:
        """Give the file its name and return its entry for a manifest."""
        if self._published is not None:
            return self._published
        path = new_data_path(self._content)
        self._draft.publish(path)
        self._published = DataFile(
            path,
            self.size,
            self._fields,
            foot=self._foot,
            end=self._ends[-1] if self._ends else 0,
            count=len(self._ends),
            rows=self.rows,
        )
        return self._published

    def discard(self) -> None:
        """Remove the temporary file, if it is not published."""
        self._blocks.close()
        self._draft.discard()


def _join_small(parts: Sequence[Any]) -> list[Any]:
    """Return the same bytes in fewer buffers: neighbours that are small are copied into one."""
    joined, small = list[Any](), list[Any]()
    for part in parts:
        if len(part) >= _SMALL:
            joined += [b"".join(small), part] if small else [part]
            small = []
        else:
            small.append(part)
    return [*joined, b"".join(small)] if small else joined


def _leading_bytes(parts: Sequence[Any]) -> bytes:
    """Return the bytes before the first buffer of values: the header is in them."""
    count = next((number for number, part in enumerate(parts) if not isinstance(part, bytes)), len(parts))
    found: bytes = parts[0] if count == 1 else b"".join(parts[:count])
    return found


def write_numbers(place: Place, columns: Mapping[str, np.ndarray[Any, Any]]) -> DataFileWriter:
    """Write columns of numbers into a finished file, as one batch, so that a reader can map them without a copy."""
    schema = pa.schema([(name, pa.from_numpy_dtype(column.dtype)) for name, column in columns.items()])
    shard = DataFileWriter(place, schema)
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
    feature = unwrap_optional(feature)
    if isinstance(feature, Struct):
        return sum(map(_offset_bytes, feature.fields.values()))
    any_array = isinstance(feature, Array) and feature.dtype is None
    return 8 if any_array or isinstance(feature, Text | Json | Bytes) else 0


class FragmentWriter:
    """Writes samples as fragments, one shard each; holds at most three batches in memory.

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
        self._builder = BatchBuilder(features, arrow_schema(features))
        self._shard_size, self._shard_rows = shard_size, math.inf if shard_rows is None else shard_rows
        self._key = key
        self._generated = key if generate_keys else None
        self._hashes: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        self._next_check = 1
        """Number of buffered samples at which their size is checked."""
        self._exact = exact
        self._shard: DataFileWriter | None = None
        self._done: list[tuple[DataFileWriter, DataFileWriter | None]] = []

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

    def fill(self, samples: Iterator[Any], convert: Callable[[Any], Mapping[str, Any]]) -> bool:
        """Add samples until a batch is full, which `flush` writes then; return False at their end.

        `convert` makes mappings of samples that are no dicts.
        """
        if self._generated is not None or self._exact:
            for sample in samples:
                self.append(sample if type(sample) is dict else convert(sample))
            return False
        try:
            return self._builder.extend(samples, BATCH_BYTES, min(self._room(), MOST_ROWS), convert)
        finally:
            self._next_check = self._check_at(self._builder.rows + 1)

    def flush(self) -> None:
        """Write the batch that `fill` has filled."""
        self._flush()
        self._next_check = self._check_at(1)

    def write(self, columns: Columns) -> None:
        """Add many samples, as columns: the files are the same as if they were appended one by one."""
        if self._generated is not None or self._exact:
            for sample in columns.to_samples():
                self.append(sample)
            return
        encoded = self._builder.encode(columns)
        try:
            self._write_encoded(encoded, len(columns))
        finally:
            if self._shard is not None:  # the caller may reuse its arrays
                self._shard.wait()

    def _write_encoded(self, encoded: EncodedColumns, rows: int) -> None:
        builder, begin = self._builder, 0
        while begin < rows:
            wanted = encoded.sizes[begin] + BATCH_BYTES - builder.nbytes
            enough = max(begin + 1, int(np.searchsorted(encoded.sizes, wanted)))
            full = self._check_at(builder.rows + enough - begin)
            end = min(begin + full - builder.rows, rows)
            builder.add(encoded, begin, end)
            if builder.rows == full:
                self._flush()
            begin = end
        if builder.rows and rows:
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
        if self._builder.rows:
            try:
                self._write(self._builder.finish())
            except BaseException:  # the samples of the batch are lost: nothing may be published
                self.discard()
                raise

    def _write(self, batch: pa.RecordBatch) -> None:
        self._shard = self._shard or DataFileWriter(self._place, self._builder.schema, later=True)
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

    def _key_file(self) -> DataFileWriter | None:
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
        done: Sequence[DataFileWriter | None] = [one for both in self._done for one in both]
        for shard in (*done, self._shard):
            if shard is not None:
                shard.discard()
