"""Values of JSON keys, extracted from samples once and stored next to their index, so that SQL decodes no samples.

`attributes=["lang", "score"]` chooses keys. Each becomes a column of numbers, booleans or text if all its values are of
that type, otherwise of JSON text; it is null where a sample has no such key. The columns are a memory-mapped Arrow
sidecar file, whose blocks are verified when they are first read. Only data files that changed are decoded again, unless
new keys are requested. Formats find keys in samples (`ExtractedRows.values`).
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.columns import tables, to_table
from shardex.errors import ArgumentError, ChecksumError, StaleIndexError
from shardex.features import Feature, Features, Json, Optional, Value, conversions
from shardex.files import Files, IndexedFile, Sidecar, decode_sidecar, load_sidecars, save_sidecar, scan_all
from shardex.formats.record_rows import RecordRows
from shardex.formats.registry import format_named
from shardex.kernel import Columns, Integers
from shardex.sources import Source

VERSION = 2
_BLOCK_ROWS = 1 << 16

Piece = dict[str, tuple[Feature | None, pa.Array]]
"""Values of each key for some rows, and their feature; None if there are no values."""


# -- extracting ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyScanner:
    """Extracts the values of some keys from a file."""

    format: str
    keys: tuple[str, ...]
    in_python: bool = True

    @property
    def name(self) -> str:
        """Name and version of the sidecar; a new version extracts again."""
        return f"{self.format}-attributes 1"

    def scan(self, source: Source, path: str) -> list[Piece]:
        """Return the values in one file, in blocks of rows."""
        one_file = format_named(self.format).one_file
        assert one_file is not None
        rows: ExtractedRows = one_file(source, path)
        found = []
        for begin in range(0, len(rows), _BLOCK_ROWS):
            values = rows.values(np.arange(begin, min(begin + _BLOCK_ROWS, len(rows))), self.keys)
            found.append({key: _typed_array(values[key]) for key in self.keys})
        return found


_ANY = Optional(Json())
_INTEGER, _NUMBER = Optional(Value("int64")), Optional(Value("float64"))


def _typed_array(values: list[Any]) -> tuple[Feature | None, pa.Array]:
    feature = conversions.feature_of_values(values) if any(value is not None for value in values) else None
    return feature, _array(values, feature or _ANY)


def _array(values: list[Any], feature: Feature) -> pa.Array:
    return to_table(Columns({"value": values}, len(values)), Features({"value": feature})).column(0).chunk(0)


def _common(features: Sequence[Feature | None]) -> Feature:
    """Return the feature that holds values of all these features.

    >>> str(_common([_INTEGER, None, _NUMBER])), str(_common([None])), str(_common([_INTEGER, _ANY]))
    ('float64 or none', 'json or none', 'json or none')
    """
    found = {feature for feature in features if feature is not None}
    if found == {_INTEGER, _NUMBER}:
        return _NUMBER
    return found.pop() if len(found) == 1 else _ANY


def _converted(piece: tuple[Feature | None, pa.Array], feature: Feature) -> pa.Array:
    found, array = piece
    if found == feature:
        return array
    if found is None:
        return _array([None] * len(array), feature)
    return array.cast(pa.float64(), safe=False) if feature == _NUMBER else _array(array.to_pylist(), feature)


# -- the sidecar file ------------------------------------------------------------------------------------------


class ExtractedColumns:
    """Columns in a sidecar file."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.name = name
        self._reader, head = decode_sidecar(
            data, name, VERSION, lambda head: _schema(Features.from_json(head["features"]))
        )
        self.files = tuple(IndexedFile(**file) for file in head["files"])
        self.features = Features.from_json(head["features"])
        self._blocks: list[dict[str, Any]] = head["blocks"]
        self._columns: dict[str, pa.ChunkedArray] = {}

    def column(self, key: str) -> pa.ChunkedArray:
        """Return all values of a key."""
        if key not in self._columns:
            arrays = [self._array(number, key) for number in range(len(self._blocks))]
            self._columns[key] = pa.chunked_array(arrays, self.features[key].arrow_type())
        return self._columns[key]

    def pieces_of(self, number: int) -> list[Piece] | None:
        """Return the values from one file; None if they were converted to the type of values in other files."""
        blocks = [block for block, head in enumerate(self._blocks) if head["file"] == number]
        if any(self._blocks[block]["fitted"] for block in blocks):
            return None
        return [{key: self._piece(block, key) for key in self.features} for block in blocks]

    def _piece(self, number: int, key: str) -> tuple[Feature | None, pa.Array]:
        array = self._array(number, key)
        return (None if array.null_count == len(array) else self.features[key]), array

    def _array(self, number: int, key: str) -> pa.Array:
        digest = None
        with suppress(pa.ArrowException, OSError, ValueError, IndexError):
            batch = self._reader.get_batch(number)
            batch.validate()
            digest = _digest(array := batch.column(key))
        if digest != self._blocks[number]["xxh3"][key]:
            raise ChecksumError(
                f"{self.name}, block {number}: expected the values of {key} that were written, got other bytes; "
                "open with rebuild=True (or delete the file) to extract them again"
            )
        return array


