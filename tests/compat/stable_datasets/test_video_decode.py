"""Videos of samples decoded by `VideoDecodeConfig`: which frames, in which form, by whom."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict
from shardex.compat.stable_datasets.schema import (
    DatasetInfo,
    Features,
    Value,
    Video,
    VideoDecodeConfig,
    VideoRef,
)
from shardex.media import encode_video
from tests.compat.stable_datasets.caches import cache


def frames(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Frames that show their number, and the seed in the last channel."""
    found = np.zeros((count, 8, 10, 3), np.uint8)
    found[..., 0] = (np.arange(count) * 4)[:, None, None]
    found[..., 2] = seed
    return found


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> StableDataset:
    """Videos of 40 frames and one of 3; one is missing."""
    rows = [
        {"video": None if k == 2 else encode_video(frames(3 if k == 3 else 40, k), "mkv"), "label": k} for k in range(4)
    ]
    features = Features({"video": Video("bytes", (".mkv",)), "label": Value("int64")})
    return cache(tmp_path_factory.mktemp("videos") / "c", features, rows, 2)


def numbers(clip: Any) -> list[int]:
    """Frame numbers of a clip in the layout THWC of uint8."""
    return [int(one) // 4 for one in clip[:, 0, 0, 0]]


def plain(ds: StableDataset, num_frames: int, **options: Any) -> StableDataset:
    form = {"output": "numpy", "layout": "THWC", "dtype": "uint8", "scale": "none", "decoder": "cv2"}
    return ds.set_video_decode({"num_frames": num_frames, **form}, **options)


def test_videos_are_references_without_options(ds: StableDataset) -> None:
    assert isinstance(ds[0]["video"], VideoRef) and ds[0]["video"].mode == "bytes" and ds[2]["video"] is None
    assert isinstance(plain(ds, 2).set_video_decode(None)[0]["video"], VideoRef)


def test_chosen_frames(ds: StableDataset) -> None:
    assert numbers(plain(ds, 4)[0]["video"]) == [0, 13, 26, 39]
    assert numbers(plain(ds, 3, sampling="start", frame_stride=5)[1]["video"]) == [0, 5, 10]
    assert numbers(plain(ds, 3, sampling="center", frame_stride=2)[0]["video"]) == [17, 19, 21]
    short = plain(ds, 5, pad="repeat_last")
    assert numbers(short[3]["video"]) == [0, 1, 2, 2, 2]
    assert numbers(
        short.set_video_decode(num_frames=5, pad="loop", output="numpy", layout="THWC")[3]["video"] * 255
    ) == [*(0, 1, 2, 0, 1)]
    with pytest.raises(ValueError, match="5 frames, got 3"):
        plain(ds, 5)[3]
    assert short[2]["video"] is None


def test_random_frames_depend_on_seed_and_position(ds: StableDataset) -> None:
    view = plain(ds[:2], 2, sampling="random", seed=7)
    again = pickle.loads(pickle.dumps(view))
    found = [numbers(row["video"]) for row in view]
    assert (
        found
        == [numbers(row["video"]) for row in again]
        == [numbers(row["video"]) for row in view.__getitems__([0, 1])]
    )
    starts = [int(np.random.default_rng(7 + k).integers(39)) for k in range(2)]
    assert found == [[start, start + 1] for start in starts]
    assert {numbers(plain(ds, 1, sampling="random")[0]["video"])[0] for _ in range(20)} != {0}


def test_forms(ds: StableDataset) -> None:
    torch = pytest.importorskip("torch")
    clip = ds.set_video_decode(num_frames=2)[0]["video"]
    assert clip.shape == (2, 3, 8, 10) and clip.dtype == torch.float32 and clip.max() <= 1
    config = VideoDecodeConfig(2, layout="CTHW", dtype="float32", scale="none", resize=4, crop="center")
    clip = ds.set_video_decode(config)[0]["video"]
    assert clip.shape == (3, 2, 4, 4) and clip.max() > 100
    assert ds.set_video_decode(config, resize=(6, 8), output="numpy")[1]["video"].shape == (3, 2, 6, 8)


def describe(ref: VideoRef, config: VideoDecodeConfig, **more: Any) -> tuple[Any, ...]:
    return type(ref), config.num_frames, more["row"]["label"], more["sample_index"]


def describe_all(refs: list[VideoRef], config: VideoDecodeConfig, **more: Any) -> list[tuple[Any, ...]]:
    pairs = zip(refs, more["rows"], more["sample_indices"], strict=True)
    return [describe(ref, config, row=row, sample_index=n) for ref, row, n in pairs]


@pytest.mark.parametrize("option", [{"decode_fn": describe}, {"decode_fn_batched": describe_all}])
def test_functions_of_the_user(ds: StableDataset, option: dict[str, Any]) -> None:
    view = ds.set_video_decode(num_frames=9, **option)
    expected = [None if k == 2 else (VideoRef, 9, k, k) for k in range(4)]
    assert [row["video"] for row in view] == expected == [row["video"] for row in view.__getitems__(range(4))]
    assert view[1]["video"] == expected[1] and view.with_transform(lambda row: row["video"])[3] == expected[3]
    if "decode_fn_batched" in option:
        with pytest.raises(ValueError, match="decode_fn_batched"):
            ds.set_video_decode(num_frames=1, decode_fn_batched=lambda refs, config, **more: [])[0]


def test_streams_decode_videos(ds: StableDataset) -> None:
    """E3.3: the iterable form of the original ignored the options."""
    found = [row["video"] for row in plain(ds[:2], 2).as_iterable()]
    assert [numbers(clip) for clip in found] == [[0, 39]] * 2


def test_files_next_to_the_shards_and_new_caches(tmp_path: Path) -> None:
    """Videos by path are found in the folder of their cache, also in those that `map` and `flatten_indices` write."""
    source = tmp_path / "raw"
    source.mkdir()
    for k in range(3):
        (source / f"{k}.mkv").write_bytes(encode_video(frames(5, k), "mkv"))
    features = Features({"video": Video("path"), "label": Value("int64")})
    ds = cache(tmp_path / "c", features, ({"video": source / f"{k}.mkv", "label": k} for k in range(3)))
    view = plain(ds, 2)
    assert view[1]["video"][0, 0, 0, 2] == 1 and ds[0]["video"].path.parent == tmp_path / "c" / "_assets" / "video"
    flat = view.select([2, 0]).flatten_indices(tmp_path / "flat")
    assert [int(row["video"][0, 0, 0, 2]) for row in flat] == [2, 0]
    mapped = view.map(lambda row: {**row, "label": row["label"] + 1}, cache_dir=tmp_path / "mapped")
    assert [(int(row["video"][0, 0, 0, 2]), row["label"]) for row in mapped] == [(0, 1), (1, 2), (2, 3)]
    again = StableDataset(features, DatasetInfo(features), shard_dir=tmp_path / "mapped")
    assert again[0]["video"].path.parent == tmp_path / "mapped" / "_assets" / "video"


def test_given_paths_are_decoded(tmp_path: Path) -> None:
    """As document 004 stores them: ``Video()`` keeps the path, and the samples have it."""
    (tmp_path / "0.mkv").write_bytes(encode_video(frames(5), "mkv"))
    ds = cache(tmp_path / "c", Features({"video": Video()}), [{"video": tmp_path / "0.mkv"}])
    assert ds[0]["video"] == str(tmp_path / "0.mkv") and numbers(plain(ds, 2)[0]["video"]) == [0, 4]


def test_options_follow_their_column(ds: StableDataset) -> None:
    view = plain(ds[:2], 2)
    assert numbers(view.rename_column("video", "clip")[0]["clip"]) == [0, 39]
    assert view.remove_columns("video")[1] == {"label": 1}
    assert view.map(lambda row: {"n": row["label"]})[1] == {"n": 1}


def test_all_splits_at_once(ds: StableDataset) -> None:
    both = StableDatasetDict({"a": ds[:1], "b": ds[1:2]}).set_video_decode(num_frames=1, output="numpy")
    assert [one[0]["video"].shape for one in both.values()] == [(1, 3, 8, 10)] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_frames": 0}, "num_frames"),
        ({}, "num_frames"),
        ({"num_frames": 2, "sampling": "uniformly"}, "did you mean 'uniform'"),
        ({"num_frames": 2, "decoder": "ffmpeg"}, "decoder"),
        ({"num_frames": 2, "crop": "center"}, "resize"),
        ({"num_frames": 2, "resize": (0, 3)}, "resize"),
        ({"num_frames": 2, "column": "label"}, "column of videos"),
        ({"num_frames": 2, "colunm": "label"}, "did you mean 'column'"),
        ({"num_frames": 2, "decode_fn": 3}, "decode_fn"),
        ({"num_frames": 2, "dtype": "uint8"}, "scale='none'"),
        ({"num_frames": 2, "seed": "7"}, "seed"),
        ({"num_frames": 2, "column": ""}, "column"),
    ],
)
def test_wrong_options(ds: StableDataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ds.set_video_decode(options)
    with pytest.raises(TypeError, match="mapping"):
        ds.set_video_decode(3)  # type: ignore[arg-type]
