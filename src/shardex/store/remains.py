"""What is left of the data files of a native dataset: which batches are whole, and how to read those without the rest.

`IntactBatches` holds a file against what its manifest says of it. Bytes come by plain reads, because a bad disk answers
those with an error and a mapped page with the end of the process. A batch carries all that it needs but the schema,
so it can be read when the foot of the file, or all that came after it, is gone. `content_name` needs no manifest: a
data file is named by its content.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import xxhash

from shardex.arrow import schema_text
from shardex.errors import FormatError, ShardexError
from shardex.formats import open_file, validated
from shardex.sources import ByteRange, Source
from shardex.store.manifest import Batch, DataFile

__all__ = ["Fault", "IntactBatches", "content_name"]

_REFUSED = (pa.ArrowException, OSError, ShardexError)
_MAGIC = b"ARROW1\0\0"
_GOES_ON = b"\xff\xff\xff\xff"
_PIECE = 8 << 20
_LONGEST_HEAD = 64 << 20

Step = Callable[[int], object]
"""Is told how many bytes were looked at."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a file: with one batch, or with what all of it depends on."""

    what: str
    batch: int | None = None


@dataclass
class IntactBatches:
    """A data file, looked at closely; `columns` are those that readers expect in it.

    >>> import tempfile; from shardex import write; from shardex.store.manifest import read_manifest
    >>> from shardex.sources.local import LocalSource
    >>> place = LocalSource(write(tempfile.mkdtemp() + "/d", [{"x": 1}, {"x": 2}]).rows.opened.what)
    >>> remains = IntactBatches(place, read_manifest(place, 1).fragments[0].groups[0], [pa.field("x", pa.int64())])
    >>> remains.examine(), remains.batch(0).to_pydict()
    ([], {'x': [1, 2]})
    """

    source: Source
    file: DataFile
    columns: Sequence[pa.Field]
    whole: set[int] = field(default_factory=set)
    """The batches that can be read, once `examine` has found them."""
    _framed: bool = False

    def examine(self, step: Step = int) -> list[Fault]:
        """Everything that is wrong with it."""
        try:
            size = self.source.stat(self.file.path).size
        except ShardexError as error:
            step(self.file.size)
            return [Fault(_reason(error))]
        faults = []
        for number, batch in enumerate(self.file.batches):
            if batch.end <= size and (fault := self._checked(number, batch)) is not None:
                faults.append(fault)
            step(batch.end - batch.begin)
        step(self.file.size - self.file.batches[-1].end)
        frame = self._about_the_frame(size)
        self._framed = not frame
        return [*frame, *faults, *self._about_the_content()]

    def _checked(self, number: int, batch: Batch) -> Fault | None:
        try:
            found = xxhash.xxh3_64_hexdigest(self._bytes(batch.begin, batch.end))
        except ShardexError as error:
            return Fault(_reason(error), number)
        if found != batch.xxh3:
            stretch = f"batch {number} (bytes {batch.begin} to {batch.end})"
            return Fault(f"expected {stretch} as it was written, got other bytes", number)
        self.whole.add(number)
        return None

    def _about_the_frame(self, size: int) -> list[Fault]:
        """Size and foot: without them no reader opens the file."""
        count, end = len(self.file.batches), self.file.batches[-1].end
        if size != self.file.size:
            left = f"{len(self.whole)} of {count} batches are whole"
            return [Fault(f"expected {self.file.size} bytes, got {size}; {left}")]
        try:
            if xxhash.xxh3_64_hexdigest(self._bytes(end, size)) == self.file.foot:
                return []
        except ShardexError as error:
            return [Fault(_reason(error))]
        return [Fault(f"expected the foot (bytes {end} to {size}) as it was written, got other bytes")]

    def _about_the_content(self) -> list[Fault]:
        """What the right bytes hold: wrong only if they were written so."""
        if not self.whole:
            return []
        try:
            schema = self.schema
        except _REFUSED as error:
            self.whole.clear()
            return [Fault(_reason(error))]
        if strange := self._strange_columns(schema):
            self.whole.clear()
            return [Fault(strange)]
        faults = [fault for number in sorted(self.whole) if (fault := self._about_batch(number)) is not None]
        self.whole -= {fault.batch for fault in faults if fault.batch is not None}
        return faults

    def _strange_columns(self, schema: pa.Schema) -> str:
        for wanted in self.columns:
            if wanted.name not in schema.names or schema.field(wanted.name).type != wanted.type:
                return f"expected a column {wanted.name} of {wanted.type}, got {schema_text(schema)}"
        return ""

    def _about_batch(self, number: int) -> Fault | None:
        expected = self.file.batches[number].rows
        try:
            batch = self._decoded(self._bytes(*self._extent(number)), number)
        except _REFUSED as error:
            return Fault(_reason(error), number)
        if batch.num_rows != expected:
            return Fault(f"expected {expected} rows in batch {number}, got {batch.num_rows}", number)
        for wanted in self.columns:
            if not wanted.nullable and batch.column(wanted.name).null_count:
                return Fault(f"expected a value in every row of batch {number}, got nulls in {wanted.name}", number)
        return None

    # -- reading ----------------------------------------------------------------------------------------------

    def batch(self, number: int) -> pa.RecordBatch:
        """One of the whole batches, mapped."""
        if number not in self.whole:
            raise FormatError(f"{self.file.path}: expected batch {number} to be whole, it is not")
        begin, end = self._extent(number)
        self.source.fetch(self.file.path, [ByteRange(begin, end - begin)])
        return self._decoded(self._mapped[begin:end], number)

    @cached_property
    def _mapped(self) -> memoryview:
        return self.source.map(self.file.path)

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema, which the stretch of the first batch begins with and the foot repeats."""
        if 0 in self.whole:
            return self._stream(self._bytes(*self._extent(0))).schema
        if not self._framed:  # Arrow must not see bytes that nothing vouches for
            raise FormatError("expected the first batch or the foot to tell the schema, both are damaged")
        return open_file(self.source.load(self.file.path), self.file.path).schema

    def _extent(self, number: int) -> tuple[int, int]:
        return self.file.batches[number].begin, self.file.batches[number].end

    def _bytes(self, begin: int, end: int) -> memoryview:
        return self.source.read(self.file.path, [ByteRange(begin, end - begin)])[0]

    def _stream(self, data: memoryview) -> pa.ipc.RecordBatchStreamReader:
        return pa.ipc.open_stream(pa.py_buffer(data[len(_MAGIC) :]))

    def _decoded(self, data: memoryview, number: int) -> pa.RecordBatch:
        """The record batch in these bytes, which are as they were written."""
        if number == 0:
            found = self._stream(data).read_next_batch()
        else:
            found = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self.schema)
        return validated(found, f"batch {number}")


def _reason(error: Exception) -> str:
    """What went wrong, without the number that the system's errors begin with."""
    return str(getattr(error, "strerror", None) or error)


