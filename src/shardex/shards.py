"""Which files a user means: a folder, a file, a glob, a brace pattern or a list becomes `Files` in natural order.

Natural order puts `part2` before `part10`, whatever the case of letters. Looks at names only, never into files.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from shardex.errors import NotFoundError, SchemaError, UnknownFormatError, UnsafeError
from shardex.source import Source
from shardex.sources.address import SCHEMES, is_url, open_source
from shardex.sources.local import LocalSource

__all__ = ["Files", "absolute", "expand_braces", "find", "natural_order"]

What = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NOT_DATA = re.compile(r"(^|/)[._]")


@dataclass(frozen=True)
class Files:
    """Some files of one source, and what the user wrote to get them."""

    source: Source
    listed: tuple[str, ...] | None
    """The paths, if they are known already."""
    what: str | tuple[str, ...]
    """As given, made absolute: opens the same files again."""
    folder: bool = False
    """Whether `what` is one folder, and the paths all files below it."""

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Relative to the source, in the order of their samples; a folder is listed when they are first asked for."""
        return tuple(natural_order(self.source.paths())) if self.listed is None else self.listed

    def __str__(self) -> str:
        return self.what if isinstance(self.what, str) else f"{len(self.what)} files from {self.what[0]} on"

    def name(self, number: int) -> str:
        """A file as messages name it."""
        return os.path.join(self.source.url, self.paths[number])

    def having(self, *extensions: str) -> Files:
        """Only the data files with one of these extensions; hidden files and folders are no data."""
        kept = (p for p in self.paths if p.lower().endswith(extensions) and not (self.folder and _NOT_DATA.search(p)))
        return Files(self.source, tuple(kept), self.what, self.folder)


def find(what: What) -> Files:
    """The files that `what` names; an error if one that is spelled out is not there.

    >>> find("/nowhere/at/all")
    Traceback (most recent call last):
    shardex.errors.NotFoundError: [Errno 2] no such file or folder: '/nowhere/at/all'
    """
    if isinstance(what, str | os.PathLike):
        return _find_one(os.fspath(what))
    if not isinstance(what, Sequence) or not all(isinstance(one, str | os.PathLike) for one in what):
        raise SchemaError(f"expected a path, a pattern or a list of them, got {type(what).__name__}")
    if not what:
        raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
    given = tuple(absolute(os.fspath(one)) for one in what)
    return _files([path for one in given for path in _matches(one)], given)


def _find_one(what: str) -> Files:
    if is_url(what) and what.partition("://")[0] in SCHEMES:
        place = open_source(what)
        return Files(place, None, place.url, folder=True)
    given = absolute(what)
    if os.path.isdir(given):
        return Files(LocalSource(given), None, given, folder=True)
    return _files(_matches(given), given)


def absolute(what: str) -> str:
    """Where a local path lies; commands and addresses of other places are refused."""
    if what.startswith("pipe:"):
        raise UnsafeError(f"expected a path, got {what!r}: shardex never runs commands")
    if "://" in what and not what.startswith("file://"):
        raise UnknownFormatError(f"expected a local path, got {what!r} (remote sources are not there yet)")
    return os.path.abspath(os.path.expanduser(what.removeprefix("file://")))


def _matches(pattern: str) -> list[str]:
    found: list[str] = []
    for one in [pattern] if os.path.exists(pattern) else expand_braces(pattern):
        some = _matches_of_one(one)
        if not some and not os.path.isdir(one):
            problem = "no such file or folder" if one == pattern else f"nothing matches a part of {pattern}"
            raise NotFoundError(errno.ENOENT, problem, one)
        found += some
    return found


def _matches_of_one(pattern: str) -> list[str]:
    """The files of a glob, the data below a folder, or the file itself."""
    if os.path.isdir(pattern):
        below = natural_order(LocalSource(pattern).paths())
        return [os.path.join(pattern, path) for path in below if not _NOT_DATA.search(path)]
    if os.path.exists(pattern):
        return [pattern]
    return [path for path in natural_order(glob.glob(pattern, recursive=True)) if os.path.isfile(path)]


def _files(paths: list[str], what: str | tuple[str, ...]) -> Files:
    folders = [os.path.dirname(path) for path in paths] or ([what] if isinstance(what, str) else list(what))
    root = os.path.commonpath(folders)
    relative = tuple(os.path.relpath(path, root).replace(os.sep, "/") for path in paths)
    return Files(LocalSource(root), relative, what)


def natural_order(paths: Sequence[str]) -> list[str]:
    """Sort as people count.

    >>> natural_order(["part10", "Part2", "part1"])
    ['part1', 'Part2', 'part10']
    """

    def key(path: str) -> tuple[list[Any], str]:
        pieces = re.split(r"(\d+)", path.casefold())
        return [int(piece) if number % 2 else piece for number, piece in enumerate(pieces)], path

    return sorted(paths, key=key)


def expand_braces(pattern: str) -> list[str]:
    """All names a brace pattern stands for.

    >>> expand_braces("s-{008..010}.tar"), expand_braces("{a,b{1,2}}.x")
    (['s-008.tar', 's-009.tar', 's-010.tar'], ['a.x', 'b1.x', 'b2.x'])
    """
    for begin, end in _braces(pattern):
        if choices := _choices(pattern[begin + 1 : end]):
            tails = expand_braces(pattern[end + 1 :])
            return [pattern[:begin] + choice + tail for choice in choices for tail in tails]
    return [pattern]


def _braces(pattern: str) -> Iterator[tuple[int, int]]:
    """Where outermost pairs of braces open and close."""
    depth = begin = 0
    for at, letter in enumerate(pattern):
        if letter == "{":
            begin = begin if depth else at
            depth += 1
        elif letter == "}" and depth:
            depth -= 1
            if not depth:
                yield begin, at


def _choices(inner: str) -> list[str]:
    """What a pair of braces stands for; nothing if it is neither a range of numbers nor a list."""
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        first, last = int(numbers[1]), int(numbers[2])
        padded = any(len(number) > 1 and number.startswith("0") for number in numbers.groups())
        width = max(map(len, numbers.groups())) if padded else 0
        step = 1 if last >= first else -1
        return [f"{n:0{width}d}" for n in range(first, last + step, step)]
    parts = _split(inner)
    return [done for part in parts for done in expand_braces(part)] if len(parts) > 1 else []


def _split(inner: str) -> list[str]:
    """Cut at the commas that lie in no further pair of braces."""
    cuts = [m.start() for m in re.finditer(",", inner) if not any(a < m.start() < b for a, b in _braces(inner))]
    return [inner[a + 1 : b] for a, b in pairwise([-1, *cuts, len(inner)])]
