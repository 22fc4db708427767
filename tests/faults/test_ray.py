"""Nodes of a Ray cluster and drivers are killed at random moments: jobs end with the same files, nothing is left."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shardex as sx
from tests.faults.processes import FULL
from tests.ray import run_in_namespace
from tests.waiting import becomes_true

ROUNDS = 20 if FULL else 1
SECONDS = 3.0
"""A job takes about as long; it is killed within this time."""

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.skipif(not FULL, reason="tests/ray runs the tests of this file too")
def test_in_namespace() -> None:
    run_in_namespace("long", Path(__file__))


def slow(sample: Any) -> dict[str, Any]:
    time.sleep(0.002)
    return {"x": sample.x * 2, "name": f"sample {int(sample.x[0])}"}


def source() -> sx.Dataset:
    return sx.open({"x": np.repeat(np.arange(1_500, dtype="float32"), 100).reshape(1_500, 100)})


def write(path: Path, executor: str | None) -> None:
    sx.write(path, source(), transform=slow, executor=executor, progress=False)


def contents(folder: Path) -> list[str]:
    """Return the hashes of the data files."""
    return sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "data").iterdir())


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of a job that nothing disturbs."""
    folder = tmp_path_factory.mktemp("expected")
    sx.write(folder / "d", source(), transform=slow, workers=2, progress=False)
    return contents(folder / "d")


def add_node(cluster: Any) -> Any:
    """Start a node; on a busy machine Ray sometimes gives up, so try again."""
    for attempt in range(3):
        try:
            return cluster.add_node(num_cpus=2, object_store_memory=100 << 20)
        except Exception as error:
            if attempt == 2 or "timed out during startup" not in str(error):
                raise
    return None


def kill_node(cluster: Any, node: Any, with_workers: bool) -> None:
    """Kill the raylet of a node by SIGKILL, and the processes that run its tasks; those end otherwise by themselves."""
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    children = raylet.children(recursive=True) if with_workers else []
    for process in [raylet, *children]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    cluster.remove_node(node, allow_graceful=False)


@pytest.mark.long
def test_nodes_killed_at_random_moments(ray_cluster: Any, tmp_path: Path, expected: list[str]) -> None:
    chance = random.Random(11)
    for number in range(ROUNDS):
        node = add_node(ray_cluster)
        timer = threading.Timer(chance.uniform(0, SECONDS), kill_node, [ray_cluster, node, chance.random() < 0.5])
        timer.start()
        write(tmp_path / f"d{number}", "ray")
        timer.join()
        assert contents(tmp_path / f"d{number}") == expected
    assert sorted(os.listdir(tmp_path)) == sorted(f"d{number}" for number in range(ROUNDS))


DRIVER = """
import sys
from pathlib import Path
from tests.faults.test_ray import write

print("begins", flush=True)
write(Path(sys.argv[1]), "ray")
"""


@pytest.mark.long
def test_drivers_killed_at_random_moments(ray_cluster: Any, tmp_path: Path, expected: list[str]) -> None:
    """A driver is killed; Ray ends its tasks, and the next driver continues and publishes."""
    chance, path = random.Random(12), tmp_path / "d"
    environment = os.environ | {"RAY_ADDRESS": ray_cluster.address}
    for _ in range(ROUNDS):
        command = [sys.executable, "-c", DRIVER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
            assert driver.stdout is not None and driver.stdout.readline() == "begins\n"
            try:
                driver.wait(chance.uniform(0, SECONDS))
            except subprocess.TimeoutExpired:
                driver.kill()
        if path.exists():  # it was quicker: begin anew
            assert contents(path) == expected
            path = tmp_path / f"{path.name}d"
    write(path, "ray")
    assert contents(path) == expected
    # A driver that was killed after it had published leaves a folder beside its own path, which is not written again.
    assert becomes_true(lambda: not any(name.startswith(f".{path.name}.") for name in os.listdir(tmp_path)))
