"""Many images: into one array, in threads, with errors that carry the number of the image."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.kernel import Masked, Ragged
from shardex.media import (
    CenterCrop,
    Flip,
    Pad,
    RandomResizedCrop,
    Resize,
    decode_image,
    decode_images,
    encode_image,
    image_batches,
)
from tests.media.pictures import picture, saved, turned


def files(count: int, form: str = "jpeg", height: int = 37, width: int = 50) -> list[bytes]:
    return [encode_image((picture(height, width) + 5 * k).astype(np.uint8), form) for k in range(count)]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("form", ["jpeg", "png"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", None])
def test_images_of_one_size_are_stacked(form: str, mode: str | None, threads: int) -> None:
    data = files(20, form)
    batch = decode_images(data, mode=mode, threads=threads)
    assert isinstance(batch, np.ndarray) and batch.flags.writeable
    assert np.array_equal(batch, [decode_image(one, mode) for one in data])


def test_images_of_different_sizes_are_ragged() -> None:
    data = [file for k in range(6) for file in files(2, "jpeg", 20 + k, 30 - k)]
    batch = decode_images(data)
    assert isinstance(batch, Ragged) and batch.shapes is not None
    assert batch.shapes[:, :2].tolist() == [[20 + k // 2, 30 - k // 2] for k in range(12)]
    for found, one in zip(batch, data, strict=True):
        assert np.array_equal(found, decode_image(one))


def test_a_different_size_among_equal_ones_is_found() -> None:
    data = files(9)
    data[4] = saved(Image.fromarray(picture()), "JPEG", exif=turned(6))
    batch = decode_images(data, threads=2)
    assert isinstance(batch, Ragged)
    assert [one.shape for one in batch] == [(50, 37, 3) if k == 4 else (37, 50, 3) for k in range(9)]
    for found, one in zip(batch, data, strict=True):
        assert np.array_equal(found, decode_image(one))


@pytest.mark.parametrize("odd", [(20, 30), (50, 37), (74, 25), (60, 60)])
def test_smaller_and_larger_images_among_equal_ones_are_found(odd: tuple[int, int]) -> None:
    data = [*files(3), *files(1, "jpeg", *odd), *files(3), saved(Image.fromarray(picture()).convert("CMYK"), "JPEG")]
    batch = decode_images([*data, data[0]])
    assert isinstance(batch, Ragged)
    for found, one in zip(batch, [*data, data[0]], strict=True):
        assert np.array_equal(found, decode_image(one))


def test_channels_and_dtypes_of_the_files() -> None:
    grey, colour, deep = (encode_image(picture(channels=n)) for n in (1, 3, 1))
    deep = encode_image(picture(channels=1).astype(np.uint16) * 257)
    batch = decode_images([grey, colour, grey], mode=None)
    assert isinstance(batch, Ragged) and [one.shape[2] for one in batch] == [1, 3, 1]
    column = decode_images([grey, deep], mode=None)
    assert isinstance(column, list) and [one.dtype for one in column] == [np.uint8, np.uint16]
    stacked = decode_images([deep, deep], mode=None)
    assert isinstance(stacked, np.ndarray) and stacked.dtype == np.uint16
    small = decode_images([deep, deep], mode=None, steps=[Resize((10, 12))])
    assert isinstance(small, np.ndarray) and small.dtype == np.uint16 and small.shape == (2, 10, 12, 1)
    assert small.max() > 60000


def test_missing_images() -> None:
    one, two = files(2)
    batch = decode_images([None, one, None, two])
    assert isinstance(batch, Masked)
    assert batch.mask.tolist() == [False, True, False, True]
    assert np.array_equal(batch[1], decode_image(one)) and np.array_equal(batch[3], decode_image(two))
    assert not batch.values[0].any()
    none = decode_images([None, None], steps=[CenterCrop(8)])
    assert isinstance(none, Masked) and none.values.shape == (2, 8, 8, 3)
    nothing = decode_images([], steps=[CenterCrop(8)])
    assert isinstance(nothing, np.ndarray) and nothing.shape == (0, 8, 8, 3)


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("broken", [(0,), (19,), (7, 3, 12)])
def test_error_carries_the_number_of_the_first_broken_image(threads: int, broken: tuple[int, ...]) -> None:
    data = files(20)
    for k in broken:
        data[k] = data[k][:400]
    with pytest.raises(FormatError, match="expected a valid jpeg image") as caught:
        decode_images(data, threads=threads)
    assert caught.value.index == min(broken)  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(caught.value)).index == min(broken)
    with pytest.raises(FormatError) as caught:
        decode_images([None, *data], steps=[Resize((8, 8))], threads=threads)
    assert caught.value.index == min(broken) + 1  # type: ignore[attr-defined]


def test_errors_of_steps_and_limits_carry_the_number() -> None:
    data = [*files(3), *files(1, "jpeg", 60, 60)]
    with pytest.raises(SchemaError, match=r"Pad.*at most 50 x 50, found one of 60 x 60") as caught:
        decode_images(data, steps=[Pad(50)])
    assert caught.value.index == 3  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match="max_pixels") as limited:
        decode_images(data, steps=[Resize((5, 5))], max_pixels=2000)
    assert limited.value.index == 3  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="depends on chance: use it in a Loader"):
        decode_images(data, steps=[Flip()])


@pytest.mark.parametrize("sizes", [[40] * 9, [10, 40, 40, 11], [10, 40, 40, 40, 10], [10, 20, 40, 20, 20, 11]])
@pytest.mark.parametrize("mode", ["RGB", None])
def test_more_bytes_than_memory_has_are_refused(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], mode: str | None
) -> None:
    data = [encode_image(picture(size, size)) for size in sizes]
    monkeypatch.setattr(image_batches, "most_bytes", lambda: 6000)
    with pytest.raises(FormatError, match="expected at most 6,000 bytes of decoded images at once") as caught:
        decode_images(data, mode=mode)
    assert sizes[caught.value.index] == 40  # type: ignore[attr-defined]
    small = decode_images(data, mode=mode, steps=[Resize((10, 10))])
    assert isinstance(small, np.ndarray) and small.shape == (len(sizes), 10, 10, 3)
    assert len(decode_images([data[0]], mode=mode)) == 1


def test_random_steps_depend_on_the_generator_of_the_image_alone() -> None:
    data = [file for k in range(4) for file in files(2, "jpeg", 60 + 8 * k, 90)]

    def generator(k: int) -> np.random.Generator:
        return np.random.default_rng(k)

    for steps in ([RandomResizedCrop(24), Flip()], [Resize(30), Flip()]):
        expected = list(decode_images(data, steps=steps, generators=generator, threads=1))
        for threads in (1, 4):
            every = decode_images(data, steps=steps, generators=[generator(k) for k in range(8)], threads=threads)
            assert all(map(np.array_equal, every, expected))
        for k in range(8):
            alone = decode_images([data[k]], steps=steps, generators=[generator(k)])
            assert np.array_equal(alone[0], expected[k])


# -- threads --------------------------------------------------------------------------------------------------


def test_import_and_one_thread_start_no_threads() -> None:
    code = """
