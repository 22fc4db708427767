"""`shardex.ray.loader`: workers of a real `TorchTrainer` share an epoch, and resume at the exact sample."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from shardex.errors import WorkerError
from tests.faults.processes import FULL

SAMPLES = 100


def train(config: dict[str, Any]) -> None:
    """Read some batches, note their samples, and report a checkpoint."""
    import ray.train

    loader = sx.ray.loader(config["data"], batch_size=5, shuffle=True, seed=1)
    seen: list[int] = []
    for number, batch in enumerate(loader, 1):
        seen += batch.x.tolist()
        if number == config["batches"]:
            break
    rank = ray.train.get_context().get_world_rank()
    (Path(config["notes"]) / f"{config['run']}-{rank}.json").write_text(json.dumps(seen))
    with tempfile.TemporaryDirectory() as folder:
        sx.ray.save_state(loader, folder)
        checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"samples": len(seen)}, checkpoint=checkpoint)


@pytest.mark.long  # a framework that trains, like Lightning and the Trainer
def test_resume_with_another_number_of_workers(ray_cluster: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    sx.write(tmp_path / "data", [{"x": k} for k in range(SAMPLES)])
    notes = tmp_path / "notes"
    notes.mkdir()
    runs = [(2, 4), (2, 2), (1, None)] if FULL else [(2, 4), (1, None)]
    for run, (workers, batches) in enumerate(runs):
        config = {"data": str(tmp_path / "data"), "notes": str(notes), "run": run, "batches": batches}
        trainer = TorchTrainer(
            train,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
            run_config=RunConfig(name="run", storage_path=str(tmp_path / "storage")),
        )
        trainer.fit()
    seen = [json.loads(path.read_text()) for path in sorted(notes.iterdir())]
    assert [len(samples) for samples in seen] == ([20, 20, 10, 10, 40] if FULL else [20, 20, 60])
    assert sorted(one for samples in seen for one in samples) == list(range(SAMPLES))


def test_outside_of_a_worker(ray_cluster: Any) -> None:
    with pytest.raises(WorkerError, match="expected a call in the train function"):
        sx.ray.loader([{"x": 1}], 1)
