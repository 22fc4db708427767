"""Columns as torch tensors that share their memory, and the rank of this process in `torch.distributed`.

torch is an optional dependency: `require_torch` imports it for the whole room.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import accumulate
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, MissingExtraError, SchemaError
from shardex.kernel import Columns, Masked, Ragged, is_tensor


class PackedTensors:
    """Rows of different length, concatenated, as two tensors: row k is ``values[offsets[k]:offsets[k + 1]]``.

    >>> rows = PackedTensors([1, 2, 3], [0, 2, 3])
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
            return PackedTensors(self.values, self.offsets[start : max(start, stop) + 1])
        row = range(len(self))[where]
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def to(self, device: Any, *, non_blocking: bool = False) -> PackedTensors:
        """Return the same rows on another device."""
        values, offsets = (one.to(device, non_blocking=non_blocking) for one in (self.values, self.offsets))
        return PackedTensors(values, offsets)

    def __repr__(self) -> str:
        return f"PackedTensors({len(self)} rows, {len(self.values)} values)"


@cache
def require_torch() -> Any:
    """Return the module torch; raise an error that says how to install it if it is missing."""
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", 'Loader(to="torch")') from None
    return torch


def find_device(given: Any) -> Any:
    """Return a `torch.device` that can be used here, with its number; raise `ArgumentError` for others.

    >>> find_device("cpu")
    device(type='cpu')
    """
    torch = require_torch()
    try:
        device = torch.device(given)
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise ArgumentError(
            f"expected a device of torch, such as 'cuda', 'cuda:1' or 'cpu', got {given!r}: {reason}"
        ) from None
    if device.type == "cuda" and not 0 <= (device.index or 0) < (count := torch.cuda.device_count()):
        raise ArgumentError(f"expected a device of this machine, got {str(device)!r}: torch sees {count} CUDA devices")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ArgumentError("expected a device of this machine, got 'mps', which torch cannot use here")
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def to_tensors(columns: Columns) -> Columns:
    """Return columns with each column of numbers as a tensor over the same memory; text and objects stay lists.

    Dates and times are int64 tensors of their units; NaT is the lowest number.
    """
    torch = require_torch()
    data = {name: _tensor(torch, column, name) for name, column in columns.data.items()}
    return Columns.unchecked(data, len(columns))


def move_channels(columns: Columns, axes: Mapping[str, int]) -> Columns:
    """Move the channels of some fields from the last axis, without a copy: torch calls it channels_last.

    Rows that lie end to end (`PackedTensors`) stay as they are.
    """
    for name, axis in axes.items():
        if name in columns.data and not isinstance(columns.data[name], PackedTensors):
            columns.data[name] = map_tensors(columns.data[name], partial(_move_channels, axis))
    return columns


def _move_channels(axis: int, tensor: Any, is_values: bool) -> Any:
    return tensor.movedim(-1, axis) if is_values else tensor


def map_tensors(column: Any, function: Callable[[Any, bool], Any]) -> Any:
    """Return a column with each tensor replaced; `function` gets it, and whether it holds values, not offsets."""
    if isinstance(column, Masked):
        return Masked(map_tensors(column.column, function), column.mask)
    if isinstance(column, PackedTensors):
        return PackedTensors(function(column.values, True), function(column.offsets, False))
    if isinstance(column, list):
        return [function(value, True) if is_tensor(value) else value for value in column]
    return function(column, True) if is_tensor(column) else column


def split_column(column: Any, sizes: list[int]) -> Sequence[Any]:
    """Return a tensor, or a list, in parts of these sizes."""
    if is_tensor(column):  # without records of autograd that they are parts: they need none, and take half as long
        parts: Sequence[Any] = sys.modules["torch"].unsafe_split_with_sizes(column, sizes)
        return parts
    ends = list(accumulate(sizes))
    return [column[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def tensor_fields(columns: Columns) -> list[str]:
    """Return the fields whose values are tensors, in columns that a function of the user made."""
    lists = {name: column for name, column in columns.data.items() if isinstance(column, list)}
    first = {name: next((value for value in column if value is not None), None) for name, column in lists.items()}
    return [n for n, one in first.items() if is_tensor(one) and all(v is None or is_tensor(v) for v in lists[n])]


def as_arrays(values: list[Any]) -> list[Any]:
    """Return tensors that a transform made as arrays or numbers, so that they get the same forms; others unchanged."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(value, torch.Tensor) for value in values):
        return values
    try:
        return [value.detach().numpy() if value.ndim else value.detach().numpy()[()] for value in values]
    except (TypeError, RuntimeError):  # a dtype that numpy does not have, such as bfloat16, or another device
        return values


def without_tensor(value: Any) -> Any:
    """Return a tensor as a Python number, or as an array if it has dimensions; other values unchanged."""
    if not is_tensor(value):
        return value
    return as_arrays([value.cpu()])[0] if value.ndim else value.item()


def _tensor(torch: Any, column: Any, name: str) -> Any:
    if type(column) is np.ndarray and column.dtype.kind in "biufc" and column.dtype.isnative:
        return torch.from_numpy(column)
    if isinstance(column, Masked):
        return Masked(_tensor(torch, column.values, name), column.mask)
    if isinstance(column, Ragged):
        if column.shapes is not None:
            raise SchemaError(
                f"expected arrays that differ in their first dimension only to pack them as tensors, got arrays of any "
                f'shape - at field {name}; use ragged="pad" or "list"'
            )
        return PackedTensors(_tensor(torch, column.values, name), _tensor(torch, column.offsets, name))
    if isinstance(column, list):
        return _list_to_tensor(torch, column, name)
    if column.dtype.kind in "Mm":
        column = np.ascontiguousarray(column).view(np.int64)
    try:
        return torch.from_numpy(column)
    except TypeError:
        if column.dtype.kind in "OSUV":
            raise SchemaError(
                f"expected numbers for a tensor, got {column.dtype} - at field {name}; leave it out with fields= or "
                "convert it in transform="
            ) from None
        return torch.from_numpy(column.astype(column.dtype.newbyteorder("=")))


def _list_to_tensor(torch: Any, values: list[Any], name: str) -> Any:
    """Stack tensors of equal shape, convert arrays to tensors, leave other values."""
    kinds = set(map(type, values))
    if kinds and all(issubclass(kind, torch.Tensor) for kind in kinds):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return torch.stack(values)
        return values
    if not any(issubclass(kind, np.ndarray) for kind in kinds):
        return values
    return [_tensor(torch, value, name) if isinstance(value, np.ndarray) else value for value in values]


def distributed_rank() -> tuple[int, int]:
    """Return rank and world size of `torch.distributed`, (0, 1) if it is not initialised."""
    module = sys.modules.get("torch.distributed")
    if module is not None and module.is_available() and module.is_initialized():
        return module.get_rank(), module.get_world_size()
    return 0, 1


def warn_of_missing_group() -> None:
    """Warn that each of several processes gets all samples, if `torch.distributed` is not initialised in them."""
    if distributed_rank() == (0, 1) and os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        warnings.warn(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised: every process gets "
            "all samples; call init_process_group before you iterate over the Loader, or pass rank= and world_size=",
            stacklevel=3,
        )
