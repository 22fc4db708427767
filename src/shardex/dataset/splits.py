"""Splits by file name: the split of a path, slices such as ``train[:10%]+test``, and the files of each split.

A name belongs to a split if it contains one of these words, in any case, delimited by the ends of the name, digits,
dashes, underscores, dots or spaces:

==================================  ==============
word                                split
==================================  ==============
train, training                     ``train``
test, testing                       ``test``
val, valid, validation              ``validation``
dev, development                    ``validation``
==================================  ==============

Examples: ``train-000.tar``, ``wiki_train_0.jsonl``, ``train/000.tar``. The file name is looked at first, then its
folders, innermost first; in a name the first word counts. A path without such a word belongs to ``train``.

`SplitFinder` finds what to open for each split (`Unit`): a folder whose files all belong to one split and are one
dataset is opened as a whole, so that its manifest or index is used; other files are opened one by one. It looks only at
names; `load_dataset.py` opens the units.
"""

from __future__ import annotations

import errno
import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from shardex.errors import ArgumentError, NotFoundError
from shardex.files import Files, expand_braces, find, named_split, natural_order
from shardex.formats import matches, media_folders, recognise, saved_splits, signature_of
from shardex.sources import LocalSource, check_text, compression, is_url

DEFAULT = "train"
"""The split of paths without a split word."""

_SPLIT_TEXT = re.compile(r"\s*([^\[\]+]*[^\[\]+\s])\s*(?:\[\s*(-?\d+%?)?\s*:\s*(-?\d+%?)?\s*\])?\s*")


@dataclass(frozen=True)
class SplitSlice:
    """A split, or a slice of it."""

    split: str
    start: int | None = None
    stop: int | None = None
    percent: bool = False
    """True if start and stop are percents."""

    def of(self, length: int) -> slice:
        """Return the slice of positions in a split of this length; percents are rounded to the nearest sample.

        >>> SplitSlice("train", 10, 20, percent=True).of(999), SplitSlice("train", -3).of(10)
        (slice(100, 200, 1), slice(7, 10, 1))
        """
        start, stop = (self._position(bound, length) for bound in (self.start, self.stop))
        return slice(*slice(start, stop).indices(length))

    def _position(self, bound: int | None, length: int) -> int | None:
        if bound is None or not self.percent:
            return bound
        position = round(bound * length / 100)
        return position if bound >= 0 else max(0, length + position)  # a small negative percent may round to 0


def parse_splits(text: str) -> list[SplitSlice]:
    """Parse ``name``, ``name[start:stop]`` and sums of these.

    >>> parse_splits("train[:100]")
    [SplitSlice(split='train', start=None, stop=100, percent=False)]
    >>> [one.split for one in parse_splits("train[10%:20%] + test")]
    ['train', 'test']
    """
    if not isinstance(text, str):
        raise ArgumentError(f"expected a split as text, such as 'train' or 'train[:10%]+test', got {text!r}")
    return [_parse_split(one, text) for one in text.split("+")]


def _parse_split(text: str, whole: str) -> SplitSlice:
    if (found := _SPLIT_TEXT.fullmatch(text)) is None:
        raise ArgumentError(f"expected a split such as 'train', 'train[:100]' or 'train[10%:20%]+test', got {whole!r}")
    name, *bounds = found.groups()
    given = [bound for bound in bounds if bound is not None]
    percent = any(bound.endswith("%") for bound in given)
    if percent and not all(bound.endswith("%") for bound in given):
        raise ArgumentError(f"expected both ends in samples or both in percent, got {whole!r}")
    start, stop = (None if bound is None else int(bound.rstrip("%")) for bound in bounds)
    if percent and not all(-100 <= bound <= 100 for bound in (start, stop) if bound is not None):
        raise ArgumentError(f"expected percents from -100 to 100, got {whole!r}")
    return SplitSlice(name, start, stop, percent)


Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
DataFiles = Paths | Mapping[str, Paths]

_FIRST = (DEFAULT, "validation", "test")
"""These splits come first, in this order."""
_MANIFESTS = "_shardex"


@dataclass(frozen=True)
class Unit:
    """A path to open."""

    what: str
    is_folder: bool
    """True for a folder, which is opened as one dataset; False for one of several files."""
    split: str | None = None
    """The split in its name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open` that follow from other splits."""


Splits = dict[str, list[Unit]]
_Named = Sequence[tuple[str, str | None]]
"""Paths below a folder, and the split that each of them names."""


