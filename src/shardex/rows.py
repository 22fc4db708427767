"""Rows: numbered samples that are read many at a time. A dataset is a view of rows.

`Rows` is the protocol: `len` and `read(rows, fields)`. Shards of any format, views, joins and a user's own class have
these two. `AbstractRows` is the base class of all rows of this package: a `Table` (`shardex.columns`) in which the same
two methods are abstract, and everything else that datasets, loaders and SQL use has a default. `AdaptedRows` adds these
defaults to a user's two-method object; `Dataset` wraps such objects once, so no other module tests which methods rows
have. `SideBySideRows` put fields of several tables side by side; `RenamedFields` give fields other names.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import Table, check_fields, tables
from shardex.errors import ArgumentError, RowError, SchemaError
from shardex.features import Array, Feature, Features, Json, Media, contains, conversions, infer, unwrap_optional
from shardex.features import Sequence as ListOf
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged, digest
from shardex.progress import Bar

__all__ = [
    "AbstractRows",
    "AdaptedRows",
    "Keyed",
    "RenamedFields",
    "Rows",
    "SideBySideRows",
    "are_positions",
    "lengths_in",
    "media_in",
    "normalise",
    "remember",
    "slice_indices",
    "whole_number",
]

K = TypeVar("K")
V = TypeVar("V")
_MOST_KEPT = 64
"""Number of lists of fields for which the plan of reading a single sample is kept: a loop asks for one or two."""
_INFER_FROM = 16
"""Number of samples, from the first on, from which features are inferred."""
_CHUNK = 4096
"""Rows per read when all rows are read for SQL."""
_LAZY_CHUNK = 1 << 16
"""Rows per read for the lengths of arrays whose values are copied later, or never."""


@runtime_checkable
class Rows(Protocol):
    """Protocol of samples by row number; any object with these two methods can be opened as a dataset."""

    def __len__(self) -> int:
        """Number of rows."""

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Return these fields (None: all) of these rows, in this order; row numbers are from 0 to len - 1."""


class Keyed(Protocol):
    """Finds rows by the value of the key field."""

    @property
    def key(self) -> str:
        """Name of the key field."""

    def rows_of(self, keys: Any) -> Integers:
        """Return the row number of each key."""

    def row_of(self, key: Any) -> int:
        """Return the row number of one key."""


class AbstractRows(Table):
    """Base class of rows: subclasses implement `__len__` and `read`, and may override the defaults.

    >>> class Squares(AbstractRows):
    ...     def __len__(self):
    ...         return 5
    ...     def read(self, rows, fields=None):
    ...         return Columns({name: rows**2 for name in check_fields(["x"], fields)}, len(rows))
    >>> print(Squares().features); Squares().sample(3)
    x int64
    {'x': 9}
    """

    __slots__ = ()

    @property
    def features(self) -> Features:
        """Name and feature of each field; by default inferred from the first samples."""
        return infer(self.read(np.arange(min(len(self), _INFER_FROM))).to_samples())

    @property
    def fingerprint(self) -> str:
        """A short text that changes when the data changes and is the same in every process."""
        return digest(type(self).__qualname__, len(self))

    @property
    def in_python(self) -> bool:
        """True if reading holds the GIL most of the time: processes speed it up, threads do not."""
        return True

    @property
    def key_lookup(self) -> Keyed | None:
        """Finds rows by key; None if the data has no key field."""
        return None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What was stored with the data about all of it, for example the tokenizer of tokens; by default nothing."""
        return {}

    def shards(self, rows: Integers) -> list[str]:
        """Path of the file that holds (the first field of) each row, for error messages; empty if there is none."""
        return [""] * len(rows)

    # -- media ---------------------------------------------------------------------------------------------

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with images, audio or video as stored bytes, found without reading samples; by default in features."""
        return media_in(self.features)

    @property
    def stored(self) -> AbstractRows:
        """The same rows with media as they are stored, for whatever copies them; by default these rows themselves."""
        return self

    def stored_feature(self, name: str) -> Feature | None:
        """The feature that decodes the stored bytes of a field of media to the values of these rows, or None."""
        return self.features.get(name)

    # -- whole columns -------------------------------------------------------------------------------------

    @property
    def extracted(self) -> Features:
        """Columns that only SQL sees: values extracted from the samples when they were indexed."""
        return Features({})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return whole fields (or extracted columns) as SQL sees them; by default all rows are read."""
        return conversions.samples_table(lambda: self._chunks(names), self.features.select(names))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return for each row whether it has a value for a field; by default all rows are read."""
        return np.concatenate([_is_present(columns, name) for columns in self._chunks([name])])

    def lengths(self, name: str) -> Integers:
        """Return the length of the array of a field in each row, 0 for a missing one: its size along its first axis.

        By default arrays are read; where their offsets are stored, as in native datasets, their values are not.
        """
        return _array_lengths(self, name)

    def _chunks(self, names: Sequence[str]) -> Iterator[Columns]:
        """Read all rows in chunks (at least one); a progress bar appears if that takes long."""
        return _read_all(self, names, _CHUNK, "query")


