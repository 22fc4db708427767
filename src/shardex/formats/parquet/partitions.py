"""Columns from the names of folders: ``year=2024/lang=en/part-0.parquet`` has the fields `year` and `lang`.

Hive, Spark, DuckDB, polars and pyarrow write tables this way, and leave the columns out of the files. Values are
integers if all of them are, otherwise text; a schema may say something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import check_fields, tables, to_table
from shardex.errors import SchemaError
from shardex.features import ClassLabel, Decimal, Feature, Features, Optional, Text, TimeFeature, Value, unwrap_optional
from shardex.kernel import Columns, Integers
from shardex.rows import AbstractRows

_FOLDER = re.compile(r"([^=/]+)=([^/]*)/")
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def folder_values(paths: Sequence[str]) -> dict[str, list[str | None]]:
    """Return the values of each key in the folder names of all paths; none if the paths have different keys.

    >>> folder_values(["a=1/b=x%20y/0.parquet", "a=2/b=__HIVE_DEFAULT_PARTITION__/0.parquet"])
    {'a': ['1', '2'], 'b': ['x y', None]}
    """
    found = [dict(_FOLDER.findall(path)) for path in paths]
    if len({tuple(one) for one in found}) != 1:
        return {}
    return {unquote(key): [None if one[key] == _NULL else unquote(one[key]) for one in found] for key in found[0]}


class PartitionRows(AbstractRows):
    """Fields that are the same for all rows of a file. `values` has a text for each file, `rows` their numbers of rows.

    >>> rows = PartitionRows({"a": ["1", "2"]}, [1, 2], Features({}))
    >>> print(rows.features); rows.read(np.arange(3), ["a"])["a"]
    a int64
    array([1, 2, 2])
    """

    in_python = False

    def __init__(self, values: Mapping[str, list[str | None]], rows: Sequence[int], declared: Features) -> None:
        self._starts: Integers = np.cumsum([0, *rows], dtype=np.int64)
        self._features = Features({name: declared.get(name) or _inferred(texts) for name, texts in values.items()})
        self._by_file = Columns(
            {name: _typed(texts, self._features[name], name) for name, texts in values.items()}, len(rows)
        )

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def features(self) -> Features:
        """Name and feature of each key."""
        return self._features

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return the values of the files of these rows."""
        names = check_fields(list(self.features), fields)
        return self._by_file.select(names).take(np.searchsorted(self._starts, rows, "right") - 1)

    @cached_property
    def _file_of_row(self) -> Integers:
        return np.repeat(np.arange(len(self._starts) - 1), np.diff(self._starts))

    def column(self, name: str) -> pa.ChunkedArray:
        """The value of each row."""
        by_file = to_table(self._by_file.select([name]), self.features.select([name])).column(0).combine_chunks()
        return pa.chunked_array([by_file.take(pa.array(self._file_of_row))])

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """The value of each row, in the form that SQL reads."""
        return tables.sql_table({name: self.column(name) for name in names}, self.features)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value."""
        there = [value is not None for value in self._by_file.data[name]]
        return np.array(there, np.bool_)[self._file_of_row]


def _inferred(texts: list[str | None]) -> Feature:
    given = [text for text in texts if text is not None]
    feature: Feature = Value("int64") if given and all(map(_INTEGER.fullmatch, given)) else Text()
    return Optional(feature) if len(given) < len(texts) else feature


def _typed(texts: list[str | None], feature: Feature, name: str) -> Any:
    inner = unwrap_optional(feature)
    values: list[Any] = list(texts)
    if isinstance(inner, Value) or (isinstance(inner, ClassLabel) and not set(texts) & set(inner.names)):
        try:
            values = [None if text is None else _number(text) for text in texts]
        except ValueError as error:
            raise SchemaError(f"expected {feature} in the names of folders, got {error} - at field {name}") from None
    stored = isinstance(inner, TimeFeature | Decimal)  # as text, as in JSON
    try:
        return feature.fit_column(values, lambda k: f"the folder {name}={texts[k]}", name, stored=stored)
    except SchemaError as error:
        raise SchemaError(f"{error}; name its type with schema=") from None


def _number(text: str) -> Any:
    return int(text) if _INTEGER.fullmatch(text) else float(text)
