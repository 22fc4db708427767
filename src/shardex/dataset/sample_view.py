"""`SampleView`: rows in an order, with a choice of fields, and the ways to read them.

In: positions, keys, names of fields, queries. Out: samples, batches, columns, tables. A read maps positions to row
numbers by the order; the rows return columns; the columns become a sample, a batch or a table. `SubsetView` and
`Dataset` add the methods that make other views.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain as chain_iterables
from typing import TYPE_CHECKING, Any, Generic, SupportsIndex, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex import dataset as room
from shardex.columns import check_fields
from shardex.dataset.views import DECODED_BYTES, DataIterator, check_column, read_chunks, sample_chunks, source_rows
from shardex.errors import ArgumentError, RowError, SchemaError, ShardexError, UnknownKeyError
from shardex.features import Features
from shardex.formats import ShardRows
from shardex.kernel import Columns, Integers, Masked, digest
from shardex.layers import Layer, MediaRows, sample_type_of
from shardex.order import Order, Pick, Shuffle, Span, chain, positions_of
from shardex.rows import AbstractRows, AdaptedRows, Keyed, Rows, are_positions, normalise, slice_indices, whole_number
from shardex.samples import Batch, DictSample, T_co

if TYPE_CHECKING:  # a torch DataLoader takes any dataset with these methods, but type checkers want this base class
    from torch.utils.data import Dataset as TorchDataset

    from shardex.dataset.dataset import Dataset
    from shardex.dataset.sql import Params
    from shardex.jobs import LeftOut

    class SampleSequence(TorchDataset[T_co], Generic[T_co]):
        """Generic also where torch is not installed, and its class unknown."""
else:
    SampleSequence = Generic


class SampleView(AbstractRows, SampleSequence[T_co]):
    """Rows in an order, with a choice of fields: samples by position, key and field, batches, SQL, tables."""

    __slots__ = (
        "_direct",
        "_fields",
        "_identity",
        "_length",
        "_make",
        "_notes",
        "_order",
        "_read_sample",
        "_rows",
        "left_out",
    )

    def __init__(
        self, rows: Rows, order: Order | None = None, fields: Sequence[str] | None = None, notes: Sequence[str] = ()
    ) -> None:
        self._rows = rows if isinstance(rows, AbstractRows) else AdaptedRows(rows)
        self._order: Order = Span(len(rows)) if order is None else order
        self._fields = None if fields is None else tuple(fields)
        self._notes = tuple(notes)
        self.left_out: Sequence[LeftOut] = ()
        """After `write` with ``on_error="skip"``: the samples of the source that it has left out."""
        self._length = len(self._order)
        self._identity = self._order == Span(self._length)
        self._read_sample = self._rows.sample
        self._direct = self._read_sample if self._identity else None
        self._make: Any = rows.make if fields is None and isinstance(rows, Layer) else DictSample

    @abstractmethod
    def _derived(
        self, rows: AbstractRows, order: Order | None, fields: Sequence[str] | None, notes: Sequence[str]
    ) -> Dataset[Any]:
        """Return a dataset; implemented by the subclass, which this module does not import."""

    def __len__(self) -> int:
        return self._length

    # -- reading ----------------------------------------------------------------------------------------------

    def read(self, positions: Any, fields: Sequence[str] | None = None) -> Columns:
        """Return the columns of many positions at once: the fast way to read.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(5)]).read([3, -1])["x"]
        array([3, 4])
        """
        if not are_positions(positions, self._length):
            positions = normalise(positions, self._length)
        return self._read(positions, self._chosen(fields))

    def _read(self, positions: Integers, fields: Sequence[str] | None) -> Columns:
        """Read positions that are known to be valid."""
        return self._rows.read(positions if self._identity else self._order.rows(positions), fields)

    def sample(self, position: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the sample at a position as a plain dict."""
        if not 0 <= position < self._length:
            position = int(normalise([position], self._length)[0])
        row = position if self._identity else self._order.row(position)
        return self._read_sample(row, self._fields if fields is None else self._chosen(fields))

    def advise(self, positions: Any, fields: Sequence[str] | None = None) -> None:
        """Start fetching what a read of these positions needs, without waiting; never fails."""
        with suppress(ShardexError):
            self._rows.advise(self._order.rows(normalise(positions, self._length)), self._chosen(fields))

    @overload
    def __getitem__(self, where: str) -> Any: ...
    @overload
    def __getitem__(self, where: slice | Sequence[Any] | NDArray[Any]) -> Dataset[T_co]: ...
    @overload
    def __getitem__(self, where: SupportsIndex) -> T_co: ...
    def __getitem__(self, where: Any) -> Any:
        """Return a sample for an integer, a view for a slice, a list of positions or a mask, a column for a field."""
        if type(where) is int and 0 <= where < self._length and self._direct is not None:
            return self._make(self._direct(where, self._fields))
        if isinstance(where, str):
            return self._column(where)
        try:
            position = operator.index(where)
        except TypeError:
            return self._view(where)
        length = self._length
        if not -length <= position < length:
            raise RowError(f"expected a position from {-length} to {length - 1}, got {where}")
        return self._make(self.sample(position % length))

    def _column(self, name: str) -> Any:
        check_column(self, name)
        columns = self.read(slice(None), [name])
        column = columns[name]
        return column if isinstance(column, Masked) else Batch(columns)[name]

    def get(self, key: Any, *default: Any) -> T_co:
        """Return the sample with this key; raise an error if there is none.

        The key is the field that was chosen with ``key=``, `__key__` in tars, and `path` in folders of media.

        >>> import tempfile, shardex as sx
        >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"id": "a", "x": 1}, {"id": "b", "x": 2}], key="id")
        >>> ds.get("b")
        DictSample(id='b', x=2)
        """
        if default:
            raise ArgumentError(
                f"expected one key, got {key!r} and a default: a key that is not there raises KeyError, catch it"
            )
        keys = self._keys()
        whole = self._identity and self._length == len(self._rows)
        return self._make(self.sample(keys.row_of(key) if whole else int(self.rows_of([key])[0])))  # type: ignore[no-any-return]

    def rows_of(self, keys: Any) -> Integers:
        """Return the position of each key in this view; raise an error for a key that is not in it."""
        rows = self._keys().rows_of(keys)
        if self._identity and self._length == len(self._rows):
            return rows
        there = positions_of(self._order, rows)
        if len(lost := np.flatnonzero(there < 0)):
            raise UnknownKeyError(f"expected keys of samples in this view, got {keys[int(lost[0])]!r:.200}")
        return there

    def _keys(self) -> Keyed:
        if (found := self._rows.key_lookup) is None:
            raise SchemaError(
                "expected a dataset that was made with key=, a tar or a folder of media, got one without keys"
            )
        return found

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """Return many samples as one batch; a torch `DataLoader` calls this instead of reading sample by sample."""
        return Batch(self.read(normalise(positions, len(self))), DictSample, self)

    def __iter__(self) -> Iterator[T_co]:
        samples = chain_iterables.from_iterable(map(self._make, some) for some in sample_chunks(self))
        return DataIterator(samples, lambda: f"samples of {self}")

    def _chosen(self, fields: Sequence[str] | None) -> Sequence[str] | None:
        if fields is None or self._fields is None:
            return self._fields if fields is None else fields
        return check_fields(self._fields, fields)

    # -- batches ----------------------------------------------------------------------------------------------

    def ordered(self, batch_size: int, *, drop_last: bool = False) -> Iterator[Batch[T_co]]:
        """Yield batches of all samples in order.

        >>> import shardex as sx
        >>> [batch.x.tolist() for batch in sx.open([{"x": k} for k in range(5)]).ordered(2)]
        [[0, 1], [2, 3], [4]]
        """
        return self._batches(Span(len(self)), batch_size, drop_last, "in order")

    def shuffled(
        self, batch_size: int, *, seed: int = 0, epoch: int = 0, drop_last: bool = False
    ) -> Iterator[Batch[T_co]]:
        """Yield batches of all samples in random order, chosen by seed and epoch: a full shuffle, without a buffer."""
        return self._batches(Shuffle(len(self), seed, epoch), batch_size, drop_last, "shuffled")

    def _batches(self, order: Order, batch_size: int, drop_last: bool, how: str) -> Iterator[Batch[T_co]]:
        size = whole_number("batch_size", batch_size, 1)
        parts = (part for columns in self.chunks(order, size) for part in columns.split(size))
        batches: Iterator[Batch[T_co]] = (
            Batch(part, self.sample_type, self) for part in parts if len(part) == size or not drop_last
        )
        return DataIterator(batches, lambda: f"batches of {size} samples, {how}, of {self}")

    def chunks(self, order: Order | None = None, size: int = 1) -> Iterator[Columns]:
        """Yield all samples (or those of an order of positions) as columns, in multiples of `size` samples."""
        whole, fields = Span(len(self)) if order is None else order, self._chosen(None)
        most = {"most": DECODED_BYTES} if isinstance(self._rows, MediaRows) else {}
        return read_chunks(lambda positions: self._read(positions, fields), whole, size, **most)

    # -- properties -------------------------------------------------------------------------------------------

    @property
    def sample_type(self) -> type[T_co]:
        """Type of the samples: a class made by `packable`, or `DictSample`."""
        return sample_type_of(self._rows, self._fields)

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        features = self._rows.features
        return features if self._fields is None else features.select(self._fields)

    @property
    def fields(self) -> list[str]:
        """Names of the fields."""
        return list(self.features) if self._fields is None else list(self._fields)

    @property
    def order(self) -> Order:
        """Maps positions of this view to numbers of the rows under it."""
        return self._order

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """Names of the fields that `select` chose; None if it was not used."""
        return self._fields

    @property
    def notes(self) -> tuple[str, ...]:
        """What was done to get this view, in words for its `repr`."""
        return self._notes

    @property
    def rows(self) -> AbstractRows:
        """The rows that this dataset is a view of."""
        return self._rows

    def shards(self, positions: Any) -> list[str]:
        """Return the path of the file that holds the sample at each position; empty for data that is in no file."""
        return self._rows.shards(self._order.rows(normalise(positions, self._length)))

    @property
    def in_python(self) -> bool:
        """True if reading holds the GIL most of the time: processes speed it up, threads do not."""
        return self._rows.in_python

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the data, its names and the order, not with the chosen fields.

        It is equal in every process. Of a function of `map` only the name counts.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "y": 2}, {"x": 3, "y": 4}])
        >>> ds.fingerprint == ds.select("x").fingerprint, ds.fingerprint == ds[::-1].fingerprint
        (True, False)
        """
        return digest(self._rows.fingerprint, self._order)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was stored with the data about all of it: for tokens, the tokenizer and how they were made.

        >>> import tempfile, shardex as sx
        >>> schema, path = {"tokens": sx.Array("uint16", (None,))}, tempfile.mkdtemp() + "/t"
        >>> sx.write(path, [{"tokens": [1, 2]}], schema, format="tokens", metadata={"eos": 7}).metadata
        {'eos': 7}
        """
        return self._rows.metadata

    @property
    def version(self) -> int | None:
        """The version of a native dataset that was opened, also for its views; None for all other data.

        >>> import tempfile, shardex as sx; path = tempfile.mkdtemp() + "/d"
        >>> ds = sx.write(path, [{"x": 1}]); more = sx.write(path, [{"x": 2}], mode="append")
        >>> ds.version, more.version, more.shuffle(0).version, sx.open([{"x": 1}]).version
        (1, 2, 2, None)
        """
        rows = source_rows(self._rows)
        return rows.pinned.get("version") if isinstance(rows, ShardRows) else None

    # -- other orders -----------------------------------------------------------------------------------------

    def through(self, order: Order, note: str = "") -> Dataset[T_co]:
        """Return a view: position p of it is position ``order.rows(p)`` of this dataset; `note` is for its `repr`."""
        notes = (*self._notes, note) if note else self._notes
        return self._derived(self._rows, chain(order, self._order), self._fields, notes)

    def fixed(self) -> Dataset[T_co]:
        """Return this view in its present order; draws and random offsets are then the same in every epoch of a run.

        Views that are chosen by the values of samples need that: values at other positions would differ.
        """
        order = self._order
        if order.in_epoch(1) is not order:
            order = Pick(order.rows(np.arange(len(order))))
        return self._derived(self._rows, order, self._fields, self._notes)

    def _view(self, where: Any) -> Dataset[T_co]:
        if isinstance(where, slice):
            start, stop, step = slice_indices(where, len(self))
            return self.through(Span(len(range(start, stop, step)), start, step), "" if step == 1 else f"step {step}")
        if isinstance(where, list | tuple) and where and isinstance(where[0], str):
            raise ArgumentError(f"expected positions, got names; choose fields with select({list(where)!r:.200})")
        return self.through(Pick(normalise(where, len(self))))

    # -- whole columns -------------------------------------------------------------------------------------

    def sql(
        self, text: str, params: Params = None, *, timeout: float | None = None, memory_limit: str | None = None
    ) -> pa.Table:
        """Return the result of a SELECT over this dataset, which is the table `ds`, as a `pyarrow.Table`.

        The query can read nothing else: no files, no other tables, no variables. Options are those of `where`.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "kind": "a"}, {"x": 2, "kind": "b"}, {"x": 5, "kind": "a"}])
        >>> ds.sql("SELECT kind, max(x) AS most FROM ds GROUP BY kind ORDER BY kind").to_pylist()
        [{'kind': 'a', 'most': 5}, {'kind': 'b', 'most': 2}]
        """
        limits = room.sql.Limits(timeout, memory_limit)
        return room.sql.select(text, self._sql_features).answer(self, params, limits)

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields (or extracted columns) in the order of this view, as SQL sees them."""
        return room.sql.view_columns(self, names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has a value for a field."""
        return room.sql.view_present(self, name)

    def lengths(self, name: str) -> Integers:
        """Return the length of the array of a field in each sample, 0 for a missing one.

        Where lengths or offsets are stored (token files, native datasets, Arrow), the arrays are not read.

        >>> import shardex as sx
        >>> sx.open([{"tokens": [1, 2, 3]}, {"tokens": [4]}]).lengths("tokens")
        array([3, 1])
        """
        check_fields(self.fields, [name])
        return room.sql.view_lengths(self, name)

    @property
    def extracted(self) -> Features:
        """Columns that only SQL sees: values extracted from the samples when they were indexed (`index`)."""
        return self._rows.extracted

    @property
    def _sql_features(self) -> Features:
        fields = self.features
        return Features({**fields, **{name: one for name, one in self.extracted.items() if name not in fields}})
