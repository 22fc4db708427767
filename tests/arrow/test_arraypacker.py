"""Packers of arrays: copied when they are appended, however large, strided or many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.arrow import column_of, list_of
from shardex.arrow.encode import FixedArrays, FreeArrays, ShapedArrays, array_packer
from shardex.errors import SchemaError
from shardex.samples import DictSample
from shardex.schema import Array

SHAPES: list[tuple[int | None, ...] | None] = [(2, 3), (None, 3), (2, None), (None, None), None]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def unpacked(packer: Any, feature: Array) -> list[Any]:
    array = packer.finish()
    array.validate(full=True)
    return list_of(column_of(array, feature))


def same(found: list[Any], expected: list[NDArray[Any]]) -> bool:
    return DictSample(x=found) == {"x": expected}


def test_the_packer_goes_by_what_is_free() -> None:
    kinds = [type(array_packer(Array("int8", shape))) for shape in SHAPES]
    assert kinds == [FixedArrays, FreeArrays, ShapedArrays, ShapedArrays, ShapedArrays]


@each_shape
def test_the_caller_may_reuse_its_array(shape: tuple[int | None, ...] | None) -> None:
    feature = Array("float32", shape)
    packer, buffer = array_packer(feature), np.zeros((2, 3), np.float32)
    for k in range(100):
        buffer[:] = k
        packer.append(buffer)
    buffer[:] = -1
    assert same(unpacked(packer, feature), [np.full((2, 3), k, np.float32) for k in range(100)])


@each_shape
def test_strided_and_foreign_arrays(shape: tuple[int | None, ...] | None) -> None:
    feature, whole = Array("int32", shape), np.arange(36, dtype=np.int32).reshape(6, 6)
    given = [
        whole[::3, ::2],
        whole[:3, :2].T,
        whole[:2, :3].astype(">i4"),
        whole[:2, :3].astype(np.int8),
        whole[:2, 2::-1],
    ]
    packer = array_packer(feature)
    for array in given:
        packer.append(array)
    assert same(unpacked(packer, feature), [array.astype(np.int32) for array in given])


@each_shape
def test_a_subclass_is_an_array(shape: tuple[int | None, ...] | None) -> None:
    feature = Array("int64", shape)
    packer = array_packer(feature)
    packer.append(np.arange(6).reshape(2, 3).view(np.recarray))
    packer.append(np.ma.masked_array(np.arange(6).reshape(2, 3)))
    assert same(unpacked(packer, feature), [np.arange(6).reshape(2, 3)] * 2)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (None, 0), (0, None)], ids=str)
def test_no_elements_and_no_dimensions(shape: tuple[int | None, ...]) -> None:
    feature, value = Array("complex64", shape), np.zeros([0 if n is None else n for n in shape], np.complex64)
    packer = array_packer(feature)
    for _ in range(3):
        packer.append(value)
    packer.blank()
    assert same(unpacked(packer, feature), [value] * 3 + [np.zeros_like(value)])


@pytest.mark.parametrize("shape", [(1 << 20,), (None,), (None, None, 2)], ids=str)
def test_arrays_larger_than_the_first_room(shape: tuple[int | None, ...]) -> None:
    feature, rank = Array("uint8", shape), len(shape)
    given = [np.full((1 << 20,) if rank == 1 else (8, 1 << 16, 2), k, np.uint8) for k in range(3)]
    packer = array_packer(feature)
    for array in given:
        packer.append(array)
    assert packer.nbytes >= 3 << 20
    assert same(unpacked(packer, feature), given)


def test_a_wrong_inner_size_is_refused() -> None:
    for shape in [(None, 3), (None, None, 3)]:
        packer = array_packer(Array("int8", shape))
        with pytest.raises(SchemaError, match=r"expected int8\[\?.*3\], got int8\[2, .*4\]"):
            packer.append(np.zeros((*[2] * (len(shape) - 1), 4), np.int8))


def test_a_scalar_is_no_row() -> None:
    with pytest.raises(SchemaError, match=r"expected int8\[\?\], got int8\[\]"):
        array_packer(Array("int8", (None,))).append(np.array(1, np.int8))
