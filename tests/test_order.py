"""Orders are pure functions: against plain Python, and statistically."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import RowError
from shardex.order import Chain, Order, Pick, Shuffle, Span, chain

SIZES = [1, 2, 3, 5, 7, 8, 9, 64, 65, 97, 1000, 4096, 10_007]


def everything(order: Order) -> list[int]:
    return list(map(int, order.rows(np.arange(len(order)))))


ends = st.none() | st.integers(-30, 30)


@given(st.integers(0, 30), ends, ends, st.sampled_from([-3, -1, 1, 2, 5]))
def test_a_span_is_a_slice(length: int, start: int | None, stop: int | None, step: int) -> None:
    where = slice(start, stop, step)
    first, last, by = where.indices(length)
    assert everything(Span(len(range(first, last, by)), first, by)) == list(range(length))[where]


@given(st.integers(2, 50), st.data())
def test_chains_are_orders_of_orders(length: int, data: st.DataObject) -> None:
    """Whatever `chain` simplifies, the rows are those of one order after the other."""
    inners: list[Order] = [Span(length), Span(length, 7, 3), Shuffle(length, 3), Pick(np.arange(length)[::-1])]
    outers: list[Order] = [Span(length), Span(length // 2, 1), Shuffle(length, 9), Pick(np.array([1, 0, 1]))]
    inner, outer = data.draw(st.sampled_from(inners)), data.draw(st.sampled_from(outers))
    rows = everything(inner)
    assert everything(chain(outer, inner)) == [rows[k] for k in everything(outer)]
    assert everything(Chain(outer, inner)) == everything(chain(outer, inner))


@pytest.mark.parametrize("size", SIZES)
def test_a_shuffle_is_a_permutation_and_its_inverse_is_exact(size: int) -> None:
    for seed in range(5):
        order = Shuffle(size, seed, epoch=seed % 2)
        rows = order.rows(np.arange(size))
        assert sorted(rows.tolist()) == list(range(size))
        assert order.positions(rows).tolist() == list(range(size))


@pytest.mark.parametrize("size", [10**9, 10**12, 2**40, 2**62 - 1])
def test_a_huge_shuffle_costs_nothing_and_inverts(size: int) -> None:
    positions = np.random.default_rng(0).integers(0, size, 1000)
    order = Shuffle(size, seed=4)
    rows = order.rows(positions)
    assert rows.min() >= 0 and rows.max() < size
    assert (order.positions(rows) == positions).all()


def test_seed_and_epoch_choose_the_order() -> None:
    orders = [tuple(everything(Shuffle(100, seed, epoch))) for seed in range(10) for epoch in range(10)]
    assert len(set(orders)) == 100
    assert everything(Shuffle(100, 1, 2)) == everything(Shuffle(100, 1, 2))


def test_the_order_is_pinned() -> None:
    """A run that resumes with a newer version must see the same order."""
    assert Shuffle(1000, 7, 3).rows(np.arange(8)).tolist() == PINNED


PINNED = [366, 237, 579, 67, 929, 447, 943, 815]


def test_positions_outside_are_refused() -> None:
    for bad in ([10], [-1], [0, 11]):
        with pytest.raises(RowError):
            Shuffle(10).rows(np.array(bad))


def surprise(counts: np.ndarray, expected: float, freedom: int) -> float:
    """How many standard deviations a chi-square statistic lies above its mean."""
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16, 17, 31, 100, 128])
def test_chi_square_every_row_lands_everywhere(size: int) -> None:
    """Over many seeds, each row is at each position equally often, and neighbours lie at every distance."""
    seeds = 3000
    landed, distance = np.zeros((size, size)), np.zeros(size)
    for seed in range(seeds):
        rows = Shuffle(size, seed).rows(np.arange(size))
        landed[np.arange(size), rows] += 1
        np.add.at(distance, np.diff(rows) % size, 1)
    assert surprise(landed, seeds / size, (size - 1) ** 2) < 4.5
    if size > 2:
        assert surprise(distance[1:], distance.sum() / (size - 1), size - 2) < 4.5


def test_chi_square_all_permutations_of_four() -> None:
    seen = Counter(tuple(everything(Shuffle(4, seed))) for seed in range(4800))
    counts = np.array([seen[p] for p in itertools.permutations(range(4))])
    assert surprise(counts, 200, 23) < 4.5


def test_chi_square_a_window_of_a_large_shuffle_covers_the_whole() -> None:
    for size in (200_000, 1 << 20, 10**9):
        rows = Shuffle(size, 1).rows(np.arange(50_000))
        assert surprise(np.bincount(rows * 64 // size, minlength=64), 50_000 / 64, 63) < 4.5
        assert surprise(np.bincount((np.diff(rows) % size) * 64 // size, minlength=64), 49_999 / 64, 63) < 4.5
