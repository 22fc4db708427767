"""`sx.index` and `sx.tokenize` killed at random moments: the same call continues, and the files are the same."""

from __future__ import annotations

import gzip
import json
import os
import random
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import shardex as sx
from tests.faults.processes import FULL, Job, Jobs
from tests.waiting import becomes_true

MOMENTS = 20 if FULL else 1
DOCUMENTS = 150
SECONDS = 0.002

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of different lengths in two files of lines, one of them compressed."""
    folder, chance = tmp_path_factory.mktemp("corpus"), random.Random(3)
    lines = [json.dumps({"text": "ab " * chance.randrange(30), "id": k}) + "\n" for k in range(DOCUMENTS)]
    (folder / "a.jsonl").write_text("".join(lines[:80]))
    with gzip.open(folder / "b.jsonl.gz", "wt") as file:
        file.writelines(lines[80:])
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What an undisturbed run writes."""
    folder = tmp_path_factory.mktemp("whole") / "tokens"
    with Jobs() as jobs:
        assert jobs.run("tokenize_files", folder, str(corpus), SECONDS, None) == "done"
    made = content(folder)
    assert len(made) > 20, "expected many parts"
    return made


@pytest.mark.parametrize("number", range(MOMENTS))
@pytest.mark.parametrize("whom", ["driver", "worker"])
def test_killed_while_tokenizing(
    jobs: Jobs, room: Path, corpus: Path, expected: dict[str, bytes], whom: str, number: int
) -> None:
    """A driver is killed, once or several times, and the same call continues; without a worker the driver goes on."""
    parent, moment = Path(tempfile.mkdtemp(dir=room)), random.Random(number)
    arguments = ("tokenize_files", parent / "tokens", str(corpus), SECONDS, 2)
    words = ""
    for _ in range(1 + number % 3):
        with jobs.start(*arguments) as one:
            one.go()
            workers = workers_after(parent, one, moment.randrange(20))
            if whom == "worker":
                for worker in workers[:1]:
                    worker.kill()
                words = one.end()
                break
            one.signal(signal.SIGKILL)
            words = one.end()
            assert becomes_true(lambda: not any(worker.is_running() for worker in workers))  # noqa: B023
        if words == "done":
            break
    assert words == "done" or jobs.run(*arguments) == "done"
    assert content(parent / "tokens") == expected
    assert os.listdir(parent) == ["tokens"]
    ds = sx.open(parent / "tokens")
    assert len(ds) == DOCUMENTS
    assert ds[149].tokens.tolist() == [*(ord(letter) for letter in sx.open(corpus)[149].text), 0]


@pytest.mark.parametrize("number", range(MOMENTS))
def test_killed_while_indexing(jobs: Jobs, room: Path, number: int) -> None:
    """A process is killed, once or several times, and the next one continues; the index is that of one run."""
    folder, moment = Path(tempfile.mkdtemp(dir=room)), random.Random(number)
    for k in range(40):
        (folder / f"{k}.jsonl").write_text(
            json.dumps({"text": "x" * moment.randrange(300)}) + "\n" * moment.randrange(3)
        )
    assert jobs.run("index_files", folder, 0) == "done"
    expected = content(folder / ".shardex")
    shutil.rmtree(folder / ".shardex")
    for _ in range(1 + number % 3):
        saves = len(list(folder.glob(".shardex/unfinished-*"))) + moment.randrange(8)
        with jobs.start("index_files", folder, SECONDS) as one:
            one.go()
            assert becomes_true(lambda: has_saved(folder, saves))  # noqa: B023
            time.sleep(moment.uniform(0, 0.005))
            one.signal(signal.SIGKILL)
            one.end()
    was_whole = any(folder.glob(".shardex/lines-*"))  # then it was killed while it removed what it had saved before
    assert jobs.run("index_files", folder, 0) == "done"
    left = content(folder / ".shardex")
    assert {name: data for name, data in left.items() if not name.startswith("unfinished-")} == expected
    assert was_whole or left == expected


def has_saved(folder: Path, times: int) -> bool:
    """Return whether a process has saved what it scanned so many times, or has saved the index of all files."""
    found = [path.name for path in folder.glob(".shardex/*")]
    return sum(name.startswith("unfinished-") for name in found) >= times or any("lines-" in name for name in found)


def workers_after(parent: Path, one: Job, parts: int) -> list[psutil.Process]:
    """Wait until a job has finished some parts, or is over; return its workers."""

    def has_come() -> bool:
        done = sum(len(os.listdir(done)) for done in parent.glob(".tokens.*.job/done"))
        return done >= parts or (parent / "tokens").exists()

    assert becomes_true(has_come)
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(one.pid).children(recursive=True))
    return []
