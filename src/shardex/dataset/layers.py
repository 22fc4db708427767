"""Layers: rows over other rows with the same row numbers. `Dataset.as_type`, `view`, `map` and `rename` make them.

`TypedRows` convert the fields of the rows below to those of a class, column by column; `MappedRows` call a function for
each sample; `RenamedRows` have other names for fields. Orders, keys and file names of the rows below stay valid. Every
layer has a sample type.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.dataset.function_calls import counted
from shardex.errors import SchemaError, ShardexError
from shardex.kernel import MISSING, Column, Columns, Integers, digest
from shardex.rows import AbstractRows, Keyed
from shardex.samples import ClassFitter, DictSample, fields_of, is_sample_class, record_of, schema_conflicts
from shardex.schema import (
    Array,
    Feature,
    Features,
    Optional,
    Value,
    check_fields,
    dtype_bounds,
    fit_column,
    fits_unchanged,
    infer_or_json,
    is_stacked,
    refuse_unknown_fields,
    stack_arrays,
)

_INFER_FROM = 16
_PLAIN = (dict, DictSample)
_FLOAT32 = struct.Struct("f")


class Layer(AbstractRows):
    """Rows over other rows with the same row numbers, whose samples have a type."""

    below: AbstractRows

    @property
    @abstractmethod
    def sample_type(self) -> type[Any]:
        """Type of the samples."""

    @abstractmethod
    def make(self, values: dict[str, Any]) -> Any:
        """Return the sample that has these values, as `sample` and `read` return them."""

    def __len__(self) -> int:
        return len(self.below)

    @property
    def key_lookup(self) -> Keyed | None:
        """That of the rows below."""
        return self.below.key_lookup

    def shards(self, rows: Integers) -> list[str]:
        """The files of the rows below."""
        return self.below.shards(rows)

    def _place(self, row: int) -> str:
        """Return the number of a row and its file for error messages."""
        file = self.shards(np.array([row]))[0]
        return f"sample {row}{f' of {file}' * bool(file)}"


def innermost_rows(rows: AbstractRows) -> AbstractRows:
    """Return the rows under all layers."""
    while isinstance(rows, Layer):
        rows = rows.below
    return rows


def sample_type_of(rows: AbstractRows, fields: Sequence[str] | None) -> type[Any]:
    """Return the type of the samples of rows; it is `DictSample` if only some fields are chosen."""
    return rows.sample_type if fields is None and isinstance(rows, Layer) else DictSample


# -- fields of a class -----------------------------------------------------------------------------------------


class TypedRows(Layer):
    """Rows whose samples are instances of a class made by `packable`."""

    def __init__(self, below: AbstractRows, sample_type: type[Any], fields: Sequence[str] | None = None) -> None:
        self.below = below
        self._type = sample_type
        self._chosen = None if fields is None else tuple(fields)
        record = record_of(sample_type)
        have = below.features
        have = have if fields is None else have.select(fields)
        if (have or len(below)) and (problems := schema_conflicts(have, record.features, record.defaults)):
            raise SchemaError(
                f"expected data with the fields of {sample_type.__name__} ({record.features}), got {have}: "
                f"{'; '.join(problems)}"
            )
        self._stored = {name for name in record.names if name in have}
        self._names = record.names
        self._all_stored = [name for name in record.names if name in have]
        self._sample_below = below.sample
        self._fitter = ClassFitter(record, stored=True)
        self.make = record.make  # type: ignore[method-assign]  # one call less for each sample

    def __reduce__(self) -> tuple[Any, ...]:
        return TypedRows, (self.below, self._type, self._chosen)

    @property
    def sample_type(self) -> type[Any]:
        """The class."""
        return self._type

    def make(self, values: dict[str, Any]) -> Any:
        """Return an instance of the class; `__init__` replaces this by the class record's own method."""
        return record_of(self._type).make(values)

    @property
    def features(self) -> Features:
        """Features of the class."""
        return record_of(self._type).features

    @property
    def in_python(self) -> bool:
        """That of the rows below."""
        return self.below.in_python

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows below: the samples are the same."""
        return self.below.fingerprint

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below, check them and convert them to the types of the class."""
        names = check_fields(self._names, fields)
        found = self.below.read(rows, [name for name in names if name in self._stored])
        return self._fitter.columns(found, names, lambda k: self._place(rows[k]))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample below, check it and convert it."""
        names = self._names if fields is None else check_fields(self._names, fields)
        there = self._all_stored if fields is None else [name for name in names if name in self._stored]
        return self._fitter.sample(self._sample_below(row, there), names, lambda _: self._place(row))

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields that the rows below have."""
        names = check_fields(self._names, fields)
        self.below.advise(rows, [name for name in names if name in self._stored])

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return the columns of the rows below if their features are those of the class; otherwise read all samples."""
        same_below = all(name in self._stored and self.below.features[name] == self.features[name] for name in names)
        return self.below.sql_columns(names) if same_below else super().sql_columns(names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, from the rows below if they have the field."""
        return self.below.present(name) if name in self._stored else super().present(name)


