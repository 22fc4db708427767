"""Writers, updaters, a compactor and a cleaner at the same time, killed at random: no acknowledged sample is lost."""

from __future__ import annotations

import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import shardex as sx
from tests.faults import jobs as does
from tests.faults.processes import FULL, Job, Jobs

ACKNOWLEDGED, GRACE = (1500, 60.0) if FULL else (60, 3600.0)
"""Number of samples to append, and the age at which `clean` removes files that no version uses."""

pytestmark = pytest.mark.timeout(1200)


class Runner:
    """A process that does one job, and is started again after a kill; it never uses a number twice."""

    def __init__(self, jobs: Jobs, job: str, folder: Path, *rest: Any, first: int | None = None) -> None:
        self._jobs, self._job, self._folder, self._rest, self._first = jobs, job, folder, rest, first
        self.acknowledged: list[int] = []
        self._running: Job | None = None
        self.start()

    def start(self) -> None:
        more = [] if self._first is None else [self._first]
        self._running = self._jobs.start(self._job, self._folder, *self._rest, *more)
        self._running.go()
        if self._first is not None:
            self._first += 100_000

    def hear(self, seconds: float) -> None:
        """Collect what it has acknowledged; an end is an error."""
        assert self._running is not None
        while (words := self._running.hear(seconds)) is not None:
            assert words.startswith("made "), f"{self._job}: {words}"
            self.acknowledged.append(int(words.removeprefix("made ")))
            seconds = 0

    def kill(self) -> None:
        assert self._running is not None
        with self._running as running:
            running.signal(signal.SIGKILL)
            rest = [int(words.removeprefix("made ")) for words in running.hear_all() if words.startswith("made ")]
        self.acknowledged += rest
        self._running = None


def test_no_acknowledged_sample_is_lost(jobs: Jobs, room: Path) -> None:
    chance = random.Random(11)
    folder = room / "d"
    sx.write(folder, [{"id": -1 - k, "turn": 0} for k in range(does.UPDATED)], does.SAMPLE, shard_rows=1)
    writers = [Runner(jobs, "stress_append", folder, first=k * 10_000_000) for k in range(3)]
    updaters = [Runner(jobs, "stress_update", folder, k, first=1) for k in range(2 if FULL else 1)]
    others = [Runner(jobs, "stress_compact", folder), Runner(jobs, "stress_clean", folder, 1, GRACE)]
    runners = [*writers, *updaters, *others]
    try:
        while sum(len(one.acknowledged) for one in writers) < ACKNOWLEDGED or not all(r.acknowledged for r in runners):
            for one in runners:
                one.hear(0.01)
            if chance.random() < 0.1:
                victim = chance.choice(runners)
                victim.kill()
                victim.start()
    finally:
        for one in runners:
            one.kill()
    ds = sx.open(folder)
    found = ds.read(range(len(ds)))
    ids, turns = found["id"].tolist(), dict(zip(found["id"].tolist(), found["turn"].tolist(), strict=True))
    acknowledged = {id for one in writers for id in one.acknowledged}
    assert not acknowledged.difference(ids), f"lost {len(acknowledged.difference(ids))} of {len(acknowledged)}"
    assert max(Counter(ids).values()) == 1, "a sample was committed twice"
    for who, updater in enumerate(updaters):
        assert turns[-1 - who] >= max(updater.acknowledged)
    assert sx.verify(folder, progress=False) == []
    for keep in (2, 1):
        sx.clean(folder, keep, grace=0)
        assert sx.verify(folder, progress=False) == []
    assert sorted(ids) == sorted(sx.open(folder).read(range(len(ds)))["id"].tolist())
