"""Arrays by name in ``.npz`` files of numpy: each array is a field, and its first axis are the samples.

Several files are shards of one dataset. Arrays without compression are read from the mapped file; compressed ones are
loaded when they are first read. Arrays of Python objects are pickles: they are refused, and nothing is ever unpickled.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import ArgumentError, FormatError, RowError, SchemaError, ShardexError
from shardex.features import (
    Array,
    ClassLabel,
    Feature,
    Features,
    Text,
    Value,
    arrow_schema,
    codecs,
    features_of_arrow,
    infer,
    told_apart,
)
from shardex.files import Files
from shardex.formats.join_shards import JoinShards
from shardex.formats.number_rows import data_files
from shardex.formats.registry import Format, ShardRows
from shardex.formats.sample_writer import SampleWriter
from shardex.formats.table_rows import files_digest
from shardex.kernel import Columns, Integers
from shardex.sources import LocalSource

__all__ = [
    "FORMAT",
]

_OWNED = r"[^/]+\.npz"
_LONGEST_HEADER = 64 << 10


# -- reading --------------------------------------------------------------------------------------------------


class NpzFile:
    """The arrays of one file, which is mapped."""

    def __init__(self, data: memoryview, name: str, arrays: Sequence[str] | None = None) -> None:
        self._data, self.name = data, name
        with self._errors(), zipfile.ZipFile(codecs.ReadableView(data)) as archive:
            self._members = {codecs.npz_name(one): one for one in archive.infolist()}
            chosen = list(self._members if arrays is None else arrays)
            if not chosen or (unknown := [one for one in chosen if one not in self._members]):
                some = ", ".join(unknown) if chosen else "none"
                raise FormatError(f"expected some of the arrays {', '.join(self._members) or '(none)'}, got {some}")
            heads = {one: self._head(archive, one) for one in chosen}
            self.features = Features({one: _feature(one, *head) for one, head in heads.items()})
        lengths = {one: shape[0] if shape else None for one, (_, shape) in heads.items()}
        if len({*lengths.values()}) > 1 or None in lengths.values():
            found = ", ".join(f"{one} with {'no axis' if n is None else n}" for one, n in lengths.items())
            raise SchemaError(
                f"{name}: expected arrays of one length, the samples, got {found}; choose those of one length with "
                f"arrays=[{chosen[0]!r}, ...]"
            )
        self.rows = lengths[chosen[0]] or 0
        self.array = cache(self._array)
        """Returns an array by name, a view of the mapped file if it is not compressed."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors that name the file."""
        try:
            yield
        except ShardexError as error:
            raise error if str(error).startswith(self.name) else type(error)(f"{self.name}: {error}") from None
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, ValueError, zlib.error) as e:
            raise FormatError(f"{self.name}: expected the arrays of an .npz, got others: {e}") from None

    def _head(self, archive: zipfile.ZipFile, array: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and the shape of an array; pickles raise an error."""
        member = self._members[array]
        with archive.open(member) as file:
            begin, dtype, shape, _ = codecs.npy_header(memoryview(file.read(_LONGEST_HEADER)))
        if min(shape, default=0) < 0 or member.file_size != begin + math.prod(shape) * dtype.itemsize:
            raise FormatError(f"expected the bytes of {dtype}{list(shape)}, got {member.file_size} - at array {array}")
        return dtype, shape

    def _array(self, array: str) -> NDArray[Any]:
        member = self._members[array]
        with self._errors(), zipfile.ZipFile(codecs.ReadableView(self._data)) as archive:
            if member.compress_type != zipfile.ZIP_STORED:
                found = codecs.decode_npy(codecs.unzipped(archive, member))
            else:
                archive.open(member).close()  # checks the local header, whose last fields are two lengths
                at = member.header_offset + 30
                begin = at + sum(int.from_bytes(self._data[at - k : at - k + 2], "little") for k in (4, 2))
                found = codecs.decode_npy(self._data[begin : begin + member.file_size])
        return found if found.dtype.isnative else found.astype(found.dtype.newbyteorder("="))


def _feature(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Feature:
    """Return the feature of the values of an array."""
    if dtype.kind in "biufc" and len(shape) > 1:
        return Array(dtype.name, shape[1:])
    if dtype.kind not in "biufcU" or len(shape) > 1:
        raise SchemaError(f"expected numbers, or one text for each sample, got {dtype}{list(shape)} - at array {name}")
    return infer([{name: np.zeros((), dtype)[()]}])[name]


class NpzRows(ShardRows):
    """Rows of the arrays of some files."""

    in_python = False

    def __init__(self, files: Files, found: Sequence[NpzFile], features: Features) -> None:
        self._files, self._found, self.features = files, found, features
        self._starts: Integers = np.cumsum([0, *(one.rows for one in found)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def fingerprint(self) -> str:
        """Made from the paths, sizes and times of the files, and the chosen arrays."""
        return f"{files_digest(self._files)}-{self.features.fingerprint}"

    def shard_names(self) -> list[str]:
        """Paths of the files."""
        return [one.name for one in self._found]

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file of each row."""
        return [self._found[number].name for number in np.searchsorted(self._starts, rows, "right") - 1]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Pick the rows of each array."""
        names, rows = check_fields(list(self.features), fields), np.asarray(rows, np.int64)
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self)):
            raise RowError(f"expected a row from 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        return Columns({name: self._column(name, rows) for name in names}, len(rows))

    def _column(self, name: str, rows: Integers) -> Any:
        which = np.searchsorted(self._starts, rows, "right") - 1
        parts = [
            self._found[k].array(name)[rows[which == k] - self._starts[k]] for k in np.unique(which).tolist() or [0]
        ]
        found = parts[0]
        if len(parts) > 1:  # back to the order of the rows
            found = np.concatenate(parts)[np.argsort(np.argsort(which, kind="stable"))]
        return found.tolist() if isinstance(self.features[name], Text) else found


def open(files: Files, *, schema: Features | None = None, arrays: list[str] | None = None) -> NpzRows:
    """Open the rows of arrays of one length; `arrays` names those to read, by default all."""
    data = data_files(files, ".npz")
    found = [NpzFile(data.source.load(path), data.name(k), arrays) for k, path in enumerate(data.paths)]
    for one in found:
        if one.features != found[0].features:
            raise SchemaError(f"{one.name}: expected {found[0].features}, as in {found[0].name}, got {one.features}")
    return NpzRows(data, found, features_of_arrow(arrow_schema(found[0].features), schema))


# -- writing --------------------------------------------------------------------------------------------------


def _stored(features: Features) -> dict[str, Any]:
    """Return the types of fields: classes are stored as numbers."""
    return {name: one.arrow_type() for name, one in features.items()}


class NpzWriter(SampleWriter):
    """Writes ``part-00000.npz`` and so on, each with at most `shard_rows` samples, which are kept in memory."""

    def __init__(self, path: str, features: Features, *, mode: str = "create", shard_rows: int = 100_000) -> None:
        if shard_rows < 1:
            raise ArgumentError(f"expected shards of at least 1 row, got {shard_rows}")
        for name, one in features.items():
            if not isinstance(one, Value | ClassLabel | Text) and not (isinstance(one, Array) and one.fixed):
                raise SchemaError(
                    f"expected numbers, text or arrays of one shape and dtype, got {one} - at field {name}"
                )
        super().__init__(path, mode, features, _OWNED)
        with self._abort_on_error():
            self._shard_rows, self._number = shard_rows, self._stage.next_number("part", ".npz")
            self._waiting: list[Mapping[str, Any]] = []
            for known in [one for one in self._stage.existing if one.endswith(".npz")][:1]:
                full = os.path.join(self.path, known)
                found = NpzFile(LocalSource(self.path).load(known), full).features
                if _stored(found) != _stored(features):
                    has, got = told_apart(found, features)
                    raise SchemaError(f"{full}: expected the fields it has ({has}), got {got}")

    def _encode(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        for name, one in sample.items():
            if isinstance(one, str) and one.endswith("\0"):  # which pads shorter texts
                raise SchemaError(f"expected text that an array can hold, got one that ends with NUL - at field {name}")
        return {name: np.array(one) if isinstance(one, np.ndarray) else one for name, one in sample.items()}

    def _store(self, record: Mapping[str, Any]) -> None:
        self._waiting.append(record)
        if len(self._waiting) >= self._shard_rows:
            self._flush()

    def _flush(self) -> None:
        columns = {
            name: feature.fit_column([one[name] for one in self._waiting], str, name, stored=False)
            for name, feature in self._features.items()
        }
        arrays = {name: np.array(one, np.str_) if isinstance(one, list) else one for name, one in columns.items()}
        self._stage.append(f"part-{self._number:05d}.npz", [codecs.NPZ.encode(arrays)], 0)
        self._number, self._waiting = self._number + 1, []

    def _finish(self) -> None:
        if self._waiting or (not self._stage.existing and not self._samples):
            self._flush()


FORMAT = Format(open, NpzWriter, JoinShards(_OWNED, ".npz"), stores_schema=True, self_describing=True)
