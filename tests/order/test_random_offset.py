"""Rows at a distance that begin at another place in every epoch, alone and under views."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardex.kernel import digest
from shardex.order import Order, Pick, RandomOffset, Shuffle, Span, chain


def rows(order: Order) -> list[int]:
    found: list[int] = order.rows(np.arange(len(order))).tolist()
    return found


@given(st.integers(0, 20), st.integers(1, 12), st.integers(1, 12), st.integers(0, 3), st.integers(0, 30))
def test_rows_are_at_the_distance_of_the_stride(length: int, stride: int, offsets: int, seed: int, epoch: int) -> None:
    order = RandomOffset(length, stride, offsets, seed, epoch)
    assert 0 <= order.offset < offsets
    assert rows(order) == [order.offset + k * stride for k in range(length)]
    assert order.in_epoch(2) == RandomOffset(length, stride, offsets, seed, epoch + 2) == order.later(2)
    assert pickle.loads(pickle.dumps(order)) == order and digest(order) == digest(RandomOffset(*order_values(order)))


def order_values(order: RandomOffset) -> tuple[int, ...]:
    return order.length, order.stride, order.offsets, order.seed, order.epoch


def test_every_offset_is_used_before_one_is_used_again() -> None:
    order = RandomOffset(3, 10, 10, seed=5)
    offsets = [order.in_epoch(epoch).offset for epoch in range(20)]
    assert sorted(offsets[:10]) == sorted(offsets[10:]) == list(range(10)) and offsets[:10] != offsets[10:]
    assert offsets != [RandomOffset(3, 10, 10, seed=6).in_epoch(epoch).offset for epoch in range(20)]


def test_offsets_never_change() -> None:
    order = RandomOffset(3, 1024, 1024, seed=1)
    assert [order.in_epoch(epoch).offset for epoch in range(4)] == [344, 474, 60, 232]
    assert digest(order) == "00ff5376b53992bb"


def test_views_have_the_offset_of_the_epoch() -> None:
    order = RandomOffset(8, 100, 100, seed=2)
    views: list[tuple[Order, list[int]]] = [
        (Span(8), list(range(8))),
        (Span(3, start=2), [2, 3, 4]),
        (Span(8, start=7, step=-1), list(range(7, -1, -1))),
        (Pick(np.array([5, 1, 5])), [5, 1, 5]),
        (chain(Pick(np.array([2, 0])), Span(4, 1, 2)), [5, 1]),
        (Shuffle(8, seed=3), rows(Shuffle(8, seed=3))),
    ]
    for view, numbers in views:
        for epoch in (0, 1, 5):
            there = chain(view, order).for_epoch(epoch)
            assert rows(there) == [order.in_epoch(epoch).offset + 100 * k for k in numbers]
    shuffle = Shuffle(3, seed=9)
    for epoch in (0, 3):
        both = chain(Span(3, start=2), order).for_epoch(epoch, shuffle)
        assert rows(both) == [order.in_epoch(epoch).offset + 100 * (2 + k) for k in rows(shuffle.later(epoch))]


def test_orders_without_it_are_the_same_object_in_every_epoch() -> None:
    for order in (Span(3), Pick(np.array([1])), Shuffle(3), chain(Shuffle(2), Pick(np.array([1, 4])))):
        assert order.in_epoch(7) is order and order.for_epoch(7) is order
    assert isinstance(chain(Pick(np.array([1])), Shuffle(3)), Pick)
