"""`ColumnForms`: the form of each column of a batch, and the fill value where a value is missing.

The form follows the feature of a field, never the values of one batch: a field whose arrays may differ in length is
padded, packed or a list even if the rows of a batch happen to have one length, and a field that may be missing has a
mask even if nothing is missing. If all images of a batch are missing, their height and width are those of the steps or
the feature, 0 where these do not tell them. What a transform returns has no features, so there all arrays may differ in
length, and all numbers may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, SchemaError, nearest
from shardex.features import (
    Array,
    Audio,
    Bytes,
    ClassLabel,
    Feature,
    Image,
    Json,
    Media,
    Sequence,
    Struct,
    Text,
    TimeFeature,
    Value,
    Video,
    stack_arrays,
    unwrap_optional,
)
from shardex.kernel import MISSING, Column, Columns, Integers, Masked, Ragged, missing_value, with_missing
from shardex.loader.options import LoaderOptions
from shardex.loader.tensors import as_arrays

Lengths = dict[str, Integers]
"""Lengths of the rows of fields of arrays; their shapes if several sizes may vary."""
Mask = NDArray[np.bool_]


class ColumnForms:
    """Converts columns as they are read, or as a transform returns them, to the forms that the options choose."""

    def __init__(self, options: LoaderOptions, features: Mapping[str, Feature]) -> None:
        self._transformed = options.transform is not None
        self._ragged, self._fill, self._dtypes = options.ragged, options.fill, options.casts
        self._features = {name: unwrap_optional(one) for name, one in features.items()}
        self._classes = {n for n, f in self._features.items() if isinstance(f, ClassLabel) and options.to == "torch"}
        """Fields whose tensors have int64, which losses of torch need."""
        self._media = {n: size for n, f in self._features.items() if (size := _dimensions(f))}
        """Dimensions of fields of images and others that have one shape."""
        known = {} if self._transformed else {n: f for n, f in features.items() if n not in self._classes}
        self._final = {n: kind for n, f in known.items() if (kind := _final(f))}
        """The type of columns that are read in their form, and need no look at each batch."""
        if not self._transformed and features:
            names = list(features) if options.fields is None else options.fields
            self._check_names(names)
            for name in names:
                self._check(name, features[name])

    def _check_names(self, known: Iterable[str]) -> None:
        """Raise if an option names a field that batches do not have."""
        for option, chosen in (("fill", self._fill), ("ragged", self._ragged), ("dtype", self._dtypes)):
            for name in chosen if isinstance(chosen, Mapping) else ():
                if name not in known:
                    near = nearest(name, known)
                    raise ArgumentError(f"expected {option} for the fields {', '.join(known)}, got {name!r}{near}")

    def _check(self, name: str, feature: Feature) -> None:
        """Raise if the options do not suit a field."""
        may_fill = feature.optional or (isinstance(feature, Array) and not feature.fixed)
        named = isinstance(self._fill, Mapping) and name in self._fill
        feature = unwrap_optional(feature)
        dtype = _dtype_of(feature.feature if isinstance(feature, Sequence) else feature)
        if dtype is not None and (may_fill or named):
            self._filler(name, dtype, 0)
        elif named and not isinstance(feature, Array):
            raise ArgumentError(f"expected a field of numbers or arrays in fill=, got {feature} - at field {name}")
        if isinstance(feature, Array) and (feature.shape or ()).count(None) > 1 and not self._is_chosen(name):
            raise _several_sizes(name, str(feature))

    def _is_chosen(self, name: str) -> bool:
        """Return whether the user chose how rows of different shapes are combined."""
        choices = (self._ragged, self._fill)
        return any(name in one if isinstance(one, Mapping) else one is not None for one in choices)

    def form(self, name: str) -> str:
        """Return the form of a field whose rows differ in length: "pad", "pack" or "list"."""
        ragged = self._ragged.get(name) if isinstance(self._ragged, Mapping) else self._ragged
        return ragged or "pad"

    def _filler(self, name: str, dtype: np.dtype[Any], default: Any) -> Any:
        """Return the value for padding or missing values of a field."""
        value = self._fill.get(name) if isinstance(self._fill, Mapping) else self._fill
        if value is None:
            return default
        if not _holds(dtype, value):
            raise ArgumentError(f"expected a fill value that {dtype} can hold, got {value!r} - at field {name}")
        return value

    # -- columns -----------------------------------------------------------------------------------------------

    def convert(self, columns: Columns) -> tuple[Columns, Lengths]:
        """Return the columns in their forms, and the lengths of the rows of fields whose rows may differ."""
        lengths: Lengths = {}
        for name, column in columns.data.items():
            if self._final.get(name) is type(column):
                continue
            found = self._from_list(name, column) if isinstance(column, list) else column
            columns.data[name] = found if isinstance(found, list) else self._column(name, found, lengths)
        if self._transformed:
            self._check_names(dict.fromkeys([*columns.names, *self._features]))
        return columns, lengths

    def are_final(self, columns: Columns) -> bool:
        """Return whether all columns have their form already."""
        final = self._final
        return all(final.get(name) is type(column) for name, column in columns.data.items())

    def _column(self, name: str, column: NDArray[Any] | Ragged | Masked, lengths: Lengths) -> Column:
        values, mask = (column.column, column.mask) if isinstance(column, Masked) else (column, None)
        if (kind := self._media.get(name)) and values.ndim == kind + (not isinstance(values, Ragged)):
            return self._images(name, values, mask, lengths)
        if isinstance(values, np.ndarray) and (values.ndim == 1 or self._is_fixed(name, values)):
            if self._transformed and values.ndim == 1:
                values = self._restored(name, values)
                mask = np.ones(len(values), np.bool_) if mask is None else mask
            if name in self._classes and values.dtype.kind in "iu":
                values = values.astype(np.int64, copy=False)
            if mask is None:
                return values
            return Masked(values, mask).filled(self._filler(name, values.dtype, missing_value(values.dtype)))
        return self._arrays(name, values, mask, lengths)

    def _is_fixed(self, name: str, values: NDArray[Any]) -> bool:
        """Return whether all arrays of a field have one shape; a transform may change shapes if they are padded."""
        feature = self._features.get(name)
        if not isinstance(feature, Array) or not feature.fixed:
            return False
        if not self._transformed:
            return True
        named = isinstance(self._ragged, Mapping) and name in self._ragged
        return not named and self.form(name) != "pad" and values.shape[1:] == feature.shape

    def _restored(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return numbers cast back to the dtype of their field, if a transform has widened them; integers only if they
        fit.
        """
        feature = self._features.get(name)
        dtype = _dtype_of(feature) if isinstance(feature, Value | ClassLabel) else values.dtype
        if dtype is None or dtype == values.dtype:
            return values
        whole = values.dtype.kind in "iu" and dtype.kind in "iu"
        fits = values.dtype.kind == dtype.kind == "f" or (whole and bool((values.astype(dtype) == values).all()))
        return values.astype(dtype) if fits else values

    # -- arrays that may differ in length -----------------------------------------------------------------------

    def _arrays(self, name: str, values: NDArray[Any] | Ragged, mask: Mask | None, lengths: Lengths) -> Column:
        form = self.form(name)
        if form == "list":
            return Masked(values, np.ones(len(values), np.bool_) if mask is None else mask).to_list()
        if form == "pack":
            rows = values if isinstance(values, Ragged) else _packed(values, mask)
            feature = self._known_shape(name, rows)
            packed = _shaped(rows) if feature is not None and not feature.ragged else rows.packed()
            lengths[name] = rows.lengths if packed.shapes is None else packed.shapes
            return packed if mask is None else Masked(packed, mask)
        lengths[name] = self._sizes(name, values, mask)
        filler = self._filler(name, values.dtype, 0)
        if isinstance(values, Ragged):
            padded = values.pad(value=filler)
        else:
            padded = values if mask is None else Masked(values, mask).filled(filler).column
        return padded if mask is None else Masked(padded, mask)

    def _sizes(self, name: str, values: NDArray[Any] | Ragged, mask: Mask | None) -> Integers:
        """Return the lengths of rows that are padded, or their shapes if more than their first sizes may vary."""
        if isinstance(values, Ragged):
            if values.ndim == 1:
                return values.lengths
            shapes = values.full_shapes()
        else:
            shapes = np.tile(np.array(values.shape[1:], np.int64), (len(values), 1))
            if mask is not None:
                shapes[~mask] = 0
        if (feature := self._known_shape(name, values)) is not None:
            return shapes[:, 0] if feature.ragged else shapes
        chosen = self._is_chosen(name)
        if isinstance(values, Ragged) and values.shapes is not None and not chosen:
            if isinstance(self._features.get(name), Audio):
                _of_one_size(name, values, mask)
            raise _several_sizes(name, f"arrays of shapes {_examples(values.shapes)}")
        return shapes if chosen and shapes.shape[1] > 1 else shapes[:, 0]

    def _known_shape(self, name: str, values: NDArray[Any] | Ragged) -> Array | None:
        """Return the feature of a field of arrays if it has a shape; a transform may have changed it."""
        feature = self._features.get(name)
        if not isinstance(feature, Array) or feature.shape is None or feature.fixed:
            return None
        if not self._transformed:
            return feature
        several = feature.shape.count(None) > 1 and not self._is_chosen(name)
        sizes = values.full_shapes() if isinstance(values, Ragged) else np.array([values.shape[1:]])
        sizes = sizes[sizes.all(axis=1)]  # rows without elements, such as missing ones, fit
        fixed = [axis for axis, size in enumerate(feature.shape) if size is not None]
        fits = sizes.shape[1] == len(feature.shape) and all((sizes[:, k] == feature.shape[k]).all() for k in fixed)
        return feature if fits and not several else None

    def _images(self, name: str, values: NDArray[Any] | Ragged, mask: Mask | None, lengths: Lengths) -> Column:
        """Return images in the form that was chosen; otherwise as one array, which needs images of one size."""
        ragged = self._ragged
        if name in ragged if isinstance(ragged, Mapping) else ragged is not None:
            return self._arrays(name, values, mask, lengths)
        if isinstance(values, Ragged):
            values = _of_one_size(name, values, mask)
        return values if mask is None else Masked(values, mask).filled(self._filler(name, values.dtype, 0))

    # -- lists ---------------------------------------------------------------------------------------------------

    def _from_list(self, name: str, column: list[Any]) -> Column:
        """Return numbers and lists of numbers as arrays, other values as they are."""
        first = next((value for value in column if value is not None and value is not MISSING), None)
        if isinstance(first, str | bytes | dict):
            return column
        feature = self._features.get(name)
        mask = np.array([value is not None and value is not MISSING for value in column], np.bool_)
        present = [value for value in column if value is not None and value is not MISSING]
        found = self._numbers(present, feature)
        return column if found is None else with_missing(found, mask) if len(present) < len(column) else found

    def _numbers(self, present: list[Any], feature: Feature | None) -> Column | None:
        """Return the values that are there as an array or `Ragged`; `None` if they are neither numbers nor arrays."""
        if isinstance(feature, Sequence) and isinstance(feature.feature, Value):
            items = feature.feature.dtype
            try:
                return stack_arrays([np.array(value, items) for value in present], Array(items, (None,)))
            except (ValueError, TypeError, OverflowError, SchemaError):
                return None
        if not present or isinstance(feature, TimeFeature):
            return _fitted(present, feature)
        present = as_arrays(present)
        if isinstance(present[0], np.ndarray):
            found = Columns({"": present}).stack().data[""]
            return None if isinstance(found, list) else found
        kinds = {type(value) for value in present}
        if bool in kinds or not all(issubclass(kind, int | float | np.number) for kind in kinds):
            return None
        array = np.array(present)
        return None if array.dtype.hasobject else array


