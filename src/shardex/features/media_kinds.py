"""`Image`, `Audio` and `Video`: kinds of media. `media` has what they share."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardex import media
from shardex.errors import SchemaError
from shardex.features.feature import Feature
from shardex.features.media import Media, check_begin, checked_count, checked_size, is_pil_image, one_of

_NUMBER_MODES = ("P", "I;16")
IMAGE_MODES = ("RGB", "L", "RGBA", *_NUMBER_MODES)
_IMAGE_FORMATS = ("png", "jpeg", "webp", "tiff", "bmp", "gif")
_LOSSLESS_FORMATS = ("png", "tiff", "bmp")
_SHORT_FORMATS = {"jpg": "jpeg", "tif": "tiff"}
_PIL_MODES = {"L": "L", "1": "L", "RGBA": "RGBA", "LA": "RGBA", "PA": "RGBA", "I;16": None, "I": None, "F": None}
"""Modes of images of PIL, and those to which they are decoded without loss; for all others it is RGB."""


@dataclass(frozen=True, slots=True, repr=False)
class Image(Media):
    """An image: stored as JPEG, PNG, WebP, ..., decoded to a uint8 array of height, width and channels.

    `mode` is what it is decoded to: "RGB", "L" (grey), "RGBA", or None for what the file has. "P" is for masks: the
    numbers that the file stores, indices of a palette or grey values, which are never interpolated; "I;16" is the same
    for 16 bits (uint16). A decoded image is resized to `size` (height, width). Arrays that are written are encoded as
    `format`; bytes, files and PIL images keep the encoding that they have.

    >>> str(Image()), str(Image("L", (28, 28))), Image(format="jpg").format
    ('image', "image(mode='L', size=(28, 28))", 'jpeg')
    """

    kind: ClassVar[str] = "image"
    extensions: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("jpg", "jpeg", "jfif"), "jpeg"),
        **dict.fromkeys(("tif", "tiff"), "tiff"),
        **{name: name for name in ("png", "webp", "bmp", "gif")},
        **dict.fromkeys(("ppm", "pgm"), "png"),
    }
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
        object.__setattr__(self, "size", checked_size(self.size))
        given = _SHORT_FORMATS.get(str(self.format), self.format)
        known = _LOSSLESS_FORMATS if self.mode in _NUMBER_MODES else _IMAGE_FORMATS
        object.__setattr__(self, "format", one_of(given, known, "formats"))
        self._check_decode()

    @property
    def decoded_dtype(self) -> str:
        """The dtype of pixels."""
        return "uint16" if self.mode == "I;16" else "uint8"

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return the feature of the class of images of PIL."""
        is_pil = isinstance(hint, type) and (hint.__module__, hint.__name__) == ("PIL.Image", "Image")
        return cls() if is_pil else None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of an image of PIL, or of the path of a file."""
        return cls(_PIL_MODES.get(value.mode, "RGB")) if is_pil_image(value) else cls._of_path(value)

    def join(self, other: Feature) -> Feature | None:
        """Return the mode that holds both."""
        if not isinstance(other, Image) or {self.mode, other.mode} & {*_NUMBER_MODES}:
            return None
        mode = next(mode for mode in (None, "RGBA", "RGB", "L") if mode in (self.mode, other.mode))
        return Image(mode, format=self.format if self.format == other.format else "png")

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the bytes of an image."""
        if type(value) is bytes and (stored or media.is_whole_jpeg(value, media.MAX_PIXELS)):
            return value  # the common case, in half the time
        return Media.fit(self, value, stored=stored)

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of an image."""
        if isinstance(value, np.ndarray) and value.dtype == np.uint16 and self.mode not in (None, "I;16"):
            raise SchemaError(f"expected uint8 for mode {self.mode!r}, got uint16 (mode='I;16' keeps 16 bits)")
        return media.encode_image(value, self.format, mode=self.mode)

    def array_of_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a tensor, which may be grey."""
        return array if array.ndim == 2 and array.dtype == np.uint8 else Media.array_of_tensor(self, array)

    def hf_options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the mode, and the name of our option that it holds."""
        return {"mode": self.mode}, ("mode",)


_AUDIO_FORMATS = ("flac", "wav", "ogg", "mp3")
WINDOW_SAMPLINGS = ("start", "center", "random")
_AUDIO_PADS = ("error", "zero", "loop")


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
    extensions: ClassVar[Mapping[str, str]] = {
        **{name: name for name in _AUDIO_FORMATS},
        **dict.fromkeys(("opus", "aif", "aiff"), "flac"),
    }
    rate: int | None = None
    mono: bool = False
    format: str = "flac"
    frames: int | None = None
    sampling: str = "start"
    begin: int = 0
    pad: str = "error"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", checked_count(self.rate, "a rate in frames per second"))
        if not isinstance(self.mono, bool):
            raise SchemaError(f"expected mono to be True or False, got {self.mono!r}")
        one_of(self.format, _AUDIO_FORMATS, "formats")
        object.__setattr__(self, "frames", checked_count(self.frames, "a number of frames"))
        one_of(self.sampling, WINDOW_SAMPLINGS, "samplings")
        one_of(self.pad, _AUDIO_PADS, "values of pad")
        check_begin(self)
        self._check_decode()

    @property
    def decoded_dtype(self) -> str:
        """The dtype float32."""
        return "float32"

    def takes_mapping(self, value: Mapping[str, Any]) -> bool:
        """Return True for a mapping with an array and a rate, as samples of Hugging Face have it."""
        return value.get("array") is not None

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of a sound."""
        return media.encode_audio(value, self.format, rate=self.rate)

    def array_of_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a tensor, whose frames are last."""
        return array.T

    def hf_options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the rate and the number of channels, and the names of our options that they hold."""
        return {"sampling_rate": self.rate, "num_channels": 1 if self.mono else None}, ("rate", "mono")


_VIDEO_FORMATS = ("mp4", "mkv")
_SPREAD_SAMPLINGS = ("uniform", "ends")
_SAMPLINGS = (*_SPREAD_SAMPLINGS, *WINDOW_SAMPLINGS)
_VIDEO_PADS = ("error", "repeat", "loop")


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
    extensions: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg"), "mp4"
    )
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
        object.__setattr__(self, "frames", checked_count(self.frames, "a number of frames"))
        object.__setattr__(self, "stride", checked_count(self.stride, "a stride"))
        if self.stride is None:
            raise SchemaError("expected a stride of 1 or more, got None")
        one_of(self.sampling, _SAMPLINGS, "samplings")
        object.__setattr__(self, "size", checked_size(self.size))
        one_of(self.pad, _VIDEO_PADS, "values of pad")
        one_of(self.format, _VIDEO_FORMATS, "formats")
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 < self.rate <= 1000:
            raise SchemaError(f"expected a rate above 0 and up to 1000 frames per second, got {self.rate!r}")
        if self.frames is not None and self.sampling in _SPREAD_SAMPLINGS and self.stride != 1:
            raise SchemaError(
                f"expected no stride with sampling={self.sampling!r}, which spreads {self.frames} frames over the "
                f"whole video, got {self.stride}: give sampling='start', 'center' or 'random'"
            )
        check_begin(self)
        self._check_decode()

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of a video."""
        return media.encode_video(value, self.format, rate=self.rate)
