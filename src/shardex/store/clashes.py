"""No key twice: a key that two rows of a table have, or one that the tables before it have already.

Looks at a table of keys (`keys.py`) a chunk at a time, and reads only keys whose hashes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shardex.kernel import Integers
from shardex.store.hashes import Hashes, Key, listed
from shardex.store.keys import Alive, KeyIndex, KeyTable, Read, living

__all__ = ["Clash", "first_clash", "first_duplicate"]

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Clash:
    """A key that two rows have."""

    key: Key
    row: int
    """The row that has it again, in the table that was checked."""
    other: int
    """The row that has it already: in the same table, or in the index."""


def first_duplicate(table: KeyTable, read: Read, alive: Alive | None = None) -> Clash | None:
    """The first key, by hash, that two rows of one table have; `read` and `alive` take the rows of that table.

    >>> from shardex.store.hashes import hash_keys; from shardex.store.keys import encode_keys
    >>> keys = ["cat", "dog", "cat"]
    >>> first_duplicate(KeyTable(*encode_keys(hash_keys(keys))), lambda rows: [keys[row] for row in rows])
    Clash(key='cat', row=2, other=0)
    """
    seen: dict[Key, int] = {}  # remains small: it holds only keys that share their hash
    for crowded in _crowded_rows(table):
        rows = crowded[living(alive, crowded)]
        for key, row in zip(listed(read(rows)), rows.tolist(), strict=True):
            if (other := seen.setdefault(key, row)) != row:
                return Clash(key, row, other)
    return None


def _crowded_rows(table: KeyTable) -> Iterator[Integers]:
    """The rows that share their hash with a neighbour, chunk by chunk; one at the seam may come twice."""
    for begin in range(0, len(table) - 1, _CHUNK):
        hashes = table.hash[begin : begin + _CHUNK + 1]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1])
        if len(twins):
            yield table.row[begin + np.union1d(twins, twins + 1)].astype(np.int64)


def first_clash(new: KeyTable, read: Read, others: KeyIndex, alive: Alive | None = None) -> Clash | None:
    """The first key, by hash, of a new table that the index has too; `read` and `alive` take the rows of the table.

    Ask `first_duplicate` first. Several new tables: each against an index that has those before it as well.

    >>> from shardex.store.hashes import hash_keys; from shardex.store.keys import encode_keys
    >>> old, new = ["cat", "dog"], ["emu", "dog"]
    >>> tables = [KeyTable(*encode_keys(hash_keys(keys))) for keys in (old, new)]
    >>> index = KeyIndex(tables[:1], np.array([100]), lambda rows: [old[row - 100] for row in rows])
    >>> first_clash(tables[1], lambda rows: [new[row] for row in rows], index)
    Clash(key='dog', row=1, other=101)
    """
    for begin in range(0, len(new), _CHUNK):
        hashes = new.hash[begin : begin + _CHUNK]
        rows = new.row[begin : begin + _CHUNK].astype(np.int64)
        there = living(alive, rows)
        if clash := _clash(hashes[there], rows[there], read, others):
            return clash
    return None


def _clash(hashes: Hashes, rows: Integers, read: Read, others: KeyIndex) -> Clash | None:
    which, found = others.matches(hashes, lambda which: read(rows[which]))
    if not len(which):
        return None
    row = rows[which[:1]]
    return Clash(listed(read(row))[0], int(row[0]), int(found[0]))
