"""`Dataset`: rows, an order and a choice of fields. `open` makes one; every view is another one over the same rows.

A read maps positions to row numbers by the order; the rows return columns; the columns become a sample, a batch or a
table. A dataset is itself rows, so datasets can be made of datasets (`combine.py`, `mix.py`).
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain as chain_iterables
from typing import TYPE_CHECKING, Any, Generic, Literal, SupportsIndex, TypeVar, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.dataset import to_arrow as stream
from shardex.dataset.combined_rows import concat_rows
from shardex.dataset.dataset_dict import DatasetDict
from shardex.dataset.huggingface import to_huggingface
from shardex.dataset.layers import Layer, RenamedRows, sample_type_of, source_rows
from shardex.dataset.media_rows import MediaRows, decode_view, over_stored
from shardex.dataset.pack import Strategy, packs_of
from shardex.dataset.read_size import DECODED_BYTES, read_chunks, sample_chunks
from shardex.dataset.show import overview, show
from shardex.dataset.sliding import Missing, sliding_rows
from shardex.dataset.split_views import By, balanced_order, split_view, weighted_order
from shardex.dataset.sql import (
    Limits,
    Params,
    condition,
    select,
    view_columns,
    view_lengths,
    view_matching,
    view_present,
)
from shardex.dataset.stacked_rows import StackedRows
from shardex.dataset.token_stream import Labels
from shardex.dataset.typed_views import check_callable, lens_view, mapped_view, typed_view
from shardex.dataset.views import (
    PLUMBING,
    DataIterator,
    check_column,
    description,
    field_names,
    function_name,
    new_names,
    note,
    sorted_positions,
)
from shardex.dataset.windows import windows_of
from shardex.display import Figure
from shardex.errors import ArgumentError, RowError, SchemaError, ShardexError, UnknownKeyError
from shardex.features import Feature, Features, check_fields
from shardex.formats import ShardRows
from shardex.jobs import LeftOut
from shardex.kernel import Columns, Integers, Masked, digest
from shardex.order import Order, Pick, Shuffle, Span, chain, positions_of
from shardex.other_names import DATASET, MAP, missing_attribute, refuse
from shardex.progress import Bar
from shardex.rows import (
    AbstractRows,
    AdaptedRows,
    Keyed,
    Rows,
    are_positions,
    normalise,
    slice_indices,
    whole_number,
)
from shardex.samples import Batch, DictSample, Lens, T_co

U = TypeVar("U")
ColumnsByName = Mapping[str, Any] | Columns

if TYPE_CHECKING:  # a torch DataLoader takes any dataset with these methods, but type checkers want this base class
    from torch.utils.data import Dataset as TorchDataset

    class SampleSequence(TorchDataset[T_co], Generic[T_co]):
        """Generic also where torch is not installed, and its class unknown."""
else:
    SampleSequence = Generic


class Dataset(AbstractRows, SampleSequence[T_co]):
    """A sequence of samples. An integer gives a sample; a slice, a list or a mask gives a view, which copies nothing.

    The name of a field gives its column: the values of all samples, stacked if they are numbers or arrays of one shape.

    >>> import shardex as sx
    >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
    >>> ds[3]
    DictSample(x=3, name='n3')
    >>> ds[2:8:2].select("x").read([0, 2])["x"]
    array([2, 6])
    >>> ds["name"][:3]
    ['n0', 'n1', 'n2']
    >>> [batch.x.tolist() for batch in ds.where("x < 6").ordered(4)]
    [[0, 1, 2, 3], [4, 5]]
    """

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

    # -- reading -------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

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

    def head(self, count: int = 5) -> list[T_co]:
        """Return the first samples as a list; `take` returns a view of them.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(10)]).head(2)
        [DictSample(x=0), DictSample(x=1)]
        """
        return list(self.take(count))

    def get(self, key: Any) -> T_co:
        """Return the sample with this key; raise an error if there is none.

        >>> import tempfile, shardex as sx
        >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"id": "a", "x": 1}, {"id": "b", "x": 2}], key="id")
        >>> ds.get("b")
        DictSample(id='b', x=2)
        """
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
            raise SchemaError("expected a dataset that was made with key=, got one without keys")
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

    # -- properties --------------------------------------------------------------------------------------

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

    def __repr__(self) -> str:
        return description(self)

    def _repr_html_(self) -> str:
        return overview(self)

    def show(self, n: int = 16, *, path: str | os.PathLike[str] | None = None) -> Figure:
        """Return a figure of the first samples, which a notebook shows; with `path` also write it to a file.

        Images, first frames of videos, plots of arrays and audio, names of classes, and text, each bounded; at most 400
        samples. ``ds.shuffle(0).show()`` shows random samples, ``ds.select("image", "label").show()`` some fields. The
        name of the file ends in ``.html`` or ``.png``; images and PNG files need Pillow.

        >>> import shardex as sx, tempfile
        >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
        >>> len(ds.show(4, path=tempfile.mkdtemp() + "/some.html"))
        4
        """
        return show(self, n, path)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in PLUMBING]

    def _ipython_key_completions_(self) -> list[str]:
        return self.fields

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, DATASET)

    def __reduce__(self) -> tuple[Any, ...]:
        return Dataset, (self._rows, self._order, self._fields, self._notes)

    # -- views ---------------------------------------------------------------------------------------------

    def through(self, order: Order, note: str = "") -> Dataset[T_co]:
        """Return a view: position p of it is position ``order.rows(p)`` of this dataset; `note` is for its `repr`."""
        notes = (*self._notes, note) if note else self._notes
        return Dataset(self._rows, chain(order, self._order), self._fields, notes)

    def fixed(self) -> Dataset[T_co]:
        """Return this view in its present order; draws and random offsets are then the same in every epoch of a run.

        Views that are chosen by the values of samples need that: values at other positions would differ.
        """
        order = self._order
        if order.in_epoch(1) is order:
            return self
        return Dataset(self._rows, Pick(order.rows(np.arange(len(order)))), self._fields, self._notes)

    def _view(self, where: Any) -> Dataset[T_co]:
        if isinstance(where, slice):
            start, stop, step = slice_indices(where, len(self))
            return self.through(Span(len(range(start, stop, step)), start, step), "" if step == 1 else f"step {step}")
        if isinstance(where, list | tuple) and where and isinstance(where[0], str):
            raise ArgumentError(f"expected positions, got names; choose fields with select({list(where)!r:.200})")
        return self.through(Pick(normalise(where, len(self))))

    def select(self, *fields: str | Sequence[str]) -> Dataset:
        """Return a view of these fields, in this order; its samples are `DictSample`.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": 1, "y": 2, "z": 3}])
        >>> ds.select("z", "x")[0], ds.select(["y"])[0]
        (DictSample(z=3, x=1), DictSample(y=2))
        """
        return Dataset(self._rows, self._order, check_fields(self.fields, field_names(fields)), self._notes)

    def drop(self, *fields: str | Sequence[str]) -> Dataset:
        """Return a view without these fields.

        >>> import shardex as sx
        >>> sx.open([{"x": 1, "y": 2, "z": 3}]).drop("x", "z")[0]
        DictSample(y=2)
        """
        out = check_fields(known := self.fields, field_names(fields))
        return self.select([name for name in known if name not in out])

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> Dataset:
        """Return a view with other names for some fields: a dict of old and new names, or ``old="new"``.

        >>> import shardex as sx
        >>> sx.open([{"img": 1, "y": 2}]).rename(img="image")[0]
        DictSample(image=1, y=2)
        """
        renamed = new_names(self.fields, {**(names or {}), **more})
        return self._over(over_stored(self._rows, lambda rows: RenamedRows(rows, renamed), renamed))

    def stack(self, names: Mapping[str, Sequence[str]] | None = None, /, **more: Sequence[str]) -> Dataset:
        """Return a view in which fields of numbers, or of arrays of one shape, are one array under a new name.

        Missing values are NaN. The dtype is one that holds those of all fields, as numpy chooses it.

        >>> import shardex as sx
        >>> sx.open([{"low": 1.5, "high": 3, "day": "mon"}]).stack(price=["low", "high"])["price"]
        array([[1.5, 3. ]])
        """
        groups, fields = {**(names or {}), **more}, self.fields
        return self._over(over_stored(self._rows, lambda rows: StackedRows(rows, fields, groups)))

    def sort(self, *fields: str | Sequence[str], descending: bool = False) -> Dataset[T_co]:
        """Return a view in the order of the values of a field, or of several; samples with equal values stay in order.

        None and NaN come last. The columns are read now; the view stores the row numbers.

        >>> import shardex as sx
        >>> sx.open([{"x": 2}, {"x": 3}, {"x": 1}]).sort("x", descending=True)["x"]
        array([3, 2, 1])
        """
        order = Pick(sorted_positions(self, names := field_names(fields), descending))
        return self.fixed().through(order, f"sorted by {', '.join(names)}{', descending' * bool(descending)}")

    def __add__(self, other: Dataset[T_co]) -> Dataset[T_co]:  # type: ignore[override]
        """Return the samples of this dataset, then those of another with the same fields, as `concat` does."""
        return Dataset(concat_rows([self, other])) if isinstance(other, Dataset) else NotImplemented

    def take(self, count: int) -> Dataset[T_co]:
        """Return a view of the first `count` samples."""
        return self._view(slice(0, max(0, whole_number("count", count))))

    def skip(self, count: int) -> Dataset[T_co]:
        """Return a view of all but the first `count` samples."""
        return self._view(slice(max(0, whole_number("count", count)), None))

    def shuffle(self, seed: int = 0, epoch: int = 0) -> Dataset[T_co]:
        """Return a view of all samples in random order, chosen by seed and epoch; the order takes no memory.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k} for k in range(5)]).shuffle(seed=3)
        >>> sorted(s.x for s in ds)
        [0, 1, 2, 3, 4]
        """
        return self.through(Shuffle(len(self), whole_number("seed", seed), whole_number("epoch", epoch)), "shuffled")

    @overload
    def split(
        self,
        shares: Mapping[str, float],
        /,
        *,
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
    ) -> DatasetDict: ...
    @overload
    def split(self, *, time: str, at: Mapping[str, Any]) -> DatasetDict: ...
    @overload
    def split(
        self,
        *shares: float | Sequence[float],
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
        at: Any = None,
    ) -> tuple[Dataset[T_co], ...]: ...
    def split(
        self,
        *shares: Any,
        seed: int | None = None,
        stratify: By | None = None,
        group: By | None = None,
        time: str | None = None,
        within: By | None = None,
        at: Any = None,
    ) -> Any:
        """Divide into parts with these shares of the samples; the remaining share is one more part.

        Parts are consecutive; with a `seed` the samples are shuffled first. Shares with names give a `DatasetDict`.

        - `stratify` is a field: every part has its share of the samples with each value, exact to one sample.
        - `group` is a field: samples with one value of it are all in one part. One group after another, large first,
          goes to the part that it brings nearest to its share, or with `stratify` to its share of each value. Sizes are
          near to the shares, not exact. The seed decides among groups of one size. Every part gets at least one group.
        - `time` is a field: the parts follow one another in time, and no time is in two of them. Samples are sorted by
          it. `within` is a field whose groups are cut each by itself, so that every part has the same share of each
          group's time. Instead of shares, `at` can give times, from which on samples are in the next part:
          ``at="2024-01-01"``, a list, or a dict with the begin of each part (None for the first). A time of `at` needs
          a zone if those of the field have one, and must have none otherwise.

        Only these fields are read, now; the parts store row numbers. Instead of a field, `stratify`, `group` and
        `within` take a list of fields, or an array with a value for each sample.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "label": "ab"[k % 5 == 0]} for k in range(10)])
        >>> [len(part) for part in ds.split(0.8)], [len(part) for part in ds.split([0.5, 0.3, 0.2], seed=0)]
        ([8, 2], [5, 3, 2])
        >>> ds.split({"train": 0.8, "test": 0.2}, seed=0).num_rows
        {'train': 8, 'test': 2}
        >>> [part["label"] for part in ds.split(0.5, stratify="label")]
        [['b', 'a', 'a', 'a', 'a'], ['b', 'a', 'a', 'a', 'a']]
        >>> [part["x"].tolist() for part in ds.split(time="x", at=[3, 8])]
        [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]
        """
        by: Any = {"stratify": stratify, "group": group, "time": time, "within": within}
        return split_view(self, shares, seed=seed, at=at, **by)

    # -- sampling ------------------------------------------------------------------------------------------

    def balanced(self, by: By, length: int | None = None, *, seed: int = 0) -> Dataset[T_co]:
        """Return a view that draws equally often from every class; `by` is a field, several, or an array of classes.

        It has `length` samples (default: as many as this dataset), in random order; the number of samples of a class is
        exact to one. Every epoch of a `Loader` is another draw. Inside a class nothing is drawn again before all its
        samples were drawn, over all epochs, so samples of small classes are repeated, those of large ones take turns.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "label": int(k == 0)} for k in range(100)]).balanced("label", 10)
        >>> sorted(ds["label"].tolist())
        [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
        """
        return self.fixed().through(*balanced_order(self, by, length, seed))

    def weighted(
        self,
        weights: str | Sequence[float] | NDArray[Any],
        length: int | None = None,
        *,
        seed: int = 0,
        replacement: bool = True,
    ) -> Dataset[T_co]:
        """Return a view that draws samples by weights: a field, or a number of 0 or more for each sample.

        It has `length` samples (default: as many as this dataset), in random order. Every epoch of a `Loader` is
        another draw. A sample of weight w is expected ``length * w / sum`` times; it is drawn as often, to less than 2.

        With ``replacement=False`` no sample is in the view twice: each draw takes one of the remaining samples, with a
        chance by its weight; `length` is by default the number of samples with a weight above 0.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "w": [0.0, 1.0, 3.0][k]} for k in range(3)])
        >>> sorted(ds.weighted("w", 8)["x"].tolist())
        [1, 1, 2, 2, 2, 2, 2, 2]
        """
        return self.fixed().through(*weighted_order(self, weights, length, seed, replacement))

    # -- media -----------------------------------------------------------------------------------------------

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with images, audio or video as stored bytes."""
        found = self._rows.media_fields
        return found if self._fields is None else [name for name in found if name in self._fields]

    @property
    def stored(self) -> Dataset[T_co]:
        """The same view with media as they are stored: bytes. Whatever copies data reads this one."""
        rows = self._rows.stored
        return self if rows is self._rows else Dataset(rows, self._order, self._fields, self._notes)

    def stored_feature(self, name: str) -> Feature | None:
        """The feature that decodes the stored bytes of a field of media to the values of this view, or None."""
        return self._rows.stored_feature(name)

    def decode(self, form: Any = None, /, **fields: Any) -> Dataset[T_co]:
        """Return a view with images, audio and video decoded in another form, for all fields or by field.

        The form is "numpy" (images have height, width and channels, the default), "torch" (channels first), "pil", or
        "bytes" (or False) for the stored bytes. Images may have steps instead, in a list: `Resize`, `CenterCrop`,
        `Pad`; random ones are given to a `Loader`. A feature such as ``Audio(rate=16000)`` replaces the stored options.

        >>> import numpy as np, shardex as sx, tempfile
        >>> image = np.zeros((4, 6, 3), np.uint8)
        >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"image": image}], {"image": sx.Image()})
        >>> ds[0].image.shape, ds.decode(image=[sx.media.Resize((2, 2))])[0].image.shape, ds.decode(False)[0].image[1:4]
        ((4, 6, 3), (2, 2, 3), b'PNG')
        """
        return Dataset(decode_view(self, form, fields), self._order, self._fields, self._notes)

    # -- typed and mapped views ---------------------------------------------------------------------------

    def as_type(self, sample_type: type[U]) -> Dataset[U]:
        """Return a view with samples of another type: by the shortest path of registered lenses, or by field names.

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
        """Return the view of all samples through a lens.

        >>> import shardex as sx
        >>> double = sx.Lens(lambda sample: {"double": 2 * sample.x})
        >>> sx.open([{"x": 3}]).view(double)[0]
        DictSample(double=6)
        """
        return self._over(lens_view(self._rows, self._fields, lens))

    @overload
    def map(
        self, function: Callable[[Batch[T_co]], Batch[U]], *, schema: Any = None, batched: Literal[True]
    ) -> Dataset[U]: ...
    @overload
    def map(
        self,
        function: Callable[[Batch[T_co]], Mapping[str, Any] | Columns],
        *,
        schema: Any = None,
        batched: Literal[True],
    ) -> Dataset: ...
    @overload
    def map(
        self, function: Callable[[T_co], Mapping[str, Any]], *, schema: Any = None, batched: Literal[False] = False
    ) -> Dataset: ...
    @overload
    def map(
        self, function: Callable[[T_co], U], *, schema: Any = None, batched: Literal[False] = False
    ) -> Dataset[U]: ...
    def map(
        self, function: Callable[[Any], Any], *, schema: Any = None, batched: bool = False, **unknown: Any
    ) -> Dataset[Any]:
        """Return a view that calls a function for each sample, or for whole batches, when it is read.

        The function returns a mapping of fields or an instance of a `packable` class. `schema` has the features of all
        fields of the mapping. Without it they are found in the results for the first samples: a field that the function
        passes on unchanged keeps its feature, others are inferred. A later result that does not fit raises an error.

        With `batched` the function gets a `Batch` of all samples that are read at once, and returns columns (arrays,
        lists) of the same length: a mapping, or a `Batch`. What it returns for a sample must not depend on the others.

        >>> import shardex as sx
        >>> sx.open([{"x": k} for k in range(5)]).map(lambda s: {"double": 2 * s.x}).read([1, 3])["double"]
        array([2, 6])
        >>> sx.open([{"x": k} for k in range(5)]).map(lambda b: {**b, "double": 2 * b.x}, batched=True)[3]
        DictSample(x=3, double=6)
        """
        refuse("Dataset.map", MAP, unknown, ["schema", "batched"])
        rows = mapped_view(self._rows, self._fields, function, schema, batched)
        return self._over(rows, note(f"mapped {'in batches ' * batched}by", function_name(function)))

    def filter(
        self, predicate: Callable[[T_co], object], *, progress: bool | None = None, **unknown: Any
    ) -> Dataset[T_co]:
        """Return a view of the samples for which a function is true. All samples are read now; `where` is faster.

        >>> import shardex as sx
        >>> len(sx.open([{"x": k} for k in range(5)]).filter(lambda sample: sample.x % 2))
        2
        """
        refuse("Dataset.filter", MAP, unknown, ["progress"])
        check_callable(predicate)
        quiet = None if progress is None else not progress
        samples = Bar(self, total=len(self), desc="filter", unit=" samples", disable=quiet, leave=False)
        chosen = Pick(np.flatnonzero([bool(predicate(sample)) for sample in samples]))
        return self.fixed().through(chosen, note("filtered by", function_name(predicate)))

    def _over(self, rows: AbstractRows, note: str = "") -> Dataset[Any]:
        """Return a dataset over a layer of this one's rows, in the order of this view."""
        fields = self._fields if rows is self._rows else None
        return Dataset(rows, self._order, fields, (*self._notes, note) if note else self._notes)

    # -- windows -------------------------------------------------------------------------------------------

    def sliding(
        self,
        length: int,
        horizon: int = 0,
        stride: int = 1,
        *,
        group: str | Sequence[str] | None = None,
        time: str | None = None,
        missing: Missing = "drop",
    ) -> Dataset:
        """Return a view whose samples are windows of `length` rows and the `horizon` rows after them.

        Rows are sorted by the field `time` (without it they stay in order) inside of each `group`: a field, or several.
        A window has rows of one group; windows of a group begin `stride` rows apart. A group that is shorter than a
        window has none.

        A sample has the values of each field as one array: ``x`` of the first rows and, with a horizon, ``x_future`` of
        the rows after them; the fields of the group have one value. Fields of numbers, classes, times and arrays of
        one shape are stacked, others are left out.

        `missing` says what becomes of windows in which a value is None or NaN: ``"drop"`` leaves them out, ``"error"``
        raises an error (for both, fields that can have such values are read now), ``"keep"`` keeps them, as NaN or NaT;
        a missing integer then is an error of the read.

        Nothing is copied: the view has two numbers for each row, and any window can be read.

        >>> import shardex as sx
        >>> ds = sx.open([{"day": k // 2, "shop": "ab"[k % 2], "sales": 10 * k} for k in range(10)])
        >>> windows = ds.sliding(3, horizon=1, group="shop", time="day")
        >>> len(windows), windows[0].shop, windows[0].sales.tolist(), windows[0].sales_future.tolist()
        (4, 'a', [0, 20, 40], [60])
        """
        rows, text = sliding_rows(self, length, horizon, stride, group, time, missing)
        return Dataset(rows, None, None, (*self._notes, text))

    # -- tokens --------------------------------------------------------------------------------------------

    def windows(
        self,
        length: int,
        stride: int | None = None,
        *,
        offset: int | str = 0,
        seed: int = 0,
        field: str | None = None,
        across: bool = True,
        partial: bool = False,
        labels: Labels = False,
        dtype: Any = None,
        ignore_index: int = -100,
        loss_mask: str | bool | None = None,
    ) -> Dataset:
        """Return a view whose samples are windows of `length` tokens; nothing is stored, any window can be read.

        The tokens of all documents, in the order of this view, are one stream; window k begins at ``offset + k *
        stride`` (`stride` is `length` by default). With ``across=False`` every document is a stream of its own, so no
        window has tokens of two documents. Tokens at the end that do not fill a window are left out, unless `partial`
        keeps them as a shorter window.

        `field` is the array of tokens: by default the only array of one dimension, or ``"tokens"``. Other arrays of
        one dimension that have a value for each token, such as a loss mask, are cut in the same way; fields of other
        kinds are left out. `dtype` converts the tokens.

        With ``offset="random per epoch"`` the windows of each epoch of a `Loader` begin at another offset below
        `stride`, which depends on `seed` and the epoch; every epoch has the same number of windows. So do views of it
        (`take`, `split`, `shuffle`); in a `concat`, `join` or `mix` the offset is that of the first epoch. A `split`
        cuts between windows: to keep tokens apart, split the documents first.

        With `labels` samples have the fields ``inputs`` and ``labels`` instead of the tokens, int64 by default: the
        label of a token is the next one. A window then reads one token more, so every token but the first is a label
        once. With ``labels="huggingface"`` they are ``input_ids`` and ``labels``, the same tokens in both, because the
        models of Hugging Face take the next ones themselves. Labels whose loss mask is 0 are `ignore_index`:
        `loss_mask` is the name of an array, True for ``"loss_mask"``, False for none, and by default the one that
        ``ds.metadata["loss_mask"]`` names. If no metadata says what an array called ``loss_mask`` means, this argument
        must be given. With ``"huggingface"`` samples have no loss mask of their own.

        >>> import shardex as sx
        >>> ds = sx.open([{"tokens": [1, 2, 3, 4]}, {"tokens": [5, 6, 7, 8, 9]}])
        >>> ds.windows(3)["tokens"].tolist(), ds.windows(3, across=False)["tokens"].tolist()
        ([[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 2, 3], [5, 6, 7]])
        >>> pairs = ds.windows(4, labels=True)
        >>> pairs["inputs"].tolist(), pairs["labels"].tolist()
        ([[1, 2, 3, 4], [5, 6, 7, 8]], [[2, 3, 4, 5], [6, 7, 8, 9]])
        """
        rows, order, text = windows_of(
            self,
            length,
            stride,
            offset,
            seed,
            dtype,
            field=field,
            across=across,
            partial=partial,
            labels=labels,
            ignore_index=ignore_index,
            loss_mask=loss_mask,
        )
        return Dataset(rows, order, None, (*self._notes, text))

    def pack(
        self,
        length: int,
        strategy: Strategy = "concat",
        *,
        segments: bool = False,
        field: str | None = None,
        labels: Labels = False,
        dtype: Any = None,
        pad: int | None = None,
        ignore_index: int = -100,
        loss_mask: str | bool | None = None,
    ) -> Dataset:
        """Return a view whose samples have `length` tokens, made of pieces of documents; nothing is stored.

        With the strategy ``"concat"`` the tokens of all documents, in the order of this view, are one stream, which is
        cut after every `length` tokens. ``"best_fit"`` puts whole documents together so that little is padded; only
        documents longer than `length` are cut. ``"truncate"`` has one document in each sample, without what is behind
        its first `length` tokens. What is left of a sample is padded with `pad` (by default the padding token of
        ``ds.metadata``, or its end-of-text token, or 0).

        With `segments` samples have three more fields, for attention inside of documents: ``segment_ids`` (1, 2, ...
        for the pieces of a sample, 0 in padding), ``positions`` (from 0 on in each piece, 0 in padding) and
        ``cu_seqlens`` (0, the end of each piece, and `length` if there is padding: as a last piece). They replace
        arrays of these names in the documents. Only fields that are read are computed: `select` those that you use.
        For `field`, `dtype` and other arrays see `windows`; in padding, other arrays are 0.

        With `labels` samples have ``inputs`` and ``labels`` instead of the tokens, int64 by default: the label of a
        token is the next one of its piece. It is `ignore_index` for the last token of a piece, in padding, and where
        the loss mask of the label is 0 (for `loss_mask` see `windows`). With ``labels="huggingface"`` they are
        ``input_ids`` and ``labels`` of the same tokens, `ignore_index` for the first token of a piece instead of the
        last one, and ``attention_mask`` (0 in padding).

        >>> import shardex as sx
        >>> ds = sx.open([{"tokens": [1, 2, 3]}, {"tokens": [4, 5, 6, 7]}, {"tokens": [8]}])
        >>> ds.pack(4)["tokens"].tolist(), ds.pack(4, "best_fit")["tokens"].tolist()
        ([[1, 2, 3, 4], [5, 6, 7, 8]], [[1, 2, 3, 8], [4, 5, 6, 7]])
        >>> view = ds.pack(4, "best_fit", segments=True, labels=True)
        >>> view["labels"].tolist(), view["segment_ids"].tolist()
        ([[2, 3, -100, -100], [5, 6, 7, -100]], [[1, 1, 1, 2], [1, 1, 1, 1]])
        """
        options: Any = {"segments": segments, "field": field, "labels": labels, "ignore_index": ignore_index}
        rows, text = packs_of(self, length, strategy, dtype=dtype, pad=pad, loss_mask=loss_mask, **options)
        return Dataset(rows, None, None, (*self._notes, text))

    # -- SQL -----------------------------------------------------------------------------------------------

    def where(
        self, text: str, params: Params = None, *, timeout: float | None = None, memory_limit: str | None = None
    ) -> Dataset[T_co]:
        """Return a view of the samples for which an SQL condition holds.

        The condition is what follows WHERE in the SQL of DuckDB; columns are the fields, and `_row` is the position.
        Pass values in `params`: a list for ``?`` or a dict for ``$name``. `timeout` is in seconds, `memory_limit` a
        text such as ``"4GB"``.

        >>> import shardex as sx
        >>> ds = sx.open([{"x": k, "name": f"n{k}"} for k in range(10)])
        >>> [sample.x for sample in ds.where("x > ? AND name <> 'n8'", [6])]
        [7, 9]
        """
        query, limits = condition(text, self._sql_features), Limits(timeout, memory_limit)
        return self.fixed().through(Pick(view_matching(self, query, params, limits)), note("where", text))

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
        return select(text, self._sql_features).answer(self, params, Limits(timeout, memory_limit))

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields (or extracted columns) in the order of this view, as SQL sees them."""
        return view_columns(self, names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each sample whether it has a value for a field."""
        return view_present(self, name)

    def lengths(self, name: str) -> Integers:
        """Return the length of the array of a field in each sample, 0 for a missing one.

        Where lengths or offsets are stored (token files, native datasets, Arrow), the arrays are not read.

        >>> import shardex as sx
        >>> sx.open([{"tokens": [1, 2, 3]}, {"tokens": [4]}]).lengths("tokens")
        array([3, 1])
        """
        check_fields(self.fields, [name])
        return view_lengths(self, name)

    @property
    def extracted(self) -> Features:
        """Columns that only SQL sees: values extracted from the samples when they were indexed (`index`)."""
        return self._rows.extracted

    @property
    def _sql_features(self) -> Features:
        fields = self.features
        return Features({**fields, **{name: one for name, one in self.extracted.items() if name not in fields}})

    # -- batches -------------------------------------------------------------------------------------------

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

    # -- other tools ---------------------------------------------------------------------------------------

    def to_arrow(self, fields: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pyarrow.Table`; fields that are stored as Arrow columns are not copied."""
        return stream.table(self if fields is None else self.select(*fields))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return all samples as an Arrow stream, for tools that read one: polars, pandas, DuckDB, pyarrow."""
        return stream.capsule(self, requested_schema)

    def to_huggingface(self) -> Any:
        """Return all samples as a Hugging Face `datasets.Dataset`; nothing is written to disk."""
        return to_huggingface(self)

    def to_pandas(self, fields: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pandas.DataFrame`."""
        return stream.to_pandas(self.to_arrow(fields))
