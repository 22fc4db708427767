"""Samples that are lines: `LineScanner` finds them, `NumberedLines` and `LineRows` read them as rows.

The kernel finds them in one pass, without the GIL: over the mapped pages of a local file, which is twice as fast as
copying them, or over pieces of a remote one. Parts of a big file are scanned at the same time.

`RightLines` leaves wrong lines out of an index (``bad_lines="skip"``): lines that are no JSON, records with too many
cells. It is a scanner around that of a format: it checks all lines that were found and keeps the right ones, with the
number of wrong ones before each, so that the index says how many there were. Formats say what is wrong (`WrongLines`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import ArgumentError, FormatError, SchemaError, TruncatedShardError, UnknownFormatError
from shardex.features import Bytes, Features, Text
from shardex.files import Files, Index, Scan
from shardex.formats.record_rows import Locations, RecordRows
from shardex.kernel import Columns, Integers, gather
from shardex.sources import ByteRange, Source, compression

_PIECE = 4 << 20
_AHEAD = 8
"""Pieces of a remote file that are fetched ahead of the one that is scanned."""
_MAPPED_PIECE = 32 << 20
"""Bytes of a local file that are scanned by one call, while the next ones are read ahead."""
_LONGEST_LINE = 1 << 30
_SAMPLE = 1 << 20
"""Bytes in which lines are counted to estimate how many there are."""
_MOST_ROOM = 1 << 24
"""Lines for which memory is reserved at once."""
BOM = b"\xef\xbb\xbf"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
TO_UTF8 = (
    "convert the file (iconv -f latin1 -t utf-8), or read it with pandas, which has encoding=, and pass the frame to "
    "sx.write"
)
"""What errors say about text of another encoding."""
_HEAD = 6
"""Bytes at the beginning of a file that show a byte order mark or a compression."""


@dataclass(frozen=True)
class LineScanner:
    """Finds lines: their `offset` and `length`, without the newline and the carriage return before it.

    A part of a file has the lines that begin in it.

    >>> from shardex.sources.memory import MemorySource
    >>> source = MemorySource({"a.txt": b"one\\r\\n  \\ntwo"})
    >>> found = LineScanner(skip_blank=True).scan(source, "a.txt")
    >>> found["offset"].tolist(), found["length"].tolist()
    ([0, 8], [3, 3])
    """

    skip_blank: bool
    """True to leave out lines that hold only white space."""
    in_python: bool = False
    with_ends: bool = False
    """True for lengths with the newline and the carriage return; for local files only."""

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        kind = "without blank ones" if self.skip_blank else "all"
        return f"lines 1 {kind}{' with ends' if self.with_ends else ''}"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the lines of one file."""
        return self.scan_range(source, path, ByteRange(0, source.stat(path).size))

    def scan_range(self, source: Source, path: str, part: ByteRange) -> Scan:
        """Return offsets and lengths of the lines that begin in a part of a file."""
        window = _Window(source, path, part)
        if part.begin:
            begin, stop = window.first_line(), part.end
        else:
            begin = self._begin_of_text(window)
            stop = min(max(part.end, begin + 1), window.size)  # the first line belongs to the first part
        found, piece = _FoundLines(window.size), window.piece
        while begin < stop:
            data, base = window.at(begin, piece)
            at = begin - base
            count, then = gather.find_lines(
                data,
                at,
                min(stop - base, at + piece),
                *found.room(data[at : at + _SAMPLE], stop - begin),
                whole=base + len(data) == window.size,
                skip_blank=self.skip_blank,
                longest=_LONGEST_LINE,
                base=base,
            )
            if base + then > begin:
                piece = window.piece
            elif piece < _LONGEST_LINE + 2 and not window.is_mapped:
                piece = min(2 * piece, _LONGEST_LINE + 2)  # a line that is longer than the piece, with its line end
            else:
                raise FormatError(
                    f"{window.name}: expected lines of up to {_LONGEST_LINE} bytes, got a longer one at offset {begin}"
                )
            found.count += count
            begin = base + then
            del data  # before the next piece is read, so that it takes the same memory
        return _with_ends(found.scan(), source, path) if self.with_ends else found.scan()

    def join(self, source: Source, path: str, parts: Iterable[Scan]) -> Scan:
        """Return the lines of a file, given those of its parts, which are copied while others are scanned."""
        size, joined, count = source.stat(path).size, _FoundLines(0).scan(), 0
        for part in parts:
            end = count + len(part["offset"])
            types = {name: np.promote_types(joined[name].dtype, column.dtype) for name, column in part.items()}
            if end > len(joined["offset"]) or types["length"] != joined["length"].dtype:
                room = int(1.1 * end * size / (int(part["offset"][-1]) + 1))  # estimated by what came so far
                joined = {name: _enlarged(joined[name][:count], room, dtype) for name, dtype in types.items()}
            for name, column in part.items():
                joined[name][count:end] = column
            count = end
        return {name: column[:count] for name, column in joined.items()}

    def _begin_of_text(self, window: _Window) -> int:
        """Return the position after a byte order mark; raise an error for a compressed file, and for UTF-16."""
        head = window.head()
        if head.startswith(UTF16_MARKS) and self.skip_blank:  # a line may end in the middle of a character
            raise FormatError(
                f"{window.name}: expected UTF-8, got a file that begins with the byte order mark of UTF-16; convert "
                "it: iconv -f utf-16 -t utf-8"
            )
        tool = next((tool for first, tool in compression.COMPRESSED.items() if head.startswith(first)), None)
        if tool is not None and self.skip_blank:  # plain text may begin with these bytes, JSON does not
            raise FormatError(
                f"{window.name}: expected lines of text, got a file compressed by {tool}; rename it to end in "
                '.gz, .bz2, .xz or .zst, or open it with compressed="copy"'
            )
        return len(BOM) if head.startswith(BOM) else 0


