"""`Loader`: a dataset as batches, in an order that seed, epoch and position decide, from any place of a run on.

It plans (`cursor.py`), lets somebody make the batches (`recipe.py`, by `hands.py` or a `Crew` of processes), hands them
out in order and counts what was taken. Of the data it knows only the dataset; the state of a run is a few numbers.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from shardex.blend import Mix
from shardex.columns import Columns
from shardex.crew import Crew
from shardex.cursor import Cursor, Shape
from shardex.dataset import Dataset, open
from shardex.errors import ClosedError, SchemaError, StateError, WorkerError
from shardex.hands import Hands, Here, Threads
from shardex.loaded import LoadedBatch, Origin, Place
from shardex.mend import BadSample
from shardex.pace import Pace
from shardex.readahead import Foresight
from shardex.recipe import Form, Made, OnError, Plan, Recipe
from shardex.rows import check_fields
from shardex.sample import Batch
from shardex.stats import Stats
from shardex.tensors import distributed, require_torch, to_tensors

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
        :param epochs: how many epochs a `for` runs through; None for no end
        :param rank: which of `world_size` processes this is; by default what `torch.distributed` says if it is in use
        :param drop_last: leave out the incomplete batch at the end of an epoch
        :param workers: how many threads or processes make batches ahead; 0 makes them in the loop itself
        :param worker_type: "process" for Python code (the default with a `transform` or `collate`, or a format that is
            decoded in Python), "thread" for work in C
        :param read_ahead: how many batches are prepared, or announced to the disk, before they are asked for
        :param fields: only these
        :param transform: called with each sample, returns a sample; with a second parameter it also gets a
            `numpy.random.Generator` that depends on seed, epoch and position alone
        :param collate: called with each `Batch`; what it returns is handed out instead
        :param ragged: "pad" fills rows of different length up with `fill` (see `batch.mask_of`), "pack" puts them end
            to end, "list" gives one array each
        :param block: shuffle blocks of so many neighbouring samples, and samples inside each `window` of blocks: nearly
            as good as a full shuffle, and much kinder to cold disks
        :param on_error: "raise", or "skip" to put another sample in place of one that cannot be read or transformed;
            or a function that is told of each before it is skipped
        :param to: "torch" for tensors that share the arrays' memory, with `pin_memory` in pinned memory
        """
        data = dataset if isinstance(dataset, Dataset) else open(dataset)
        here = _rank(rank, world_size)
        if block is not None and not shuffle:
            raise SchemaError("expected shuffle=True together with block=, got block= alone")
        self._recipe = Recipe(
            data,
            batch=_whole("batch_size", batch_size, 1),
            rank=here[0],
            world=here[1],
            drop_last=bool(drop_last),
            shuffle=bool(shuffle),
            seed=_whole("seed", seed),
            block=None if block is None else _whole("block", block, 1),
            window=_whole("window", window, 1),
            fields=None if fields is None else tuple(check_fields(data.fields, fields)),
            form=_one_of("ragged", ragged, get_args(Form)),
            fill=fill,
            transform=transform,
            collate=collate,
            on_error=on_error if callable(on_error) else _one_of("on_error", on_error, ("raise", "skip", "a function")),
        )
        self._epochs = None if epochs is None else _whole("epochs", epochs, 1)
        self._workers = _whole("workers", workers, 0)
        self._kind = _one_of("worker_type", worker_type, ("auto", "thread", "process"))
        self._read_ahead = None if read_ahead is None else _whole("read_ahead", read_ahead, 0)
        self._tensors = _one_of("to", to, ("numpy", "torch")) == "torch"
        self._pin = pin_memory
        if pin_memory and not self._tensors:
            raise SchemaError('expected to="torch" together with pin_memory=True, got numpy')
        if self._tensors:
            require_torch()
        self._cursor = Cursor(Shape(len(data), self._recipe.batch, self._recipe.world, self._recipe.drop_last))
        self._hands: Hands | None = None
        self._turn = self._moves = 0
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
        end, asked, last = self._end(), time.perf_counter(), self.stats
        while end is None or self._cursor.epoch < end:
            moves = self._moves
            for batch in self._from_here(end):
                given = time.perf_counter()
                last.waiting += given - asked
                yield batch
                asked = time.perf_counter()
                last.consumer += asked - given
                if turn != self._turn:
                    raise ClosedError("expected one iteration over a loader at a time, another one began since")
                if moves != self._moves:
                    end = self._end()
                    break

    def _end(self) -> int | None:
        """The epoch before which a run stops that is where this one is."""
        if self._cursor.shape.steps():
            return None if self._epochs is None else (self._cursor.epoch // self._epochs + 1) * self._epochs
        shape = self._cursor.shape
        if self._epochs is None:
            raise SchemaError(f"expected samples for at least one batch, got {shape.length} of {shape.stride} needed")
        self._cursor.epoch += self._epochs  # epochs without a batch are over at once
        return self._cursor.epoch

    def _from_here(self, end: int | None) -> Iterator[Any]:
        """The batches from the cursor on; each is counted when it is handed out."""
        for plan, made in self._produce(end):
            for one in made:
                batch = self._hand_out(one)
                self._cursor.advance()
                yield batch
            if len(made) < plan.batches:
                return  # the next one fails: it is made again, alone, to raise its error where it belongs

    def _produce(self, end: int | None) -> Iterator[tuple[Plan, list[Made]]]:
        pace = Pace(self._recipe.batch)
        hands = self._at_work()
        foresight = Foresight(self._plans(end, pace), self._recipe.advise, self._read_ahead)
        pending: deque[tuple[Plan, Any]] = deque()
        try:
            while True:
                while len(pending) < self._depth and (plan := foresight.next()) is not None:
                    pending.append((plan, hands.submit(plan)))
                if not pending:
                    return
                plan, ticket = pending.popleft()
                made, spent = hands.result(ticket)
                foresight.note(spent.faults)
                self.stats.spent.add(spent)
                if not self._recipe.in_python and isinstance(made[-1].data, Columns):
                    pace.measure(made[-1].data)
                yield plan, made
        except (WorkerError, KeyboardInterrupt):
            self.close()  # these workers are gone; others start when somebody goes on
            raise
        finally:
            hands.forget()
            foresight.close()

    def _plans(self, end: int | None, pace: Pace) -> Iterator[Plan]:
        shape, epoch, position = self._cursor.shape, self._cursor.epoch, self._cursor.position
        while end is None or epoch < end:
            batches = min(pace.batches, shape.steps(position))
            yield Plan(epoch, position, batches)
            epoch, position = shape.after(epoch, position, batches)

    @property
    def _depth(self) -> int:
        """How many plans are under way at once."""
        if not self._workers:
            return 1
        return max(self._workers, 2 * self._workers if self._read_ahead is None else self._read_ahead)

    def _at_work(self) -> Hands:
        if self._hands is None:
            processes = self._kind == "process" or (self._kind == "auto" and self._recipe.in_python)
            if not self._workers:
                self._hands = Here(self._recipe)
            else:
                self._hands = (Crew if processes else Threads)(self._recipe, self._workers)
        return self._hands

    def _hand_out(self, made: Made) -> Any:
        cursor, stats = self._cursor, self.stats
        stats.batches += 1
        stats.samples += made.rows
        if made.bad:
            stats.skipped += len(made.bad)
            self.skipped += made.bad[: max(0, _SKIPS_LISTED - len(self.skipped))]
        self._last = place = Place(self._recipe, cursor.epoch, cursor.position, cursor.step)
        return self._finished(made, place)

    def _finished(self, made: Made, place: Place) -> Any:
        if not isinstance(made.data, Columns):
            return made.data
        if not self._tensors:
            return LoadedBatch(made.data, made, place, _as_it_is)
        return LoadedBatch(to_tensors(made.data, self._pin), made, place, require_torch().from_numpy)

    # -- other places of the run ------------------------------------------------------------------------------

    def skip(self, batches: int) -> None:
        """Go on after so many more batches, without reading them."""
        self._cursor.advance(_whole("batches", batches, 0))
        self._moves += 1

    def seek(self, epoch: int = 0, position: int = 0) -> None:
        """Go on at this sample of this epoch."""
        self._cursor.seek(_whole("epoch", epoch), _whole("position", position))
        self._moves += 1

    def replay(self, step: int, rank: int | None = None) -> Any:
        """The batch of an earlier step again, as this rank (or another one) got it, also from before a resume."""
        leg, epoch, position = self._cursor.place(_whole("step", step))
        of = self.rank if rank is None else _whole("rank", rank)
        if not 0 <= of < leg.world:
            raise SchemaError(f"expected one of the {leg.world} ranks that step {step} had, got rank {of}")
        recipe = replace(self._recipe, batch=leg.batch, world=leg.world, rank=of, drop_last=leg.drop_last, _views={})
        made, _ = recipe(Plan(epoch, position, 1))
        return self._finished(made[0], Place(recipe, epoch, position, step))

    def close(self) -> None:
        """End the workers; a new `for` starts others."""
        self._turn += 1
        if self._hands is not None:
            self._hands.close()
            self._hands = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the run is, after the batches that were taken: plain numbers and text, the same on every rank."""
        return {**self._cursor.save(), **self._identity(), **self._phases()}

    def _identity(self) -> dict[str, Any]:
        """What a state must agree in to mean the same samples."""
        r = self._recipe
        mixed = isinstance(r.dataset.order, Mix)
        data = Dataset(r.dataset.rows) if mixed else r.dataset
        order = {"shuffle": r.shuffle, "seed": r.seed}
        if r.block is not None:
            order |= {"block": r.block, "window": r.window}
        return {"data": data.fingerprint, "order": order}

    def _phases(self) -> dict[str, Any]:
        own = self._recipe.dataset.order
        if not isinstance(own, Mix):
            return {}
        return {"mix": {"seed": own.seed, "phases": [[start, list(weights)] for start, weights in own.phases]}}

    def load_state_dict(self, state: Mapping[str, Any], *, reweight: bool = False, force: bool = False) -> None:
        """Go on where the run was that the state comes from: at the exact next sample.

        Batch size, ranks, workers and read-ahead may be others. Another dataset, order or seed is refused, unless
        `force` says to go to the same epoch and position anyway. `reweight` lets a mixture go on with its new weights.
        """
        if not force:
            self._check_same(state)
        self._adopt_phases(state, reweight or force)
        self._cursor.load(state)
        self._moves += 1

    def _check_same(self, state: Mapping[str, Any]) -> None:
        own = {**self._identity(), "length": self._recipe.length}
        for name, meaning in (("data", "the same data"), ("length", "as many samples"), ("order", "the same order")):
            if state.get(name) != own[name]:
                raise StateError(
                    f"expected the state of a run over {meaning} ({own[name]}), got one with {state.get(name)} - at "
                    f"{name!r}; load_state_dict(state, force=True) goes to its epoch and position all the same"
                )

    def _adopt_phases(self, state: Mapping[str, Any], reweight: bool) -> None:
        """Take over how a mixture was weighted so far; its own weights hold from here on."""
        own, saved = self._recipe.dataset.order, state.get("mix")
        if not isinstance(own, Mix) or not isinstance(saved, Mapping):
            return
        phases = tuple((int(start), tuple(map(int, weights))) for start, weights in saved["phases"])
        weights = own.phases[-1][1]
        went_on = replace(own, phases=phases)
        if phases[-1][1] != weights:
            if not reweight:
                raise StateError(
                    f"expected the state of a mixture with the weights {weights}, got one with {phases[-1][1]}; "
                    "load_state_dict(state, reweight=True) goes on with the new weights from here"
                )
            went_on = went_on.reweighted(state["epoch"] * len(own) + state["position"], weights)
        if went_on != own:
            self.close()
            data = Dataset(self.dataset.rows, went_on, self.dataset.chosen)
            self._recipe = replace(self._recipe, dataset=data, _views={})


def _as_it_is(value: Any) -> Any:
    return value


def _rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Which process this is, of how many."""
    if rank is None and world_size is None:
        return distributed()
    if rank is None or world_size is None:
        raise SchemaError(f"expected rank and world_size together, got rank={rank}, world_size={world_size}")
    world = _whole("world_size", world_size, 1)
    if not 0 <= (number := _whole("rank", rank)) < world:
        raise SchemaError(f"expected a rank from 0 to {world - 1}, got {number}")
    return number, world


def _whole(name: str, value: Any, least: int | None = None) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise SchemaError(f"expected a whole number for {name}, got {value!r}") from None
    if least is not None and number < least:
        raise SchemaError(f"expected at least {least} for {name}, got {number}")
    return number


def _one_of(name: str, value: Any, known: Sequence[Any]) -> Any:
    if value not in known:
        raise SchemaError(f"expected {name} to be one of {', '.join(map(repr, known))}, got {value!r}")
    return value
