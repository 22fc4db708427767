"""`Video`: a video."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

from shardex.errors import SchemaError
from shardex.features.media import Media, check_begin, checked_count, checked_size, one_of
from shardex.features.media_audio import WINDOW_SAMPLINGS
from shardex.media import encode_video

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
        return encode_video(value, self.format, rate=self.rate)
