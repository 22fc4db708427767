"""Audio: bytes of WAV, FLAC, OGG or MP3 files <-> float32 arrays of frames and channels, by soundfile (libsndfile).

In: the bytes of a file; or an array, a path, bytes to encode. Out: arrays of shape (frames, channels); bytes. A frame
has one value for each channel. `resample` changes the rate, `frame_choice` says where a window begins, `containers`
tells files apart; features, rows and datasets are left to the rooms above.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, MissingExtraError, SchemaError, storage_errors
from shardex.media.containers import AUDIO_CONTAINERS, known_container
from shardex.media.frame_choice import at_least, begin_of_window, one_of
from shardex.media.mpeg_audio import with_length
from shardex.media.resample import MAX_REDUCTION, Frames, input_range, resample, resampled_length

MAX_AUDIO_BYTES = 2 << 30
"""Largest decoded audio, unless the caller allows more: three hours of one channel at 48 kHz."""
MAX_RATE = 1_000_000
_BLOCK = 1 << 16
"""Number of frames that are decoded and dropped at once."""
_LONG_MP3 = 60
"""Seconds of an MP3 file that are decoded and dropped rather than skipped: libmpg123 writes a warning for each skip."""
_ENCODINGS = {"flac": "FLAC", "wav": "WAV", "ogg": "OGG", "mp3": "MP3"}


@dataclass(frozen=True, slots=True)
class AudioInfo:
    """What the header of an audio file says."""

    format: str
    """wav, flac, ogg, mp3, aiff, ..."""
    encoding: str
    """How values are stored, in libsndfile's names: PCM_16, FLOAT, VORBIS, ..."""
    rate: int
    """Frames in a second."""
    channels: int
    frames: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.frames / self.rate


def audio_info(data: bytes) -> AudioInfo:
    """Return format, rate, channels and length of an audio file, without decoding it.

    >>> audio_info(encode_audio(np.zeros(800), rate=8000))
    AudioInfo(format='flac', encoding='PCM_24', rate=8000, channels=1, frames=800)
    """
    with _opened(data) as (file, info):
        file.close()
        return info


def decode_audio(
    data: bytes,
    *,
    rate: int | None = None,
    mono: bool = False,
    begin: int = 0,
    frames: int | None = None,
    sampling: str = "start",
    pad: str = "error",
    generator: np.random.Generator | None = None,
    max_bytes: int = MAX_AUDIO_BYTES,
) -> Frames:
    """Return audio as float32 of shape (frames, channels), with values from -1 to 1.

    :param rate: frames in a second of the result, at least 1/1000 of the rate of the file; None for that rate
    :param mono: take the mean of all channels; the result has one channel
    :param begin: first frame, counted at the rate of the result
    :param frames: number of frames; None for all that follow
    :param sampling: where a window of `frames` begins: "start" (at `begin`), "center" or "random" (by `generator`)
    :param pad: what follows where the audio has fewer frames: "error", "zero" (silence), "loop" (the same again)
    :param max_bytes: largest size of the decoded audio in memory

    >>> sound = encode_audio(np.zeros((800, 2)), rate=8000)
    >>> decode_audio(sound).shape, decode_audio(sound, rate=16000, mono=True, begin=100, frames=50).shape
    ((800, 2), (50, 1))
    """
    one_of(pad, ("error", "zero", "loop"), "pad")
    with _opened(data) as (file, info):
        new_rate = info.rate if rate is None else _reachable_rate(_checked_rate(rate), info.rate)
        total = resampled_length(info.frames, info.rate, new_rate)
        wanted = None if frames is None else at_least(frames, 1, "frames")
        first = begin_of_window(total, wanted or total, sampling, begin, generator)
        _check_window(total, first, wanted, pad)
        last = total if wanted is None else min(total, first + wanted)
        low, high = input_range(first, last, info.rate, new_rate)
        low, high = max(0, low), min(info.frames, high)
        _check_size(max(high - low, wanted or 0, last - first), info, max_bytes)
        values = _read(file, info, low, max(low, high))
    if mono and info.channels > 1:
        values = values.mean(axis=1, keepdims=True, dtype=np.float32)
    found = resample(values, info.rate, new_rate, first=low, window=(first, last))
    return found if wanted is None else _padded(found, wanted, pad)


