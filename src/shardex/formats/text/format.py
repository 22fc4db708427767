"""Text files: samples of one line each, or of one file each, with the field `text`.

`LineScanner` finds the lines once, `DocumentScanner` the extent of whole files; an `Index` stores them, and each sample
is a byte range. A byte order mark and carriage returns before newlines are left out. `TextWriter` writes lines. The
same rows serve `jsonl`, which can return its lines undecoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, FormatError, SchemaError, UnknownFormatError
from shardex.features import Bytes, Features, Text, check_fields
from shardex.files import Files, Index, Scan
from shardex.formats.join_shards import JoinShards
from shardex.formats.jsonl.lines import BOM, LineScanner
from shardex.formats.record_rows import Locations, RecordRows
from shardex.formats.registry import Format
from shardex.formats.sample_writer import SeriesWriter, ShardSeries, check_shard_options
from shardex.kernel import Columns, Integers, count_newlines
from shardex.sources import ByteRange, Source
from shardex.workers import ExecutorLike

EXTENSIONS = (".txt",)
OWNED = r"[^/]+-\d{5,}\.txt"
"""Regular expression of the files that the writer makes: overwriting must not remove other texts."""
_PIECE = 4 << 20


def open(
    files: Files,
    *,
    schema: Features | None = None,
    lines: bool = True,
    decode: str = "text",
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> TextRows:
    """Open the lines of these files, or with ``lines=False`` whole files, as the field `text`.

    ``decode="bytes"`` returns them undecoded in the field `data`.
    """
    if decode not in ("text", "bytes"):
        raise ArgumentError(
            f'expected decode to be "text" or "bytes" for the format text, got {decode!r}; '
            'to parse each line as JSON, open with format="jsonl"'
        )
    scanner = LineScanner(skip_blank=False) if lines else DocumentScanner()
    files = data_files(files, EXTENSIONS)
    index = Index.of(files, scanner, rebuild=rebuild, progress=progress, workers=workers, executor=executor)
    kind = LineRows if lines else DocumentRows
    return kind(files, index, decode, None if schema is None else Features.of(schema))


def data_files(files: Files, *extensions: tuple[str, ...]) -> Files:
    """Return the files of a folder with the first of these kinds of extensions that any has.

    Files that were named otherwise stay as they are.
    """
    if not files.folder:
        return files
    for some in extensions:
        if (found := files.having(*some)).paths:
            return found
    others = f"{len(files.paths)} others; to read those, name them by a pattern" if files.paths else "an empty folder"
    raise UnknownFormatError(f"{files}: expected files that end in {', '.join(extensions[0])}, got {others}")


@dataclass(frozen=True)
class DocumentScanner:
    """Finds one sample in each file: all of it, without a byte order mark.

    >>> from shardex.sources.memory import MemorySource
    >>> DocumentScanner().scan(MemorySource({"a.txt": b"one\\ntwo"}), "a.txt")["length"].tolist()
    [7]
    """

    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return "documents 1"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offset and length of the one sample."""
        size = source.stat(path).size
        head = bytes(source.read(path, [ByteRange(0, min(size, len(BOM)))])[0])
        begin = len(BOM) if head == BOM else 0
        return {"offset": np.array([begin]), "length": np.array([size - begin])}


class NumberedLines(RecordRows):
    """Rows whose records are lines, or begin on lines."""

    def location(self, row: int) -> str:
        """File and line number of a row, for error messages; for remote files file and byte offset."""
        number, begin, _ = self.index.at(row)
        if self.files.source.data_folder is None:
            return f"{self.files.name(number)}, byte {begin}"
        return f"{self.files.name(number)}, line {self._newlines_before(number, begin) + 1}"

    def line(self, row: int) -> str:
        """Line of a row, or its place in an array or a remote file."""
        return self.location(row).removeprefix(self.files.name(self.index.at(row)[0])).removeprefix(", ")

    @cached_property
    def _counted(self) -> dict[int, tuple[int, int]]:
        """For a file the last position whose line was asked for, and the newlines before it."""
        return {}

    def _newlines_before(self, number: int, position: int) -> int:
        """Count from the begin of the file or from the last position, whichever is nearer: bad lines may be many."""
        known = (0, 0), self._counted.get(number, (0, 0))
        at, before = min(known, key=lambda one: abs(one[0] - position))
        between = self._newlines(number, ByteRange(min(at, position), abs(at - position)))
        before += between if at < position else -between
        self._counted[number] = position, before
        return before

    def _newlines(self, number: int, part: ByteRange) -> int:
        source, path = self.files.source, self.files.paths[number]
        if not source.is_remote:
            return count_newlines(self.data.open(number)[part.begin : part.end])
        # A local file that is read by ranges, because it is compressed.
        pieces = (ByteRange(at, min(_PIECE, part.end - at)) for at in range(part.begin, part.end, _PIECE))
        return sum(count_newlines(source.read(path, [one])[0]) for one in pieces)


