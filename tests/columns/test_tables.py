"""Columns of every form as Arrow tables.
Fields in the form that SQL reads: which are queryable, their types, and nulls."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.columns import decode_array, to_table
from shardex.columns.tables import sql_table, take_table, true_or_null, valid_mask
from shardex.dataset.sql_syntax import run
from shardex.errors import QueryError, SchemaError
from shardex.features import Array, ClassLabel, Feature, Features, Opaque, Optional, Value, conversions, kinds
from shardex.kernel import MISSING, Columns, Masked, Ragged, values_of
from shardex.samples import DictSample
from tests.strategies import datasets


@settings(deadline=None)
@given(datasets())
def test_columns_of_any_schema(data: tuple[Features, list[dict[str, Any]]]) -> None:
    features, samples = data
    for columns in (Columns.from_samples(samples), Columns.from_samples(samples).stack()):
        table = to_table(columns, features)
        table.validate(full=True)
        assert table.column_names == list(features)
        for name, feature in features.items():
            array = pa.concat_arrays([pa.nulls(0, table[name].type), *table[name].chunks])
            assert DictSample(v=values_of(decode_array(array, feature))) == {"v": [sample[name] for sample in samples]}


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "complex64", "datetime64[us]"])
def test_stacked_and_ragged_columns_are_not_copied(dtype: str) -> None:
    stacked = np.ones((3, 2, 2), dtype)
    ragged = Ragged.from_arrays([np.ones((k, 2), dtype) for k in range(3)])
    features = Features({"s": Array(dtype, (2, 2)), "r": Array(dtype, (None, 2))})
    table = to_table(Columns({"s": stacked, "r": ragged}), features)
    table.validate(full=True)
    assert np.array_equal(np.asarray(decode_array(table["s"].chunk(0), features["s"])), stacked)
    assert [len(row) for row in values_of(decode_array(table["r"].chunk(0), features["r"]))] == [0, 1, 2]
    address = table["s"].chunk(0).values.buffers()[1].address
    assert address == stacked.__array_interface__["data"][0]


def encoded(values: list[Any], feature: Feature) -> pa.Array:
    encoder = feature.encoder()
    for value in values:
        encoder.append(value)
    return encoder.finish()


@pytest.mark.parametrize("dtype", ["bool", "float16", "complex64", "datetime64[us]"])
@pytest.mark.parametrize("shape", [(None, None), (None, None, 2), (2, None), (None, 0), None], ids=str)
def test_arrays_of_different_shapes_in_any_form_are_what_the_encoder_makes(
    dtype: str, shape: tuple[int | None, ...] | None
) -> None:
    def arrays(*sizes: int) -> list[Any]:
        every = [tuple(free if size is None else size for size in shape or (None, 3)) for free in sizes]
        return [np.arange(math.prod(one)).reshape(one).astype(dtype) for one in every]

    free, maybe = Array(dtype, shape), Optional(Array(dtype, shape))
    different, same, hole = arrays(3, 0, 2), arrays(3, 3), arrays(3, 2)
    mixed = [*different, np.array(1).astype(dtype), np.zeros(4, dtype)] if shape is None else different
    forms: list[tuple[Feature, Any, list[Any]]] = [
        (free, mixed, mixed),
        (free, Ragged.from_arrays(different), different),
        (free, Ragged.from_arrays(different, shaped=True), different),
        (free, np.stack(same), same),
        (maybe, [mixed[0], None, *mixed], [mixed[0], None, *mixed]),
        (maybe, Masked.spread(Ragged.from_arrays(hole), np.array([True, False, True])), [hole[0], None, hole[1]]),
        (maybe, Masked.spread(np.stack(same), np.array([True, True, False])), [*same, None]),
        (maybe, [None, None], [None, None]),
    ]
    for feature, column, values in forms:
        table = to_table(Columns({"x": column}), Features({"x": feature}))
        table.validate(full=True)
        found, expected = table["x"].chunk(0), encoded(values, feature)
        assert found.equals(expected) and found.nbytes == expected.nbytes
        assert DictSample(v=values_of(decode_array(found, feature))) == {"v": values}


@pytest.mark.parametrize("feature", [Array(), Array("float64"), Array("float64", (None, None))], ids=str)
def test_masked_arrays_of_another_dtype_than_the_feature(feature: Array) -> None:
    values = [np.ones((1, 2), np.float32), np.zeros((2, 2), np.float32)]
    mask = np.array([True, False, True])
    for present in (Ragged.from_arrays(values), np.stack(values[:1] * 2)):
        table = to_table(Columns({"x": Masked.spread(present, mask)}), Features({"x": Optional(feature)}))
        found = values_of(decode_array(table["x"].chunk(0), Optional(feature)))
        assert [None if one is None else one.dtype for one in found] == [
            feature.dtype or "f4",
            None,
            feature.dtype or "f4",
        ]
        assert np.array_equal(found[0], values[0])


def test_arrays_of_wrong_shapes_are_refused() -> None:
    features = Features({"x": Array("int8", (None, None, 3))})
    images = [np.zeros((1, 1, 3), np.int8), np.zeros((1, 1, 4), np.int8)]
    for column in (images, Ragged.from_arrays(images), Masked.whole(Ragged.from_arrays(images)), np.ones((2, 3), "i1")):
        with pytest.raises(SchemaError, match=r"expected int8\[\?, \?, 3\], got int8.* - at sample [01], field x"):
            to_table(Columns({"x": column}), features)


def test_columns_that_differ_from_the_feature() -> None:
    features = Features(
        {
            "wide": Value("int32"),
            "label": ClassLabel(("a", "b")),
            "free": Array("int8", (None,)),
            "sized": Array("int8", (2,)),
            "more": Array("int16", (None,)),
        }
    )
    columns = Columns(
        {
            "wide": np.array([1, 2]),
            "label": np.array([0, 1]),
            "free": np.ones((2, 3), np.int8),
            "sized": Ragged.from_arrays([np.ones(2, np.int8)] * 2),
            "more": Ragged.from_arrays([np.ones(1, np.int8), np.ones(2, np.int8)]),
        }
    )
    assert to_table(columns, features).to_pylist() == [
        {"wide": 1, "label": 0, "free": [1, 1, 1], "sized": [1, 1], "more": [1]},
        {"wide": 2, "label": 1, "free": [1, 1, 1], "sized": [1, 1], "more": [1, 1]},
    ]


def test_missing_values_are_null() -> None:
    columns = Columns({"a": [1, MISSING, None], "b": ["x", None, "y"]})
    table = to_table(columns, Features.of({"a": int, "b": str | None}))
    assert table.to_pydict() == {"a": [1, None, None], "b": ["x", None, "y"]}


def test_no_rows_and_no_columns() -> None:
    features = Features.of({"a": int, "x": Array("int8", (2,)), "o": Optional(Array("int8"))})
    table = to_table(Columns({}, 0), features)
    assert (table.num_rows, table.column_names) == (0, ["a", "x", "o"])


def test_opaque_values_keep_their_arrow_type_or_are_refused() -> None:
    days = [datetime.date(2020, 1, 1), None]
    assert to_table(Columns({"d": days}), Features({"d": Opaque("date32[day]")})).to_pydict() == {"d": days}
    with pytest.raises(SchemaError, match=r"expected values that Arrow can infer a type for, got .* - at field d"):
        to_table(Columns({"d": [object()]}), Features({"d": Opaque("what")}))


def test_a_value_that_does_not_fit_is_located() -> None:
    with pytest.raises(SchemaError, match="got int 300, which is out of range - at sample 1, field a"):
        to_table(Columns({"a": [1, 300]}), Features({"a": Value("int8")}))


@pytest.mark.parametrize(
    ("feature", "asked"),
    [
        ("int8", True),
        ("float16", True),
        (str, True),
        (bytes, True),
        (dict, True),
        (sx.ClassLabel(("a",)), True),
        (sx.Array("float32", (3,)), True),
        (sx.Array("float32", (3, 2)), True),
        (sx.Array("float32", (None,)), True),
        (sx.Array("float32", (None, 2)), False),
        (sx.Array("float32", (0,)), False),
        (sx.Array("float32", ()), False),
        (sx.Array("bool", (3,)), False),
        (sx.Array("complex64", (3,)), False),
        (sx.Array("datetime64[s]", (3,)), False),
        (sx.Array("float32"), False),
        (sx.Array(), False),
        (sx.Optional(sx.Array()), False),
        (list[str], True),
        (sx.Sequence(sx.Array("int8", (2,))), True),
        (sx.Sequence(sx.Array("int8", (2, 2))), False),
        (sx.Struct({"a": sx.Text(), "b": sx.Array()}), False),
        (sx.Struct({}), False),
        (sx.Struct({"a": sx.Optional(sx.Text())}), True),
    ],
)
def test_is_queryable(feature: Any, asked: bool) -> None:
    assert kinds.feature_of(feature).queryable() is asked


def test_arrays_of_several_dimensions(tmp_path: Any) -> None:
    grids = [None if k % 3 == 0 else np.full((2, 3), k, "int16") for k in range(10)]
    ds = sx.write(
        tmp_path / "a", [{"g": g} for g in grids], {"g": sx.Optional(sx.Array("int16", (2, 3)))}, shard_rows=4
    )
    table = ds.sql_columns(["g"])
    assert table["g"].to_pylist() == [None if g is None else g.tolist() for g in grids]
    assert ds[2:9].sql_columns(["g"])["g"].to_pylist() == table["g"].to_pylist()[2:9]
    table.validate(full=True)


def test_float16_becomes_float32() -> None:
    halves = pa.array(np.array([1.5, 2.5], "float16"))
    columns = {
        "v": pa.chunked_array([halves]),
        "l": pa.chunked_array([pa.LargeListArray.from_arrays([0, 2], halves)]),
        "f": pa.chunked_array([pa.FixedSizeListArray.from_arrays(halves, 2)]),
    }
    features: dict[str, Feature] = {
        "v": sx.Value("float16"),
        "l": sx.Array("float16", (None,)),
        "f": sx.Array("float16", (2,)),
    }
    for name, column in columns.items():
        seen = sql_table({name: column}, features)
        assert seen[name].to_pylist() in ([1.5, 2.5], [[1.5, 2.5]])
        assert run(f"SELECT {name} FROM ds", None, seen).num_rows == len(column)


def test_json_columns_have_the_json_extension_type() -> None:
    texts = pa.chunked_array([["1", None]], pa.large_string())
    for feature, kind in ((sx.Json(), "JSON"), (sx.Optional(sx.Json()), "JSON"), (sx.Text(), "VARCHAR")):
        for table in (
            sql_table({"x": texts}, {"x": feature}),
            take_table(sql_table({"x": texts}, {"x": feature}), np.array([1])),
        ):
            assert run("SELECT DISTINCT typeof(x) AS t FROM ds", None, table)["t"].to_pylist() == [kind]


@given(st.lists(st.lists(st.none() | st.integers(0, 9), max_size=20), max_size=4), st.integers(0, 9))
def test_valid_mask(chunks: list[list[int | None]], begin: int) -> None:
    column = pa.chunked_array(chunks, pa.int64()).slice(begin)
    expected = [value is not None for value in column.to_pylist()]
    assert valid_mask(column, kinds.feature_of(int)).tolist() == expected
    assert true_or_null(valid_mask(column, kinds.feature_of(int))).to_pylist() == [
        True if there else None for there in expected
    ]


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([], "json or none"),
        ([None], "json or none"),
        ([True, None], "bool or none"),
        ([1, True], "json or none"),
        ([-(2**63), 2**63 - 1], "int64 or none"),
        ([2**63], "json or none"),
        ([1, 0.5], "float64 or none"),
        ([0.5], "float64 or none"),
        (["a", None], "text or none"),
        (["a", 1], "json or none"),
        ([[1]], "json or none"),
        ([{}], "json or none"),
    ],
)
def test_feature_of_values(values: list[Any], feature: str) -> None:
    assert str(conversions.feature_of_values(values)) == feature


def test_tables_of_different_types_are_not_concatenated() -> None:
    with pytest.raises(QueryError, match="expected fields of one type in all parts"):
        conversions.concat_tables([pa.table({"x": [1]}), pa.table({"x": ["a"]})])
