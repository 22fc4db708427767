"""Video: bytes of MP4, WebM, MKV or AVI files <-> uint8 arrays of frames, height, width and RGB, by PyAV (FFmpeg).

In: the bytes of a file and frame numbers; or an array, a path, bytes to encode. Out: arrays; bytes. Frames are numbered
as they are shown. `video_track` finds them in the file and decodes from the key frame before, `frame_choice` says which
are taken; features, rows and datasets are left to the rooms above.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, MissingExtraError, SchemaError, storage_errors
from shardex.media.frame_choice import at_least, choose_frames, one_of
from shardex.media.image_files import MAX_PIXELS
from shardex.media.video_track import VideoTrack, checked_container, opened_track, pyav

Pixels = NDArray[np.uint8]

MAX_VIDEO_BYTES = 2 << 30
"""Largest array of decoded frames, unless the caller allows more: 345 frames of 1920 x 1080 pixels."""
_ENCODERS = {"mp4": ("mp4", "libx264"), "mkv": ("matroska", "ffv1")}
"""Container and encoder of each format for arrays: H.264, small; FFV1, which keeps every pixel."""


@dataclass(frozen=True, slots=True)
class VideoInfo:
    """What the headers of a video file say."""

    format: str
    """mp4, mkv (also WebM), avi, ..."""
    codec: str
    """How frames are compressed, in FFmpeg's names: h264, vp9, av1, ..."""
    frames: int
    rate: float
    """Mean number of frames in a second."""
    height: int
    width: int

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.frames / self.rate if self.rate else 0.0


def video_info(data: bytes) -> VideoInfo:
    """Return format, number of frames, rate and size of a video; its first frame is decoded.

    >>> video_info(encode_video(np.zeros((5, 16, 32, 3), np.uint8), rate=10))
    VideoInfo(format='mp4', codec='h264', frames=5, rate=10.0, height=16, width=32)
    """
    with opened_track(data, MAX_PIXELS) as track:
        frames, rate = track.count, track.rate
        pixels = _FrameArray([0], None, MAX_VIDEO_BYTES)
        track.decode([0], pixels.add)
        _, height, width, _ = pixels.finished().shape
        return VideoInfo(track.container, track.codec, frames, rate, height, width)


def decode_frames(
    data: bytes,
    numbers: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    *,
    frames: int | None = None,
    stride: int = 1,
    sampling: str = "uniform",
    begin: int = 0,
    pad: str = "error",
    size: tuple[int, int] | None = None,
    generator: np.random.Generator | None = None,
    threads: int | None = None,
    max_bytes: int = MAX_VIDEO_BYTES,
) -> Pixels:
    """Return frames of a video as uint8 of shape (frames, height, width, 3), turned as the file says.

    Only the frames from the key frame before the first one on are decoded.

    :param numbers: frame numbers, from 0 on in the order in which they are shown; negative ones count from the end
    :param frames: instead of `numbers`, how many frames; None for every `stride`-th from `begin` on
    :param sampling: which ones: "uniform" (over the whole video), "ends" (the same, from the first to the last frame),
        "start" (from `begin` on), "center", or "random" (by `generator`); the last three take frames at distance
        `stride`
    :param pad: what follows where the video has fewer frames: "error", "repeat" (the last one), "loop" (all again)
    :param size: (height, width) to which frames are resized
    :param threads: threads of the decoder; None for one per core
    :param max_bytes: largest size of the result

    >>> video = encode_video(np.zeros((50, 16, 32, 3), np.uint8))
    >>> decode_frames(video, [3, -1]).shape, decode_frames(video, frames=8, size=(8, 8)).shape
    ((2, 16, 32, 3), (8, 8, 8, 3))
    """
    with opened_track(data, MAX_PIXELS, threads) as track:
        if numbers is None:
            chosen = choose_frames(
                track.count, frames=frames, stride=stride, sampling=sampling, begin=begin, pad=pad, generator=generator
            )
        else:
            chosen = _checked_numbers(numbers, track)
        pixels = _FrameArray(chosen.tolist(), size, max_bytes)
        if len(chosen):
            track.decode(np.unique(chosen).tolist(), pixels.add)
        return pixels.finished()


def _checked_numbers(numbers: Sequence[int] | NDArray[np.integer[Any]], track: VideoTrack) -> NDArray[np.int64]:
    """Return frame numbers from 0 on."""
    given = np.asarray(numbers)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and given.size):
        raise ArgumentError(f"expected a list of frame numbers, got {numbers!r}")
    given = given.astype(np.int64)
    chosen = np.where(given < 0, given + track.count, given)
    wrong = (chosen < 0) | (chosen >= track.count)
    if wrong.any():
        raise ArgumentError(f"expected frame numbers below {track.count}, the number of frames, got {given[wrong][0]}")
    return chosen


