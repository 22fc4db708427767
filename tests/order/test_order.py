"""Orders compared with plain Python lists, and tested for randomness."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError, RowError
from shardex.kernel import digest
from shardex.order import Blocks, Mix, Order, Pick, Shuffle, Span, chain
from shardex.order.order import Chain, Repeat, map_groups

SIZES = [1, 2, 3, 5, 7, 8, 9, 64, 65, 97, 1000, 4096, 10_007]


def everything(order: Order) -> list[int]:
    return list(map(int, order.rows(np.arange(len(order)))))


ends = st.none() | st.integers(-30, 30)


@given(st.integers(0, 30), ends, ends, st.sampled_from([-3, -1, 1, 2, 5]))
def test_span_equals_slice(length: int, start: int | None, stop: int | None, step: int) -> None:
    where = slice(start, stop, step)
    first, last, by = where.indices(length)
    assert everything(Span(len(range(first, last, by)), first, by)) == list(range(length))[where]


@given(st.integers(2, 50), st.data())
def test_chain_applies_outer_then_inner(length: int, data: st.DataObject) -> None:
    """What `chain` simplifies gives the same rows as the two orders applied in turn."""
    inners: list[Order] = [Span(length), Span(length, 7, 3), Shuffle(length, 3), Pick(np.arange(length)[::-1])]
    outers: list[Order] = [Span(length), Span(length // 2, 1), Shuffle(length, 9), Pick(np.array([1, 0, 1]))]
    inner, outer = data.draw(st.sampled_from(inners)), data.draw(st.sampled_from(outers))
    rows = everything(inner)
    assert everything(chain(outer, inner)) == [rows[k] for k in everything(outer)]
    assert everything(Chain(outer, inner)) == everything(chain(outer, inner))


@pytest.mark.parametrize("size", SIZES)
def test_shuffle_is_a_permutation_with_exact_inverse(size: int) -> None:
    for seed in range(5):
        order = Shuffle(size, seed, epoch=seed % 2)
        rows = order.rows(np.arange(size))
        assert sorted(rows.tolist()) == list(range(size))
        assert order.positions(rows).tolist() == list(range(size))


@pytest.mark.parametrize("size", [10**9, 10**12, 2**40, 2**62 - 1])
def test_huge_shuffle_is_computed_lazily_and_inverts(size: int) -> None:
    positions = np.random.default_rng(0).integers(0, size, 1000)
    order = Shuffle(size, seed=4)
    rows = order.rows(positions)
    assert rows.min() >= 0 and rows.max() < size
    assert (order.positions(rows) == positions).all()


def test_shuffle_depends_on_seed_and_epoch() -> None:
    orders = [tuple(everything(Shuffle(100, seed, epoch))) for seed in range(10) for epoch in range(10)]
    assert len(set(orders)) == 100
    assert everything(Shuffle(100, 1, 2)) == everything(Shuffle(100, 1, 2))


def test_rows_of_shuffles_never_change() -> None:
    """A run that resumes with a newer version must see the same order."""
    for order, rows in PINNED:
        assert order.rows(np.arange(8)).tolist() == rows


PINNED: list[tuple[Order, list[int]]] = [
    (Shuffle(1000, 7, 3), [366, 237, 579, 67, 929, 447, 943, 815]),
    (Blocks(1000, 16, 4, seed=7, epoch=3), [368, 370, 800, 377, 721, 801, 804, 240]),
    (Blocks(10**6, 1000, 3, seed=1), [344149, 60194, 60814, 60026, 60032, 474552, 344125, 344158]),
    (Repeat(Shuffle(3, seed=5), 3), [1, 2, 0, 0, 2, 1, 1, 2]),
]


@pytest.mark.parametrize("order", [Shuffle(10), Blocks(10, 3, 2), Blocks(0, 3, 2)])
def test_positions_out_of_range_raise(order: Shuffle | Blocks) -> None:
    for bad in ([10], [-1], [0, 11], [10**12], [-(10**12)]):
        with pytest.raises(RowError):
            order.rows(np.array(bad))


def test_rows_out_of_range_raise() -> None:
    with pytest.raises(RowError):
        Shuffle(10).positions(np.array([10]))


orders: st.SearchStrategy[Order] = st.one_of(
    st.builds(Span, st.integers(0, 20), st.integers(0, 5), st.integers(-3, 3)),
    st.lists(st.integers(0, 99), max_size=20).map(lambda rows: Pick(np.array(rows, np.int64))),
    st.builds(Shuffle, st.integers(0, 20), st.integers(0, 3), st.integers(0, 3)),
    st.builds(Blocks, st.integers(0, 20), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3)),
    st.builds(lambda n, seed: Chain(Shuffle(n, seed), Span(n, 5, 2)), st.integers(0, 20), st.integers(0, 3)),
)


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1000))))
def test_map_groups_keeps_the_order_of_values(pairs: list[tuple[int, int]]) -> None:
    groups, values = np.array(pairs, np.int64).reshape(-1, 2).T
    found = map_groups(groups, values, lambda group, some: some * 100 + group)
    assert found.tolist() == [value * 100 + group for group, value in pairs] and found.dtype == np.int64


# -- blocks ------------------------------------------------------------------------------------------------


@given(st.integers(0, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_blocks_are_a_permutation(length: int, size: int, window: int, seed: int) -> None:
    order = Blocks(length, size, window, seed)
    rows = order.rows(np.arange(length))
    assert sorted(rows.tolist()) == list(range(length)) and len(order) == length


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_window_holds_the_rows_of_its_blocks(length: int, size: int, window: int, seed: int) -> None:
    cut = [list(range(length))[begin : begin + size] for begin in range(0, length, size)]
    shuffled = [cut[number] for number in everything(Shuffle(len(cut), seed))]
    rows = iter(everything(Blocks(length, size, window, seed)))
    for blocks in (shuffled[begin : begin + window] for begin in range(0, len(cut), window)):
        expected = [row for block in blocks for row in block]
        assert sorted(itertools.islice(rows, len(expected))) == sorted(expected)


@given(st.sampled_from([10**9, 10**12, 2**40, 2**61 - 1]), st.integers(1, 10**6), st.integers(1, 10**6))
def test_huge_blocks_are_computed_lazily(length: int, size: int, window: int) -> None:
    positions = np.random.default_rng(size).integers(0, length, 20)
    order = Blocks(length, size, window, seed=4)
    rows = order.rows(positions)
    assert rows.min() >= 0 and rows.max() < length
    assert len(set(rows.tolist())) == len(set(positions.tolist()))


def test_blocks_larger_than_the_dataset_shuffle_all_rows() -> None:
    for size, window in [(1, 10**15), (10**15, 1), (1000, 10**15), (10**15, 10**15)]:
        rows = everything(Blocks(1000, size, window))
        assert sorted(rows) == list(range(1000)) != rows


def test_windows_and_epochs_are_shuffled_differently() -> None:
    rows = np.array(everything(Blocks(6400, 64, 1))).reshape(100, 64) % 64
    assert len({tuple(window) for window in rows.tolist()}) == 100
    assert len({tuple(everything(Blocks(100, 7, 3, seed, epoch))) for seed in range(9) for epoch in range(9)}) == 81


def test_empty_blocks_and_windows_raise() -> None:
    for size, window in [(0, 1), (1, 0), (-1, 5)]:
        with pytest.raises(ArgumentError, match="at least 1"):
            Blocks(10, size, window)


# -- epochs -----------------------------------------------------------------------------------------------


@given(orders, st.integers(0, 5), st.data())
def test_repeat_appends_epochs(order: Order, epochs: int, data: st.DataObject) -> None:
    repeated, expected = Repeat(order, epochs), [row for k in range(epochs) for row in everything(order.later(k))]
    assert everything(repeated) == expected and len(repeated) == len(expected)
    some = data.draw(st.lists(st.integers(0, len(expected) - 1))) if expected else []
    assert repeated.rows(np.array(some, np.int64)).tolist() == [expected[k] for k in some]


def test_repeat_shuffles_every_epoch_differently() -> None:
    epochs = np.array(everything(Repeat(Shuffle(50), 20))).reshape(20, 50)
    assert (np.sort(epochs) == np.arange(50)).all() and len({tuple(epoch) for epoch in epochs.tolist()}) == 20
    positions = 10**12 * np.arange(1000) + 7
    expected = [int(Shuffle(10**12, 0, k).rows(np.array([7]))[0]) for k in range(1000)]
    assert Repeat(Shuffle(10**12), 10**6).rows(positions).tolist() == expected


def test_later_changes_only_shuffles() -> None:
    pick = Pick(np.arange(3))
    assert Shuffle(9, 1, 2).later(3) == Shuffle(9, 1, 5)
    assert Blocks(9, 2, 2, 1, 2).later(3) == Blocks(9, 2, 2, 1, 5)
    assert Chain(Shuffle(3), pick).later(1) == Chain(Shuffle(3, epoch=1), pick)
    assert Chain(Span(2), Shuffle(3)).later(1) == Chain(Span(2), Shuffle(3))
    for order in (pick, Span(3), Repeat(Shuffle(3), 2)):
        assert order.later(5) is order


def test_for_epoch_shuffles_the_positions_of_any_order() -> None:
    for order in (Span(5, 10, 2), Pick(np.array([4, 9, 1, 7, 3])), Shuffle(5, 3)):
        assert order.for_epoch(7) is order
        assert order.sample_numbers(np.array([2, 0]), 7).tolist() == [2, 0]
        shuffled = Shuffle(5, seed=1, epoch=7).rows(np.arange(5))
        assert everything(order.for_epoch(7, Shuffle(5, seed=1))) == order.rows(shuffled).tolist()
        assert order.sample_numbers(np.arange(5), 7, Shuffle(5, seed=1)).tolist() == shuffled.tolist()
        assert order.identity() == (order, {}) and order.save() == {} and order.resumed({}, 3, False) is order


@given(orders.flatmap(lambda order: st.sampled_from([order, Repeat(order, 3)])))
def test_orders_pickle_before_and_after_use(order: Order) -> None:
    fresh, rows = pickle.loads(pickle.dumps(order)), everything(order)
    assert everything(fresh) == everything(pickle.loads(pickle.dumps(order))) == rows


FINGERPRINTS: list[tuple[Order, str]] = [
    (Span(5, 1, 2), "3ebb99e376954497"),
    (Pick(np.array([3, 1])), "b126fc0fc224b948"),
    (Shuffle(5, 1, 2), "e575ed023b9344e5"),
    (Blocks(5, 2, 2, 1), "037b0f8b4684e57b"),
    (Chain(Shuffle(3), Span(5, 2)), "1374dfa49b1a84f9"),
    (Mix((2, 3), ((0, (1, 2)),), 5, seed=7), "05446b2652ddc2ac"),
]


@pytest.mark.parametrize(("order", "fingerprint"), FINGERPRINTS, ids=lambda value: type(value).__name__)
def test_fingerprints_of_orders_never_change(order: Order, fingerprint: str) -> None:
    """They are saved in states of runs; renaming a class or a field would change them."""
    assert digest(order) == fingerprint


# -- randomness ---------------------------------------------------------------------------------------------


def chi_square_excess(counts: np.ndarray, expected: float, freedom: int) -> float:
    """Standard deviations of a chi-square statistic above its mean."""
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16, 17, 31, 100, 128])
def test_rows_and_distances_are_uniform_over_seeds(size: int) -> None:
    """Over many seeds each row is equally often at each position, and neighbours have all distances equally often."""
    seeds = 3000
    landed, distance = np.zeros((size, size)), np.zeros(size)
    for seed in range(seeds):
        rows = Shuffle(size, seed).rows(np.arange(size))
        landed[np.arange(size), rows] += 1
        np.add.at(distance, np.diff(rows) % size, 1)
    assert chi_square_excess(landed, seeds / size, (size - 1) ** 2) < 4.5
    if size > 2:
        assert chi_square_excess(distance[1:], distance.sum() / (size - 1), size - 2) < 4.5


def test_all_permutations_of_four_are_equally_frequent() -> None:
    seen = Counter(tuple(everything(Shuffle(4, seed))) for seed in range(4800))
    counts = np.array([seen[p] for p in itertools.permutations(range(4))])
    assert chi_square_excess(counts, 200, 23) < 4.5


def test_part_of_a_large_shuffle_is_uniform_over_all_rows() -> None:
    for size in (200_000, 1 << 20, 10**9):
        rows = Shuffle(size, 1).rows(np.arange(50_000))
        assert chi_square_excess(np.bincount(rows * 64 // size, minlength=64), 50_000 / 64, 63) < 4.5
        assert chi_square_excess(np.bincount((np.diff(rows) % size) * 64 // size, minlength=64), 49_999 / 64, 63) < 4.5


def test_rows_of_blocks_are_uniform_over_seeds() -> None:
    landed = np.zeros((24, 24))
    for seed in range(3000):
        landed[np.arange(24), Blocks(24, 4, 2, seed).rows(np.arange(24))] += 1
    assert chi_square_excess(landed, 3000 / 24, 23**2) < 4.5
