"""Converts the values of a field that is added to existing samples to record batches for each fragment.

Values come in the order of the samples. A fragment still contains its deleted rows; they get blank values, which are
never read. `computed_field` does the same for values that a function computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import BatchBuilder, located, to_table
from shardex.dataset import Dataset, column_table, from_table
from shardex.errors import SchemaError
from shardex.features import Feature, Features, arrow_schema
from shardex.kernel import Columns
from shardex.native import BATCH_BYTES, DataFileWriter, Fragment
from shardex.sources import Place

_ROWS_AT_ONCE = 1 << 12
_NUMBERS = "biufcmM"
"""Kinds of arrays in which zeros can fill the deleted rows."""


class Values:
    """Values of a new field in the order of the samples, taken in chunks."""

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
            self._values = iter(each_value(name, values))
        if hasattr(values, "__len__") and len(values) != self._length:
            raise SchemaError(f"expected {self._length} values for the field {name}, one per sample, got {len(values)}")

    def take(self, count: int) -> Any:
        """Return the next values: a part of an array, or a list."""
        self._at += count
        if self._array is not None:
            return self._array[self._at - count : self._at]
        found = list(islice(self._values, count))
        if len(found) < count:
            have = self._at - count + len(found)
            raise SchemaError(f"expected {self._length} values for the field {self._name}, got only {have}")
        return found

    @property
    def taken(self) -> int:
        """Number of values taken so far."""
        return self._at

    def finish(self) -> None:
        """Raise an error if there are more values than samples."""
        if self._array is None and next(self._values, self) is not self:
            raise SchemaError(f"expected {self._length} values for the field {self._name}, got more")


def each_value(name: str, values: Any) -> Iterable[Any]:
    """Return the values of a field one by one; missing ones of pandas, polars and pyarrow are None."""
    if (table := column_table(name, values)) is not None:
        values = from_table(table)
    if isinstance(values, Dataset):
        if len(values.fields) != 1:
            raise SchemaError(f"expected a dataset of one field, got the fields {', '.join(values.fields)}")
        return (sample[values.fields[0]] for sample in values.stored)  # media are copied as they are
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise SchemaError(f"expected an array, an iterable, a dataset or a function, got {type(values).__name__}")
    return values


Take = Callable[[int], pa.Array]
"""Returns the encoded values of the next rows."""


def batches(features: Features, rows: int, take: Take) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file with `rows` rows; each batch is sized by the batch before it."""
    schema = arrow_schema(features)
    at, step = 0, _ROWS_AT_ONCE
    while at < rows:
        batch = pa.RecordBatch.from_arrays([take(min(step, rows - at))], schema=schema)
        yield batch
        at += batch.num_rows
        step = max(1, min(1 << 20, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))


def write_files(
    place: Place,
    features: Features,
    fragments: Iterable[tuple[Fragment, NDArray[np.bool_]]],
    take: Callable[[NDArray[np.bool_]], Take],
    step: Callable[[int], object],
    finish: Callable[[], None],
) -> dict[int, DataFileWriter]:
    """Write one file for each fragment, with a value for each of its rows; return them by the first id of the fragment.

    `take` gets which rows of a fragment are not deleted. `finish` is called at the end; after an error all files are
    removed.
    """
    shards: dict[int, DataFileWriter] = {}
    try:
        for fragment, live in fragments:
            if not fragment.rows:  # adopted shards without samples
                continue
            shard = shards[fragment.first] = DataFileWriter(place, arrow_schema(features))
            for batch in batches(features, fragment.rows, take(live)):
                shard.write(batch)
                step(batch.num_rows)
            shard.finish()
        finish()
    except BaseException:
        for shard in shards.values():
            shard.discard()
        raise
    return shards


def take_given(features: Features, source: Values, live: NDArray[np.bool_]) -> Take:
    """Return a function that takes the values for the next rows of a fragment, blank ones for deleted rows."""
    ((name, feature),) = features.items()
    at = 0

    def take(rows: int) -> pa.Array:
        nonlocal at
        some = live[at : at + rows]
        at += rows
        first = source.taken
        values = source.take(int(some.sum()))
        filled = values if some.all() else _fill_deleted(values, some, feature)
        try:
            return encode_values(name, feature, filled, "sample {}".format)
        except SchemaError:
            encode_values(name, feature, values, partial(numbered, first))  # the error with the number of the sample
            raise

    return take


def numbered(first: int, number: int) -> str:
    """Return the text for a value in error messages: its sample, if value 0 belongs to sample `first`."""
    return f"sample {first + number}"


def encode_values(name: str, feature: Feature, values: Any, place: Callable[[int], str]) -> pa.Array:
    """Return the values of a field, an array or a list, as an Arrow array; errors name value k by `place(k)`."""
    features = Features({name: feature})
    try:
        table = to_table(Columns({name: values}, len(values)), features)
    except SchemaError:
        raise _error_of_one(features, values, place) from None
    if table[0].null_count and not feature.nullable:
        missing = int(np.flatnonzero(table[0].is_null())[0])
        raise located(SchemaError(f"expected {feature}, got None"), f"{place(missing)}, field {name}")
    return table[0].combine_chunks() if table[0].num_chunks != 1 else table[0].chunk(0)


def _error_of_one(features: Features, values: Any, place: Callable[[int], str]) -> SchemaError:
    """Return the error of the first value that does not fit, found by bisection: the error of Arrow has no position."""
    ((name, feature),) = features.items()
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            to_table(Columns({name: values[begin:middle]}, middle - begin), features)
        except SchemaError:
            end = middle
        else:
            begin = middle
    builder = BatchBuilder(features, arrow_schema(features))
    builder.place = place(begin)
    try:
        builder.append({name: values[begin]})
    except SchemaError as error:
        return error
    return located(SchemaError(f"expected {feature}, got another value"), f"{place(begin)}, field {name}")


def _fill_deleted(values: Any, live: NDArray[np.bool_], feature: Feature) -> Any:
    """Return the values at the live rows and blanks at the others."""
    if isinstance(values, np.ndarray):
        out = np.zeros((len(live), *values.shape[1:]), values.dtype)
        out[live] = values
        return out
    each, empty = iter(values), feature.blank()
    return [next(each) if there else empty for there in live.tolist()]
