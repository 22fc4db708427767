"""What annotations of sample classes mean in schema records: names of dtypes, optional fields, arrays."""

import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from shardex.errors import ArgumentError, SchemaError

NUMPY_DTYPE_MAP: Final[dict[str, str]] = {
    name: name
    for name in (
        *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"),
    )
}
"""Names of the dtypes that schema records have."""
PRIMITIVE_TYPE_MAP: Final[dict[type, str]] = {str: "str", int: "int", float: "float", bool: "bool", bytes: "bytes"}
"""Names that schema records have for types of Python."""
_DEFAULT_DTYPE = "float32"


def numpy_dtype_to_string(dtype: Any) -> str:
    """Return the name of the dtype in an annotation; float32 if it has none that schema records know.

    >>> import numpy as np
    >>> numpy_dtype_to_string(np.uint8), numpy_dtype_to_string(np.dtype[np.int64]), numpy_dtype_to_string(Any)
    ('uint8', 'int64', 'float32')
    """
    text = str(dtype)
    names = sorted(NUMPY_DTYPE_MAP, key=len, reverse=True)  # uint8 before int8
    return next((NUMPY_DTYPE_MAP[name] for name in names if name in text), _DEFAULT_DTYPE)


def unwrap_optional(python_type: Any) -> tuple[Any, bool]:
    """Return the type inside of ``T | None`` or ``Optional[T]``, and whether it was optional.

    >>> unwrap_optional(int | None), unwrap_optional(str)
    ((<class 'int'>, True), (<class 'str'>, False))
    """
    if typing.get_origin(python_type) not in (typing.Union, types.UnionType):
        return python_type, False
    arguments = typing.get_args(python_type)
    rest = [one for one in arguments if one is not types.NoneType]
    if len(rest) > 1:
        raise SchemaError(f"expected one type, or one and None, got {python_type}: schema records have no other unions")
    return rest[0], len(rest) < len(arguments)


def is_ndarray_type(python_type: Any) -> bool:
    """Return True for an annotation of arrays: ``NDArray``, ``NDArray[...]`` or ``np.ndarray``.

    >>> import numpy as np; from numpy.typing import NDArray
    >>> is_ndarray_type(NDArray[np.int8]), is_ndarray_type("NDArray"), is_ndarray_type(list[int])
    (True, True, False)
    """
    return "ndarray" in str(python_type).lower()


def extract_ndarray_dtype(python_type: Any) -> str:
    """Return the name of the dtype of an annotated array; float32 if it names none.

    >>> import numpy as np; from numpy.typing import NDArray
    >>> extract_ndarray_dtype(NDArray[np.int8]), extract_ndarray_dtype(np.ndarray)
    ('int8', 'float32')
    """
    arguments = typing.get_args(python_type)
    return numpy_dtype_to_string(arguments[-1]) if arguments else _DEFAULT_DTYPE


def parse_semver(version: str) -> tuple[int, int, int]:
    """Return the three numbers of a version.

    >>> parse_semver("1.2.3")
    (1, 2, 3)
    """
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ArgumentError(f"expected a version of three numbers, such as 1.2.3, got {version!r}")
    major, minor, patch = map(int, parts)
    return major, minor, patch


def kind_of(field_type: Mapping[str, Any]) -> str:
    """Return the kind in the type of a field: the part after #, or the value of "kind".

    >>> kind_of({"$type": "local#ndarray"}), kind_of({"kind": "primitive"})
    ('ndarray', 'primitive')
    """
    name: str = field_type.get("$type", "")
    return name.rpartition("#")[2] if "#" in name else field_type.get("kind", "")
