"""`VideoDecodeConfig`: which frames of a video a sample has, and in which form; `decode_video` decodes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from shardex.compat.stable_datasets.features.base import tensor_of
from shardex.compat.stable_datasets.features.video import VideoRef
from shardex.errors import ArgumentError, SchemaError, nearest
from shardex.media import decode_frames
from shardex.rows import whole_number

_CHOICES: Final = {
    "sampling": ("uniform", "random", "center", "start"),
    "decoder": ("torchcodec", "decord", "cv2"),
    "output": ("torch", "numpy"),
    "layout": ("TCHW", "CTHW", "THWC"),
    "dtype": ("float32", "uint8"),
    "scale": ("zero_one", "none"),
    "crop": ("none", "center", "random"),
    "pad": ("error", "repeat_last", "loop"),
}
_LAYOUTS: Final = {"THWC": (0, 1, 2, 3), "TCHW": (0, 3, 1, 2), "CTHW": (3, 0, 1, 2)}


class VideoDecodeFn(Protocol):
    """A function that decodes one video."""

    def __call__(
        self,
        ref: VideoRef,
        config: VideoDecodeConfig,
        *,
        row: Mapping[str, Any] | None = None,
        sample_index: int | None = None,
    ) -> Any:
        """Return what the sample has instead of the video."""


class VideoDecodeFnBatched(Protocol):
    """A function that decodes the videos of a batch."""

    def __call__(
        self,
        refs: Sequence[VideoRef],
        config: VideoDecodeConfig,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        sample_indices: Sequence[int] | None = None,
    ) -> Sequence[Any]:
        """Return what each sample has instead of its video."""


@dataclass(frozen=True)
class VideoDecodeConfig:
    """Options with which a column of videos is decoded when samples are read.

    `num_frames` frames are chosen by `sampling`: "uniform" (from the first to the last frame), or `frame_stride` apart
    from the "start", in the "center" or at a "random" place, which `seed` and the position of the sample determine.
    Videos that are too short are refused, or padded as `pad` says. Frames are resized to `resize`: the same height and
    width, or (height, width); `crop` cuts out of the resized frames what has this size. `decode_fn` and
    `decode_fn_batched` decode instead. All names of decoders mean PyAV.

    >>> VideoDecodeConfig(8, sampling="center").layout
    'TCHW'
    """

    num_frames: int
    column: str = "video"
    sampling: str = "uniform"
    frame_stride: int = 1
    decoder: str = "torchcodec"
    output: str = "torch"
    layout: str = "TCHW"
    dtype: str = "float32"
    scale: str = "zero_one"
    resize: int | tuple[int, int] | None = None
    crop: str = "none"
    pad: str = "error"
    seed: int | None = None
    decode_fn: VideoDecodeFn | None = None
    decode_fn_batched: VideoDecodeFnBatched | None = None

    def __post_init__(self) -> None:
        for name in ("num_frames", "frame_stride"):
            given = getattr(self, name)
            if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
                raise ArgumentError(f"expected {name} to be a whole number of 1 or more, got {given!r}")
        if not isinstance(self.column, str) or not self.column:
            raise ArgumentError(f"expected column to be the name of a column, got {self.column!r}")
        if self.seed is not None:
            whole_number("seed", self.seed)
        for name, known in _CHOICES.items():
            if (given := getattr(self, name)) not in known:
                raise ArgumentError(
                    f"expected {name} to be one of {', '.join(known)}, got {given!r}{nearest(given, known)}"
                )
        if (self.dtype, self.scale) == ("uint8", "zero_one"):
            raise ArgumentError("expected scale='none' for dtype='uint8', got 'zero_one', which needs dtype='float32'")
        if self.crop != "none" and self.resize is None:
            raise ArgumentError(f"expected resize, the size that crop={self.crop!r} cuts out, got None")
        for name in ("decode_fn", "decode_fn_batched"):
            if (given := getattr(self, name)) is not None and not callable(given):
                raise ArgumentError(f"expected {name} to be a function, got {given!r}")
        self.size  # noqa: B018 - checks it

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the frames; None if they keep theirs."""
        given = self.resize
        pair = (given, given) if isinstance(given, int | np.integer) else given
        if pair is None:
            return None
        if len(pair) != 2 or any(isinstance(one, bool) or int(one) != one or one < 1 for one in pair):
            raise ArgumentError(f"expected resize to be a number of 1 or more or (height, width), got {given!r}")
        return int(pair[0]), int(pair[1])

    @classmethod
    def of(cls, config: VideoDecodeConfig | Mapping[str, Any] | None, options: Mapping[str, Any]) -> VideoDecodeConfig:
        """Return a configuration of another one or a mapping, with some options replaced."""
        if isinstance(config, VideoDecodeConfig):
            before = {name: getattr(config, name) for name in cls.__dataclass_fields__}
        elif config is None or isinstance(config, Mapping):
            before = dict(config or {})
        else:
            raise ArgumentError(f"expected a VideoDecodeConfig, a mapping or None, got {type(config).__name__}")
        given = {**before, **options}
        for name in given:
            if name not in (known := list(cls.__dataclass_fields__)):
                raise ArgumentError(f"expected options out of {', '.join(known)}, got {name!r}{nearest(name, known)}")
        if "num_frames" not in given:
            raise ArgumentError("expected num_frames, the number of frames of each sample, got none")
        return cls(**given)


