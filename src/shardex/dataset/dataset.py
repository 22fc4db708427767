"""`Dataset`: rows, an order and a choice of fields; everything else is a view of that. `open` makes one.

Reading is ten lines: positions go through the order to rows, the rows object returns columns, and the columns become a
sample, a batch or a table. A dataset is itself rows, so datasets nest (`compose.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Generic, SupportsIndex, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.dataset import to_arrow as stream
from shardex.dataset.huggingface import to_huggingface
from shardex.dataset.layers import Layer, MappedRows, TypedRows, innermost_rows, sample_type_of
from shardex.dataset.read_size import read_chunks
from shardex.dataset.sql import Limits, Params, SqlView, condition, select
from shardex.dataset.typed_views import check_callable, lens_view, typed_view
from shardex.errors import MissingExtraError, RowError, SchemaError, ShardexError, UnknownKeyError
from shardex.files import display_name
from shardex.formats import ShardRows
from shardex.kernel import Columns, Integers, digest
from shardex.order import Order, Pick, Shuffle, Span, chain, positions_of, split_bounds
from shardex.progress import Bar
from shardex.rows import (
    AbstractRows,
    AdaptedRows,
    Keyed,
    Rows,
    are_positions,
    normalise,
    whole_number,
)
from shardex.samples import Batch, DictSample, Lens, T_co
from shardex.schema import Features, check_fields

__all__ = ["Dataset"]

U = TypeVar("U")


class Dataset(AbstractRows, Generic[T_co]):
    """Samples by position, through views that cost nothing.

    >>> import shardex as sx
    >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
    >>> ds[3], ds[2:8:2].select("x").read([0, 2])["x"]
    (DictSample(x=3, name='n3'), array([2, 6]))
    """

    __slots__ = ("_direct", "_fields", "_length", "_make", "_one", "_order", "_plain", "_rows")

    def __init__(self, rows: Rows, order: Order | None = None, fields: Sequence[str] | None = None) -> None:
        self._rows = rows if isinstance(rows, AbstractRows) else AdaptedRows(rows)
        self._order: Order = Span(len(rows)) if order is None else order
        self._fields = None if fields is None else tuple(fields)
        self._length = len(self._order)
        self._plain = self._order == Span(self._length)
        self._one = self._rows.sample
        self._direct = self._one if self._plain else None
        self._make: Any = rows.make if fields is None and isinstance(rows, Layer) else DictSample

    # -- reading -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    def read(self, positions: Any, fields: Sequence[str] | None = None) -> Columns:
        """The columns of these positions, in this order: the one way to the data."""
        if not are_positions(positions, self._length):
            positions = normalise(positions, self._length)
        rows = positions if self._plain else self._order.rows(positions)
        return self._rows.read(rows, self._chosen(fields))

    def sample(self, position: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """One position from 0 to len as a plain dict."""
        row = position if self._plain else int(self._order.rows(np.array([position]))[0])
        return self._one(row, self._fields if fields is None else self._chosen(fields))

    def advise(self, positions: Any, fields: Sequence[str] | None = None) -> None:
        """Have the storage begin to fetch what a read of these positions needs; waits for nothing and never fails."""
        with suppress(ShardexError):
            self._rows.advise(self._order.rows(normalise(positions, self._length)), self._chosen(fields))

    @overload
    def __getitem__(self, where: slice | Sequence[Any] | NDArray[Any]) -> Dataset[T_co]: ...
    @overload
    def __getitem__(self, where: SupportsIndex) -> T_co: ...
    def __getitem__(self, where: Any) -> Any:
        """A sample for an integer, a view for anything else."""
        if type(where) is int and 0 <= where < self._length and self._direct is not None:
            return self._make(self._direct(where, self._fields))
        try:
            position = operator.index(where)
        except TypeError:
            return self._view(where)
        length = self._length
        if not -length <= position < length:
            raise RowError(f"expected a position from {-length} to {length - 1}, got {where}")
        return self._make(self.sample(position % length))

    def get(self, key: Any) -> T_co:
        """The sample that has this key; an error if none has.

        >>> import shardex as sx
        >>> import tempfile; from shardex import create
        >>> with create(tempfile.mkdtemp() + "/d", {"id": str, "x": int}, key="id") as out:
        ...     out.append(id="a", x=1); out.append(id="b", x=2)
        >>> sx.open(out.path).get("b")
        DictSample(id='b', x=2)
        """
        keys = self._keys()
        whole = self._plain and self._length == len(self._rows)
        return self._make(self.sample(keys.row_of(key) if whole else int(self.rows_of([key])[0])))  # type: ignore[no-any-return]

    def rows_of(self, keys: Any) -> Integers:
        """The position of each key, in this view."""
        rows = self._keys().rows_of(keys)
        if self._plain and self._length == len(self._rows):
            return rows
        there = positions_of(self._order, rows)
        if len(lost := np.flatnonzero(there < 0)):
            raise UnknownKeyError(f"expected keys of samples in this view, got {keys[int(lost[0])]!r:.200}")
        return there

    def _keys(self) -> Keyed:
        if (found := self._rows.key_lookup) is None:
            raise SchemaError("expected a dataset that was made with key=, got one without keys")
        return found

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """A whole batch at once: what a torch `DataLoader` asks for when it can. It stacks only dicts by itself."""
        return Batch(self.read(normalise(positions, len(self))))

    def __iter__(self) -> Iterator[T_co]:
        for columns in self.chunks():
            yield from map(self._make, columns.to_samples())

    def _chosen(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None or self._fields is None:
            return self._fields if fields is None else fields
        return check_fields(self._fields, fields)

    # -- what it is ----------------------------------------------------------------------------------------

    @property
    def sample_type(self) -> type[T_co]:
        """What samples are: a class made by `packable`, or `DictSample`."""
        return sample_type_of(self._rows, self._fields)

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        features = self._rows.features
        return features if self._fields is None else features.select(self._fields)

    @property
    def fields(self) -> list[str]:
        """The names of the fields."""
        return list(self.features) if self._fields is None else list(self._fields)

    @property
    def order(self) -> Order:
        """From positions of this view to rows of what lies below."""
        return self._order

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """The fields that `select` chose; none if all are there."""
        return self._fields

    @property
    def rows(self) -> AbstractRows:
        """What lies below this view."""
        return self._rows

    def shards(self, positions: Any) -> list[str]:
        """The file that the sample at each position lies in; an empty text where that is not known."""
        return self._rows.shards(self._order.rows(normalise(positions, self._length)))

    @property
    def in_python(self) -> bool:
        """Whether reading mostly holds the interpreter, so that processes make it faster and threads do not."""
        return self._rows.in_python

    @property
    def fingerprint(self) -> str:
        """Names the data and the view of it, whichever fields are chosen; the same in every process.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "y": 2}, {"x": 3, "y": 4}])
        >>> ds.fingerprint == ds.select("x").fingerprint, ds.fingerprint == ds[::-1].fingerprint
        (True, False)
        """
        return digest(self._rows.fingerprint, self._order)

    def __repr__(self) -> str:
        try:
            fields = str(self.features)
        except ShardexError as error:  # a look at a dataset must not fail
            fields = f"unknown fields, {error}"
        typed = f"[{self._rows.sample_type.__name__}]" if isinstance(self._rows, TypedRows) and not self._fields else ""
        return f"Dataset{typed}({len(self)} samples: {fields}{_origin(innermost_rows(self._rows))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._rows, self._order, self._fields)

    # -- views ---------------------------------------------------------------------------------------------

    def through(self, order: Order) -> Dataset[T_co]:
        """The samples at the positions that an order of this dataset's positions gives."""
        return Dataset(self._rows, chain(order, self._order), self._fields)

    def _view(self, where: Any) -> Dataset[T_co]:
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            return self.through(Span(len(range(start, stop, step)), start, step))
        if isinstance(where, str):
            raise SchemaError(f"expected positions, got {where!r} (fields are chosen by select)")
        return self.through(Pick(normalise(where, len(self))))

    def select(self, *fields: str) -> Dataset:
        """Only these fields, in this order; samples are untyped then."""
        return Dataset(self._rows, self._order, check_fields(self.fields, fields))

    def take(self, count: int) -> Dataset[T_co]:
        """The first `count` samples."""
        return self._view(slice(0, max(0, whole_number("count", count))))

    def skip(self, count: int) -> Dataset[T_co]:
        """All but the first `count` samples."""
        return self._view(slice(max(0, whole_number("count", count)), None))

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Dataset[T_co]:
        """All samples in an order that seed and epoch choose; computed, not stored.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k} for k in range(5)]).shuffle(seed=3)
        >>> sorted(s.x for s in ds)
        [0, 1, 2, 3, 4]
        """
        return self.through(Shuffle(len(self), whole_number("seed", seed), whole_number("epoch", epoch)))

    def split(self, *shares: float) -> tuple[Dataset[T_co], ...]:
        """Cut into consecutive parts with these shares of the samples; what they leave open is one more part.

        >>> import shardex as sx
        >>> [len(part) for part in sx.open([{"x": k} for k in range(10)]).split(0.8)]
        [8, 2]
        """
        return tuple(self[a:b] for a, b in pairwise(split_bounds(len(self), shares)))

    # -- samples as something else -------------------------------------------------------------------------

    def as_type(self, sample_type: type[U]) -> Dataset[U]:
        """The samples as another type: by the shortest way through registered lenses, or by the fields it has.

        >>> import shardex as sx
        >>> from shardex import packable
        >>> @packable
        ... class Named:
        ...     name: str
        >>> sx.open([{"x": k, "name": f"n{k}"} for k in range(10)]).as_type(Named)[3]
        Named(name='n3')
        """
        return self._over(typed_view(self._rows, self._fields, sample_type))

    def view(self, lens: Lens[Any, U]) -> Dataset[U]:
        """The samples as a lens shows them."""
        return self._over(lens_view(self._rows, self._fields, lens))

    @overload
    def map(self, function: Callable[[T_co], Mapping[str, Any]]) -> Dataset: ...
    @overload
    def map(self, function: Callable[[T_co], U]) -> Dataset[U]: ...
    def map(self, function: Callable[[T_co], Any]) -> Dataset[Any]:
        """What a function makes of each sample, when it is read; it returns a mapping of fields, or a typed sample.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(5)]).map(lambda s: {"double": 2 * s.x}).read([1, 3])["double"]
        array([2, 6])
        """
        check_callable(function)
        return self._over(MappedRows(self._rows, function, self._fields))

    def filter(self, predicate: Callable[[T_co], object], *, progress: bool | None = None) -> Dataset[T_co]:
        """The samples for which a function is true, as a view; it is asked now, once for each (`where` asks SQL)."""
        check_callable(predicate)
        quiet = None if progress is None else not progress
        samples = Bar(self, total=len(self), desc="filter", unit=" samples", disable=quiet, leave=False)
        return self.through(Pick(np.flatnonzero([bool(predicate(sample)) for sample in samples])))

    def _over(self, rows: AbstractRows) -> Dataset[Any]:
        """These rows, which have the numbers of those below, in the order of this view."""
        return Dataset(rows, self._order, self._fields if rows is self._rows else None)

    # -- SQL -----------------------------------------------------------------------------------------------

    def where(
        self, text: str, params: Params = None, *, timeout: float | None = None, memory_limit: str | None = None
    ) -> Dataset[T_co]:
        """The samples for which a condition holds, as a view.

        It is what stands after WHERE, in the SQL of DuckDB: names are those of the fields, and `_row` is the number
        of the sample. Values go into `params`, a list for each ``?`` or a dict for each ``$name``.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
        >>> [sample.x for sample in ds.where("x > ? AND name <> 'n8'", [6])]
        [7, 9]
        """
        query, limits = condition(text, self._askable), Limits(timeout, memory_limit)
        return self.through(Pick(self._sight.matching(query, params, limits)))

    def sql(
        self, text: str, params: Params = None, *, timeout: float | None = None, memory_limit: str | None = None
    ) -> pa.Table:
        """The answer to a SELECT over the table `ds`, which is this dataset; there is nothing else to select from.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "kind": "a"}, {"x": 2, "kind": "b"}, {"x": 5, "kind": "a"}])
        >>> ds.sql("SELECT kind, max(x) AS most FROM ds GROUP BY kind ORDER BY kind").to_pylist()
        [{'kind': 'a', 'most': 5}, {'kind': 'b', 'most': 2}]
        """
        return select(text, self._askable).answer(self, params, Limits(timeout, memory_limit))

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Whole fields in the order of this view, as SQL sees them."""
        return self._sight.sql_columns(names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Which samples have a value for a field."""
        return self._sight.present(name)

    @property
    def extracted(self) -> Features:
        """What SQL can ask besides the fields: what was taken out of the samples when they were indexed."""
        return self._rows.extracted

    @property
    def _askable(self) -> Features:
        return Features({**self.extracted, **self.features})

    @property
    def _sight(self) -> SqlView:
        return SqlView(self, self._rows, self._order)

    # -- passes --------------------------------------------------------------------------------------------

    def ordered(self, batch_size: int, *, drop_last: bool = False) -> Iterator[Batch[T_co]]:
        """Batches in order."""
        return self._batches(Span(len(self)), whole_number("batch_size", batch_size, 1), drop_last)

    def shuffled(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, drop_last: bool = False
    ) -> Iterator[Batch[T_co]]:
        """Batches of all samples in an order that seed and epoch choose: a full shuffle, not a buffer."""
        return self._batches(Shuffle(len(self), seed, epoch), whole_number("batch_size", batch_size, 1), drop_last)

    def _batches(self, order: Order, size: int, drop_last: bool) -> Iterator[Batch[T_co]]:
        for columns in self.chunks(order, size):
            for part in columns.split(size):
                if len(part) == size or not drop_last:
                    yield Batch(part, self.sample_type)

    def chunks(self, order: Order | None = None, size: int = 1) -> Iterator[Columns]:
        """All samples (in an order of positions) as columns, some at a time, in multiples of `size`."""
        return read_chunks(self, Span(len(self)) if order is None else order, size)

    # -- other tools ---------------------------------------------------------------------------------------

    def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """All samples as a `pyarrow.Table`; nothing is copied of fields that lie as Arrow columns already."""
        return stream.table(self if fields is None else self.select(*fields))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """All samples as an Arrow stream, for tools that read one: polars, pandas, DuckDB, pyarrow."""
        return stream.capsule(self, requested_schema)

    def to_huggingface(self) -> Any:
        """All samples as a `datasets.Dataset`; nothing is written."""
        return to_huggingface(self)

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """All samples as a `pandas.DataFrame`."""
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtraError("pandas", "pandas", "to_pandas") from None
        return self.to_arrow(fields).to_pandas()


def _origin(rows: AbstractRows) -> str:
    if isinstance(rows, ShardRows):
        what = display_name(rows.opened.what) if isinstance(rows.opened.what, str) else f"{len(rows.opened.what)} files"
        count = len(rows.shard_names())
        return f" - {rows.opened.format}, {count} shard{'s' * (count != 1)}, {what}"
    if isinstance(rows, Dataset):
        return ""
    return f" - {type(rows.rows if isinstance(rows, AdaptedRows) else rows).__name__}"
