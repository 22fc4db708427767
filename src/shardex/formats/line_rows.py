"""Rows whose records are lines: line numbers for messages (`NumberedLines`), and lines as text (`LineRows`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from shardex.columns import check_fields
from shardex.errors import FormatError, SchemaError, UnknownFormatError
from shardex.features import Bytes, Features, Text
from shardex.files import Files
from shardex.formats.record_rows import Locations, RecordRows
from shardex.kernel import Columns, Integers, count_newlines
from shardex.sources import ByteRange

_PIECE = 4 << 20


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
        if not self.data.evicts:
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