def with_decoded_videos(
    rows: Sequence[Mapping[str, Any]], positions: Sequence[int], config: VideoDecodeConfig, cache_dir: Path | None
) -> list[Any]:
    """Return rows with their videos decoded: by a function of the user, or here; missing ones stay None."""
    column = config.column
    there = [k for k, row in enumerate(rows) if row[column] is not None]
    refs = [_video_ref(rows[k][column], column, cache_dir) for k in there]
    numbers = [positions[k] for k in there]
    if config.decode_fn_batched is not None:
        given = [rows[k] for k in there]
        decoded = list(config.decode_fn_batched(refs, config, rows=given, sample_indices=numbers)) if refs else []
        if len(decoded) != len(refs):
            raise ArgumentError(f"expected {len(refs)} videos from decode_fn_batched, got {len(decoded)}")
    elif config.decode_fn is not None:
        calls = zip(refs, there, numbers, strict=True)
        decoded = [config.decode_fn(ref, config, row=rows[k], sample_index=n) for ref, k, n in calls]
    else:
        decoded = [decode_video(ref, config, n) for ref, n in zip(refs, numbers, strict=True)]
    found = [dict(row) for row in rows]
    for k, value in zip(there, decoded, strict=True):
        found[k][column] = value
    return found


def _video_ref(value: Any, column: str, cache_dir: Path | None) -> VideoRef:
    """Return a video of a sample; a text is the path that caches of early versions hold."""
    if isinstance(value, VideoRef):
        return value
    if isinstance(value, Mapping):
        return VideoRef(value, cache_dir=cache_dir)
    if isinstance(value, str):
        return VideoRef({"mode": "path", "path": value})
    raise SchemaError(f"expected a video in the column {column}, got {type(value).__name__}")


def decode_video(ref: VideoRef, config: VideoDecodeConfig, sample_index: int | None = None) -> Any:
    """Return the frames of a video that a configuration asks for."""
    frames = decode_frames(
        ref.bytes,
        frames=int(config.num_frames),
        stride=1 if config.sampling == "uniform" else int(config.frame_stride),
        sampling="ends" if config.sampling == "uniform" else config.sampling,
        pad="repeat" if config.pad == "repeat_last" else config.pad,
        size=config.size,
        generator=_generator(config, sample_index),
    )
    return _in_form(frames, config)


def _generator(config: VideoDecodeConfig, sample_index: int | None) -> np.random.Generator | None:
    if config.sampling != "random":
        return None
    return np.random.default_rng(None if config.seed is None else int(config.seed) + int(sample_index or 0))


def _in_form(frames: NDArray[np.uint8], config: VideoDecodeConfig) -> Any:
    found: NDArray[Any] = frames
    if config.dtype == "float32":
        found = frames.astype(np.float32)
        if config.scale == "zero_one":
            found /= np.float32(255)
    found = np.ascontiguousarray(found.transpose(_LAYOUTS[config.layout]))
    return tensor_of(found) if config.output == "torch" else found
