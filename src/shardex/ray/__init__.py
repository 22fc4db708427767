"""Exchanges data with Ray: a source and a sink for Ray Data, and a loader for Ray Train.

In: a dataset, or the blocks of a `ray.data.Dataset`. Out: a `ray.data.Datasource`, a written dataset, batches. Jobs of
shardex itself (`write`, `index`, ...) run on a cluster by ``executor="ray"``, without this room. It is not imported
with shardex, but at the first use of ``shardex.ray``.

- `source`: reads a dataset in the tasks of Ray Data; projections are pushed down, and filters as conditions of SQL
- `blocks`: tables of shardex as blocks of Ray Data, with tensors, and back
- `sink`: writes a `ray.data.Dataset` in parts and publishes them together
- `train`: a `Loader` with the rank of a worker of Ray Train, and its state in a checkpoint
"""

from shardex.workers import import_ray

import_ray("shardex.ray")

from shardex.ray.sink import sink  # noqa: E402  # these modules need Ray
from shardex.ray.source import source  # noqa: E402
from shardex.ray.train import loader, save_state  # noqa: E402

__all__ = ["loader", "save_state", "sink", "source"]
