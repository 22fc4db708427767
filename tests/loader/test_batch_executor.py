"""Which batches of processes are copied to pinned memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shardex.kernel import Columns
from shardex.loader.batch_executor import StagedResults
from shardex.loader.plan import PreparedBatch
from shardex.loader.stats import TimeSpent
from shardex.workers import InlineExecutor


def staged(device: str | None, *data: Any) -> bool:
    """Whether batches with this data, of another process, are staged."""
    batches, spent, found = [PreparedBatch(1, one) for one in data], TimeSpent(), list[Any]()

    def stage(given: list[PreparedBatch]) -> list[PreparedBatch]:
        found.append(given)
        return given

    executor = StagedResults(InlineExecutor(lambda _: (batches, spent)), SimpleNamespace(device=device, stage=stage))  # type: ignore[arg-type]
    assert executor.result(executor.submit(None)) == (batches, spent)
    return bool(found)


@pytest.mark.parametrize("device", [None, "cuda"])
def test_small_batches_are_not_copied_to_pinned_memory(device: str | None) -> None:
    small, large = (Columns({"x": np.zeros((1, size), np.uint8)}) for size in (1 << 20, 8 << 20))
    assert staged(device, small, small) == (device is not None)
    assert staged(device, large) and staged(device, small, large) and staged(device, "what collate returned")
