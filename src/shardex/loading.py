"""`load_dataset`: folders, patterns and files as named splits, each a `Dataset`; `DatasetDict` holds several.

Names tell the splits (`splits.py`), `shards.py` tells the files, and `open` opens each split, so that whatever it
understands works here. A folder whose files all belong to one split is opened whole, so that what lies beside the
shards (a manifest, an order, an index) still counts.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, Self, overload

from shardex.compose import concat
from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import NotFoundError, SchemaError, UnknownSplitError
from shardex.format import FORMATS, format_named
from shardex.shards import Files, expand_braces, find
from shardex.sources.address import is_url
from shardex.splits import DEFAULT, Piece, named_split, pieces

__all__ = ["DatasetDict", "load_dataset"]

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

_FIRST = (DEFAULT, "validation", "test")
_MANIFESTS = "_shardex"
_OF_ONE_SPLIT = ("ordered", "shuffled", "head", "list_shards")


class DatasetDict(dict[str, Dataset]):
    """Splits by name. Views are taken of all at once; a single split is a `Dataset` like any other.

    `select`, `take`, `skip`, `shuffle`, `where`, `map`, `filter` and `as_type` give a `DatasetDict` of what they give
    for each split. `ordered`, `shuffled`, `head` and `list_shards` are those of the split, if there is only one.

    >>> from shardex import open
    >>> splits = DatasetDict(train=open([{"x": 1, "y": 2}, {"x": 3, "y": 4}]), test=open([{"x": 5, "y": 6}]))
    >>> splits.select("x")["test"][0], splits.num_rows
    (DictSample(x=5), {'train': 2, 'test': 1})
    >>> splits["dev"]
    Traceback (most recent call last):
    shardex.errors.UnknownSplitError: expected one of the splits train, test, got 'dev'
    """

    def __init__(self, splits: Mapping[str, Dataset] | None = None, /, **named: Dataset) -> None:
        super().__init__({**(splits or {}), **named})
        for name, one in self.items():
            if not isinstance(name, str) or not isinstance(one, Dataset):
                raise SchemaError(f"expected names of splits and datasets, got {name!r} and {type(one).__name__}")

    def __missing__(self, name: str) -> Dataset:
        raise _unknown(name, self)

    @property
    def num_rows(self) -> dict[str, int]:
        """How many samples each split has."""
        return {name: len(one) for name, one in self.items()}

    def each(self, method: str, *arguments: Any, **options: Any) -> Self:
        """What a method that makes views gives for each split."""
        return type(self)({name: getattr(one, method)(*arguments, **options) for name, one in self.items()})

    def select(self, *fields: str) -> Self:
        """Only these fields."""
        return self.each("select", *fields)

    def take(self, count: int) -> Self:
        """The first samples of each split."""
        return self.each("take", count)

    def skip(self, count: int) -> Self:
        """All but the first samples of each split."""
        return self.each("skip", count)

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Self:
        """Each split in an order of its own."""
        return self.each("shuffle", seed, epoch)

    def where(self, text: str, *arguments: Any, **options: Any) -> Self:
        """The samples of each split for which a condition in SQL holds."""
        return self.each("where", text, *arguments, **options)

    def map(self, function: Any, **options: Any) -> Self:
        """What a function makes of the samples of each split."""
        return self.each("map", function, **options)

    def filter(self, function: Any, **options: Any) -> Self:
        """The samples of each split that a function keeps."""
        return self.each("filter", function, **options)

    def as_type(self, sample_type: Any, **options: Any) -> Self:
        """Each split seen as samples of a type."""
        return self.each("as_type", sample_type, **options)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_ONE_SPLIT and len(self) == 1:
            return getattr(next(iter(self.values())), name)
        if name.startswith("_") or not hasattr(Dataset, name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        example = next(iter(self), DEFAULT)
        raise AttributeError(
            f"expected a split for {name!r}, got all of {_names(self)}: choose one, [{example!r}].{name}"
        )

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = "".join(f"    {name:{width}}  {one}\n" for name, one in self.items())
        return f"{type(self).__name__}(\n{lines})" if lines else f"{type(self).__name__}()"


def _names(splits: Mapping[str, Any]) -> str:
    return ", ".join(splits) or "no splits"


def _unknown(name: Any, splits: Mapping[str, Any]) -> UnknownSplitError:
    return UnknownSplitError(f"expected one of the splits {_names(splits)}, got {name!r}")


# -- load -----------------------------------------------------------------------------------------------------


DataFiles = Paths | Mapping[str, Paths]


@overload
def load_dataset(
    path: Paths | None = None,
    sample_type: Any = None,
    split: None = None,
    data_files: DataFiles | None = None,
    **options: Any,
) -> DatasetDict: ...


@overload
def load_dataset(
    path: Paths | None, sample_type: Any, split: str, data_files: DataFiles | None = None, **options: Any
) -> Dataset: ...


@overload
def load_dataset(
    path: Paths | None = None,
    sample_type: Any = None,
    *,
    split: str,
    data_files: DataFiles | None = None,
    **options: Any,
) -> Dataset: ...


def load_dataset(
    path: Paths | None = None,
    sample_type: Any = None,
    split: str | None = None,
    data_files: DataFiles | None = None,
    **options: Any,
) -> Dataset | DatasetDict:
    """Open the splits of a dataset by the names of its files: all as a `DatasetDict`, or the one that `split` names.

    `path` is what `open` takes: a folder, a file, a glob, a brace pattern, an address, a list. Of a folder and a list
    only what lies below what its paths have in common names splits (`splits.py` has the rules), and splits may have
    different formats. `split` is a name, a part such as ``"train[:100]"`` or ``"train[10%:20%]"``, or a sum of these.
    `data_files` says which files make which split, as a dict, or those of ``train``; they lie below `path`.
    `sample_type` is the type that samples are seen as. The other options are those of `open`, for every split.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp()
    >>> for name in ("train", "test"):
    ...     _ = sx.write(f"{folder}/{name}", [{"x": k} for k in range(10)])
    >>> load_dataset(folder).num_rows
    {'train': 10, 'test': 10}
    >>> [sample.x for sample in load_dataset(folder, split="train[:2]+test[-10%:]")]
    [0, 1, 9]
    """
    there = _found(path, options.get("format")) if data_files is None else _told(path, data_files)
    if split is None:
        return DatasetDict({name: _open(units, sample_type, options) for name, units in there.items()})
    chosen = pieces(split)
    for piece in chosen:
        if piece.split not in there:
            raise _unknown(piece.split, there)
    opened = {name: _open(there[name], sample_type, options) for name in dict.fromkeys(one.split for one in chosen)}
    parts = [_part(opened[piece.split], piece) for piece in chosen]
    return parts[0] if len(parts) == 1 else concat(*parts)


def _part(dataset: Dataset, piece: Piece) -> Dataset:
    whole = piece.start is None and piece.stop is None
    found: Dataset = dataset if whole else dataset[piece.of(len(dataset))]
    return found


def _open(units: Sequence[_Unit], sample_type: Any, options: Mapping[str, Any]) -> Dataset:
    """Files in a row together, folders each by itself, one after another."""
    wanted: tuple[Any, ...] = () if sample_type is None else (sample_type,)
    opened = []
    for one_by_one, some in groupby(units, lambda unit: unit.alone):
        given = [unit.what for unit in some]
        for what in given if one_by_one or len(given) == 1 else [given]:
            opened.append(open_dataset(what, *wanted, **options))
    return opened[0] if len(opened) == 1 else concat(*opened)


# -- which files make which split -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """Something to open."""

    what: str
    alone: bool
    """Whether it is opened by itself: a folder, not one file of many."""
    split: str | None = None
    """The split that its name tells."""


_Splits = dict[str, list[_Unit]]
_Named = Sequence[tuple[str, str | None]]
"""Paths below a folder, and the split that each names."""


def _told(path: Paths | None, data_files: DataFiles) -> _Splits:
    """The splits that `data_files` names."""
    by_split = data_files if isinstance(data_files, Mapping) else {DEFAULT: data_files}
    if path is not None and not isinstance(path, str | os.PathLike):
        raise SchemaError(f"expected one folder that the data files lie in, got {type(path).__name__}")
    splits = {
        name: [unit for one in _listed(given) for unit in _units_of(_below(path, one))]
        for name, given in by_split.items()
    }
    for name, units in splits.items():
        if not isinstance(name, str) or not name or not units:
            raise NotFoundError(errno.ENOENT, f"expected files for the split {name!r}, got none", str(by_split[name]))
    if not splits:
        raise NotFoundError(errno.ENOENT, "expected files for at least one split, got none", "data_files={}")
    return splits


def _below(path: Path | None, one: str) -> str:
    if path is None or is_url(one) or os.path.isabs(one):
        return one
    base = os.fspath(path)
    return f"{base.rstrip('/')}/{one}" if is_url(base) else os.path.join(base, one)


def _listed(given: Paths) -> list[str]:
    if isinstance(given, str | os.PathLike):
        return [os.fspath(given)]
    if not isinstance(given, Sequence) or not all(isinstance(one, str | os.PathLike) for one in given):
        raise SchemaError(f"expected a path, a pattern or a list of them, got {type(given).__name__}")
    return [os.fspath(one) for one in given]


def _units_of(pattern: str) -> Iterator[_Unit]:
    """A folder, or the files of a pattern."""
    for one in [pattern] if os.path.exists(pattern) else expand_braces(pattern):
        files = find(one)
        if files.folder:
            yield _Unit(one, alone=True)
        else:
            yield from (_Unit(files.name(number), alone=False) for number in range(len(files.paths)))


def _found(path: Paths | None, format: str | None) -> _Splits:
    """The splits that names tell: train, validation and test first, then the others."""
    if path is None:
        raise SchemaError("expected a path or data_files, got neither")
    given = _listed(path)
    if len(given) == 1 and (files := find(given[0])).folder:
        units = [*_walk(given[0], [(name, named_split(name)) for name in files.paths if _is_data(name)], format)]
    else:
        units = [unit for one in given for unit in _units_of(one)]
        names = _relative([unit.what for unit in units])
        units = [replace(unit, split=named_split(name)) for name, unit in zip(names, units, strict=True)]
    splits: _Splits = {name: [] for name in _FIRST}
    for unit in units:
        splits.setdefault(unit.split or DEFAULT, []).append(unit)
    splits = {name: data for name, some in splits.items() if (data := _data(some, format))}
    return splits or {DEFAULT: _unknown_data(given, units)}


def _unknown_data(given: list[str], units: list[_Unit]) -> list[_Unit]:
    """What was given, though no format knows it: `open` says what it is."""
    if not given:
        raise NotFoundError(errno.ENOENT, "expected at least one file, got an empty list", "[]")
    return [_Unit(given[0], alone=True)] if len(given) == 1 else units


def _relative(names: Sequence[str]) -> list[str]:
    """Paths below the folder that all lie in.

    >>> _relative(["/d/train/0.tar", "/d/test/0.tar"]), _relative(["/d/test/train.tar"])
    (['train/0.tar', 'test/0.tar'], ['train.tar'])
    """
    parts = [name.replace(os.sep, "/").rstrip("/").split("/") for name in names]
    levels = zip(*(part[:-1] for part in parts), strict=False)
    shared = sum(1 for _ in takewhile(lambda level: len({*level}) == 1, levels))
    return ["/".join(part[shared:]) for part in parts]


def _is_data(name: str) -> bool:
    """Whether a file is no hidden one; a manifest counts, because its dataset may have no data."""
    parts = name.split("/")
    return _MANIFESTS in parts or not any(part.startswith((".", "_")) for part in parts)


def _walk(folder: str, files: _Named, format: str | None) -> Iterator[_Unit]:
    """Folders of one split whole, if they are one dataset; else what is in them."""
    if len({split or DEFAULT for _, split in files}) == 1 and _is_whole(folder, files, format):
        yield _Unit(folder, alone=True, split=files[0][1])
        return
    children: dict[str, list[tuple[str, str | None]]] = {}
    for name, split in files:
        head, _, rest = name.partition("/")
        children.setdefault(head, []).append((rest, split))
    for head, below in children.items():
        where = f"{folder.rstrip('/')}/{head}"
        if below[0][0]:
            yield from _walk(where, below, format)
        else:
            yield _Unit(where, alone=False, split=below[0][1])


def _is_whole(folder: str, files: _Named, format: str | None) -> bool:
    """Whether a folder is one dataset, and not a folder of datasets."""
    if any(f"/{_MANIFESTS}/" in name for name, _ in files):
        return False
    likely = _formats(find(folder))
    return bool(likely) if format is None else format in likely or not any("/" in name for name, _ in files)


def _formats(files: Files) -> list[str]:
    return [name for name in FORMATS if format_named(name).recognise(files)]


def _data(units: list[_Unit], format: str | None) -> list[_Unit]:
    """The units of a split without files that are no data, such as a README."""
    files = [unit.what for unit in units if not unit.alone]
    likely = _formats(find(files)) if files else []
    if format is not None and format not in likely:  # names tell nothing of the format, but may tell the split
        return [unit for unit in units if unit.alone or unit.split is not None] or units
    if not likely:
        return [unit for unit in units if unit.alone]
    if format is None and len(likely) > 1:
        return units  # `open` says which they are
    by_extension = {_extension(name): name for name in files}
    kept = {extension for extension, name in by_extension.items() if (format or likely[0]) in _formats(find(name))}
    return [unit for unit in units if unit.alone or _extension(unit.what) in kept]


def _extension(name: str) -> str:
    return os.path.splitext(name)[1].lower()
