"""Finds samples of a native dataset by key, and raises an error for duplicate keys.

Every fragment of a dataset with a key has a key table (`keys`). The keys themselves are values of the key field, which
cannot be updated, so the base values are always the current keys.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, DuplicateKeyError, SchemaError
from shardex.formats import TableRows
from shardex.kernel import Integers
from shardex.schema import Bytes, Features, Media, Text, Value
from shardex.sources import Source
from shardex.store.data_file_reader import read_numbers
from shardex.store.keys import KeyIndex, KeyTable, find_duplicate, find_existing
from shardex.store.manifest import Fragment, Manifest
from shardex.store.version_reader import VersionReader


def check_key(key: str | None, features: Features, generate: bool = False) -> None:
    """Raise an error if a field cannot be the key.

    >>> check_key("x", Features.of({"x": float}))
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a key of whole numbers, text or bytes, got float64 - at field x
    """
    if key is None:
        if generate:
            raise ArgumentError("expected key= to say which field gets generated keys, got none")
        return
    if key not in features:
        raise SchemaError(f"expected one of the fields {', '.join(features)} as key, got {key!r}")
    feature = features[key]
    whole = isinstance(feature, Value) and np.dtype(feature.dtype).kind in "iu"
    if not (whole or isinstance(feature, Text | Bytes)) or isinstance(feature, Media):
        raise SchemaError(f"expected a key of whole numbers, text or bytes, got {feature} - at field {key}")
    if generate and not isinstance(feature, Text):
        raise SchemaError(f"expected a text field for generated keys, got {feature} - at field {key}")


class KeyLookup:
    """Rows by key in one version of a dataset; nothing is read before the first look-up."""

    def __init__(self, reader: VersionReader) -> None:
        assert reader.manifest.key is not None
        self.key = reader.manifest.key
        self._reader = reader

    @cached_property
    def _index(self) -> KeyIndex:
        return _index(self._reader, self._reader.manifest.fragments)

    def rows_of(self, keys: SequenceOf[Any] | NDArray[Any]) -> Integers:
        """Return the row of each key; raise an error if one is missing."""
        if isinstance(keys, str | bytes) or not isinstance(keys, SequenceOf | np.ndarray):
            raise ArgumentError(f"expected a list or an array of keys, got {type(keys).__name__}")
        return self._reader.live_rows.rows(self._index.rows_of(keys))

    def row_of(self, key: Any) -> int:
        """Return the row of one key; raise an error if it is missing."""
        return int(self._reader.live_rows.rows(np.array([self._index.row_of(key)]))[0])


def _index(reader: VersionReader, fragments: list[Fragment]) -> KeyIndex:
    """Return the index of the first fragments of a version; its rows are physical rows."""
    tables = [_table(reader.source, fragment) for fragment in fragments]
    starts = np.cumsum([0, *(fragment.rows for fragment in fragments)])[:-1]
    base, key = _keys_of(reader)
    return KeyIndex(
        tables,
        starts,
        lambda rows: base.read(rows, [key])[key],
        reader.live_rows.is_live if reader.manifest.deleted else None,
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


def refuse_duplicates(source: Source, manifest: Manifest, appended: int) -> None:
    """Raise an error if a version to publish has duplicate keys; `appended` is the number of its new fragments."""
    if manifest.key is None or not appended:
        return
    # A writer follows links out of the folder, too, and an append has no option to allow it.
    has_adopted = any(fragment.adopted is not None for fragment in manifest.fragments)
    reader = VersionReader(source, manifest, trust_paths=not has_adopted)
    base, key = _keys_of(reader)
    for number in range(len(manifest.fragments) - appended, len(manifest.fragments)):
        start = sum(fragment.rows for fragment in manifest.fragments[:number])
        before = _index(reader, manifest.fragments[:number])
        table = _table(source, manifest.fragments[number])

        def read(rows: Integers, start: int = start) -> Any:
            return base.read(rows + start, [key])[key]

        if (found := find_duplicate(table, read) or find_existing(table, read, before)) is not None:
            raise DuplicateKeyError(
                f"expected every key once, got {found.key!r:.200} twice - at field {key}; nothing was written"
            )
