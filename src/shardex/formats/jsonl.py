"""Lines: JSON Lines as samples of fields, text files as samples of one line each.

`Lines` finds them once, at the speed of the disk; then any line is a byte range: `read` fetches many by one call of
the kernel and parses them. Blank lines of JSON files, a byte order mark and carriage returns are no data. A folder
that data-forager indexed is read through that index. Nothing is kept beside the lines but our own index.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FieldError, FormatError, SchemaError, UnknownFormatError
from shardex.files import Files, Index
from shardex.formats import data_forager as forager
from shardex.formats.extracted_columns import Extraction
from shardex.formats.jsonl_lines import Lines, LineWriter
from shardex.formats.record_rows import PlacedRows, Places
from shardex.formats.registry import Format
from shardex.kernel import MISSING, Columns, Integers
from shardex.schema import Bytes, Features, Optional, Text, check_fields, infer_or_json, to_columns, to_sample
from shardex.sources import Source

__all__ = ["FORMAT", "JsonLines", "TextLines", "create", "one_file", "open", "recognise"]

_JSON = (".jsonl", ".ndjson", ".json-lines")
_TEXT = (".txt",)
_FIRST = 16
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def recognise(files: Files) -> int:
    """JSON lines by their extension, or a folder of nothing but `.txt`."""
    if (names := forager.listed(files)) is not None and _all_json(names):
        return 2
    shown = files.having("").paths
    return bool(files.having(*_JSON).paths) or (bool(shown) and all(path.lower().endswith(_TEXT) for path in shown))


def open(
    files: Files,
    *,
    schema: Features | None = None,
    decode: str | None = None,
    attributes: Sequence[str] | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    trust_paths: bool = False,
) -> JsonLines | TextLines:
    """The lines of these files; `decode` is "json", "text" or "bytes", by default what the extensions say.

    `attributes` names keys whose values are taken out now, for SQL.
    """
    if decode not in (None, "json", "text", "bytes"):
        raise ArgumentError(f'expected decode to be "json", "text" or "bytes", got {decode!r}')
    features = None if schema is None else Features.of(schema)
    index: Places
    if (names := forager.listed(files)) is not None and _all_json(names):
        files, index = forager.open_index(files, trust_paths=trust_paths)
        decode = decode or "json"
    else:
        files = _line_files(files)
        decode = decode or _decode_of(files)
        index = Index.of(files, Lines(skip_blank=decode == "json"), rebuild=rebuild, progress=progress)
    if attributes and (decode != "json" or not isinstance(index, Index)):
        raise ArgumentError(
            f"{files}: expected JSON lines with an index of our own to take attributes out of, got others"
        )
    if decode != "json":
        return TextLines(files, index, decode, features)
    rows = JsonLines(files, index, features)
    if attributes or rebuild:
        rows.extraction.take(attributes or (), rebuild=rebuild, progress=progress)
    return rows


def one_file(source: Source, path: str) -> JsonLines:
    """The lines of one file, indexed in memory only."""
    files, scanner = Files(source, (path,), os.path.join(source.url, path)), Lines(skip_blank=True)
    return JsonLines(files, Index.in_memory(files, scanner), None)


def _all_json(paths: Sequence[str]) -> bool:
    return all(path.lower().endswith(_JSON) for path in paths)


def _line_files(files: Files) -> Files:
    if not files.folder:
        return files
    for extensions in (_JSON, _TEXT):
        if (found := files.having(*extensions)).paths:
            return found
    raise UnknownFormatError(
        f"{files}: expected files that end in {', '.join(_JSON + _TEXT)}, got {len(files.paths)} others; "
        "to read those as lines, name them by a pattern"
    )


def _decode_of(files: Files) -> str:
    if _all_json(files.paths):
        return "json"
    if any(path.lower().endswith(_JSON) for path in files.paths):
        raise ArgumentError(f"{files}: expected files of one kind, got JSON lines and others; say which with decode=")
    return "text"


class _LineRows(PlacedRows):
    def line(self, row: int) -> str:
        """The file of a row and the number of its line, for messages; counts the lines before it if they are here."""
        number, begin, _ = self.index.at(row)
        if self.files.source.is_remote:  # lines before it may not be here, and counting is not worth fetching them
            return f"{self.files.name(number)}, byte {begin}"
        data, step = self.data.open(number), 1 << 20
        before = sum(np.count_nonzero(data[k : min(k + step, begin)] == ord("\n")) for k in range(0, begin, step))
        return f"{self.files.name(number)}, line {before + 1}"


class JsonLines(_LineRows):
    """Samples that are lines of JSON: the fields of an object, or the field `value` for anything else."""

    def __init__(self, files: Files, index: Places, schema: Features | None) -> None:
        super().__init__(files, index)
        self._schema = schema
        self._decode = msgspec.json.Decoder().decode
        self._pickers: dict[tuple[str, ...], Any] = {}
        self.extraction = Extraction(files, index.files if isinstance(index, Index) else (), "jsonl")

    @cached_property
    def features(self) -> Features:
        """The schema given, or what the first lines look like."""
        if self._schema is not None:
            return self._schema
        rows = np.arange(min(len(self), _FIRST))
        return infer_or_json(self._samples(self.ranges(rows).bytes(), rows)) if len(rows) else Features({})

    @cached_property
    def _known(self) -> list[str]:
        return list(self.features)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Parse these lines. Without `fields` every key that one of them has; with it `None` where a key lacks."""
        names = self._names(fields)
        if not len(rows):
            return to_columns({n: [] for n in (self.features if names is None else names)}, 0, self.features, str)
        lines = self.ranges(rows).bytes()
        values = self._union(lines, rows) if names is None else self._pick(lines, rows, names)
        return to_columns(values, len(rows), self._schema, lambda k: self.line(int(rows[k])))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Parse one line."""
        line = self.record(row).tobytes()
        try:
            value = self._decode(line)
        except _BROKEN:
            value = self._parse(line, row)
        sample = value if type(value) is dict else {"value": value}
        if fields is None and self._schema is None:
            return sample
        return to_sample(sample, self._names(fields), self._schema, lambda _: self.line(row))

    def values(self, rows: Integers, keys: Sequence[str]) -> Mapping[str, list[Any]]:
        """The values of these keys of some lines."""
        return self._pick(self.ranges(rows).bytes(), rows, list(keys))

    @property
    def extracted(self) -> Features:
        """The keys that were taken out, without those that the schema says are something else."""
        told = self._schema or Features({})
        kept = self.extraction.features.items()
        return Features({key: f for key, f in kept if key not in told or Optional(told[key]) == f})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """What was taken out, and of other fields what is read."""
        return self.extraction.table(names, self.extracted, super().sql_columns)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which lines have a value for a key."""
        return self.extraction.present(name) if name in self.extracted else super().present(name)

    def _names(self, fields: Sequence[str] | None) -> list[str] | None:
        if fields is None:
            return None if self._schema is None else list(self._schema)
        try:
            return check_fields(self._known, fields)
        except FieldError as error:
            raise FieldError(f"{error} (a field that only later lines have is named by schema=)") from None

    def _samples(self, lines: list[bytes], rows: Integers) -> list[dict[str, Any]]:
        try:
            values = list(map(self._decode, lines))
        except _BROKEN:
            values = [self._parse(line, row) for line, row in zip(lines, rows.tolist(), strict=True)]
        return [value if type(value) is dict else {"value": value} for value in values]

    def _union(self, lines: list[bytes], rows: Integers) -> Mapping[str, Any]:
        return Columns.from_samples(self._samples(lines, rows)).data

    def _pick(self, lines: list[bytes], rows: Integers, names: list[str]) -> dict[str, list[Any]]:
        missing = None if self._schema is None else MISSING
        if (decode := self._picker(tuple(dict.fromkeys(names)), missing)) is not None:
            try:
                found = list(map(decode, lines))
                return {n: [getattr(line, f"f{k}") for line in found] for k, n in enumerate(dict.fromkeys(names))}
            except _BROKEN:
                pass  # a line that is no object, or no JSON: below it is found out which
        samples = self._samples(lines, rows)
        return {name: [sample.get(name, missing) for sample in samples] for name in names}

    def _picker(self, names: tuple[str, ...], missing: Any) -> Any:
        """A decoder that makes objects of these fields only: others are skipped, which is much of the work."""
        if names not in self._pickers:
            if len(self._pickers) == 64:
                self._pickers.clear()
            fields = [(f"f{k}", Any, missing) for k in range(len(names))]
            try:
                kind = msgspec.defstruct("Line", fields, rename={f"f{k}": name for k, name in enumerate(names)})
                self._pickers[names] = msgspec.json.Decoder(kind).decode
            except ValueError:  # a name with a quote, which msgspec has no struct for
                self._pickers[names] = None
        return self._pickers[names]

    def _parse(self, line: bytes, row: int) -> Any:
        """One line again, by the standard library: it takes NaN and lone surrogates, and tells where it stopped."""
        try:
            return self._decode(line)
        except _BROKEN:
            try:
                return json.loads(line)
            except (ValueError, RecursionError) as error:
                self._refuse(row, line, error)

    def _refuse(self, row: int, line: bytes, error: Exception) -> NoReturn:
        if isinstance(error, json.JSONDecodeError):
            at, why = len(error.doc[: error.pos].encode(errors="surrogatepass")), error.msg
        elif isinstance(error, UnicodeDecodeError):
            at, why = error.start, f"not UTF-8, {error.reason}"
        else:
            at, why = 0, str(error)
        raise FormatError(
            f"{self.line(row)}, column {at + 1} (byte {self.index.at(row)[1] + at} of the file): "
            f"expected JSON, got {line[:60]!r}: {why}; "
            'repair or remove the line, or open with decode="text"'
        ) from None


