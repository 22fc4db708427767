"""Columns as torch tensors that share their memory, and the rank of this process in `torch.distributed`.

The only module of the loader that uses torch, which is an optional dependency.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, MissingExtraError, SchemaError
from shardex.kernel import Columns, Masked, Ragged


class Packed:
    """Rows of different length, concatenated, as two tensors: row k is ``values[offsets[k]:offsets[k + 1]]``.

    >>> rows = Packed([1, 2, 3], [0, 2, 3])
    >>> len(rows), rows[0]
    (2, [1, 2])
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Any, offsets: Any) -> None:
        self.values = values
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, where: int | slice) -> Any:
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            if step != 1:
                raise ArgumentError(f"expected a slice with step 1, got step {step}: take the rows one by one")
            return Packed(self.values, self.offsets[start : max(start, stop) + 1])
        row = range(len(self))[where]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def to(self, device: Any, *, non_blocking: bool = False) -> Packed:
        """Return the same rows on another device."""
        values, offsets = (one.to(device, non_blocking=non_blocking) for one in (self.values, self.offsets))
        return Packed(values, offsets)

    def __repr__(self) -> str:
        return f"Packed({len(self)} rows, {len(self.values)} values)"


def require_torch() -> Any:
    """Return the module torch; raise an error that says how to install it if it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", 'Loader(to="torch")') from None
    return torch


def to_tensors(columns: Columns, pin: bool = False, channel_axes: Mapping[str, int] | None = None) -> Columns:
    """Return columns with each column of numbers as a tensor over the same memory; text and objects stay lists.

    Dates and times are int64 tensors of their units; NaT is the lowest number. Channels are moved to the axes
    given for some fields, without a copy: torch calls this memory format channels_last.
    """
    torch = require_torch()
    found = {name: _tensor(torch, column, name, pin) for name, column in columns.data.items()}
    for name, axis in (channel_axes or {}).items():
        if name in found:
            found[name] = _with_channels(found[name], axis)
    return Columns(found, len(columns))


def _with_channels(column: Any, axis: int) -> Any:
    """Return tensors with their last axis moved; rows that lie end to end stay as they are."""
    if isinstance(column, Masked):
        return Masked(_with_channels(column.values, axis), column.mask)
    if isinstance(column, list):
        return [value if value is None else value.movedim(-1, axis) for value in column]
    return column if isinstance(column, Packed) else column.movedim(-1, axis)


def as_arrays(values: list[Any]) -> list[Any]:
    """Return tensors that a transform made as arrays or numbers, so that they get the same forms; others unchanged."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(value, torch.Tensor) for value in values):
        return values
    try:
        return [value.detach().numpy() if value.ndim else value.detach().numpy()[()] for value in values]
    except (TypeError, RuntimeError):  # a dtype that numpy does not have, such as bfloat16, or another device
        return values


def _tensor(torch: Any, column: Any, name: str, pin: bool) -> Any:
    if isinstance(column, Masked):
        return Masked(_tensor(torch, column.values, name, pin), column.mask)
    if isinstance(column, Ragged):
        if column.shapes is not None:
            raise SchemaError(
                f"expected arrays that differ in their first dimension only to pack them as tensors, got arrays of any "
                f'shape - at field {name}; use ragged="pad" or "list"'
            )
        return Packed(_tensor(torch, column.values, name, pin), _tensor(torch, column.offsets, name, pin))
    if isinstance(column, list):
        return _list_to_tensor(torch, column, name, pin)
    if column.dtype.kind in "Mm":
        column = np.ascontiguousarray(column).view(np.int64)
    try:
        tensor = torch.from_numpy(column)
    except TypeError:
        if column.dtype.kind in "OSUV":
            raise SchemaError(
                f"expected numbers for a tensor, got {column.dtype} - at field {name}; leave it out with fields= or "
                "convert it in transform="
            ) from None
        tensor = torch.from_numpy(column.astype(column.dtype.newbyteorder("=")))
    return tensor.pin_memory() if pin else tensor


def _list_to_tensor(torch: Any, values: list[Any], name: str, pin: bool) -> Any:
    """Stack tensors of equal shape, convert arrays to tensors, leave other values."""
    if values and all(isinstance(value, torch.Tensor) for value in values):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            stacked = torch.stack(values)
            return stacked.pin_memory() if pin else stacked
        return values
    return [_tensor(torch, value, name, pin) if isinstance(value, np.ndarray) else value for value in values]


def distributed_rank() -> tuple[int, int]:
    """Return rank and world size of `torch.distributed`, (0, 1) if it is not initialised."""
    module = sys.modules.get("torch.distributed")
    if module is not None and module.is_available() and module.is_initialized():
        return module.get_rank(), module.get_world_size()
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        warnings.warn(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised: every process gets "
            "all samples; call init_process_group before you make the Loader, or pass rank= and world_size=",
            stacklevel=4,
        )
    return 0, 1
