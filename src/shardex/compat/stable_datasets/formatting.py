"""Formatters: stored values as the values that a sample has, each by the feature of its column."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from shardex.compat.stable_datasets.backends.arrow_shards import plain
from shardex.compat.stable_datasets.backends.protocol import data_of_table
from shardex.compat.stable_datasets.schema import ClassLabel, Features, FeatureType, Sequence, Value
from shardex.errors import ArgumentError, nearest


class Formatter:
    """Formats rows and tables of stored values; the subclasses say in which form."""

    format_type: ClassVar[str] = "default"

    def __init__(self, features: Features, decode_images: bool = True, cache_dir: Path | None = None) -> None:
        self.features = features
        self.decode_images = decode_images
        self.cache_dir = None if cache_dir is None else Path(cache_dir)
        steps = ((name, self._step(feature)) for name, feature in features.items())
        self._steps: dict[str, Callable[[Any], Any]] = {name: step for name, step in steps if step is not None}

    def format_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row of stored values formatted; columns without a feature stay as they are."""
        found = dict(row)
        for name, step in self._steps.items():
            if name in found:
                found[name] = step(found[name])
        return found

    def format_batch(self, table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the rows of a table of stored values, formatted."""
        return [self.format_row(row) for row in data_of_table(pa.table(table)).read(slice(None)).to_samples()]

    def _step(self, feature: FeatureType) -> Callable[[Any], Any] | None:
        """Return the function that formats values of a column; None if they stay as they are."""
        form = self.format_type
        if isinstance(feature, Value | ClassLabel) and form != "torch":
            return None
        options: Any = {"format_type": form, "decode_images": self.decode_images, "cache_dir": self.cache_dir}
        one = partial(feature.format, **options)
        # Rows of shardex hold lists of numbers as arrays.
        return partial(_after_plain, one) if isinstance(feature, Sequence) and form in ("default", "raw") else one


def _after_plain(format_value: Callable[[Any], Any], value: Any) -> Any:
    return format_value(plain(value))


class PythonFormatter(Formatter):
    """Numbers and lists of Python, PIL images, numpy arrays."""


class RawFormatter(Formatter):
    """Stored values: images and arrays as bytes."""

    format_type = "raw"

    def __init__(self, features: Features, decode_images: bool = False, cache_dir: Path | None = None) -> None:
        super().__init__(features, False, cache_dir)


class TorchFormatter(Formatter):
    """Tensors: images of float32 from 0 to 1 with the channels first, arrays of their own dtype, numbers."""

    format_type = "torch"


class NumpyFormatter(Formatter):
    """Numpy arrays for images, arrays and lists of numbers; numbers and texts of Python."""

    format_type = "numpy"


_FORMATTERS: dict[str | None, type[Formatter]] = {
    None: PythonFormatter,
    "torch": TorchFormatter,
    "numpy": NumpyFormatter,
    "raw": RawFormatter,
}


def get_formatter(
    format_type: str | None, features: Features, decode_images: bool = True, cache_dir: Path | None = None
) -> Formatter:
    """Return the formatter of a format: None, "torch", "numpy" or "raw".

    >>> get_formatter("raw", Features()).format_row({"x": 1})
    {'x': 1}
    """
    if format_type not in _FORMATTERS:
        shown = ", ".join(map(repr, _FORMATTERS))
        raise ArgumentError(f"expected a format out of {shown}, got {format_type!r}{nearest(format_type, _FORMATTERS)}")
    return _FORMATTERS[format_type](features, decode_images, cache_dir)