# -- results of a function ------------------------------------------------------------------------------------


class MappedRows(Layer):
    """Results of a function that is called for each sample of the rows below when it is read.

    The features are given, or those of the class of the results, or found in the first results: a field that the
    function passed on unchanged keeps its feature, others are inferred from their values. All results are converted to
    them.
    """

    def __init__(
        self,
        below: AbstractRows,
        function: Callable[[Any], Any],
        fields: Sequence[str] | None = None,
        sample_type: type[Any] | None = None,
        schema: Features | None = None,
    ) -> None:
        self.below = below
        self.function = function
        self._chosen = None if fields is None else tuple(fields)
        self._type = sample_type
        self._schema = schema

    def __reduce__(self) -> tuple[Any, ...]:
        known = (
            self.__dict__.get("features") if self._type is DictSample else None
        )  # other processes need not find them
        return MappedRows, (self.below, self.function, self._chosen, self._type, self._schema or known)

    @property
    def sample_type(self) -> type[Any]:
        """Type that the function returns: given, or that of its first result."""
        if self._type is None and len(self):
            next(iter(self._first_results()))
        return self._type or DictSample

    @cached_property
    def features(self) -> Features:
        """The given features, those of the class, or those found in the first results."""
        if self._schema is not None:
            return self._schema
        if is_sample_class(self.sample_type):
            return record_of(self.sample_type).features
        return _features_of_results(list(self._first_results()), self._features_below())

    def _features_below(self) -> Features:
        try:
            below = self.below.features
        except ShardexError:  # samples of several types, which the function may unify
            return Features({})
        return below if self._chosen is None else below.select(self._chosen)

    def _first_results(self) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Yield each of the first samples and its result, without those that raise an error, unless all do."""
        failures: list[Exception] = []
        count = min(len(self), _INFER_FROM)
        for row in range(count):
            try:
                values = self.below.sample(row, self._chosen)
                given = dict(values)  # the function may change its argument
                result = fields_of(self._call(values, row))
            except Exception as error:
                failures.append(error)
                if len(failures) == count:
                    raise failures[0] from None
            else:
                yield given, result

    @property
    def fingerprint(self) -> str:
        """Made from the data and the name of the function."""
        function = self.function
        name = getattr(function, "__qualname__", getattr(function, "__name__", type(function).__qualname__))
        return digest("map", self.below.fingerprint, getattr(function, "__module__", None), name, self._chosen)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching all fields that the function gets from the rows below."""
        self.below.advise(rows, self._chosen)

    def make(self, values: dict[str, Any]) -> Any:
        """Return a sample of the type; the type is known after the first result."""
        kind = self._type or self.sample_type
        return DictSample(values) if kind is DictSample or not is_sample_class(kind) else record_of(kind).make(values)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the rows below, call the function for each sample, and stack the results."""
        samples = [fields_of(one) for one in self._timed_results(rows)]
        if self._type is not DictSample and is_sample_class(self.sample_type):
            names = check_fields(list(self.features), fields)
            return self._fitter.columns(_columns(samples, names), names, lambda k: self._place(rows[k]))
        names = check_fields(list(self.features), fields)
        return self._fitted(samples, names, rows, every=fields is None)

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Call the function for one sample."""
        values = fields_of(self._call(self.below.sample(row, self._chosen), row))
        if self._type is not DictSample and is_sample_class(self.sample_type):
            names = check_fields(list(self.features), fields)
            return self._fitter.sample(values, names, lambda _: self._place(row))
        checks = self._checks
        if fields is None and values.keys() == checks.keys() and all(fits(values[n]) for n, fits in checks.items()):
            return {name: values[name] for name in checks}  # most results
        names = check_fields(list(self.features), fields)
        return self._fitted([values], names, np.array([row]), every=fields is None).sample(0)

    @cached_property
    def _checks(self) -> dict[str, Callable[[Any], bool]]:
        """For each field a fast function that is True if a value needs no conversion."""
        return {name: _fits_exactly(feature) for name, feature in self.features.items()}

    def _fitted(self, samples: list[Mapping[str, Any]], names: list[str], rows: Integers, *, every: bool) -> Columns:
        """Return results as columns, converted to the features; `every`: refuse other fields than these."""
        found = {name: [one.get(name, MISSING) for one in samples] for name in names}
        known = self._checks.keys()
        try:
            for one, row in zip(samples, rows.tolist(), strict=True) if every else ():
                if not one.keys() <= known:
                    refuse_unknown_fields(one, self.features, f"the fields {', '.join(names)} at {self._place(row)}")
            columns = {name: self._column(values, name, rows) for name, values in found.items()}
        except SchemaError as error:
            source = "in schema=" if self._schema is not None else f"in the first {_INFER_FROM} results"
            raise SchemaError(
                f"{error}; the features of {self.function!r} were found {source}: give those that fit all results "
                "with map(..., schema=...)"
            ) from None
        return Columns(columns, len(rows))

    def _column(self, values: list[Any], name: str, rows: Integers) -> Column:
        feature, fits = self.features[name], self._checks[name]
        if isinstance(feature, Array) and is_stacked(feature):
            arrays = {*map(type, values)} == {np.ndarray}
            if arrays and all(map(fits, {(value.dtype, value.shape): value for value in values}.values())):
                return stack_arrays(values, feature)
        elif not is_stacked(feature) and all(map(fits, values)):
            return values
        return fit_column(values, feature, lambda k: self._place(int(rows[k])), name, stored=False)

    @cached_property
    def _fitter(self) -> ClassFitter:
        return ClassFitter(record_of(self.sample_type), stored=False)

    def _timed_results(self, rows: Integers) -> list[Any]:
        """Call the function for these rows, and add the time that it takes to `time_in_functions`."""
        given = self._values(rows)
        with counted():
            return [self._call(values, row) for values, row in zip(given, rows.tolist(), strict=True)]

    def _values(self, rows: Integers) -> list[dict[str, Any]]:
        """Return the samples below."""
        if len(rows) == 1:
            return [self.below.sample(int(rows[0]), self._chosen)]
        return self.below.read(rows, self._chosen).to_samples()

    @cached_property
    def _make_below(self) -> Callable[[dict[str, Any]], Any]:
        """Makes the argument of the function."""
        return self.below.make if isinstance(self.below, Layer) and self._chosen is None else DictSample

    def _call(self, values: dict[str, Any], row: int) -> Any:
        sample = self._make_below(values)
        try:
            result = self.function(sample)
        except Exception as error:
            error.add_note(f"in {self.function!r} at {self._place(row)}")
            raise
        kind = type(result)
        if kind in _PLAIN or not is_sample_class(kind):
            kind = DictSample
        if kind is DictSample:
            fields_of(result)  # an error if it is no mapping
        self._type = self._type or kind
        if kind is not self._type and not issubclass(kind, self._type):
            wanted, at = self._type.__name__, self._place(row)
            raise SchemaError(f"expected {self.function!r} to return {wanted}, got {type(result).__name__} - at {at}")
        return result


