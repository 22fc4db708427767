"""Collects the values of one field, appended one by one, into an Arrow array of the type that `types` defines.

`encoder_of` returns the encoder of a feature. Each encoder copies a value when it is appended (the caller may reuse its
array), checks the common case itself and leaves all other values to `shardex.features.fit`. A value that does not fit
raises `SchemaError`; parts of it may have been appended, which `truncate` removes. `batch_builder` combines the
encoders of all fields into record batches.
"""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.arrow.encode_values import Blobs, ByteStrings, Decimals, Nulls, Numbers, Texts, Units, offsets_of
from shardex.arrow.types import arrow_type, fixed_sizes, number_array, storage_dtype
from shardex.errors import SchemaError
from shardex.features import (
    COMPACT,
    JSON,
    RAW,
    TEXT,
    Array,
    Bytes,
    ClassLabel,
    Decimal,
    Feature,
    Json,
    Map,
    Media,
    Null,
    Optional,
    Sequence,
    Struct,
    Text,
    TimeFeature,
    Value,
    dtype_bounds,
    fit_array,
    fit_class,
    fit_media,
    fit_number,
    has_shape,
    is_missing,
    list_items,
    map_items,
    struct_items,
)
from shardex.kernel import Integers

_MAX_OFFSET = (1 << 31) - 1


class Encoder(Protocol):
    """Collects the values of one field."""

    @property
    def nbytes(self) -> int:
        """Approximate size of the collected values."""

    def append(self, value: Any) -> None:
        """Append a copy of one value."""

    def append_filler(self) -> None:
        """Append a placeholder for a missing value; a null in this field or its parent hides it."""

    def truncate(self, rows: int) -> None:
        """Remove all values after the first `rows`."""

    def finish(self) -> pa.Array:
        """Return all values as an array and start over."""


def encoder_of(feature: Feature) -> Encoder:
    """Return a new encoder for a feature.

    >>> encoder = encoder_of(Sequence(Value("int8"))); encoder.append([1, 2]); encoder.append(())
    >>> encoder.finish().to_pylist()
    [[1, 2], []]
    """
    match feature:
        case Value():
            return Numbers(feature.dtype, dtype_bounds(feature.dtype), lambda value: fit_number(value, feature))
        case ClassLabel():
            return Numbers("int32", (0, len(feature.names) - 1), lambda value: fit_class(value, feature))
        case Text():
            return Texts(TEXT.encode, pa.large_string())
        case Json():
            return Blobs(JSON.encode, pa.large_string())
        case Media():
            return Blobs(lambda value: fit_media(value, feature), pa.large_binary())
        case Bytes():
            return Blobs(RAW.encode, pa.large_binary())
        case Array(dtype=None):
            return Blobs(COMPACT.encode, pa.large_binary())
        case Array(fixed=True):
            return _FixedArrays(feature)
        case Array(ragged=True):
            return _RaggedArrays(feature)
        case Array():
            return _ShapedArrays(feature)
        case Sequence():
            return _Lists(feature)
        case Struct():
            return _Structs(feature)
        case Optional():
            return _Optionals(feature)
        case TimeFeature():
            return Units(feature, feature.storage, feature.number)
        case Decimal():
            return Decimals(feature)
        case Map():
            return _Maps(feature)
        case Null():
            return Nulls()
    raise SchemaError(f"expected a feature that can be written, got {feature}")


# -- arrays ---------------------------------------------------------------------------------------------------


