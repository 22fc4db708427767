"""The values of a field that is added: from anywhere, in the order of the samples, as record batches for each fragment.

Deleted rows keep their places in a fragment; they get blanks, which nobody sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow import arrow_schema, to_table
from shardex.dataset import Dataset
from shardex.errors import SchemaError
from shardex.kernel import Columns
from shardex.schema import Array, Bytes, Feature, Features, Json, Opaque, Optional, Sequence, Struct, Text, Value
from shardex.store.data_files import BATCH_BYTES

__all__ = ["Values", "batches", "blank"]

_ROWS_AT_ONCE = 1 << 12
_NUMBERS = "biufcmM"
"""The kinds of arrays in which a zero can stand for a value that nobody sees."""


class Values:
    """The values of a new field, asked for in the order of the samples, some at a time."""

    def __init__(self, name: str, values: Any, dataset: Dataset) -> None:
        if isinstance(values, np.ndarray) and (values.ndim == 0 or isinstance(values, np.ma.MaskedArray)):
            found = "one number" if values.ndim == 0 else "an array with a mask; give None where there is no value"
            raise SchemaError(f"expected {len(dataset)} values for the field {name}, one per sample, got {found}")
        self._name = name
        self._length = len(dataset)
        self._at = 0
        numbers = isinstance(values, np.ndarray) and values.dtype.kind in _NUMBERS
        self._array: NDArray[Any] | None = values if numbers else None
        if self._array is None:
            self._values = iter(_each(values, dataset))
        if hasattr(values, "__len__") and len(values) != self._length:
            raise SchemaError(f"expected {self._length} values for the field {name}, one per sample, got {len(values)}")

    def take(self, count: int) -> Any:
        """The next values: a part of an array, or a list."""
        self._at += count
        if self._array is not None:
            return self._array[self._at - count : self._at]
        found = list(islice(self._values, count))
        if len(found) < count:
            have = self._at - count + len(found)
            raise SchemaError(f"expected {self._length} values for the field {self._name}, got only {have}")
        return found

    def finish(self) -> None:
        """An error if there are more values than samples."""
        if self._array is None and next(self._values, self) is not self:
            raise SchemaError(f"expected {self._length} values for the field {self._name}, got more")


def _each(values: Any, dataset: Dataset) -> Iterable[Any]:
    if isinstance(values, Dataset):
        if len(values.fields) != 1:
            raise SchemaError(f"expected a dataset of one field, got the fields {', '.join(values.fields)}")
        return (sample[values.fields[0]] for sample in values)
    if callable(values):
        return map(values, dataset)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise SchemaError(f"expected an array, an iterable, a dataset or a function, got {type(values).__name__}")
    return values


def batches(features: Features, source: Values, alive: NDArray[np.bool_]) -> Iterator[pa.RecordBatch]:
    """Record batches with a value for every row; what deleted rows get nobody sees."""
    ((name, feature),) = features.items()
    schema = arrow_schema(features)
    at, step = 0, _ROWS_AT_ONCE
    while at < len(alive):
        some = alive[at : at + step]
        values = source.take(int(some.sum()))
        table = to_table(Columns({name: values if some.all() else _spread(values, some, feature)}), features)
        if table[0].null_count and not isinstance(feature, Optional):
            raise SchemaError(
                f"expected a value for every sample, got None for {table[0].null_count} - at field {name}"
            )
        batch = pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=schema)
        yield batch
        at += len(some)
        step = max(1, min(1 << 20, BATCH_BYTES * len(some) // max(1, batch.nbytes)))


def _spread(values: Any, alive: NDArray[np.bool_], feature: Feature) -> Any:
    """Values at the rows that are alive, blanks at the others."""
    if isinstance(values, np.ndarray):
        out = np.zeros((len(alive), *values.shape[1:]), values.dtype)
        out[alive] = values
        return out
    each, empty = iter(values), blank(feature)
    return [next(each) if there else empty for there in alive.tolist()]


def blank(feature: Feature) -> Any:
    """Some value that a feature allows.

    >>> blank(Features.of({"x": {"a": "int8", "b": str}})["x"])
    {'a': np.int8(0), 'b': ''}
    """
    match feature:
        case Optional() | Json() | Opaque():
            return None
        case Array():
            return np.zeros([size or 0 for size in feature.shape or ()], feature.dtype)
        case Value():
            return np.zeros((), feature.dtype)[()]
        case Text():
            return ""
        case Bytes():
            return b""
        case Sequence():
            return []
        case Struct():
            return {name: blank(inner) for name, inner in feature.fields.items()}
    return 0
