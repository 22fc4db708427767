"""Many images at once: decoded in threads, straight into the memory of the batch.

simplejpeg and Pillow release the GIL while they decode. `decode_threads` has the threads, `images` decodes one image.
"""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import FormatError, ShardexError
from shardex.kernel import Masked, Ragged, ends_of, pooled_empty, with_missing
from shardex.media.decode_threads import Generators, decode_threads, for_each, numbered, release_memory
from shardex.media.image_files import MAX_PIXELS, Buffer
from shardex.media.image_steps import ImageStep, Region, check_steps, region_of, size_after
from shardex.media.images import CHANNELS, NUMBERS, OpenImage, check_mode, decode_usual_jpeg


def decode_images(
    values: Sequence[Buffer | None],
    *,
    mode: str | None = "RGB",
    steps: Sequence[ImageStep] = (),
    generators: Generators | None = None,
    threads: int | None = None,
    max_pixels: int = MAX_PIXELS,
) -> NDArray[Any] | Ragged | Masked | list[Any]:
    """Decode many image files.

    Images of one size are returned as one array (number, height, width, channels), images of different sizes as a
    `Ragged` array with their shapes, as a list if even their dtypes differ. None is a missing image (`Masked`).

    :param mode: as for `decode_image`
    :param steps: what is done to each image: resize, crop, flip, pad
    :param generators: random generators for random steps: one for each value, or a function of its number, which is
        called in any thread and in any order
    :param threads: how many threads work; by default those of `shardex.kernel.threads`
    :raises ShardexError: a `FormatError`, or what a step raises, with the number of the image as the attribute `index`

    >>> decode_images([], mode="L").shape
    (0, 0, 0, 1)
    """
    check_mode(mode)
    job = _Job(values, mode, check_steps(steps), generators, max_pixels, threads or decode_threads())
    mask = np.array([value is not None for value in values], np.bool_)
    numbers = range(len(values)) if mask.all() else np.flatnonzero(mask).tolist()
    try:
        found = job.run(numbers)
    except ShardexError as error:
        release_memory(error)
        raise
    return found if mask.all() else with_missing(found, mask)


