"""JSON Lines, and files of one JSON array, as samples of fields.

`LineScanner` finds the lines once and an `Index` stores their offsets; then each line is a byte range. Blank lines, a
byte order mark and carriage returns are ignored. `arrays` finds the elements of arrays instead. `LineWriter` writes
JSON Lines.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import Features, Optional
from shardex.files import Files, Index, find
from shardex.formats.extracted_columns import ExtractedRows, Extraction
from shardex.formats.join_shards import JoinShards
from shardex.formats.jsonl import arrays
from shardex.formats.jsonl.columns import LineColumns, accepts
from shardex.formats.lines import (
    TO_UTF8,
    LineRows,
    LineScanner,
    NumberedLines,
    check_bad_lines,
    data_files,
    index_of_right_lines,
)
from shardex.formats.record_fields import KeyScan
from shardex.formats.record_rows import DictRows, Locations
from shardex.formats.registry import Format
from shardex.formats.sample_writer import JsonEncoder, SeriesWriter
from shardex.formats.signatures import FORMATS, sure_format
from shardex.kernel import MISSING, Columns, Integers, Ranges
from shardex.sources import ByteRange, Source
from shardex.workers import ExecutorLike

__all__ = [
    "FORMAT",
    "JSON_LINES",
    "JsonLines",
    "check_decode",
    "decode_json",
    "open",
    "rows_of_lines",
]

JSON_LINES = FORMATS["jsonl"].extensions
"""Extensions of files of JSON lines."""
_OPENING, _CLOSING = b"{}"
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_decode_any = msgspec.json.Decoder().decode
_MANY_ROWS = 1024
"""Number of rows from which on looking for repeated rows pays off."""
_DECODED_FIRST = 64
"""Lines that are decoded to find the first keys and kinds of values."""


def open(
    files: Files,
    *,
    schema: Features | None = None,
    decode: str = "json",
    attributes: Sequence[str] | None = None,
    infer_from: str | None = None,
    bad_lines: str = "raise",
    field: str | bool | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> JsonLines | LineRows:
    """Open the lines of these files, whatever they are called; `decode` is "json", "text" or "bytes".

    `attributes` names keys whose values are extracted now into columns for SQL. Without a schema, the fields are found
    in the lines: in "all" of them or in a "sample" (`infer_from`), by default in all up to 2 GiB.
    ``bad_lines="skip"`` leaves out lines that are no JSON. `field` is the key of a `.json` file whose list has the
    samples; False if the object in each file is one sample.
    """
    check_bad_lines(bad_lines)
    check_decode(decode)
    if bad_lines == "skip" and (decode != "json" or attributes):
        raise ArgumentError(f'{files}: expected JSON lines without attributes for bad_lines="skip", got others')
    if attributes and decode != "json":
        raise ArgumentError(f"{files}: expected JSON lines to extract attributes from, got decode={decode!r}")
    files = data_files(files, JSON_LINES, arrays.EXTENSIONS, (".txt",))
    how: Any = {"rebuild": rebuild, "progress": progress, "workers": workers, "executor": executor}
    scanner = arrays.scanner_of(files, field) if decode == "json" else LineScanner(skip_blank=False)
    is_checked = decode == "json" and bad_lines == "skip"
    index = index_of_right_lines(files, scanner, NoJson(), **how) if is_checked else Index.of(files, scanner, **how)
    rows = rows_of_lines(files, index, schema, decode, infer_from, rebuild=rebuild)
    if isinstance(rows, JsonLines) and (attributes or rebuild) and bad_lines == "raise":
        rows.extraction.extract(
            attributes or (), rebuild=rebuild, progress=progress, workers=workers, executor=executor
        )
    return rows


def check_decode(decode: str) -> None:
    """Raise ArgumentError for a value that the option does not have."""
    if decode not in ("json", "text", "bytes"):
        raise ArgumentError(f'expected decode to be "json", "text" or "bytes", got {decode!r}')


def rows_of_lines(
    files: Files,
    index: Locations,
    schema: Features | None,
    decode: str,
    infer_from: str | None = None,
    *,
    rebuild: bool = False,
) -> JsonLines | LineRows:
    """Return the lines at these locations, with the options of `open`; `rebuild` finds the fields again."""
    features = None if schema is None else Features.of(schema)
    if decode != "json":
        return LineRows(files, index, decode, features)
    rows = JsonLines(files, index, features, infer_from)
    rows.rebuild = rebuild
    return rows


def one_file(source: Source, path: str) -> JsonLines:
    """Open the JSON lines of one file, indexed in memory only."""
    files = Files(source, (path,), os.path.join(source.url, path))
    return JsonLines(files, Index.in_memory(files, arrays.scanner_of(files)), None)


def decode_json(text: bytes) -> Any:
    """Return the JSON value that the standard library decodes, which accepts NaN and lone surrogates; but faster.

    >>> decode_json(b'{"a": NaN}')
    {'a': nan}
    """
    try:
        return _decode_any(text)
    except _BROKEN:
        return json.loads(text)


@dataclass(frozen=True)
class NoJson:
    """Says which lines are no JSON.

    >>> NoJson()([b'{"a": NaN}', b"{"]).tolist()
    [False, True]
    """

    what: str = "JSON"

    def __call__(self, lines: list[bytes]) -> NDArray[np.bool_]:
        """Return for each line whether it is no JSON."""
        return np.array([not arrays.is_json(line) for line in lines], np.bool_)


class JsonLines(NumberedLines, ExtractedRows, DictRows):
    """Samples that are lines of JSON: the fields of an object, or the field `value` for anything else."""

    _decode_errors = _BROKEN

    def __init__(self, files: Files, index: Locations, schema: Features | None, infer_from: str | None = None) -> None:
        super().__init__(files, index, schema, "value", "jsonl", infer_from)
        self._decode = msgspec.json.Decoder().decode
        self._make_decoder = lambda kind: msgspec.json.Decoder(kind).decode
        self._pickers: dict[tuple[tuple[str, ...], bool], Any] = {}
        self._readers: dict[tuple[tuple[str, ...], bool], LineColumns | None] = {}
        whole = isinstance(index, Index) and "wrong_before" not in index.columns
        self.extraction = Extraction(files, index.files if whole else (), "jsonl")

    @cached_property
    def in_python(self) -> bool:  # type: ignore[override]
        """False if the kernel can parse all fields."""
        return self._reader(tuple(self._field_names), self._is_strict(True)) is None

    def location(self, row: int) -> str:
        """File and line number of a row, or the number of the element if the file is an array."""
        number, begin, _ = self.index.at(row)
        if not isinstance(self.index, Index) or not self.index.scanner.startswith("json "):
            return super().location(row)
        first = sum(file.rows for file in self.index.files[:number])
        before = ByteRange(0, self.index.at(first)[1])
        if b"[" not in bytes(self.files.source.read(self.files.paths[number], [before])[0]):
            return super().location(row)
        if "wrong_before" in self.index.columns:
            first -= int(self.index.read("wrong_before", np.arange(first, row + 1)).sum())
        return f"{self.files.name(number)}, element {row - first} (from 0, at byte {begin})"

    def values(self, rows: Integers, keys: Sequence[str]) -> Mapping[str, list[Any]]:
        """Return the values of these keys; None where a line has no such key."""
        return self._picked(self.ranges(rows).bytes(), rows, list(keys), every=False)

    @property
    def extracted(self) -> Features:
        """The extracted keys, without those to which the schema gives another type."""
        schema, found = self._schema or Features({}), self.extraction.features.items()
        return Features({key: f for key, f in found if key not in schema or Optional(schema[key]) == f})

    def scan_keys(self, rows: Integers, scan: KeyScan) -> None:
        """Add the keys of these lines; they are decoded only if they have other keys or kinds of values than before."""
        if not scan.seen:
            super().scan_keys(rows[:_DECODED_FIRST], scan)
            rows = rows[_DECODED_FIRST:]
        with suppress(FormatError):
            if scan.seen and accepts(scan.kinds, self.ranges(rows)):
                scan.rows += len(rows)
                return
        super().scan_keys(rows, scan)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Parse these lines; they are decoded if the kernel cannot parse one of them."""
        if len(rows) >= _MANY_ROWS and (span := int(rows.max()) - (first := int(rows.min())) + 1) <= len(rows) // 2:
            wanted = np.zeros(span, np.bool_)  # windows that overlap: each line is parsed once
            wanted[rows - first] = True
            once = self.read(np.flatnonzero(wanted) + first, fields)
            return once.take(np.cumsum(wanted)[rows - first] - 1)
        reader = self._reader(tuple(self._checked(fields)), self._is_strict(fields is None))
        columns = None if reader is None or not len(rows) else reader.read(self.ranges(rows))
        return super().read(rows, fields) if columns is None else columns

    def _reader(self, names: tuple[str, ...], strict: bool) -> LineColumns | None:
        """Return what parses these fields; None if their values must be decoded."""
        try:
            return self._readers[names, strict]
        except KeyError:
            chosen = Features({name: self.features[name] for name in names})
            reader = None if self._as_map else LineColumns.of(chosen, strict=strict)
            if len(self._readers) >= 64:
                self._readers.clear()
            self._readers[names, strict] = reader
            return reader

    def _values(self, records: list[bytes], rows: Integers, names: list[str], every: bool) -> Mapping[str, list[Any]]:
        if self._as_map:  # each line is one value: its keys are no fields
            return super()._values(records, rows, names, every)
        return self._picked(records, rows, names, every)

    def _read_values(self, rows: Integers, names: list[str], every: bool) -> Mapping[str, list[Any]]:
        ranges = self.ranges(rows)
        if len(rows) > 1 and not self._as_map and (text := _lines_in_order(ranges)) is not None:
            names = list(dict.fromkeys(names))
            decoder = self._picker(tuple(names), self._is_strict(every))
            with suppress(*_BROKEN):
                if decoder is not None and len(found := decoder.decode_lines(text)) == len(rows):
                    return _by_name(found, names)
        return self._values(ranges.bytes(), rows, names, every)

    def _picked(self, records: list[bytes], rows: Integers, names: list[str], every: bool) -> Mapping[str, list[Any]]:
        """Return the values of these keys, without decoding others."""
        decoder = self._picker(chosen := tuple(dict.fromkeys(names)), self._is_strict(every))
        if decoder is None:
            return super()._values(records, rows, names, every)
        try:
            found = list(map(decoder.decode, records))
        except _BROKEN:  # a line is no object or no JSON: decode all keys, for an error that names the line
            return super()._values(records, rows, names, every)
        return _by_name(found, chosen)

    def _is_strict(self, every: bool) -> bool:
        """Return whether a line that has other keys is an error."""
        return every and self._schema is None and self.sampled_rows is not None

    def _picker(self, names: tuple[str, ...], strict: bool) -> Any:
        """Return a decoder of these fields only, which is much faster than decoding all; None if none exists.

        With `strict` it raises an error for a line that has other keys.
        """
        missing = None if self._schema is None else MISSING
        if (names, strict) not in self._pickers:
            if len(self._pickers) == 64:
                self._pickers.clear()
            fields = [(f"f{k}", Any, missing) for k in range(len(names))]
            renamed = {f"f{k}": name for k, name in enumerate(names)}
            try:
                kind = msgspec.defstruct("Line", fields, rename=renamed, forbid_unknown_fields=strict, gc=False)
                self._pickers[names, strict] = msgspec.json.Decoder(kind)
            except ValueError:  # a name with a quote: msgspec has no struct for it
                self._pickers[names, strict] = None
        return self._pickers[names, strict]

    def _decode_or_explain(self, record: bytes, row: int) -> Any:
        """Decode a line by the standard library, which accepts NaN and lone surrogates and reports error positions."""
        try:
            return decode_json(record)
        except (ValueError, RecursionError) as error:
            self._refuse(row, record, error)

    def _refuse(self, row: int, line: bytes, error: Exception) -> NoReturn:
        if row < 0:  # the scan of all keys skips the line
            raise FormatError(f"expected JSON, got {line[:60]!r}")
        if isinstance(error, json.JSONDecodeError):
            at, why = len(error.doc[: error.pos].encode(errors="surrogatepass")), error.msg
        elif isinstance(error, UnicodeDecodeError):
            at, why = error.start, f"not UTF-8, {error.reason}; {TO_UTF8}"
        else:
            at, why = 0, str(error)
        raise FormatError(
            f"{self.location(row)}, column {at + 1} (byte {self.index.at(row)[1] + at} of the file): "
            f"expected JSON, got {line[:60]!r}: {why}; "
            'repair or remove the line, or open with bad_lines="skip" or decode="text"'
        ) from None


