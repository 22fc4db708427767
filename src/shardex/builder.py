"""Values of one field, one after another, into an Arrow array: the writing side of `layout.py`.

A builder copies each value when it is appended (the caller may reuse its array), checks it against the feature,
and gives everything back as one array by `finish`. A value that does not fit raises `SchemaError` and is not taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex import codec
from shardex.errors import SchemaError
from shardex.layout import arrow_schema, arrow_type, storage
from shardex.schema import Array, Bytes, ClassLabel, Feature, Features, Json, Optional, Sequence, Struct, Text, Value

__all__ = ["BatchBuilder", "Builder", "builder_of"]


class Builder(Protocol):
    """Collects the values of one field."""

    nbytes: int
    """About how much has been collected."""

    def append(self, value: Any) -> None:
        """Take a copy of one value."""

    def truncate(self, rows: int) -> None:
        """Forget all values after the first `rows`."""

    def finish(self) -> pa.Array:
        """All values, valid until the next `append`; the builder is empty again."""


class BatchBuilder:
    """Collects samples into record batches of one schema.

    >>> batch = BatchBuilder(Features.of({"x": Array("int8", (2,)), "s": str}))
    >>> batch.append({"x": [1, 2], "s": "a"})
    >>> batch.finish().to_pylist()
    [{'x': [1, 2], 's': 'a'}]
    >>> batch.append({"x": [1, 2, 3], "s": "a"})
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected int8[2], got int64[3] - at sample 1, field x
    """

    def __init__(self, features: Features) -> None:
        self.features = features
        self.schema = arrow_schema(features)
        self._builders = [(name, builder_of(feature)) for name, feature in features.items()]
        self.rows = 0
        self.finished = 0

    @property
    def nbytes(self) -> int:
        """About how much has been collected."""
        return sum(builder.nbytes for _, builder in self._builders)

    def append(self, sample: Mapping[str, Any]) -> None:
        """Take one sample, whole or not at all."""
        try:
            self._put(sample)
        except KeyError:
            self._truncate()
            self._put(self._filled(sample))
        if len(sample) != len(self._builders):
            self._check_names(sample)
        self.rows += 1

    def _put(self, sample: Mapping[str, Any]) -> None:
        for name, builder in self._builders:
            try:
                builder.append(sample[name])
            except SchemaError as error:
                self._truncate()
                raise SchemaError(f"{error} - at sample {self.finished + self.rows}, field {name}") from None

    def _filled(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The sample with `None` for optional fields that it leaves out."""
        for name, feature in self.features.items():
            if name not in sample and not isinstance(feature, Optional):
                raise SchemaError(f"expected {feature}, got nothing - at sample {self.finished + self.rows}, field {name}")
        return {name: sample.get(name) for name in self.features}

    def _check_names(self, sample: Mapping[str, Any]) -> None:
        for name in sample:
            if name not in self.features:
                self._truncate()
                known = ", ".join(self.features)
                raise SchemaError(f"expected the fields {known}, got {name!r} too - at sample {self.finished + self.rows}")

    def _truncate(self) -> None:
        for _, builder in self._builders:
            builder.truncate(self.rows)

    def finish(self) -> pa.RecordBatch:
        """The samples collected, as one batch that is valid until the next `append`."""
        batch = pa.RecordBatch.from_arrays([builder.finish() for _, builder in self._builders], schema=self.schema)
        self.finished += self.rows
        self.rows = 0
        return batch


def builder_of(feature: Feature) -> Builder:
    """The builder for a feature."""
    match feature:
        case Value(dtype="bool"):
            return _Truths()
        case Value():
            return _Numbers(feature)
        case ClassLabel():
            return _Labels(feature)
        case Text():
            return _Blobs(codec.by_name("text").encode, pa.large_string())
        case Json():
            return _Blobs(codec.by_name("json").encode, pa.large_string())
        case Bytes():
            return _Blobs(codec.by_name("raw").encode, pa.large_binary())
        case Array(dtype=None):
            return _Blobs(codec.by_name("compact").encode, pa.large_binary())
        case Array():
            return _Fixed(feature) if feature.fixed else _Free(feature) if feature.ragged else _Shaped(feature)
        case Sequence():
            return _Lists(feature)
        case Struct():
            return _Structs(feature)
        case Optional():
            return _Optionals(feature)
    raise SchemaError(f"expected a feature that can be written, got {feature}")


