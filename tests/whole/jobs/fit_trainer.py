"""Train a GPT-2 of Hugging Face with its Trainer in two processes, which have samples of their own.

Labels are those that the model shifts itself: its loss is that of the labels which are shifted already. A resume that
leaves skipping to the trainer says what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import shardex as sx

SEEN: list[int] = []


class LoaderTrainer(Trainer):
    def __init__(self, *args: Any, loader: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return self.loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        return self.loader

    def training_step(self, *args: Any, **options: Any) -> Any:
        SEEN.extend(self.loader.origin.rows.tolist())
        return super().training_step(*args, **options)


def main() -> None:
    documents = sx.open([{"tokens": np.arange(k, k + 20 + k % 5) % 32} for k in range(40)])
    packs, shifted = documents.pack(16, "best_fit", labels="huggingface"), documents.pack(16, "best_fit", labels=True)
    torch.manual_seed(0)
    model: Any = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=8, n_layer=1, n_head=2))
    model.eval()
    batch = next(iter(sx.Loader(packs, 8, to="torch", collate=dict)))
    labels = torch.from_numpy(next(iter(sx.Loader(shifted, 8))).labels)
    found = model(**batch)
    expected = torch.nn.functional.cross_entropy(found.logits.transpose(1, 2), labels)
    assert torch.allclose(found.loss, expected), (found.loss, expected)

    loader = sx.Loader(packs, 4, shuffle=True, seed=0, to="torch", collate=dict, drop_last=True)
    options: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_steps": 3}
    trainer = LoaderTrainer(model, TrainingArguments("run", num_train_epochs=2, **options), loader=loader)
    trainer.train()
    assert loader.world_size == 2 and trainer.state.global_step == 2 * len(loader)
    own = sx.Loader(packs, 4, shuffle=True, seed=0, drop_last=True, rank=loader.rank, world_size=2, epochs=2)
    assert [row for one in own for row in one.origin.rows.tolist()] == SEEN
    assert np.isfinite(trainer.evaluate()["eval_loss"])

    assert Path("run/checkpoint-3").exists()
    again = LoaderTrainer(model, TrainingArguments("run", num_train_epochs=3, **options), loader=loader)
    with pytest.raises(AttributeError, match=r"needs both: load_state_dict .* ignore_data_skip=True"):
        again.train(resume_from_checkpoint="run/checkpoint-3")


if __name__ == "__main__":
    main()
