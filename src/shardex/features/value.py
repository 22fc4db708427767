"""`Value`: one number or boolean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from shardex.columns import (
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    encoders,
    field_readers,
    number_array,
    tables,
)
from shardex.errors import SchemaError
from shardex.features.array import Array
from shardex.features.array_values import fit_array, refuse_inexact
from shardex.features.codecs import JSON, NUMBER, Codec, codec_for_extension
from shardex.features.dtypes import (
    NUMBER_KINDS,
    SCALARS,
    cast_array,
    dtype_bounds,
    dtype_text,
    scalar_name,
    wider_dtype,
)
from shardex.features.feature import ArrowParts, Feature, describe, hf_value, named, unfit
from shardex.kernel import Column, Masked, Ragged, is_tensor

_PYTHON_TYPES: dict[str, type] = {"int64": int, "float64": float, "bool": bool}
_HINTS: dict[Any, str] = {bool: "bool", int: "int64", float: "float64", "int": "int64", "float": "float64"}


@dataclass(frozen=True, slots=True)
class Value(Feature):
    """One number or boolean of a numpy dtype.

    >>> str(Value("int32")), str(Value(np.int8))
    ('int32', 'int8')
    """

    kind: ClassVar[str] = "value"
    dtype: str

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(self, dtype: DTypeLike) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.dtype
        if isinstance(given, type | np.dtype):
            object.__setattr__(self, "dtype", dtype_text(given))
        if self.dtype not in SCALARS:
            hint = {"string": ": text is Text()", "binary": ": bytes are Bytes()"}.get(str(self.dtype), "")
            raise SchemaError(f"expected one of the dtypes {', '.join(SCALARS)}, got {self.dtype!r}{hint}")

    def __str__(self) -> str:
        return self.dtype

    # -- what it stands for -----------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of a type of numbers of Python or numpy, or of the name of a dtype."""
        if isinstance(hint, str) or hint in (bool, int, float):
            name = _HINTS.get(hint, hint)
            return cls(name) if name in SCALARS else None
        if isinstance(hint, type) and issubclass(hint, np.generic):
            return cls(scalar_name(hint) or hint.__name__)
        return None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a number or boolean of Python or numpy."""
        if is_tensor(value) and not value.ndim:
            value = fit_array(value, Array())[()]
        if isinstance(value, np.generic) and value.dtype.name in SCALARS:
            return cls(value.dtype.name)
        return next((cls(_HINTS[kind]) for kind in (bool, int, float) if isinstance(value, kind)), None)

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return the feature of numbers and booleans."""
        types = pa.types
        is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
        return cls(arrow_types.number_dtype(kind).name) if is_number else None

    def join(self, other: Feature) -> Feature | None:
        """Return the wider dtype; there is none for booleans with numbers, and no exact one for int64 with uint64."""
        dtype = wider_dtype(self.dtype, other.dtype) if isinstance(other, Value) else None
        return None if dtype is None else Value(dtype)

    def in_list(self) -> Feature | None:
        """Return the feature of arrays of one dimension."""
        return Array(self.dtype, (None,))

    def in_arrow_list(self, size: int | None) -> Feature | None:
        """Return the feature of arrays of one dimension; lists of booleans are no arrays."""
        return None if self.dtype == "bool" else Array(self.dtype, (size,))

    # -- values -----------------------------------------------------------------------------------------------

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return a Python number or bool.

        >>> Value("float16").fit(np.float32(0.5)), Value("int8").fit(np.array(7)), Value("float64").fit(2)
        (0.5, 7, 2.0)
        """
        if not stored:
            number = self._number(value)
            return float(number) if _kind(self.dtype) == "f" else number
        number = np.nan if value is None and np.dtype(self.dtype).kind == "f" else self._number(value)
        return np.dtype(self.dtype).type(number).item()  # rounded to the dtype, as in a column

    def _number(self, value: Any) -> Any:
        number, kind = python_number(value), _kind(self.dtype)
        allowed = {"b": bool, "f": int | float}.get(kind, int)
        if not isinstance(number, allowed) or isinstance(number, bool) != (kind == "b"):
            raise unfit(self, value)
        low, high = dtype_bounds(self.dtype)
        if low <= number <= high or (isinstance(number, float) and not math.isfinite(number)):
            if type(number) is int and self.dtype == "float64":
                refuse_inexact([number])
            return number
        if isinstance(number, float) and cast_array(np.array(number), np.dtype(self.dtype)) is not None:
            return low if number < 0 else high  # to which it is rounded
        raise SchemaError(f"expected {self}, got {describe(value)}, which is out of range")

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is True for Python numbers in the range of the dtype; of floats only float64."""
        match _kind(self.dtype):
            case "b":
                return lambda value: type(value) is bool
            case "f":
                return (lambda value: type(value) is float) if self.dtype == "float64" else Feature.fits_unchanged(self)
        low, high = dtype_bounds(self.dtype)
        return lambda value: type(value) is int and low <= value <= high

    def blank(self) -> Any:
        """Return 0."""
        return np.zeros((), self.dtype)[()]

    # -- columns ----------------------------------------------------------------------------------------------

    @property
    def stacked(self) -> bool:
        """True: columns are arrays of numbers."""
        return True

    def quick_column(self, values: list[Any]) -> Column | None:
        """Return a column if all values are of the Python type of the dtype."""
        if not set(map(type, values)) <= {{"b": bool, "f": float}.get(_kind(self.dtype), int)}:
            return None
        try:
            return self.stack(values)
        except OverflowError:
            return None

    def stack(self, fitted: list[Any]) -> Column:
        """Return numbers as an array."""
        with np.errstate(over="ignore"):
            return np.array(fitted, self.dtype)

    def cast_column(self, column: NDArray[Any] | Ragged | Masked) -> Column | None:
        """Return numbers in this dtype."""
        if not isinstance(column, np.ndarray):
            return Feature.cast_column(self, column)
        same_kind = (column.dtype.kind == "b") == (self.dtype == "bool")
        return cast_array(column, np.dtype(self.dtype)) if column.ndim == 1 and same_kind else None

    def in_form(self, column: Column) -> Column:
        """Return numbers in this dtype if it is a wider one; unchanged if it does not hold all of them."""
        if not isinstance(column, np.ndarray) or column.dtype == self.dtype:
            return Feature.in_form(self, column)
        dtype = np.dtype(self.dtype)
        if column.dtype.kind not in "iuf" or (wide := cast_array(column, dtype)) is None:
            return column
        return wide if np.array_equal(wide.astype(column.dtype), column, equal_nan=True) else column

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extension(self, field: str) -> str:
        """Return the extension cls for integers, which are digits, and json for other numbers."""
        return named(field, "cls", NUMBER) if _kind(self.dtype) in "iu" else named(field, "json", JSON)

    def codec(self, extension: str) -> Codec:
        """Return the codec of JSON or of digits."""
        known = codec_for_extension(extension)
        return known if known is JSON else NUMBER

    def to_file(self, value: Any, extension: str) -> bytes:
        """Return a number as text; NaN, which JSON does not have, as null, which is read as NaN again."""
        if isinstance(value, float) and math.isnan(value):
            return b"null"
        if isinstance(value, float) and math.isinf(value):
            raise SchemaError(
                f"expected a number that JSON can hold, got {value} (an array of no dimensions can hold it)"
            )
        return Feature.to_file(self, value, extension)

    # -- Arrow ------------------------------------------------------------------------------------------------

    def arrow_type(self) -> pa.DataType:
        """Return the type of the number."""
        return pa.from_numpy_dtype(np.dtype(self.dtype))

    def encoder(self) -> Encoder:
        """Return an encoder of numbers."""
        return encoders.Numbers(self.dtype, dtype_bounds(self.dtype), self._number)

    def collected(self) -> Collected | None:
        """Return how C code collects numbers; it cannot collect float16."""
        if self.dtype == "float16":
            return None
        dtype = np.dtype(self.dtype)
        match dtype.kind:
            case "b":
                return Collected("BOOL", self._number, dtype)
            case "f":
                return Collected("FLOAT", lambda value: float(self._number(value)), dtype)
        if self.dtype == "uint64":
            return Collected("UNSIGNED", lambda value: int(self._number(value)), dtype)
        low, high = dtype_bounds(self.dtype)
        return Collected("INTEGER", lambda value: int(self._number(value)), dtype, low=low, high=high)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return numbers of this dtype without a copy, and lists of Python numbers of some dtypes."""
        if isinstance(column, Masked):
            return tables.masked_to_arrow(column, self.to_arrow)
        if isinstance(column, list):
            kind = _PYTHON_TYPES.get(self.dtype)
            return kind and tables.of_python_values(
                column, kind, lambda values: number_array(np.array(values, self.dtype))
            )
        plain = isinstance(column, np.ndarray) and column.ndim == 1 and column.dtype == self.dtype
        return number_array(column) if plain else None  # type: ignore[arg-type]

    def from_arrow(self, array: pa.Array) -> Column:
        """Return an array of numbers."""
        return np.asarray(array.to_numpy(zero_copy_only=False))

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read the buffer of numbers."""
        if pa.types.is_boolean(kind) and self.dtype == "bool":
            return field_readers.BoolReader(name, self, chunks)
        return number_reader(self, name, kind, chunks, read_file)

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face for the dtype."""
        return hf_value(self.dtype)


def number_reader(feature: Feature, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
    """Return a reader of numbers of the dtype that they are stored in."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return field_readers.FixedWidthReader(name, feature, chunks, arrow_types.number_dtype(kind), ())
    return Feature.reader(feature, name, kind, chunks, read_file)


def python_number(value: Any) -> Any:
    """Return a number of numpy, or in a tensor of torch, as a Python number, any other value unchanged."""
    if is_tensor(value) and not value.ndim:
        return value.item()
    single = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    return value.item() if single and value.dtype.kind in NUMBER_KINDS else value


@cache
def _kind(dtype: str) -> str:
    return np.dtype(dtype).kind
