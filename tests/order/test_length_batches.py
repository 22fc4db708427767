"""Batches by length: every sample once, within the limits, as many as fit, the same however they are computed."""

from __future__ import annotations

from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.errors import ArgumentError
from shardex.order import EpochBatches, LengthBatches, length_batches

rules = st.builds(
    LengthBatches,
    batch_size=st.none() | st.integers(1, 9),
    max_tokens=st.integers(12, 60),
    bucket=st.none() | st.integers(1, 40),
    padded=st.booleans(),
    seed=st.none() | st.integers(0, 3),
)
sized = st.builds(
    lambda size, times, seed: LengthBatches(size, bucket=size * times, seed=seed),
    size=st.integers(1, 6),
    times=st.integers(1, 6),
    seed=st.none() | st.integers(0, 3),
)
samples = st.lists(st.integers(0, 12), max_size=80)


def batches_of(rule: LengthBatches, lengths: list[int], epoch: int = 0) -> EpochBatches:
    return rule.of_epoch(len(lengths), lambda begin, end: np.array(lengths[begin:end], np.int64), epoch)


def positions(batches: EpochBatches) -> list[list[int]]:
    return [batches.positions(number).tolist() for number in range(len(batches))]


def tokens(rule: LengthBatches, lengths: list[int], batch: list[int]) -> int:
    each = [max(1, lengths[position]) for position in batch]
    return len(each) * max(each) if rule.padded else sum(each)


@given(rules | sized, samples, st.integers(0, 2))
def test_every_sample_is_in_one_batch_within_the_limits(rule: LengthBatches, lengths: list[int], epoch: int) -> None:
    batches = batches_of(rule, lengths, epoch)
    found = positions(batches)
    assert sorted(chain.from_iterable(found)) == list(range(len(lengths)))
    taken = 0
    for number, batch in enumerate(found):
        assert batches.begin(number) == taken and batch
        taken += len(batch)
        assert rule.batch_size is None or len(batch) <= rule.batch_size
        assert rule.max_tokens is None or tokens(rule, lengths, batch) <= rule.max_tokens
    assert batches.begin(len(batches)) == taken == len(lengths)
    for position in range(len(lengths) + 1):
        number = batches.number_at(position)
        assert batches.begin(number) <= position
        assert number == len(batches) or position < batches.begin(number + 1)


@given(rules, samples)
def test_every_batch_takes_as_many_samples_as_fit(rule: LengthBatches, lengths: list[int]) -> None:
    if rule.bucket is not None:
        return
    for batch, following in pairwise(positions(batches_of(rule, lengths))):
        more = [*batch, following[0]]
        assert len(batch) == rule.batch_size or tokens(rule, lengths, more) > (rule.max_tokens or 0)


@given(rules | sized, samples)
def test_batches_of_a_bucket_are_its_samples_sorted_by_length(rule: LengthBatches, lengths: list[int]) -> None:
    if rule.bucket is None:
        return
    found = positions(batches_of(rule, lengths))
    short = len(lengths) % rule.batch_size if rule.max_tokens is None and rule.batch_size else 0
    for begin in range(0, len(lengths), rule.bucket):
        run = [batch for batch in found if begin <= batch[0] < begin + rule.bucket]
        if short and begin + rule.bucket >= len(lengths):  # the samples that are too few are the last, not the longest
            assert sorted(run.pop()) == list(range(len(lengths) - short, len(lengths)))
        ordered = sorted(run, key=lambda batch: (max(1, lengths[batch[0]]), batch[0]))
        if rule.seed is None:
            assert run == ordered
        keys = [(max(1, lengths[position]), position) for position in chain.from_iterable(ordered)]
        assert keys == sorted(keys)


@given(rules | sized, samples)
def test_batches_do_not_depend_on_how_many_lengths_are_read_at_once(rule: LengthBatches, lengths: list[int]) -> None:
    whole = positions(batches_of(rule, lengths))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length_batches, "_CHUNK", 3)
        assert positions(batches_of(rule, lengths)) == whole


def test_order_of_batches_depends_on_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 400).tolist()
    rule = LengthBatches(max_tokens=100, bucket=100, seed=1)
    first = positions(batches_of(rule, lengths))
    assert first == positions(batches_of(rule, lengths))
    other_epoch, other_seed = batches_of(rule, lengths, 1), batches_of(LengthBatches(None, 100, 100, seed=2), lengths)
    assert first != positions(other_epoch) != positions(other_seed) != first
    assert sorted(first) == sorted(positions(other_epoch)) == sorted(positions(other_seed))


def test_order_of_batches_stays_the_same_in_later_versions() -> None:
    """A run that resumes with a newer version must get the same batches."""
    lengths = [5, 1, 4, 2, 3, 1, 5, 2, 6, 2, 3, 1]
    found = positions(batches_of(LengthBatches(max_tokens=6, bucket=8, seed=7), lengths, epoch=3))
    assert found == [[0], [7, 4], [1, 5, 3], [2], [6], [8], [11, 9], [10]]


def test_batch_of_many_short_samples() -> None:
    batches = LengthBatches(max_tokens=5_000_000).of_epoch(3_000_000, lambda begin, end: np.ones(end - begin, np.int64))
    assert len(batches) == 1 and len(batches.positions(0)) == 3_000_000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "expected max_tokens or batch_size, which limit a batch, got neither"),
        ({"batch_size": 32, "bucket": 100}, "expected a bucket that is a multiple of batch_size=32.* got 100"),
    ],
)
def test_wrong_limits_raise(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(ArgumentError, match=expected):
        LengthBatches(**arguments)
