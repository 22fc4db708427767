"""Steps that make images one size: resize, crop, flip, pad.

Steps are plain values. Applied to the size of an image, they give a `Region`: which part of the image is shown, how
large, where on which canvas, mirrored or not. So a chain of steps costs one decoding, at a fraction of the size where
a JPEG file allows it, one resize and one copy. Random steps draw from a generator of the image alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, SchemaError
from shardex.media.image_resize import scale_into

Size = tuple[int, int]


class Region(NamedTuple):
    """What is shown of an image: a box of it, scaled to `size`, placed at `at` on a canvas, then mirrored if `flip`."""

    box: tuple[float, float, float, float]
    """Top, left, bottom and right edge in pixels of the image."""
    size: Size
    at: Size
    canvas: Size
    flip: bool = False
    value: int = 0
    """Of the pixels of the canvas outside of the box."""

    @classmethod
    def whole(cls, height: int, width: int) -> Region:
        """Return the region that is the image itself."""
        return cls((0, 0, height, width), (height, width), (0, 0), (height, width))

    def resized(self, size: Size) -> Region:
        """Return the same box at another size; the canvas must have no padding."""
        return Region(self.box, size, (0, 0), size, self.flip, self.value)

    def cropped(self, top: int, left: int, size: Size) -> Region:
        """Return a window of what is shown."""
        if self.flip:
            left = self.canvas[1] - left - size[1]
        rows, columns = self._cut(0, top, size[0]), self._cut(1, left, size[1])
        box = rows[0], columns[0], rows[1], columns[1]
        return Region(box, (rows[3], columns[3]), (rows[2], columns[2]), size, self.flip, self.value)

    def _cut(self, axis: int, begin: int, length: int) -> tuple[float, float, int, int]:
        """Return edges in the image, place on the canvas and size, along one axis, of what a window shows."""
        low, high = self.box[axis], self.box[axis + 2]
        at, size = self.at[axis], self.size[axis]
        first, end = max(begin, at), min(begin + length, at + size)
        if end <= first:  # the window shows padding only
            return low, low, 0, 0
        scale = (high - low) / size
        return low + (first - at) * scale, low + (end - at) * scale, first - begin, end - first

    def padded(self, size: Size, value: int) -> Region:
        """Return what is shown in the middle of a larger canvas."""
        top, left = (size[0] - self.canvas[0]) // 2, (size[1] - self.canvas[1]) // 2
        if self.flip:
            left = size[1] - self.canvas[1] - left
        return Region(self.box, self.size, (self.at[0] + top, self.at[1] + left), size, self.flip, value)

    def mirrored(self) -> Region:
        """Return what is shown with left and right exchanged."""
        return Region(self.box, self.size, self.at, self.canvas, not self.flip, self.value)

    def min_size(self, height: int, width: int) -> Size:
        """Return the size of a decoded image of this height and width that is enough to show the region."""
        top, left, bottom, right = self.box
        if not self.size[0] or not self.size[1]:
            return 1, 1
        return (
            math.ceil(height * min(1.0, self.size[0] / (bottom - top)) - 1e-6),
            math.ceil(width * min(1.0, self.size[1] / (right - left)) - 1e-6),
        )

    def draw(self, pixels: NDArray[Any], height: int, width: int, out: NDArray[Any], *, nearest: bool = False) -> None:
        """Write the region into `out`; `pixels` are the image of `height` and `width`, maybe decoded at a smaller size.

        `out` has the size of the canvas. With `nearest` every pixel of it is one of the image.
        """
        if self.size != self.canvas:
            out[...] = self.value
        if not self.size[0] or not self.size[1]:
            return
        down, across = pixels.shape[0] / height, pixels.shape[1] / width
        top, left, bottom, right = self.box
        box = top * down, left * across, bottom * down, right * across
        at = self.canvas[1] - self.at[1] - self.size[1] if self.flip else self.at[1]
        scale_into(pixels, box, out, (self.at[0], at, *self.size), self.flip, nearest=nearest)


# -- steps ----------------------------------------------------------------------------------------------------


class ImageStep:
    """One step that changes the size or the part of an image that is shown; see `Resize`, `CenterCrop`, `Flip`, ..."""

    random: ClassVar[bool] = False
    """Whether the step depends on chance."""

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return what is shown after this step."""
        raise NotImplementedError

    @property
    def out_size(self) -> Size | None:
        """Height and width of every image after this step, None if they depend on the image."""
        return None


