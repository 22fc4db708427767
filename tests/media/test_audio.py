"""Audio: bytes to arrays and back, compared with soundfile and with the sines that the files hold."""

from __future__ import annotations

import contextlib
import io
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from shardex.errors import ArgumentError, FormatError, MissingExtraError, NotFoundError, SchemaError
from shardex.media import AudioInfo, audio_info, decode_audio, encode_audio

FORMATS = [("WAV", None), ("FLAC", None), ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", None), ("AIFF", None)]


def sine(frequency: float, rate: int, seconds: float, channels: int = 1) -> NDArray[np.float32]:
    times = np.arange(round(rate * seconds)) / rate
    return np.stack([0.5 * np.sin(2 * np.pi * frequency * (1 + k) * times) for k in range(channels)], 1).astype(
        "float32"
    )


def noise(frames: int, channels: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-0.5, 0.5, (frames, channels)).astype("float32")


def saved(values: NDArray[Any], rate: int, form: str, encoding: str | None = None, **options: Any) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, values, rate, format=form, subtype=encoding, **options)
    return file.getvalue()


def frequency_of(values: NDArray[Any], rate: int) -> float:
    return float(np.abs(np.fft.rfft(values * np.hanning(len(values)))).argmax() * rate / len(values))


# -- headers and whole files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "encoding"), FORMATS)
def test_all_formats_decode_as_soundfile_does(form: str, encoding: str | None) -> None:
    data = saved(sine(440, 16000, 1.5, 2), 16000, form, encoding)
    info = audio_info(data)
    assert (info.format, info.rate, info.channels, info.frames) == (form.lower(), 16000, 2, 24000)
    assert info.seconds == 1.5
    decoded = decode_audio(data)
    assert decoded.dtype == np.float32 and decoded.shape == (24000, 2)
    # libmpg123 rounds differently from call to call
    assert np.abs(decoded - soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)[0]).max() < 1e-6
    assert frequency_of(decoded[:, 0], 16000) == pytest.approx(440, abs=2)


def test_mono_is_the_mean_of_the_channels() -> None:
    values = noise(1000, 3)
    decoded = decode_audio(encode_audio(values, "wav", rate=8000), mono=True)
    assert decoded.shape == (1000, 1)
    assert np.allclose(decoded[:, 0], values.mean(axis=1), atol=1e-7)


def test_audio_without_frames_has_shape_0() -> None:
    data = encode_audio(np.zeros((0, 2), "float32"), "wav", rate=8000)
    assert audio_info(data).frames == 0
    assert decode_audio(data).shape == (0, 2)
    assert decode_audio(data, rate=16000, mono=True).shape == (0, 1)
    assert decode_audio(data, frames=10, pad="zero").tolist() == [[0, 0]] * 10
    with pytest.raises(FormatError, match="without frames"):
        decode_audio(data, frames=10, pad="loop")


@pytest.mark.parametrize("form", ["flac", "mp3", "ogg", "wav"])
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_array_without_frames_comes_back(form: str, dtype: str) -> None:
    data = encode_audio(np.zeros((0, 2), dtype), form, rate=16000)
    assert audio_info(data).rate == 16000
    assert decode_audio(data).shape == (0, 2)


