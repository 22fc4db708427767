"""Train with DistributedDataParallel in two processes, save inside of an epoch, and continue at the exact sample."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import shardex as sx


def main() -> None:
    ds = sx.open({"id": np.arange(103), "x": np.ones((103, 4), np.float32)})
    loader = sx.Loader(ds, 8, shuffle=True, seed=0, to="torch")  # before the process group
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    seen = []
    for batch in loader:
        model(batch.x).mean().backward()
        seen.append(batch.id[batch.mask].tolist())
        if loader.step == 3:
            state = loader.state_dict()
    every: list[list[list[int]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, seen)
    assert sorted(number for rank in every for ids in rank for number in ids) == list(range(103))
    assert len({len(rank) for rank in every}) == 1 and every[0] != every[1]
    again = sx.Loader(ds, 8, shuffle=True, seed=0, to="torch")
    again.load_state_dict(state)
    assert [batch.id[batch.mask].tolist() for batch in again] == seen[3:]
    dist.barrier()  # a thread of gloo that frees its last tensor while the interpreter ends aborts the process
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
