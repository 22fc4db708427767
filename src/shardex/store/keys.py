"""Samples by key: for each fragment of a store a table of (hash of the key, row), sorted and memory-mapped.

`hash_keys` (`hashes.py`) and `encode_keys` make a fragment's table, which the caller writes into an Arrow file as the
columns "hash" and "row": 16 bytes a key, and nothing to load when a store is opened. `KeyTable` finds rows by hash,
`KeyIndex` finds rows by key in many fragments. Rows with an equal hash are only candidates: the keys themselves stay in
the data and are read to tell. How keys are read and which rows are deleted is for the caller to say.

The 64-bit hash of a key, as files hold it: of whole numbers, text and bytes, of one or of many at once.

`keys.py` makes tables of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import eq
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardex.errors import FormatError, SchemaError, UnknownKeyError
from shardex.kernel import Integers

__all__ = [
    "Alive",
    "Hashes",
    "Key",
    "KeyIndex",
    "KeyTable",
    "Keys",
    "Read",
    "compact",
    "encode_keys",
    "hash_key",
    "hash_keys",
    "listed",
    "living",
]

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


Read = Callable[[Integers], Keys]
Alive = Callable[[Integers], NDArray[np.bool_]]


# -- one fragment ---------------------------------------------------------------------------------------------


def encode_keys(hashes: Hashes) -> NDArray[np.uint64]:
    """The table of a fragment, given the hash of each row: hashes and their rows, sorted by hash and then by row.

    >>> hash, row = encode_keys(np.array([30, 10, 30, 20], np.uint64))
    >>> hash.tolist(), row.tolist()
    ([10, 20, 30, 30], [1, 3, 0, 2])
    """
    rows = np.argsort(hashes, kind="stable")
    return np.stack([hashes[rows], rows.astype(np.uint64)])


class KeyTable:
    """The rows of one fragment by the hash of their key; rows count from the fragment's first. Nothing is copied.

    >>> table = KeyTable(*encode_keys(hash_keys(["cat", "dog", "emu"])))
    >>> which, rows = table.find(hash_keys(["emu", "fox", "cat"]))
    >>> dict(zip(which.tolist(), rows.tolist()))
    {2: 0, 0: 2}
    """

    __slots__ = ("hash", "row")

    def __init__(self, hash: Hashes, row: NDArray[np.uint64]) -> None:
        if len(hash) != len(row):
            raise FormatError(f"expected as many rows as hashes in a table of keys, got {len(row)} and {len(hash)}")
        self.hash = np.ascontiguousarray(hash, np.uint64)
        self.row = np.ascontiguousarray(row, np.uint64)

    def __len__(self) -> int:
        return len(self.hash)

    def find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Every pair of a place in `hashes` and a row with the hash that stands there, in the order of the hashes."""
        if (hashes[1:] < hashes[:-1]).any():
            # A million among ten million: 1.5 s as they come, 0.2 s if they are sorted first.
            order = np.argsort(hashes)
            which, rows = self.find(hashes[order])
            return order[which], rows
        which, places = _pairs(hashes, self.hash)
        return which, self.row[places].astype(np.int64)

    def rows_with(self, hash: np.uint64) -> list[int]:
        """The rows with one hash, found without an array."""
        place, rows = int(self.hash.searchsorted(hash)), []
        while place < len(self.hash) and self.hash[place] == hash:
            rows.append(self.row.item(place))
            place += 1
        return rows


def _pairs(some: Hashes, others: Hashes) -> tuple[Integers, Integers]:
    """Every pair of places at which two sorted arrays have the same number."""
    if len(some) > len(others):  # the fewer are looked up in the more, so that many small tables cost little
        there, here = _pairs(others, some)
        return here, there
    if not len(some):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begin = others.searchsorted(some)
    hits = np.flatnonzero(others.take(begin, mode="clip") == some)
    begin = begin[hits]
    count = others.searchsorted(some[hits], "right") - begin
    here = np.repeat(hits, count)
    before = np.cumsum(count) - count
    return here, np.repeat(begin - before, count) + np.arange(len(here))


# -- all fragments --------------------------------------------------------------------------------------------


