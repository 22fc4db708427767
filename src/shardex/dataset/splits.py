"""Which files make which split: `Search` turns what a user gave into units, each of which `open` opens as it is.

A folder whose files all belong to one split is one unit, if it is one dataset, so that what lies beside its shards (a
manifest, an order, an index) still counts; other files are units of their own. Looks at names, and opens nothing.

Splits by name: which split a file belongs to, and what ``train[:10%]+test`` means. Pure; opens nothing.

A name says its split where one of these words stands in it by itself, between the ends of the name, digits, dashes,
underscores, dots or spaces, in any case:

==================================  ==============
word                                split
==================================  ==============
train, training                     ``train``
test, testing                       ``test``
val, valid, validation              ``validation``
dev, development                    ``validation``
==================================  ==============

So do ``train-000.tar``, ``wiki_train_0.jsonl`` and ``train/000.tar``. The file's own name counts before the folders it
lies in, the nearest first, and the first word in a name counts. Who names no split belongs to ``train``.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from shardex.errors import NotFoundError, SchemaError
from shardex.files import Files, expand_braces, find, natural_order
from shardex.formats import FORMATS, format_named
from shardex.sources import LocalSource, is_url

__all__ = ["DEFAULT", "DataFiles", "Paths", "Piece", "Search", "Splits", "Unit", "named_split", "pieces", "split_of"]

DEFAULT = "train"
"""The split of everything that names none."""

_WORDS = {
    "train": DEFAULT,
    "training": DEFAULT,
    "test": "test",
    "testing": "test",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "development": "validation",
}
_WORD = re.compile(rf"(?:^|[-_. \d])({'|'.join(_WORDS)})(?=$|[-_. \d])", re.IGNORECASE)
_PIECE = re.compile(r"\s*([^\[\]+]*[^\[\]+\s])\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*")


def named_split(path: str) -> str | None:
    """The split that a path names, if it names one.

    >>> named_split("wiki_train_0.jsonl"), named_split("Valid/0.tar"), named_split("contest.tar")
    ('train', 'validation', None)
    """
    for name in reversed(path.split("/")):
        if found := _WORD.search(name):
            return _WORDS[found[1].lower()]
    return None


def split_of(path: str) -> str:
    """The split that a path belongs to.

    >>> split_of("test/train-0.tar"), split_of("a/b.tar"), split_of("dev-2.tar")
    ('train', 'train', 'validation')
    """
    return named_split(path) or DEFAULT


@dataclass(frozen=True)
class Piece:
    """A split, or a part of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    """Whether start and stop are parts of a hundred."""

    def of(self, length: int) -> slice:
        """The positions meant, of a split of this length; hundredths are rounded to the nearest sample.

        >>> Piece("train", 10, 20, percent=True).of(999), Piece("train", -3).of(10)
        (slice(100, 200, 1), slice(7, 10, 1))
        """
        start, stop = (self._position(bound, length) for bound in (self.start, self.stop))
        return slice(*slice(start, stop).indices(length))

    def _position(self, bound: int | None, length: int) -> int | None:
        if bound is None or not self.percent:
            return bound
        position = round(bound * length / 100)
        return position if bound >= 0 else max(0, length + position)  # a negative one may round to 0, the end


def pieces(text: str) -> list[Piece]:
    """What ``name``, ``name[start:stop]`` and sums of these stand for.

    >>> pieces("train[:100]")
    [Piece(split='train', start=None, stop=100, percent=False)]
    >>> [piece.split for piece in pieces("train[10%:20%] + test")]
    ['train', 'test']
    """
    if not isinstance(text, str):
        raise SchemaError(f"expected a split as text, such as 'train' or 'train[:10%]+test', got {text!r}")
    return [_piece(one, text) for one in text.split("+")]


