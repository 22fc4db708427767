"""Fields straight from buffers: the same answers as Arrow gives, for whatever the buffers of other tools look like."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.arrow import arrow_type, to_list
from shardex.arrow.encode import encoder_of
from shardex.arrow.field_readers import Chunks, Field, reader_of
from shardex.errors import FormatError
from shardex.kernel import Ragged
from shardex.samples import DictSample
from shardex.schema import Array, Bytes, ClassLabel, Feature, Features, Json, Optional, Sequence, Struct, Text, Value
from tests.strategies import features, values


def field_over(chunks: list[pa.Array], feature: Feature, opened: list[int] | None = None) -> Field:
    """The field over arrays, one per chunk, that are put in when they are asked for."""
    starts = np.cumsum([0, *map(len, chunks)])

    def open_chunk(number: int) -> None:
        if opened is not None:
            opened.append(number)
        field.put(number, chunks[number])

    field = reader_of("x", feature, chunks[0].type, Chunks(starts, open_chunk, "chunk {}".format))
    return field


def one_by_one(field: Field, chunks: list[pa.Array]) -> list[Any]:
    for number, array in enumerate(chunks):
        field.put(number, array)
    getters = [field.getter(number) for number in range(len(chunks))]
    return [get(row) for get, array in zip(getters, chunks, strict=True) for row in range(len(array))]


def check(chunks: list[pa.Array], feature: Feature, expected: list[Any]) -> None:
    rows = np.random.default_rng(0).permutation(len(expected))
    found = to_list(field_over(chunks, feature).read(rows))
    assert DictSample(v=found) == {"v": [expected[row] for row in rows]}
    assert DictSample(v=one_by_one(field_over(chunks, feature), chunks)) == {"v": expected}
    assert len(field_over(chunks, feature).read(rows[:0])) == 0


@settings(deadline=None)
@given(
    features.flatmap(lambda f: st.tuples(st.just(f), st.lists(st.lists(values(f), max_size=4), min_size=1, max_size=4)))
)
def test_what_was_packed_is_read(drawn: tuple[Feature, list[list[Any]]]) -> None:
    feature, parts = drawn
    encoder, chunks = encoder_of(feature), []
    for part in parts:
        for value in part:
            encoder.append(value)
        chunks.append(encoder.finish())
    check(chunks, feature, [value for part in parts for value in part])


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (Value("int8"), "_Dense"),
        (Value("bool"), "_Truth"),
        (ClassLabel(("a",)), "_Dense"),
        (Text(), "_Blob"),
        (Json(), "_Blob"),
        (Bytes(), "_Blob"),
        (Array(), "_Blob"),
        (Array("int8", (2,)), "_Dense"),
        (Array("int8", ()), "Field"),
        (Array("int8", (None, 2)), "_Ragged"),
        (Array("int8", (None, None)), "_Shaped"),
        (Array("int8"), "Field"),
        (Sequence(Text()), "Field"),
        (Struct(Features.of({"a": int})), "Field"),
        (Optional(Text()), "_Maybe"),
    ],
)
def test_each_feature_has_its_reader(feature: Feature, kind: str) -> None:
    assert (
        type(reader_of("x", feature, arrow_type(feature), Chunks(np.zeros(1, np.int64), print, str))).__name__ == kind
    )


def test_images_of_any_size_come_ragged() -> None:
    feature = Array("uint8", (None, None, 3))
    images = [np.full((k, 2, 3), k, np.uint8) for k in range(4)]
    encoder = encoder_of(feature)
    for image in images:
        encoder.append(image)
    column = field_over([encoder.finish()], feature).read(np.array([3, 1]))
    assert isinstance(column, Ragged)
    assert column.pad().shape == (2, 3, 2, 3)
    assert DictSample(v=column.to_list()) == {"v": [images[3], images[1]]}


def test_only_the_chunks_of_the_rows_are_opened() -> None:
    opened: list[int] = []
    chunks = [pa.array([k]) for k in range(10)]
    column = field_over(chunks, Value("int64"), opened).read(np.array([7, 2, 7]))
    assert (to_list(column), sorted(opened)) == ([7, 2, 7], [2, 7])


def padded(array: pa.Array) -> pa.Array:
    """The same array in buffers that are longer than they need be, as some writers make them."""
    buffers = [None if b is None else pa.py_buffer(b.to_pybytes() + bytes(37)) for b in array.buffers()]
    if pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type):
        own = buffers[: array.type.num_buffers]
        return pa.Array.from_buffers(array.type, len(array), own, array.null_count, children=[padded(array.values)])
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count)


@pytest.mark.parametrize(
    ("array", "feature", "expected"),
    [
        (pa.array([1, 2, 3], pa.int16()), Value("int16"), [1, 2, 3]),
        (pa.array([True, False, True]), Value("bool"), [True, False, True]),
        (pa.array(["a", "", "é"]), Text(), ["a", "", "é"]),
        (pa.array(["a", None, "é"]), Optional(Text()), ["a", None, "é"]),
        (pa.array([1, None, 3], pa.int16()), Optional(Value("int16")), [1, None, 3]),
        (pa.array([True, None]), Optional(Value("bool")), [True, None]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), Array("int8", (2,)), np.array([[1, 2], [3, 4]], np.int8)),
        (pa.array([[1], [], [2, 3]]), Array("int64", (None,)), [np.array([1]), np.array([], int), np.array([2, 3])]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_buffers_longer_than_their_values(array: pa.Array, feature: Feature, expected: Any) -> None:
    check([padded(array), padded(array)], feature, [*expected, *expected])


def test_narrow_offsets() -> None:
    check([pa.array([b"a", b"bc"], pa.binary())], Bytes(), [b"a", b"bc"])
    check([pa.array(["a", "bc"], pa.string())], Text(), ["a", "bc"])
    pairs = [np.array([[1, 2]], np.int8), np.zeros((0, 2), np.int8)]
    check([pa.array([[1, 2], []], pa.list_(pa.int8()))], Array("int8", (None, 2)), pairs)


def test_holes_and_nulls_of_other_tools() -> None:
    maybe = Optional(Array("int8", (2,)))
    with_null = pa.array([[1, 2], None], pa.list_(pa.int8(), 2))  # pyarrow makes the elements below a null null too
    assert with_null.values.null_count == 2
    check([with_null, with_null.slice(0, 1)], maybe, [np.array([1, 2], np.int8), None, np.array([1, 2], np.int8)])
    check([pa.array([[1, None], [2]])], Array("int64", (None,)), [[1, None], np.array([2])])
    check([pa.array([["a", None], None])], Optional(Sequence(Text())), [["a", None], None])
    garbage = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(np.array([0, 1, 5], np.int32)), pa.py_buffer(b"1{{{{")], 1
    )
    check([garbage], Optional(Json()), [1, None])  # what lies below a null is not even looked at


def test_a_bad_value_says_where_it_lies() -> None:
    chunks = [pa.array([b"ab", b"cd"]), pa.array([b"ef", b"g"])]
    feature = Array("int8", (2,))
    expected = r"expected the bytes of int8\[2\], got 1 bytes - at chunk 1, sample 3, field x"
    with pytest.raises(FormatError, match=expected):
        field_over(chunks, feature).read(np.array([0, 3, 1]))
    with pytest.raises(FormatError, match=expected):
        one_by_one(field_over(chunks, feature), chunks)
    lists = [pa.array([[1, 2], [3]])]
    expected = r"got .* - at chunk 0, sample 1, field x"
    with pytest.raises(FormatError, match=expected):
        field_over(lists, Array("int64", (None, 2))).read(np.array([1]))
    with pytest.raises(FormatError, match=expected):
        one_by_one(field_over(lists, Array("int64", (None, 2))), lists)
    with pytest.raises(FormatError, match=r"expected UTF-8 .* - at chunk 0, sample 0, field x"):
        field_over([pa.array([b"\xff"])], Text()).read(np.array([0]))


def test_single_values_are_views() -> None:
    array = pa.array(np.arange(6, dtype=np.float32))
    dense = field_over([pa.FixedSizeListArray.from_arrays(array, 3)], Array("float32", (3,)))
    dense.put(0, pa.FixedSizeListArray.from_arrays(array, 3))
    view = dense.getter(0)(1)
    assert not view.flags.writeable
    assert view.__array_interface__["data"][0] == array.buffers()[1].address + 12