class _FrameArray:
    """The array of the result: takes decoded frames in any order, repeats those that are wanted twice."""

    def __init__(self, numbers: list[int], size: tuple[int, int] | None, max_bytes: int) -> None:
        self._rows: dict[int, list[int]] = {}
        for row, number in enumerate(numbers):
            self._rows.setdefault(number, []).append(row)
        self._count, self._size, self._max_bytes = len(numbers), size, max_bytes
        self._out: Pixels | None = None
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise ArgumentError(f"expected a size (height, width), both 1 or more, got {size!r}")

    def add(self, number: int, frame: Any) -> None:
        """Convert a decoded frame and store it."""
        pixels = self._converted(frame)
        if self._out is None:
            shape = (self._count, *pixels.shape)
            if (needed := self._count * pixels.nbytes) > self._max_bytes:
                raise FormatError(
                    f"expected at most {self._max_bytes:,} bytes of decoded frames, got {self._count} frames of "
                    f"{pixels.shape[0]} x {pixels.shape[1]} pixels, {needed:,} bytes: decode fewer frames (frames, "
                    "stride), smaller ones (size), or raise max_bytes"
                )
            self._out = np.empty(shape, np.uint8)
        if pixels.shape != self._out.shape[1:]:
            raise FormatError(
                f"expected frames of one size, got {self._out.shape[1:3]} and, for frame {number}, {pixels.shape[:2]}: "
                "give the size to which all are resized"
            )
        for row in self._rows[number]:
            self._out[row] = pixels

    def _converted(self, frame: Any) -> Pixels:
        turns = round(frame.rotation / 90) % 4
        height, width = self._size or (None, None)
        if turns % 2:
            height, width = width, height
        rgb = frame.reformat(width=width, height=height, format="rgb24", threads=1).to_ndarray()
        return np.rot90(rgb, turns) if turns else rgb

    def finished(self) -> Pixels:
        """Return the array when all frames have been added."""
        return np.empty((0, *(self._size or (0, 0)), 3), np.uint8) if self._out is None else self._out


# -- encode ---------------------------------------------------------------------------------------------------


def encode_video(value: Any, format: str = "mp4", *, rate: float | Fraction = 25, quality: int = 18) -> bytes:
    """Return the bytes of a video file; encoded bytes and the bytes of files stay as they are.

    :param value: frames as uint8 of shape (frames, height, width, 3), or grey ones of (frames, height, width); bytes;
        the path of a file
    :param format: of arrays: "mp4" (H.264, with small changes of the pixels) or "mkv" (FFV1, without any)
    :param rate: frames in a second of an array
    :param quality: of H.264: from 0 (large files) to 51

    >>> frames = np.arange(240, dtype=np.uint8).reshape(2, 5, 8, 3)
    >>> bool((decode_frames(encode_video(frames, "mkv")) == frames).all())
    True
    """
    if isinstance(value, str | os.PathLike):
        with storage_errors(value, "read"), open(value, "rb") as file:
            value = file.read()
    if isinstance(value, bytes | bytearray | memoryview):
        _check_bytes(data := bytes(value))
        return data
    one_of(format, tuple(_ENCODERS), "format")
    if at_least(quality, 0, "quality") > 51:
        raise ArgumentError(f"expected a quality from 0 to 51, got {quality}")
    return _encode_array(_checked_array(value), format, _checked_rate(rate), quality)


def _check_bytes(data: bytes) -> None:
    """Check the bytes of a video file; without PyAV, only their container."""
    try:
        video_info(data)
    except MissingExtraError:
        checked_container(data)


def _checked_rate(rate: float | Fraction) -> Fraction:
    try:
        exact = Fraction(rate).limit_denominator(1001)
    except (TypeError, ValueError, OverflowError):
        exact = Fraction(0)
    if not 0 < exact <= 1000 or isinstance(rate, bool):
        raise ArgumentError(f"expected a rate above 0 and up to 1000 frames in a second, got {rate!r}")
    return exact


def _checked_array(value: Any) -> Pixels:
    """Return frames as uint8 of four dimensions with 3 channels."""
    array = np.asarray(value)
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim != 4 or array.dtype != np.uint8 or array.shape[-1] not in (1, 3) or 0 in array.shape:
        raise SchemaError(
            "expected a video as uint8 of shape (frames, height, width, 3), or (frames, height, width) for grey, with "
            f"at least one frame, bytes or a path, got {array.dtype} of shape {np.shape(value)}"
        )
    return np.broadcast_to(array, (*array.shape[:3], 3))


def _encode_array(frames: Pixels, format: str, rate: Fraction, quality: int) -> bytes:
    av = pyav()
    container, encoder = _ENCODERS[format]
    _, height, width, _ = frames.shape
    out = io.BytesIO()
    try:
        with av.open(out, "w", format=container, container_options={"fflags": "bitexact"}) as file:
            stream = file.add_stream(encoder, rate=rate, options=_options(encoder, quality))
            stream.width, stream.height = width, height
            stream.pix_fmt = "bgr0" if encoder == "ffv1" else "yuv444p" if height % 2 or width % 2 else "yuv420p"
            stream.thread_count = 1  # the bytes depend on the number of threads
            for pixels in frames:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
                file.mux(stream.encode(frame.reformat(format=stream.pix_fmt, threads=1)))
            file.mux(stream.encode(None))
    except (av.error.FFmpegError, ValueError) as error:
        raise SchemaError(
            f"expected frames that {encoder} can encode, got {height} x {width} pixels: {error}"
        ) from error
    return out.getvalue()


def _options(encoder: str, quality: int) -> dict[str, str]:
    """Return the options of an encoder with which the same frames give the same bytes."""
    if encoder != "libx264":
        return {}
    # Without the last one, some functions for AVX-512 give other bytes once in some hundred videos.
    return {"crf": str(quality), "preset": "veryfast", "x264-params": "cpu-independent=1"}