@dataclass(frozen=True)
class SplitFinder:
    """Finds the units of each split. `places` are the options for listing remote files."""

    format: str | None
    places: Mapping[str, Any]

    def from_data_files(self, path: Paths | None, data_files: DataFiles) -> Splits:
        """Return the splits given by `data_files`."""
        by_split = data_files if isinstance(data_files, Mapping) else {DEFAULT: data_files}
        if path is not None and not isinstance(path, str | os.PathLike):
            raise ArgumentError(f"expected one folder for the data files, got {type(path).__name__}")
        splits = {
            name: [unit for one in _as_list(given) for unit in self._units_of(_below(path, one))]
            for name, given in by_split.items()
        }
        for name, units in splits.items():
            if not isinstance(name, str) or not name or not units:
                raise NotFoundError(
                    errno.ENOENT, f"expected files for the split {name!r}, got none", str(by_split[name])
                )
        if not splits:
            raise NotFoundError(errno.ENOENT, "expected files for at least one split, got none", "data_files={}")
        return self._with_classes(splits)

    def from_names(self, path: Paths | None) -> Splits:
        """Return the splits given by file names: train, validation and test first, then the others."""
        if path is None:
            raise ArgumentError("expected a path or data_files, got neither")
        given = _as_list(path)
        if not given:
            raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
        units = [unit for one in given for unit in self._units_of(one)]
        if len(given) == len(units) == 1 and units[0].is_folder and not _is_archive(units[0].what):
            files = self._find(units[0].what)
            if saved := saved_splits(files) if self.format in (None, "arrow") else []:
                return _saved_as(units[0].what, saved)
            if self._is_media(files):
                return self._with_classes(_media_splits(units[0], files))
            units = [*self._walk(units[0].what, [(name, named_split(name)) for name in files.paths if _is_data(name)])]
        else:
            names = _relative([unit.what for unit in units])
            units = [replace(unit, split=named_split(name)) for name, unit in zip(names, units, strict=True)]
        splits: Splits = {name: [] for name in _FIRST}
        for unit in units:
            splits.setdefault(unit.split or DEFAULT, []).append(unit)
        splits = {name: data for name, some in splits.items() if (data := self._data(some))}
        # Files of no known format are passed to `open`, whose error describes them.
        return splits or {DEFAULT: [Unit(given[0], is_folder=True)] if len(given) == 1 else units}

    def _is_media(self, files: Files) -> bool:
        if self.format not in (None, "folder") or not signature_of("folder").match(files):
            return False
        return self.format is not None or recognise(files) == "folder"  # raises if it may be another format too

    def _with_classes(self, splits: Splits) -> Splits:
        """Return the splits; folders of media files get the classes of all splits, so that their numbers agree."""
        folders = [unit for units in splits.values() for unit in units]
        if len(splits) < 2 or not all(unit.is_folder for unit in folders):
            return splits
        found = [(unit, self._find(unit.what)) for unit in folders]
        if not all("format" in unit.options or self._is_media(files) for unit, files in found):
            return splits
        if not (classes := media_folders.classes_of_splits(files.paths for _, files in found)):
            return splits
        return {
            name: [replace(unit, options={**unit.options, "classes": classes}) for unit in some]
            for name, some in splits.items()
        }

    def _find(self, what: str) -> Files:
        """Return files as they are stored: compressed ones with their own names."""
        found = find(what, **self.places)
        return found.packed or found

    def _units_of(self, pattern: str) -> Iterator[Unit]:
        """Yield a folder, or the files of a pattern; a brace pattern may expand to several of both."""
        parts = [pattern] if is_url(check_text(pattern)) or os.path.exists(pattern) else expand_braces(pattern)
        for one in parts:
            if folders := _folders_of(one):
                yield from folders
                continue
            files = self._find(one)
            if files.folder:
                yield Unit(one, is_folder=True)
            else:
                yield from (Unit(_full_path(files, path), is_folder=_is_archive(path)) for path in files.paths)

    def _walk(self, folder: str, files: _Named) -> Iterator[Unit]:
        """Yield a folder of one split as a whole if it is one dataset; otherwise its files and folders."""
        if len({split or DEFAULT for _, split in files}) == 1 and self._is_whole(folder, files):
            yield Unit(folder, is_folder=True, split=files[0][1])
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
                yield Unit(where, is_folder=_is_archive(where), split=below[0][1])

    def _is_whole(self, folder: str, files: _Named) -> bool:
        """Return True if a folder is one dataset, False if it is a folder of datasets."""
        if any(f"/{_MANIFESTS}/" in name for name, _ in files):
            return False
        likely = _formats(find(folder, **self.places))
        if self.format is None:
            return bool(likely)
        return self.format in likely or not any("/" in name for name, _ in files)

    def _data(self, units: list[Unit]) -> list[Unit]:
        """Return the units of a split without files that are no data, such as a README."""
        files = [unit.what for unit in units if not unit.is_folder]
        if self.format is None:
            inner = Files(LocalSource(os.sep), tuple(map(_content_name, _relative(files))), "", folder=True)
            data = {files[number] for number, name in enumerate(inner.paths) if name in {*inner.data}}
            return [
                unit for unit in units if unit.is_folder or unit.what in data
            ]  # `open` refuses those of two formats
        by_extension = {_extension(name): name for name in files}
        kept = {end for end, name in by_extension.items() if self.format in _formats(_only_names([name]))}
        if not kept:  # keep files whose names have a split word
            return [unit for unit in units if unit.is_folder or unit.split is not None] or units
        return [unit for unit in units if unit.is_folder or _extension(unit.what) in kept]


