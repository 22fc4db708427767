"""Features of images, audio and video, and the conversion of their values to the bytes that are stored.

A file stores the bytes of a JPEG, a FLAC or an MP4 untouched; the options of the feature say how values that are not
encoded yet become bytes, and how the bytes are decoded. Room `media` encodes and decodes.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np

from shardex.errors import MissingExtraError, SchemaError, ShardexError
from shardex.features.leaf_features import Bytes
from shardex.media import MAX_PIXELS, encode_audio, encode_image, encode_video, is_whole_jpeg

IMAGE_MODES = ("RGB", "L", "RGBA")
_IMAGE_FORMATS = ("png", "jpeg", "webp", "tiff", "bmp", "gif")
_SHORT_FORMATS = {"jpg": "jpeg", "tif": "tiff"}
_AUDIO_FORMATS = ("flac", "wav", "ogg", "mp3")
_VIDEO_FORMATS = ("mp4", "mkv")
_WINDOW_SAMPLINGS = ("start", "center", "random")
_SPREAD_SAMPLINGS = ("uniform", "ends")
_SAMPLINGS = (*_SPREAD_SAMPLINGS, *_WINDOW_SAMPLINGS)
_AUDIO_PADS = ("error", "zero", "loop")
_VIDEO_PADS = ("error", "repeat", "loop")


@dataclass(frozen=True, slots=True, repr=False)
class Media(Bytes):
    """Base class of images, audio and video: encoded bytes that samples hold decoded, unless `decode` is False.

    The JSON form holds only options that are not the default, so that a later option changes no fingerprint.
    """

    kind: ClassVar[str] = "media"
    decode: bool = dataclasses.field(default=True, kw_only=True)

    @property
    def decoded_dtype(self) -> str:
        """Dtype of decoded values; that of images without a mode may be another one."""
        return "float32" if self.kind == "audio" else "uint8"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options_text()})"

    def __str__(self) -> str:
        options = self._options_text()
        return f"{self.kind}({options})" if options else self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which `Features.from_json` reads."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self._options().items()}
        return {"kind": self.kind, **plain}

    def _options(self) -> dict[str, Any]:
        """Return the options that are not the default."""
        fields = sorted(dataclasses.fields(self), key=lambda one: one.name == "decode")  # last
        values = {one.name: (getattr(self, one.name), one.default) for one in fields}
        return {name: value for name, (value, default) in values.items() if value != default}

    def _options_text(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items())

    def _check_decode(self) -> None:
        if not isinstance(self.decode, bool):
            raise SchemaError(f"expected decode to be True or False, got {self.decode!r}")


@dataclass(frozen=True, slots=True, repr=False)
class Image(Media):
    """An image: stored as JPEG, PNG, WebP, ..., decoded to a uint8 array of height, width and channels.

    `mode` is what it is decoded to: "RGB", "L" (grey), "RGBA", or None for what the file has. A decoded image is
    resized to `size` (height, width). Arrays that are written are encoded as `format`; bytes, files and PIL images keep
    the encoding that they have.

    >>> str(Image()), str(Image("L", (28, 28))), Image(format="jpg").format
    ('image', "image(mode='L', size=(28, 28))", 'jpeg')
    """

    kind: ClassVar[str] = "image"
    mode: str | None = "RGB"
    size: tuple[int, int] | None = None
    format: str = "png"

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self,
            mode: str | None = "RGB",
            size: SequenceOf[SupportsIndex] | None = None,
            format: str = "png",
            *,
            decode: bool = True,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in IMAGE_MODES:
            raise SchemaError(f"expected one of the modes {', '.join(IMAGE_MODES)} or None, got {self.mode!r}")
        object.__setattr__(self, "size", _checked_size(self.size))
        given = _SHORT_FORMATS.get(str(self.format), self.format)
        object.__setattr__(self, "format", _one_of(given, _IMAGE_FORMATS, "formats"))
        self._check_decode()


@dataclass(frozen=True, slots=True, repr=False)
class Audio(Media):
    """A sound: stored as FLAC, WAV, MP3, ..., decoded to a float32 array of frames and channels.

    It is decoded to `rate` frames per second (None: the rate of the file), with `mono` to one channel. `frames` is the
    length of the decoded window (None: all); `sampling` says where it is: "start" (at frame `begin`), "center" or
    "random" (in a loader); `pad` what follows if the sound is shorter: "error", "zero" or "loop". Arrays that are
    written have the shape (frames,) or (frames, channels) and this rate, and are encoded as `format`.

    >>> str(Audio()), str(Audio(16000, mono=True))
    ('audio', 'audio(rate=16000, mono=True)')
    """

    kind: ClassVar[str] = "audio"
    rate: int | None = None
    mono: bool = False
    format: str = "flac"
    frames: int | None = None
    sampling: str = "start"
    begin: int = 0
    pad: str = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _checked_count(self.rate, "a rate in frames per second"))
        if not isinstance(self.mono, bool):
            raise SchemaError(f"expected mono to be True or False, got {self.mono!r}")
        _one_of(self.format, _AUDIO_FORMATS, "formats")
        object.__setattr__(self, "frames", _checked_count(self.frames, "a number of frames"))
        _one_of(self.sampling, _WINDOW_SAMPLINGS, "samplings")
        _one_of(self.pad, _AUDIO_PADS, "values of pad")
        _check_begin(self)
        self._check_decode()


@dataclass(frozen=True, slots=True, repr=False)
class Video(Media):
    """A video: stored as MP4, WebM, ..., decoded to a uint8 array of frames, height, width and channels (RGB).

    `frames` is the number of decoded frames (None: all), `stride` the distance between them; `sampling` says which:
    "uniform" (over the whole video), "ends" (the same, from the first to the last frame), "start" (from frame `begin`
    on), "center" or "random" (in a loader); `pad` what follows if there are fewer: "error", "repeat" (the last one) or
    "loop". Frames are resized to `size` (height, width). Arrays that are written have `rate` frames per second and are
    encoded as `format`: "mp4" (H.264) or "mkv" (FFV1, which keeps every pixel).

    >>> str(Video()), str(Video(frames=8, size=(112, 112)))
    ('video', 'video(frames=8, size=(112, 112))')
    """

    kind: ClassVar[str] = "video"
    frames: int | None = None
    stride: int = 1
    sampling: str = "uniform"
    size: tuple[int, int] | None = None
    begin: int = 0
    pad: str = "error"
    format: str = "mp4"
    rate: float = 25

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self,
            frames: int | None = None,
            stride: int = 1,
            sampling: str = "uniform",
            size: SequenceOf[SupportsIndex] | None = None,
            begin: int = 0,
            pad: str = "error",
            format: str = "mp4",
            rate: float = 25,
            *,
            decode: bool = True,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "frames", _checked_count(self.frames, "a number of frames"))
        object.__setattr__(self, "stride", _checked_count(self.stride, "a stride"))
        if self.stride is None:
            raise SchemaError("expected a stride of 1 or more, got None")
        _one_of(self.sampling, _SAMPLINGS, "samplings")
        object.__setattr__(self, "size", _checked_size(self.size))
        _one_of(self.pad, _VIDEO_PADS, "values of pad")
        _one_of(self.format, _VIDEO_FORMATS, "formats")
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 < self.rate <= 1000:
            raise SchemaError(f"expected a rate above 0 and up to 1000 frames per second, got {self.rate!r}")
        if self.frames is not None and self.sampling in _SPREAD_SAMPLINGS and self.stride != 1:
            raise SchemaError(
                f"expected no stride with sampling={self.sampling!r}, which spreads {self.frames} frames over the "
                f"whole video, got {self.stride}: give sampling='start', 'center' or 'random'"
            )
        _check_begin(self)
        self._check_decode()


def _check_begin(feature: Audio | Video) -> None:
    """Check where frames begin; "center" and "random" say so themselves, and "uniform" frames begin at the first."""
    begin = feature.begin
    if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
        raise SchemaError(f"expected begin to be a frame number of 0 or more, got {begin!r}")
    if begin and feature.sampling != "start" and (feature.frames is not None or feature.sampling != "uniform"):
        raise SchemaError(
            f"expected begin only with sampling='start', got begin={begin}, sampling={feature.sampling!r}"
        )


# -- values ---------------------------------------------------------------------------------------------------


class _NoMedia:
    """Type of `NO_MEDIA`."""

    def __repr__(self) -> str:
        return "NO_MEDIA"


NO_MEDIA = _NoMedia()
"""The value of a deleted sample, which is stored as no bytes and never read."""


def fit_media(value: Any, feature: Media, *, stored: bool = False) -> Any:
    """Return the bytes that are stored for a value; `SchemaError` if they are damaged or the value does not fit.

    Bytes are checked and returned untouched; a path is read, a mapping as that of Hugging Face has "bytes" or a "path";
    decoded values are encoded. `stored` values come from rows: bytes, which are not checked, or what they decode to.

    >>> fit_media(np.zeros((2, 3), np.uint8), Image("L"))[1:4], fit_media(b"JPEG", Image(), stored=True)
    (b'PNG', b'JPEG')
    >>> fit_media(b"JPEG", Image())
    Traceback (most recent call last):
    shardex.errors.SchemaError: expected an image...
    """
    if type(value) is bytes and type(feature) is Image and (stored or is_whole_jpeg(value, MAX_PIXELS)):
        return value  # the common case, in half the time
    if value is NO_MEDIA:
        return b""
    if isinstance(value, Mapping) and not (isinstance(feature, Audio) and value.get("array") is not None):
        value = _of_mapping(value, feature)
    if stored and value is not None and not isinstance(value, str | os.PathLike | bytearray | memoryview):
        return value
    if stored:
        return _stored_bytes(value, feature)
    try:
        return _encoded(value, feature)
    except (SchemaError, MissingExtraError):
        raise
    except ShardexError as error:
        raise SchemaError(str(error)) from error


def is_pil_image(value: Any) -> bool:
    """Return whether a value is an image of PIL, without an import of PIL."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def _stored_bytes(value: Any, feature: Media) -> bytes:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SchemaError(f"expected the bytes of {feature}, got {_described(value)}")


