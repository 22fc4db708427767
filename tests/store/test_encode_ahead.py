"""Media encoded in threads ahead of the writer: the same bytes as without, whatever the generator does meanwhile."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import shardex as sx
from shardex.errors import SchemaError
from shardex.features import Features
from shardex.media import decode_image
from shardex.store.encode_ahead import encode_ahead

IMAGE = {"image": sx.Image(None, decode=False), "n": int}


def pixels(n: int, size: int = 8) -> Any:
    return (np.arange(size * size * 3).reshape(size, size, 3) * (n + 1) % 256).astype(np.uint8)


def one_array(count: int, folder: str) -> Iterator[Any]:
    """The same array again and again."""
    shared = np.empty((8, 8, 3), np.uint8)
    for n in range(count):
        shared[:] = pixels(n)
        yield {"image": shared, "n": n}


def one_buffer(count: int, folder: str) -> Iterator[Any]:
    """The same buffer again and again."""
    data = [io.BytesIO() for _ in range(count)]
    for n, file in enumerate(data):
        PIL.Image.fromarray(pixels(n)).save(file, "png")
    shared = bytearray(max(len(one.getvalue()) for one in data))
    for n, file in enumerate(data):
        shared[: len(file.getvalue())] = file.getvalue()
        yield {"image": memoryview(shared)[: len(file.getvalue())], "n": n}


def closed_files(count: int, folder: str) -> Iterator[Any]:
    """Files that are closed, replaced and removed when the generator goes on."""
    path = Path(folder) / "image.jpg"
    for n in range(count):
        PIL.Image.fromarray(pixels(n)).save(path)
        with PIL.Image.open(path) as image:
            yield {"image": image, "n": n}
    path.unlink()


def removed_paths(count: int, folder: str) -> Iterator[Any]:
    path = Path(folder) / "image.webp"
    for n in range(count):
        PIL.Image.fromarray(pixels(n)).save(path)
        yield {"image": str(path) if n % 2 else {"bytes": None, "path": str(path)}, "n": n}
        path.unlink()


def one_pil_image(count: int, folder: str) -> Iterator[Any]:
    """An image in memory that changes."""
    image = PIL.Image.new("L", (8, 8))
    for n in range(count):
        image.paste(n, (0, 0, 8, 8))
        yield {"image": image, "n": n}


def files_in_memory(count: int, folder: str) -> Iterator[Any]:
    for n in range(count):
        with io.BytesIO() as file:
            PIL.Image.fromarray(pixels(n)).save(file, "gif")
            with PIL.Image.open(file) as image:
                yield {"image": image, "n": n}


@pytest.mark.parametrize(
    "generator", [one_array, one_buffer, closed_files, removed_paths, one_pil_image, files_in_memory]
)
def test_the_same_bytes_with_and_without_workers(
    tmp_path: Path, generator: Callable[[int, str], Iterator[Any]]
) -> None:
    caches = []
    for workers in (1, 3):
        made = functools.partial(generator, 70, str(tmp_path))
        caches.append(sx.cache(made, IMAGE, tmp_path / f"{workers}", workers=workers))
    for one, three in zip(*caches, strict=True):
        assert (one.n, one.image) == (three.n, three.image)
    assert len({sample.image for sample in caches[1]}) == 70
    assert [sample.n for sample in caches[1]] == list(range(70))
    if generator is one_array:
        np.testing.assert_array_equal(decode_image(caches[1][69].image, None), pixels(69))


def one_sound(count: int) -> Iterator[Any]:
    shared = np.zeros((100, 2), np.float32)
    for n in range(count):
        shared[:] = n / count
        yield {"sound": (shared, 8000) if n % 2 else {"array": shared, "sampling_rate": 8000}}


def test_sounds(tmp_path: Path) -> None:
    fields = {"sound": sx.Audio(decode=False)}
    one, three = (sx.cache(lambda: one_sound(70), fields, tmp_path / f"{n}", workers=n) for n in (1, 3))
    assert [sample.sound for sample in one] == [sample.sound for sample in three]
    assert len({sample.sound for sample in three}) == 70


@pytest.mark.parametrize("workers", [1, 2])
def test_an_image_that_does_not_fit(tmp_path: Path, workers: int) -> None:
    def wrong(value: Any) -> list[dict[str, Any]]:
        return [{"image": pixels(n) if n != 40 else value, "n": n} for n in range(90)]

    for value, words in (
        (np.zeros((2, 2, 3)), "got float64 of shape"),
        (b"no image", "expected an image"),
        (str(tmp_path / "none.png"), "cannot read the image"),
        (None, "got none"),
        (3, "got int"),
    ):
        with pytest.raises(SchemaError, match=rf"{words}(.|\n)* - at sample 40, field image"):
            sx.cache(wrong(value), IMAGE, tmp_path / "c", workers=workers, fingerprint="")
    with pytest.raises(SchemaError, match=r"field n"):
        sx.cache([{"image": pixels(0), "n": "text"}], IMAGE, tmp_path / "c", workers=workers)
    with pytest.raises(SchemaError, match=r"field image"):
        sx.cache([{"n": 1}], IMAGE, tmp_path / "c", workers=workers)
    assert os.listdir(tmp_path) == []


def test_optional_images(tmp_path: Path) -> None:
    fields = {"image": sx.Optional(sx.Image(decode=False)), "n": int}
    samples = [{"image": None, "n": 0}, {"n": 1}, {"image": pixels(2), "n": 2}]
    ds = sx.cache(samples, fields, tmp_path / "c", workers=2)
    assert [sample.image is None for sample in ds] == [True, True, False]


def test_few_samples_are_made_ahead() -> None:
    """Memory does not grow with the number of samples."""
    made = 0

    def samples() -> Iterator[dict[str, Any]]:
        nonlocal made
        for made in range(1, 200):
            yield {"image": np.zeros((600, 600, 3), np.uint8), "n": made}

    for taken, _ in enumerate(encode_ahead(samples(), Features.of(IMAGE), 2), 1):
        assert made - taken <= 2 * 2 * 4, "expected two images, about 2 MiB, for each of some groups"
    assert made == 199


def test_fewer_large_samples_are_made_ahead() -> None:
    """Not some groups for each worker, if a group of one sample is large."""
    made = 0

    def samples() -> Iterator[dict[str, Any]]:
        nonlocal made
        for made in range(1, 12):
            yield {"image": np.zeros((4000, 4000, 3), np.uint8), "n": made}

    for taken, one in enumerate(encode_ahead(samples(), Features.of(IMAGE), 2), 1):
        assert one["n"] == taken and made - taken <= 2, "expected about one image of 48 MB for each worker"
    assert made == 11


def test_without_media_nothing_is_made_ahead() -> None:
    made = iter(range(100))
    first = next(encode_ahead(({"n": n} for n in made), Features.of({"n": int}), 4))
    assert first == {"n": 0} and next(made) == 1