def _encode(files: Sequence[IndexedFile], found: Sequence[list[Piece]], keys: Sequence[str]) -> Sidecar:
    """Return a sidecar: a column for each key, of one type for all its values."""
    every = [(number, piece) for number, pieces in enumerate(found) for piece in pieces]
    features = Features({key: _common([piece[key][0] for _, piece in every]) for key in keys})
    batches = [[_converted(piece[key], feature) for key, feature in features.items()] for _, piece in every]
    blocks = [
        {
            "file": number,
            "xxh3": {key: _digest(array) for key, array in zip(keys, arrays, strict=True)},
            "fitted": any(piece[key][0] not in (None, features[key]) for key in keys),
        }
        for (number, piece), arrays in zip(every, batches, strict=True)
    ]
    entries = [asdict(file) for file in files]
    head = {"version": VERSION, "files": entries, "features": features.to_json(), "blocks": blocks}
    return Sidecar(head, _schema(features), batches)


def _schema(features: Features) -> pa.Schema:
    return pa.schema([(key, feature.arrow_type()) for key, feature in features.items()])


def _digest(array: pa.Array) -> int:
    """Return a checksum of the values of an array, without the padding of its buffers."""
    rows, (there, *buffers) = len(array), array.buffers()
    digest = xxhash.xxh3_64(_bits(there, rows) if array.null_count else b"")
    if pa.types.is_boolean(array.type):
        digest.update(_bits(buffers[0], rows))
    elif pa.types.is_large_string(array.type):
        offsets = np.frombuffer(buffers[0], np.int64, rows + 1)
        digest.update(offsets.data)
        digest.update(np.frombuffer(buffers[1] or b"", np.uint8)[: offsets[-1]].data)
    else:
        digest.update(np.frombuffer(buffers[0], np.uint8, rows * 8).data)
    return digest.intdigest()


