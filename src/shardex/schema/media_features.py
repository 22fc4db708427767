"""Features of images, audio and video: a field holds encoded bytes, and its feature says what they are.

A file stores the bytes of a JPEG, a FLAC or an MP4 untouched; the options of the feature say how values that are not
encoded yet become bytes, and how the bytes are decoded. Frozen dataclasses; room `media` encodes and decodes, `fit`
converts values.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

from shardex.errors import SchemaError
from shardex.schema.leaf_features import Bytes

IMAGE_MODES = ("RGB", "L", "RGBA")
_IMAGE_FORMATS = ("png", "jpeg", "webp", "tiff", "bmp", "gif")
_SHORT_FORMATS = {"jpg": "jpeg", "tif": "tiff"}
_AUDIO_FORMATS = ("flac", "wav", "ogg", "mp3")
_SAMPLINGS = ("uniform", "start", "center", "random")


@dataclass(frozen=True, slots=True, repr=False)
class Media(Bytes):
    """Base class of images, audio and video: encoded bytes that samples hold decoded, unless `decode` is False.

    The JSON form holds only options that are not the default, so that a later option changes no fingerprint.
    """

    kind: ClassVar[str] = "media"
    decode: bool = dataclasses.field(default=True, kw_only=True)

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
    """A sound: stored as FLAC, WAV, MP3, ..., decoded to a float32 array of samples and channels.

    It is decoded to `rate` samples per second (None: the rate of the file), with `mono` to one channel. Arrays that are
    written are encoded as `format`.

    >>> str(Audio()), str(Audio(16000, mono=True))
    ('audio', 'audio(rate=16000, mono=True)')
    """

    kind: ClassVar[str] = "audio"
    rate: int | None = None
    mono: bool = False
    format: str = "flac"

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _checked_count(self.rate, "a rate in samples per second"))
        if not isinstance(self.mono, bool):
            raise SchemaError(f"expected mono to be True or False, got {self.mono!r}")
        _one_of(self.format, _AUDIO_FORMATS, "formats")
        self._check_decode()


@dataclass(frozen=True, slots=True, repr=False)
class Video(Media):
    """A video: stored as MP4, WebM, ..., decoded to a uint8 array of frames, height, width and channels.

    `frames` is the number of decoded frames (None: all), `stride` the distance between them; `sampling` says which:
    "uniform" (over the whole video), "start", "center" or "random". Frames are resized to `size` (height, width).

    >>> str(Video()), str(Video(frames=8, size=(112, 112)))
    ('video', 'video(frames=8, size=(112, 112))')
    """

    kind: ClassVar[str] = "video"
    frames: int | None = None
    stride: int = 1
    sampling: str = "uniform"
    size: tuple[int, int] | None = None

    if TYPE_CHECKING:  # at run time the one of the dataclass

        def __init__(
            self,
            frames: int | None = None,
            stride: int = 1,
            sampling: str = "uniform",
            size: SequenceOf[SupportsIndex] | None = None,
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
        self._check_decode()


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
