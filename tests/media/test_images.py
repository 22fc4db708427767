"""One image: bytes to pixels and back, compared with Pillow."""

from __future__ import annotations

import io
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageOps

from shardex.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError, SchemaError
from shardex.media import ImageInfo, decode_image, encode_image, image_info
from shardex.media.image_files import simplejpeg
from tests.media.pictures import distance, picture, saved, turned

# -- arrays through formats -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["png", "tiff", "bmp"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_formats_return_the_array(form: str, channels: int) -> None:
    array = picture(channels=channels)
    assert np.array_equal(decode_image(encode_image(array, form), None), array)


@pytest.mark.parametrize("form", ["jpeg", "jpg", "webp"])
def test_lossy_formats_return_nearly_the_array(form: str) -> None:
    assert distance(decode_image(encode_image(picture(), form)), picture()) < 16


def test_grey_alpha_bool_and_16_bits() -> None:
    grey = picture(channels=1)
    assert np.array_equal(decode_image(encode_image(grey[..., 0]), "L"), grey)
    rgba = picture(channels=4)
    assert np.array_equal(decode_image(encode_image(rgba), None), rgba)
    assert np.array_equal(decode_image(encode_image(rgba), "RGB"), rgba[..., :3])
    mask = grey[..., 0] > 100
    assert np.array_equal(decode_image(encode_image(mask), None), (mask * np.uint8(255))[..., None])
    deep = grey[..., 0].astype(np.uint16) * 257
    assert np.array_equal(decode_image(encode_image(deep), None), deep[..., None])
    assert np.array_equal(decode_image(encode_image(deep), "L"), grey)
    assert np.array_equal(decode_image(encode_image(deep), "RGB"), np.repeat(grey, 3, -1))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((2, 4, 4, 3), np.uint8),
    ],
)
def test_arrays_that_are_no_image_are_refused(array: NDArray[Any]) -> None:
    with pytest.raises(SchemaError, match=r"expected an image of shape .* got"):
        encode_image(array)


def test_what_a_format_cannot_store_is_refused() -> None:
    with pytest.raises(SchemaError, match="PNG and TIFF store it"):
        encode_image(np.zeros((4, 4), np.uint16), "jpeg")
    with pytest.raises(SchemaError, match="PNG and WebP store transparency"):
        encode_image(picture(channels=4), "jpeg")
    with pytest.raises(SchemaError, match="at most 65535"):
        encode_image(np.zeros((1, 65536), np.uint8), "jpeg")
    with pytest.raises(SchemaError, match="cannot store"):
        encode_image(np.zeros((1, 20000, 3), np.uint8), "webp")
    with pytest.raises(SchemaError, match="at most 3 channels for mode 'RGB'"):
        encode_image(picture(channels=4), mode="RGB")
    with pytest.raises(ArgumentError, match="expected a format of png"):
        encode_image(picture(), "eps")
    with pytest.raises(SchemaError, match="got list"):
        encode_image([[1, 2]])


# -- bytes, paths and PIL images ------------------------------------------------------------------------------


def test_bytes_and_files_pass_untouched(tmp_path: Path) -> None:
    data = saved(Image.fromarray(picture()), "JPEG", quality=40) + b"trailing bytes"
    assert encode_image(data) is data
    assert encode_image(bytearray(data)) == encode_image(memoryview(data)) == data
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    assert encode_image(path) == encode_image(str(path)) == data
    with pytest.raises(NotFoundError, match="cannot read the image"):
        encode_image(tmp_path / "b.jpg")
    path.write_bytes(b"text")
    with pytest.raises(FormatError, match=r"a\.jpg: expected an image file"):
        encode_image(path)


def test_pil_image_of_an_unchanged_file_gives_that_file(tmp_path: Path) -> None:
    data = saved(Image.fromarray(picture()), "JPEG", quality=40)
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    with Image.open(path) as image:
        assert encode_image(image) == data
        image.load()
        assert encode_image(image) == data
    with Image.open(io.BytesIO(data)) as image:
        assert encode_image(image) == data
        assert np.asarray(image).shape == (37, 50, 3), "still readable"
    with Image.open(path) as image:
        image.load()
        ImageDraw.Draw(image).rectangle((0, 0, 20, 20), fill="red")
        changed = encode_image(image)
        assert changed[:2] == b"\xff\xd8"
        assert decode_image(changed)[5, 5, 0] > 150 > decode_image(data)[5, 5, 0]