def _read_all(table: Table, names: Sequence[str], size: int, title: str) -> Iterator[Columns]:
    with Bar(total=len(table), unit=" samples", unit_scale=True, desc=title, disable=None, delay=1) as bar:
        for begin in range(0, max(1, len(table)), size):
            some = np.arange(begin, min(begin + size, len(table)))
            yield table.read(some, names)
            bar.update(len(some))


def _is_present(columns: Columns, name: str) -> NDArray[np.bool_]:
    column = columns.data[name]
    if isinstance(column, list):
        return np.array([value is not None and value is not MISSING for value in column], np.bool_)
    if isinstance(column, Masked):
        return column.mask
    return np.ones(len(columns), np.bool_)


def _array_lengths(table: Table, name: str) -> Integers:
    """Return the length of the array of a field in each row of a table, 0 for a missing one, by reading the rows.

    >>> from shardex.dataset import ListRows
    >>> _array_lengths(ListRows([{"x": [1, 2]}, {"x": [3]}]), "x")
    array([2, 1])
    """
    features = table.features
    check_fields(list(features), [name])
    feature = unwrap_optional(features[name])
    if not isinstance(feature, Array) or feature.shape == ():
        lists = isinstance(feature, Json | ListOf)
        remedy = f'; if these are lists of integers, open with schema={{"{name}": sx.Array("int64", (None,))}}'
        raise SchemaError(f"expected a field of arrays, got {feature} - at field {name}{remedy * lists}")
    if feature is features[name] and feature.shape and feature.shape[0] is not None:
        return np.full(len(table), feature.shape[0], np.int64)
    lazy = feature.ragged and not getattr(table, "in_python", False)
    chunks = _read_all(table, [name], _LAZY_CHUNK if lazy else _CHUNK, "lengths")
    try:
        return np.concatenate([_lengths(columns.data[name]) for columns in chunks])
    except (TypeError, IndexError):  # of an array without dimensions
        raise SchemaError(f"expected arrays of at least one dimension, got single values - at field {name}") from None


def _lengths(column: Column) -> Integers:
    if isinstance(column, Masked):
        return np.where(column.mask, _lengths(column.column), 0)
    if isinstance(column, Ragged):
        return column.lengths if column.shapes is None else column.shapes[:, 0]
    if isinstance(column, list):
        return np.array([0 if value is None or value is MISSING else len(value) for value in column], np.int64)
    return np.full(len(column), column.shape[1], np.int64)


