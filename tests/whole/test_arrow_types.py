"""Every Arrow type from every producer is read the same by every route, and pyarrow says what is true."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest

import shardex as sx
from shardex.features import Feature, unwrap_optional
from tests.agreement import ROUTES, Found, Route, disagreements, plain_sample
from tests.strategies import LONG

# -- types ----------------------------------------------------------------------------------------------------

DAY = datetime.date(2024, 2, 29)
NOON = datetime.datetime(1999, 12, 31, 12, 0, 1)
TENTH = decimal.Decimal("-0.10")


PAIR = pa.struct({"a": pa.int8(), "b": pa.string()})
TIMES = pa.struct({"t": pa.timestamp("us"), "d": pa.date32()})


def timestamps(unit: str, zone: str | None = None) -> tuple[pa.DataType, list[Any]]:
    return pa.timestamp(unit, zone), [0, -1, 1_700_000_000]


VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, True]),
    "int8": (pa.int8(), [-128, 0, 127]),
    "int16": (pa.int16(), [-(2**15), 1, 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 1, 2**31 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1]),
    "uint8": (pa.uint8(), [0, 1, 255]),
    "uint16": (pa.uint16(), [0, 1, 2**16 - 1]),
    "uint32": (pa.uint32(), [0, 1, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**63, 2**64 - 1]),
    "float16": (pa.float16(), [0.5, -0.0, float("inf")]),
    "float32": (pa.float32(), [0.5, -0.0, float("-inf")]),
    "float64": (pa.float64(), [0.1, -0.0, float("nan")]),
    "string": (pa.string(), ["", "dög", "a\0b"]),
    "large_string": (pa.large_string(), ["", "dög", "x" * 40]),
    "string_view": (pa.string_view(), ["", "dög", "longer than twelve bytes"]),
    "binary": (pa.binary(), [b"", b"\xff\0", b"abc"]),
    "large_binary": (pa.large_binary(), [b"", b"\xff\0", b"abc"]),
    "binary_view": (pa.binary_view(), [b"", b"\xff\0", b"longer than twelve bytes"]),
    "fixed_binary": (pa.binary(3), [b"abc", b"\0\0\0", b"\xff\xfe\xfd"]),
    "date32": (pa.date32(), [DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "date64": (pa.date64(), [DAY, datetime.date(1969, 12, 31), datetime.date(2100, 1, 1)]),
    **{f"timestamp_{unit}": timestamps(unit) for unit in ("s", "ms", "us", "ns")},
    **{f"timestamp_{unit}_utc": timestamps(unit, "UTC") for unit in ("s", "ms", "us", "ns")},
    "timestamp_us_zone": timestamps("us", "Europe/Paris"),
    "timestamp_ns_offset": timestamps("ns", "+05:30"),
    "time32_s": (pa.time32("s"), [0, 86_399, 43_200]),
    "time32_ms": (pa.time32("ms"), [0, 86_399_999, 1]),
    "time64_us": (pa.time64("us"), [0, 86_399_999_999, 1]),
    "time64_ns": (pa.time64("ns"), [0, 86_399_999_999_000, 1000]),
    **{f"duration_{unit}": (pa.duration(unit), [0, -1, 86_400_000]) for unit in ("s", "ms", "us", "ns")},
    "decimal128": (pa.decimal128(10, 2), [TENTH, decimal.Decimal("99999999.99"), decimal.Decimal("0.00")]),
    "decimal256": (pa.decimal256(50, 5), [decimal.Decimal("1e40"), decimal.Decimal("-0.00001"), decimal.Decimal(0)]),
    "decimal64": (pa.decimal64(12, 3), [TENTH, decimal.Decimal("1.234"), decimal.Decimal(5)]),
    "null": (pa.null(), [None, None, None]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
    "dictionary_of_int": (pa.dictionary(pa.int32(), pa.int64()), [7, 8, 7]),
    "dictionary_of_time": (pa.dictionary(pa.int32(), pa.timestamp("us")), [NOON, NOON, NOON]),
    "list": (pa.list_(pa.int64()), [[1, 2], [], [3]]),
    "list_of_bool": (pa.list_(pa.bool_()), [[True], [], [False, True]]),
    "list_of_text": (pa.list_(pa.string()), [["a", ""], [], ["dög"]]),
    "list_of_binary": (pa.list_(pa.binary()), [[b"a", b""], [], [b"\xff"]]),
    "list_of_view": (pa.list_(pa.string_view()), [["a", "longer than twelve bytes"], [], ["b"]]),
    "list_of_list": (pa.list_(pa.list_(pa.float32())), [[[0.5], []], [], [[1.0, 2.0]]]),
    "list_of_struct": (pa.list_(PAIR), [[{"a": 1, "b": "x"}], [], []]),
    "list_of_time": (pa.list_(pa.timestamp("ms")), [[NOON], [], [NOON, NOON]]),
    "list_of_date": (pa.list_(pa.date32()), [[DAY], [], [DAY, DAY]]),
    "list_of_decimal": (pa.list_(pa.decimal128(10, 2)), [[TENTH], [], [TENTH, TENTH]]),
    "list_of_dictionary": (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a"], [], ["b", "a"]]),
    "list_of_map": (pa.list_(pa.map_(pa.string(), pa.int8())), [[[("k", 1)]], [], [[], [("l", 2)]]]),
    "large_list": (pa.large_list(pa.int16()), [[1, 2], [], [3]]),
    "list_view": (pa.list_view(pa.int64()), [[1, 2], [], [3]]),
    "large_list_view": (pa.large_list_view(pa.string()), [["a"], [], ["b", "c"]]),
    "fixed_list": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [0.0, -0.0], [3.0, 4.0]]),
    "fixed_list_of_text": (pa.list_(pa.string(), 2), [["a", "b"], ["", "c"], ["d", "e"]]),
    "fixed_list_of_fixed_list": (pa.list_(pa.list_(pa.int8(), 2), 1), [[[1, 2]], [[3, 4]], [[5, 6]]]),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.string()}),
        [{"a": 1, "b": "x"}, {"a": 2, "b": ""}, {"a": 3, "b": "y"}],
    ),
    "struct_of_times": (
        TIMES,
        [{"t": NOON, "d": DAY}, {"t": NOON, "d": DAY}, {"t": NOON, "d": DAY}],
    ),
    "struct_of_struct": (
        pa.struct({"in": pa.struct({"x": pa.float64(), "l": pa.list_(pa.int8())})}),
        [{"in": {"x": 0.5, "l": [1]}}, {"in": {"x": 1.5, "l": []}}, {"in": {"x": -0.0, "l": [2, 3]}}],
    ),
    "struct_of_view": (pa.struct({"s": pa.string_view()}), [{"s": "a"}, {"s": ""}, {"s": "longer than twelve bytes"}]),
    "struct_of_decimal": (pa.struct({"m": pa.decimal128(10, 2)}), [{"m": TENTH}, {"m": TENTH}, {"m": TENTH}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [], [("b", 2), ("c", 3)]]),
    "map_of_lists": (pa.map_(pa.int32(), pa.list_(pa.string())), [[(1, ["x"])], [], [(2, []), (3, ["y"])]]),
    "map_of_times": (pa.map_(pa.string(), pa.timestamp("us")), [[("a", NOON)], [], []]),
    "uuid": (pa.uuid(), [uuid.UUID(int=k).bytes for k in range(3)]),
    "json": (pa.json_(), ['{"a": 1}', "null", "[1, 2]"]),
}

INNER_NULLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.int64()), [[1, None], [None], []]),
    "list_of_float": (pa.list_(pa.float32()), [[1.0, None], [None, float("nan")], []]),
    "list_of_text": (pa.list_(pa.string()), [["a", None], [None], []]),
    "list_of_list": (pa.list_(pa.list_(pa.float32())), [[None, [0.5]], [[None]], []]),
    "list_of_struct": (
        pa.list_(pa.struct({"a": pa.int8(), "b": pa.string()})),
        [[None, {"a": None, "b": "x"}], [], []],
    ),
    "list_of_time": (pa.list_(pa.timestamp("ms")), [[None, NOON], [], [None]]),
    "list_of_null": (pa.list_(pa.null()), [[None], [], [None, None]]),
    "large_list": (pa.large_list(pa.int16()), [[1, None], [], [3]]),
    "list_view": (pa.list_view(pa.int64()), [[1, None], [], [3]]),
    "fixed_list": (pa.list_(pa.float32(), 2), [[1.0, None], [None, None], [3.0, 4.0]]),
    "fixed_list_of_int": (pa.list_(pa.int8(), 2), [[1, None], [2, 3], [None, 4]]),
    "struct": (PAIR, [{"a": None, "b": "x"}, {"a": 2, "b": None}, {}]),
    "struct_of_times": (
        TIMES,
        [{"t": None, "d": DAY}, {"t": NOON}, {}],
    ),
    "struct_of_struct": (
        pa.struct({"in": pa.struct({"x": pa.float64(), "l": pa.list_(pa.int8())})}),
        [{"in": None}, {"in": {"x": None, "l": None}}, {"in": {"x": 1.0, "l": [None]}}],
    ),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", None)], [], [("b", 2), ("c", None)]]),
    "dictionary": (pa.list_(pa.dictionary(pa.int8(), pa.string())), [["a", None], [], [None]]),
}


def run_ends(values: pa.Array) -> pa.Array:
    """Return the values run-end encoded."""
    return pa.compute.run_end_encode(values)


def column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """Return an array of any type, also of those that `pa.array` cannot make from Python values."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        encoded = pa.array(values, kind.value_type).dictionary_encode()
        return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), encoded.dictionary)
    return pa.array(values, kind)


