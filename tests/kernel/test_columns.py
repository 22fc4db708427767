"""`Columns` and `Ragged` compared with Python lists of the same values."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.errors import FieldError, FormatError, SchemaError
from shardex.kernel import MISSING, Column, Columns, Ragged, Ranges, Segments

Arrays = list[NDArray[Any]]

DTYPES = ["?", "i1", "<i8", ">i4", "<f2", "<f4", "c16", "M8[s]", "m8[ns]", "U3", "S2"]


def array_of(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return values.astype("i8").astype(dtype) if np.dtype(dtype).kind in "Mm" else values.astype(dtype)


@st.composite
def rows_of_arrays(draw: st.DrawFn, least: int = 0) -> Arrays:
    """Draw arrays of one dtype and number of dimensions: the first size varies, or all do."""
    dtype = draw(st.sampled_from(DTYPES))
    inner = draw(st.lists(st.integers(1, 3), max_size=2))
    sizes = st.tuples(st.integers(0, 4), *(st.just(n) for n in inner))
    if draw(st.booleans()):
        sizes = st.tuples(*[st.integers(0, 3)] * (1 + len(inner)))
    shapes = draw(st.lists(sizes, min_size=least, max_size=8))
    return [array_of(shape, dtype, seed) for seed, shape in enumerate(shapes)]


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


# -- Ragged ---------------------------------------------------------------------------------------------------


@given(rows_of_arrays(least=1))
def test_ragged_behaves_like_a_list_of_arrays(arrays: Arrays) -> None:
    ragged = Ragged.from_arrays(arrays)
    assert len(ragged) == len(arrays)
    assert ragged.ndim == arrays[0].ndim
    assert same(ragged.to_list(), arrays)
    assert same(list(ragged), arrays)
    for k in range(-len(arrays), len(arrays)):
        assert same(ragged[k], arrays[k])
        assert same(ragged[np.int64(k)], arrays[k])
    for outside in (len(arrays), -len(arrays) - 1):
        with pytest.raises(IndexError):
            ragged[outside]


@given(rows_of_arrays(least=1), st.data())
def test_indexing_ragged(arrays: Arrays, data: st.DataObject) -> None:
    ragged, n = Ragged.from_arrays(arrays), len(arrays)
    picked = data.draw(st.lists(st.integers(-n, n - 1), max_size=9))
    assert same(ragged[np.array(picked, np.int64)].to_list(), [arrays[k] for k in picked])
    where = data.draw(st.slices(n))
    assert same(ragged[where].to_list(), arrays[where])


@given(rows_of_arrays(least=1))
def test_ragged_values_and_offsets(arrays: Arrays) -> None:
    ragged = Ragged.from_arrays(arrays)
    lengths = [len(array) if ragged.shapes is None else array.size for array in arrays]
    assert ragged.lengths.tolist() == lengths
    assert ragged.offsets.tolist() == [sum(lengths[:k]) for k in range(len(lengths) + 1)]
    assert same(ragged.values.reshape(-1), np.concatenate([array.reshape(-1) for array in arrays]))


@given(rows_of_arrays(least=1), st.integers(0, 3), st.sampled_from([0, 7]))
def test_pad_and_mask(arrays: Arrays, more: int, value: int) -> None:
    if arrays[0].dtype.kind in "Mm":
        arrays = [array.astype("i8") for array in arrays]
    ragged = Ragged.from_arrays(arrays)
    longest, *rest = (max(array.shape[axis] for array in arrays) for axis in range(arrays[0].ndim))
    for length in (None, longest + more):
        sizes = (longest if length is None else length, *rest)
        expected = np.full((len(arrays), *sizes), value, arrays[0].dtype)
        filled = np.zeros(expected.shape, np.bool_)
        for k, array in enumerate(arrays):
            here = tuple(slice(n) for n in array.shape)
            expected[k][here], filled[k][here] = array, True
        if value or arrays[0].dtype.kind not in "US":  # zero is the empty text where nothing was, "0" where it was set
            assert same(ragged.pad(length, value), expected)
        mask = ragged.mask(length)
        assert np.array_equal(
            np.broadcast_to(mask.reshape(mask.shape + (1,) * (filled.ndim - mask.ndim)), filled.shape), filled
        )
    if longest:
        with pytest.raises(SchemaError, match=f"at most {longest - 1}, got one of {longest}"):
            ragged.pad(longest - 1)


def test_pad_with_nan() -> None:
    padded = Ragged.from_arrays([np.ones(1), np.ones(2)]).pad(value=np.nan)
    assert np.array_equal(padded, np.array([[1, np.nan], [1, 1]]), equal_nan=True)


@given(rows_of_arrays(least=1))
def test_pickled_ragged_is_equal(arrays: Arrays) -> None:
    for again in (pickle.loads(pickle.dumps(Ragged.from_arrays(arrays))), copy.deepcopy(Ragged.from_arrays(arrays))):
        assert isinstance(again, Ragged)
        assert same(again.to_list(), arrays)


def test_pickle_of_a_part_contains_only_that_part() -> None:
    whole = Ragged.from_arrays([np.zeros(100_000), np.zeros(3)])
    assert len(pickle.dumps(whole[1:])) < 1000


def test_ragged_without_rows() -> None:
    for inner in ((), (3,), (2, 2)):
        ragged = Ragged.from_values(np.empty((0, *inner), np.float32), np.zeros(1, np.int64), inner)
        assert (len(ragged), ragged.to_list(), ragged.values.shape) == (0, [], (0, *inner))
        assert ragged.pad().shape == (0, 0, *inner)
        assert ragged.mask().shape == (0, 0)
        assert len(pickle.loads(pickle.dumps(ragged))) == 0


def test_ragged_from_values_takes_the_inner_sizes_of_its_values() -> None:
    ragged = Ragged.from_values(np.arange(6).reshape(3, 2), np.array([0, 1, 3]))
    assert same(ragged.to_list(), [np.array([[0, 1]]), np.array([[2, 3], [4, 5]])])


@pytest.mark.parametrize(
    "arrays",
    [
        [],
        [np.array(1)],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(2), np.zeros((1, 2))],
        [np.array([None, 1])],
    ],
)
def test_from_arrays_of_different_kinds_raises(arrays: Arrays) -> None:
    with pytest.raises(SchemaError, match="expected arrays of one dtype and one number of dimensions"):
        Ragged.from_arrays(arrays)


def test_bytes_of_partial_elements_raise() -> None:
    ragged = Ragged(Ranges(Segments.of(bytes(16)), [0, 0], [0, 8], [8, 6]), np.float32)
    for read in (lambda: ragged.values, ragged.to_list, lambda: ragged[1], ragged.pad):
        with pytest.raises(FormatError):
            read()
    assert same(ragged[0], np.zeros(2, np.float32))


def test_shapes_that_do_not_fit_their_bytes_raise() -> None:
    ranges = Ranges(Segments.of(bytes(16)), [0, 0], [0, 8], [8, 8])
    ragged = Ragged(ranges, np.float32, shapes=np.array([[1, 2], [2, 2]]))
    for read in (ragged.to_list, lambda: ragged[1], ragged.pad):
        with pytest.raises(FormatError, match="row 1: expected float32 of shape"):
            read()


def test_repr_of_ragged() -> None:
    assert repr(Ragged.from_arrays([np.zeros((2, 3)), np.zeros((1, 3))])) == "Ragged(2 rows of float64[3])"


# -- Columns --------------------------------------------------------------------------------------------------

values = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.floats(0, 1), st.text(max_size=3), st.binary(max_size=3)
)


@st.composite
def columns_of(draw: st.DrawFn, size: int) -> tuple[Column, list[Any]]:
    """Draw a column of `size` rows, and the values of its samples."""
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