def _check_window(total: int, begin: int, frames: int | None, pad: str) -> None:
    if begin > total or (begin and begin == total and frames):
        raise FormatError(f"expected audio with frames from number {begin} on, got {total} frames")
    if frames is not None and begin + frames > total and pad == "error":
        raise FormatError(
            f"expected audio with {frames} frames from number {begin} on, got {total} frames: "
            "give fewer frames, pad='zero' or pad='loop'"
        )
    if frames is not None and not total and pad == "loop":
        raise FormatError("expected audio with frames to repeat, got one without frames: pad='zero' gives silence")


def _check_size(frames: int, info: AudioInfo, max_bytes: int) -> None:
    size = frames * info.channels * 4
    if size > max_bytes:
        raise FormatError(
            f"expected audio of at most {max_bytes:,} bytes when decoded, got {frames:,} frames of {info.channels} "
            f"channels as the header of this {info.format} file says, {size:,} bytes: decode a window (begin, frames), "
            "or raise max_bytes"
        )


def _padded(values: Frames, frames: int, pad: str) -> Frames:
    """Return exactly `frames` frames."""
    if len(values) == frames:
        return values
    if pad == "loop":
        return np.resize(values, (frames, values.shape[1]))
    out = np.zeros((frames, values.shape[1]), np.float32)
    out[: len(values)] = values
    return out