def _fitted(values: list[Any], feature: Feature | None) -> Column | None:
    """Return values in the form of their feature; `None` if they do not fit, or if it has none."""
    if isinstance(feature, Array) and feature.dtype and not feature.shape:
        feature = Array(feature.dtype, (None,))  # rows of length 0 are all that is known
    if feature is None or not feature.stacked:
        return None
    try:
        return feature.fit_column(values, str, "", stored=False)
    except SchemaError:
        return None


def _final(feature: Feature) -> type | None:
    """Return the type of the columns of a feature if no option changes their form, otherwise `None`.

    >>> _final(Value("int8")), _final(Array("int8", (None,)))
    (<class 'numpy.ndarray'>, None)
    """
    if isinstance(feature, Value | ClassLabel) or (isinstance(feature, Array) and feature.fixed and feature.shape):
        return np.ndarray
    inner = unwrap_optional(feature)
    if isinstance(inner, Media) and inner.decode:
        return None
    return list if isinstance(inner, Text | Bytes | Json | Struct) else None


def _dimensions(feature: Feature) -> int:
    """Return the number of dimensions of media that have one shape: images, videos, audio of one length; 0 of others.

    >>> _dimensions(Image()), _dimensions(Audio(frames=100)), _dimensions(Audio())
    (3, 2, 0)
    """
    if isinstance(feature, Audio):
        return 0 if feature.frames is None else 2
    return 3 if isinstance(feature, Image) else 4 if isinstance(feature, Video) else 0


