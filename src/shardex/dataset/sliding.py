"""Sliding windows over the rows of a table as samples: `SlidingRows`, which `Dataset.sliding` makes.

The rows are sorted by time inside of groups. A window is a run of consecutive rows of one group; its sample has the
stacked values of each field: those of the first rows (the history) and of the rows that follow (the future). Stored are
two arrays of numbers: the rows in their order, and where each window begins. Values are read when a window is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.dataset.split_views import sorted_runs
from shardex.dataset.token_stream import without_class
from shardex.dataset.views import ComposedRows, field_names
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Array, ClassLabel, Feature, Features, TimeFeature, Value, unwrap_optional
from shardex.kernel import Column, Columns, Integers, Masked, digest, ends_of
from shardex.rows import whole_number

if TYPE_CHECKING:
    from shardex.dataset.dataset import Dataset

Missing = Literal["drop", "keep", "error"]
"""What to do with windows in which a value is missing, None or NaN."""
FUTURE = "_future"
"""Ends the name of the field that has the values after the history."""
_MOST = 1 << 60
"""Largest length, horizon and stride: their sums fit into 64 bits."""


@dataclass(frozen=True)
class SlidingOptions:
    """Arguments of `Dataset.sliding`."""

    length: int
    horizon: int
    stride: int
    group: tuple[str, ...]
    time: str | None
    missing: Missing

    @property
    def need(self) -> int:
        """Rows of a window."""
        return self.length + self.horizon

    def begins(self, sizes: Integers) -> Integers:
        """Return the begin of every window in runs of these sizes that lie end to end.

        >>> SlidingOptions(2, 1, 2, (), None, "keep").begins(np.array([5, 2, 3]))
        array([0, 2, 7])
        """
        counts: Integers = np.where(sizes >= self.need, (sizes - self.need) // self.stride + 1, 0)
        first, begin = ends_of(counts), ends_of(sizes)
        inside = np.arange(int(first[-1])) - np.repeat(first[:-1], counts)
        return np.repeat(begin[:-1], counts) + inside * self.stride


def sliding_rows(
    view: Dataset[Any],
    length: int,
    horizon: int,
    stride: int,
    group: str | Sequence[str] | None,
    time: str | None,
    missing: Missing,
) -> tuple[SlidingRows, str]:
    """Return the windows of a view, and a text for their `repr`."""
    if missing not in get_args(Missing):
        raise ArgumentError(f"expected one of {', '.join(map(repr, get_args(Missing)))} for missing, got {missing!r}")
    names = () if group is None else tuple(field_names([group]))
    sizes = whole_number("length", length, 1), whole_number("horizon", horizon, 0), whole_number("stride", stride, 1)
    if max(sizes) > _MOST:
        raise ArgumentError(f"expected at most {_MOST} for length, horizon and stride, got {max(sizes)}")
    options = SlidingOptions(*sizes, names, time, missing)
    after = f" and {options.horizon} after them" * bool(options.horizon)
    text = f"windows of {options.length} rows{after}{f' every {options.stride}' * (options.stride > 1)}"
    return SlidingRows(without_class(view), options), text


class SlidingRows(ComposedRows):
    """Windows of the rows of a dataset, sorted by time inside of groups."""

    def __init__(
        self, source: Dataset[Any], options: SlidingOptions, plan: tuple[Integers | None, Integers] | None = None
    ) -> None:
        self._source, self.options = source, options
        features = source.features
        check_fields(list(features), options.group)
        if options.time is not None:
            check_fields(list(features), [options.time])
        self._stacked = {n: array for n, one in features.items() if n not in options.group and (array := _stack(one))}
        """Feature of the values of one row, for each field that is stacked."""
        self._check_names()
        self._order, self._begins = self._plan() if plan is None else plan

    def __reduce__(self) -> tuple[Any, ...]:
        return SlidingRows, (self._source, self.options, (self._order, self._begins))

    def __len__(self) -> int:
        return len(self._begins)

    def _check_names(self) -> None:
        if not self._stacked:
            found = f"besides the group, got {self._source.features}"
            raise SchemaError(f"expected a field of numbers, times or arrays of one shape {found}")
        taken = {*self._stacked, *self.options.group}
        for name in self._stacked if self.options.horizon else ():
            if name + FUTURE in taken:
                raise SchemaError(
                    f"expected no field of the name that the future of {name!r} has, got {name + FUTURE!r}; rename it"
                )

    @property
    def source(self) -> Dataset[Any]:
        """The rows that windows are made of."""
        return self._source

    # -- which rows -----------------------------------------------------------------------------------------------

    def _plan(self) -> tuple[Integers | None, Integers]:
        """Return the sorted rows (None if they are sorted as they are), and where each window begins among them."""
        options = self.options
        order, starts = sorted_runs(self._source, list(options.group) or None, options.time)
        begins = options.begins(np.diff(starts))
        if options.missing != "keep" and (bad := self._incomplete()) is not None:
            before = ends_of(bad[order].astype(np.int64))
            broken = before[begins + options.need] > before[begins]
            if options.missing == "error" and broken.any():
                first = order[int(begins[broken][0]) :]
                raise SchemaError(
                    f"expected a value in every row of a window, got none in {int(broken.sum())} of {len(begins)} "
                    f'windows, the first is sample {first[bad[first]][0]}; missing="drop" leaves these windows out'
                )
            begins = begins[~broken]
        return (None if bool((np.diff(order) == 1).all()) else order), begins

    def _incomplete(self) -> NDArray[np.bool_] | None:
        """Return for each row whether a stacked value is missing or NaN; None if no field can have such values."""
        features = self._source.features
        names = [
            name
            for name, array in self._stacked.items()
            if features[name].optional or np.dtype(array.dtype).kind in "fcmM"
        ]
        if not names or not len(self._source):
            return None
        chunks = self._source.select(names).chunks()
        return np.concatenate([np.any([_gaps(one) for one in chunk.data.values()], axis=0) for chunk in chunks])

    def _positions(self, rows: Integers, first: int, count: int) -> Integers:
        """Return the positions of some rows of each window, one window after another."""
        places = (self._begins[rows, None] + np.arange(first, first + count)).reshape(-1)
        return places if self._order is None else self._order[places]

    # -- rows -----------------------------------------------------------------------------------------------------

    @cached_property
    def features(self) -> Features:
        """The fields of the group, then the stacked fields, then what follows them."""
        options, below = self.options, self._source.features
        found: dict[str, Feature] = {name: unwrap_optional(below[name]) for name in options.group}
        for end, count in (("", options.length), (FUTURE, options.horizon)):
            if count:
                found.update(
                    {name + end: Array(one.dtype, (count, *(one.shape or ()))) for name, one in self._stacked.items()}
                )
        return Features(found)

    @cached_property
    def fingerprint(self) -> str:
        """Made from the rows, their order, and all options."""
        return digest("sliding", self._source.fingerprint, self.options)

    def _needs(self, fields: Sequence[str] | None) -> Iterator[tuple[dict[str, str], int, int]]:
        """Yield fields of the rows by their names in samples, and the first row and the number of rows to read."""
        options, names = self.options, check_fields(list(self.features), fields)
        future = {n: n.removesuffix(FUTURE) for n in names if n not in self._stacked and n not in options.group}
        yield {name: name for name in names if name in options.group}, 0, 1
        yield {name: name for name in names if name in self._stacked}, 0, options.length
        yield future, options.length, options.horizon

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read all rows of these windows at once, and stack them."""
        rows, found = self.check_rows(rows), dict[str, Column]()
        for names, first, count in self._needs(fields):
            if names:
                below = self._read_rows(self._positions(rows, first, count), list(names.values()))
                for name, old in names.items():
                    found[name] = self._column(old, below.data[old], len(rows), count)
        return Columns(found, len(rows)).select(check_fields(list(self.features), fields))

    def _read_rows(self, positions: Integers, names: list[str]) -> Columns:
        if not self._source.in_python:
            return self._source.read(positions, names)
        once, where = np.unique(positions, return_inverse=True)  # rows of overlapping windows are decoded once
        return self._source.read(once, names).take(where)

    def _column(self, name: str, column: Column, windows: int, count: int) -> Column:
        """Return the values of a field, read for the rows, as one array for each window."""
        feature = self._stacked.get(name)
        if isinstance(column, Masked):
            if not column.mask.all() and (feature is None or np.dtype(feature.dtype).kind not in "fcmM"):
                raise SchemaError(
                    f"expected a value in every row of a window, got none in {int((~column.mask).sum())} rows - at "
                    f'field {name}, which has no NaN; missing="drop" leaves such windows out, drop({name!r}) the field'
                )
            column = column.column
        if feature is None:
            return column
        return np.asarray(column, feature.dtype).reshape(windows, count, *(feature.shape or ()))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the rows of these windows."""
        rows = rows[(rows >= 0) & (rows < len(self))]
        for names, first, count in self._needs(fields):
            if names:
                self._source.advise(self._positions(rows, first, count), list(names.values()))

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds the first row of each window."""
        return self._source.shards(self._positions(rows, 0, 1))


