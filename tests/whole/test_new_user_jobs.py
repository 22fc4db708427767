"""Jobs of a new user: scripts that use only what README and docs say, each run in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.servers import KEY, SECRET, bucket, seaweed

__all__ = ["bucket", "seaweed"]

FOLDER = Path(__file__).parent / "jobs"
ALONE = ("conftest", "s3", "fit_accelerate", "fit_ddp", "fit_lightning", "fit_trainer")
SLOW = ("killed_preparation", "prepare_corpus", "time_series")
"""Jobs whose steps prepare.md, text.md, store.md and train.md have too."""
IN_PYTHON = sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if path.stem not in ALONE)


def run(command: list[str], folder: Path, **variables: str) -> None:
    """Run a command in a folder, with our `python` and `shardex`."""
    paths = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": paths, "SHARDEX_CACHE": str(folder / ".cache"), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def needs(job: str) -> pytest.MarkDecorator:
    """The packages that a job imports."""
    text = (FOLDER / f"{job}.py").read_text("utf-8")
    mark: pytest.MarkDecorator = pytest.mark.needs(*re.findall(r"^ *(?:import|from) (\w+)", text, re.MULTILINE))
    return mark


@pytest.mark.parametrize(
    "job", [pytest.param(job, marks=[needs(job), *([pytest.mark.long] * (job in SLOW))]) for job in IN_PYTHON]
)
def test_job(tmp_path: Path, job: str) -> None:
    run([sys.executable, "-W", "error", str(FOLDER / f"{job}.py")], tmp_path)


@needs("s3")
def test_job_s3(tmp_path: Path, bucket: str, seaweed: str) -> None:
    settings = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    script = str(FOLDER / "s3.py")
    run(
        [sys.executable, "-W", "error", script, bucket],
        tmp_path,
        AWS_ENDPOINT_URL=seaweed,
        AWS_ALLOW_HTTP="1",
        **settings,
    )


@pytest.mark.long
@pytest.mark.needs("torch", "accelerate")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("job", ["fit_accelerate", "fit_ddp", "fit_trainer"])
def test_job_in_two_processes(tmp_path: Path, job: str) -> None:
    run(["torchrun", "--standalone", "--nproc_per_node", "2", str(FOLDER / f"{job}.py")], tmp_path)


@pytest.mark.long
@pytest.mark.needs("torch", "lightning")
@pytest.mark.timeout(300)
def test_job_with_lightning(tmp_path: Path) -> None:
    run([sys.executable, str(FOLDER / "fit_lightning.py"), "two devices"], tmp_path)
    run([sys.executable, str(FOLDER / "fit_lightning.py")], tmp_path)


@pytest.mark.long  # starts 15 processes; tests/cli has the commands, and the console blocks of the pages run
def test_job_shell(tmp_path: Path) -> None:
    run(["sh", str(FOLDER / "shell.sh")], tmp_path)