def _piece(text: str, whole: str) -> Piece:
    if (found := _PIECE.fullmatch(text)) is None:
        raise SchemaError(f"expected a split such as 'train', 'train[:100]' or 'train[10%:20%]+test', got {whole!r}")
    name, *bounds = found.groups()
    given = [bound for bound in bounds if bound is not None]
    percent = any(bound.endswith("%") for bound in given)
    if percent and not all(bound.endswith("%") for bound in given):
        raise SchemaError(f"expected both ends in samples or both in percent, got {whole!r}")
    start, stop = (None if bound is None else int(bound.rstrip("%")) for bound in bounds)
    if percent and not all(-100 <= bound <= 100 for bound in (start, stop) if bound is not None):
        raise SchemaError(f"expected percents from -100 to 100, got {whole!r}")
    return Piece(name, start, stop, percent)


Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
DataFiles = Paths | Mapping[str, Paths]

_FIRST = (DEFAULT, "validation", "test")
_MANIFESTS = "_shardex"


@dataclass(frozen=True)
class Unit:
    """Something to open."""

    what: str
    alone: bool
    """Whether it is opened by itself: a folder, not one file of many."""
    split: str | None = None
    """The split that its name tells."""


Splits = dict[str, list[Unit]]
_Named = Sequence[tuple[str, str | None]]
"""Paths below a folder, and the split that each names."""


@dataclass(frozen=True)
class Search:
    """Looks for the units of each split."""

    format: str | None
    places: Mapping[str, Any]

    def told(self, path: Paths | None, data_files: DataFiles) -> Splits:
        """The splits that `data_files` names."""
        by_split = data_files if isinstance(data_files, Mapping) else {DEFAULT: data_files}
        if path is not None and not isinstance(path, str | os.PathLike):
            raise SchemaError(f"expected one folder that the data files lie in, got {type(path).__name__}")
        splits = {
            name: [unit for one in _listed(given) for unit in self._units_of(_below(path, one))]
            for name, given in by_split.items()
        }
        for name, units in splits.items():
            if not isinstance(name, str) or not name or not units:
                raise NotFoundError(
                    errno.ENOENT, f"expected files for the split {name!r}, got none", str(by_split[name])
                )
        if not splits:
            raise NotFoundError(errno.ENOENT, "expected files for at least one split, got none", "data_files={}")
        return splits

    def found(self, path: Paths | None) -> Splits:
        """The splits that names tell: train, validation and test first, then the others."""
        if path is None:
            raise SchemaError("expected a path or data_files, got neither")
        given = _listed(path)
        if not given:
            raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
        units = [unit for one in given for unit in self._units_of(one)]
        if len(given) == len(units) == 1 and units[0].alone:
            files = self._find(units[0].what)
            units = [*self._walk(units[0].what, [(name, named_split(name)) for name in files.paths if _is_data(name)])]
        else:
            names = _relative([unit.what for unit in units])
            units = [replace(unit, split=named_split(name)) for name, unit in zip(names, units, strict=True)]
        splits: Splits = {name: [] for name in _FIRST}
        for unit in units:
            splits.setdefault(unit.split or DEFAULT, []).append(unit)
        splits = {name: data for name, some in splits.items() if (data := self._data(some))}
        # What no format knows is left to `open`, which says what it is.
        return splits or {DEFAULT: [Unit(given[0], alone=True)] if len(given) == 1 else units}

    def _find(self, what: str) -> Files:
        return find(what, **self.places)

    def _units_of(self, pattern: str) -> Iterator[Unit]:
        """A folder, or the files of a pattern; a pattern in braces may stand for several of both."""
        parts = [pattern] if is_url(pattern) or os.path.exists(pattern) else expand_braces(pattern)
        for one in parts:
            if folders := _folders_of(one):
                yield from folders
                continue
            files = self._find(one)
            if files.folder:
                yield Unit(one, alone=True)
            else:
                yield from (Unit(_address(files, path), alone=False) for path in files.paths)

    def _walk(self, folder: str, files: _Named) -> Iterator[Unit]:
        """Folders of one split whole, if they are one dataset; else what is in them."""
        if len({split or DEFAULT for _, split in files}) == 1 and self._is_whole(folder, files):
            yield Unit(folder, alone=True, split=files[0][1])
            return
        children: dict[str, list[tuple[str, str | None]]] = {}
        for name, split in files:
            head, _, rest = name.partition("/")
            children.setdefault(head, []).append((rest, split))
        for head, below in children.items():
            where = f"{folder.rstrip('/')}/{head}"
            if below[0][0]:
                yield from self._walk(where, below)
            else:
                yield Unit(where, alone=False, split=below[0][1])

    def _is_whole(self, folder: str, files: _Named) -> bool:
        """Whether a folder is one dataset, and not a folder of datasets."""
        if any(f"/{_MANIFESTS}/" in name for name, _ in files):
            return False
        likely = _formats(self._find(folder))
        if self.format is None:
            return bool(likely)
        return self.format in likely or not any("/" in name for name, _ in files)

    def _data(self, units: list[Unit]) -> list[Unit]:
        """The units of a split without files that are no data, such as a README."""
        files = [unit.what for unit in units if not unit.alone]
        likely = _formats(_only_names(files)) if files else []
        if self.format is not None and self.format not in likely:  # names tell no format, but may tell the split
            return [unit for unit in units if unit.alone or unit.split is not None] or units
        if not likely:
            return [unit for unit in units if unit.alone]
        if self.format is None and len(likely) > 1:
            return units  # `open` says which they are
        wanted = self.format or likely[0]
        by_extension = {_extension(name): name for name in files}
        kept = {end for end, name in by_extension.items() if wanted in _formats(_only_names([name]))}
        return [unit for unit in units if unit.alone or _extension(unit.what) in kept]


