"""Chooses the executor that makes the batches of a loader: the loop itself, threads or processes; and the staging."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from shardex.dataset import ReadSize
from shardex.kernel import Columns, byte_size
from shardex.loader.device_staging import PLAN_BYTES, PLAN_ROWS, Staging
from shardex.loader.plan import PreparedBatch
from shardex.loader.recipe import Recipe
from shardex.loader.tensors import find_device, to_tensors
from shardex.sources import export_credentials, import_credentials
from shardex.workers import Executor, InlineExecutor, ProcessPool, ThreadExecutor

_LEAST_PINNED = 8 << 20
"""Bytes from which on a batch of another process is copied to pinned memory.

Batches of 2.4 MB reach a device at 4.8 GB/s from ordinary and 3.9 from pinned memory, those of 38 MB at 6 and 14.
"""


class StagedResults:
    """An executor whose results are staged when they are taken: for batches that were made in other processes."""

    def __init__(self, executor: Executor, staging: Staging) -> None:
        self._executor = executor
        self._staging = staging
        self.width = executor.width
        self.submit, self.forget, self.close = executor.submit, executor.forget, executor.close

    def result(self, ticket: Any) -> Any:
        """Wait for the batches of a plan; return them on the device, or pinned if they are large.

        The copy to the device need not have ended.
        """
        batches, spent = self._executor.result(ticket)
        if self._staging.device is None and are_small(batches):
            return batches, spent
        return self._staging.stage(batches), spent


def are_small(batches: Sequence[PreparedBatch]) -> bool:
    """Return whether copying batches to pinned memory takes longer than it saves."""
    return all(isinstance(one.data, Columns) and byte_size(one.data) < _LEAST_PINNED for one in batches)


def make_staging(recipe: Recipe) -> Staging | None:
    """Return the `Staging` that places batches on a device or in pinned memory; None for ordinary memory."""
    options = recipe.options
    if options.device is None and not options.pin_memory:
        return None
    return Staging(recipe, None if options.device is None else find_device(options.device), options.workers or 1)


def start_batch_executor(recipe: Recipe, staging: Staging | None) -> Executor:
    """Return an executor that makes the batches of plans as the options say.

    For a device, batches are made in a thread even without workers: the next ones while the model computes.
    """
    options = recipe.options
    if in_processes(recipe):
        credentials = partial(import_credentials, export_credentials())
        pool: ProcessPool = ProcessPool(recipe, options.workers, initializer=credentials)
        return pool if staging is None else StagedResults(pool, staging)
    convert = to_tensors if options.to == "torch" else None
    if options.workers or options.device is not None:
        return ThreadExecutor(partial(recipe, to_tensors=convert) if staging is None else staging, options.workers or 1)
    return InlineExecutor(partial(recipe.lazily, to_tensors=convert) if staging is None else staging)


def in_processes(recipe: Recipe) -> bool:
    """Return whether batches are made in other processes."""
    options = recipe.options
    chosen = options.worker_type == "process" or (options.worker_type == "auto" and recipe.in_python)
    return options.workers > 0 and chosen


def plan_size(recipe: Recipe, batch: int) -> ReadSize:
    """Return a function that chooses the number of batches in a plan, given the samples in a batch.

    Plans of threads that copy to a device are large. Those of processes are not: the memory that they share would be
    cold, and large plans would keep few of them busy.
    """
    options = recipe.options
    staged = (options.device is not None or options.pin_memory) and not in_processes(recipe)
    return ReadSize(batch, PLAN_BYTES, PLAN_ROWS) if staged else ReadSize(batch)


def max_pending(recipe: Recipe) -> int:
    """Return the number of plans that are submitted before the first result is taken."""
    workers, read_ahead = recipe.options.workers, recipe.options.read_ahead
    if recipe.options.device is not None and not in_processes(
        recipe
    ):  # memory on the device is dear, and its plans are large
        return max(workers or 1, workers + 2 if read_ahead is None else read_ahead)
    if not workers:
        return 1
    return max(workers, 2 * workers if read_ahead is None else read_ahead)
