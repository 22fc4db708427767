"""One image: encoded for storage, decoded into an array of pixels.

JPEG files are decoded by simplejpeg (libjpeg-turbo), which releases the GIL, writes into memory of the caller and can
decode at a half, a quarter or an eighth of the size. Pillow decodes JPEG files that simplejpeg refuses (CMYK, warnings
of libjpeg that do not concern pixels) and all other formats. libjpeg decodes damaged pixels with a warning only; these
warnings are errors here.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, SchemaError, storage_errors
from shardex.media.image_files import (
    JPEG_MAGIC,
    JPEG_MODES,
    MAX_PIXELS,
    Buffer,
    ImageInfo,
    check_pixels,
    format_of,
    has_end,
    image_info,
    info_of,
    is_whole_jpeg,
    jpeg_info,
    jpeg_orientation,
    open_image,
    pillow_errors,
    pillow_image,
    simplejpeg,
    valid_orientation,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile

CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}
"""Modes of colours to which images are decoded, and the number of their channels."""
NUMBERS: Final[Mapping[str, np.dtype[Any]]] = {"P": np.dtype(np.uint8), "I;16": np.dtype(np.uint16)}
"""Modes of one channel of numbers, such as those of classes in masks: they are neither converted nor interpolated."""

_WRITTEN = {"png": "PNG", "jpeg": "JPEG", "jpg": "JPEG", "webp": "WEBP", "tiff": "TIFF", "bmp": "BMP", "gif": "GIF"}
_JPEG_SPACES = {"RGB": "RGB", "L": "GRAY", "RGBA": "RGBA"}
_SUBSAMPLING = "420"
"""Colours at half the resolution, as almost all JPEG files have."""
_DAMAGED_PIXELS = re.compile(
    "premature end of data segment|bad Huffman code|bad arithmetic code|instead of RST|before marker 0xd[0-7]"
)
"""Warnings of libjpeg about compressed pixels. Others are about what does not change pixels: bytes between segments or
in front of the end marker, a missing end marker, colour profiles, versions, parameters that are not used."""


# -- decode ---------------------------------------------------------------------------------------------------


def decode_image(
    data: Buffer,
    mode: str | None = "RGB",
    *,
    min_size: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Decode an image file into an array (height, width, channels), upright as its EXIF orientation says.

    :param mode: "RGB" (3 channels), "RGBA" (4) or "L" (1, grey), of uint8; "P" and "I;16" are the numbers that the
        file stores (1 channel), indices of a palette or grey values, as uint8 or uint16; None keeps what the file has:
        a palette is replaced by its colours, 16 bit grey gives uint16. Transparency is dropped for "RGB" and "L".
    :param min_size: (height, width) that suffice: a JPEG file is decoded at the smallest of its full, half, quarter and
        eighth size that is at least as large; other formats at their full size
    :param max_pixels: images whose header claims more are refused before memory is taken for them
    :param out: write the pixels into this array, of exactly the size, channels and dtype of the image
    :raises FormatError: if the bytes are no image, are damaged, or claim too many pixels

    >>> decode_image(encode_image(np.zeros((2, 3, 3), np.uint8))).shape
    (2, 3, 3)
    """
    check_mode(mode)
    return OpenImage(data, max_pixels).decode(mode, min_size, out)


def check_mode(mode: str | None) -> None:
    """Raise `ArgumentError` for a mode to which images are not decoded."""
    if mode is not None and mode not in (*CHANNELS, *NUMBERS):
        raise ArgumentError(f"expected a mode of {', '.join((*CHANNELS, *NUMBERS))} or None, got {mode!r}")


class OpenImage:
    """An image file whose header was read and whose number of pixels was checked; `decode` decodes the pixels."""

    __slots__ = ("_data", "_pillow", "info")

    def __init__(self, data: Buffer, max_pixels: int) -> None:
        self._data = data
        self._pillow: ImageFile | None = None
        form = format_of(data)
        info = jpeg_info(data) if form == "jpeg" else None
        if info is None:
            self._pillow = open_image(data, form)
            info = info_of(self._pillow, form, data)
        self.info = info
        check_pixels(info, max_pixels)

    def shape(self, mode: str | None) -> tuple[int, int, int] | None:
        """Return the shape of the decoded image in uint8, or None if only decoding tells it."""
        channels = 1 if mode == "P" else CHANNELS.get(mode or self.info.mode)
        return None if channels is None else (self.info.height, self.info.width, channels)

    def decode(self, mode: str | None, min_size: tuple[int, int] | None, out: NDArray[Any] | None) -> NDArray[Any]:
        """Return the pixels, as `decode_image` does."""
        if self._pillow is None:
            pixels = _decode_jpeg(self._data, self.info, mode, min_size, out)
            if pixels is not None:
                return pixels
        form, turn = self.info.format, self.info.orientation
        with pillow_errors(form, len(self._data)):
            image = self._pillow or open_image(self._data, form)
            if min_size is not None and form == "jpeg":
                image.draft(None, _upright(min_size, self.info.sideways)[::-1])
            pixels = _array_of(image, mode)
        self._pillow = None
        return _into(out, turn_upright(pixels, turn))


