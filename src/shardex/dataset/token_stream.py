"""The documents of a dataset as one stream of tokens, from which runs of tokens are copied; for windows and packs.

A document is a sample with an array of tokens; the arrays of all documents, in the order of the dataset, are the
stream. A `TokenStream` knows where each document begins in it, and copies any runs of it into an array. Other arrays of
one dimension with a value for each token (aux arrays: loss masks, positions) are streams of the same positions.

Where the bytes of all documents lie in files that are mapped, end to end, they are found once (`locate_runs`, also in
the files of the parts of a `concat`); a copy then needs no look at documents. Otherwise documents are read and cut.
`StreamRows` is the base class of rows whose samples are made of such copies (`windows`, `pack`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.dataset.combine import ConcatRows
from shardex.dataset.views import ComposedRows
from shardex.errors import ArgumentError, SchemaError, unknown_field
from shardex.features import Array, Features, Json, unwrap_optional
from shardex.features import Sequence as ListOf
from shardex.kernel import MISSING, Column, Integers, Masked, Ragged, Ranges, Segments, ends_of, pooled_empty
from shardex.layers import MediaRows, RenamedRows, TypedRows, undecoded
from shardex.rows import AbstractRows, whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

HUGGINGFACE = "huggingface"
Labels = bool | Literal["huggingface"]
"""Whether samples have labels: True for the next tokens, "huggingface" for the same tokens, which its models shift."""
LOSS_MASK = "loss_mask"
"""Key of the metadata with the name of a loss mask, and the usual name of one."""


# -- fields ------------------------------------------------------------------------------------------------------


def token_field(features: Features, field: str | None) -> str:
    """Return the field of tokens: the given one, the only array of one dimension, or ``"tokens"``.

    >>> token_field(Features.of({"ids": Array("uint16", (None,)), "label": int}), None)
    'ids'
    """
    arrays = _arrays(features)
    if field is not None:
        check_fields(list(features), [field])
        if field not in arrays:
            remedy = _remedy(field) if isinstance(unwrap_optional(features[field]), Json | ListOf) else ""
            raise SchemaError(
                f"expected a field of arrays of one dimension, got {features[field]} - at field {field}{remedy}"
            )
        return field
    if len(arrays) == 1 or "tokens" in arrays:
        return "tokens" if "tokens" in arrays else next(iter(arrays))
    if arrays:
        raise ArgumentError(f"expected the field of tokens, one of {', '.join(arrays)}; choose it with field=")
    raise SchemaError(
        f"expected a field of arrays of one dimension (the tokens), got {features or 'no fields'}{_remedy('tokens')}; "
        "windows of rows, one after another, are ds.sliding(length)"
    )


def _remedy(field: str) -> str:
    return f'; open lists of integers with schema={{"{field}": sx.Array("int64", (None,))}}'


def _arrays(features: Features) -> dict[str, Array]:
    """Return the features of arrays of one dimension."""
    inner = {name: unwrap_optional(feature) for name, feature in features.items()}
    return {n: f for n, f in inner.items() if isinstance(f, Array) and f.shape and len(f.shape) == 1 and f.dtype}


def without_class(documents: Dataset[Any]) -> Dataset[Any]:
    """Return typed documents as untyped ones if their values are the same.

    Classes rarely say how many dimensions arrays have, and samples that are made of documents are untyped anyway.
    """
    rows = undecoded(documents.rows)
    if not isinstance(rows, TypedRows) or any(name not in rows.below.features for name in documents.fields):
        return documents
    pairs = [(unwrap_optional(rows.features[n]), unwrap_optional(rows.below.features[n])) for n in documents.fields]
    same = all(a == b or (isinstance(a, Array) and isinstance(b, Array) and a.dtype == b.dtype) for a, b in pairs)
    return type(documents)(rows.below, documents.order, documents.fields, documents.notes) if same else documents


# -- the stream --------------------------------------------------------------------------------------------------


class TokenStream:
    """The tokens of all documents, one after another, and their aux arrays.

    >>> import shardex as sx
    >>> stream = TokenStream(sx.open([{"tokens": [1, 2, 3]}, {"tokens": []}, {"tokens": [4, 5]}]), None)
    >>> stream.starts, stream.read("tokens", np.array([1, 4]), np.array([3, 1]))
    (array([0, 3, 3, 5]), array([2, 3, 4, 5]))
    """

    def __init__(self, documents: Dataset[Any], field: str | None) -> None:
        features = documents.features
        self.documents = documents
        self.field = token_field(features, field)
        arrays, shape = _arrays(features), _arrays(features)[self.field].shape
        self.aux = [name for name, one in arrays.items() if one.shape == shape and name != self.field]
        """Other arrays of one dimension, which must have a value for each token."""
        self.dtypes = {name: np.dtype(arrays[name].dtype) for name in (self.field, *self.aux)}
        lengths = documents.lengths(self.field)
        for name in self.aux:
            self._check_lengths(name, lengths, documents.lengths(name))
        self.starts = ends_of(lengths)
        """First token of each document, and the number of all tokens."""
        self._found: dict[str, Runs | None] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _check_lengths(self, name: str, expected: Integers, found: Integers) -> None:
        if not np.array_equal(expected, found):
            at = int((expected != found).argmax())
            file = self.documents.shards([at])[0]
            raise SchemaError(
                f"expected {expected[at]} values in {name}, one for each of {self.field}, got {found[at]} - at sample "
                f"{at}{f' of {file}' * bool(file)}; leave the field out with drop({name!r})"
            )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the tokens."""
        return self.dtypes[self.field]

    def sample_dtype(self, given: str | None, labels: Labels) -> np.dtype[Any]:
        """Return the dtype that tokens have in samples; raise if numbers that are no integers would be converted."""
        if (given or labels) and self.dtype.kind not in "iub":
            raise SchemaError(
                f"expected a field of integers, which labels and dtype= need, got {self.dtype} - at field {self.field}"
            )
        return np.dtype(given or ("int64" if labels else self.dtype))

    def loss_mask(self, given: str | bool | None) -> str | None:
        """Return the aux array that says which tokens count (1) or not (0), by the argument `loss_mask` of views."""
        named = self.documents.metadata.get(LOSS_MASK)
        if given is False or (given is None and named is None and LOSS_MASK not in self.aux):
            return None
        if given is None and named is None:
            raise ArgumentError(
                f"expected loss_mask=, because the metadata does not say what the field {LOSS_MASK} means, got None; "
                "pass loss_mask=True if 1 is a token that counts, or loss_mask=False to count all tokens"
            )
        name = LOSS_MASK if given is True else given or named
        if not isinstance(name, str):
            raise ArgumentError(f"expected loss_mask= to be the name of a field, True, False or None, got {name!r}")
        if name in self.aux:
            return name
        if name in self.documents.fields:
            found = self.documents.features[name]
            raise SchemaError(f"expected a loss mask with a value for each token, got {found} - at field {name}")
        if given is not None:
            raise unknown_field(name, self.aux)
        raise ArgumentError(
            f"expected the field {name}, which the metadata names as the loss mask, got a view without it; select it "
            "too, pass its new name as loss_mask=, or pass loss_mask=False to count all tokens"
        )

    def names(self, labels: Labels) -> tuple[str, ...]:
        """Return the fields with tokens: that of the documents, or inputs and labels, whose names must be free."""
        if not isinstance(labels, bool) and labels != HUGGINGFACE:
            raise ArgumentError(f"expected True, False or {HUGGINGFACE!r} for labels, got {labels!r}")
        names = (self.field,) if not labels else ("inputs", "labels") if labels is True else ("input_ids", "labels")
        self.check_names([name for name in names if name != self.field])
        return names

    def check_names(self, names: Sequence[str]) -> None:
        """Raise if an aux array has the name of a field that is made."""
        for name in names:
            if name in self.aux:
                raise SchemaError(
                    f"expected no field {name!r}, which labels= makes, got one of arrays; rename it first: "
                    f'rename({name}="other")'
                )

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, name: str, begin: Integers, length: Integers) -> NDArray[Any]:
        """Return runs of a stream, end to end."""
        ends = ends_of(length)
        out = pooled_empty((int(ends[-1]),), self.dtypes[name])
        self.copy(name, begin, length, ends[:-1], out)
        return out

    def tokens(self, begin: Integers, length: Integers, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return runs of tokens, end to end, in another dtype; raise if it does not hold a token."""
        return self.cast(self.read(self.field, begin, length), dtype)

    def cast(
        self,
        tokens: NDArray[Any],
        dtype: np.dtype[Any],
        checked: Callable[[NDArray[Any]], NDArray[Any]] = lambda tokens: tokens,
        shift: int = 0,
    ) -> NDArray[Any]:
        """Return tokens in another dtype, the same array if it has it already; raise if it does not hold a token.

        `checked` returns the tokens with 0 where they are undefined. With `shift` the result is a new array that begins
        with a later token, and its end is undefined.
        """
        if tokens.dtype == dtype and not shift:
            return tokens
        if not np.can_cast(tokens.dtype, dtype) and tokens.size:
            tokens = checked(tokens)
            for token in (int(tokens.min()), int(tokens.max())):
                if not holds(dtype, token):
                    raise SchemaError(
                        f"expected tokens that {dtype} can hold, as dtype= says, got {token} - at field {self.field}"
                    )
        out = pooled_empty(tokens.shape, dtype)
        np.copyto(out[: len(out) - shift], tokens[shift:], casting="unsafe")
        return out

    def copy(self, name: str, begin: Integers, length: Integers, target: Integers, out: NDArray[Any]) -> None:
        """Copy runs of a stream to places of a flat array of its dtype."""
        for ranges, places in self._ranges(name, begin, length, target):
            ranges.copy_to(out, places * out.itemsize)

    def advise(self, names: Sequence[str], begin: Integers, length: Integers) -> None:
        """Start fetching runs of streams, without waiting."""
        documents: Integers | None = None
        for name in names:
            if self._found.get(name) is not None:
                for ranges, _ in self._ranges(name, begin, length, begin):
                    ranges.advise()
            else:
                if documents is None:
                    documents = np.unique(split(begin, begin + length, self.starts)[1])
                self.documents.advise(documents, [name])

    def _ranges(
        self, name: str, begin: Integers, length: Integers, target: Integers
    ) -> Iterator[tuple[Ranges, Integers]]:
        """Yield bytes of the stream that lie in one table of buffers, and their targets."""
        if not length.all():
            begin, length, target = begin[there := length > 0], length[there], target[there]
        item, runs = self.dtypes[name].itemsize, self._runs(name)
        bounds = self.starts if runs is None else runs.starts
        part = np.searchsorted(bounds, begin, "right") - 1
        if (begin + length > bounds[part + 1]).any():
            owner, part, inside, length = split(begin, begin + length, bounds)
            target = target[owner] + (inside - begin[owner])
            begin = inside
        if runs is not None:
            for ranges, here in runs.ranges(part, begin, length, item):
                yield ranges, target[here]
        elif len(part):
            numbers, at = np.unique(part, return_inverse=True)
            ranges = self._read_documents(name, numbers).ranges
            first = ranges.begin[at] + (begin - bounds[part]) * item
            yield Ranges(ranges.segments, ranges.which[at], first, length * item), target

    def _read_documents(self, name: str, numbers: Integers) -> Ragged:
        found = _as_ragged(self.documents.read(numbers, [name]).data[name], self.dtypes[name])
        check_lengths(name, numbers, self.starts, found.lengths)
        return found

    def _runs(self, name: str) -> Runs | None:
        """Return the runs of a stream; None if its bytes cannot be located without reading documents."""
        if name not in self._found:
            self._found[name] = locate_runs(self.documents, name, self.dtypes[name], self.starts)
        return self._found[name]


def split(begin: Integers, end: Integers, bounds: Integers) -> tuple[Integers, Integers, Integers, Integers]:
    """Cut intervals at bounds. Return interval, part, begin and length of each piece; empty pieces are left out.

    >>> [one.tolist() for one in split(np.array([1, 6]), np.array([5, 8]), np.array([0, 3, 3, 7, 9]))]
    [[0, 0, 1, 1], [0, 2, 2, 3], [1, 3, 6, 7], [2, 2, 1, 1]]
    """
    first = np.searchsorted(bounds, begin, "right") - 1
    counts = np.maximum(np.searchsorted(bounds, end, "left") - first, 0)
    counts[end <= begin] = 0
    owner = np.repeat(np.arange(len(begin)), counts)
    part = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    from_, to = np.maximum(begin[owner], bounds[part]), np.minimum(end[owner], bounds[part + 1])
    if (some := to > from_).all():
        return owner, part, from_, to - from_
    return owner[some], part[some], from_[some], (to - from_)[some]


def _as_ragged(column: Column, dtype: np.dtype[Any]) -> Ragged:
    """Return arrays of one dimension in any form as arrays of different lengths; missing ones are empty."""
    if isinstance(column, Masked):
        return _as_ragged(column.to_list(), dtype)
    if isinstance(column, Ragged) and column.shapes is None and column.dtype == dtype:
        return column
    if isinstance(column, np.ndarray):
        return Ragged.from_stacked(np.ascontiguousarray(column, dtype))
    values = column.to_list() if isinstance(column, Ragged) else column
    return Ragged.from_arrays(
        [np.zeros(0, dtype) if one is None or one is MISSING else one.astype(dtype) for one in values]
    )


# -- arguments ---------------------------------------------------------------------------------------------------


def integer_dtype(given: Any) -> str | None:
    """Return the name of a dtype of integers; raise for any other dtype.

    >>> integer_dtype(np.int32), integer_dtype(None)
    ('int32', None)
    """
    if given is None:
        return None
    with suppress(TypeError):
        if (dtype := np.dtype(given)).kind in "iu" and dtype.isnative:
            return str(dtype.name)
    raise ArgumentError(f"expected a dtype of integers, such as int64, got {given!r}")


def holds(dtype: np.dtype[Any], value: int) -> bool:
    """Return whether a dtype holds this integer; floating dtypes hold every integer, rounded."""
    if dtype.kind not in "iu":
        return dtype.kind != "b" or value in (0, 1)
    return int(np.iinfo(dtype).min) <= value <= int(np.iinfo(dtype).max)


def fitting(name: str, value: Any, dtype: np.dtype[Any]) -> int:
    """Return an argument as an integer; raise if the dtype of the field does not hold it."""
    number = whole_number(name, value)
    if not holds(dtype, number):
        raise ArgumentError(
            f"expected a value of {name} that {dtype} can hold, got {number}; choose another with dtype="
        )
    return number


# -- rows --------------------------------------------------------------------------------------------------------


class StreamRows(ComposedRows):
    """Rows whose samples are made of runs of the stream of some documents."""

    documents: Dataset[Any]
    stream: TokenStream

    @property
    def source(self) -> Dataset[Any]:
        """The documents."""
        return self.documents

    @abstractmethod
    def begins(self, rows: Integers) -> Integers:
        """Return where each row begins in the stream."""

    def mask_of_labels(self, labels: Labels, loss_mask: str | bool | None) -> str | None:
        """Return the array that says which labels count, by the arguments of the view; None if all do."""
        if labels:
            return self.stream.loss_mask(loss_mask)
        if loss_mask not in (None, False):
            raise ArgumentError(f"expected loss_mask= with labels only, got {loss_mask!r}")
        return None

    def aux(self, labels: Labels, mask: str | None) -> list[str]:
        """Return the other arrays that samples have; models of Hugging Face take no loss mask."""
        return [name for name in self.stream.aux if labels != HUGGINGFACE or name != mask]

    def streams(self, names: Sequence[str], mask: str | None) -> list[str]:
        """Return the arrays of documents that a read of these fields needs."""
        arrays = [name for name in names if name in self.stream.aux]
        if mask is not None and "labels" in names:
            arrays.append(mask)
        if any(name in (self.stream.field, "inputs", "input_ids", "labels") for name in names):
            arrays.append(self.stream.field)
        return list(dict.fromkeys(arrays))

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds the first document of each row."""
        if not len(rows) or not len(self.stream):
            return [""] * len(rows)
        first = np.minimum(self.begins(rows), len(self.stream) - 1)
        return self.documents.shards(np.searchsorted(self.stream.starts, first, "right") - 1)


_CHUNK_ROWS, _CHUNK_BYTES = 1 << 16, 32 << 20
"""Documents and bytes of documents that are located at once; rows that are not mapped copy them all."""


@dataclass(frozen=True)
class Runs:
    """Parts of a stream that lie end to end in a buffer. `starts` has the first token of each, and the end."""

    tables: list[Segments]
    starts: Integers
    table: Integers
    """Number of the table that has the buffer of each run."""
    which: Integers
    """Number of the buffer in its table."""
    base: Integers
    """Offset in the buffer at which the whole stream would begin if it lay end to end in this buffer."""

    def ranges(self, run: Integers, begin: Integers, length: Integers, item: int) -> Iterator[tuple[Ranges, Any]]:
        """Yield the bytes of pieces of runs that are in one table, and which pieces these are."""
        first, length = self.base[run] + begin * item, length * item
        if len(self.tables) == 1:
            yield Ranges(self.tables[0], self.which[run], first, length), slice(None)
            return
        table = self.table[run]
        for number in np.unique(table).tolist():
            here = np.flatnonzero(table == number)
            yield Ranges(self.tables[number], self.which[run[here]], first[here], length[here]), here


def locate_runs(documents: Dataset[Any], name: str, dtype: np.dtype[Any], starts: Integers) -> Runs | None:
    """Return where the tokens of a field lie; None if documents must be read."""
    tables: dict[int, tuple[int, Segments]] = {}
    parts: list[tuple[Integers, ...]] = []
    if documents.in_python:
        return None
    for numbers in _chunks(starts, dtype.itemsize):
        table, which, first, size = (np.empty(len(numbers), np.int64) for _ in range(4))
        for rows, column, here in _columns(documents, numbers, name):
            if not isinstance(column, Ragged) or column.shapes is not None or column.dtype != dtype:
                return None
            ranges = column.ranges
            table[here], known = tables.setdefault(id(rows), (len(tables), ranges.segments))
            if known is not ranges.segments:
                return None  # each read has a new table: its values were copied
            which[here], first[here], size[here] = ranges.which, ranges.begin, column.lengths
        check_lengths(name, numbers, starts, size)
        begin, there = starts[numbers], np.flatnonzero(size)
        base = first - begin * dtype.itemsize
        parts.append(_joined(*(one[there] for one in (begin, table, which, base))))
    if not parts:
        return None
    begins, table, which, base = _joined(*map(np.concatenate, zip(*parts, strict=True)))
    return Runs([known for _, known in tables.values()], np.append(begins, starts[-1]), table, which, base)


def _joined(
    begin: Integers, table: Integers, which: Integers, base: Integers
) -> tuple[Integers, Integers, Integers, Integers]:
    """Join documents (or runs) that lie end to end: those in one buffer that have the same base."""
    new = np.ones(len(begin), np.bool_)
    new[1:] = (np.diff(table) != 0) | (np.diff(which) != 0) | (np.diff(base) != 0)
    return begin[new], table[new], which[new], base[new]


def _columns(rows: Any, numbers: Integers, name: str) -> Iterator[tuple[AbstractRows, Any, Integers]]:
    """Read a field of rows; yield each part that has some of the rows, its column, and their places in `numbers`."""
    if isinstance(rows, MediaRows):
        rows = rows.below
    if isinstance(rows, RenamedRows):
        yield from _columns(rows.below, numbers, rows.old_name(name))
    elif isinstance(rows, ConcatRows):
        for part, positions, here in rows.shares(numbers):
            for found, column, there in _columns(part, positions, name):
                yield found, column, here[there]
    elif hasattr(rows, "through"):  # a dataset
        yield from _columns(rows.rows, rows.order.rows(numbers), name)
    else:
        yield rows, rows.read(numbers, [name]).data[name], np.arange(len(numbers))


def _chunks(starts: Integers, item: int) -> Iterator[Integers]:
    """Yield the numbers of all documents: first one alone, then as many as may be copied at once."""
    count, first = len(starts) - 1, 0
    while first < count:
        most = int(np.searchsorted(starts, starts[first] + _CHUNK_BYTES // item, "right")) - 1
        last = min(max(first + 1, most), first + _CHUNK_ROWS, count) if first else 1
        yield np.arange(first, last)
        first = last


def check_lengths(name: str, numbers: Integers, starts: Integers, found: Integers) -> None:
    """Raise if documents have other lengths now than when the first token of each was computed."""
    expected = starts[numbers + 1] - starts[numbers]
    if not np.array_equal(expected, found):
        at = int((expected != found).argmax())
        raise SchemaError(
            f"expected {expected[at]} values as before, got {found[at]} - at sample {numbers[at]}, field {name}; "
            "the data has changed, open it again"
        )
