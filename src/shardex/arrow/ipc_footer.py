"""The foot of an Arrow IPC file: where its batches lie, without looking at them.

Arrow's own reader tells of a batch what is in it, not where it is; a file that lies elsewhere has to be fetched before
it is read. So the few numbers that are needed are taken out of the flatbuffers here. All of it is untrusted: a number
that leads out of the bytes is an error.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from shardex.errors import FormatError

__all__ = ["FOOTER_TAIL", "Block", "batch_is_compressed", "footer_blocks", "footer_size"]

FOOTER_TAIL = 10
"""Bytes at the end of a file: the size of the foot, and the magic."""
_MAGIC = b"ARROW1"
_COMPRESSION = 3
_CONTINUES = 0xFFFFFFFF


class Block(NamedTuple):
    """A message of a file: its head of `head` bytes, and its body after it."""

    begin: int
    head: int
    body: int

    @property
    def end(self) -> int:
        """Where the body ends."""
        return self.begin + self.head + self.body


def footer_size(tail: bytes, size: int, where: str) -> int:
    """Bytes of the foot, tail included, by the last bytes of a file."""
    found = int.from_bytes(tail[:4], "little", signed=True) + FOOTER_TAIL
    if tail[4:] != _MAGIC or not FOOTER_TAIL < found <= size:
        raise FormatError(f"{where}: expected an Arrow IPC file, got one that does not end as such; is it cut off?")
    return found


def footer_blocks(foot: bytes, size: int, where: str) -> tuple[list[Block], list[Block]]:
    """The dictionaries and the batches that a foot names."""
    try:
        root = _u32(foot, 0)
        found = _blocks(foot, _field(foot, root, 2)), _blocks(foot, _field(foot, root, 3))
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the foot of an Arrow IPC file, got something else") from None
    for block in (block for some in found for block in some):
        if block.begin < 0 or block.head < 8 or block.body < 0 or block.end > size:
            raise FormatError(f"{where}: expected batches inside the {size} bytes of the file, got {block}")
    return found


def batch_is_compressed(head: bytes, where: str) -> bool:
    """Whether the body of a batch is compressed, by its head."""
    start = 8 if _u32(head, 0) == _CONTINUES else 4
    try:
        message = start + _u32(head, start)
        at = _field(head, message, 2)
        batch = at + _u32(head, at)
        return bool(_field(head, batch, _COMPRESSION))
    except (struct.error, IndexError):
        raise FormatError(f"{where}: expected the head of a batch, got something else") from None


def _blocks(foot: bytes, field: int) -> list[Block]:
    if not field:
        return []
    vector = field + _u32(foot, field)
    count = _u32(foot, vector)
    if vector + 4 + 24 * count > len(foot):
        raise IndexError
    return [Block(*struct.unpack_from("<qi4xq", foot, vector + 4 + 24 * k)) for k in range(count)]


def _field(data: Any, table: int, number: int) -> int:
    """Where a field of a flatbuffers table lies; 0 if it is not there."""
    names = table - struct.unpack_from("<i", data, table)[0]
    if names < 0:
        raise IndexError
    slot = 4 + 2 * number
    offset: int = struct.unpack_from("<H", data, names + slot)[0] if slot < _u16(data, names) else 0
    return table + offset if offset else 0


def _u32(data: Any, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _u16(data: Any, at: int) -> int:
    return int(struct.unpack_from("<H", data, at)[0])
