"""What values look like."""

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from shardex.display.pictures import Failed, Picture, Thumbnail, Words, picture_of
from shardex.display.plots import Plot
from shardex.features import Audio, Bytes, ClassLabel, Image, Json, Optional, Sequence, Text, Video
from shardex.kernel import MISSING
from shardex.media import encode_audio, encode_image, encode_video

RED = np.full((300, 400, 3), (200, 10, 10), np.uint8)


def text(picture: Picture) -> str:
    assert isinstance(picture, Words | Failed)
    return picture.text


def pixels(picture: Picture) -> np.ndarray:
    assert isinstance(picture, Thumbnail), picture
    assert picture.pixels.dtype == np.uint8 and picture.pixels.flags.c_contiguous
    return picture.pixels


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (3, "3"),
        (2.5, "2.5"),
        (True, "True"),
        (None, "none"),
        (MISSING, "none"),
        ("text", "text"),
        (np.float32(0.5), "0.5"),
        (np.array(7), "7"),
        (np.datetime64("2026-11-16"), "2026-11-16"),
        (np.array([1.5, -2, np.nan]), "1.5 -2 nan"),
        (np.array([True, False]), "1 0"),
        ({"a": [1, 2]}, "{'a': [1, 2]}"),
        (np.zeros((0, 3)), "float64[0, 3]"),
        (np.zeros((20, 20, 7)), "float64[20, 20, 7]"),
        (np.zeros((2, 2, 2, 2, 2)), "float64[2, 2, 2, 2, 2]"),
        (np.array(["a", "b"]), "<U1[2]"),
        ([np.zeros(3), "a"], "[float64[3], 'a']"),
        (b"\x01\x02", "2 bytes 01 02"),
        ([b"\x01" * 10], "[10 bytes " + " ".join(["01"] * 10) + "]"),
        (datetime.date(2026, 11, 16), "2026-11-16"),
        (Decimal("1.50"), "1.50"),
        (b"\x00" * 20, "20 bytes " + "00 " * 16 + "..."),
    ],
    ids=repr,
)
def test_words(value: Any, shown: str) -> None:
    assert text(picture_of(value)) == shown


def test_text_is_bounded() -> None:
    assert text(picture_of("x" * 10_000_000, Text(), length=10)) == "x" * 10 + "..."
    nested: Any = [list(range(100_000)), {str(k): "y" * 1_000 for k in range(1_000)}]
    assert len(text(picture_of(nested, Json(), length=5_000))) <= 5_003


def test_class_names() -> None:
    label = ClassLabel(("cat", "dog"))
    assert text(picture_of(1, label)) == text(picture_of(np.int64(1), Optional(label))) == "dog"
    assert text(picture_of(7, label)) == "7" and text(picture_of(None, Optional(label))) == "none"
    assert text(picture_of(np.zeros(30), label)) == "float64[30]"


def test_color_image() -> None:
    found = picture_of(RED, side=100)
    assert pixels(found).shape == (75, 100, 3) and (pixels(found) == (200, 10, 10)).all()
    assert isinstance(found, Thumbnail) and found.note == "300 x 400"


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_small_images_stay_as_they_are(channels: int) -> None:
    image = np.arange(12 * 10 * channels, dtype=np.uint8).reshape(12, 10, channels)
    assert np.array_equal(pixels(picture_of(image)), image)


def test_shrinking_takes_means() -> None:
    board = np.indices((640, 640)).sum(axis=0) % 2 * 200
    assert (pixels(picture_of(board.astype(np.uint8), side=160)) == 100).all()


def test_long_image_keeps_a_pixel_of_each_axis() -> None:
    assert pixels(picture_of(np.zeros((10_000, 9, 3), np.uint8), side=100)).shape == (100, 1, 3)


def test_channels_first() -> None:
    assert np.array_equal(pixels(picture_of(RED[:20, :30].transpose(2, 0, 1))), RED[:20, :30])


