"""`load_dataset`: folders, patterns and files as named splits, each a `Dataset`; `DatasetDict` holds several.

`splits.py` finds the files of each split by their names; `open` opens them, so everything that it accepts works here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Self, overload

from shardex.dataset.combine import concat
from shardex.dataset.dataset import Dataset
from shardex.dataset.huggingface import import_datasets
from shardex.dataset.open import open as open_dataset
from shardex.dataset.splits import DEFAULT, DataFiles, Paths, SplitFinder, SplitSlice, Unit, parse_splits
from shardex.errors import ArgumentError, UnknownSplitError

_PLACES = ("cache", "cache_limit", "access")
"""Options of `open` that listing remote files needs too."""
_OF_ONE_SPLIT = ("ordered", "shuffled", "head", "list_shards")


class DatasetDict(dict[str, Dataset]):
    """Splits by name, each a `Dataset`.

    `select`, `take`, `skip`, `shuffle`, `where`, `map`, `filter` and `as_type` apply to all splits and return a
    `DatasetDict`. `ordered`, `shuffled`, `head` and `list_shards` work if there is only one split.

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
                raise ArgumentError(f"expected names of splits and datasets, got {name!r} and {type(one).__name__}")

    def __missing__(self, name: str) -> Dataset:
        raise _unknown(name, self)

    @property
    def num_rows(self) -> dict[str, int]:
        """Number of samples of each split."""
        return {name: len(one) for name, one in self.items()}

    def each(self, method: str, *arguments: Any, **options: Any) -> Self:
        """Call a method of each split that returns a view."""
        return type(self)({name: getattr(one, method)(*arguments, **options) for name, one in self.items()})

    def select(self, *fields: str) -> Self:
        """Choose these fields of each split."""
        return self.each("select", *fields)

    def take(self, count: int) -> Self:
        """Take the first samples of each split."""
        return self.each("take", count)

    def skip(self, count: int) -> Self:
        """Skip the first samples of each split."""
        return self.each("skip", count)

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Self:
        """Shuffle each split."""
        return self.each("shuffle", seed, epoch)

    def where(self, text: str, *arguments: Any, **options: Any) -> Self:
        """Choose the samples of each split for which an SQL condition holds."""
        return self.each("where", text, *arguments, **options)

    def map(self, function: Any, **options: Any) -> Self:
        """Apply a function to the samples of each split when they are read."""
        return self.each("map", function, **options)

    def filter(self, function: Any, **options: Any) -> Self:
        """Choose the samples of each split for which a function is true."""
        return self.each("filter", function, **options)

    def as_type(self, sample_type: Any, **options: Any) -> Self:
        """View each split as samples of a type."""
        return self.each("as_type", sample_type, **options)

    def to_huggingface(self) -> Any:
        """Return all splits as a Hugging Face `datasets.DatasetDict`."""
        return import_datasets("to_huggingface").DatasetDict({name: one.to_huggingface() for name, one in self.items()})

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
    """Open the splits of a dataset by file names: all as a `DatasetDict`, or those of `split` as a `Dataset`.

    `path` is a folder, a file, a glob, a brace pattern, a URL or a list, as for `open`. Split words such as "train" and
    "val" are looked for in file and folder names below the common parent folder; without one, files are ``train``.
    `split` is a name, a slice such as ``"train[:100]"`` or ``"train[10%:20%]"``, or a sum of these.
    `data_files` gives the files of each split as a dict (or those of ``train``), relative to `path`.
    `sample_type` is the type of the samples. Other options are those of `open`, used for every split.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp()
    >>> for name in ("train", "test"):
    ...     _ = sx.write(f"{folder}/{name}", [{"x": k} for k in range(10)])
    >>> load_dataset(folder).num_rows
    {'train': 10, 'test': 10}
    >>> [sample.x for sample in load_dataset(folder, split="train[:2]+test[-10%:]")]
    [0, 1, 9]
    """
    finder = SplitFinder(options.get("format"), {name: options[name] for name in _PLACES if name in options})
    units = finder.from_names(path) if data_files is None else finder.from_data_files(path, data_files)
    if split is None:
        return DatasetDict({name: _open(some, sample_type, options) for name, some in units.items()})
    chosen = parse_splits(split)
    for one in chosen:
        if one.split not in units:
            raise _unknown(one.split, units)
    opened = {name: _open(units[name], sample_type, options) for name in dict.fromkeys(one.split for one in chosen)}
    parts = [_part(opened[one.split], one) for one in chosen]
    return parts[0] if len(parts) == 1 else concat(*parts)


def _part(dataset: Dataset, chosen: SplitSlice) -> Dataset:
    whole = chosen.start is None and chosen.stop is None
    found: Dataset = dataset if whole else dataset[chosen.of(len(dataset))]
    return found


def _open(units: Sequence[Unit], sample_type: Any, options: Mapping[str, Any]) -> Dataset:
    """Open consecutive files together and each folder alone, and concatenate them."""
    opened = []
    for is_folder, some in groupby(units, lambda unit: unit.is_folder):
        paths = [unit.what for unit in some]
        for what in paths if is_folder or len(paths) == 1 else [paths]:
            opened.append(open_dataset(what, sample_type, **options))
    return opened[0] if len(opened) == 1 else concat(*opened)