@pytest.mark.parametrize("form", ["TIFF", "PNG", "GIF", "WEBP"])
def test_frames_of_a_pil_image_are_encoded_each(form: str, tmp_path: Path) -> None:
    colours = [(10, 60, 90), (120, 70, 200), (240, 20, 30)]
    frames = [Image.fromarray(np.full((16, 17, 3), colour, np.uint8)) for colour in colours]
    path = tmp_path / "a"
    path.write_bytes(saved(frames[0], form, save_all=True, append_images=frames[1:]))
    for source in (path, io.BytesIO(path.read_bytes())):
        with Image.open(source) as image:
            for number in range(3):
                image.seek(number)
                for _ in range(2):  # the second time, its pixels are loaded
                    assert distance(decode_image(encode_image(image)), np.asarray(frames[number])) <= 8
                    image.load()
        with Image.open(source) as image:
            assert form == "WEBP" or encode_image(image) == path.read_bytes(), "the first frame is what the file shows"


def test_frame_of_a_turned_tiff_is_turned_once() -> None:
    frames = [Image.fromarray(picture()), Image.fromarray(255 - picture())]
    data = saved(frames[0], "TIFF", save_all=True, append_images=frames[1:], exif=turned(6))
    with Image.open(io.BytesIO(data)) as image:
        image.seek(1)
        encoded = encode_image(image)
        assert np.array_equal(decode_image(encoded), np.asarray(image))


def test_pil_image_without_a_file_is_encoded() -> None:
    image = Image.fromarray(picture())
    assert np.array_equal(decode_image(encode_image(image)), picture())
    assert image_info(encode_image(image, "webp")).format == "webp"
    assert image_info(encode_image(image.convert("CMYK"), "tiff")).mode == "CMYK"


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_orientation_of_a_pil_image_is_kept(form: str) -> None:
    with Image.open(io.BytesIO(saved(Image.fromarray(picture()), form, exif=turned(6)))) as image:
        image.load()
        assert decode_image(encode_image(image)).shape == (50, 37, 3)


# -- decoding, beside Pillow ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("stored", ["RGB", "L", "CMYK"])
def test_jpeg_modes_agree_with_pillow(stored: str, mode: str) -> None:
    data = saved(Image.fromarray(picture()).convert(stored), "JPEG", quality=95)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB").convert(mode))
    found = decode_image(data, mode)
    assert distance(found, expected.reshape(*expected.shape[:2], -1)) <= 3
    assert found.flags.writeable and found.flags.c_contiguous


@pytest.mark.parametrize("stored", ["P", "LA", "PA", "1", "I;16"])
def test_modes_of_other_formats(stored: str) -> None:
    rgba = picture(channels=4)
    if stored == "I;16":
        image = Image.fromarray(picture(channels=1)[..., 0].astype(np.uint16) * 257)
    else:
        image = Image.fromarray(rgba).convert({"P": "RGB", "PA": "RGBA"}.get(stored, stored))
    data = saved(image.quantize(17) if stored in ("P", "PA") else image, "PNG")
    kept = decode_image(data, None)
    channels = {"P": 3, "LA": 4, "PA": 4, "1": 1, "I;16": 1}[stored]
    assert kept.shape == (37, 50, channels) and kept.dtype == (np.uint16 if stored == "I;16" else np.uint8)
    for mode, count in {"RGB": 3, "L": 1, "RGBA": 4}.items():
        assert decode_image(data, mode).shape == (37, 50, count)


@pytest.mark.parametrize("mode", ["RGB", None])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(9))
def test_exif_orientation_is_applied(form: str, orientation: int, mode: str | None) -> None:
    data = saved(Image.fromarray(picture()), form, exif=turned(orientation))
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    found = decode_image(data, mode)
    assert distance(found, expected) <= 3
    out = np.empty_like(expected)
    assert decode_image(data, mode, out=out) is out and np.array_equal(out, found)
    info = image_info(data)
    assert (info.height, info.width, info.mode) == (*expected.shape[:2], "RGB")


def exif_segment(order: str, kind: int, orientation: int) -> bytes:
    """An EXIF segment with an orientation of type SHORT (3) or LONG (4)."""
    value = struct.pack(order + "I", orientation) if kind == 4 else struct.pack(order + "HH", orientation, 0)
    block = b"Exif\0\0" + (b"MM" if order == ">" else b"II") + struct.pack(order + "HIHHHI", 42, 8, 1, 0x112, kind, 1)
    block += value + bytes(4)
    return b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("order", ["<", ">"])