# -- without a manifest -----------------------------------------------------------------------------------------


def content_name(source: Source, path: str) -> str | None:
    """The name that a file has if it is a data file as it was written; none if it is not even like one."""
    digests = []
    try:
        for begin, end in _stretches(source, path):
            digests.append(_digest(source, path, begin, end))
    except (ShardexError, struct.error):
        return None
    return f"data/{xxhash.xxh3_128_hexdigest(''.join(digests).encode())}.arrow"


def _digest(source: Source, path: str, begin: int, end: int) -> str:
    digest = xxhash.xxh3_64()
    for at in range(begin, end, _PIECE):
        digest.update(source.read(path, [ByteRange(at, min(_PIECE, end - at))])[0])
    return digest.hexdigest()


def _stretches(source: Source, path: str) -> Iterator[tuple[int, int]]:
    """Where each batch lies, and the foot: by the lengths that messages begin with."""
    begin, at, size = 0, len(_MAGIC), source.stat(path).size
    schema = True
    while True:
        mark, length = source.read(path, [ByteRange(at, 4), ByteRange(at + 4, 4)])
        (head,) = struct.unpack("<i", length)
        if bytes(mark) != _GOES_ON or not 0 <= head <= _LONGEST_HEAD:
            raise FormatError(f"expected the length of a message at byte {at}, got {bytes(mark)!r}")
        if head == 0:
            yield begin, size
            return
        at += 8 + head + _body_length(source.read(path, [ByteRange(at + 8, head)])[0])
        if not schema:
            yield begin, at
            begin = at
        schema = False


def _body_length(message: memoryview) -> int:
    """The fourth field of a flatbuffer table `Message`: how many bytes follow it."""
    (table,) = struct.unpack_from("<I", message)
    (back,) = struct.unpack_from("<i", message, table)
    size, _ = struct.unpack_from("<HH", message, table - back)
    slot = 4 + 2 * 3
    if size < slot + 2:
        return 0
    (at,) = struct.unpack_from("<H", message, table - back + slot)
    if not at:
        return 0
    (length,) = struct.unpack_from("<q", message, table + at)
    if length < 0:
        raise FormatError(f"expected the length of what follows a message, got {length}")
    return int(length)
