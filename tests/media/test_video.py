"""Video: frames by number and by policy, compared with the number that is painted into each frame."""

from __future__ import annotations

import contextlib
import io
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError, SchemaError
from shardex.media import VideoInfo, decode_frames, encode_audio, encode_video, video_info

BITS = 7
CODECS = {
    "mp4": ("mp4", "libx264", {"bf": "3"}),
    "mkv": ("matroska", "libx264", {"bf": "3"}),
    "open groups": ("matroska", "libx264", {"bf": "3", "x264-params": "open-gop=1:keyint=12:min-keyint=12"}),
    "intra refresh": ("mp4", "libx264", {"bf": "0", "x264-params": "intra-refresh=1:keyint=12"}),
    "fragments": ("mp4", "libx264", {"bf": "2"}),
    "avi": ("avi", "mpeg4", {"bf": "2"}),
    "avi h264": ("avi", "libx264", {"bf": "3"}),
    "transport stream": ("mpegts", "libx264", {"bf": "3"}),
    "vp8": ("webm", "libvpx", {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "realtime"}),
    "vp9": ("webm", "libvpx-vp9", {"auto-alt-ref": "1", "lag-in-frames": "16", "deadline": "realtime"}),
    "hevc": ("mp4", "libx265", {"x265-params": "log-level=none", "preset": "ultrafast"}),
    "mpeg2": ("mpeg", "mpeg2video", {"bf": "2"}),
    "flv": ("flv", "libx264", {"bf": "2"}),
}


def painted(count: int, height: int = 32, width: int = 8 * 2 * BITS) -> NDArray[np.uint8]:
    """Frames that show their number: one white or black column of 16 pixels for each bit."""
    bits = np.arange(count)[:, None] >> np.arange(BITS) & 1
    columns = np.repeat(bits * 255, width // BITS, axis=1).astype(np.uint8)
    return np.broadcast_to(columns[:, None, :, None], (count, height, width, 3))


def numbers_of(frames: NDArray[np.uint8]) -> list[int]:
    """The numbers that frames show."""
    _, height, width, _ = frames.shape
    step = width // BITS
    bits = frames[:, height // 2, step // 2 :: step, 1][:, :BITS] > 127
    return [int(one) for one in bits @ (1 << np.arange(BITS))]


def video(name: str = "mp4", count: int = 60, times: list[int] | None = None, rotation: int = 0, **sizes: int) -> bytes:
    """A video with a key frame about every 12 frames; `times` in 1/25 s."""
    container, codec, options = CODECS[name]
    flags = {"movflags": "frag_keyframe+empty_moov"} if name == "fragments" else {}
    out = io.BytesIO()
    with av.open(out, "w", format=container, container_options=flags) as file:
        stream = file.add_stream(codec, rate=25, options=options)
        assert isinstance(stream, av.VideoStream)
        frames = painted(count, **sizes)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.gop_size = 12
        if rotation:
            stream.set_display_rotation(rotation)
        for number, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels))
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


@pytest.fixture(scope="module")
def mp4() -> bytes:
    return video()


# -- frames by number -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODECS)
def test_frames_by_number_are_exact(name: str) -> None:
    data = video(name)
    assert video_info(data).frames == 60
    whole = decode_frames(data)
    assert numbers_of(whole) == list(range(60))
    chance = np.random.default_rng(0)
    for _ in range(12):
        chosen = chance.integers(0, 60, chance.integers(1, 6))
        frames = decode_frames(data, chosen)
        assert numbers_of(frames) == chosen.tolist()
        assert np.array_equal(frames, whole[chosen])


@pytest.mark.parametrize("name", ["mp4", "mkv"])
def test_rate_that_varies(name: str) -> None:
    times = np.cumsum(np.random.default_rng(0).integers(1, 9, 60)).tolist()
    data = video(name, times=times)
    assert video_info(data).frames == 60
    for chosen in ([0], [59], [13, 12, 11, 50, 11]):
        assert numbers_of(decode_frames(data, chosen)) == chosen


