"""Files that end in `.json`: JSON lines, an array of samples, or one object; recognised by their content.

`scanner_of` looks at the beginnings of the files; `JsonScanner` then decides file by file. An array begins with ``[``
and its first line is not a whole value, unless there is no other line. A file that is one object is one sample; if a
list of objects is all that it has, the elements of the list are the samples. Samples stay where they are: their offsets
and lengths are indexed as those of lines are. `jsonl` reads them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from shardex.errors import FormatError
from shardex.files import Files, Scan
from shardex.formats.lines import BOM, LineScanner, whole_file
from shardex.kernel import Bytes, Integers
from shardex.sources import ByteRange, Source

EXTENSIONS = (".json",)
_HEAD = 4 << 10
_LONG_HEAD = 1 << 20
_PIECE = 1 << 20
_SPACE = b" \t\r\n"
_NOT_IN_JSON = re.compile(rb"NaN|Infinity")
"""Numbers that Python writes, although JSON does not have them."""
_decode = msgspec.json.Decoder().decode
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def scanner_of(files: Files, field: str | bool | None = None) -> LineScanner | JsonScanner:
    """Return the scanner for these files: that of lines, unless a `.json` file may hold something else."""
    paths = [path for path in files.paths if path.lower().endswith(EXTENSIONS)]
    plain = field is None and all(files.source.for_each(lambda path: _begins_with_a_line(files.source, path), paths))
    return LineScanner(skip_blank=True) if plain else JsonScanner(field)


def _begins_with_a_line(source: Source, path: str) -> bool:
    """Return whether a file begins with a line that is a JSON value, and no array or object that holds the samples."""
    size = source.stat(path).size
    for length in (_HEAD, _LONG_HEAD):
        head = bytes(source.read(path, [ByteRange(0, min(size, length))])[0]).removeprefix(BOM).lstrip(_SPACE)
        line, _, rest = head.partition(b"\n")
        if line.startswith(b"[") or not head:
            return not head
        if rest.strip(_SPACE):
            return is_json(line)
        if size <= length:
            members = _members(line) or {}
            return is_json(line) and not _lists_of_objects(members) and not _is_table(members)
    return False


def is_json(text: bytes | memoryview) -> bool:
    """Return whether a text is one JSON value; NaN, which Python writes although JSON does not have it, counts."""
    try:
        _decode(text)
    except _BROKEN:
        try:
            json.loads(bytes(text))
        except (ValueError, RecursionError):
            return False
    return True


@dataclass(frozen=True)
class JsonScanner:
    """Finds the lines of a file, or the elements of its array: their `offset` and `length`.

    >>> from shardex.sources.memory import MemorySource
    >>> found = JsonScanner().scan(MemorySource({"a.json": b'[{"a": 1},\\n {}]'}), "a.json")
    >>> found["offset"].tolist(), found["length"].tolist()
    ([1, 12], [8, 2])
    """

    field: str | bool | None = None
    """Key of an object whose list has the samples; False if an object is one sample; None if that is clear."""
    in_python: bool = True

    @property
    def name(self) -> str:
        """Name and version of the scanner, and its option; a new version rebuilds indexes."""
        return "json 2" if self.field is None else f"json 2 {self.field!r}"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offsets and lengths of the lines or elements of one file."""
        if path.lower().endswith(EXTENSIONS):
            data = whole_file(source, path)
            name = source.full_name(path)
            if (begin := array_begin(data)) is not None:
                if isinstance(self.field, str):
                    raise FormatError(
                        f"{name}: expected an object with a list {self.field!r}, got an array; open without field="
                    )
                offset, length = _elements(data, begin, name)
                return {"offset": offset, "length": length}
            if (place := self._of_object(data, name)) is not None:
                return {"offset": place[0], "length": place[1]}
        return LineScanner(skip_blank=True).scan(source, path)

    def _of_object(self, data: memoryview, name: str) -> tuple[Integers, Integers] | None:
        """Return the samples in a file that is one object: the elements of a list in it, or the object."""
        begin = _first_other(data, len(BOM) if data[: len(BOM)] == BOM else 0)
        if begin == len(data) or data[begin] != ord("{"):
            return None
        end = _first_newline(data, begin)
        if _first_other(data, end) < len(data) and is_json(data[begin:end]):
            return None  # lines
        if (members := _members(data[begin:])) is None:
            return (np.array([begin]), np.array([_end(data) - begin])) if is_json(data[begin:]) else None
        if (key := self._list_of(members, name)) is None:
            return np.array([begin]), np.array([_end(data) - begin])
        first = pa.py_buffer(members[key]).address - pa.py_buffer(data).address
        offset, length = _elements(data[first : first + len(memoryview(members[key]))], 0, name)
        return offset + first, length

    def _list_of(self, members: Mapping[str, msgspec.Raw], name: str) -> str | None:
        """Return the key of the list that has the samples; None if the object is one sample."""
        lists = _lists_of_objects(members)
        if isinstance(self.field, str):
            if self.field not in members or bytes(memoryview(members[self.field])[:1]) != b"[":
                keys = ", ".join([*members][:_MOST_KEYS])
                raise FormatError(f"{name}: expected an object with a list {self.field!r}, got one with {keys}")
            return self.field
        if self.field is None and _is_table(members):
            raise FormatError(
                f"{name}: expected samples, got the columns of a table, as pandas writes them; write them with "
                'DataFrame.to_json(path, orient="records"), or open with field=False if the object is one sample'
            )
        if self.field is False or not lists:
            return None
        if len(members) == 1:
            return lists[0]
        if named := [key for key in lists if key.lower() in _NAMES]:
            others = ", ".join([key for key in members if key != named[0]][:_MOST_KEYS])
            raise FormatError(
                f"{name}: expected JSON lines, one array of samples, or one sample, got an object with a list "
                f"{named[0]!r} beside {others}; open with field={named[0]!r} if its elements are the samples, or with "
                "field=False if the object is one sample"
            )
        return None


