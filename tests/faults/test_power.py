"""Power loss at random moments: a copy of the disk has all acknowledged versions, and they are intact.

The disk is an ext4 image. A copy of it holds what was written to the device, without what was only in memory: that is
what the machine finds after a restart.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from shardex.errors import ShardexError
from tests.faults import jobs as does
from tests.faults.machine import ext4, make_image, why_no_ext4
from tests.faults.processes import FULL, Job, Jobs
from tests.faults.states import check_chain, check_usable

CUTS = 200 if FULL else 6
SIZE = 8 << 20

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_no_ext4()), reason=why_no_ext4()),
]


class Disk:
    """An image, the folder where it is mounted, and copies of the image."""

    def __init__(self, room: Path) -> None:
        self._image, self._copy, self._look = room / "image", room / "copy", room / "look"
        make_image(self._image, SIZE)
        self.mounted = ext4(self._image, room / "disk")
        self.folder = room / "disk" / "d"

    def cut(self) -> None:
        """Copy the content of the device at one moment: until the copy equals the device."""
        self._copy.unlink(missing_ok=True)  # never a file that some mount may still be about
        same = False
        while not same:
            shutil.copyfile(self._image, self._copy)
            same = subprocess.run(["cmp", "-s", str(self._image), str(self._copy)], check=False).returncode == 0

    def after_the_cut(self) -> AbstractContextManager[Path]:
        """Mount the copy, as after a restart of the machine."""
        return ext4(self._copy, self._look)


@pytest.fixture
def disk(room: Path) -> Iterator[Disk]:
    made = Disk(room)
    with made.mounted:
        yield made


def cut_power(job: Job, disk: Disk, commits: int, seconds: float) -> int:
    """Copy the disk so many seconds after a number of commits; return the last version that was reported before."""
    job.signal(signal.SIGCONT)
    lines = [job.hear() or "" for _ in range(commits)] + job.hear_for(seconds)
    job.signal(signal.SIGSTOP)
    lines += job.hear_for(0)
    disk.cut()
    return does.last_made(lines)


def test_power_loss(jobs: Jobs, disk: Disk) -> None:
    """All versions acknowledged before the power loss exist and are intact, and the next edit works."""
    chance, made = random.Random(11), 0
    with jobs.start("chain", disk.folder) as job:
        job.go()
        for _ in range(CUTS):
            made = max(made, cut_power(job, disk, chance.randrange(4), chance.uniform(0, 0.05)))
            with disk.after_the_cut() as there:
                found = check_chain(there / "d")
                assert max(found, default=0) >= made
                if found:
                    check_usable(there / "d", found)


def test_power_loss_without_syncs_loses_versions(jobs: Jobs, disk: Disk) -> None:
    """Without syncs versions are lost: this shows that the simulated power loss is effective."""
    with jobs.start("chain", disk.folder, unsynced=True) as job:
        job.go()
        made = cut_power(job, disk, 3, 0)
        with disk.after_the_cut() as there, pytest.raises((AssertionError, ShardexError)):
            assert max(check_chain(there / "d"), default=0) >= made
