"""Parts of a split by class, group and time: shares, exactness, and that groups and times stay together."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardex.order.split_parts import class_counts, parts_by_class, parts_by_group, parts_by_time, renumbered

codes = st.lists(st.integers(0, 6), max_size=120).map(lambda values: np.array(values, np.int64))
shares = st.lists(st.integers(1, 100), min_size=1, max_size=5).map(lambda parts: [one / sum(parts) for one in parts])


@given(codes)
def test_renumbered_counts_values_as_they_appear(values: np.ndarray) -> None:
    numbers, count = renumbered(values)
    seen = list(dict.fromkeys(values.tolist()))
    assert numbers.tolist() == [seen.index(value) for value in values.tolist()] and count == len(seen)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), shares)
def test_counts_are_exact_to_one_for_classes_and_to_two_for_parts(counts: list[int], parts: list[float]) -> None:
    table = class_counts(np.array(counts), parts)
    exact = np.array(counts)[:, None] * parts
    assert table.sum(axis=1).tolist() == counts
    assert (np.abs(table - exact) < 1).all() and (table >= 0).all()
    assert (np.abs(table.sum(axis=0) - exact.sum(axis=0)) < 2).all()


def test_a_share_that_is_not_exact_in_binary_gives_whole_numbers() -> None:
    assert class_counts(np.array([100, 10]), [0.29, 0.71]).tolist() == [[29, 71], [3, 7]]
    assert class_counts(np.array([10] * 4), [0.7, 0.1, 0.2]).tolist() == [[7, 1, 2]] * 4


def test_many_small_classes_give_parts_of_the_right_size() -> None:
    parts = parts_by_class(np.repeat(np.arange(1000), 5), [0.9, 0.1])
    assert np.bincount(parts).tolist() == [4500, 500]


@given(codes, shares)
def test_first_samples_of_a_class_are_in_the_first_parts(classes: np.ndarray, parts: list[float]) -> None:
    found = parts_by_class(classes, parts)
    for one in np.unique(classes):
        assert (np.diff(found[classes == one]) >= 0).all()
    assert len(found) == len(classes) and (not len(found) or found.max() < len(parts))


@given(codes, codes, shares, st.none() | st.integers(0, 5))
def test_groups_stay_together(groups: np.ndarray, classes: np.ndarray, parts: list[float], seed: int | None) -> None:
    groups, count = renumbered(groups[: min(len(groups), len(classes))])
    for some in (None, classes[: len(groups)]):
        found = parts_by_group(groups, parts, some, seed)
        assert all(len({*found[groups == one].tolist()}) == 1 for one in range(count))
        assert (found < len(parts)).all() and len({*found.tolist()}) >= (len(parts) if count >= len(parts) else 0)


def test_sizes_of_groups_and_classes_in_parts_are_near_their_shares() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(400), rng.integers(1, 30, 400))
    classes = rng.integers(0, 4, 400)[groups] + (rng.random(len(groups)) < 0.1)
    for seed in (None, 1, 2):
        parts = parts_by_group(groups, [0.7, 0.2, 0.1], classes, seed)
        for one in range(5):
            found = np.bincount(parts[classes == one], minlength=3) / (classes == one).sum()
            assert np.abs(found - [0.7, 0.2, 0.1]).max() < 0.02
        alone = np.bincount(parts_by_group(groups, [0.7, 0.2, 0.1], None, seed)) / len(groups)
        assert np.abs(alone - [0.7, 0.2, 0.1]).max() < 0.005


def test_large_groups_come_first_and_no_part_is_empty() -> None:
    for sizes, parts, expected in (
        ([1] * 10 + [10], [0.5, 0.5], [10, 10]),
        ([5] * 6 + [30, 40], [0.8, 0.2], [80, 20]),
        ([90, 5, 5], [0.9, 0.1], [90, 10]),
        ([50, 50], [0.8, 0.2], [50, 50]),
        ([25] * 4, [0.9, 0.05, 0.05], [50, 25, 25]),
        ([7, 3], [1.0, 0.0], [10]),
    ):
        groups = np.repeat(np.arange(len(sizes)), sizes)
        for seed in (None, *range(6)):
            assert np.bincount(parts_by_group(groups, parts, None, seed)).tolist() == expected


def test_seed_chooses_other_groups() -> None:
    groups = np.repeat(np.arange(50), 3)
    found = {tuple(parts_by_group(groups, [0.5, 0.5], None, seed).tolist()) for seed in range(20)}
    assert len(found) == 20


@given(st.lists(st.lists(st.integers(0, 8), max_size=30).map(sorted), max_size=8), shares)
def test_times_stay_together_and_parts_follow_one_another(runs: list[list[int]], parts: list[float]) -> None:
    times = np.array([time for run in runs for time in run], np.int64)
    starts = np.cumsum([0, *map(len, runs)])
    found = parts_by_time(starts, np.flatnonzero(np.diff(times)) + 1, parts)
    assert len(found) == len(times)
    for begin, end in itertools.pairwise(starts):
        here, when = found[begin:end], times[begin:end]
        assert (np.diff(here) >= 0).all() and (not len(here) or (here.min() >= 0 and here.max() < len(parts)))
        assert all(len({*here[when == one].tolist()}) == 1 for one in np.unique(when))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8), shares)
def test_different_times_are_cut_exactly(sizes: list[int], parts: list[float]) -> None:
    starts = np.cumsum([0, *sizes])
    found = parts_by_time(starts, np.arange(1, starts[-1]), parts)
    bounds = np.rint(np.outer(sizes, np.cumsum([0, *parts]) / sum(parts)))
    for number, (begin, end) in enumerate(itertools.pairwise(starts)):
        assert np.bincount(found[begin:end], minlength=len(parts)).tolist() == np.diff(bounds[number]).tolist()
