"""The 64-bit hash of a key, as files hold it: of whole numbers, text and bytes, of one or of many at once.

`keys.py` makes tables of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardex.errors import SchemaError

__all__ = ["Hashes", "Key", "Keys", "compact", "hash_key", "hash_keys", "listed"]

Key = int | str | bytes
Keys = Sequence[Key] | NDArray[Any]
Hashes = NDArray[np.uint64]
Bits = TypeVar("Bits", int, Hashes)

_INTEGERS = int, np.integer
_MASK = (1 << 64) - 1


def hash_keys(keys: Keys) -> Hashes:
    """The 64-bit hash of each key; files hold it, so it never changes.

    Text is hashed as its UTF-8 bytes and bytes as they are, with no length or end mark, by XXH3-64 with seed 0. An int
    from -2**63 to 2**64-1 is taken as 64 bits in two's complement and mixed by the finaliser of splitmix64, where all
    is modulo 2**64 and shifts bring in zeros::

        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)

    Thus ``"a"`` and ``b"a"`` have one hash, and so have -1 and 2**64-1; as keys they differ all the same.

    >>> [f"{hash:016x}" for hash in hash_keys(["", "a", b"a"]).tolist()]
    ['2d06800538d394c2', 'e6c632b61e964e1f', 'e6c632b61e964e1f']
    >>> [f"{hash:016x}" for hash in hash_keys(np.array([0, 1, -1])).tolist()]
    ['0000000000000000', '5692161d100b05e5', 'b4d055fcf2cbbd7b']
    """
    found = compact(keys)
    if isinstance(found, np.ndarray):
        return _mixed(found.astype(np.uint64))
    kinds = set(map(type, found))
    with suppress(UnicodeEncodeError):  # the key is named below
        if kinds == {str}:
            return _digested(map(str.encode, found), len(found))
        if kinds == {bytes}:
            return _digested(found, len(found))
    return np.array([_hash_at(number, key) for number, key in enumerate(found)], np.uint64)


def hash_key(key: Key) -> int:
    """The hash of one key, as `hash_keys` gives it.

    >>> f"{hash_key('a'):016x}", hash_key(-1) == hash_key(2**64 - 1)
    ('e6c632b61e964e1f', True)
    """
    if isinstance(key, str):
        try:
            return xxh3_64_intdigest(key.encode())
        except UnicodeEncodeError as error:
            raise SchemaError(f"expected a key that UTF-8 can encode, got {key!r:.200} ({error.reason})") from None
    if isinstance(key, bytes):
        return xxh3_64_intdigest(key)
    if isinstance(key, bool) or not isinstance(key, _INTEGERS):
        raise SchemaError(f"expected a key that is int, str or bytes, got {type(key).__name__} {key!r:.200}")
    number = int(key)
    if not -1 << 63 <= number < 1 << 64:
        raise SchemaError(f"expected a key from -2**63 to 2**64-1, got {number!r:.200}")
    return _mixed(number & _MASK)


def _hash_at(number: int, key: Key) -> int:
    try:
        return hash_key(key)
    except SchemaError as error:
        raise SchemaError(f"{error} - at key {number}") from None


def _mixed(bits: Bits) -> Bits:
    """The finaliser of splitmix64, for an array of uint64 as for an int."""
    x: Any = bits
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    mixed: Bits = x ^ (x >> 31)
    return mixed


def _digested(keys: Iterable[bytes], count: int) -> Hashes:
    return np.fromiter(map(xxh3_64_intdigest, keys), np.uint64, count)


def compact(keys: Keys) -> NDArray[Any] | Sequence[Any]:
    """An array of integers, if keys are that or fit into one; else objects."""
    if isinstance(keys, Key):
        raise SchemaError(f"expected many keys, got one, {keys!r:.200}; put it into a list")
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu" and keys.ndim == 1:
        return keys
    objects = listed(keys)
    with suppress(OverflowError):
        if set(map(type, objects)) == {int}:
            return np.array(objects, np.int64)
    return objects


def listed(keys: Keys) -> Sequence[Any]:
    """Objects."""
    return keys.tolist() if isinstance(keys, np.ndarray) else keys