class AdaptedRows(AbstractRows):
    """A user's rows with the defaults of `AbstractRows` for everything that they do not have themselves.

    >>> class Plain:
    ...     def __len__(self): return 2
    ...     def read(self, rows, fields=None): return Columns({"x": rows})
    >>> AdaptedRows(Plain()).sample(1), AdaptedRows(Plain()).shards([0])
    ({'x': 1}, [''])
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        for name in ("sample", "advise", "shards", "column", "sql_columns", "present", "lengths"):
            if (method := getattr(rows, name, None)) is not None:
                setattr(self, name, method)

    def __reduce__(self) -> tuple[Any, ...]:
        return AdaptedRows, (self.rows,)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read from the user's rows."""
        return self.rows.read(rows, fields)

    @property
    def features(self) -> Features:
        """Features of the user's rows, or inferred."""
        found: Features | None = getattr(self.rows, "features", None)
        return super().features if found is None else found

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the user's rows, or one made of their type and length."""
        found: str | None = getattr(self.rows, "fingerprint", None)
        return digest(type(self.rows).__qualname__, len(self)) if found is None else found

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with media in the features of the user's rows; empty if these have none, as to infer them reads
        samples.
        """
        found: Features | None = getattr(self.rows, "features", None)
        return () if found is None else media_in(found)

    @property
    def in_python(self) -> bool:
        """True unless the user's rows say otherwise."""
        return bool(getattr(self.rows, "in_python", True))

    @property
    def extracted(self) -> Features:
        """Extracted columns of the user's rows, or none."""
        found: Features | None = getattr(self.rows, "extracted", None)
        return super().extracted if found is None else found

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the user's rows, or none."""
        found: Mapping[str, Any] | None = getattr(self.rows, "metadata", None)
        return {} if found is None else found


class SideBySideRows(AbstractRows):
    """Fields of several tables of one length, side by side. `table_of` names the table of each field.

    >>> from shardex.dataset import ListRows
    >>> tables = ListRows([{"x": 1}, {"x": 2}]), ListRows([{"y": 3}, {"y": 4}])
    >>> SideBySideRows({"x": tables[0], "y": tables[1]}).read(np.array([1]), ["y", "x"]).sample(0)
    {'y': 4, 'x': 2}
    """

    def __init__(self, table_of: Mapping[str, Table]) -> None:
        self._table_of = dict(table_of)
        self._names = list(table_of)
        first = next(iter(table_of.values()), None)
        alone = first is not None and all(table is first for table in table_of.values())
        self._only = first if first is not None and alone and list(first.features) == self._names else None
        """The table, if there is only one and it has the same fields."""
        self._shares: dict[tuple[str, ...] | None, tuple[list[str], list[tuple[Table, tuple[str, ...]]]]] = {}
        """The fields of single samples, and those of each table, by what was asked for."""
        if self._only is not None:
            self.sample = self._only.sample  # type: ignore[method-assign]  # one call less for each sample

    def __len__(self) -> int:
        return len(next(iter(self._table_of.values())))

    def _groups(self, names: Sequence[str]) -> Iterable[tuple[Table, list[str]]]:
        """Return each table with the requested fields that it has."""
        groups: dict[int, tuple[Table, list[str]]] = {}
        for name in names:
            table = self._table_of[name]
            groups.setdefault(id(table), (table, []))[1].append(name)
        return groups.values()

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read from each table the fields that it has; a single table reads all."""
        rows, names = np.ascontiguousarray(rows, np.int64), check_fields(self._names, fields)
        if self._only is not None:
            return self._only.read(rows, names)
        data: dict[str, Column] = {}
        for table, some in self._groups(names):
            data.update(table.read(rows, some).data)
        return Columns(data, len(rows)).select(names)

    def read_views(self, rows: Integers, fields: Sequence[str] | None, views: Collection[str]) -> Columns:
        """Read from each table the fields that it has, with views of mapped files."""
        rows, names = np.ascontiguousarray(rows, np.int64), check_fields(self._names, fields)
        data: dict[str, Column] = {}
        for table, some in self._groups(names):
            data.update(table.read_views(rows, some, views).data)
        return Columns(data, len(rows)).select(names)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one row from each table that has some of the fields."""
        key = fields if fields is None or type(fields) is tuple else tuple(check_fields(self._names, fields))
        if (share := self._shares.get(key)) is None:
            names = check_fields(self._names, key)
            shares = [(table, tuple(some)) for table, some in self._groups(names)]
            share = remember(self._shares, key, (names, shares))
        names, groups = share
        found: dict[str, Any] = {}
        for table, some in groups:
            found.update(table.sample(row, some))
        return {name: found[name] for name in names if name in found}

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields of each table."""
        for table, some in self._groups(check_fields(self._names, fields)):
            table.advise(rows, some)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The column of the table that has the field."""
        return self._table_of[name].column(name)

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Columns of all tables, not copied."""
        return tables.concat_columns(self._table_with(name).sql_columns([name]) for name in names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, from the table that has the field."""
        return self._table_with(name).present(name)

    def lengths(self, name: str) -> Integers:
        """Return the lengths of arrays, from the table that has the field."""
        (name,) = check_fields(self._names, [name])
        return lengths_in(self._table_of[name], name)

    def _table_with(self, name: str) -> Table:
        """The table that has a field or an extracted column."""
        return self._table_of[name]