@dataclass(frozen=True)
class Resize(ImageStep):
    """Scale images: to a height and width, or so that the shorter side has a length.

    Bilinear interpolation with antialiasing, as Pillow and torchvision do; the nearest pixel for the modes "P" and
    "I;16" of `Image`, whose numbers are classes.

    >>> Resize(256), Resize((224, 320))
    (Resize(size=256), Resize(size=(224, 320)))
    """

    size: int | Size

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return the region at the new size."""
        if isinstance(self.size, int):
            height, width = region.canvas
            longer = max(1, int(self.size * max(height, width) / min(height, width)))
            return region.resized((self.size, longer) if height <= width else (longer, self.size))
        return region.resized(_pair(self.size))

    @property
    def out_size(self) -> Size | None:
        """The size, if it is a height and width."""
        return None if isinstance(self.size, int) else _pair(self.size)


@dataclass(frozen=True)
class CenterCrop(ImageStep):
    """Cut a window (height, width), or a square, out of the middle of images; smaller images are an error.

    >>> CenterCrop(224)
    CenterCrop(size=224)
    """

    size: int | Size

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return the window in the middle."""
        down, across = _room(self, region, self.out_size)
        return region.cropped(round(down / 2), round(across / 2), self.out_size)

    @property
    def out_size(self) -> Size:
        """The size of the window."""
        return _pair(self.size)


@dataclass(frozen=True)
class RandomCrop(ImageStep):
    """Cut a window (height, width), or a square, out of a random place of images; smaller images are an error.

    >>> [Pad((40, 40)), RandomCrop(32), Flip()]  # for images of 32 x 32
    [Pad(size=(40, 40), value=0), RandomCrop(size=32), Flip(chance=0.5)]
    """

    size: int | Size
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_size(self, self.size)

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return a window at a random place."""
        down, across = _room(self, region, self.out_size)
        chance = _generator(self, random)
        return region.cropped(int(chance.random() * (down + 1)), int(chance.random() * (across + 1)), self.out_size)

    @property
    def out_size(self) -> Size:
        """The size of the window."""
        return _pair(self.size)


@dataclass(frozen=True)
class RandomResizedCrop(ImageStep):
    """Cut a window of random area, shape and place out of images and scale it to a size.

    The area is a share of the image in the range `scale`, width to height in the range `ratio`, as in torchvision.

    >>> RandomResizedCrop(224)
    RandomResizedCrop(size=224, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333))
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        for name in ("scale", "ratio"):
            low, high = _range(self, name)
            if not 0 < low <= high or (name == "scale" and high > 1):
                raise ArgumentError(f"{self}: expected {name}=(low, high) with 0 < low <= high, got {(low, high)}")

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return a random window, scaled."""
        chance, (height, width) = _generator(self, random), region.canvas
        for _ in range(10):
            area = height * width * _between(chance, *self.scale)
            ratio = math.exp(_between(chance, math.log(self.ratio[0]), math.log(self.ratio[1])))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = int(chance.random() * (height - h + 1)), int(chance.random() * (width - w + 1))
                return region.cropped(top, left, (h, w)).resized(self.out_size)
        # A very long image: the largest window of an allowed shape, from its middle.
        w = max(1, min(width, round(height * self.ratio[1])))
        h = max(1, min(height, round(width / self.ratio[0])))
        return region.cropped((height - h) // 2, (width - w) // 2, (h, w)).resized(self.out_size)

    @property
    def out_size(self) -> Size:
        """The size to which windows are scaled."""
        return _pair(self.size)


@dataclass(frozen=True)
class Flip(ImageStep):
    """Exchange left and right of images, by chance.

    >>> Flip()
    Flip(chance=0.5)
    """

    chance: float = 0.5
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.chance, int | float) or not 0 <= self.chance <= 1:
            raise ArgumentError(f"Flip: expected a chance from 0 to 1, got {self.chance!r}")

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return the region or its mirror image."""
        return region.mirrored() if _generator(self, random).random() < self.chance else region


