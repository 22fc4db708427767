"""Arrays and tables as bytes, in the encodings that fields of samples have."""

import importlib
import io
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.compat.atdata._checksums import ShardWriteResult, sha256_bytes, sha256_file, verify_checksums
from shardex.errors import ArgumentError, SchemaError, ShardexError
from shardex.features import codecs, describe

__all__ = [
    "FORMAT_SERIALIZERS",
    "ShardWriteResult",
    "array_to_bytes",
    "arrow_tensor_to_bytes",
    "bytes_to_array",
    "bytes_to_arrow_tensor",
    "bytes_to_dataframe",
    "bytes_to_safetensors",
    "bytes_to_sparse",
    "bytes_to_structured",
    "configure_arrays",
    "dataframe_to_bytes",
    "safetensors_to_bytes",
    "sha256_bytes",
    "sha256_file",
    "sparse_to_bytes",
    "structured_to_bytes",
    "verify_checksums",
]


class MissingPackageError(ShardexError, ImportError):
    """A package that some kinds of fields need, and that is not installed."""


_ARRAYS: Final = {"npy": codecs.NPY, "compact": codecs.COMPACT}
_arrays: list[codecs.Codec] = [codecs.NPY]


def configure_arrays(encoding: str) -> None:
    """Set how this process packs arrays: ``"npy"`` (default), which all versions of atdata read, or ``"compact"``.

    The compact encoding has a shorter header; newer versions of atdata write it, version 0.2 cannot read it.
    """
    if encoding not in _ARRAYS:
        raise ArgumentError(f"expected one of {', '.join(_ARRAYS)}, got {encoding!r}")
    _arrays[:] = [_ARRAYS[encoding]]


def array_to_bytes(x: NDArray[Any]) -> bytes:
    """Return an array as the bytes of an ``.npy`` file, or in the encoding of `configure_arrays`.

    >>> bytes_to_array(array_to_bytes(np.arange(3)))
    array([0, 1, 2])
    """
    return _arrays[0].encode(x)


def bytes_to_array(b: bytes) -> NDArray[Any]:
    """Return the array of `array_to_bytes`, of both encodings, as a writable copy."""
    found: NDArray[Any] = codecs.COMPACT.decode(b)
    return found.copy(order="K")


def structured_to_bytes(x: NDArray[Any]) -> bytes:
    """Return an array of records as the bytes of an ``.npy`` file."""
    if not isinstance(x, np.ndarray) or x.dtype.names is None:
        raise SchemaError(f"expected an array with a structured dtype, got {describe(x)}")
    return codecs.NPY.encode(x)


def bytes_to_structured(b: bytes) -> NDArray[Any]:
    """Return the array of `structured_to_bytes`."""
    found: NDArray[Any] = codecs.NPY.decode(b)
    return found.copy(order="K")


def sparse_to_bytes(x: Any) -> bytes:
    """Return a sparse matrix of scipy as the bytes of an ``.npz`` file."""
    sparse = _import_sparse()
    if not sparse.issparse(x):
        raise SchemaError(f"expected a sparse matrix of scipy, got {type(x).__name__}")
    out = io.BytesIO()
    sparse.save_npz(out, x)
    return out.getvalue()


def bytes_to_sparse(b: bytes) -> Any:
    """Return the sparse matrix of `sparse_to_bytes`."""
    return _import_sparse().load_npz(io.BytesIO(b))


def _import_sparse() -> Any:
    return _imported("scipy.sparse", "a field of sparse matrices")


def arrow_tensor_to_bytes(x: Any) -> bytes:
    """Return a `pyarrow.Tensor` as an Arrow IPC message."""
    if not isinstance(x, pa.Tensor):
        raise SchemaError(f"expected a pyarrow.Tensor, got {type(x).__name__}")
    out = pa.BufferOutputStream()
    pa.ipc.write_tensor(x, out)
    return bytes(out.getvalue())


def bytes_to_arrow_tensor(b: bytes) -> Any:
    """Return the tensor of `arrow_tensor_to_bytes`."""
    return pa.ipc.read_tensor(pa.BufferReader(b))


def safetensors_to_bytes(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays by name in the encoding of safetensors."""
    if not isinstance(tensors, Mapping):
        raise SchemaError(f"expected a dict of arrays, got {type(tensors).__name__}")
    return bytes(_import_safetensors().save(dict(tensors)))


def bytes_to_safetensors(b: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of `safetensors_to_bytes`."""
    return dict(_import_safetensors().load(b))


def _import_safetensors() -> Any:
    return _imported("safetensors.numpy", "a field of several arrays")


def dataframe_to_bytes(df: Any) -> bytes:
    """Return a pandas DataFrame as the bytes of a Parquet file."""
    pandas = _import_pandas()
    if not isinstance(df, pandas.DataFrame):
        raise SchemaError(f"expected a pandas DataFrame, got {type(df).__name__}")
    out = io.BytesIO()
    df.to_parquet(out, engine="pyarrow")
    return out.getvalue()


def bytes_to_dataframe(b: bytes) -> Any:
    """Return the DataFrame of `dataframe_to_bytes`."""
    return _import_pandas().read_parquet(io.BytesIO(b), engine="pyarrow")


def _import_pandas() -> Any:
    return _imported("pandas", "a field of DataFrames")


def _imported(module: str, purpose: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise MissingPackageError(f"{purpose} needs {package}, which is not installed: pip install {package}") from None


FORMAT_SERIALIZERS: Final[dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]]] = {
    "ndarray": (array_to_bytes, bytes_to_array),
    "structured": (structured_to_bytes, bytes_to_structured),
    "sparse": (sparse_to_bytes, bytes_to_sparse),
    "arrow_tensor": (arrow_tensor_to_bytes, bytes_to_arrow_tensor),
    "safetensors": (safetensors_to_bytes, bytes_to_safetensors),
    "dataframe": (dataframe_to_bytes, bytes_to_dataframe),
}
"""Functions to and from bytes, by the kind of a field in a schema."""
