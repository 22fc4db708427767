"""Steps: what they show of an image, compared with the same operations of Pillow one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps

from shardex.errors import ArgumentError, SchemaError
from shardex.media import (
    CenterCrop,
    Flip,
    ImageStep,
    Pad,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    check_steps,
    decode_image,
    decode_images,
    encode_image,
    size_after,
)
from shardex.media.image_steps import Region, region_of
from tests.media.pictures import distance, picture, saved, turned

BILINEAR = Image.Resampling.BILINEAR


def shown(array: NDArray[Any], *steps: ImageStep, seed: int = 0, form: str = "png") -> NDArray[Any]:
    """The image after the steps."""
    generators = [np.random.default_rng(seed)]
    batch = decode_images([encode_image(array, form)], mode=None, steps=steps, generators=generators)
    return np.asarray(batch[0])


def pil(array: NDArray[Any]) -> Image.Image:
    return Image.fromarray(array)


@pytest.mark.parametrize("form", ["png", "jpeg"])
@pytest.mark.parametrize("size", [(224, 224), (300, 400), (61, 47), (13, 500)])
def test_resize_agrees_with_pillow(size: tuple[int, int], form: str) -> None:
    array = picture(300, 400)
    expected = np.asarray(pil(array).resize(size[::-1], BILINEAR))
    assert distance(shown(array, Resize(size), form=form), expected) <= (1 if form == "png" else 6)


@pytest.mark.parametrize(
    ("height", "width", "size"), [(300, 400, (90, 120)), (401, 300, (120, 90)), (50, 50, (90, 90))]
)
def test_resize_of_the_shorter_side(height: int, width: int, size: tuple[int, int]) -> None:
    array = picture(height, width)
    expected = np.asarray(pil(array).resize(size[::-1], BILINEAR))
    assert distance(shown(array, Resize(90)), expected) <= 1


@pytest.mark.parametrize("form", ["png", "jpeg"])
@pytest.mark.parametrize("channels", [1, 3])
def test_resize_and_centre_crop_agree_with_pillow(channels: int, form: str) -> None:
    array = picture(375, 500, channels)
    whole = pil(array.squeeze()).resize((341, 256), BILINEAR)
    top, left = round((256 - 224) / 2), round((341 - 224) / 2)
    expected = np.asarray(whole.crop((left, top, left + 224, top + 224))).reshape(224, 224, -1)
    assert distance(shown(array, Resize(256), CenterCrop(224), form=form), expected) <= (1 if form == "png" else 6)


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_steps_see_images_upright(orientation: int, form: str) -> None:
    """Also where a JPEG file is decoded at a fraction of its size."""
    data = saved(pil(picture(300, 400)), form, exif=turned(orientation))
    upright = pil(decode_image(data))
    for steps in ([Resize((40, 30))], [Resize(100), CenterCrop((90, 60))]):
        found = np.asarray(decode_images([data], steps=steps))[0]
        size = (40, 30) if len(steps) == 1 else (100, 133) if upright.height < upright.width else (133, 100)
        whole = np.asarray(upright.resize(size[::-1], BILINEAR))
        top, left = round((size[0] - found.shape[0]) / 2), round((size[1] - found.shape[1]) / 2)
        assert distance(found, whole[top : top + found.shape[0], left : left + found.shape[1]]) <= 6


def test_noise_is_antialiased_as_pillow_does() -> None:
    array = np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)
    expected = np.asarray(pil(array).resize((200, 128), BILINEAR).crop((50, 14, 150, 114)))
    assert distance(shown(array, Resize((128, 200)), CenterCrop(100)), expected) <= 1


def test_transparency_is_resized_as_pillow_does() -> None:
    array = np.random.default_rng(0).integers(0, 256, (40, 50, 4), np.uint8)
    assert distance(shown(array, Resize((20, 30))), np.asarray(pil(array).resize((30, 20), BILINEAR))) == 0


def test_crops_and_flips_copy_pixels() -> None:
    array = picture(40, 60)
    assert np.array_equal(shown(array, CenterCrop((20, 30))), array[10:30, 15:45])
    assert np.array_equal(shown(array, Flip(1)), array[:, ::-1])
    assert np.array_equal(shown(array, Flip(0)), array)
    assert np.array_equal(shown(array, Flip(1), Flip(1)), array)
    places = set()
    for seed in range(40):
        window = shown(array, RandomCrop((39, 59)), seed=seed)
        place = [(y, x) for y in range(2) for x in range(2) if np.array_equal(window, array[y : y + 39, x : x + 59])]
        places.update(place)
        assert len(place) == 1
    assert len(places) == 4


def test_pad_puts_images_into_the_middle() -> None:
    array = picture(10, 21)
    expected = np.full((16, 24, 3), 7, np.uint8)
    expected[3:13, 1:22] = array
    assert np.array_equal(shown(array, Pad((16, 24), 7)), expected)
    assert np.array_equal(shown(array, Pad((16, 24), 7), Flip(1)), expected[:, ::-1])
    assert np.array_equal(shown(array, Pad((16, 24), 7), CenterCrop(14)), expected[1:15, 5:19])
    assert np.array_equal(shown(array, Pad((10, 21))), array)


def test_crop_of_padding_alone() -> None:
    array = picture(2, 2)
    seen = {shown(array, Pad(40, 9), RandomCrop(3), seed=seed).tobytes() for seed in range(30)}
    assert bytes([9] * 27) in seen


@pytest.mark.parametrize("size", [(300, 400), (400, 300), (10, 900), (900, 10), (1, 1)])
def test_random_resized_crop_stays_in_its_ranges(size: tuple[int, int]) -> None:
    step = RandomResizedCrop(32, (0.2, 0.7), (0.5, 2.0))
    seen = set()
    for seed in range(50):
        region = region_of(*size, [step], np.random.default_rng(seed))
        top, left, bottom, right = region.box
        assert 0 <= top < bottom <= size[0] and 0 <= left < right <= size[1]
        assert region.size == region.canvas == (32, 32)
        seen.add(region.box)
        if min(size) > 100:
            share = (bottom - top) * (right - left) / (size[0] * size[1])
            assert 0.19 < share < 0.71 and 0.49 < (right - left) / (bottom - top) < 2.02
    assert len(seen) > 45 or min(size) <= 10


def test_random_resized_crop_agrees_with_pillow() -> None:
    array = picture(300, 400)
    for seed in range(5):
        box = region_of(300, 400, [RandomResizedCrop((64, 80))], np.random.default_rng(seed)).box
        expected = pil(array).resize((80, 64), BILINEAR, (box[1], box[0], box[3], box[2]))
        assert distance(shown(array, RandomResizedCrop((64, 80)), seed=seed), np.asarray(expected)) <= 1
        assert distance(shown(array, RandomResizedCrop((64, 80)), seed=seed, form="jpeg"), np.asarray(expected)) <= 6


# -- any chain of steps ---------------------------------------------------------------------------------------


def one_by_one(array: NDArray[Any], steps: Sequence[ImageStep], random: np.random.Generator) -> NDArray[Any]:
    """The same without regions: each step on the pixels that the one before returned."""
    for step in steps:
        height, width = array.shape[:2]
        if isinstance(step, Flip):
            array = np.asarray(ImageOps.mirror(pil(array))) if random.random() < step.chance else array
        elif isinstance(step, Pad):
            (high, wide), value = size_after([step]) or (0, 0), step.value
            top, left = (high - height) // 2, (wide - width) // 2
            edges = (top, high - height - top), (left, wide - width - left), (0, 0)
            array = np.pad(array, edges, constant_values=value)
        elif isinstance(step, CenterCrop | RandomCrop):
            down, across = height - step.out_size[0], width - step.out_size[1]
            if isinstance(step, CenterCrop):
                top, left = round(down / 2), round(across / 2)
            else:
                top, left = int(random.random() * (down + 1)), int(random.random() * (across + 1))
            array = array[top : top + step.out_size[0], left : left + step.out_size[1]]
    return array


sizes = st.tuples(st.integers(1, 30), st.integers(1, 30))
copying = st.one_of(
    st.builds(CenterCrop, sizes),
    st.builds(RandomCrop, sizes),
    st.builds(Flip, st.sampled_from([0.0, 0.5, 1.0])),
    st.builds(Pad, sizes, st.integers(0, 255)),
)


@given(st.lists(copying, max_size=5), st.integers(0, 1000))
def test_chains_that_copy_pixels_agree_with_one_step_after_the_other(steps: list[ImageStep], seed: int) -> None:
    array = picture(20, 23)
    if sum(isinstance(step, Pad) for step in steps) > 1:
        with pytest.raises(ArgumentError, match="expected Pad after all steps that scale"):
            shown(array, *steps)
        return
    try:
        found = shown(array, *steps, seed=seed)
    except SchemaError:  # an image that is too small for a crop, or too large for a canvas
        return
    assert np.array_equal(found, one_by_one(array, steps, np.random.default_rng(seed)))
    assert size_after(steps) in (None, found.shape[:2])


@given(
    sizes, st.lists(st.one_of(copying, st.builds(Resize, sizes), st.builds(Resize, st.integers(1, 30)))), st.integers()
)
def test_size_after_steps(size: tuple[int, int], steps: list[ImageStep], seed: int) -> None:
    try:
        region = region_of(*size, check_steps(steps), np.random.default_rng(abs(seed)))
    except (SchemaError, ArgumentError):
        return
    assert size_after(steps) in (None, region.canvas)
    assert min(region.canvas) > 0
    for axis in (0, 1):
        assert 0 <= region.box[axis] <= region.box[axis + 2] <= size[axis] + 1e-6
        assert 0 <= region.at[axis] <= region.at[axis] + region.size[axis] <= region.canvas[axis]


def test_scaled_decoding_is_never_smaller_than_needed() -> None:
    region = Region.whole(800, 600).resized((100, 75))
    assert region.min_size(800, 600) == (100, 75)
    assert Region.whole(800, 600).cropped(0, 0, (400, 300)).resized((100, 100)).min_size(800, 600) == (200, 200)
    assert Region.whole(800, 600).resized((1600, 1200)).min_size(800, 600) == (800, 600)


# -- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 1.5, "224", (1,), (1, 2, 3), (0, 5), None, True])
@pytest.mark.parametrize("step", [Resize, CenterCrop, RandomCrop, RandomResizedCrop, Pad])
def test_wrong_sizes(step: Any, size: Any) -> None:
    with pytest.raises(ArgumentError, match=r"expected a positive int or \(height, width\) of them"):
        step(size)


def test_wrong_options() -> None:
    with pytest.raises(ArgumentError, match="chance from 0 to 1, got 2"):
        Flip(2)
    with pytest.raises(ArgumentError, match="value from 0 to 255"):
        Pad(8, 256)
    with pytest.raises(ArgumentError, match="0 < low <= high"):
        RandomResizedCrop(8, scale=(0.5, 0.2))
    with pytest.raises(ArgumentError, match="0 < low <= high"):
        RandomResizedCrop(8, scale=(0.5, 1.2))
    with pytest.raises(ArgumentError, match=r"expected ratio=\(low, high\)"):
        RandomResizedCrop(8, ratio=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected steps like Resize"):
        check_steps([Resize(8), "flip"])
    with pytest.raises(ArgumentError, match="expected Pad after all steps that scale"):
        check_steps([Pad(8), Resize(4)])


def test_images_that_are_too_small_or_large() -> None:
    with pytest.raises(
        SchemaError, match=r"CenterCrop\(size=64\): expected images of at least 64 x 64, found.*40 x 60"
    ):
        shown(picture(40, 60), CenterCrop(64))
    with pytest.raises(SchemaError, match=r"RandomCrop.*at least 64 x 64"):
        shown(picture(40, 60), RandomCrop(64))
    with pytest.raises(SchemaError, match=r"Pad.*at most 50 x 50, found one of 40 x 60"):
        shown(picture(40, 60), Pad(50))


def test_steps_are_values() -> None:
    assert Resize([3, 4]) == Resize((3, 4))  # type: ignore[arg-type]
    assert hash(RandomResizedCrop(8, [0.1, 1])) == hash(RandomResizedCrop(8, (0.1, 1)))  # type: ignore[arg-type]
    steps = [Resize(8), CenterCrop(8), RandomCrop(8), RandomResizedCrop(8), Flip(), Pad(8)]
    assert [step.random for step in steps] == [False, False, True, True, True, False]
