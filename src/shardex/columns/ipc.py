"""Opens Arrow IPC files, validates their batches, and finds the positions of batches without reading them.

Arrow's reader does not expose the position of a batch, which is needed to download only that part of a remote file. So
this module reads the few numbers it needs from the flatbuffers. They are untrusted: a number that points outside the
bytes is an error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shardex.columns.arrow_types import check_column_names
from shardex.errors import FormatError
from shardex.kernel import Integers

FOOTER_TAIL = 10
"""Bytes at the end of a file: the size of the footer, and the magic."""
_MAGIC = b"ARROW1"
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_ROWS, _NODES, _BUFFERS, _COMPRESSION = 0, 1, 2, 3
"""Numbers of fields in the header of a batch."""
_CONTINUES = 0xFFFFFFFF


def open_ipc_file(data: Any, where: str, columns: Iterable[int] = ()) -> pa.ipc.RecordBatchFileReader:
    """Open an Arrow IPC file: all columns, or those with these numbers; `where` is its path for error messages."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(data), options=pa.ipc.IpcReadOptions(included_fields=sorted(columns)))
        check_column_names(reader.schema)
    except (pa.ArrowException, OSError, FormatError) as error:
        raise FormatError(f"{where}: expected an Arrow IPC file, got something else: {error}") from None
    return reader


