"""How a batch is made: positions, a read, the transform, one form for ragged fields, collate.

A `Recipe` holds everything that decides what a batch contains, pickles as a description, and makes the same batch in
whichever process it runs. It keeps no place in the run; a `Plan` says which batches to make.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.blend import Mix
from shardex.columns import Columns, Ragged
from shardex.dataset import Dataset
from shardex.deal import Deal
from shardex.errors import SchemaError, ShardexError
from shardex.gather import Integers
from shardex.mend import ATTEMPTS, BadSample, failures, stand_in
from shardex.mixture import MixRows
from shardex.order import Blocks, Order, Shuffle, of_epoch
from shardex.sample import Batch, DictSample
from shardex.stats import Spent

__all__ = ["Made", "Plan", "Recipe"]

Form = Literal["pad", "pack", "list"]
OnError = Literal["raise", "skip"] | Callable[[BadSample], None]


class _Unfit(SchemaError):
    """A transform that does something else than it should: no bad sample."""


_NOT_THE_SAMPLE = (MemoryError, _Unfit)


class Plan(NamedTuple):
    """Some batches to make: the next ones from a position of an epoch on."""

    epoch: int
    position: int
    batches: int


@dataclass(slots=True)
class Made:
    """One batch, before it is handed out."""

    rows: int
    data: Any
    """Columns, or what the collate function made of them."""
    sizes: dict[str, Integers] = field(default_factory=dict)
    """Lengths (or shapes) of the rows of the fields that were padded."""
    real: NDArray[np.bool_] | None = None
    """False for rows that fill up the batch or stand in for a bad sample; none if all are real."""
    bad: Sequence[BadSample] = ()


@dataclass(frozen=True)
class Recipe:
    """Makes batches of a dataset for one rank."""

    dataset: Dataset
    batch: int
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    shuffle: bool = False
    seed: int = 0
    block: int | None = None
    window: int = 16
    fields: tuple[str, ...] | None = None
    form: Form = "pad"
    fill: Any = 0
    transform: Callable[..., Any] | None = None
    collate: Callable[[Batch], Any] | None = None
    on_error: OnError = "raise"
    _views: dict[int, Dataset] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def length(self) -> int:
        """Positions in an epoch."""
        return len(self.dataset)

    @cached_property
    def in_python(self) -> bool:
        """Whether making a batch holds the interpreter."""
        return self.transform is not None or self.collate is not None or self.dataset.in_python

    @cached_property
    def takes_rng(self) -> bool:
        """Whether the transform wants a source of chance."""
        return self.transform is not None and takes_two(self.transform)

    # -- which samples ----------------------------------------------------------------------------------------

    def view(self, epoch: int) -> Dataset:
        """The dataset in the order of an epoch."""
        if (view := self._views.get(epoch)) is None:
            self._views.clear()
            view = self._views[epoch] = Dataset(self.dataset.rows, self._order(epoch), self.dataset.chosen)
        return view

    def _order(self, epoch: int) -> Order:
        own = self.dataset.order
        if isinstance(own, Mix):  # goes on where the last epoch stopped, and shuffles each source by itself
            return of_epoch(replace(own, seed=self.seed) if self.shuffle else own, epoch)
        if not self.shuffle:
            return own
        if self.block is None:
            return self.dataset.through(Shuffle(self.length, self.seed, epoch)).order
        return self.dataset.through(Blocks(self.length, self.block, self.window, self.seed, epoch)).order

    def deal(self, position: int) -> Deal:
        """What this rank gets from a position of an epoch on."""
        return Deal(self.length, self.batch, self.rank, self.world, position, self.drop_last)

    def positions(self, plan: Plan) -> Integers:
        """The positions of the epoch that the batches of a plan hold."""
        if self.world == 1:
            return np.arange(plan.position, min(plan.position + plan.batches * self.batch, self.length))
        deal = self.deal(plan.position)
        return deal.rows(np.arange(deal.span(plan.batches - 1)[1]))

    def advise(self, plan: Plan) -> None:
        """Tell the storage that these batches are made soon."""
        self.view(plan.epoch).advise(self.positions(plan), self.fields)

    def sources(self, rows: Integers) -> list[str]:
        """The names of the datasets of a mixture that rows come from."""
        mixture = self.dataset.rows
        if not isinstance(mixture, MixRows):
            raise SchemaError("expected a mixture of datasets, which has sources, got one dataset")
        return [mixture.names[number] for number in (np.searchsorted(mixture.starts, rows, "right") - 1).tolist()]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    # -- making them ------------------------------------------------------------------------------------------

    def __call__(self, plan: Plan) -> tuple[list[Made], Spent]:
        """Make the batches of a plan, and say what that took; fewer if one after the first cannot be made."""
        spent, positions = Spent(), self.positions(plan)
        made = self._at_once(plan, positions, spent)
        for begin in range(len(made) * self.batch, len(positions), self.batch):
            try:
                made.append(_Batch(self, plan.epoch, positions[begin : begin + self.batch], spent).make())
            except Exception:
                if not made:
                    raise
                break  # those before it are good; it fails again when it comes first
        if self.world > 1 and len(made) == plan.batches:
            self._mask(plan, made[-1])
        return made, spent

    def _mask(self, plan: Plan, last: Made) -> None:
        """The last batch of an epoch may be filled up, to be as long as that of other ranks."""
        deal = self.deal(plan.position)
        if plan.batches == deal.batches and not (dealt := deal.mask(np.arange(len(deal) - last.rows, len(deal)))).all():
            last.real = dealt if last.real is None else last.real & dealt

    def _at_once(self, plan: Plan, positions: Integers, spent: Spent) -> list[Made]:
        """All batches by one read; none if that cannot be done, or fails.

        What Python decodes may come out differently in larger company (one float among ints), so only typed fields are
        read for several batches at once.
        """
        if self.in_python:
            return []
        try:
            with spent.reading():
                whole = self.view(plan.epoch).read(positions, self.fields)
                if any(isinstance(column, Ragged) for column in whole.data.values()):
                    return [Made(len(part), *self.formed(part)) for part in whole.split(self.batch)]
                return [Made(len(part), part) for part in whole.split(self.batch)]
        except Exception:
            return []  # each batch is read by itself, to raise or to mend what is bad in it

    def formed(self, columns: Columns) -> tuple[Columns, dict[str, Integers]]:
        """Columns with ragged fields in the form that was asked for, and the lengths of those that were padded."""
        sizes: dict[str, Integers] = {}
        for name, column in columns.data.items():
            if isinstance(column, Ragged):
                if self.form == "pad":
                    sizes[name] = column.lengths if column.shapes is None else column.shapes
                columns.data[name] = _form(column, self.form, self.fill, name)
        return columns, sizes


class _Batch:
    """One batch in the making: its positions, and what was wrong with them."""

    def __init__(self, recipe: Recipe, epoch: int, positions: Integers, spent: Spent) -> None:
        self.recipe = recipe
        self.epoch = epoch
        self.positions = positions
        self.spent = spent
        self.view = recipe.view(epoch)
        self.bad: list[BadSample] = []
        self._stood_in: list[int] = []

    def make(self) -> Made:
        """The batch, with others in place of bad samples if that is wanted."""
        recipe = self.recipe
        if recipe.transform is None:
            with self.spent.reading():
                data, sizes = self._take(recipe.formed)
        else:
            with self.spent.reading():
                samples = self._take(Columns.to_samples)
            with self.spent.transforming():
                data, sizes = recipe.formed(self._transformed(samples))
        made = Made(len(self.positions), data, sizes, bad=self.bad)
        if recipe.collate is not None:
            with self.spent.transforming():
                made.data = recipe.collate(Batch(data))
        if self._stood_in:
            made.real = np.ones(made.rows, np.bool_)
            made.real[self._stood_in] = False
        return made

    def _take(self, finish: Callable[[Columns], Any]) -> Any:
        """Read the positions and finish what was read; if that fails, with others in place of the bad ones."""

        def take(positions: Integers) -> Any:
            return finish(self.view.read(positions, self.recipe.fields))

        try:
            return take(self.positions)
        except _NOT_THE_SAMPLE:
            raise
        except Exception as error:
            if self.recipe.on_error == "raise":
                self._locate(error, self.positions)
                raise
        chosen = self.positions.copy()
        for number, failed in failures(take, self.positions).items():
            chosen[number], _ = self._replace(number, failed, take)
        return take(chosen)

    def _locate(self, error: Exception, positions: Integers) -> None:
        """Say in an error which part of the run it belongs to."""
        first, last = positions[0], positions[-1]
        error.add_note(f"in epoch {self.epoch}, position{f' {first}' if first == last else f's {first} to {last}'}")

    def _replace(self, number: int, failed: Exception, take: Callable[[Integers], Any]) -> tuple[int, Any]:
        """The position that stands in for a bad one, and what was taken there."""
        position = int(self.positions[number])
        self._note(position, failed)
        self._stood_in.append(number)
        for attempt in range(ATTEMPTS):
            other = stand_in(self.recipe.seed, self.epoch, position, attempt, len(self.view))
            try:
                return other, take(np.array([other]))
            except _NOT_THE_SAMPLE:
                raise
            except Exception as error:
                last = error
        raise ShardexError(
            f"expected some good samples, got a bad one at position {position} of epoch {self.epoch} and at all "
            f"{ATTEMPTS} tried in its place; the last failed with {type(last).__name__}: {last}"
        ) from failed

    def _note(self, position: int, failed: Exception) -> None:
        where = np.array([position])
        row, shard = int(self.view.order.rows(where)[0]), self.view.shards(where)[0]
        bad = BadSample(self.epoch, position, row, shard, f"{type(failed).__name__}: {failed}")
        self.bad.append(bad)
        if callable(self.recipe.on_error):
            self.recipe.on_error(bad)

    def _transformed(self, samples: Sequence[Mapping[str, Any]]) -> Columns:
        done = []
        for number, sample in enumerate(samples):
            try:
                done.append(self._transform(number, sample))
            except _NOT_THE_SAMPLE:
                raise
            except Exception as error:
                if self.recipe.on_error == "raise":
                    self._locate(error, self.positions[number : number + 1])
                    raise
                done.append(self._replace(number, error, self._transformed_at(number))[1])
        return Columns.from_samples(done).stack()

    def _transformed_at(self, number: int) -> Callable[[Integers], Any]:
        def take(positions: Integers) -> Any:
            sample = self.view.read(positions, self.recipe.fields).sample(0)
            return self._transform(number, sample)

        return take

    def _transform(self, number: int, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        transform = self.recipe.transform
        assert transform is not None
        if self.recipe.takes_rng:
            rng = generator(self.recipe.seed, self.epoch, int(self.positions[number]))
            done = transform(DictSample(sample), rng)
        else:
            done = transform(DictSample(sample))
        if not isinstance(done, Mapping):
            raise _Unfit(
                f"expected the transform to return a sample (a mapping of fields), got {type(done).__name__}; "
                "give the values names"
            )
        return done


def _form(column: Ragged, form: Form, fill: Any, name: str) -> Any:
    if form == "pad":
        return column.pad(value=fill.get(name, 0) if isinstance(fill, Mapping) else fill)
    return column.packed() if form == "pack" else column.to_list()


def takes_two(transform: Callable[..., Any]) -> bool:
    """Whether a function must be given two arguments.

    >>> takes_two(lambda sample: sample), takes_two(lambda sample, rng: sample)
    (False, True)
    """
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 2


def generator(seed: int, epoch: int, position: int) -> np.random.Generator:
    """A source of chance that belongs to one position: the same whoever asks, whenever."""
    key = hashlib.blake2b(f"shardex rng {seed} {epoch}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=np.array([int.from_bytes(key, "little"), position], np.uint64)))
