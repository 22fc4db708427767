"""Datasets made of datasets: `concat` puts samples one after another, `join` fields side by side, `mix` mixes them.

`ConcatRows` and `JoinRows` are their rows; a part may be any view of any format, and `concat_rows` checks that the
parts fit together. A mixture is in exact proportions (`temperature` makes them of sizes, `reweighted` changes them):
its rows are those of the sources, one after another, and its order is a `Mix`, which computes the source and the row of
each position.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import Table
from shardex.dataset.dataset import Dataset
from shardex.errors import ArgumentError, SchemaError
from shardex.features import (
    Array,
    Audio,
    ClassLabel,
    Feature,
    Features,
    Image,
    Media,
    Optional,
    TimeFeature,
    Value,
    conversions,
    unwrap_optional,
)
from shardex.kernel import MISSING, Columns, Integers, Masked, digest
from shardex.layers import (
    Decoding,
    common_decodings,
    decode_alike,
    decodings_of,
    innermost_rows,
    typed_view,
    with_decodings,
)
from shardex.order import Mix, whole_weights
from shardex.rows import AbstractRows, SideBySideRows
from shardex.samples import T_co

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset


@overload
def concat(datasets: Sequence[Dataset[T_co]], /) -> Dataset[T_co]: ...
@overload
def concat(*datasets: Dataset[T_co]) -> Dataset[T_co]: ...
def concat(*datasets: Any) -> Dataset[Any]:
    """Return the samples of all datasets, one after another; all must have the same fields. ``a + b`` does the same.

    >>> from shardex import open
    >>> a, b = open([{"x": 1}]), open([{"x": 2}, {"x": 3}])
    >>> len(concat(a, b)), len(concat([a, b])), len(a + b)
    (3, 3, 3)
    """
    return Dataset(concat_rows(_checked(datasets)))


@overload
def join(datasets: Sequence[Dataset[Any]], /) -> Dataset: ...
@overload
def join(*datasets: Dataset[Any]) -> Dataset: ...
def join(*datasets: Any) -> Dataset:
    """Return the fields of all datasets, side by side; all must have the same length and different fields.

    >>> from shardex import open
    >>> join(open([{"x": 1}]), open([{"y": 2}]))[0]
    DictSample(x=1, y=2)
    """
    parts = _checked(datasets)
    seen: set[str] = set()
    for number, other in enumerate(parts):
        if len(other) != (length := len(parts[0])):
            raise ArgumentError(
                f"expected {length} samples as in the first dataset, got {len(other)} - at dataset {number}"
            )
        if both := seen & set(other.fields):
            raise SchemaError(f"expected fields of different names, got {min(both)!r} twice - at dataset {number}")
        seen |= set(other.fields)
    every: dict[str, Decoding] = {}
    for part in parts:
        every |= decodings_of(part.rows, part.chosen)
    return Dataset(with_decodings(JoinRows([part.stored for part in parts]), every))


def _checked(datasets: tuple[Any, ...]) -> list[Dataset[Any]]:
    """Return the datasets, passed one by one or in one list."""
    every = list(datasets[0]) if len(datasets) == 1 and isinstance(datasets[0], list | tuple) else list(datasets)
    if not every:
        raise ArgumentError("expected at least one dataset, got none")
    for number, one in enumerate(every):
        if not isinstance(one, Dataset):
            raise ArgumentError(f"expected datasets as arguments, got {type(one).__name__} - at argument {number}")
    return every


class ConcatRows(AbstractRows):
    """The rows of several datasets, one after another."""

    def __init__(self, parts: Sequence[Dataset[Any]]) -> None:
        self.parts = list(parts)
        self.starts: Integers = np.cumsum([0, *map(len, self.parts)], dtype=np.int64)

    @cached_property
    def _starts(self) -> list[int]:
        """`starts` for a search without arrays, which for one row is faster."""
        found: list[int] = self.starts.tolist()
        return found

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def features(self) -> Features:
        """Features of the first part, which has the fields of all; optional if they are in any part."""
        first = self.parts[0].features
        if not self._optional:
            return first
        return Features({name: Optional(one) if name in self._optional else one for name, one in first.items()})

    @cached_property
    def _optional(self) -> frozenset[str]:
        """Fields that are optional in some parts but not in all."""
        every = [{n for n, one in part.features.items() if one.optional} for part in self.parts]
        return frozenset(set().union(*every)) - every[0].intersection(*every)

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with stored media in the first part, without those that another part has decoded."""
        names = [frozenset(part.media_fields) for part in self.parts]
        return [name for name in self.parts[0].media_fields if all(name in some for some in names)]

    @property
    def stored(self) -> AbstractRows:
        """The stored rows of all parts."""
        parts = [part.stored for part in self.parts]
        return self if all(map(operator.is_, parts, self.parts)) else self.of(parts)

    def stored_feature(self, name: str) -> Feature | None:
        """The stored feature of the field if all parts have the same one, otherwise None."""
        first, *others = [part.stored_feature(name) for part in self.parts]
        return first if all(decode_alike(first, one) for one in others) else None

    def of(self, parts: Sequence[Dataset[Any]]) -> ConcatRows:
        """Return rows like these of other parts."""
        return ConcatRows(parts)

    @property
    def in_python(self) -> bool:
        """True if it is true for any part."""
        return any(part.in_python for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of all parts."""
        return digest("concat", [part.fingerprint for part in self.parts])

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata that are equal in all parts."""
        first, *others = (part.metadata for part in self.parts)
        return {name: value for name, value in first.items() if all(one.get(name, MISSING) == value for one in others)}

    def shares(self, rows: Integers) -> Iterator[tuple[Dataset[Any], Integers, Integers]]:
        """Yield each part that has some of the rows, their positions in it, and their places in `rows`."""
        which = np.searchsorted(self.starts, rows, "right") - 1
        for number in np.unique(which).tolist() or [0]:
            here = np.flatnonzero(which == number)
            yield self.parts[number], rows[here] - self.starts[number], here

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the rows of each part from it, and put the columns together."""
        shares = list(self.shares(rows))
        parts = [self._as_optional(part.read(positions, fields)) for part, positions, _ in shares]
        return Columns.scatter(parts, [here for _, _, here in shares])

    def _as_optional(self, columns: Columns) -> Columns:
        """Return columns of a part in the form that they have in parts where the field is optional."""
        if not (names := self._optional & columns.data.keys()):
            return columns
        data = columns.data.items()
        return Columns(
            {n: Masked.whole(c) if n in names and not isinstance(c, list) else c for n, c in data}, len(columns)
        )

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the rows of each part."""
        for part, positions, _ in self.shares(rows[(rows >= 0) & (rows < len(self))]):
            part.advise(positions, fields)

    def shards(self, rows: Integers) -> list[str]:
        """File names from the parts."""
        found = [""] * len(rows)
        for part, positions, here in self.shares(rows):
            for place, name in zip(here.tolist(), part.shards(positions), strict=True):
                found[place] = name
        return found

    @property
    def extracted(self) -> Features:
        """Extracted columns that all parts have."""
        first, *others = self.parts
        return Features({n: f for n, f in first.extracted.items() if all(n in part.extracted for part in others)})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Columns of all parts, one after another."""
        return conversions.concat_tables(part.sql_columns(names) for part in self.parts)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Ask each part."""
        return np.concatenate([part.present(name) for part in self.parts])

    def lengths(self, name: str) -> Integers:
        """Ask each part."""
        return np.concatenate([part.lengths(name) for part in self.parts])

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read from the part that has the row."""
        number = bisect_right(self._starts, row) - 1
        return self.parts[number].sample(row - self._starts[number], fields)


class JoinRows(SideBySideRows):
    """The fields of several datasets of one length, side by side."""

    def __init__(self, parts: Sequence[Dataset[Any]]) -> None:
        super().__init__({name: part for part in parts for name in part.fields})
        self.parts = list(parts)

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def features(self) -> Features:
        """Features of all parts."""
        return Features({name: feature for part in self.parts for name, feature in part.features.items()})

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with stored media in any part."""
        return [name for part in self.parts for name in part.media_fields]

    @property
    def stored(self) -> AbstractRows:
        """The stored rows of all parts."""
        parts = [part.stored for part in self.parts]
        return self if all(map(operator.is_, parts, self.parts)) else JoinRows(parts)

    def stored_feature(self, name: str) -> Feature | None:
        """The stored feature in the part that has the field."""
        return next((part.stored_feature(name) for part in self.parts if name in part.features), None)

    @property
    def in_python(self) -> bool:
        """True if it is true for any part."""
        return any(part.in_python for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprints of all parts and the names of their fields."""
        return digest("join", [(part.fingerprint, sorted(part.fields)) for part in self.parts])

    def shards(self, rows: Integers) -> list[str]:
        """The files of the first part."""
        return self.parts[0].shards(rows)

    @property
    def extracted(self) -> Features:
        """Extracted columns of all parts, except those named like a field."""
        every = {name: feature for part in reversed(self.parts) for name, feature in part.extracted.items()}
        return Features({name: feature for name, feature in every.items() if name not in self._table_of})

    def _table_with(self, name: str) -> Table:
        if name in self._table_of:
            return self._table_of[name]
        return next(part for part in self.parts if name in part.extracted)


def _check_same_types(first: Dataset[Any], other: Dataset[Any], number: int) -> None:
    """Raise if numbers or times have different types, which a batch of samples of both datasets could not stack."""
    if not len(first) or not len(other):
        return
    for name, feature in first.features.items():
        wanted, found = _stacked_feature(feature), _stacked_feature(other.features[name])
        if wanted != found and None not in (wanted, found):
            remedy = "open it with that schema, or write it again with it (sx.write)"
            known, other_type = str(wanted), str(found)
            if isinstance(wanted, ClassLabel) and isinstance(found, ClassLabel):
                known, other_type = _classes(wanted.names, found.names)
                remedy = "write it again with that schema: sx.write converts classes by name"
            raise SchemaError(
                f"expected {known} as in the first dataset, got {other_type} - at dataset {number}, field {name}; "
                f"{remedy}"
            )


def _classes(*both: Sequence[str]) -> tuple[str, str]:
    """Return the names of classes of two features from a little before their first difference on, for messages."""
    same = next((k for k, (one, other) in enumerate(zip(*both, strict=False)) if one != other), min(map(len, both)))
    begin = max(0, same - 2)
    shown = [["..."] * (begin > 0) + [*names[begin:][:8]] + ["..."] * (len(names) > begin + 8) for names in both]
    return f"the classes {', '.join(shown[0])}", f"the classes {', '.join(shown[1])}"


def _stacked_feature(feature: Feature) -> Feature | None:
    """Return the feature of a field of numbers, arrays or times, without `Optional`; None for other fields."""
    inner = unwrap_optional(feature)
    if isinstance(inner, Image | Audio):
        return replace(inner, format=type(inner)().format)  # what arrays are encoded as does not matter here
    return inner if isinstance(inner, Value | Array | ClassLabel | TimeFeature | Media) else None


def concat_rows(datasets: Sequence[Dataset[Any]]) -> AbstractRows:
    """Return the rows of all datasets, one after another, with their sample type if all have the same one."""
    first = datasets[0].fields
    for number, other in enumerate(datasets):
        if sorted(other.fields) != sorted(first):
            known, found = ", ".join(first), ", ".join(other.fields)
            raise SchemaError(
                f"expected the fields of the first dataset ({known}), got {found} - at dataset {number}; choose those "
                "that all have with .select(...)"
            )
        _check_same_types(datasets[0], other, number)
    parts = [other if other.fields == first else other.select(*first) for other in datasets]
    return combined(parts, lambda stored: with_common_type(ConcatRows(stored), stored))


def combined(parts: Sequence[Dataset[Any]], make: Callable[[Sequence[Dataset[Any]]], AbstractRows]) -> AbstractRows:
    """Return `make(parts)`; if all parts decode media in the same way, media are decoded above what `make` returns."""
    decodings = common_decodings([(part.rows, part.chosen) for part in parts])
    return make(parts) if not decodings else with_decodings(make([part.stored for part in parts]), decodings)


def with_common_type(rows: AbstractRows, parts: Sequence[Dataset[Any]]) -> AbstractRows:
    """Return rows made of datasets with the sample type of these, if all have the same one."""
    kinds = {part.sample_type for part in parts}
    return typed_view(rows, None, kinds.pop()) if len(kinds) == 1 else rows


Weights = Mapping[str, float] | Sequence[float]
"""Weights by name, or in the order of the sources."""


class MixRows(ConcatRows):
    """The rows of several datasets with names, one after another."""

    def __init__(self, parts: Sequence[Dataset[Any]], names: Sequence[str]) -> None:
        super().__init__(parts)
        self.names = list(names)

    def of(self, parts: Sequence[Dataset[Any]]) -> MixRows:
        """Return the same mixture of other parts."""
        return MixRows(parts, self.names)

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each source."""
        return dict(zip(self.names, map(len, self.parts), strict=True))


def mix(
    datasets: Mapping[str, Dataset[T_co]] | Sequence[Dataset[T_co]],
    weights: Weights | None = None,
    *,
    seed: int | None = None,
    length: int | None = None,
) -> Dataset[T_co]:
    """Mix several datasets with the same fields, in proportions that hold in every section of the mixture.

    Without weights the proportions are those of the lengths. A source that is used up starts again: in the same order
    or, with a seed, in a new random order on each pass. An epoch has `length` samples (default: as many as all sources
    together); the next epoch continues where it stopped.

    >>> from shardex import open
    >>> web, books = open([{"x": k} for k in range(100)]), open([{"x": -k} for k in range(1, 3)])
    >>> [sample.x for sample in mix({"web": web, "books": books}, {"web": 0.75, "books": 0.25}, length=12)]
    [0, 1, 2, -1, 3, 4, 5, -2, 6, 7, 8, -1]
    """
    named = _named(datasets)
    parts = cast(ConcatRows, innermost_rows((whole := concat(list(named.values()))).rows)).parts
    rows = MixRows(parts, list(named))
    if length is None:
        length = len(rows)
    if length < 0:
        raise ArgumentError(f"expected a length of 0 or more, got {length}")
    if seed is not None:
        seed = operator.index(seed)
    start = 0, _whole(rows.sizes, weights)
    order = Mix(tuple(rows.sizes.values()), (start,), length, seed)
    mixed = with_decodings(with_common_type(rows, parts), decodings_of(whole.rows))
    return Dataset(mixed, order, notes=(f"mixed from {', '.join(named)}",))


def reweighted(mixture: Dataset[T_co], position: int, weights: Weights) -> Dataset[T_co]:
    """Return a mixture with new weights from a position on (counted over all epochs); each source continues.

    >>> from shardex import open
    >>> both = mix([open([{"x": k} for k in range(100)]), open([{"x": -1}])], [1, 1], length=8)
    >>> [sample.x for sample in reweighted(both, 4, [1, 0])]
    [-1, 0, -1, 1, 2, 3, 4, 5]
    """
    order, rows = mixture.order, innermost_rows(mixture.rows)
    if not isinstance(order, Mix) or not isinstance(rows, MixRows):
        raise ArgumentError(f"expected a dataset made by mix, got {mixture!r}; reweight it before making views")
    return Dataset(mixture.rows, order.reweighted(position, _whole(rows.sizes, weights)), mixture.chosen, mixture.notes)


def temperature(
    sources: Mapping[str, Dataset[Any] | int] | Sequence[Dataset[Any] | int], value: float
) -> dict[str, float]:
    """Return weights proportional to size to the power ``1 / value``: 1 keeps proportions, infinity makes all equal.

    >>> temperature({"web": 900, "books": 100}, 2)
    {'web': 0.75, 'books': 0.25}
    """
    sizes = {name: len(source) if isinstance(source, Dataset) else source for name, source in _named(sources).items()}
    if not value > 0:
        raise ArgumentError(f"expected a temperature above 0, got {value}")
    if not sizes or min(sizes.values()) < 0 or not (largest := max(sizes.values())):
        raise ArgumentError(f"expected sources of which at least one has samples, got sizes {sizes}")
    powers = {name: (size / largest) ** (1 / value) if size else 0.0 for name, size in sizes.items()}
    total = math.fsum(powers.values())
    return {name: power / total for name, power in powers.items()}


def _named(sources: Any) -> dict[str, Any]:
    """Return sources by name; those of a list are numbered."""
    if isinstance(sources, Mapping):
        return dict(sources)
    if isinstance(sources, Sequence):
        return {str(number): source for number, source in enumerate(sources)}
    raise ArgumentError(f"expected sources by name or in a list, got {type(sources).__name__}")


def _whole(sizes: Mapping[str, int], weights: Weights | None) -> tuple[int, ...]:
    """Return integer weights in the order of the sources; by size if none are given."""
    whole = whole_weights(list(sizes.values()) if weights is None else _in_order(list(sizes), weights))
    for (name, size), weight in zip(sizes.items(), whole, strict=True):
        if weight and not size:
            raise ArgumentError(
                f"expected samples in every source that has a weight, got none - at source {name!r}; "
                "leave it out or give it the weight 0"
            )
    return whole


def _in_order(names: list[str], weights: Weights) -> list[float]:
    if isinstance(weights, Mapping):
        if weights.keys() != set(names):
            raise ArgumentError(f"expected a weight for each of {', '.join(names)}, got {', '.join(map(str, weights))}")
        return [weights[name] for name in names]
    if len(weights) != len(names):
        raise ArgumentError(f"expected {len(names)} weights, one for each of {', '.join(names)}, got {len(weights)}")
    return list(weights)
