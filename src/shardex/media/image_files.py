"""Formats of image files: recognised by their first bytes, described by their headers, opened with Pillow.

Only the formats in `FORMATS` are read, each by its own plugin: some other plugins of Pillow start programs. Their own
warnings about many pixels are replaced by one limit, which is checked before pixels are decoded.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

from shardex.errors import FormatError, MissingExtraError, ShardexError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

Buffer = bytes | bytearray | memoryview

MAX_PIXELS: Final = 178_956_970
"""Images with more pixels are refused unless a larger limit is given: a few kilobytes can claim any size. This is the
number above which Pillow raises an error, too."""

FORMATS: Final = {
    "jpeg": ("JpegImagePlugin", "JpegImageFile"),
    "png": ("PngImagePlugin", "PngImageFile"),
    "webp": ("WebPImagePlugin", "WebPImageFile"),
    "gif": ("GifImagePlugin", "GifImageFile"),
    "bmp": ("BmpImagePlugin", "BmpImageFile"),
    "tiff": ("TiffImagePlugin", "TiffImageFile"),
    "ppm": ("PpmImagePlugin", "PpmImageFile"),
    "avif": ("AvifImagePlugin", "AvifImageFile"),
    "jpeg2000": ("Jpeg2KImagePlugin", "Jpeg2KImageFile"),
}
"""Module and class of Pillow that read each format."""

JPEG_MAGIC: Final = b"\xff\xd8\xff"
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"II+\0", "tiff"),
    (b"MM\0+", "tiff"),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000"),
    (b"\xff\x4f\xff\x51", "jpeg2000"),
    *((b"P%d" % kind, "ppm") for kind in range(1, 7)),
)

_ORIENTATION = 0x0112
"""The EXIF tag that says how the stored rows and columns are to be shown."""
_SIDEWAYS = 5
"""From this EXIF orientation on, rows and columns are exchanged."""
_INTEGERS = {3: 2, 4: 4, 8: 2, 9: 4}
"""Types of EXIF values that are integers, and their sizes in bytes."""

_CHUNK = struct.Struct(">I4s")
_JPEG_END = b"\xff\xd9"
_TRAILING = 4096
"""In so many last bytes the end marker of a file is looked for: some tools append bytes of their own."""


class ImageInfo(NamedTuple):
    """What the header of an image file says.

    `height` and `width` are those of the decoded image, after its EXIF orientation is applied; `mode` is Pillow's name
    for the kind of pixels that the file stores: "RGB", "L" (grey), "P" (palette), "CMYK", "I;16" (16 bit grey), ...
    """

    format: str
    height: int
    width: int
    mode: str
    orientation: int = 1

    @property
    def sideways(self) -> bool:
        """Whether the EXIF orientation exchanges height and width."""
        return self.orientation >= _SIDEWAYS


def image_info(data: Buffer) -> ImageInfo:
    """Return format, size and kind of pixels of an image file, from its header.

    :raises FormatError: if the bytes are not an image of a known format

    >>> import base64
    >>> image_info(base64.b64decode("R0lGODlhAwACAIAAAP///wAAACwAAAAAAwACAAACA4RvBQA7"))
    ImageInfo(format='gif', height=2, width=3, mode='P', orientation=1)
    """
    form = format_of(data)
    if form == "jpeg":
        with suppress(MissingExtraError):  # Pillow reads headers, too; pixels are decoded by simplejpeg only
            info = jpeg_info(data)
            if info is not None:
                return info
    return info_of(open_image(data, form), form, data)


def format_of(data: Buffer) -> str:
    """Return the name of the format of an image file, which its first bytes show.

    :raises FormatError: if no known format begins like that
    """
    if data[:3] == JPEG_MAGIC:
        return "jpeg"
    head = bytes(data[:32])
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp" and (b"avif" in head[8:] or b"avis" in head[8:]):
        return "avif"
    found = f"{len(data)} bytes that begin with {head[:12]!r}" if head else "no bytes"
    raise FormatError(f"expected an image file ({', '.join(FORMATS)}), found {found}")


def jpeg_info(data: Buffer) -> ImageInfo | None:
    """Return what the header of a JPEG file says, or None if simplejpeg does not understand it."""
    try:
        height, width, space, _ = simplejpeg().decode_jpeg_header(data)
    except ValueError:
        return None
    turn = jpeg_orientation(data)
    if turn >= _SIDEWAYS:
        height, width = width, height
    return ImageInfo("jpeg", int(height), int(width), JPEG_MODES.get(str(space), "CMYK"), turn)


def is_whole_jpeg(data: bytes, max_pixels: int) -> bool:
    """Return True if bytes are a JPEG file with a readable header and an end; False if it takes more to tell."""
    if data[:3] != JPEG_MAGIC or not data.endswith(_JPEG_END):
        return False
    try:
        height, width, _, _ = simplejpeg().decode_jpeg_header(data)
    except (ValueError, MissingExtraError):
        return False
    return bool(0 < height * width <= max_pixels)


JPEG_MODES: Final = {"RGB": "RGB", "YCbCr": "RGB", "Gray": "L"}
"""Pixels of JPEG files that simplejpeg decodes, and Pillow's names. CMYK it decodes as if all files were inverted."""


def jpeg_orientation(data: Buffer) -> int:
    """Return the EXIF orientation of a JPEG file, 1 if it has none.

    The segments in front of the pixels are short and few, so this is far quicker than opening the file with Pillow.
    """
    at, last = 2, len(data) - 10
    while at <= last and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            return _exif_orientation(bytes(data[at + 10 : at + 2 + (data[at + 2] << 8 | data[at + 3])]))
        if marker == 0xDA:  # the pixels
            break
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return 1


