"""`LanceVideoFramesBackend`: Lance files are not read here; the error says what to use."""

from __future__ import annotations

from typing import Any

from shardex.compat.stable_datasets.backends.lance_rows import refuse_lance


class LanceVideoFramesBackend:
    """Windows of video frames in a Lance dataset, which shardex does not read: making one raises an error.

    Videos that are stored whole, `Video(storage="path")` or ``"bytes"``, are decoded by `set_video_decode`.
    """

    def __init__(
        self,
        *,
        uri: Any = None,
        window_length: int = 1,
        frame_skip: int = 0,
        hop_size: int = 1,
        min_video_frames: int | None = None,
        batch_readahead: int = 8,
    ) -> None:
        refuse_lance("LanceVideoFramesBackend (for videos: Video(storage='path') and set_video_decode)", uri)
