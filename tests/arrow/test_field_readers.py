"""Readers of fields return what Arrow returns, also for buffers as other tools write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.arrow import arrow_type
from shardex.arrow.encode import encoder_of
from shardex.arrow.field_readers import Chunks, FieldReader, reader_of
from shardex.errors import FormatError, RangeError
from shardex.kernel import Ragged, values_of
from shardex.samples import DictSample
from shardex.schema import Array, Bytes, ClassLabel, Feature, Features, Json, Optional, Sequence, Struct, Text, Value
from tests.strategies import features, values


def reader_over(chunks: list[pa.Array], feature: Feature, opened: list[int] | None = None) -> FieldReader:
    """Return a reader over arrays, one per chunk, which are attached when they are opened."""
    starts = np.cumsum([0, *map(len, chunks)])

    def open_chunk(number: int) -> None:
        if opened is not None:
            opened.append(number)
        field.attach(number, chunks[number])

    field = reader_of("x", feature, chunks[0].type, Chunks(starts, open_chunk, "chunk {}".format))
    return field


def read_one_by_one(field: FieldReader, chunks: list[pa.Array]) -> list[Any]:
    for number, array in enumerate(chunks):
        field.attach(number, array)
    getters = [field.getter(number) for number in range(len(chunks))]
    return [get(row) for get, array in zip(getters, chunks, strict=True) for row in range(len(array))]


def check(chunks: list[pa.Array], feature: Feature, expected: list[Any]) -> None:
    rows = np.random.default_rng(0).permutation(len(expected))
    found = values_of(reader_over(chunks, feature).read(rows))
    assert DictSample(v=found) == {"v": [expected[row] for row in rows]}
    assert DictSample(v=read_one_by_one(reader_over(chunks, feature), chunks)) == {"v": expected}
    assert len(reader_over(chunks, feature).read(rows[:0])) == 0


@settings(deadline=None)
@given(
    features.flatmap(lambda f: st.tuples(st.just(f), st.lists(st.lists(values(f), max_size=4), min_size=1, max_size=4)))
)
def test_encoded_values_are_read(drawn: tuple[Feature, list[list[Any]]]) -> None:
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
        (Value("int8"), "_FixedWidthReader"),
        (Value("bool"), "_BoolReader"),
        (ClassLabel(("a",)), "_FixedWidthReader"),
        (Text(), "_BytesReader"),
        (Json(), "_BytesReader"),
        (Bytes(), "_BytesReader"),
        (Array(), "_BytesReader"),
        (Array("int8", (2,)), "_FixedWidthReader"),
        (Array("int8", ()), "FieldReader"),
        (Array("int8", (None, 2)), "_RaggedReader"),
        (Array("int8", (None, None)), "_ShapedReader"),
        (Array("int8"), "FieldReader"),
        (Sequence(Text()), "FieldReader"),
        (Struct(Features.of({"a": int})), "FieldReader"),
        (Optional(Text()), "_OptionalReader"),
    ],
)
def test_each_feature_has_its_reader(feature: Feature, kind: str) -> None:
    assert (
        type(reader_of("x", feature, arrow_type(feature), Chunks(np.zeros(1, np.int64), print, str))).__name__ == kind
    )


def test_arrays_of_any_shape_are_ragged() -> None:
    feature = Array("uint8", (None, None, 3))
    images = [np.full((k, 2, 3), k, np.uint8) for k in range(4)]
    encoder = encoder_of(feature)
    for image in images:
        encoder.append(image)
    column = reader_over([encoder.finish()], feature).read(np.array([3, 1]))
    assert isinstance(column, Ragged)
    assert column.pad().shape == (2, 3, 2, 3)
    assert DictSample(v=column.to_list()) == {"v": [images[3], images[1]]}


def test_only_the_chunks_of_the_rows_are_opened() -> None:
    opened: list[int] = []
    chunks = [pa.array([k]) for k in range(10)]
    column = reader_over(chunks, Value("int64"), opened).read(np.array([7, 2, 7]))
    assert (values_of(column), sorted(opened)) == ([7, 2, 7], [2, 7])


def padded(array: pa.Array) -> pa.Array:
    """Return the array with buffers that are longer than needed, as some writers make them."""
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


def test_offsets_of_32_bits() -> None:
    check([pa.array([b"a", b"bc"], pa.binary())], Bytes(), [b"a", b"bc"])
    check([pa.array(["a", "bc"], pa.string())], Text(), ["a", "bc"])
    pairs = [np.array([[1, 2]], np.int8), np.zeros((0, 2), np.int8)]
    check([pa.array([[1, 2], []], pa.list_(pa.int8()))], Array("int8", (None, 2)), pairs)


@pytest.mark.parametrize("outer", [pa.list_, pa.large_list])
@pytest.mark.parametrize("inner", [pa.list_, pa.large_list])
def test_lists_of_arrays(outer: Any, inner: Any) -> None:
    lists = [[[9.0]], [[1.0, 2.0], []], [], [[3.0]], [[], [4.0, 5.0, 6.0], [7.0]]]
    expected = [[np.array(one, np.float32) for one in some] for some in lists]
    whole = pa.array(lists, outer(inner(pa.float32())))
    feature = Sequence(Array("float32", (None,)))
    check([whole], feature, expected)
    check([whole[1:4], whole[4:], whole[:0]], feature, expected[1:])
    value = read_one_by_one(reader_over([whole], feature), [whole])[1][0]
    value[0] = 8  # a copy
    assert whole[1].as_py() == lists[1]
    holes = pa.array([None, [[1.0]], [[2.0], []]], outer(inner(pa.float32())))
    check(
        [holes],
        Optional(feature),
        [None, *([np.array(one, np.float32) for one in some] for some in ([[1]], [[2], []]))],
    )


def test_nulls_inside_arrays_and_garbage_under_nulls() -> None:
    maybe = Optional(Array("int8", (2,)))
    with_null = pa.array([[1, 2], None], pa.list_(pa.int8(), 2))  # pyarrow makes the elements under a null null too
    assert with_null.values.null_count == 2
    check([with_null, with_null.slice(0, 1)], maybe, [np.array([1, 2], np.int8), None, np.array([1, 2], np.int8)])
    check([pa.array([[1, None], [2]])], Array("int64", (None,)), [[1, None], np.array([2])])
    check([pa.array([["a", None], None])], Optional(Sequence(Text())), [["a", None], None])
    garbage = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(np.array([0, 1, 5], np.int32)), pa.py_buffer(b"1{{{{")], 1
    )
    check([garbage], Optional(Json()), [1, None])  # bytes under a null are not read


def test_a_bad_value_is_an_error_with_its_place() -> None:
    chunks = [pa.array([b"ab", b"cd"]), pa.array([b"ef", b"g"])]
    feature = Array("int8", (2,))
    expected = r"expected the bytes of int8\[2\], got 1 bytes - at chunk 1, sample 3, field x"
    with pytest.raises(FormatError, match=expected):
        reader_over(chunks, feature).read(np.array([0, 3, 1]))
    with pytest.raises(FormatError, match=expected):
        read_one_by_one(reader_over(chunks, feature), chunks)
    lists = [pa.array([[1, 2], [3]])]
    expected = r"got .* - at chunk 0, sample 1, field x"
    with pytest.raises(FormatError, match=expected):
        reader_over(lists, Array("int64", (None, 2))).read(np.array([1]))
    with pytest.raises(FormatError, match=expected):
        read_one_by_one(reader_over(lists, Array("int64", (None, 2))), lists)
    with pytest.raises(FormatError, match=r"expected UTF-8 .* - at chunk 0, sample 0, field x"):
        reader_over([pa.array([b"\xff"])], Text()).read(np.array([0]))


def test_single_arrays_are_read_only_views() -> None:
    array = pa.array(np.arange(6, dtype=np.float32))
    dense = reader_over([pa.FixedSizeListArray.from_arrays(array, 3)], Array("float32", (3,)))
    dense.attach(0, pa.FixedSizeListArray.from_arrays(array, 3))
    view = dense.getter(0)(1)
    assert not view.flags.writeable
    assert view.__array_interface__["data"][0] == array.buffers()[1].address + 12


# -- chunks -----------------------------------------------------------------------------------------------------


def open_nothing(number: int) -> None:
    """Fill no segment."""


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1))
def test_chunk_of_each_row(sizes: list[int]) -> None:
    chunks = Chunks(np.cumsum([0, *sizes]), open_nothing, str)
    expected = [number for number, size in enumerate(sizes) for _ in range(size)]
    assert chunks.of(np.arange(sum(sizes))).tolist() == expected
    assert [chunks.rows_in(number) for number in range(len(sizes))] == sizes


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=20), min_size=1, max_size=5))
def test_bits_of_rows_in_any_order(truths: list[list[bool]]) -> None:
    def fill(number: int) -> None:
        segments.put(number, np.packbits(np.array(truths[number], np.bool_), bitorder="little"))

    chunks = Chunks(np.cumsum([0, *map(len, truths)]), fill, str)
    segments = chunks.segments()
    expected = np.array([truth for part in truths for truth in part], np.bool_)
    rows = np.random.default_rng(0).permutation(len(expected))
    assert chunks.bits(segments, rows).tolist() == expected[rows].tolist()


def test_a_buffer_with_too_few_bits_is_an_error() -> None:
    chunks = Chunks(np.array([0, 9]), lambda number: segments.put(number, b"\xff"), "chunk {}".format)
    segments = chunks.segments()
    with pytest.raises(RangeError, match="chunk 0, 1 bytes"):
        chunks.bits(segments, np.array([8]))
