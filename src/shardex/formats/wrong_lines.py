"""Leaves wrong lines out of an index (``bad_lines="skip"``): lines that are no JSON, records with too many cells.

`RightLines` is a scanner around that of a format: it checks all lines that were found and keeps the right ones, with
the number of wrong ones before each, so that the index says how many there were. Formats say what is wrong
(`WrongLines`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError
from shardex.files import Files, Index, Scan
from shardex.kernel import Integers, count_newlines
from shardex.sources import ByteRange, Source

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
    line = 1 + sum(
        count_newlines(source.read(path, [ByteRange(at, min(_BLOCK, begin - at))])[0]) for at in range(0, begin, _BLOCK)
    )
    texts = bytes(source.read(path, [ByteRange(begin, end - begin)])[0]).split(b"\n")
    full = [(line + k, text) for k, text in enumerate(texts) if text.strip()]
    wrong = is_wrong([text.removesuffix(b"\r") for _, text in full])
    for (place, _), flag in zip(full, wrong.tolist(), strict=True):
        if flag or not wrong.any():
            yield f"{files.name(number)}, line {place}"
