"""`DatasetDict`: named splits, each a `Dataset`. `load_dataset` and `Dataset.split` make one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from shardex import display
from shardex.dataset.huggingface import import_datasets
from shardex.errors import ArgumentError, UnknownSplitError
from shardex.rows import AbstractRows

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

_OF_ONE_SPLIT = ("ordered", "shuffled", "head", "show")
_MAX_SHOWN = 8
"""Splits that a notebook shows with samples."""
_EXAMPLE = "train"


class DatasetDict(dict[str, "Dataset"]):
    """Splits by name, each a `Dataset`.

    `select`, `drop`, `rename`, `sort`, `take`, `skip`, `shuffle`, `sliding`, `where`, `map`, `filter` and `as_type`
    apply to all splits and return a `DatasetDict`. `ordered`, `shuffled`, `head` and `show` work if there is only one.

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
            if not isinstance(name, str) or not isinstance(one, AbstractRows):
                raise ArgumentError(f"expected names of splits and datasets, got {name!r} and {type(one).__name__}")

    def __missing__(self, name: str) -> Dataset:
        raise unknown_split(name, self)

    @property
    def num_rows(self) -> dict[str, int]:
        """Number of samples of each split."""
        return {name: len(one) for name, one in self.items()}

    def each(self, method: str, *arguments: Any, **options: Any) -> Self:
        """Call a method of each split that returns a view."""
        return type(self)({name: getattr(one, method)(*arguments, **options) for name, one in self.items()})

    def select(self, *fields: str | Sequence[str]) -> Self:
        """Choose these fields of each split."""
        return self.each("select", *fields)

    def drop(self, *fields: str | Sequence[str]) -> Self:
        """Leave out these fields of each split."""
        return self.each("drop", *fields)

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Self:
        """Rename fields of each split."""
        return self.each("rename", names, **more)

    def sort(self, *fields: str | Sequence[str], descending: bool = False) -> Self:
        """Sort each split."""
        return self.each("sort", *fields, descending=descending)

    def take(self, count: int) -> Self:
        """Take the first samples of each split."""
        return self.each("take", count)

    def skip(self, count: int) -> Self:
        """Skip the first samples of each split."""
        return self.each("skip", count)

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Self:
        """Shuffle each split."""
        return self.each("shuffle", seed, epoch)

    def sliding(self, length: int, *arguments: Any, **options: Any) -> Self:
        """View each split as windows of rows."""
        return self.each("sliding", length, *arguments, **options)

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
        if name.startswith("_") or not any(hasattr(type(one), name) for one in self.values()):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        example = next(iter(self), _EXAMPLE)
        raise AttributeError(
            f"expected a split for {name!r}, got all of {_names(self)}: choose one, [{example!r}].{name}"
        )

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(_OF_ONE_SPLIT if len(self) == 1 else ())]

    def _repr_html_(self) -> str:
        shown = {name: one._repr_html_() for name, one in list(self.items())[:_MAX_SHOWN]}
        return display.sections_html(shown, len(self))

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = "".join(f"    {name:{width}}  {one}\n" for name, one in self.items())
        return f"{type(self).__name__}(\n{lines})" if lines else f"{type(self).__name__}()"


def _names(splits: Mapping[str, Any]) -> str:
    return ", ".join(splits) or "no splits"


def unknown_split(name: Any, splits: Mapping[str, Any]) -> UnknownSplitError:
    """Return the error for a split that is not there."""
    return UnknownSplitError(f"expected one of the splits {_names(splits)}, got {name!r}")