@dataclass(frozen=True)
class Pad(ImageStep):
    """Put images into the middle of a canvas (height, width) of one value; larger images are an error.

    >>> Pad((640, 640), value=114)
    Pad(size=(640, 640), value=114)
    """

    size: int | Size
    value: int = 0

    def __post_init__(self) -> None:
        _check_size(self, self.size)
        if not isinstance(self.value, int) or not 0 <= self.value <= 255:
            raise ArgumentError(f"Pad: expected a value from 0 to 255, got {self.value!r}")

    def apply(self, region: Region, random: np.random.Generator | None) -> Region:
        """Return the region on the larger canvas."""
        (height, width), (high, wide) = region.canvas, self.out_size
        if height > high or width > wide:
            raise SchemaError(
                f"{self}: expected images of at most {high} x {wide}, found one of {height} x {width}; "
                f"Resize or CenterCrop before it make images smaller"
            )
        return region.padded(self.out_size, self.value)

    @property
    def out_size(self) -> Size:
        """The size of the canvas."""
        return _pair(self.size)


def check_steps(steps: Sequence[Any]) -> tuple[ImageStep, ...]:
    """Return the steps, or raise `ArgumentError` for things that are no step and for an order without meaning."""
    padded = False
    for step in steps:
        if not isinstance(step, ImageStep):
            names = "Resize, CenterCrop, RandomCrop, RandomResizedCrop, Flip, Pad"
            raise ArgumentError(f"expected steps like {names}, got {step!r}")
        if padded and isinstance(step, Resize | RandomResizedCrop | Pad):
            raise ArgumentError(f"expected Pad after all steps that scale, and only one, got {step} after it")
        padded = padded or isinstance(step, Pad)
    return tuple(steps)


def size_after(steps: Sequence[ImageStep]) -> Size | None:
    """Return the height and width that all images have after the steps, or None if they depend on the image.

    >>> size_after([Resize(256), CenterCrop(224), Flip()]), size_after([Resize(256)])
    ((224, 224), None)
    """
    size = None
    for step in steps:
        if not isinstance(step, Flip):
            size = step.out_size
    return size


def region_of(height: int, width: int, steps: Sequence[ImageStep], random: np.random.Generator | None) -> Region:
    """Return what the steps show of an image of this size.

    >>> region_of(400, 600, [Resize(200), CenterCrop(100)], None).box
    (100.0, 200.0, 300.0, 400.0)
    """
    region = Region.whole(height, width)
    for step in steps:
        region = step.apply(region, random)
    return region


def _pair(size: int | Size) -> Size:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _check_size(step: Any, size: object) -> None:
    """Raise `ArgumentError` if a size is neither a positive int nor two of them; a list becomes a tuple."""
    if isinstance(size, list):
        object.__setattr__(step, "size", tuple(size))
        size = tuple(size)
    sides = size if isinstance(size, tuple) and len(size) == 2 else (size,)
    if not all(isinstance(side, int) and not isinstance(side, bool) and side > 0 for side in sides):
        raise ArgumentError(f"{type(step).__name__}: expected a positive int or (height, width) of them, got {size!r}")


def _range(step: Any, name: str) -> tuple[float, float]:
    """Return a field of two numbers; a list becomes a tuple."""
    value = getattr(step, name)
    numbers = isinstance(value, tuple | list) and all(isinstance(one, int | float) for one in value)
    if not numbers or len(value) != 2:
        raise ArgumentError(f"{type(step).__name__}: expected {name}=(low, high), got {value!r}")
    object.__setattr__(step, name, tuple(value))
    return value[0], value[1]


def _room(step: ImageStep, region: Region, size: Size) -> Size:
    """Return by how much what is shown is larger than a window."""
    down, across = region.canvas[0] - size[0], region.canvas[1] - size[1]
    if down < 0 or across < 0:
        raise SchemaError(
            f"{step}: expected images of at least {size[0]} x {size[1]}, "
            f"found one of {region.canvas[0]} x {region.canvas[1]}; Resize or Pad before it make images larger"
        )
    return down, across


def _generator(step: ImageStep, random: np.random.Generator | None) -> np.random.Generator:
    if random is None:
        raise ArgumentError(f"{step} depends on chance: use it in a Loader (decode=...), which has a seed")
    return random


def _between(random: np.random.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(random.random())
