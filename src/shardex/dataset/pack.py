"""Packs of tokens as samples: `PackRows` fill every sample with pieces of documents, and pad what is left.

`Dataset.pack` makes them. A strategy says which pieces (runs of tokens of one document) a sample has: `_Concat` cuts
the stream of all documents, `_BestFit` puts whole documents together, `_Truncate` has one document in each sample. A
`_Layout` has the place of each piece in the samples of a read, from which all fields are made: tokens and labels by one
gather, segment ids and positions by the kernel.
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
from shardex.kernel import Column, Columns, Integers, Ragged, digest, packing, pooled_empty
from shardex.rows import whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

Strategy = Literal["concat", "best_fit", "truncate"]
_SEGMENTS = ("segment_ids", "positions", "cu_seqlens")


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
        self._made = _SEGMENTS if options.segments else ()
        if options.labels == HUGGINGFACE:
            self._made = ("attention_mask", *self._made)
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
        made = [options.segments and name in names for name in _SEGMENTS]
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