# -- rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "new_rate"), [(44100, 16000), (48000, 16000), (8000, 44100), (16000, 48000), (11025, 16001)]
)
def test_resampled_sine_is_the_sine(rate: int, new_rate: int) -> None:
    data = encode_audio(sine(1234, rate, 1), rate=rate)
    found, expected = decode_audio(data, rate=new_rate), sine(1234, new_rate, 1)
    assert found.shape == expected.shape
    inner = slice(new_rate // 10, -new_rate // 10)  # silence before the begin and after the end reaches into it
    assert np.abs(found[inner] - expected[inner]).max() < 2e-5


def test_resampling_removes_what_the_lower_rate_cannot_hold() -> None:
    data = encode_audio(sine(6000, 16000, 1), rate=16000)
    assert np.abs(decode_audio(data, rate=8000)[800:-800]).max() < 1e-4


def test_resampled_length_is_rounded_up() -> None:
    data = encode_audio(noise(1001), rate=44100)
    assert len(decode_audio(data, rate=16000)) == 364
    assert len(decode_audio(data, rate=44100)) == 1001


@pytest.mark.parametrize("rate", [1000, 101, 50])
def test_very_low_rates_take_little_memory(rate: int) -> None:
    data = encode_audio(sine(5, 44100, 8), rate=44100)
    tracemalloc.start()
    try:
        found = decode_audio(data, rate=rate)
        assert tracemalloc.get_traced_memory()[1] < 150 << 20
    finally:
        tracemalloc.stop()
    inner = slice(2 * rate, -2 * rate)
    assert np.abs(found - sine(5, rate, 8))[inner].max() < 2e-5
    window = decode_audio(data, rate=rate, begin=rate + 3, frames=2 * rate)
    assert np.allclose(window, found[rate + 3 : 3 * rate + 3], atol=1e-6)


def test_rates_lower_than_a_thousandth_are_refused() -> None:
    data = encode_audio(noise(10), rate=44100)
    assert decode_audio(data, rate=45).shape == (1, 1)
    for rate in (44, 1):
        with pytest.raises(ArgumentError, match=f"rate of at least 45 .* got {rate}"):
            decode_audio(data, rate=rate)


@pytest.mark.parametrize("rate", [0, -1, 1.5, True, "16000", 10**9])
def test_wrong_rates_are_refused(rate: Any) -> None:
    with pytest.raises(ArgumentError, match="rate"):
        decode_audio(encode_audio(noise(10), rate=8000), rate=rate)
    with pytest.raises(ArgumentError, match="rate"):
        encode_audio(noise(10), rate=rate)


def test_rate_of_0_in_a_header_is_an_error() -> None:
    data = bytearray(encode_audio(noise(10), "wav", rate=8000))
    data[24:28] = bytes(4)
    with pytest.raises(FormatError):
        decode_audio(bytes(data))


# -- windows --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "encoding"), FORMATS)
@pytest.mark.parametrize("new_rate", [None, 11025])
def test_window_equals_that_part_of_the_whole(form: str, encoding: str | None, new_rate: int | None) -> None:
    # libsndfile seeks to wrong places in Vorbis files; it takes some places to see it.
    data = saved(noise(8000 * 3, 2), 8000, form, encoding)
    whole = decode_audio(data, rate=new_rate)
    for begin in (0, 1, 1151, *np.random.default_rng(1).integers(0, len(whole) - 500, 20).tolist(), len(whole) - 500):
        window = decode_audio(data, rate=new_rate, begin=begin, frames=500)
        assert np.abs(window - whole[begin : begin + 500]).max() < 1e-5, begin
    assert np.abs(decode_audio(data, rate=new_rate, begin=20000) - whole[20000:]).max(initial=0) < 1e-5


def test_window_far_into_an_mp3_file() -> None:
    data = saved(noise(8000 * 64), 8000, "MP3")
    whole = decode_audio(data)
    window = decode_audio(data, begin=8000 * 61 + 5, frames=3000)
    assert np.abs(window - whole[8000 * 61 + 5 :][:3000]).max() < 1e-5


def test_sampling_of_a_window() -> None:
    values = np.arange(-500, 500, dtype=np.int16)
    data = encode_audio(values, rate=8000)

    def first(**options: Any) -> int:
        return round(float(decode_audio(data, frames=100, **options)[0, 0]) * 32768) + 500

    assert first(sampling="center") == 450
    assert first(sampling="start", begin=7) == 7
    starts = {first(sampling="random", generator=np.random.default_rng(seed)) for seed in range(20)}
    assert len(starts) > 10 and max(starts) <= 900
    assert first(sampling="random", generator=np.random.default_rng(3)) == first(
        sampling="random", generator=np.random.default_rng(3)
    )
    with pytest.raises(ArgumentError, match="Loader"):
        first(sampling="random")
    with pytest.raises(ArgumentError, match="begin only with"):
        first(sampling="center", begin=1)
    with pytest.raises(ArgumentError, match="did you mean 'center'"):
        first(sampling="centre")


def test_window_past_the_end() -> None:
    data = encode_audio(np.array([1, 2, 3], "int16"), "wav", rate=8000)

    def values(**options: Any) -> list[int]:
        return [round(one * 32768) for one in decode_audio(data, **options).ravel().tolist()]

    assert values(frames=5, pad="zero") == [1, 2, 3, 0, 0]
    assert values(frames=5, pad="loop") == [1, 2, 3, 1, 2]
    assert values(begin=2, frames=2, pad="loop") == [3, 3]
    assert values(begin=3) == []
    with pytest.raises(FormatError, match=r"4 frames from number 0 on, got 3 frames.*pad='zero'"):
        values(frames=4)
    with pytest.raises(FormatError, match="from number 4 on, got 3 frames"):
        values(begin=4)
    with pytest.raises(ArgumentError, match="begin"):
        values(begin=-1)
    with pytest.raises(ArgumentError, match="frames"):
        values(frames=0)
    with pytest.raises(ArgumentError, match="pad"):
        values(frames=4, pad="repeat")


# -- MP3 without a header of its length -----------------------------------------------------------------------


def mp3_without_length(values: NDArray[Any], rate: int) -> bytes:
    """An MP3 file of variable bit rate whose first frame, with the number of frames, was removed."""
    data = saved(values, rate, "MP3", bitrate_mode="VARIABLE")
    assert b"Xing" in data[:64]
    return data[data.index(data[:2], 64) :]


@pytest.mark.parametrize(("rate", "channels"), [(44100, 1), (44100, 2), (22050, 1), (16000, 2), (8000, 1)])
def test_mp3_without_length_is_decoded_to_its_end(rate: int, channels: int) -> None:
    values = noise(rate * 4, channels)
    values[rate * 2 :] = 0  # fewer bits: an estimate from the first frames is too small
    data = mp3_without_length(values, rate)
    for file in (data, b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) + data, data + b"TAG" + bytes(125)):
        decoded = decode_audio(file)
        assert abs(len(decoded) - len(values)) < 4 * 1152
        assert np.abs(decoded[rate // 2 : rate]).max() > 0.3


# -- damaged files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got 0 bytes"),
        (b"hello, this is text", "got 19 bytes: b'hello, this is t'"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), "expected an audio file"),
        (b"\x00\x00\x00\x18ftypmp42" + bytes(50), "of the kind mp4"),
        (b"RIFF\x00\x00\x00\x00WAVE", "expected the bytes of a wav file, got 12 bytes"),
        (b"fLaC" + bytes(60), "expected the bytes of a flac file"),
        (b"OggS" + bytes(60), "ogg"),
        (b"ID3" + bytes(200), "mp3"),
    ],
)
def test_bytes_that_are_no_audio(data: bytes, message: str) -> None:
    for function in (audio_info, decode_audio, encode_audio):
        with pytest.raises(FormatError, match=message):
            function(data)


