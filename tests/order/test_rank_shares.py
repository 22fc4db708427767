"""Dealing is against plain lists: the ranks together have the epoch, in the same order however many they are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import SchemaError
from shardex.kernel import Integers
from shardex.order import RankShares, Shuffle, chain
from shardex.order.rank_shares import share

lengths = st.integers(0, 300) | st.sampled_from([0, 1, 2, 97, 1000, 1009])
worlds = st.integers(1, 64)
batches = st.integers(1, 20)


def local(deal: RankShares) -> Integers:
    return np.arange(len(deal))


def ranks(length: int, batch: int, world: int, start: int = 0, drop_last: bool = False) -> list[RankShares]:
    return [RankShares(length, batch, rank, world, start, drop_last) for rank in range(world)]


def together(deals: list[RankShares]) -> tuple[list[int], list[int]]:
    """The positions of all ranks, batch by batch: those that belong there, and those that fill up."""
    real, fills = [], []
    for batch in range(deals[0].batches):
        for deal in deals:
            numbers = np.arange(*deal.span(batch))
            mask = deal.mask(numbers)
            real += deal.rows(numbers)[mask].tolist()
            fills += deal.rows(numbers)[~mask].tolist()
    return real, fills


@given(lengths, worlds)
def test_shares_partition(length: int, world: int) -> None:
    shares = [share(length, rank, world) for rank in range(world)]
    rows = [one.rows(np.arange(len(one))).tolist() for one in shares]
    assert rows == [list(range(length))[rank::world] for rank in range(world)]


@given(lengths, batches, worlds, st.data())
def test_the_ranks_together_have_the_rest_of_the_epoch(
    length: int, batch: int, world: int, data: st.DataObject
) -> None:
    """Whatever world and batch are, so also when a run goes on with others."""
    start = data.draw(st.integers(0, length))
    deals = ranks(length, batch, world, start)
    real, fills = together(deals)
    assert real == list(range(start, length))
    assert len({(len(deal), deal.batches) for deal in deals}) == 1
    assert fills == [k % length for k in range(len(fills))] and len(fills) < world


@given(lengths, batches, worlds, st.data())
def test_drop_last_drops_only_what_is_left(length: int, batch: int, world: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, length))
    deals = ranks(length, batch, world, start, drop_last=True)
    whole = (length - start) // (batch * world)
    assert together(deals) == (list(range(start, start + whole * batch * world)), [])
    assert all(deal.batches == whole and len(deal) == whole * batch for deal in deals)


@given(lengths, batches, worlds, batches, worlds, st.data())
def test_a_run_goes_on_with_another_world(
    length: int, batch: int, world: int, other_batch: int, other_world: int, data: st.DataObject
) -> None:
    """Stop after any global batch, go on with any other shape: every position comes once, in order."""
    first = ranks(length, batch, world)
    stop = data.draw(st.integers(0, length // (batch * world)))
    before = [int(p) for k in range(stop) for deal in first for p in deal.rows(np.arange(*deal.span(k)))]
    after, _ = together(ranks(length, other_batch, other_world, start=len(before)))
    assert before + after == list(range(length))


@given(lengths, batches, worlds, st.booleans(), st.data())
def test_against_lists(length: int, batch: int, world: int, drop_last: bool, data: st.DataObject) -> None:
    start, rank = data.draw(st.integers(0, length)), data.draw(st.integers(0, world - 1))
    expected = []
    for begin in range(start, length, batch * world):
        left = min(batch * world, length - begin)
        each = -(-left // world)
        if left == batch * world or not drop_last:
            expected += [list(range(begin + rank * each, begin + (rank + 1) * each))]
    deal = RankShares(length, batch, rank, world, start, drop_last)
    assert [deal.span(k)[1] - deal.span(k)[0] for k in range(deal.batches)] == [len(one) for one in expected]
    flat = [position for one in expected for position in one]
    assert deal.rows(local(deal)).tolist() == [position % length for position in flat]
    assert deal.mask(local(deal)).tolist() == [position < length for position in flat]
    backwards = local(deal)[::-1]
    assert deal.rows(backwards).tolist() == [position % length for position in flat[::-1]]


def test_one_rank_gets_a_short_last_batch_and_no_fill() -> None:
    deal = RankShares(10, 4)
    assert [deal.span(k) for k in range(deal.batches)] == [(0, 4), (4, 8), (8, 10)] and deal.mask(local(deal)).all()


def test_fewer_samples_than_ranks_go_around() -> None:
    assert [deal.rows(local(deal)).tolist() for deal in ranks(2, 4, 5)] == [[0], [1], [0], [1], [0]]
    assert [deal.mask(local(deal)).tolist() for deal in ranks(2, 4, 5)] == [[True], [True], [False], [False], [False]]


@pytest.mark.parametrize("length", [10**12, 2**62 - 1])
def test_huge_epochs_overflow_nowhere(length: int) -> None:
    for deal in ranks(length, 7, 64, start=length // 3)[::9]:
        numbers = np.array([0, 1, len(deal) // 2, len(deal) - 2, len(deal) - 1])
        whole, last = divmod(length - length // 3, 7 * 64)
        each = -(-last // 64)
        expected = []
        for number in numbers.tolist():
            k, j = divmod(number, 7)
            expected.append((length // 3 + k * 7 * 64 + deal.rank * (7 if k < whole else each) + j) % length)
        assert deal.rows(numbers).tolist() == expected and deal.batches == whole + (last > 0)


def test_an_epoch_with_nothing_left_has_no_batch() -> None:
    for deal in (
        RankShares(0, 4),
        RankShares(10, 4, start=10),
        RankShares(0, 1, 2, 3),
        RankShares(10, 4, 1, 2, 10),
        RankShares(3, 4, drop_last=True),
    ):
        assert len(deal) == deal.batches == len(deal.rows(local(deal))) == len(deal.mask(local(deal))) == 0


def test_a_deal_is_an_order() -> None:
    view = chain(RankShares(10, 2, rank=1, world=2), Shuffle(10, 3))
    assert view.rows(np.arange(4)).tolist() == Shuffle(10, 3).rows(np.array([2, 3, 6, 7])).tolist()
    assert pickle.loads(pickle.dumps(RankShares(10, 2, 1, 2))) == RankShares(10, 2, 1, 2)


def test_what_cannot_be_dealt_is_refused() -> None:
    with pytest.raises(SchemaError, match="rank from 0 to 1 in a world of 2, got 2"):
        RankShares(10, 1, rank=2, world=2)
    with pytest.raises(SchemaError, match="rank from 0 to 3 in a world of 4, got -1"):
        share(10, -1, 4)
    with pytest.raises(SchemaError, match="at least 1 sample, got 0"):
        RankShares(10, 0)
    with pytest.raises(SchemaError, match="start from 0 to 10, got 11"):
        RankShares(10, 1, start=11)
