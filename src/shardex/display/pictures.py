"""What a value looks like: `picture_of` turns a value of a sample into a thumbnail, a plot or words.

In: a value as samples hold it (numbers, text, arrays, tensors, PIL images, encoded bytes) and its feature, if known.
Out: a `Thumbnail`, a `Plot`, `Words` or a `Failed`: small, whatever the size of the value. A value that cannot be
decoded gives a `Failed` with the message, so one bad image does not hide the others.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.display.plots import Plot, plot_of
from shardex.errors import FormatError, ShardexError
from shardex.features import Audio, ClassLabel, Feature, Image, Sequence, Video, unwrap_optional
from shardex.kernel import MISSING
from shardex.media import audio_info, decode_audio, decode_frames, decode_image, image_info

_FEW = 8
"""Arrays with fewer values along each axis are shown as numbers; more channels than this are an image."""
_CHANNELS = (1, 3, 4)
_FIRST_BYTES = 16
_MAX_FRAMES = 4_000_000
"""Frames of audio that are decoded."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small image: uint8 of height, width and 1, 3 or 4 channels."""

    pixels: Pixels
    note: str


@dataclass(frozen=True, slots=True)
class Words:
    """Text."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The message of an error, in the place of a value that could not be read or decoded."""

    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Return the picture of an error."""
        text = str(error) if isinstance(error, ShardexError) else f"{type(error).__name__}: {error}"
        return cls(text[:500])


Picture = Thumbnail | Plot | Words | Failed


def picture_of(value: Any, feature: Feature | None = None, *, side: int = 160, length: int = 300) -> Picture:
    """Return what a value looks like; never raises.

    :param side: most pixels of a thumbnail along each axis
    :param length: most characters of a text

    >>> picture_of(1, ClassLabel(("cat", "dog"))), picture_of("a" * 9, length=5), picture_of(np.arange(3))
    (Words(text='dog'), Words(text='aaaaa...'), Words(text='0 1 2'))
    >>> type(picture_of(np.sin(np.arange(100)))).__name__, picture_of(np.zeros((48, 64, 3), "uint8")).note
    ('Plot', '48 x 64')
    """
    if isinstance(value, Failed):
        return value
    try:
        with np.errstate(all="ignore"):  # numbers that are too large or missing
            found = _picture(value, None if feature is None else unwrap_optional(feature), side)
    except Exception as error:
        found = Failed.of(error)
    return Words(cut(found.text, length)) if isinstance(found, Words) else found


def _picture(value: Any, feature: Feature | None, side: int) -> Picture:
    if value is None or value is MISSING:
        return Words("none")
    value = _plain(value)
    if isinstance(feature, ClassLabel):
        return _label(value, feature)
    if isinstance(feature, Sequence) and isinstance(value, list | tuple) and _holds_pictures(feature.feature):
        return _first_of(value, feature.feature, side)
    if isinstance(value, bytes | bytearray | memoryview):
        return _of_bytes(bytes(value), feature, side)
    if isinstance(value, np.ndarray):
        return _waveform(value, feature.rate) if isinstance(feature, Audio) else _of_array(value, side)
    if isinstance(value, list | tuple) and len(value) >= _FEW and all(type(one) in (int, float) for one in value):
        return _of_array(np.array(value, np.float64), side)
    return Words(_REPR.repr(value) if isinstance(value, list | tuple | set | Mapping) else str(value))


class _Repr(reprlib.Repr):
    """The `repr` of nested values, with bounds for each level."""

    def repr_ndarray(self, value: NDArray[Any], level: int) -> str:
        """Return dtype and shape of an array."""
        return _shape(value)

    def repr_bytes(self, value: bytes, level: int) -> str:
        """Return the number of bytes and the first ones."""
        return _bytes_text(value)


_REPR = _Repr()
_REPR.maxlevel, _REPR.maxlist, _REPR.maxtuple, _REPR.maxdict, _REPR.maxset = 4, 10, 10, 10, 10
_REPR.maxstring = _REPR.maxother = 100


def _plain(value: Any) -> Any:
    """Return tensors and PIL images as arrays, scalars of numpy as numbers; other values unchanged."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        tensor = value.detach().cpu()
        value = (tensor.float() if "bfloat" in str(tensor.dtype) else tensor).numpy()
    elif hasattr(value, "getbands") and hasattr(value, "convert"):
        value = np.asarray(value.convert({("L",): "L", ("1",): "L"}.get(value.getbands(), "RGB")))
        return value.reshape(*value.shape[:2], -1)
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.ndim):
        found = value if value.dtype.kind in "mM" else value.item()
        return str(found) if value.dtype.kind in "mM" else found
    return value


def _holds_pictures(feature: Feature) -> bool:
    return isinstance(unwrap_optional(feature), Image | Audio | Video)


def _label(value: Any, feature: ClassLabel) -> Words:
    if type(value) is int and 0 <= value < len(feature.names):
        return Words(feature.names[value])
    return Words(_shape(value) if isinstance(value, np.ndarray) else str(value))


def _first_of(values: Any, feature: Feature, side: int) -> Picture:
    """Return the picture of the first of several values, with their number."""
    if not values:
        return Words("none")
    found = _picture(values[0], unwrap_optional(feature), side)
    return _noted(found, f"1 of {len(values)}")