def columns() -> dict[str, pa.Array]:
    """Return each type without nulls, with null values, and with nulls inside its values."""
    whole = {name: column(*one) for name, one in VALUES.items()}
    whole |= {
        f"runs_of_{name}": run_ends(pa.array(v * 1, k)) for name in ("int64", "string") for k, v in [VALUES[name]]
    }
    nulls = {f"{name}_nulls": column(kind, [values[0], None, values[1]]) for name, (kind, values) in VALUES.items()}
    nulls |= {f"runs_of_{name}_nulls": run_ends(nulls[f"{name}_nulls"]) for name in ("int64", "string")}
    return whole | nulls | {f"{name}_inner_nulls": column(*one) for name, one in INNER_NULLS.items()}


COLUMNS = columns()

# -- producers ------------------------------------------------------------------------------------------------

Produced = tuple[Callable[[], sx.Dataset], pa.Table]
"""Opens the data with shardex, and what pyarrow reads from the same data."""
Producer = Callable[[pa.Table, Path], Produced]


def pyarrow_parquet(table: pa.Table, folder: Path) -> Produced:
    pq.write_table(table, folder / "t.parquet", row_group_size=2)
    return lambda: sx.open(folder / "t.parquet"), pq.read_table(folder / "t.parquet")


def pyarrow_file(table: pa.Table, folder: Path) -> Produced:
    with pa.ipc.new_file(folder / "t.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=2)
    return lambda: sx.open(folder / "t.arrow"), table


def pyarrow_stream(table: pa.Table, folder: Path) -> Produced:
    with pa.ipc.new_stream(folder / "t.arrow", table.schema) as out:
        out.write_table(table, max_chunksize=2)
    return lambda: sx.open(folder / "t.arrow"), table


def pyarrow_table(table: pa.Table, folder: Path) -> Produced:
    return lambda: sx.open(table), table


def pandas_parquet(table: pa.Table, folder: Path) -> Produced:
    table.to_pandas().to_parquet(folder / "t.parquet")
    return lambda: sx.open(folder / "t.parquet"), pq.read_table(folder / "t.parquet")


def pandas_frame(table: pa.Table, folder: Path) -> Produced:
    frame = table.to_pandas()
    expected = pa.table(frame)
    for number, field in enumerate(expected.schema):
        if pa.types.is_dictionary(field.type) and pa.types.is_large_string(field.type.value_type):  # classes
            codes = expected.column(number).combine_chunks().indices
            expected = expected.set_column(number, field.name, codes)
    return lambda: sx.open(frame), expected


def polars_parquet(table: pa.Table, folder: Path) -> Produced:
    pl.DataFrame(table).write_parquet(folder / "t.parquet", row_group_size=2)
    return lambda: sx.open(folder / "t.parquet"), pq.read_table(folder / "t.parquet")


def polars_file(table: pa.Table, folder: Path) -> Produced:
    pl.DataFrame(table).write_ipc(folder / "t.arrow")
    with pa.ipc.open_file(folder / "t.arrow") as file:
        return lambda: sx.open(folder / "t.arrow"), file.read_all()


def polars_frame(table: pa.Table, folder: Path) -> Produced:
    frame = pl.DataFrame(table)
    return lambda: sx.open(frame), frame.to_arrow()


def huggingface(table: pa.Table, folder: Path) -> Produced:
    data = datasets.Dataset(table)
    return lambda: sx.open(data), data.data.table


def duckdb_parquet(table: pa.Table, folder: Path) -> Produced:
    with duckdb.connect() as connection:
        connection.register("t", table)
        connection.execute(f"COPY t TO '{folder / 't.parquet'}'")
    return lambda: sx.open(folder / "t.parquet"), pq.read_table(folder / "t.parquet")


def duckdb_relation(table: pa.Table, folder: Path) -> Produced:
    connection = duckdb.connect()
    connection.register("t", table)
    return lambda: sx.open(connection.sql("SELECT * FROM t")), connection.sql("SELECT * FROM t").to_arrow_table()


PRODUCERS: list[Producer] = [
    pyarrow_parquet,
    pyarrow_file,
    pyarrow_stream,
    pyarrow_table,
    pandas_parquet,
    pandas_frame,
    polars_parquet,
    polars_file,
    polars_frame,
    huggingface,
    duckdb_parquet,
    duckdb_relation,
]

CANNOT: dict[str, set[str]] = {
    "pyarrow_parquet": {"struct_of_view", "runs_of_int64", "runs_of_string"},
    "pandas": {"list_of_view", "list_of_map", "map", "map_of_lists", "map_of_times"},
    "polars": {
        "decimal256",
        "timestamp_ns_offset",
        "list_view",
        "large_list_view",
        "runs_of_int64",
        "runs_of_string",
    },
    "huggingface": {
        "decimal64",
        "list_of_map",
        "list_view",
        "large_list_view",
        "map",
        "map_of_lists",
        "map_of_times",
        "uuid",
        "runs_of_int64",
        "runs_of_string",
    },
    "duckdb": {"float16", "decimal256", "duration_s", "duration_ms", "duration_us", "duration_ns"},
    "duckdb_parquet": {"fixed_list", "fixed_list_of_text"},
}
"""Types that a tool has no place for (DuckDB makes intervals of durations), or writes wrongly (`..._parquet`)."""


def takes(tool: str, column: str) -> bool:
    """Return whether a tool can hold a column."""
    kind = column.removesuffix("_nulls").removesuffix("_inner")
    return not any(kind in names for name, names in CANNOT.items() if tool.startswith(name))


# -- routes ---------------------------------------------------------------------------------------------------

TOOLS = {"pandas", "polars", "huggingface"}


def by_table(ds: sx.Dataset, folder: Path) -> Found:
    """What pyarrow sees in the tables that a dataset and its views export."""
    rows = list(range(len(ds)))
    views = [(ds, rows), (ds[1:], rows[1:]), (ds[::-1], rows[::-1]), (ds.where("_row <> 1"), [rows[0], *rows[2:]])]
    tables = [(view.to_arrow(), picked) for view, picked in views]
    return [pair for table, picked in tables for pair in zip(picked, pylist(table, ds.features), strict=True)]


def pylist(table: pa.Table, features: Mapping[str, Feature]) -> list[dict[str, Any]]:
    """Return the rows of a table, with JSON parsed and arrays of several dimensions in their shape."""
    found = {name: table[name].to_pylist(maps_as_pydicts="strict") for name in table.column_names}
    for name, feature in features.items():
        inner = unwrap_optional(feature)
        if isinstance(inner, sx.Json):
            found[name] = [None if text is None else json.loads(text) for text in found[name]]
        if isinstance(inner, sx.Array) and len(inner.shape or ()) > 1:
            found[name] = [
                None if one is None else np.reshape(one, [size or -1 for size in inner.shape or ()]).tolist()
                for one in found[name]
            ]
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def by_null(ds: sx.Dataset, folder: Path) -> Found:
    """`IS NULL` of each column over the whole, slices and a shuffled view."""
    nulls = [{name: one[name] is None for name in ds.fields} for one in ds]
    tests = ", ".join(f'"{name}" IS NULL AS "{name}"' for name in ds.fields)
    for view in (ds, ds[1:], ds[::-1], ds.shuffle(seed=1)):
        found = view.sql(f"SELECT {tests} FROM ds ORDER BY _row").to_pylist()
        rows = view.order.rows(np.arange(len(view))).tolist()
        wrong = [name for one, row in zip(found, rows, strict=True) for name in one if one[name] != nulls[row][name]]
        assert not wrong, f"{wrong[0]} IS NULL"
    return []


ALL_ROUTES: dict[str, Route] = {**ROUTES, "table": by_table, "null": by_null}


COPIES = {"copy", "parquet_copy", "map_copy", "map", "pickle", "where", *TOOLS}
"""Routes that the short form takes for the first producer of each kind of file or table only."""
FIRST = {"pyarrow_parquet", "pyarrow_file", "pyarrow_table", "polars_file"}


def routes_of(producer: str) -> dict[str, Route]:
    """Return the routes to test: all in the long form; an edit, which is slow, only once in the short one."""
    left = {"edit"} if producer in FIRST - {"pyarrow_table"} else set() if producer in FIRST else {"edit", *COPIES}
    return {name: route for name, route in ALL_ROUTES.items() if LONG or name not in left}


def wrong_cells(produce: Producer, names: list[str], folder: Path, routes: Mapping[str, Route]) -> list[str]:
    """Return what differs from pyarrow in the columns that a tool produced, a line for each route that fails."""
    opened, truth = produce(pa.table({name: COLUMNS[name] for name in names}), folder)
    ds = opened()
    texts = {name: sx.Json() for name in names if isinstance(truth.schema.field(name).type, pa.JsonType)}
    expected = [plain_sample(row, names, lists=True) for row in pylist(truth, texts)]
    wrong = disagreements(ds, expected, folder, {n: r for n, r in routes.items() if n not in TOOLS}, lists=True)
    for tool in sorted(TOOLS & {*routes}):
        if kept := [name for name in names if takes(tool, name)]:
            part = [{name: one[name] for name in kept} for one in expected]
            wrong += disagreements(ds.select(*kept), part, folder, {tool: routes[tool]}, lists=True)
    return wrong


AGAIN = (pandas_parquet, polars_parquet, polars_frame, duckdb_parquet)
"""Producers whose container another producer fills, and whose tool another one shows."""


@pytest.mark.parametrize(
    "produce",
    [pytest.param(one, id=one.__name__, marks=[pytest.mark.long] * (one in AGAIN)) for one in PRODUCERS],
)
def test_every_route_reads_what_pyarrow_reads(produce: Producer, tmp_path: Path) -> None:
    names = [name for name in COLUMNS if takes(produce.__name__, name)]
    routes = routes_of(produce.__name__)
    if not (together := wrong_cells(produce, names, tmp_path, routes)):
        return
    failed = {name: route for name, route in routes.items() if any(line.startswith(f"{name}:") for line in together)}
    wrong = []
    for name in names:  # which columns?
        apart = tmp_path / f"column {name}"
        apart.mkdir()
        wrong += [f"{name}, {line}" for line in wrong_cells(produce, [name], apart, failed)]
    pytest.fail("\n".join(wrong or ["only all columns together:", *together]))
