"""`Loader`: the batches of a dataset for training.

It plans which batches come next (`run_state.py`, `cursor.py`), lets an executor make them (`recipe.py`) while later
reads are announced to the storage (`read_ahead.py`), and yields them in order.
"""

from __future__ import annotations

import inspect
import os
import time
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from shardex.columns import check_fields
from shardex.dataset import DataIterator, Dataset, ReadSize, open
from shardex.errors import ArgumentError, WorkerError
from shardex.kernel import Columns, byte_size, keep_freed_memory
from shardex.loader.batch_executor import make_staging, max_pending, plan_size, start_batch_executor
from shardex.loader.cursor import check_state
from shardex.loader.device_staging import Staging
from shardex.loader.loaded_batch import BatchOrigin, LoadedBatch, Place, warn_of_hidden
from shardex.loader.options import LoaderArguments, LoaderOptions
from shardex.loader.plan import BadSample, Plan, PreparedBatch
from shardex.loader.read_ahead import ColdDataDetector, ReadAhead
from shardex.loader.recipe import Recipe
from shardex.loader.run_state import RunState, check_reweight, check_same_run, dataset_versions, run_identity
from shardex.loader.stats import Stats
from shardex.loader.tensors import distributed_rank, require_torch, warn_of_missing_group
from shardex.other_names import LOADER, LOADER_ATTRIBUTES, missing_attribute, refuse
from shardex.rows import whole_number
from shardex.workers import Executor

_MAX_SKIPPED = 10_000
_SIGNATURE = inspect.Signature(
    [Parameter("dataset", Parameter.POSITIONAL_OR_KEYWORD), *inspect.signature(LoaderOptions).parameters.values()]
)
"""What `Loader` takes: every option of `LoaderOptions`."""

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    B_co = TypeVar("B_co", covariant=True, default=LoadedBatch)
else:
    B_co = typing.TypeVar("B_co", covariant=True)
S = typing.TypeVar("S")
C = typing.TypeVar("C")