def image_palette(data: Buffer) -> list[int]:
    """Return the colours of the numbers of an image file, one after another as red, green, blue; greys if it has none.

    >>> image_palette(encode_image(np.zeros((2, 2), np.uint8)))[-6:]
    [254, 254, 254, 255, 255, 255]
    """
    form = format_of(data)
    with pillow_errors(form, len(data)):
        return open_image(data, form).getpalette() or [grey for grey in range(256) for _ in range(3)]


def _decode_jpeg(
    data: Buffer, info: ImageInfo, mode: str | None, min_size: tuple[int, int] | None, out: NDArray[Any] | None
) -> NDArray[Any] | None:
    """Decode a JPEG file with simplejpeg; return None if it refuses for another reason than damaged pixels."""
    space = _JPEG_SPACES.get(mode or info.mode)
    if space is None or info.mode == "CMYK":
        return None
    size, least = (info.height, info.width), (0, 0)
    if min_size is not None:
        size = scaled_size(size, min_size)
        least = _upright(size, info.sideways)
    if out is not None:
        _check_out(out, (*size, CHANNELS[mode or info.mode]), np.dtype(np.uint8))
    straight = out is not None and info.orientation == 1 and out.flags.c_contiguous
    try:
        pixels: NDArray[Any] = simplejpeg().decode_jpeg(
            data, space, min_height=least[0], min_width=least[1], buffer=out if straight else None
        )
    except ValueError as error:
        if _DAMAGED_PIXELS.search(str(error)):
            raise FormatError(f"expected a valid jpeg image, found {len(data)} bytes: {error}") from error
        return None
    return out if straight and out is not None else _into(out, turn_upright(pixels, info.orientation))


def decode_usual_jpeg(data: Buffer, mode: str, out: NDArray[Any]) -> bool:
    """Decode a JPEG file that is upright, undamaged and of exactly the size of `out`; return False for any other file.

    The same as `OpenImage` does, with less around it: half of the time that a batch takes besides simplejpeg.
    """
    if data[:3] != JPEG_MAGIC or jpeg_orientation(data) != 1:
        return False
    codec = simplejpeg()
    try:
        height, width, space, _ = codec.decode_jpeg_header(data)
        if (height, width) != out.shape[:2] or space not in JPEG_MODES:
            return False
        codec.decode_jpeg(data, _JPEG_SPACES[mode], buffer=out)
    except ValueError:
        return False
    return True