def _exif_orientation(block: bytes) -> int:
    """Return the orientation in the first directory of an EXIF block."""
    order: Any = {b"II": "little", b"MM": "big"}.get(block[:2])
    if order is None:
        return 1
    at = int.from_bytes(block[4:8], order)
    for entry in range(at + 2, at + 2 + 12 * int.from_bytes(block[at : at + 2], order), 12):
        tag = block[entry : entry + 12]
        if len(tag) == 12 and int.from_bytes(tag[:2], order) == _ORIENTATION:
            size = _INTEGERS.get(int.from_bytes(tag[2:4], order), 0)
            return valid_orientation(int.from_bytes(tag[8 : 8 + size], order))
    return 1


def valid_orientation(value: object) -> int:
    """Return an EXIF orientation, 1 for values that mean nothing."""
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def open_image(data: Buffer, form: str) -> ImageFile:
    """Open an image file of a known format with Pillow, which reads the header.

    :raises FormatError: if the header is damaged
    """
    module, name = FORMATS[form]
    plugin = _pillow(f"PIL.{module}")
    with pillow_errors(form, len(data)):
        return getattr(plugin, name)(io.BytesIO(data))  # type: ignore[no-any-return]


@contextmanager
def pillow_errors(form: str, size: int) -> Iterator[None]:
    """Turn what Pillow raises for damaged files into `FormatError`."""
    try:
        yield
    except (ShardexError, MemoryError):
        raise
    except Exception as error:  # plugins raise anything: SyntaxError, struct.error, EOFError, zlib.error, ...
        raise FormatError(f"expected a valid {form} image, found {size} bytes: {error}") from error


def info_of(image: ImageFile, form: str, data: Buffer) -> ImageInfo:
    """Describe an image that Pillow has opened; its pixels are not decoded."""
    turn = _pillow_orientation(image, form, data)
    width, height = image.size
    if turn >= _SIDEWAYS:
        height, width = width, height
    return ImageInfo(form, height, width, image.mode, turn)


def _pillow_orientation(image: ImageFile, form: str, data: Buffer) -> int:
    """Return the EXIF orientation of an image that Pillow has opened, 1 if its EXIF block is damaged."""
    if form == "tiff":  # Pillow turns the image itself, and its size is already that of the turned image
        return 1
    if form == "png" and "exif" not in image.info and (block := _png_exif(bytes(data))):
        return _exif_orientation(block)
    try:
        # The method of the class for PNG files decodes all pixels, in case an EXIF block follows them.
        return valid_orientation(pillow_image().Image.getexif(image).get(_ORIENTATION))
    except Exception:  # as many kinds as for a damaged file
        return 1


def _png_exif(data: bytes) -> bytes | None:
    """Return the EXIF block of a PNG file wherever it is."""
    at, last = 8, len(data) - 8
    while at <= last:
        size, kind = _CHUNK.unpack_from(data, at)
        if kind == b"eXIf":
            return data[at + 8 : at + 8 + size]
        at += 12 + size
    return None


def has_end(data: bytes, form: str) -> bool:
    """Return False if the last bytes of a file may be missing; for some formats only decoding tells."""
    if form in ("jpeg", "jpeg2000"):
        return data.endswith(_JPEG_END) or data.rfind(_JPEG_END, -_TRAILING) >= 0
    if form == "png":
        return _png_has_end(memoryview(data))
    if form == "gif":
        return data.endswith(b";")
    if form == "webp":
        return len(data) >= 8 + int.from_bytes(data[4:8], "little")
    if form == "bmp":
        return len(data) >= int.from_bytes(data[2:6], "little") > 0
    if form == "avif":
        at = 0
        while 0 <= at < len(data) and (size := int.from_bytes(data[at : at + 4], "big")) > 1:
            at += size
        return at == len(data)
    return False


def _png_has_end(data: memoryview) -> bool:
    """Return whether a PNG file has its end; raise `FormatError` for a wrong checksum: Pillow ignores some."""
    at, last = 8, len(data) - 12
    while at <= last:
        size, kind = _CHUNK.unpack_from(data, at)
        wrong = crc32(data[at + 4 : at + 8 + size]).to_bytes(4, "big") != data[at + 8 + size : at + 12 + size]
        if wrong and kind[:1].isupper():  # a chunk that decoding needs
            found = f"{len(data)} bytes with a wrong checksum of the chunk {kind.decode('latin-1')} at byte {at}"
            raise FormatError(f"expected a valid png image, found {found}")
        if kind == b"IEND":
            return True
        at += 12 + size
    return False


def check_pixels(info: ImageInfo, max_pixels: int) -> None:
    """Raise `FormatError` if an image has more pixels than the limit, or none."""
    pixels = info.height * info.width
    if not 0 < pixels <= max_pixels:
        raise FormatError(
            f"expected an image of 1 to {max_pixels} pixels (max_pixels), "
            f"found a {info.format} header that says {info.height} x {info.width}"
        )


@cache
def simplejpeg() -> ModuleType:
    """Return the package simplejpeg, or raise the error that says how to install it."""
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        raise MissingExtraError("simplejpeg", "images", "decoding JPEG images") from None


@cache
def _pillow(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError("Pillow", "images", "reading images") from None


def pillow_image() -> Any:
    """Return the module `PIL.Image`, or raise the error that says how to install it."""
    return _pillow("PIL.Image")
