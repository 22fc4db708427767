"""Damaged and hostile image files: an array of the size that the header says, or a `FormatError`; nothing else."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from shardex.errors import FormatError
from shardex.media import Flip, Resize, decode_image, decode_images, encode_image, image_info
from tests.media.pictures import picture, saved, turned

FORMS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "JPEG2000"]
EXIF = {"JPEG", "PNG", "WEBP", "AVIF"}
FILES = {
    form: saved(Image.fromarray(picture(24, 31)), form, **({"exif": turned(6)} if form in EXIF else {}))
    for form in FORMS
}
FILES["palette"] = saved(Image.fromarray(picture(24, 31, 4)).quantize(17), "PNG")
FILES["deep"] = saved(Image.fromarray(picture(24, 31, 1)[..., 0].astype(np.uint16) * 257), "PNG")
FILES["CMYK"] = saved(Image.fromarray(picture(24, 31)).convert("CMYK"), "JPEG")
FILES["progressive"] = saved(Image.fromarray(picture(24, 31)), "JPEG", progressive=True, quality=30)
LIMIT = 100_000


def decode_or_refuse(data: bytes, mode: str | None) -> None:
    """Each function returns what it promises or raises FormatError."""
    try:
        info = image_info(data)
    except FormatError:
        with pytest.raises(FormatError):
            decode_image(data, mode)
        return
    try:
        pixels = decode_image(data, mode, max_pixels=LIMIT)
    except FormatError:
        return
    assert pixels.shape[:2] == (info.height, info.width) and pixels.ndim == 3
    small = decode_images([data], mode=mode, steps=[Resize((8, 9)), Flip(1)], generators=[np.random.default_rng(0)])
    assert np.asarray(small).shape[:3] == (1, 8, 9)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about damaged metadata
@given(
    st.sampled_from(sorted(FILES)),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    st.integers(0, 5000),
    st.sampled_from(["RGB", "L", "RGBA", None]),
)
@example("JPEG", [], 0, "RGB")
def test_damaged_bytes_are_decoded_or_refused(
    name: str, changes: list[tuple[int, int]], cut: int, mode: str | None
) -> None:
    data = bytearray(FILES[name])
    for at, value in changes:
        data[at % len(data)] = value
    decode_or_refuse(bytes(data[: len(data) - cut % len(data)] if cut % 2 else data), mode)


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=300))
def test_random_bytes_after_a_valid_beginning(name: str, rest: bytes) -> None:
    decode_or_refuse(FILES[name][:40] + rest, "RGB")


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


def jpeg(width: int, height: int) -> bytes:
    data = bytearray(FILES["JPEG"])
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


HUGE = {
    "png": png(2**31 - 1, 2**31 - 1),
    "jpeg": jpeg(65000, 65000),
    "gif": b"GIF89a" + struct.pack("<HHBBB", 65535, 65535, 0, 0, 0) + FILES["GIF"][13:],
    "bmp": FILES["BMP"][:18] + struct.pack("<ii", 2**31 - 1, -(2**31) + 1) + FILES["BMP"][26:],
    "ppm": b"P6 999999999 999999999 255\n\0\0\0",
    "tiff": FILES["TIFF"].replace(struct.pack("<HHII", 256, 4, 1, 31), struct.pack("<HHII", 256, 4, 1, 2**31)),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("form", HUGE)
def test_headers_of_huge_images_take_no_memory(form: str) -> None:
    tracemalloc.start()
    try:
        for function in (decode_image, encode_image, lambda data: decode_images([data, data])):
            with pytest.raises(FormatError, match="expected an"):
                function(HUGE[form])
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_images_without_pixels_are_refused() -> None:
    for data in (png(0, 5), png(5, 0), jpeg(0, 8), b"P6 0 0 255\n"):
        with pytest.raises(FormatError, match="expected a"):
            decode_image(data)


def test_a_larger_limit_replaces_the_one_of_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert decode_image(FILES["PNG"]).shape == (31, 24, 3)
    assert decode_image(FILES["CMYK"]).shape == (24, 31, 3)


def test_small_damages_of_jpeg_files_do_not_matter() -> None:
    """libjpeg warns about bytes between segments, and simplejpeg refuses; Pillow decodes the image."""
    whole = FILES["progressive"]
    at = whole.index(b"\xff\xda")
    odd = whole[:at] + b"\0\0\0" + whole[at:]
    assert np.array_equal(decode_image(odd), decode_image(whole))
    assert encode_image(odd) == odd


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}], ids=str)
def test_damaged_pixels_of_jpeg_files_are_errors(options: dict[str, Any]) -> None:
    """libjpeg decodes them with a warning, and Pillow drops warnings."""
    whole = saved(Image.fromarray(picture(128, 128)), "JPEG", quality=90, **options)
    at = whole.index(b"\xff\xda") + 100
    damaged = whole[:at] + bytes(100) + whole[at + 100 :]
    with pytest.raises(FormatError, match=r"expected a valid jpeg image, found .*: Corrupt JPEG data"):
        decode_image(damaged)
    with pytest.raises(FormatError, match="Corrupt JPEG data"):
        decode_images([whole, damaged])
    with pytest.raises(FormatError, match="Corrupt JPEG data"):
        decode_images([whole, damaged], steps=[Resize((8, 8))])


def test_jpeg_header_that_claims_more_pixels_than_there_are_is_an_error() -> None:
    with pytest.raises(FormatError, match="premature end of data segment"):
        decode_image(jpeg(500, 400))


def test_bytes_around_the_end_marker_of_a_jpeg_file_do_not_matter() -> None:
    whole = FILES["JPEG"]
    for odd in (whole[:-2] + bytes(5) + whole[-2:], whole + bytes(50), whole[:-2] + b"\xff\xff" + whole[-2:]):
        assert np.array_equal(decode_image(odd), decode_image(whole))
        assert encode_image(odd) == odd


def chunks(data: bytes) -> list[bytes]:
    """The chunks of a PNG file."""
    found, at = [], 8
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at : at + 4], "big")
        found.append(data[at:end])
        at = end
    return found


def test_header_of_a_png_file_is_read_without_its_pixels() -> None:
    for name, size in {"PNG": (31, 24), "palette": (24, 31)}.items():
        broken = FILES[name].replace(b"IDAT", b"IDAX")
        info = image_info(FILES[name].replace(b"IDAT" + FILES[name].split(b"IDAT")[1][:20], b"IDAT" + bytes(20)))
        assert (info.height, info.width) == size
        with pytest.raises(FormatError):
            decode_image(broken)


def test_orientation_that_follows_the_pixels_of_a_png_file() -> None:
    *parts, end = chunks(FILES["PNG"])
    exif = next(part for part in parts if part[4:8] == b"eXIf")
    parts.remove(exif)
    late = FILES["PNG"][:8] + b"".join([*parts, exif, end])
    assert np.array_equal(decode_image(late), decode_image(FILES["PNG"]))
    assert image_info(late) == image_info(FILES["PNG"])
    text = next(part for part in parts if part[4:8] == b"IDAT").replace(b"IDAT", b"teXt")
    assert image_info(FILES["PNG"][:8] + b"".join([*parts, text + b"eXIf", end])).orientation == 1


def test_damaged_exif_does_not_matter() -> None:
    for form in ("JPEG", "PNG", "WEBP"):
        data = FILES[form].replace(b"MM\0*", b"XX\0*").replace(b"II*\0", b"XX*\0")
        if form == "PNG":
            at = data.index(b"eXIf")
            size = int.from_bytes(data[at - 4 : at], "big")
            check = zlib.crc32(data[at : at + 4 + size]).to_bytes(4, "big")
            data = data[: at + 4 + size] + check + data[at + 8 + size :]
        assert data != FILES[form]
        assert decode_image(data).shape == (24, 31, 3)
