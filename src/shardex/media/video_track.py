"""The video track of a file: how many frames it has, and decoding of those that are asked for.

In: the bytes of a file, frame numbers. Out: decoded frames of PyAV, exactly those, also with B-frames and a rate that
varies: all packets are listed first (which decodes nothing), frames are numbered by their time, and decoding begins at
the key frame before. `video` turns frames into arrays.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from shardex.errors import ArgumentError, FormatError, MissingExtraError
from shardex.media.containers import VIDEO_CONTAINERS, known_container

_NEAR = 8
"""Number of packets up to the next key frame that are decoded rather than skipped."""
_DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,ogg,mpegts,mpeg,mpegvideo,flv,asf"
"""Readers of FFmpeg that read only the file itself; playlists name other files, which data must not do."""

TakeFrame = Callable[[int, Any], None]


def pyav() -> Any:
    """Return the module `av`."""
    try:
        import av
    except ImportError:
        raise MissingExtraError("av", "video", "video") from None
    return av


def checked_container(data: bytes) -> str:
    """Return the container of a video file that is complete, as far as its header says."""
    return known_container(data, "a video file", VIDEO_CONTAINERS)


@contextmanager
def opened_track(data: bytes, max_pixels: int, threads: int | None = None) -> Iterator[VideoTrack]:
    """Open the video track of a file; errors of FFmpeg in the block become errors that say what was found."""
    av = pyav()
    if threads is not None and (isinstance(threads, bool) or threads < 1):
        raise ArgumentError(f"expected threads to be 1 or more, got {threads!r}")
    container = checked_container(data)
    track = None
    try:
        track = VideoTrack(data, container, max_pixels, threads)
        yield track
    except av.error.EOFError as error:
        raise FormatError(f"expected a video with frames, got a {container} file that ends before the first") from error
    except av.error.FFmpegError as error:
        raise FormatError(f"expected the bytes of a {container} file, got {len(data):,} bytes: {error}") from error
    finally:
        if track is not None:
            track.close()


class VideoTrack:
    """The first video track of a file."""

    def __init__(self, data: bytes, container: str, max_pixels: int, threads: int | None) -> None:
        self.container = container
        self._data, self._max_pixels, self._threads = data, max_pixels, threads
        self._file: Any = None
        self._reopen()
        self._times: list[int] = []
        """Time of each frame, in order."""
        self._keys: list[tuple[int, int]] = []
        """Time and place (number of the packet) of each key frame, in order."""
        self._places: dict[int, int] = {}
        """Number of the packet of each time."""
        self._place = 0
        """Number of the packet that was decoded last."""
        self._number_frames()

    def _reopen(self) -> None:
        """Open the file at its begin."""
        av = pyav()
        self.close()
        self._file = av.open(
            io.BytesIO(self._data),
            "r",
            container_options={"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"},
            # Titles and other texts that are not UTF-8; from version 19 on, PyAV accepts them without an option.
            **{"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {},
        )
        # The cover of an album is a track of one frame, too.
        cover = av.stream.Disposition.attached_pic
        tracks = [one for one in self._file.streams.video if not one.disposition & cover]
        if not tracks:
            kinds = sorted({one.type for one in self._file.streams}) or ["none"]
            raise FormatError(f"expected a video track, got a {self.container} file with tracks of: {', '.join(kinds)}")
        self._stream = tracks[0]
        if self._stream.codec_context is None:
            raise FormatError(f"expected a codec that FFmpeg can decode, got another in this {self.container} file")
        self._stream.thread_type = "AUTO"
        self._stream.thread_count = self._threads or 0
        height, width = self._stream.height, self._stream.width
        if height * width > self._max_pixels:
            raise FormatError(f"expected frames of at most {self._max_pixels:,} pixels, got {height} x {width}")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    @property
    def codec(self) -> str:
        """Name of the codec, such as h264."""
        return str(self._stream.codec_context.codec.canonical_name)

    @property
    def rate(self) -> float:
        """Mean number of frames in a second; 0 if the file does not say."""
        return float(self._stream.average_rate or self._stream.guessed_rate or 0)

    # -- numbers ----------------------------------------------------------------------------------------------

    def _number_frames(self) -> None:
        """List the packets; number the frames by their times, or by decoding all where packets have no times."""
        times: list[int | None] = []
        for place, packet in enumerate(self._file.demux(self._stream)):
            time = packet.pts
            if not packet.size:
                continue
            if packet.is_corrupt:
                raise FormatError(f"expected whole frames, packet {place} of this {self.container} file is damaged")
            if time is not None:
                self._places.setdefault(time, place)
                if packet.is_keyframe:
                    self._keys.append((time, place))
            if not packet.is_discard and not self._is_hidden(packet):
                times.append(time)
        known = {time for time in times if time is not None}
        self._timed = len(known) == len(times) and bool(self._keys)
        if self._timed:
            self._keys.sort()
            self._times = sorted(known)
        self.count = len(times) if self._timed else self._count_decoded(bool(times))
        if not self.count:
            raise FormatError(f"expected a video with frames, got a {self.container} file whose video track has none")

    def _is_hidden(self, packet: Any) -> bool:
        """Tell whether a packet of VP8 is a reference that is not shown."""
        return bool(self._stream.codec_context.name == "vp8" and not memoryview(packet)[0] & 0x10)

    def _count_decoded(self, has_packets: bool) -> int:
        if not has_packets:
            return 0
        self._reopen()
        return sum(1 for _ in self._file.decode(self._stream))

    # -- decode -----------------------------------------------------------------------------------------------

    def decode(self, numbers: list[int], take: TakeFrame) -> None:
        """Decode frames, given by sorted numbers, and pass each with its number to `take`."""
        if not self._timed:
            return self._decode_all(numbers, take)
        wanted = {self._times[number]: number for number in numbers}
        missing = self._decode_wanted(dict(wanted), take, self._key_before)
        if missing:  # a key frame that needs frames before it: decode from the begin
            missing = self._decode_wanted(missing, take, lambda _: min(self._keys, key=lambda key: key[1]))
        if missing:
            first = min(missing.values())
            raise FormatError(f"expected frame {first} of {self.count}, it cannot be decoded: the file is damaged")

    def _key_before(self, time: int) -> tuple[int, int]:
        """Return time and place of the last key frame that is not after a time."""
        return self._keys[max(0, bisect_right(self._keys, time, key=lambda key: key[0]) - 1)]

    def _decode_wanted(
        self, wanted: dict[int, int], take: TakeFrame, key_of: Callable[[int], tuple[int, int]]
    ) -> dict[int, int]:
        """Decode the frames of these times (with their numbers); return those that were not found."""
        missing: dict[int, int] = {}
        frames: Iterator[Any] = iter(())
        shown = None  # the time of the last frame
        for time in sorted(wanted):
            if shown is not None and shown >= time:
                if time in wanted:
                    missing[time] = wanted.pop(time)
                continue
            key = key_of(time)
            if shown is None or key[1] > self._place + _NEAR:
                frames = self._frames_from(key)
            for frame in frames:
                shown = frame.pts
                if shown in wanted:
                    self._check_frame(frame, wanted[shown])
                    take(wanted.pop(shown), frame)
                if shown is not None and shown >= time:
                    break
        return {**missing, **wanted}

    def _frames_from(self, key: tuple[int, int]) -> Iterator[Any]:
        """Return the frames from a key frame on, in the order in which they are shown."""
        packet, packets = self._packets_from(key)
        self._place = key[1]
        yield from self._stream.decode(packet)
        for packet in packets:
            self._place += 1
            yield from self._stream.decode(packet)

    def _packets_from(self, key: tuple[int, int]) -> tuple[Any, Iterator[Any]]:
        """Return the packet of a key frame and those after it."""
        time, place = key
        self._file.seek(time, stream=self._stream)
        for _ in range(2):
            packets = self._file.demux(self._stream)
            for packet in packets:
                if packet.pts == time and packet.is_keyframe:
                    return packet, packets
                if self._places.get(packet.pts, 0) > place:
                    break
            # The seek went too far, as in some transport streams: read packets from the begin.
            self._reopen()
        raise FormatError("expected the key frame that was found before, it is not there: the file is damaged")

    def _decode_all(self, numbers: list[int], take: TakeFrame) -> None:
        """Decode from the begin, counting frames."""
        self._reopen()
        wanted = set(numbers)
        for number, frame in enumerate(self._file.decode(self._stream)):
            if number in wanted:
                self._check_frame(frame, number)
                take(number, frame)
            if number >= numbers[-1]:
                break

    def _check_frame(self, frame: Any, number: int) -> None:
        if frame.is_corrupt:
            raise FormatError(f"expected a whole frame {number}, it is damaged")
        if frame.width * frame.height > self._max_pixels:
            raise FormatError(
                f"expected frames of at most {self._max_pixels:,} pixels, got {frame.height} x {frame.width}"
            )