# -- numbers --------------------------------------------------------------------------------------------------


class _Numbers:
    def __init__(self, feature: Value) -> None:
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._plain: type = int if self._dtype.kind in "iu" else float
        self._low, self._high = _bounds(self._dtype)
        self._values: list[Any] = []

    @property
    def nbytes(self) -> int:
        return len(self._values) * self._dtype.itemsize

    def append(self, value: Any) -> None:
        if type(value) is not self._plain or not (self._low <= value <= self._high):
            value = self._fit(value)
        self._values.append(value)

    def _fit(self, value: Any) -> Any:
        given = value
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        if isinstance(value, np.generic) and value.dtype.kind in "iuf" and np.can_cast(value.dtype, self._dtype, "safe"):
            return value.item()
        if isinstance(value, np.integer):
            value = value.item()
        plain = isinstance(value, int) and not isinstance(value, bool)
        if (plain and self._low <= value <= self._high) or (self._plain is float and isinstance(value, float)):
            if value == value and abs(value) > self._high and abs(value) != np.inf:
                raise SchemaError(f"expected {self._feature}, got {value!r}, which is too large for it")
            return value
        raise SchemaError(f"expected {self._feature}, got {_describe(given)}")

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        array = np.array(self._values, self._dtype)
        self._values = []
        return pa.array(array)


def _bounds(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return float(np.finfo(dtype).min), float(np.finfo(dtype).max)


class _Truths:
    def __init__(self) -> None:
        self._values: list[bool] = []

    @property
    def nbytes(self) -> int:
        return len(self._values)

    def append(self, value: Any) -> None:
        if not isinstance(value, bool | np.bool_):
            raise SchemaError(f"expected bool, got {_describe(value)}")
        self._values.append(bool(value))

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        array = pa.array(self._values, pa.bool_())
        self._values = []
        return array


class _Labels(_Numbers):
    def __init__(self, feature: ClassLabel) -> None:
        super().__init__(Value("int32"))
        self._label = feature

    def append(self, value: Any) -> None:
        if isinstance(value, str):
            value = self._label.number(value)
        elif isinstance(value, int | np.integer) and not isinstance(value, bool):
            self._label.name(int(value))
        super().append(value)


# -- bytes ------------------------------------------------------------------------------------------------------


class _Blobs:
    def __init__(self, encode: Any, kind: pa.DataType) -> None:
        self._encode = encode
        self._type = kind
        self._values: list[bytes] = []
        self.nbytes = 0

    def append(self, value: Any) -> None:
        data = self._encode(value)
        self._values.append(data)
        self.nbytes += len(data)

    def truncate(self, rows: int) -> None:
        del self._values[rows:]

    def finish(self) -> pa.Array:
        offsets = np.zeros(len(self._values) + 1, np.int64)
        np.cumsum([len(value) for value in self._values], out=offsets[1:])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(self._values))]
        array = pa.Array.from_buffers(self._type, len(self._values), buffers, 0)
        self._values, self.nbytes = [], 0
        return array


# -- arrays -----------------------------------------------------------------------------------------------------


