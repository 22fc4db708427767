"""The loader: which samples a run yields, in which batches, on which ranks, and from which position on."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import (
    ArgumentError,
    ClosedError,
    FieldError,
    FormatError,
    SchemaError,
    ShardexError,
    StateError,
    WorkerError,
)
from shardex.kernel import Columns, Integers
from shardex.loader.plan import BadSample

DATA = [{"x": k, "name": f"n{k}"} for k in range(23)]


class Numbers:
    """Rows that are computed instead of stored; those in `bad` cannot be read."""

    in_python = False

    def __init__(self, length: int, bad: Sequence[int] = ()) -> None:
        self.length = length
        self.bad = bad

    def __len__(self) -> int:
        return self.length

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        for row in self.bad:
            if (rows == row).any():
                raise FormatError(f"sample {row} is broken")
        return Columns({"x": rows.copy(), "twice": rows * 2}).select(fields or ["x", "twice"])


def numbers(length: int, bad: Sequence[int] = ()) -> sx.Dataset:
    return sx.open(Numbers(length, bad))


def xs(batches: Any) -> list[list[int]]:
    """The values of each batch without fill and replacements."""
    return [batch.x[batch.mask].tolist() for batch in batches]


def flat(batches: Any) -> list[int]:
    return list(itertools.chain.from_iterable(xs(batches)))


def ranks(world: int, batch_size: int, state: dict[str, Any] | None = None, **options: Any) -> list[sx.Loader]:
    loaders = [sx.Loader(rank=rank, world_size=world, batch_size=batch_size, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    return loaders


def together(loaders: Sequence[sx.Loader], steps: int | None = None) -> list[int]:
    """The global sequence of all ranks, batch by batch; every rank must get the same number of batches."""
    out: list[int] = []
    for parts in itertools.islice(zip(*loaders, strict=True), steps):
        assert len({len(part) for part in parts}) == 1
        out += flat(parts)
    return out


# -- batches --------------------------------------------------------------------------------------------------------


def test_batches_in_order() -> None:
    loader = sx.Loader(sx.open(DATA), 10)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [10, 10, 3] and len(loader) == 3
    assert batches[0].name == [f"n{k}" for k in range(10)] and batches[0]["x"].tolist() == list(range(10))
    assert all(batch.mask.all() for batch in batches)


def test_drop_last_leaves_out_the_incomplete_batch() -> None:
    loader = sx.Loader(sx.open(DATA), 10, drop_last=True)
    assert [len(batch) for batch in loader] == [10, 10] and len(loader) == 2


def test_shuffle_equals_that_of_the_dataset() -> None:
    ds = sx.open(DATA)
    assert xs(sx.Loader(ds, 4, shuffle=True, seed=7)) == [batch.x.tolist() for batch in ds.shuffled(4, seed=7)]


def test_next_loop_is_the_next_epoch_in_another_order() -> None:
    loader = sx.Loader(sx.open(DATA), 5, shuffle=True)
    first, second = flat(loader), flat(loader)
    assert first != second and sorted(first) == sorted(second) == list(range(23))
    assert first + second == flat(sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=2))


def test_endless_loop() -> None:
    loader = sx.Loader(sx.open(DATA), 23, epochs=None)
    assert len(list(itertools.islice(loader, 50))) == 50 and loader.epoch == 50
    with pytest.raises(ArgumentError, match="which has no end"):
        len(loader)


@pytest.mark.parametrize("take", [1, 4, 5])
def test_a_loop_that_was_left_is_followed_by_the_next_epoch_from_its_begin(take: int) -> None:
    loader, epochs = sx.Loader(sx.open(DATA), 5, shuffle=True), sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=3)
    batches = xs(epochs)
    for epoch in range(3):  # as a validation that stops early, or the sanity steps of Lightning before it
        assert xs(itertools.islice(loader, take)) == batches[5 * epoch : 5 * epoch + take]
    iter(loader)  # takes nothing
    assert xs(loader) == xs(sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=4))[15:]


def test_a_loop_of_several_epochs_that_was_left_is_followed_by_the_next_ones() -> None:
    loader = sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=2)
    expected = xs(sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=4))[10:]
    for take in (3, 5, 7, 10):
        loader.seek()
        assert len(xs(itertools.islice(loader, take))) == take
        assert xs(loader) == expected and len(loader) == 10
    endless = sx.Loader(sx.open(DATA), 5, epochs=None)
    assert [(next(iter(endless)).x[0], endless.epoch) for _ in range(3)] == [(0, 0), (0, 1), (0, 2)]


def test_only_the_first_loop_after_a_move_begins_inside_of_an_epoch() -> None:
    loader = sx.Loader(sx.open(DATA), 5)
    next(iter(loader))
    state = loader.state_dict()

    for move in ("seek", "load", "skip"):
        if move == "load":
            loader.load_state_dict(state)
        else:
            loader.seek(0, 5 if move == "seek" else 0)
            loader.skip(int(move == "skip"))
        iter(loader)  # takes nothing
        assert next(iter(loader)).x.tolist() == [5, 6, 7, 8, 9]
        assert next(iter(loader)).x.tolist() == [0, 1, 2, 3, 4] and loader.epoch == 1
    loop = iter(loader)
    next(loop)
    loader.skip(1)  # moves the loop, and the next one if this one takes no more
    assert xs(loader)[0] == [10, 11, 12, 13, 14]


def test_keep_position_continues_a_loop_that_was_left() -> None:
    for epochs in (1, 2, None):
        loader = sx.Loader(sx.open(DATA), 5, epochs=epochs, keep_position=True)
        assert [next(iter(loader)).x[0] for _ in range(7)] == [0, 5, 10, 15, 20, 0, 5]


def test_set_epoch_begins_an_epoch_but_not_one_that_a_state_is_in() -> None:
    loader, expected = sx.Loader(sx.open(DATA), 5, shuffle=True), sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=3)
    batches = xs(expected)
    for epoch in (0, 1, 1, 0, 2):  # as the Trainer of Hugging Face calls it
        loader.set_epoch(epoch)
        assert next(iter(loader)).x.tolist() == batches[5 * epoch]
    loader.load_state_dict(loader.state_dict())
    loader.batch_sampler.sampler.set_epoch(2)  # as Lightning calls it
    assert xs(loader) == batches[11:15]


def test_set_epoch_numbers_loops_that_may_have_several_epochs() -> None:
    batches = xs(sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=4))
    loader = sx.Loader(sx.open(DATA), 5, shuffle=True, epochs=2)
    for number in (0, 1, 1, 0):
        loader.set_epoch(number)
        assert xs(loader) == batches[10 * number : 10 * number + 10]
    state = loader.state_dict()  # at the end of a loop, where a run of its own has ended
    loader.load_state_dict(state)
    assert not xs(loader)
    loader.load_state_dict(state)
    loader.set_epoch(1)
    assert xs(loader) == batches[10:]
    loader.seek(3, 5)
    loader.set_epoch(1)
    assert xs(loader) == batches[16:]


@pytest.mark.parametrize("options", [{"epochs": None}, {"keep_position": True}, {"epochs": 2, "keep_position": True}])
def test_set_epoch_leaves_loaders_whose_loops_have_no_numbers(options: Any) -> None:
    loader = sx.Loader(sx.open(DATA), 5, **options)
    loader.seek(3, 5)
    loader.set_epoch(0)
    assert next(iter(loader)).x.tolist() == [5, 6, 7, 8, 9] and loader.epoch == 3


def test_a_loop_that_failed_is_followed_by_the_next_epoch_unless_it_keeps_its_position() -> None:
    def fail_once(sample: sx.DictSample) -> sx.DictSample:
        if sample.x == 7 and not failed:
            failed.append(7)
            raise ValueError("once")
        return sample

    for keep, epoch, first in ((False, 1, 0), (True, 0, 5)):
        failed = list[int]()
        loader = sx.Loader(sx.open(DATA), 5, transform=fail_once, keep_position=keep)
        with pytest.raises(ValueError, match="once"):
            xs(loader)
        assert (next(iter(loader)).x[0], loader.epoch) == (first, epoch)


def test_reads_grow_once_unless_a_loop_is_left() -> None:
    reads = list[int]()

    class Observed(Numbers):
        def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
            reads.append(len(rows))
            return super().read(rows, fields)

    loader = sx.Loader(sx.open(Observed(100)), 5)
    assert len(flat(loader)) == 100 and reads[-3:] == [5, 20, 75]
    reads.clear()
    assert len(flat(loader)) == 100 and reads == [100]
    next(iter(loader))
    reads.clear()
    loader.seek(loader.epoch)
    next(iter(loader))
    assert reads == [5]


def test_the_iterator_says_what_it_is() -> None:
    loader = sx.Loader(sx.open(DATA), 5)
    assert repr(iter(loader)) == f"Iterator(batches of {loader})"


def test_second_loop_closes_the_first() -> None:
    loader = sx.Loader(sx.open(DATA), 5)
    first = iter(loader)
    next(first)
    loader.seek()
    next(iter(loader))
    with pytest.raises(ClosedError, match="another loop began"):
        next(first)


def test_fields_views_and_anything_that_open_takes() -> None:
    batch = next(iter(sx.Loader(sx.open(DATA)[5:].select("x", "name"), 3, fields=["x"])))
    assert batch.keys() == ["x"] and batch.x.tolist() == [5, 6, 7]
    assert flat(sx.Loader(DATA, 3)) == list(range(23))
    with pytest.raises(FieldError, match="expected one of the fields x, name, got 'y'"):
        sx.Loader(DATA, 3, fields=["y"])


@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_datasets_smaller_than_a_batch(length: int, drop_last: bool, world: int) -> None:
    loaders = ranks(world, 2, dataset=sx.open(DATA)[:length], drop_last=drop_last)
    whole = length // (2 * world) * (2 * world) if drop_last else length
    for _ in range(2):
        assert together(loaders) == list(range(whole))
    assert [loader.epoch for loader in loaders] == [2] * world


def test_endless_loop_without_batches_raises() -> None:
    with pytest.raises(ArgumentError, match="expected samples for at least one batch, got 1 of 2 needed"):
        list(sx.Loader(DATA[:1], 2, drop_last=True, epochs=None))


# -- ragged fields --------------------------------------------------------------------------------------------------

RAGGED = [{"t": np.arange(k % 4 + 1, dtype=np.int32)} for k in range(8)]


def test_ragged_fields_are_padded_and_have_a_mask() -> None:
    batch = next(iter(sx.Loader(RAGGED, 4, fill=-1)))
    assert batch.t.tolist() == [[0, -1, -1, -1], [0, 1, -1, -1], [0, 1, 2, -1], [0, 1, 2, 3]]
    assert batch.lengths_of("t").tolist() == [1, 2, 3, 4]
    assert (batch.mask_of("t") == (batch.t >= 0)).all()
    with pytest.raises(FieldError, match="expected one of the fields t, got 'u'"):
        batch.mask_of("u")


def test_fill_by_field() -> None:
    data = [{"t": s["t"], "u": s["t"].astype(np.float32)} for s in RAGGED]
    batch = next(iter(sx.Loader(data, 4, fill={"u": np.nan})))
    assert batch.t[0].tolist() == [0, 0, 0, 0] and np.isnan(batch.u[0, 1:]).all()


def test_arrays_of_any_shape_are_padded() -> None:
    data = [{"a": np.ones((k + 1, 3 - k), np.uint8)} for k in range(3)]
    batch = next(iter(sx.Loader(data, 3, ragged="pad")))
    assert batch.a.shape == (3, 3, 3) and (batch.mask_of("a") == (batch.a == 1)).all()
    assert batch.lengths_of("a").tolist() == [[1, 3], [2, 2], [3, 1]]


def test_ragged_fields_packed_and_as_lists() -> None:
    packed = next(iter(sx.Loader(RAGGED, 4, ragged="pack"))).t
    assert packed.values.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3] and packed.offsets.tolist() == [0, 1, 3, 6, 10]
    assert [row.tolist() for row in next(iter(sx.Loader(RAGGED, 3, ragged="list"))).t] == [[0], [0, 1], [0, 1, 2]]


# -- transforms -----------------------------------------------------------------------------------------------------


def double(sample: sx.DictSample) -> dict[str, Any]:
    return {"x": sample.x * 2, "letters": np.frombuffer(sample.name.encode(), np.uint8)}


def noisy(sample: sx.DictSample, rng: np.random.Generator) -> dict[str, Any]:
    return {"x": sample.x, "noise": rng.random()}


def test_transform_and_collate() -> None:
    batch = next(iter(sx.Loader(DATA, 12, transform=double)))
    assert batch.x.tolist() == [2 * k for k in range(12)] and batch.letters.shape == (12, 3)
    sums = [int(total) for total in sx.Loader(DATA, 10, collate=lambda batch: batch.x.sum())]
    assert sums == [45, 145, 63]


def test_random_generator_of_a_transform_depends_on_the_position() -> None:
    whole = {x: noise for batch in sx.Loader(DATA, 5, shuffle=True, transform=noisy, epochs=2)
             for x, noise in zip(batch.x.tolist(), batch.noise.tolist(), strict=True)}  # fmt: skip
    loader = sx.Loader(DATA, 3, shuffle=True, transform=noisy)
    loader.seek(epoch=1)
    again = {x: noise for batch in loader for x, noise in zip(batch.x.tolist(), batch.noise.tolist(), strict=True)}
    assert again == whole and len(set(whole.values())) == 23


def test_numbers_keep_their_types_through_a_transform(tmp_path: Path) -> None:
    schema = {"a": "float32", "b": "int16", "c": "uint8", "d": "float16", "e": "int64"}
    ds = sx.write(tmp_path / "d", [{"a": 0.5, "b": k, "c": k, "d": 0.25, "e": k} for k in range(6)], schema)
    same = next(iter(sx.Loader(ds, 6, transform=lambda s: s)))
    assert {name: column.dtype.name for name, column in same.items()} == schema
    other = next(iter(sx.Loader(ds, 6, transform=lambda s: {"a": s.b, "b": s.b * 100_000, "c": s.a, "new": s.a})))
    assert [other[name].dtype.name for name in ("a", "b", "c", "new")] == ["int64", "int64", "float64", "float64"]


def test_collate_gets_mask_and_origin() -> None:
    def collate(batch: Any) -> Any:
        return batch.mask.tolist(), batch.origin.rows.tolist(), batch.origin.step

    got = list(sx.Loader(numbers(7), 2, collate=collate, rank=1, world_size=2))
    assert got == [([True, True], [2, 3], 0), ([True, False], [6, 0], 1)]


def test_transform_that_returns_no_sample_raises() -> None:
    for on_error in ("raise", "skip"):
        with pytest.raises(SchemaError, match=r"expected the transform to return a sample .* got int; .* at sample 0"):
            next(iter(sx.Loader(DATA, 3, transform=lambda sample: sample.x, on_error=on_error)))


def test_error_in_a_transform_names_the_position() -> None:
    def picky(sample: sx.DictSample) -> sx.DictSample:
        if sample.x == 7:
            raise ZeroDivisionError("seven")
        return sample

    loader = sx.Loader(DATA, 5, transform=picky)
    with pytest.raises(ZeroDivisionError, match="seven") as caught:
        list(loader)
    assert caught.value.__notes__ == ["in epoch 0, position 7: sample 7"]
    assert loader.position == 5  # the batches before it were delivered
    loader.skip(1)
    assert flat(loader) == list(range(10, 23))


def test_batch_does_not_depend_on_other_batches(tmp_path: Path) -> None:
    samples = [{"a": None if k == 39 else k, "t": np.arange(k % 3, dtype=np.int8)} for k in range(40)]
    ds = sx.write(tmp_path / "d", samples, {"a": int | None, "t": sx.Array("int8", (None,))})
    loader = sx.Loader(ds, 4)
    masks = [batch.mask_of("a").tolist() for batch in loader]
    assert masks == [[True] * 4] * 9 + [[True] * 3 + [False]]
    assert masks == [loader.replay(step).mask_of("a").tolist() for step in range(10)]


# -- ranks ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    length=st.integers(1, 70),
    world=st.integers(1, 9),
    batch_size=st.integers(1, 9),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_ranks_divide_one_global_sequence(
    length: int, world: int, batch_size: int, drop_last: bool, shuffle: bool
) -> None:
    ds = numbers(length)
    alone = flat(sx.Loader(ds, 1, shuffle=shuffle, seed=3, rank=0, world_size=1))
    loaders = ranks(world, batch_size, dataset=ds, shuffle=shuffle, seed=3, drop_last=drop_last)
    whole = length // (batch_size * world) * batch_size * world if drop_last else length
    assert len({len(loader) for loader in loaders}) == 1
    assert together(loaders) == alone[:whole]


def test_last_batch_is_filled_up_to_equal_length_on_all_ranks() -> None:
    last = [list(loader)[-1] for loader in ranks(4, 3, dataset=numbers(17))]
    assert [batch.x.tolist() for batch in last] == [[12, 13], [14, 15], [16, 0], [1, 2]]
    assert [batch.mask.tolist() for batch in last] == [[True, True], [True, True], [True, False], [False, False]]


def test_step_takes_consecutive_positions_over_all_ranks() -> None:
    firsts = [next(iter(loader)) for loader in ranks(3, 2, dataset=numbers(20))]
    assert [batch.x.tolist() for batch in firsts] == [[0, 1], [2, 3], [4, 5]]


# -- resume ---------------------------------------------------------------------------------------------------------


SIZES = [(1, 4), (2, 3), (3, 5)], [(1, 7), (2, 3), (4, 2)]
ORDERS: list[dict[str, Any]] = [{}, {"shuffle": True}, {"shuffle": True, "block": 4, "window": 2}]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_resume_after_every_batch_with_other_ranks_and_batch_size(order: dict[str, Any]) -> None:
    """The samples before and after the resume are together those of an uninterrupted run."""
    options = {"dataset": numbers(53), "seed": 11, "epochs": 2, **order}
    straight = flat(sx.Loader(batch_size=1, rank=0, world_size=1, **options))
    for before, after in itertools.product(*SIZES):
        for steps in range(len(ranks(*before, **options)[0]) + 1):
            first = ranks(*before, **options)
            seen = together(first, steps)
            states = [loader.state_dict() for loader in first]
            assert all(state == states[0] for state in states)
            second = ranks(*after, states[0], **options)
            assert seen + (together(second) if second[0].epoch < 2 else []) == straight


def test_resume_after_every_batch_with_drop_last() -> None:
    """Only the rest of an epoch that is dropped depends on the batch size."""
    options: dict[str, Any] = {"dataset": numbers(53), "shuffle": True, "epochs": 2, "drop_last": True}
    straight = flat(sx.Loader(batch_size=1, rank=0, world_size=1, **options))
    for before, after in itertools.product(*SIZES):
        for steps in range(len(ranks(*before, **options)[0]) + 1):
            first = ranks(*before, **options)
            seen = together(first, steps)
            second = ranks(*after, first[0].state_dict(), **options)
            seen += together(second) if second[0].epoch < 2 else []
            dropped = 106 - len(seen)
            left = [k for k in range(53 - 14, 54) if seen == straight[:k] + straight[53 : 106 - dropped + 53 - k]]
            assert left, "expected two epochs that lack only their ends"


@pytest.mark.parametrize("workers", [1, 2])
def test_resume_with_other_workers(workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 2, "transform": noisy}
    straight = flat(sx.Loader(DATA, 1, **options))
    with sx.Loader(DATA, 4, workers=workers, **options) as loader:
        for steps in range(7):
            loader.seek()
            seen = flat(itertools.islice(loader, steps))
            rest = sx.Loader(DATA, 3, **options)
            rest.load_state_dict(loader.state_dict())
            if steps < 6:
                assert seen + flat(rest) == straight


def test_state_is_small_json_and_counts_only_batches_taken() -> None:
    loader = sx.Loader(numbers(1000), 10, shuffle=True, workers=2, worker_type="thread", read_ahead=16)
    run = iter(loader)
    for taken in range(5):
        assert loader.state_dict()["position"] == taken * 10 == loader.position
        assert len(json.dumps(loader.state_dict())) < 400
        next(run)
    loader.close()


def test_state_of_another_run_raises() -> None:
    state = sx.Loader(DATA, 4, shuffle=True, seed=1).state_dict()
    for other, name in [
        (sx.Loader(DATA[:-1], 4, shuffle=True, seed=1), "data"),
        (sx.Loader(DATA, 4, shuffle=True, seed=2), "order"),
        (sx.Loader(DATA, 4), "order"),
        (sx.Loader(DATA, 4, shuffle=True, seed=1, block=5), "order"),
        (sx.Loader(sx.open(DATA)[::-1], 4, shuffle=True, seed=1), "data"),
    ]:
        with pytest.raises(StateError, match=f"at '{name}'.*; load_state_dict.*force=True"):
            other.load_state_dict(state)
        other.load_state_dict(state, force=True)
    sx.Loader(sx.open(DATA).select("x"), 4, shuffle=True, seed=1).load_state_dict(state)
    wrong: list[Any] = [{}, None, []]
    for nothing in wrong:
        with pytest.raises(StateError, match="expected a dict made by state_dict"):
            sx.Loader(DATA, 4).load_state_dict(nothing)


def test_finished_run_of_several_epochs_yields_nothing_after_a_resume() -> None:
    done = sx.Loader(DATA, 5, epochs=2)
    list(done)
    again = sx.Loader(DATA, 5, epochs=2)
    again.load_state_dict(done.state_dict())
    assert list(again) == [] and list(again) == []
    again.seek()
    assert len(list(again)) == 10
    one = sx.Loader(DATA, 5)  # with one epoch per loop the next loop is the next epoch
    one.load_state_dict({**done.state_dict()})
    assert len(list(one)) == 5 and one.epoch == 3


def test_skip_and_seek() -> None:
    loader = sx.Loader(numbers(20), 3)
    loader.skip(2)
    assert next(iter(loader)).x.tolist() == [6, 7, 8] and loader.step == 3
    loader.seek(epoch=1, position=10)
    assert flat(loader) == list(range(10, 20))


def test_active_loop_continues_after_skip() -> None:
    loader, seen = sx.Loader(numbers(20), 3), []
    for batch in loader:
        seen.append(batch.x.tolist())
        if len(seen) == 1:
            loader.skip(4)
    assert seen == [[0, 1, 2], [15, 16, 17], [18, 19]]


def test_skip_past_the_end_ends_the_loop() -> None:
    loader, seen = sx.Loader(numbers(20), 4), 0
    for _ in loader:
        seen += 1
        if seen == 3:
            loader.skip(2)
    assert seen == 3 and (loader.epoch, loader.position) == (1, 0)


def test_state_stays_small_after_many_seeks() -> None:
    loader = sx.Loader(numbers(20), 4)
    for epoch in range(300):
        loader.seek(epoch=epoch)
        next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 4000 and loader.replay(299).origin.epoch == 299
    with pytest.raises(ArgumentError, match="expected step 236 or later, earlier ones are forgotten, got step 5"):
        loader.replay(5)


def test_replay_returns_any_earlier_batch() -> None:
    ds, options = numbers(31), dict[str, Any](shuffle=True, seed=5, epochs=None)
    first = ranks(2, 3, dataset=ds, **options)
    seen = [[batch.x.tolist() for batch in parts] for parts in itertools.islice(zip(*first, strict=True), 9)]
    second = ranks(3, 4, first[0].state_dict(), dataset=ds, **options)
    seen += [[batch.x.tolist() for batch in parts] for parts in itertools.islice(zip(*second, strict=True), 5)]
    for step, parts in enumerate(seen):
        for rank, part in enumerate(parts):
            assert second[0].replay(step, rank).x.tolist() == part
    assert second[1].replay(13).x.tolist() == seen[13][1]
    assert second[0].step == 14  # replaying moves nothing
    with pytest.raises(ArgumentError, match="expected one of the 2 ranks that step 0 had, got rank 2"):
        second[2].replay(0)
    with pytest.raises(ArgumentError, match="expected one of the 14 steps taken so far"):
        second[0].replay(14)


def test_origin_of_a_batch(tmp_path: Path) -> None:
    for name in ("a", "b"):
        lines = [json.dumps({"x": k + 5 * (name == "b")}) for k in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    loader = sx.Loader(sx.open(str(tmp_path)), 4, shuffle=True, rank=1, world_size=2)
    batch = next(iter(loader))
    assert batch.origin.positions.tolist() == [4, 5, 6, 7] and (batch.origin.epoch, batch.origin.step) == (0, 0)
    assert batch.origin.rows.tolist() == batch.x.tolist()
    assert [Path(shard).name for shard in batch.origin.shards] == ["ab"[x // 5] + ".jsonl" for x in batch.x.tolist()]
    assert loader.origin is not None and (loader.origin.rows == batch.origin.rows).all()
    assert "step 0, epoch 0" in repr(batch.origin)
    again = pickle.loads(pickle.dumps(batch))
    assert again == batch and again.mask.all()
    with pytest.raises(FieldError, match="got one that was pickled"):
        _ = again.origin


# -- bad samples ----------------------------------------------------------------------------------------------------


def test_bad_sample_raises_at_its_batch_by_default() -> None:
    loader = sx.Loader(numbers(100, bad=[42]), 4)
    with pytest.raises(FormatError, match="sample 42 is broken") as caught:
        list(loader)
    assert loader.position == 40 and caught.value.__notes__ == ["in epoch 0, positions 40 to 43"]


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_replaces_bad_samples(workers: int) -> None:
    bad = [3, 42, 43, 99]
    with sx.Loader(numbers(100, bad), 8, shuffle=True, workers=workers, on_error="skip") as loader:
        batches = list(loader)
    good = sx.Loader(numbers(100), 8, shuffle=True)
    for batch, expected in zip(batches, good, strict=True):
        assert (batch.x == expected.x)[batch.mask].all()
        assert not set(batch.x.tolist()) & set(bad)
    assert sorted(flat(batches)) == sorted(set(range(100)) - set(bad))
    assert sorted(skip.row for skip in loader.skipped) == bad and loader.stats.skipped == 4
    assert loader.skipped[0].error.startswith("FormatError: sample")


def test_replacements_are_the_same_on_any_ranks_and_after_a_resume() -> None:
    ds = numbers(60, bad=[5, 6, 7, 50])
    options: dict[str, Any] = {"dataset": ds, "shuffle": True, "on_error": "skip"}

    def by_position(loaders: Sequence[sx.Loader]) -> dict[int, int]:
        return {
            position: x
            for loader in loaders
            for batch in loader
            for position, x in zip(batch.origin.positions.tolist(), batch.x.tolist(), strict=True)
        }

    alone = by_position([sx.Loader(batch_size=7, **options)])
    assert by_position(ranks(3, 4, **options)) == alone
    resumed = sx.Loader(batch_size=9, **options)
    resumed.seek(0, 25)
    assert by_position([resumed]) == {p: x for p, x in alone.items() if p >= 25}


def test_sample_whose_transform_fails_is_replaced() -> None:
    def picky(sample: sx.DictSample) -> sx.DictSample:
        if sample.x % 10 == 7:
            raise ValueError("seven")
        return sample

    loader = sx.Loader(numbers(40), 8, transform=picky, on_error="skip")
    assert flat(loader) == [x for x in range(40) if x % 10 != 7]
    assert [skip.position for skip in loader.skipped] == [7, 17, 27, 37]


@pytest.mark.parametrize("workers", [0, 1])
def test_on_error_function_gets_every_bad_sample_and_may_raise(workers: int) -> None:
    reported: list[BadSample] = []
    with sx.Loader(numbers(20, bad=[4]), 5, on_error=reported.append, workers=workers, worker_type="process") as loader:
        batches = list(loader)
    assert reported == loader.skipped and batches[0].x[4] == reported[0].instead
    assert [(bad.position, bad.row, bad.error) for bad in reported] == [(4, 4, "FormatError: sample 4 is broken")]

    def stop(bad: BadSample) -> None:
        raise KeyError(bad.row)

    with pytest.raises(KeyError, match="4"):
        list(sx.Loader(numbers(20, bad=[4]), 5, on_error=stop))


def test_random_failures_of_a_transform_are_replaced() -> None:
    def unlucky(sample: sx.DictSample, rng: np.random.Generator) -> sx.DictSample:
        if rng.random() < 0.3:
            raise ValueError("unlucky")
        return sample

    loader = sx.Loader(numbers(100), 8, transform=unlucky, on_error="skip")
    assert 10 < 100 - len(flat(loader)) < 50
    assert len({bad.position for bad in loader.skipped}) == len(loader.skipped) == loader.stats.skipped


def test_error_if_all_replacements_fail() -> None:
    with pytest.raises(ShardexError, match=r"expected some good samples, got a bad one at position 0 .* and at all 32"):
        list(sx.Loader(numbers(20, bad=range(20)), 5, on_error="skip"))


# -- workers --------------------------------------------------------------------------------------------------------


def fragile(sample: sx.DictSample) -> sx.DictSample:
    if sample.x == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_death_of_a_worker_is_reported_and_the_run_can_continue() -> None:
    loader = sx.Loader(DATA, 4, transform=fragile, workers=2)
    with pytest.raises(WorkerError, match=r"was killed by signal 9 .* at task Plan\(epoch=0, position=12"):
        list(loader)
    assert loader.position <= 12
    loader.seek(0, 16)
    assert flat(loader) == list(range(16, 23))
    loader.close()


def test_error_in_a_worker_has_its_traceback() -> None:
    def strict(sample: sx.DictSample) -> sx.DictSample:
        assert sample.x != 13, "thirteen"
        return sample

    with sx.Loader(DATA, 4, transform=strict, workers=1) as loader:
        with pytest.raises(AssertionError, match="thirteen") as caught:
            list(loader)
        assert loader.position == 12 and "in strict" in str(caught.value.__cause__)
        loader.skip(1)
        assert flat(loader) == list(range(16, 23))  # by the same worker


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_leaving_a_loop_early_leaves_no_process(kind: str) -> None:
    before = psutil.Process().children()  # other tests may have a server
    with sx.Loader(numbers(1000), 10, workers=2, worker_type=kind) as loader:  # type: ignore[call-overload]
        for _ in range(3):
            assert flat(itertools.islice(loader, 3)) == list(range(30))
            loader.seek()
    assert not set(psutil.Process().children()) - set(before)


def test_batches_of_a_worker_keep_their_values_and_are_writable() -> None:
    with sx.Loader(numbers(2000), 500, workers=1, worker_type="process") as loader:
        kept = list(loader)
    for batch in kept:
        batch.x[:] += 1
    assert np.concatenate([batch.x for batch in kept]).tolist() == list(range(1, 2001))


SCRIPT = """
    import sys, time
    import shardex as sx

    loader = sx.Loader([{"x": k} for k in range(1000)], 10, workers=2, transform=lambda s: {"x": s.x}, epochs=None)
    for number, batch in enumerate(loader):
        if number == 5:
            print(*[worker.process.pid for worker in loader._executor._workers.values()], flush=True)
        time.sleep(0.001)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_stopped_script_leaves_no_process(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as script:
        assert script.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in script.stdout.readline().split()]
        assert len(workers) == 2
        script.send_signal(how)
        assert script.wait(60) != 0
        _, alive = psutil.wait_procs(workers, timeout=60)
        assert not alive


