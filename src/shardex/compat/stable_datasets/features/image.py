"""Feature of images, stored as the bytes of a PNG, JPEG or other file."""

from __future__ import annotations

import importlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardex import features as core
from shardex.compat.stable_datasets.features.base import FeatureType, tensor_of
from shardex.errors import FormatError, storage_errors
from shardex.media import decode_image, image_info


class Image(FeatureType):
    """An image. Arrays that are written are encoded as `encode_format`; bytes, files and PIL images keep their format.

    ``Image()`` is that of document 004, with its fingerprint; with `encode_format` it is that of newer versions.

    >>> image = Image(); data = image.encode(np.zeros((4, 6, 3), np.uint8))
    >>> data[:4], image.format(data, format_type="default").size, image.format(data, format_type="numpy").shape
    (b'\\x89PNG', (6, 4), (4, 6, 3))
    """

    encode_format: str

    def __init__(self, encode_format: str | None = None) -> None:
        self.encode_format = "PNG" if encode_format is None else encode_format
        self._is_newest = encode_format is not None
        self.core  # noqa: B018 - refuses a format that is not known

    @property
    def core(self) -> core.Feature:
        """The image, decoded to the channels of its file."""
        return core.Image(None, format=self.encode_format.lower())

    def to_arrow_type(self) -> pa.DataType:
        """Return bytes of any size."""
        return pa.large_binary()

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> bytes | None:
        """Return the bytes of an image: given bytes and files as they are, PIL images and arrays encoded."""
        if value is None:
            return None
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str | os.PathLike):
            path = os.fspath(value)
            with storage_errors(path, "read the image"), open(path, "rb") as file:
                return file.read()
        encoded: bytes = self.core.fit(value)
        return encoded

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return a PIL image; an array of height, width and channels; or a tensor of channels first, from 0 to 1.

        An array of a grey image has no axis for channels. Arrays and tensors are upright as the EXIF orientation says.
        """
        if value is None or format_type == "raw" or not decode_images:
            return value
        if format_type not in ("numpy", "torch"):
            return _pil_image(value)
        pixels = decode_image(value, None)
        if format_type == "numpy":
            return pixels[..., 0] if pixels.shape[-1] == 1 else pixels
        most = np.iinfo(pixels.dtype).max if pixels.dtype != np.bool_ else 1
        return tensor_of(np.ascontiguousarray(pixels.transpose(2, 0, 1), np.float32) / np.float32(most))

    def texts(self) -> tuple[str, str]:
        """Return the texts without and with the option, which early versions did not have."""
        return "Image()", f"Image(encode_format='{self.encode_format}')"

    def __repr__(self) -> str:
        return self.texts()[self._is_newest]


def _pil_image(data: bytes) -> Any:
    """Return a file as a PIL image, with the pixels, the mode and the format that the file has."""
    form = image_info(data).format  # and no plugin of PIL for another format sees the bytes
    try:
        image = importlib.import_module("PIL.Image").open(io.BytesIO(data), formats=(form.upper(),))
        image.load()
    except Exception as error:  # plugins raise anything: SyntaxError, struct.error, EOFError, ...
        raise FormatError(f"expected a valid {form} image, got {len(data)} bytes: {error}") from error
    return image
