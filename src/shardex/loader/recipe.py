"""How a batch is made: positions, a read, the transform, one form for ragged fields, collate.

A `Recipe` holds everything that decides what a batch contains, pickles as a description, and makes the same batch in
whichever process it runs. It keeps no place in the run; a `Plan` says which batches to make.

Chance in transforms: a generator that belongs to a place in the run, and whether a transform wants one.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from shardex.dataset import Dataset, MixRows, lowest
from shardex.errors import SchemaError, ShardexError
from shardex.kernel import Columns, Integers, Ragged
from shardex.loader.loaded_batch import LoadedBatch, Place, as_it_is
from shardex.loader.plan import Made, Plan
from shardex.loader.replacements import ATTEMPTS, BadSample, failures, stand_in
from shardex.loader.stats import Spent
from shardex.order import Blocks, MixOrder, Order, RankShares, Shuffle, Span, of_epoch
from shardex.samples import Batch, DictSample, fields_of, maker_of
from shardex.schema import Feature, Optional, Value

__all__ = ["Recipe", "generator", "takes_two"]


def takes_two(transform: Callable[..., Any]) -> bool:
    """Whether a transform wants a second argument: one it must be given, or one called `rng`.

    >>> takes_two(lambda sample: sample), takes_two(lambda s, chance: s), takes_two(lambda s, rng=None: s)
    (False, True, True)
    """
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # written in C
        return False
    if any(p.name == "rng" for p in parameters):
        return True
    needed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty]
    return len(needed) == 2


def generator(seed: int, epoch: int, position: int) -> np.random.Generator:
    """A source of chance that belongs to one position: the same whoever asks, whenever."""
    key = hashlib.blake2b(f"shardex rng {seed} {epoch}".encode(), digest_size=8).digest()
    return np.random.Generator(np.random.Philox(key=np.array([int.from_bytes(key, "little"), position], np.uint64)))


Form = Literal["pad", "pack", "list"]
OnError = Literal["raise", "skip"] | Callable[[BadSample], None]


@dataclass(frozen=True)
class Recipe:
    """Makes batches of a dataset for one rank."""

    dataset: Dataset[Any]
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
    skip: bool = False
    """Whether another sample takes the place of one that is bad."""
    _views: dict[int, Dataset[Any]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def length(self) -> int:
        """Positions in an epoch."""
        return len(self.dataset)

    @cached_property
    def in_python(self) -> bool:
        """Whether making a batch holds the interpreter."""
        return self.transform is not None or self.collate is not None or self.dataset.in_python

    @cached_property
    def sample_type(self) -> type[Any]:
        """What the samples of batches are: those of the dataset, if they come as they are and whole."""
        return self.dataset.sample_type if self.transform is None and self.fields is None else DictSample

    @cached_property
    def make(self) -> Callable[[dict[str, Any]], Any]:
        """What makes the samples that the transform gets."""
        return maker_of(self.dataset.sample_type if self.fields is None else DictSample)

    @cached_property
    def steady(self) -> bool:
        """Whether samples come out the same in any company."""
        names = list(self._features) if self.fields is None else self.fields
        return not self.in_python and not any(isinstance(self._features.get(name), Optional) for name in names)

    @cached_property
    def numbers(self) -> dict[str, np.dtype[Any]]:
        """The types of the fields that are single numbers."""
        return {name: np.dtype(one.dtype) for name, one in self._features.items() if isinstance(one, Value)}

    @cached_property
    def _features(self) -> Mapping[str, Feature]:
        """What is known of the fields; nothing where they would have to be guessed from samples that are bad."""
        try:
            return self.dataset.features
        except Exception:
            return {}

    @cached_property
    def takes_rng(self) -> bool:
        """Whether the transform wants a source of chance."""
        return self.transform is not None and takes_two(self.transform)

    # -- which samples ----------------------------------------------------------------------------------------

    def view(self, epoch: int) -> Dataset[Any]:
        """The dataset in the order of an epoch."""
        if (view := self._views.get(epoch)) is None:
            self._views.clear()
            view = self._views[epoch] = Dataset(self.dataset.rows, self._order(epoch), self.dataset.chosen)
        return view

    def _order(self, epoch: int) -> Order:
        own = self.dataset.order
        if isinstance(own, MixOrder):  # goes on where the last epoch stopped, and shuffles each source by itself
            return of_epoch(replace(own, seed=self.seed) if self.shuffle else own, epoch)
        return self.dataset.through(self._shuffled(epoch)).order

    def _shuffled(self, epoch: int) -> Order:
        """An epoch's order of the positions of the dataset, if that is no mixture."""
        if not self.shuffle:
            return Span(self.length)
        if self.block is None:
            return Shuffle(self.length, self.seed, epoch)
        return Blocks(self.length, self.block, self.window, self.seed, epoch)

    def rows(self, epoch: int, positions: Integers) -> Integers:
        """The number of each sample in the dataset; in a mixture, in the source that it comes from."""
        if not isinstance(self.dataset.order, MixOrder):
            return self._shuffled(epoch).rows(positions)
        rows = self.view(epoch).order.rows(positions)
        return rows - self._mixture.starts[self._source_of(rows)]

    def sources(self, epoch: int, positions: Integers) -> list[str]:
        """The names of the datasets of a mixture that samples come from."""
        names = self._mixture.names
        return [names[number] for number in self._source_of(self.view(epoch).order.rows(positions)).tolist()]

    @property
    def _mixture(self) -> MixRows:
        rows = lowest(self.dataset.rows)
        if not isinstance(rows, MixRows):
            raise SchemaError("expected a mixture of datasets, which has sources, got one dataset")
        return rows

    def _source_of(self, rows: Integers) -> Integers:
        return np.searchsorted(self._mixture.starts, rows, "right") - 1

    def deal(self, position: int) -> RankShares:
        """What this rank gets from a position of an epoch on."""
        return RankShares(self.length, self.batch, self.rank, self.world, position, self.drop_last)

    def positions(self, plan: Plan) -> Integers:
        """The positions of the epoch that the batches of a plan hold."""
        if self.world == 1:
            return np.arange(plan.position, min(plan.position + plan.batches * self.batch, self.length))
        deal = self.deal(plan.position)
        return deal.rows(np.arange(deal.span(plan.batches - 1)[1]))

    def advise(self, plan: Plan) -> None:
        """Tell the storage that these batches are made soon."""
        self.view(plan.epoch).advise(self.positions(plan), self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_views": {}}

    # -- making them ------------------------------------------------------------------------------------------

    def __call__(self, plan: Plan) -> tuple[list[Made], Spent]:
        """Make the batches of a plan, and say what that took; fewer if one after the first cannot be made."""
        spent, made = Spent(), list[Made]()
        try:
            made.extend(self.batches(plan, spent))
        except Exception:
            if not made:
                raise  # otherwise those before it are good, and it fails again when it comes first
        return made, spent

    def one_by_one(self, plan: Plan) -> tuple[Iterator[Made], Spent]:
        """The same, each batch made when it is asked for: its memory may be that of the one before."""
        spent = Spent()
        return self.batches(plan, spent), spent

    def batches(self, plan: Plan, spent: Spent) -> Iterator[Made]:
        """The batches of a plan, one after another, of one read if that can be done."""
        positions = self.positions(plan)
        whole = self._at_once(plan, positions, spent)
        for begin in range(0, len(positions), self.batch):
            end = min(begin + self.batch, len(positions))
            made = None if whole is None else self._cut(whole, begin, end, spent)
            if made is None:
                made = _Batch(self, plan.epoch, positions[begin:end], spent).make()
            if self.world > 1 and end == len(positions):
                self._mask(plan, made)
            if self.collate is not None:
                self._collate(made, self.place(plan, begin // self.batch), spent)
            yield made

    def place(self, plan: Plan, number: int) -> Place:
        """Which batch of the run one of a plan is."""
        return Place(self, plan.epoch, plan.position + number * self.batch * self.world, plan.step + number)

    def _collate(self, made: Made, place: Place, spent: Spent) -> None:
        assert self.collate is not None
        with spent.transforming():
            made.data = self.collate(LoadedBatch(made.data, made, place, as_it_is))

    def _mask(self, plan: Plan, last: Made) -> None:
        """The last batch of an epoch may be filled up, to be as long as that of other ranks."""
        deal = self.deal(plan.position)
        if plan.batches == deal.batches and not (dealt := deal.mask(np.arange(len(deal) - last.rows, len(deal)))).all():
            last.real = dealt if last.real is None else last.real & dealt

    def _at_once(self, plan: Plan, positions: Integers, spent: Spent) -> Columns | None:
        """All samples of a plan by one read; none if that cannot be done, or fails.

        What Python decodes may come out differently in larger company (one float among ints), and so do fields with
        values that are missing: then each batch is read by itself, so that it never depends on its neighbours.
        """
        if not self.steady:
            return None
        try:
            with spent.reading():
                return self.view(plan.epoch).read(positions, self.fields)
        except Exception:
            return None  # each batch is read by itself, to raise or to mend what is bad in it

    def _cut(self, whole: Columns, begin: int, end: int, spent: Spent) -> Made | None:
        """One batch of what was read; none if a ragged field of it, whose bytes are read only now, is bad."""
        part = whole.slice(begin, end)
        if not any(isinstance(column, Ragged) for column in part.data.values()):
            return Made(end - begin, part)
        try:
            with spent.reading():
                return Made(end - begin, *self.formed(part))
        except Exception:
            return None

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
        self._stood_in: set[int] = set()

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
        if self._stood_in:
            made.real = np.ones(made.rows, np.bool_)
            made.real[list(self._stood_in)] = False
        return made

    def _take(self, finish: Callable[[Columns], Any]) -> Any:
        """Read the positions and finish what was read; if that fails, with others in place of the bad ones."""

        def take(positions: Integers) -> Any:
            return finish(self.view.read(positions, self.recipe.fields))

        try:
            return take(self.positions)
        except MemoryError:
            raise
        except Exception as error:
            if not self.recipe.skip:
                self._locate(error, self.positions)
                raise
        chosen = self.positions.copy()
        for number, failed in failures(take, self.positions).items():
            chosen[number], _ = self._replace(number, failed, take)
        return take(chosen)

    def _locate(self, error: Exception, positions: Integers) -> None:
        """Say in an error which part of the run it belongs to."""
        first, last = int(positions[0]), int(positions[-1])
        if first != last:
            error.add_note(f"in epoch {self.epoch}, positions {first} to {last}")
        else:
            row, shard = self._where(first)
            error.add_note(f"in epoch {self.epoch}, position {first}: sample {row}{f' of {shard}' * bool(shard)}")

    def _where(self, position: int) -> tuple[int, str]:
        """The number of a sample and its file."""
        at = np.array([position])
        return int(self.recipe.rows(self.epoch, at)[0]), self.view.shards(at)[0]

    def _replace(self, number: int, failed: Exception, take: Callable[[Integers], Any]) -> tuple[int, Any]:
        """The position that stands in for a bad one, and what was taken there."""
        position = int(self.positions[number])
        for attempt in range(ATTEMPTS):
            other = stand_in(self.recipe.seed, self.epoch, position, attempt, len(self.view))
            try:
                taken = take(np.array([other]))
                self._note(number, other, failed)
                return other, taken
            except MemoryError:
                raise
            except Exception as error:
                last = error
        raise ShardexError(
            f"expected some good samples, got a bad one at position {position} of epoch {self.epoch} and at all "
            f"{ATTEMPTS} tried in its place; the last failed with {type(last).__name__}: {last}"
        ) from failed

    def _note(self, number: int, other: int, failed: Exception) -> None:
        """Remember what stands in for which row, and why; of several reasons the first counts."""
        position, instead = int(self.positions[number]), self._where(other)[0]
        before = next((one for one in self.bad if one.position == position), None)
        if before is not None:
            self.bad[self.bad.index(before)] = replace(before, instead=instead)
        else:
            why = f"{type(failed).__name__}: {failed}"
            self.bad.append(BadSample(self.epoch, position, *self._where(position), why, instead))
        self._stood_in.add(number)

    def _transformed(self, samples: Sequence[dict[str, Any]]) -> Columns:
        done: list[Any] = []
        for number, sample in enumerate(samples):
            try:
                done.append(self._transform(int(self.positions[number]), sample))
            except MemoryError:
                raise
            except Exception as error:
                if not self.recipe.skip:
                    self._locate(error, self.positions[number : number + 1])
                    raise
                done.append(self._replace(number, error, self._transformed_at)[1])
            try:
                done[-1] = fields_of(done[-1])
            except SchemaError:
                row, shard = self._where(int(self.positions[number]))
                raise SchemaError(
                    f"expected the transform to return a sample (a mapping of fields), got {type(done[-1]).__name__}; "
                    f"give the values names - at sample {row}{f' of {shard}' * bool(shard)}"
                ) from None
        return self._as_declared(Columns.from_samples(done).stack())

    def _as_declared(self, columns: Columns) -> Columns:
        """Numbers that Python has widened in the types that their fields have."""
        for name, dtype in self.recipe.numbers.items():
            column = columns.data.get(name)
            if isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype != dtype:
                whole = column.dtype.kind in "iu" and dtype.kind in "iu"
                if column.dtype.kind == dtype.kind == "f" or (whole and (column.astype(dtype) == column).all()):
                    columns.data[name] = column.astype(dtype)
        return columns

    def _transformed_at(self, positions: Integers) -> Any:
        """The sample at one position, transformed."""
        return self._transform(int(positions[0]), self.view.read(positions, self.recipe.fields).sample(0))

    def _transform(self, position: int, values: dict[str, Any]) -> Any:
        transform, sample = self.recipe.transform, self.recipe.make(values)
        assert transform is not None
        if self.recipe.takes_rng:
            return transform(sample, generator(self.recipe.seed, self.epoch, position))
        return transform(sample)


def _form(column: Ragged, form: Form, fill: Any, name: str) -> Any:
    if form == "pad":
        return column.pad(value=fill.get(name, 0) if isinstance(fill, Mapping) else fill)
    return column.packed() if form == "pack" else column.to_list()
