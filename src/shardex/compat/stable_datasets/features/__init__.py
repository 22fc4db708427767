"""The features of stable_datasets: what a column holds, how values are stored in Arrow, and how they are returned.

Each feature says which feature of shardex it is (`FeatureType.core`); images, arrays and videos are encoded and decoded
by that.

- `base`: `FeatureType`, and the features of numbers, texts, classes and lists
- `array`: arrays of a fixed shape
- `image`: images
- `video`: videos as files next to the shards, or as bytes
"""

from shardex.compat.stable_datasets.features.array import Array3D, Array4D
from shardex.compat.stable_datasets.features.base import ClassLabel, FeatureType, Sequence, Value
from shardex.compat.stable_datasets.features.image import Image
from shardex.compat.stable_datasets.features.video import Video, VideoRef

__all__ = ["Array3D", "Array4D", "ClassLabel", "FeatureType", "Image", "Sequence", "Value", "Video", "VideoRef"]