def whole_file(source: Source, path: str) -> memoryview:
    """Return all bytes of a file: mapped if it is local, which takes no memory."""
    return source.load(path)[: source.stat(path).size]


class _Window:
    """Bytes of a part of a file, and of what follows: all mapped if it is local, otherwise pieces that are read."""

    def __init__(self, source: Source, path: str, part: ByteRange) -> None:
        self._source, self._path, self._part = source, path, part
        self.name, self.size = source.full_name(path), source.stat(path).size
        self._ahead = part.begin
        self.is_mapped = not source.is_remote
        self.piece = _MAPPED_PIECE if self.is_mapped else _PIECE
        if self.is_mapped:
            source.fetch(path, [part])
            self._mapped = source.map(path)[: self.size]
            if len(self._mapped) < self.size:
                raise TruncatedShardError(
                    f"{self.name}: expected {self.size} bytes, got {len(self._mapped)}: it became shorter meanwhile"
                )

    def head(self) -> bytes:
        """Return the first bytes of the file."""
        return bytes(self._source.read(self._path, [ByteRange(0, min(self.size, _HEAD))])[0])

    def at(self, begin: int, piece: int) -> tuple[memoryview, int]:
        """Return bytes that include `piece` from `begin` on, if there are so many, and the position of the first.

        What follows in the part is read ahead.
        """
        ahead = min(begin + piece + max(self.piece, _AHEAD * _PIECE), self._part.end)
        for at in range(max(self._ahead, begin + piece), ahead, self.piece):
            self._source.fetch(self._path, [ByteRange(at, min(self.piece, ahead - at))], wait=False)
        self._ahead = max(ahead, self._ahead)
        if self.is_mapped:
            return self._mapped, 0
        return self._source.read(self._path, [ByteRange(begin, min(piece, self.size - begin))])[0], begin

    def first_line(self) -> int:
        """Return the position after the first newline that ends a line before or in the part; its end if none does."""
        at, end = self._part.begin - 1, self._part.end - 1
        offset, length = np.empty(1, np.uint64), np.empty(1, np.uint32)
        while at < end:
            data, base = self.at(at, min(self.piece, end - at))
            data = data[: end - base]
            found, then = gather.find_lines(data, at - base, at - base + 1, offset, length, whole=False)
            if found:
                return base + then
            at = base + len(data)
        return end + 1


