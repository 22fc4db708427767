"""Features of columns that a user adds or a function returns, and rows in the form in which a cache is written."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardex.columns import arrow_types
from shardex.compat.stable_datasets.features.base import tensor_of
from shardex.compat.stable_datasets.formatting import Formatter
from shardex.compat.stable_datasets.schema import (
    Array3D,
    Array4D,
    ClassLabel,
    Features,
    FeatureType,
    Image,
    Sequence,
    Value,
    Video,
    VideoRef,
)
from shardex.errors import ArgumentError, SchemaError
from shardex.features import Image as ImageFeature
from shardex.kernel import is_tensor

Row = dict[str, Any]


# -- features of values -----------------------------------------------------------------------------------------


def feature_of_values(values: SequenceOf[Any], name: str) -> FeatureType:
    """Return the feature of the values of a new column; None among them is a missing value.

    >>> feature_of_values([True, None], "x"), feature_of_values([[1, 2], []], "x")
    (Value('bool'), Sequence(Value('int64')))
    >>> feature_of_values([np.zeros((2, 3, 4), np.float32)], "x")
    Array3D(shape=(2, 3, 4), dtype='float32')
    """
    some = [_as_numpy(value) for value in values if value is not None]
    if some and all(ImageFeature.of_value(one) is not None for one in some):
        return Image()
    shapes = {(one.shape, one.dtype.name) for one in some if isinstance(one, np.ndarray)}
    if len(shapes) == 1 and len(shape := (found := shapes.pop())[0]) in (3, 4):
        return (Array3D if len(shape) == 3 else Array4D)(shape, found[1])
    try:
        kind = pa.array([one.tolist() if _is_matrix(one) else one for one in some]).type
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SchemaError(
            f"expected values of one type, got others ({error}) - at column {name}; give features="
        ) from None
    return feature_of_arrow(kind, name)


def _as_numpy(value: Any) -> Any:
    """Return tensors, also those in lists, as arrays."""
    if isinstance(value, list):
        return (
            [_as_numpy(one) for one in value]
            if any(isinstance(one, list) or is_tensor(one) for one in value)
            else value
        )
    return value.detach().cpu().numpy() if is_tensor(value) else value


def _is_matrix(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim != 1


def feature_of_arrow(kind: pa.DataType, name: str) -> FeatureType:
    """Return the feature of a column of an Arrow type.

    >>> feature_of_arrow(pa.large_list(pa.int8()), "x")
    Sequence(Value('int8'))
    """
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return Value("string")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return Value("binary")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return Sequence(feature_of_arrow(kind.value_type, name))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Value(arrow_types.number_dtype(kind).name)
    raise SchemaError(
        f"expected numbers, texts, bytes, lists, arrays or images, got {kind} - at column {name}; pass features="
    )


def column_of(values: Any, name: str) -> tuple[pa.Array | pa.ChunkedArray, FeatureType]:
    """Return a new column as Arrow data, and its feature."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values, feature_of_arrow(values.type, name)
    listed = list(values)
    feature = feature_of_values(listed, name)
    return pa.array([feature.encode(_as_numpy(one)) for one in listed], feature.to_arrow_type()), feature


def is_number(feature: FeatureType) -> bool:
    """Return whether values of a column are numbers, or lists of numbers."""
    while isinstance(feature, Sequence):
        feature = feature.feature
    return isinstance(feature, ClassLabel) or (isinstance(feature, Value) and feature.dtype not in ("string", "binary"))


def stacked_tensor(values: Iterable[Any], name: str) -> Any:
    """Return the values of a column of numbers, or of lists of one length, as one tensor."""
    try:
        return tensor_of(np.array([np.asarray(one) for one in values]))
    except (TypeError, ValueError) as error:
        raise SchemaError(f"expected numbers or lists of one length, got others ({error}) - at column {name}") from None


# -- rows of a new cache ----------------------------------------------------------------------------------------