def _bits(buffer: pa.Buffer, rows: int) -> bytes:
    """Return the bits of the first rows."""
    bits = np.frombuffer(buffer, np.uint8, (rows + 7) // 8)
    return np.packbits(np.unpackbits(bits, count=rows, bitorder="little")).tobytes()


class Extraction:
    """Extracted columns of the files of a dataset; the sidecar is loaded when it is first needed."""

    def __init__(self, files: Files, indexed: Sequence[IndexedFile], format: str) -> None:
        self._files, self._indexed, self._format = files, tuple(indexed), format

    @cached_property
    def _found(self) -> ExtractedColumns | None:
        return self._load_or_extract((), rebuild=False) if self._indexed else None

    @property
    def features(self) -> Features:
        """The extracted keys and the features of their values."""
        return Features({}) if self._found is None else self._found.features

    def extract(self, keys: Sequence[str], *, rebuild: bool, **options: Any) -> None:
        """Extract these keys, and again those that were extracted before; the options are those of `scan_all`."""
        if isinstance(keys, str) or not all(isinstance(key, str) and key for key in keys):
            raise ArgumentError(f"expected a list of keys for the option attributes, got {keys!r}")
        self._found = self._load_or_extract(keys, rebuild, **options)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return an extracted column; a damaged one is extracted again."""
        assert self._found is not None
        try:
            return self._found.column(name)
        except ChecksumError as error:
            warnings.warn(f"{error}; extracting them again", stacklevel=4)
            self.extract(list(self.features), rebuild=True)
            return self._found.column(name)

    def _load_or_extract(self, keys: Sequence[str], rebuild: bool, **options: Any) -> ExtractedColumns | None:
        """Load the sidecar if it is up to date, otherwise extract what changed and save it."""
        scanner = KeyScanner(self._format, tuple(keys))
        remedy = "the values in it must be extracted again"
        saved = load_sidecars(self._files, scanner.name, ExtractedColumns, remedy)
        known = [one for one in saved if not rebuild and set(keys) <= set(one.features)]
        for one in known:
            if one.files == self._indexed:
                return one
        scanner = KeyScanner(self._format, tuple(dict.fromkeys([*(saved[0].features if saved else ()), *keys])))
        if not scanner.keys:
            return None
        ours = set(self._indexed)
        before = enumerate(known[0].files if known else ())
        pieces = {file.path: known[0].pieces_of(number) for number, file in before if file in ours}
        old = {path: found for path, found in pieces.items() if found is not None}
        todo = {file.path: file.size for file in self._indexed if file.path not in old}
        found = old | scan_all(self._files.source, todo, scanner, desc="attributes", **options)
        self._refuse_changed_files(found)
        data = _encode(self._indexed, [found[file.path] for file in self._indexed], scanner.keys)
        made = ExtractedColumns(*save_sidecar(self._files, scanner.name, data))
        for key in keys:
            if len(column := made.column(key)) and column.null_count == len(column):
                warnings.warn(
                    f"{self._files}: no sample has the key {key!r}, so conditions with it match nothing; attributes "
                    "are keys of the JSON of samples, not paths in it",
                    stacklevel=5,
                )
        return made

    def _refuse_changed_files(self, found: Mapping[str, list[Piece]]) -> None:
        """Raise StaleIndexError if a file is not the one that was indexed."""
        for number, file in enumerate(self._indexed):
            rows = sum(len(array) for piece in found[file.path] for _, array in [next(iter(piece.values()))])
            if rows != file.rows or not file.is_unchanged(self._files.source.stat(file.path), self._files.source):
                raise StaleIndexError(
                    f"{self._files.name(number)}: expected {file.rows} samples as when it was indexed, got {rows} in "
                    "another file of its name; open it again"
                )


class ExtractedRows(RecordRows):
    """Rows whose samples hold JSON, with columns of extracted keys for SQL; subclasses define `extracted`."""

    extraction: Extraction

    @abstractmethod
    def values(self, rows: Integers, keys: Sequence[str]) -> Mapping[str, list[Any]]:
        """Return the values of these keys; None where a sample has no such key."""

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return extracted columns, and other fields by reading all samples."""
        extracted = self.extracted
        mine, others = ([name for name in names if (name in extracted) == is_mine] for is_mine in (True, False))
        parts = [super().sql_columns(others)] if others else []
        if mine:
            parts.append(
                tables.sql_table({name: self.extraction.column(name) for name in mine}, self.extraction.features)
            )
        return tables.concat_columns(parts)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has a value for an extracted key or a field."""
        if name not in self.extracted:
            return super().present(name)
        return tables.valid_mask(self.extraction.column(name), self.extraction.features[name])
