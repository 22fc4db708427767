"""Arrow types of features, and features of schemas of other tools, also with false metadata."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from shardex.columns import number_array
from shardex.columns.types import storage_dtype
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
    items_per_row,
)
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
