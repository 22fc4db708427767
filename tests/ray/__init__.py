"""Tests with a real Ray cluster. It listens on all network interfaces, so they run where there is only loopback.

A test that asks for the fixture `ray_cluster` is left out, unless pytest runs in a network namespace of its own. That
is what `test_in_namespace` does for all of them in one process, with one cluster, and what this command does:
``python -m tests.ray tests/workers/test_ray_executor.py -k cancel``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["namespace_command", "pytest_collection_modifyitems", "pytest_configure", "ray_cluster", "run_in_namespace"]

INSIDE = "SHARDEX_TESTS_WITHOUT_NETWORK"
"""Environment variable that is set in the namespace: the folder of Ray's files."""
ROOT = Path(__file__).parents[2]


def namespace_command(folder: Path, *command: str) -> list[str]:
    """Return the command line that runs a command with loopback only; all its processes end with it."""
    own = ["--map-root-user"] if os.geteuid() else []
    unshare = ["unshare", *own, "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    return [*unshare, sys.executable, "-m", "tests.ray.loopback", str(folder), *command]


def why_no_namespace() -> str:
    """Return why tests with Ray cannot run here; empty if they can."""
    if not shutil.which("unshare"):
        return "needs unshare, of util-linux"
    done = subprocess.run(namespace_command(ROOT, "true"), cwd=ROOT, capture_output=True, text=True, check=False)
    return f"needs a network namespace: {done.stderr.strip()[-200:]}" if done.returncode else ""


def run_in_namespace(mark: str, *files: Path) -> None:
    """Run the tests with Ray and a mark of some files where there is only loopback; skip if that is not possible."""
    pytest.importorskip("ray")
    if reason := why_no_namespace():
        pytest.skip(reason)
    command = [sys.executable, "-m", "tests.ray", "-q", "-m", mark, *map(str, files)]
    output = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as run:
        try:
            print(run.communicate()[0])
        except BaseException:  # the time is over: end the namespace with all its processes
            os.killpg(run.pid, signal.SIGKILL)
            raise
    assert run.returncode == 0, "tests with Ray failed, see their output"


def pytest_configure(config: pytest.Config) -> None:
    """In the namespace a warning is no error: Ray warns of its own code."""
    if INSIDE in os.environ:
        config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests with Ray outside of the namespace, and all others inside."""
    inside = INSIDE in os.environ
    left = [item for item in items if ("ray_cluster" in getattr(item, "fixturenames", ())) != inside]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster` of one node with two CPUs, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    quick = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
    node = {"num_cpus": 2, "object_store_memory": 200 << 20, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, connect=True, head_node_args=node)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