def _dtype_of(feature: Feature | None) -> np.dtype[Any] | None:
    if isinstance(feature, Value | Array | TimeFeature):
        return None if feature.dtype is None else np.dtype(feature.dtype)
    return np.dtype(np.int32) if isinstance(feature, ClassLabel) else None


def _holds(dtype: np.dtype[Any], value: Any) -> bool:
    """Return whether a dtype has this value.

    >>> [_holds(np.dtype(dtype), value) for dtype, value in [("int8", 1.5), ("uint8", -1), ("bool", 1), ("float32", 2)]]
    [False, False, True, True]
    """
    if dtype.kind in "mM":
        return np.asarray(value).dtype.kind == dtype.kind
    if isinstance(value, np.datetime64 | np.timedelta64):
        return False
    try:
        with np.errstate(all="ignore"):
            there = np.asarray(value).astype(dtype).item()
            exact = dtype.kind in "fc" and (not np.isfinite(value) or bool(np.isfinite(there)))
        return exact or bool(there == value)
    except (OverflowError, ValueError, TypeError):
        return False


def _packed(values: NDArray[Any], mask: Mask | None) -> Ragged:
    """Return stacked arrays as rows that may differ in length; missing rows are empty."""
    if mask is None:
        return Ragged.from_stacked(values)
    rows: Ragged = Masked.spread(Ragged.from_stacked(values[mask]), mask).column
    return rows


