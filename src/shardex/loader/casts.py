"""`Cast`: the dtype that a field has in batches; `Casts` has the casts of all fields.

With a device, values are cast there, because the stored ones are usually smaller and are copied faster; integers that
may not fit are cast in the worker, where they are checked. Without a device all casts are made in the worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardex.errors import ArgumentError, SchemaError
from shardex.features import Array, ClassLabel, Feature, Media, Value, unwrap_optional
from shardex.features import Sequence as SequenceFeature
from shardex.kernel import Column, Columns, Masked, Ragged, is_tensor, pooled_empty
from shardex.loader.tensors import map_tensors, require_torch

_ONLY_TORCH = "bfloat16"
"""A dtype that numpy lacks: arrays have float32 until they become tensors."""
Numbers = float | Sequence[float]


@dataclass(frozen=True)
class Cast:
    """The dtype of a field in batches; values of a floating dtype are ``(value * scale - mean) / std``.

    `mean` and `std` are numbers, or one for each channel. `axis` says where the channels of a sample are, counted from
    the end: -1 for height, width, channels, as images are decoded; -3 for arrays that are stored channels first.

    >>> pixels = Cast("float32", scale=1 / 255, mean=(0.5, 0.5, 0.5), std=0.5)
    >>> pixels.array(np.array([[0, 51, 255]], np.uint8), "image").round(1)
    array([[-1. , -0.6,  1. ]], dtype=float32)
    """

    dtype: Any
    scale: float = 1.0
    mean: Numbers = 0.0
    std: Numbers = 1.0
    axis: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _dtype_name(self.dtype))
        for name in ("scale", "mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if np.ndim(self.scale):
            raise ArgumentError(f"expected one number for scale, got {self.scale}")
        if isinstance(self.mean, tuple) and isinstance(self.std, tuple) and len(self.mean) != len(self.std):
            raise ArgumentError(f"expected as many numbers in mean and std, got {self.mean} and {self.std}")
        if not np.asarray(self.std).all():
            raise ArgumentError(f"expected numbers other than 0 for std, got {self.std}")
        if not isinstance(self.axis, int) or self.axis >= 0:
            raise ArgumentError(f"expected a negative number for axis, counted from the end, got {self.axis!r}")
        if self.changes_values and self.array_dtype.kind not in "fc":
            raise ArgumentError(f"expected a floating dtype together with scale, mean and std, got {self.dtype}")

    @property
    def array_dtype(self) -> np.dtype[Any]:
        """The dtype of the cast for arrays; tensors may have a dtype that numpy lacks."""
        return np.dtype(np.float32 if self.dtype == _ONLY_TORCH else self.dtype)

    @property
    def only_torch(self) -> bool:
        """True for a dtype that arrays cannot have."""
        return bool(self.dtype == _ONLY_TORCH)

    @property
    def changes_values(self) -> bool:
        """True if it does more than change the dtype."""
        return (self.scale, self.mean, self.std) != (1.0, 0.0, 1.0)

    @property
    def channels(self) -> int | None:
        """Number of channels that `mean` and `std` have; None if they are for all."""
        return next((len(one) for one in (self.mean, self.std) if isinstance(one, tuple)), None)

    def check(self, dtype: np.dtype[Any], name: str) -> None:
        """Raise if values of a dtype cannot be cast."""
        to = self.array_dtype
        if dtype.kind not in "biufc":
            raise SchemaError(f"expected numbers to cast to {self.dtype}, got {dtype} - at field {name}; {_REMEDY}")
        if dtype.kind == "c" != to.kind or (dtype.kind == "f" and to.kind in "biu"):
            raise SchemaError(
                f"expected a dtype that holds what {dtype} holds, got {self.dtype}: it would lose a part of each value "
                f"- at field {name}; {_REMEDY}"
            )

    def may_overflow(self, dtype: np.dtype[Any]) -> bool:
        """Return whether integers of a dtype may be too large or too small; such casts are checked."""
        return dtype.kind in "iu" and self.array_dtype.kind in "biu" and not np.can_cast(dtype, self.array_dtype)

    def array(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Return an array as this dtype; integers that do not fit raise an error."""
        self.check(values.dtype, name)
        to = self.array_dtype
        if values.dtype == to and not self.changes_values:
            return values
        if self.may_overflow(values.dtype):
            _check_range(values, to, name)
        if not self.changes_values:
            out = pooled_empty(values.shape, to)
            np.copyto(out, values, casting="unsafe")
            return out
        work = np.dtype(np.result_type(to, np.float32))
        out = pooled_empty(values.shape, work)
        factor, offset = self.factors(values.shape, name)
        np.multiply(values, np.asarray(factor, work), out=out, casting="same_kind")
        out += np.asarray(offset, work)
        return out.astype(to, copy=False)

    def factors(self, shape: Sequence[int], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return what values of a shape are multiplied by, and what is added then."""
        std = np.asarray(self.std, np.float64)
        factor, offset = np.broadcast_arrays(self.scale / std, -np.asarray(self.mean, np.float64) / std)
        if self.channels is None:
            return factor, offset
        self.check_channels(shape, name)
        after = [1] * (-self.axis - 1)
        return factor.reshape(-1, *after), offset.reshape(-1, *after)

    def check_channels(self, shape: Sequence[int | None], name: str) -> None:
        """Raise if arrays of a shape do not have the channels of `mean` and `std`; sizes that vary are None."""
        found = shape[self.axis] if len(shape) >= -self.axis else "none"
        if self.channels is not None and found not in (self.channels, None):
            raise SchemaError(
                f"expected as many channels as mean and std have ({self.channels}), got {found} at axis {self.axis} of "
                f"arrays of shape {tuple(shape)} - at field {name}; choose axis= of the Cast"
            )

    def tensor(self, torch: Any, values: Any, name: str) -> Any:
        """Return a tensor as this dtype, on its own device."""
        dtype = getattr(torch, self.dtype)
        if not self.changes_values:
            return values.to(dtype)
        work = torch.promote_types(dtype, torch.float32)
        factor, offset = (
            torch.as_tensor(one.copy(), dtype=work).to(values.device, non_blocking=True)
            for one in self.factors(values.shape, name)
        )
        return torch.addcmul(offset, values.to(work), factor).to(dtype)


_REMEDY = "leave it out of dtype=, or convert it in transform="


class Casts:
    """The casts of the fields of batches, and where each is made."""

    def __init__(self, casts: Mapping[str, Cast], floats: Cast | None = None, *, on_device: bool) -> None:
        self._casts = casts
        self._floats = floats
        """The cast of all other fields of floats."""
        self._on_device = on_device
        """True if casts that need no check are made on the device."""
        every = (*casts.values(), *(() if floats is None else (floats,)))
        self._of_tensors = on_device or any(cast.only_torch for cast in every)
        """True if some casts are made when arrays have become tensors."""

    def __bool__(self) -> bool:
        return bool(self._casts) or self._floats is not None

    def check(self, features: Mapping[str, Feature]) -> None:
        """Raise if values of a field cannot be cast; fields of unknown features are checked with their batches."""
        for name, cast in self._casts.items():
            if (feature := features.get(name)) is None:
                continue
            dtype = _dtype_of(feature)
            if isinstance(dtype, str):
                raise SchemaError(f"expected numbers to cast to {cast.dtype}, got {dtype} - at field {name}; {_REMEDY}")
            if dtype is not None:
                cast.check(dtype, name)
            if (shape := _shape_of(feature)) is not None:
                cast.check_channels(shape, name)

    def in_worker(self, columns: Columns) -> Columns:
        """Return columns with the casts that are made in the worker."""
        data = columns.data
        for name, cast in self._casts.items():
            if name not in data:
                raise ArgumentError(f"expected dtype for the fields {', '.join(data)}, got {name!r}")
            data[name] = self._column(data[name], cast, name)
        if self._floats is not None:
            for name in data.keys() - self._casts.keys():
                if _has_floats(data[name]):
                    data[name] = self._column(data[name], self._floats, name)
        return columns

    def _column(self, column: Column, cast: Cast, name: str) -> Column:
        if isinstance(column, Masked):
            return Masked(self._column(column.column, cast, name), column.mask)
        if isinstance(column, Ragged):
            found = self._array(column.values, cast, name)
            return Ragged.from_values(found, column.offsets, column.inner, column.shapes)
        if isinstance(column, np.ndarray):
            cast.check_channels(column.shape[1:], name)  # the first axis counts samples
            return self._array(column, cast, name)
        return [self._value(value, cast, name) for value in column]

    def _value(self, value: Any, cast: Cast, name: str) -> Any:
        if isinstance(value, np.ndarray):
            return self._array(value, cast, name)
        if value is None or (is_tensor(value) and self._on_device):
            return value
        if is_tensor(value):
            return cast.tensor(require_torch(), value, name)
        raise SchemaError(
            f"expected numbers to cast to {cast.dtype}, got {type(value).__name__} - at field {name}; {_REMEDY}"
        )

    def _array(self, values: NDArray[Any], cast: Cast, name: str) -> NDArray[Any]:
        if not self._on_device or cast.may_overflow(values.dtype):
            return cast.array(values, name)
        cast.check(values.dtype, name)
        return values

    def of_tensor(self, name: str, tensor: Any) -> Cast | None:
        """Return the cast that a tensor still needs: on the device, or to a dtype that arrays cannot have."""
        cast = self._casts.get(name) or (self._floats if tensor.is_floating_point() else None)
        if cast is None or self._on_device:
            return cast
        return Cast(cast.dtype) if cast.only_torch else None

    def finish(self, tensors: Columns) -> Columns:
        """Return tensors with the casts that they still need."""
        if self._of_tensors:
            for name, column in tensors.data.items():
                tensors.data[name] = map_tensors(column, partial(self._finished, name))
        return tensors

    def _finished(self, name: str, tensor: Any, is_values: bool) -> Any:
        cast = self.of_tensor(name, tensor) if is_values else None
        return tensor if cast is None else cast.tensor(require_torch(), tensor, name)


def _has_floats(column: Any) -> bool:
    """Return whether a column, or the first value of a list, has floats.

    >>> _has_floats(np.ones(2)), _has_floats([None, np.ones(2)]), _has_floats(np.array([1])), _has_floats(["a"])
    (True, True, False, False)
    """
    if isinstance(column, Masked | Ragged):
        return _has_floats(column.column if isinstance(column, Masked) else column.values)
    if isinstance(column, list):
        return all(value is None or _has_floats(value) for value in column) and any(one is not None for one in column)
    if is_tensor(column):
        return bool(column.is_floating_point())
    return isinstance(column, np.ndarray) and column.dtype.kind == "f"


def casts_of(given: Any) -> tuple[dict[str, Cast], Cast | None]:
    """Return the option ``dtype`` as a cast for each field, and one for all other fields of floats.

    >>> casts_of({"tokens": "int64"})[0]["tokens"].dtype, casts_of("float32")[1].dtype
    ('int64', 'float32')
    """
    if given is None or isinstance(given, Mapping):
        return {name: one if isinstance(one, Cast) else Cast(one) for name, one in (given or {}).items()}, None
    floats = None if isinstance(given, Cast) else Cast(given)
    if floats is None or floats.array_dtype.kind != "f":
        raise ArgumentError(
            'expected dtype={"field": dtype}, with a dtype for each field to cast, or a floating dtype for all fields '
            f"of floats, got dtype={given!r:.200}"
        )
    return {}, floats


def _dtype_name(given: DTypeLike) -> str:
    """Return the name of a dtype of numpy or torch."""
    name = str(given).removeprefix("torch.")
    if name == _ONLY_TORCH:
        return name
    try:
        found = np.dtype(name if str(given) != name else given)
    except TypeError:
        found = np.dtype(object)
    if found.kind not in "biufc" or found.itemsize > 16 or found.name == "longdouble":
        raise ArgumentError(f"expected a dtype of numbers, such as 'int64', 'float32' or 'bfloat16', got {given!r}")
    return found.name


def _numbers(name: str, given: Any) -> float | tuple[float, ...]:
    """Return a number, or several, as floats."""
    try:
        found = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        found = np.zeros((0, 0))
    if found.ndim > 1 or not found.size or not all(map(math.isfinite, found.reshape(-1).tolist())):
        raise ArgumentError(f"expected a number for {name}, or one for each channel, got {given!r:.200}")
    return tuple(found.tolist()) if found.ndim else float(found)


def _check_range(values: NDArray[Any], to: np.dtype[Any], name: str) -> None:
    least, most = (0, 1) if to.kind == "b" else (np.iinfo(to).min, np.iinfo(to).max)
    if values.size and not (least <= int(values.min()) and int(values.max()) <= most):
        raise SchemaError(
            f"expected integers from {least} to {most} to cast to {to}, got {values.min()} to {values.max()} - at "
            f"field {name}"
        )


def _shape_of(feature: Feature) -> tuple[int | None, ...] | None:
    """Return the shape of the values of a feature, None if it does not determine one."""
    feature = unwrap_optional(feature)
    if isinstance(feature, Array):
        return feature.shape
    return None if isinstance(feature, Media | SequenceFeature) else ()


def _dtype_of(feature: Feature) -> np.dtype[Any] | str | None:
    """Return the dtype of a feature, its text if it has no numbers, None if it does not determine one."""
    feature = unwrap_optional(feature)
    if isinstance(feature, SequenceFeature):
        feature = feature.feature
    if isinstance(feature, Media):
        return None
    if isinstance(feature, ClassLabel):
        return np.dtype(np.int32)
    if isinstance(feature, Value | Array):
        return None if feature.dtype is None else np.dtype(feature.dtype)
    return str(feature)
