"""Tables beside media files: ``metadata.csv`` or ``metadata.jsonl`` with a column `file_name`, as in Hugging Face.

A file name is relative to the folder of its table; there may be a table in each of several folders. The formats csv and
jsonl read the tables and find the types of their columns. `open_metadata` finds the row of each media file.
"""

from __future__ import annotations

import posixpath
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, DuplicateKeyError, FormatError, UnknownFormatError
from shardex.features import Features
from shardex.files import Files
from shardex.formats import csv as csv_files
from shardex.formats import jsonl
from shardex.formats.csv import CsvRows
from shardex.formats.jsonl import JsonLines
from shardex.formats.media_folders import FILE_NAME
from shardex.kernel import Columns, Integers

UNMATCHED = ("raise", "skip")
"""What is done about rows without a file, and files without a row."""
_FEW = 3


@dataclass(frozen=True)
class Metadata:
    """More fields of media files: the rows of tables, and for each sample the number of its row."""

    rows: CsvRows | JsonLines
    row_of: Integers

    @property
    def features(self) -> Features:
        """The fields, without the name of the file."""
        return Features({name: feature for name, feature in self.rows.features.items() if name != FILE_NAME})

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the tables change."""
        return self.rows.fingerprint

    def read(self, rows: Integers, fields: Sequence[str]) -> Columns:
        """Return fields of these samples."""
        return self.rows.read(self.row_of[rows], fields)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which samples have a value."""
        return self.rows.present(name)[self.row_of]


def open_metadata(
    files: Files, tables: Sequence[str], media: Sequence[str], schema: Features, unmatched: str, **how: Any
) -> tuple[Metadata, list[str]]:
    """Return the metadata of media files, and those of the files that have a row.

    The schema has features of some columns; `how` are options of an index.
    """
    if unmatched not in UNMATCHED:
        raise ArgumentError(f"expected unmatched to be one of {', '.join(UNMATCHED)}, got {unmatched!r}")
    rows = _open(files, tables, schema, how)
    row_of = _in_their_spelling(_row_of_each(rows, tables), media)
    kept = [path for path in media if path in row_of]
    if len(kept) < len(media) or len(row_of) > len(kept):
        _report(rows, files, set(media), row_of, unmatched)
    return Metadata(rows, np.array([row_of[path] for path in kept], np.int64)), kept


def _open(files: Files, tables: Sequence[str], schema: Features, how: Mapping[str, Any]) -> CsvRows | JsonLines:
    some = replace(files, listed=tuple(tables), folder=False)
    formats = {table.lower().endswith(".csv") for table in tables}
    if len(formats) > 1:
        raise UnknownFormatError(f"{files}: expected tables of one format, got {', '.join(tables)}; remove some")
    rows = (csv_files if formats == {True} else jsonl).open(some, **how)
    if FILE_NAME not in rows.features:
        raise FormatError(
            f"{some.name(0)}: expected a column {FILE_NAME} with the paths of files, got {', '.join(rows.features)}; "
            'rename a column, or open the table with format="csv" or format="jsonl"'
        )
    if given := {name: feature for name, feature in schema.items() if name in rows.features}:
        rows = (csv_files if formats == {True} else jsonl).open(some, schema=Features({**rows.features, **given}))
    assert isinstance(rows, CsvRows | JsonLines)
    return rows


def _row_of_each(rows: CsvRows | JsonLines, tables: Sequence[str]) -> dict[str, int]:
    """Return the row of each path in the tables."""
    folders = [posixpath.dirname(table) for table in tables]
    every = np.arange(len(rows))
    found: dict[str, int] = {}
    names = rows.read(every, [FILE_NAME])[FILE_NAME]
    for row, (name, number) in enumerate(zip(names, rows.index.file(every).tolist(), strict=True)):
        if not isinstance(name, str) or not name:
            raise FormatError(f"{rows.location(row)}: expected the path of a file, got {name} - at field {FILE_NAME}")
        path = posixpath.normpath(posixpath.join(folders[number], name.replace("\\", "/")))
        if (other := found.setdefault(path, row)) != row:
            raise DuplicateKeyError(
                f"{rows.location(row)}: expected each file once, got {name} again, as in {rows.location(other)}"
            )
    return found


def _in_their_spelling(row_of: dict[str, int], media: Sequence[str]) -> dict[str, int]:
    """Return the rows by the paths of files in their Unicode form: names in tables may have composed accents or not."""
    there = set(media)
    if all(path in there for path in row_of):
        return row_of
    plain = {normalize("NFC", path): path for path in media if not path.isascii() and path not in row_of}
    return {path if path in there else plain.get(normalize("NFC", path), path): row for path, row in row_of.items()}


def _report(
    rows: CsvRows | JsonLines, files: Files, media: set[str], row_of: Mapping[str, int], unmatched: str
) -> None:
    """Raise an error that names rows without a file and files without a row, or warn of them."""
    lost = [path for path in row_of if path not in media]
    bare = sorted(path for path in media if path not in row_of)
    parts = []
    if lost:
        places = ", ".join(f"{path} ({rows.location(row_of[path])})" for path in lost[:_FEW])
        parts.append(f"{len(lost)} of {len(row_of)} rows without a file: {places}{', ...' * (len(lost) > _FEW)}")
    if bare:
        names = f"{', '.join(bare[:_FEW])}{', ...' * (len(bare) > _FEW)}"
        parts.append(f"{len(bare)} of {len(media)} files without a row: {names}")
    problem = f"{files}: expected a row of metadata for each file, got {' and '.join(parts)}"
    if unmatched == "raise":
        raise FormatError(f'{problem}; open with unmatched="skip" to leave them out')
    warnings.warn(f"{problem}; they are left out", stacklevel=6)
