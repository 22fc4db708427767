"""Converts the values of a field that is added to existing samples to record batches for each fragment.

Values come in the order of the samples. A fragment still contains its deleted rows; they get blank values, which are
never read. Values that a function computes are written part by part, by workers if asked, and continued after a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import BatchBuilder, located, to_table
from shardex.dataset import Dataset, column_table, from_table
from shardex.errors import ArgumentError, NotFoundError, SchemaError
from shardex.features import Feature, Features, arrow_schema
from shardex.jobs import FinishedPart, JobFolder, Part, continue_parts, cut_rows, rows_per_part
from shardex.kernel import Column, Columns
from shardex.layers import call_function, column_result, place_of_rows
from shardex.native import Fragment, LiveRows, NativeParts, data_files, live_rows
from shardex.samples import Batch
from shardex.sources import Place
from shardex.workers import ExecutorLike, function_fingerprint, raise_if_cancelled

_BATCH_BYTES = data_files.BATCH_BYTES
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
        raise SchemaError(
            f"expected an array, an iterable, a dataset or a function for the field {name}, got "
            f"{type(values).__name__}; for one value in all samples give a function, lambda sample: value"
        )
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
        step = max(1, min(1 << 20, _BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))


def write_files(
    place: Place,
    features: Features,
    fragments: Iterable[tuple[Fragment, NDArray[np.bool_]]],
    take: Callable[[NDArray[np.bool_]], Take],
    step: Callable[[int], object],
    finish: Callable[[], None],
) -> dict[int, data_files.DataFileWriter]:
    """Write one file for each fragment, with a value for each of its rows; return them by the first id of the fragment.

    `take` gets which rows of a fragment are not deleted. `finish` is called at the end; after an error all files are
    removed.
    """
    shards: dict[int, data_files.DataFileWriter] = {}
    try:
        for fragment, live in fragments:
            if not fragment.rows:  # adopted shards without samples
                continue
            shard = shards[fragment.first] = data_files.DataFileWriter(place, arrow_schema(features))
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


_VERSION = 1
"""Part of the fingerprint of a job: a higher number if the same job would write other bytes."""
_FIRST, _MOST = 16, 1 << 12
"""Samples whose values are encoded at once: few at first, as their size is not known."""


@dataclass(frozen=True)
class FieldFunction:
    """A function that computes the values of a new field, and the samples it is called with."""

    dataset: Dataset[Any]
    rows: int
    """Number of physical rows, deleted ones included."""
    name: str
    feature: Feature
    function: Callable[[Any], Any]
    batched: bool = False
    batch_size: int = 256

    def __post_init__(self) -> None:
        if isinstance(self.batch_size, bool) or not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ArgumentError(f"expected a batch_size of at least 1, got {self.batch_size!r:.200}")

    @property
    def features(self) -> Features:
        """The new field."""
        return Features({self.name: self.feature})

    def parts(self, sample_bytes: float) -> list[Part]:
        """Cut the samples into parts, which depend on the samples alone."""
        total, size = len(self.dataset), self.batch_size if self.batched else 1
        rows = rows_per_part(total, sample_bytes, shard_rows=None, shard_size=None, calls_function=True)
        return list(cut_rows(total, -(-rows // size) * size))

    @property
    def whole(self) -> Part:
        """All samples as one part."""
        return Part(0, 0, len(self.dataset))

    def encoded(self, part: Part) -> Iterator[pa.Array]:
        """Yield the values for the physical rows of a part: results of the function, and blanks for deleted rows."""
        here, end = self.extent(part)
        for first, array in self._results(part):
            physical = self._live.physical_rows(np.arange(first, first + len(array)))
            before = np.diff(physical, prepend=here - 1) - 1
            at = 0
            for gap in np.flatnonzero(before).tolist():
                if gap > at:
                    yield array[at:gap]
                yield from self._blanks(int(before[gap]))
                at = gap
            yield array[at:] if at else array
            here = int(physical[-1]) + 1
        yield from self._blanks(end - here)

    def extent(self, part: Part) -> tuple[int, int]:
        """Return the physical rows of a part: deleted rows belong to the part of the sample before them."""
        begin, end = self._live.physical_rows(np.array([part.begin, part.end])).tolist()
        return begin if part.begin else 0, end if part.end < len(self.dataset) else self.rows

    @cached_property
    def _live(self) -> LiveRows:
        return live_rows(self.dataset.rows)

    def _blanks(self, count: int) -> Iterator[pa.Array]:
        while count > 0:
            yield self._blank[:count]
            count -= len(self._blank)

    @cached_property
    def _blank(self) -> pa.Array:
        return encode_values(self.name, self.feature, [self.feature.blank()] * 256, "a deleted sample {}".format)

    def _results(self, part: Part) -> Iterator[tuple[int, pa.Array]]:
        """Yield encoded results, each with the number of its first sample."""
        for first, column in self._batches(part) if self.batched else ():
            yield first, self._encode(first, column)
        if self.batched:
            return
        samples, count = enumerate(self.dataset[part.begin : part.end], part.begin), _FIRST
        first = part.begin
        while first < part.end:
            array = self._encode(first, [self._call(*one) for one in islice(samples, count)])
            yield first, array
            first += len(array)
            count = max(1, min(_MOST, _BATCH_BYTES * len(array) // max(1, array.nbytes)))

    def _call(self, number: int, sample: Any) -> Any:
        raise_if_cancelled()
        return call_function(self.function, sample, lambda: place_of_rows(self.dataset, np.array([number])))

    def _batches(self, part: Part) -> Iterator[tuple[int, Column]]:
        for begin in range(part.begin, part.end, self.batch_size):
            raise_if_cancelled()
            rows = np.arange(begin, min(begin + self.batch_size, part.end))
            batch = Batch(self.dataset.read(rows), self.dataset.sample_type)
            yield begin, column_result(self.function, batch, partial(place_of_rows, self.dataset, rows))

    def _encode(self, first: int, column: Column) -> pa.Array:
        try:
            return encode_values(self.name, self.feature, column, partial(numbered, first))
        except SchemaError as error:
            error.add_note(f"in the result of {self.function!r}")
            raise


class EncodedRows:
    """Takes rows from a stream of encoded arrays; what it returns does not depend on how the stream was cut."""

    def __init__(self, features: Features, arrays: Iterable[pa.Array]) -> None:
        self._schema = arrow_schema(features)
        self._arrays = iter(arrays)
        self._left: pa.Array = []

    def take(self, rows: int) -> pa.Array:
        """Return the next rows."""
        pieces = []
        while rows:
            if not len(self._left):
                self._left = next(self._arrays)
            piece, self._left = self._left[:rows], self._left[rows:]
            pieces.append(piece)
            rows -= len(piece)
        # Arrow would write the bytes next to a slice as its padding, so it is copied; what is read again has only the
        # bitmaps of nulls that are needed, like an array that was encoded at once.
        batch = pa.RecordBatch.from_arrays([pa.concat_arrays(pieces)], schema=self._schema)
        return pa.ipc.read_record_batch(batch.serialize(), self._schema).column(0)


# -- parts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldJob:
    """Computes and stores the values of one part; a worker calls it."""

    values: FieldFunction
    folder: JobFolder

    def __call__(self, part: Part) -> FinishedPart:
        """Write the values for the rows of a part to the folder of the job."""
        return NativeParts(self.folder).write(part.number, self.values.features, partial(self._write, part))

    def _write(self, part: Part, place: Place) -> list[Fragment]:
        features, (begin, end) = self.values.features, self.values.extent(part)
        if begin == end:
            return []
        shard = data_files.DataFileWriter(place, arrow_schema(features))
        try:
            for batch in batches(features, end - begin, EncodedRows(features, self.values.encoded(part)).take):
                shard.write(batch)
            shard.finish()
            return [Fragment(shard.rows, [shard.publish()])]
        except BaseException:
            shard.discard()
            raise


class PartValues:
    """The values of a new field, computed in parts by workers, or by a run before that was interrupted.

    The folder of the job stays open until the end of the transaction: `finish`, `discard`, or `keep` and `close`.
    """

    def __init__(self, path: str, version: int, values: FieldFunction, sample_bytes: float) -> None:
        self._values = values
        self._parts = values.parts(sample_bytes)
        what = values.dataset, values.name, values.feature, values.function, values.batched, values.batch_size
        self._inputs = _VERSION, "add_field", what, self._parts[0]
        self._folder = JobFolder(path, function_fingerprint(self._inputs))
        self._open = ExitStack()
        self._open.enter_context(self._folder.opened())
        self._folder.base = version
        self._finished = self._folder.finished()

    def encoded(self, workers: int | None, executor: ExecutorLike, progress: bool | None) -> Generator[pa.Array]:
        """Run the parts that are not finished; yield the values for all rows, while later parts are running."""
        job, desc = FieldJob(self._values, self._folder), f"add {self._values.name}"
        for part, record in continue_parts(
            job, self._parts, self._finished, workers=workers, executor=executor, desc=desc, progress=progress
        ):
            try:
                found = [batch.column(0) for batch in NativeParts(self._folder).read(record)]
            except NotFoundError:  # another run of the same job has ended and removed the folder
                yield from self._values.encoded(part)
            else:
                yield from found

    def finish(self) -> None:
        """Remove the folder after the commit."""
        with self._open:
            self._folder.remove()

    def discard(self) -> None:
        """Remove the parts, which are of no use any more."""
        with self._open:
            self._folder.discard_all()

    def keep(self, error: BaseException) -> None:
        """Keep the parts for the next run, if it can find them, and say so in a note of the error."""
        self._folder.explain(error, len(self._parts), self._inputs)

    def close(self) -> None:
        """Close the folder, so that the next run knows that this one has ended."""
        self._open.close()
