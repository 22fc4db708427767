"""`sx.cache` killed, interrupted, without disk space, and by several processes: the old cache or the new one."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ShardexError, VersionExpired
from shardex.store import history, leftovers
from tests.faults import jobs as does
from tests.faults.machine import memory, why_no_memory
from tests.faults.processes import FULL, Call, Job, Jobs, calls, hit, why_no_strace

MOMENTS = 100 if FULL else 3
"""Random moments of each kind of fault."""
FAULTS = {"write": "EIO", "pwrite64": "ENOSPC", "fsync": "EIO", "rename": "EIO", "link": "ENOSPC", "mkdir": "ENOSPC"}
FAULTS |= {"unlink": "EIO", "openat": "EIO", "ftruncate": "EIO"}
OURS = "SourceError|StorageFullError|AccessDeniedError"

pytestmark = pytest.mark.timeout(1800)
needs_strace = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
needs_memory = pytest.mark.skipif(bool(why_no_memory()), reason=why_no_memory())


class Target:
    """A folder with nothing but a cache in it: none at first, or the old one."""

    def __init__(self, room: Path, first: str) -> None:
        self._room, self.first = room, first
        self._old = room / "old"
        does.build_cache("old", str(self._old))
        self.begin()

    def begin(self) -> Path:
        """Make a new folder with what is there at first."""
        self.parent = Path(tempfile.mkdtemp(dir=self._room))
        self.folder = self.parent / "c"
        if self.first == "old":
            shutil.copytree(self._old, self.folder)
        return self.folder

    def end(self) -> None:
        shutil.rmtree(self.parent)

    def found(self) -> str:
        """Return which cache is there, whole and intact; "none" if there is none."""
        if not any(self.folder.glob("_shardex/*.json")):
            with pytest.raises(ShardexError):
                sx.open(self.folder)
            return "none"
        ds = sx.open(self.folder)
        name = str(ds.metadata["cache"]["fingerprint"])
        assert ds["n"].tolist() == list(does.CACHED[name])
        for sample in ds:
            assert sample.s == f"text {sample.n}" * sample.n
            assert sample.pixels.shape == (9, 9, 3) and (sample.pixels == sample.n).all()
        return name

    def check(self, name: str, where: object = "") -> None:
        """Check that this cache is there, and nothing else."""
        assert self.found() == name, where
        assert os.listdir(self.parent) == ["c"], where
        assert leftovers(self.folder) == [], where
        assert sx.verify(self.folder, progress=False) == [], where


@pytest.fixture(params=["none", "old"])
def target(request: pytest.FixtureRequest, room: Path) -> Target:
    return Target(room, request.param)


@pytest.fixture
def replaced(room: Path) -> Target:
    return Target(room, "old")


# -- every system call ------------------------------------------------------------------------------------------


def traced(jobs: Jobs, target: Target, room: Path) -> list[Call]:
    """Return the system calls of an undisturbed build, also those about its lock."""
    target.begin()
    found = calls(jobs, "cache new", target.folder, room / "log", target.parent)
    target.check("new")
    return found


def chosen(calls: list[Call]) -> list[Call]:
    """All calls, or some: around the publication of the version, and every few others."""
    if FULL:
        return calls
    publishing = next(k for k, call in enumerate(calls) if call.name == "link" and "_shardex" in call.words)
    return [*calls[0 : publishing - 2 : 40], *calls[publishing - 2 : publishing + 3], *calls[publishing + 3 :: 25]]


@needs_strace
def test_killed_at_every_call(jobs: Jobs, target: Target, room: Path) -> None:
    """The old cache or the new one is there; the next start, of this generator or the other, leaves nothing else."""
    seen, starts = set(), ["old", "new"]
    for number, call in enumerate(chosen([call for call in traced(jobs, target, room) if call.changes])):
        for then in starts if FULL else [starts[number % 2]]:
            target.begin()
            assert hit(jobs, "cache new", target.folder, room / "log", call, "signal=KILL") in ("", "done")
            seen.add(found := target.found())
            versions = 0 if found == "none" else len(history(target.folder))
            assert jobs.run(f"cache {then}", target.folder) == "done", call
            target.check(then, call)
            assert found != then or len(history(target.folder)) == versions, "expected no second build"
            target.end()
    assert seen == {target.first, "new"}


@needs_strace
def test_error_at_every_call(jobs: Jobs, target: Target, room: Path) -> None:
    """A build that reports success has succeeded; one that failed leaves the old cache, and the next one works."""
    for call in chosen([call for call in traced(jobs, target, room) if call.name in FAULTS and call.changes]):
        target.begin()
        words = hit(jobs, "cache new", target.folder, room / "log", call, f"error={FAULTS[call.name]}")
        if words == "done":
            assert target.found() == "new", call
        else:
            assert re.match(OURS, words), f"{call}: {words}"
            assert target.found() in (target.first, "new"), call
        assert jobs.run("cache new", target.folder) == "done", call
        target.check("new", call)
        target.end()


# -- random moments ---------------------------------------------------------------------------------------------


def until_moment(one: Job, moment: random.Random) -> list[str]:
    """Wait until a build has made some samples, or all, and then a little."""
    heard = [one.hear() or "" for _ in range(moment.randrange(len(does.CACHED["new"]) + 1))]
    return heard + one.hear_for(moment.uniform(0, 0.03))


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT"])
def test_killed_or_interrupted_at_random_moments(jobs: Jobs, target: Target, kind: str) -> None:
    """With two threads that encode images."""
    moment = random.Random(5)
    for number in range(MOMENTS):
        target.begin()
        for again in range(1 + number % 3):
            with jobs.start("run_cache", target.folder, "new", 2, 0.001) as one:
                one.go()
                heard = until_moment(one, moment)
                one.signal(getattr(signal, kind))
                heard += one.hear_all()
            assert target.found() in (target.first, "new"), (number, again)
            if kind == "SIGINT" and "done" not in heard:
                # The interrupt may come while files are removed; then the lock says so to the next start.
                assert set(os.listdir(target.parent)) <= {"c", ".c.shardex-cache.lock"}, (number, heard)
        assert jobs.run("run_cache", target.folder, "new", 2, 0) == "done"
        target.check("new", number)
        target.end()


@needs_memory
def test_disk_full(jobs: Jobs, room: Path) -> None:
    """An error that names the folder, the old cache is there, and nothing else; after space is made it is built."""
    for number in range(160 if FULL else 4):
        with memory(room / "disk", "1m") as disk:
            target = Target(disk, "old" if number % 2 else "none")
            free = 4096 * (number // 2 * (1 if FULL else 8))
            filler = disk / "filler"
            with filler.open("wb") as file:
                usable = os.statvfs(disk)
                file.write(b"x" * max(0, usable.f_bavail * usable.f_frsize - free))
            words = jobs.run("cache new", target.folder)
            if words != "done":
                assert re.match(rf"StorageFullError .*{re.escape(str(target.parent))}", words), words
                assert target.found() == target.first
                assert os.listdir(target.parent) == (["c"] if target.first == "old" else [])
                assert target.first == "none" or leftovers(target.folder) == []
            filler.unlink()
            assert jobs.run("cache new", target.folder) == "done"
            target.check("new", number)


# -- several processes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(20 if FULL else 2))
def test_several_builders(jobs: Jobs, target: Target, number: int) -> None:
    """One builds, the others wait and then read."""
    with ExitStack() as stack:
        runs = [stack.enter_context(jobs.start("run_cache", target.folder, "new", None, 0.002)) for _ in range(4)]
        for one in runs:
            one.go()
        lines = [one.hear_all() for one in runs]
    assert [words[-1] for words in lines] == ["done"] * 4
    assert sorted(len(words) for words in lines) == [1, 1, 1, 1 + len(does.CACHED["new"])]
    target.check("new")


@pytest.mark.parametrize("number", range(20 if FULL else 2))
def test_builder_killed_while_others_wait(jobs: Jobs, target: Target, number: int) -> None:
    """One of the others builds. If that is the second one, which never comes to an end, it is killed too."""
    with ExitStack() as stack:
        endless = [stack.enter_context(jobs.start("run_cache", target.folder, "new", None, 600)) for _ in range(2)]
        others = [stack.enter_context(jobs.start("run_cache", target.folder, "new", None, 0)) for _ in range(2)]
        endless[0].go()
        assert endless[0].hear() == "made 100"
        for one in (endless[1], *others):
            one.go()
        assert endless[1].hear_for(0.05 * (number % 3)) == []
        endless[0].signal(signal.SIGKILL)
        if endless[1].hear() == "made 100":
            endless[1].signal(signal.SIGKILL)
        lines = [one.hear_all() for one in others]
    assert [words[-1] for words in lines] == ["done"] * 2
    assert sum(len(words) == 1 for words in lines) == 1
    target.check("new")


def test_readers_of_the_old_cache_go_on(jobs: Jobs, replaced: Target) -> None:
    """While it is replaced, and after that; the version before it is removed with the next one."""
    old = sx.open(replaced.folder)
    with jobs.start("run_cache", replaced.folder, "new", 2, 0.002) as one:
        one.go()
        while (words := one.hear(0)) != "done":
            assert words != "", "expected a build that ends"
            assert old["n"].tolist() == list(does.CACHED["old"])
    unread = sx.open(replaced.folder, version=1)
    np.testing.assert_array_equal(unread["n"], list(does.CACHED["old"]))
    unread = sx.open(replaced.folder, version=1)
    assert jobs.run("cache old", replaced.folder) == "done"
    with pytest.raises(VersionExpired):
        unread["n"]
    assert [version.number for version in history(replaced.folder)] == [2, 3]
    replaced.check("old")
