"""The resize kernel: results of Pillow within 1, windows and mirrors, and arguments that it must refuse."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from shardex.media.image_resize import KERNEL, scale_into
from tests.media.pictures import distance, picture

kernel: Any = sys.modules.get("shardex.media._resize")
compiled = pytest.mark.skipif(kernel is None, reason="the resize kernel is not compiled")

sides = st.integers(1, 60)
shares = st.floats(0, 1)


def scaled(pixels: NDArray[Any], box: tuple[float, float, float, float], size: tuple[int, int]) -> NDArray[Any]:
    out = np.zeros((*size, pixels.shape[2]), pixels.dtype)
    scale_into(pixels, box, out, (0, 0, *size), False)
    return out


def by_pillow(pixels: NDArray[Any], box: tuple[float, float, float, float], size: tuple[int, int]) -> NDArray[Any]:
    top, left, bottom, right = box
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    found = image.resize(size[::-1], Image.Resampling.BILINEAR, (left, top, right, bottom))
    return np.asarray(found).reshape(*size, -1)


@given(
    st.tuples(sides, sides), st.tuples(sides, sides), st.tuples(shares, shares, shares, shares), st.sampled_from([1, 3])
)
def test_results_are_those_of_pillow(
    before: tuple[int, int], size: tuple[int, int], edges: tuple[float, float, float, float], channels: int
) -> None:
    pixels = np.random.default_rng(sum(before)).integers(0, 256, (*before, channels), np.uint8)
    top, left = edges[0] * 0.9 * before[0], edges[1] * 0.9 * before[1]
    bottom, right = top + (before[0] - top) * max(0.05, edges[2]), left + (before[1] - left) * max(0.05, edges[3])
    box = top, left, min(bottom, before[0]), min(right, before[1])
    assert distance(scaled(pixels, box, size), by_pillow(pixels, box, size)) <= 1


@pytest.mark.parametrize("size", [(1, 1), (500, 3), (3, 500), (64, 64), (401, 299)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_whole_images(size: tuple[int, int], channels: int) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 300, channels), np.uint8)
    box = 0.0, 0.0, 400.0, 300.0
    assert distance(scaled(pixels, box, size), by_pillow(pixels, box, size)) <= 1


@given(st.integers(0, 255), st.tuples(sides, sides), st.tuples(sides, sides))
def test_one_colour_stays_exactly_that(value: int, before: tuple[int, int], size: tuple[int, int]) -> None:
    for channels in (1, 3):
        pixels = np.full((*before, channels), value, np.uint8)
        assert (scaled(pixels, (0, 0, *before), size) == value).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_window_and_mirror(channels: int, flip: bool) -> None:
    pixels, box = picture(40, 50, channels), (3.5, 2.25, 30.0, 41.0)
    expected = scaled(pixels, box, (20, 17))
    out = np.full((25, 30, channels), 9, np.uint8)
    scale_into(pixels, box, out, (3, 8, 20, 17), flip)
    assert np.array_equal(out[3:23, 8:25], expected[:, ::-1] if flip else expected)
    out[3:23, 8:25] = 9
    assert (out == 9).all(), "nothing outside of the window was written"


def test_memory_with_gaps() -> None:
    pixels = picture(40, 50)
    wide = np.zeros((40, 100, 3), np.uint8)
    wide[:, ::2] = pixels
    assert distance(scaled(wide[:, ::2], (0, 0, 40, 50), (20, 20)), scaled(pixels, (0, 0, 40, 50), (20, 20))) <= 1


@compiled
def test_kernel_is_used_unless_numpy_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, box = np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8), (1.5, 2.5, 80.0, 60.0)
    found = []
    for name in ("c", "pillow"):
        monkeypatch.setattr("shardex.media.image_resize.KERNEL", name)
        found.append(scaled(pixels, box, (31, 33)))
    assert distance(*found) == 1, "the two round differently"
    assert np.array_equal(found[1], by_pillow(pixels, box, (31, 33)))
    assert KERNEL in ("c", "pillow")


@compiled
@pytest.mark.parametrize(
    ("shape", "box", "size", "window"),
    [
        ((10, 10, 2), (0, 0, 10, 10), (5, 5), (0, 0, 5, 5)),  # channels
        ((10, 11, 3), (0, 0, 10, 10), (5, 5), (0, 0, 5, 5)),  # more pixels than the buffer has
        ((9, 10, 3), (0, 0, 9, 10), (5, 5), (0, 0, 5, 5)),  # fewer
        ((10, 10, 3), (-0.1, 0, 10, 10), (5, 5), (0, 0, 5, 5)),  # box outside of the image
        ((10, 10, 3), (0, 0, 10, 10.1), (5, 5), (0, 0, 5, 5)),
        ((10, 10, 3), (5, 0, 5, 10), (5, 5), (0, 0, 5, 5)),  # empty box
        ((10, 10, 3), (0, 0, float("nan"), 10), (5, 5), (0, 0, 5, 5)),
        ((10, 10, 3), (0, 0, float("inf"), 10), (5, 5), (0, 0, 5, 5)),
        ((10, 10, 3), (0, 0, 10, 10), (5, 6), (0, 0, 5, 5)),  # more pixels than the output has
        ((10, 10, 3), (0, 0, 10, 10), (5, 5), (1, 0, 5, 5)),  # window outside of the output
        ((10, 10, 3), (0, 0, 10, 10), (5, 5), (0, -1, 5, 5)),
        ((10, 10, 3), (0, 0, 10, 10), (5, 5), (0, 0, 5, 0)),  # empty window
        ((10, 10, 3), (0, 0, 10, 10), (5, 5), (2**62, 0, 5, 5)),
        ((2**62, 2**62, 3), (0, 0, 10, 10), (5, 5), (0, 0, 5, 5)),
        ((-10, -10, 3), (0, 0, 10, 10), (5, 5), (0, 0, 5, 5)),
    ],
)
def test_kernel_refuses_what_is_not_inside(shape: Any, box: Any, size: Any, window: Any) -> None:
    source, out = np.zeros((10, 10, 3), np.uint8), np.full((5, 5, 3), 7, np.uint8)
    with pytest.raises(ValueError, match="resize: expected images of 1 or 3 channels"):
        kernel.resize(source, shape, box, out, size, window, False)
    assert (out == 7).all()


@compiled
def test_kernel_refuses_other_objects() -> None:
    source, out = np.zeros((10, 10, 3), np.uint8), np.zeros((5, 5, 3), np.uint8)
    good = ((10, 10, 3), (0, 0, 10, 10))
    rest = ((5, 5), (0, 0, 5, 5), False)
    with pytest.raises(TypeError):
        kernel.resize("text", *good, out, *rest)
    with pytest.raises((TypeError, ValueError, BufferError)):
        kernel.resize(source, *good, bytes(75), *rest)
    with pytest.raises((ValueError, BufferError)):
        kernel.resize(source[:, ::2], *good, out, *rest)
    with pytest.raises(TypeError):
        kernel.resize(source, *good, out, (5,), (0, 0, 5, 5), False)