def test_tensor() -> None:
    torch = pytest.importorskip("torch")
    assert np.array_equal(pixels(picture_of(torch.from_numpy(RED[:9, :30]).permute(2, 0, 1))), RED[:9, :30])
    assert text(picture_of(torch.tensor(1), ClassLabel(("cat", "dog")))) == "dog"
    assert isinstance(picture_of(torch.arange(30, dtype=torch.bfloat16, requires_grad=True)), Plot)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (np.linspace(0, 1, 100).reshape(10, 10), [0, 255]),
        (np.linspace(-3, 5, 100).reshape(10, 10), [0, 255]),
        (np.linspace(0, 60_000, 100).reshape(10, 10).astype(np.uint16), [0, 255]),
        (np.eye(10, dtype=np.bool_), [0, 255]),
        (np.full((10, 10), np.nan), [0, 0]),
        (np.full((10, 10), 5), [0, 0]),
        (np.where(np.eye(10), np.inf, 0.5), [128, 255]),
    ],
    ids=repr,
)
def test_other_numbers_become_grey(image: np.ndarray, expected: list[int]) -> None:
    found = pixels(picture_of(image))
    assert found.shape == (10, 10, 1) and [found.min(), found.max()] == expected


def test_several_images() -> None:
    video = np.stack([RED, RED // 2])
    assert pixels(picture_of(video)).shape == (120, 160, 3)
    found = picture_of([encode_image(RED), b"broken"], Sequence(Image()))
    assert isinstance(found, Thumbnail) and found.note == "300 x 400, 1 of 2"
    assert text(picture_of([], Sequence(Image()))) == "none"


def test_plots() -> None:
    for series in (np.arange(50.0), np.zeros((50, 2)), np.zeros((2, 50)), list(range(20)), np.zeros(9, np.int16)):
        assert isinstance(picture_of(series), Plot)
    tokens = picture_of(np.arange(20, dtype=np.uint16))
    assert isinstance(tokens, Plot) and tokens.note == "uint16[20] 0 1 2 3 4 5 6 7 ..., 0 to 19"


@pytest.mark.parametrize("feature", [None, Image(), Optional(Image()), Bytes()])
@pytest.mark.parametrize("form", ["jpeg", "png", "webp"])
def test_encoded_image(feature: Any, form: str) -> None:
    found = picture_of(encode_image(RED, form), feature, side=50)
    assert pixels(found).shape[1] == 50 and abs(pixels(found).astype(int) - (200, 10, 10)).max() < 6
    assert isinstance(found, Thumbnail) and found.note == "300 x 400"


def test_audio() -> None:
    pytest.importorskip("soundfile")
    wave = np.sin(np.arange(8_000) / 20).astype(np.float32) / 2
    stereo = np.stack([wave, -wave], axis=1)
    for value, feature, note in (
        (encode_audio(wave, rate=16_000), Audio(), "0.50 s at 16,000 Hz, -0.5 to 0.5"),
        (encode_audio(stereo, rate=8_000), Audio(rate=16_000), "1.00 s at 8,000 Hz, 2 channels, -0.5 to 0.5"),
        (stereo, Audio(rate=16_000), "0.50 s at 16,000 Hz, 2 channels, -0.5 to 0.5"),
        (stereo.T, Audio(), "8,000 frames, 2 channels, -0.5 to 0.5"),
        (wave, Audio(), "8,000 frames, -0.5 to 0.5"),
    ):
        found = picture_of(value, feature)
        assert isinstance(found, Plot) and found.note == note
    assert isinstance(picture_of(encode_audio(wave, rate=8_000)[:100], Audio()), Failed)
    assert text(picture_of(np.zeros((0, 2)), Audio())) == "float64[0, 2]"


def test_video() -> None:
    pytest.importorskip("av")
    frames = np.stack([RED, RED // 4, RED // 2])
    found = picture_of(encode_video(frames), Video(), side=40)
    assert pixels(found).shape == (30, 40, 3) and abs(pixels(found).astype(int) - (200, 10, 10)).max() < 12
    assert isinstance(found, Thumbnail) and found.note == "300 x 400, first frame"
    assert pixels(picture_of(frames, Video(), side=40)).shape == (30, 40, 3)
    assert isinstance(picture_of(encode_video(frames)[:300], Video()), Failed)


def test_pil_image() -> None:
    image = pytest.importorskip("PIL.Image")
    for mode, channels in (("RGB", 3), ("L", 1), ("P", 3), ("RGBA", 3)):
        assert pixels(picture_of(image.fromarray(RED[:20, :30]).convert(mode))).shape == (20, 30, channels)


def test_broken_image_shows_its_error() -> None:
    found = picture_of(encode_image(RED, "jpeg")[:50], Image())
    assert isinstance(found, Failed) and found.text
    assert isinstance(picture_of(b"no image", Image()), Failed)


def test_any_error_is_shown() -> None:
    class Bad:
        def __repr__(self) -> str:
            raise RuntimeError("x" * 10_000)

    found = picture_of({1: Bad()})
    assert len(text(found)) < 600
