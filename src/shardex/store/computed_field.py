"""Computes the values of a new field with a function of the samples: in this process, or part by part by workers.

A `FieldFunction` yields the encoded values of a range of samples. Without workers they go to the files of the fragments
at once. With workers a `FieldJob` writes those of each part to the folder of the job, and `PartValues` gives them to
the files, part after part. `EncodedRows` cuts both streams in the same way, so that files do not depend on the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.dataset import Dataset, call_function, column_result, place_of_rows
from shardex.errors import ArgumentError, NotFoundError, SchemaError
from shardex.features import Feature, Features, arrow_schema
from shardex.jobs import FinishedPart, JobFolder, Part, continue_parts, cut_rows, rows_per_part
from shardex.kernel import Column
from shardex.native import BATCH_BYTES, DataFileWriter, Fragment, LiveRows, live_rows, read_part, write_part
from shardex.samples import Batch
from shardex.sources import Place
from shardex.store.new_field import batches, encode_values, numbered
from shardex.workers import ExecutorLike, function_fingerprint, raise_if_cancelled

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
            count = max(1, min(_MOST, BATCH_BYTES * len(array) // max(1, array.nbytes)))

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
        return write_part(self.folder, part.number, self.values.features, partial(self._write, part))

    def _write(self, part: Part, place: Place) -> list[Fragment]:
        features, (begin, end) = self.values.features, self.values.extent(part)
        if begin == end:
            return []
        shard = DataFileWriter(place, arrow_schema(features))
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
                found = [batch.column(0) for batch in read_part(self._folder, record)]
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
