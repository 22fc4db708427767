"""`Array`: a numpy array. `array_values` converts values, `array_arrow` Arrow arrays."""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from shardex.columns import (
    MOST_SIZES,
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    encoders,
    field_readers,
    list_readers,
    tables,
)
from shardex.errors import QueryError, SchemaError
from shardex.features.array_arrow import (
    array_feature_to_hf,
    array_type,
    arrays_of_arrow,
    arrays_to_arrow,
    arrays_to_hf,
    decode_array_bytes,
    fixed_sizes,
    holds_array,
)
from shardex.features.array_values import fit_array, shape_of_empty_list, stack_arrays, stack_lists
from shardex.features.codecs import COMPACT, NPY, Codec
from shardex.features.dtypes import SCALARS, cast_array, is_storable, scalar_name, wider_dtype
from shardex.features.feature import ArrowParts, Feature, describe, named, readable
from shardex.features.optional import Optional
from shardex.features.sequence import Sequence
from shardex.kernel import Column, Integers, Masked, Ragged, is_tensor


@dataclass(frozen=True, slots=True)
class Array(Feature):
    """A numpy array. `None` inside the shape means any size; without a shape or dtype, any is accepted.

    >>> str(Array("float32", (100,))), str(Array("uint8", (None, None, 3))), str(Array())
    ('float32[100]', 'uint8[?, ?, 3]', 'any[...]')
    """

    kind: ClassVar[str] = "array"
    exact: ClassVar[bool] = False
    """True if numbers of a wider dtype are refused instead of rounded: the dtype was inferred, not declared."""
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self, dtype: DTypeLike | None = None, shape: SequenceOf[SupportsIndex | None] | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.shape is not None:
            object.__setattr__(self, "shape", _checked_shape(self.shape))
        if self.dtype is None:
            if self.shape is not None:
                raise SchemaError(f"expected a dtype together with the shape {self.shape}, got none")
            return
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise SchemaError(f"expected a numpy dtype, got {self.dtype!r}: {error}") from None
        if not is_storable(dtype):
            raise SchemaError(
                f"expected a native dtype of numbers, booleans or times, got {self.dtype!r} "
                "(Array() takes arrays of any dtype)"
            )
        object.__setattr__(self, "dtype", dtype.name)

    def __str__(self) -> str:
        sizes = ["..."] if self.shape is None else ["?" if n is None else str(n) for n in self.shape]
        return f"{self.dtype or 'any'}[{', '.join(sizes)}]"

    @property
    def fixed(self) -> bool:
        """True if every sample has the same shape."""
        return self.shape is not None and None not in self.shape

    @property
    def ragged(self) -> bool:
        """True if only the first size varies and no other size is 0."""
        return self.shape is not None and self.shape[:1] == (None,) and all(self.shape[1:])

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of `numpy.ndarray`, with the dtype if the hint has one."""
        if hint is np.ndarray:
            return cls()
        if typing.get_origin(hint) is not np.ndarray:
            return None
        return cls(next(map(scalar_name, typing.get_args(typing.get_args(hint)[-1])), None))

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of an array, or a tensor of torch that has dimensions, with its dtype and shape."""
        if is_tensor(value) and value.ndim:
            value = fit_array(value, cls())
        if not isinstance(value, np.ndarray):
            return None
        if value.dtype.hasobject:
            raise SchemaError("expected an array of numbers, text or bytes, got dtype object")
        return cls(value.dtype.name, value.shape) if is_storable(value.dtype) else cls()

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of the extension type for row-major tensors; lists of numbers are by `Sequence`."""
        if not isinstance(kind, pa.FixedShapeTensorType) or (order := kind.permutation or []) != sorted(order):
            return None
        is_number = pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)
        if not is_number or parts.has_nulls("item"):
            return None
        array = cls(arrow_types.number_dtype(kind.value_type).name, tuple(kind.shape))
        return array if readable(array, kind) else None

    def join(self, other: Feature) -> Feature | None:
        """Return the dtype that holds both, and the sizes that are the same in both; any if no dtype holds both."""
        if not isinstance(other, Array):
            return None
        if self.dtype != other.dtype:
            dtype = wider_dtype(self.dtype, other.dtype)
            lossy = dtype == "float64" and {self.dtype, other.dtype} & {"int64", "uint64"}
            return Array() if dtype is None or lossy else Array(dtype, self.shape).join(Array(dtype, other.shape))
        if self.shape is None or other.shape is None or len(self.shape) != len(other.shape):
            return Array(self.dtype)
        return Array(self.dtype, tuple(m if m == n else None for m, n in zip(self.shape, other.shape, strict=True)))

    def in_arrow_list(self, size: int | None) -> Feature | None:
        """Return an array of one dimension more, if all arrays and lists have one shape."""
        return Array(self.dtype, (size, *(self.shape or ()))) if size is not None and self.fixed else None

    # -- values and columns -----------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return an array of the dtype and shape."""
        return fit_array(value, self, stored=stored)

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for arrays of the dtype and shape."""
        if self.dtype is None:  # arrays of objects are refused
            return lambda value: type(value) is np.ndarray and value.dtype.kind != "O"
        dtype, shape = np.dtype(self.dtype), self.shape
        return lambda value: (
            type(value) is np.ndarray and value.dtype == dtype and arrow_types.has_shape(value.shape, shape)
        )

    def blank(self) -> Any:
        """Return zeros; sizes that vary are 0."""
        return np.zeros([size or 0 for size in self.shape or ()], self.dtype)

    @property
    def stacked(self) -> bool:
        """True if there is a dtype and at least one dimension."""
        return self.dtype is not None and bool(self.shape)

    def quick_column(self, values: list[Any]) -> Column | None:
        """Return lists of numbers as one array."""
        return stack_lists(values, self)

    def stack(self, fitted: list[Any]) -> Column:
        """Return arrays stacked or as `Ragged`."""
        return stack_arrays(fitted, self)

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return arrays of this shape in this dtype."""
        if isinstance(column, Masked):
            return Feature.cast_column(self, column)
        if isinstance(column, np.ndarray):
            fits = column.ndim > 1 and arrow_types.has_shape(column.shape[1:], self.shape)
        else:
            fits = self.shape is None or (
                column.shapes is None and arrow_types.has_shape((None, *column.inner), self.shape)
            )
        if not fits or self.dtype in (None, column.dtype):
            return column if fits else None
        values = column if isinstance(column, np.ndarray) else column.values
        if (cast := cast_array(values, np.dtype(self.dtype), widen=self.exact)) is None or isinstance(
            column, np.ndarray
        ):
            return cast
        return Ragged.from_values(cast, column.offsets, column.inner, column.shapes)

    def in_form(self, column: Column) -> Column:
        """Return stacked arrays as `Ragged` if their shapes may differ."""
        if not isinstance(column, np.ndarray) or self.fixed or not self.stacked:
            return Feature.in_form(self, column)
        ragged = len(self.shape or ()) == column.ndim - 1
        return Ragged.from_stacked(column, shaped=not self.ragged) if ragged else column

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the type of lists, or of structs with shapes; arrays of any dtype are large_binary."""
        return pa.large_binary() if self.dtype is None else array_type(self)

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for bytes, and for lists of elements of this dtype."""
        return arrow_types.is_binary(kind) or (self.dtype is not None and holds_array(self, kind))

    def with_nulls(self, parts: ArrowParts) -> Feature | None:
        """Return this array if its elements are not null; arrays of one dimension become lists of optional numbers."""
        if not parts.has_nulls("item"):
            return self
        if self.dtype in SCALARS and self.shape is not None and len(self.shape) == 1:
            return Sequence(Optional(self.dtype))
        return None

    def encoder(self) -> Encoder:
        """Return an encoder of arrays."""
        if self.dtype is None:
            return encoders.Blobs(COMPACT.encode, pa.large_binary())
        kind, dtype, sizes = self.arrow_type(), np.dtype(self.dtype), fixed_sizes(self)
        if self.fixed:
            return encoders.FixedArrays(kind, dtype, sizes, self.fit)
        return (
            encoders.RaggedArrays(kind, dtype, sizes, self.fit)
            if self.ragged
            else encoders.ShapedArrays(kind, dtype, self.shape, self.fit)
        )

    def collected(self) -> Collected | None:
        """Return how C code collects arrays of numbers of which at most the first size varies."""
        if self.dtype is None:
            return Collected("ENCODED", encode=COMPACT.encode)
        dtype = np.dtype(self.dtype)
        if not (self.fixed or self.ragged) or dtype.kind not in "biufc" or len(self.shape or ()) > MOST_SIZES:
            return None
        if self.ragged:
            return Collected("RAGGED", self._plain_array, dtype, (0, *fixed_sizes(self)))
        return Collected("FIXED", self._plain_array, dtype, fixed_sizes(self))

    def _plain_array(self, value: Any) -> NDArray[Any]:
        array = fit_array(value, self)
        return np.frombuffer(array.tobytes(), np.dtype(self.dtype)).reshape(array.shape)

    def sizes(self, array: pa.Array) -> Integers:
        """Return the sizes of elements, offsets and shapes."""
        rows = np.arange(len(array) + 1)
        if self.dtype is None:
            return encoders.offset_sizes(array)
        if self.fixed:
            return rows * (int(array.type.list_size) * encoders.width(array.type.value_type))
        if self.ragged:
            return encoders.offset_sizes(array) * encoders.width(array.type.value_type) + 8 * rows
        values = array.field("values")
        return encoders.offset_sizes(values) * encoders.width(values.type.value_type) + 24 * rows

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return arrays of this dtype and shape."""
        return None if self.dtype is None else arrays_to_arrow(column, self)

    def from_arrow(self, array: pa.Array) -> Column:
        """Return arrays, also those that are stored as bytes."""
        if arrow_types.is_binary(array.type):
            return stack_arrays([decode_array_bytes(raw, self) for raw in array.to_pylist()], self)
        return arrays_of_arrow(array, self)

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read the buffers of elements, offsets and shapes, or bytes."""
        if arrow_types.has_offsets(kind):
            decode, stack = lambda raw: decode_array_bytes(raw, self), lambda values: stack_arrays(values, self)
            return list_readers.BytesReader(name, self, chunks, kind, decode=decode, stack=stack)
        dtype, sizes = np.dtype(self.dtype), fixed_sizes(self)
        if self.fixed and self.shape and pa.types.is_fixed_size_list(kind):
            return field_readers.FixedWidthReader(name, self, chunks, dtype, sizes)
        if self.ragged and arrow_types.is_list(kind):
            return list_readers.RaggedReader(name, self, chunks, kind, dtype, sizes)
        if pa.types.is_struct(kind) and bool(self.shape) == pa.types.is_fixed_size_list(kind.field("shape").type):
            reader = list_readers.ShapedReader if self.shape else list_readers.FreeShapeReader
            return reader(name, self, chunks, kind, dtype, len(self.shape or ()))
        return Feature.reader(self, name, kind, chunks, read_file)

    # -- SQL --------------------------------------------------------------------------------------------------

    def queryable(self, *, inside: bool = False) -> bool:
        """Return True for arrays of one shape, and for lists of numbers.

        >>> Array("float32", (3, 4)).queryable(), Array("float32", (None, None)).queryable(), Array().queryable()
        (True, False, False)
        """
        if self.dtype is None or self.shape is None:
            return False
        fits = self.shape == (None,) or (self.fixed and self.shape != () and 0 not in self.shape)
        return fits and not (inside and len(self.shape) > 1) and np.dtype(self.dtype).kind in "iuf"

    def sql_column(self, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return lists, of several dimensions lists of lists."""
        if arrow_types.is_binary(column.type):
            raise QueryError(
                f"expected values that SQL can read, got {self} stored as bytes - at field {name}; "
                "only IS NULL and IS NOT NULL work for it"
            )
        column = tables.cast_for_sql(column, self, name)
        if self.fixed and len(self.shape or ()) > 1:
            return tables.as_nested_lists(column, [size or 0 for size in self.shape or ()])
        return column

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension npy."""
        return named(field, "npy", NPY)

    def codec(self, extension: str) -> Codec:
        """Return the codec of the compact format, which reads .npy too."""
        return COMPACT

    def to_file(self, value: Any, extension: str) -> bytes:
        """Return the bytes of an .npy file."""
        return NPY.encode(value)

    def of_file(self, extension: str) -> Callable[[memoryview], Any]:
        """Return the decoder of .npy; only arrays of a dtype are fitted."""
        return COMPACT.decode if self.dtype is None else Feature.of_file(self, extension)

    def refuse_lost_shape(self, value: Any, name: str) -> None:
        """Raise an error for an array without elements whose shape a list cannot hold and the feature does not tell."""
        if not isinstance(value, np.ndarray) or value.size:
            return
        as_list = value.shape[: value.shape.index(0) + 1]
        if shape_of_empty_list(as_list, self) != value.shape:
            raise SchemaError(
                f"expected an array that JSON can hold, got {describe(value)}, whose shape a list cannot hold "
                f"- at field {name} (declare the sizes, or choose a format that has arrays)"
            )

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of lists, or of arrays of several dimensions, of Hugging Face."""
        if self.dtype is None or self.shape is None or np.dtype(self.dtype).kind not in "biuf":
            return Feature.to_hf(self)
        return array_feature_to_hf(self.dtype, self.shape)

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return nested lists."""
        return arrays_to_hf(array, self, kind)


def _checked_shape(shape: Any) -> tuple[int | None, ...]:
    try:
        sizes = tuple(None if size is None else operator.index(size) for size in shape)
    except TypeError:
        raise SchemaError(f"expected a shape such as (3, None), got {shape!r}") from None
    if any(size is not None and size < 0 for size in sizes):
        raise SchemaError(f"expected sizes of 0 or more, got shape {sizes}")
    return sizes
