"""Fields in the form that SQL reads: which are queryable, their types, and nulls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardex as sx
from shardex.columns import sql_table, take_table, true_or_null, valid_mask
from shardex.dataset.sql_sandbox import run
from shardex.errors import QueryError
from shardex.features import Feature, concat_tables, feature_of, feature_of_values


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
    assert feature_of(feature).queryable() is asked


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
    assert valid_mask(column, feature_of(int)).tolist() == expected
    assert true_or_null(valid_mask(column, feature_of(int))).to_pylist() == [
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
    assert str(feature_of_values(values)) == feature


def test_tables_of_different_types_are_not_concatenated() -> None:
    with pytest.raises(QueryError, match="expected fields of one type in all parts"):
        concat_tables([pa.table({"x": [1]}), pa.table({"x": ["a"]})])
