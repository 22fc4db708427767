"""Keys: their 64-bit hashes, tables of hashes for fragments, and the rows of keys in many tables.

`hash_keys` and `encode_keys` make the key table of a fragment: hashes with their rows, sorted by hash. `data_files`
writes it as the columns "hash" and "row" of an Arrow file: 16 bytes per key, and nothing to load when a dataset is
opened. `KeyTable` finds rows by hash, `KeyIndex` finds rows by key in many fragments. Rows with an equal hash are only
candidates: the keys themselves are read from the data and compared. `find_duplicate` and `find_existing` find keys
that are used twice. The caller (`key_lookup`) reads keys and deleted rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import eq
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from shardex.errors import ArgumentError, FormatError, SchemaError, UnknownKeyError
from shardex.kernel import Integers

Key = int | str | bytes
Keys = Sequence[Key] | NDArray[Any]
Hashes = NDArray[np.uint64]
ReadKeys = Callable[[Integers], Keys]
"""Returns the keys of rows."""
IsLive = Callable[[Integers], NDArray[np.bool_]]
"""Returns for each row whether it is not deleted."""
Bits = TypeVar("Bits", int, Hashes)

_INTEGERS = int, np.integer
_MASK = (1 << 64) - 1
_CHUNK = 1 << 20
"""Rows of a key table that are compared at a time."""


# -- hashes ---------------------------------------------------------------------------------------------------


def hash_keys(keys: Keys) -> Hashes:
    """Return the 64-bit hash of each key; it is stored in files, so it never changes.

    Text is hashed as its UTF-8 bytes and bytes as they are, with no length or end mark, by XXH3-64 with seed 0. An int
    from -2**63 to 2**64-1 is taken as 64 bits in two's complement and mixed by the finaliser of splitmix64, where all
    is modulo 2**64 and shifts fill with zeros::

        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = x ^ (x >> 31)

    So ``"a"`` and ``b"a"`` have the same hash, as have -1 and 2**64-1; they are different keys nevertheless.

    >>> [f"{hash:016x}" for hash in hash_keys(["", "a", b"a"]).tolist()]
    ['2d06800538d394c2', 'e6c632b61e964e1f', 'e6c632b61e964e1f']
    >>> [f"{hash:016x}" for hash in hash_keys(np.array([0, 1, -1])).tolist()]
    ['0000000000000000', '5692161d100b05e5', 'b4d055fcf2cbbd7b']
    """
    found = _as_array(keys)
    if isinstance(found, np.ndarray):
        return _mix(found.astype(np.uint64))
    kinds = set(map(type, found))
    with suppress(UnicodeEncodeError):  # `_hash_at` below raises an error with the key
        if kinds == {str}:
            return _hash_bytes(map(str.encode, found), len(found))
        if kinds == {bytes}:
            return _hash_bytes(found, len(found))
    return np.array([_hash_at(number, key) for number, key in enumerate(found)], np.uint64)


def hash_key(key: Key) -> int:
    """Return the hash of one key, the same as `hash_keys`.

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
    return _mix(number & _MASK)


def _hash_at(number: int, key: Key) -> int:
    try:
        return hash_key(key)
    except SchemaError as error:
        raise SchemaError(f"{error} - at key {number}") from None


def _mix(bits: Bits) -> Bits:
    """Apply the finaliser of splitmix64 to an array of uint64 or to an int."""
    x: Any = bits
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    mixed: Bits = x ^ (x >> 31)
    return mixed


def _hash_bytes(keys: Iterable[bytes], count: int) -> Hashes:
    return np.fromiter(map(xxh3_64_intdigest, keys), np.uint64, count)


def _as_array(keys: Keys) -> NDArray[Any] | Sequence[Any]:
    """Return an array of integers if the keys fit into one, else a sequence of objects."""
    if isinstance(keys, Key):
        raise ArgumentError(f"expected many keys, got one, {keys!r:.200}; put it into a list")
    if isinstance(keys, np.ndarray) and keys.dtype.kind in "iu" and keys.ndim == 1:
        return keys
    objects = _as_list(keys)
    with suppress(OverflowError):
        if set(map(type, objects)) == {int}:
            return np.array(objects, np.int64)
    return objects