@pytest.mark.parametrize(("form", "encoding"), FORMATS)
def test_file_that_was_cut_off_is_an_error(form: str, encoding: str | None) -> None:
    data = saved(sine(440, 16000, 2), 16000, form, encoding)
    for keep in (len(data) // 3, len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError, match=r"cut off|flac"):
            decode_audio(data[:keep])


@pytest.mark.parametrize(("form", "encoding"), FORMATS)
def test_damaged_bytes_decode_or_raise_a_format_error(form: str, encoding: str | None) -> None:
    data = saved(noise(4000), 8000, form, encoding)
    chance = np.random.default_rng(0)
    for _ in range(40):
        damaged = bytearray(data)
        for at in chance.integers(0, len(data) if chance.random() < 0.5 else 100, 3):
            damaged[at] = chance.integers(256)
        with contextlib.suppress(FormatError):
            decode_audio(bytes(damaged), rate=8000 if chance.random() < 0.5 else None, max_bytes=1 << 24)


def test_streamed_wav_without_a_size_is_read_to_its_end() -> None:
    data = bytearray(encode_audio(np.arange(100, dtype=np.int16), "wav", rate=8000))
    at = data.index(b"data")
    data[4:8] = data[at + 4 : at + 8] = b"\xff" * 4
    assert len(decode_audio(bytes(data))) == 100


def test_header_that_promises_hours_takes_no_memory() -> None:
    data = bytearray(encode_audio(np.zeros(100, "int16"), rate=8000))
    data[21] |= 0x0F  # the number of frames has 36 bits, the highest of them here
    with pytest.raises(FormatError, match=r"at most 2,147,483,648 bytes when decoded.*begin, frames"):
        decode_audio(bytes(data))
    with pytest.raises(FormatError, match="at most 100 bytes"):
        decode_audio(encode_audio(np.zeros(100, "int16"), rate=8000), max_bytes=100)
    assert len(decode_audio(bytes(data), frames=50)) == 50
    with pytest.raises(FormatError, match="at most 1,000 bytes"):
        decode_audio(encode_audio(np.zeros(100, "int16"), rate=8000), frames=10**9, pad="zero", max_bytes=1000)


# -- encode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["wav", "flac"])
@pytest.mark.parametrize("channels", [1, 2, 6])
def test_arrays_come_back_unchanged(form: str, channels: int) -> None:
    whole = np.random.default_rng(0).integers(-32768, 32768, (500, channels)).astype(np.int16)
    data = encode_audio(whole, form, rate=22050)
    assert audio_info(data) == AudioInfo(form, "PCM_16", 22050, channels, 500)
    decoded = decode_audio(data)
    assert np.array_equal(decoded * 32768, whole)
    assert np.array_equal(decode_audio(encode_audio(decoded, form, rate=22050)), decoded)
    assert np.array_equal(decode_audio(encode_audio(decoded.astype("float64"), form, rate=22050)), decoded)


def test_floats_in_wav_are_exact_and_may_exceed_1() -> None:
    values = noise(100) * 50
    assert np.array_equal(decode_audio(encode_audio(values, "wav", rate=8000)), values)
    with pytest.raises(SchemaError, match=r"from -1 to 1 for the format flac, got values up to 2.*wav"):
        encode_audio(values, "flac", rate=8000)
    assert decode_audio(encode_audio(np.array([1.0, -1.0]), rate=8000)).ravel() == pytest.approx([1, -1], abs=1e-6)


@pytest.mark.parametrize("form", ["ogg", "mp3"])
def test_lossy_formats_keep_the_sound(form: str) -> None:
    for values in (sine(440, 16000, 1), (sine(440, 16000, 1) * 32767).astype("int16")):
        decoded = decode_audio(encode_audio(values, form, rate=16000))
        assert len(decoded) == 16000
        assert frequency_of(decoded[:, 0], 16000) == pytest.approx(440, abs=2)
        assert np.abs(decoded).max() == pytest.approx(0.5, abs=0.1)


def test_rate_comes_with_the_array() -> None:
    array = np.zeros(10, "float32")
    for value in ((array, 8000), {"array": array, "sampling_rate": 8000, "path": None}):
        assert audio_info(encode_audio(value, rate=16000)).rate == 8000
    with pytest.raises(SchemaError, match=r"Audio\(rate=16000\)"):
        encode_audio(array)


def test_bytes_and_files_stay_as_they_are(tmp_path: Path) -> None:
    data = encode_audio(noise(100), "ogg", rate=8000)
    (tmp_path / "a.ogg").write_bytes(data)
    for value in (data, bytearray(data), memoryview(data), tmp_path / "a.ogg", str(tmp_path / "a.ogg")):
        assert encode_audio(value, "flac") == data
    with pytest.raises(NotFoundError, match=r"b\.ogg"):
        encode_audio(tmp_path / "b.ogg")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((2, 3, 4)), r"shape \(frames,\) or"),
        (np.zeros((2, 16000), "float32"), r"got \(2, 16000\): transpose"),
        (np.zeros((5, 0), "float32"), "1 to 64 channels"),
        (np.zeros(5, "int64"), "got int64"),
        (np.zeros(5, "uint8"), "got uint8"),
        (np.array(["a"]), "got <U1"),
        (np.array([np.nan]), "finite"),
        (np.zeros((5, 9), "int16"), "9 channels"),
        (np.array([1], "int32"), "24 bits"),
        (None, "got object"),
    ],
)
def test_arrays_that_are_no_audio(value: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        encode_audio(value, rate=8000)


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ArgumentError, match="format to be one of flac, wav, ogg, mp3"):
        encode_audio(noise(10), "aac", rate=8000)


def test_missing_soundfile_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingExtraError, match=r"audio needs soundfile, .*: pip install 'shardex\[audio\]'"):
        decode_audio(b"fLaC")