def test_exif_orientation_in_unusual_places(order: str, kind: int) -> None:
    data, segment = saved(Image.fromarray(picture()), "JPEG"), exif_segment(order, kind, 6)
    table, frame, scan = (data.index(marker) for marker in (b"\xff\xdb", b"\xff\xc0", b"\xff\xda"))
    for at, fill in ((2, b""), (table, b""), (frame, b""), (scan, b""), (2, b"\xff"), (table, b"\xff\xff\xff")):
        turned_file = data[:at] + fill + segment + data[at:]
        with Image.open(io.BytesIO(turned_file)) as image:
            expected = np.asarray(ImageOps.exif_transpose(image))
        assert expected.shape == (50, 37, 3)
        assert distance(decode_image(turned_file), expected) <= 3


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP", "PNG"])
def test_first_frame_of_many(form: str) -> None:
    frames = [Image.fromarray(np.full((8, 9, 3), value, np.uint8)) for value in (10, 200)]
    data = saved(frames[0], form, save_all=True, append_images=frames[1:])
    assert distance(decode_image(data), np.full((8, 9, 3), 10, np.uint8)) <= 3


def test_scaled_decoding_of_jpeg() -> None:
    big = picture(800, 600)
    data = encode_image(big, "jpeg")
    for least, size in [
        ((100, 75), (100, 75)),
        ((101, 10), (200, 150)),
        ((390, 300), (400, 300)),
        ((900, 1), (800, 600)),
    ]:
        found = decode_image(data, min_size=least)
        assert found.shape == (*size, 3)
        expected = np.asarray(Image.fromarray(big).resize(size[::-1], Image.Resampling.BOX))
        assert distance(found, expected) <= 8
    sideways = saved(Image.fromarray(big), "JPEG", exif=turned(6))
    assert decode_image(sideways, min_size=(100, 100)).shape == (150, 200, 3)
    cmyk = saved(Image.fromarray(big).convert("CMYK"), "JPEG")
    assert decode_image(cmyk, min_size=(200, 100)).shape == (200, 150, 3)
    assert decode_image(encode_image(big), min_size=(10, 10)).shape == (800, 600, 3)


def test_out_must_fit() -> None:
    for form in ("jpeg", "png"):
        data = encode_image(picture(), form)
        strided = np.zeros((37, 100, 3), np.uint8)[:, ::2]
        assert np.array_equal(decode_image(data, out=strided), decode_image(data))
        for out in (np.empty((37, 50, 4), np.uint8), np.empty((50, 37, 3), np.uint8), np.empty((37, 50, 3), np.int8)):
            with pytest.raises(ArgumentError, match="expected out= of shape"):
                decode_image(data, out=out)


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(ArgumentError, match="expected a mode of L, RGB, RGBA, P, I;16 or None"):
        decode_image(encode_image(picture()), "HSV")


# -- headers and damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000"])
def test_info_of_every_format(form: str) -> None:
    data = saved(Image.fromarray(picture()), form)
    mode = "P" if form == "GIF" else "RGB"
    assert image_info(data) == ImageInfo(form.lower(), 37, 50, mode)
    assert decode_image(data).shape == (37, 50, 3)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"text", b"RIFF1234WEBP"])
def test_bytes_that_are_no_image(data: bytes) -> None:
    for function in (image_info, decode_image, encode_image):
        with pytest.raises(FormatError, match="expected a"):
            function(data)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF", "AVIF", "JPEG2000", "PPM"])
def test_truncated_files_are_errors(form: str) -> None:
    data = saved(Image.fromarray(picture(300, 300)), form)
    with pytest.raises(FormatError, match=f"expected a valid {form.lower()} image"):
        decode_image(data[: len(data) // 2])
    with pytest.raises(FormatError, match=f"expected a valid {form.lower()} image"):
        encode_image(data[: len(data) // 2])


def test_png_files_with_changed_pixels_are_not_stored() -> None:
    data = saved(Image.fromarray(picture()), "PNG")
    at = data.index(b"IDAT") + 40
    assert encode_image(data) == data
    with pytest.raises(FormatError, match=r"expected a valid png image, found .* wrong checksum of the chunk IDAT"):
        encode_image(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_programs_are_never_started_for_a_file() -> None:
    with pytest.raises(FormatError, match="expected an image file"):
        decode_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n")


def test_jpeg_bytes_are_checked_without_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(Image.fromarray(picture()), "JPEG", exif=turned(6))
    expected = image_info(data)
    simplejpeg.cache_clear()
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert image_info(data) == expected
    assert encode_image(data) == data
    with pytest.raises(MissingExtraError, match="decoding JPEG images needs simplejpeg"):
        decode_image(data)


def test_more_pixels_than_the_limit_are_refused() -> None:
    for form in ("jpeg", "png"):
        data = encode_image(picture(), form)
        with pytest.raises(FormatError, match=r"1 to 1000 pixels \(max_pixels\).*says 37 x 50"):
            decode_image(data, max_pixels=1000)
        assert decode_image(data, max_pixels=37 * 50).shape == (37, 50, 3)
