"""Rows whose images, audio and video are decoded when they are read. `open` and `Dataset.decode` make them.

In: rows that return media as they are stored, as bytes. Out: rows with arrays (or tensors, or PIL images) instead.
`MediaRows` are above all layers that only rename, type or combine fields, so that whatever copies data finds the
stored bytes right below them (`AbstractRows.stored`). The room `media` decodes; `field_decoders` chooses its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.features import Feature, Features, Image, Media, Optional, Video, unwrap_optional
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged, digest, values_of, with_missing
from shardex.layers.field_decoders import (
    Decoding,
    FieldDecoder,
    Generators,
    decode_alike,
    decoder_of,
    is_decoded,
    parse_decodings,
)
from shardex.layers.function_calls import copied
from shardex.layers.layers import Layer, TypedRows
from shardex.rows import AbstractRows, media_in
from shardex.samples import DictSample

Decodings = Mapping[str, Decoding]


class MediaRows(Layer):
    """Rows over others whose media are stored bytes; `decodings` say how each field of media is decoded.

    >>> import numpy as np, shardex as sx, tempfile
    >>> red = np.full((2, 3, 3), [255, 0, 0], np.uint8)
    >>> ds = sx.write(tempfile.mkdtemp() + "/d", [{"image": red}], {"image": sx.Image()})
    >>> ds[0].image.shape, ds.stored[0].image[:4], type(ds.rows).__name__
    ((2, 3, 3), b'\\x89PNG', 'MediaRows')
    """

    def __init__(self, below: AbstractRows, decodings: Decodings) -> None:
        self.below = below
        self.decodings = dict(decodings)
        self._sample_below = below.sample
        if isinstance(below, Layer):
            self.make = below.make  # type: ignore[method-assign]  # one call less for each sample

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaRows, (self.below, self.decodings)

    @property
    def sample_type(self) -> type[Any]:
        """Type of the samples of the rows below."""
        return self.below.sample_type if isinstance(self.below, Layer) else DictSample

    def make(self, values: dict[str, Any]) -> Any:
        """Return an untyped sample; over a layer, `__init__` replaces this by the method of that layer."""
        return DictSample(values)

    @property
    def stored(self) -> AbstractRows:
        """The rows below."""
        return self.below.stored

    def stored_feature(self, name: str) -> Feature | None:
        """The feature with the options that a field is decoded with; None if steps follow, which no feature has."""
        one = self.decodings.get(name, Decoding("bytes"))
        return None if one.steps else one.feature or self.below.stored_feature(name)

    @property
    def media_fields(self) -> Sequence[str]:
        """Empty: the values of these rows are decoded."""
        return ()

    @cached_property
    def features(self) -> Features:
        """Features of the rows below; those of media that stay bytes, or have other options, say so."""
        below = self.below.features
        special = {n: d for n, d in self.decodings.items() if d.form == "bytes" or d.feature is not None}
        if not special:
            return below
        return Features({n: _as_decoded(f, special[n]) if n in special else f for n, f in below.items()})

    @property
    def in_python(self) -> bool:
        """True if the rows below are read in Python and no field is decoded: decoding, which takes longest, releases
        the GIL.
        """
        return self.below.in_python and not self._decoders

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the rows below; made from it and the decodings if these are not the default ones."""
        special = {name: one for name, one in sorted(self.decodings.items()) if one != Decoding()}
        return digest("decode", self.below.fingerprint, special) if special else self.below.fingerprint

    @property
    def random(self) -> bool:
        """True if a field has random steps or frames: then only `decode` with generators works."""
        return any(one.random for one in self._decoders.values())

    @property
    def channel_axes(self) -> dict[str, int]:
        """Fields of arrays whose channels are last, and where tensors have them: before height, or before frames."""
        arrays = {n: unwrap_optional(self.below.features[n]) for n, d in self.decodings.items() if d.form == "numpy"}
        return {n: -3 if isinstance(f, Image | Video) else -2 for n, f in arrays.items() if isinstance(f, Media)}

    def in_form(self, old: str, new: str) -> MediaRows:
        """Return rows that decode the fields of one form in another."""
        return MediaRows(
            self.below, {n: replace(d, form=new) if d.form == old else d for n, d in self.decodings.items()}
        )

    @cached_property
    def _decoders(self) -> dict[str, FieldDecoder]:
        features = self.below.features
        some = {name: one for name, one in self.decodings.items() if one.form != "bytes"}
        return {name: decoder_of(features[name], one) for name, one in some.items()}

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below and decode those of media, many values at a time."""
        return self.decode(self.stored_columns(rows, fields), rows)

    def stored_columns(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        """Read the columns below, for `decode`: stored bytes that are decoded at once need not be copied."""
        return self.below.read_views(rows, fields, self._decoders)

    def decode(self, columns: Columns, rows: Integers, generators: Generators | None = None) -> Columns:
        """Decode the media in columns that the rows below have returned; `generators` are for random steps."""
        for name, decoder in self._decoders.items():
            if name in columns.data:
                columns.data[name] = self._column(name, decoder, columns.data[name], rows, generators)
        return columns

    def _column(
        self, name: str, decoder: FieldDecoder, column: Column, rows: Integers, generators: Generators | None
    ) -> Column:
        values = values_of(column)
        mask = np.array([value is not None and value is not MISSING for value in values], np.bool_)
        there = np.flatnonzero(mask).tolist()
        chances = None if generators is None else lambda k: generators(there[k])
        try:
            found = decoder.column(values if mask.all() else [values[k] for k in there], chances)
        except (FormatError, SchemaError) as error:
            number = getattr(error, "index", None)
            if number is None:
                raise self._located(error, "", name) from error
            raise self._located(error, self._place(int(rows[there[number]])), name) from error
        return with_missing(found, mask) if self.below.features[name].optional else found

    def sample(self, row: int, fields: Sequence[str] | None = None) -> dict[str, Any]:
        """Read one sample below and decode its media."""
        values = self._sample_below(row, fields)
        for name, decoder in self._decoders.items():
            if (value := values.get(name)) is not None:
                try:
                    values[name] = decoder.value(value)
                except (FormatError, SchemaError) as error:
                    raise self._located(error, self._place(row), name) from error
        return values

    def _located(self, error: FormatError | SchemaError, place: str, name: str) -> FormatError | SchemaError:
        """Return an error about a value, with the sample, file and field added to its text."""
        where = f"{place}, field {name}" if place else f"field {name}"
        located = type(error)(f"{error} - at {where}; ds.decode(False) reads the bytes")
        located.index = getattr(error, "index", None)  # type: ignore[union-attr]
        return located

    # -- everything else is that of the rows below --------------------------------------------------------------

    def advise(self, rows: Integers, fields: Sequence[str] | None = None) -> None:
        """Start fetching the stored bytes."""
        self.below.advise(rows, fields)

    def column(self, name: str) -> pa.ChunkedArray | None:
        """The column below, if it needs no decoding."""
        return None if name in self._decoders else self.below.column(name)

    @property
    def extracted(self) -> Features:
        """Extracted columns of the rows below."""
        return self.below.extracted

    def sql_columns(self, names: Sequence[str]) -> pa.Table:
        """Return the columns below: SQL sees stored bytes."""
        return self.below.sql_columns(names)

    def present(self, name: str) -> NDArray[np.bool_]:
        """Return which rows have a value, from the rows below."""
        return self.below.present(name)

    def lengths(self, name: str) -> Integers:
        """Return the lengths of arrays, from the rows below."""
        return self.below.lengths(name)


def _as_decoded(feature: Feature, decoding: Decoding) -> Feature:
    """Return the feature of a field with other options, or whose media stay bytes."""
    if feature.optional:
        return Optional(_as_decoded(unwrap_optional(feature), decoding))
    if not isinstance(feature, Media):
        return feature
    return replace(decoding.feature or feature, decode=decoding.form != "bytes")


# -- which rows are decoded -----------------------------------------------------------------------------------


def media_decoded(rows: AbstractRows) -> AbstractRows:
    """Return rows with their media decoded as the features say; the same rows if there is nothing to decode."""
    names = rows.media_fields
    if not names:
        return rows
    features = rows.features
    found = {name: Decoding() for name in names if is_decoded(features[name])}
    return MediaRows(rows, found) if found else rows


def undecoded(rows: AbstractRows) -> AbstractRows:
    """Return the rows below the decoding of media, if it is the outermost layer; otherwise the rows themselves."""
    return rows.below if isinstance(rows, MediaRows) else rows


def over_stored(
    rows: AbstractRows, make: Callable[[AbstractRows], AbstractRows], names: Mapping[str, str] | None = None
) -> AbstractRows:
    """Return `make(stored rows)` with media decoded as in `rows`; `names` has new names of fields by the old ones."""
    if not isinstance(rows, MediaRows):
        return make(rows)
    made = make(rows.below)
    renamed = {(names or {}).get(name, name): one for name, one in rows.decodings.items()}
    return with_decodings(made, {name: one for name, one in renamed.items() if name in made.features})


def typed_rows(rows: AbstractRows, kind: type[Any], fields: Sequence[str] | None) -> AbstractRows:
    """Return rows as instances of a class; media are decoded if its features say so."""
    decodings = decodings_of(rows)
    typed = TypedRows(undecoded(rows), kind, fields)
    names = [name for name in typed.media_fields if is_decoded(typed.features[name])]
    return with_decodings(typed, {name: decodings.get(name, Decoding()) for name in names})


def decodings_of(rows: AbstractRows, fields: Sequence[str] | None = None) -> Decodings:
    """Return how rows decode their media, or those of these fields."""
    found = rows.decodings if isinstance(rows, MediaRows) else {}
    return {name: one for name, one in found.items() if fields is None or name in fields}


def common_decodings(every: Sequence[tuple[AbstractRows, Sequence[str] | None]]) -> Decodings:
    """Return how several rows (or these fields of them) decode their media; an empty dict if they do it in different
    ways.
    """
    first, *others = [decodings_of(*one) for one in every]
    return first if all(one == first for one in others) else {}


def with_decodings(rows: AbstractRows, decodings: Decodings) -> AbstractRows:
    """Return rows with the media of these fields decoded."""
    return MediaRows(rows, decodings) if decodings else rows


def decoded_rows(
    given: AbstractRows, names: Sequence[str] | None, form: Any, fields: Mapping[str, Any], *, random: bool = False
) -> AbstractRows:
    """Return rows with media decoded in other forms: all, or of the named fields; `random` is for loaders only."""
    rows = undecoded(given)
    features = rows.features
    known = {n: features[n] for n in rows.media_fields if names is None or n in names}
    if not known and (lost := media_in(given.features if names is None else given.features.select(names))):
        raise ArgumentError(
            f"expected a dataset whose media are stored bytes, got results of a function - at field {lost[0]}; call "
            "decode before map"
        )
    before = decodings_of(given)
    chosen = parse_decodings(known, form, fields, before)
    for name, one in chosen.items():
        if one.random and not random:
            raise ArgumentError(
                f"expected decoding without chance, got {one.feature or one.steps} for {name}; give it to the loader: "
                f"Loader(ds, ..., decode={{{name!r}: ...}})"
            )
    return with_decodings(rows, {**before, **chosen})


# -- media that pass through functions --------------------------------------------------------------------------


class StoredMedia:
    """The stored bytes of media that a function got decoded: a result that has the same pixels gets the same bytes.

    Fields whose feature in the results would decode them to other pixels, as steps or other options made the given
    ones, are left out: their results are encoded.
    """

    def __init__(self, rows: AbstractRows, results: Mapping[str, Feature], *, copied: bool = False) -> None:
        """:param results: features of the results, of which only media are kept as bytes
        :param copied: results are the samples of `rows` themselves, whose media are copied as they are
        """
        self._rows = rows.stored
        known = () if self._rows is rows else self._rows.media_fields
        names = [name for name in media_in(results) if name in known]
        self.names = [n for n in names if copied or decode_alike(rows.stored_feature(n), results[n])]

    def copies(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the decoded media of a sample, or of columns, as the function may change its argument."""
        return {name: _copy(given[name]) for name in self.names if name in given}

    def in_sample(self, result: Mapping[str, Any], before: Mapping[str, Any], row: int) -> Mapping[str, Any]:
        """Return a result with the stored bytes of the media that are as `before`."""
        same = [name for name, value in before.items() if name in result and _same(value, result[name])]
        return {**result, **self._rows.sample(row, same)} if same else result

    def in_columns(self, results: Columns, before: Mapping[str, Column], rows: Integers) -> Columns:
        """Return results for these rows with the stored bytes of the media that are as `before`."""
        data = dict(results.data)
        for name in before.keys() & data.keys():
            values = list(values_of(data[name]))
            same = np.array([_same(a, b) for a, b in zip(values_of(before[name]), values, strict=True)], np.bool_)
            stored = iter(values_of(self._rows.read(rows[same], [name]).data[name]))
            data[name] = [next(stored) if kept else value for kept, value in zip(same.tolist(), values, strict=True)]
        return Columns(data, len(results))


def _copy(value: Any) -> Any:
    if isinstance(value, Masked):
        return Masked(_copy(value.column), value.mask.copy())
    return value.packed() if isinstance(value, Ragged) else copied(value)


def _same(before: Any, after: Any) -> bool:
    """Return whether two decoded values are equal; False for None, which has no stored bytes to keep."""
    if isinstance(before, np.ndarray):
        return isinstance(after, np.ndarray) and before.dtype == after.dtype and np.array_equal(before, after)
    if isinstance(before, list | tuple):
        return isinstance(after, list | tuple) and len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, Mapping):
        keys = isinstance(after, Mapping) and before.keys() == after.keys()
        return keys and all(_same(value, after[name]) for name, value in before.items())
    if hasattr(before, "movedim"):  # a tensor
        return type(before) is type(after) and before.shape == after.shape and bool((before == after).all())
    return before is not None and type(before) is type(after) and bool(before == after)
