"""Readers of fields with offsets return what Arrow returns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from shardex.errors import FormatError
from shardex.features import Array, Bytes, Feature, Optional, Text
from shardex.kernel import Ragged
from shardex.samples import DictSample
from tests.columns.readers import check, read_one_by_one, reader_over


def test_arrays_of_any_shape_are_ragged() -> None:
    feature = Array("uint8", (None, None, 3))
    images = [np.full((k, 2, 3), k, np.uint8) for k in range(4)]
    encoder = feature.encoder()
    for image in images:
        encoder.append(image)
    column = reader_over([encoder.finish()], feature).read(np.array([3, 1]))
    assert isinstance(column, Ragged)
    assert column.pad().shape == (2, 3, 2, 3)
    assert DictSample(v=column.to_list()) == {"v": [images[3], images[1]]}


SHAPES: dict[str, list[tuple[int, ...]]] = {
    "one dimension": [(3,), (0,), (5,)],
    "one dimension, one length": [(3,), (3,)],
    "two dimensions": [(2, 3), (1, 1), (0, 4), (3, 0)],
    "one shape": [(2, 3), (2, 3)],
    "no dimensions": [(), ()],
    "different numbers of dimensions": [(2, 3), (), (4,), (0,), (1, 2, 1), (1 << 40, 0)],
}


@pytest.mark.parametrize("dtype", ["float16", "bool", "complex64", "datetime64[us]", "uint8"])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("optional", [False, True])
def test_arrays_of_any_number_of_dimensions(dtype: str, shapes: list[tuple[int, ...]], optional: bool) -> None:
    feature: Feature = Optional(Array(dtype)) if optional else Array(dtype)
    arrays: list[Any] = [np.arange(math.prod(shape)).reshape(shape).astype(dtype) for shape in shapes]
    values = [*arrays, None, *arrays[:1]] if optional else arrays
    encoder, chunks = feature.encoder(), []
    for part in (values, values[::-1], values[:1]):
        for value in part:
            encoder.append(value)
        chunks.append(encoder.finish())
    check(chunks, feature, [*values, *values[::-1], *values[:1]])
    many: Any = reader_over(chunks, feature).read(np.array([0, len(values) - 1]))
    assert isinstance(many, list)  # also if all shapes are equal
    assert all(isinstance(one, np.ndarray) and one.dtype == dtype and one.flags.writeable for one in many)
    one = read_one_by_one(reader_over(chunks, feature), chunks)[0]
    assert one.dtype == dtype and not one.flags.writeable


def shaped(values: list[list[int]], shapes: list[list[int]]) -> pa.Array:
    parts = [pa.array(values, pa.large_list(pa.int8())), pa.array(shapes, pa.list_(pa.int64()))]
    return pa.StructArray.from_arrays(parts, names=["values", "shape"])


@pytest.mark.parametrize(
    "shapes",
    [
        [[2, 1], [1, 2], [3, 1]],
        [[2, 1], [2, 1], [2, 1]],
        [[2, 1], [1, 2], [-1, 1]],
        [[2], [2], [3]],
        [[2], [], [-1]],
        [[2, 1], [1, 2], [1 << 62, 4]],
    ],
)
def test_wrong_shapes_are_errors_with_their_place(shapes: list[list[int]]) -> None:
    values = [[1, 2], [3, 4] if shapes[1] else [3], [5]]
    chunks = [shaped(values[:2], shapes[:2]), shaped(values[2:], shapes[2:])]
    place = r"expected .* at chunk 1, sample 2, field x"
    with pytest.raises(FormatError, match=place):
        reader_over(chunks, Array("int8")).read(np.array([0, 2]))
    with pytest.raises(FormatError, match=place):
        read_one_by_one(reader_over(chunks, Array("int8")), chunks)


def test_nulls_inside_shaped_arrays_are_errors() -> None:
    kind = pa.struct({"values": pa.large_list(pa.int8()), "shape": pa.list_(pa.int64())})
    for value in ({"values": [1, None], "shape": [2]}, {"values": [1], "shape": [None]}):
        chunk = pa.array([value], kind)
        with pytest.raises(FormatError, match=r"got nulls inside .* at chunk 0, sample 0, field x"):
            reader_over([chunk], Array("int8")).read(np.array([0]))


def test_offsets_of_32_bits() -> None:
    check([pa.array([b"a", b"bc"], pa.binary())], Bytes(), [b"a", b"bc"])
    check([pa.array(["a", "bc"], pa.string())], Text(), ["a", "bc"])
    pairs = [np.array([[1, 2]], np.int8), np.zeros((0, 2), np.int8)]
    check([pa.array([[1, 2], []], pa.list_(pa.int8()))], Array("int8", (None, 2)), pairs)