def test_abandoned_loop_does_not_disturb_the_next() -> None:
    with sx.Loader(numbers(40), 2, workers=1, worker_type="process") as loader:
        first = iter(loader)
        next(first)
        loader.seek(0, 2)
        second = iter(loader)
        next(second)
        del first
        assert flat(second) == list(range(4, 40))
        stale, fresh = iter(loader), iter(loader)
        next(fresh)
        with pytest.raises(ClosedError):
            next(stale)


def test_forked_process_starts_its_own_workers() -> None:
    loader = sx.Loader(numbers(40), 4, workers=2, worker_type="thread")
    next(iter(loader))
    loader.seek(0, 4)
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(writer, str(next(iter(loader)).x.tolist()).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 100) == b"[4, 5, 6, 7]"
    os.close(reader)
    os.close(writer)
    loader.close()


# -- mixtures -------------------------------------------------------------------------------------------------------


def sources() -> dict[str, sx.Dataset]:
    """Three sources of different length with different values."""
    return {name: sx.open([{"x": base + k} for k in range(length)])
            for name, base, length in [("a", 0, 40), ("b", 100, 7), ("c", 200, 13)]}  # fmt: skip


def mixture(weights: dict[str, float] | None = None, seed: int | None = 1) -> sx.Dataset:
    return sx.mix(sources(), weights or {"a": 0.5, "b": 0.25, "c": 0.25}, seed=seed)


