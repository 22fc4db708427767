"""Shares of ranks compared with plain lists: together they are the epoch, in the same order for any world size."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError
from shardex.kernel import Integers
from shardex.order import RankShares, Shuffle, chain

lengths = st.integers(0, 300) | st.sampled_from([0, 1, 2, 97, 1000, 1009])
worlds = st.integers(1, 64)
batches = st.integers(1, 20)


def numbers_of(share: RankShares) -> Integers:
    return np.arange(len(share))


def ranks(length: int, batch: int, world: int, start: int = 0, drop_last: bool = False) -> list[RankShares]:
    return [RankShares(length, batch, rank, world, start, drop_last) for rank in range(world)]


def together(shares: list[RankShares]) -> tuple[list[int], list[int]]:
    """The positions of all ranks, batch by batch: regular ones, and those that fill up."""
    real, fills = [], []
    for batch in range(shares[0].batches):
        for share in shares:
            numbers = np.arange(*share.span(batch))
            mask = share.mask(numbers)
            real += share.rows(numbers)[mask].tolist()
            fills += share.rows(numbers)[~mask].tolist()
    return real, fills


@given(lengths, batches, worlds, st.data())
def test_ranks_together_have_the_rest_of_the_epoch(length: int, batch: int, world: int, data: st.DataObject) -> None:
    """For any world and batch size."""
    start = data.draw(st.integers(0, length))
    shares = ranks(length, batch, world, start)
    real, fills = together(shares)
    assert real == list(range(start, length))
    assert len({(len(share), share.batches) for share in shares}) == 1
    assert fills == [k % length for k in range(len(fills))] and len(fills) < world


@given(lengths, batches, worlds, st.data())
def test_drop_last_drops_only_the_incomplete_batch(length: int, batch: int, world: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length))
    shares = ranks(length, batch, world, start, drop_last=True)
    whole = (length - start) // (batch * world)
    assert together(shares) == (list(range(start, start + whole * batch * world)), [])
    assert all(share.batches == whole and len(share) == whole * batch for share in shares)


@given(lengths, batches, worlds, batches, worlds, st.data())
def test_run_continues_with_another_world(
    length: int, batch: int, world: int, other_batch: int, other_world: int, data: st.DataObject
) -> None:
    """Stop after any step, continue with any other batch and world size: every position comes once, in order."""
    first = ranks(length, batch, world)
    stop = data.draw(st.integers(0, length // (batch * world)))
    before = [int(p) for k in range(stop) for share in first for p in share.rows(np.arange(*share.span(k)))]
    after, _ = together(ranks(length, other_batch, other_world, start=len(before)))
    assert before + after == list(range(length))


@given(lengths, batches, worlds, st.booleans(), st.data())
def test_positions_and_masks_equal_plain_lists(
    length: int, batch: int, world: int, drop_last: bool, data: st.DataObject
) -> None:
    start, rank = data.draw(st.integers(0, length)), data.draw(st.integers(0, world - 1))
    expected = []
    for begin in range(start, length, batch * world):
        left = min(batch * world, length - begin)
        each = -(-left // world)
        if left == batch * world or not drop_last:
            expected += [list(range(begin + rank * each, begin + (rank + 1) * each))]
    share = RankShares(length, batch, rank, world, start, drop_last)
    assert [share.span(k)[1] - share.span(k)[0] for k in range(share.batches)] == [len(one) for one in expected]
    flat = [position for one in expected for position in one]
    assert share.rows(numbers_of(share)).tolist() == [position % length for position in flat]
    assert share.mask(numbers_of(share)).tolist() == [position < length for position in flat]
    backwards = numbers_of(share)[::-1]
    assert share.rows(backwards).tolist() == [position % length for position in flat[::-1]]


def test_single_rank_gets_a_short_last_batch_without_fill() -> None:
    share = RankShares(10, 4)
    assert [share.span(k) for k in range(share.batches)] == [(0, 4), (4, 8), (8, 10)] and share.mask(
        numbers_of(share)
    ).all()


def test_fewer_samples_than_ranks_are_repeated() -> None:
    assert [share.rows(numbers_of(share)).tolist() for share in ranks(2, 4, 5)] == [[0], [1], [0], [1], [0]]
    assert [share.mask(numbers_of(share)).tolist() for share in ranks(2, 4, 5)] == [
        [True],
        [True],
        [False],
        [False],
        [False],
    ]


@pytest.mark.parametrize("length", [10**12, 2**62 - 1])
def test_huge_epochs_do_not_overflow(length: int) -> None:
    for share in ranks(length, 7, 64, start=length // 3)[::9]:
        numbers = np.array([0, 1, len(share) // 2, len(share) - 2, len(share) - 1])
        whole, last = divmod(length - length // 3, 7 * 64)
        each = -(-last // 64)
        expected = []
        for number in numbers.tolist():
            k, j = divmod(number, 7)
            expected.append((length // 3 + k * 7 * 64 + share.rank * (7 if k < whole else each) + j) % length)
        assert share.rows(numbers).tolist() == expected and share.batches == whole + (last > 0)


def test_empty_rest_of_an_epoch_has_no_batch() -> None:
    for share in (
        RankShares(0, 4),
        RankShares(10, 4, start=10),
        RankShares(0, 1, 2, 3),
        RankShares(10, 4, 1, 2, 10),
        RankShares(3, 4, drop_last=True),
    ):
        assert (
            len(share) == share.batches == len(share.rows(numbers_of(share))) == len(share.mask(numbers_of(share))) == 0
        )


def test_rank_shares_are_an_order() -> None:
    view = chain(RankShares(10, 2, rank=1, world=2), Shuffle(10, 3))
    assert view.rows(np.arange(4)).tolist() == Shuffle(10, 3).rows(np.array([2, 3, 6, 7])).tolist()
    assert pickle.loads(pickle.dumps(RankShares(10, 2, 1, 2))) == RankShares(10, 2, 1, 2)


def test_invalid_rank_batch_and_start_raise() -> None:
    with pytest.raises(ArgumentError, match="rank from 0 to 1 in a world of 2, got 2"):
        RankShares(10, 1, rank=2, world=2)
    with pytest.raises(ArgumentError, match="rank from 0 to 3 in a world of 4, got -1"):
        RankShares(10, 1, rank=-1, world=4)
    with pytest.raises(ArgumentError, match="at least 1 sample, got 0"):
        RankShares(10, 0)
    with pytest.raises(ArgumentError, match="start from 0 to 10, got 11"):
        RankShares(10, 1, start=11)