def _as_list(keys: Keys) -> Sequence[Any]:
    return keys.tolist() if isinstance(keys, np.ndarray) else keys


# -- one fragment ---------------------------------------------------------------------------------------------


def encode_keys(hashes: Hashes) -> NDArray[np.uint64]:
    """Return the key table of a fragment from the hash of each row: hashes and rows, sorted by hash and then by row.

    >>> hash, row = encode_keys(np.array([30, 10, 30, 20], np.uint64))
    >>> hash.tolist(), row.tolist()
    ([10, 20, 30, 30], [1, 3, 0, 2])
    """
    rows = np.argsort(hashes, kind="stable")
    return np.stack([hashes[rows], rows.astype(np.uint64)])


def merge_tables(tables: Sequence[KeyTable], starts: Sequence[int]) -> NDArray[np.uint64]:
    """Return the hashes and rows, as `encode_keys` does, of several neighbours whose rows begin at `starts`.

    >>> some = [KeyTable(*encode_keys(hash_keys(keys))) for keys in (["cat", "dog"], ["emu"])]
    >>> (merge_tables(some, [0, 2]) == encode_keys(hash_keys(["cat", "dog", "emu"]))).all()
    np.True_
    """
    hashes = np.concatenate([table.hash for table in tables])
    rows = np.concatenate([table.row + np.uint64(start) for table, start in zip(tables, starts, strict=True)])
    order = np.lexsort((rows, hashes))
    return np.stack([hashes[order], rows[order]])


