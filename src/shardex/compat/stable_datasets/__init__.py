"""The names of stable_datasets, over the core of shardex.

The modules of the original are here except its 79 ready-made datasets (`images`, `timeseries`, `video`), which are
downloads of public data: derive them from `BaseDatasetBuilder` as the original does.
"""

from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict
from shardex.compat.stable_datasets.schema import (
    Array3D,
    BuilderConfig,
    ClassLabel,
    DatasetInfo,
    DatasetSource,
    DownloadInfo,
    Features,
    Image,
    Sequence,
    Value,
    Version,
    Video,
    VideoDecodeConfig,
    VideoDecodeFn,
    VideoDecodeFnBatched,
    VideoRef,
)
from shardex.compat.stable_datasets.utils import BaseDatasetBuilder

__all__ = [
    "Array3D",
    "BaseDatasetBuilder",
    "BuilderConfig",
    "ClassLabel",
    "DatasetInfo",
    "DatasetSource",
    "DownloadInfo",
    "Features",
    "Image",
    "Sequence",
    "StableDataset",
    "StableDatasetDict",
    "Value",
    "Version",
    "Video",
    "VideoDecodeConfig",
    "VideoDecodeFn",
    "VideoDecodeFnBatched",
    "VideoRef",
]
