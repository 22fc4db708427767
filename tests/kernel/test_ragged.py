"""`Ragged` compared with Python lists of the same arrays."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.errors import FormatError, SchemaError
from shardex.kernel import Ragged, Ranges, Segments
from tests.kernel.test_columns import array_of, same

Arrays = list[NDArray[Any]]

DTYPES = ["?", "i1", "<i8", ">i4", "<f2", "<f4", "c16", "M8[s]", "m8[ns]", "U3", "S2"]


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
    with pytest.raises(FormatError, match="expected sizes of arrays, got -1"):
        Ragged(ranges, np.float32, shapes=np.array([[1, 2], [-1, 1]])).to_list()


def test_repr_of_ragged() -> None:
    assert repr(Ragged.from_arrays([np.zeros((2, 3)), np.zeros((1, 3))])) == "Ragged(2 rows of float64[3])"
