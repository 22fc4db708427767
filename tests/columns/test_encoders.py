"""Encoders: the Arrow array holds the appended values, and nothing of truncated ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shardex.columns import decode_array
from shardex.errors import SchemaError
from shardex.features import Array, ClassLabel, Feature, Features, Json, Opaque, Optional, Sequence, Struct, Value
from shardex.kernel import values_of
from shardex.samples import DictSample
from tests.strategies import features, values


def decoded(array: pa.Array, feature: Feature) -> list[Any]:
    array.validate(full=True)
    return values_of(decode_array(array, feature))


def some(feature: Feature) -> st.SearchStrategy[list[Any]]:
    return st.lists(values(feature), max_size=5)


@settings(deadline=None)
@given(features.flatmap(lambda f: st.tuples(st.just(f), some(f), some(f))))
def test_values_come_back_and_truncated_ones_do_not(drawn: tuple[Feature, list[Any], list[Any]]) -> None:
    feature, first, second = drawn
    encoder = feature.encoder()
    for value in first:
        encoder.append(value)
    before = encoder.nbytes
    for value in second:
        encoder.append(value)
    encoder.truncate(len(first))
    assert encoder.nbytes == before
    for value in second:
        encoder.append(value)
    array = encoder.finish()
    assert array.type == feature.arrow_type()
    assert DictSample(v=decoded(array, feature)) == {"v": [*first, *second]}
    assert len(encoder.finish()) == 0


@settings(deadline=None)
@given(features)
def test_each_filler_is_one_row(feature: Feature) -> None:
    encoder = feature.encoder()
    encoder.append_filler()
    encoder.append_filler()
    encoder.truncate(1)
    encoder.append_filler()
    array = encoder.finish()
    array.validate(full=True)
    assert len(array) == 2


@settings(deadline=None)
@given(features.flatmap(lambda f: st.tuples(st.just(f), st.lists(st.none() | values(f), min_size=1, max_size=12))))
def test_bytes_under_nulls_are_deterministic(drawn: tuple[Feature, list[Any]]) -> None:
    """The same values give the same bytes: no old memory content remains under a null."""
    feature, given_values = Optional(drawn[0]), drawn[1]
    images = []
    for fill in (0, 255):
        _dirty = [np.full(4096, fill, np.uint8) for _ in range(50)]
        del _dirty
        encoder = feature.encoder()
        for value in given_values:
            encoder.append(value)
        batch = pa.record_batch([encoder.finish()], names=["x"])
        images.append(batch.serialize().to_pybytes())
    assert images[0] == images[1]


def test_truncate_removes_a_list_that_was_refused_halfway() -> None:
    encoder = Sequence(Struct(Features.of({"x": "int8", "y": list[str]}))).encoder()
    encoder.append([{"x": 1, "y": ["a"]}])
    with pytest.raises(SchemaError, match=r"expected text, got int \(in y\)"):
        encoder.append([{"x": 2, "y": ["b"]}, {"x": 3, "y": ["c", 4]}])
    encoder.truncate(1)
    encoder.append([{"x": 5, "y": []}])
    assert encoder.finish().to_pylist() == [[{"x": 1, "y": ["a"]}], [{"x": 5, "y": []}]]


def test_classes_are_stored_as_numbers() -> None:
    encoder = ClassLabel(("cat", "dog")).encoder()
    for value in ("dog", 0, np.int64(1)):
        encoder.append(value)
    assert encoder.finish().equals(pa.array([1, 0, 1], pa.int32()))


def test_optional_class_without_names_can_be_none() -> None:
    encoder = Optional(ClassLabel(())).encoder()
    encoder.append(None)
    assert encoder.finish().to_pylist() == [None]


def test_lists_accept_any_sequence() -> None:
    encoder = Sequence(Value("float32")).encoder()
    for value in ([1], (2.5,), range(2), np.array([0.5, 1.5]), np.array([2], np.float16)):
        encoder.append(value)
    assert encoder.finish().to_pylist() == [[1.0], [2.5], [0.0, 1.0], [0.5, 1.5], [2.0]]


def test_optional_json_none_is_a_null() -> None:
    encoder = Optional(Json()).encoder()
    for value in (None, {"a": None}):
        encoder.append(value)
    array = encoder.finish()
    assert (array.null_count, decoded(array, Optional(Json()))) == (1, [None, {"a": None}])


def test_opaque_features_cannot_be_written() -> None:
    with pytest.raises(SchemaError, match="expected a feature that can be written, got date32"):
        Opaque("date32").encoder()
    with pytest.raises(SchemaError, match="expected a feature that can be written, got date32"):
        Sequence(Opaque("date32")).encoder()


def test_nbytes_is_about_the_size_of_the_values() -> None:
    encoder = Struct(
        Features.of({"x": Array("float32", (100,)), "s": str, "t": Array("int16", (None,)), "n": int})
    ).encoder()
    for k in range(10):
        encoder.append({"x": np.zeros(100, np.float32), "s": "a" * k, "t": np.zeros(k, np.int16), "n": k})
    assert 4000 + 45 + 90 + 80 <= encoder.nbytes <= 4000 + 45 + 90 + 80 + 100


# -- arrays -----------------------------------------------------------------------------------------------------

SHAPES: list[tuple[int | None, ...] | None] = [(2, 3), (None, 3), (2, None), (None, None), None]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def same(found: list[Any], expected: list[NDArray[Any]]) -> bool:
    return DictSample(x=found) == {"x": expected}


@each_shape
def test_arrays_are_copied_when_appended(shape: tuple[int | None, ...] | None) -> None:
    feature = Array("float32", shape)
    encoder, buffer = feature.encoder(), np.zeros((2, 3), np.float32)
    for k in range(100):
        buffer[:] = k
        encoder.append(buffer)
    buffer[:] = -1
    assert same(decoded(encoder.finish(), feature), [np.full((2, 3), k, np.float32) for k in range(100)])


@each_shape
def test_strided_and_castable_arrays(shape: tuple[int | None, ...] | None) -> None:
    feature, whole = Array("int32", shape), np.arange(36, dtype=np.int32).reshape(6, 6)
    given = [
        whole[::3, ::2],
        whole[:3, :2].T,
        whole[:2, :3].astype(">i4"),
        whole[:2, :3].astype(np.int8),
        whole[:2, 2::-1],
    ]
    encoder = feature.encoder()
    for array in given:
        encoder.append(array)
    assert same(decoded(encoder.finish(), feature), [array.astype(np.int32) for array in given])


@each_shape
def test_subclasses_of_ndarray_are_accepted(shape: tuple[int | None, ...] | None) -> None:
    feature = Array("int64", shape)
    encoder = feature.encoder()
    encoder.append(np.arange(6).reshape(2, 3).view(np.recarray))
    encoder.append(np.ma.masked_array(np.arange(6).reshape(2, 3)))
    assert same(decoded(encoder.finish(), feature), [np.arange(6).reshape(2, 3)] * 2)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0), (None, 0), (0, None)], ids=str)
def test_empty_arrays_and_arrays_without_dimensions(shape: tuple[int | None, ...]) -> None:
    feature, value = Array("complex64", shape), np.zeros([0 if n is None else n for n in shape], np.complex64)
    encoder = feature.encoder()
    for _ in range(3):
        encoder.append(value)
    encoder.append_filler()
    assert same(decoded(encoder.finish(), feature), [value] * 3 + [np.zeros_like(value)])


@pytest.mark.parametrize("shape", [(1 << 20,), (None,), (None, None, 2)], ids=str)
def test_large_arrays(shape: tuple[int | None, ...]) -> None:
    feature, rank = Array("uint8", shape), len(shape)
    given = [np.full((1 << 20,) if rank == 1 else (8, 1 << 16, 2), k, np.uint8) for k in range(3)]
    encoder = feature.encoder()
    for array in given:
        encoder.append(array)
    assert encoder.nbytes >= 3 << 20
    assert same(decoded(encoder.finish(), feature), given)


def test_a_wrong_inner_size_is_refused() -> None:
    for shape in [(None, 3), (None, None, 3)]:
        encoder = Array("int8", shape).encoder()
        with pytest.raises(SchemaError, match=r"expected int8\[\?.*3\], got int8\[2, .*4\]"):
            encoder.append(np.zeros((*[2] * (len(shape) - 1), 4), np.int8))


def test_an_array_without_dimensions_is_not_ragged() -> None:
    with pytest.raises(SchemaError, match=r"expected int8\[\?\], got int8\[\]"):
        Array("int8", (None,)).encoder().append(np.array(1, np.int8))