import threading, numpy as np
from shardex.media import decode_images, encode_image
data = [encode_image(np.zeros((8, 8, 3), np.uint8), "jpeg")] * 8
decode_images(data, threads=1)
print(threading.active_count())
decode_images(data, threads=3)
print(threading.active_count() > 1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\nTrue\n"


def test_a_forked_child_decodes() -> None:
    code = """
import os, sys, warnings, numpy as np
from shardex.media import decode_images, encode_image
warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads
data = [encode_image(np.full((64, 64, 3), k, np.uint8), "jpeg") for k in range(32)]
expected = decode_images(data, threads=4)
for _ in range(5):
    if not (child := os.fork()):
        os._exit(0 if np.array_equal(decode_images(data, threads=4), expected) else 3)
    assert os.waitpid(child, 0)[1] == 0
print(np.array_equal(decode_images(data, threads=4), expected))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_many_threads_decode_at_the_same_time() -> None:
    data = files(40)
    expected = np.asarray(decode_images(data, threads=1))
    with ThreadPoolExecutor(6) as pool:
        for batch in pool.map(lambda _: np.asarray(decode_images(data, threads=4)), range(12)):
            assert np.array_equal(batch, expected)


def test_decoding_while_the_interpreter_exits() -> None:
    code = """
import atexit, numpy as np
from shardex.media import decode_images, encode_image
data = [encode_image(np.zeros((8, 8, 3), np.uint8), "jpeg")] * 8
atexit.register(lambda: print(decode_images(data, threads=3).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(8, 8, 8, 3)\n"
    assert not done.stderr


def test_pool_is_shared() -> None:
    before = threading.active_count()
    for _ in range(20):
        decode_images(files(4), threads=2)
    assert threading.active_count() <= max(before, 2) + 8