def _saved_as(folder: str, names: Sequence[str]) -> Splits:
    """Return the splits of a saved DatasetDict of Hugging Face, under its own names."""
    order = [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)]
    return {name: [Unit(f"{folder.rstrip('/')}/{name}", is_folder=True)] for name in order}


def _media_splits(folder: Unit, files: Files) -> Splits:
    """Return the splits of a folder of media files: by its first folders, as names further inside are classes."""
    splits: Splits = {name: [] for name in _FIRST}
    found = media_folders.split_folders(str(files), files.paths)
    inside = tuple(f"{name}/" for name in found)
    if any(media_folders.is_metadata(path) and not path.startswith(inside) for path in files.paths):
        return {DEFAULT: [folder]}  # a table with rows for the files of all folders
    for name in found:
        where = f"{folder.what.rstrip('/')}/{name}"
        splits[named_split(name.rpartition("/")[2]) or DEFAULT].append(
            Unit(where, is_folder=True, options={"format": "folder"})
        )
    return {name: some for name, some in splits.items() if some} or {DEFAULT: [folder]}


def _folders_of(pattern: str) -> list[Unit]:
    """Return the units of a local pattern that matches folders; none if it matches only files."""
    if is_url(pattern) or os.path.exists(pattern) or "**" in pattern:
        return []
    found = [path for path in natural_order(glob.glob(pattern)) if _is_data(os.path.basename(path))]
    if not any(map(os.path.isdir, found)):
        return []
    return [Unit(path, is_folder=os.path.isdir(path)) for path in found]


def _as_list(given: Paths) -> list[str]:
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if not isinstance(given, Sequence) or not all(isinstance(one, str | os.PathLike) for one in given):
        raise ArgumentError(f"expected a path, a pattern or a list of them, got {type(given).__name__}")
    return [os.fspath(one) for one in given]


def _below(path: Path | None, one: str) -> str:
    if path is None or is_url(one) or os.path.isabs(one):
        return one
    base = os.fspath(path)
    return f"{base.rstrip('/')}/{one}" if is_url(base) else os.path.join(base, one)


def _full_path(files: Files, path: str) -> str:
    """Return the path or URL of one of the files; the query of a URL applies to each of them."""
    root, mark, query = files.source.url.partition("?") if is_url(files.source.url) else (files.source.url, "", "")
    return f"{root.rstrip('/')}/{path}{mark}{query}"


def _relative(names: Sequence[str]) -> list[str]:
    """Return paths relative to their common parent folder.

    >>> _relative(["/d/train/0.tar", "/d/test/0.tar"]), _relative(["/d/test/train.tar"])
    (['train/0.tar', 'test/0.tar'], ['train.tar'])
    """
    levels = [_without_query(name).replace(os.sep, "/").rstrip("/").split("/") for name in names]
    shared = takewhile(lambda level: len({*level}) == 1, zip(*(level[:-1] for level in levels), strict=False))
    above = len([*shared])
    return ["/".join(level[above:]) for level in levels]


def _is_data(name: str) -> bool:
    """Return False for hidden files; manifests count as data, because a dataset may have no data files."""
    parts = name.split("/")
    return _MANIFESTS in parts or not any(part.startswith((".", "_")) for part in parts)


def _formats(files: Files) -> list[str]:
    return [name for name, _ in matches(files)]


def _only_names(names: Sequence[str]) -> Files:
    """Return files by their names alone; compressed ones have the names of their content."""
    return Files(LocalSource(os.sep), tuple(map(_content_name, names)), tuple(names))


def _content_name(name: str) -> str:
    plain = _without_query(name) if is_url(name) else os.path.abspath(name).lstrip(os.sep)
    return (compression.plain_name(plain) or (plain,))[0]


def _is_archive(name: str) -> bool:
    """Return whether a file is an archive of other files."""
    return _content_name(name).lower().endswith(".zip")


def _without_query(name: str) -> str:
    """Return a path, or a URL without its query."""
    return name.partition("?")[0] if is_url(name) else name


def _extension(name: str) -> str:
    return os.path.splitext(_content_name(name))[1].lower()
