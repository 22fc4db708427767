"""Datasets of what other tools have in their hands: `from_arrow` for all that speak Arrow, `from_huggingface`.

Nothing is copied that lies as Arrow already. The way back is `Dataset.to_arrow`, `to_pandas`, `to_huggingface`, and
the Arrow stream that every dataset is to tools that ask for one (`stream.py`).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from shardex.arrow import is_list, storage_type
from shardex.dataset.arrow_rows import ArrowRows
from shardex.dataset.dataset import Dataset
from shardex.dataset.huggingface import is_dataset_dict, rows_of
from shardex.dataset.load_dataset import DatasetDict
from shardex.errors import FormatError, SchemaError
from shardex.schema import Features

__all__ = ["from_arrow", "from_huggingface"]


def from_arrow(data: Any, schema: Any = None) -> Dataset:
    """A dataset of anything that can be seen as an Arrow table, held in memory.

    A table or a batch of pyarrow, a DataFrame of polars or pandas, a relation of DuckDB, or whatever else has
    ``__arrow_c_stream__`` or ``__arrow_c_array__``. `schema` says what columns are where their types do not.

    >>> from_arrow(pa.table({"x": [1, 2], "v": [[1.5], [2.5, 3.5]]}))
    Dataset(2 samples: x int64, v float64[?] - ArrowRows)
    """
    if isinstance(data, Dataset):
        return data
    return Dataset(ArrowRows(_table(data), None if schema is None else Features.of(schema)))


def _table(data: Any) -> pa.Table:
    try:
        if isinstance(data, pa.Table):
            return _without_views(data)
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _without_views(pa.table(data))
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise FormatError(f"expected a table in the form of Arrow, got {type(data).__name__}: {error}") from error
    raise SchemaError(
        f"expected a table of pyarrow, polars, pandas or DuckDB, or another with __arrow_c_stream__, got "
        f"{type(data).__name__}; lists of samples and files are for sx.open"
    )


def _without_views(table: pa.Table) -> pa.Table:
    """The table with text and bytes end to end, because Arrow cannot do much with views of them."""
    kinds = [_without_view_types(field.type) for field in table.schema]
    if kinds == table.schema.types:
        return table
    columns = [
        column if kind == column.type else pa.chunked_array([_cast(chunk, kind) for chunk in column.chunks], kind)
        for column, kind in zip(table.columns, kinds, strict=True)
    ]
    fields = [field.with_type(kind) for field, kind in zip(table.schema, kinds, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=table.schema.metadata))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(array, pa.DictionaryArray):  # whose own cast leaves its values as they are
        return pa.DictionaryArray.from_arrays(
            array.indices, array.dictionary.cast(kind.value_type), ordered=kind.ordered
        )
    return array.cast(kind)


def _without_view_types(kind: pa.DataType) -> pa.DataType:
    """
    >>> _without_view_types(pa.large_list(pa.string_view()))
    LargeListType(large_list<item: large_string>)
    """
    types = pa.types
    if types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_view_types(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_without_view_types(field.type)) for field in kind])
    if is_list(kind) or types.is_fixed_size_list(kind):
        item = kind.value_field.with_type(_without_view_types(kind.value_type))
        if types.is_fixed_size_list(kind):
            return pa.list_(item, kind.list_size)
        return pa.large_list(item) if types.is_large_list(kind) else pa.list_(item)
    return storage_type(kind) if types.is_string_view(kind) or types.is_binary_view(kind) else kind


def from_huggingface(data: Any) -> Any:
    """A dataset of a `datasets.Dataset`, nothing copied; of a `datasets.DatasetDict` a `DatasetDict`.

    Selected, sorted and shuffled ones are views of the same table. Class labels, arrays and JSON are what they were;
    images, audio and the like are the ``{"bytes": ..., "path": ...}`` that they are stored as. Formats and transforms
    that were set are left behind.
    """
    if is_dataset_dict(data):
        return DatasetDict({str(name): from_huggingface(one) for name, one in data.items()})
    return Dataset(*rows_of(data))
