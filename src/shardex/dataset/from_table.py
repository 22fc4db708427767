"""Datasets from tables and columns of other tools: Arrow, pandas, polars, DuckDB and Hugging Face. `open` uses it.

Arrow data is not copied. The way back is `Dataset.to_arrow`, `to_pandas` and `to_huggingface`, and the Arrow stream
that every dataset exports (`to_arrow.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shardex.columns import arrow_types
from shardex.dataset.combine import join
from shardex.dataset.dataset import Dataset
from shardex.dataset.huggingface import rows_of
from shardex.dataset.memory_rows import ArrowRows, ColumnRows
from shardex.dataset.to_arrow import CLASSES
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import ClassLabel, Feature, Features
from shardex.layers import media_decoded

_POLARS_ENUM = b"_PL_ENUM_VALUES"
"""Beginning of the key by which polars marks the fields of enums."""


class ArrowStream(Protocol):
    """A table that exports Arrow data, as those of pandas, polars and pyarrow do."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return an Arrow stream."""


class HubDataset(Protocol):
    """A dataset of Hugging Face, as type checkers see it."""

    @property
    def features(self) -> Any:
        """Its features."""

    @property
    def num_rows(self) -> Any:
        """Number of its samples."""


def is_table(data: Any) -> bool:
    """Return True for data that `from_table` takes, and for all splits of Hugging Face; False for a dataset of shardex.

    >>> is_table(pa.table({"x": [1]})), is_table([{"x": 1}])
    (True, False)
    """
    if isinstance(data, Dataset):
        return False
    return _is_huggingface(data) or hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _is_huggingface(data: Any) -> bool:
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(data, datasets.Dataset | datasets.DatasetDict)


def from_table(data: Any, schema: Any = None) -> Dataset:
    """Return a dataset over a table in memory, without a copy.

    `data` is a pyarrow table or batch, a polars or pandas DataFrame, a DuckDB relation, another object with
    ``__arrow_c_stream__`` or ``__arrow_c_array__``, or a Hugging Face dataset. `schema` has the features that Arrow
    types do not determine.

    >>> from_table(pa.table({"x": [1, 2], "v": [[1.5], [2.5, 3.5]]}))
    Dataset(2 samples: x int64, v float64[?] - ArrowRows)
    """
    if not _is_huggingface(data):
        given = Features({}) if schema is None else Features.of(schema)
        table, classes = _with_class_numbers(_without_periods(_arrow_table(data)), given)
        return Dataset(media_decoded(ArrowRows(table, Features({**classes, **given}))))
    if isinstance(data, dict):
        raise ArgumentError(
            f"expected one split, got all of {', '.join(map(str, data))}: pass one of them, or use load_dataset"
        )
    if schema is not None:
        raise ArgumentError("expected no schema for a Hugging Face dataset, which has features, got one: cast it first")
    rows, order = rows_of(data)
    return Dataset(media_decoded(rows), order)


def from_columns(columns: Mapping[str, Any]) -> Dataset:
    """Return a dataset over columns in memory: arrays with a row per sample, lists, and columns of other tools.

    Columns of pandas, polars and pyarrow, and dates and times, are read as Arrow, which knows missing values and zones.

    >>> from_columns({"n": pa.array([1, None]), "s": ["a", "b"], "day": np.array(["2024-01-31", "NaT"], "M8[D]")})
    Dataset(2 samples: n int64 or none, s text, day date or none - JoinRows)
    """
    tables = {name: table for name, column in columns.items() if (table := column_table(name, column)) is not None}
    rest = {name: column for name, column in columns.items() if name not in tables}
    if not tables:
        return Dataset(media_decoded(ColumnRows(columns)))
    parts = [from_table(table) for table in tables.values()]
    if rest:
        parts.append(Dataset(media_decoded(ColumnRows(rest))))
    lengths = {name: len(part) for part in parts for name in part.fields}
    if len({*lengths.values()}) > 1:
        raise SchemaError(f"expected columns of one length, got {lengths}")
    return join(*parts).select(*columns)