def _stack(feature: Feature) -> Array | None:
    """Return the values of a field in one row as an array of one shape; None if they cannot be stacked.

    >>> from shardex.features import Optional
    >>> str(_stack(Optional(Value("float32")))), str(_stack(Array("int8", (2, 3)))), _stack(Array("int8", (None,)))
    ('float32[]', 'int8[2, 3]', None)
    """
    feature = unwrap_optional(feature)
    if isinstance(feature, Value | TimeFeature):
        return Array(feature.dtype, ())
    if isinstance(feature, ClassLabel):
        return Array("int64", ())
    return feature if isinstance(feature, Array) and feature.dtype is not None and feature.fixed else None


def _gaps(column: Column) -> NDArray[np.bool_]:
    """Return for each row of a column whether its value is missing, or NaN in any element."""
    if isinstance(column, list):
        return np.array([value is None or bool(np.any(np.asarray(value) != value)) for value in column], np.bool_)
    values = column.values if isinstance(column, Masked) else column
    gaps = ~column.mask if isinstance(column, Masked) else np.zeros(len(column), np.bool_)
    if isinstance(values, np.ndarray) and values.dtype.kind in "fcmM":
        gaps |= np.isnan(np.asarray(values)).reshape(len(values), -1).any(axis=1)
    return gaps
