"""`StackedRows`: several fields of numbers, or of arrays of one shape, as one array. `Dataset.stack` makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import check_fields
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Array, ClassLabel, Feature, Features, Value, unwrap_optional
from shardex.kernel import Columns, Integers, Masked, digest, pooled_empty
from shardex.layers.layers import UntypedRows
from shardex.rows import AbstractRows


class StackedRows(UntypedRows):
    """Some fields of the rows below, of which groups are one array: `groups` has their names by that of the array."""

    def __init__(self, below: AbstractRows, fields: Sequence[str], groups: Mapping[str, Sequence[str]]) -> None:
        self.below, self._fields = below, fields
        known = below.features.select(fields)
        self._arrays = {name: _stacked(name, some, known) for name, some in groups.items()}
        self._groups = {name: tuple(some) for name, some in groups.items()}
        used = {field for some in self._groups.values() for field in some}
        self._others = [name for name in fields if name not in used]
        for name in self._groups:
            if name in self._others:
                raise ArgumentError(f"expected the name of a new field, got {name!r}, which is there: drop it first")

    def __reduce__(self) -> tuple[Any, ...]:
        return StackedRows, (self.below, self._fields, self._groups)

    @cached_property
    def features(self) -> Features:
        """The other fields of the rows below, then the arrays."""
        below = self.below.features
        return Features({**{name: below[name] for name in self._others}, **self._arrays})

    @property
    def in_python(self) -> bool:
        """True if the rows below are read in Python."""
        return self.below.in_python

    @property
    def fingerprint(self) -> str:
        """Made from that of the rows below and the names."""
        return digest("stack", self.below.fingerprint, self._groups)  # other fields do not change values

    @property
    def media_fields(self) -> Sequence[str]:
        """Fields with stored media in the rows below."""
        return [name for name in self.below.media_fields if name in self._others]

    @property
    def stored(self) -> AbstractRows:
        """The same arrays of the stored rows below."""
        below = self.below.stored
        return self if below is self.below else StackedRows(below, self._fields, self._groups)

    def stored_feature(self, name: str) -> Feature | None:
        """The stored feature of a field in the rows below."""
        return None if name in self._groups else self.below.stored_feature(name)

    def _below(self, fields: Sequence[str]) -> list[str]:
        """Return the fields below that make these fields."""
        return [one for name in fields for one in self._groups.get(name, (name,))]

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the fields below at once, and copy those of each array into it."""
        names = check_fields([*self._others, *self._groups], fields)
        found = self.below.read(rows, self._below(names)).data
        made = {name: self._array(name, found, len(rows)) if name in self._groups else found[name] for name in names}
        return Columns(made, len(rows))

    def _array(self, name: str, found: Mapping[str, Any], length: int) -> NDArray[Any]:
        feature = self._arrays[name]
        out = pooled_empty((length, *_shape_of(feature)), np.dtype(feature.dtype))
        for number, field in enumerate(self._groups[name]):
            column = found[field]
            values, mask = (column.column, column.mask) if isinstance(column, Masked) else (column, None)
            out[:, number] = values
            if mask is not None:
                out[~mask, number] = np.nan
        return out

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the fields below."""
        self.below.advise(rows, self._below(check_fields([*self._others, *self._groups], fields)))

    @property
    def extracted(self) -> Features:
        """Extracted columns of the rows below."""
        return Features({name: one for name, one in self.below.extracted.items() if name not in self._groups})

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return the columns below, if no array is among them; otherwise read all samples."""
        return super().sql_columns(names) if self._groups.keys() & {*names} else self.below.sql_columns(names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value: all of an array."""
        return np.ones(len(self), np.bool_) if name in self._groups else self.below.present(name)

    def lengths(self, name: str) -> Integers:
        """Return the lengths of arrays, from the rows below if they have the field."""
        return super().lengths(name) if name in self._groups else self.below.lengths(name)


def _stacked(name: str, fields: Sequence[str], known: Features) -> Array:
    """Return the feature of the array that these fields make; raise if they are not of numbers of one shape."""
    if isinstance(fields, str) or not fields:
        raise ArgumentError(f"expected the names of the fields to stack, got {fields!r} - at field {name}")
    names = check_fields(list(known), list(fields))
    kinds = [_dtype_and_shape(name, field, known[field]) for field in names]
    dtype, shape = np.result_type(*(dtype for dtype, _ in kinds)), kinds[0][1]
    for (_, other), field in zip(kinds, names, strict=True):
        if other != shape:
            raise SchemaError(
                f"expected fields of one shape to stack them, got {known[names[0]]} in {names[0]} and "
                f"{known[field]} in {field} - at field {name}"
            )
    if any(known[field].optional for field in names):
        dtype = np.result_type(dtype, np.float16 if dtype.kind == "f" else np.float64)  # missing values are NaN
    return Array(dtype.name, (len(names), *shape))


def _dtype_and_shape(name: str, field: str, feature: Feature) -> tuple[np.dtype[Any], tuple[int, ...]]:
    inner = unwrap_optional(feature)
    if isinstance(inner, ClassLabel):
        return np.dtype(np.int32), ()
    if isinstance(inner, Value):
        return np.dtype(inner.dtype), ()
    if isinstance(inner, Array) and inner.dtype and inner.fixed:
        return np.dtype(inner.dtype), _shape_of(inner)
    raise SchemaError(
        f"expected fields of numbers, or of arrays of one shape, to stack them, got {feature} - at field {field} of "
        f"{name}"
    )


def _shape_of(feature: Array) -> tuple[int, ...]:
    """Return the shape of arrays of one shape."""
    return tuple(size for size in feature.shape or () if size is not None)