def scaled_size(size: tuple[int, int], least: tuple[int, int]) -> tuple[int, int]:
    """Return the smallest of full, half, quarter and eighth size of a JPEG image that is at least `least`.

    libjpeg has quick code for these factors only.

    >>> scaled_size((375, 500), (90, 90)), scaled_size((375, 500), (94, 126)), scaled_size((10, 10), (20, 20))
    ((94, 125), (188, 250), (10, 10))
    """
    height, width = size
    for factor in (8, 4, 2):
        small = -(-height // factor), -(-width // factor)
        if small[0] >= least[0] and small[1] >= least[1]:
            return small
    return size


def _upright(size: tuple[int, int], sideways: bool) -> tuple[int, int]:
    """Exchange height and width if the image is stored sideways."""
    return size[::-1] if sideways else size


def _array_of(image: Image, mode: str | None) -> NDArray[Any]:
    """Return the pixels of the first frame, converted to the mode, as three dimensions."""
    image.load()
    found = image.mode
    if mode is not None and mode in NUMBERS:
        return _numbers_of(image, mode)[..., None]
    if found.startswith("I;16"):
        deep = np.asarray(image).astype(np.uint16, copy=False)
        if mode is None:
            return deep[..., None]
        # Pillow clips values above 255 instead of scaling them.
        image = pillow_image().fromarray((deep >> 8).astype(np.uint8))
    elif found in ("I", "F"):
        if mode is None:
            return np.asarray(image)[..., None]
        raise FormatError(f"expected pixels of 8 or 16 bits for mode {mode!r}, found 32 (mode=None keeps them)")
    target = mode or _kept_mode(image)
    if image.mode == "P" and isinstance(image.info.get("transparency"), bytes):
        image = image.convert("RGBA")  # Pillow warns about a conversion in one step
    if image.mode != target:
        image = image.convert(target)
    pixels: NDArray[Any] = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _numbers_of(image: Image, mode: str) -> NDArray[Any]:
    """Return the numbers that an image of one channel stores; raise an error for colours, and for larger numbers."""
    pixels, most = np.asarray(image), np.iinfo(NUMBERS[mode]).max
    if pixels.ndim != 2 or pixels.dtype.kind == "f":
        raise FormatError(f"expected numbers for mode {mode!r}, a palette or grey, found pixels of mode {image.mode!r}")
    if pixels.min() < 0 or pixels.max() > most:
        wider = ' (mode="I;16" keeps 16 bits)' if mode == "P" else ""
        raise FormatError(f"expected numbers from 0 to {most} for mode {mode!r}, found {pixels.max()}{wider}")
    return pixels.astype(NUMBERS[mode], copy=False)


def _kept_mode(image: Image) -> str:
    """Return the mode that has all that an image of 8 bit channels stores."""
    if image.mode in CHANNELS:
        return image.mode
    if image.has_transparency_data:
        return "RGBA"
    return "L" if image.mode == "1" else "RGB"


def turn_upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return a view of stored pixels as the EXIF orientation shows them.

    >>> turn_upright(np.array([[1, 2], [3, 4]]), 6).tolist()
    [[3, 1], [4, 2]]
    """
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def _into(out: NDArray[Any] | None, pixels: NDArray[Any]) -> NDArray[Any]:
    """Copy pixels into `out`, or return them as an array that is contiguous and writable."""
    if out is None:
        return pixels if pixels.flags.c_contiguous and pixels.flags.writeable else pixels.copy(order="C")
    _check_out(out, pixels.shape, pixels.dtype)
    out[...] = pixels
    return out


def _check_out(out: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if out.shape != shape or out.dtype != dtype:
        raise ArgumentError(f"expected out= of shape {shape} and {dtype}, got {out.shape} and {out.dtype}")


# -- encode ---------------------------------------------------------------------------------------------------


def encode_image(value: Any, format: str = "png", *, mode: str | None = None, quality: int = 95) -> bytes:
    """Return the bytes of an image file for bytes, a path, a PIL image or an array.

    Bytes and the file of a path are taken as they are, if they are an image. A PIL image that was opened from a file
    and not changed gives that file; another one, and a later frame of a file, is encoded in its own format. Arrays have
    the shape (height, width), (height, width, 1), (height, width, 3) or (height, width, 4) and uint8, or are grey of
    uint16 or bool.

    :param format: of arrays and of PIL images that have none: "png", "jpeg", "webp", "tiff", "bmp"
    :param mode: to which the images will be decoded; arrays with more channels are refused
    :param quality: of JPEG and WebP, 1 to 100
    :raises FormatError: if bytes or a file are no image
    :raises SchemaError: if an array or an object cannot be an image

    >>> encode_image(np.zeros((2, 3), np.uint8))[:4]
    b'\\x89PNG'
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return _checked(bytes(value))
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        with storage_errors(path, "read the image"), open(path, "rb") as file:
            data = file.read()
        try:
            return _checked(data)
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error
    if format.lower() not in _WRITTEN:
        raise ArgumentError(f"expected a format of {', '.join(_WRITTEN)}, got {format!r}")
    if isinstance(value, np.ndarray):
        return _encode_array(value, _WRITTEN[format.lower()], mode, quality)
    if type(value).__module__.partition(".")[0] == "PIL" or isinstance(value, pillow_image().Image):
        return _encode_pil(value, _WRITTEN[format.lower()], quality)
    raise SchemaError(
        f"expected an image as bytes, path, PIL image or array of uint8, got {type(value).__name__}; "
        f"numpy.asarray(...) makes an array of other objects"
    )


def _checked(data: bytes) -> bytes:
    """Return the bytes of an image file; raise `FormatError` if it is damaged, as far as that is seen undecoded."""
    if is_whole_jpeg(data, MAX_PIXELS):
        return data
    info = image_info(data)
    check_pixels(info, MAX_PIXELS)
    if not has_end(data, info.format):
        decode_image(data, None)  # some complete images have no end marker
    return data


def _encode_array(array: NDArray[Any], form: str, mode: str | None, quality: int) -> bytes:
    _check_array(array, mode)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[..., 0]
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * (1 if mode in NUMBERS else 255)
    if array.dtype == np.uint16 and form not in ("PNG", "TIFF"):
        raise SchemaError(f"expected uint8 for a {form} image, got uint16; PNG and TIFF store it")
    if array.ndim == 3 and array.shape[2] == 4 and form in ("JPEG", "BMP", "GIF"):
        raise SchemaError(f"expected 1 or 3 channels for a {form} image, got 4; PNG and WebP store transparency")
    if form == "JPEG":
        pixels = np.ascontiguousarray(array[..., None] if array.ndim == 2 else array)
        space, sampling = ("GRAY", "Gray") if array.ndim == 2 else ("RGB", _SUBSAMPLING)
        _check_side(array, 65535, form)
        return bytes(simplejpeg().encode_jpeg(pixels, quality, space, sampling))
    return _save(pillow_image().fromarray(np.ascontiguousarray(array)), form, quality)


def _check_array(array: NDArray[Any], mode: str | None) -> None:
    channels = 1 if array.ndim == 2 else array.shape[2] if array.ndim == 3 else 0
    kinds = (np.uint8, np.uint16, np.bool_) if channels == 1 else (np.uint8,)
    if channels not in (1, 3, 4) or not array.size or array.dtype not in kinds:
        raise SchemaError(
            "expected an image of shape (height, width), (height, width, 1), (height, width, 3) or (height, width, 4) "
            f"and uint8, or grey of uint16 or bool, got {array.dtype} of shape {array.shape}"
        )
    if mode is not None and channels > (most := CHANNELS.get(mode, 1)):
        raise SchemaError(f"expected at most {most} channels for mode {mode!r}, got shape {array.shape}")


def _check_side(array: NDArray[Any], longest: int, form: str) -> None:
    if max(array.shape[:2]) > longest:
        raise SchemaError(f"expected sides of at most {longest} pixels for {form}, got shape {array.shape}")


def _encode_pil(image: Image, form: str, quality: int) -> bytes:
    data = _original_file(image)
    if data is not None:
        return data
    own = _WRITTEN.get((image.format or form).lower(), "PNG")
    palette = image.mode in ("1", "L", "P")
    return _save(image, "PNG" if own == "GIF" and not palette else own, quality)  # frames of GIF files may be RGB


def _original_file(image: Image) -> bytes | None:
    """Return the file from which a PIL image was read, or None if there is none or it shows another image."""
    if _frame(image):
        return None  # the file is decoded as its first frame
    fp, name = getattr(image, "fp", None), getattr(image, "filename", "")
    if getattr(image, "tile", None) and fp is not None:  # the pixels were not decoded yet
        at = fp.tell()
        fp.seek(0)
        data = bytes(fp.read())
        fp.seek(at)
        return _same_image(data, image, loaded=False)
    if not name or not os.path.isfile(name):
        return None
    with open(name, "rb") as file:
        return _same_image(file.read(), image, loaded=True)


def _frame(image: Image) -> int:
    """Return the number of the frame that a PIL image shows."""
    try:
        return image.tell()
    except (OSError, ValueError, AttributeError):  # the file was closed
        return 0


def _same_image(data: bytes, image: Image, *, loaded: bool) -> bytes | None:
    """Return the bytes of a file if they are this image: by its header, or by its pixels if these are decoded."""
    try:
        stored = open_image(_checked(data), format_of(data))
        same = (stored.size, stored.mode) == (image.size, image.mode)
        return data if same and (not loaded or stored.tobytes() == image.tobytes()) else None
    except FormatError:
        return None


def _save(image: Image, form: str, quality: int) -> bytes:
    """Encode a PIL image; its EXIF orientation and colour profile are kept."""
    image.load()  # a TIFF image is turned upright by this
    options: dict[str, Any] = {"quality": quality} if form in ("JPEG", "WEBP") else {}
    if form in ("JPEG", "PNG", "WEBP", "TIFF"):
        turned = valid_orientation(image.getexif().get(0x0112)) > 1
        options |= {"exif": image.getexif()} if turned else {}
        profile = image.info.get("icc_profile")
        options |= {"icc_profile": profile} if profile else {}
    file = io.BytesIO()
    try:
        image.save(file, form, **options)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"cannot store a {image.mode} image of size {image.size} as {form}: {error}") from error
    return file.getvalue()