class RenamedFields(AbstractRows):
    """Some fields of the rows below, under new names. `names` has the new name of each field by its old one."""

    below: AbstractRows

    def __init__(self, below: AbstractRows, names: Mapping[str, str]) -> None:
        self.below = below
        self._names = dict(names)
        self._old = {new: old for old, new in names.items()}
        self._lists: dict[tuple[str, ...] | None, tuple[str, ...]] = {}
        """The old names of the fields of single samples, by their new ones."""

    @property
    def features(self) -> Features:
        """Features of the rows below under the new names."""
        below = self.below.features
        return Features({new: below[old] for new, old in self._old.items()})

    @property
    def in_python(self) -> bool:
        """True if the rows below are read in Python."""
        return self.below.in_python

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprint of the rows below and the new names: a function of `map` above depends on names."""
        changed = {old: new for old, new in sorted(self._names.items()) if old != new}
        return digest("rename", self.below.fingerprint, changed) if changed else self.below.fingerprint

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with stored media in the rows below, under their new names."""
        return [self._names[old] for old in self.below.media_fields if old in self._names]

    def stored_feature(self, name: str) -> Feature | None:
        """The stored feature of a field in the rows below."""
        return self.below.stored_feature(self._old[name])

    def _old_names(self, fields: Sequence[str] | None) -> list[str]:
        return [self._old[name] for name in check_fields(list(self._old), fields)]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below and rename them."""
        found = self.below.read(rows, self._old_names(fields))
        return Columns({self._names[old]: column for old, column in found.data.items()}, len(found))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample below and rename its fields."""
        key = fields if fields is None or type(fields) is tuple else tuple(check_fields(list(self._old), fields))
        if (old_names := self._lists.get(key)) is None:
            old_names = remember(self._lists, key, tuple(self._old_names(key)))
        names = self._names
        return {names[old]: value for old, value in self.below.sample(row, old_names).items()}

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields below."""
        self.below.advise(rows, self._old_names(fields))

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The Arrow column of the field in the rows below."""
        return self.below.column(self._old[name])

    @property
    def extracted(self) -> Features:
        """Extracted columns of the rows below, under their own names."""
        return Features({name: one for name, one in self.below.extracted.items() if name not in self._old})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return the columns below under the new names."""
        return self.below.sql_columns([self._old.get(name, name) for name in names]).rename_columns(list(names))

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, from the rows below."""
        return self.below.present(self._old.get(name, name))

    def lengths(self, name: str) -> Integers:
        """Return the lengths of arrays, from the rows below."""
        return self.below.lengths(*self._old_names([name]))


