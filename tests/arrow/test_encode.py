"""Packers: values in, the same values out of the Arrow array, and nothing left of what was taken back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.arrow import arrow_type, column_of, list_of
from shardex.arrow.encode import packer_of
from shardex.errors import SchemaError
from shardex.samples import DictSample
from shardex.schema import Array, ClassLabel, Feature, Features, Json, Opaque, Optional, Sequence, Struct, Value
from tests.strategies import features, values


def unpacked(array: pa.Array, feature: Feature) -> list[Any]:
    array.validate(full=True)
    return list_of(column_of(array, feature))


def some(feature: Feature) -> st.SearchStrategy[list[Any]]:
    return st.lists(values(feature), max_size=5)


@settings(deadline=None)
@given(features.flatmap(lambda f: st.tuples(st.just(f), some(f), some(f))))
def test_values_come_back_and_what_is_truncated_does_not(drawn: tuple[Feature, list[Any], list[Any]]) -> None:
    feature, first, second = drawn
    packer = packer_of(feature)
    for value in first:
        packer.append(value)
    before = packer.nbytes
    for value in second:
        packer.append(value)
    packer.truncate(len(first))
    assert packer.nbytes == before
    for value in second:
        packer.append(value)
    array = packer.finish()
    assert array.type == arrow_type(feature)
    assert DictSample(v=unpacked(array, feature)) == {"v": [*first, *second]}
    assert len(packer.finish()) == 0


@settings(deadline=None)
@given(features)
def test_blanks_take_one_place_each(feature: Feature) -> None:
    packer = packer_of(feature)
    packer.blank()
    packer.blank()
    packer.truncate(1)
    packer.blank()
    array = packer.finish()
    array.validate(full=True)
    assert len(array) == 2


@settings(deadline=None)
@given(features.flatmap(lambda f: st.tuples(st.just(f), st.lists(st.none() | values(f), min_size=1, max_size=12))))
def test_nulls_change_no_byte_elsewhere(drawn: tuple[Feature, list[Any]]) -> None:
    """The same values give the same bytes: nothing that was in memory before shows through below a null."""
    feature, given_values = Optional(drawn[0]), drawn[1]
    images = []
    for fill in (0, 255):
        _dirty = [np.full(4096, fill, np.uint8) for _ in range(50)]
        del _dirty
        packer = packer_of(feature)
        for value in given_values:
            packer.append(value)
        batch = pa.record_batch([packer.finish()], names=["x"])
        images.append(batch.serialize().to_pybytes())
    assert images[0] == images[1]


def test_a_list_that_is_refused_half_way_leaves_nothing() -> None:
    packer = packer_of(Sequence(Struct(Features.of({"x": "int8", "y": list[str]}))))
    packer.append([{"x": 1, "y": ["a"]}])
    with pytest.raises(SchemaError, match=r"expected text, got int \(in y\)"):
        packer.append([{"x": 2, "y": ["b"]}, {"x": 3, "y": ["c", 4]}])
    packer.truncate(1)
    packer.append([{"x": 5, "y": []}])
    assert packer.finish().to_pylist() == [[{"x": 1, "y": ["a"]}], [{"x": 5, "y": []}]]


def test_classes_lie_as_numbers() -> None:
    packer = packer_of(ClassLabel(("cat", "dog")))
    for value in ("dog", 0, np.int64(1)):
        packer.append(value)
    assert packer.finish().equals(pa.array([1, 0, 1], pa.int32()))


def test_an_optional_class_without_names_can_be_none() -> None:
    packer = packer_of(Optional(ClassLabel(())))
    packer.append(None)
    assert packer.finish().to_pylist() == [None]


def test_lists_take_any_sequence() -> None:
    packer = packer_of(Sequence(Value("float32")))
    for value in ([1], (2.5,), range(2), np.array([0.5, 1.5]), np.array([2], np.float16)):
        packer.append(value)
    assert packer.finish().to_pylist() == [[1.0], [2.5], [0.0, 1.0], [0.5, 1.5], [2.0]]


def test_json_null_and_none_are_the_same() -> None:
    packer = packer_of(Optional(Json()))
    for value in (None, {"a": None}):
        packer.append(value)
    array = packer.finish()
    assert (array.null_count, unpacked(array, Optional(Json()))) == (1, [None, {"a": None}])


def test_a_foreign_type_cannot_be_written() -> None:
    with pytest.raises(SchemaError, match="expected a feature that can be written, got date32"):
        packer_of(Opaque("date32"))
    with pytest.raises(SchemaError, match="expected a feature that can be written, got date32"):
        packer_of(Sequence(Opaque("date32")))


def test_sizes_are_about_right() -> None:
    packer = packer_of(
        Struct(Features.of({"x": Array("float32", (100,)), "s": str, "t": Array("int16", (None,)), "n": int}))
    )
    for k in range(10):
        packer.append({"x": np.zeros(100, np.float32), "s": "a" * k, "t": np.zeros(k, np.int16), "n": k})
    assert 4000 + 45 + 90 + 80 <= packer.nbytes <= 4000 + 45 + 90 + 80 + 100