class TextLines(_LineRows):
    """Samples that are lines as they are: the field `text`, or `data` if they are left as bytes."""

    in_python = False

    def __init__(self, files: Files, index: Places, decode: str, schema: Features | None) -> None:
        super().__init__(files, index)
        self._text = decode == "text"
        kind = Text() if self._text else Bytes()
        self._features = schema or Features({"text" if self._text else "data": kind})
        if list(self._features.values()) != [kind]:
            raise SchemaError(f'expected one field of {kind} for decode="{decode}", got {self._features}')
        (self._field,) = self._features

    @property
    def features(self) -> Features:
        """One field."""
        return self._features

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """These lines."""
        names = check_fields([self._field], fields)
        if not names:
            return Columns({}, len(rows))
        ranges = self.ranges(rows)
        try:
            lines: list[Any] = ranges.text() if self._text else ranges.bytes()
        except UnicodeDecodeError:  # which line it was is found out by doing them one by one
            lines = [self._decode(line, row) for line, row in zip(ranges.bytes(), rows.tolist(), strict=True)]
        return Columns({self._field: lines}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One line."""
        line = self.record(row).tobytes()
        value = self._decode(line, row) if self._text else line
        return dict.fromkeys(check_fields([self._field], fields), value)

    def _decode(self, line: bytes, row: int) -> str:
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            raise FormatError(
                f"{self.line(row)}, column {error.start + 1}: expected UTF-8, got {line[:60]!r}: {error.reason}; "
                'open with decode="bytes" to decode it yourself'
            ) from None


def create(
    path: str,
    features: Features,
    *,
    mode: str = "create",
    shard_rows: int = 100_000,
    shard_size: int = 256 << 20,
    prefix: str = "part",
) -> LineWriter:
    """Begin files ``part-00000.jsonl`` and so on, each of at most so many lines and bytes."""
    return LineWriter(path, Features.of(features), mode, shard_rows, shard_size, prefix)


FORMAT = Format("jsonl", recognise, open, create, one_file=one_file)
