"""Runs the tests that need a Ray cluster, in one process, where there is only loopback."""

from __future__ import annotations

import pytest

from tests.ray import ROOT, run_in_namespace


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mark", ["not long", pytest.param("long", marks=pytest.mark.long)])
def test_all_tests_with_ray(mark: str) -> None:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    run_in_namespace(mark, *[path for path in files if "ray_cluster: " in path.read_text("utf-8")])
