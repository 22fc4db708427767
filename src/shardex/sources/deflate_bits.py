"""Deflate streams that begin inside a byte: `raw_stream` starts the decompressor of `zlib` there.

`zlib` reads whole bytes, but a block of a deflate stream begins at any bit. So it first gets some empty blocks, which
end at the same bit of a byte: a block with fixed codes has 10 bits, one with dynamic codes can have an odd number.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
"""The order in which the lengths of the code length codes are stored (RFC 1951, 3.2.7), as far as needed."""


def raw_stream(data: memoryview, bit: int, window: bytes) -> tuple[Any, Any]:
    """Return a decompressor for deflate data that begins at this bit of the first byte, and the bytes to go on with.

    `window` is the content before it.
    """
    stream = zlib.decompressobj(-15, zdict=window) if window else zlib.decompressobj(-15)
    if bit == 0:
        return stream, data
    whole, low = _empty_blocks(bit)
    stream.decompress(whole + bytes([low | (data[0] >> bit << bit)]))
    return stream, data[1:]


@cache
def _empty_blocks(bit: int) -> tuple[bytes, int]:
    """Return empty deflate blocks that end at this bit of a byte: whole bytes, and the low bits of the next one."""
    bits = _dynamic_block() if bit % 2 else ""
    while len(bits) % 8 != bit:
        bits += _bits(0, 1) + _bits(1, 2) + "0" * 7  # not the last block, fixed codes, end of block
    values = [int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8)]
    return bytes(values[:-1]), values[-1]


def _dynamic_block() -> str:
    """Return an empty block with dynamic codes, of 97 bits: the only literal code is the end of the block."""
    lengths = {18: 1, 1: 2, 17: 2}  # of the codes of code lengths: 18 is "0", 1 is "10", 17 is "11"
    head = _bits(0, 1) + _bits(2, 2) + _bits(0, 5) + _bits(0, 5) + _bits(len(_ORDER) - 4, 4)
    head += "".join(_bits(lengths.get(symbol, 0), 3) for symbol in _ORDER)
    zeros = "0" + _bits(138 - 11, 7) + "0" + _bits(108 - 11, 7) + "11" + _bits(10 - 3, 3)  # of 256 literals
    return head + zeros + "10" + "10" + "0"


def _bits(value: int, count: int) -> str:
    """Return the bits of a number, the lowest first."""
    return "".join(str(value >> k & 1) for k in range(count))