def column_table(name: str, column: Any) -> pa.Table | None:
    """Return a table of one column, if it is one of pandas with missing values, zones or categories, of polars or
    pyarrow, or an array of dates or times; None for lists and other arrays.

    >>> column_table("x", pa.array([1, None])).num_rows, column_table("x", [1, None])
    (2, None)
    """
    try:
        if isinstance(column, pa.Array | pa.ChunkedArray):
            return pa.table({name: column})
        kind = getattr(column, "dtype", None)
        times = isinstance(kind, np.dtype) and kind.kind in "mM" and getattr(column, "ndim", 0) == 1
        if times or _is_of_pandas(kind) or _has_missing_floats(column):
            return _marked(pa.table({name: pa.array(column, from_pandas=True)}))
        if kind is not None and not isinstance(kind, np.dtype) and hasattr(column, "__arrow_c_stream__"):  # of polars
            table = pa.table({name: pa.chunked_array(column)})
            return _marked(table) if type(kind).__name__ == "Enum" else table
    except (pa.ArrowException, TypeError, ValueError):  # a unit that Arrow lacks, values of several types
        pass
    return None


def _has_missing_floats(column: Any) -> bool:
    """Return whether a column is a Series of floats with NaN, which is a missing value to pandas."""
    pandas = sys.modules.get("pandas")
    floats = pandas is not None and isinstance(column, pandas.Series) and column.dtype.kind == "f"
    return floats and bool(column.hasnans)


def _is_of_pandas(dtype: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(dtype, pandas.api.extensions.ExtensionDtype)


def _arrow_table(data: Any) -> pa.Table:
    try:
        if isinstance(data, pa.Table):
            return data
        if _is_pandas_frame(data):
            return _marked(pa.table(_without_index(data)))
        table = pa.table(data)
        return _marked(table) if type(data).__module__.lstrip("_").startswith("duckdb") else table
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"expected an Arrow table, got {type(data).__name__}: {error}{_advice(data)}") from error


def _without_periods(table: pa.Table) -> pa.Table:
    """Return the table; raise for periods of pandas, which Arrow tables hold as numbers of months, days and so on."""
    for field in table.schema:
        if getattr(field.type, "extension_name", "") == "pandas.period":
            raise SchemaError(
                f"expected values that Arrow has types for, got periods of pandas - at field {field.name}; make "
                f'dates of them by frame["{field.name}"].dt.to_timestamp(), or text by .astype(str)'
            )
    return table


def _without_index(frame: Any) -> Any:
    """Return a frame of pandas without an index of row numbers; another one that has no name becomes a field."""
    index = frame.index
    if isinstance(index, sys.modules["pandas"].RangeIndex) or None not in index.names:
        return frame
    return frame.reset_index(drop=index.nlevels == 1 and index.dtype.kind in "iu")


def _advice(data: Any) -> str:
    """Return what to do with a table that Arrow cannot hold."""
    if hasattr(data, "to_frame"):  # a Series
        return "; a table is made of it by to_frame()"
    return '; its columns as lists may hold more: to_dict("list")' if _is_pandas_frame(data) else ""


def _is_pandas_frame(data: Any) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)


# -- classes --------------------------------------------------------------------------------------------------


def _marked(table: pa.Table) -> pa.Table:
    """Return a table whose columns of coded text are marked as classes, which coded text in Arrow need not be."""
    fields = [field.with_metadata(CLASSES) if _is_coded_text(field.type) else field for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, metadata=table.schema.metadata))


def _is_coded_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind)) and arrow_types.is_text(arrow_types.value_type(kind))


def _with_class_numbers(table: pa.Table, given: Features) -> tuple[pa.Table, dict[str, Feature]]:
    """Return a table with numbers in the place of classes (categories of pandas, enums of polars and DuckDB), and their
    features; columns that are declared otherwise are kept.
    """
    classes: dict[str, Feature] = {}
    for place, field in enumerate(table.schema):
        is_class = any(key in CLASSES or key.startswith(_POLARS_ENUM) for key in field.metadata or {})
        if not (is_class and _is_coded_text(field.type)) or field.name in given or not len(table):
            continue
        column = table.column(place).unify_dictionaries()
        if names := column.chunk(0).dictionary.to_pylist():
            numbers = pa.chunked_array([chunk.indices.cast(pa.int32()) for chunk in column.chunks])
            table = table.set_column(place, pa.field(field.name, pa.int32()), numbers)
            classes[field.name] = ClassLabel(names)
    return table, classes
