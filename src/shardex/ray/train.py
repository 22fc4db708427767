"""`loader`: the share of a dataset for one worker of Ray Train, resumed at the exact sample of a checkpoint.

The state of a loader is a few numbers, the same on every rank and valid for any number of workers. `save_state` puts it
into a checkpoint, next to the model.
"""

from __future__ import annotations

import json
import os
from typing import Any

import ray.train

from shardex.errors import StateError, WorkerError
from shardex.loader import Loader

_FILE = "shardex_loader.json"


def loader(dataset: Any, batch_size: int | None = None, *, resume: bool = True, **options: Any) -> Loader[Any]:
    """Return a `Loader` with the rank and world size of this worker of Ray Train, to be called in its train function.

    If Ray Train resumes from a checkpoint that has the state of a loader (`save_state`), this one continues there, also
    if the number of workers has changed. `options` are those of `Loader`; `batch_size` is that of one worker.
    """
    try:
        context = ray.train.get_context()
    except RuntimeError as error:
        raise WorkerError(f"expected a call in the train function of Ray Train; use sx.Loader here: {error}") from error
    rank, world_size = context.get_world_rank(), context.get_world_size()
    made: Loader[Any] = Loader(dataset, batch_size, rank=rank, world_size=world_size, **options)
    checkpoint = ray.train.get_checkpoint() if resume else None
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            if os.path.exists(path := os.path.join(folder, _FILE)):
                made.load_state_dict(_read(path))
    return made


def save_state(made: Loader[Any], folder: str | os.PathLike[str]) -> None:
    """Write the state of a loader to the folder of a checkpoint: after the batches taken so far, for all ranks."""
    with open(os.path.join(folder, _FILE), "w", encoding="utf-8") as file:
        json.dump(made.state_dict(), file)


def _read(path: str) -> dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        try:
            state: dict[str, Any] = json.load(file)
        except ValueError as error:
            raise StateError(f"{path}: expected the state of a loader, got {error}") from None
    return state
