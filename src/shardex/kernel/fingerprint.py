"""Fingerprints of values: 16 hex digits that are the same in every process and on every machine.

Python's own `hash` and `pickle` differ between processes for equal values, and `repr` leaves out the middle of arrays.
`digest` walks a value: numbers, text, bytes, arrays, mappings, sequences and dataclasses by their content, any other
object by its type and attributes. The hash is not cryptographic: collisions can be constructed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray


def digest(*values: Any) -> str:
    """Return the fingerprint of these values.

    >>> digest("x", [1, None], np.arange(3)), digest("x", [1, None], np.arange(4))
    ('f54c261c257f563e', '9c07cb9bc976c70e')
    """
    hasher = xxhash.xxh3_64()
    for piece in _pieces(values, ()):
        hasher.update(piece)
    return hasher.hexdigest()


def _pieces(value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    """Yield the content of a value as bytes; kind and size come before each piece, so that different values differ."""
    kind = type(value).__name__
    if isinstance(value, str):
        yield from _framed(kind, value.encode(errors="surrogatepass"))
    elif isinstance(value, bytes | bytearray | memoryview):
        yield from _framed("bytes", value)
    elif value is None or isinstance(value, bool | int | float | complex):
        yield from _framed(kind, repr(value).encode())
    elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        yield from _framed(f"{value.dtype.str} {value.shape}", _bytes(np.asarray(value)))
    elif isinstance(value, np.ndarray):
        yield from _many(f"{kind} {value.shape}", value.reshape(-1).tolist(), above)
    elif isinstance(value, Mapping):
        yield from _many(kind, [part for pair in value.items() for part in pair], above)
    elif isinstance(value, list | tuple):
        yield from _many(kind, value, above)
    elif isinstance(value, set | frozenset):
        yield from _many(kind, sorted(map(digest, value)), above)
    elif id(value) in above:  # the value contains itself
        yield from _framed(kind, b"")
    else:
        yield from _many(kind, _attributes(value), (*above, id(value)))


def _framed(kind: str, data: Any) -> Iterator[Any]:
    yield f"{kind} {len(data)}:".encode()
    yield data


def _many(kind: str, values: Any, above: tuple[int, ...]) -> Iterator[Any]:
    yield f"{kind} of {len(values)}:".encode()
    for one in values:
        yield from _pieces(one, above)


def _bytes(array: NDArray[Any]) -> Any:
    """Return the bytes of the elements, without a copy where possible."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.dtype.kind in "iuf" else array.tobytes()


def _attributes(value: Any) -> list[Any]:
    if is_dataclass(value) and not isinstance(value, type):
        return [part for one in fields(value) if one.compare for part in (one.name, getattr(value, one.name))]
    return [part for pair in sorted(getattr(value, "__dict__", {}).items()) for part in pair]