def test_numbers_in_any_order_repeated_and_from_the_end(mp4: bytes) -> None:
    assert numbers_of(decode_frames(mp4, [5, -1, 5, 0, -60])) == [5, 59, 5, 0, 0]
    assert numbers_of(decode_frames(mp4, np.array([3], "uint8"))) == [3]
    assert decode_frames(mp4, []).shape[0] == 0


@pytest.mark.parametrize("numbers", [[60], [-61], [1.5], [[1]], "ab"])
def test_wrong_numbers_are_refused(mp4: bytes, numbers: Any) -> None:
    with pytest.raises(ArgumentError, match="frame numbers"):
        decode_frames(mp4, numbers)


def test_threads_give_the_same_frames(mp4: bytes) -> None:
    assert np.array_equal(decode_frames(mp4, threads=1), decode_frames(mp4, threads=4))
    with pytest.raises(ArgumentError, match="threads"):
        decode_frames(mp4, threads=0)


# -- frames by policy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"stride": 20}, [0, 20, 40]),
        ({"stride": 20, "begin": 5}, [5, 25, 45]),
        ({"frames": 4}, [7, 22, 37, 52]),
        ({"frames": 60}, list(range(60))),
        ({"frames": 3, "sampling": "start", "begin": 10, "stride": 2}, [10, 12, 14]),
        ({"frames": 4, "sampling": "center"}, [28, 29, 30, 31]),
        ({"frames": 4, "sampling": "ends"}, [0, 20, 39, 59]),
        ({"frames": 3, "sampling": "start", "begin": 58, "pad": "repeat"}, [58, 59, 59]),
        ({"frames": 5, "sampling": "start", "begin": 58, "pad": "loop"}, [58, 59, 58, 59, 58]),
        ({"frames": 62, "pad": "repeat"}, [*range(60), 59, 59]),
        ({"frames": 62, "pad": "loop"}, [*range(60), 0, 1]),
    ],
)
def test_policies(mp4: bytes, options: dict[str, Any], expected: list[int]) -> None:
    assert numbers_of(decode_frames(mp4, **options)) == expected


