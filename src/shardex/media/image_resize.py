"""Scales a box of an image into a window of another one, by bilinear interpolation with antialiasing.

The C kernel (`_resize.c`) writes straight into the memory of a batch and takes a quarter of the time of Pillow. Pillow
does the work where the kernel is not compiled (or with ``SHARDEX_KERNEL=numpy``), and for transparency and more than
8 bits. Results of the two differ by at most 1.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.media.image_files import pillow_image

_resize: Any
try:
    from shardex.media import _resize  # type: ignore[attr-defined,no-redef]
except ImportError:  # no C compiler
    _resize = None

KERNEL = "pillow" if _resize is None or os.environ.get("SHARDEX_KERNEL") == "numpy" else "c"
"""What scales images of 8 bits without transparency: ``"c"`` or ``"pillow"``."""

_MAX_SIDE = 1 << 20
"""The kernel scales no longer images."""

Box = tuple[float, float, float, float]


def scale_into(
    pixels: NDArray[Any],
    box: Box,
    out: NDArray[Any],
    window: tuple[int, int, int, int],
    flip: bool,
    *,
    nearest: bool = False,
) -> None:
    """Scale the box (top, left, bottom, right) of an image into a window (top, left, height, width) of `out`.

    :param flip: exchange left and right of what is written
    :param nearest: take the nearest pixel instead of interpolating

    >>> out = np.zeros((2, 3, 1), np.uint8)
    >>> scale_into(np.array([[[0], [8]], [[0], [8]]], np.uint8), (0, 0, 2, 2), out, (0, 1, 2, 2), True)
    >>> out[..., 0].tolist()
    [[0, 8, 0], [0, 8, 0]]
    """
    top, left, height, width = window
    box = box[0], box[1], min(box[2], float(pixels.shape[0])), min(box[3], float(pixels.shape[1]))
    if _is_copy(box, (height, width)):
        shown = pixels[round(box[0]) : round(box[2]), round(box[1]) : round(box[3])]
    elif nearest:
        rows, columns = _nearest(box[0], box[2], height), _nearest(box[1], box[3], width)
        shown = pixels[rows[:, None], columns]
    elif _fits_kernel(pixels, out):
        _resize.resize(pixels, pixels.shape, box, out, out.shape[:2], window, flip)
        return
    else:
        shown = _scaled_by_pillow(pixels, box, (height, width))
    out[top : top + height, left : left + width] = shown[:, ::-1] if flip else shown


def _is_copy(box: Box, size: tuple[int, int]) -> bool:
    """Return True if a box begins and ends between pixels and has the size already."""
    whole = all(abs(edge - round(edge)) < 1e-6 for edge in box)
    return whole and (round(box[2] - box[0]), round(box[3] - box[1])) == size


def _nearest(begin: float, end: float, count: int) -> NDArray[np.int64]:
    """Return the pixels below the middles of `count` equal parts of an edge, as Pillow chooses them.

    >>> _nearest(0, 5, 3).tolist(), _nearest(2, 4, 4).tolist()
    ([0, 2, 4], [2, 2, 3, 3])
    """
    middles = begin + (np.arange(count, dtype=np.float64) + 0.5) * ((end - begin) / count)
    return np.asarray(middles, np.float64).astype(np.int64)


def _fits_kernel(pixels: NDArray[Any], out: NDArray[Any]) -> bool:
    """Return True if the C kernel scales images like these."""
    if KERNEL != "c" or pixels.shape[2] not in (1, 3) or not pixels.dtype == out.dtype == np.uint8:
        return False
    return pixels.flags.c_contiguous and out.flags.c_contiguous and max(pixels.shape + out.shape) <= _MAX_SIDE


def _scaled_by_pillow(pixels: NDArray[Any], box: Box, size: tuple[int, int]) -> NDArray[Any]:
    """Return a box of an image at another size."""
    top, left, bottom, right = box
    # Pixels near the box take part in the interpolation, those farther away need not be copied into a PIL image.
    sides = (bottom - top, size[0]), (right - left, size[1])
    far_y, far_x = (2 + math.ceil(max(1.0, shown / length)) for shown, length in sides)
    above, before = max(0, math.floor(top) - far_y), max(0, math.floor(left) - far_x)
    near = pixels[above : math.ceil(bottom) + far_y, before : math.ceil(right) + far_x]
    inside = left - before, top - above, min(right - before, near.shape[1]), min(bottom - above, near.shape[0])
    pil = pillow_image()
    planes = near[..., 0] if near.shape[2] == 1 else near
    if pixels.dtype == np.uint8:
        shown = np.asarray(pil.fromarray(planes).resize(size[::-1], pil.Resampling.BILINEAR, inside))
    else:  # one channel of more than 8 bits
        deep = pil.fromarray(planes.astype(np.float32)).resize(size[::-1], pil.Resampling.BILINEAR, inside)
        shown = np.asarray(deep) if pixels.dtype.kind == "f" else np.rint(deep).astype(pixels.dtype)
    return shown if shown.ndim == 3 else shown[..., None]
