"""`Masked`: values and a mask, compared with a list that has `None` where a value is missing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from shardex.kernel import Columns, Masked, Ragged, missing_value, with_missing

MASK = np.array([True, False, True])


@pytest.mark.parametrize(
    ("present", "missing"),
    [
        (np.array([1.5, 2.5], np.float32), np.nan),
        (np.array([1, 2], np.uint8), 0),
        (np.array([True, True]), False),
        (np.array([1j, 2j]), np.nan),
        (np.array([1, 2], "M8[s]"), np.datetime64("NaT", "s")),
        (np.array([1, 2], "m8[D]"), np.timedelta64("NaT", "s")),
        (np.ones((2, 3), np.float16), np.nan),
        (np.ones((2, 0), np.int16), 0),
    ],
)
def test_missing_values_of_arrays(present: Any, missing: Any) -> None:
    masked = Masked.spread(present, MASK)
    assert masked.values.dtype == masked.dtype == present.dtype and masked.values.shape == (3, *present.shape[1:])
    assert np.array_equal(masked.values[[0, 2]], present)
    expected = np.full(present.shape[1:], missing, present.dtype)
    assert np.array_equal(masked.values[1], expected, equal_nan=present.dtype.kind in "fcmM")
    assert masked[1] is None and masked.to_list()[1] is None and masked[[1, 0]].to_list()[0] is None
    assert masked == pickle.loads(pickle.dumps(masked)) == masked.to_list()


@pytest.mark.parametrize("shaped", [False, True])
def test_missing_rows_of_ragged_are_empty(shaped: bool) -> None:
    arrays = [np.ones((1, 2), np.int8), np.ones((3, 2), np.int8)]
    masked = Masked.spread(Ragged.from_arrays(arrays, shaped=shaped), MASK)
    lengths = masked.values.shapes[:, 0] if shaped else masked.values.lengths
    assert lengths.tolist() == [1, 0, 3] and masked.values.pad().shape == (3, 3, 2)
    assert masked.values.mask().sum() == (8 if shaped else 4)
    assert masked.tolist() == [[[1, 1]], None, [[1, 1]] * 3]
    assert np.asarray(masked).shape == (3, 3, 2)
    nothing = Masked.spread(Ragged.from_arrays(arrays, shaped=shaped)[:0], np.zeros(2, np.bool_))
    assert nothing.to_list() == [None, None] and nothing.values.pad().size == 0


@pytest.mark.parametrize("shaped", [False, True])
def test_concat_of_columns_in_which_all_values_are_missing(shaped: bool) -> None:
    nothing = Masked.spread(Ragged.from_arrays([np.ones((1, 2), np.int8)], shaped=shaped)[:0], np.zeros(2, np.bool_))
    both = Columns.concat([Columns({"x": nothing}), Columns({"x": nothing})])
    assert both["x"].to_list() == [None] * 4 and both["x"].dtype == np.int8


def test_filled_leaves_the_values_that_are_there() -> None:
    masked = Masked.spread(np.array([1, 2]), MASK)
    assert masked.filled(-1).values.tolist() == [1, -1, 2] and masked.values.tolist() == [1, 0, 2]
    assert masked.filled(-1).mask is masked.mask
    assert np.asarray(masked, np.float32).tolist() == [1, 0, 2] and len(masked) == 3


def test_text_with_missing_values_is_a_list() -> None:
    assert with_missing(["a", "b"], MASK) == ["a", None, "b"]


def test_equal_only_if_the_same_values_are_missing() -> None:
    masked = Masked.spread(np.array([1, 2]), MASK)
    assert masked == [1, None, 2] and masked not in ([1, 0, 2], [1, None])
    assert masked != (1, None, 2)
    assert repr(masked) == "Masked(2 of 3 rows: array([1, 0, 2]))"


def test_concat_with_whole_and_missing_columns() -> None:
    masked = Masked.spread(np.array([1, 2]), MASK)
    parts: list[Any] = [masked, np.array([7]), [None]]
    whole = Columns.concat([Columns({"x": part}) for part in parts])["x"]
    assert isinstance(whole, Masked) and whole == [1, None, 2, 7, None]
    assert Columns.concat([Columns({"x": masked}), Columns({"x": ["a"]})])["x"] == [1, None, 2, "a"]


def test_stack_with_none() -> None:
    found = Columns({"x": [1.5, None], "n": [None, 3], "s": ["a", None], "none": [None, None]}).stack()
    assert found["x"] == [1.5, None] and found["n"].values.tolist() == [0, 3] and found["n"].dtype == np.int64
    assert found["s"] == ["a", None] and found["none"] == [None, None]


def test_missing_value_by_dtype() -> None:
    assert np.isnan(missing_value(np.dtype("f2"))) and missing_value(np.dtype("u8")) == 0
    assert np.isnat(missing_value(np.dtype("M8[ns]")))
