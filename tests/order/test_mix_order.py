"""Mixtures: exact proportions in every stretch, and complete passes through every source."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError, StateError
from shardex.order import Blocks, Mix, Shuffle, Span, whole_weights
from shardex.order.mix_order import _Fork, _tree
from shardex.order.order import Repeat


def weights_of(least: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Lists of weights that are not all zero."""
    numbers = st.lists(st.integers(0, 30) | st.integers(0, 10**6), min_size=least, max_size=most)
    return numbers.map(lambda weights: tuple(weights) if any(weights) else (1,) * len(weights))


some_weights = weights_of(1, 7)


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """A mixture of up to 7 short sources, with some phases."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=7))
    weights = weights_of(len(lengths), len(lengths))
    mix = Mix(tuple(lengths), ((0, draw(weights)),), draw(st.integers(1, 400)), draw(st.none() | st.integers(0, 5)))
    for position in draw(st.lists(st.integers(0, 500), max_size=3)):
        mix = mix.reweighted(position, draw(weights))
    return mix


def depths(tree: _Fork | int, depth: int = 0) -> dict[int, int]:
    if isinstance(tree, int):
        return {tree: depth}
    return depths(tree.left, depth + 1) | depths(tree.right, depth + 1)


def source_and_count(tree: _Fork | int, position: int) -> tuple[int, int]:
    """Source and count at one position, computed with Python integers."""
    while not isinstance(tree, int):
        before, after = (p * tree.share // tree.total for p in (position, position + 1))
        tree, position = (tree.left, before) if after > before else (tree.right, position - before)
    return tree, position


def everything(mix: Mix) -> list[int]:
    return list(map(int, mix.rows(np.arange(len(mix)))))


# -- weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([0.7, 0.3], (7, 3)),
        ([0.7, 0.2, 0.1], (7, 2, 1)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([0.1 + 0.2, 0.7], (3, 7)),
        ([0.123456, 0.876544], (1929, 13696)),
        ([10**6, 3 * 10**6, 0], (1, 3, 0)),
        ([1_234_567, 345_679], (1_234_567, 345_679)),
        ([5], (1,)),
        ([1e-300, 3e-300], (1, 3)),
        ([1e300, 1e-300], (2**30, 1)),
        (np.array([0.25, 0.75], np.float32), (1, 3)),
    ],
)
def test_simple_fractions_become_exact_weights(weights: Sequence[float], expected: tuple[int, ...]) -> None:
    assert whole_weights(weights) == expected


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any), st.integers(1, 1000))
def test_whole_numbers_are_reduced_exactly(numbers: list[int], factor: int) -> None:
    lowest = tuple(number // math.gcd(*numbers) for number in numbers)
    assert whole_weights([number * factor for number in numbers]) == lowest


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=20).filter(any))
def test_any_weights_are_approximated(weights: list[float]) -> None:
    whole, total = whole_weights(weights), sum(map(Fraction, weights))
    assert sum(whole) <= 2**30 + len(weights) and math.gcd(*whole) == 1
    for weight, number in zip(weights, whole, strict=True):
        assert (number > 0) == (weight > 0)
        assert abs(Fraction(number, sum(whole)) - Fraction(weight) / total) < len(weights) * 1e-9


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, 10**400, None, "much"])
def test_negative_infinite_and_invalid_weights_raise(bad: Any) -> None:
    with pytest.raises(ArgumentError, match=r"a weight of 0 or more, got .* - at weight 1"):
        whole_weights([1.0, bad])


def test_weights_that_are_all_zero_raise() -> None:
    for nothing in ([], [0.0, 0.0]):
        with pytest.raises(ArgumentError, match="at least one weight above 0"):
            whole_weights(nothing)


# -- proportions -------------------------------------------------------------------------------------------


@given(some_weights, st.integers(0, 10**12))
def test_every_stretch_has_the_proportions(weights: tuple[int, ...], start: int) -> None:
    """In any L positions a source has L * share samples; the error is at most the depth of its leaf."""
    mix = Mix((1,) * len(weights), ((0, weights),), length=10**13)
    came = mix.sources(np.arange(start, start + 1000))[:, None] == np.arange(len(weights))
    for source, depth in depths(_tree(weights)).items():
        ahead = np.cumsum([0, *came[:, source]]) - np.arange(1001) * (weights[source] / sum(weights))
        assert ahead.max() - ahead.min() <= depth
    assert not came[:, [weight == 0 for weight in weights]].any()


@given(some_weights)
def test_heavier_sources_are_nearer_to_the_root(weights: tuple[int, ...]) -> None:
    depth = depths(_tree(weights))
    assert sorted(depth) == [source for source, weight in enumerate(weights) if weight]
    assert all(depth[a] <= depth[b] for a in depth for b in depth if weights[a] > weights[b])


def test_counts_of_a_period_equal_the_weights() -> None:
    mix = Mix((9, 9, 9, 9), ((0, (50, 30, 15, 5)),), length=1000)
    for start in (0, 100, 700):
        assert np.bincount(mix.sources(np.arange(start, start + 100))).tolist() == [50, 30, 15, 5]


@given(mixes(), st.integers(0, 3))
def test_counts_equal_the_sources_before_a_position(mix: Mix, epoch: int) -> None:
    sources = np.concatenate([mix.later(k).sources(np.arange(len(mix))) for k in range(epoch + 1)])
    for position in {0, 1, len(sources) // 2, len(sources)}:
        counted = np.bincount(sources[:position], minlength=len(mix.lengths))
        assert mix.counts(position) == tuple(counted.tolist())


# -- sources -----------------------------------------------------------------------------------------------


@given(mixes())
def test_sources_are_read_in_complete_passes(mix: Mix) -> None:
    """With any phases the rows of a source come pass by pass: in order, or shuffled within the pass."""
    positions = np.arange(len(mix))
    rows, sources = mix.rows(positions), mix.sources(positions)
    for source, length in enumerate(mix.lengths):
        own = (rows[sources == source] - sum(mix.lengths[:source])).tolist()
        passes = [own[k : k + length] for k in range(0, len(own), length)]
        for one in passes:
            assert len(set(one)) == len(one) and set(one) <= set(range(length))
            assert mix.seed is not None or one == list(range(len(one)))


def test_seed_shuffles_sources_and_passes_differently() -> None:
    passes = []
    for seed in range(3):
        mix = Mix((50, 50), ((0, (1, 1)),), 1000, seed)
        rows, sources = mix.rows(np.arange(1000)), mix.sources(np.arange(1000))
        passes += [tuple(one) for k in range(2) for one in (rows[sources == k] - 50 * k).reshape(-1, 50).tolist()]
    assert len(passes) == len(set(passes)) == 60


@given(mixes(), st.data())
def test_positions_in_any_order_give_the_same_rows(mix: Mix, data: st.DataObject) -> None:
    some = data.draw(st.lists(st.integers(0, len(mix) - 1)))
    rows, sources = everything(mix), mix.sources(np.arange(len(mix))).tolist()
    assert mix.rows(np.array(some, np.int64)).tolist() == [rows[k] for k in some]
    assert mix.sources(np.array(some, np.int64)).tolist() == [sources[k] for k in some]


@given(some_weights, st.lists(st.integers(0, 2**62 - 1), min_size=1, max_size=20))
def test_huge_positions_do_not_overflow(weights: tuple[int, ...], positions: list[int]) -> None:
    huge = tuple(weight and weight * (2**30 // sum(weights)) + 1 for weight in weights)
    mix = Mix((10**12 + 39,) * len(weights), ((0, huge),), length=2**62)
    expected = [source_and_count(_tree(huge), position) for position in positions]
    assert mix.sources(np.array(positions)).tolist() == [source for source, _ in expected]
    assert mix.rows(np.array(positions)).tolist() == [s * (10**12 + 39) + k % (10**12 + 39) for s, k in expected]


# -- epochs and phases -------------------------------------------------------------------------------------


@given(mixes(), st.integers(1, 4))
def test_epochs_continue_where_the_last_one_stopped(mix: Mix, epochs: int) -> None:
    longer = Mix(mix.lengths, mix.phases, mix.length * epochs, mix.seed)
    assert everything(longer) == [row for k in range(epochs) for row in everything(mix.later(k))]
    assert Repeat(mix, epochs).rows(np.arange(len(longer))).tolist() == everything(longer)
    assert mix.later(2).later(3) == mix.later(5)


@given(mixes(), st.integers(0, 200), st.data())
def test_new_phase_changes_nothing_before_it(mix: Mix, later: int, data: st.DataObject) -> None:
    """The new weights apply from its start on, and every source continues where it was."""
    position = mix.phases[-1][0] + later
    weights = data.draw(weights_of(len(mix.lengths), len(mix.lengths)))
    changed = mix.reweighted(position, weights)
    assert everything(changed)[:position] == everything(mix)[:position]
    assert changed.counts(position) == mix.counts(position)
    fresh = Mix(mix.lengths, ((0, whole_weights(weights)),), 100)
    assert changed.sources(np.arange(position, position + 100)).tolist() == fresh.sources(np.arange(100)).tolist()


def test_phases_are_sorted_and_replaced() -> None:
    mix = Mix((5, 5), ((0, (1, 1)),), 10)
    assert mix.reweighted(8, [1, 3]).reweighted(4, [0.5, 0]).phases == ((0, (1, 1)), (4, (1, 0)), (8, (1, 3)))
    assert mix.reweighted(4, [1, 3]).reweighted(4, [3, 1]).phases == ((0, (1, 1)), (4, (3, 1)))
    assert mix.reweighted(0, [0.1, 0.2]).phases == ((0, (1, 2)),)


def test_for_epoch_shuffles_each_source_by_itself() -> None:
    mix = Mix((5, 7), ((0, (1, 2)),), 12, seed=1)
    assert mix.for_epoch(3) == mix.later(3)
    assert mix.for_epoch(3, Shuffle(12, seed=9)) == Mix((5, 7), mix.phases, 12, seed=9, epoch=3)
    with pytest.raises(ArgumentError, match="expected a mixture to be shuffled without block="):
        mix.for_epoch(0, Blocks(12, 2, 2))


def test_sample_numbers_are_rows_within_the_source() -> None:
    mix = Mix((5, 7), ((0, (1, 2)),), 12, seed=1)
    positions = np.arange(12)
    rows, sources = mix.later(2).rows(positions), mix.later(2).sources(positions)
    assert mix.sample_numbers(positions, 2).tolist() == (rows - 5 * sources).tolist()


def test_identity_of_a_mixture_does_not_depend_on_its_weights() -> None:
    mix = Mix((5, 7), ((0, (1, 2)),), 12, seed=1)
    assert mix.identity() == mix.reweighted(4, [1, 0]).identity() == (Span(12), {"mix": 1})


def test_resumed_mixture_has_the_saved_weights_up_to_the_position() -> None:
    mix = Mix((5, 7), ((0, (1, 2)),), 12)
    state = mix.reweighted(4, [1, 0]).reweighted(30, [0, 1]).save()
    assert state == {"phases": [[0, [1, 2]], [4, [1, 0]], [30, [0, 1]]]}
    with pytest.raises(StateError, match=r"weights \(1, 2\), got one with \(1, 0\)"):
        mix.resumed(state, 10, reweight=False)
    assert mix.resumed(state, 10, reweight=True).phases == ((0, (1, 2)), (4, (1, 0)), (10, (1, 2)))
    assert mix.resumed(mix.save(), 10, reweight=False) is mix
    assert mix.resumed({"phases": [[0, [1]]]}, 10, reweight=True) is mix  # other sources
    with pytest.raises(StateError, match="expected phases of a mixture that begin at 0"):
        mix.resumed({"phases": [["a"]]}, 10, reweight=True)


# -- invariants -------------------------------------------------------------------------------------------


def test_rows_of_a_mixture_never_change() -> None:
    """A run that resumes with a newer version must see the same order."""
    mix = Mix((100, 1000, 7), ((0, (5, 3, 2)), (6, (1, 1, 2))), 1000, seed=7)
    assert mix.sources(np.arange(12)).tolist() == [1, 0, 1, 0, 2, 0, 1, 2, 0, 2, 1, 2]
    assert mix.rows(np.arange(12)).tolist() == [119, 84, 1015, 88, 1101, 60, 930, 1103, 96, 1102, 514, 1106]
    assert mix.later(10**6).rows(np.arange(6)).tolist() == [61, 1101, 562, 1103, 67, 1106]


@given(mixes())
def test_mixtures_pickle_before_and_after_use(mix: Mix) -> None:
    fresh, rows = pickle.loads(pickle.dumps(mix)), everything(mix)
    assert fresh == mix == pickle.loads(pickle.dumps(mix)) and everything(fresh) == rows


def test_single_source_is_read_in_order() -> None:
    assert everything(Mix((5,), ((0, (1,)),), 12)) == [k % 5 for k in range(12)]
    assert everything(Mix((5, 0), ((0, (1, 0)),), 12)) == [k % 5 for k in range(12)]
    assert everything(Mix((5,), ((0, (1,)),), 0)) == []


def test_invalid_mixtures_raise() -> None:
    phases: Any
    for phases in ((), ((1, (1, 1)),), ((0, (1, 1)), (0, (1, 2))), ((-1, (1, 1)),)):
        with pytest.raises(ArgumentError, match="begin at 0 and ascend"):
            Mix((5, 5), phases, 10)
    with pytest.raises(ArgumentError, match="expected 2 weights, one per source, got 1 - at the phase from position 0"):
        Mix((5, 5), ((0, (1,)),), 10)
    for weights in ((0, 0), (-1, 2), (2**31, 1)):
        with pytest.raises(ArgumentError, match="whole_weights makes them"):
            Mix((5, 5), ((0, weights),), 10)
    with pytest.raises(ArgumentError, match="weight 0 for a source without rows, got 1 - at source 1"):
        Mix((5, 0), ((0, (1, 1)),), 10)
    with pytest.raises(ArgumentError, match="begin at 0 and ascend"):
        Mix((5, 5), ((0, (1, 1)),), 10).reweighted(-3, [1, 1])
