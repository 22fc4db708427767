"""Base class of features, and the features of numbers, texts, classes and lists."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardex import features as core
from shardex.errors import MissingExtraError, SchemaError
from shardex.features import features_of_arrow

_TYPES: dict[str, pa.DataType] = {
    **{name: pa.from_numpy_dtype(np.dtype(name)) for name in core.dtypes.SCALARS},
    "string": pa.string(),
    "binary": pa.binary(),
}
_SHOWN_NAMES = 5
"""With more names than this, the text of a `ClassLabel` has only their number."""


class UnknownClassError(SchemaError, KeyError):
    """A name or a number that no class of a `ClassLabel` has."""

    def __str__(self) -> str:
        return str(self.args[0])


class FeatureType:
    """What a column holds. Subclasses say how values are stored in Arrow, and in which form they are returned."""

    @property
    def core(self) -> core.Feature:
        """The feature of shardex that describes the same values; of a user's own class, that of its Arrow type."""
        return features_of_arrow(pa.schema([("value", self.to_arrow_type())]))["value"]

    def to_arrow_type(self) -> pa.DataType:
        """Return the Arrow type of the column."""
        raise NotImplementedError(f"{type(self).__name__} has no Arrow type")

    def arrow_metadata(self) -> dict[bytes, bytes]:
        """Return the metadata of the Arrow field: the name of this class."""
        return {b"stable_datasets.feature": type(self).__name__.encode()}

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> Any:
        """Return a value as Arrow stores it; `cache_dir` is the folder in which files of the cache are made."""
        return _python_scalar(value)

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return a stored value in the form "default" (or None), "numpy", "torch" or "raw"."""
        return value

    def fingerprint_data(self) -> str:
        """Return the text that stands for this feature in the fingerprint of a cache."""
        return repr(self)

    def texts(self) -> tuple[str, str]:
        """Return the texts that stand for this feature in early and in the newest versions of stable-datasets."""
        return repr(self), repr(self)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


def _python_scalar(value: Any) -> Any:
    """Return a number of numpy or torch as one of Python, anything else unchanged."""
    is_scalar = hasattr(value, "item") and getattr(value, "ndim", 0) == 0
    return value.item() if is_scalar else value


def tensor_of(value: Any) -> Any:
    """Return an array as a tensor of torch, with its dtype, but float32 for float64, as numbers have."""
    return _torch().from_numpy(value.astype("float32") if value.dtype == "float64" else value)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch", 'the format "torch"') from None
    return torch


def _scalar_tensor(value: Any, format_type: str | None) -> Any:
    if format_type != "torch" or not isinstance(value, int | float):
        return value
    torch = _torch()
    large = isinstance(value, int) and value >> 63 > 0  # only uint64 holds it
    return torch.tensor(value, dtype=torch.uint64) if large else torch.tensor(value)


class Value(FeatureType):
    """A number, a boolean, a text ("string") or bytes ("binary").

    >>> Value("int32"), str(Value("string").to_arrow_type())
    (Value('int32'), 'string')
    """

    dtype: str

    def __init__(self, dtype: str) -> None:
        if dtype not in _TYPES:
            raise SchemaError(f"expected one of the dtypes {', '.join(_TYPES)}, got {dtype!r}")
        self.dtype = dtype

    @property
    def core(self) -> core.Feature:
        """A number, a text or bytes."""
        return {"string": core.Text(), "binary": core.Bytes()}.get(self.dtype) or core.Value(self.dtype)

    def to_arrow_type(self) -> pa.DataType:
        """Return the Arrow type of this name."""
        return _TYPES[self.dtype]

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> Any:
        """Return a value of Python, which stays as it is when the generator fills its buffer again."""
        return bytes(value) if isinstance(value, bytearray | memoryview) else _python_scalar(value)

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return the value; with "torch" a number as a tensor without dimensions."""
        return _scalar_tensor(value, format_type)

    def __repr__(self) -> str:
        return f"Value('{self.dtype}')"


