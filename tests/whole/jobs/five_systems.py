"""Programs of the five systems with other import lines, and their files opened as they are."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import shardex as sx
from shardex.compat.atdata import load_dataset, packable, write_samples
from shardex.compat.data_forager.datasets.jsonl import JsonlDataset
from shardex.compat.data_forager.indexers.jsonl_indexer import create_default_jsonl_indexer
from shardex.compat.splitdataloader import SplitDataLoader, write_split_data
from shardex.compat.stable_datasets.cache import open_cache, write_sharded_arrow_cache
from shardex.compat.stable_datasets.dataset import StableDataset
from shardex.compat.stable_datasets.schema import Array3D, ClassLabel, DatasetInfo, Features
from shardex.compat.synthefy_dataset_utils import ShardedDatasetReader, ShardedDatasetWriter

# synthefy-dataset-utils
writer = ShardedDatasetWriter("series", samples_per_shard=10)
writer.add_fields(["history"])
for k in range(30):
    writer.add_sample({"history": np.full(4, k, "float32")}, metadata={"length": k})
writer.close()
reader = ShardedDatasetReader("series")
(found,) = reader.query_ids("json_extract(meta_json, '$.length') = ?", params=(7,))
reader.close()
assert sx.open("series").where("id = ?", [found])[0].history.tolist() == [7] * 4


# atdata
@packable
class Point:
    x: NDArray[Any]
    y: int


write_samples([Point(x=np.full(3, k, "float32"), y=k) for k in range(20)], "points.tar")
points: Any = load_dataset("points.tar", Point, split="train")
assert sorted(y for batch in points.shuffled(batch_size=6) for y in batch.y) == list(range(20))
lists = DataLoader(points, batch_size=5, shuffle=True, collate_fn=list)
assert sorted(point.y for batch in lists for point in batch) == list(range(20))
assert sx.open("points.tar")[7].y == 7

# data-forager
sx.write("corpus", [{"text": f"document {k}"} for k in range(50)], format="jsonl")
create_default_jsonl_indexer("corpus")()
documents: Any = JsonlDataset.create_from_index_on_filesystem("corpus")
texts = [text for batch in DataLoader(documents, batch_size=8, shuffle=True) for text in batch["text"]]
assert sorted(texts) == sorted(sx.open("corpus")["text"])

# splitdataloader
write_split_data("packets", (bytes([k]) * 8 for k in range(100)), splits=4)
packets = SplitDataLoader("packets")
assert sorted(packet[0] for packet in packets.iterate_binwise(shuffle=True)) == list(range(100))
assert sx.open("packets")[42].data == packets[42]


# stable-datasets
def examples() -> Iterator[tuple[int, dict[str, Any]]]:
    for k in range(40):
        yield k, {"image": np.full((8, 8, 3), k, np.uint8), "label": ("even", "odd")[k % 2]}


features = Features({"image": Array3D((8, 8, 3), "uint8"), "label": ClassLabel(["even", "odd"])})
write_sharded_arrow_cache(examples(), features, "cache")
data = StableDataset(features, DatasetInfo(features), backend=open_cache("cache", features).backend)
train: Any = data.train_test_split(test_size=0.25, seed=42)["train"]
assert sum(len(batch["label"]) for batch in DataLoader(train.with_format("torch"), batch_size=8, shuffle=True)) == 30
assert sx.open("cache")[7].image[0, 0, 0] == 7