def remember(made: dict[K, V], key: K, value: V) -> V:
    """Store a value in a small cache by its key and return it; a cache that is full is emptied before."""
    if len(made) >= _MOST_KEPT:
        made.clear()
    made[key] = value
    return value


def lengths_in(table: Table, name: str) -> Integers:
    """Return the length of the array of a field in each row of a table."""
    return table.lengths(name) if isinstance(table, AbstractRows) else _array_lengths(table, name)


def media_in(features: Mapping[str, Feature]) -> list[str]:
    """Return the names of fields that are or have images, audio or video.

    >>> from shardex.features import Image, Text
    >>> media_in({"image": Image(), "caption": Text()})
    ['image']
    """
    return [name for name, feature in features.items() if contains(feature, Media)]


# -- row numbers ------------------------------------------------------------------------------------------------


def normalise(where: Any, length: int) -> Integers:
    """Return the row numbers for an index: an int, a slice, a list, an array or a mask; negative ones from the end.

    >>> normalise([0, -1], 5).tolist(), normalise(slice(None, None, 2), 5).tolist()
    ([0, 4], [0, 2, 4])
    >>> normalise([False, True, True], 3).tolist()
    [1, 2]
    """
    if isinstance(where, slice):
        return np.arange(*slice_indices(where, length), dtype=np.int64)
    try:
        array = np.asarray(where)
    except ValueError:
        raise ArgumentError(f"expected row numbers, a slice or a mask, got {type(where).__name__}") from None
    if array.size == 0 and array.ndim == 1 and array.dtype.kind == "f":
        return np.empty(0, np.int64)
    if array.ndim == 1 and array.dtype.kind == "b":
        if len(array) != length:
            raise RowError(f"expected a mask of {length} truth values, got {len(array)}")
        return np.flatnonzero(array)
    if array.ndim > 1 or array.dtype.kind not in "iu":
        raise ArgumentError(f"expected row numbers, a slice or a mask, got {array.dtype} of {array.ndim} dimensions")
    return _from_start(array.reshape(-1), length)


def slice_indices(where: slice, length: int) -> tuple[int, int, int]:
    """Return start, stop and step of a slice of rows."""
    try:
        return where.indices(length)
    except (TypeError, ValueError) as error:  # bounds that are no whole numbers, a step of 0
        bounds = ":".join("" if one is None else repr(one) for one in (where.start, where.stop, where.step))
        raise ArgumentError(f"expected a slice of row numbers, got {bounds:.200}: {error}") from None


def are_positions(given: Any, length: int) -> bool:
    """Return True if `given` is a valid array of row numbers, which needs no `normalise`.

    Viewed as unsigned, a negative number is huge, so one pass checks both bounds.

    >>> are_positions(np.array([0, 2]), 3), are_positions(np.array([0, -1]), 3), are_positions([0], 3)
    (True, False, False)
    """
    if type(given) is not np.ndarray or given.dtype != np.int64 or given.ndim != 1:
        return False
    return not len(given) or int(given.view(np.uint64).max()) < length


def whole_number(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number as int; raise `ArgumentError`, which names the argument, if it is not one or below `least`.

    >>> whole_number("count", np.int8(3)), whole_number("count", -2)
    (3, -2)
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ArgumentError(f"expected a whole number for {name}, got {value!r}") from None
    if least is not None and number < least:
        raise ArgumentError(f"expected at least {least} for {name}, got {number}")
    return number


def _from_start(rows: NDArray[Any], length: int) -> Integers:
    """Return row numbers counted from 0. The range is checked before the cast, where a large uint64 would become -1."""
    least, most = (int(rows.min()), int(rows.max())) if len(rows) else (0, -1)
    if least < -length or most >= length:
        bad = least if least < -length else most
        expected = f"a row from {-length} to {length - 1}" if length else "no row, because the dataset is empty"
        raise RowError(f"expected {expected}, got {bad}")
    found = rows.astype(np.int64, copy=False)
    return np.where(found < 0, found + length, found) if least < 0 else found
