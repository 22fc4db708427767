"""Arrow arrays without encodings, and which parts of them have nulls, from values and from counts alone."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from shardex.columns.ipc_footer import batch_layout, footer_blocks, footer_size
from shardex.columns.storage import (
    expanded_size,
    is_number_item,
    null_paths,
    null_paths_of_counts,
    nullable_paths,
    storage_array,
    with_schema,
)
from shardex.columns.types import Path, storage_type

WORDS = pa.array(["a", None, "b", "a"])
ENCODED: dict[str, pa.Array] = {
    "view": pa.array(["a", None, "b" * 20], pa.string_view()),
    "bytes view": pa.array([b"a", None], pa.binary_view()),
    "list of views": pa.array([["a", None], None, []], pa.list_(pa.string_view())),
    "struct of views": pa.array(
        [{"a": "x", "b": 1}, None, {"a": None, "b": 2}], pa.struct([("a", pa.string_view()), ("b", pa.int8())])
    ),
    "map of views": pa.array([[("a", "x")], None, []], pa.map_(pa.string_view(), pa.string_view())),
    "sized list of views": pa.array([["a", "b"], None], pa.list_(pa.string_view(), 2)),
    "list view": pa.array([[1, 2], None, [], [3], [4]], pa.list_view(pa.int64())),
    "large list view": pa.array([["a", None], None, ["b"]], pa.large_list_view(pa.string_view())),
    "overlapping list view": pa.ListViewArray.from_arrays([2, 0, 1], [2, 3, 0], pa.array([1, 2, 3, 4])),
    "runs": pc.run_end_encode(pa.array([1, 1, None, 2])),
    "runs of text": pc.run_end_encode(WORDS),
    "list of dictionaries": pa.ListArray.from_arrays([0, 1, 4], WORDS.dictionary_encode()),
    "uuid": pa.array([b"0" * 16, None], pa.uuid()),
}


@pytest.mark.parametrize("array", ENCODED.values(), ids=ENCODED)
def test_values_stay_and_the_type_is_the_storage_type(array: pa.Array) -> None:
    for part in (array, array.slice(1), array.slice(1, 1), array.slice(0, 0)):
        found = storage_array(part)
        found.validate(full=True)
        assert found.type == storage_type(array.type) and storage_array(found) is found
        plain: list[Any] = [None if one is None else getattr(one, "bytes", one) for one in part.to_pylist()]
        assert found.to_pylist() == plain


def test_dictionaries_at_the_top_are_kept() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", "b"], pa.string_view()), ordered=True)
    assert storage_array(array).type == pa.dictionary(pa.int64(), pa.large_string(), ordered=True)
    assert storage_array(array).to_pylist() == ["a", "b", None]


PATHS: list[tuple[pa.Array, set[Path]]] = [
    (pa.array([1, 2]), set()),
    (pa.array([1, None]), {("x",)}),
    (pa.nulls(3), set()),
    (pa.array([[1, 2], []]), set()),
    (pa.array([[1], None]), {("x",)}),
    (pa.array([[1, None]]), {("x", "item")}),
    (pa.array([[[1], [None]], None]), {("x",), ("x", "item", "item")}),
    (pa.array([{"a": 1, "b": [None]}]), set()),
    (pa.array([{"a": 1, "b": ["t", None]}]), {("x", "b", "item")}),
    (pa.array([{"a": None}, {"a": 1}]), {("x", "a")}),
    (pa.array([[("k", None)]], pa.map_(pa.string(), pa.int8())), {("x", "value")}),
    (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), {("x",)}),
    (pa.array([[1, None], [1, 2]], pa.list_(pa.int8(), 2)), {("x", "item")}),
    (pa.array([[1, None], [None, 2], None], pa.list_(pa.int8(), 2)), {("x",), ("x", "item")}),
    (WORDS.dictionary_encode(), {("x",)}),
    (pc.run_end_encode(WORDS), {("x",)}),
    (pc.run_end_encode(pa.array([1, 1])), set()),
    (pa.array(["a", None], pa.string_view()), {("x",)}),
    (pa.array([b"0" * 16, None], pa.uuid()), {("x",)}),
]


@pytest.mark.parametrize(("array", "expected"), PATHS, ids=lambda one: str(getattr(one, "type", "")))
def test_paths_that_have_nulls(array: pa.Array, expected: set[Path]) -> None:
    assert null_paths("x", [array]) == expected
    assert null_paths("x", [array], in_memory=False) == expected
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"before": pa.array([None] * len(array), pa.int8()), "x": array})
    with pa.ipc.new_file(sink, batch.schema) as file:
        file.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    footer = data[-footer_size(data[-10:], len(data), "") :]
    (block,) = footer_blocks(footer, len(data), "")[1]
    rows, counts, _ = batch_layout(data[block.begin : block.begin + block.head], "")
    assert rows == len(array)
    assert null_paths_of_counts(batch.schema, counts.tolist()) == expected | {("before",)}


def test_nulls_outside_a_slice_do_not_count() -> None:
    assert null_paths("x", [pa.array([[None], [1]]).slice(1)]) == set()
    assert null_paths("x", [pa.array([[1, None], None, [1, 2]], pa.list_(pa.int8(), 2)).slice(1)]) == {("x",)}


def test_nullable_paths_and_numbers_in_lists() -> None:
    field = pa.field("x", pa.struct([("a", pa.list_(pa.float32())), ("b", pa.map_(pa.string(), pa.string()))]))
    assert [*nullable_paths(field)] == [("x",), ("x", "a"), ("x", "a", "item"), ("x", "b"), ("x", "b", "value")]
    assert is_number_item(field, ("x", "a", "item")) and not is_number_item(field, ("x", "b", "value"))


def test_size_after_decoding_counts_nested_encodings() -> None:
    long = "x" * 1000
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * 50, pa.int8()), pa.array([long]))
    nested = pa.ListArray.from_arrays([0, 50], dictionary)
    views = pa.ListViewArray.from_arrays([0] * 40, [100] * 40, pa.array(range(100)))
    assert expanded_size(pa.table({"d": nested})) >= 50_000
    assert expanded_size(pa.table({"v": views})) >= 4000 * 8
    assert expanded_size(pa.table({"s": pa.array([{"a": long}], pa.struct([("a", pa.string_view())]))})) >= 1000


def test_columns_of_the_right_type_are_not_cast() -> None:
    table = pa.table({"n": pa.array([[None], [None, None]], pa.large_list(pa.null())).slice(1), "i": [1]})
    schema = pa.schema([("n", pa.large_list(pa.null())), ("i", pa.int8())])
    assert with_schema(table, schema).to_pydict() == {"n": [[None, None]], "i": [1]}
