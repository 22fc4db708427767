"""Splits by file name, and the text of split slices."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardex.dataset.splits import SplitSlice, parse_splits
from shardex.errors import ArgumentError
from shardex.files import named_split


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("train-000.tar", "train"),
        ("train.jsonl", "train"),
        ("training_0.tar", "train"),
        ("wiki_train_0.jsonl", "train"),
        ("wiki-train.jsonl", "train"),
        ("Train/0.tar", "train"),
        ("test.parquet", "test"),
        ("testing-1.tar", "test"),
        ("en/test/0.tar", "test"),
        ("val/0.tar", "validation"),
        ("valid00001.tar", "validation"),
        ("x.validation.arrow", "validation"),
        ("dev-2.tar", "validation"),
        ("DEVELOPMENT/a/b.tar", "validation"),
        ("cifar10_default_test_0f/shard-00000.arrow", "test"),
    ],
)
def test_names_with_a_split_word(path: str, split: str) -> None:
    assert named_split(path) == split


@pytest.mark.parametrize(
    "path", ["0.tar", "contest.tar", "trains/0.tar", "devices-0.tar", "latest-0.tar", "value.jsonl", "", "a/b/c"]
)
def test_names_without_a_split_word(path: str) -> None:
    assert named_split(path) is None


def test_file_name_wins_over_folders() -> None:
    assert named_split("test/train-0.tar") == "train"
    assert named_split("train/test/0.tar") == "test"
    assert named_split("test-train.tar") == "test"


@given(st.text(max_size=30))
def test_any_name_has_a_known_split_or_none(path: str) -> None:
    assert named_split(path) in (None, "train", "test", "validation")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train", [SplitSlice("train")]),
        (" train + test ", [SplitSlice("train"), SplitSlice("test")]),
        ("train[:100]", [SplitSlice("train", None, 100)]),
        ("train[ 5 : ]", [SplitSlice("train", 5)]),
        ("train[-3:-1]", [SplitSlice("train", -3, -1)]),
        ("train[10%:20%]+train[-5%:]", [SplitSlice("train", 10, 20, True), SplitSlice("train", -5, None, True)]),
        ("my split-2.x[:]", [SplitSlice("my split-2.x")]),
    ],
)
def test_parse_split_text(text: str, expected: list[SplitSlice]) -> None:
    assert parse_splits(text) == expected


@pytest.mark.parametrize(
    "text", ["", "+", "train+", "train[", "train[5]", "train[1:2:3]", "train[a:b]", "[:5]", "train[:5]x", 3, ["train"]]
)
def test_bad_split_text_raises(text: Any) -> None:
    with pytest.raises(ArgumentError, match="expected a split"):
        parse_splits(text)


@pytest.mark.parametrize("text", ["train[10%:100]", "train[0:50%]"])
def test_samples_and_percent_together_raise(text: str) -> None:
    with pytest.raises(ArgumentError, match="both in percent, got 'train"):
        parse_splits(text)


@pytest.mark.parametrize("text", ["train[:101%]", "train[-200%:]"])
def test_percents_over_100_raise(text: str) -> None:
    with pytest.raises(ArgumentError, match="expected percents from -100 to 100"):
        parse_splits(text)


BOUNDS = st.none() | st.integers(-50, 50)


@given(BOUNDS, BOUNDS, st.integers(0, 40))
def test_slices_equal_those_of_a_list(start: int | None, stop: int | None, length: int) -> None:
    assert list(range(length))[SplitSlice("x", start, stop).of(length)] == list(range(length))[start:stop]


@given(st.lists(st.integers(0, 100), max_size=5), st.integers(0, 1000))
def test_percents_that_meet_cover_everything_once(cuts: list[int], length: int) -> None:
    ends = [0, *sorted(cuts), 100]
    found = [
        position
        for a, b in pairwise(ends)
        for position in range(length)[SplitSlice("x", a, b, percent=True).of(length)]
    ]
    assert found == list(range(length))


def test_small_negative_percents() -> None:
    assert (SplitSlice("train", -1, None, percent=True).of(40), SplitSlice("train", None, -1, percent=True).of(40)) == (
        slice(40, 40, 1),
        slice(0, 40, 1),
    )
