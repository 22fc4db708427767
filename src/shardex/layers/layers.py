"""Layers: rows over other rows with the same row numbers. `Dataset.as_type` and `rename` make them.

`TypedRows` convert the fields of the rows below to those of a class, column by column; `RenamedRows` have other names
for fields; `map_rows` has those that call a function. Orders, keys and file names of the rows below stay valid.
Every layer has a sample type.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import SchemaError
from shardex.features import Bytes, ClassLabel, Feature, Features, Optional, Text, unwrap_optional
from shardex.kernel import Columns, Integers, digest, values_of
from shardex.rows import AbstractRows, Keyed, RenamedFields
from shardex.samples import ClassFitter, DictSample, feature_in_class, record_of, schema_conflicts


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
        """The lookup of rows by key of the rows below."""
        return self.below.key_lookup

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the rows below."""
        return self.below.metadata

    def shards(self, rows: Integers) -> list[str]:
        """The files of the rows below."""
        return self.below.shards(rows)

    def _place(self, row: int) -> str:
        """Return the number of a row and its file for error messages."""
        file = self.shards(np.array([row]))[0]
        return f"sample {row}{f' of {file}' * bool(file)}"


def layers_of(rows: AbstractRows) -> Iterator[Layer]:
    """Yield all layers, the outermost first."""
    while isinstance(rows, Layer):
        yield rows
        rows = rows.below


def innermost_rows(rows: AbstractRows) -> AbstractRows:
    """Return the rows under all layers."""
    for layer in layers_of(rows):
        rows = layer.below
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
        for name in below.media_fields:
            if name in have and type(unwrap_optional(record.features.get(name, Text()))) is Bytes:
                have = Features({**have, name: have[name].stored_form()})
        if (have or len(below)) and (problems := schema_conflicts(have, record.features, record.defaults)):
            raise SchemaError(
                f"expected data with the fields of {sample_type.__name__} ({record.features}), got {have}: "
                f"{'; '.join(problems)}"
            )
        self._stored = {name for name in record.names if name in have}
        self._names = record.names
        self._all_stored = [name for name in record.names if name in have]
        self._sample_below = below.sample
        stored = {name: feature_in_class(have[name], record.features[name]) for name in self._all_stored}
        self._features = Features({**record.features, **stored})
        self._fitter = ClassFitter(record, stored=True, features=self._features)
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
        """Features of the class; images that the class has as arrays keep their feature in the rows below."""
        return self._features

    @property
    def stored(self) -> AbstractRows:
        """Samples of the same class, of the stored rows below."""
        below = self.below.stored
        return self if below is self.below else TypedRows(below, self._type, self._chosen)

    def stored_feature(self, name: str) -> Feature | None:
        """The stored feature of a field in the rows below."""
        return self.below.stored_feature(name) if name in self._stored else None

    @property
    def in_python(self) -> bool:
        """True if the rows below are read in Python."""
        return self.below.in_python

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the rows below; also of the class, if this changes types or values of fields."""
        changed = {name: one.to_json() for name, one in self._features.items() if not self._is_same(name)}
        added = {name: record_of(self._type).default(name) for name in changed if name not in self._stored}
        return digest("typed", self.below.fingerprint, changed, added) if changed else self.below.fingerprint

    def _is_same(self, name: str) -> bool:
        """Return True if a field has the values of the rows below."""
        return name in self._stored and self.below.features[name] == self._features[name]

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
        return self.below.sql_columns(names) if all(map(self._is_same, names)) else super().sql_columns(names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, from the rows below if they have the field."""
        return self.below.present(name) if name in self._stored else super().present(name)

    def lengths(self, name: str) -> Integers:
        """Return the lengths of arrays, from the rows below if their feature is that of the class."""
        return self.below.lengths(name) if self._is_same(name) else super().lengths(name)


# -- other names ----------------------------------------------------------------------------------------------


class UntypedRows(Layer):
    """Rows whose samples are `DictSample`: a class of the rows below would have other fields."""

    @property
    def sample_type(self) -> type[Any]:
        """The type `DictSample`."""
        return DictSample

    def make(self, values: dict[str, Any]) -> DictSample:
        """Return an untyped sample."""
        return DictSample(values)


class RenamedRows(RenamedFields, UntypedRows):
    """Some fields of the rows below, under new names. `names` has the new name of each field by its old one."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RenamedRows, (self.below, self._names)

    @property
    def stored(self) -> AbstractRows:
        """The stored rows below under the new names."""
        below = self.below.stored
        return self if below is self.below else RenamedRows(below, self._names)

    def old_name(self, name: str) -> str:
        """Return the name that a field has in the rows below."""
        return self._old[name]


# -- names of classes -----------------------------------------------------------------------------------------


class ClassNameRows(RenamedRows):
    """The rows below, with the names of classes in the place of their numbers in some fields."""

    def __init__(self, below: AbstractRows, labels: Mapping[str, ClassLabel]) -> None:
        super().__init__(below, {name: name for name in below.features})
        self._labels = labels

    def __reduce__(self) -> tuple[Any, ...]:
        return ClassNameRows, (self.below, self._labels)

    @property
    def features(self) -> Features:
        """Features of the rows below, with text for names."""
        have = super().features
        text = {name: Optional(Text()) if have[name].optional else Text() for name in self._labels}
        return Features({**have, **text})

    @property
    def stored(self) -> AbstractRows:
        """The stored rows below, with names."""
        return ClassNameRows(self.below.stored, self._labels)

    @property
    def fingerprint(self) -> str:
        """Digest of the fingerprint of the rows below and the names."""
        return digest("class names", self.below.fingerprint, {n: one.names for n, one in sorted(self._labels.items())})

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below and look names up."""
        found = super().read(rows, fields)
        for name in self._labels.keys() & found.data.keys():
            label, numbers = self._labels[name], values_of(found.data[name])
            found.data[name] = [None if number is None else label.name(number) for number in numbers]
        return found

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample."""
        return AbstractRows.sample(self, row, fields)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The Arrow column of the field in the rows below; None for names."""
        return None if name in self._labels else super().column(name)

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return the columns below, or names."""
        return AbstractRows.sql_columns(self, names)
