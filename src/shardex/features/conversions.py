"""Whole samples and columns converted to their features, sample by sample back, and as tables for SQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

import pyarrow as pa

from shardex.columns import located, refuse_unknown_fields, tables, to_table
from shardex.errors import QueryError, SchemaError
from shardex.features.feature import Feature, Where
from shardex.features.features import Features
from shardex.features.json_value import Json
from shardex.features.optional import Optional
from shardex.features.text import Text
from shardex.features.value import Value
from shardex.kernel import MISSING, Columns, values_of

Sample = Mapping[str, Any]


def fit_sample(sample: Sample, features: Features, row: int) -> dict[str, Any]:
    """Return a sample to write, with each field converted to its feature; `row` is its number for messages.

    >>> from shardex.features import Array
    >>> fit_sample({"x": [1, 2]}, Features.of({"x": Array("int8", (2,)), "s": str | None}), 0)
    {'x': array([1, 2], dtype=int8), 's': None}
    """
    try:
        refuse_unknown_fields(sample, features)
    except SchemaError as error:
        raise located(error, f"sample {row}") from None
    return {n: f.fit_at(sample.get(n, MISSING), row, "sample {}".format, n, stored=False) for n, f in features.items()}


def to_sample(
    sample: dict[str, Any], names: SequenceOf[str] | None, schema: Features | None, where: Where
) -> dict[str, Any]:
    """Return all or the named fields of one decoded sample, converted to the schema if there is one."""
    if schema is None:
        return sample if names is None else {name: sample.get(name) for name in names}
    wanted = list(schema) if names is None else names
    return {n: schema[n].fit_at(sample.get(n, MISSING), 0, where, n, stored=True) for n in wanted}


def to_columns(values: Mapping[str, list[Any]], length: int, schema: Features | None, where: Where) -> Columns:
    """Return the decoded values of each field as columns, converted to the schema if there is one."""
    if schema is None:
        return Columns(values, length).stack()
    return Columns({n: schema[n].fit_column(column, where, n, stored=True) for n, column in values.items()}, length)


def in_form(columns: Columns, features: Mapping[str, Feature]) -> Columns:
    """Return columns of values that were stacked as they are, in the form that their (inferred) features have.

    >>> import numpy as np; from shardex.features import Optional
    >>> in_form(Columns({"x": np.array([1])}), {"x": Optional("int64")})["x"].mask
    array([ True])
    """
    found = {n: column if n not in features else features[n].in_form(column) for n, column in columns.data.items()}
    return Columns(found, len(columns))


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
    return tables.sql_table({name: table.column(name) for name in features}, features)


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


def concat_tables(parts: Iterable[pa.Table]) -> pa.Table:
    """Return the rows of all tables; numbers take the widest type, a column that is JSON in one is JSON in all."""
    parts = list(parts)
    json = {field.name for table in parts for field in table.schema if _is_json(field)}
    try:
        return pa.concat_tables([_with_json(table, json) for table in parts], promote_options="permissive")
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
            json = tables.sql_table({field.name: stored.column(0)}, features)
            table = table.set_column(number, json.schema.field(0), json.column(0))
    return table