_NAMES = ("data", "samples", "examples", "rows", "records", "instances")
"""Keys under which people store the list of samples; objects with other lists are samples."""
_MOST_KEYS = 10


def _members(data: bytes | memoryview) -> dict[str, msgspec.Raw] | None:
    """Return the values of an object by key, undecoded; None for anything else."""
    try:
        return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except _BROKEN:
        return None


def _lists_of_objects(members: Mapping[str, msgspec.Raw]) -> list[str]:
    """Return the keys whose values are lists that begin with an object; empty lists only of the usual keys."""
    found = {key: re.match(rb"\[\s*[\]{]", memoryview(value)) for key, value in members.items()}
    return [key for key, one in found.items() if one and (one[0].endswith(b"{") or key.lower() in _NAMES)]


def _is_table(members: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether an object is a table of pandas in one of its default forms."""
    if members.keys() == {"columns", "index", "data"}:
        return True
    return bool(members) and all(re.match(rb"\{\s*\"0\"\s*:", memoryview(one)) for one in members.values())


def _end(data: memoryview) -> int:
    """Return the position after the last byte that is no white space."""
    end = len(data)
    while end and data[end - 1] in _SPACE:
        end -= 1
    return end


def array_begin(data: memoryview) -> int | None:
    """Return where the array of a file begins; None if its lines are the samples.

    >>> [array_begin(memoryview(text)) for text in (b" [1]\\n", b"[1]\\n[2]\\n", b"[1,\\n2]", b"1\\n")]
    [1, None, 0, None]
    """
    begin = _first_other(data, len(BOM) if data[: len(BOM)] == BOM else 0)
    if begin == len(data) or data[begin] != ord("["):
        return None
    end = _first_newline(data, begin)
    is_lines = _first_other(data, end) < len(data) and is_json(data[begin:end])
    return None if is_lines else begin


def _pieces(data: memoryview, begin: int) -> Iterator[tuple[int, bytes]]:
    size = 256
    while begin < len(data):
        yield begin, bytes(data[begin : begin + size])
        begin, size = begin + size, _PIECE


def _first_other(data: memoryview, begin: int) -> int:
    """Return the position of the first byte that is no white space."""
    for at, piece in _pieces(data, begin):
        if rest := piece.lstrip(_SPACE):
            return at + len(piece) - len(rest)
    return len(data)


def _first_newline(data: memoryview, begin: int) -> int:
    for at, piece in _pieces(data, begin):
        if (found := piece.find(b"\n")) >= 0:
            return at + found
    return len(data)


def _elements(data: memoryview, begin: int, name: str) -> tuple[Integers, Integers]:
    """Return offsets and lengths of the elements of the array that begins at `begin`."""
    try:
        found = msgspec.json.decode(data[begin:], type=list[msgspec.Raw])
    except _BROKEN as error:
        if _NOT_IN_JSON.search(data):
            return _elements_by_python(data, begin, name)
        position = re.search(r"\(byte (\d+)\)", str(error))
        _refuse(data, begin + int(position[1]) if position else len(data), str(error), name)
    first = pa.py_buffer(data).address
    buffers = map(pa.py_buffer, found)  # they are views of `data`
    pairs: Integers = np.fromiter(
        ((one.address - first, one.size) for one in buffers), np.dtype((np.int64, 2)), len(found)
    )
    return pairs[:, 0], pairs[:, 1]


def _elements_by_python(data: memoryview, begin: int, name: str) -> tuple[Integers, Integers]:
    """Do the same by the standard library, which accepts NaN. A character of the text is a byte of the file."""
    text, decode = str(data, "latin-1"), json.JSONDecoder().raw_decode
    pairs: list[tuple[int, int]] = []
    at = _skip_space(text, begin + 1)
    try:
        while text[at : at + 1] != "]" or pairs:
            end = decode(text, at)[1]
            pairs.append((at, end - at))
            at = _skip_space(text, end)
            if text[at : at + 1] == "]":
                break
            if text[at : at + 1] != ",":
                _refuse(data, at, "expected ',' or ']'", name)
            at = _skip_space(text, at + 1)
    except json.JSONDecodeError as error:
        _refuse(data, error.pos, error.msg, name)
    except RecursionError as error:
        _refuse(data, at, str(error), name)
    if (rest := _skip_space(text, at + 1)) < len(text):
        _refuse(data, rest, "trailing characters", name)
    found = np.array(pairs, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\r", "\n"):
        at += 1
    return at


def _refuse(data: memoryview, at: int, why: str, name: str) -> NoReturn:
    """Raise an error for an array that is no JSON."""
    view: Bytes = np.frombuffer(data, np.uint8)[:at]
    line = int(np.count_nonzero(view == ord("\n"))) + 1
    shown = bytes(data[max(0, at - 20) : at + 40])
    raise FormatError(
        f"{name}, line {line} (byte {at} of the file): expected JSON lines or one array of samples, got {shown!r}: "
        f'{why}; repair the file, or open it with decode="text"'
    ) from None
