"""Values taken out of samples once and kept beside their index, so that SQL does not decode every sample again.

`attributes=["lang", "score"]` chooses keys of JSON. Each becomes a column of numbers, truth values or text if all its
values are such, else of JSON text; where a sample lacks it, it is null. The columns are one sealed, memory-mapped Arrow
file, whose parts are checked when they are first touched. A data file that changed is decoded again alone, unless more
keys are asked for. Formats say how keys are found in samples (`Keyed`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from shardex.arrow import arrow_type, concat_columns, feature_of_values, sql_table, to_table, valid_mask
from shardex.errors import ArgumentError, ChecksumError, ShardexError, StaleIndexError
from shardex.files import Files, IndexedFile, decode_sidecar, encode_sidecar, load_sidecars, save_sidecar, scan_all
from shardex.formats.registry import format_named
from shardex.kernel import Columns, Integers
from shardex.schema import Feature, Features, Json, Optional, Value
from shardex.sources import Source

__all__ = ["Extraction", "Extracts", "KeyScanner", "Keyed"]

VERSION = 2
_BLOCK_ROWS = 1 << 16

Piece = dict[str, tuple[Feature | None, pa.Array]]
"""For some rows the values of each key, and what they are; nothing if there are none."""


class Keyed(Protocol):
    """Rows whose samples have JSON in them."""

    def __len__(self) -> int:
        """How many there are."""

    def values(self, rows: Integers, keys: Sequence[str]) -> Mapping[str, list[Any]]:
        """The values of these keys; `None` where a sample has none."""


# -- taking them out ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyScanner:
    """Takes the values of some keys out of a file."""

    format: str
    keys: tuple[str, ...]
    in_python: bool = True

    @property
    def name(self) -> str:
        """Names what is kept; the number changes when answers do."""
        return f"{self.format}-attributes 1"

    def scan(self, source: Source, path: str) -> list[Piece]:
        """The values in one file, some rows at a time."""
        one_file = format_named(self.format).one_file
        assert one_file is not None
        rows: Keyed = one_file(source, path)
        found = []
        for begin in range(0, len(rows), _BLOCK_ROWS):
            values = rows.values(np.arange(begin, min(begin + _BLOCK_ROWS, len(rows))), self.keys)
            found.append({key: _packed(values[key]) for key in self.keys})
        return found


_ANY = Optional(Json())
_INTEGER, _NUMBER = Optional(Value("int64")), Optional(Value("float64"))


def _packed(values: list[Any]) -> tuple[Feature | None, pa.Array]:
    feature = feature_of_values(values) if any(value is not None for value in values) else None
    return feature, _array(values, feature or _ANY)


def _array(values: list[Any], feature: Feature) -> pa.Array:
    return to_table(Columns({"value": values}, len(values)), Features({"value": feature})).column(0).chunk(0)


def _common(features: Sequence[Feature | None]) -> Feature:
    """What values of several features are together.

    >>> str(_common([_INTEGER, None, _NUMBER])), str(_common([None])), str(_common([_INTEGER, _ANY]))
    ('float64 or none', 'json or none', 'json or none')
    """
    found = {feature for feature in features if feature is not None}
    if found == {_INTEGER, _NUMBER}:
        return _NUMBER
    return found.pop() if len(found) == 1 else _ANY


def _as(piece: tuple[Feature | None, pa.Array], feature: Feature) -> pa.Array:
    found, array = piece
    if found == feature:
        return array
    if found is None:
        return _array([None] * len(array), feature)
    return array.cast(pa.float64(), safe=False) if feature == _NUMBER else _array(array.to_pylist(), feature)


# -- what is kept ---------------------------------------------------------------------------------------------


class Extracts:
    """The columns in a kept file."""

    def __init__(self, data: memoryview, name: str) -> None:
        self.name = name
        self._reader, head = decode_sidecar(data, name, VERSION)
        self.files = tuple(IndexedFile(**file) for file in head["files"])
        self.features = Features.from_json(head["features"])
        self._blocks: list[dict[str, Any]] = head["blocks"]
        if self._reader.num_record_batches != len(self._blocks) or not self._reader.schema.equals(
            _schema(self.features)
        ):
            raise ChecksumError(f"{name}: expected the columns and blocks that its head names, got others")
        self._columns: dict[str, pa.ChunkedArray] = {}

    def column(self, key: str) -> pa.ChunkedArray:
        """All values of a key."""
        if key not in self._columns:
            arrays = [self._array(number, key) for number in range(len(self._blocks))]
            self._columns[key] = pa.chunked_array(arrays, arrow_type(self.features[key]))
        return self._columns[key]

    def pieces_of(self, number: int) -> list[Piece] | None:
        """What was taken out of one file; none if it was made to fit what was found in others."""
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
                "open with rebuild=True (or delete the file) to take them out again"
            )
        return array


def _encode(files: Sequence[IndexedFile], found: Sequence[list[Piece]], keys: Sequence[str]) -> memoryview:
    """The bytes of a kept file: a column for each key, of a type for all its values."""
    every = [(number, piece) for number, pieces in enumerate(found) for piece in pieces]
    features = Features({key: _common([piece[key][0] for _, piece in every]) for key in keys})
    batches = [[_as(piece[key], feature) for key, feature in features.items()] for _, piece in every]
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
    return encode_sidecar(head, _schema(features), batches)


def _schema(features: Features) -> pa.Schema:
    return pa.schema([(key, arrow_type(feature)) for key, feature in features.items()])


def _digest(array: pa.Array) -> int:
    """A checksum of what an array holds, whatever lies behind its end."""
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
    """The bits of so many rows."""
    bits = np.frombuffer(buffer, np.uint8, (rows + 7) // 8)
    return np.packbits(np.unpackbits(bits, count=rows, bitorder="little")).tobytes()


class Extraction:
    """What was taken out of the files of some rows; looked for when it is first needed."""

    def __init__(self, files: Files, indexed: Sequence[IndexedFile], format: str) -> None:
        self._files, self._indexed, self._format = files, tuple(indexed), format

    @cached_property
    def _found(self) -> Extracts | None:
        return self._up_to_date((), rebuild=False, progress=None) if self._indexed else None

    @property
    def features(self) -> Features:
        """The keys that were taken out, and what their values are."""
        return Features({}) if self._found is None else self._found.features

    def take(self, keys: Sequence[str], *, rebuild: bool, progress: bool | None) -> None:
        """Have these keys taken out, and those that were before."""
        if isinstance(keys, str) or not all(isinstance(key, str) and key for key in keys):
            raise ArgumentError(f"expected a list of keys for the option attributes, got {keys!r}")
        self._found = self._up_to_date(keys, rebuild, progress)

    def table(
        self, names: Sequence[str], extracted: Collection[str], read: Callable[[list[str]], pa.Table]
    ) -> pa.Table:
        """Return columns for SQL: those in `extracted` from here, the others by `read`."""
        mine = [name for name in names if name in extracted]
        parts = [read([name for name in names if name not in extracted])] if len(mine) < len(names) else []
        if self._found is not None and mine:
            parts.append(sql_table({name: self._column(name) for name in mine}, self.features))
        return concat_columns(parts)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which rows have a value for a key that was taken out."""
        return valid_mask(self._column(name))

    def _column(self, name: str) -> pa.ChunkedArray:
        """A key that was taken out; if it was damaged since, it is taken out again."""
        assert self._found is not None
        try:
            return self._found.column(name)
        except ChecksumError as error:
            warnings.warn(f"{error}; taking them out again", stacklevel=5)
            self.take(list(self.features), rebuild=True, progress=None)
            return self._found.column(name)

    def _up_to_date(self, keys: Sequence[str], rebuild: bool, progress: bool | None) -> Extracts | None:
        """What is kept if it fits, else with what changed taken out again."""
        scanner = KeyScanner(self._format, tuple(keys))
        saved = _load(self._files, scanner.name)
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
        found = old | scan_all(self._files.source, todo, scanner, progress, "attributes")
        self._refuse_others(found)
        data = _encode(self._indexed, [found[file.path] for file in self._indexed], scanner.keys)
        return Extracts(*save_sidecar(self._files, scanner.name, data))

    def _refuse_others(self, found: Mapping[str, list[Piece]]) -> None:
        """An error if what was found is not what the index knows."""
        for number, file in enumerate(self._indexed):
            rows = sum(len(array) for piece in found[file.path] for _, array in [next(iter(piece.values()))])
            if rows != file.rows or not file.is_unchanged(self._files.source.stat(file.path)):
                raise StaleIndexError(
                    f"{self._files.name(number)}: expected {file.rows} samples as when it was indexed, got {rows} in "
                    "another file of its name; open it again"
                )


def _load(files: Files, kind: str) -> list[Extracts]:
    """What was kept; if it is damaged, it is made again."""
    found = []
    for data, name in load_sidecars(files, kind):
        try:
            found.append(Extracts(data, name))
        except (ShardexError, KeyError, TypeError) as error:
            warnings.warn(f"{error}; the values in it must be taken out again", stacklevel=5)
    return found
