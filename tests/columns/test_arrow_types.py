"""Arrow types of features, and features of schemas of other tools, also with false metadata.
Arrow arrays without encodings, and which parts of them have nulls, from values and from counts alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings

from shardex.columns import number_array
from shardex.columns.arrow_types import (
    Path,
    expanded_size,
    is_number_item,
    null_paths,
    null_paths_of_counts,
    nullable_paths,
    storage_array,
    storage_dtype,
    storage_type,
    with_schema,
)
from shardex.columns.ipc import batch_layout, footer_blocks, footer_size
from shardex.errors import FormatError, SchemaError
from shardex.features import (
    Array,
    Bytes,
    ClassLabel,
    Date,
    Decimal,
    Duration,
    Feature,
    Features,
    Json,
    Map,
    Null,
    Opaque,
    Optional,
    Sequence,
    Struct,
    Text,
    Time,
    Timestamp,
    Value,
    arrow_schema,
    features_of_arrow,
)
from shardex.features.array_arrow import items_per_row
from tests.strategies import features, schemas


def only(feature: Feature) -> Features:
    return Features({"x": feature})


def read_as(kind: pa.DataType, told: Feature | None = None) -> Feature:
    return features_of_arrow(pa.schema([("x", kind)]), None if told is None else only(told))["x"]


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (Value("float16"), "halffloat"),
        (Value("bool"), "bool"),
        (Text(), "large_string"),
        (Json(), "large_string"),
        (Bytes(), "large_binary"),
        (Array(), "large_binary"),
        (ClassLabel(("a", "b")), "int32"),
        (Array("float32", (3,)), "fixed_size_list<item: float not null>[3]"),
        (Array("bool", (2, 3)), "fixed_size_list<item: uint8 not null>[6]"),
        (Array("complex64", (3,)), "fixed_size_list<item: float not null>[6]"),
        (Array("int8", ()), "fixed_size_list<item: int8 not null>[1]"),
        (Array("int8", (0, 3)), "fixed_size_list<item: int8 not null>[0]"),
        (Array("datetime64[us]", (None, 2)), "large_list<item: int64 not null>"),
        (
            Array("uint8", (None, None, 3)),
            "struct<values: large_list<item: uint8 not null> not null, "
            "shape: fixed_size_list<item: int64 not null>[3] not null>",
        ),
        (
            Array("uint8"),
            "struct<values: large_list<item: uint8 not null> not null, shape: list<item: int64 not null> not null>",
        ),
        (Sequence(Optional(Text())), "large_list<item: large_string>"),
        (Struct(Features.of({"a": int, "b": int | None})), "struct<a: int64 not null, b: int64>"),
        (Optional(Value("int8")), "int8"),
    ],
)
def test_arrow_type_of_each_feature(feature: Feature, kind: str) -> None:
    assert str(feature.arrow_type()) == kind
    assert arrow_schema(only(feature)).field("x").nullable == isinstance(feature, Optional)


def test_opaque_features_have_no_arrow_type() -> None:
    with pytest.raises(SchemaError, match="expected a feature that can be written, got date32"):
        arrow_schema(only(Opaque("date32")))


@settings(deadline=None)
@given(schemas)
def test_features_are_read_from_metadata(schema: Features) -> None:
    assert features_of_arrow(arrow_schema(schema)) == schema


@settings(deadline=None)
@given(features)
def test_every_feature_can_be_declared_for_its_type(feature: Feature) -> None:
    bare = arrow_schema(only(feature)).remove_metadata()
    assert features_of_arrow(bare, only(feature)) == only(feature)


@pytest.mark.parametrize(
    ("kind", "feature"),
    [
        (pa.int32(), Value("int32")),
        (pa.string(), Text()),
        (pa.string_view(), Text()),
        (pa.binary(), Bytes()),
        (pa.binary(16), Bytes()),
        (pa.binary_view(), Bytes()),
        (pa.dictionary(pa.int8(), pa.string()), Text()),
        (pa.dictionary(pa.int8(), pa.int64()), Value("int64")),
        (pa.run_end_encoded(pa.int32(), pa.string()), Text()),
        (pa.list_(pa.float32()), Array("float32", (None,))),
        (pa.large_list(pa.int8()), Array("int8", (None,))),
        (pa.list_(pa.float32(), 3), Array("float32", (3,))),
        (pa.list_(pa.list_(pa.float32(), 3), 2), Array("float32", (2, 3))),
        (pa.list_(pa.list_(pa.float32(), 3)), Sequence(Array("float32", (3,)))),
        (pa.list_(pa.bool_()), Sequence(Value("bool"))),
        (pa.list_(pa.bool_(), 2), Sequence(Value("bool"))),
        (pa.list_(pa.string()), Sequence(Text())),
        (pa.list_(pa.dictionary(pa.int8(), pa.int64())), Array("int64", (None,))),
        (pa.struct([("a", pa.string())]), Struct(Features.of({"a": str}))),
        (pa.struct([("a", pa.string()), ("a", pa.int8())]), Opaque("struct<a: string, a: int8>")),
        (pa.timestamp("us", "UTC"), Timestamp("us", "UTC")),
        (pa.decimal128(5, 2), Decimal(5, 2)),
        (pa.map_(pa.string(), pa.int8()), Map(Text(), Value("int8"))),
        (pa.null(), Null()),
        (pa.date64(), Date()),
        (pa.time32("s"), Time("s")),
        (pa.duration("ns"), Duration("ns")),
        (pa.decimal256(70, 3), Decimal(70, 3)),
        (pa.month_day_nano_interval(), Opaque("month_day_nano_interval")),
        (pa.uuid(), Bytes()),
        *([(pa.json_(), Json())] if hasattr(pa, "json_") else []),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3]), Array("float32", (2, 3))),
        (pa.fixed_shape_tensor(pa.float16(), [2, 3]), Array("float16", (2, 3))),
        (pa.fixed_shape_tensor(pa.time64("us"), [2]), Sequence(Time("us"))),
        (pa.fixed_shape_tensor(pa.timestamp("us", "UTC"), [2]), Sequence(Timestamp("us", "UTC"))),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[0, 1]), Array("float32", (2, 3))),
        (pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=[1, 0]), Array("float32", (6,))),
    ],
    ids=str,
)
def test_features_of_arrow_types(kind: pa.DataType, feature: Feature) -> None:
    assert read_as(kind) == feature


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.binary(), Array("float32", (2, 2))),
        (pa.binary(), Array()),
        (pa.binary(), Json()),
        (pa.binary(), Text()),
        (pa.string(), Json()),
        (pa.string(), Bytes()),
        (pa.int64(), ClassLabel(("a",))),
        (pa.list_(pa.float32()), Array("float32", (None, 3))),
        (pa.list_(pa.float32()), Array("float32", (3,))),
        (pa.list_(pa.float32()), Sequence(Value("float32"))),
        (pa.list_(pa.float32(), 6), Array("float32", (2, 3))),
        (pa.list_(pa.float32(), 6), Array("complex64", (3,))),
        (pa.list_(pa.list_(pa.float32(), 3), 2), Array("float32", (6,))),
        (pa.list_(pa.int64()), Array("datetime64[us]", (None,))),
        (pa.list_(pa.string(), 2), Sequence(Text())),
        (pa.dictionary(pa.int8(), pa.string()), Optional(Text())),
        (pa.struct([("a", pa.string())]), Struct(Features.of({"a": Json()}))),
        (pa.date32(), Opaque("anything")),
    ],
    ids=str,
)
def test_declared_features_that_can_be_read(kind: pa.DataType, told: Feature) -> None:
    assert read_as(kind, told) == told


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (pa.int32(), Value("int64")),
        (pa.int32(), Value("float32")),
        (pa.float32(), ClassLabel(("a",))),
        (pa.int32(), Text()),
        (pa.string(), Value("int32")),
        (pa.string(), Array("int8", (2,))),
        (pa.string(), Array()),
        (pa.list_(pa.float32(), 3), Array("float64", (3,))),
        (pa.list_(pa.float32(), 3), Array("float32", (4,))),
        (pa.list_(pa.float32(), 3), Array("float32", (None,))),
        (pa.list_(pa.float32(), 3), Array("float32", (None, None))),
        (pa.list_(pa.float32()), Array("int32", (None,))),
        (pa.list_(pa.float32()), Sequence(Text())),
        (pa.struct([("a", pa.string())]), Struct(Features.of({"b": str}))),
        (pa.struct([("a", pa.string())]), Struct(Features.of({"a": int}))),
        (pa.struct([("values", pa.string()), ("shape", pa.string())]), Array("int8")),
        (pa.string(), Struct(Features.of({"a": str}))),
        (pa.date32(), Text()),
    ],
    ids=str,
)
def test_declared_features_that_cannot_be_read(kind: pa.DataType, told: Feature) -> None:
    with pytest.raises(SchemaError) as caught:
        read_as(kind, told)
    assert str(caught.value) == f"expected a feature that {kind} can be read as, got {told} - at field x"


def test_declared_fields_must_exist() -> None:
    with pytest.raises(SchemaError, match="expected one of the fields x, got 'y' in the schema"):
        features_of_arrow(pa.schema([("x", pa.int8())]), Features.of({"y": int}))


def test_fields_with_nulls_are_optional() -> None:
    schema = pa.schema([("a", pa.int8()), ("b", pa.binary()), ("c", pa.int8())])
    found = features_of_arrow(schema, Features.of({"b": Array("int8", (2,))}), {("b",), ("c",)})
    assert str(found) == "a int8, b int8[2] or none, c int8 or none"


@pytest.mark.parametrize(
    "said",
    [b"", b"[]", b'{"x":{"kind":"text"}}', b'{"x":{"kind":"value","dtype":"float64"}}', b'{"y":{"kind":"text"}}'],
)
def test_invalid_metadata_is_ignored(said: bytes) -> None:
    schema = pa.schema([("x", pa.float32())], metadata={"shardex": said})
    assert features_of_arrow(schema) == only(Value("float32"))


def test_repeated_column_names_are_refused() -> None:
    for names in (["a", "a"], [""]):
        with pytest.raises(FormatError, match="expected columns of different names, got '"):
            features_of_arrow(pa.schema([(name, pa.int8()) for name in names]))


def test_storage_dtype_and_items_per_row() -> None:
    assert [str(storage_dtype(d)) for d in ("bool", "complex128", "timedelta64[s]", "float16")] == [
        "uint8",
        "float64",
        "int64",
        "float16",
    ]
    assert items_per_row(Array("complex64", (None, 3))) == 6


def test_number_array_does_not_copy() -> None:
    values = np.arange(5, dtype=np.int16)
    assert number_array(values).buffers()[1].address == values.__array_interface__["data"][0]
    assert number_array(values[::2]).to_pylist() == [0, 2, 4]
    assert number_array(np.array([True, False, True] * 3)).to_pylist() == [True, False, True] * 3
    assert number_array(np.zeros(0, np.float16)).to_pylist() == []


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
