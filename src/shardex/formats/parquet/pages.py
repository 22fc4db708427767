"""Page headers of Parquet column chunks: how many bytes their values take, computed before anything is decoded.

The sizes in the footer of a file may be wrong on purpose, and a dictionary page repeats a long value for a few bits
each. So this module reads the header of every page (Thrift's compact protocol), which the decoder obeys too. The
bytes are untrusted: what cannot be parsed raises `IndexError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DICTIONARY_ENCODINGS = (2, 8)
_DELTA_BYTE_ARRAY = 7
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12
_MAX_DEPTH = 8
_MAX_HEADER = 1 << 20

Struct = dict[int, Any]
"""Integers and structs of a Thrift struct, by the number of their field."""


class Page(NamedTuple):
    """Header of a page: its kind, the size of its content with and without compression, its values, their encoding."""

    kind: int
    size: int
    packed: int
    values: int
    encoding: int


@dataclass(frozen=True, slots=True)
class DecodedSize:
    """Bytes that the values of a column chunk take."""

    sure: int
    """Size if no value of a dictionary is long."""
    most: int
    """Size if every value is the longest that a dictionary or a shared prefix can make."""
    longest_delta: int = 0
    """Largest page of values that share prefixes."""


def decoded_size(data: memoryview, values: int, width: int | None) -> DecodedSize:
    """Return the decoded size of a column chunk, given its pages; values are `width` bytes, or of varying length.

    `values` is the number of values in the chunk: the decoder reads no page after that many.
    """
    sure = seen = longest = repeated = delta = 0
    for page in pages(data):
        if page.kind == _DICTIONARY:
            longest = max(longest, page.size)
            sure += page.size
            continue
        if page.kind not in (_DATA, _DATA_V2):
            continue
        seen += page.values
        sure += page.values * (width or 4)
        if width is None and page.encoding in _DICTIONARY_ENCODINGS:
            repeated += page.values * longest
        elif width is None:
            sure += page.size
            if page.encoding == _DELTA_BYTE_ARRAY:
                delta, repeated = max(delta, page.size), repeated + page.values * page.size
        if seen >= values:
            break
    return DecodedSize(sure, sure + repeated, delta)


def repeated_bytes(table: pa.Table) -> int:
    """Return the bytes that the values of a table take which are stored as indices into a dictionary."""
    return sum(_length(chunk) for column in table.columns for chunk in column.chunks)


def delta_bytes(file: pq.ParquetFile, group: int, sizes: Mapping[str, DecodedSize], limit: int) -> int:
    """Return how many bytes columns take whose values share prefixes, or a number above the limit.

    They are decoded a few rows at a time.
    """
    found = 0
    for path, size in sizes.items():
        rows = max(1, limit // (4 * max(1, size.longest_delta)))
        for batch in file.iter_batches(rows, row_groups=[group], columns=[path]) if size.longest_delta else ():
            found += int(batch.nbytes)
            if found > limit:
                return found
    return found


def _length(array: pa.Array) -> int:
    """Return the bytes of all dictionary values in an array, at any depth."""
    if isinstance(array, pa.StructArray):
        return sum(_length(one) for one in array.flatten())
    if isinstance(array, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray | pa.MapArray):
        return _length(array.values)
    if isinstance(array, pa.DictionaryArray):
        from pyarrow import compute as pc  # takes 40 ms to import, and few files need it

        sizes = pc.binary_length(array.dictionary)
        return int(pc.sum(pc.take(sizes, array.indices).cast(pa.int64())).as_py() or 0)
    return 0


def pages(data: memoryview) -> Iterator[Page]:
    """Yield the headers of consecutive pages."""
    at = 0
    while at < len(data):
        header, begin = _struct(data[at : at + _MAX_HEADER], 0, 0)
        kind, size, packed = (_number(header, field) for field in (1, 2, 3))
        inner = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
        if not isinstance(inner, dict):
            raise IndexError
        yield Page(kind, size, packed, _number(inner, 1), _number(inner, 4 if kind == _DATA_V2 else 2))
        at += begin + packed


def _number(header: Struct, field: int) -> int:
    found = header.get(field, 0)
    if not isinstance(found, int) or found < 0:
        raise IndexError
    return found


def _struct(data: memoryview, at: int, depth: int) -> tuple[Struct, int]:
    """Return the integers and structs of a struct, and the position after it."""
    if depth > _MAX_DEPTH:
        raise IndexError
    found: Struct = {}
    number = 0
    while head := data[at]:
        at += 1
        kind, step = head & 15, head >> 4
        if step:
            number += step
        else:
            number, at = _integer(data, at)
        found[number], at = _value(data, at, kind, depth)
    return found, at + 1


def _value(data: memoryview, at: int, kind: int, depth: int, inside: bool = False) -> tuple[Any, int]:
    """Return one value, None if it is neither an integer nor a struct, and the position after it."""
    if kind in _BOOLEANS:
        return None, at + inside  # as a field it has no bytes, in a list it has one
    if kind == _BYTE:
        return None, at + 1
    if kind in _INTEGERS:
        return _integer(data, at)
    if kind == _DOUBLE:
        return None, at + 8
    if kind == _BINARY:
        length, at = _unsigned(data, at)
        return None, at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    if kind not in _LISTS or depth > _MAX_DEPTH:
        raise IndexError  # page headers have no maps
    head = data[at]
    count, at = (head >> 4, at + 1) if head >> 4 < 15 else _unsigned(data, at + 1)
    for _ in range(count):
        if at >= len(data):
            raise IndexError
        _, at = _value(data, at, head & 15, depth + 1, inside=True)
    return None, at


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    """Return a signed number: the lowest bit is the sign."""
    found, at = _unsigned(data, at)
    return (found >> 1) ^ -(found & 1), at


def _unsigned(data: memoryview, at: int) -> tuple[int, int]:
    found = shift = 0
    while (byte := data[at]) & 0x80:
        found |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise IndexError
    return found | byte << shift, at + 1
