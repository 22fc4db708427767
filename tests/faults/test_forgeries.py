"""Forged native datasets with right checksums: every read works or raises an error of shardex, and nothing crashes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.processes import FULL

ROOT = Path(__file__).parents[2]
CASES = 3000 if FULL else 40

pytestmark = pytest.mark.timeout(900)


def test_forged_datasets(room: Path) -> None:
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.faults.forgeries", str(room), "0", str(CASES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [line["wrong"] for line in lines if "wrong" in line]
    assert not wrong, "\n\n".join(wrong[:3])
    assert lines and "end" in lines[-1], f"the process ended in {lines[-1:]}: {done.stderr[-3000:]}"