def test_mixture_has_its_proportions_in_every_batch() -> None:
    for batch in sx.Loader(mixture(), 12, epochs=3):
        counts = [batch.origin.sources.count(name) for name in "abc"]
        assert counts == [6, 3, 3]
        assert [("a", "b", "c")[x // 100] for x in batch.x.tolist()] == batch.origin.sources


def test_epochs_of_a_mixture_continue_where_the_last_one_stopped() -> None:
    seen = flat(sx.Loader(mixture(), 12, epochs=2))  # 120 samples: 60 of a, 30 of b, 30 of c
    a, b = [x for x in seen if x < 100], [x for x in seen if 100 <= x < 200]
    assert sorted(a[:40]) == list(range(40)) and len(set(a[40:])) == 20
    assert [sorted(b[k : k + 7]) for k in range(0, 28, 7)] == [list(range(100, 107))] * 4


def test_shuffle_sets_the_seed_of_a_mixture_and_keeps_its_proportions() -> None:
    loader = sx.Loader(mixture(seed=None), 12, shuffle=True, seed=5)
    assert all([batch.origin.sources.count(name) for name in "abc"] == [6, 3, 3] for batch in loader)
    assert flat(sx.Loader(mixture(seed=None), 12, shuffle=True, seed=5)) == flat(sx.Loader(mixture(seed=5), 12))
    assert flat(sx.Loader(mixture(seed=None), 60))[:6] == [200, 0, 100, 1, 201, 2]


def test_mixture_cannot_be_shuffled_in_blocks() -> None:
    with pytest.raises(ArgumentError, match="expected a mixture to be shuffled without block="):
        sx.Loader(mixture(), 12, shuffle=True, block=4)


@pytest.mark.parametrize("steps", range(11))
def test_mixture_resumes_after_every_batch(steps: int) -> None:
    options: dict[str, Any] = {"dataset": mixture(), "epochs": 2}
    straight = flat(sx.Loader(batch_size=1, **options))
    first = ranks(2, 6, **options)
    seen = together(first, steps)
    second = ranks(3, 5, first[0].state_dict(), **options)
    assert seen + (together(second) if steps < 10 else []) == straight


def test_states_of_other_mixtures_raise() -> None:
    state = sx.Loader(mixture(seed=1), 12).state_dict()
    both = list(sources().values())
    others = [mixture(seed=2), sx.concat(*both), sx.mix(both, [2, 1, 1], seed=1)]
    for other in others:
        with pytest.raises(StateError, match=r"at 'order'|at 'data'"):
            sx.Loader(other, 12).load_state_dict(state)
        sx.Loader(other, 12).load_state_dict(state, force=True)
    with pytest.raises(StateError, match="expected phases of a mixture"):
        sx.Loader(mixture(seed=1), 12).load_state_dict({**state, "phases": [["a"]]})
    json.dumps(sx.Loader(sx.mix(both, seed=np.int64(3)), 12).state_dict())  # type: ignore[arg-type]


def test_weights_may_change_at_a_resume() -> None:
    first = sx.Loader(mixture(), 12, epochs=None)
    seen = flat(itertools.islice(first, 7))
    state = json.loads(json.dumps(first.state_dict()))
    new = mixture({"a": 0.0, "b": 0.25, "c": 0.75})
    second = sx.Loader(new, 8, epochs=None, keep_position=True)
    with pytest.raises(StateError, match=r"weights \(0, 1, 3\), got one with \(2, 1, 1\); .*reweight=True"):
        second.load_state_dict(state)
    second.load_state_dict(state, reweight=True)
    batches = list(itertools.islice(second, 4))
    assert all(batch.origin.sources.count("c") == 6 for batch in batches)
    for low, length in [(100, 7), (200, 13)]:  # sources continue in the middle of their passes
        own = [x for x in seen + flat(batches) if low <= x < low + 100]
        assert all(len(set(own[k : k + length])) == len(own[k : k + length]) for k in range(0, len(own), length))
    third = sx.Loader(new, 12, epochs=None)
    third.load_state_dict(json.loads(json.dumps(second.state_dict())))
    assert flat(itertools.islice(third, 3))[:20] == flat(itertools.islice(second, 3))
    assert third.replay(2).x.tolist() == seen[24:36]
    assert third.replay(8).x.tolist() == batches[1].x.tolist()


def test_origin_rows_are_numbers_in_the_dataset_or_the_source() -> None:
    named = sources()
    for batch in sx.Loader(mixture(), 12, epochs=2):
        pairs = zip(batch.origin.sources, batch.origin.rows.tolist(), strict=True)
        assert [named[name][row].x for name, row in pairs] == batch.x.tolist()
    view = sx.open(DATA)[3:20:2]
    for batch in sx.Loader(view, 4, shuffle=True):
        assert [view[row].x for row in batch.origin.rows.tolist()] == batch.x.tolist()


def test_sources_of_a_single_dataset_raise() -> None:
    with pytest.raises(ArgumentError, match="expected a mixture of datasets"):
        _ = next(iter(sx.Loader(DATA, 4))).origin.sources


# -- scale ----------------------------------------------------------------------------------------------------------


def test_billion_rows_need_no_memory() -> None:
    loader = sx.Loader(numbers(10**9), 256, shuffle=True, seed=1, rank=3, world_size=64)
    loader.seek(epoch=2, position=5 * 10**8)
    batch = next(iter(loader))
    assert len(set(batch.x.tolist())) == 256 and batch.x.max() < 10**9
    assert batch.origin.positions[0] == 5 * 10**8 + 3 * 256
    assert len(loader) == -(-(10**9) // (256 * 64))


# -- statistics -----------------------------------------------------------------------------------------------------


def test_statistics_of_a_loader() -> None:
    loader = sx.Loader(DATA, 5, transform=double)
    assert loader.stats.bottleneck == "nothing"
    list(loader)
    assert (loader.stats.samples, loader.stats.batches) == (23, 5)
    assert loader.stats.spent.transform > 0 and loader.stats.bottleneck in ("decode", "transform", "storage")
    assert "23 samples in 5 batches" in str(loader.stats)
    assert "epoch 1, position 0, step 5" in repr(loader)


# -- versions of native datasets -----------------------------------------------------------------------------------


def test_state_knows_the_version_of_its_dataset(tmp_path: Path) -> None:
    """After an edit the error names both versions, and the state says which one to open."""
    path = tmp_path / "d"
    sx.write(path, [{"x": k} for k in range(10)])
    loader = sx.Loader(sx.open(path), 2)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["versions"] == [1] and sx.open(path).version == 1
    sx.write(path, [{"x": 10}], mode="append")
    with pytest.raises(StateError, match=r"saved for version 1, this is version 2: sx.open\(path, version=1\)"):
        sx.Loader(sx.open(path), 2).load_state_dict(state)
    resumed = sx.Loader(sx.open(path, version=state["versions"][0]).select("x"), 2)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).x.tolist() == [2, 3]
    del state["versions"]  # saved by an older shardex
    resumed.load_state_dict(state)
    with pytest.raises(StateError, match="open the version it was saved for"):
        sx.Loader(sx.open(path), 2).load_state_dict(state)


def test_state_knows_how_its_samples_were_made() -> None:
    documents = sx.open([{"tokens": np.arange(50)}] * 20)
    state = json.loads(json.dumps(sx.Loader(documents.pack(10), batch_size=2).state_dict()))
    for other, made in (
        (documents.pack(20), r"packed into 20 tokens \(concat\)"),
        (documents.windows(10), "windows of 10 tokens"),
        (documents, "all"),
    ):
        message = rf"at 'data' \(it was saved for samples packed into 10 tokens \(concat\), these are {made}: "
        with pytest.raises(StateError, match=message):
            sx.Loader(other, batch_size=2).load_state_dict(state)
    sx.Loader(documents.pack(10), batch_size=4).load_state_dict(state)


def test_state_of_several_datasets_knows_their_versions(tmp_path: Path) -> None:
    for name in "ab":
        sx.write(tmp_path / name, [{"x": k} for k in range(4)])
    sx.write(tmp_path / "b", [{"x": 4}], mode="append")
    plain = sx.open([{"x": 9}])

    def mixed() -> sx.Dataset:
        return sx.concat(sx.open(tmp_path / "a"), sx.open(tmp_path / "b"), plain)

    state = sx.Loader(mixed(), 2).state_dict()
    assert state["versions"] == [1, 2, None] and mixed().version is None
    assert "versions" not in sx.Loader(plain, 1).state_dict()
    sx.write(tmp_path / "a", [{"x": 4}], mode="append")
    with pytest.raises(StateError, match=r"saved for the versions \[1, 2, None\] of the datasets, these are \[2"):
        sx.Loader(mixed(), 2).load_state_dict(state)


LOOP = """
import resource, sys
import numpy as np
import shardex as sx

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def work(batch):
    return [np.ones(250_000, np.uint8) for _ in range(100)]  # as a loop that decodes images

data = sx.open({"x": np.arange(1200)})
counts = []
for batch in sx.Loader(data, 100) if sys.argv[1] == "loader" else range(12):
    before = faults()
    work(batch)
    counts.append(faults() - before)
print(sum(counts[2:]) / 1000)
"""


def test_memory_that_a_loop_frees_is_kept() -> None:
    """A page is not got again from the system for each batch; without a loader glibc does so."""

    def faults_of_an_array(how: str, **more: str) -> float:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | more
        done = subprocess.run([sys.executable, "-c", LOOP, how], env=environment, capture_output=True, check=True)
        return float(done.stdout)

    if faults_of_an_array("plain") < 30:
        pytest.skip("this allocator keeps freed memory anyway")
    assert faults_of_an_array("loader") < 10
    assert faults_of_an_array("loader", MALLOC_TRIM_THRESHOLD_="131072") > 30  # the user has chosen


def test_fields_with_names_of_attributes_of_batches_are_warned_of() -> None:
    data = sx.open([{"x": k, "mask": [k, k], "to": k} for k in range(4)])
    with pytest.warns(
        UserWarning, match=r"not the field 'mask'.*batch\['mask'\].*ds.rename\(mask=.*so are to"
    ) as found:
        batch = next(iter(sx.Loader(data, 4)))
    assert found[0].filename == __file__
    assert batch.mask.tolist() == [True] * 4 and batch["to"].tolist() == [0, 1, 2, 3]
    with pytest.warns(UserWarning, match="not the field 'mask'"):
        next(iter(sx.Loader(data, 4, collate=lambda batch: batch["x"])))
    next(iter(sx.Loader(data, 4, fields=["x"])))
    next(iter(sx.Loader(data, 4, collate=dict)))


@pytest.mark.parametrize("to", ["numpy", "torch"])
@pytest.mark.parametrize("ragged", ["pad", "pack", "list"])
def test_samples_of_a_batch_have_no_padding(tmp_path: Path, to: Any, ragged: Any) -> None:
    floats = sx.Optional(sx.Array("float64", (None,)))
    rows = [{"w": np.arange(n), "v": np.zeros((n, 2)), "o": None if n == 3 else np.ones(n)} for n in (1, 3, 2)]
    schema = {"w": sx.Array("int64", (None,)), "v": sx.Array("float64", (None, 2)), "o": floats}
    ds = sx.write(tmp_path / "d", rows, schema)
    (batch,) = sx.Loader(ds, 3, to=to, ragged=ragged)
    for samples in (batch.samples, [batch[k] for k in range(3)], list(batch[0:3])):
        assert [one.w.tolist() for one in samples] == [[0], [0, 1, 2], [0, 1]]
        assert [tuple(one.v.shape) for one in samples] == [(1, 2), (3, 2), (2, 2)]
        assert [one.o if one.o is None else len(one.o) for one in samples] == [1, None, 2]
