"""Where the rows of a `StableDataset` come from: the protocol, and Arrow files or tables."""

from shardex.compat.stable_datasets.backends.arrow_shards import ArrowBackend
from shardex.compat.stable_datasets.backends.lance_rows import LanceBackend
from shardex.compat.stable_datasets.backends.lance_video_frames import LanceVideoFramesBackend
from shardex.compat.stable_datasets.backends.protocol import StorageBackend

__all__ = ["ArrowBackend", "LanceBackend", "LanceVideoFramesBackend", "StorageBackend"]
