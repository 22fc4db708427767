"""Filters of Ray as SQL: random filters keep the same samples as in Arrow, also with NaN and missing values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx

pytest.importorskip("ray")

FLOATS = st.sampled_from([0.0, -0.0, 1.0, 1.5, -2.25, 0.1, 1e300, math.inf, -math.inf, math.nan])
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "i64": (pa.int64(), st.sampled_from([0, 1, -1, 2**53 + 1, 2**63 - 1, -(2**63)])),
    "u64": (pa.uint64(), st.sampled_from([0, 1, 2**53 + 1, 2**63 - 1])),
    "f32": (pa.float32(), FLOATS.filter(lambda one: not 1e38 < abs(one) < math.inf)),
    "f64": (pa.float64(), FLOATS),
    "b": (pa.bool_(), st.booleans()),
    'te"xt': (pa.large_string(), st.sampled_from(["", "a", "A", "ab", "é", "z'z", "\U0001f600", "￿", "10"])),
}
ROWS = 6


def column(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[pa.Array]:
    some = st.lists(st.one_of(st.none(), values), min_size=ROWS, max_size=ROWS)
    return some.map(lambda found: pa.array(found, kind))


def columns() -> st.SearchStrategy[pa.Table]:
    return st.fixed_dictionaries({name: column(*one) for name, one in COLUMNS.items()}).map(pa.table)


@st.composite
def comparisons(draw: st.DrawFn) -> Any:
    from ray.data.expressions import col, lit

    name = draw(st.sampled_from(sorted(COLUMNS)))
    values = COLUMNS[name][1].filter(lambda one: not (isinstance(one, float) and math.isnan(one)))
    if draw(st.booleans()) and name != "b":
        operation = draw(st.sampled_from(["is_null", "is_not_null", "is_in", "not_in"]))
        some = draw(st.lists(values, min_size=1, max_size=3)) if operation.endswith("in") else None
        return getattr(col(name), operation)(*([] if some is None else [some]))
    operation = draw(st.sampled_from(["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]))
    left, right = col(name), lit(draw(values))
    return getattr(right, operation)(left) if draw(st.booleans()) else getattr(left, operation)(right)


FILTERS: st.SearchStrategy[Any] = st.deferred(
    lambda: st.one_of(
        comparisons(),
        st.builds(lambda left, right: left & right, FILTERS, FILTERS),
        st.builds(lambda left, right: left | right, FILTERS, FILTERS),
        FILTERS.map(lambda inner: ~inner),
    )
)


@settings(deadline=None)
@given(table=columns(), expression=FILTERS)
def test_same_samples_as_in_arrow(table: pa.Table, expression: Any) -> None:
    from shardex.ray.source import sql_condition

    data = sx.open(table)
    condition = sql_condition(expression, data.features)
    if condition is None:
        return
    numbered = table.append_column("row", pa.array(range(ROWS)))
    try:
        expected = numbered.filter(expression.to_pyarrow())["row"].to_pylist()
    except pa.ArrowException:  # Arrow cannot convert the value to the type of the column
        return
    kept = data.where(*condition)
    assert kept.order.rows(np.arange(len(kept))).tolist() == expected


def test_what_is_not_translated() -> None:
    from ray.data.expressions import col, lit

    from shardex.ray.source import sql_condition

    features = sx.Features.of({"x": int, "s": str, "v": sx.Array("float32", (2,)), "day": sx.Date(), "_row": int})
    for expression in [
        col("x") + 1 > 3,
        col("x") > col("x"),
        col("x") == "3",
        col("s") == 3,
        col("s") == lit(None),
        col("x") > lit(math.nan),
        col("x") > 2**63,
        col("x").is_in([]),
        col("x").is_in([1, "a"]),
        col("v").is_null(),
        col("day").is_null(),
        col("other") > 3,
        col("_row") > 3,
        (col("x") > 1) | (col("x") % 2 == 0),
        ~(col("x") % 2 == 0),
        lit(True),
    ]:
        assert sql_condition(expression, features) is None, expression
    assert sql_condition(col("x") > 1, features) == ('("x" > ?)', [1])
