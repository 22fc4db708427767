"""`load_dataset`: folders, patterns, files, or all splits of Hugging Face, as named splits, each a `Dataset`.

`splits.py` finds the files of each split by their names; `open` opens them, so everything that it accepts works here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, cast, overload

from shardex.catalog import is_reference
from shardex.dataset.combine import concat
from shardex.dataset.dataset import Dataset
from shardex.dataset.dataset_dict import DatasetDict, unknown_split
from shardex.dataset.from_table import HubDataset, is_table
from shardex.dataset.open import open as open_dataset
from shardex.dataset.splits import DataFiles, Paths, SplitFinder, SplitSlice, Unit, parse_splits
from shardex.dataset.views import source_rows
from shardex.errors import ArgumentError
from shardex.formats import ShardRows

HubSplits = Mapping[str, HubDataset]
"""A `datasets.DatasetDict`, as type checkers see it."""
_PLACES = ("cache", "cache_limit", "access")
"""Options of `open` that listing remote files needs too."""


# -- load -----------------------------------------------------------------------------------------------------


@overload
def load_dataset(
    path: Paths | HubSplits | None = None,
    sample_type: Any = None,
    split: None = None,
    data_files: DataFiles | None = None,
    **options: Any,
) -> DatasetDict: ...


@overload
def load_dataset(
    path: Paths | HubSplits | None,
    sample_type: Any,
    split: str,
    data_files: DataFiles | None = None,
    **options: Any,
) -> Dataset: ...


@overload
def load_dataset(
    path: Paths | HubSplits | None = None,
    sample_type: Any = None,
    *,
    split: str,
    data_files: DataFiles | None = None,
    **options: Any,
) -> Dataset: ...


def load_dataset(
    path: Paths | HubSplits | None = None,
    sample_type: Any = None,
    split: str | None = None,
    data_files: DataFiles | None = None,
    **options: Any,
) -> Dataset | DatasetDict:
    """Open the splits of a dataset by file names: all as a `DatasetDict`, or those of `split` as a `Dataset`.

    `path` is a folder, a file, a glob, a brace pattern, a URL or a list, as for `open`. Split words such as "train" and
    "val" are looked for in file and folder names below the common parent folder; without one, files are ``train``.
    `split` is a name, a slice such as ``"train[:100]"`` or ``"train[10%:20%]"``, or a sum of these.
    `data_files` gives the files of each split as a dict (or those of ``train``), relative to `path`. A Hugging Face
    `datasets.DatasetDict` as `path` is converted without a copy. ``"@name"`` is a dataset in a catalog, as for `open`.
    `sample_type` is the type of the samples. Other options are those of `open`, used for every split.

    >>> import tempfile, shardex as sx; folder = tempfile.mkdtemp()
    >>> for name in ("train", "test"):
    ...     _ = sx.write(f"{folder}/{name}", [{"x": k} for k in range(10)])
    >>> load_dataset(folder).num_rows
    {'train': 10, 'test': 10}
    >>> [sample.x for sample in load_dataset(folder, split="train[:2]+test[-10%:]")]
    [0, 1, 9]
    """
    splits = _splits(path, sample_type, data_files, options)
    if split is None:
        return DatasetDict({name: open_split() for name, open_split in splits.items()})
    chosen = parse_splits(split)
    for one in chosen:
        if one.split not in splits:
            raise unknown_split(one.split, splits)
    opened = {name: splits[name]() for name in dict.fromkeys(one.split for one in chosen)}
    parts = [_part(opened[one.split], one) for one in chosen]
    return parts[0] if len(parts) == 1 else concat(*parts)


def _splits(
    path: Paths | HubSplits | None, sample_type: Any, data_files: DataFiles | None, options: Mapping[str, Any]
) -> dict[str, Callable[[], Dataset]]:
    """Return a function for each split that opens it."""
    if is_reference(path):
        if data_files is not None:
            raise ArgumentError("expected no data_files with a name in a catalog, got some")
        whole: Dataset = open_dataset(cast(Any, path), sample_type, **options)
        return _registered_splits(whole, sample_type)
    if isinstance(path, Mapping):
        if not is_table(path) or data_files is not None:
            raise ArgumentError(
                "expected a path, or a datasets.DatasetDict and no data_files, got a dict; pass a dict of paths as "
                "data_files=, and make a DatasetDict of datasets that are open"
            )
        return {str(name): partial(open_dataset, one, sample_type, **options) for name, one in path.items()}
    finder = SplitFinder(options.get("format"), {name: options[name] for name in _PLACES if name in options})
    units = finder.from_names(path) if data_files is None else finder.from_data_files(path, data_files)
    return {name: partial(_open, some, sample_type, options) for name, some in units.items()}


def _registered_splits(whole: Dataset, sample_type: Any) -> dict[str, Callable[[], Dataset]]:
    """Return the splits of a dataset that was opened by its name in a catalog, and so was compared with its record."""
    rows = source_rows(whole.rows)
    assert isinstance(rows, ShardRows)
    opened = rows.opened
    places = {name: opened.access[name] for name in _PLACES if name in opened.access}
    units = SplitFinder(opened.format, places).from_names(opened.what)
    if len(units) == 1:
        return {name: lambda: whole for name in units}
    options = {**opened.options, **opened.access, "format": opened.format}

    def open_split(some: Sequence[Unit]) -> Dataset:
        found = _open(some, sample_type if whole.chosen is None else None, options)
        return found if whole.chosen is None else found.select(whole.chosen)

    return {name: partial(open_split, some) for name, some in units.items()}


def _part(dataset: Dataset, chosen: SplitSlice) -> Dataset:
    whole = chosen.start is None and chosen.stop is None
    found: Dataset = dataset if whole else dataset[chosen.of(len(dataset))]
    return found


def _open(units: Sequence[Unit], sample_type: Any, options: Mapping[str, Any]) -> Dataset:
    """Open consecutive files together and each folder alone, and concatenate them."""
    opened = []
    for is_folder, some in groupby(units, lambda unit: unit.is_folder):
        paths = {unit.what: unit.options for unit in some}
        for what in paths if is_folder or len(paths) == 1 else [list(paths)]:
            own = paths[what] if isinstance(what, str) else {}
            opened.append(open_dataset(what, sample_type, **{**own, **options}))
    return opened[0] if len(opened) == 1 else concat(*opened)
