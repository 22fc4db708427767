"""Records of CSV files: which quotes and delimiters they have (`Dialect`), and where each record lies (`CsvScanner`).

A newline ends a record if it is outside quotes: if the number of quotes before it is even. `CsvScanner` counts quotes
and newlines of a piece at once, for both cases (the piece begins outside or inside quotes), so that pieces can be
scanned at the same time. A quote inside a cell that does not begin with one is text; a file with such quotes is scanned
quote by quote. Blank lines, a byte order mark and carriage returns are left out. `cells` parses the records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError
from shardex.files import Files, Scan
from shardex.formats.lines import BOM, TO_UTF8, whole_file
from shardex.kernel import Bytes, Integers
from shardex.sources import ByteRange, Source

_PIECE = 4 << 20
_AHEAD = 8
"""Pieces of a remote file that are fetched ahead of the one that is scanned."""
_HEAD = 64 << 10
_NEWLINE, _RETURN = b"\n\r"
_SPACE = " \t\r\v\f"
TABS = (".tsv", ".tab")
"""Extensions of files whose cells are separated by tabs."""
_OTHER_DELIMITERS = (";", "\t", "|")
_SNIFFED = 16
"""Records that show the delimiter."""
_MOST_SHOWN = 1000
"""Characters of column names in a message."""

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Dialect:
    """Delimiter between cells, and quote around cells that contain delimiters, quotes or newlines; empty: no quotes.

    >>> Dialect().cells('1,"a ""b"" c",')
    [('1', False), ('a "b" c', True), ('', False)]
    """

    delimiter: str = ","
    quote: str = '"'

    def __post_init__(self) -> None:
        for what, sign, empty in (("delimiter", self.delimiter, False), ("quote", self.quote, True)):
            if not (len(sign) == 1 and sign.isascii() and sign not in "\n\r\0") and not (empty and not sign):
                raise ArgumentError(f"expected one ASCII character for the option {what}, got {sign!r}")
        if self.delimiter == self.quote:
            raise ArgumentError(f"expected a delimiter other than the quote, got {self.delimiter!r} for both")

    @cached_property
    def _cell(self) -> re.Pattern[str]:
        other, quote = re.escape(self.delimiter), re.escape(self.quote)
        plain = f"(?P<plain>[^{other}]*)"
        if not quote:
            return re.compile(plain)
        quoted = f"{quote}(?P<quoted>[^{quote}]*(?:{quote}{quote}[^{quote}]*)*){quote}(?P<more>[^{other}]*)"
        return re.compile(f"{quoted}|{plain}")

    @cached_property
    def space(self) -> bytes:
        """White space of blank lines: the delimiter separates empty cells, even if it is a tab."""
        return _SPACE.replace(self.delimiter, "").encode()

    def _matches(self, record: str) -> Iterator[dict[str, str | None]]:
        """Yield the parts of each cell: `plain`, or `quoted` and `more`, the text after the quote that ends it."""
        at = 0
        while True:
            cell = self._cell.match(record, at)
            assert cell is not None  # the pattern matches nothing, too
            yield cell.groupdict()
            if cell.end() >= len(record):
                return
            at = cell.end() + 1

    def cells(self, record: str) -> list[tuple[str, bool]]:
        """Return the cells of a record, and whether each was quoted."""
        found = []
        for cell in self._matches(record):
            if (quoted := cell.get("quoted")) is None:
                found.append((cell["plain"] or "", False))
            else:
                found.append((quoted.replace(self.quote * 2, self.quote) + (cell["more"] or ""), True))
        return found

    def has_bare_return(self, record: str) -> bool:
        """Return whether a carriage return is outside quotes, where it would end the record."""
        if "\r" not in record:
            return False
        return any("\r" in (cell["plain"] or cell.get("more") or "") for cell in self._matches(record))

    def column_names(self, record: str) -> tuple[str, ...]:
        """Return the names in a header; a column without name is called by its number, from ``f0`` on."""
        return tuple(name or f"f{number}" for number, (name, _) in enumerate(self.cells(record)))


# -- finding records --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """What was found in a part of a file, without knowing whether it begins inside quotes."""

    ends: Integers
    """Position in the file after each newline."""
    odd: Flags
    """For each newline, whether the number of quotes before it in this part is odd."""
    returns: Flags
    """For each newline, whether a carriage return precedes it."""
    blank: Flags
    """For each newline, whether there is only white space before it in its line, in this part."""
    tail_blank: bool
    """True if there is only white space after the last newline."""
    parity: bool
    """True if the number of all quotes is odd."""
    clean: tuple[bool, bool]
    """Whether quotes open only at the beginning of cells, if the part begins outside and if it begins inside quotes."""


@dataclass(frozen=True)
class CsvScanner:
    """Finds records: their `offset` and `length`, without the header and the ends of lines.

    >>> from shardex.sources.memory import MemorySource
    >>> source = MemorySource({"a.csv": b'x,y\\r\\n1,"a\\nb"\\r\\n\\r\\n2,'})
    >>> found = CsvScanner(Dialect(), ("x", "y")).scan(source, "a.csv")
    >>> found["offset"].tolist(), found["length"].tolist()
    ([5, 16], [7, 2])
    """

    dialect: Dialect
    header: tuple[str, ...] | None
    """Names in the first record of each file; None if there is no such record."""
    lenient: bool = False
    """True to take a quote that is never closed as text; its line is a record of its own."""
    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner, and a hash of its options; another name rebuilds indexes."""
        options = repr((self.dialect.delimiter, self.dialect.quote, self.header, self.lenient))
        return f"csv 1 {hashlib.sha256(options.encode(errors='surrogatepass')).hexdigest()[:16]}"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the records of one file."""
        size = source.stat(path).size
        parts = [ByteRange(begin, min(_PIECE, size - begin)) for begin in range(0, size, _PIECE)]
        found = []
        for number, part in enumerate(parts):
            for ahead in parts[number + 1 : number + 1 + _AHEAD]:
                source.fetch(path, [ahead], wait=False)
            found.append(self.scan_range(source, path, part))
        return self.join(source, path, found)

    def scan_range(self, source: Source, path: str, part: ByteRange) -> Piece:
        """Return what is found in a part of a file, which may be cut anywhere."""
        before = min(part.begin, 1)  # the byte before says whether a cell begins here
        data = np.frombuffer(source.read(path, [ByteRange(part.begin - before, part.length + before)])[0], np.uint8)
        if not before:
            marked = data[: len(BOM)].tobytes() == BOM
            data = np.concatenate([np.array([_NEWLINE], np.uint8), data[len(BOM) if marked else 0 :]])
            return self._piece(data, len(BOM) if marked else 0)
        return self._piece(data, part.begin)

    def _piece(self, data: Bytes, begin: int) -> Piece:
        """Scan bytes that follow the first of `data`; the second one lies at `begin`."""
        lines = np.flatnonzero(data[1:] == _NEWLINE) + 1
        quotes = self._quotes(data)
        starts = self._cell_starts[data[quotes]]  # of the bytes before the quotes
        odd = np.searchsorted(quotes, lines) % 2 == 1
        blank, tail_blank = _blank_lines(data, lines, self.dialect.space)
        clean = bool(starts[::2].all()), bool(starts[1::2].all())
        returns = data.take(lines - 1, mode="clip") == _RETURN
        return Piece(lines + begin, odd, returns, blank, tail_blank, len(quotes) % 2 == 1, clean)

    def _quotes(self, data: Bytes) -> Integers:
        """Return the positions of quotes in ``data[1:]``."""
        if not self.dialect.quote:
            return np.empty(0, np.int64)
        return np.flatnonzero(data[1:] == ord(self.dialect.quote))

    @cached_property
    def _cell_starts(self) -> Flags:
        """For each byte, whether a quote after it opens a cell; the second of a doubled quote counts as one, too."""
        found = np.zeros(256, np.bool_)
        found[[_NEWLINE, _RETURN, *map(ord, self.dialect.delimiter + self.dialect.quote)]] = True
        return found

    def join(self, source: Source, path: str, parts: Iterable[Piece]) -> Scan:
        """Return offsets and lengths of the records of a file that was scanned in parts."""
        size, inside, carried = source.stat(path).size, False, True
        if not size:
            return {"offset": np.empty(0, np.int64), "length": np.empty(0, np.int64)}
        chosen = []
        for piece in parts:
            if not piece.clean[inside]:
                return self._scan_by_quotes(source, path)
            keep = piece.odd == inside
            blank = piece.blank.copy()
            if len(blank):
                blank[0] &= carried
            carried = piece.tail_blank and (carried or bool(len(blank)))
            chosen.append((piece.ends[keep], piece.returns[keep], blank[keep]))
            inside ^= piece.parity
        if inside:
            return self._scan_by_quotes(source, path)
        ends, returns, blank = map(np.concatenate, zip(*chosen, strict=True))
        return self._records(source, path, ends, returns, np.append(blank, carried))

    def _records(self, source: Source, path: str, ends: Integers, returns: Flags, blank: Flags) -> Scan:
        """Return the records between ends of lines; `blank` has one more entry, for the bytes after the last one."""
        size = source.stat(path).size
        begin = len(BOM) if bytes(source.read(path, [ByteRange(0, min(size, len(BOM)))])[0]) == BOM else 0
        starts, stops = np.append(begin, ends), np.append(ends - 1 - returns, size)
        kept = ~blank & (starts < stops)
        offset, length = starts[kept], (stops - starts)[kept]
        if self.header is not None and len(offset):
            self._check_header(source, path, ByteRange(int(offset[0]), int(length[0])))
            offset, length = offset[1:], length[1:]
        return {"offset": offset, "length": length}

    def _check_header(self, source: Source, path: str, place: ByteRange) -> None:
        found = self.dialect.column_names(_text(bytes(source.read(path, [place])[0]), source, path))
        if found != self.header:
            raise FormatError(
                f"{source.full_name(path)}: expected the columns {_shown(self.header or ())} as in the "
                f"first file, got {_shown(found)}; open files with other columns one by one, and sx.concat them"
            )

    def _scan_by_quotes(self, source: Source, path: str) -> Scan:
        """Scan a file with quotes that are text, or with a quote that is not closed."""
        data = np.frombuffer(whole_file(source, path), np.uint8)
        begin = len(BOM) if data[: len(BOM)].tobytes() == BOM else 0
        data = np.concatenate([np.array([_NEWLINE], np.uint8), data[begin:]])
        switches, unclosed = self._switches(data)
        if unclosed is not None and not self.lenient:
            line = int(np.count_nonzero(data[1 : unclosed + 1] == _NEWLINE)) + 1
            shown = data[unclosed + 1 : unclosed + 61].tobytes()
            raise FormatError(
                f"{source.full_name(path)}, line {line}: expected a quote that ends the cell {shown!r}, got "
                'the end of the file; repair the line, open with quote="" if quotes are text, or with bad_lines="skip"'
            )
        lines = np.flatnonzero(data[1:] == _NEWLINE) + 1
        keep = np.searchsorted(switches, lines) % 2 == 0
        blank, tail_blank = _blank_lines(data, lines, self.dialect.space)
        returns = data.take(lines - 1, mode="clip") == _RETURN
        return self._records(source, path, lines[keep] + begin, returns[keep], np.append(blank[keep], tail_blank))

    def _switches(self, data: Bytes) -> tuple[Integers, int | None]:
        """Return the positions of quotes that begin or end a quoted part, and that of one that is not closed."""
        positions = self._quotes(data)
        starts, where = self._cell_starts[data[positions]].tolist(), positions.tolist()
        after_quote = (data[positions] == ord(self.dialect.quote or " ")).tolist()
        found: list[int] = []
        number, unclosed = 0, None
        while number < len(where):
            if not starts[number] or (after_quote[number] and not (found and found[-1] == where[number] - 1)):
                number += 1  # text in a cell that does not begin with a quote
                continue
            end = number + 1
            while end + 1 < len(where) and where[end + 1] == where[end] + 1:
                end += 2  # a doubled quote
            if end < len(where):
                found += [where[number], where[end]]
                number = end + 1
            else:
                unclosed = where[number] if unclosed is None else unclosed
                number += 1
        return np.array(found, np.int64), unclosed


def _blank_lines(data: Bytes, lines: Integers, space: bytes) -> tuple[Flags, bool]:
    """Return which lines of ``data[1:]`` hold only white space, and whether the bytes after the last one do."""
    starts = np.append(0, lines)
    stops = np.append(lines - 1, len(data) - 1)
    blank: Flags = starts >= stops
    is_space = np.zeros(256, np.bool_)
    is_space[list(space)] = True
    for k in np.flatnonzero(~blank & is_space[data.take(starts + 1, mode="clip")]).tolist():
        blank[k] = not data[starts[k] + 1 : stops[k] + 1].tobytes().strip(space)
    return blank[:-1], bool(blank[-1])


def _shown(names: tuple[str, ...]) -> str:
    """Return names for a message: a file of another kind may have millions in its first line."""
    text = ", ".join(names)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def first_record(source: Source, path: str, dialect: Dialect) -> str | None:
    """Return the first record of a file; None if it has none."""
    return next(iter(first_records(source, path, dialect, 1)), None)


def first_records(source: Source, path: str, dialect: Dialect, count: int) -> list[str]:
    """Return up to this number of records from the beginning of a file: at least one, if it has some."""
    scanner, size, length = CsvScanner(dialect, None), source.stat(path).size, _HEAD
    while size:
        data = np.frombuffer(source.read(path, [ByteRange(0, min(length, size))])[0], np.uint8)
        data = data[len(BOM) if data[: len(BOM)].tobytes() == BOM else 0 :]
        padded = np.concatenate([np.array([_NEWLINE], np.uint8), data])
        switches, unclosed = scanner._switches(padded)
        lines = np.flatnonzero(data == _NEWLINE)
        if length >= size:
            lines = np.append(lines, len(data))
        last = len(data) if unclosed is None else unclosed - 1
        lines = lines[(np.searchsorted(switches, lines) % 2 == 0) & (lines <= last)]
        found: list[str] = []
        for begin, end in pairwise([0, *(lines + 1).tolist()]):
            record = data[begin:end].tobytes().removesuffix(b"\n").removesuffix(b"\r")
            if record.strip(dialect.space):
                found.append(record.decode(errors="replace") if found else _text(record, source, path))
            if len(found) == count:
                break
        if found:
            return found
        if length >= size:
            return [] if unclosed is None else [_text(data[unclosed:].tobytes(), source, path)]
        length *= 4
    return []


def delimiter_of(files: Files, quote: str) -> str:
    """Return the delimiter: a tab for some extensions, else a comma, or another sign if the first records show it."""
    tabs = {path.lower().endswith(TABS) for path in files.paths}
    if len(tabs) > 1:
        raise ArgumentError(
            f"{files}: expected files with one delimiter, got .csv and {TABS[0]} files; choose some by a "
            "pattern, or pass delimiter="
        )
    if tabs == {True}:
        return "\t"
    dialects = [Dialect(sign, quote) for sign in (",", *_OTHER_DELIMITERS) if sign != quote]
    found = {one.delimiter: _widths(files, one) for one in dialects}
    if "," not in found or not (comma := found[","]) or comma[0] > 1:
        return ","
    likely = [sign for sign, widths in found.items() if widths and widths[0] > 1]
    right = [sign for sign in likely if len({*found[sign]}) == 1]
    if len(right) == 1 or not likely:
        return right[0] if right else ","
    raise FormatError(
        f"{files.name(0)}: expected cells that are separated by commas, got one column, and "
        f'{" and ".join(map(repr, likely))} in its name; pass delimiter={likely[0]!r}, or delimiter="," if it is that'
    )


def _widths(files: Files, dialect: Dialect) -> list[int]:
    """Return the number of cells in the first records of the first file that has some."""
    for path in files.paths:
        if records := first_records(files.source, path, dialect, _SNIFFED):
            return [len(dialect.cells(record)) for record in records]
    return []


def _text(record: bytes, source: Source, path: str) -> str:
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise FormatError(
            f"{source.full_name(path)}: expected names of columns in UTF-8, got {record[:60]!r}: {error.reason}; "
            f"{TO_UTF8}"
        ) from None