def _shaped(rows: Ragged) -> Ragged:
    """Return a copy of rows that has the whole shape of each."""
    if rows.shapes is not None:
        return rows.packed()
    step = int(np.prod(rows.inner, dtype=np.int64))
    return Ragged.from_values(rows.values.reshape(-1), rows.offsets * step, shapes=rows.full_shapes())


def _examples(shapes: Integers) -> str:
    different = np.unique(shapes, axis=0)
    return " and ".join(str(tuple(shape)) for shape in different[[0, -1]].tolist())


def _of_one_size(name: str, images: Ragged, mask: Mask | None) -> NDArray[Any]:
    """Return images, or other media, that lie end to end as one array; missing ones are black."""
    shapes = images.full_shapes()
    present = shapes if mask is None else shapes[mask]
    if len(different := np.unique(present, axis=0)) > 1:
        same_size = shapes.shape[1] == 3 and len(np.unique(present[:, :2], axis=0)) == 1
        what, advice = _CHANNELS_ADVICE if same_size else _MEDIA_ADVICE[shapes.shape[1]]
        raise SchemaError(
            f"expected {what} to stack them, got {_examples(present)} - at field {name}; make them alike with "
            f'decode={{"{name}": {advice}, or choose ragged={{"{name}": "list"}} for a list of arrays, "pad" to pad '
            "them with zeros"
        )
    shape = different[0].tolist() if len(different) else [0] * shapes.shape[1]
    stacked = images.values.reshape(-1, *shape)
    return stacked if mask is None else Masked.spread(stacked, mask).column


_MEDIA_ADVICE = {
    2: ("audio of one number of channels", "sx.Audio(mono=True, ...)}"),
    3: ("images of one size", "[sx.media.Resize((height, width))]} (or CenterCrop, RandomResizedCrop, Pad)"),
    4: ("videos of one number of frames and one size", "sx.Video(frames=..., size=(height, width))}"),
}
"""For media of each number of dimensions: what a batch needs, and how to get it."""
_CHANNELS_ADVICE = ("images of one number of channels", 'sx.Image(mode="RGB")} (or "L", "RGBA")')


def _several_sizes(name: str, found: str) -> SchemaError:
    return SchemaError(
        f"expected arrays that differ in their first size only, got {found} - at field {name}; resize them in "
        f'transform=, or choose ragged="pad" to pad them in all dimensions, or "list" for a list of arrays; for this '
        f'field alone: ragged={{"{name}": "list"}}'
    )