class KeyIndex:
    """Rows by key in many fragments: fragment k has `tables[k]` and begins at row `starts[k]`.

    `read` gives the keys of rows; `read_one` the key of one row, if there is a shorter way to it; `alive` says which
    rows are not deleted, without it all are alive. The keys that are read decide, so a fragment some of whose keys
    changed may have a second table with the same start.

    >>> keys = ["cat", "dog", "emu", "fox"]
    >>> tables = [KeyTable(*encode_keys(hash_keys(some))) for some in (keys[:1], keys[1:])]
    >>> index = KeyIndex(tables, np.array([0, 1]), lambda rows: [keys[row] for row in rows])
    >>> index.rows_of(["fox", "cat", "fox"]), index.find(["fox", "gnu"])
    (array([3, 0, 3]), array([ 3, -1]))
    >>> index.get("dog"), index.get("gnu")
    (1, None)
    >>> index.rows_of(["cat", "gnu", "yak"])
    Traceback (most recent call last):
    shardex.errors.UnknownKeyError: expected keys that are there, got 'gnu' - at key 1 (2 of 3 are missing)
    """

    def __init__(
        self,
        tables: Sequence[KeyTable],
        starts: Integers,
        read: Read,
        alive: Alive | None = None,
        read_one: Callable[[int], Any] | None = None,
    ) -> None:
        if len(tables) != len(starts):
            raise FormatError(f"expected a first row for each of {len(tables)} tables of keys, got {len(starts)}")
        self._tables = list(zip(tables, map(int, starts), strict=True))
        self._read = read
        self._alive = alive
        self._read_one = read_one or (lambda row: read(np.array([row]))[0])

    def rows_of(self, keys: Keys) -> Integers:
        """The row of each key; an error if one is missing."""
        rows = self.find(keys)
        if len(missing := np.flatnonzero(rows < 0)):
            first, counts = int(missing[0]), f"{len(missing)} of {len(rows)} are missing"
            key = listed(keys)[first]
            raise UnknownKeyError(f"expected keys that are there, got {key!r:.200} - at key {first} ({counts})")
        return rows

    def find(self, keys: Keys) -> Integers:
        """The row of each key, -1 where it is missing."""
        given = compact(keys)
        which, rows = self.matches(hash_keys(given), lambda which: _at(given, which))
        found = np.full(len(given), -1, np.int64)
        found[which] = rows
        if len(again := which[found[which] != rows]):
            raise _ambiguous(listed(given)[again[0]], rows[which == again[0]].tolist())
        return found

    def row_of(self, key: Key) -> int:
        """The row of one key; an error if it is missing."""
        if (row := self.get(key)) is None:
            raise UnknownKeyError(f"expected a key that is there, got {key!r:.200}")
        return row

    def get(self, key: Key) -> int | None:
        """The row of one key, `None` if it is missing."""
        hash = np.uint64(hash_key(key))
        candidates = {start + row for table, start in self._tables for row in table.rows_with(hash)}
        rows = [row for row in candidates if self._holds(row, key)]
        if len(rows) > 1:
            raise _ambiguous(key, rows)
        return rows[0] if rows else None

    def _holds(self, row: int, key: Key) -> bool:
        alive = self._alive is None or self._alive(np.array([row]))[0]
        return bool(alive and self._read_one(row) == key)

    def matches(self, hashes: Hashes, keys_at: Read) -> tuple[Integers, Integers]:
        """Every pair of a place in `hashes` and a living row with the key that `keys_at` gives for it; by place."""
        which, rows = self._candidates(hashes)
        same = _same(keys_at(which), self._read(rows))
        return which[same], rows[same]

    def _candidates(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Every pair of a place in `hashes` and a living row that was written with that hash, by place."""
        order = np.argsort(hashes)
        ordered, nothing = hashes[order], np.empty(0, np.int64)
        found = [(nothing, nothing)]
        for table, start in self._tables:
            which, rows = table.find(ordered)
            there = living(self._alive, start + rows)
            found.append((order[which[there]], start + rows[there]))
        which, rows = map(np.concatenate, zip(*found, strict=True))
        by_place = np.argsort(which)  # keys that are met in the order in which they lie are compared five times as fast
        return which[by_place], rows[by_place]


def living(alive: Alive | None, rows: Integers) -> NDArray[np.bool_]:
    """Which rows are not deleted."""
    return np.ones(len(rows), np.bool_) if alive is None else alive(rows)


def _ambiguous(key: Key, rows: Sequence[int]) -> FormatError:
    return FormatError(f"expected one row with the key {key!r:.200}, got the rows {sorted(set(rows))}")


def _at(keys: Keys, places: Integers) -> Keys:
    return keys[places] if isinstance(keys, np.ndarray) else [keys[place] for place in places.tolist()]


def _same(some: Keys, others: Keys) -> NDArray[np.bool_]:
    """Whether each key is the one at the same place among the others."""
    if isinstance(some, np.ndarray) and isinstance(others, np.ndarray):
        same: NDArray[np.bool_] = some == others
        return same
    return np.fromiter(map(eq, listed(some), listed(others)), np.bool_, len(some))
