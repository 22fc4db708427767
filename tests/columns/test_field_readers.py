"""Rows of chunks, and the bits of them.
Readers of fields return what Arrow returns, also for buffers as other tools write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.columns.arrow_values import no_file
from shardex.columns.field_readers import Chunks
from shardex.errors import FormatError, RangeError
from shardex.features import Array, Bytes, ClassLabel, Feature, Features, Json, Optional, Sequence, Struct, Text, Value
from shardex.kernel import values_of
from shardex.samples import DictSample
from tests.columns.readers import check, read_one_by_one, reader_over
from tests.strategies import features, values


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


def test_only_the_chunks_of_the_rows_are_opened() -> None:
    opened: list[int] = []
    chunks = [pa.array([k]) for k in range(10)]
    column = reader_over(chunks, Value("int64"), opened).read(np.array([7, 2, 7]))
    assert (values_of(column), sorted(opened)) == ([7, 2, 7], [2, 7])


@settings(deadline=None)
@given(
    features.flatmap(lambda f: st.tuples(st.just(f), st.lists(st.lists(values(f), max_size=4), min_size=1, max_size=4)))
)
def test_encoded_values_are_read(drawn: tuple[Feature, list[list[Any]]]) -> None:
    feature, parts = drawn
    encoder, chunks = feature.encoder(), []
    for part in parts:
        for value in part:
            encoder.append(value)
        chunks.append(encoder.finish())
    check(chunks, feature, [value for part in parts for value in part])


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (Value("int8"), "FixedWidthReader"),
        (Value("bool"), "BoolReader"),
        (ClassLabel(("a",)), "FixedWidthReader"),
        (Text(), "BytesReader"),
        (Json(), "BytesReader"),
        (Bytes(), "BytesReader"),
        (Array(), "BytesReader"),
        (Array("int8", (2,)), "FixedWidthReader"),
        (Array("int8", ()), "FieldReader"),
        (Array("int8", (None, 2)), "RaggedReader"),
        (Array("int8", (None, None)), "ShapedReader"),
        (Array("int8"), "FreeShapeReader"),
        (Sequence(Text()), "SequenceReader"),
        (Struct(Features.of({"a": int})), "StructReader"),
        (Optional(Text()), "OptionalReader"),
    ],
)
def test_each_feature_has_its_reader(feature: Feature, kind: str) -> None:
    assert (
        type(feature.reader("x", feature.arrow_type(), Chunks(np.zeros(1, np.int64), print, str), no_file)).__name__
        == kind
    )


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


@pytest.mark.parametrize(
    ("feature", "lists"),
    [
        (Value("int8"), [[1, 2], [], [3]]),
        (Optional(Value("float32")), [[1.5, None], [], [None]]),
        (Value("bool"), [[True], [], [False, True]]),
        (Optional(Text()), [["a", None, "é"], [], [""]]),
        (Bytes(), [[b"a", b""], [b"bc"], []]),
        (Array("int8", (2,)), [[np.array([1, 2], np.int8)] * 2, []]),
        (Array("int8", (None, 2)), [[np.ones((k, 2), np.int8) for k in range(3)], []]),
        (Array("complex64", (None,)), [[np.ones(k, np.complex64) for k in range(3)], []]),
        (Array("int8", (None, None)), [[np.ones((k, 2), np.int8) for k in range(3)], []]),
        (Optional(Array("int8")), [[np.ones((k,) * k, np.int8) for k in range(3)], [None, np.ones(4, np.int8)]]),
        (Array(), [[np.ones(2, "f4"), np.ones(3, "i2")], []]),
    ],
    ids=str,
)
def test_lists_of_simple_values(feature: Feature, lists: list[Any]) -> None:
    encoder = Sequence(feature).encoder()
    for value in lists:
        encoder.append(value)
    chunk = encoder.finish()
    check([chunk, chunk], Sequence(feature), [*lists, *lists])
    for one in read_one_by_one(reader_over([chunk], Sequence(feature)), [chunk])[0]:
        assert not isinstance(one, np.ndarray) or one.flags.writeable
        if isinstance(feature, Value):
            assert type(one) in (int, bool)


def test_a_bad_value_in_a_list_is_an_error_with_its_place() -> None:
    kind = pa.large_list(pa.struct({"values": pa.large_list(pa.int8()), "shape": pa.list_(pa.int64())}))
    good, bad = {"values": [1, 2], "shape": [2]}, {"values": [1, 2], "shape": [3]}
    chunk = pa.array([[good, good], [good, bad]], kind)
    feature = Sequence(Array("int8"))
    assert len(reader_over([chunk], feature).read(np.array([0]))) == 1
    with pytest.raises(FormatError, match=r"expected .* at chunk 0, sample 1, field x"):
        read_one_by_one(reader_over([chunk], feature), [chunk])
    texts = pa.array([["a"], ["b", None]], pa.large_list(pa.large_string()))
    check([texts], Sequence(Text()), [["a"], ["b", None]])  # nulls that the feature does not name


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


def test_single_structs_are_read_from_the_buffers_of_their_members() -> None:
    feature = Struct({"a": Array("int16", (2,)), "s": str | None, "n": Struct({"b": bool, "l": Sequence(Text())})})
    values = [
        {"a": np.array([k, 1], np.int16), "s": None if k % 2 else "é", "n": {"b": k > 1, "l": ["x"] * k}}
        for k in range(4)
    ]
    encoder = Optional(feature).encoder()
    for value in (*values, None):
        encoder.append(value)
    array = encoder.finish()
    reader = Optional(feature).reader("x", array.type, Chunks(np.array([0, 5]), print, str), no_file)
    reader.attach(0, array)
    get = reader.getter(0)
    assert [DictSample(x=get(row)) for row in range(5)] == [DictSample(x=value) for value in (*values, None)]
    assert get(1)["a"].base is not None


def test_a_damaged_struct_names_its_place() -> None:
    array = pa.StructArray.from_arrays([pa.Array.from_buffers(pa.large_string(), 1, broken_text())], ["s"])
    reader = Struct({"s": str}).reader("x", array.type, Chunks(np.array([0, 1]), print, "batch {}".format), no_file)
    reader.attach(0, array)
    with pytest.raises((FormatError, UnicodeDecodeError)):
        reader.getter(0)(0)


def broken_text() -> list[pa.Buffer | None]:
    """Return the buffers of a text that is not UTF-8."""
    return [None, pa.py_buffer(np.array([0, 1], np.int64)), pa.py_buffer(b"\xff")]