class _FixedArrays:
    """Arrays of one shape."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._shape = fixed_sizes(feature)
        self._width = self._dtype.itemsize * math.prod(self._shape)
        self._pieces: list[bytes] = []

    @property
    def nbytes(self) -> int:
        return len(self._pieces) * self._width

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = fit_array(value, self._feature)
        self._pieces.append(value.tobytes())

    def append_filler(self) -> None:
        self._pieces.append(bytes(self._width))

    def truncate(self, rows: int) -> None:
        del self._pieces[rows:]

    def finish(self) -> pa.Array:
        pieces, self._pieces = self._pieces, []
        values = number_array(np.frombuffer(b"".join(pieces), storage_dtype(self._dtype)))
        return pa.Array.from_buffers(arrow_type(self._feature), len(pieces), [None], 0, children=[values])


class _RaggedArrays(ByteStrings):
    """Arrays of which only the first size varies."""

    _row_bytes = 8

    def __init__(self, feature: Array) -> None:
        super().__init__()
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._inner = fixed_sizes(feature)
        self._ndim = 1 + len(self._inner)

    def append(self, value: Any) -> None:
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or value.ndim != self._ndim
            or (self._inner and value.shape[1:] != self._inner)
        ):
            value = fit_array(value, self._feature)
        piece = value.tobytes()
        self._pieces.append(piece)
        self.nbytes += len(piece) + 8

    def finish(self) -> pa.Array:
        rows, offsets, data = self._take()
        values = np.frombuffer(data, storage_dtype(self._dtype))
        buffers = [None, pa.py_buffer(offsets // values.itemsize)]
        return pa.Array.from_buffers(arrow_type(self._feature), rows, buffers, 0, children=[number_array(values)])


class _ShapedArrays(ByteStrings):
    """Arrays of any other shape: the elements of all of them, and their shapes."""

    _row_bytes = 24

    def __init__(self, feature: Array) -> None:
        super().__init__()
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._filler = (0,) * len(feature.shape or ())
        self._shapes: list[tuple[int, ...]] = []

    def append(self, value: Any) -> None:
        if (
            type(value) is not np.ndarray
            or value.dtype is not self._dtype
            or not has_shape(value.shape, self._feature.shape)
        ):
            value = fit_array(value, self._feature)
        piece = value.tobytes()
        self._pieces.append(piece)
        self._shapes.append(value.shape)
        self.nbytes += len(piece) + 24

    def append_filler(self) -> None:
        super().append_filler()
        self._shapes.append(self._filler)

    def truncate(self, rows: int) -> None:
        super().truncate(rows)
        del self._shapes[rows:]

    def finish(self) -> pa.Array:
        rows, offsets, data = self._take()
        shapes, self._shapes = self._shapes, []
        values = np.frombuffer(data, storage_dtype(self._dtype))
        sizes = np.fromiter(chain.from_iterable(shapes), np.int64)
        return shaped_arrays(
            self._feature, values, offsets // values.itemsize, sizes, offsets_of(map(len, shapes), rows)
        )


def shaped_arrays(
    feature: Array, values: NDArray[Any], offsets: Integers, sizes: Integers, bounds: Integers
) -> pa.Array:
    """Return arrays and their shapes as structs.

    :param values: the elements of all arrays, in their storage dtype
    :param offsets: where the elements of each array begin, and the end of the last one
    :param sizes: the shapes of all arrays, end to end
    :param bounds: where the shape of each array begins in `sizes`, and the end of the last one
    """
    kind, rows = arrow_type(feature), len(offsets) - 1
    elements, shape = kind.field("values").type, kind.field("shape").type
    bounds_buffer = [] if feature.shape is not None else [pa.py_buffer(bounds.astype(np.int32))]
    parts = [
        pa.Array.from_buffers(elements, rows, [None, pa.py_buffer(offsets)], 0, children=[number_array(values)]),
        pa.Array.from_buffers(shape, rows, [None, *bounds_buffer], 0, children=[number_array(sizes)]),
    ]
    return pa.Array.from_buffers(kind, rows, [None], 0, children=parts)


# -- nested values --------------------------------------------------------------------------------------------


class _Lists:
    """Lists: the offsets, and all items in one encoder."""

    def __init__(self, feature: Sequence) -> None:
        self._feature = feature
        self._inner = encoder_of(feature.feature)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for item in list_items(value, self._feature):
            self._inner.append(item)
            end += 1
        self._ends.append(end)

    def append_filler(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._inner.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        offsets = np.array(self._ends, np.int64)
        self._ends = [0]
        return pa.LargeListArray.from_arrays(offsets, self._inner.finish(), type=arrow_type(self._feature))


class _Maps:
    """Maps: the offsets, and encoders for all keys and all values."""

    def __init__(self, feature: Map) -> None:
        self._feature = feature
        self._type = arrow_type(feature)
        self._keys, self._items = encoder_of(feature.key), encoder_of(feature.value)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._items.nbytes + 4 * len(self._ends)

    def append(self, value: Any) -> None:
        end = self._ends[-1]
        for key, one in map_items(value, self._feature):
            self._keys.append(key)
            self._items.append(one)
            end += 1
        self._ends.append(end)

    def append_filler(self) -> None:
        self._ends.append(self._ends[-1])

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._keys.truncate(self._ends[-1])
        self._items.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        if self._ends[-1] > _MAX_OFFSET:
            raise SchemaError(f"expected at most {_MAX_OFFSET} entries of maps in a batch, got {self._ends[-1]}")
        offsets = np.array(self._ends, np.int32)
        self._ends = [0]
        fields = [self._type.key_field, self._type.item_field]
        entries = pa.StructArray.from_arrays([self._keys.finish(), self._items.finish()], fields=fields)
        return pa.Array.from_buffers(self._type, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[entries])


class _Structs:
    """Structs: an encoder for each part."""

    def __init__(self, feature: Struct) -> None:
        self._feature = feature
        self._inner = {name: encoder_of(inner) for name, inner in feature.fields.items()}
        self._rows = 0

    @property
    def nbytes(self) -> int:
        return sum(encoder.nbytes for encoder in self._inner.values())

    def append(self, value: Any) -> None:
        for name, part in struct_items(value, self._feature):
            try:
                self._inner[name].append(part)
            except SchemaError as error:
                raise SchemaError(f"{error} (in {name})") from None
        self._rows += 1

    def append_filler(self) -> None:
        for encoder in self._inner.values():
            encoder.append_filler()
        self._rows += 1

    def truncate(self, rows: int) -> None:
        for encoder in self._inner.values():
            encoder.truncate(rows)
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        children = [encoder.finish() for encoder in self._inner.values()]
        rows, self._rows = self._rows, 0
        return pa.Array.from_buffers(arrow_type(self._feature), rows, [None], 0, children=children)


class _Optionals:
    """Values of another encoder, and which of them are not null."""

    def __init__(self, feature: Optional) -> None:
        self._feature = feature
        self._may_be_nat = isinstance(feature.feature, TimeFeature)
        self._inner = encoder_of(feature.feature)
        self._valid: list[bool] = []

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + len(self._valid)

    def append(self, value: Any) -> None:
        if value is None or (self._may_be_nat and is_missing(value, self._feature)):
            self.append_filler()
        else:
            self._inner.append(value)
            self._valid.append(True)

    def append_filler(self) -> None:
        self._inner.append_filler()
        self._valid.append(False)

    def truncate(self, rows: int) -> None:
        self._inner.truncate(rows)
        del self._valid[rows:]

    def finish(self) -> pa.Array:
        array, valid = self._inner.finish(), np.array(self._valid, np.bool_)
        self._valid = []
        return array if valid.all() else with_nulls(array, valid)


def with_nulls(array: pa.Array, valid: NDArray[np.bool_]) -> pa.Array:
    """Return the array with nulls over its fillers, so that the same samples give the same bytes."""
    kind = array.type
    if pa.types.is_null(kind):
        return array
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    if pa.types.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
    else:
        children = [array.values] if kind.num_fields else []
    buffers = [bits, *array.buffers()[1 : kind.num_buffers]]
    return pa.Array.from_buffers(kind, len(array), buffers, int(len(valid) - valid.sum()), children=children)
