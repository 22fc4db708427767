"""What views need besides an order: how many rows to read at once, sorted positions, columns by name, texts, iterators.

In: a dataset and what a user asked for. Out: positions, parts, field names, errors and text. `ComposedRows` is the base
class of rows whose samples are made of several samples of a dataset. A read of many rows amortises the cost of a call;
`read_chunks` reads few enough to reuse memory.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from shardex.columns import check_fields
from shardex.errors import ArgumentError, FormatError, RowError, SchemaError, ShardexError, unknown_field
from shardex.features import Feature, Json, unwrap_optional
from shardex.files import display_name
from shardex.formats import ShardRows
from shardex.kernel import Column, Columns, Integers, Masked, TimeArray, byte_size
from shardex.layers import TypedRows, innermost_rows, undecoded
from shardex.order import Order
from shardex.rows import AbstractRows, AdaptedRows

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset
    from shardex.dataset.sample_view import SampleView

T = TypeVar("T")

PLUMBING = frozenset(
    (
        *("advise", "chosen", "chunks", "column", "content", "extracted", "in_python", "media_fields", "notes"),
        *("order", "present", "rows", "sample", "sql_columns", "stored", "through"),
    )
)
"""Methods of `Dataset` that other parts of shardex call; `dir` leaves them out."""
_MAX_NOTE = 80
"""Characters of a condition that a `repr` shows."""


# -- rows of several samples ----------------------------------------------------------------------------------------


class ComposedRows(AbstractRows):
    """Rows whose samples are made of several samples of a dataset: windows, packs."""

    @property
    @abstractmethod
    def source(self) -> Dataset[Any]:
        """The dataset."""

    @property
    def in_python(self) -> bool:
        """True if the dataset is read in Python."""
        return self.source.in_python

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was stored with the dataset."""
        return self.source.metadata

    def check_rows(self, rows: Integers) -> Integers:
        """Return row numbers as int64; raise if one is outside."""
        rows = np.asarray(rows, np.int64)
        if len(rows) and int(rows.view(np.uint64).max()) >= len(self):
            raise RowError(f"expected rows from 0 to {len(self) - 1}, got {rows.min()} to {rows.max()}")
        return rows


def source_rows(rows: AbstractRows) -> AbstractRows:
    """Return the rows under all layers, windows and packs."""
    inner = innermost_rows(rows)
    return source_rows(inner.source.rows) if isinstance(inner, ComposedRows) else inner


# -- fields ---------------------------------------------------------------------------------------------------


def field_names(fields: Sequence[Any]) -> list[str]:
    """Return field names that were passed one by one, or in one list.

    >>> field_names(["a", "b"]), field_names([["a", "b"]])
    (['a', 'b'], ['a', 'b'])
    """
    one_list = len(fields) == 1 and isinstance(fields[0], Sequence) and not isinstance(fields[0], str)
    names = list(fields[0] if one_list else fields)
    for name in names:
        if not isinstance(name, str):
            shown = fields[0] if len(fields) == 1 else name
            raise ArgumentError(
                f"expected names of fields, got {shown!r:.200}; choose samples by their positions with ds[...], the "
                "first ones with take(n)"
            )
    return names


def check_column(view: SampleView[Any], name: str) -> None:
    """Raise if there is no such field; the user may have meant a key."""
    if name not in (known := view.fields):
        keyed = view.rows.key_lookup is not None
        raise unknown_field(name, known, f"; a sample is found by its key with get({name!r})" if keyed else "")


