"""Train with Accelerate in two processes, save inside of an epoch, and continue at the exact sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

import shardex as sx


def start() -> tuple[Accelerator, Any, Any]:
    ds = sx.open({"id": np.arange(103), "x": np.ones((103, 4), np.float32)})
    loader = sx.Loader(ds, 8, shuffle=True, seed=0, to="torch")  # before the process group
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(4, 1))
    assert accelerator.prepare(loader) is loader
    accelerator.register_for_checkpointing(loader)
    return accelerator, model, loader


def main() -> None:
    accelerator, model, loader = start()
    seen = []
    for batch in loader:
        accelerator.backward(model(batch.x).mean())
        seen.append(batch.id[batch.mask].tolist())
        if loader.step == 3:
            accelerator.save_state("saved")
    every = accelerator.gather(torch.tensor([sum(map(len, seen)), sum(sum(one) for one in seen)]).reshape(1, 2)).sum(0)
    assert accelerator.num_processes == 2 and every.tolist() == [103, sum(range(103))]
    accelerator, model, loader = start()
    accelerator.load_state("saved")
    assert [batch.id[batch.mask].tolist() for batch in loader] == seen[3:]
    accelerator.end_training()


if __name__ == "__main__":
    main()
