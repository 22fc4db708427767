"""Blocks of Ray Data: Arrow tables in which arrays have the tensor types of Ray.

Arrays of a fixed shape become tensor columns, so that ``iter_torch_batches`` and ``map_batches`` see stacked arrays.
Arrays that differ in more than their first size become Ray's tensors of variable shape. All else is as in `to_arrow`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.extensions import (
    ArrowTensorArray,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
    get_arrow_extension_tensor_types,
)

from shardex.dataset import Dataset, from_table, join, open
from shardex.features import Array

_TENSORS: tuple[type, ...] = tuple(get_arrow_extension_tensor_types())


def block_of(view: Dataset[Any]) -> pa.Table:
    """Return all samples of a view as a block."""
    table, features = view.to_arrow(), view.features
    for number, (name, feature) in enumerate(features.items()):
        column = table.column(number)
        if isinstance(feature, Array) and not column.null_count:
            if feature.fixed and _is_plain(feature):
                tensors = ArrowTensorArray.from_numpy(_stacked(column, feature))
            elif not feature.fixed and feature.shape is not None and len(feature.shape) > 1 and len(view):
                arrays = [np.asarray(one) for one in view.read(slice(None), [name])[name]]
                tensors = ArrowVariableShapedTensorArray.from_numpy(arrays)
            else:
                continue
            table = table.set_column(number, name, tensors)
    return table


def _is_plain(feature: Array) -> bool:
    """Return True for an array of a fixed shape whose numbers Arrow has: not complex ones."""
    return np.dtype(feature.dtype).kind in "biuf"


def _stacked(column: pa.ChunkedArray, feature: Array) -> np.ndarray[Any, Any]:
    """Return a column of fixed-size lists as one array, without a copy if it is one chunk."""
    shape, dtype = tuple(feature.shape or ()), np.dtype(feature.dtype)
    parts = [np.asarray(chunk.flatten()) for chunk in column.chunks] or [np.empty(0, dtype)]
    flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
    flat = flat.view(dtype) if flat.dtype.itemsize == dtype.itemsize else flat.astype(dtype)
    return flat.reshape((len(column), *shape))


def dataset_of(block: pa.Table) -> Dataset[Any]:
    """Return the samples of a block as a dataset; tensors become arrays, other columns are not copied."""
    tensors = [name for name in block.column_names if isinstance(block.schema.field(name).type, _TENSORS)]
    if not tensors:
        return from_table(block)
    arrays = open({name: _arrays(block[name]) for name in tensors})
    rest = block.drop_columns(tensors)
    return arrays if not rest.num_columns else join(from_table(rest), arrays).select(*block.column_names)


def _arrays(column: pa.ChunkedArray) -> Any:
    """Return a column of tensors as one stacked array, or as a list of arrays if their shapes differ."""
    if isinstance(column.type, ArrowVariableShapedTensorType):
        return [np.asarray(one.as_py()) for one in column]
    parts = [_as_numpy(chunk) for chunk in column.chunks] or [_as_numpy(column.combine_chunks())]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _as_numpy(array: Any) -> np.ndarray[Any, Any]:
    native = isinstance(array, pa.FixedShapeTensorArray)
    found: np.ndarray[Any, Any] = array.to_numpy_ndarray() if native else array.to_numpy(zero_copy_only=False)
    return found