def _folders_of(pattern: str) -> list[Unit]:
    """The units of a local pattern that folders match, and files; none if only files do."""
    if is_url(pattern) or os.path.exists(pattern) or "**" in pattern:
        return []
    found = [path for path in natural_order(glob.glob(pattern)) if _is_data(os.path.basename(path))]
    if not any(map(os.path.isdir, found)):
        return []
    return [Unit(path, alone=os.path.isdir(path)) for path in found]


def _listed(given: Paths) -> list[str]:
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if not isinstance(given, Sequence) or not all(isinstance(one, str | os.PathLike) for one in given):
        raise SchemaError(f"expected a path, a pattern or a list of them, got {type(given).__name__}")
    return [os.fspath(one) for one in given]


def _below(path: Path | None, one: str) -> str:
    if path is None or is_url(one) or os.path.isabs(one):
        return one
    base = os.fspath(path)
    return f"{base.rstrip('/')}/{one}" if is_url(base) else os.path.join(base, one)


def _address(files: Files, path: str) -> str:
    """What opens one of the files; what comes after a question mark belongs to each of them."""
    root, mark, query = files.source.url.partition("?") if is_url(files.source.url) else (files.source.url, "", "")
    return f"{root.rstrip('/')}/{path}{mark}{query}"


def _relative(names: Sequence[str]) -> list[str]:
    """Paths below the folder that all lie in.

    >>> _relative(["/d/train/0.tar", "/d/test/0.tar"]), _relative(["/d/test/train.tar"])
    (['train/0.tar', 'test/0.tar'], ['train.tar'])
    """
    levels = [_bare(name).replace(os.sep, "/").rstrip("/").split("/") for name in names]
    shared = takewhile(lambda level: len({*level}) == 1, zip(*(level[:-1] for level in levels), strict=False))
    above = len([*shared])
    return ["/".join(level[above:]) for level in levels]


def _is_data(name: str) -> bool:
    """Whether a file is no hidden one; a manifest counts, because its dataset may have no data."""
    parts = name.split("/")
    return _MANIFESTS in parts or not any(part.startswith((".", "_")) for part in parts)


def _formats(files: Files) -> list[str]:
    return [name for name in FORMATS if format_named(name).recognise(files)]


def _only_names(names: Sequence[str]) -> Files:
    """Files to look at the names of, wherever they lie."""
    return Files(LocalSource(os.sep), tuple(map(_bare, names)), tuple(names))


def _bare(name: str) -> str:
    """A path, or an address without what comes after its question mark."""
    return name.partition("?")[0] if is_url(name) else name


def _extension(name: str) -> str:
    return os.path.splitext(_bare(name))[1].lower()
