"""Rows that are results of a function, which is called when they are read. `Dataset.map` makes them.

In: rows and a function of a sample or of a batch. Out: rows whose values fit features that are given, or found in the
first results. `function_calls` calls functions of batches; `shardex.features` converts values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shardex.columns import check_fields, refuse_unknown_fields
from shardex.errors import FormatError, SchemaError, ShardexError
from shardex.features import (
    Array,
    ClassLabel,
    Feature,
    Features,
    Inferred,
    Optional,
    Value,
    conversions,
    dtypes,
    stack_arrays,
    unwrap_optional,
)
from shardex.kernel import (
    MISSING,
    Column,
    Columns,
    Integers,
    Masked,
    Ragged,
    TimeArray,
    byte_size,
    digest,
    is_tensor,
    values_of,
    with_missing,
)
from shardex.layers.field_decoders import Decoding, FieldDecoder, decoder_of, is_decoded
from shardex.layers.function_calls import batch_result, copied, copied_lists, counted, place_of_rows
from shardex.layers.layers import Layer, layers_of, sample_type_of
from shardex.layers.media_rows import StoredMedia
from shardex.rows import AbstractRows, media_in
from shardex.samples import Batch, ClassFitter, DictSample, fields_of, is_sample_class, record_of

_INFER_FROM = 16
_ALWAYS_AT_ONCE, _MAX_ROWS, _MAX_BYTES = 64, 1 << 12, 1 << 26
"""Reads of up to 64 rows are one call of a function of batches; larger ones have at most 4096 rows and about 64 MB."""
_PLAIN = (dict, DictSample)
_FLOAT32 = struct.Struct("f")


class MapRows(Layer):
    """Results of a function that is called for each sample of the rows below when it is read.

    The features are given, or those of the class of the results, or found in the first results: a field that the
    function passed on unchanged keeps its feature, others are inferred from their values. All results are converted to
    them, but for tensors of torch, which stay tensors unless features are given.
    """

    _verb = "map"
    """Part of the fingerprint."""
    _adds = False
    """True if samples have the fields below, too."""

    def __init__(
        self,
        below: AbstractRows,
        function: Callable[[Any], Any],
        fields: Sequence[str] | None = None,
        sample_type: type[Any] | None = None,
        schema: Features | None = None,
        stored: bool = False,
    ) -> None:
        self.below = below
        self.function = function
        self._chosen = None if fields is None else tuple(fields)
        self._type = sample_type
        self._schema = schema
        self._keeps_stored = stored

    def __reduce__(self) -> tuple[Any, ...]:
        made = (self.below, self.function, self._chosen, self._type, self._schema, self._keeps_stored)
        known = self.__dict__.get("features") if self._type is DictSample else None
        return type(self), made, None if known is None else {"features": known}  # other processes need not find them

    @property
    def stored(self) -> AbstractRows:
        """The same results with media as bytes; media that the function passed on unchanged keep their stored bytes."""
        inferred = self._schema is None and self._type in (None, DictSample)
        if self._keeps_stored or (inferred and self.below.stored is self.below) or not self._media:
            return self
        return type(self)(self.below, self.function, self._chosen, self._type, self.features, True)

    @property
    def media_fields(self) -> Sequence[str]:
        """The media fields of results, unless the function returns decoded media: then there are none."""
        return media_in(self.features) if self._keeps_stored else ()

    @cached_property
    def _media(self) -> dict[str, FieldDecoder]:
        """Fields of media that results have in decoded form."""
        some = {} if self._keeps_stored else {n: f for n, f in self.features.items() if is_decoded(f)}
        return {name: decoder_of(feature, Decoding()) for name, feature in some.items()}

    @cached_property
    def _stored_media(self) -> StoredMedia:
        return StoredMedia(self.below, self.features)

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
        return inferred_of_results(list(self._first_results()), self._features_below()).features

    def _features_below(self) -> Features:
        try:
            below = self.below.features
        except ShardexError:  # samples of several types, which the function may unify
            return Features({})
        return below if self._chosen is None else below.select(self._chosen)

    def _first_results(self) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Yield the first samples with their results, without samples that raise an error; raise if all of them do."""
        failures: list[Exception] = []
        count = min(len(self), _INFER_FROM)
        for row in range(count):
            try:
                given = self.below.sample(row, self._chosen)
                result = fields_of(self._call(copied(given), row))  # the function may change its argument
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
        return digest(self._verb, self.below.fingerprint, getattr(function, "__module__", None), name, self._chosen)

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching all fields that the function gets from the rows below."""
        self.below.advise(rows, self._chosen)

    def make(self, values: dict[str, Any]) -> Any:
        """Return a sample of the type; the type is known after the first result."""
        kind = self._type or self.sample_type
        return DictSample(values) if kind is DictSample or not is_sample_class(kind) else record_of(kind).make(values)

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the rows below, call the function, and convert the results to their features."""
        if len(rows) > _ALWAYS_AT_ONCE and len(rows) > (most := self._rows_at_once):
            parts = (rows[begin : begin + most] for begin in range(0, len(rows), most))
            return Columns.concat([self._read(part, fields) for part in parts])
        return self._read(rows, fields)

    def _read(self, rows: Integers, fields: Sequence[str] | None) -> Columns:
        found = self._results(rows)
        if self._type is not DictSample and is_sample_class(self.sample_type):
            names = check_fields(list(self.features), fields)
            return self._of_class(found, names, rows)
        names = check_fields(list(self.features), fields)
        return self._fitted(found, names, rows, every=fields is None)

    @cached_property
    def _rows_at_once(self) -> int:
        """Number of rows that are read below at once: few enough for the memory, even if their results are small.

        It depends on the first samples alone, so all processes call the function with the same batches.
        """
        try:
            first = self.below.read(np.arange(min(len(self), _INFER_FROM)), self._chosen)
        except Exception:  # a bad sample, which is reported when it is read itself
            return _MAX_ROWS
        fitting = min(_MAX_ROWS, _MAX_BYTES * len(first) // max(1, byte_size(first)))
        return max(_ALWAYS_AT_ONCE, 1 << max(0, fitting.bit_length() - 1))

    def _results(self, rows: Integers) -> Columns:
        """Return the results of the function for these rows, as they are; `MISSING` where one lacks a field."""
        given = self._values(rows)
        before = list(map(self._stored_media.copies, given)) if self._keeps_stored else ()
        with counted():
            results = [self._call(values, row) for values, row in zip(given, rows.tolist(), strict=True)]
        found = [fields_of(one) for one in results]
        if self._keeps_stored:
            found = list(map(self._stored_media.in_sample, found, before, rows.tolist()))
        return Columns.from_samples(found)

    def _of_class(self, found: Columns, names: Sequence[str], rows: Integers) -> Columns:
        """Return results that are instances of a class as columns."""
        plain = [name for name in names if name not in self._media]
        columns = self._fitter.columns(found, plain, lambda k: self._place(int(rows[k])))
        if len(plain) == len(names):
            return columns
        media = {
            n: self._media_column(found.data.get(n, [None] * len(rows)), n, rows) for n in names if n in self._media
        }
        return Columns({**columns.data, **media}, len(rows)).select(names)

    def _media_column(self, column: Column, name: str, rows: Integers) -> Column:
        """Return results of a field of media in decoded form: arrays as they are, bytes and files decoded."""
        feature, decoder = self.features[name], self._media[name]
        if isinstance(column, np.ndarray | Ragged):
            return Masked.whole(column) if feature.optional else column
        found = []
        for k, value in enumerate(values_of(column)):
            if (value is None or value is MISSING) and not feature.optional:
                raise SchemaError(f"expected {feature}, got none - at {self._place(int(rows[k]))}, field {name}")
            try:
                found.append(None if value is MISSING else decoder.result(value))
            except (FormatError, SchemaError) as error:
                raise type(error)(f"{error} - at {self._place(int(rows[k]))}, field {name}") from None
        if all(value is None for value in found):
            return with_missing(decoder.column([]), np.zeros(len(found), np.bool_))
        return Columns({"": found}, len(found)).stack().data[""]

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Call the function for one sample."""
        if self._keeps_stored:
            return self.read(np.array([row]), fields).sample(0)
        values = fields_of(self._call(self.below.sample(row, self._chosen), row))
        if self._type is not DictSample and is_sample_class(self.sample_type):
            names = check_fields(list(self.features), fields)
            if self._media:
                return self._of_class(Columns.from_samples([values]), names, np.array([row])).sample(0)
            return self._fitter.sample(values, names, lambda _: self._place(row))
        checks = self._checks
        if fields is None and values.keys() == checks.keys() and all(fits(values[n]) for n, fits in checks.items()):
            return {name: values[name] for name in checks}  # most results
        names = check_fields(list(self.features), fields)
        return self._fitted(Columns.from_samples([values]), names, np.array([row]), every=fields is None).sample(0)

    @cached_property
    def _checks(self) -> dict[str, Callable[[Any], bool]]:
        """For each field a fast function that is True if a value needs no conversion."""
        return {n: _is_array if n in self._media else _fits_exactly(f) for n, f in self.features.items()}

    def _fitted(self, found: Columns, names: list[str], rows: Integers, *, every: bool) -> Columns:
        """Return results converted to the features; `every`: refuse other fields than these."""
        missing = [MISSING] * len(rows)
        try:
            for name in found.data if every else ():
                if name not in self._checks:
                    first = next((k for k, one in enumerate(values_of(found.data[name])) if one is not MISSING), 0)
                    at = self._place(int(rows[first]))
                    refuse_unknown_fields({name: None}, self.features, f"the fields {', '.join(names)} at {at}")
            columns = {name: self._column(found.data.get(name, missing), name, rows) for name in names}
        except SchemaError as error:
            source = "in schema=" if self._schema is not None else f"in the first {_INFER_FROM} results"
            raise SchemaError(
                f"{error}; the features of {self.function!r} were found {source}: give those that fit all results "
                "with map(..., schema=...)"
            ) from None
        return Columns(columns, len(rows))

    def _column(self, column: Column, name: str, rows: Integers) -> Column:
        if name in self._media:
            return self._media_column(column, name, rows)
        feature, fits = self.features[name], self._checks[name]
        if self._schema is None and isinstance(column, list) and column and all(map(is_tensor, column)):
            return column  # writers convert them
        if not isinstance(column, list):
            if (cast := _cast(column, feature)) is not None:
                return cast
            column = _values(column)
        if isinstance(feature, Array) and feature.stacked:
            arrays = {*map(type, column)} == {np.ndarray}
            if arrays and all(map(fits, {(value.dtype, value.shape): value for value in column}.values())):
                return stack_arrays(column, feature)
        elif not feature.stacked and all(map(fits, column)):
            return column
        return feature.fit_column(column, lambda k: self._place(int(rows[k])), name, stored=False)

    @cached_property
    def _fitter(self) -> ClassFitter:
        return ClassFitter(record_of(self.sample_type), stored=False)

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
            try:
                fields_of(result)
            except SchemaError as error:
                forgot = "; does it end without return?" if result is None else ""
                raise SchemaError(f"{error} from {self.function!r} at {self._place(row)}{forgot}") from None
        self._type = self._type or kind
        if kind is not self._type and not issubclass(kind, self._type):
            wanted, at = self._type.__name__, self._place(row)
            raise SchemaError(f"expected {self.function!r} to return {wanted}, got {type(result).__name__} - at {at}")
        return result


@dataclass(frozen=True)
class CalledAtOnce:
    """The function of `map`, or those of `with_fields`, for samples that are written as they come."""

    function: Callable[[Any], Any]
    adds: bool
    """True if the sample has the fields that the function returns beside its own."""

    def __call__(self, sample: Any) -> Mapping[str, Any]:
        """Return the fields of a result; `SchemaError` if it has none."""
        before = dict(fields_of(sample)) if self.adds else {}
        result = self.function(sample)
        try:
            return {**before, **fields_of(result)}
        except SchemaError as error:
            forgot = "; does it end without return?" if result is None else ""
            raise SchemaError(f"{error} from {self.function!r}{forgot}") from None

    def __repr__(self) -> str:
        return repr(self.function)


class BatchMapRows(MapRows):
    """Results of a function that is called for whole batches: all rows that are read at once.

    It gets a `Batch` and returns columns of the same length: a mapping of arrays and lists, `Columns`, or a `Batch`,
    whose class is that of the results.
    """

    _verb = "map batched"

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Call the function for a batch of one sample."""
        return self.read(np.array([row]), fields).sample(0)

    def _results(self, rows: Integers) -> Columns:
        if not len(rows):
            return Columns({}, 0)  # functions need not work for no samples
        given = self.below.read(rows, self._chosen)
        if not self._keeps_stored:
            return self._call_batch(given, rows)
        before = self._stored_media.copies(given.data)
        return self._stored_media.in_columns(self._call_batch(given, rows), before, rows)

    def _call_batch(self, given: Columns, rows: Integers) -> Columns:
        """Call the function for the columns of these rows; raise if it returns another number of results."""

        def place() -> str:
            return place_of_rows(self, rows)

        with counted():
            made = batch_result(self.function, Batch(given, self._type_below), place)
        if len(made) != len(rows):
            wanted = f"{len(rows)} sample{'s' * (len(rows) != 1)}"
            raise SchemaError(
                f"expected {wanted} from {self.function!r}, as many as it got, got {len(made)} - at {place()}; "
                "sx.write(..., transform=function, batched=True) takes functions that return another number"
            )
        self._type = self._type or made.sample_type
        if made.sample_type is not self._type:
            wanted, found = self._type.__name__, made.sample_type.__name__
            raise SchemaError(f"expected {self.function!r} to return samples of {wanted}, got {found} - at {place()}")
        return (
            made.columns
            if self._type is DictSample
            else conversions.in_form(made.columns, record_of(self._type).features)
        )

    @cached_property
    def _type_below(self) -> type[Any]:
        """Type of the samples of the batches that the function gets."""
        return sample_type_of(self.below, self._chosen)

    def _first_results(self) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
        """Yield each of the first samples and its result; if the batch fails, those samples that do not fail on their
        own.
        """
        rows = np.arange(min(len(self), _INFER_FROM))
        try:
            pairs = self._pairs(rows) if len(rows) else []
        except Exception:
            pairs = [pair for row in rows for pair in self._pairs_or_none(rows[row : row + 1])]
            if not pairs:
                raise
        yield from pairs

    def _pairs(self, rows: Integers) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        columns = self.below.read(rows, self._chosen)
        given = numpy_samples(columns)
        made = self._call_batch(copied_lists(columns), rows)  # the function may change its argument
        return list(zip(given, numpy_samples(made), strict=True))

    def _pairs_or_none(self, rows: Integers) -> list[tuple[dict[str, Any], Mapping[str, Any]]]:
        try:
            return self._pairs(rows)
        except Exception:
            return []


def numpy_samples(columns: Columns) -> list[dict[str, Any]]:
    """Return columns as samples whose numbers have the dtype of their array."""
    return Columns({name: _values(one, numpy=True) for name, one in columns.data.items()}, len(columns)).to_samples()


def _values(column: Column, *, numpy: bool = False) -> list[Any]:
    """Return the values of a column as samples hold them; `numpy`: numbers of an array in its dtype.

    Dates and times that Python cannot hold are numpy values.

    >>> _values(np.array([1, 2], np.int8), numpy=True)
    [np.int8(1), np.int8(2)]
    """
    if isinstance(column, Masked):
        values = _values(column.column, numpy=numpy)
        return [value if there else None for value, there in zip(values, column.mask.tolist(), strict=True)]
    if isinstance(column, TimeArray):
        try:
            return column.to_list()
        except FormatError:
            return list(column.view(np.ndarray))
    return list(column) if numpy and isinstance(column, np.ndarray) else list(values_of(column))


def _cast(column: Column, feature: Feature) -> Column | None:
    """Return an array, `Ragged` or `Masked` in the form of a feature if checks of whole arrays show that all values
    fit.
    """
    if isinstance(column, list) or not feature.stacked:
        return None
    inner = unwrap_optional(feature)
    if isinstance(inner, ClassLabel):
        cast = _cast_labels(column, feature, len(inner.names))
    else:
        cast = feature.cast_column(column)
    return None if cast is None else conversions.in_form(Columns({"": cast}), {"": feature}).data[""]


def _cast_labels(column: Column, feature: Feature, classes: int) -> Column | None:
    values = column.column if isinstance(column, Masked) else column
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        return None
    present = values[column.mask] if isinstance(column, Masked) else values
    if len(present) < len(values) and not feature.optional:
        return None
    if len(present) and not (present.min() >= 0 and present.max() < classes):
        return None
    labels = values.astype(np.int32, copy=False)
    return Masked(labels, column.mask) if isinstance(column, Masked) and feature.optional else labels


def _is_array(value: Any) -> bool:
    return type(value) is np.ndarray


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
            pack, unpack, high = _FLOAT32.pack, _FLOAT32.unpack, dtypes.dtype_bounds("float32")[1]
            return lambda value: type(value) is float and -high <= value <= high and unpack(pack(value))[0] == value
    return feature.fits_unchanged()


def below_functions(rows: AbstractRows, fields: Sequence[str] | None) -> tuple[AbstractRows, Sequence[str] | None]:
    """Return the rows below all functions of `map`, and the fields of them that are read."""
    for layer in layers_of(rows):
        if isinstance(layer, MapRows):
            rows, fields = layer.below, layer._chosen
    return rows, fields


def function_step(rows: AbstractRows) -> tuple[AbstractRows, Sequence[str] | None, CalledAtOnce] | None:
    """Return the rows and fields below a function of `map`, and the function, if only its results say their features.

    When all results are written, features that were found in the first ones can become wider.
    """
    if not isinstance(rows, MapRows) or isinstance(rows, BatchMapRows):
        return None
    if rows._schema is not None or rows._keeps_stored or is_sample_class(rows.sample_type):
        return None
    return rows.below, rows._chosen, CalledAtOnce(rows.function, rows._adds)


def inferred_of_results(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], below: Features) -> Inferred:
    """Return features that fit all results; a field that has its given value in all of them keeps its feature."""
    found, kept = dict(Inferred.or_json([made for _, made in pairs]).fields), []
    for name in found.keys() & below.keys():
        values = [(given.get(name, MISSING), made[name]) for given, made in pairs if name in made]
        if all(unchanged(old, new) for old, new in values):
            found[name] = below[name] if len(values) == len(pairs) else Optional(below[name])
            kept.append(name)
    return Inferred(found, kept)


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
    if is_tensor(old) and is_tensor(new):
        return old.dtype == new.dtype and old.shape == new.shape and bool((old == new).all())
    a, b = (one.item() if isinstance(one, np.generic) else one for one in (old, new))
    return type(a) is type(b) and repr(a) == repr(b)