class _Fixed:
    """Arrays of one shape, copied into one growing matrix."""

    def __init__(self, feature: Array) -> None:
        assert feature.dtype is not None and feature.shape is not None
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._shape = tuple(n for n in feature.shape if n is not None)
        self._width = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        self._matrix = np.empty((64, *self._shape), self._dtype)
        self._rows = 0

    @property
    def nbytes(self) -> int:
        return self._rows * self._width

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.shape != self._shape:
            value = _fit_array(value, self._feature, self._dtype)
        if self._rows == len(self._matrix):
            self._grow()
        self._matrix[self._rows] = value
        self._rows += 1

    def _grow(self) -> None:
        matrix = np.empty((2 * len(self._matrix), *self._shape), self._dtype)
        matrix[: self._rows] = self._matrix
        self._matrix = matrix

    def truncate(self, rows: int) -> None:
        self._rows = min(self._rows, rows)

    def finish(self) -> pa.Array:
        assert self._feature.dtype is not None
        values = pa.array(self._matrix[: self._rows].reshape(-1).view(storage(self._feature.dtype)))
        array = pa.Array.from_buffers(arrow_type(self._feature), self._rows, [None], 0, children=[values])
        self._rows = 0
        return array


class _Free:
    """Arrays whose first size is free, copied end to end into one growing vector."""

    def __init__(self, feature: Array) -> None:
        assert feature.dtype is not None
        self._feature = feature
        self._dtype = np.dtype(feature.dtype)
        self._ndim = len(feature.shape) if feature.shape is not None else -1
        self._vector = np.empty(1024, self._dtype)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._ends[-1] * self._dtype.itemsize + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        if type(value) is not np.ndarray or value.dtype is not self._dtype or value.ndim != 1 or self._ndim != 1:
            value = _fit_array(value, self._feature, self._dtype).reshape(-1)
        start = self._ends[-1]
        end = start + value.size
        if end > len(self._vector):
            self._grow(end)
        self._vector[start:end] = value
        self._ends.append(end)

    def _grow(self, least: int) -> None:
        vector = np.empty(max(least, 2 * len(self._vector)), self._dtype)
        vector[: self._ends[-1]] = self._vector[: self._ends[-1]]
        self._vector = vector

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]

    def finish(self) -> pa.Array:
        assert self._feature.dtype is not None
        stored = storage(self._feature.dtype)
        pairs = self._dtype.itemsize // stored.itemsize
        offsets = np.array(self._ends, np.int64) * pairs
        values = pa.array(self._vector[: self._ends[-1]].view(stored))
        kind = pa.large_list(pa.field("item", pa.from_numpy_dtype(stored), nullable=False))
        array = pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], 0, children=[values])
        self._ends = [0]
        return array


class _Shaped:
    """Arrays of any shape: the elements end to end, and the shapes."""

    def __init__(self, feature: Array) -> None:
        self._feature = feature
        self._values = _Free(feature)
        self._dtype = np.dtype(feature.dtype)
        self._shapes: list[tuple[int, ...]] = []

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + 16 * len(self._shapes)

    def append(self, value: Any) -> None:
        array = _fit_array(value, self._feature, self._dtype)
        self._values.append(array)
        self._shapes.append(array.shape)

    def truncate(self, rows: int) -> None:
        self._values.truncate(rows)
        del self._shapes[rows:]

    def finish(self) -> pa.Array:
        kind = arrow_type(self._feature)
        shapes = pa.array([list(shape) for shape in self._shapes], kind.field("shape").type)
        self._shapes = []
        return pa.StructArray.from_arrays([self._values.finish(), shapes], fields=list(kind))


def _fit_array(value: Any, feature: Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    given = value
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value)
        except ValueError:
            raise SchemaError(f"expected {feature}, got {_describe(given)} with rows of different length") from None
    plain = not isinstance(given, np.ndarray | np.generic)
    shaped = feature.shape is None or (
        len(feature.shape) == value.ndim and all(n in (None, m) for n, m in zip(feature.shape, value.shape, strict=True))
    )
    fits = np.can_cast(value.dtype, dtype, "safe") or (plain and _plain_fits(value, dtype))
    if shaped and fits and value.dtype.kind != "O":
        return value.astype(dtype, copy=False)  # type: ignore[no-any-return]
    hint = ""
    if shaped and value.dtype.kind in "biufc" and not fits:
        hint = f" (convert it yourself where the loss is meant: .astype({feature.dtype!r}))"
    raise SchemaError(f"expected {feature}, got {_describe(value)}{hint}")


