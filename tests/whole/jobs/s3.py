"""A bucket: write to it, read from it with a cache, train, edit, and pass it to worker processes. Run with its URL."""

import os
import sys
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

import shardex as sx

url = sys.argv[1]  # credentials and endpoint are in the environment: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...


def first(batch: Any) -> int:  # a Batch; torch says that it is a list
    return int(batch.x[0])


def main() -> None:
    samples = [{"x": k, "v": np.full(50, k, "float32")} for k in range(500)]
    ds = sx.write(f"{url}/native", samples, shard_rows=100)
    assert len(ds) == 500 and ds[321].v[0] == 321
    sx.write(f"{url}/tars", samples, format="tar", shard_rows=100)

    ds = sx.open(f"{url}/native", cache="cache", cache_limit="1 GB")
    assert ds.where("x >= 490")["x"].tolist() == list(range(490, 500))
    seen = np.concatenate([batch.x for batch in sx.Loader(ds, 64, shuffle=True, seed=0)])
    assert sorted(seen.tolist()) == list(range(500)) and os.listdir("cache")
    tars = sx.open(f"{url}/tars/shard-{{000000..000004}}.tar", cache=False)
    assert len(tars) == 500 and tars[-1]["v"][0] == 499

    with sx.edit(f"{url}/native") as tx:
        tx.update(0, x=-1)
        tx.delete([1, 2])
    assert sx.open(f"{url}/native").select("x").head(2) == [{"x": -1}, {"x": 3}]
    assert len(sx.open(f"{url}/native", version=1)) == 500

    loader = DataLoader(
        ds.select("x"), batch_size=100, num_workers=1, multiprocessing_context="spawn", collate_fn=first
    )
    assert list(loader) == [0, 100, 200, 300, 400]


if __name__ == "__main__":
    main()
