"""A process that edits without end is killed at random moments: all acknowledged versions exist and are intact."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from tests.faults import jobs as does
from tests.faults.processes import FULL, Job, Jobs
from tests.faults.states import Models, check_chain, check_usable

ROUNDS, RESTART = (500, 20) if FULL else (16, 8)
"""Number of kills, and after how many of them the dataset is made anew."""

pytestmark = pytest.mark.timeout(900)


def killed(job: Job, commits: int, seconds: float) -> int:
    """Kill a process so many seconds after a number of commits; return the last version that it reported."""
    with job:
        job.go()
        lines = [job.hear() or "" for _ in range(commits)] + job.hear_for(seconds)
        job.signal(signal.SIGKILL)
        lines += job.hear_all()
    return does.last_made(lines)


def test_killed_process_does_not_block_others(models: Models, room: Path) -> None:
    """A process is killed while it holds the lock of progress bars; others forked by the same one can edit."""
    models.begin("append", room / "d")
    with Jobs() as family:
        with family.start("hold", room / "d", shared=True) as one:
            one.go()
            assert one.hear() == "made 0"
        with family.start("append", room / "d", shared=True) as one:
            one.go()
            assert one.hear(60) == "done"


def test_killed_at_random_moments(jobs: Jobs, room: Path) -> None:
    """After each kill the dataset is old or new, never older than acknowledged; the next process continues."""
    chance = random.Random(7)
    folder, last, commits = room / "d", 0, 0
    for number in range(ROUNDS):
        made = max(last, killed(jobs.start("chain", folder), chance.randrange(3), chance.uniform(0, 0.05)))
        found = check_chain(folder)
        last = max(found, default=0)
        assert last in (made, made + 1)
        if number % RESTART == RESTART - 1:  # begin anew, so that the work stays the same
            check_usable(folder, found)
            shutil.rmtree(folder)
            commits, last = commits + last, 0
    assert commits > ROUNDS / 2