def _plain_fits(value: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Python numbers carry no dtype of their own: integers fit where they are in range, floats in any float."""
    if value.size == 0 and value.dtype.kind == "f":
        return True
    if value.dtype.kind in "iu" and dtype.kind in "iu":
        low, high = _bounds(dtype)
        return bool(value.min() >= low and value.max() <= high)
    return value.dtype.kind in "iuf" and dtype.kind in "fc"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]" if value.shape or isinstance(value, np.ndarray) else f"{value.dtype} {value}"
    return "none" if value is None else f"{type(value).__name__} {value!r}"[:80]


# -- nested -----------------------------------------------------------------------------------------------------


class _Lists:
    def __init__(self, feature: Sequence) -> None:
        self._feature = feature
        self._inner = builder_of(feature.feature)
        self._ends = [0]

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + 8 * len(self._ends)

    def append(self, value: Any) -> None:
        if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
            raise SchemaError(f"expected {self._feature}, got {_describe(value)}")
        count = 0
        for count, item in enumerate(value, 1):  # noqa: B007 - the count is what is wanted
            self._inner.append(item)
        self._ends.append(self._ends[-1] + count)

    def truncate(self, rows: int) -> None:
        del self._ends[rows + 1 :]
        self._inner.truncate(self._ends[-1])

    def finish(self) -> pa.Array:
        offsets = np.array(self._ends, np.int64)
        self._ends = [0]
        return pa.LargeListArray.from_arrays(offsets, self._inner.finish(), type=arrow_type(self._feature))


class _Structs:
    def __init__(self, feature: Struct) -> None:
        self._feature = feature
        self._inner = {name: builder_of(inner) for name, inner in feature.fields.items()}

    @property
    def nbytes(self) -> int:
        return sum(builder.nbytes for builder in self._inner.values())

    def append(self, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise SchemaError(f"expected {self._feature}, got {_describe(value)}")
        if unknown := [name for name in value if name not in self._inner]:
            raise SchemaError(f"expected {self._feature}, got {unknown[0]!r} too")
        for name, builder in self._inner.items():
            try:
                builder.append(value.get(name))
            except SchemaError as error:
                raise SchemaError(f"{error} (in {name})") from None

    def truncate(self, rows: int) -> None:
        for builder in self._inner.values():
            builder.truncate(rows)

    def finish(self) -> pa.Array:
        return pa.StructArray.from_arrays([b.finish() for b in self._inner.values()], fields=list(arrow_type(self._feature)))


class _Optionals:
    """Keeps which values are there; the others get a filler that nobody sees."""

    def __init__(self, feature: Optional) -> None:
        self._inner = builder_of(feature.feature)
        self._filler = _filler(feature.feature)
        self._valid: list[bool] = []

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + len(self._valid)

    def append(self, value: Any) -> None:
        self._inner.append(self._filler if value is None else value)
        self._valid.append(value is not None)

    def truncate(self, rows: int) -> None:
        self._inner.truncate(rows)
        del self._valid[rows:]

    def finish(self) -> pa.Array:
        array, valid = self._inner.finish(), self._valid
        self._valid = []
        if all(valid):
            return array
        rows = np.arange(len(valid))
        return array.take(pa.array(rows, mask=~np.array(valid)))


def _filler(feature: Feature) -> Any:
    match feature:
        case Value():
            return False if feature.dtype == "bool" else np.zeros((), feature.dtype).item()
        case ClassLabel():
            return 0
        case Text():
            return ""
        case Bytes():
            return b""
        case Array():
            shape = (0,) if feature.shape is None else tuple(n or 0 for n in feature.shape)
            return np.zeros(shape, feature.dtype or "u1")
        case Sequence():
            return []
        case Struct():
            return {name: _filler(inner) for name, inner in feature.fields.items()}
    return None