def _described(value: Any) -> str:
    return "none" if value is None else f"{type(value).__name__} {value!r}"[:80]


def _of_mapping(value: Mapping[str, Any], feature: Media) -> Any:
    """Return the bytes or the path of a mapping, as samples of Hugging Face have it."""
    if (found := value.get("bytes")) is None:
        found = value.get("path")
    if found is None:
        raise SchemaError(f'expected a mapping with "bytes" or a "path" for {feature}, got {_described(value)}')
    return found


def _encoded(value: Any, feature: Media) -> bytes:
    if value is None:
        raise SchemaError(f"expected {feature}, got none (declare a field that may be missing as optional)")
    if is_tensor(value):
        value = channels_last(value, feature)
    if isinstance(feature, Image):
        if isinstance(value, np.ndarray) and value.dtype == np.uint16 and feature.mode is not None:
            raise SchemaError(f"expected uint8 for mode {feature.mode!r}, got uint16 (mode=None keeps 16 bits)")
        return encode_image(value, feature.format, mode=feature.mode)
    if isinstance(feature, Audio):
        return encode_audio(value, feature.format, rate=feature.rate)
    if isinstance(feature, Video):
        return encode_video(value, feature.format, rate=feature.rate)
    raise SchemaError(f"expected an image, audio or video, got the feature {feature!r}")


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor of torch, without an import of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def channels_last(tensor: Any, feature: Media) -> np.ndarray[Any, Any]:
    """Return the array of a tensor, whose channels are before height and width, as torch has images and frames.

    Sounds have them first too.
    """
    array: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    if isinstance(feature, Audio):
        return array.T
    grey = array.ndim == 2 and isinstance(feature, Image)
    if array.dtype != np.uint8 or not (grey or (array.ndim > 2 and array.shape[-3] in (1, 3, 4))):
        raise SchemaError(
            f"expected a tensor of uint8 with the channels first, such as (3, height, width), for {feature}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array if grey else np.moveaxis(array, -3, -1)


# -- options --------------------------------------------------------------------------------------------------


def _one_of(given: Any, known: tuple[str, ...], what: str) -> str:
    if given not in known:
        raise SchemaError(f"expected one of the {what} {', '.join(known)}, got {given!r}")
    return str(given)


def _checked_count(given: Any, what: str) -> int | None:
    """Return a whole number of 1 or more, or None."""
    if given is None:
        return None
    try:
        count = operator.index(given)
    except TypeError:
        count = 0
    if count < 1 or isinstance(given, bool):
        raise SchemaError(f"expected {what} of 1 or more, got {given!r}")
    return count


def _checked_size(given: Any) -> tuple[int, int] | None:
    """Return a height and a width, or None."""
    if given is None:
        return None
    try:
        height, width = map(operator.index, given)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise SchemaError(f"expected a size such as (height, width), both 1 or more, got {given!r}")
    return height, width


# -- extensions of files ----------------------------------------------------------------------------------------

_OF_EXTENSION: dict[str, Media] = {
    **dict.fromkeys(("jpg", "jpeg", "jfif"), Image(format="jpeg")),
    **dict.fromkeys(("tif", "tiff"), Image(format="tiff")),
    **{name: Image(format=name) for name in ("png", "webp", "bmp", "gif")},
    **dict.fromkeys(("ppm", "pgm"), Image()),
    **{name: Audio(format=name) for name in _AUDIO_FORMATS},
    **dict.fromkeys(("opus", "aif", "aiff"), Audio()),
    **dict.fromkeys(("mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg"), Video()),
}


def media_of_extension(extension: str) -> Media | None:
    """Return the feature of files with this extension, by its last part; None if they are no media.

    >>> media_of_extension("left.JPG"), media_of_extension("json")
    (Image(format='jpeg'), None)
    """
    return _OF_EXTENSION.get(extension.rpartition(".")[2].lower())


def extensions_of_media(feature: Media) -> list[str]:
    """Return the extensions of files that a feature describes; first the one that its arrays are encoded as.

    >>> extensions_of_media(Audio(format="wav"))
    ['wav', 'flac', 'ogg', 'mp3', 'opus', 'aif', 'aiff']
    """
    found = [name for name, one in _OF_EXTENSION.items() if type(one) is type(feature)]
    return sorted(found, key=lambda name: getattr(_OF_EXTENSION[name], "format", "") != getattr(feature, "format", ""))