def test_random_windows_depend_on_the_generator_only(mp4: bytes) -> None:
    def chosen(seed: int) -> list[int]:
        generator = np.random.default_rng(seed)
        return numbers_of(decode_frames(mp4, frames=4, stride=3, sampling="random", generator=generator))

    assert chosen(1) == chosen(1)
    starts = [chosen(seed) for seed in range(8)]
    assert len({one[0] for one in starts}) > 3
    assert all(np.diff(one).tolist() == [3, 3, 3] for one in starts)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frames": 61}, FormatError, "61 frames, got 60 frames.*pad='repeat'"),
        ({"frames": 5, "sampling": "start", "begin": 58}, FormatError, "5 frames from number 58 on, got 60"),
        ({"frames": 5, "sampling": "start", "begin": 60, "pad": "loop"}, FormatError, "from number 60 on, got 60"),
        ({"frames": 4, "stride": 2}, ArgumentError, "no stride"),
        ({"frames": 4, "sampling": "random"}, ArgumentError, "Loader"),
        ({"frames": 4, "sampling": "centre"}, ArgumentError, "did you mean 'center'"),
        ({"frames": 4, "sampling": "center", "begin": 3}, ArgumentError, "begin only with"),
        ({"frames": 4, "pad": "zero"}, ArgumentError, "pad to be one of"),
        ({"frames": 0}, ArgumentError, "frames to be"),
        ({"stride": 0}, ArgumentError, "stride to be"),
        ({"begin": -1}, ArgumentError, "begin to be"),
        ({"size": (0, 5)}, ArgumentError, "size"),
    ],
)
def test_policies_that_cannot_be_met(mp4: bytes, options: dict[str, Any], error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        decode_frames(mp4, **options)


# -- size, rotation, colours ----------------------------------------------------------------------------------


def test_frames_are_resized(mp4: bytes) -> None:
    small = decode_frames(mp4, [9, 45], size=(20, 70))
    assert small.shape == (2, 20, 70, 3)
    assert numbers_of(small) == [9, 45]


@pytest.mark.parametrize("rotation", [90, -90, 180])
def test_rotation_of_the_file_is_applied(rotation: int) -> None:
    data = video(rotation=rotation, count=40)
    height, width = (112, 32) if rotation != 180 else (32, 112)
    info = video_info(data)
    assert (info.height, info.width) == (height, width)
    turned = decode_frames(data, [37])
    assert numbers_of(np.rot90(turned, -rotation // 90, axes=(1, 2))) == [37]
    assert decode_frames(data, [37], size=(48, 64)).shape == (1, 48, 64, 3)


def test_colours_survive() -> None:
    frames = np.zeros((3, 32, 32, 3), np.uint8)
    frames[:] = (200, 50, 100)
    assert np.abs(decode_frames(encode_video(frames)).astype(int) - frames).max() < 6


# -- files that cannot be decoded -----------------------------------------------------------------------------


def audio_only(container: str = "mp4") -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream("aac", rate=8000)
        assert isinstance(stream, av.AudioStream)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return out.getvalue()


def without_frames(container: str) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream("mpeg4", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = 16, 16, "yuv420p"
        file.start_encoding()
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got 0 bytes"),
        (b"hello, this is text", "got 19 bytes: b'hello, this is t'"),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(12), "expected the bytes of a mp4 file"),
        (b"\x1a\x45\xdf\xa3" + bytes(60), "mkv"),
        (b"RIFF\x00\x00\x00\x00AVI ", "avi"),
        (encode_audio(np.zeros(10, "int16"), "wav", rate=8000), "of the kind wav"),
        (audio_only(), "expected a video track, got a mp4 file with tracks of: audio"),
        (without_frames("matroska"), "expected a video with frames, got a mkv file"),
        (without_frames("mp4"), "expected a video track, got a mp4 file with tracks of: none"),
        (without_frames("avi"), "expected a video with frames, got a avi file"),
        (b"#EXTM3U\n#EXTINF:5,\nfile:///etc/hostname\n", "expected a video file"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "expected a video file"),
    ],
)
def test_bytes_that_are_no_video(data: bytes, message: str) -> None:
    for function in (video_info, decode_frames, encode_video):
        with pytest.raises(FormatError, match=message):
            function(data)


@pytest.mark.parametrize("name", ["mp4", "fragments", "mkv", "avi"])
def test_file_that_was_cut_off_is_an_error(name: str) -> None:
    data = video(name)
    for keep in (len(data) // 3, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError, match="cut off"):
            decode_frames(data[:keep])


@pytest.mark.parametrize("name", ["mp4", "mkv", "avi", "vp9", "transport stream"])
def test_damaged_bytes_decode_or_raise_a_format_error(name: str) -> None:
    data, chance = video(name, count=30), np.random.default_rng(0)
    for _ in range(25):
        damaged = bytearray(data)
        for at in chance.integers(0, len(data) if chance.random() < 0.5 else 400, 4):
            damaged[at] = chance.integers(256)
        with contextlib.suppress(FormatError):
            decode_frames(bytes(damaged), max_bytes=1 << 24)


def test_memory_is_limited(mp4: bytes) -> None:
    with pytest.raises(
        FormatError, match=r"at most 100,000 bytes of decoded frames, got 60 frames of 32 x 112.*stride"
    ):
        decode_frames(mp4, max_bytes=100_000)
    assert len(decode_frames(mp4, frames=4, max_bytes=100_000)) == 4


def test_frames_of_several_sizes_need_a_size() -> None:
    streams = []
    for height in (32, 64):
        codec = av.CodecContext.create("mpeg4", "w")
        assert isinstance(codec, av.VideoCodecContext)
        codec.width, codec.height, codec.pix_fmt, codec.time_base = 32, height, "yuv420p", Fraction(1, 25)
        frame = av.VideoFrame.from_ndarray(np.full((height, 32, 3), 99, np.uint8))
        streams.append([bytes(packet) for packet in [*codec.encode(frame), *codec.encode(None)]])
    out = io.BytesIO()
    with av.open(out, "w", format="avi") as file:
        stream = file.add_stream("mpeg4", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        file.start_encoding()
        for number, content in enumerate(streams[0] + streams[1]):
            packet = av.Packet(content)
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 25)
            packet.is_keyframe = True
            file.mux(packet)
    data = out.getvalue()
    with pytest.raises(FormatError, match=r"frames of one size, got \(32, 32\) and, for frame 1, \(64, 32\)"):
        decode_frames(data)
    assert decode_frames(data, size=(16, 16)).shape == (2, 16, 16, 3)


# -- encode ---------------------------------------------------------------------------------------------------


def test_mkv_keeps_every_pixel() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 17, 23, 3)).astype(np.uint8)
    data = encode_video(frames, "mkv", rate=10)
    assert video_info(data) == VideoInfo("mkv", "ffv1", 7, 10.0, 17, 23)
    assert np.array_equal(decode_frames(data), frames)
    assert encode_video(frames, "mkv", rate=10) == data