_COLUMNS: list[Callable[[list[Any]], list[Any]]] = [
    lambda lines: [line.f0 for line in lines],
    lambda lines: [line.f1 for line in lines],
    lambda lines: [line.f2 for line in lines],
    lambda lines: [line.f3 for line in lines],
    lambda lines: [line.f4 for line in lines],
    lambda lines: [line.f5 for line in lines],
    lambda lines: [line.f6 for line in lines],
    lambda lines: [line.f7 for line in lines],
]
"""The first fields of structs of `_picker`, in half the time of `attrgetter`."""


def _by_name(lines: list[Any], names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of structs of `_picker` by name."""
    columns = {n: _COLUMNS[k](lines) for k, n in enumerate(names[: len(_COLUMNS)])}
    return columns | {n: list(map(attrgetter(f"f{k}"), lines)) for k, n in enumerate(names) if k >= len(_COLUMNS)}


def _lines_in_order(ranges: Ranges) -> bytes | None:
    """Return the bytes of lines that follow each other in a file, with their ends; None for others.

    Each line must begin and end with a brace: then no value can reach from one line into the next.
    """
    which, begin, end = ranges.which, ranges.begin, ranges.begin + ranges.length
    gaps = begin[1:] - end[:-1]
    if (
        which[0] != which[-1]
        or gaps.min() < 1
        or gaps.max() > 2
        or ranges.length.min() < 2
        or (which != which[0]).any()
    ):
        return None
    first = int(begin[0])
    (text,) = Ranges(ranges.segments, which[:1], begin[:1], end[-1:] - first).bytes()
    found = np.frombuffer(text, np.uint8)
    braces = (found[begin - first] == _OPENING).all() and (found[end - first - 1] == _CLOSING).all()
    return text if braces else None


# -- writing --------------------------------------------------------------------------------------------------

_OWNED = r".*\.(jsonl|ndjson|json-lines)"
"""Regular expression of the files of a dataset."""


class LineWriter(SeriesWriter):
    """Writes samples as lines of JSON into ``part-00000.jsonl`` and so on."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        shard_rows: int = 100_000,
        shard_size: int = 256 << 20,
        prefix: str = "part",
    ) -> None:
        self._to_json = JsonEncoder(features)
        options: Any = {"prefix": prefix, "extension": ".jsonl", "rows": shard_rows, "size": shard_size}
        super().__init__(path, mode, features, _OWNED, **options)

    def _check_existing(self) -> None:
        for existing in self._stage.existing:
            if existing.lower().endswith((".ndjson", ".json-lines")):
                raise SchemaError(f"{self.path}: expected nothing but .jsonl files to append to, got {existing} too")
        if self._stage.existing and (other := sure_format(find(self.path))):
            raise SchemaError(f"{self.path}: expected JSON lines to append to, got a folder of the format {other}")

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return self._to_json(sample) + b"\n"


FORMAT = Format(open, LineWriter, JoinShards(_OWNED, ".jsonl"), one_file=one_file)
