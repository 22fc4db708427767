"""A batch as the loader hands it out: with a mask of its real samples, and the memory of where it came from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from shardex.dataset import Dataset
from shardex.errors import FieldError
from shardex.kernel import Columns, Integers, value_mask
from shardex.loader.plan import Made, Plan
from shardex.samples import Batch, DictSample

__all__ = ["LoadedBatch", "Origin", "Place", "as_it_is"]


class Dealer(Protocol):
    """Knows which samples a batch has; a `Recipe` does."""

    def positions(self, plan: Plan) -> Integers:
        """Their places in the order of the epoch."""

    def rows(self, epoch: int, positions: Integers) -> Integers:
        """Their numbers."""

    def sources(self, epoch: int, positions: Integers) -> list[str]:
        """The datasets of a mixture that they come from."""

    def view(self, epoch: int) -> Dataset[Any]:
        """The dataset in the order of an epoch."""

    @property
    def sample_type(self) -> type[Any]:
        """What the samples of batches are."""


class Origin:
    """Where the samples of a batch came from; worked out when it is asked for."""

    def __init__(self, recipe: Dealer, epoch: int, position: int, step: int) -> None:
        self._recipe = recipe
        self.epoch = epoch
        self.step = step
        """The number of the step, counted from 0 over the whole run."""
        self._plan = Plan(epoch, position, 1)

    @cached_property
    def positions(self) -> Integers:
        """The place of each sample in the order of the epoch."""
        return self._recipe.positions(self._plan)

    @cached_property
    def rows(self) -> Integers:
        """The number of each sample in the dataset that is loaded; in a mixture, in its own source."""
        return self._recipe.rows(self.epoch, self.positions)

    @property
    def shards(self) -> list[str]:
        """The file that each sample lies in, as far as it is known."""
        return self._recipe.view(self.epoch).shards(self.positions)

    @property
    def sources(self) -> list[str]:
        """The name of the dataset that each sample of a mixture came from."""
        return self._recipe.sources(self.epoch, self.positions)

    def __repr__(self) -> str:
        first = self.positions[:1].tolist()
        return f"Origin(step {self.step}, epoch {self.epoch}, {len(self.positions)} positions from {first} on)"


class Place(NamedTuple):
    """A batch of a run."""

    recipe: Dealer
    epoch: int
    position: int
    step: int


class LoadedBatch(Batch[Any]):
    """A batch that knows which of its rows are real and where they came from.

    Fields named like its own attributes, `mask` and `origin`, are reached by name: ``batch["mask"]``.
    """

    __slots__ = ("_convert", "_made", "_place")

    _convert: Callable[[Any], Any]
    _made: Made
    _place: Place | None

    def __init__(self, columns: Columns, made: Made, place: Place | None, convert: Callable[[Any], Any]) -> None:
        _set_columns(self, columns)
        _set_made(self, made)
        _set_place(self, place)
        _set_convert(self, convert)

    def __reduce__(self) -> tuple[Any, ...]:
        made = Made(self._made.rows, None, self._made.sizes, self._made.real)
        return LoadedBatch, (self.columns, made, None, self._convert)

    @property
    def sample_type(self) -> type[Any]:
        """What its samples are; those of a batch that was pickled are untyped."""
        return DictSample if self._place is None else self._place.recipe.sample_type

    @property
    def origin(self) -> Origin:
        """Where its samples came from; a batch that was pickled does not know it any more."""
        if self._place is None:
            raise FieldError("expected a batch from a loader of this process, got one that was pickled")
        return Origin(*self._place)

    @property
    def mask(self) -> Any:
        """True for each row that is the sample of its position; false for rows that only fill up the batch, and for
        those that stand in for a bad sample. Count with it, and no sample counts twice."""
        real = self._made.real
        return self._convert(np.ones(len(self), np.bool_) if real is None else real)

    def lengths_of(self, name: str) -> Any:
        """The length (or the shape) that each row of a padded field had."""
        return self._convert(self._sizes(name))

    def mask_of(self, name: str) -> Any:
        """True where a padded field holds a value, false where it was filled up."""
        return self._convert(value_mask(self._sizes(name), self.columns[name].shape[1:]))

    def _sizes(self, name: str) -> Integers:
        if name not in self._made.sizes:
            padded = ", ".join(self._made.sizes) or "none"
            raise FieldError(f"expected a field that was padded ({padded}), got {name!r}")
        return self._made.sizes[name]


# Attributes of a batch are its fields, so these are set past it; a batch is made for every step.
_set_columns = Batch.columns.__set__  # type: ignore[attr-defined, misc]
_set_made = LoadedBatch._made.__set__  # type: ignore[attr-defined, misc]
_set_place = LoadedBatch._place.__set__  # type: ignore[union-attr, misc]
_set_convert = LoadedBatch._convert.__set__  # type: ignore[attr-defined, misc]


def as_it_is(value: Any) -> Any:
    """What a loader that gives arrays makes of an array."""
    return value
