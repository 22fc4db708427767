"""Jobs of `sx.write` that are killed, interrupted, or run out of space: the same call again gives the same result."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import shardex as sx
from shardex.sources import open_source
from tests.faults import jobs as does
from tests.faults.machine import memory, why_no_memory
from tests.faults.processes import FULL, Call, Job, Jobs, calls, hit, strace, why_no_strace
from tests.servers import KEY, SECRET
from tests.waiting import becomes_true

MOMENTS = 20 if FULL else 1
"""Random moments of each kind of fault."""
SCHEMA = {"x": sx.Array("int64", (None,))}
_NUMBER = re.compile(rb"(data/[0-9a-f]{32})-[0-9a-f]{16}(\.arrow)")
"""Names of data files; without their numbers they stand for the content."""
OURS = "SourceError|StorageFullError|AccessDeniedError"

pytestmark = pytest.mark.timeout(1800)
needs_strace = pytest.mark.skipif(bool(why_no_strace()), reason=why_no_strace())
needs_memory = pytest.mark.skipif(bool(why_no_memory()), reason=why_no_memory())


class Target:
    """A folder with nothing else beside the target of a job, and what the job writes if nothing disturbs it."""

    def __init__(self, room: Path, format: str, mode: str, **arguments: Any) -> None:
        self.format, self.mode, self.arguments = format, mode, arguments
        self._before = Path(tempfile.mkdtemp(dir=room)) / "before"
        if mode != "create":
            options = {**does.PARTS[format], "format": format, "progress": False}
            sx.write(self._before, does.part_samples(0, 7), SCHEMA, **options)
        undisturbed = self.begin(room)
        does.write_in_parts(format, mode, str(undisturbed), **arguments)
        self._expected = self.found()

    def begin(self, room: Path) -> Path:
        """Make a new folder with the target as it is before the job; indexes of older ones may be in the cache."""
        self.parent = Path(tempfile.mkdtemp(dir=room))
        self.folder = self.parent / "d"
        if self.mode != "create":
            shutil.copytree(self._before, self.folder)
        return self.folder

    def found(self) -> dict[str, str]:
        """Return the content of all files but for times, random numbers, and indexes."""
        made = {}
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and not name.startswith(".shardex/") and not re.fullmatch(r"\.[0-9a-f]{16}\.tmp", name):
                data = path.read_bytes()
                if name.startswith("_shardex/"):
                    manifest = {**json.loads(_NUMBER.sub(rb"\1\2", data))["manifest"], "made": "", "commit": ""}
                    data = json.dumps(manifest).encode()
                made[_NUMBER.sub(rb"\1\2", name.encode()).decode()] = hashlib.sha256(data).hexdigest()
        return made

    def check(self, where: object = "") -> None:
        """Check that the result is the expected one, is sound, and that nothing else is left."""
        assert self.found() == self._expected, where
        assert os.listdir(self.parent) == ["d"], where
        assert sx.verify(self.folder, progress=False) == [], where
        schema = SCHEMA if self.format in ("jsonl", "tar") else None
        ds = sx.open(self.folder, format=self.format, schema=schema)
        old = 7 if self.mode == "append" else 0
        new = [sample["x"] + 1 for sample in does.part_samples(20, self.arguments.get("count", 10))]
        for row, wanted in enumerate([*(one["x"] for one in does.part_samples(0, old)), *new]):
            np.testing.assert_array_equal(ds[row]["x"], wanted)
        assert len(ds) == old + len(new), where


# -- the process that publishes ---------------------------------------------------------------------------------------


@needs_strace
@pytest.mark.parametrize("name", does.IN_PARTS)
def test_killed_at_every_call(name: str, jobs: Jobs, room: Path) -> None:
    """Inside of parts, between links, before and after the publication, while the folder of the job is removed."""
    _, mode, format = name.split()
    target = Target(room, format, mode)
    for call in chosen(traced(jobs, name, target, room), mode):
        target.begin(room)
        assert hit(jobs, name, target.folder, room / "log", call, "signal=KILL") in ("", "done"), call
        again = jobs.run(name, target.folder)
        assert again == "done", f"{call}: {again}"
        target.check(call)
        shutil.rmtree(target.parent)


@needs_strace
@pytest.mark.parametrize("name", [name for name in does.IN_PARTS if FULL or name.endswith(("arrow", "jsonl"))])
def test_error_at_every_call(name: str, jobs: Jobs, room: Path) -> None:
    """A call that reports success has succeeded; one that failed can be run again."""
    _, mode, format = name.split()
    target = Target(room, format, mode)
    faults = {"write": "EIO", "fsync": "EIO", "link": "ENOSPC", "rename": "EIO", "mkdir": "ENOSPC", "unlink": "EIO"}
    for call in chosen(traced(jobs, name, target, room), mode):
        if call.name not in faults:
            continue
        target.begin(room)
        words = hit(jobs, name, target.folder, room / "log", call, f"error={faults[call.name]}")
        if words != "done":
            assert re.match(OURS, words), f"{call}: {words}"
            words = jobs.run(name, target.folder)
        assert words == "done", f"{call}: {words}"
        target.check(call)
        shutil.rmtree(target.parent)


@needs_strace
@pytest.mark.parametrize("name", ["parts create arrow", "parts append arrow", "parts create jsonl"])
def test_file_system_without_links(name: str, jobs: Jobs, room: Path) -> None:
    """Files are renamed and copied instead."""
    _, mode, format = name.split()
    target = Target(room, format, mode)
    target.begin(room)
    no_links = ("-e", "trace=link,linkat", "-e", "inject=link,linkat:error=EPERM")
    with jobs.start(name, target.folder) as one, strace(one.pid, room / "log", *no_links):
        one.go()
        assert one.end() == "done"
    assert "(INJECTED)" in (room / "log").read_text()
    target.check()


def traced(jobs: Jobs, name: str, target: Target, room: Path) -> list[Call]:
    """Return the system calls of an undisturbed job that change something."""
    target.begin(room)
    found = calls(jobs, name, target.folder, room / "log", target.parent)
    target.check()
    return [call for call in found if call.changes]


def chosen(calls: list[Call], mode: str) -> list[Call]:
    """All calls; in the short form one while parts are written and some after that."""
    if FULL:
        return calls
    commit = next(number for number, call in enumerate(calls) if "commit.json" in call.words)
    publishing = [call for call in calls[commit:] if call.name in ("link", "rename", "renameat2")]
    if mode == "create":
        return [calls[commit // 2], publishing[-1]]
    return [publishing[0], *publishing[-2:], calls[-1]]


# -- random moments, with worker processes ----------------------------------------------------------------------------

COUNT = 60
MORE = {"count": COUNT, "workers": 2, "seconds": 0.005}
chance = random.Random(os.environ.get("SHARDEX_SEED", "5"))


def cases(kind: str) -> list[Any]:
    names = [name.split()[1:] for name in does.IN_PARTS]
    return [pytest.param(*chance.choice(names), number, id=f"{kind}-{number}") for number in range(MOMENTS)]


@contextmanager
def running(jobs: Jobs, target: Target) -> Iterator[Job]:
    with jobs.start("run_in_parts", target.folder, target.format, target.mode, MORE) as one:
        one.go()
        yield one


def finished_parts(target: Target) -> int:
    return sum(len(os.listdir(done)) for done in target.parent.glob(".d.*.job/done"))


def until_moment(target: Target, one: Job, number: int) -> list[str]:
    """Wait until a random number of parts is finished, and then a little; return what the process has said."""
    moment = random.Random(f"{number} {target.format} {target.mode}")
    wanted = moment.randrange(COUNT // 3)
    heard: list[str | None] = []

    def has_come() -> bool:
        heard.append(one.hear(0))
        return finished_parts(target) >= wanted or heard[-1] is not None

    assert becomes_true(has_come)
    return [*filter(None, heard), *one.hear_for(moment.uniform(0, 0.05))]


def end(jobs: Jobs, target: Target) -> None:
    """Run the same call until it succeeds."""
    assert jobs.run("run_in_parts", target.folder, target.format, target.mode, MORE) == "done"
    target.check()


def children(one: Job) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(one.pid).children(recursive=True))
    return []


def are_gone(processes: list[psutil.Process]) -> bool:
    return becomes_true(lambda: not any(process.is_running() for process in processes))


def shared_memory() -> set[str]:
    """Files of shardex in shared memory; other programs may have some too."""
    return {name for name in os.listdir("/dev/shm") if "shardex" in name}


@pytest.mark.parametrize(("mode", "format", "number"), cases("worker"))
def test_worker_killed(jobs: Jobs, room: Path, mode: str, format: str, number: int) -> None:
    """The job goes on with another worker."""
    target = Target(room, format, mode, count=COUNT)
    target.begin(room)
    with running(jobs, target) as one:
        lines = until_moment(target, one, number)
        workers = children(one)
        if workers:
            workers[number % len(workers)].kill()
        assert [line for line in [*lines, *one.hear_all()] if not line.startswith(("looked ", "ends "))] == ["done"]
        assert are_gone(workers)
    target.check()


@pytest.mark.parametrize(("mode", "format", "number"), cases("driver"))
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT"])
def test_driver_killed_or_interrupted(jobs: Jobs, room: Path, kind: str, mode: str, format: str, number: int) -> None:
    """Its workers end, and the same call continues; sometimes it is killed again."""
    target, before = Target(room, format, mode, count=COUNT), shared_memory()
    target.begin(room)
    for again in range(1 + number % 3):
        with running(jobs, target) as one:
            lines = until_moment(target, one, 7 * number + again)
            workers = children(one)
            one.signal(getattr(signal, kind))
            lines += one.hear_all()
            assert are_gone(workers)
        if "done" in lines:
            break
    else:
        end(jobs, target)
    target.check()
    assert shared_memory() <= before


@needs_memory
@pytest.mark.parametrize("number", range(MOMENTS))
def test_disk_full(jobs: Jobs, room: Path, number: int) -> None:
    """An error that says so; after space is made the same call continues."""
    format, mode = chance.choice(sorted(does.PARTS)), chance.choice(["create", "overwrite"])
    with memory(room / "disk", "4m") as disk:
        target = Target(disk, format, mode, count=COUNT)
        target.begin(disk)
        free = 4096 * random.Random(number).randrange(1, 90)
        filler = disk / "filler"
        with filler.open("wb") as file:
            usable = os.statvfs(disk)
            file.write(b"x" * max(0, usable.f_bavail * usable.f_frsize - free))
        words = jobs.run("run_in_parts", target.folder, format, mode, MORE)
        assert words == "done" or re.match(rf"StorageFullError .*{re.escape(str(target.parent))}", words), words
        filler.unlink()
        if words != "done":
            end(jobs, target)
        target.check()


# -- several runs of the same job at the same time ------------------------------------------------------------------


@pytest.mark.parametrize("number", range(20 if FULL else 3))
def test_runs_at_the_same_time(jobs: Jobs, room: Path, number: int) -> None:
    """One publishes; the others say that it has, or publish too if they add samples and began after its end."""
    moment = random.Random(number)
    format, mode = moment.choice(sorted(does.PARTS)), moment.choice(["create", "append", "overwrite"])
    format = "jsonl" if (format, mode) == ("bins", "append") else format
    target = Target(room, format, mode)
    target.begin(room)
    with ExitStack() as stack:
        arguments = ("run_in_parts", target.folder, format, mode, {"seconds": 0.002})
        runs = [stack.enter_context(jobs.start(*arguments)) for _ in range(2 + number % 2)]
        for one in runs:
            one.go()
            time.sleep(moment.uniform(0, 0.03))
        words = [one.end() for one in runs]
    assert "done" in words
    assert all(one == "done" or one.startswith("AlreadyExistsError") for one in words), words
    if mode != "append" or words.count("done") == 1:
        target.check(words)
    else:
        added = len(sx.open(target.folder, format=format, schema=SCHEMA if format in ("jsonl", "tar") else None)) - 7
        assert added in range(10, 10 * words.count("done") + 1, 10)
        assert os.listdir(target.parent) == ["d"]


@pytest.mark.parametrize("format", ["arrow", "jsonl", "tar"])
def test_pairs_of_appends(jobs: Jobs, room: Path, format: str) -> None:
    """Of two runs both publish only if the second one began when the first one had ended, which renames its folder."""
    target = Target(room, format, "append", count=4)
    for number in range(200 if FULL else 10):
        target.begin(room)
        with ExitStack() as stack:
            arguments = ("run_in_parts", target.folder, format, "append", {"count": 4})
            runs = [stack.enter_context(jobs.start(*arguments)) for _ in range(2)]
            for one in runs:
                one.go()
                time.sleep(random.Random(number).uniform(0, 0.06))
            lines = [one.hear_all() for one in runs]
        assert {words[-1].split()[0] for words in lines} <= {"done", "AlreadyExistsError"}, lines
        added = len(sx.open(target.folder, format=format, schema=SCHEMA if format in ("jsonl", "tar") else None)) - 7
        if added != 8:
            target.check(lines)
        else:
            looked = max(int(words[0].removeprefix("looked ")) for words in lines)
            assert looked > min(int(words[1].removeprefix("ends ")) for words in lines), lines


# -- an object store --------------------------------------------------------------------------------------------------


def opened(url: str, format: str) -> sx.Dataset[Any]:
    return sx.open(url, format=format, schema=SCHEMA if format == "jsonl" else None)


def is_over(url: str, format: str, wanted: int) -> bool:
    """True if a job was killed after its last request, and before it could say so: the same call is a new job."""
    parent, _, name = url.rpartition("/")
    names = {path.partition("/")[0] for path in open_source(parent).paths()}
    return names == {name} and len(opened(url, format)) == wanted


@pytest.mark.parametrize(("format", "mode"), [("arrow", "create"), ("arrow", "append"), ("jsonl", "create")])
def test_driver_killed_at_a_bucket(
    bucket: str, seaweed: str, jobs: Jobs, room: Path, format: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call continues, and leaves nothing but the dataset."""
    monkeypatch.setenv("SHARDEX_CACHE", str(room / "cache"))
    keys = {"access_key_id": KEY, "secret_access_key": SECRET, "region": "us-east-1", "allow_http": True}
    storage = {"storage": [bucket.rpartition("/")[0]], "settings": {"endpoint": seaweed, **keys}}
    arguments = (format, mode, {**storage, "cache": str(room / "cache")})
    for number in range(MOMENTS if FULL else 2):
        moment = random.Random(number)
        url = f"{bucket}/{number}/d"
        wanted = [list(one["x"] + 1) for one in does.part_samples(20, 10)]
        if mode == "append":
            old = does.part_samples(0, 7)
            sx.write(url, old, SCHEMA, progress=False)
            wanted = [*(list(one["x"]) for one in old), *wanted]
        for _ in range(2):
            with jobs.start("run_in_parts", url, *arguments) as one:
                one.go()
                lines = one.hear_for(moment.uniform(0, 0.6))
                one.signal(signal.SIGKILL)
                lines += one.hear_all()
            if "done" in lines or is_over(url, format, len(wanted)):
                break
        else:
            assert jobs.run("run_in_parts", url, *arguments) == "done"
        ds = opened(url, format)
        assert [list(one["x"]) for one in ds] == wanted
        assert {path.partition("/")[0] for path in open_source(f"{bucket}/{number}").paths()} == {"d"}
