"""Orders that draw samples: how often each row is drawn, what repeats, and that every epoch is another draw."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import digest
from shardex.order import Balanced, Order, Span, Weighted, WeightedOnce, chain
from shardex.order.draws import fractions

weights = st.lists(st.floats(0, 100) | st.just(0.0), min_size=1, max_size=40).filter(lambda some: sum(some) > 0.01)


def all_rows(order: Order) -> np.ndarray:
    return order.rows(np.arange(len(order)))


def balanced(sizes: list[int], length: int, seed: int = 0) -> Balanced:
    starts = np.cumsum([0, *sizes])
    return Balanced(length=length, seed=seed, chosen=np.arange(starts[-1])[::-1].copy(), starts=starts)


@given(weights, st.integers(1, 300), st.integers(0, 3))
def test_weighted_rows_are_drawn_as_often_as_expected(given: list[float], length: int, epoch: int) -> None:
    order = Weighted(length=length, ends=np.cumsum(given)).in_epoch(epoch)
    found = np.bincount(all_rows(order), minlength=len(given))
    expected = length * np.array(given) / np.cumsum(given)[-1]
    assert (np.abs(found - expected) < 2 + 1e-6).all()
    assert not found[np.array(given) == 0].any()


def test_means_over_epochs_are_the_expected_numbers() -> None:
    given = np.array([0.1, 1.0, 0.0, 2.5, 0.4])
    order = Weighted(length=3, ends=np.cumsum(given), seed=5)
    found = np.bincount(np.concatenate([all_rows(order.in_epoch(epoch)) for epoch in range(4000)]), minlength=5)
    assert np.abs(found / 12000 - given / given.sum()).max() < 0.015


@given(weights, st.integers(0, 3), st.data())
def test_weighted_once_repeats_no_row(given: list[float], epoch: int, data: st.DataObject) -> None:
    count = int(np.count_nonzero(given))
    length = data.draw(st.integers(1, count))
    rows = all_rows(WeightedOnce(length=length, weights=np.array(given)).in_epoch(epoch))
    assert len({*rows.tolist()}) == length == len(rows) and all(given[row] > 0 for row in rows)
    every = all_rows(WeightedOnce(length=count, weights=np.array(given)).in_epoch(epoch))
    assert rows.tolist() == every[:length].tolist()


def test_chance_to_be_drawn_first_is_that_of_the_weights() -> None:
    given = np.array([1.0, 2.0, 5.0])
    order = WeightedOnce(length=1, weights=given)
    first = np.bincount([int(all_rows(order.in_epoch(epoch))[0]) for epoch in range(3000)])
    assert np.abs(first / 3000 - given / 8).max() < 0.03


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 60), st.integers(0, 3))
def test_classes_are_drawn_equally_often_in_every_epoch(sizes: list[int], length: int, epoch: int) -> None:
    order = balanced(sizes, length)
    rows = all_rows(order.in_epoch(epoch))
    classes = np.searchsorted(order.starts, order.starts[-1] - 1 - rows, "right") - 1
    counts = np.bincount(classes, minlength=len(sizes))
    assert counts.max() - counts.min() <= 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 60), st.integers(1, 5))
def test_no_row_of_a_class_repeats_before_all_were_drawn(sizes: list[int], length: int, epochs: int) -> None:
    order = balanced(sizes, length)
    every = np.concatenate([all_rows(order.in_epoch(epoch)) for epoch in range(epochs)])
    counts = np.bincount(every, minlength=sum(sizes))[::-1]
    for begin, end in zip(order.starts[:-1], order.starts[1:], strict=True):
        assert counts[begin:end].max() - counts[begin:end].min() <= 2  # an epoch may end in the middle of a pass
    whole = np.bincount(all_rows(balanced(sizes, len(sizes) * 12, seed=epochs)), minlength=sum(sizes))[::-1]
    for begin, end in zip(order.starts[:-1], order.starts[1:], strict=True):
        assert whole[begin:end].max() - whole[begin:end].min() <= 1


ORDERS = [
    Weighted(length=50, ends=np.cumsum(np.arange(1.0, 21.0)), seed=3),
    WeightedOnce(length=15, weights=np.arange(20.0), seed=3),
    balanced([1, 5, 14], 50, seed=3),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_epochs_differ_and_depend_on_seed_and_epoch_only(order: Order) -> None:
    epochs = [all_rows(order.in_epoch(epoch)).tolist() for epoch in range(4)]
    assert len({*map(tuple, epochs)}) == 4
    again = pickle.loads(pickle.dumps(order))
    assert [all_rows(again.in_epoch(epoch)).tolist() for epoch in (3, 2, 1, 0)] == epochs[::-1]
    assert order.in_epoch(2).rows(np.array([7, 3])).tolist() == [epochs[2][7], epochs[2][3]]
    assert digest(again) == digest(order) != digest(order.in_epoch(1))
    view = chain(Span(3, 2, 2), order)
    assert view.in_epoch(3).rows(np.arange(3)).tolist() == epochs[3][2:8:2]


def test_fractions_are_uniform_and_independent_of_their_neighbours() -> None:
    for key in ("a", "b"):
        found = fractions(np.arange(100_000), key)
        assert found.min() >= 0 and found.max() < 1 and abs(found.mean() - 0.5) < 0.005
        assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.015
        assert np.histogram(found, 10)[0].std() < 300