def new_names(known: Sequence[str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the new name of every field, by its old name; raise if two would have the same.

    >>> new_names(["x", "y"], {"x": "z"})
    {'x': 'z', 'y': 'y'}
    """
    check_fields(known, list(names))
    renamed = {name: names.get(name, name) for name in known}
    for old, new in names.items():
        if not isinstance(new, str) or not new:
            raise SchemaError(f"expected a field name, got {new!r} as the new name of {old!r}")
        if sum(one == new for one in renamed.values()) > 1:
            raise SchemaError(f"expected different field names, got {new!r} twice - at the new name of {old!r}")
    return renamed


def sorted_positions(view: SampleView[Any], fields: Sequence[str], descending: bool) -> Integers:
    """Return all positions in the order of these fields' values: equal ones stay in order, NaN and None come last."""
    if not fields:
        raise ArgumentError("expected at least one field to sort by, got none")
    return sorted_rows(single_values(view, fields, _not_sortable), fields, descending)


def single_values(
    view: SampleView[Any], fields: Sequence[str], refusal: Callable[[str, Feature], SchemaError]
) -> pa.Table:
    """Return fields of single values as SQL reads them; for other fields raise the error that `refusal` makes."""
    features = {**view.extracted, **view.features}
    check_fields(list(features), fields)
    for name in fields:
        feature = unwrap_optional(features[name])
        if not feature.queryable() or isinstance(feature, Json):
            raise refusal(name, feature)
    table = view.sql_columns(fields)
    for column in table.schema:
        if pa.types.is_nested(column.type):
            raise refusal(column.name, features[column.name])
    return table


def sorted_rows(table: pa.Table, fields: Sequence[str], descending: bool = False) -> Integers:
    """Return the rows of a table in the order of these columns."""
    import pyarrow.compute as pc

    order = "descending" if descending else "ascending"
    try:
        found = pc.sort_indices(table, sort_keys=[(name, order) for name in fields])
    except pa.ArrowException as error:
        raise SchemaError(f"expected fields that can be sorted, got {', '.join(fields)}: {error}") from None
    return np.frombuffer(found.buffers()[1], np.uint64, len(table)).astype(np.int64)  # to_numpy would import pandas


def _not_sortable(name: str, found: Feature) -> SchemaError:
    return SchemaError(
        f"expected a field of numbers, text, bytes or times to sort by, got {found} - at field {name}; sort by a value "
        "in it with sql: SELECT _row FROM ds ORDER BY ..."
    )


# -- text -----------------------------------------------------------------------------------------------------


def note(words: str, what: object) -> str:
    """Return a part of the description of a view, for example a condition on one line."""
    text = " ".join(str(what).split())
    return f"{words} {text if len(text) <= _MAX_NOTE else text[: _MAX_NOTE - 3] + '...'}"


def function_name(function: Any) -> str:
    """Return a short name of a function."""
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)
    return str(name).rpartition("<locals>.")[2]


def description(view: SampleView[Any]) -> str:
    """Return the `repr` of a dataset: how many samples, what was chosen, the fields, and where they come from."""
    try:
        fields = str(view.features)
    except ShardexError as error:  # repr must not fail
        fields = f"unknown fields, {error}"
    return f"{_kind(view)}({_count(view)}: {fields}{_origin(source_rows(view.rows))})"


def headline(view: SampleView[Any]) -> str:
    """Return the description of a dataset without its fields."""
    return f"{_kind(view)}: {_count(view)}{_origin(source_rows(view.rows))}"


def _kind(view: SampleView[Any]) -> str:
    typed = isinstance(undecoded(view.rows), TypedRows) and view.chosen is None
    return f"Dataset[{view.sample_type.__name__}]" if typed else "Dataset"


def _count(view: SampleView[Any]) -> str:
    """Return the number of samples of a view, out of how many rows, and how they were chosen."""
    rows = view.rows
    part = f"{len(view):,} of {len(rows):,} sample" if len(view) < len(rows) else f"{len(view):,} sample"
    return part + "s" * (max(len(view), len(rows)) != 1) + "".join(f", {one}" for one in view.notes)


def _origin(rows: AbstractRows) -> str:
    if isinstance(rows, ShardRows):
        what = rows.opened.what
        shown = display_name(what) if isinstance(what, str) else f"{len(what)} path{'s' * (len(what) != 1)}"
        count = rows.shard_count
        return f" - {rows.opened.format}, {count} shard{'s' * (count != 1)}, {shown}"
    if hasattr(rows, "through"):
        return ""
    return f" - {type(rows.rows if isinstance(rows, AdaptedRows) else rows).__name__}"


class DataIterator(itertools.chain[T]):
    """An iterator whose `repr` says what it iterates over; `next` is that of `itertools`, in C.

    >>> DataIterator(iter([1, 2]), lambda: "two numbers")
    Iterator(two numbers)
    """

    _text: Callable[[], str]

    def __new__(cls, items: Iterator[T], text: Callable[[], str]) -> Self:
        """Return the iterator; `text` is called when it is shown."""
        self = super().__new__(cls, items)
        self._text = text
        return self

    def __repr__(self) -> str:
        return f"Iterator({self._text()})"


_MAX_BYTES = 6 << 20
_MAX_ROWS = 1 << 13
DECODED_BYTES = 16 << 20
"""Size of reads of decoded media: enough images for all cores."""


class ReadSize:
    """Number of batches of `size` rows to read next, chosen by the bytes read last; grows fourfold at most.

    >>> read_size = ReadSize(2); read_size.measure(rows=2, size=16_000); read_size.batches
    4
    """

    def __init__(self, size: int, most: int = _MAX_BYTES, most_rows: int = _MAX_ROWS) -> None:
        self.size = size
        self._most = most
        self._most_rows = most_rows
        self.batches = 1

    def measure(self, rows: int, size: int) -> None:
        """Choose the number of batches for the next read from the rows and bytes of the last one."""
        rows = min(self._most_rows, self._most * rows // max(1, size))
        self.batches = max(1, min(rows // self.size, 4 * self.batches))


def read_chunks(
    read: Callable[[Integers], Columns], order: Order, size: int, most: int = _MAX_BYTES
) -> Iterator[Columns]:
    """Read all rows of an order as columns, several batches of `size` rows at a time, about `most` bytes.

    The batches before one with a sample that cannot be read are yielded before the error.
    """
    start, end, read_size, most_batches = 0, len(order), ReadSize(size, most), len(order)
    while start < end:
        batches = min(read_size.batches, most_batches, -(-(end - start) // size))
        try:
            columns = read(order.rows(np.arange(start, min(start + batches * size, end))))
        except FormatError:
            if batches == 1:
                raise
            most_batches = batches // 2
            continue
        start += len(columns)
        read_size.measure(len(columns), byte_size(columns))
        yield columns


def sample_chunks(view: SampleView[Any]) -> Iterator[Iterable[dict[str, Any]]]:
    """Yield the samples of a dataset as dicts, in chunks."""
    first = 0
    for columns in view.chunks():
        samples: Iterable[dict[str, Any]]
        try:
            samples = columns.to_samples()
        except FormatError:  # a value that Python cannot hold: read one by one, for an error that names the sample
            samples = map(view.sample, range(first, first + len(columns)))
        first += len(columns)
        yield samples


def stored_samples(columns: Columns) -> Iterable[dict[str, Any]]:
    """Return samples to be written elsewhere: dates and times that Python cannot hold are numpy values."""
    try:
        return columns.to_samples()
    except FormatError:
        return Columns({n: _numpy_times(one) for n, one in columns.data.items()}, len(columns)).to_samples()


def _numpy_times(column: Column) -> Column:
    if isinstance(column, Masked) and isinstance(column.column, TimeArray):
        present = zip(column.values, column.mask.tolist(), strict=True)
        return [value if there else None for value, there in present]
    return list(column.view(np.ndarray)) if isinstance(column, TimeArray) else column