@cache
def most_bytes() -> int:
    """Return how many bytes the images of one batch may have: half of the memory that this process may take."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return (memory if limit == resource.RLIM_INFINITY else min(memory, limit)) // 2


class _Job:
    """One call of `decode_images`."""

    def __init__(
        self,
        values: Sequence[Buffer | None],
        mode: str | None,
        steps: tuple[ImageStep, ...],
        generators: Generators | None,
        max_pixels: int,
        threads: int,
    ) -> None:
        self.values, self.mode, self.steps, self.max_pixels, self.threads = values, mode, steps, max_pixels, threads
        self.generators = generators if callable(generators) or generators is None else generators.__getitem__
        self._regions: dict[int, Region] = {}
        self._opened: dict[int, OpenImage] = {}
        self._bytes, self._lock = 0, threading.Lock()

    def _reserve(self, number: int, size: int) -> None:
        """Count the bytes of decoded images; raise before they are more than memory has."""
        with self._lock:
            self._bytes += size
            if self._bytes > (most := most_bytes()):
                error = FormatError(
                    f"expected at most {most:,} bytes of decoded images at once (half of the memory), got "
                    f"{self._bytes:,} with this one of {len(self.values)} images; read fewer at a time, or "
                    "make them smaller with steps such as Resize"
                )
                raise numbered(error, number)

    def run(self, numbers: Sequence[int]) -> NDArray[Any] | Ragged | list[Any]:
        """Decode the images of these numbers."""
        size = size_after(self.steps)
        if not numbers:
            channels, dtype = CHANNELS.get(self.mode or "RGB", 1), NUMBERS.get(self.mode or "RGB", np.dtype(np.uint8))
            return np.empty((0, *(size or (0, 0)), channels), dtype)
        shape = self._common_shape(numbers, size)
        if shape is None:
            return self._of_many_sizes(numbers)
        each = math.prod(shape)
        self._reserve(numbers[min(most_bytes() // max(1, each), len(numbers) - 1)], each * len(numbers))
        batch = pooled_empty((len(numbers), *shape), np.uint8)
        others: dict[int, NDArray[Any]] = {}

        def decode(row: int) -> None:
            pixels = self._decode(numbers[row], batch[row])
            if pixels is not None:
                others[row] = pixels

        try:
            self._for_each(decode, numbers)
        except BaseException:
            batch = np.empty(0, np.uint8)  # the traceback keeps `decode`, and so the batch
            raise
        return _joined([others.get(row, batch[row]) for row in range(len(numbers))]) if others else batch

    def _common_shape(self, numbers: Sequence[int], size: tuple[int, int] | None) -> tuple[int, int, int] | None:
        """Return the shape that all images seem to have, judged by the first and the last one, or None."""
        if size is not None and self.mode in CHANNELS:
            return (*size, CHANNELS[self.mode])
        first, last = (self._shape(number) for number in (numbers[0], numbers[-1]))
        return first if first == last else None

    def _shape(self, number: int) -> tuple[int, int, int] | None:
        """Return the shape of an image after the steps if it is uint8, from its header."""
        try:
            image = self._opened[number] = self._open(number)
            shape = image.shape(self.mode)
            if shape is None or not self.steps:
                return shape
            return (*self._region(number, shape[0], shape[1]).canvas, shape[2])
        except ShardexError as error:
            numbered(error, number)
            raise

    def _open(self, number: int) -> OpenImage:
        """Return an image whose header is read; it is kept no longer than until it is decoded."""
        if self._opened and (image := self._opened.pop(number, None)):
            return image
        return OpenImage(self.values[number], self.max_pixels)  # type: ignore[arg-type]  # None is not among `numbers`

    def _region(self, number: int, height: int, width: int) -> Region:
        """Return what the steps show of an image; its chances are drawn once."""
        if number not in self._regions:
            generator = self.generators(number) if self.generators else None
            self._regions[number] = region_of(height, width, self.steps, generator)
        return self._regions[number]

    def _of_many_sizes(self, numbers: Sequence[int]) -> NDArray[Any] | Ragged | list[Any]:
        """Decode images whose sizes differ: into one buffer if their headers tell all sizes."""
        shapes = [self._shape(number) for number in numbers]
        found = [shape for shape in shapes if shape is not None]
        if len(found) < len(shapes):
            arrays: list[Any] = [None] * len(numbers)

            def decode_alone(row: int) -> None:
                arrays[row] = self._decode(numbers[row], None)

            self._for_each(decode_alone, numbers)
            return _joined(arrays)
        sizes = [math.prod(shape) for shape in found]
        self._reserve(numbers[int(np.argmax(sizes))], sum(sizes))
        ends = ends_of(sizes)
        flat = pooled_empty((int(ends[-1]),), np.uint8)

        def decode(row: int) -> None:
            self._decode(numbers[row], flat[ends[row] : ends[row + 1]].reshape(found[row]))

        try:
            self._for_each(decode, numbers)
        except BaseException:
            flat = np.empty(0, np.uint8)  # the traceback keeps `decode`, and so the batch
            raise
        return Ragged.from_values(flat, ends, shapes=np.array(found, np.int64))

    def _decode(self, number: int, out: NDArray[Any] | None) -> NDArray[Any] | None:
        """Decode an image into `out`; return it as an array of its own if it does not fit there."""
        if out is not None and self.mode in CHANNELS and not self.steps and number not in self._opened:
            data = self.values[number]
            if data is not None and decode_usual_jpeg(data, self.mode, out):
                return None
        image = self._open(number)
        if not self.steps:
            known = image.shape(self.mode)
            fits = out is not None and known == out.shape
            if not fits:
                self._reserve(number, math.prod(known or (image.info.height, image.info.width, 2)))
            pixels = image.decode(self.mode, None, out if fits else None)
            return None if fits else pixels
        height, width = image.info.height, image.info.width
        region = self._region(number, height, width)
        nearest = self.mode in NUMBERS
        pixels = image.decode(self.mode, None if nearest else region.min_size(height, width), None)
        shape = (*region.canvas, pixels.shape[2])
        fits = out is not None and (shape, pixels.dtype) == (out.shape, out.dtype)
        if not fits:
            self._reserve(number, math.prod(shape) * pixels.itemsize)
        target = out if fits and out is not None else np.empty(shape, pixels.dtype)
        region.draw(pixels, height, width, target, nearest=nearest)
        return None if fits else target

    def _for_each(self, function: Callable[[int], None], numbers: Sequence[int]) -> None:
        def decode(row: int) -> None:
            try:
                function(row)
            except MemoryError as error:
                raise FormatError("expected memory to decode this image and those around it, got none") from error

        for_each(decode, numbers, self.threads)


def _joined(arrays: Sequence[NDArray[Any]]) -> NDArray[Any] | Ragged | list[Any]:
    """Return arrays as one column: stacked, or with their shapes, or a list if their dtypes differ."""
    if len({array.dtype for array in arrays}) > 1:
        return list(arrays)
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return Ragged.from_arrays(arrays, shaped=True)