class _Readable(io.BytesIO):
    """Bytes for libsndfile, which seeks before the begin in damaged files and cannot take an exception."""

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; stay where it is if that place is before the begin."""
        try:
            return super().seek(offset, whence)
        except (ValueError, OverflowError):
            return self.tell()


@contextmanager
def _opened(data: bytes) -> Iterator[tuple[Any, AudioInfo]]:
    """Open the bytes of an audio file; errors of the library in the block become errors that say what was found."""
    soundfile = _soundfile()
    container = _checked_container(data)
    readable = with_length(data) if container == "mp3" else data
    try:
        with soundfile.SoundFile(_Readable(readable)) as file:
            rate, channels = int(file.samplerate), int(file.channels)
            if not 0 < rate <= MAX_RATE:
                raise FormatError(f"expected a rate of 1 to {MAX_RATE} frames in a second, got {rate} in the header")
            yield file, AudioInfo(container, str(file.subtype), rate, channels, int(file.frames))
    except soundfile.SoundFileError as error:
        reason = getattr(error, "error_string", str(error)).strip().rstrip(".")
        raise FormatError(f"expected the bytes of a {container} file, got {len(data):,} bytes: {reason}") from error


def _soundfile() -> Any:
    """Return the module `soundfile`."""
    try:
        import soundfile
    except ImportError:
        raise MissingExtraError("soundfile", "audio", "audio") from None
    return soundfile


def _checked_container(data: bytes) -> str:
    """Return the container of an audio file that is complete, as far as its header says."""
    return known_container(data, "an audio file", AUDIO_CONTAINERS)


def _read(file: Any, info: AudioInfo, begin: int, end: int) -> Frames:
    """Return the frames `begin` to `end` of an open file."""
    skips = info.format != "ogg" and (info.format != "mp3" or begin > _LONG_MP3 * info.rate)
    if begin and skips:
        file.seek(begin)
    elif begin:
        # libsndfile finds other frames than those asked for in some Vorbis files, and not exact values in Opus files.
        _drop(file, info, begin)
    out = np.empty((end - begin, info.channels), np.float32)
    found = len(file.read(out=out)) if len(out) else 0
    if found < len(out):
        raise FormatError(
            f"expected {info.frames:,} frames, as the header of this {info.format} file says, got {begin + found:,}: "
            "the file is cut off"
        )
    return out


def _drop(file: Any, info: AudioInfo, frames: int) -> None:
    """Decode frames that are not needed, a block at a time."""
    block = np.empty((min(frames, _BLOCK), info.channels), np.float32)
    while frames > 0:
        read = len(file.read(out=block[:frames]))
        if not read:
            raise FormatError(f"expected {info.frames:,} frames as the header of this {info.format} file says: cut off")
        frames -= read


def encode_audio(value: Any, format: str = "flac", *, rate: int | None = None) -> bytes:
    """Return the bytes of an audio file; encoded bytes and the bytes of files stay as they are.

    An array has the shape (frames,) or (frames, channels). Integers keep their values (in FLAC up to 24 bits). Floats
    are stored as 24 bits in FLAC, which they must fit in (-1 to 1), and as float32 in WAV. An array without frames is
    stored as WAV in any case: the other encoders write no bytes for it.

    :param value: an array; (array, rate); a dict with "array" and "sampling_rate"; bytes; the path of a file
    :param rate: frames in a second of an array that comes without

    >>> decode_audio(encode_audio(np.array([0, 16384, -32768], "int16"), rate=8000)).ravel().tolist()
    [0.0, 0.5, -1.0]
    """
    if isinstance(value, str | os.PathLike):
        with storage_errors(value, "read"), open(value, "rb") as file:
            value = file.read()
    if isinstance(value, bytes | bytearray | memoryview):
        _check_bytes(data := bytes(value))
        return data
    if isinstance(value, dict) and "array" in value:
        value, rate = value["array"], value.get("sampling_rate", rate)
    elif isinstance(value, tuple) and len(value) == 2 and np.ndim(value[1]) == 0:
        value, rate = value
    one_of(format, tuple(_ENCODINGS), "format")
    if rate is None:
        raise SchemaError("expected a rate with the array: (array, 16000), or a feature such as Audio(rate=16000)")
    array = _checked_array(value)
    return _encode_array(array, _checked_rate(rate), format if len(array) else "wav")


def _check_bytes(data: bytes) -> None:
    """Check the bytes of an audio file; without soundfile, only their container."""
    try:
        audio_info(data)
    except MissingExtraError:
        _checked_container(data)


def _checked_rate(rate: Any) -> int:
    if at_least(rate, 1, "rate") > MAX_RATE:
        raise ArgumentError(f"expected a rate of at most {MAX_RATE} frames in a second, got {rate}")
    return int(rate)


def _reachable_rate(rate: int, found: int) -> int:
    if rate * MAX_REDUCTION < found:
        raise ArgumentError(
            f"expected a rate of at least {-(-found // MAX_REDUCTION)} frames in a second for audio of {found} "
            f"(1/{MAX_REDUCTION} of it), got {rate}"
        )
    return rate


def _checked_array(value: Any) -> NDArray[Any]:
    """Return an array of frames and channels of a dtype that an encoder takes."""
    array = np.asarray(value)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.dtype.kind not in "if" or array.dtype == np.int64:
        raise SchemaError(
            "expected audio as int16, int32 or float32 of shape (frames,) or (frames, channels), bytes or a path, "
            f"got {array.dtype} of shape {np.shape(value)}"
        )
    if array.shape[1] > 64 or not array.shape[1]:
        raise SchemaError(
            f"expected audio of shape (frames, channels) with 1 to 64 channels, got {np.shape(value)}: transpose it"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise SchemaError("expected audio of finite numbers, got NaN or infinite ones")
    return array


def _encode_array(array: NDArray[Any], rate: int, format: str) -> bytes:
    soundfile = _soundfile()
    if array.dtype.kind == "f" and format != "wav":
        largest = float(np.abs(array).max(initial=0))
        if largest > 1:
            raise SchemaError(
                f"expected audio from -1 to 1 for the format {format}, got values up to {largest:g}: "
                "scale it, or store it as wav"
            )
    values, encoding = _stored_values(array, format)
    out = io.BytesIO()
    try:
        soundfile.write(out, values, rate, format=_ENCODINGS[format], subtype=encoding)
    except (soundfile.SoundFileError, ValueError) as error:
        raise SchemaError(
            f"expected audio that {format} can hold, got {array.shape[1]} channels at rate {rate}: {error}"
        ) from error
    return out.getvalue()


def _stored_values(array: NDArray[Any], format: str) -> tuple[NDArray[Any], str | None]:
    """Return the values in the form that is given to the encoder, and the encoding that keeps them."""
    bits = array.dtype.itemsize * 8
    if array.dtype.kind == "i" and bits == 8:
        array, bits = array.astype(np.int16) * np.int16(256), 16
    if format in ("ogg", "mp3"):
        return array if array.dtype.kind == "i" else array.astype(np.float32), None
    if format == "wav":
        whole = array if array.dtype.kind == "i" else array.astype(np.float32)
        return whole, {"i": f"PCM_{bits}", "f": "FLOAT"}[array.dtype.kind]
    if array.dtype.kind == "f":
        # libsndfile scales by 2**23 - 1 when it writes and by 2**23 when it reads; this way values come back unchanged.
        whole = np.clip(np.rint(array.astype(np.float64) * 2**23), -(2**23), 2**23 - 1).astype(np.int32)
        return whole * np.int32(256), "PCM_24"
    if bits == 32 and (array & 0xFF).any():
        raise SchemaError("expected integers of 24 bits (the low 8 of 32 are zero) for flac, got 32: store them as wav")
    return array, f"PCM_{min(bits, 24)}"
