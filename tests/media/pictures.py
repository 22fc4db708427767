"""Pictures and image files for the tests of `media`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(height: int = 37, width: int = 50, channels: int = 3) -> NDArray[np.uint8]:
    """A smooth picture without symmetry, so that lossy formats keep it and turns show."""
    y, x = np.mgrid[0:height, 0:width]
    planes = [255 * y / height, 255 * x / width, 255 * (y + x) / (height + width), 100 + 100 * x / width]
    return np.stack(planes[:channels], -1).astype(np.uint8)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    """The file that Pillow writes."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    """An EXIF block that has nothing but an orientation."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def distance(one: NDArray[Any], other: NDArray[Any]) -> int:
    """The largest difference of two images of one shape and dtype."""
    assert one.shape == other.shape and one.dtype == other.dtype
    return int(np.abs(one.astype(int) - other.astype(int)).max())
