"""`Loader`: a dataset as batches, in an order that seed, epoch and position decide, from any place of a run on.

It plans (`cursor.py`), has an executor make the batches (`recipe.py`, `executors.py`), hands them out in order and
counts what was taken. Of the data it knows only the dataset; the state of a run is a few numbers.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

from shardex.dataset import Dataset, Pace, open
from shardex.errors import ClosedError, SchemaError, WorkerError
from shardex.kernel import Columns
from shardex.loader.checks import check_functions, one_of, rank_of, whole
from shardex.loader.cursor import Cursor, Shape, check_state
from shardex.loader.executors import Executor, InlineExecutor, ThreadExecutor
from shardex.loader.loaded_batch import LoadedBatch, Origin, Place, as_it_is
from shardex.loader.plan import Made, Plan
from shardex.loader.read_ahead import ReadAhead
from shardex.loader.recipe import Form, OnError, Recipe
from shardex.loader.replacements import BadSample
from shardex.loader.run_identity import check_same, identity, phases, with_phases
from shardex.loader.stats import Stats
from shardex.loader.tensors import require_torch, to_tensors
from shardex.order import MixOrder
from shardex.samples import Batch
from shardex.schema import check_fields
from shardex.sources import adopt, export
from shardex.workers import ProcessPool

__all__ = ["Loader"]

_SKIPS_LISTED = 10_000


class Loader:
    """Batches of a dataset, shuffled, shared among ranks, made ahead by workers, and resumable at the exact sample.

    >>> from shardex import open
    >>> loader = Loader(open([{"x": k} for k in range(10)]), batch_size=4, shuffle=True, seed=0)
    >>> [batch.x.tolist() for batch in loader]
    [[7, 9, 4, 2], [5, 3, 1, 6], [0, 8]]

    A loader is a cursor: a new `for` goes on after the last batch that was taken, at the end of an epoch with the next
    one. `state_dict` says where that is, `load_state_dict` goes there, with any other number of ranks or workers.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        epochs: int | None = 1,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
        workers: int = 0,
        worker_type: Literal["auto", "thread", "process"] = "auto",
        read_ahead: int | None = None,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Any] | None = None,
        collate: Callable[[Batch], Any] | None = None,
        ragged: Form = "pad",
        fill: Any = 0,
        block: int | None = None,
        window: int = 16,
        on_error: OnError = "raise",
        to: Literal["numpy", "torch"] = "numpy",
        pin_memory: bool = False,
    ) -> None:
        """
        :param dataset: a `Dataset`, or anything that `open` takes
        :param batch_size: samples in a batch of one rank
        :param shuffle: every epoch in an order of its own, which `seed` decides; all samples, not a buffer of them
        :param epochs: how many epochs a `for` runs through (a run of several ends with them, also if it was resumed);
            None for no end
        :param rank: which of `world_size` processes this is; by default what `torch.distributed` says if it is in use
        :param drop_last: leave out the incomplete batch at the end of an epoch
        :param workers: how many threads or processes make batches ahead; 0 makes them in the loop itself
        :param worker_type: "process" for Python code (the default with a `transform` or `collate`, or a format that is
            decoded in Python), "thread" for work in C
        :param read_ahead: how many reads (of a batch with workers, of about a megabyte without) are prepared, or
            announced to the disk, before they are asked for
        :param fields: only these
        :param transform: called with each sample, returns a sample; with a second parameter it also gets a
            `numpy.random.Generator` that depends on seed, epoch and position alone
        :param collate: called with each batch (arrays, with mask and origin); what it returns is handed out instead
        :param ragged: "pad" fills rows of different length up with `fill` (see `batch.mask_of`), "pack" puts them end
            to end, "list" gives one array each
        :param block: shuffle blocks of so many neighbouring samples, and samples inside each `window` of blocks: nearly
            as good as a full shuffle, and much kinder to cold disks
        :param on_error: "raise", or "skip" to put another sample in place of one that cannot be read or transformed;
            or a function that is told of each before it is skipped
        :param to: "torch" for tensors that share the arrays' memory, with `pin_memory` in pinned memory
        """
        data = dataset if isinstance(dataset, Dataset) else open(dataset)
        here = rank_of(rank, world_size)
        check_functions(transform=transform, collate=collate)
        if block is not None and (not shuffle or isinstance(data.order, MixOrder)):
            raise SchemaError("expected shuffle=True together with block=, and no mixture, got block= without")
        self._recipe = Recipe(
            data,
            batch=whole("batch_size", batch_size, 1),
            rank=here[0],
            world=here[1],
            drop_last=bool(drop_last),
            shuffle=bool(shuffle),
            seed=whole("seed", seed),
            block=None if block is None else whole("block", block, 1),
            window=whole("window", window, 1),
            fields=None if fields is None else tuple(check_fields(data.fields, fields)),
            form=one_of("ragged", ragged, get_args(Form)),
            fill=fill,
            transform=transform,
            collate=collate,
            skip=callable(on_error) or one_of("on_error", on_error, ("raise", "skip")) == "skip",
        )
        self._on_error = on_error
        self._epochs = None if epochs is None else whole("epochs", epochs, 1)
        self._workers = whole("workers", workers, 0)
        self._kind = one_of("worker_type", worker_type, ("auto", "thread", "process"))
        self._read_ahead = None if read_ahead is None else whole("read_ahead", read_ahead, 0)
        self._tensors = one_of("to", to, ("numpy", "torch")) == "torch"
        self._pin = pin_memory
        if pin_memory and not self._tensors:
            raise SchemaError('expected to="torch" together with pin_memory=True, got numpy')
        if self._tensors:
            require_torch()
        self._cursor = Cursor(Shape(len(data), self._recipe.batch, self._recipe.world, self._recipe.drop_last))
        self._hands: Executor | None = None
        self._process = os.getpid()
        self._turn = 0
        """Which loop is the one that counts: the last."""
        self._moves = self._jumps = 0
        """How often somebody moved the cursor, and how often elsewhere than forward."""
        self._over = False
        """Whether the state that was loaded is that of a run which had taken all its epochs."""
        self.stats = Stats()
        """What was done so far, and what took the time."""
        self.skipped: list[BadSample] = []
        """The bad samples that were replaced, in the order in which they were met (the first ten thousand)."""
        self._last: Place | None = None

    # -- what it is -------------------------------------------------------------------------------------------

    @property
    def dataset(self) -> Dataset:
        """What it loads."""
        return self._recipe.dataset

    @property
    def rank(self) -> int:
        """Which of the processes this is."""
        return self._recipe.rank

    @property
    def world_size(self) -> int:
        """How many processes share the batches."""
        return self._recipe.world

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._cursor.epoch

    @property
    def position(self) -> int:
        """How many samples of this epoch all ranks together have taken."""
        return self._cursor.position

    @property
    def step(self) -> int:
        """How many batches were taken since the run began."""
        return self._cursor.step

    @property
    def origin(self) -> Origin | None:
        """Where the last batch came from, also if `collate` made something else of it; none before the first."""
        return None if self._last is None else Origin(*self._last)

    def __len__(self) -> int:
        """Batches in a run of `epochs` epochs; the same on every rank."""
        if self._epochs is None:
            raise SchemaError("expected a number of epochs to count the batches, got epochs=None, which has no end")
        return self._epochs * self._cursor.shape.steps()

    def __bool__(self) -> bool:
        return bool(self._cursor.shape.steps())

    def __repr__(self) -> str:
        r, c = self._recipe, self._cursor
        return (
            f"Loader({r.length} samples, batches of {r.batch}, rank {r.rank} of {r.world}, "
            f"epoch {c.epoch}, position {c.position}, step {c.step})"
        )

    # -- batches ----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._turn += 1
        return self._batches(self._turn)

    def _batches(self, turn: int) -> Iterator[Any]:
        self._check_turn(turn)
        if self._over:
            return
        end, asked = self._end(), time.perf_counter()
        while end is None or self._cursor.epoch < end:
            moves, jumps = self._moves, self._jumps
            starting = bool(self._workers) and self._hands is None
            for batch in self._from_here(end, turn):
                given, stats = time.perf_counter(), self.stats
                if starting:
                    stats.starting += given - asked
                    starting = False
                else:
                    stats.waiting += given - asked
                yield batch
                asked = time.perf_counter()
                stats.consumer += asked - given
                self._check_turn(turn)
                if moves != self._moves:
                    end = end if jumps == self._jumps else self._end()
                    break

    def _check_turn(self, turn: int) -> None:
        if turn != self._turn:
            raise ClosedError("expected one loop over a loader at a time; it was closed, or another loop began, since")

    def _end(self) -> int | None:
        """The epoch before which a run stops that is where this one is."""
        if self._cursor.shape.steps():
            return None if self._epochs is None else (self._cursor.epoch // self._epochs + 1) * self._epochs
        shape = self._cursor.shape
        if self._epochs is None:
            raise SchemaError(f"expected samples for at least one batch, got {shape.length} of {shape.stride} needed")
        self._cursor.epoch += self._epochs  # epochs without a batch are over at once
        return self._cursor.epoch

    def _from_here(self, end: int | None, turn: int) -> Iterator[Any]:
        """The batches from the cursor on; each is counted when it is handed out."""
        for plan, made in self._produce(end, turn):
            number = 0
            for number, one in enumerate(made, 1):
                batch = self._hand_out(one, self._recipe.place(plan, number - 1))
                self._cursor.advance()
                yield batch
            if number < plan.batches:
                return  # the next one fails: it is made again, alone, to raise its error where it belongs

    def _produce(self, end: int | None, turn: int) -> Iterator[tuple[Plan, Iterable[Made]]]:
        pace = Pace(self._recipe.batch)
        hands = self._at_work()
        hands.forget()  # what an earlier loop has left
        read_ahead = ReadAhead(self._plans(end, pace), self._recipe.advise, self._read_ahead)
        pending: deque[tuple[Plan, Any]] = deque()
        try:
            while True:
                while len(pending) < self._depth and (plan := read_ahead.next()) is not None:
                    pending.append((plan, hands.submit(plan)))
                if not pending:
                    return
                plan, ticket = pending.popleft()
                made, spent = hands.result(ticket)
                try:
                    yield plan, self._paced(made, pace)
                finally:
                    self.stats.spent.add(spent)
                read_ahead.note(spent.faults)
        except (WorkerError, KeyboardInterrupt):
            self.close()  # these workers are gone; others start when somebody goes on
            raise
        finally:
            if turn == self._turn:  # otherwise the tickets are those of a later loop
                hands.forget()
            read_ahead.close()

    def _paced(self, made: Iterable[Made], pace: Pace) -> Iterator[Made]:
        """The same batches; the first of them tells how many to read at once next time."""
        for number, one in enumerate(made):
            if not number and not self._recipe.in_python and isinstance(one.data, Columns):
                pace.measure(one.data)
            yield one

    def _plans(self, end: int | None, pace: Pace) -> Iterator[Plan]:
        cursor, shape = self._cursor, self._cursor.shape
        epoch, position, step = cursor.epoch, cursor.position, cursor.step
        while end is None or epoch < end:
            batches = min(pace.batches, shape.steps(position))
            yield Plan(epoch, position, batches, step)
            epoch, position = shape.after(epoch, position, batches)
            step += batches

    @property
    def _depth(self) -> int:
        """How many plans are under way at once."""
        if not self._workers:
            return 1
        return max(self._workers, 2 * self._workers if self._read_ahead is None else self._read_ahead)

    def _at_work(self) -> Executor:
        if self._process != os.getpid():  # a fork copies the loader, but neither its threads nor its processes
            self._hands, self._process = None, os.getpid()
        if self._hands is None:
            processes = self._kind == "process" or (self._kind == "auto" and self._recipe.in_python)
            if not self._workers:
                self._hands = InlineExecutor(self._recipe.one_by_one)
            elif processes:
                self._hands = ProcessPool(self._recipe, self._workers, initializer=partial(adopt, export()))
            else:
                self._hands = ThreadExecutor(self._recipe, self._workers)
        return self._hands

    def _hand_out(self, made: Made, place: Place) -> Any:
        stats = self.stats
        if callable(self._on_error):
            for bad in made.bad:
                self._on_error(bad)
        stats.batches += 1
        stats.samples += made.rows
        if made.bad:
            stats.skipped += len(made.bad)
            self.skipped += made.bad[: max(0, _SKIPS_LISTED - len(self.skipped))]
        self._last = place
        return self._finished(made, place)

    def _finished(self, made: Made, place: Place) -> Any:
        if not isinstance(made.data, Columns):
            return made.data
        if not self._tensors:
            return LoadedBatch(made.data, made, place, as_it_is)
        return LoadedBatch(to_tensors(made.data, self._pin), made, place, require_torch().from_numpy)

    # -- other places of the run ------------------------------------------------------------------------------

    def skip(self, batches: int) -> None:
        """Go on after so many more batches, without reading them."""
        self._cursor.advance(whole("batches", batches, 0))
        self._moves += 1

    def seek(self, epoch: int = 0, position: int = 0) -> None:
        """Go on at this sample of this epoch."""
        self._cursor.seek(whole("epoch", epoch), whole("position", position))
        self._over = False
        self._moves += 1
        self._jumps += 1

    def replay(self, step: int, rank: int | None = None) -> Any:
        """The batch of an earlier step again, as this rank (or another one) got it, also from before a resume."""
        leg, epoch, position = self._cursor.place(whole("step", step))
        of = self.rank if rank is None else whole("rank", rank)
        if not 0 <= of < leg.world:
            raise SchemaError(f"expected one of the {leg.world} ranks that step {step} had, got rank {of}")
        recipe = replace(self._recipe, batch=leg.batch, world=leg.world, rank=of, drop_last=leg.drop_last, _views={})
        made, _ = recipe(Plan(epoch, position, 1, step))
        return self._finished(made[0], Place(recipe, epoch, position, step))

    def close(self) -> None:
        """End the workers; a new `for` starts others."""
        self._turn += 1
        self._dismiss()

    def _dismiss(self) -> None:
        if self._hands is not None and self._process == os.getpid():
            self._hands.close()
        self._hands = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, after the batches that were taken: plain numbers and text, the same on every rank."""
        return {**self._cursor.save(), **identity(self._recipe), **phases(self._recipe)}

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False, force: bool = False) -> None:
        """Go on where the run was that the state comes from: at the exact next sample.

        Batch size, ranks, workers and read-ahead may be others. Another dataset, order or seed is refused, unless
        `force` says to go to the same epoch and position anyway. `reweight` lets a mixture go on with its new weights.
        """
        check_state(state)
        if not force:
            check_same(self._recipe, state)
        recipe = with_phases(self._recipe, state, reweight or force)
        self._cursor.load(state)
        if recipe is not self._recipe:
            self._dismiss()
            self._recipe = recipe
        self._moves += 1
        self._jumps += 1
        # With one epoch a loop, the next loop is the next epoch; a run of several is over when they are.
        cursor, epochs = self._cursor, self._epochs or 1
        self._over = epochs > 1 and cursor.step > 0 and cursor.position == 0 and cursor.epoch % epochs == 0