def _noted(picture: Picture, note: str) -> Picture:
    if isinstance(picture, Thumbnail):
        return Thumbnail(picture.pixels, f"{picture.note}, {note}")
    return (
        Plot(picture.lines, picture.low, picture.high, f"{picture.note}, {note}")
        if isinstance(picture, Plot)
        else picture
    )


# -- bytes ----------------------------------------------------------------------------------------------------


def _of_bytes(data: bytes, feature: Feature | None, side: int) -> Picture:
    if isinstance(feature, Audio):
        return _encoded_sound(data)
    if isinstance(feature, Video):
        return _noted(_image(decode_frames(data, [0])[0], side), "first frame")
    if isinstance(feature, Image):
        return _encoded_image(data, side)
    try:
        image_info(data)
    except FormatError:
        return Words(_bytes_text(data))
    return _encoded_image(data, side)


def _bytes_text(data: bytes) -> str:
    return f"{len(data):,} bytes {data[:_FIRST_BYTES].hex(' ')}{' ...' * (len(data) > _FIRST_BYTES)}"


def _encoded_image(data: bytes, side: int) -> Thumbnail:
    """Decode an image, of a large JPEG only what a thumbnail needs."""
    info = image_info(data)
    pixels = decode_image(data, None, min_size=(side, side))
    return Thumbnail(_image(pixels, side).pixels, f"{info.height} x {info.width}")


def _encoded_sound(data: bytes) -> Picture:
    """Return the waveform of audio, of a very long one only the begin."""
    info = audio_info(data)
    return _waveform(decode_audio(data, frames=min(info.frames, _MAX_FRAMES)), info.rate)


# -- arrays ---------------------------------------------------------------------------------------------------


def _shape(array: NDArray[Any]) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _of_array(array: NDArray[Any], side: int) -> Picture:
    """Return an image, a plot or numbers, by the shape of an array."""
    if not array.size or array.dtype.kind not in "biufc" or array.ndim > 4:
        return Words(_shape(array))
    if max(array.shape) < _FEW and array.ndim < 3:
        return Words(" ".join(f"{one:.4g}" for one in array.ravel().tolist()))
    if array.ndim == 1 or (array.ndim == 2 and min(array.shape) <= _FEW and array.dtype != np.bool_):
        return plot_of(array.T if array.ndim == 2 and array.shape[0] < array.shape[1] else array, _noted_array(array))
    if array.ndim == 4:
        return _noted(_of_array(array[0], side), f"1 of {len(array)}")
    if array.ndim == 2:
        return _image(array[:, :, None], side)
    if array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = array.transpose(1, 2, 0)
    return _image(array, side) if array.shape[2] in _CHANNELS else Words(_shape(array))


def _noted_array(array: NDArray[Any]) -> str:
    """Return dtype and shape, and the first values if they are whole numbers, as those of tokens."""
    if array.ndim > 1 or array.dtype.kind not in "biu":
        return _shape(array)
    return f"{_shape(array)} {' '.join(map(str, array[:_FEW].tolist()))}{' ...' * (len(array) > _FEW)}"


def _waveform(array: NDArray[Any], rate: int | None) -> Picture:
    """Return the plot of audio: frames and channels."""
    if not array.size:
        return Words(_shape(array))
    if array.ndim == 2 and array.shape[0] <= _FEW < array.shape[1]:  # channels first, as tensors have them
        array = array.T
    channels = f", {array.shape[1]} channels" if array.ndim == 2 and array.shape[1] > 1 else ""
    seconds = f"{len(array) / rate:.2f} s at {rate:,} Hz" if rate else f"{len(array):,} frames"
    return plot_of(array, seconds + channels)


def _image(array: NDArray[Any], side: int) -> Thumbnail:
    """Return the thumbnail of an array of height, width and channels."""
    note = f"{array.shape[0]} x {array.shape[1]}"
    if array.dtype != np.uint8:
        note += f", {array.dtype}"
    return Thumbnail(_to_uint8(_shrink(array, side)), note)


def _shrink(array: NDArray[Any], side: int) -> NDArray[Any]:
    """Return an image with at most `side` pixels along each axis, which are means.

    >>> _shrink(np.arange(16.0).reshape(4, 4, 1), 2)[:, :, 0].tolist()
    [[2.5, 4.5], [10.5, 12.5]]
    """
    longest = max(array.shape[:2])
    if longest <= side:
        return array
    step = max(1, longest // (4 * side))  # four values along each axis are enough for a mean
    means = array[::step, ::step]
    for axis, size in enumerate(array.shape[:2]):
        count = means.shape[axis]
        starts = np.linspace(0, count, min(count, max(1, round(size * side / longest))), endpoint=False).astype(int)
        sizes = np.diff([*starts, count]).reshape((-1, 1, 1) if axis == 0 else (-1, 1))
        means = np.add.reduceat(
            means, starts, axis=axis, dtype=np.complex128 if array.dtype.kind == "c" else np.float64
        )
        means = means / sizes
    return means.round().astype(np.uint8) if array.dtype == np.uint8 else means


def _to_uint8(array: NDArray[Any]) -> Pixels:
    """Return pixels as they are, booleans and 0 to 1 as black to white, others from their lowest to their highest."""
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    values = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    shares = np.nan_to_num((values - low) / ((high - low) or 1.0), nan=0.0, posinf=1.0, neginf=0.0)
    return np.round(shares * 255).clip(0, 255).astype(np.uint8)


def cut(text: str, length: int) -> str:
    """Return a text of bounded length."""
    return text if len(text) <= length else f"{text[:length]}..."