class RowWriter:
    """Converts stored rows to rows that a cache is written of, through a function or unchanged.

    Images that the function passes on unchanged keep their bytes: encoding a JPEG again would change its pixels.
    """

    def __init__(self, formatter: Formatter) -> None:
        self._formatter = formatter

    def unchanged(self, chunks: Iterable[list[Row]]) -> Iterator[Row]:
        """Return all rows as they are."""
        return (self._encodable(self._formatter.format_row(stored)) for chunk in chunks for stored in chunk)

    def mapped(
        self, chunks: Iterable[list[Row]], function: Callable[..., Any], batched: bool, with_indices: bool
    ) -> Iterator[tuple[Row, Row]]:
        """Return each result of a function, and the row that is written of it."""
        first = 0
        for chunk in chunks:
            for stored in [chunk] if batched else [[row] for row in chunk]:
                given = [self._formatter.format_row(row) for row in stored]
                numbers = list(range(first, first + len(given)))
                first += len(given)
                images = self._images(stored, given)
                for result in _results(function, given, numbers if with_indices else None, batched):
                    yield result, self._encodable({name: self._stored(one, images) for name, one in result.items()})

    def _images(self, stored: list[Row], given: list[Row]) -> dict[int, tuple[str, Any]]:
        """Return column and stored bytes of the images that a function gets, by the identity of their objects."""
        names = [name for name, feature in self._formatter.features.items() if isinstance(feature, Image)]
        pairs = [(name, a[name], b[name]) for a, b in zip(stored, given, strict=True) for name in names if name in a]
        return {id(value): (name, data) for name, data, value in pairs if value is not None}

    def _stored(self, value: Any, images: Mapping[int, tuple[str, Any]]) -> Any:
        name, data = images.get(id(value), ("", None))
        if data is None:
            return value
        fresh = self._formatter.format_row({name: data})[name]
        is_picture = ImageFeature.of_value(value) is not None
        same = fresh == value if is_picture else np.array_equal(_as_numpy(fresh), _as_numpy(value))
        return data if same else value

    def _encodable(self, row: Row) -> Row:
        """Return a row whose values the features can encode; raw arrays and videos are what their features read."""
        if self._formatter.format_type == "raw":
            row = {name: self._read(name, value) for name, value in row.items()}
        return {n: _video_parts(one) if isinstance(one, VideoRef) else _as_numpy(one) for n, one in row.items()}

    def _read(self, name: str, value: Any) -> Any:
        feature = self._formatter.features.get(name)
        if not isinstance(feature, Array3D | Array4D | Video) or not isinstance(value, bytes | Mapping):
            return value
        return feature.format(value, format_type="default", cache_dir=self._formatter.cache_dir)


def _video_parts(ref: VideoRef) -> dict[str, Any]:
    if ref.mode == "bytes":
        return {"bytes": ref.bytes, "extension": ref.extension, "checksum": ref.checksum}
    return {"path": str(ref.path), "checksum": ref.checksum}


def _results(function: Callable[..., Any], given: list[Row], numbers: list[int] | None, batched: bool) -> list[Row]:
    """Return the results for a batch, or for one row."""
    if batched:
        columns = columns_of_rows(given)
        return _rows_of_columns(function(columns) if numbers is None else function(columns, numbers))
    (row,) = given
    return [_checked(function(row) if numbers is None else function(row, numbers[0]))]


def columns_of_rows(rows: SequenceOf[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each column of some rows."""
    for row in rows:
        if not isinstance(row, Mapping):
            raise ArgumentError(f"expected samples that are dicts of columns, got {type(row).__name__}")
    return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}


def _checked(result: Any) -> Row:
    if not isinstance(result, Mapping):
        raise ArgumentError(f"expected a function that returns a dict of columns, got {type(result).__name__}")
    return dict(result)


def _rows_of_columns(result: Any) -> list[Row]:
    columns = _checked(result)
    lengths = {name: len(values) for name, values in columns.items()}
    if len({*lengths.values()}) > 1:
        raise ArgumentError(f"expected columns of one length from a function of a batch, got {lengths}")
    count = next(iter(lengths.values()), 0)
    return [{name: values[k] for name, values in columns.items()} for k in range(count)]


def inferred_features(results: SequenceOf[Mapping[str, Any]], known: Features) -> Features:
    """Return the features of results: columns that were there keep theirs, others are found in the values."""
    names = dict.fromkeys(name for row in results for name in row)
    return Features(
        {n: known[n] if n in known else feature_of_values([row.get(n) for row in results], n) for n in names}
    )


def temporary_folder(prefix: str) -> Path:
    """Return a new folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix=prefix)
    atexit.register(_remove, folder, os.getpid())
    return Path(folder) / "cache"


def _remove(folder: str, process: int) -> None:
    if os.getpid() == process:  # not in a forked worker
        shutil.rmtree(folder, ignore_errors=True)
