"""`Recipe`: everything that determines the content of batches, and the code that makes them.

A batch is made in five steps: compute its positions, read, transform, convert columns to their forms, collate. A recipe
takes a `Plan` and returns `PreparedBatch`es. It has no state of the run and can be pickled, so every process makes the
same batches from it.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from shardex.dataset import Dataset, MixRows
from shardex.errors import ArgumentError
from shardex.features import Feature
from shardex.kernel import Columns, Integers, Ragged, byte_size, keep_freed_memory
from shardex.layers import MediaRows, decoded_rows, decodings_of, innermost_rows
from shardex.loader.casts import Casts
from shardex.loader.column_forms import ColumnForms
from shardex.loader.cursor import EpochSteps, Steps
from shardex.loader.length_steps import NOT_TOKENS, LengthSteps, SampleLengths, length_field
from shardex.loader.loaded_batch import LoadedBatch, Place, warn_of_hidden
from shardex.loader.options import LoaderOptions
from shardex.loader.plan import Plan, PreparedBatch
from shardex.loader.single_batch import SingleBatch, random_generator, takes_generator
from shardex.loader.stats import ReadPace, TimeSpent
from shardex.loader.tensors import move_channels, require_torch, split_column, to_tensors
from shardex.order import Blocks, LengthBatches, Order, RankShares, Shuffle
from shardex.samples import DictSample, sample_constructor

_PROBED = 16
"""Samples whose announcement shows whether data is cold: announcing a whole batch takes longer than reading it."""
ToTensors = Callable[[Columns], Columns]
"""Returns columns with each column of numbers as a tensor."""


@dataclass(frozen=True)
class Recipe:
    """Makes the batches of a dataset for one rank."""

    dataset: Dataset[Any]
    options: LoaderOptions
    _views: dict[int, Dataset[Any]] = field(default_factory=dict, compare=False, repr=False)
    _reads: ReadPace = field(default_factory=ReadPace, compare=False, repr=False)
    _conversions: ReadPace = field(default_factory=ReadPace, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        # A function on_error is called by the loader.
        options = replace(self.options, on_error="skip" if self.options.replaces_bad_samples else "raise")
        return vars(Recipe(self.dataset, options))

    @cached_property
    def length(self) -> int:
        """Number of positions in an epoch."""
        return len(self.dataset)

    @cached_property
    def in_python(self) -> bool:
        """True if making a batch holds the GIL most of the time."""
        return self.options.transform is not None or self.options.collate is not None or self.source.in_python

    @cached_property
    def sample_type(self) -> type[Any]:
        """Type of the samples of batches: that of the dataset, unless they are transformed or lack fields."""
        return DictSample if self.options.transform is not None else self._read_type

    @cached_property
    def _read_type(self) -> type[Any]:
        return self.dataset.sample_type if self.options.fields is None else DictSample

    @cached_property
    def make_sample(self) -> Callable[[dict[str, Any]], Any]:
        """Makes the samples that the transform gets."""
        return sample_constructor(self._read_type)

    @cached_property
    def reads_independently(self) -> bool:
        """True if the values of a row do not depend on which rows are read together."""
        return not self.in_python and not self.source.stored.in_python

    @cached_property
    def forms(self) -> ColumnForms:
        """Converts the columns of batches to their forms."""
        forms = ColumnForms(self.options, self._features)
        if self.options.transform is None:
            self.casts.check(self._features)
        return forms

    @cached_property
    def casts(self) -> Casts:
        """The dtypes of fields; those of what `collate` gets are not left to the device."""
        options = self.options
        return Casts(options.casts, options.floats, on_device=options.device is not None and options.collate is None)

    @cached_property
    def _features(self) -> Mapping[str, Feature]:
        """Features of the fields; empty if they would be inferred from samples that are bad."""
        try:
            return self.source.features
        except Exception:
            return {}

    @cached_property
    def takes_generator(self) -> bool:
        """True if the transform takes a random generator."""
        return self.options.transform is not None and takes_generator(self.options.transform)

    # -- which samples ----------------------------------------------------------------------------------------

    @cached_property
    def shuffle(self) -> Shuffle | Blocks | None:
        """Shuffle of the positions in epoch 0."""
        options = self.options
        if not options.shuffle:
            return None
        if options.block is None:
            return Shuffle(self.length, options.seed)
        return Blocks(self.length, options.block, options.window, options.seed)

    @property
    def shuffle_settings(self) -> dict[str, Any]:
        """The options that choose the order of epochs, as they are saved in the state of a run."""
        options = self.options
        settings: dict[str, Any] = {"shuffle": options.shuffle, "seed": options.seed}
        if options.block is not None:
            settings |= {"block": options.block, "window": options.window}
        if self.lengths is not None:
            settings |= {name: getattr(options, name) for name in ("batch_size", "max_tokens", "bucket")}
            settings |= {"length_of": self.lengths.name, "padded": self.padded or options.max_tokens is None}
        return settings

    @cached_property
    def lengths(self) -> SampleLengths | None:
        """Lengths of the samples, if they decide which samples are a batch."""
        if not self.options.by_length:
            return None
        name = length_field(self.options, self.dataset.features)
        return SampleLengths(self.dataset, name, self.shuffle, self.options.replaces_bad_samples)

    @cached_property
    def padded(self) -> bool:
        """True if the samples of a batch are padded to the longest one, in the field whose length counts."""
        return self.lengths is not None and self.forms.form(self.lengths.name) == "pad"

    def counted_field(self, lengths: Iterable[str]) -> tuple[str, bool] | None:
        """Return the field whose elements are counted as tokens, among those whose rows differ, and if it is padded."""
        names = [name for name in lengths if name not in NOT_TOKENS]
        if self.lengths is not None:
            names = [name for name in names if name == self.lengths.name] or names
        return (names[0], self.forms.form(names[0]) == "pad") if names else None

    def steps(self) -> Steps:
        """Return the division of epochs into steps."""
        options = self.options
        if self.lengths is None:
            assert options.batch_size is not None
            return EpochSteps(self.length, options.batch_size, options.world_size, options.drop_last)
        seed = options.seed if options.shuffle else None
        batches = LengthBatches(options.batch_size, options.max_tokens, options.bucket, self.padded, seed)
        if options.max_tokens is not None:
            self.lengths.check(options.max_tokens)
        sizes = options.batch_size or 1, options.world_size, options.drop_last
        return LengthSteps(batches, self.lengths, self.length, *sizes)

    def through(self, order: Order) -> Recipe:
        """Return the recipe for the same rows in another order."""
        made = Recipe(Dataset(self.dataset.rows, order, self.dataset.chosen), self.options)
        if self.lengths is not None:
            made.__dict__["lengths"] = self.lengths.through(order)  # the rows need not be read again
        return made

    def with_options(self, options: LoaderOptions) -> Recipe:
        """Return the recipe for the same samples in other steps."""
        made = Recipe(self.dataset, options)
        made.__dict__["lengths"] = self.lengths
        return made

    def view(self, epoch: int) -> Dataset[Any]:
        """Return the dataset in the order of an epoch."""
        if (view := self._views.get(epoch)) is None:
            order = self.dataset.order.for_epoch(epoch, self.shuffle)
            self._views.clear()
            view = self._views[epoch] = Dataset(self.source.rows, order, self.dataset.chosen)
        return view

    # -- media -------------------------------------------------------------------------------------------------

    def warn_of_lost_steps(self) -> None:
        """Warn if steps of the dataset's own decoding do not take place, as the options name others."""
        new = decodings_of(self.source.rows)
        for name, before in decodings_of(self.dataset.rows).items():
            steps = new[name].steps if name in new else ()
            if before.steps and self.options.decode is not None and steps[: len(before.steps)] != before.steps:
                warnings.warn(
                    f"Loader(decode=...) takes the place of the steps of ds.decode for {name}, "
                    f"{', '.join(map(str, before.steps))}: name all steps in the loader, these first",
                    stacklevel=3,
                )

    @cached_property
    def source(self) -> Dataset[Any]:
        """The dataset with media decoded as the options say; its random steps need `read`."""
        decode, data = self.options.decode, self.dataset
        as_arrays = isinstance(data.rows, MediaRows) and self.options.to == "torch"  # tensors of whole batches
        if decode is None and not as_arrays:
            return data
        form, fields = (None, decode) if isinstance(decode, Mapping) else (decode, {})
        rows = decoded_rows(data.rows, data.chosen, form, fields, random=True)
        if as_arrays and isinstance(rows, MediaRows):
            rows = rows.in_form("torch", "numpy")
        return Dataset(rows, data.order, data.chosen, data.notes)

    @cached_property
    def _random(self) -> MediaRows | None:
        """The rows that decode media with random steps."""
        rows = self.source.rows
        return rows if isinstance(rows, MediaRows) and rows.random else None

    @cached_property
    def channel_axes(self) -> dict[str, int]:
        """Fields whose arrays have their channels last, and where tensors have them."""
        if self.options.transform is not None or not isinstance(self.source.rows, MediaRows):
            return {}
        return self.source.rows.channel_axes

    def read(self, epoch: int, positions: Integers) -> Columns:
        """Read the samples at these positions; random steps depend on seed, epoch and position."""
        view, fields, seed = self.view(epoch), self.options.fields, self.options.seed
        numbers, chosen = view.order.rows(positions), view.chosen if fields is None else fields
        if self._random is None:
            return view.rows.read(numbers, chosen)
        columns = self._random.stored_columns(numbers, chosen)
        places = positions.tolist()
        return self._random.decode(
            columns, numbers, lambda k: random_generator(seed, epoch, places[k], "shardex media rng")
        )

    def sample_numbers(self, epoch: int, positions: Integers) -> Integers:
        """Return the number of each sample in the dataset; in a mixture, in its source; of draws, in their dataset."""
        return self.dataset.order.sample_numbers(positions, epoch, self.shuffle)

    def sources(self, epoch: int, positions: Integers) -> list[str]:
        """Return the name of the dataset that each sample of a mixture comes from."""
        mixture = innermost_rows(self.dataset.rows)
        if not isinstance(mixture, MixRows):
            raise ArgumentError("expected a mixture of datasets, which has sources, got one dataset")
        numbers = np.searchsorted(mixture.starts, self.view(epoch).order.rows(positions), "right") - 1
        return [mixture.names[number] for number in numbers.tolist()]

    def shares(self, position: int) -> RankShares:
        """Return the positions of this rank in the rest of an epoch."""
        options = self.options
        assert options.batch_size is not None
        return RankShares(
            self.length, options.batch_size, options.rank, options.world_size, position, options.drop_last
        )

    def positions(self, plan: Plan) -> Integers:
        """Return the positions of the samples of a plan."""
        if plan.cut is not None:
            return plan.cut.positions
        if self.options.world_size == 1:
            size = self.options.batch_size or 1
            return np.arange(plan.position, min(plan.position + plan.batches * size, self.length))
        shares = self.shares(plan.position)
        return shares.rows(np.arange(shares.span(plan.batches - 1)[1]))

    def batch_positions(self, plan: Plan, number: int) -> Integers:
        """Return the positions of the samples of one batch of a plan."""
        if plan.cut is not None:
            return plan.cut.of(number)
        size = (self.options.batch_size or 1) * self.options.world_size
        return self.positions(Plan(plan.epoch, plan.position + number * size, 1))

    def advise(self, plan: Plan, most: int | None = None) -> None:
        """Announce the reads of a plan to the storage; `most` limits the number of samples."""
        self.view(plan.epoch).advise(self.positions(plan)[:most], self.options.fields)

    def probe(self, plan: Plan) -> None:
        """Announce so many samples of a plan that they show whether the data is cold."""
        self.advise(plan, _PROBED)

    # -- making batches ---------------------------------------------------------------------------------------

    def __call__(self, plan: Plan, to_tensors: ToTensors | None = None) -> tuple[list[PreparedBatch], TimeSpent]:
        """Make the batches of a plan; stops before a batch that fails, unless that is the first."""
        keep_freed_memory()  # a worker process has an allocator of its own
        spent, batches = TimeSpent(), list[PreparedBatch]()
        try:
            batches.extend(self.batches(plan, spent, to_tensors))
        except Exception:
            if not batches:
                raise  # otherwise the batches before it are good, and it is the first of the next plan
        return batches, spent

    def lazily(self, plan: Plan, to_tensors: ToTensors | None = None) -> tuple[Iterator[PreparedBatch], TimeSpent]:
        """Like a call, but each batch is made when it is taken, which lets it use the memory of the one before."""
        spent = TimeSpent()
        return self.batches(plan, spent, to_tensors), spent

    def batches(self, plan: Plan, spent: TimeSpent, to_tensors: ToTensors | None = None) -> Iterator[PreparedBatch]:
        """Yield the batches of a plan, from one read if possible.

        If what was read needs no more than to become tensors, `to_tensors` converts it before it is cut into batches,
        at once for all of them.
        """
        positions, size = self.positions(plan), self.options.batch_size or 1
        forms = self.forms  # raises for wrong options here; an error in `_converted` would count as a bad sample
        columns = self._read_together(plan, positions, spent)
        ends = range(size, len(positions) + size, size) if plan.cut is None else plan.cut.ends
        is_final = columns is not None and forms.are_final(columns)
        if to_tensors is not None and columns is not None and self._may_stay_whole and is_final:
            yield from self._cut(plan, columns, ends, to_tensors)
            return
        if is_final and columns is not None and plan.cut is None and self._need_no_more:
            for part in columns.split(size):
                yield PreparedBatch(len(part), part)
            return
        end = 0
        for number, limit in enumerate(ends):
            begin, end = end, min(limit, len(positions))
            batch = None
            if columns is not None:
                part = columns.slice(begin, end)
                batch = PreparedBatch(end - begin, part) if is_final else self._converted(part, forms, spent)
            if batch is None:
                batch = SingleBatch(self, plan.epoch, positions[begin:end], spent).build()
            if self.options.world_size > 1 and end == len(positions):
                self._mask_fill(plan, batch)
            if self.casts or batch.tensors or self.options.collate is not None:
                with spent.transforming():
                    self._finish(batch, (self, plan, number))
            yield batch

    def _finish(self, batch: PreparedBatch, place: Place) -> None:
        """Cast the fields of a batch, convert those to tensors that the transform returned or `to` asks for, and
        collate.
        """
        if self.casts:
            batch.data = self.casts.in_worker(batch.data)
        if batch.tensors:
            batch.data.data |= to_tensors(batch.data.select(batch.tensors)).data
        if self.options.collate is None:
            return
        data, convert = batch.data, None
        if self.options.to == "torch":
            data, convert = self.as_tensors(data), require_torch().from_numpy
        warn_of_hidden(data.names)
        batch.data = self.options.collate(LoadedBatch(data, batch, place, convert))

    def as_tensors(self, columns: Columns) -> Columns:
        """Return columns as tensors with their casts, and images with their channels first."""
        return move_channels(self.casts.finish(to_tensors(columns)), self.channel_axes)

    @cached_property
    def _may_stay_whole(self) -> bool:
        """True if columns may become tensors before they are cut into batches: nothing else is done to batches."""
        options = self.options
        return options.collate is None and not self.channel_axes and (not self.casts or options.device is not None)

    @cached_property
    def _need_no_more(self) -> bool:
        """True if batches of columns in their forms need no mask, no cast and no `collate`."""
        options = self.options
        return options.world_size == 1 and not self.casts and options.collate is None

    def _cut(self, plan: Plan, columns: Columns, ends: Iterable[int], to_tensors: ToTensors) -> Iterator[PreparedBatch]:
        """Yield batches of tensors, cut from the columns of a whole plan; lists are of text and objects, and stay."""
        total = len(columns)
        data = (self.casts.in_worker(columns) if self.casts else columns).data
        arrays = {name: column for name, column in data.items() if not isinstance(column, list)}
        tensors = {**data, **to_tensors(Columns.unchecked(arrays, total)).data}
        bounds = [0, *(min(end, total) for end in ends)]
        rows = [end - begin for begin, end in itertools.pairwise(bounds)]
        parts = [(name, split_column(column, rows)) for name, column in tensors.items()]
        masked = len(rows) - 1 if self.options.world_size > 1 else -1
        for number, count in enumerate(rows):
            batch = PreparedBatch(count, Columns.unchecked({name: part[number] for name, part in parts}, count))
            batch.has_tensors = True
            if not number:
                batch.size = byte_size(columns) * count // total
            if number == masked:
                self._mask_fill(plan, batch)
            yield batch

    def _mask_fill(self, plan: Plan, last: PreparedBatch) -> None:
        """Mask the rows that make the last batch of an epoch as long as that of the other ranks."""
        if plan.cut is not None:
            if plan.cut.repeated:
                last.mask = np.zeros(last.rows, np.bool_)
            return
        shares = self.shares(plan.position)
        mask = shares.mask(np.arange(len(shares) - last.rows, len(shares))) if plan.batches == shares.batches else None
        if mask is not None and not mask.all():
            last.mask = mask if last.mask is None else last.mask & mask

    def _read_together(self, plan: Plan, positions: Integers, spent: TimeSpent) -> Columns | None:
        """Read all samples of a plan at once; None if that fails, or could change their values.

        Values decoded in Python may depend on which rows are read together (one float among ints). Then each batch is
        read separately, so that it does not depend on the other batches of the plan.
        """
        if not self.reads_independently:
            return None
        try:
            with spent.reading(calls_functions=False, pace=self._reads):
                columns = self.read(plan.epoch, positions)
                for column in columns.data.values():
                    if isinstance(column, Ragged):
                        _ = column.lengths  # computed once for all batches, which get parts of them
                return columns
        except Exception:
            return None  # each batch is then read separately, to raise the error or to replace the bad samples

    def _converted(self, part: Columns, forms: ColumnForms, spent: TimeSpent) -> PreparedBatch | None:
        """Return columns in their forms as a batch; None if reading the bytes of a ragged field fails, which happens
        here.
        """
        try:
            with spent.reading(calls_functions=False, pace=self._conversions):
                return PreparedBatch(len(part), *forms.convert(part))
        except Exception:
            return None
