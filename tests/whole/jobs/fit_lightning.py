"""Train with Lightning on two devices that are made by `fit`, stop in an epoch or at its end, and resume on one.

Validation must see the same samples in each epoch, whatever the sanity steps took, and each device its own.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import shardex as sx


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[int] = []
        self.checked: list[list[int]] = []

    def training_step(self, batch: dict[str, Any], index: int) -> Any:
        self.seen += batch["id"].tolist()
        return self.layer(batch["x"]).square().mean()

    def on_validation_epoch_start(self) -> None:
        self.checked.append([])

    def validation_step(self, batch: dict[str, Any], index: int) -> None:
        self.checked[-1] += batch["id"].tolist()
        self.log("mean", batch["id"].float().mean(), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.001)


def fit(devices: int, max_steps: int, checkpoint: str | None = None, batches: int | None = None) -> Model:
    ds = sx.open({"id": np.arange(120), "x": np.ones((120, 4), np.float32)})
    train = sx.Loader(ds[:80], 4, shuffle=True, seed=0, to="torch", collate=dict)
    held_out = sx.Loader(ds[80:], 4, to="torch", collate=dict)
    model = Model()
    every = None if batches else 13  # None: at the end of each epoch
    saves = ModelCheckpoint("checkpoints", filename="{step}", save_top_k=-1, every_n_train_steps=every)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=3,
        max_steps=max_steps,
        limit_train_batches=batches,
        limit_val_batches=3,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[saves],
    )
    trainer.fit(model, train, held_out, ckpt_path=checkpoint)
    if max_steps < 0:
        assert trainer.callback_metrics["mean"] == 85.5, "the mean of the first three batches of validation"
    return model


def main() -> None:
    if len(sys.argv) > 1:  # each of two processes, the second of which is started by the first
        model = fit(2, 13)
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        first, second = model.seen[:40], model.seen[40:]
        other = sx.Loader(
            sx.open({"id": np.arange(80)}), 4, shuffle=True, seed=0, rank=1 - rank, world_size=2, epochs=2
        )
        assert len({*first}) == 40 and len(second) == 12
        assert {*first}.isdisjoint({row for batch in other if not batch.origin.epoch for row in batch.id.tolist()})
        assert model.checked == [[80 + 4 * rank + 8 * k + j for k in range(n) for j in range(4)] for n in (2, 3)]
    else:
        model = fit(1, -1, "checkpoints/step=13.ckpt")
        straight = sx.Loader(sx.open({"id": np.arange(80)}), 8, shuffle=True, seed=0, epochs=3)
        assert model.seen == [row for batch in straight for row in batch.id.tolist()][13 * 8 :]
        assert model.checked[-1] == list(range(80, 92))
        for batches in (20, 5):  # Lightning does not load the state of a loader that was saved at the end of an epoch
            whole = fit(1, -1, batches=batches)
            resumed = fit(1, -1, f"checkpoints/step={batches}.ckpt", batches)
            assert resumed.seen == whole.seen[4 * batches :]


if __name__ == "__main__":
    main()