def valid_batch(batch: pa.RecordBatch, where: str) -> pa.RecordBatch:
    """Return the batch if its offsets and texts are valid: reading an invalid one can crash the process."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise FormatError(f"{where}: expected valid Arrow data, got a damaged batch: {error}") from None
    return batch


class Block(NamedTuple):
    """Position of a message: a header of `head` bytes, then the body of `body` bytes."""

    begin: int
    head: int
    body: int

    @property
    def end(self) -> int:
        """Offset of the end of the body."""
        return self.begin + self.head + self.body


def footer_size(tail: bytes, size: int, where: str) -> int:
    """Return the size of the footer including the tail, given the tail and the size of the file."""
    found = int.from_bytes(tail[:4], "little", signed=True) + FOOTER_TAIL
    if tail[4:] != _MAGIC or not FOOTER_TAIL < found <= size:
        raise FormatError(
            f"{where}: expected an Arrow IPC file, got one without the magic bytes at its end; is it cut off?"
        )
    return found


def footer_blocks(footer: bytes, size: int, where: str) -> tuple[list[Block], list[Block]]:
    """Return the positions of the dictionaries and of the batches that a footer lists."""
    try:
        root = _u32(footer, 0)
        found = _blocks(footer, _field(footer, root, 2)), _blocks(footer, _field(footer, root, 3))
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the footer of an Arrow IPC file, got something else") from None
    for block in (block for some in found for block in some):
        if block.begin < 0 or block.head < 8 or block.body < 0 or block.end > size:
            raise FormatError(f"{where}: expected batches inside the {size} bytes of the file, got {block}")
    return found


def batch_is_compressed(head: bytes, where: str) -> bool:
    """Return whether the body of a batch, or of a dictionary, is compressed, given its header, which is checked.

    Arrow aborts the process when it looks at an array whose length is negative.
    """
    try:
        batch = _batch(head, _message(head))
        nodes, length = _pairs(head, batch, _NODES), _field(head, batch, _ROWS)
        rows = struct.unpack_from("<q", head, length)[0] if length else 0
        if len(nodes) and (nodes.min() < 0 or nodes[0, 0] != rows):
            raise IndexError
        return bool(_field(head, batch, _COMPRESSION))
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the header of a batch, got something else") from None


class BatchLayout(NamedTuple):
    """What the header of a batch says: its rows, null counts and buffers, in the order of the format (depth first)."""

    rows: int
    nulls: Integers
    """Null count of each field, and of the parts inside it."""
    buffers: Integers
    """Begin in the body, and size, of each buffer: two columns."""


def batch_layout(head: Any, where: str) -> BatchLayout:
    """Return what the header of a batch says; the numbers are not compared with the body."""
    try:
        batch = _batch(head, _message(head))
        rows = _field(head, batch, _ROWS)
        length = struct.unpack_from("<q", head, rows)[0] if rows else 0
        return BatchLayout(length, _pairs(head, batch, _NODES)[:, 1], _pairs(head, batch, _BUFFERS))
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the header of a batch, got something else") from None


def message_head_size(prefix: Any) -> int:
    """Return the size of the header of a message, given its first 8 bytes; 8 if they are too few."""
    if len(prefix) < 8:
        return 8
    return 8 + _u32(prefix, 4) if _u32(prefix, 0) == _CONTINUES else 4 + _u32(prefix, 0)


def message_at(data: Any, at: int, where: str) -> Block | None:
    """Return the position of the message that begins at a byte of a stream, of whatever kind; None at its end."""
    try:
        return _message_at(data, at)[1]
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected an Arrow IPC stream, got something else at byte {at}") from None


def decompressed_size(data: Any, block: Block, where: str) -> int:
    """Return the size of the body of a batch, or of a dictionary, after decompression, which may be huge.

    Each compressed buffer begins with its decompressed size.
    """
    head = bytes(data[block.begin : block.begin + block.head])
    body = data[block.begin + block.head : block.end]
    try:
        batch = _batch(head, _message(head))
        if not _field(head, batch, _COMPRESSION):
            return block.body
        spans = _pairs(head, batch, _BUFFERS).tolist()
        sizes = [struct.unpack_from("<q", body, at)[0] for at, size in spans if size]
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the header of a batch, got something else") from None
    return block.body + sum(int(size) for size in sizes if size > 0)


def stream_blocks(data: Any, where: str) -> list[Block]:
    """Return the positions of the batches and dictionaries in an Arrow IPC stream."""
    found, at = list[Block](), 0
    try:
        while at + 4 <= len(data):
            kind, block = _message_at(data, at)
            if block is None:
                break
            if kind in (_DICTIONARY_BATCH, _RECORD_BATCH):
                found.append(block)
            at = block.end
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected an Arrow IPC stream, got something else at byte {at}") from None
    return found


def _message_at(data: Any, at: int) -> tuple[int, Block | None]:
    """Return the kind and the position of the message at a byte of a stream."""
    start = at + (8 if _u32(data, at) == _CONTINUES else 4)
    if not (length := _u32(data, start - 4)):
        return 0, None  # the end of the stream
    head = bytes(data[at : start + length])
    message = _message(head)
    kind, body = _field(head, message, 1), _field(head, message, 3)
    size = struct.unpack_from("<q", head, body)[0] if body else 0
    if size < 0 or len(head) != start + length - at:
        raise IndexError
    return head[kind] if kind else 0, Block(at, len(head), size)


def _message(head: bytes) -> int:
    """Return the position of the message in the bytes of a header."""
    start = 8 if _u32(head, 0) == _CONTINUES else 4
    return start + _u32(head, start)


def _batch(head: bytes, message: int) -> int:
    """Return the position of the record batch that is in a message, or in the dictionary in it."""
    at = _field(head, message, 2)
    batch = at + _u32(head, at)
    if (kind := _field(head, message, 1)) and head[kind] == _DICTIONARY_BATCH:
        at = _field(head, batch, 1)
        batch = at + _u32(head, at)
    return batch


def _pairs(head: Any, batch: int, field: int) -> Integers:
    """Return the pairs of numbers in a vector of a record batch, as rows."""
    if not (vector := _field(head, batch, field)):
        return np.empty((0, 2), np.int64)
    vector += _u32(head, vector)
    count = _u32(head, vector)
    if vector + 4 + 16 * count > len(head):
        raise IndexError
    return np.frombuffer(head, "<i8", 2 * count, vector + 4).astype(np.int64).reshape(-1, 2)


def _blocks(footer: bytes, field: int) -> list[Block]:
    if not field:
        return []
    vector = field + _u32(footer, field)
    count = _u32(footer, vector)
    if vector + 4 + 24 * count > len(footer):
        raise IndexError
    return [Block(*struct.unpack_from("<qi4xq", footer, vector + 4 + 24 * k)) for k in range(count)]


def _field(data: Any, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffers table, 0 if it is missing."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise IndexError
    slot = 4 + 2 * number
    (size,) = struct.unpack_from("<H", data, vtable)
    offset: int = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _u32(data: Any, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
