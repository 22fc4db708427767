"""`Audio`: a sound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from shardex.errors import SchemaError
from shardex.features.media import Media, check_begin, checked_count, one_of
from shardex.media import encode_audio

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
        return encode_audio(value, self.format, rate=self.rate)

    def array_of_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a tensor, whose frames are last."""
        return array.T

    def hf_options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the rate and the number of channels, and the names of our options that they hold."""
        return {"sampling_rate": self.rate, "num_channels": 1 if self.mono else None}, ("rate", "mono")
