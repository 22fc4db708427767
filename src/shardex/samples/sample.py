"""Samples and batches for users: `DictSample` and `Batch`, with fields by attribute or by name.

Datasets make both from `Columns`. Samples of a class are converted by its `Record` (`class_record`).
"""

from __future__ import annotations

import math
import operator
import os
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, cast

import numpy as np

from shardex import display
from shardex.errors import ArgumentError, FieldError, RowError, SchemaError, ShardexError, unknown_field
from shardex.features import Feature, codecs
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged
from shardex.rows import whole_number
from shardex.samples.class_record import is_sample_class, record_of

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # part of type checkers; type variables have defaults since 3.13


_IN_OVERVIEW = 3
"""Samples in the table that a notebook shows of a batch."""


class DictSample(dict[str, Any]):
    """One sample: a dict whose fields are also attributes.

    >>> s = DictSample(x=1, name="a")
    >>> s.x, s["name"], s == {"x": 1, "name": "a"}
    (1, 'a', True)
    >>> s.y
    Traceback (most recent call last):
    AttributeError: expected one of the fields x, name, got 'y'
    """

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        raise unknown_field(name, self)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *filter(str.isidentifier, self)]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mapping) and same(dict(self), other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def __repr__(self) -> str:
        return f"DictSample({', '.join(f'{name}={short(value)}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        return sample_html("DictSample", self, {})

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of the same values."""
        return dict(self)

    @property
    def packed(self) -> bytes:
        """The sample as MessagePack, arrays in the compact format.

        >>> DictSample(x=1).packed
        b'\\x81\\xa1x\\x01'
        """
        return codecs.MSGPACK.encode({name: value for name, value in self.items() if name != "__key__"})

    @property
    def as_wds(self) -> dict[str, Any]:
        """The sample for a WebDataset writer: `packed`, and the sample's `__key__` or a new one."""
        return {"__key__": self.get("__key__") or new_key(), "msgpack": self.packed}


if TYPE_CHECKING:
    T_co = TypeVar("T_co", covariant=True, default=DictSample)
else:
    T_co = typing.TypeVar("T_co", covariant=True)


def sample_html(title: str, values: Mapping[str, Any], features: Mapping[str, Feature]) -> str:
    """Return the HTML that a notebook shows for a sample: a table of its fields."""
    return display.overview_html(title, dict.fromkeys(values, ""), [values], features)


def new_key() -> str:
    """Return a unique key."""
    return uuid.uuid4().hex


def fields_of(sample: Any) -> Mapping[str, Any]:
    """Return the fields of a sample, a mapping or an instance of a sample class, as plain values.

    >>> fields_of({"x": 1})
    {'x': 1}
    >>> fields_of(3)
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected a sample as a mapping of fields, or one of a @packable or dataclass, got int
    """
    if type(sample) is dict or isinstance(sample, Mapping):
        return sample
    if is_sample_class(kind := type(sample)):
        return record_of(kind).values(sample)
    if (to_dict := getattr(kind, "to_dict", None) or getattr(kind, "_asdict", None)) is None:
        found = f"expected a sample as a mapping of fields, or one of a @packable or dataclass, got {kind.__name__}"
        raise SchemaError(found)
    return cast(Mapping[str, Any], to_dict(sample))


def sample_constructor(kind: type[T_co]) -> Callable[[dict[str, Any]], T_co]:
    """Return the function that makes a sample of this type from plain values that fit."""
    return record_of(kind).make if is_sample_class(kind) else cast(Callable[[dict[str, Any]], T_co], kind)


class Batch(Generic[T_co]):
    """Several samples by field: arrays are stacked, other values are lists. Also a sequence of samples.

    >>> b = Batch(Columns({"x": np.array([1, 2, 3]), "name": ["a", "b", "c"]}))
    >>> b.x, b["name"], len(b), b[1]
    (array([1, 2, 3]), ['a', 'b', 'c'], 3, DictSample(x=2, name='b'))

    A field of optional numbers is an array too; `mask_of` is true where a sample has a value:

    >>> b = Batch(Columns({"y": Masked(np.array([1.5, np.nan]), np.array([True, False]))}))
    >>> b.y, b.mask_of("y"), b[1]
    (array([1.5, nan]), array([ True, False]), DictSample(y=None))
    """

    __slots__ = ("_kind", "_source", "columns")

    columns: Columns
    _kind: type[Any]
    _source: Any
    """What it was read from, whose features say how it is shown; None if that is not known."""

    def __init__(self, columns: Columns, kind: type[Any] = DictSample, source: Any = None) -> None:
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "_kind", kind)
        object.__setattr__(self, "_source", source)

    @classmethod
    def of(cls, samples: Iterable[Any]) -> Batch[Any]:
        """Return a batch of these samples.

        >>> Batch.of([DictSample(x=np.zeros(2)), DictSample(x=np.ones(2))]).x.tolist()
        [[0.0, 0.0], [1.0, 1.0]]
        """
        every = list(samples)
        kinds = {type(sample) for sample in every if not isinstance(sample, Mapping)}
        columns = Columns.from_samples([fields_of(sample) for sample in every]).stack()
        return cls(columns, kinds.pop() if len(kinds) == 1 else DictSample)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("columns", "_kind", "_source", "_repr_html_"):
            raise AttributeError(name)
        try:
            return self[name]
        except FieldError as error:
            raise AttributeError(str(error)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the column of a field; new values of an optional field keep its mask."""
        old = self.columns.data.get(name)
        if isinstance(old, Masked) and getattr(value, "shape", ())[:1] == (len(self),):
            value = Masked(value, old.mask)
        self.columns.data[name] = value

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return self._column(what)
        if isinstance(what, slice):
            start, stop, step = what.indices(len(self))
            some = self.columns.slice(start, stop) if step == 1 else self.columns.take(np.arange(start, stop, step))
            return self._part(what, some)
        try:
            row = operator.index(what)
        except TypeError:
            raise SchemaError(f"expected a field, a sample's number or a slice, got {what!r}") from None
        if not -len(self) <= row < len(self):
            raise RowError(f"expected a sample from {-len(self)} to {len(self) - 1}, got {what}")
        row %= len(self)
        return self._sample_maker()(self._of_row(self.columns.sample(row), row))

    def _sample_maker(self) -> Callable[[dict[str, Any]], Any]:
        """Return the function that makes a sample from the values of a row."""
        return sample_constructor(self.sample_type)

    def _of_row(self, values: dict[str, Any], row: int) -> dict[str, Any]:
        """Return the values of a row as its sample has them."""
        return values

    def _part(self, where: slice, columns: Columns) -> Batch[T_co]:
        """Return a batch of some of the samples, which these columns have."""
        return Batch(columns, self.sample_type, self._source)

    def _column(self, name: str) -> Column:
        column = self.columns[name]
        if isinstance(column, Masked):
            return column.values  # type: ignore[no-any-return]
        if isinstance(column, list) and column and type(column[0]) is np.ndarray and _are_alike(column):
            return self._stacked(name, column)
        return _without_missing(column)

    def _stacked(self, name: str, column: list[Any]) -> Column:
        """Return arrays of one shape in one array: those of a feature without a shape."""
        stacked = np.stack(column)
        if stacked.ndim > 1:  # stacking arrays without dimensions would turn them into numbers
            self.columns.data[name] = stacked
        return stacked

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[T_co]:
        make, samples = self._sample_maker(), enumerate(self.columns.to_samples())
        return (make(self._of_row(values, row)) for row, values in samples)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *filter(str.isidentifier, self.columns.names)]

    def _ipython_key_completions_(self) -> list[str]:
        return self.keys()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.keys() == other.keys() and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={short(self[name])}" for name in self.keys())
        return f"Batch({len(self)} sample{'s' * (len(self) != 1)}: {fields})"

    def _repr_html_(self) -> str:
        kinds = {name: short(self[name]) for name in self.keys()}
        return display.overview_html(_count_text(self), kinds, self._first(_IN_OVERVIEW), self._features())

    def show(self, n: int = 16, *, path: str | os.PathLike[str] | None = None) -> display.Figure:
        """Return a figure of the first samples, which a notebook shows; with `path` also write it to a file.

        The name of the file ends in ``.html`` or ``.png``. `Dataset.show` says what is shown.

        >>> Batch(Columns({"x": np.arange(3)})).show(2)
        Figure(2 of 3 samples: x); a notebook shows it, save("figure.html") and save("figure.png") write it to a file
        """
        figure = display.Figure.of(self._first(whole_number("n", n, 0)), self._features(), len(self))
        if path is not None:
            figure.save(path)
        return figure

    def _first(self, count: int) -> Iterator[dict[str, Any]]:
        return map(self.columns.sample, range(min(count, len(self))))

    def _features(self) -> Mapping[str, Feature]:
        """Return the features of the fields, if they are known."""
        with suppress(ShardexError):
            return {} if self._source is None else cast(Mapping[str, Feature], self._source.features)
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.columns, self.sample_type)

    def keys(self) -> list[str]:
        """Return the names of the fields."""
        return self.columns.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Return names and columns of the fields."""
        return ((name, self[name]) for name in self.keys())

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of columns."""
        return dict(self.items())

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the batch with its tensors on another device, such as ``"cuda"``; other values stay as they are.

        Batches of ``Loader(..., to="torch")`` have tensors.
        """
        moved = {name: _moved(column, name, device, non_blocking) for name, column in self.columns.data.items()}
        if not any(map(_has_tensor, moved.values())):
            raise _no_tensors(f"none in {', '.join(moved) or 'an empty batch'}")
        return self._replace(Columns(moved, len(self)), device)

    def _replace(self, columns: Columns, device: Any) -> Self:
        """Return a batch with other columns, which are on a device."""
        return type(self)(columns, self._kind, self._source)

    def present_of(self, name: str) -> Any:
        """Return for each sample whether it has a value for a field: False where the value is None."""
        column = self.columns[name]
        if isinstance(column, list):
            return np.array([value is not None and value is not MISSING for value in column], np.bool_)
        return column.mask if isinstance(column, Masked) else np.ones(len(self), np.bool_)

    def lengths_of(self, name: str) -> Any:
        """Return the length (or, if several sizes vary, the shape) of each row of a field of arrays; 0 if missing."""
        return self._lengths(name)

    def mask_of(self, name: str) -> Any:
        """Return where a field of numbers or arrays holds values.

        One truth value per sample if all values have one shape: False where the value is None. If lengths vary, the
        mask has the shape of the padded array: False in the padding, so everywhere in a row that is missing.
        """
        column = self.columns[name]
        values = column.values if isinstance(column, Masked) else column
        if isinstance(values, list):
            raise _is_a_list(name)
        return values.mask() if isinstance(values, Ragged) else self.present_of(name)

    def _lengths(self, name: str) -> Integers:
        column = self.columns[name]
        values = column.values if isinstance(column, Masked) else column
        if isinstance(values, Ragged):
            return values.lengths if values.shapes is None else values.shapes
        if isinstance(values, list):
            raise _is_a_list(name)
        if values.ndim < 2:
            raise FieldError(f"expected a field of arrays, which have lengths, got single values - at field {name}")
        return np.where(self.present_of(name), values.shape[1], 0)

    @property
    def sample_type(self) -> type[T_co]:
        """The type of the samples: a class made by `packable`, or `DictSample`."""
        return self._kind

    @property
    def samples(self) -> list[T_co]:
        """The samples as a list."""
        return list(self)


def _count_text(batch: Batch[Any]) -> str:
    return f"Batch of {len(batch)} sample{'s' * (len(batch) != 1)}"


def _moved(value: Any, name: str, device: Any, non_blocking: bool) -> Any:
    """Return a value with the tensors in it on a device; raise for numbers that are not in a tensor."""
    if isinstance(value, list | tuple) and _has_tensor(value):
        return type(value)(_moved(one, name, device, non_blocking) for one in value)
    if isinstance(value, Mapping):
        return {key: _moved(one, name, device, non_blocking) for key, one in value.items()}
    if isinstance(value, Masked):
        return Masked(_moved(value.column, name, device, non_blocking), value.mask)
    if _has_tensor(value):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, np.ndarray | Ragged):
        raise _no_tensors(f"{short(value)} - at field {name}")
    return value