class TextRows(RecordRows):
    """Samples that are byte ranges of text: the field `text`, or `data` for undecoded bytes."""

    in_python = False

    def __init__(self, files: Files, index: Locations, decode: str, schema: Features | None) -> None:
        super().__init__(files, index)
        self._text = decode == "text"
        kind = Text() if self._text else Bytes()
        self.features = schema or Features({"text" if self._text else "data": kind})
        if list(self.features.values()) != [kind]:
            raise SchemaError(f'expected one field of {kind} for decode="{decode}", got {self.features}')
        (self._field,) = self.features

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read these lines or files."""
        names = check_fields([self._field], fields)
        if not names:
            return Columns({}, len(rows))
        ranges = self.ranges(rows)
        try:
            texts: list[Any] = ranges.text() if self._text else ranges.bytes()
        except UnicodeDecodeError:  # decode one by one, for an error that names the line
            texts = [self._decode(text, row) for text, row in zip(ranges.bytes(), rows.tolist(), strict=True)]
        return Columns({self._field: texts}, len(rows))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one line or file."""
        text = self.record(row).tobytes()
        value = self._decode(text, row) if self._text else text
        return dict.fromkeys(check_fields([self._field], fields), value)

    def _decode(self, text: bytes, row: int) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            shown = text[max(0, error.start - 30) : error.start + 30]
            raise FormatError(
                f"{self.location(row)}, column {error.start + 1}: expected UTF-8, got {shown!r}: {error.reason}; "
                'open with decode="bytes" to decode it yourself'
            ) from None


class LineRows(NumberedLines, TextRows):
    """Samples that are lines of text."""


class DocumentRows(TextRows):
    """Samples that are whole files."""


# -- writing --------------------------------------------------------------------------------------------------


class TextWriter(SeriesWriter):
    """Writes samples of one text field as lines into numbered files."""

    def __init__(self, path: str, features: Features, mode: str, shard_rows: int, shard_size: int, prefix: str) -> None:
        check_shard_options(shard_rows, shard_size, prefix)
        if list(features.values()) != [Text()]:
            raise SchemaError(
                f"expected one field of text for the format text, got {features}; choose the format jsonl for others"
            )
        super().__init__(path, mode, features, OWNED)
        (self._field,) = features
        with self._abort_on_error():
            first = self._stage.next_number(prefix, ".txt")
        self._shards = ShardSeries(
            self._stage, lambda number: f"{prefix}-{number:05d}.txt", first, rows=shard_rows, size=shard_size
        )

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        text: str = sample[self._field]
        if "\n" in text or text.endswith("\r") or text.startswith("\ufeff"):
            raise SchemaError(
                f"expected text that one line can hold, got {text[:60]!r}, which would be read as something else: a "
                "newline, a carriage return at the end, or a byte order mark; choose the format jsonl"
            )
        try:
            return text.encode() + b"\n"
        except UnicodeEncodeError as error:
            raise SchemaError(f"expected text that UTF-8 can hold, got {text[:60]!r}: {error.reason}") from None


def create(
    path: str,
    features: Features,
    *,
    mode: str = "create",
    shard_rows: int = 1_000_000,
    shard_size: int = 256 << 20,
    prefix: str = "part",
) -> TextWriter:
    """Return a writer of ``part-00000.txt`` and so on, of at most `shard_rows` lines and `shard_size` bytes each."""
    return TextWriter(path, Features.of(features), mode, shard_rows, shard_size, prefix)


FORMAT = Format(open, create, JoinShards(OWNED, ".txt"))
