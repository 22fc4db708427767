"""Finds samples of a native dataset by key, and raises an error for duplicate keys.

Every fragment of a dataset with a key has a key table (`keys`); small ones of a run are merged, so that a look-up and
the check of an append read few files. The keys themselves are values of the key field, which
cannot be updated, so the base values are always the current keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, DuplicateKeyError, FormatError, SchemaError
from shardex.features import Bytes, Features, Media, Text, Value
from shardex.formats import TableRows
from shardex.kernel import Integers
from shardex.native.data_file_reader import read_number_columns
from shardex.native.data_files import write_numbers
from shardex.native.fragment_list import FragmentList
from shardex.native.fragment_segments import FragmentSegment, KeyRange, RunSegment
from shardex.native.fragments import DataFile
from shardex.native.keys import KeyIndex, KeyTable, find_duplicate, find_existing, merge_tables
from shardex.native.manifest import Manifest
from shardex.native.version_reader import VersionReader
from shardex.sources import Place, Source

MERGED_ROWS = 1 << 20
"""Most rows of a key table of several fragments; merging more would make single commits slow."""


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
        reader = self._reader
        return _index(reader, [(_table(reader.source, *one), one[1]) for one in reader.manifest.fragments.key_files()])

    def rows_of(self, keys: Sequence[Any] | NDArray[Any]) -> Integers:
        """Return the row of each key; raise an error if one is missing."""
        if isinstance(keys, str | bytes) or not isinstance(keys, Sequence | np.ndarray):
            raise ArgumentError(f"expected a list or an array of keys, got {type(keys).__name__}")
        return self._reader.live_rows.rows(self._index.rows_of(keys))

    def row_of(self, key: Any) -> int:
        """Return the row of one key; raise an error if it is missing."""
        return int(self._reader.live_rows.rows(np.array([self._index.row_of(key)]))[0])


def _index(reader: VersionReader, tables: Sequence[tuple[KeyTable, int]]) -> KeyIndex:
    """Return the index of key tables, each with its first physical row."""
    base, key = _keys_of(reader)
    return KeyIndex(
        [table for table, _ in tables],
        np.array([start for _, start in tables], np.int64),
        lambda rows: base.read(rows, [key])[key],
        reader.live_rows.is_live if reader.manifest.deleted else None,
        lambda row: base.sample(row, [key])[key],
    )


def _table(source: Source, file: DataFile, start: int, rows: int) -> KeyTable:
    columns = read_number_columns(source, file, ("hash", "row"))
    if len(columns["hash"]) != rows:
        found = len(columns["hash"])
        raise FormatError(f"{source.url}/{file.path}: expected the keys of {rows} rows, got {found}")
    return KeyTable(columns["hash"], columns["row"], rows, f"{source.url}/{file.path}")


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
    reader = VersionReader(source, manifest, trust_paths=manifest.fragments.adopted is None)
    base, key = _keys_of(reader)
    fragments = manifest.fragments
    known = [(_table(source, *one), one[1]) for one in fragments[: len(fragments) - appended].key_files()]
    new = fragments[len(fragments) - appended :]
    before = fragments.total - new.total
    for some in _pieces(new.key_files()):
        tables = [_table(source, *one) for one in some]
        begin = before + some[0][1]
        table = KeyTable(*merge_tables(tables, [start - some[0][1] for _, start, _ in some]))

        def read(rows: Integers, begin: int = begin) -> Any:
            return base.read(rows + begin, [key])[key]

        if (found := find_duplicate(table, read) or find_existing(table, read, _index(reader, known))) is not None:
            raise DuplicateKeyError(
                f"expected every key once, got {found.key!r:.200} twice - at field {key}; nothing was written"
            )
        known.append((table, begin))


KeyFile = tuple[DataFile, int, int]
"""A file with key hashes, its first physical row and its number of rows."""


def _pieces(files: Sequence[KeyFile]) -> Iterator[list[KeyFile]]:
    """Yield neighbours that have at most `MERGED_ROWS` rows together, or one that has more."""
    some: list[KeyFile] = []
    for one in files:
        if some and sum(rows for *_, rows in some) + one[2] > MERGED_ROWS:
            yield some
            some = []
        some.append(one)
    if some:
        yield some


def with_merged_keys(place: Place, fragments: FragmentList) -> FragmentList:
    """Return fragments of which the new runs have key tables of many fragments, so that a look-up reads few files."""
    segments: list[FragmentSegment] = []
    for segment in fragments.segments:
        if isinstance(segment, RunSegment) and segment.run.keys and segment.run.file.path in fragments.written:
            tables = list(_merged(place, segment))
            fragments.written += [one.file.path for one in tables if one not in segment.run.tables]
            segments.append(segment.with_tables(tables))
        else:
            segments.append(segment)
    made = FragmentList.of(segments)
    made.written = fragments.written
    return made


def _merged(place: Place, segment: RunSegment) -> Iterator[KeyRange]:
    """Yield the key tables of a run, with neighbours of few rows merged; new ones are written."""
    known = {one.file.path: one for one in segment.run.tables}
    starts = np.concatenate([[0], np.cumsum(segment.rows)])
    for some in _pieces(FragmentList.of([segment]).key_files()):
        if len(some) == 1:
            if some[0][0].path in known:
                yield known[some[0][0].path]
            continue
        tables = [_table(place, *one) for one in some]
        hashes, rows = merge_tables(tables, [start - some[0][1] for _, start, _ in some])
        file = write_numbers(place, {"hash": hashes, "row": rows}).publish()
        begin, end = np.searchsorted(starts, [some[0][1], some[-1][1] + some[-1][2]]).tolist()
        yield KeyRange(msgspec.structs.replace(file, fields={}), begin, end)