class KeyTable:
    """Rows of one fragment by the hash of their key, counted from the first row of the fragment; copies no array.

    A row from `rows` on that is found is an error; `where` is the file for its message.

    >>> table = KeyTable(*encode_keys(hash_keys(["cat", "dog", "emu"])))
    >>> which, rows = table.find(hash_keys(["emu", "fox", "cat"]))
    >>> dict(zip(which.tolist(), rows.tolist()))
    {2: 0, 0: 2}
    """

    __slots__ = ("_rows", "_where", "hash", "row")

    def __init__(self, hash: Hashes, row: NDArray[np.uint64], rows: int = 1 << 63, where: str = "") -> None:
        if len(hash) != len(row):
            raise FormatError(f"expected as many rows as hashes in a table of keys, got {len(row)} and {len(hash)}")
        self.hash = np.ascontiguousarray(hash, np.uint64)
        self.row = np.ascontiguousarray(row, np.uint64)
        self._rows, self._where = rows, where

    def __len__(self) -> int:
        return len(self.hash)

    def find(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Return all pairs of a position in `hashes` and a row with that hash, in the order of the hashes."""
        if (hashes[1:] < hashes[:-1]).any():
            # A million among ten million: 1.5 s unsorted, 0.2 s if they are sorted first.
            order = np.argsort(hashes)
            which, rows = self.find(hashes[order])
            return order[which], rows
        which, places = _pairs(hashes, self.hash)
        found = self.row[places]
        if (found >= self._rows).any():
            raise self._unknown_row(int(found.max()))
        return which, found.astype(np.int64)

    def rows_with(self, hash: np.uint64) -> list[int]:
        """Return the rows with one hash; faster than `find` for a single hash."""
        place, rows = int(self.hash.searchsorted(hash)), []
        while place < len(self.hash) and self.hash[place] == hash:
            rows.append(self.row.item(place))
            place += 1
        if rows and max(rows) >= self._rows:
            raise self._unknown_row(max(rows))
        return rows

    def _unknown_row(self, row: int) -> FormatError:
        return FormatError(f"{self._where}: expected rows below {self._rows} in a table of keys, got {row}")


def _pairs(some: Hashes, others: Hashes) -> tuple[Integers, Integers]:
    """Return all pairs of positions at which two sorted arrays have the same number."""
    if len(some) > len(others):  # search the shorter array in the longer one, so that many small tables cost little
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

    `read` returns the keys of rows; `read_one` the key of one row, if there is a faster way; `is_live` returns which
    rows are not deleted (default: all). Keys that are read are compared, so a fragment in which keys have changed may
    have a second table with the same start.

    >>> keys = ["cat", "dog", "emu", "fox"]
    >>> tables = [KeyTable(*encode_keys(hash_keys(some))) for some in (keys[:1], keys[1:])]
    >>> index = KeyIndex(tables, np.array([0, 1]), lambda rows: [keys[row] for row in rows])
    >>> index.rows_of(["fox", "cat", "fox"]), index.find(["fox", "gnu"])
    (array([3, 0, 3]), array([ 3, -1]))
    >>> index.get("dog"), index.get("gnu")
    (1, None)
    >>> index.rows_of(["cat", "gnu", "yak"])
    Traceback (most recent call last):
    shardex.errors.UnknownKeyError: expected existing keys, got 'gnu' - at key 1 (2 of 3 are missing)
    """

    def __init__(
        self,
        tables: Sequence[KeyTable],
        starts: Integers,
        read: ReadKeys,
        is_live: IsLive | None = None,
        read_one: Callable[[int], Any] | None = None,
    ) -> None:
        if len(tables) != len(starts):
            raise FormatError(f"expected a first row for each of {len(tables)} tables of keys, got {len(starts)}")
        self._tables = list(zip(tables, map(int, starts), strict=True))
        self._read = read
        self._is_live = is_live
        self._read_one = read_one or (lambda row: read(np.array([row]))[0])

    def rows_of(self, keys: Keys) -> Integers:
        """Return the row of each key; raise an error if one is missing."""
        rows = self.find(keys)
        if len(missing := np.flatnonzero(rows < 0)):
            first, counts = int(missing[0]), f"{len(missing)} of {len(rows)} are missing"
            key = _as_list(keys)[first]
            raise UnknownKeyError(f"expected existing keys, got {key!r:.200} - at key {first} ({counts})")
        return rows

    def find(self, keys: Keys) -> Integers:
        """Return the row of each key, -1 where it is missing."""
        wanted = _as_array(keys)
        which, rows = self.matches(hash_keys(wanted), lambda which: _at(wanted, which))
        found = np.full(len(wanted), -1, np.int64)
        found[which] = rows
        if len(again := which[found[which] != rows]):
            raise _ambiguous(_as_list(wanted)[again[0]], rows[which == again[0]].tolist())
        return found

    def row_of(self, key: Key) -> int:
        """Return the row of one key; raise an error if it is missing."""
        if (row := self.get(key)) is None:
            raise UnknownKeyError(f"expected an existing key, got {key!r:.200}")
        return row

    def get(self, key: Key) -> int | None:
        """Return the row of one key, None if it is missing."""
        hash = np.uint64(hash_key(key))
        candidates = {start + row for table, start in self._tables for row in table.rows_with(hash)}
        rows = [row for row in candidates if self._holds(row, key)]
        if len(rows) > 1:
            raise _ambiguous(key, rows)
        return rows[0] if rows else None

    def _holds(self, row: int, key: Key) -> bool:
        is_live = self._is_live is None or self._is_live(np.array([row]))[0]
        return bool(is_live and self._read_one(row) == key)

    def matches(self, hashes: Hashes, keys_at: ReadKeys) -> tuple[Integers, Integers]:
        """Return all pairs of a position in `hashes` and a live row with the key `keys_at(position)`, by position."""
        which, rows = self._candidates(hashes)
        same = _same(keys_at(which), self._read(rows))
        return which[same], rows[same]

    def _candidates(self, hashes: Hashes) -> tuple[Integers, Integers]:
        """Return all pairs of a position in `hashes` and a live row with that hash, by position."""
        order = np.argsort(hashes)
        ordered, nothing = hashes[order], np.empty(0, np.int64)
        found = [(nothing, nothing)]
        for table, start in self._tables:
            which, rows = table.find(ordered)
            rows = rows + start
            if self._is_live is not None:
                is_live = self._is_live(rows)
                which, rows = which[is_live], rows[is_live]
            found.append((order[which], rows))
        which, rows = map(np.concatenate, zip(*found, strict=True))
        by_position = np.argsort(which)  # comparing keys in their order in memory is five times as fast
        return which[by_position], rows[by_position]


def _ambiguous(key: Key, rows: Sequence[int]) -> FormatError:
    return FormatError(f"expected one row with the key {key!r:.200}, got the rows {sorted(set(rows))}")


def _at(keys: Keys, positions: Integers) -> Keys:
    return keys[positions] if isinstance(keys, np.ndarray) else [keys[at] for at in positions.tolist()]


def _same(some: Keys, others: Keys) -> NDArray[np.bool_]:
    """Compare two sequences of keys element by element."""
    if isinstance(some, np.ndarray) and isinstance(others, np.ndarray):
        same: NDArray[np.bool_] = some == others
        return same
    return np.fromiter(map(eq, _as_list(some), _as_list(others)), np.bool_, len(some))


# -- keys that are used twice ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DuplicateKey:
    """A key that two rows have."""

    key: Key
    row: int
    """The second row with the key, in the table that was checked."""
    other: int
    """The first row with the key: in the same table (`find_duplicate`) or in the index (`find_existing`)."""


def find_duplicate(table: KeyTable, read: ReadKeys) -> DuplicateKey | None:
    """Return the first key, by hash, that two rows of a table have; `read` takes rows of the table.

    >>> keys = ["cat", "dog", "cat"]
    >>> find_duplicate(KeyTable(*encode_keys(hash_keys(keys))), lambda rows: [keys[row] for row in rows])
    DuplicateKey(key='cat', row=2, other=0)
    """
    seen: dict[Key, int] = {}  # stays small: it holds only keys whose hash another row has too
    for rows in _rows_with_equal_hashes(table):
        for key, row in zip(_as_list(read(rows)), rows.tolist(), strict=True):
            if (other := seen.setdefault(key, row)) != row:
                return DuplicateKey(key, row, other)
    return None


def _rows_with_equal_hashes(table: KeyTable) -> Iterator[Integers]:
    """Yield the rows whose neighbour has the same hash, chunk by chunk; a row between two chunks may come twice."""
    for begin in range(0, len(table) - 1, _CHUNK):
        hashes = table.hash[begin : begin + _CHUNK + 1]
        equal = np.flatnonzero(hashes[1:] == hashes[:-1])
        if len(equal):
            yield table.row[begin + np.union1d(equal, equal + 1)].astype(np.int64)


def find_existing(new: KeyTable, read: ReadKeys, others: KeyIndex) -> DuplicateKey | None:
    """Return the first key, by hash, of a new table that an index has too; `read` takes rows of the table.

    >>> old, new = ["cat", "dog"], ["emu", "dog"]
    >>> tables = [KeyTable(*encode_keys(hash_keys(keys))) for keys in (old, new)]
    >>> index = KeyIndex(tables[:1], np.array([100]), lambda rows: [old[row - 100] for row in rows])
    >>> find_existing(tables[1], lambda rows: [new[row] for row in rows], index)
    DuplicateKey(key='dog', row=1, other=101)
    """
    for begin in range(0, len(new), _CHUNK):
        rows = new.row[begin : begin + _CHUNK].astype(np.int64)

        def read_at(which: Integers, rows: Integers = rows) -> Keys:
            return read(rows[which])

        which, found = others.matches(new.hash[begin : begin + _CHUNK], read_at)
        if len(which):
            row = rows[which[:1]]
            return DuplicateKey(_as_list(read(row))[0], int(row[0]), int(found[0]))
    return None
