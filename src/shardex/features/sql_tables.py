"""Samples as tables that DuckDB reads, of rows that do not store Arrow columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pyarrow as pa

from shardex.columns import sql_table, to_table
from shardex.errors import QueryError, SchemaError
from shardex.features.feature import Feature
from shardex.features.features import Features
from shardex.features.json_value import Json
from shardex.features.optional import Optional
from shardex.features.text import Text
from shardex.features.value import Value
from shardex.kernel import MISSING, Columns, values_of

_INT64 = range(-(1 << 63), 1 << 63)


def samples_table(read: Callable[[], Iterable[Columns]], features: Features) -> pa.Table:
    """Return samples as a table in the form that SQL reads; `read()` starts a pass over all of them in chunks.

    Features may be inferred from the first samples only: if a later value does not fit, types that fit all are chosen.

    >>> samples_table(lambda: [Columns({"y": [{"z": 2}]}, 1)], Features({"y": Json()})).to_pydict()
    {'y': ['{"z":2}']}
    """
    try:
        parts = [to_table(columns, features, stored=True) for columns in read()]
    except SchemaError:
        values: dict[str, list[Any]] = {name: [] for name in features}
        rows = 0
        for columns in read():
            rows += len(columns)
            for name, column in columns.data.items():
                values[name] += values_of(column)
        features = Features({name: feature_of_values(column) for name, column in values.items()})
        parts = [to_table(Columns(values, rows), features)]
    table = concat_tables(parts)
    return sql_table({name: table.column(name) for name in features}, features)


def feature_of_values(values: Iterable[Any]) -> Feature:
    """Return the feature of Python values, always optional: number, bool or text if all values are such, else JSON.

    >>> str(feature_of_values([1, None, 2.5])), str(feature_of_values([1, "a"])), str(feature_of_values([2**63]))
    ('float64 or none', 'json or none', 'json or none')
    """
    kinds = {type(value) for value in values if value is not None and value is not MISSING}
    if kinds == {str}:
        return Optional(Text())
    if kinds == {bool}:
        return Optional(Value("bool"))
    if kinds == {int} and all(value in _INT64 for value in values if value is not None and value is not MISSING):
        return Optional(Value("int64"))
    return Optional(Value("float64") if kinds and kinds <= {int, float} and float in kinds else Json())


def concat_tables(tables: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all tables; numbers take the widest type, a column that is JSON in one is JSON in all."""
    tables = list(tables)
    json = {field.name for table in tables for field in table.schema if _is_json(field)}
    try:
        return pa.concat_tables([_with_json(table, json) for table in tables], promote_options="permissive")
    except (pa.ArrowException, SchemaError) as error:
        raise QueryError(
            f"expected fields of one type in all parts of the dataset, got different ones: {error}; query each part"
        ) from None


def _is_json(field: pa.Field) -> bool:
    return (field.metadata or {}).get(b"ARROW:extension:name") == b"arrow.json"


def _with_json(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the table with these columns as JSON text."""
    for number, field in enumerate(table.schema):
        if field.name in names and not _is_json(field):
            values, features = table.column(number).to_pylist(), Features({field.name: Optional(Json())})
            stored = to_table(Columns({field.name: values}, len(values)), features)
            json = sql_table({field.name: stored.column(0)}, features)
            table = table.set_column(number, json.schema.field(0), json.column(0))
    return table
