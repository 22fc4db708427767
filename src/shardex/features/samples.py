"""Whole samples and columns converted to their features, and sample by sample back."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from typing import Any

from shardex.columns import located, refuse_unknown_fields
from shardex.errors import SchemaError
from shardex.features.feature import Feature, Where
from shardex.features.features import Features
from shardex.kernel import MISSING, Columns

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
