"""Fields of audio and video: written as arrays or bytes, decoded by their features, in views and in loaders."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FormatError, SchemaError
from shardex.kernel import Masked, Ragged
from shardex.media import decode_audio, decode_frames, encode_audio, encode_video

RATE = 8000
LENGTHS = [400, 800, 600, 400, 1000, 700]
SOUNDS = [encode_audio((np.arange(n) + 1000 * k).astype(np.int16), rate=RATE) for k, n in enumerate(LENGTHS)]
FILMS = [
    encode_video(np.arange(10 * k, 10 * k + n, dtype=np.uint8)[:, None, None] + np.zeros((8, 12), np.uint8), "mkv")
    for k, n in enumerate([5, 9, 6, 5, 7, 8], 1)
]
SCHEMA = {"audio": sx.Audio(), "video": sx.Video(), "n": int}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("media") / "clips"
    clips = zip(SOUNDS, FILMS, strict=True)
    sx.write(path, [{"audio": sound, "video": film, "n": k} for k, (sound, film) in enumerate(clips)], SCHEMA)
    return path


@pytest.fixture
def ds(path: Path) -> Dataset:
    return sx.open(path)


def first_frames(videos: Any) -> list[list[int]]:
    """The values of the first pixels, which number the frames of each video."""
    return [np.asarray(one)[:, 0, 0, 0].tolist() for one in videos]


# -- reading ------------------------------------------------------------------------------------------------------


def test_samples_and_columns_are_decoded(ds: Dataset) -> None:
    assert np.array_equal(ds[1].audio, decode_audio(SOUNDS[1])) and ds[1].audio.shape == (800, 1)
    assert np.array_equal(ds[1].video, decode_frames(FILMS[1])) and ds[1].video.shape == (9, 8, 12, 3)
    found = ds.read([4, 0])
    assert isinstance(found["audio"], Ragged) and found["audio"].inner == (1,)
    assert found["audio"].lengths.tolist() == [1000, 400]
    assert np.array_equal(found["audio"][0], decode_audio(SOUNDS[4]))
    assert isinstance(found["video"], Ragged) and found["video"].shapes is not None
    assert found["video"].shapes.tolist() == [[7, 8, 12, 3], [5, 8, 12, 3]]
    assert ds.stored[1].audio == SOUNDS[1] and ds.stored["video"] == FILMS
    again = pickle.loads(pickle.dumps(ds))
    assert np.array_equal(again[5].video, ds[5].video)


def test_audio_of_one_length_by_chance_is_ragged_as_well(ds: Dataset) -> None:
    found = ds.read([0, 3])["audio"]
    assert isinstance(found, Ragged) and found.lengths.tolist() == [400, 400]
    assert isinstance(ds.read([])["audio"], Ragged)


def test_options_of_the_feature(tmp_path: Path) -> None:
    schema = {
        "audio": sx.Audio(4000, frames=300, sampling="center", pad="zero"),
        "video": sx.Video(3, size=(4, 6)),
    }
    samples = [{"audio": sound, "video": film} for sound, film in zip(SOUNDS, FILMS, strict=True)]
    ds = sx.write(tmp_path / "d", samples, schema)
    assert sx.open(tmp_path / "d").features == sx.Features(schema)
    columns = ds.read(range(6))
    assert columns["audio"].shape == (6, 300, 1) and columns["video"].shape == (6, 3, 4, 6, 3)
    assert np.array_equal(ds[4].audio, columns["audio"][4])
    assert columns["audio"][0, 200:].any() == np.False_


def test_other_options_for_a_view(ds: Dataset) -> None:
    import torch

    clips = ds.decode(audio=sx.Audio(4000, frames=100), video=sx.Video(2, stride=3, sampling="start"))
    assert clips[0].audio.shape == (100, 1)
    assert first_frames(clips.read([0, 1])["video"]) == [[10, 13], [20, 23]]
    assert first_frames(ds.decode(video=sx.Video(3, sampling="ends")).read([2])["video"]) == [[30, 32, 35]]
    assert clips.features["audio"] == sx.Audio(4000, frames=100)
    assert clips.fingerprint != ds.fingerprint
    assert clips.stored["audio"] == SOUNDS and clips.decode(False)[0].audio == SOUNDS[0]
    both = ds.decode("torch", audio=sx.Audio(mono=True))
    assert isinstance(both[0].audio, torch.Tensor) and both[0].audio.shape == (1, 400)
    assert ds.decode(audio=sx.Audio(decode=False))[0].audio == SOUNDS[0]


def test_tensors_have_their_channels_first(ds: Dataset) -> None:
    import torch

    sample = ds.decode("torch")[2]
    assert sample.audio.shape == (1, 600) and sample.video.shape == (6, 3, 8, 12)
    assert sample.audio.dtype == torch.float32 and sample.video.dtype == torch.uint8


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"audio": sx.Video()}, "expected options of audio, got Video"),
        ({"audio": "pil"}, "'pil' for a field of images only"),
        ({"video": [sx.media.Resize(4)]}, "steps for a field of images only"),
        ({"audio": 16000}, r"sx.Audio\(rate=16000\)"),
        ({"video": sx.Video(2, sampling="random")}, "without chance.*Loader"),
    ],
)
def test_wrong_options_are_refused(ds: Dataset, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ds.decode(**fields)


def test_missing_values_stay_missing(tmp_path: Path) -> None:
    schema = {"audio": sx.Optional(sx.Audio()), "video": sx.Optional(sx.Video(2))}
    samples = [{"audio": SOUNDS[0], "video": None}, {"audio": None, "video": FILMS[0]}]
    ds = sx.write(tmp_path / "d", samples, schema)
    assert ds[1].audio is None and ds[0].video is None
    columns = ds.read([0, 1])
    assert isinstance(columns["audio"], Masked) and columns["audio"].mask.tolist() == [True, False]
    assert isinstance(columns["video"], Masked) and columns["video"].mask.tolist() == [False, True]


def test_errors_name_sample_and_field(tmp_path: Path) -> None:
    samples = [{"flac": SOUNDS[0], "mkv": FILMS[0]}, {"flac": SOUNDS[1][:-30], "mkv": FILMS[1][:-30]}]
    sx.write(tmp_path / "d", samples, {"flac": bytes, "mkv": bytes}, format="tar")
    for name, error, feature in (("flac", "flac", sx.Audio()), ("mkv", "cut off", sx.Video())):
        broken = sx.open(tmp_path / "d", schema={name: feature}).select(name)
        reads: list[Callable[[], Any]] = [lambda ds=broken: ds[1], lambda ds=broken: ds.read([0, 1])]  # type: ignore[misc]
        for read in reads:
            with pytest.raises(FormatError, match=rf"{error}.*sample 1.*field {name}; ds.decode\(False\)"):
                read()
    short = sx.write(tmp_path / "e", [{"audio": SOUNDS[0]}], {"audio": sx.Audio(frames=500)})
    with pytest.raises(FormatError, match=r"500 frames .*got 400 frames.*pad='zero'.*field audio"):
        short[0]


def test_errors_at_write_time_name_sample_and_field(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"cut off.*sample 1, field video"):
        sx.write(tmp_path / "d", [{"video": FILMS[0]}, {"video": FILMS[1][:-9]}], {"video": sx.Video()})
    with pytest.raises(SchemaError, match=r"expected a rate.*sample 0, field audio"):
        sx.write(tmp_path / "d", [{"audio": np.zeros(10, np.float32)}], {"audio": sx.Audio()})


# -- copies and functions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["arrow", "parquet", "tar"])
def test_copies_keep_the_bytes(ds: Dataset, tmp_path: Path, format: str) -> None:
    named = ds.rename(audio="flac", video="mkv", n="cls")
    copy = sx.write(tmp_path / "copy", named, format=format)
    assert copy.stored["flac"] == SOUNDS and copy.stored["mkv"] == FILMS
    assert copy[2].flac.shape == (600, 1) and copy[2].mkv.shape == (6, 8, 12, 3)


def test_functions_get_arrays(ds: Dataset, tmp_path: Path) -> None:
    peaks = ds.map(lambda one: {"peak": float(np.abs(one.audio).max())})
    assert peaks[0].peak == pytest.approx(399 / 32768)
    kept = sx.write(tmp_path / "e", ds.map(lambda one: one))
    assert kept.stored["audio"] == SOUNDS and kept.stored["video"] == FILMS


# -- loaders --------------------------------------------------------------------------------------------------------


def test_loader_pads_audio_and_gives_lengths(ds: Dataset) -> None:
    (batch,) = sx.Loader(ds.select("audio"), 6)
    assert batch.audio.shape == (6, 1000, 1)
    assert batch.lengths_of("audio").tolist() == LENGTHS
    (batch,) = sx.Loader(ds.select("audio"), 6, to="torch")
    assert batch.audio.shape == (6, 1, 1000)
    (batch,) = sx.Loader(ds.select("audio"), 6, ragged="pack", to="torch")
    assert batch.audio.values.shape == (sum(LENGTHS), 1)
    (batch,) = sx.Loader(ds.select("audio"), 6, ragged="list")
    assert [len(one) for one in batch.audio] == LENGTHS


def test_loader_stacks_what_has_one_shape(ds: Dataset) -> None:
    decode = {"audio": sx.Audio(frames=300), "video": sx.Video(4, size=(4, 6))}
    (batch,) = sx.Loader(ds, 6, decode=decode)
    assert batch.audio.shape == (6, 300, 1) and batch.video.shape == (6, 4, 4, 6, 3)
    (batch,) = sx.Loader(ds, 6, decode=decode, to="torch")
    assert batch.audio.shape == (6, 1, 300) and batch.video.shape == (6, 4, 3, 4, 6)


def test_loader_refuses_shapes_that_differ(ds: Dataset, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"videos of one number of frames.*sx.Video\(frames="):
        list(sx.Loader(ds.select("video"), 6))
    stereo = encode_audio(np.zeros((100, 2), np.int16), rate=RATE)
    mixed = sx.write(tmp_path / "d", [{"audio": SOUNDS[0]}, {"audio": stereo}], {"audio": sx.Audio()})
    with pytest.raises(SchemaError, match=r"one number of channels.*sx.Audio\(mono=True"):
        list(sx.Loader(mixed, 2))
    (batch,) = sx.Loader(mixed, 2, decode={"audio": sx.Audio(mono=True)})
    assert batch.audio.shape == (2, 400, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_frames_depend_on_seed_epoch_and_position(ds: Dataset, workers: int) -> None:
    decode = {
        "audio": sx.Audio(frames=200, sampling="random"),
        "video": sx.Video(2, sampling="random"),
    }

    def epochs(size: int, seed: int, workers: int) -> list[Any]:
        loader = sx.Loader(ds, size, decode=decode, shuffle=True, seed=seed, epochs=3, workers=workers)
        with loader:
            batches = list(loader)
        return [
            (int(n), first, frames)
            for batch in batches
            for n, first, frames in zip(batch.n, batch.audio[:, 0, 0].tolist(), first_frames(batch.video), strict=True)
        ]

    found = epochs(2, 0, workers)
    assert found == epochs(3, 0, 0)
    assert found != epochs(3, 1, 0)
    by_epoch = [sorted(found[k : k + 6]) for k in (0, 6, 12)]
    assert by_epoch[0] != by_epoch[1] != by_epoch[2]


def test_random_frames_of_the_schema_need_a_loader(tmp_path: Path) -> None:
    samples = [{"video": film} for film in FILMS]
    ds = sx.write(tmp_path / "d", samples, {"video": sx.Video(2, sampling="random")})
    with pytest.raises(ArgumentError, match="Loader"):
        ds[0]
    (batch,) = sx.Loader(ds, 6)
    assert batch.video.shape == (6, 2, 8, 12, 3)
    assert ds.decode(video=sx.Video(2))[0].video.shape == (2, 8, 12, 3)
