"""`Columns` compared with Python lists of the same values.
`Masked`: values and a mask, compared with a list that has `None` where a value is missing."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.errors import FieldError, SchemaError
from shardex.kernel import MISSING, Column, Columns, Masked, Ragged, missing_value, with_missing

Arrays = list[NDArray[Any]]

DTYPES = ["?", "i1", "<i8", ">i4", "<f2", "<f4", "c16", "M8[s]", "m8[ns]", "U3", "S2"]


def array_of(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return values.astype("i8").astype(dtype) if np.dtype(dtype).kind in "Mm" else values.astype(dtype)


def same(found: Any, expected: Any) -> bool:
    """Return whether values and types are equal, arrays with their dtype and shape."""
    if isinstance(expected, np.ndarray):
        return (
            isinstance(found, np.ndarray)
            and found.shape == expected.shape
            and found.dtype == expected.dtype.newbyteorder("=")
            and bool((found == expected).all())
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], expected[name]) for name in expected)
    return type(found) is type(expected) and bool(found == expected)


values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(0, 1), st.text(max_size=3), st.binary(max_size=3)
)


@st.composite
def columns_of(draw: st.DrawFn, size: int) -> tuple[Column, list[Any]]:
    """Draw a column of `size` rows, and the values of its samples."""
    column, expected = draw(whole_columns_of(size))
    if isinstance(column, list) or draw(st.booleans()):
        return column, expected
    mask = np.array([draw(st.booleans()) for _ in range(size)], np.bool_)
    masked = Masked.spread(column[mask], mask)
    return masked, [value if there else None for value, there in zip(expected, mask.tolist(), strict=True)]


@st.composite
def whole_columns_of(draw: st.DrawFn, size: int) -> tuple[Any, list[Any]]:
    """Draw a column without missing values."""
    kind = draw(st.integers(0, 4))
    if kind == 0:
        return (numbers := [draw(st.one_of(values, st.just(MISSING))) for _ in range(size)]), numbers
    if kind == 1:
        array = array_of((size,), draw(st.sampled_from(["?", "i1", "<f4", "c16"])), size)
        return array, array.tolist()
    if kind == 2:
        array = array_of((size, *draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))), "<f4", size)
        return array, list(array)
    arrays = [array_of((draw(st.integers(0, 3)), *[2] * (kind - 3)), "<i2", k) for k in range(size)]
    if not arrays:
        return Ragged.from_values(np.empty(0, "<i2"), np.zeros(1, np.int64)), []
    return Ragged.from_arrays(arrays), list(arrays)


@st.composite
def tables(draw: st.DrawFn, least: int = 0) -> tuple[Columns, list[dict[str, Any]]]:
    """Draw columns, and their samples."""
    size = draw(st.integers(least, 7))
    made = {name: draw(columns_of(size)) for name in draw(st.sets(st.sampled_from("abcd")))}
    samples = [{name: column[k] for name, (_, column) in made.items() if column[k] is not MISSING} for k in range(size)]
    return Columns({name: column for name, (column, _) in made.items()}, size), samples


@given(tables())
def test_to_samples(table: tuple[Columns, list[dict[str, Any]]]) -> None:
    columns, samples = table
    assert len(columns) == len(samples)
    assert same(columns.to_samples(), samples)
    assert same([columns.sample(k) for k in range(len(samples))], samples)


@given(tables(least=1), st.data())
def test_take(table: tuple[Columns, list[dict[str, Any]]], data: st.DataObject) -> None:
    columns, samples = table
    rows = data.draw(st.lists(st.integers(-len(samples), len(samples) - 1), max_size=9))
    taken = columns.take(rows)
    assert taken.names == columns.names
    assert same(taken.to_samples(), [samples[k] for k in rows])


@given(tables(), st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
def test_slice_and_split(table: tuple[Columns, list[dict[str, Any]]], start: int, stop: int, size: int) -> None:
    columns, samples = table
    assert same(columns.slice(start, stop).to_samples(), samples[start:stop])
    parts = list(columns.split(size))
    assert [len(part) for part in parts] == [len(samples[k : k + size]) for k in range(0, len(samples), size)]
    assert same([sample for part in parts for sample in part.to_samples()], samples)


@given(st.lists(tables(), max_size=4))
def test_concat_appends_rows(parts: list[tuple[Columns, list[dict[str, Any]]]]) -> None:
    whole = Columns.concat([columns for columns, _ in parts])
    names = list(dict.fromkeys(name for columns, _ in parts for name in columns.names))
    expected = [{name: s[name] for name in names if name in s} for _, samples in parts for s in samples]
    assert whole.names == names
    assert same(whole.to_samples(), expected)


@given(tables(), st.data())
def test_concat_of_the_pieces_is_the_whole(table: tuple[Columns, list[dict[str, Any]]], data: st.DataObject) -> None:
    columns, samples = table
    whole = Columns.concat([Columns({}, 0), *columns.split(data.draw(st.integers(1, 3))), Columns({}, 0)])
    assert same(whole.to_samples(), samples)
    if samples:  # and what was an array is one still
        assert [type(whole[name]) for name in whole.names] == [type(columns[name]) for name in whole.names]


@given(tables(least=1), st.randoms())
def test_scatter_undoes_a_grouping(table: tuple[Columns, list[dict[str, Any]]], random: Any) -> None:
    columns, samples = table
    groups = [random.randrange(3) for _ in samples]
    places = [np.flatnonzero(np.array(groups) == group) for group in sorted(set(groups))]
    assert same(Columns.scatter([columns.take(rows) for rows in places], places).to_samples(), samples)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), values), max_size=6))
def test_from_samples(samples: list[dict[str, Any]]) -> None:
    columns = Columns.from_samples(samples)
    names = list(dict.fromkeys(name for sample in samples for name in sample))
    assert columns.names == names
    assert same(columns.to_samples(), [{name: s[name] for name in names if name in s} for s in samples])
    assert same(columns.stack().to_samples(), columns.to_samples())


@pytest.mark.parametrize(
    ("column", "dtype", "shape"),
    [
        ([True, False], "bool", (2,)),
        ([1, 2], "int64", (2,)),
        ([1.5, 2.0], "float64", (2,)),
        ([np.float32(1), np.float32(2)], "float32", (2,)),
        ([np.int8(1), np.int8(2)], "int8", (2,)),
        ([np.bool_(True)], "bool", (1,)),
        ([np.zeros(3, "<i2"), np.ones(3, "<i2")], "int16", (2, 3)),
        ([np.zeros((0, 2)), np.ones((0, 2))], "float64", (2, 0, 2)),
    ],
)
def test_stack_makes_arrays(column: list[Any], dtype: str, shape: tuple[int, ...]) -> None:
    stacked = Columns({"x": column}).stack()["x"]
    assert isinstance(stacked, np.ndarray)
    assert (str(stacked.dtype), stacked.shape) == (dtype, shape)


@pytest.mark.parametrize(
    "column",
    [
        [],
        [1, 2.0],
        [True, 1],
        [None, None],
        ["a", None],
        [1, MISSING],
        ["a", "b"],
        [b"a"],
        [2**63, 1],
        [-(2**63) - 1],
        [[1], [2]],
        [np.array(1), np.array(2)],
        [np.array([None]), np.array([1, 2], object)],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(2), np.zeros((2, 2))],
        [np.zeros(2), 1.0],
        [np.float32(1), 1.0],
    ],
)
def test_stack_leaves_other_columns_unchanged(column: list[Any]) -> None:
    assert Columns({"x": column}, len(column)).stack()["x"] is column


def test_stack_makes_ragged() -> None:
    arrays = [np.zeros((1, 2)), np.zeros((2, 1))]
    stacked = Columns({"x": [*arrays]}).stack()["x"]
    assert isinstance(stacked, Ragged)
    assert same(stacked.to_list(), arrays)


def test_select_and_names() -> None:
    columns = Columns({"x": [1, 2], "y": [3, 4]})
    assert columns.select(["y"]).names == ["y"]
    assert columns.select([]).to_samples() == [{}, {}]
    assert "x" in columns
    assert "z" not in columns
    with pytest.raises(FieldError, match="expected one of the fields x, y, got 'z'"):
        columns["z"]
    assert repr(columns) == "Columns(2 rows: x, y)"


def test_columns_of_different_length_raise() -> None:
    with pytest.raises(SchemaError, match="expected 2 values in every column, got 1 - at field y"):
        Columns({"x": [1, 2], "y": [3]})


def test_pickled_columns_are_equal() -> None:
    columns = Columns(
        {"x": np.arange(3), "r": Ragged.from_arrays([np.zeros(k) for k in range(3)]), "m": [1, MISSING, None]}
    )
    assert same(pickle.loads(pickle.dumps(columns)).to_samples(), columns.to_samples())


def test_missing_is_a_singleton_after_pickle() -> None:
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING
    assert copy.deepcopy([MISSING])[0] is MISSING
    assert repr(MISSING) == "MISSING"


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


@pytest.mark.filterwarnings("ignore:an array of")
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


@pytest.mark.filterwarnings("ignore:an array of")
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


def test_an_array_of_integers_with_missing_values_is_a_warning() -> None:
    column = Masked(np.array([5, 0], np.int64), np.array([True, False]))
    with pytest.warns(UserWarning, match=r"an array of int64 has 0 for 1 missing values: take column\.values"):
        assert np.asarray(column).tolist() == [5, 0]
    assert np.asarray(Masked(column.column, np.array([True, True]))).tolist() == [5, 0]
    assert np.isnan(np.asarray(Masked(np.array([np.nan]), np.array([False]))))