class _FoundLines:
    """Arrays for the lines of a part; `count` lines of the last ones that `room` returned are filled."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self._full: list[Scan] = []
        self._last: Scan = {"offset": np.empty(0, np.uint32 if size < 1 << 32 else np.uint64)}
        self._last["length"] = np.empty(0, np.uint32)

    def room(self, sample: memoryview, left: int) -> tuple[NDArray[Any], NDArray[np.uint32]]:
        """Return arrays with room for offsets and lengths; `left` bytes, from `sample` on, are still to be scanned."""
        if self.count == len(self._last["offset"]):
            # Usually enough for all lines, so that nothing is joined; memory that is not filled takes no pages.
            needed = min(int(1.1 * (gather.count_newlines(sample) + 1) * left / len(sample)) + 1, _MOST_ROOM)
            self._full.append(self._last)
            self._last = {name: np.empty(needed, column.dtype) for name, column in self._last.items()}
            self.count = 0
        return self._last["offset"][self.count :], self._last["length"][self.count :]

    def scan(self) -> Scan:
        """Return all lines, their lengths in the narrowest type."""
        found = _joined([*self._full, {name: column[: self.count] for name, column in self._last.items()}])
        narrow = np.min_scalar_type(found["length"].max(initial=0))
        return {**found, "length": found["length"].astype(narrow, copy=False)}


def _with_ends(scan: Scan, source: Source, path: str) -> Scan:
    """Return lines with the newline, and the carriage return before it, that follow each."""
    if not len(scan["offset"]):
        return scan
    data = np.frombuffer(source.map(path), np.uint8)
    ends = scan["offset"].astype(np.int64) + scan["length"]
    for letter in b"\r\n":
        inside = ends < len(data)
        ends += inside & (data[np.where(inside, ends, 0)] == letter)
    return {**scan, "length": ends - scan["offset"].astype(np.int64)}


def _enlarged(column: NDArray[Any], room: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    larger = np.empty(room, dtype)
    larger[: len(column)] = column
    return larger


def _joined(parts: list[Scan]) -> Scan:
    full = [part for part in parts if len(part["offset"])] or parts[:1]
    return full[0] if len(full) == 1 else {name: np.concatenate([part[name] for part in full]) for name in full[0]}


_PIECE = 4 << 20


def data_files(files: Files, *extensions: tuple[str, ...]) -> Files:
    """Return the data files of a folder with the first of these kinds of extensions that any has.

    Files that were named otherwise stay as they are.
    """
    if not files.folder:
        return files
    for some in extensions:
        if (found := files.having(*some)).paths:
            data = tuple(path for path in files.data if path.lower().endswith(some))
            return replace(found, listed=data or found.paths)
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
            return gather.count_newlines(self.data.open(number)[part.begin : part.end])
        # A local file that is read by ranges, because it is compressed.
        pieces = (ByteRange(at, min(_PIECE, part.end - at)) for at in range(part.begin, part.end, _PIECE))
        return sum(gather.count_newlines(source.read(path, [one])[0]) for one in pieces)


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


_BLOCK = 4 << 20
_SHOWN = 3
"""Number of wrong lines that the warning names."""

Flags = NDArray[np.bool_]


class WrongLines(Protocol):
    """Says which lines are wrong. Picklable."""

    @property
    def what(self) -> str:
        """What is expected of a line, for messages."""

    def __call__(self, lines: list[bytes]) -> Flags:
        """Return for each line whether it is wrong."""


class LineScannerLike(Protocol):
    """A scanner whose samples are ranges of bytes."""

    @property
    def name(self) -> str:
        """Name and version of the scanner."""

    def scan(self, source: Source, path: str) -> Scan:
        """Return `offset` and `length` of each sample."""


@dataclass(frozen=True)
class RightLines:
    """Finds the lines that are right: `offset`, `length`, and the numbers of wrong ones before and after each.

    A file that has only wrong lines is an error: it is something else.
    """

    scanner: LineScannerLike
    is_wrong: WrongLines
    in_python: bool = True

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return f"{self.scanner.name} without wrong ones"

    def scan(self, source: Source, path: str) -> Scan:
        """Return the lines of one file that are right."""
        found = self.scanner.scan(source, path)
        offset, length = (found[name].astype(np.int64) for name in ("offset", "length"))
        wrong = np.zeros(len(offset), np.bool_)
        for begin, end in _blocks(offset, length):
            wrong[begin:end] = self.is_wrong(_lines(source, path, offset[begin:end], length[begin:end]))
        right = np.flatnonzero(~wrong)
        if len(wrong) and not len(right):
            raise FormatError(
                f"{source.full_name(path)}: expected {self.is_wrong.what}, got {len(wrong)} wrong lines, such "
                f"as {_lines(source, path, offset[:1], length[:1])[0][:60]!r}; a file without any right line is not "
                "skipped"
            )
        before, after = np.diff(right, prepend=-1) - 1, np.zeros(len(right), np.int64)
        after[-1:] = len(wrong) - 1 - right[-1:]
        return {"offset": offset[right], "length": length[right], "wrong_before": before, "wrong_after": after}


def _blocks(offset: Integers, length: Integers) -> Iterator[tuple[int, int]]:
    """Yield runs of lines that lie in about as many bytes as are read at once."""
    begin = 0
    while begin < len(offset):
        end = int(np.searchsorted(offset, offset[begin] + _BLOCK, "right"))
        yield begin, max(end, begin + 1)
        begin = max(end, begin + 1)


def _lines(source: Source, path: str, offset: Integers, length: Integers) -> list[bytes]:
    first, last = int(offset[0]), int(offset[-1] + length[-1])
    data = bytes(source.read(path, [ByteRange(first, last - first)])[0])
    return [data[at : at + size] for at, size in zip((offset - first).tolist(), length.tolist(), strict=True)]


def check_bad_lines(given: str) -> None:
    """Raise an error for a value that the option does not have."""
    if given not in ("raise", "skip"):
        raise ArgumentError(f'expected bad_lines to be "raise" or "skip", got {given!r}')


def index_of_right_lines(files: Files, scanner: LineScannerLike, is_wrong: WrongLines, **options: Any) -> Index:
    """Return the index of the right lines; if it is made now, a warning says how many were left out.

    The options are those of `Index.of`.
    """
    checked = RightLines(scanner, is_wrong)
    saved = Index.saved(files, checked)
    is_new = options.get("rebuild") or saved is None or not saved.fits(files)
    index = Index.of(files, checked, **options)
    if is_new and any(index.spans.get(name, (0, 0))[1] for name in ("wrong_before", "wrong_after")):
        every = np.arange(len(index))
        count = int(index.read("wrong_before", every).sum() + index.read("wrong_after", every).sum())
        shown = "; ".join(islice(_places(files, index, is_wrong), _SHOWN))
        words = f"{count:,} of {count + len(index):,} lines are left out, expected {is_wrong.what}"
        warnings.warn(f"{files}: {words}; the first: {shown}", stacklevel=6)
    return index


def _places(files: Files, index: Index, is_wrong: WrongLines) -> Iterator[str]:
    """Yield file and number of each wrong line."""
    every = np.arange(len(index))
    before, after = (index.read(name, every) for name in ("wrong_before", "wrong_after"))
    for row in np.flatnonzero(before + after).tolist():
        number, begin, length = index.at(row)
        if before[row]:
            same = row > 0 and index.at(row - 1)[0] == number
            previous = sum(index.at(row - 1)[1:]) if same else 0
            yield from _places_between(files, number, previous, begin, is_wrong)
        if after[row]:
            yield from _places_between(files, number, begin + length, index.files[number].size, is_wrong)


def _places_between(files: Files, number: int, begin: int, end: int, is_wrong: WrongLines) -> Iterator[str]:
    """Yield the wrong lines between two right ones; the first one that is not blank, if a record has several."""
    source, path = files.source, files.paths[number]
    before = [ByteRange(at, min(_BLOCK, begin - at)) for at in range(0, begin, _BLOCK)]
    line = 1 + sum(gather.count_newlines(source.read(path, [one])[0]) for one in before)
    texts = bytes(source.read(path, [ByteRange(begin, end - begin)])[0]).split(b"\n")
    full = [(line + k, text) for k, text in enumerate(texts) if text.strip()]
    wrong = is_wrong([text.removesuffix(b"\r") for _, text in full])
    for (place, _), flag in zip(full, wrong.tolist(), strict=True):
        if flag or not wrong.any():
            yield f"{files.name(number)}, line {place}"
