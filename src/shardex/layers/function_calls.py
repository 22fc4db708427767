"""Calls functions of users on a sample or a batch, and brings what they return into one form.

`sample_results` calls a function on a sample and returns a list of samples, `batch_result` one on a batch and returns a
batch of any length. An exception gets a note that names the function and the samples; `place_of_rows` is the text for
them. `MapRows` and writers call them; fitting results to features is left to these.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features import describe
from shardex.kernel import Column, Columns, Integers, Masked, Ragged, TimeArray
from shardex.rows import AbstractRows
from shardex.samples import Batch, DictSample, is_sample_class, record_of

Place = Callable[[], str]
"""Returns which samples a function was called on, for messages."""
_MAX_NAMED = 5
"""Scattered samples are named one by one up to this number."""


# -- time -----------------------------------------------------------------------------------------------------


class _InFunctions(threading.local):
    wall = busy = 0.0


_in_functions = _InFunctions()


def time_in_functions() -> tuple[float, float]:
    """Return the seconds, and the processor seconds, that functions of `map` have taken in this thread."""
    return _in_functions.wall, _in_functions.busy


@contextmanager
def counted() -> Iterator[None]:
    """Add the time of a `with` block to `time_in_functions`."""
    wall, busy = time.perf_counter(), time.thread_time()
    try:
        yield
    finally:
        _in_functions.wall += time.perf_counter() - wall
        _in_functions.busy += time.thread_time() - busy


# -- calls ----------------------------------------------------------------------------------------------------


class SampleFailure(Exception):
    """Raised for one sample of a batch that a function got: the number of the sample in the batch, and the error."""

    def __init__(self, number: int, error: Exception) -> None:
        super().__init__(number, error)
        self.number, self.error = number, error

    def located(self, function: object, place: str) -> Exception:
        """Return the error with the sample named: in the text of a `SchemaError`, in a note of any other error."""
        if type(self.error) is SchemaError:
            return SchemaError(f"{self.error} - at {place}")
        self.error.add_note(f"in {function!r} at {place}")
        return self.error


def call_function(function: Callable[[Any], Any], argument: Any, place: Place) -> Any:
    """Return what a function returns, an iterator as a list; an exception gets a note with function and samples."""
    try:
        result = function(argument)
        return list(result) if type(result) is not dict and isinstance(result, Iterator) else result  # it runs here
    except StopIteration as error:  # generators that this passes through would raise another error, without the note
        stopped = RuntimeError("expected a result, got StopIteration: next() was called at the end of an iterator")
        stopped.add_note(f"in {function!r} at {place()}")
        raise stopped from error
    except Exception as error:
        error.add_note(f"in {function!r} at {place()}")
        raise


def sample_results(function: Callable[[Any], Any], sample: Any, place: Place) -> list[Any]:
    """Call a function that returns a sample, or a list, an iterator or a batch of samples; return the list.

    Each item is a mapping or an instance of a sample class; `fields_of` returns its fields.

    >>> sample_results(lambda s: ({"x": k} for k in range(s["n"])), {"n": 2}, lambda: "sample 0")
    [{'x': 0}, {'x': 1}]
    >>> sample_results(dict, {"x": 1}, lambda: "sample 0"), sample_results(lambda s: [], {}, lambda: "sample 0")
    ([{'x': 1}], [])
    """
    result = call_function(function, sample, place)
    if type(result) is dict or isinstance(result, Mapping):
        return [result]
    if result is None:
        raise SchemaError(
            f"expected a sample or a list of samples from {function!r}, got none; return [] to leave a sample out - "
            f"at {place()}"
        )
    several = isinstance(result, Batch) or (isinstance(result, list | tuple) and not _is_sample(result))
    results = list(result) if several else [result]
    for number, one in enumerate(results):
        if not _is_sample(one):
            of = f" (number {number} of {len(results)})" if several else ""
            raise SchemaError(
                f"expected samples (mappings of fields, or instances of a @packable or dataclass) from {function!r}, "
                f"got {describe(one)}{of} - at {place()}"
            )
    return results


def _is_sample(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, Mapping) or is_sample_class(kind) or hasattr(kind, "to_dict") or hasattr(kind, "_asdict")


def batch_result(function: Callable[[Any], Any], batch: Batch[Any], place: Place, *, copy: bool = True) -> Batch[Any]:
    """Call a function that returns a batch, or columns by name, of any length; return them as a batch.

    Arrays are copied, because the function may use their memory again; those of the given batch are not, and come back
    with their mask. Without `copy` the result is valid until the next call of the function.

    >>> batch = Batch(Columns({"x": np.array([1, 2])}))
    >>> batch_result(lambda b: {"y": 2.5 * b.x, "name": ("a", "b")}, batch, lambda: "samples 0 to 1")
    Batch(2 samples: y=float64[2], name=['a', 'b'])
    """
    given = dict(batch.columns.data)  # a batch stacks arrays in its columns
    result = call_function(function, batch, place)
    columns = result.columns if isinstance(result, Batch) else result
    data = columns.data if isinstance(columns, Columns) else columns
    if not isinstance(data, Mapping):
        raise SchemaError(
            f"expected a batch or columns by name (arrays, lists) from {function!r} (batched=True), got "
            f"{describe(result)} - at {place()}"
        )
    made = {}
    for name, column in data.items():
        try:
            same = _is_stack_of(column, given.get(name))
            made[_checked_name(name)] = given[name] if same else _column(column, batch.columns, copy)
        except SchemaError as error:
            raise SchemaError(f"{error} - at field {name} of the result of {function!r} at {place()}") from None
    _check_lengths(made, function, place)
    length = len(columns) if isinstance(columns, Columns) and not made else None
    return Batch(Columns(made, length), _sample_type(result, made))


def column_result(function: Callable[[Any], Any], batch: Batch[Any], place: Place) -> Column:
    """Call a function that returns one column with a value for each sample of a batch; return the column.

    >>> column_result(lambda b: 2.5 * b.x, Batch(Columns({"x": np.array([1, 2])})), lambda: "samples 0 to 1").tolist()
    [2.5, 5.0]
    """
    result = call_function(function, batch, place)
    try:
        column = _column(result, batch.columns, copy=True)
    except SchemaError as error:
        raise SchemaError(f"{error} - at the result of {function!r} at {place()}") from None
    if len(column) != len(batch):
        wanted = f"{len(batch)} value{'s' * (len(batch) != 1)}"
        raise SchemaError(
            f"expected {wanted} from {function!r}, as many as it got samples, got {len(column)} - at {place()}"
        )
    return column


def _sample_type(result: Any, made: Mapping[str, Column]) -> type[Any]:
    """Return the type of the samples of a result: the class of a batch that has all its fields and no others."""
    kind = result.sample_type if isinstance(result, Batch) else DictSample
    return kind if is_sample_class(kind) and made.keys() == {*record_of(kind).names} else DictSample


def _checked_name(name: Any) -> str:
    if not isinstance(name, str):
        raise SchemaError(f"expected a text as the name of a column, got {describe(name)}")
    return name


def _check_lengths(made: Mapping[str, Column], function: Any, place: Place) -> None:
    lengths = {name: len(column) for name, column in made.items()}
    if len({*lengths.values()}) > 1:
        found = ", ".join(f"{length} in {name}" for name, length in lengths.items())
        raise SchemaError(f"expected columns of one length from {function!r}, got {found} - at {place()}")


# -- copies --------------------------------------------------------------------------------------------------


def copied(value: Any) -> Any:
    """Return a deep copy of a value, which the caller may change or reuse."""
    if isinstance(value, memoryview | bytearray):
        return bytes(value)
    if isinstance(value, Mapping):
        return {name: copied(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value)) if type(value) in (list, tuple) else value
    if hasattr(value, "copy"):
        return value.copy()
    return value.clone() if hasattr(value, "clone") else value  # a tensor


def copied_lists(columns: Columns) -> Columns:
    """Return columns that a function may change: lists are copied deeply, because their values belong to the source."""
    return Columns({n: copied(one) if isinstance(one, list) else one for n, one in columns.data.items()}, len(columns))


# -- columns --------------------------------------------------------------------------------------------------


def _column(column: Any, given: Columns, copy: bool) -> Column:
    """Return a column that a function returned; with `copy` as one that no other code changes."""
    if (known := _given_column(column, given)) is not None:
        return known
    if isinstance(column, Masked):
        inner = _column(column.column, given, copy)
        return (
            Masked(inner, np.array(column.mask, np.bool_)) if isinstance(inner, np.ndarray | Ragged) else list(column)
        )
    if isinstance(column, Ragged):
        return column.packed() if copy else column
    if isinstance(column, list | tuple | range):
        return list(column)
    if isinstance(column, pa.Array | pa.ChunkedArray):
        return list(column.to_pylist())  # numpy has no null
    if isinstance(column, TimeArray):
        return column.copy()
    if isinstance(column, np.ma.MaskedArray):
        return _from_masked_array(column)
    if isinstance(column, np.ndarray) or hasattr(column, "__array__"):
        return _from_array(column, copy)
    raise SchemaError(f"expected a column (an array or a list with one value for each sample), got {describe(column)}")


def _given_column(column: Any, given: Columns) -> Column | None:
    """Return the column of the given batch that has this memory, with the mask and the time zone that it had."""
    for one in given.data.values():
        values = one.column if isinstance(one, Masked) else one
        if column is one or column is values:
            return one
        if isinstance(column, np.ndarray) and isinstance(values, np.ndarray) and _same_memory(column, values):
            return one
    return None


def _same_memory(a: NDArray[Any], b: NDArray[Any]) -> bool:
    alike = a.dtype == b.dtype and a.shape == b.shape and a.strides == b.strides and type(a) is not np.ma.MaskedArray
    return alike and a.size > 0 and a.__array_interface__["data"] == b.__array_interface__["data"]


def _is_stack_of(column: Any, given: Column | None) -> bool:
    """Return True for the array that a batch makes of a list of arrays: those of a feature without a shape."""
    if not isinstance(column, np.ndarray) or not isinstance(given, list) or column.shape[:1] != (len(given),):
        return False
    forms = {(one.dtype, one.shape) if type(one) is np.ndarray else None for one in given}
    if len(forms) != 1 or None in forms:
        return False
    stacked = np.stack(given)  # in the byte order of the machine
    return stacked.dtype == column.dtype and stacked.shape == column.shape and stacked.tobytes() == column.tobytes()


def _from_array(column: Any, copy: bool) -> Column:
    try:
        array = np.array(np.asarray(column), order="C", copy=copy or None)
    except Exception as error:  # a tensor on another device, or one that requires a gradient
        raise SchemaError(f"expected a column that numpy can read, got {type(column).__name__}: {error}") from None
    if not array.ndim:
        raise SchemaError(f"expected a column with one value for each sample, got the single value {describe(column)}")
    return list(array.tolist() if array.ndim == 1 else array) if array.dtype.kind in "OUST" else array


def _from_masked_array(column: np.ma.MaskedArray[Any, Any]) -> Column:
    """Return the masked array of numpy as a column whose masked values are missing."""
    if column.ndim == 1:
        return Masked(np.array(column.data), ~np.ma.getmaskarray(column))
    if np.ma.is_masked(column):
        raise SchemaError(f"expected whole values, got parts that are masked in {describe(column.data)}")
    return np.array(column.data)


# -- places ---------------------------------------------------------------------------------------------------


def place_of_rows(rows: AbstractRows, numbers: Integers) -> str:
    """Return the numbers of some rows and their files, for messages.

    >>> from shardex.dataset.memory_rows import ListRows
    >>> rows = ListRows([{"x": k} for k in range(100)])
    >>> place_of_rows(rows, np.arange(16, 32)), place_of_rows(rows, np.array([9, 2]))
    ('samples 16 to 31', 'samples 9, 2')
    >>> place_of_rows(rows, np.arange(0, 100, 10))
    'samples 0, 10, 20, 30, 40, ... (10 samples from 0 to 90)'
    """
    count = len(numbers)
    if count and (np.diff(numbers) == 1).all():
        first, last = int(numbers[0]), int(numbers[-1])
        text = f"sample {first}" if count == 1 else f"samples {first} to {last}"
    else:
        text = f"samples {', '.join(map(str, numbers[:_MAX_NAMED].tolist()))}" if count else "no samples"
        if count > _MAX_NAMED:
            text += f", ... ({count} samples from {numbers.min()} to {numbers.max()})"
    files = list(dict.fromkeys(filter(None, rows.shards(numbers)))) if count else []
    if len(files) > 2:
        files[1:] = [f"{len(files) - 1} other files"]
    return f"{text} of {' and '.join(files)}" if files else text