@pytest.mark.parametrize(("height", "width"), [(32, 112), (33, 113)])
def test_mp4_keeps_the_picture(height: int, width: int) -> None:
    frames = painted(30, height, 112)[:, :, :width]
    data = encode_video(frames, rate=Fraction(30000, 1001))
    info = video_info(data)
    assert (info.format, info.codec, info.frames, info.height, info.width) == ("mp4", "h264", 30, height, 112)
    assert info.rate == pytest.approx(29.97, abs=0.01) and info.seconds == pytest.approx(1.001, abs=0.001)
    assert numbers_of(decode_frames(data)) == list(range(30))
    assert encode_video(frames, rate=Fraction(30000, 1001)) == data


def test_grey_frames_become_rgb() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (2, 8, 8)).astype(np.uint8)
    for value in (grey, grey[..., None]):
        assert np.array_equal(decode_frames(encode_video(value, "mkv")), np.repeat(grey[..., None], 3, axis=3))


def test_bytes_and_files_stay_as_they_are(tmp_path: Path, mp4: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(mp4)
    for value in (mp4, bytearray(mp4), memoryview(mp4), tmp_path / "a.mp4", str(tmp_path / "a.mp4")):
        assert encode_video(value, "mkv") == mp4
    with pytest.raises(NotFoundError, match=r"b\.mp4"):
        encode_video(tmp_path / "b.mp4")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 8, 8, 3)), "got float64"),
        (np.zeros((0, 8, 8, 3), "uint8"), "at least one frame"),
        (np.zeros((2, 3, 8, 8), "uint8"), r"shape \(2, 3, 8, 8\)"),
        (np.zeros((8, 8), "uint8"), r"shape \(8, 8\)"),
        (None, "got object"),
    ],
)
def test_arrays_that_are_no_video(value: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        encode_video(value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "gif"}, "format to be one of mp4, mkv"),
        ({"rate": 0}, "rate above 0"),
        ({"rate": float("nan")}, "rate above 0"),
        ({"rate": "25fps"}, "rate above 0"),
        ({"quality": 60}, "quality"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        encode_video(np.zeros((1, 8, 8, 3), "uint8"), **options)


def test_missing_pyav_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, mp4: bytes) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"video needs av, .*: pip install 'shardex\[video\]'"):
        decode_frames(mp4)


def test_titles_that_are_not_utf8() -> None:
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as file:
        file.metadata["title"] = "caf\u00e9"
        stream = file.add_stream("mpeg4", rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = 32, 32
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))
        for packet in (*stream.encode(frame), *stream.encode()):
            file.mux(packet)
    damaged = out.getvalue().replace("caf\u00e9".encode(), b"caf\xe9!")
    assert damaged != out.getvalue() and video_info(damaged).frames == 1
