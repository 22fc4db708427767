"""`LoadedBatch`, the batch that a loader yields, and `BatchOrigin`, the origin of its samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from shardex.errors import FieldError
from shardex.features import Feature, Features
from shardex.kernel import Column, Columns, Integers, Masked, value_mask
from shardex.loader.plan import Plan, PreparedBatch
from shardex.loader.tensors import without_tensor
from shardex.samples import Batch, DictSample, T_co, is_sample_class

if TYPE_CHECKING:
    from shardex.loader.recipe import Recipe


Place = tuple["Recipe", Plan, int]
"""Where a batch comes from: what made it, the plan, and its number in the plan."""


class BatchOrigin:
    """Where the samples of a batch come from; each attribute is computed when it is first used."""

    def __init__(self, recipe: Recipe, plan: Plan, number: int) -> None:
        self._recipe = recipe
        self._plan = plan
        self._number = number

    @property
    def epoch(self) -> int:
        """Epoch of the batch."""
        return self._plan.epoch

    @property
    def step(self) -> int:
        """Number of the batch, counted from 0 over the whole run."""
        return self._plan.step + self._number

    @cached_property
    def positions(self) -> Integers:
        """Position of each sample in the order of the epoch."""
        return self._recipe.batch_positions(self._plan, self._number)

    @cached_property
    def rows(self) -> Integers:
        """Number of each sample in the dataset of the loader, or in the source of a mixture or of a draw that it is
        from.
        """
        return self._recipe.sample_numbers(self.epoch, self.positions)

    @property
    def shards(self) -> list[str]:
        """Path of the file that holds each sample, empty where it is not known."""
        return self._recipe.view(self.epoch).shards(self.positions)

    @property
    def sources(self) -> list[str]:
        """Name of the dataset that each sample of a mixture comes from."""
        return self._recipe.sources(self.epoch, self.positions)

    @property
    def sample_type(self) -> type[Any]:
        """Type of the samples of the batch."""
        return self._recipe.sample_type

    @property
    def features(self) -> Features:
        """Features of the samples as they were read."""
        return self._recipe.dataset.features

    def part(self, where: slice) -> BatchOrigin:
        """Return where some of the samples come from."""
        part = BatchOrigin(self._recipe, self._plan, self._number)
        part.positions = self.positions[where]
        return part

    def __repr__(self) -> str:
        first = self.positions[:1].tolist()
        return f"BatchOrigin(step {self.step}, epoch {self.epoch}, {len(self.positions)} positions from {first} on)"


class LoadedBatch(Batch[T_co]):
    """A batch with `mask` (which rows count) and `origin` (where its samples come from).

    A field with the name of an attribute of batches, such as `mask`, `to` or `samples`, is ``batch["mask"]``.
    """

    __slots__ = ("_origin", "_prepared", "_to_tensor")

    _origin: BatchOrigin | Place | None
    """The place until the origin is first asked for."""
    _prepared: PreparedBatch
    _to_tensor: Callable[[Any], Any] | None

    def __init__(
        self,
        columns: Columns,
        prepared: PreparedBatch,
        origin: BatchOrigin | Place | None,
        to_tensor: Callable[[Any], Any] | None = None,
    ) -> None:
        _set_columns(self, columns)
        _set_prepared(self, prepared)
        _set_origin(self, origin)
        _set_to_tensor(self, to_tensor)

    def __reduce__(self) -> tuple[Any, ...]:
        prepared = PreparedBatch(self._prepared.rows, None, self._prepared.lengths, self._prepared.mask)
        return LoadedBatch, (self.columns, prepared, None, self._to_tensor)

    def _replace(self, columns: Columns, device: Any) -> Self:
        convert = None if self._to_tensor is None else partial(_on_device, self._to_tensor, device)
        return type(self)(columns, self._prepared, None if self._origin is None else self.origin, convert)

    def _features(self) -> Mapping[str, Feature]:
        return {} if self._origin is None else self.origin.features

    def _part(self, where: slice, columns: Columns) -> LoadedBatch[T_co]:
        prepared, mask = self._prepared, self._prepared.mask
        lengths = {name: sizes[where] for name, sizes in prepared.lengths.items()}
        some = PreparedBatch(len(columns), None, lengths, None if mask is None else mask[where])
        return LoadedBatch(columns, some, None if self._origin is None else self.origin.part(where), self._to_tensor)

    @property
    def sample_type(self) -> type[Any]:
        """Type of its samples; `DictSample` if the batch was pickled."""
        return DictSample if self._origin is None else self.origin.sample_type

    def _sample_maker(self) -> Callable[[dict[str, Any]], Any]:
        """Return the function that makes a sample from the values of a row; a class gets arrays for tensors."""
        make = super()._sample_maker()
        if self._to_tensor is None or not is_sample_class(self.sample_type):
            return make
        return lambda values: make({name: without_tensor(value) for name, value in values.items()})

    def _of_row(self, values: dict[str, Any], row: int) -> dict[str, Any]:
        """Return the values of a row, with arrays without their padding."""
        for name, sizes in self._prepared.lengths.items():
            if (padded := values.get(name)) is not None and padded.ndim:
                own = np.atleast_1d(sizes[row]).tolist()
                values[name] = padded[tuple(slice(own[axis]) for axis in _axes(own, padded.shape))]
        return values

    @property
    def origin(self) -> BatchOrigin:
        """Where its samples come from; a batch that was pickled has no origin."""
        if self._origin is None:
            raise FieldError("expected a batch from a loader of this process, got one that was pickled")
        if isinstance(self._origin, tuple):
            _set_origin(self, BatchOrigin(*self._origin))
        return cast("BatchOrigin", self._origin)

    @property
    def mask(self) -> Any:
        """True for each row that holds the sample of its position.

        False for rows that only fill up the batch, and for those that replace a bad sample: with the mask no sample is
        counted twice.
        """
        mask = self._prepared.mask
        return self._output(np.ones(len(self), np.bool_) if mask is None else mask)

    def _stacked(self, name: str, column: list[Any]) -> Column:
        """Return a list of arrays unchanged: the loader has chosen the form of each column."""
        return column if column[0].ndim else super()._stacked(name, column)

    def present_of(self, name: str) -> Any:
        """Return for each sample whether it has a value for a field: False where the value is None."""
        return self._output(super().present_of(name))

    def lengths_of(self, name: str) -> Any:
        """Return the length (or, if several sizes vary, the shape) of each row of a field of arrays; 0 if missing."""
        sizes = self._prepared.lengths.get(name)
        return self._output(self._lengths(name) if sizes is None else sizes)

    def mask_of(self, name: str) -> Any:
        """Return where a field of numbers or arrays holds values.

        One truth value per sample if all values have one shape: False where the value is None. If lengths vary, the
        mask has the shape of the padded array: False in the padding, so everywhere in a row that is missing.
        """
        sizes = self._prepared.lengths.get(name)
        if sizes is None:
            return super().mask_of(name)
        column = self.columns[name]
        shape = getattr(column.values if isinstance(column, Masked) else column, "shape", None)
        sizes = sizes.reshape(len(self), -1)
        largest = sizes.max(axis=0, initial=0).tolist()
        padded = largest if shape is None else shape[1:]
        return self._output(value_mask(sizes[:, _axes(largest, padded)], padded))

    def _output(self, array: Any) -> Any:
        return array if self._to_tensor is None else self._to_tensor(array)


def warn_of_hidden(fields: Iterable[str]) -> None:
    """Warn of fields that are no attributes of batches, because batches have attributes of these names."""
    if hidden := [name for name in fields if hasattr(LoadedBatch, name)]:
        first = hidden[0]
        warnings.warn(
            f"batch.{first} is an attribute of batches, not the field {first!r}: read the field as batch[{first!r}], "
            f'or rename it: ds.rename({first}="...")' + (f"; so are {', '.join(hidden[1:])}" if hidden[1:] else ""),
            stacklevel=4,
        )


def _axes(sizes: Sequence[int], padded: Sequence[int]) -> list[int]:
    """Return which of the sizes each axis of a padded shape has; tensors of images may have their channels first.

    >>> _axes([2], (5, 3)), _axes([4, 5, 3], (8, 8, 3)), _axes([4, 5, 3], (3, 8, 8))
    ([0], [0, 1, 2], [2, 0, 1])
    """
    may_be_first = len(sizes) == 3 == len(padded) and padded[0] == sizes[2]
    if may_be_first and (padded[2] != sizes[2] or any(size > most for size, most in zip(sizes, padded, strict=True))):
        return [2, 0, 1]
    return list(range(len(sizes)))


def _on_device(to_tensor: Callable[[Any], Any], device: Any, array: Any) -> Any:
    return to_tensor(array).to(device)


# Setting an attribute of a batch sets a field, so the slots are set directly. Looked up once: every step makes a batch.
_set_columns = Batch.columns.__set__  # type: ignore[attr-defined, misc]
_set_prepared = LoadedBatch._prepared.__set__  # type: ignore[attr-defined, misc]
_set_origin = LoadedBatch._origin.__set__  # type: ignore[union-attr, misc]
_set_to_tensor = LoadedBatch._to_tensor.__set__  # type: ignore[union-attr, misc]
