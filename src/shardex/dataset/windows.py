"""Windows of tokens as samples: `StreamWindowRows` are runs of one length of the stream of all documents, or of each.

`Dataset.windows` makes them. File and offset of a window are arithmetic on the lengths of documents (`TokenStream`), so
nothing is stored, and windows are read in any order. With a random offset the rows are the windows at every begin, and
an order (`RandomOffset`) chooses some of them in each epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.dataset.token_stream import Labels, StreamRows, TokenStream, fitting, integer_dtype, without_class
from shardex.errors import ArgumentError
from shardex.features import Array, Features
from shardex.kernel import Column, Columns, Integers, Ragged, digest, ends_of
from shardex.order import Order, RandomOffset
from shardex.rows import whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

RANDOM = "random per epoch"


@dataclass(frozen=True)
class WindowOptions:
    """Arguments of `Dataset.windows` that choose the samples."""

    length: int
    stride: int
    offset: int | None
    """Begin of the first window; None for windows at every begin, of which an order chooses some."""
    field: str | None
    across: bool
    partial: bool
    labels: Labels
    dtype: str | None
    ignore_index: int

    @property
    def need(self) -> int:
        """Tokens that a whole window reads: one more than `length` if the labels are the next tokens."""
        return self.length + self.shift

    @property
    def shift(self) -> int:
        """How many tokens later labels are than inputs; models of Hugging Face shift them by themselves."""
        return int(self.labels is True)

    @property
    def least(self) -> int:
        """Tokens of the shortest window."""
        return (1 if self.partial else self.length) + self.shift

    @property
    def step(self) -> int:
        """Distance of the windows of two rows."""
        return self.stride if self.offset is not None else 1

    def count(self, sizes: Integers) -> Integers:
        """Return the number of windows in runs of these sizes.

        >>> WindowOptions(4, 4, 0, None, True, True, False, None, -100).count(np.array([0, 3, 4, 5, 8]))
        array([0, 1, 1, 2, 2])
        """
        left = sizes - (self.offset or 0)
        full: Integers = np.where(left >= self.need, (left - self.need) // self.step + 1, 0)
        if not self.partial:
            return full
        covered = np.where(full > 0, (full - 1) * self.step + self.need, 0)
        return full + ((left > covered) & (left - full * self.step >= self.least))


def windows_of(
    documents: Dataset[Any],
    length: int,
    stride: int | None,
    offset: int | str,
    seed: int,
    dtype: Any,
    loss_mask: str | bool | None,
    **more: Any,
) -> tuple[StreamWindowRows, Order | None, str]:
    """Return the windows of documents: rows, an order of them (None: as they are), and a text for the `repr`."""
    options = {**more, "dtype": integer_dtype(dtype)}
    whole_number("ignore_index", options["ignore_index"])
    length = whole_number("length", length, 1)
    stride = length if stride is None else whole_number("stride", stride, 1)
    text = f"windows of {length} tokens{f' every {stride}' * (stride != length)}"
    if isinstance(offset, str):
        if offset != RANDOM:
            raise ArgumentError(f"expected a number of tokens or {RANDOM!r} for offset, got {offset!r}")
        if not options["across"] or options["partial"]:
            raise ArgumentError(f"expected across=True and partial=False with offset={RANDOM!r}, got other values")
        rows = StreamWindowRows(documents, WindowOptions(length, stride, None, **options), loss_mask)
        return rows, _random_offset(len(rows), stride, whole_number("seed", seed)), f"{text} at a random offset"
    first = whole_number("offset", offset, 0)
    return StreamWindowRows(documents, WindowOptions(length, stride, first, **options), loss_mask), None, text


def _random_offset(begins: int, stride: int, seed: int) -> RandomOffset:
    """Return the order of as many windows as fit with every offset; of one, if there are fewer begins than offsets."""
    count = max(min(1, begins), begins // stride)
    return RandomOffset(count, stride, max(1, min(stride, begins)), seed)


class StreamWindowRows(StreamRows):
    """Windows of the stream of documents, or of each document."""

    def __init__(self, documents: Dataset[Any], options: WindowOptions, loss_mask: str | bool | None = None) -> None:
        self.documents, self.options = without_class(documents), options
        self.stream = TokenStream(self.documents, options.field)
        self._mask = self.mask_of_labels(options.labels, loss_mask)
        self._dtype = self.stream.sample_dtype(options.dtype, options.labels)
        self._names = self.stream.names(options.labels)
        if self._mask is not None:
            fitting("ignore_index", options.ignore_index, self._dtype)
        sizes = np.diff(self.stream.starts) if not options.across else np.array([len(self.stream)])
        counts = options.count(sizes)
        self._firsts: Integers | None = None if options.across else ends_of(counts)
        """First window of each document."""
        self._length = int(counts.sum())

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamWindowRows, (self.documents, self.options, self._mask or False)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def features(self) -> Features:
        """The tokens, or inputs and labels, and the aux arrays."""
        stream, shape = self.stream, (None if self.options.partial else self.options.length,)
        aux = {name: Array(stream.dtypes[name].name, shape) for name in self.aux(self.options.labels, self._mask)}
        return Features({**dict.fromkeys(self._names, Array(self._dtype.name, shape)), **aux})

    @cached_property
    def fingerprint(self) -> str:
        """Made from the documents, their order, and all options."""
        return digest("windows", self.documents.fingerprint, self.stream.field, self.options, self._mask)

    def begins(self, rows: Integers) -> Integers:
        """Return where each window begins in the stream."""
        return self._runs(rows)[0]

    def _runs(self, rows: Integers) -> tuple[Integers, Integers]:
        """Return begin and length of each window in the stream; labels need one token more."""
        options, starts = self.options, self.stream.starts
        if self._firsts is None:
            begin, end = rows * options.step + (options.offset or 0), starts[-1:]
        else:
            number = np.searchsorted(self._firsts, rows, "right") - 1
            begin = starts[number] + (rows - self._firsts[number]) * options.step + (options.offset or 0)
            end = starts[number + 1]
        if not options.partial:
            return begin, np.full(len(rows), options.length)
        return begin, np.minimum(begin + options.need, end) - begin - options.shift

    def lengths(self, name: str) -> Integers:
        """Return the length of every window, without reading it."""
        check_fields(list(self.features), [name])
        return self._runs(np.arange(len(self)))[1]

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching these windows."""
        names = check_fields(list(self.features), fields)
        begin, length = self._runs(rows[(rows >= 0) & (rows < len(self))])
        self.stream.advise(self.streams(names, self._mask), begin, length + self.options.shift)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Copy these windows by one gather for each field."""
        names, rows = check_fields(list(self.features), fields), self.check_rows(rows)
        begin, length = self._runs(rows)
        return Columns({name: self._column(name, begin, length) for name in names}, len(rows))

    def _column(self, name: str, begin: Integers, length: Integers) -> Column:
        stream = self.stream
        if name in stream.aux:
            return self._shaped(stream.read(name, begin, length), length)
        if name == "labels" and self.options.labels:
            begin = begin + self.options.shift
            labels = stream.tokens(begin, length, self._dtype)
            if self._mask is not None:
                labels[stream.read(self._mask, begin, length) == 0] = self.options.ignore_index
            return self._shaped(labels, length)
        return self._shaped(stream.tokens(begin, length, self._dtype), length)

    def _shaped(self, values: NDArray[Any], length: Integers) -> Column:
        if self.options.partial:
            return Ragged.from_values(values, ends_of(length))
        return values.reshape(len(length), self.options.length)