def _fits_exactly(feature: Feature) -> Callable[[Any], bool]:
    """Return a fast function that is True if a value is the one that a column of the feature has.

    >>> [_fits_exactly(Value("float32"))(value) for value in (0.5, 0.1, 1)]
    [True, False, False]
    """
    match feature:
        case Optional():
            inner = _fits_exactly(feature.feature)
            return lambda value: value is None or inner(value)
        case Value(dtype="float32"):
            pack, unpack, high = _FLOAT32.pack, _FLOAT32.unpack, dtype_bounds("float32")[1]
            return lambda value: type(value) is float and -high <= value <= high and unpack(pack(value))[0] == value
    return fits_unchanged(feature)


def _features_of_results(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], below: Features) -> Features:
    """Return features that fit all results; a field that has its given value in all of them keeps its feature."""
    found = dict(infer_or_json([made for _, made in pairs]))
    for name in found.keys() & below.keys():
        values = [(given.get(name, MISSING), made[name]) for given, made in pairs if name in made]
        if all(unchanged(old, new) for old, new in values):
            found[name] = below[name] if len(values) == len(pairs) else Optional(below[name])
    return Features(found)


def unchanged(old: Any, new: Any) -> bool:
    """Return True if two values are stored as the same bytes: 1 is not True, 0.0 is not -0.0.

    >>> unchanged({"a": 1}, {"a": True}), unchanged(0.0, -0.0), unchanged(np.float64(1.5), 1.5)
    (False, False, True)
    """
    if isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
        return old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes()
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return list(old) == list(new) and all(unchanged(value, new[name]) for name, value in old.items())
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(map(unchanged, old, new))
    a, b = (one.item() if isinstance(one, np.generic) else one for one in (old, new))
    return type(a) is type(b) and repr(a) == repr(b)


