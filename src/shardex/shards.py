"""Which files a user means: a folder, a file, a glob, a brace pattern or a list becomes `Files` in natural order.

Natural order puts `part2` before `part10`, whatever the case of letters. Looks at names only, never into files.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardex.errors import NotFoundError, SchemaError, UnknownFormatError
from shardex.source import Source
from shardex.sources.local import LocalSource

__all__ = ["Files", "expand_braces", "find", "natural_order"]

What = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_NOT_DATA = re.compile(r"(^|/)[._]")


@dataclass(frozen=True)
class Files:
    """Some files of one source, and what the user wrote to get them."""

    source: Source
    paths: tuple[str, ...]
    """Relative to the source, in the order of their samples."""
    what: str | tuple[str, ...]
    """As given, made absolute: opens the same files again."""
    folder: bool = False
    """Whether `what` is one folder, and the paths all files below it."""

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
    given = tuple(os.path.abspath(os.fspath(one)) for one in what)
    return _files([path for one in given for path in _matches(one)], given)


def _find_one(what: str) -> Files:
    if "://" in what and not what.startswith("file://"):
        raise UnknownFormatError(f"expected a local path, got {what!r} (remote sources are not there yet)")
    if what.startswith("pipe:"):
        raise UnknownFormatError(f"expected a path, got {what!r}: shardex never runs commands")
    given = os.path.abspath(os.path.expanduser(what.removeprefix("file://")))
    if os.path.isdir(given):
        source = LocalSource(given)
        return Files(source, tuple(natural_order(source.paths())), given, folder=True)
    return _files(_matches(given), given)


def _matches(pattern: str) -> list[str]:
    if os.path.exists(pattern):
        return [pattern]
    found: list[str] = []
    for one in expand_braces(pattern):
        some = natural_order(glob.glob(one, recursive=True)) if glob.has_magic(one) else [one] * os.path.exists(one)
        if not some:
            raise NotFoundError(errno.ENOENT, "no such file or folder" if one == pattern else f"nothing matches a part of {pattern}", one)
        found += some
    return [path for path in found if os.path.isfile(path)]


def _files(paths: list[str], what: str | tuple[str, ...]) -> Files:
    root = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else os.path.dirname(str(what))
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

    >>> expand_braces("s-{008..010}.tar"), expand_braces("{a,b}.x")
    (['s-008.tar', 's-009.tar', 's-010.tar'], ['a.x', 'b.x'])
    """
    if not (match := re.search(r"\{([^{}]*)\}", pattern)):
        return [pattern]
    head, inner, tail = pattern[: match.start()], match[1], pattern[match.end() :]
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        first, last = int(numbers[1]), int(numbers[2])
        width = len(numbers[1]) if len(numbers[1]) == len(numbers[2]) or numbers[1].startswith("0") else 0
        step = 1 if last >= first else -1
        choices = [f"{n:0{width}d}" for n in range(first, last + step, step)]
    elif "," in inner:
        choices = inner.split(",")
    else:
        return [f"{head}{{{inner}}}{rest}" for rest in expand_braces(tail)] if "{" in tail else [pattern]
    return [done for choice in choices for done in expand_braces(head + choice + tail)]