class Loader(Generic[B_co]):
    """Batches of a dataset for training: shuffled, divided among ranks, prepared by workers, resumable at any sample.

    >>> import shardex as sx
    >>> loader = sx.Loader([{"x": k} for k in range(10)], batch_size=4, shuffle=True, seed=0)
    >>> [batch.x.tolist() for batch in loader]
    [[7, 9, 4, 2], [5, 3, 1, 6], [0, 8]]

    Every loop begins an epoch: the next one, also after a ``break``. `state_dict` saves the position, `load_state_dict`
    lets the next loop continue there, also with another number of ranks or workers or another batch size:

    >>> state = loader.state_dict()
    >>> resumed = sx.Loader([{"x": k} for k in range(10)], batch_size=5, shuffle=True, seed=0)
    >>> resumed.load_state_dict(state); resumed.epoch, resumed.position
    (1, 0)
    """

    if not TYPE_CHECKING:
        __signature__ = _SIGNATURE

    @overload
    def __init__(
        self: Loader[LoadedBatch[S]],
        dataset: Dataset[S],
        batch_size: int | None = None,
        *,
        fields: None = None,
        transform: None = None,
        collate: None = None,
        **options: Unpack[LoaderArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[LoadedBatch],
        dataset: Any,
        batch_size: int | None = None,
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Any] | None = None,
        collate: None = None,
        **options: Unpack[LoaderArguments],
    ) -> None: ...
    @overload
    def __init__(
        self: Loader[C],
        dataset: Any,
        batch_size: int | None = None,
        *,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[LoadedBatch[Any]], C],
        **options: Unpack[LoaderArguments],
    ) -> None: ...
    def __init__(self, dataset: Any, batch_size: int | None = None, **options: Any) -> None:
        """
        :param dataset: a `Dataset`, or anything that `open` takes
        :param batch_size: number of samples in a batch of one rank; with `max_tokens`, the largest number, None for no
            limit
        :param shuffle: shuffle all samples, in every epoch differently, in an order that depends on `seed`
        :param epochs: number of epochs in one `for` loop, including those before a resume; None for an endless loop
        :param rank: number of this process among `world_size` processes; by default that of `torch.distributed`, looked
            up when a loop begins: 0 of 1 if it is not initialised then
        :param drop_last: leave out the incomplete batch at the end of an epoch
        :param workers: number of threads or processes that prepare batches; 0 prepares them in the loop itself
        :param worker_type: "process" for Python code (the default with `transform` or `collate`, or a format that is
            decoded in Python), "thread" for code that releases the GIL
        :param read_ahead: number of reads (a batch each with workers, about 6 MB each without) that are prepared,
            or announced to the disk, in advance
        :param fields: names of the fields to load; all by default
        :param transform: called with each sample, returns a sample; if it has a second parameter, that is a
            `numpy.random.Generator` that depends on seed, epoch and position only
        :param collate: called with each batch (with mask and origin; of tensors if `to` says so); the loader yields
            what it returns. With ``dict``, batches are dicts of columns
        :param ragged: form of fields whose rows differ in length, for all fields or by field: "pad" pads them (see
            `batch.mask_of`), "pack" concatenates them, "list" gives a list of arrays. The default is "pad" for arrays
            that differ in their first size only, and an error for others, such as images of different sizes
        :param fill: value for padding and for missing numbers, for all fields or by field; by default 0 for padding,
            NaN for missing floats and 0 for other missing numbers
        :param block: shuffle blocks of this many consecutive samples, and the samples within each `window` of blocks:
            nearly as random as a full shuffle, and much faster on cold disks and object stores
        :param on_error: "raise"; or "skip" to replace a sample that cannot be read or transformed by another one; or a
            function that is called with each `BadSample` before it is replaced
        :param to: "torch" for tensors that share the memory of the arrays; with `pin_memory` in pinned memory. Images
            have their channels first, unless a transform returned them
        :param device: a device of torch, such as "cuda" or "cuda:1", to which the tensors are copied ahead of the loop,
            several batches at a time; other values stay on the host
        :param dtype: dtypes of some fields in batches, by name: ``{"tokens": "int64"}``, or a `Cast` with scale, mean
            and std: ``{"image": Cast("float32", scale=1 / 255)}``; or a dtype such as "float32" for all fields of
            floats. Values are cast on the device if there is one
        :param max_tokens: largest number of tokens in a batch, which has as many samples as fit: the number of samples
            times the length of the longest if they are padded, the sum of their lengths with ``ragged="pack"`` or
            "list"; an empty sample counts as one token
        :param bucket: sort every so many samples of an epoch by length, before they are cut into batches, and shuffle
            the batches made of them (with `shuffle`): samples of a batch have similar lengths, so there is little
            padding
        :param length_of: field whose length `max_tokens` and `bucket` use; by default the only field of arrays that
            differ in length, or the one called "tokens" or "inputs"
        :param decode: how images, audio and video are decoded, by field or for all, as for `Dataset.decode`:
            ``{"image": [RandomResizedCrop(224), Flip()]}``. The chances of random steps depend on seed, epoch and
            position only; fields with the same steps have the same ones
        :param keep_position: let a loop continue where the one before was left by ``break`` or an error, instead of
            beginning the next epoch
        """
        known = [name for name in _SIGNATURE.parameters if name != "dataset"]
        refuse("Loader", LOADER, {name: options[name] for name in options if name not in known}, known)
        data = dataset if isinstance(dataset, Dataset) else open(dataset)
        if (fields := options.get("fields")) is not None:
            options["fields"] = tuple(check_fields(data.fields, fields))
        self._as_dict = options.get("collate") is dict
        if self._as_dict:
            del options["collate"]
        self._finds_rank = options.get("rank") is None and options.get("world_size") is None
        self._options = chosen = LoaderOptions(batch_size, **options)
        self._recipe = Recipe(data, chosen)
        if chosen.fill is not None or isinstance(chosen.ragged, Mapping) or chosen.dtype:
            _ = self._recipe.forms  # raises if they do not suit the fields
        self._recipe.warn_of_lost_steps()  # raises if media cannot be decoded like this
        self._recipe.view(0)  # raises if this order cannot be shuffled in blocks
        self._run = RunState(self._recipe.steps(), chosen.epochs, keep_position=chosen.keep_position)
        self._executor: Executor | None = None
        self._staging: Staging | None = None
        self._cold_data = ColdDataDetector()
        self._read_size: ReadSize | None = None
        """Chooses how many batches are read at once, if the last loop came to its end; the next one takes as many."""
        self._to_tensor = require_torch().from_numpy if chosen.to == "torch" else None
        """Converts masks and lengths of batches."""
        self._process = os.getpid()
        self.stats = Stats()
        """Counts and times so far, and the bottleneck."""
        self.skipped: list[BadSample] = []
        """The bad samples that were replaced, in the order of the batches (the first ten thousand)."""
        self._origin: BatchOrigin | Place | None = None
        """Where the last batch comes from: its place until the origin is asked for."""
        self._counted: tuple[str, bool] | None = None
        """Field whose elements are counted as tokens, and whether it is padded."""

    # -- properties -------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """The dataset that is loaded."""
        return self._recipe.dataset

    @property
    def batch_size(self) -> int | None:
        """Number of samples in a batch of one rank; None if only `max_tokens` limits it."""
        return self._options.batch_size

    @property
    def batch_sampler(self) -> SimpleNamespace:
        """Has the attribute `sampler` with the method `set_epoch`: this loader. Lightning looks for it there."""
        return SimpleNamespace(sampler=self)

    @property
    def rank(self) -> int:
        """Number of this process."""
        self._find_rank()
        return self._options.rank

    @property
    def world_size(self) -> int:
        """Number of processes that share the batches."""
        self._find_rank()
        return self._options.world_size

    @property
    def epoch(self) -> int:
        """Epoch of the next batch."""
        return self._run.cursor.epoch

    @property
    def position(self) -> int:
        """Number of samples of this epoch that all ranks together have taken."""
        return self._run.cursor.position

    @property
    def step(self) -> int:
        """Number of batches taken since the run began."""
        return self._run.cursor.step

    @property
    def origin(self) -> BatchOrigin | None:
        """Where the samples of the last batch come from, also if `collate` returned something else."""
        if isinstance(self._origin, tuple):
            self._origin = BatchOrigin(*self._origin)
        return self._origin

    def __len__(self) -> int:
        """Number of batches in a run of `epochs` epochs; the same on every rank.

        Batches by `max_tokens` are counted in the run that the loader is in: other epochs may have more or fewer.
        """
        if self._options.epochs is None:
            raise ArgumentError("expected a number of epochs to count the batches, got epochs=None, which has no end")
        self._find_rank()
        cursor, epochs = self._run.cursor, self._options.epochs
        begin = cursor.epoch - cursor.epoch % epochs
        return cursor.steps.count_all(begin, begin + epochs)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, LOADER_ATTRIBUTES)

    def __bool__(self) -> bool:
        self._find_rank()
        return bool(self._run.cursor.steps.count(self.epoch))

    def __repr__(self) -> str:
        o, c = self._options, self._run.cursor
        return (
            f"Loader({self._recipe.length:,} samples, batches of {o.batch_limits}, "
            f"rank {self.rank} of {self.world_size}, epoch {c.epoch}, position {c.position}, step {c.step})"
        )

    # -- batches ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[B_co]:
        self._run.end_loop()
        self._find_rank()
        if self._finds_rank and self._options.world_size == 1:
            warn_of_missing_group()
        return DataIterator(self._loop(self._run.begin_loop()), lambda: f"batches of {self}")

    def _loop(self, loop: int) -> Iterator[B_co]:
        """Yield batches until the end of the run; continue at the cursor when it was moved."""
        run = self._run
        run.check_active(loop)
        if run.finished:
            return
        run.active, end = True, run.end_epoch()
        try:
            while end is None or run.cursor.epoch < end:
                run.moved = run.relocated = False
                yield from self._batches_from_cursor(end, loop)
                if run.relocated:
                    end = run.end_epoch()
        finally:
            run.end_loop(loop)

    def _batches_from_cursor(self, end: int | None, loop: int) -> Iterator[B_co]:
        """Yield the batches from the cursor on, until it is moved; it advances with each. Measures the times."""
        recipe, run, stats, clock = self._recipe, self._run, self.stats, time.perf_counter
        cursor, requested = run.cursor, clock()
        starting = bool(self._options.workers) and self._executor is None
        size = cursor.steps.mean_batch(cursor.epoch)
        read_size, self._read_size = self._read_size or plan_size(recipe, size), None
        read_size.size, measures = size, not recipe.in_python
        for plan, batches in self._prepare(end, loop, read_size):
            number = -1
            for number, prepared in enumerate(batches):
                if not number and measures and type(prepared.data) is Columns:
                    read_size.measure(prepared.rows, prepared.size or byte_size(prepared.data))
                if prepared.bad or prepared.lengths:
                    self._note(prepared)
                if not stats.batches and type(prepared.data) is Columns and not self._as_dict:
                    warn_of_hidden(prepared.data.names)
                stats.batches += 1
                stats.samples += prepared.rows
                self._origin = place = recipe, plan, number
                batch = self._output(prepared, place)
                cursor.advance()
                ready = clock()
                if starting:
                    stats.starting += ready - requested
                    starting = False
                else:
                    stats.waiting += ready - requested
                run.advanced = True
                yield batch
                requested = clock()
                stats.consumer += requested - ready
                if run.loop != loop:
                    run.check_active(loop)
                if run.moved:
                    return
            if number + 1 < plan.batches:
                return  # the next batch failed: it is made again as the first of a plan, which raises its error
        self._read_size = read_size

    def _prepare(
        self, end: int | None, loop: int, read_size: ReadSize
    ) -> Iterator[tuple[Plan, Iterable[PreparedBatch]]]:
        """Yield plans with their batches, in order; an executor prepares the next ones meanwhile."""
        executor, most = self._open_executor(), max_pending(self._recipe)
        executor.forget()  # tasks of an earlier loop
        plans = self._plans(end, read_size)
        recipe = self._recipe
        read_ahead = ReadAhead(plans, recipe.advise, self._options.read_ahead, self._cold_data, recipe.probe)
        pending: deque[tuple[Plan, Any]] = deque()
        try:
            while True:
                while len(pending) < most and (plan := read_ahead.next()) is not None:
                    pending.append((plan, executor.submit(plan)))
                if not pending:
                    return
                plan, ticket = pending.popleft()
                batches, spent = executor.result(ticket)
                try:
                    yield plan, batches
                finally:
                    self.stats.spent.add(spent)
                read_ahead.note(spent.faults)
        except (WorkerError, KeyboardInterrupt):
            self.close()  # the workers have ended; the next loop starts new ones
            raise
        finally:
            if loop == self._run.loop:  # otherwise the tasks are those of a later loop
                executor.forget()
            read_ahead.close()

    def _plans(self, end: int | None, read_size: ReadSize) -> Iterator[Plan]:
        cursor, steps = self._run.cursor, self._run.cursor.steps
        epoch, position, step = cursor.epoch, cursor.position, cursor.step
        while end is None or epoch < end:
            batches = min(read_size.batches, steps.count(epoch, position))
            yield Plan(epoch, position, batches, step, steps.cut(epoch, position, batches, self.rank))
            epoch, position = steps.after(epoch, position, batches)
            step += batches

    def _open_executor(self) -> Executor:
        """Return the executor; it is made when it is first needed, and again after `close` and in a forked process."""
        if self._process != os.getpid():  # a fork copies the loader, but neither its threads nor its processes
            self._executor, self._staging, self._process = None, None, os.getpid()
        if self._executor is None:
            keep_freed_memory()
            self._executor = start_batch_executor(self._recipe, self._open_staging())
        return self._executor

    def _open_staging(self) -> Staging | None:
        if self._staging is None or self._staging.recipe is not self._recipe:
            self._staging = make_staging(self._recipe)
            if self._staging is not None:
                self._to_tensor = self._staging.to_tensor
        return self._staging

    def _note(self, prepared: PreparedBatch) -> None:
        """Report the bad samples of a batch, and count its tokens."""
        if prepared.bad:
            self._report(prepared.bad)
        if prepared.lengths:
            if self._counted is None:
                self._counted = self._recipe.counted_field(prepared.lengths) or ("", False)
            if (sizes := prepared.lengths.get(self._counted[0])) is not None:
                self.stats.add_lengths(sizes, self._counted[1])

    def _report(self, bad: Sequence[BadSample]) -> None:
        """Report samples that were replaced, and count them."""
        if callable(on_error := self._options.on_error):
            for one in bad:
                on_error(one)
        self.stats.skipped += len(bad)
        self.skipped += bad[: max(0, _MAX_SKIPPED - len(self.skipped))]

    def _output(self, prepared: PreparedBatch, place: Place) -> Any:
        """Return what `collate` returned, or a batch of arrays or tensors."""
        if prepared.ready is not None:
            prepared.ready.wait()
        data, to_tensor = prepared.data, self._to_tensor
        if type(data) is not Columns:
            return data
        if to_tensor is not None and not prepared.has_tensors:
            data = self._recipe.as_tensors(data)
        batch: LoadedBatch[Any] = LoadedBatch(data, prepared, place, to_tensor)
        return batch.to_dict() if self._as_dict else batch

    def _find_rank(self) -> None:
        """Take the rank and world size that `torch.distributed` has now, unless they were given or a loop is active."""
        if not self._finds_rank or self._run.active:
            return
        found, options = distributed_rank(), self._options
        if found != (options.rank, options.world_size):
            self._close_executor()
            self._options = replace(options, rank=found[0], world_size=found[1])
            self._recipe = self._recipe.with_options(self._options)
            self._run.cursor.resize(self._recipe.steps())

    # -- moving -----------------------------------------------------------------------------------------------

    def skip(self, batches: int) -> None:
        """Skip the next batches without reading them."""
        self._find_rank()
        self._run.skip(whole_number("batches", batches, 0))

    def seek(self, epoch: int = 0, position: int = 0) -> None:
        """Continue at a position of an epoch."""
        self._run.seek(whole_number("epoch", epoch), whole_number("position", position))

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next loop, as trainers count loops; do nothing if a state inside that loop was loaded.

        A loop of several epochs begins with the first of them. If loops have no end, or keep the position, stay.
        """
        self._run.seek_loop(whole_number("epoch", epoch, 0))

    def replay(self, step: int, rank: int | None = None) -> B_co:
        """Return the batch of an earlier step again, for this rank or another; also of a step before a resume."""
        segment, epoch, position = self._run.cursor.locate(whole_number("step", step))
        rank = self.rank if rank is None else whole_number("rank", rank)
        if not 0 <= rank < segment.world:
            raise ArgumentError(f"expected one of the {segment.world} ranks that step {step} had, got rank {rank}")
        cut = segment.resize(self._run.cursor.steps).cut(epoch, position, 1, rank)
        options = replace(self._options, rank=rank, world_size=segment.world, drop_last=segment.drop_last)
        recipe = Recipe(self.dataset, options if cut is not None else replace(options, batch_size=segment.batch))
        plan = Plan(epoch, position, 1, step, cut)
        batches, _ = recipe(plan)
        if (staging := self._open_staging()) is not None:
            batches = staging.stage(batches)
        batch: B_co = self._output(batches[0], (recipe, plan, 0))
        return batch

    def close(self) -> None:
        """End the workers and the active loop; a new `for` loop starts new workers."""
        self._run.end_loop()
        self._close_executor()

    def _close_executor(self) -> None:
        if self._executor is not None and self._process == os.getpid():
            self._executor.close()
        self._executor = self._staging = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the batches taken so far: a small dict of JSON values, the same on every rank."""
        versions = dataset_versions(self.dataset)
        known: dict[str, Any] = {} if versions.count(None) == len(versions) else {"versions": versions}
        known |= {"view": [*self.dataset.notes]} if self.dataset.notes else {}
        return {**self._run.cursor.save(), **run_identity(self._recipe), **known, **self.dataset.order.save()}

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False, force: bool = False) -> None:
        """Continue at the exact next sample of the run that the state was saved in.

        Batch size (unless `max_tokens` or `bucket` is given), ranks, workers and read-ahead may differ.

        :param reweight: let a mixture continue with other weights than those it was saved with
        :param force: accept the state of another dataset, order or seed: continue at the same epoch and position
        """
        self._find_rank()
        saved = check_state(state)
        if not force:
            check_same_run(self._recipe, state)
        data = self.dataset
        order = data.order.resumed(state, saved.epoch * len(data) + saved.position, reweight or force)
        if order is not data.order:
            if reweight:
                check_reweight(self._recipe, saved.position)
            self._close_executor()
            self._recipe = self._recipe.through(order)
            self._run.cursor.resize(self._recipe.steps())
        self._run.load(state)