def _has_tensor(value: Any) -> bool:
    """Return whether a value is, or contains, something that can be on a device."""
    if isinstance(value, list | tuple | Mapping):
        return any(map(_has_tensor, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, Masked):
        return _has_tensor(value.column)
    return hasattr(value, "to") and not isinstance(value, Batch)


def _no_tensors(found: str) -> ArgumentError:
    return ArgumentError(f'expected tensors to move, got {found}; make the batches with Loader(..., to="torch")')


def _is_a_list(name: str) -> FieldError:
    return FieldError(
        f"expected a field of numbers or arrays, got a list - at field {name}; present_of tells which values are None"
    )


def _are_alike(values: list[Any]) -> bool:
    """Return whether all are arrays of one dtype and shape."""
    dtype, shape = values[0].dtype, values[0].shape
    return all(type(value) is np.ndarray and value.dtype == dtype and value.shape == shape for value in values)


def _without_missing(column: Column) -> Column:
    if isinstance(column, list) and any(value is MISSING for value in column):
        return [None if value is MISSING else value for value in column]
    return column


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, including nested arrays; NaN equals NaN.

    >>> same({"x": [np.array([1.0, np.nan])]}, {"x": [np.array([1.0, np.nan])]}), same(np.zeros(2), np.zeros(3))
    (True, False)
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        if not (isinstance(a, np.ndarray) and isinstance(b, np.ndarray)) or a.dtype != b.dtype:
            return False
        return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fcMm"))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return len(a) == len(b) and all(name in b and same(value, b[name]) for name, value in a.items())
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    floats = float | np.floating
    both_nan = isinstance(a, floats) and isinstance(b, floats) and math.isnan(a) and math.isnan(b)
    return both_nan or bool(a == b)


def short(value: Any) -> str:
    """Return the short text of a value for the `repr` of a sample.

    >>> short(np.zeros((2, 3))), short("a" * 100)[-8:]
    ('float64[2, 3]', "aaaa...'")
    """
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, Ragged):
        return repr(value)
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}...{text[-1]}"
