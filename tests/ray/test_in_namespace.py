"""Runs all tests that need a Ray cluster, in one process, where there is only loopback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.ray import ROOT, why_no_namespace

pytest.importorskip("ray")


@pytest.mark.timeout(900)
def test_all_tests_with_ray() -> None:
    if reason := why_no_namespace():
        pytest.skip(reason)
    folder = ROOT / "tests"
    found = [path for path in sorted(folder.rglob("test_*.py")) if "ray_cluster: " in path.read_text("utf-8")]
    command = [sys.executable, "-m", "tests.ray", "-q", *map(str, found)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, "tests with Ray failed, see their output above"