class ClassLabel(FeatureType):
    """One of several classes, stored as its number. With `num_classes` their names are "0", "1", and so on.

    Numbers that no class has are stored too: data sets use -1 for samples without a label.

    >>> label = ClassLabel(names=["cat", "dog"]); label.str2int("dog"), label.int2str(0), label.num_classes
    (1, 'cat', 2)
    """

    names: list[str]
    num_classes: int

    def __init__(self, names: SequenceOf[str] | None = None, num_classes: int | None = None) -> None:
        if names is not None:
            num_classes = None
        self.names = list(core.ClassLabel(names, num_classes).names)
        self.num_classes = len(self.names)

    @property
    def core(self) -> core.Feature:
        """The classes."""
        return core.ClassLabel(self.names)

    def str2int(self, name: str) -> int:
        """Return the number of a class; `KeyError` for a name that no class has."""
        try:
            return self.names.index(name)
        except ValueError:
            names = ", ".join(self.names[:20])
            raise UnknownClassError(f"expected one of the classes {names}, got {name!r}") from None

    def int2str(self, idx: int) -> str:
        """Return the name of a class; `KeyError` for a number that no class has."""
        if not 0 <= idx < self.num_classes:
            raise UnknownClassError(f"expected a class number below {self.num_classes}, got {idx}")
        return self.names[idx]

    def to_arrow_type(self) -> pa.DataType:
        """Return int64."""
        return pa.int64()

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> Any:
        """Return the number of a class, given by its name or number."""
        return self.str2int(value) if isinstance(value, str) else _python_scalar(value)

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return the number of the class; with "torch" as a tensor without dimensions."""
        return _scalar_tensor(value, format_type)

    def __repr__(self) -> str:
        if len(self.names) > _SHOWN_NAMES:
            return f"ClassLabel(num_classes={self.num_classes})"
        return f"ClassLabel(names={self.names})"


class Sequence(FeatureType):
    """A list of values of one feature, of any length.

    >>> Sequence(Sequence(Value("float32"))).format([[1, 2]], format_type="numpy").shape
    (1, 2)
    """

    feature: FeatureType

    def __init__(self, feature: FeatureType) -> None:
        if not isinstance(feature, FeatureType):
            raise SchemaError(f"expected a feature such as Value('int64'), got {feature!r}")
        self.feature = feature

    @property
    def core(self) -> core.Feature:
        """The list."""
        return core.Sequence(self.feature.core)

    def to_arrow_type(self) -> pa.DataType:
        """Return a list of the Arrow type of the items."""
        return pa.list_(self.feature.to_arrow_type())

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> Any:
        """Return the items as a list, each as its feature stores it."""
        if value is None:
            return None
        if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
            raise SchemaError(f"expected a list of {self.feature!r}, got {core.describe(value)}")
        if _is_plain(self.feature) and hasattr(value, "tolist"):
            return value.tolist()
        if isinstance(self.feature, Value) and self.feature.dtype != "binary":
            return list(value)
        return [self.feature.encode(item, cache_dir=cache_dir) for item in value]

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return a list; with "numpy" and "torch" numbers as one array, unless inner lists have different lengths."""
        if value is None or format_type == "raw":
            return value
        if format_type in ("numpy", "torch") and (array := _as_array(value, self)) is not None:
            return tensor_of(array) if format_type == "torch" else array
        if format_type != "torch" and _is_plain(self.feature):
            return value
        options: dict[str, Any] = {"decode_images": decode_images, "cache_dir": cache_dir}
        return [self.feature.format(item, format_type=format_type, **options) for item in value]

    def texts(self) -> tuple[str, str]:
        """Return the texts with those of the items."""
        early, newest = self.feature.texts()
        return f"Sequence({early})", f"Sequence({newest})"

    def __repr__(self) -> str:
        return f"Sequence({self.feature!r})"


def _is_plain(feature: FeatureType) -> bool:
    """Return whether Arrow stores values as they are given."""
    return isinstance(feature, Value) or (isinstance(feature, Sequence) and _is_plain(feature.feature))


def _as_array(value: Any, feature: FeatureType) -> np.ndarray[Any, Any] | None:
    """Return nested lists of numbers as an array; None if they are not of numbers, or not of one shape."""
    while isinstance(feature, Sequence):
        feature = feature.feature
    dtype = "int64" if isinstance(feature, ClassLabel) else getattr(feature, "dtype", "")
    if not isinstance(feature, Value | ClassLabel) or dtype not in core.dtypes.SCALARS:
        return None
    try:
        return np.array(value, dtype)
    except (TypeError, ValueError):
        return None
