"""Samples of tokens: windows of the stream of all documents, or of each, and packs of pieces of documents.

`Dataset.windows` makes `StreamWindowRows`. File and offset of a window are arithmetic on the lengths of documents
(`TokenStream`), so nothing is stored, and windows are read in any order. With a random offset the rows are the windows
at every begin, and an order (`RandomOffset`) chooses some of them in each epoch.

`Dataset.pack` makes `PackRows`, whose samples are filled with pieces of documents and padded. A strategy says which
pieces a sample has: `_Concat` cuts the stream of all documents, `_BestFit` puts whole documents together, `_Truncate`
has one document in each sample. A `_Layout` has the place of each piece in the samples of a read, from which all fields
are made: tokens and labels by one gather, segment ids and positions by the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.dataset.token_stream import (
    HUGGINGFACE,
    Labels,
    StreamRows,
    TokenStream,
    fitting,
    integer_dtype,
    without_class,
)
from shardex.errors import ArgumentError
from shardex.features import Array, Features
from shardex.kernel import Column, Columns, Integers, Ragged, digest, ends_of, packing, pooled_empty
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


Strategy = Literal["concat", "best_fit", "truncate"]


# -- strategies --------------------------------------------------------------------------------------------------


class _Concat:
    """The stream of all documents, cut after every `length` tokens."""

    def __init__(self, starts: Integers, length: int) -> None:
        self._starts, self._length, self._total = starts, length, int(starts[-1])

    def __len__(self) -> int:
        return (self._total + self._length - 1) // self._length

    @cached_property
    def table(self) -> packing.PieceTable:
        """The documents of each sample, found once for all: to search them for each read takes longer."""
        begin = np.arange(len(self)) * self._length
        first = np.searchsorted(self._starts, begin, "right") - 1
        behind = np.searchsorted(self._starts, np.minimum(begin + self._length, self._total), "left")
        return packing.PieceTable(self._starts[:-1], self._starts[1:], first, behind, self._length)

    def runs(self, rows: Integers) -> packing.PieceTable:
        """Return these samples as one piece each, which may have several documents."""
        begin, numbers = self.first(rows), np.arange(len(rows) + 1)
        return packing.PieceTable(begin, np.minimum(begin + self._length, self._total), numbers[:-1], numbers[1:])

    def first(self, rows: Integers) -> Integers:
        """Return the begin of each sample in the stream."""
        return rows * self._length


class _Truncate:
    """One document in each sample, without what is behind its first `length` tokens."""

    def __init__(self, starts: Integers, length: int) -> None:
        numbers = np.arange(len(starts))
        self.table = packing.PieceTable(starts[:-1], starts[1:], numbers[:-1], numbers[1:])

    def __len__(self) -> int:
        return len(self.table.firsts)

    def first(self, rows: Integers) -> Integers:
        """Return the begin of each sample in the stream."""
        return self.table.begins[rows]


class _BestFit:
    """Documents put together best-fit decreasing; those longer than `length` are cut into pieces of it and a rest."""

    def __init__(self, starts: Integers, length: int) -> None:
        begin = _piece_begins(starts, length)
        end = np.append(begin[1:], starts[-1:])
        order, offsets = packing.best_fit(end - begin, length)
        self.table = packing.PieceTable(begin[order], end[order], offsets[:-1], offsets[1:])

    def __len__(self) -> int:
        return len(self.table.firsts)

    def first(self, rows: Integers) -> Integers:
        """Return the begin of each sample in the stream."""
        return self.table.begins[self.table.firsts[rows]]


def _piece_begins(starts: Integers, length: int) -> Integers:
    """Return the begins of documents, and of pieces of `length` of longer ones; documents without tokens have none.

    >>> _piece_begins(np.array([0, 3, 3, 12]), 4).tolist()
    [0, 3, 7, 11]
    """
    sizes = np.diff(starts)
    counts: Integers = (sizes + (length - 1)) // length
    if (counts == 1).all():
        return starts[:-1]
    document = np.repeat(np.arange(len(sizes)), counts)
    numbers = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return starts[document] + numbers * length


_STRATEGIES: Mapping[str, type[_Concat | _Truncate | _BestFit]] = {
    "concat": _Concat,
    "best_fit": _BestFit,
    "truncate": _Truncate,
}


# -- rows --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackOptions:
    """Arguments of `Dataset.pack`."""

    length: int
    strategy: str
    segments: bool
    field: str | None
    labels: Labels
    dtype: str | None
    pad: int | None
    ignore_index: int


def packs_of(
    documents: Dataset[Any],
    length: int,
    strategy: str,
    *,
    dtype: Any,
    pad: int | None,
    loss_mask: str | bool | None,
    **more: Any,
) -> tuple[PackRows, str]:
    """Return the packs of documents, and a text for their `repr`."""
    length = whole_number("length", length, 1)
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise ArgumentError(f"expected one of the strategies {', '.join(_STRATEGIES)}, got {strategy!r}")
    pad = None if pad is None else whole_number("pad", pad)
    options = PackOptions(length, strategy, dtype=integer_dtype(dtype), pad=pad, **more)
    return PackRows(documents, options, loss_mask), f"packed into {length} tokens ({strategy})"


class PackRows(StreamRows):
    """Samples of `length` tokens made of pieces of documents."""

    def __init__(self, documents: Dataset[Any], options: PackOptions, loss_mask: str | bool | None = None) -> None:
        self.documents, self.options = without_class(documents), options
        self.stream = TokenStream(self.documents, options.field)
        self._names = self.stream.names(options.labels)
        of_model = options.labels == HUGGINGFACE
        self._segments = ("segment_ids", "position_ids" if of_model else "positions", "cu_seqlens")
        self._made = ("attention_mask",) * of_model + self._segments * options.segments
        self._mask = self.mask_of_labels(options.labels, loss_mask)
        self._dtype = self.stream.sample_dtype(options.dtype, options.labels)
        self._pad = fitting("pad", self._padding(), self._dtype)
        if options.labels:
            fitting("ignore_index", options.ignore_index, self._dtype)
        self._strategy = _STRATEGIES[options.strategy](self.stream.starts, options.length)

    def _padding(self) -> int:
        """Return the token that was given or stored; what is stored as text, such as "</s>", is no token."""
        stored = self.documents.metadata
        given = (self.options.pad, stored.get("pad"), stored.get("eos"), 0)
        return next(value for value in given if isinstance(value, int))

    def __reduce__(self) -> tuple[Any, ...]:
        return PackRows, (self.documents, self.options, self._mask or False)

    def __len__(self) -> int:
        return len(self._strategy)

    @cached_property
    def features(self) -> Features:
        """The tokens, or inputs and labels; the aux arrays; attention mask; segment ids, positions, ends of pieces."""
        stream, shape = self.stream, (self.options.length,)
        tokens = dict.fromkeys(self._names, Array(self._dtype.name, shape))
        aux = {name: Array(stream.dtypes[name].name, shape) for name in self.aux(self.options.labels, self._mask)}
        dtypes = {"attention_mask": "int64"}
        made = {n: Array(dtypes.get(n, "int32"), shape if n != "cu_seqlens" else (None,)) for n in self._made}
        return Features({**tokens, **aux, **made})

    @cached_property
    def fingerprint(self) -> str:
        """Made from the documents, their order, and all options."""
        made = self.stream.field, self.options, self._mask, self._pad
        return digest("pack", self.documents.fingerprint, *made)

    def begins(self, rows: Integers) -> Integers:
        """Return the begin of each sample in the stream."""
        return self._strategy.first(rows)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the pieces of these samples."""
        names = check_fields(list(self.features), fields)
        pieces = self._layout(rows[(rows >= 0) & (rows < len(self))], self.streams(names, self._mask)).pieces
        self.stream.advise(self.streams(names, self._mask), pieces.begin, pieces.length)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Copy the pieces of these samples by one gather for each array; only these fields are made."""
        names, rows = check_fields(list(self.features), fields), self.check_rows(rows)
        layout = self._layout(rows, names)
        return Columns({name: self._column(name, layout) for name in names}, len(rows))

    def _layout(self, rows: Integers, names: Sequence[str]) -> _Layout:
        """Return where the pieces of samples lie; documents are told apart if one of the fields needs it."""
        strategy, options = self._strategy, self.options
        made = [options.segments and name in names for name in self._segments]
        wanted = dict(zip(("ids", "positions", "bounds"), made, strict=True))
        if isinstance(strategy, _Concat) and not any(made) and not (options.labels and "labels" in names):
            pieces = packing.cut_pieces(strategy.runs(rows), np.arange(len(rows)), options.length, **wanted)
        else:
            pieces = packing.cut_pieces(strategy.table, rows, options.length, **wanted)
        return _Layout(pieces, options.length, len(rows))

    def _column(self, name: str, layout: _Layout) -> Column:
        if name in self._made:
            return layout.mask() if name == "attention_mask" else layout.segments(name)
        if name in self.stream.aux:
            return layout.filled(layout.gather(self.stream, name), 0)
        if name == "labels" and self.options.labels:
            return self._labels(layout)
        tokens = layout.gather(self.stream, self.stream.field)
        return layout.filled(self.stream.cast(tokens, self._dtype, layout.without_padding), self._pad)

    def _labels(self, layout: _Layout) -> NDArray[Any]:
        """Return the next token of each; `ignore_index` at ends of pieces, in padding, and where the mask is 0.

        For models of Hugging Face, which take the next label themselves: the same tokens, without the first of pieces.
        """
        tokens, ignore = layout.gather(self.stream, self.stream.field), self.options.ignore_index
        if self.options.labels == HUGGINGFACE:
            labels = self.stream.cast(tokens, self._dtype, layout.without_padding).copy()
            if self._mask is not None:
                labels[layout.gather(self.stream, self._mask) == 0] = ignore
            labels[layout.pieces.target] = ignore
            return layout.filled(labels, ignore)
        labels = self.stream.cast(tokens, self._dtype, layout.without_padding, shift=1)
        if self._mask is not None:
            labels[:-1][layout.gather(self.stream, self._mask)[1:] == 0] = ignore
        return layout.filled(labels, ignore, shorter=1)


class _Layout:
    """Where pieces lie in samples of one width, which are end to end in one flat array."""

    def __init__(self, pieces: packing.Pieces, width: int, count: int) -> None:
        self.pieces, self._width, self._count = pieces, width, count
        self._gathered: dict[str, NDArray[Any]] = {}

    def gather(self, stream: TokenStream, name: str) -> NDArray[Any]:
        """Return the pieces of a stream in their places, as a flat array with undefined padding."""
        if (out := self._gathered.get(name)) is None:
            out = self._gathered[name] = pooled_empty((self._count * self._width,), stream.dtypes[name])
            stream.copy(name, self.pieces.begin, self.pieces.length, self.pieces.target, out)
        return out

    def filled(self, flat: NDArray[Any], value: int, shorter: int = 0) -> NDArray[Any]:
        """Set the padding of a flat array, and the last `shorter` elements of each piece; one row for each sample."""
        packing.fill_gaps(flat, self.pieces.target, self.pieces.length - shorter, value)
        return flat.reshape(self._count, self._width)

    def without_padding(self, flat: NDArray[Any]) -> NDArray[Any]:
        """Return a flat array with 0 in its padding."""
        return self.filled(flat, 0).reshape(-1)

    def mask(self) -> NDArray[np.int64]:
        """Return 1 for each token and 0 in padding."""
        return self.filled(np.ones(self._count * self._width, np.int64), 0)

    def segments(self, name: str) -> Column:
        """Return the segment ids or positions of all elements, or the bounds of the pieces of each sample."""
        if name == "cu_seqlens":
            return Ragged.from_values(self.pieces.bounds, self.pieces.offsets)
        flat = self.pieces.ids if name == "segment_ids" else self.pieces.positions
        return flat.reshape(self._count, self._width)