def _columns(samples: Sequence[Any], names: Sequence[str]) -> Columns:
    return Columns({name: [one.get(name, MISSING) for one in samples] for name in names}, len(samples))


# -- other names ----------------------------------------------------------------------------------------------


class RenamedRows(Layer):
    """Some fields of the rows below, under new names. `names` has the new name of each field by its old one."""

    def __init__(self, below: AbstractRows, names: Mapping[str, str]) -> None:
        self.below = below
        self._names = dict(names)
        self._old = {new: old for old, new in names.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return RenamedRows, (self.below, self._names)

    @property
    def sample_type(self) -> type[Any]:
        """Samples are untyped: a class has the old names."""
        return DictSample

    def make(self, values: dict[str, Any]) -> DictSample:
        """Return an untyped sample."""
        return DictSample(values)

    @property
    def features(self) -> Features:
        """Features of the rows below under the new names."""
        below = self.below.features
        return Features({new: below[old] for new, old in self._old.items()})

    @property
    def in_python(self) -> bool:
        """That of the rows below."""
        return self.below.in_python

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows below: the samples are the same."""
        return self.below.fingerprint

    def _old_names(self, fields: Sequence[str] | None) -> list[str]:
        return [self._old[name] for name in check_fields(list(self._old), fields)]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below and rename them."""
        found = self.below.read(rows, self._old_names(fields))
        return Columns({self._names[old]: column for old, column in found.data.items()}, len(found))

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample below and rename its fields."""
        found = self.below.sample(row, self._old_names(fields))
        return {self._names[old]: value for old, value in found.items()}

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields below."""
        self.below.advise(rows, self._old_names(fields))

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The column below."""
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
