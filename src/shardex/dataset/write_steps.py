"""What happens to samples between reading and writing: functions of the caller, and samples that are left out.

`WriteSteps` are the arguments of `write`; `Results` calls them for a range of samples; `features_of_results` finds
the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shardex.dataset.dataset import Dataset
from shardex.errors import ArgumentError, SchemaError, ShardexError
from shardex.features import Feature
from shardex.formats import ShardRows
from shardex.jobs import LeftOut
from shardex.kernel import Columns, Integers
from shardex.layers import (
    SampleFailure,
    StoredMedia,
    batch_result,
    call_function,
    copied,
    copied_lists,
    function_step,
    inferred_of_results,
    innermost_rows,
    numpy_samples,
    place_of_rows,
    sample_results,
)
from shardex.samples import Batch, DictSample, fields_of, is_sample_class
from shardex.workers import raise_if_cancelled

_AT_ONCE = 16
"""Samples that are read at once if those with errors are left out."""
_INFER_FROM = 16
"""Results from which the features are inferred."""
_INFER_ROWS = 1024
"""Samples that are read to find these results."""

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class WriteSteps:
    """What happens to samples between reading and writing; the arguments of `write` with these names."""

    transform: Function | None = None
    filter: Function | None = None
    batched: bool = False
    batch_size: int = 256
    on_error: str = "raise"

    def check(self) -> None:
        """Raise an error for arguments that cannot be used."""
        for name in ("transform", "filter"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise ArgumentError(f"expected a function for {name}=, got {given!r:.200}")
        if self.on_error not in ("raise", "skip"):
            raise ArgumentError(f'expected on_error="raise" or "skip", got {self.on_error!r:.200}')
        if not isinstance(self.batch_size, int) or isinstance(self.batch_size, bool) or self.batch_size < 1:
            raise ArgumentError(f"expected a batch_size of at least 1, got {self.batch_size!r:.200}")

    @property
    def any(self) -> bool:
        """True if a function is called."""
        return self.transform is not None or self.filter is not None


class Results:
    """The results for a range of samples: columns or lists of samples, each with the range of rows it is made from."""

    def __init__(
        self, source: Dataset[Any], steps: WriteSteps, begin: int, end: int, schema: Mapping[str, Feature] | None = None
    ) -> None:
        """:param schema: of what is written: media that functions pass on unchanged are then the stored bytes"""
        self._source, self._steps = source, steps
        copied = steps.transform is None
        self._media = None if schema is None or not steps.any else StoredMedia(source, schema, copied=copied)
        self._begin, self._end = begin, end
        self._in_memory = not isinstance(innermost_rows(source.rows), ShardRows)
        self.left_out: list[LeftOut] = []

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        if self._steps.batched and self._steps.any:
            for begin in range(self._begin, self._end, self._steps.batch_size):
                raise_if_cancelled()
                yield from self._batch(begin, min(begin + self._steps.batch_size, self._end))
        elif not self._steps.any and self._steps.on_error == "raise" and not is_sample_class(self._source.sample_type):
            begin = self._begin
            for columns in self._source[self._begin : self._end].chunks():
                raise_if_cancelled()
                yield begin, begin + len(columns), columns
                begin += len(columns)
        else:
            for row, sample in self._samples():
                raise_if_cancelled()
                try:
                    results = self._of_sample(row, sample)
                except Exception as error:
                    self.leave_out(row, error)
                else:
                    yield row, row + 1, results

    def leave_out(self, row: int, error: Exception) -> None:
        """Note that a sample is left out because of an error, or raise the error."""
        if self._steps.on_error == "raise":
            raise error
        self.left_out.append(LeftOut(row, self.place(row, row + 1), f"{type(error).__name__}: {error}"))

    def place(self, begin: int, end: int) -> str:
        """Return the numbers and files of samples, for messages: of a view, also the numbers in its dataset."""
        positions = np.arange(begin, end)
        rows = self._source.order.rows(positions)
        if np.array_equal(rows, positions):
            return place_of_rows(self._source, positions) + self._line(rows)
        text = f"position {begin}" if end - begin == 1 else f"positions {begin} to {end - 1}"
        line = self._line(rows) if self._steps.on_error == "raise" else ""  # counting lines out of order takes long
        return f"{text} of the view, {place_of_rows(self._source.rows, rows)}{line}"

    def _line(self, rows: Integers) -> str:
        inner = innermost_rows(self._source.rows)
        if len(rows) != 1 or not isinstance(inner, ShardRows):
            return ""
        try:
            line = inner.line(int(rows[0]))
        except (OSError, ShardexError):  # the file may be the reason of the error
            return ""
        return f", {line}" if line else ""

    def _samples(self) -> Iterator[tuple[int, Any]]:
        """Yield row and sample; if samples with errors are left out, read one by one after an error."""
        if self._steps.on_error == "raise":
            yield from enumerate(self._source[self._begin : self._end], self._begin)
            return
        for begin in range(self._begin, self._end, _AT_ONCE):
            end = min(begin + _AT_ONCE, self._end)
            try:
                some = list(self._source[begin:end])
            except Exception:
                yield from self._readable(begin, end)
            else:
                yield from enumerate(some, begin)

    def _readable(self, begin: int, end: int) -> Iterator[tuple[int, Any]]:
        for row in range(begin, end):
            try:
                sample = self._source[row]
            except Exception as error:
                self.leave_out(row, error)
            else:
                yield row, sample

    def _of_sample(self, row: int, sample: Any) -> Sequence[Any]:
        def place() -> str:
            return self.place(row, row + 1)

        steps = self._steps
        if self._in_memory and steps.any:
            sample = _copied_sample(sample)
        before = None if self._media is None else self._media.copies(fields_of(sample))
        if steps.filter is not None and not _is_true(call_function(steps.filter, sample, place), steps.filter, place):
            return ()
        results = (sample,) if steps.transform is None else sample_results(steps.transform, sample, place)
        if self._media is None or not before:
            return results
        return [self._media.in_sample(fields_of(one), before, row) for one in results]

    def _batch(self, begin: int, end: int) -> Iterator[tuple[int, int, Columns]]:
        """Yield the results for a batch; if samples with errors are left out, for each sample alone after an error."""
        try:
            found = self._of_batch(begin, end)
        except Exception as error:
            if self._steps.on_error == "raise":
                raise
            if end - begin == 1:
                return self.leave_out(begin, error)
            yield from self.one_by_one(begin, end)
        else:
            yield begin, end, found

    def one_by_one(self, begin: int, end: int) -> Iterator[tuple[int, int, Columns]]:
        """Yield the results for each sample of a batch alone."""
        for row in range(begin, end):
            yield from self._batch(row, row + 1)

    def _of_batch(self, begin: int, end: int) -> Columns:
        def place() -> str:
            return self.place(begin, end)

        steps, rows = self._steps, np.arange(begin, end)
        columns = self._source.read(rows)
        if self._in_memory:
            columns = copied_lists(columns)
        batch = Batch(columns, self._source.sample_type)
        before = Columns({} if self._media is None else self._media.copies(columns.data), len(columns))
        if steps.filter is not None:
            mask = np.asarray(call_function(steps.filter, batch, place))
            if mask.shape != (len(batch),) or mask.dtype != np.bool_:
                raise SchemaError(
                    f"expected {len(batch)} booleans from {steps.filter!r} (batched=True), got {mask.dtype} of shape "
                    f"{list(mask.shape)} - at {place()}"
                )
            rows, before = rows[mask], before.take(np.flatnonzero(mask))
            batch = Batch(batch.columns.take(np.flatnonzero(mask)), self._source.sample_type)
        if not len(batch) and steps.transform is not None:
            return Columns({}, 0)  # functions need not work for no samples
        made = batch.columns if steps.transform is None else self._transformed(batch, rows, place)
        if self._media is None or len(made) != len(rows):
            return made
        return self._media.in_columns(made, before.data, rows)

    def _transformed(self, batch: Batch[Any], rows: Integers, place: Callable[[], str]) -> Columns:
        steps = self._steps
        assert steps.transform is not None
        try:
            return batch_result(steps.transform, batch, place, copy=False).columns  # written before the next call
        except SampleFailure as failure:
            row = int(rows[failure.number])
            error = failure.located(steps.transform, self.place(row, row + 1))
            raise error from error.__cause__


def _copied_sample(sample: Any) -> Any:
    """Return a sample that a function may change, which must not change the source: it may be called again."""
    return DictSample(copied(sample)) if type(sample) is DictSample else deepcopy(sample)


def _is_true(answer: Any, function: Function, place: Callable[[], str]) -> bool:
    """Return the answer of a filter as a bool. None is an error: most likely a `return` is missing."""
    try:
        if answer is not None:
            return bool(answer)
    except (TypeError, ValueError):  # an array
        pass
    raise SchemaError(f"expected True or False from {function!r}, got {type(answer).__name__} - at {place()}")


def source_of_function(source: Dataset[Any]) -> tuple[Dataset[Any], Function | None]:
    """Return the dataset below a function of `map` or `with_fields`, and the function; or the dataset and None.

    What is written has the features of all results then, not of the first ones.
    """
    if source.chosen is not None or (step := function_step(source.rows)) is None:
        return source, None
    below, fields, function = step
    whole = source._over(below)
    return (whole if fields is None else whole.select(*fields)), function


# -- features -----------------------------------------------------------------------------------------------------


def features_of_results(source: Dataset[Any], steps: WriteSteps) -> Any:
    """Return the features of the results: those of the source, a class, or `Inferred` of the first results."""
    if steps.transform is None:
        return source.sample_type if is_sample_class(source.sample_type) else source.features
    pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = []
    for begin in range(0, min(len(source), _INFER_ROWS), _INFER_FROM):
        end = min(begin + _INFER_FROM, len(source))
        results = Results(source, replace(steps, batch_size=_INFER_FROM), begin, end)
        for row, stop, result in results:
            if not isinstance(result, Columns) and result and is_sample_class(kind := type(result[0])):
                return kind
            pairs += _pairs(source, row, stop, result)
        if len(pairs) >= _INFER_FROM:
            break
    if not pairs:
        seen = min(len(source), _INFER_ROWS)
        raise SchemaError(
            f"expected a result of {steps.transform!r} to infer the fields from, got none for the first {seen} "
            "samples; pass the fields with schema="
        )
    return inferred_of_results(pairs, source.features)


def _pairs(
    source: Dataset[Any], row: int, end: int, result: Any
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each result with the sample that it was made from."""
    if not isinstance(result, Columns):
        for one in result:
            yield source.sample(row), fields_of(one)
        return
    aligned = len(result) == end - row
    for number, one in enumerate(numpy_samples(result)):
        yield (source.sample(row + number) if aligned else {}), one
