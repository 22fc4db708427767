"""`ExecutorSuite`: an executor runs jobs as all executors do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.dataset import open as open_dataset
from shardex.dataset import write
from shardex.workers import Executor, ExecutorLike, start_executor


def _halve(task: Any) -> Any:
    """Return half of a number or of an array."""
    if isinstance(task, int) and task % 2:
        raise ValueError(f"{task} is odd")
    return task // 2


class ExecutorSuite:
    """Tests that an executor runs a job for many tasks as all executors do. Override the fixture `executor`.

    >>> class TestMine(ExecutorSuite):
    ...     @pytest.fixture
    ...     def executor(self):
    ...         return "threads"
    """

    @pytest.fixture
    def executor(self) -> ExecutorLike:
        """What a user passes as ``executor``."""
        raise NotImplementedError("expected a fixture `executor` that returns one, or its name, got none")

    @pytest.fixture
    def running(self, executor: ExecutorLike) -> Iterator[Executor]:
        """An executor with two workers that has been started."""
        with closing(start_executor(_halve, 2, executor)) as running:
            yield running

    def test_results_of_many_tasks(self, running: Executor) -> None:
        assert running.width >= 1
        tickets = [running.submit(2 * k) for k in range(50)]
        assert [running.result(ticket) for ticket in reversed(tickets)] == list(reversed(range(50)))

    def test_arrays(self, running: Executor) -> None:
        assert running.result(running.submit(np.arange(100_000))).tolist() == [k // 2 for k in range(100_000)]

    def test_errors_are_those_of_the_job(self, running: Executor) -> None:
        right, wrong = running.submit(2), running.submit(3)
        with pytest.raises(ValueError, match="3 is odd"):
            running.result(wrong)
        assert running.result(right) == 1

    def test_tasks_can_be_forgotten(self, running: Executor) -> None:
        for k in range(50):
            running.submit(2 * k)
        running.forget()
        assert running.result(running.submit(8)) == 4

    def test_datasets_are_those_of_one_process(self, executor: ExecutorLike, tmp_path: Path) -> None:
        source = open_dataset([{"x": k} for k in range(200)])
        made = write(tmp_path / "d", source, transform=lambda s: {"y": 2 * s.x}, executor=executor, workers=2)
        assert [sample.y for sample in made] == [2 * k for k in range(200)]
