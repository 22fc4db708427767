"""The keys of a native dataset: look-ups by key over its fragments, and no key twice in a version.

Every fragment of a dataset with a key has a table of hashes (`keys.py`). The keys themselves lie in the data; they
cannot be updated, so what a fragment holds is what its rows have.

No key twice: a key that two rows of a table have, or one that the tables before it have already.

Looks at a table of keys (`keys.py`) a chunk at a time, and reads only keys whose hashes are equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import DuplicateKeyError, SchemaError
from shardex.formats import TableRows
from shardex.kernel import Integers
from shardex.schema import Bytes, Features, Text, Value
from shardex.sources import Source
from shardex.store.data_file_reader import read_numbers
from shardex.store.keys import Alive, Hashes, Key, KeyIndex, KeyTable, Read, listed, living
from shardex.store.manifest import Fragment, Manifest
from shardex.store.version_reader import VersionReader

__all__ = ["Clash", "KeyLookup", "check_key", "first_clash", "first_duplicate", "refuse_duplicates"]

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

    >>> from shardex.store.keys import hash_keys; from shardex.store.keys import encode_keys
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

    >>> from shardex.store.keys import hash_keys; from shardex.store.keys import encode_keys
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


def check_key(key: str | None, features: Features, generate: bool = False) -> None:
    """Refuse a field that cannot tell samples apart.

    >>> check_key("x", Features.of({"x": float}))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a key of whole numbers, text or bytes, got float64 - at field x
    """
    if key is None:
        if generate:
            raise SchemaError("expected key= to say which field gets generated keys, got none")
        return
    if key not in features:
        raise SchemaError(f"expected one of the fields {', '.join(features)} as key, got {key!r}")
    feature = features[key]
    whole = isinstance(feature, Value) and np.dtype(feature.dtype).kind in "iu"
    if not (whole or isinstance(feature, Text | Bytes)):
        raise SchemaError(f"expected a key of whole numbers, text or bytes, got {feature} - at field {key}")
    if generate and not isinstance(feature, Text):
        raise SchemaError(f"expected a text field for generated keys, got {feature} - at field {key}")


class KeyLookup:
    """Rows by key in one version of a dataset; nothing is read before the first question."""

    def __init__(self, reader: VersionReader) -> None:
        assert reader.manifest.key is not None
        self.key = reader.manifest.key
        self._reader = reader

    @cached_property
    def _index(self) -> KeyIndex:
        return _index(self._reader, self._reader.manifest.fragments)

    def rows_of(self, keys: SequenceOf[Any] | NDArray[Any]) -> Integers:
        """The row of each key; an error names one that is missing."""
        if isinstance(keys, str | bytes) or not isinstance(keys, SequenceOf | np.ndarray):
            raise SchemaError(f"expected a list or an array of keys, got {type(keys).__name__}")
        return self._rows(self._index.rows_of(keys))

    def row_of(self, key: Any) -> int:
        """The row of one key; an error if it is missing."""
        return int(self._rows(np.array([self._index.row_of(key)]))[0])

    def _rows(self, physical: Integers) -> Integers:
        live = self._reader.live_rows
        return physical if live is None else live.rows(physical)


def _index(reader: VersionReader, fragments: list[Fragment]) -> KeyIndex:
    """Return the index of the first fragments of a version; its rows are physical rows."""
    tables = [_table(reader.source, fragment) for fragment in fragments]
    starts = np.cumsum([0, *(fragment.rows for fragment in fragments)])[:-1]
    base, key = _keys_of(reader)
    return KeyIndex(
        tables,
        starts,
        lambda rows: base.read(rows, [key])[key],
        None if reader.live_rows is None else reader.live_rows.is_live,
        lambda row: base.sample(row, [key])[key],
    )


def _table(source: Source, fragment: Fragment) -> KeyTable:
    if fragment.keys is None:
        return KeyTable(np.empty(0, np.uint64), np.empty(0, np.uint64))
    return KeyTable(*(read_numbers(source, fragment.keys, column) for column in ("hash", "row")))


def _keys_of(reader: VersionReader) -> tuple[TableRows, str]:
    """Return all physical rows with the key field alone, and the name of that field."""
    key = reader.manifest.key
    assert key is not None
    return reader.base_rows(reader.manifest.features.select([key])), key


def refuse_duplicates(source: Source, manifest: Manifest, appended: list[Fragment]) -> None:
    """An error if a version that is about to be made has a key twice; `appended` are its last fragments."""
    if manifest.key is None or not appended:
        return
    reader = VersionReader(source, manifest)
    base, key = _keys_of(reader)
    for number in range(len(manifest.fragments) - len(appended), len(manifest.fragments)):
        start = sum(fragment.rows for fragment in manifest.fragments[:number])
        before = _index(reader, manifest.fragments[:number])
        table = _table(source, manifest.fragments[number])

        def own(rows: Integers, start: int = start) -> Any:
            return base.read(rows + start, [key])[key]

        if (clash := first_duplicate(table, own) or first_clash(table, own, before)) is not None:
            raise DuplicateKeyError(
                f"expected every key once, got {clash.key!r:.200} twice - at field {manifest.key}; nothing was written"
            )
